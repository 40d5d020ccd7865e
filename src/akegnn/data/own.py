"""A person's own graph: a folder with two CSV files, a saved PyG object, a ``Data`` with an adjacency."""

from __future__ import annotations

import copy
import csv
import hashlib
import io
import math
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import AttrType, GlobalStorage
from torch_geometric.utils import coalesce, to_undirected

from ..errors import AkeError

# Everything a saved graph may consist of, besides tensors and plain containers. Nothing here runs code when it is read.
# A graph that was in use also holds PyG's notes on its attributes, in a ``defaultdict``, which torch cannot refill.
SAFE: list[Any] = [AttrType, Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
SAFE += [(lambda factory=None: {}, "collections.defaultdict")]


@contextmanager
def _only(safe: list[Any]) -> Iterator[None]:
    """Let torch read these classes and no others: PyG adds to a list that holds for the whole process, and one of its
    additions (``ClusterData``) reads another file in its constructor, with arbitrary unpickling."""
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(safe)
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def read_saved(path: Path) -> Data | list[Data]:
    """A ``Data`` or a list of them, saved with ``torch.save``; any other class in the file is refused unread."""
    try:
        with _only(SAFE), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an error is one line
            saved = torch.load(path, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as e:
        found = str(e).partition("GLOBAL ")[2].split(" ")[0]
        what = f"it names {found}" if found else "it is not a file of tensors"
        raise AkeError(f"{path}: not a saved PyG Data ({what}); expected torch.save(data, path)") from None
    except Exception as e:
        raise AkeError(f"{path}: cannot be read as a saved PyG Data ({type(e).__name__})") from None
    graphs = list(saved) if isinstance(saved, list | tuple) else [saved]
    if graphs and all(isinstance(g, Data) for g in graphs):
        for g in graphs:
            g._store.__dict__.pop("_cached_attr", None)  # PyG makes its notes anew
        return graphs if isinstance(saved, list | tuple) else graphs[0]
    raise AkeError(f"{path}: holds a {type(saved).__name__}; expected a PyG Data or a list of them")


def digest(data: str) -> str:
    """Of a person's files, to know them again; nothing where there are none."""
    path = Path(data)
    files = [path / "nodes.csv", path / "edges.csv"] if path.is_dir() else [path]
    if not all(f.is_file() for f in files):
        return ""
    made = hashlib.sha256()
    for f in files:
        with f.open("rb") as opened:
            made.update(hashlib.file_digest(opened, "sha256").digest())
    return made.hexdigest()


def read_folder(folder: Path) -> Data:
    """``nodes.csv`` (id, label, split, features) and ``edges.csv`` (source, target, weight, features).

    ``label``, ``split`` and ``weight`` may be missing; a cell of ``label`` or ``split`` may be empty. Every other
    column is a feature and must be a number. Edges are taken as undirected.
    """
    nodes, edges = folder / "nodes.csv", folder / "edges.csv"
    header, rows = _read(nodes, required=("id",))
    names = [n for n in header if n not in ("id", "label", "split")]
    if not names:
        raise AkeError(f"{nodes}: no feature column (besides id, label and split)")
    index: dict[str, int] = {}
    features, labels, splits = [], [], []
    for line, row in rows:
        if row["id"] in index:
            raise AkeError(f"{nodes}: line {line}: id {row['id']!r} appears twice")
        index[row["id"]] = len(index)
        features.append([_number(nodes, line, n, row[n]) for n in names])
        labels.append(row.get("label", ""))
        splits.append(row.get("split", ""))
        if splits[-1] not in ("", "train", "val", "test"):
            raise AkeError(f"{nodes}: line {line}: split must be train, val, test or empty, got {splits[-1]!r}")
    if not index:
        raise AkeError(f"{nodes}: no node")
    data = Data(x=torch.tensor(features))
    classes = sorted({x for x in labels if x != ""}, key=lambda x: (0, int(x), x) if x.isdecimal() else (1, 0, x))
    if odd := _fraction(classes):
        raise AkeError(
            f"{nodes}: column 'label' must be integers or text that name classes; "
            f"it has {len(classes)} different numbers, such as {odd} (rename or remove the column if it is no class)"
        )
    if classes:
        number = {name: k for k, name in enumerate(classes)} | {"": -1}
        data.y = torch.tensor([number[x] for x in labels])
        data.classes = classes
    for part in ("train", "val", "test"):
        if part in splits:
            data[f"{part}_mask"] = torch.tensor([s == part for s in splits])
    data.ids, data.feature_names = list(index), names
    data.edge_index, attributes = _read_edges(edges, index)
    data.update(attributes)
    return data


def _fraction(labels: list[str]) -> str | None:
    """One of the labels that is not whole, where all of them are numbers: then they are measured, not named."""
    try:
        numbers = [float(x) for x in labels]
    except ValueError:
        return None
    return next((x for x, n in zip(labels, numbers, strict=True) if math.isfinite(n) and n != int(n)), None)


def names_of(data: Data, key: str) -> list[str] | None:
    """The names of nodes, classes or features that a graph brings along; anything else under that key is not ours."""
    value = data.get(key)
    return list(value) if isinstance(value, list | tuple) and all(isinstance(x, str) for x in value) else None


def in_order(data: Data, names: list[str] | None) -> Data:
    """The features in the order in which a network was trained on them, where they have names."""
    own = names_of(data, "feature_names")
    if not names or not own or own == names or len(own) != data.x.shape[1]:
        return data
    for what, these, others in (("missing", names, own), ("not one that the network knows", own, names)):
        if odd := next((n for n in these if n not in others), None):
            raise AkeError(f"data: feature {odd!r}: {what}")
    data = copy.copy(data)
    data.x, data.feature_names = data.x[:, [own.index(n) for n in names]], names
    return data


def read_pairs(path: Path, index: dict[str, int]) -> Tensor:
    """Pairs of nodes ``[2, P]`` from a CSV file with the columns source and target."""
    ends = [ends for _, _, ends in _ends(path, index)]
    if not ends:
        raise AkeError(f"{path}: no pair")
    return torch.tensor(ends).t().contiguous()


def _ends(path: Path, index: dict[str, int]) -> Iterator[tuple[int, dict[str, str], tuple[int, int]]]:
    _, rows = _read(path, required=("source", "target"))
    for line, row in rows:
        for end in ("source", "target"):
            if row[end] not in index:
                raise AkeError(f"{path}: line {line}: {end} {row[end]!r} is not the id of a node")
        yield line, row, (index[row["source"]], index[row["target"]])


def _read_edges(path: Path, index: dict[str, int]) -> tuple[Tensor, dict[str, Tensor]]:
    ends, weights, attributes, names = [], [], [], []
    for line, row, pair in _ends(path, index):
        names = [n for n in row if n not in ("source", "target", "weight")]
        ends.append(pair)
        if "weight" in row:
            weights.append(_number(path, line, "weight", row["weight"]))
        attributes.append([_number(path, line, n, row[n]) for n in names])
    if not ends:
        raise AkeError(f"{path}: no edge")
    edge_index = torch.tensor(ends).t().contiguous()
    given = [torch.tensor(weights)] if weights else []
    given += [torch.tensor(attributes)] if names else []
    # Both directions of an edge carry its weight; an edge that is listed twice, or both ways round, counts once.
    edge_index, merged = coalesce(edge_index, given, len(index), reduce="mean") if given else (coalesce(edge_index), [])
    edge_index, merged = to_undirected(edge_index, merged, len(index), reduce="mean")
    out = {}
    if weights:
        out["edge_weight"] = merged[0]
    if names:
        out["edge_attr"] = merged[-1]
    return edge_index, out


def _read(path: Path, required: tuple[str, ...]) -> tuple[list[str], Iterator[tuple[int, dict[str, str]]]]:
    """Header and numbered rows of a CSV file, every row as long as the header."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as e:
        raise AkeError(f"{path}: cannot be read ({e.strerror})") from None
    except UnicodeDecodeError:
        raise AkeError(f"{path}: not UTF-8 text") from None
    lines = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [name.strip() for name in next(lines, [])]
    except csv.Error as e:
        raise AkeError(f"{path}: line {lines.line_num}: {e}") from None
    for name in required:
        if name not in header:
            raise AkeError(f"{path}: missing column {name!r} (found {', '.join(header) or 'none'})")
    if len(set(header)) < len(header):
        raise AkeError(f"{path}: a column name appears twice")

    def rows() -> Iterator[tuple[int, dict[str, str]]]:
        while True:
            try:
                row = next(lines)
            except StopIteration:
                return
            except csv.Error as e:
                raise AkeError(f"{path}: line {lines.line_num}: {e}") from None
            if not row:
                continue
            if len(row) != len(header):
                raise AkeError(f"{path}: line {lines.line_num}: {len(row)} cells, expected {len(header)}")
            yield lines.line_num, {k: v.strip() for k, v in zip(header, row, strict=True)}

    return header, rows()


def _number(path: Path, line: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise AkeError(f"{path}: line {line}: column {column!r} must be a number, got {text!r}") from None
    if not abs(value) <= torch.finfo(torch.float32).max:
        raise AkeError(f"{path}: line {line}: column {column!r} must be finite, got {text!r}")
    return value


def usual(data: Data) -> Data:
    """A graph as all else expects it: edges as long integers in ``edge_index``, features without a history."""
    data = copy.copy(with_edges(data))
    edges, x = data.get("edge_index"), data.get("x")
    if isinstance(edges, Tensor) and edges.dtype in (torch.int32, torch.int16, torch.uint8, torch.int8):
        data.edge_index = edges.long()
    if isinstance(x, Tensor) and x.requires_grad:
        data.x = x.detach()
    return data


def with_edges(data: Data) -> Data:
    """A graph given by its transposed adjacency (``adj_t``) gets ``edge_index`` and ``edge_weight`` from it.

    The adjacency itself goes in any case: no view changes it, and held-out edges would stay in it.
    """
    adjacency = data.get("adj_t")
    if adjacency is None:
        return data
    if data.get("edge_index") is not None:
        data = copy.copy(data)
        del data["adj_t"]
        return data
    if not isinstance(adjacency, Tensor):  # torch_sparse.SparseTensor, where a person has it installed
        adjacency = adjacency.to_torch_sparse_coo_tensor()
    coo = adjacency.to_sparse_coo().coalesce()
    data = copy.copy(data)
    del data["adj_t"]
    data.edge_index = coo.indices().flip(0)
    if not bool((coo.values() == 1).all()):
        data.edge_weight = coo.values()
    return data
