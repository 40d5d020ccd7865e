"""How the files of benchmark datasets become tensors: PyG's own classes, run on a copy in an empty folder.

A reader is given a folder with the files in their places and returns one ``Data``. For many graphs that is their
disjoint union, with the node counts in ``nodes`` and one label per graph in ``y``.
"""

from __future__ import annotations

import contextlib
import io
import json
import socket
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from ..errors import AkeError
from .splits import PARTS

Reader = Callable[[Path], Data]
PATIENCE = 10.0  # seconds that a download may stand still
LARGEST = 2**30  # bytes that an archive may unpack to
SUBSTITUTE_WIDTH = 128
SUBSTITUTE_SEED = 0


def pyg(kind: str, **arguments: Any) -> Reader:
    """One graph, read by a dataset class of PyG."""

    def read(root: Path) -> Data:
        with _quiet():
            return _class(kind)(str(root), **arguments)[0]

    return read


def pyg_download(kind: str, **arguments: Any) -> Callable[[Path], None]:
    """Let a dataset class of PyG fetch its files, and stop it there: it would open them unverified."""

    def fetch(root: Path) -> None:
        class Fetched(Exception):
            pass

        def process(self: Any) -> None:
            raise Fetched

        base = _class(kind)
        parts: dict[str, Any] = {"process": process}
        if kind == "TUDataset":  # the archive as it is: unpacking is ours, with care

            def download(self: Any) -> None:
                from torch_geometric.data import download_url

                download_url(f"{self.url}/{self.name}.zip", self.raw_dir)

            parts["download"] = download
        with _quiet(), _impatient(), contextlib.suppress(Fetched):
            type(kind, (base,), parts)(str(root), **arguments)

    return fetch


def tu(title: str) -> Reader:
    """Many graphs from a TUDataset archive or its text files: one-hot node labels, or a constant if there are none."""

    def read(root: Path) -> Data:
        raw = root / title / "raw"
        if (archive := raw / f"{title}.zip").exists():
            _unzip(archive, title, raw)
        with _quiet():
            graphs = list(_class("TUDataset")(str(root), title))
        nodes = torch.tensor([g.num_nodes for g in graphs])
        first = (nodes.cumsum(0) - nodes).tolist()
        x = torch.ones(int(nodes.sum()), 1) if graphs[0].x is None else torch.cat([g.x for g in graphs])
        edges = torch.cat([g.edge_index + k for g, k in zip(graphs, first, strict=True)], dim=1)
        return Data(x=x, edge_index=edges, y=torch.cat([g.y for g in graphs]), nodes=nodes)

    return read


def graphs_of(union: Data, folds: tuple[str, ...]) -> list[Data]:
    """The graphs of a disjoint union, each with memory of its own: one that is saved does not take all along."""
    nodes, (source, target) = union.nodes.tolist(), union.edge_index
    stops = union.nodes.cumsum(0)
    edges = torch.searchsorted(source, stops).diff(prepend=torch.zeros(1, dtype=torch.long)).tolist()
    places = (stops - union.nodes).repeat_interleave(torch.tensor(edges))
    pairs = torch.stack([source - places, target - places]).split(edges, dim=1)
    out = [
        Data(x=x.clone(), edge_index=pair.clone(), y=y.clone())
        for x, pair, y in zip(union.x.split(nodes), pairs, union.y.split(1), strict=True)
    ]
    for field in folds:
        if field in union:
            for graph, parts in zip(out, union[field].tolist(), strict=True):
                graph[field] = [PARTS[k] for k in parts]
    return out


def read_folds(path: Path, graphs: int) -> Tensor:
    """The ten outer folds of gnn-comparison as ``[graphs, 10]``: 0 for training, 1 for validation, 2 for test."""
    try:
        folds = json.loads(path.read_text(encoding="utf-8"))
        columns = []
        for fold in folds:
            (inner,) = fold["model_selection"]
            column = torch.full((graphs,), -1)
            listed = 0
            for k, members in enumerate((inner["train"], inner["validation"], fold["test"])):
                column[torch.tensor(members, dtype=torch.long)] = k
                listed += len(members)
            if listed != graphs or bool((column < 0).any()):
                raise ValueError
            columns.append(column)
        return torch.stack(columns, dim=1)
    except (ValueError, KeyError, IndexError, TypeError, RuntimeError):
        raise AkeError(f"{path}: not folds of {graphs} graphs, each in one part of every fold") from None


# ---- ogbn-arxiv ------------------------------------------------------------------------------------------------------


def arxiv(root: Path) -> Data:
    """The citation graph with its official features, directed, edges in order of source and target."""
    data = _arxiv_graph(root)
    data.x = torch.from_numpy(_table(root / "raw" / "node-feat.csv.gz", np.float32))
    if data.x.shape != (len(data.y), SUBSTITUTE_WIDTH):
        raise AkeError(
            f"raw/node-feat.csv.gz must be {len(data.y)} rows of {SUBSTITUTE_WIDTH}, is {tuple(data.x.shape)}"
        )
    return data


def arxiv_substitute(root: Path) -> Data:
    """The same graph with features made from its edges alone: noise, averaged twice over neighbours."""
    data = _arxiv_graph(root)
    data.x = structural_features(data.edge_index, len(data.y))
    return data


def structural_features(edge_index: Tensor, nodes: int) -> Tensor:
    """A Gaussian matrix with a fixed seed, multiplied twice by the symmetrically normalised undirected adjacency with
    self-loops, columns standardised. Rounded to 1/1024, so that the last bits of another machine do not show."""
    from scipy.sparse import coo_array, diags_array, eye_array

    source, target = edge_index.numpy()
    one_way = coo_array((np.ones(len(source)), (source, target)), shape=(nodes, nodes)).tocsr()
    joined = one_way + one_way.T + eye_array(nodes, format="csr")
    joined.data[:] = 1
    scale = diags_array(1 / np.sqrt(joined.sum(axis=1)))
    step = (scale @ joined @ scale).tocsr()
    x = np.random.default_rng(SUBSTITUTE_SEED).standard_normal((nodes, SUBSTITUTE_WIDTH))
    x = step @ (step @ x)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return torch.from_numpy((np.rint(x * 1024) / 1024).astype(np.float32))


def _arxiv_graph(root: Path) -> Data:
    y, year = (torch.from_numpy(_table(root / "raw" / f"{n}.csv.gz", np.int64)) for n in ("node-label", "node_year"))
    ends = _table(root / "raw" / "edge.csv.gz", np.int64).T
    ends = ends[:, np.lexsort((ends[1], ends[0]))]
    data = Data(x=None, edge_index=torch.from_numpy(np.ascontiguousarray(ends)), y=y, node_year=year)
    for part, file in (("train", "train"), ("val", "valid"), ("test", "test")):
        mask = torch.zeros(len(y), dtype=torch.bool)
        mask[torch.from_numpy(_table(root / "split" / "time" / f"{file}.csv.gz", np.int64))] = True
        data[f"{part}_mask"] = mask
    return data


def _table(path: Path, kind: type[np.generic]) -> np.ndarray:
    return np.loadtxt(path, dtype=kind, delimiter=",")


# ---- archives, and PyG -----------------------------------------------------------------------------------------------


def _unzip(archive: Path, title: str, to: Path) -> None:
    """Only the text files that are read, by their last name; an archive that reaches elsewhere is refused whole."""
    wanted = tu_files(title)
    try:
        with zipfile.ZipFile(archive) as z:
            for member in z.infolist():
                path = PurePosixPath(member.filename.replace("\\", "/"))
                if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
                    raise AkeError(f"refused, its member {member.filename!r} lies outside the archive")
            chosen = {n: m for m in z.infolist() if (n := PurePosixPath(m.filename).name) in wanted}
            if sum(m.file_size for m in chosen.values()) > LARGEST:
                raise AkeError(f"refused, it unpacks to more than {LARGEST} bytes")
            if lacks := [n for n in wanted if n not in chosen]:
                raise AkeError(f"lacks {', '.join(lacks)}")
            for name, member in chosen.items():
                (to / name).write_bytes(z.read(member))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as e:
        raise AkeError(f"not a readable zip archive ({e})") from None


LABELLED = ("DD", "NCI1", "PROTEINS")


def tu_files(title: str) -> tuple[str, ...]:
    """The text files of a TUDataset that are read."""
    parts = ("A", "graph_indicator", "graph_labels", *(("node_labels",) if title in LABELLED else ()))
    return tuple(f"{title}_{part}.txt" for part in parts)


def _class(kind: str) -> Any:
    import torch_geometric.datasets  # slow to import, and not needed where a finished copy is there

    return getattr(torch_geometric.datasets, kind)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """PyG tells its steps on standard error, and old pickles make numpy warn."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """Give up a download that stands still, in both ways that PyG fetches files."""
    import aiohttp
    import fsspec.config  # type: ignore[import-untyped]

    before, conf = socket.getdefaulttimeout(), dict(fsspec.config.conf)
    limits = aiohttp.ClientTimeout(total=None, sock_connect=PATIENCE, sock_read=PATIENCE)
    fsspec.config.conf["https"] = {"client_kwargs": {"timeout": limits, "trust_env": True}}
    socket.setdefaulttimeout(PATIENCE)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
        fsspec.config.conf.clear()
        fsspec.config.conf.update(conf)
