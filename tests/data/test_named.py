"""Datasets by name: where files are found, what is refused unopened, copies in the cache, the real ones by count."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import pickle
import re
import socket
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_geometric.datasets as pyg
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from akegnn import cli
from akegnn.data import DATASETS, Source, cache, formats, load
from small import refusal

NAMED = [name for name, known in DATASETS.items() if isinstance(known.source, Source)]
PARTS = ("train", "val", "test")


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    """No test sees the data or the cache of this machine, or the network; those that want to, say so."""
    monkeypatch.setenv("AKEGNN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AKEGNN_OFFLINE", "1")
    monkeypatch.delenv("AKEGNN_DATA", raising=False)


@pytest.fixture
def unrecorded(monkeypatch):
    """Small stand-ins may take the place of the real files."""
    monkeypatch.setattr(cache, "CONTENT", {})
    monkeypatch.setattr(cache, "FILES", {})


@pytest.fixture
def run(monkeypatch, capsys):
    """The command in this process: its exit code, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["akegnn", *map(str, arguments)])
        monkeypatch.setattr(sys, "path", [*sys.path])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return exit_.value.code or 0, *capsys.readouterr()

    return call


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def listing(folder: Path) -> dict[str, tuple[int, int, str]]:
    """All that a write would change."""
    return {
        str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.stat().st_mode, sha(p) if p.is_file() else "")
        for p in sorted(folder.rglob("*"))
    }


def same_data(a: Data, b: Data) -> bool:
    return sorted(a.keys()) == sorted(b.keys()) and all(
        torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype if torch.is_tensor(a[k]) else a[k] == b[k]
        for k in a.keys()  # noqa: SIM118 (iterating over Data gives pairs)
    )


# ---- small stand-ins -------------------------------------------------------------------------------------------------

X = [[1, 0, 0], [0, 1, 0], [0, 0, 2], [1, 1, 0], [0, 3, 1], [0, 0, 0]]
Y = [0, 1, 2, 0, 1, 2]


def geom_gcn(folder: Path, stem: str = "texas", labels: list[int] = Y, edges: str = "0\t1\n4\t2\n1\t0\n0\t1\n5\t5\n"):
    """The twelve files of a Geom-GCN dataset with six nodes; split k validates on node k % 6 and tests on the next."""
    folder.mkdir(parents=True)
    rows = [f"{k}\t{','.join(map(str, x))}\t{y}\n" for k, (x, y) in enumerate(zip(X, labels, strict=True))]
    (folder / "out1_node_feature_label.txt").write_text("node_id\tfeature\tlabel\n" + "".join(rows))
    (folder / "out1_graph_edges.txt").write_text("node_id\tnode_id\n" + edges)
    for k in range(10):
        one = np.eye(6, dtype=np.int64)
        masks = {"val_mask": one[k % 6], "test_mask": one[(k + 1) % 6]}
        masks["train_mask"] = 1 - masks["val_mask"] - masks["test_mask"]
        np.savez(folder / f"{stem}_split_0.6_0.2_{k}.npz", **masks)
    return folder


def tu_texts(title: str, graphs: list[tuple[int, list[tuple[int, int]], list[int], int]]) -> dict[str, str]:
    """The text files of a TUDataset: for each graph its size, edges, node labels and class."""
    lines: dict[str, list[str]] = {"A": [], "graph_indicator": [], "graph_labels": [], "node_labels": []}
    first = 1
    for k, (size, edges, labels, y) in enumerate(graphs, 1):
        lines["A"] += [f"{a + first}, {b + first}" for a, b in edges]
        lines["graph_indicator"] += [str(k)] * size
        lines["graph_labels"].append(str(y))
        lines["node_labels"] += map(str, labels)
        first += size
    if not lines["node_labels"]:
        del lines["node_labels"]
    return {f"{title}_{part}.txt": "".join(f"{x}\n" for x in text) for part, text in lines.items()}


def zipped(path: Path, members: dict[str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as z:
        for name, text in members.items():
            z.writestr(name, text)
    return path


TINY = [(3, [(0, 1), (1, 0), (2, 2)], [], 1), (2, [(1, 0), (0, 1), (0, 1)], [], -1)]
TINY_LABELLED = [(3, [(0, 1), (1, 0)], [5, 7, 5], 1), (2, [(1, 0)], [8, 5], 2)]


def tiny_zip(root: Path, title: str = "IMDB-BINARY", graphs=TINY, **more: str) -> Path:
    texts = {f"{title}//{n}": t for n, t in tu_texts(title, graphs).items()}
    return zipped(root / "tu" / f"{title}.zip", {**texts, **more})


def tiny_folds(root: Path, file: str, graphs: int = 2) -> Path:
    """Fold k tests graph k % graphs, validates on nothing, trains on the others."""
    path = root / "tu" / "splits_gnn_comparison" / f"{file}_splits.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    folds = []
    for k in range(10):
        test = k % graphs
        rest = [g for g in range(graphs) if g != test]
        folds.append({"test": [test], "model_selection": [{"train": rest, "validation": []}]})
    path.write_text(json.dumps(folds))
    return path


def tiny_arxiv(root: Path, features: bool) -> Path:
    folder = root / "ogbn_arxiv"
    tables = {
        "raw/edge": ["2,0", "0,1", "2,1", "0,3", "0,1"],
        "raw/node-label": ["3", "0", "39", "7"],
        "raw/node_year": ["2013", "2018", "2020", "2017"],
        "split/time/train": ["0", "3"],
        "split/time/valid": ["1"],
        "split/time/test": ["2"],
    }
    if features:
        tables["raw/node-feat"] = [",".join(f"{k}.{c}" for c in range(128)) for k in range(4)]
    for name, rows in tables.items():
        path = folder / f"{name}.csv.gz"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(f"{r}\n" for r in rows).encode()))
    return folder


# ---- finding ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unrecorded")
@pytest.mark.parametrize("place", ["webkb/texas/raw", "texas/raw"])
def test_a_graph_is_what_its_files_say(tmp_path, place):
    geom_gcn(tmp_path / "data" / place)
    data = load("texas", tmp_path / "data")
    assert torch.equal(data.x, torch.tensor(X).float())
    assert data.y.tolist() == Y
    assert data.edge_index.tolist() == [[0, 1, 4, 5], [1, 0, 2, 5]]
    assert data.train_mask.shape == (6, 10)
    assert all(data[f"{p}_mask"].dtype == torch.bool for p in PARTS)
    assert [data.val_mask[:, k].nonzero().item() for k in range(10)] == [k % 6 for k in range(10)]
    assert bool((data.train_mask.int() + data.val_mask.int() + data.test_mask.int() == 1).all())


@pytest.mark.usefixtures("unrecorded")
def test_the_root_comes_first_then_the_environment_then_the_cache(tmp_path, monkeypatch):
    for k, top in enumerate(("given", "told", "cache")):
        geom_gcn(tmp_path / top / "texas" / "raw", labels=[k, 0, 1, 2, 0, 1])
    found = []
    monkeypatch.setenv("AKEGNN_DATA", str(tmp_path / "told"))
    found.append(int(load("texas", tmp_path / "given").y[0]))
    found.append(int(load("texas", tmp_path / "nowhere").y[0]))
    monkeypatch.setenv("AKEGNN_DATA", "")
    found.append(int(load("texas").y[0]))
    assert found == [0, 1, 2]


def test_the_cache_is_where_the_environment_says(tmp_path, monkeypatch):
    assert cache.folder() == tmp_path / "cache"
    monkeypatch.delenv("AKEGNN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.folder() == tmp_path / "xdg" / "akegnn"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.folder() == tmp_path / "home" / ".cache" / "akegnn"


@pytest.mark.parametrize("name", NAMED)
def test_not_found_is_one_line_with_files_and_folders(tmp_path, monkeypatch, name):
    monkeypatch.setenv("AKEGNN_DATA", str(tmp_path / "told"))
    monkeypatch.setattr(formats, "_class", lambda kind: pytest.fail("tried to download"))
    message = refusal(lambda: load(name, tmp_path / "given"))
    assert message.startswith(f"{name}: not found; wanted ")
    assert "\n" not in message
    source = DATASETS[name].source
    for place, files in source.places:
        assert (place or " .") in message
        assert all(file in message for file in files)
    for top in ("given", "told", "cache"):
        assert str(tmp_path / top) in message
    assert ("AKEGNN_OFFLINE" in message) == (source.fetch is not None)
    assert not (tmp_path / "cache").exists(), "looking leaves no trace"


@pytest.mark.usefixtures("unrecorded")
def test_a_folder_with_a_part_of_the_files_says_what_it_lacks(tmp_path):
    folder = geom_gcn(tmp_path / "webkb" / "texas" / "raw")
    (folder / "texas_split_0.6_0.2_7.npz").unlink()
    assert f"{folder} lacks texas_split_0.6_0.2_7.npz;" in refusal(lambda: load("texas", tmp_path))


def test_an_unknown_name():
    assert "'corra' is neither a dataset" in refusal(lambda: load("corra"))


# ---- copies in the cache ---------------------------------------------------------------------------------------------


@pytest.fixture
def texas(tmp_path, unrecorded):
    geom_gcn(tmp_path / "data" / "webkb" / "texas" / "raw")
    return tmp_path / "data"


def copies(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "processed").iterdir())


def test_the_source_is_not_touched(tmp_path, texas):
    tiny_zip(texas)
    tiny_folds(texas, "COLLABORATIVE_1/IMDB-BINARY")
    for path in texas.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = listing(texas)
    for _ in range(2):
        load("texas", texas)
        load("imdb-binary", texas)
    assert listing(texas) == before
    assert [p.suffix for p in copies(tmp_path)] == [".pt", ".pt"]
    assert list((tmp_path / "cache" / "work").iterdir()) == [], "and nothing half made is left"


def test_the_second_load_reads_the_copy(texas, monkeypatch):
    first = load("texas", texas)
    monkeypatch.setattr(formats, "_class", lambda kind: pytest.fail("read again"))
    assert same_data(load("texas", texas), first)


def test_other_files_make_another_copy(tmp_path, texas):
    load("texas", texas)
    path = texas / "webkb" / "texas" / "raw" / "out1_node_feature_label.txt"
    path.write_text(path.read_text().replace("5\t0,0,0\t2", "5\t0,0,0\t1"))
    assert load("texas", texas).y.tolist() == [*Y[:5], 1]
    assert len(copies(tmp_path)) == 2


class Trap:
    """Runs code when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def flipped(path: Path) -> bytes:
    """One bit of the largest tensor is another: the archive still opens."""
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as z:
        member = max((m for m in z.infolist() if "/data/" in m.filename), key=lambda m: m.file_size)
    with path.open("rb") as f:
        f.seek(member.header_offset)
        head = f.read(30)
    raw[member.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")] ^= 1
    return bytes(raw)


@pytest.mark.parametrize("damage", ["cut", "empty", "noise", "bit", "other", "list", "trap"])
def test_a_damaged_copy_is_made_anew(tmp_path, texas, damage):
    first = load("texas", texas)
    (path,) = copies(tmp_path)
    whole = path.read_bytes()
    if damage == "other":
        torch.save(Data(x=first.x), path)
    elif damage == "list":
        torch.save([first], path)
    elif damage == "trap":
        path.write_bytes(pickle.dumps(Trap(tmp_path / "marker")))
    else:
        made = {"cut": whole[: len(whole) // 2], "empty": b"", "noise": b"\x00\x01" * 500, "bit": flipped(path)}
        path.write_bytes(made[damage])
    damaged = path.read_bytes()
    assert same_data(load("texas", texas), first)
    assert copies(tmp_path) == [path]
    assert path.read_bytes() != damaged
    assert not (tmp_path / "marker").exists()


def test_a_cache_that_cannot_be_written_only_means_no_copy(tmp_path, texas, monkeypatch):
    expected = load("texas", texas)
    (tmp_path / "file").touch()
    monkeypatch.setenv("AKEGNN_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    assert same_data(load("texas", texas), expected)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_many_processes_at_once(tmp_path, texas):
    code = (
        "import multiprocessing, sys, torch_geometric.datasets\n"
        "from akegnn.data import cache, load\n"
        "cache.CONTENT.clear()\n"
        "def work(start, out):\n"
        "    start.wait()\n"
        "    data = [load('texas', sys.argv[1]) for _ in range(3)]\n"
        "    out.put([(d.y.tolist(), d.edge_index.tolist(), d.val_mask.sum(0).tolist()) for d in data])\n"
        "c = multiprocessing.get_context('fork')\n"
        "start, out = c.Barrier(6), c.Queue()\n"
        "every = [c.Process(target=work, args=(start, out)) for _ in range(6)]\n"
        "[p.start() for p in every]\n"
        "found = [x for _ in every for x in out.get(timeout=60)]\n"
        "[p.join() for p in every]\n"
        "print(len(found), all(x == found[0] for x in found), found[0][0], {p.exitcode for p in every})\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(texas)], capture_output=True, text=True, timeout=120)
    assert ran.stdout == f"18 True {Y} {{0}}\n", ran.stderr
    assert len(copies(tmp_path)) == 1
    assert list((tmp_path / "cache" / "work").iterdir()) == []


@given(
    st.lists(st.integers(-3, 300), min_size=1, max_size=8),
    st.lists(st.floats(-3, 300, width=32), min_size=1, max_size=8),
)
def test_packing_loses_nothing(whole, broken):
    data = Data(x=torch.tensor(broken).view(-1, 1), y=torch.tensor(whole), edge_index=torch.tensor([whole, whole]))
    data.train_mask = torch.tensor(whole) > 0
    assert same_data(cache.unpack(cache.pack(data)), data)


# ---- pickles ---------------------------------------------------------------------------------------------------------


def planetoid_traps(root: Path, monkeypatch, wrong: str | None) -> list[Path]:
    """Eight files that each run code when opened, all but one with the hash that is recorded."""
    monkeypatch.setattr(cache, "FILES", {})
    folder = root / "planetoid" / "Cora" / "raw"
    folder.mkdir(parents=True)
    for key in (DATASETS["cora"].source.key(n) for n in DATASETS["cora"].source.places[0][1]):
        path = root / key
        path.write_bytes(pickle.dumps(Trap(root / f"marker-{path.name}")))
        cache.FILES[key] = sha(path) if path.name != wrong else "0" * 64
    return [root / f"marker-{p.name}" for p in folder.iterdir()]


CORA = [f"ind.cora.{part}" for part in ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")]


@pytest.mark.parametrize("wrong", CORA)
def test_no_pickle_is_opened_unless_all_eight_are_known(tmp_path, monkeypatch, wrong):
    markers = planetoid_traps(tmp_path / "data", monkeypatch, wrong)
    message = refusal(lambda: load("cora", tmp_path / "data"))
    assert message.startswith(str(tmp_path / "data" / "planetoid" / "Cora" / "raw" / wrong) + ": ")
    assert "SHA-256" in message
    assert not any(m.exists() for m in markers)


def test_the_trap_is_able_to_spring(tmp_path, monkeypatch):
    markers = planetoid_traps(tmp_path / "data", monkeypatch, wrong=None)
    assert "cannot be read as cora" in refusal(lambda: load("cora", tmp_path / "data"))
    assert sum(m.exists() for m in markers) == 1, "the first file that PyG opens"


# ---- many graphs -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unrecorded")
def test_graphs_without_node_labels_get_a_constant(tmp_path):
    tiny_zip(tmp_path)
    tiny_folds(tmp_path, "COLLABORATIVE_1/IMDB-BINARY")
    path = tiny_folds(tmp_path, "COLLABORATIVE_DEGREE/IMDB-BINARY")
    path.write_text(json.dumps(json.loads(path.read_text())[::-1]))
    first, second = load("imdb-binary", tmp_path)
    assert [g.x.tolist() for g in (first, second)] == [[[1.0]] * 3, [[1.0]] * 2]
    assert [g.edge_index.tolist() for g in (first, second)] == [[[0, 1], [1, 0]], [[0, 1], [1, 0]]]
    assert [g.y.tolist() for g in (first, second)] == [[1], [0]], "classes in order of their numbers"
    assert first.split == ["test", "train"] * 5
    assert second.split == ["train", "test"] * 5
    assert first.split_degree == ["train", "test"] * 5
    assert first.x.untyped_storage().nbytes() == 12, "no graph holds the memory of the others"


@pytest.mark.usefixtures("unrecorded")
def test_node_labels_are_one_hot_and_attributes_are_left_out(tmp_path):
    tiny_zip(tmp_path, "PROTEINS", TINY_LABELLED, **{"PROTEINS//PROTEINS_node_attributes.txt": "0.5\n" * 5})
    first, second = load("proteins", tmp_path)
    assert first.x.tolist() == [[1, 0, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0]]
    assert second.x.tolist() == [[0, 0, 0, 1], [1, 0, 0, 0]]


@pytest.mark.usefixtures("unrecorded")
@pytest.mark.parametrize("place", ["tu/NCI1/raw", "NCI1/raw", "tu/NCI1", "NCI1"])
def test_text_files_are_as_good_as_the_archive(tmp_path, place):
    tiny_zip(tmp_path / "zip", "NCI1", TINY_LABELLED)
    (tmp_path / "text" / place).mkdir(parents=True)
    for name, text in tu_texts("NCI1", TINY_LABELLED).items():
        (tmp_path / "text" / place / name).write_text(text)
    a, b = load("nci1", tmp_path / "zip"), load("nci1", tmp_path / "text")
    assert len(a) == 2
    assert all(same_data(x, y) for x, y in zip(a, b, strict=True))


@st.composite
def graph_sets(draw):
    graphs = []
    for _ in range(draw(st.integers(2, 5))):
        size = draw(st.integers(2, 6))
        node = st.integers(0, size - 1)
        edges = draw(st.lists(st.tuples(node, node), max_size=8))
        labels = draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
        graphs.append((size, [(0, 1), (1, 0), *edges], labels, draw(st.integers(-1, 2))))
    return graphs


@settings(max_examples=25)
@given(graph_sets(), st.booleans())
def test_any_graphs_come_out_as_they_were_written(tmp_path_factory, graphs, labelled):
    title = "DD" if labelled else "IMDB-BINARY"
    root = tmp_path_factory.mktemp("tu")
    raw = root / title / "raw"
    raw.mkdir(parents=True)
    written = graphs if labelled else [(n, e, [], y) for n, e, _, y in graphs]
    for name, text in tu_texts(title, written).items():
        (raw / name).write_text(text)
    read = formats.graphs_of(cache.unpack(cache.pack(formats.tu(title)(root))), ())
    classes = sorted({y for *_, y in graphs})
    lowest = min(x for _, _, labels, _ in graphs for x in labels)
    assert len(read) == len(graphs)
    for data, (size, edges, labels, y) in zip(read, graphs, strict=True):
        assert data.edge_index.t().tolist() == [list(e) for e in sorted({e for e in edges if e[0] != e[1]})]
        assert data.x.shape[0] == size
        assert data.y.tolist() == [classes.index(y)]
        assert data.x.argmax(1).tolist() == ([x - lowest for x in labels] if labelled else [0] * size)
        assert bool((data.x.sum(1) == 1).all())


@pytest.mark.usefixtures("unrecorded")
def test_without_folds_the_graphs_come_without_split(tmp_path, caplog):
    tiny_zip(tmp_path)
    tiny_folds(tmp_path, "COLLABORATIVE_1/IMDB-BINARY")
    graphs = load("imdb-binary", tmp_path)
    assert all("split" in g and "split_degree" not in g for g in graphs)
    assert [r.getMessage() for r in caplog.records] == [
        "imdb-binary: without `split_degree`, COLLABORATIVE_DEGREE/IMDB-BINARY_splits.json was not found"
    ]


FOLD = {"test": [0], "model_selection": [{"train": [1], "validation": []}]}


@pytest.mark.usefixtures("unrecorded")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        json.dumps([{**FOLD, "test": [0, 1]}]),
        json.dumps([{**FOLD, "test": []}]),
        json.dumps([{**FOLD, "test": [2]}]),
        json.dumps([{**FOLD, "test": ["a"]}]),
        json.dumps([{**FOLD, "model_selection": []}]),
        "\u00e9".encode("latin1"),
    ],
    ids=["empty", "object", "number", "twice", "nowhere", "outside", "word", "no inner", "not text"],
)
def test_folds_that_are_none(tmp_path, text):
    tiny_zip(tmp_path)
    path = tiny_folds(tmp_path, "COLLABORATIVE_1/IMDB-BINARY")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert refusal(lambda: load("imdb-binary", tmp_path)).startswith(f"{path}: not folds of 2 graphs")


@pytest.mark.usefixtures("unrecorded")
@pytest.mark.parametrize("member", ["../evil.txt", "/evil.txt", "a/../../evil.txt", "..\\evil.txt", "C:\\evil.txt"])
def test_an_archive_that_reaches_elsewhere_is_refused(tmp_path, member):
    archive = tiny_zip(tmp_path / "data", **{member: "evil"})
    message = refusal(lambda: load("imdb-binary", tmp_path / "data"))
    assert message.startswith(f"{archive}: refused, its member {member!r}")
    assert [p for p in tmp_path.rglob("*") if "evil" in p.name] == []


@pytest.mark.usefixtures("unrecorded")
def test_archives_that_are_none(tmp_path, monkeypatch):
    archive = tiny_zip(tmp_path)
    whole = archive.read_bytes()
    with monkeypatch.context() as m:
        m.setattr(formats, "LARGEST", 20)
        assert refusal(lambda: load("imdb-binary", tmp_path)) == f"{archive}: refused, it unpacks to more than 20 bytes"
    archive.write_bytes(whole[:50])
    assert refusal(lambda: load("imdb-binary", tmp_path)).startswith(f"{archive}: not a readable zip archive")
    zipped(archive, {"IMDB-BINARY/IMDB-BINARY_A.txt": "1, 2\n"})
    assert refusal(lambda: load("imdb-binary", tmp_path)).startswith(f"{archive}: lacks IMDB-BINARY_graph_indicator")
    zipped(archive, {f"IMDB-BINARY/{n}": "no number\n" for n in tu_texts("IMDB-BINARY", TINY)})
    assert refusal(lambda: load("imdb-binary", tmp_path)).startswith(f"{archive}: cannot be read as imdb-binary")


# ---- content ---------------------------------------------------------------------------------------------------------


def field_hash(values, kind: str) -> str:
    array = np.array(values, dtype=kind)
    return hashlib.sha256(f"{array.dtype} {array.shape} ".encode() + array.tobytes()).hexdigest()


def texas_content(**changed: str) -> dict[str, str]:
    one = np.eye(6, dtype=bool)
    val = np.stack([one[k % 6] for k in range(10)], axis=1)
    test = np.stack([one[(k + 1) % 6] for k in range(10)], axis=1)
    return {
        "x": field_hash(X, "uint8"),
        "y": field_hash(Y, "uint8"),
        "edge_index": field_hash([[0, 1, 4, 5], [1, 0, 2, 5]], "uint8"),
        "val_mask": field_hash(val, "bool"),
        "test_mask": field_hash(test, "bool"),
        "train_mask": field_hash(~(val | test), "bool"),
        **changed,
    }


def test_content_decides_where_bytes_differ(texas):
    """Unknown bytes, known content: as an archive that was packed anew."""
    cache.CONTENT["texas"] = texas_content()
    assert load("texas", texas).y.tolist() == Y


@pytest.mark.parametrize("field", ["x", "y", "edge_index", "val_mask", "node_year"])
def test_content_that_is_another_is_refused(texas, field):
    cache.CONTENT["texas"] = texas_content(**{field: "0" * 64})
    for name in ("out1_graph_edges.txt", *(f"texas_split_0.6_0.2_{k}.npz" for k in range(10))):
        cache.FILES[f"webkb/texas/raw/{name}"] = sha(texas / "webkb" / "texas" / "raw" / name)
    wrong = texas / "webkb" / "texas" / "raw" / "out1_node_feature_label.txt"
    assert refusal(lambda: load("texas", texas)) == f"texas: {wrong}: its {field} differ from those recorded"


@pytest.mark.parametrize("edges", ["0\t1\n", "zero\tone\n", "0\t99\n"])
def test_text_that_is_broken_is_refused(tmp_path, edges):
    folder = geom_gcn(tmp_path / "webkb" / "texas" / "raw", edges=edges)
    message = refusal(lambda: load("texas", tmp_path))
    assert str(folder / "out1_graph_edges.txt") in message
    assert "\n" not in message


@given(st.permutations(range(5)))
def test_the_order_of_edges_is_no_content(order):
    ends = torch.tensor([[0, 1, 1, 2, 2], [1, 0, 2, 0, 1]])
    data = Data(x=torch.ones(3, 1), edge_index=ends)
    assert cache.content(Data(x=data.x, edge_index=ends[:, order])) == cache.content(data)
    assert cache.content(Data(x=data.x, edge_index=ends.flip(0))) != cache.content(data)


def test_the_faulty_cornell_is_called_by_its_name(tmp_path, unrecorded):
    geom_gcn(tmp_path / "cornell" / "raw", "cornell")
    cache.CONTENT["cornell-2021"] = texas_content()
    cache.CONTENT["cornell"] = texas_content(x="0" * 64)
    message = refusal(lambda: load("cornell", tmp_path))
    assert "its content is that of 'cornell-2021'; PyG's download address still serves the faulty file" in message
    assert "bingzhewei/geom-gcn" in message
    # PyG keeps it where the right one would lie: it is found there under its own name, and only there.
    key = "webkb_cornell_before_2022_fix/cornell/raw/out1_graph_edges.txt"
    cache.FILES[key] = sha(tmp_path / "cornell" / "raw" / "out1_graph_edges.txt")
    assert load("cornell-2021", tmp_path).y.tolist() == Y
    cache.FILES[key] = "0" * 64
    assert "not found" in refusal(lambda: load("cornell-2021", tmp_path))


# ---- downloads -------------------------------------------------------------------------------------------------------


@pytest.fixture
def online(monkeypatch, tmp_path, unrecorded):
    """PyG's classes, their addresses turned to a folder of this machine."""
    monkeypatch.delenv("AKEGNN_OFFLINE")
    site = tmp_path / "site"
    site.mkdir()
    for kind in ("Planetoid", "WebKB", "TUDataset"):
        monkeypatch.setattr(getattr(pyg, kind), "url", site.as_uri())
    return site


def geom_gcn_site(site: Path, name: str) -> None:
    folder = geom_gcn(site / "new_data" / name, name)
    (site / "splits").mkdir()
    for path in folder.glob("*.npz"):
        path.rename(site / "splits" / path.name)


def test_what_is_missing_is_fetched_once(tmp_path, online, monkeypatch):
    geom_gcn_site(online, "texas")
    first = load("texas")
    assert first.y.tolist() == Y
    monkeypatch.setenv("AKEGNN_OFFLINE", "1")
    assert DATASETS["texas"].path() == tmp_path / "cache" / "webkb" / "texas" / "raw"
    assert same_data(load("texas"), first)


def test_an_archive_is_fetched_as_it_is(tmp_path, online):
    tiny_zip(online).rename(online / "IMDB-BINARY.zip")
    assert len(load("imdb-binary")) == 2
    assert (tmp_path / "cache" / "tu" / "IMDB-BINARY.zip").read_bytes() == (online / "IMDB-BINARY.zip").read_bytes()


def test_a_fetched_archive_that_reaches_elsewhere_is_refused(tmp_path, online):
    tiny_zip(online, **{"../evil.txt": "evil"}).rename(online / "IMDB-BINARY.zip")
    assert "refused, its member" in refusal(lambda: load("imdb-binary"))
    assert [p for p in tmp_path.rglob("*") if "evil" in p.name] == []
    assert not (tmp_path / "cache" / "tu").exists()


def test_a_fetched_pickle_is_not_opened_unless_it_is_known(tmp_path, online):
    for name in CORA:
        (online / name).write_bytes(pickle.dumps(Trap(tmp_path / "marker")))
    message = refusal(lambda: load("cora"))
    assert message.startswith("downloaded ind.cora.x: not the file of cora (its SHA-256 differs)")
    assert not (tmp_path / "marker").exists()
    assert not (tmp_path / "cache" / "planetoid").exists(), "and not kept"


def test_a_fetched_cornell_that_is_faulty_is_not_kept(tmp_path, online):
    geom_gcn_site(online, "cornell")
    cache.CONTENT["cornell-2021"] = texas_content()
    cache.CONTENT["cornell"] = texas_content(x="0" * 64)
    assert "its content is that of 'cornell-2021'" in refusal(lambda: load("cornell"))
    assert not (tmp_path / "cache" / "webkb").exists()
    assert load("cornell-2021").y.tolist() == Y
    assert (tmp_path / "cache" / "webkb_cornell_before_2022_fix" / "cornell" / "raw").is_dir()


@pytest.mark.parametrize("name", ["cora", "texas", "imdb-binary"])
def test_a_site_without_the_file(online, name):
    message = refusal(lambda: load(name))
    assert message.startswith(f"{name}: not found; wanted")
    assert "; a download failed (" in message
    assert "\n" not in message


@pytest.mark.parametrize(("name", "kind"), [("cora", "Planetoid"), ("texas", "WebKB"), ("imdb-binary", "TUDataset")])
def test_a_site_that_does_not_answer(online, monkeypatch, name, kind):
    monkeypatch.setattr(formats, "PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(getattr(pyg, kind), "url", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert "a download failed (" in refusal(lambda: load(name))
    assert socket.getdefaulttimeout() is None


# ---- ogbn-arxiv ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unrecorded")
def test_arxiv_is_what_its_tables_say(tmp_path):
    tiny_arxiv(tmp_path, features=True)
    data = load("ogbn-arxiv", tmp_path)
    assert data.edge_index.t().tolist() == [[0, 1], [0, 1], [0, 3], [2, 0], [2, 1]]
    assert (data.y.tolist(), data.node_year.tolist()) == ([3, 0, 39, 7], [2013, 2018, 2020, 2017])
    assert [data[f"{p}_mask"].nonzero().flatten().tolist() for p in PARTS] == [[0, 3], [1], [2]]
    assert data.x.dtype == torch.float32
    assert data.x.shape == (4, 128)
    assert data.x[3, 5] == torch.tensor(3.5)


@pytest.mark.usefixtures("unrecorded")
def test_arxiv_without_its_features_names_the_file_and_the_substitute(tmp_path):
    folder = tiny_arxiv(tmp_path, features=False)
    message = refusal(lambda: load("ogbn-arxiv", tmp_path))
    assert f"{folder} lacks raw/node-feat.csv.gz;" in message
    assert "'ogbn-arxiv-substitute'" in message
    (folder / "raw" / "node-feat.csv.gz").write_bytes(gzip.compress(b"1,2\n3,4\n5,6\n7,8\n"))
    assert "raw/node-feat.csv.gz must be 4 rows of 128, is (4, 2)" in refusal(lambda: load("ogbn-arxiv", tmp_path))


@pytest.mark.usefixtures("unrecorded")
def test_the_substitute_is_noise_averaged_twice(tmp_path):
    tiny_arxiv(tmp_path, features=False)
    data = load("ogbn-arxiv-substitute", tmp_path)
    a = np.eye(4)
    for s, t in [(2, 0), (0, 1), (2, 1), (0, 3)]:
        a[s, t] = a[t, s] = 1
    a /= np.sqrt(np.outer(a.sum(0), a.sum(0)))
    x = a @ a @ np.random.default_rng(0).standard_normal((4, 128))
    x = (x - x.mean(0)) / x.std(0)
    assert data.x.dtype == torch.float32
    assert np.abs(data.x.numpy() - x).max() <= 0.5 / 1024 + 1e-6
    assert torch.equal(data.x * 1024, (data.x * 1024).round())
    about = DATASETS["ogbn-arxiv-substitute"].about
    assert "NOT the official features" in about
    assert "not comparable" in about


# ---- the registry ----------------------------------------------------------------------------------------------------


def test_every_dataset_has_its_entry():
    assert set(NAMED) == {
        *("cora", "citeseer", "pubmed", "chameleon", "squirrel", "actor", "cornell", "cornell-2021", "texas"),
        *("wisconsin", "dd", "nci1", "proteins", "imdb-binary", "reddit-binary", "ogbn-arxiv"),
        "ogbn-arxiv-substitute",
    }
    for name, known in DATASETS.items():
        undirected = name in ("digits", "cora", "citeseer", "pubmed")  # links need both directions of every edge
        assert known.tasks == (("graph",) if known.size.graphs > 1 else ("node", "link") if undirected else ("node",))
        assert "https://" in known.home
        assert not isinstance(known.source, Source) or known.source.name == name


@pytest.mark.parametrize("name", NAMED)
def test_every_file_and_every_content_is_recorded(name):
    source = DATASETS[name].source
    wanted = {source.key(file) for _, files in source.places for file in files}
    wanted |= {f"tu/splits_gnn_comparison/{file}" for file in source.folds.values()}
    wanted -= {"ogbn_arxiv/raw/node-feat.csv.gz"}  # nobody here has it
    assert wanted <= set(cache.FILES)
    fields = {"x", "y", "edge_index", *(("nodes", *source.folds) if source.folds else (f"{p}_mask" for p in PARTS))}
    fields -= {"x"} if name == "ogbn-arxiv" else set()
    assert fields <= set(cache.CONTENT[name])


def test_the_record_is_in_order():
    text = (Path(cache.__file__).parent / "checksums.toml").read_text()
    recorded = tomllib.loads(text)
    values = [*recorded["files"].values(), *(h for c in recorded["content"].values() for h in c.values())]
    assert all(re.fullmatch("[0-9a-f]{64}", v) for v in values)
    assert list(recorded["files"]) == sorted(recorded["files"])
    assert set(recorded["remade"]) <= set(recorded["files"])
    # As the folder with the data tells them.
    assert recorded["files"]["planetoid/Cora/raw/ind.cora.allx"].startswith("9419ba2f26f5c352")
    assert recorded["files"]["tu/NCI1.zip"].startswith("eae6b0c076d59e66")
    assert recorded["content"]["texas"]["x"] == recorded["content"]["cornell-2021"]["x"]
    assert recorded["content"]["texas"]["x"] != recorded["content"]["cornell"]["x"]


# ---- the command line ------------------------------------------------------------------------------------------------


def test_data_list_loads_nothing(run, tmp_path, texas, monkeypatch):
    monkeypatch.setattr(Source, "load", lambda *_: pytest.fail("loaded"))
    code, out, _ = run("data", "list", "--json", "--data-root", texas)
    rows = {r["name"]: r for r in json.loads(out)}
    assert code == 0
    assert list(rows) == list(DATASETS)
    assert rows["texas"]["present"] == str(texas / "webkb" / "texas" / "raw")
    assert rows["cora"]["present"] == "not found"
    assert rows["digits"]["present"] == "embedded"
    assert rows["nci1"] == {
        **{"name": "nci1", "tasks": "graph", "graphs": 4110, "nodes": 122747, "edges": 265506, "features": 37},
        **{"classes": 2, "splits": "10 folds", "present": "not found"},
        **{"about": DATASETS["nci1"].about, "home": DATASETS["nci1"].home},
    }
    code, out, err = run("data", "list", "--data-root", texas)
    assert (code, err) == (0, "")
    assert str(texas / "webkb" / "texas" / "raw") in out


def test_data_path(run, tmp_path, texas):
    archive = tiny_zip(texas)
    assert run("data", "path", "texas", "--data-root", texas) == (0, f"{texas / 'webkb' / 'texas' / 'raw'}\n", "")
    assert run("data", "path", "imdb-binary", "--data-root", texas) == (0, f"{archive}\n", "")
    assert run("data", "path", "digits") == (0, "embedded\n", "")
    code, out, err = run("data", "path", "cora")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("akegnn: cora: not found; wanted ind.cora.x")
    for command in ("path", "verify"):
        code, out, err = run("data", command, "corra")
        assert (code, out) == (2, "")
        assert err == f"akegnn: data: no dataset is called 'corra'; there are {', '.join(DATASETS)}\n"


def record(texas: Path) -> Path:
    folder = texas / "webkb" / "texas" / "raw"
    cache.FILES.update({f"webkb/texas/raw/{p.name}": sha(p) for p in folder.iterdir()})
    cache.CONTENT["texas"] = texas_content()
    return folder


def verified(out: str, name: str) -> dict[str, str]:
    return {Path(r["file"]).name: r["status"] for r in json.loads(out) if r["name"] == name}


def test_data_verify(run, texas):
    folder = record(texas)
    code, out, err = run("data", "verify", "--data-root", texas, "--json")
    assert (code, err) == (0, "")
    assert verified(out, "texas") == {**{p.name: "ok" for p in folder.iterdir()}, "content": "ok"}
    assert verified(out, "cora") == {"": "not found"}
    assert verified(out, "digits") == {"": "embedded"}
    code, out, err = run("data", "verify", "texas", "--data-root", texas)
    assert (code, err) == (0, "")
    assert str(folder / "out1_graph_edges.txt") in out
    code, out, err = run("data", "verify", "cora", "--data-root", texas)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("akegnn: cora: not found")


def test_data_verify_finds_what_differs(run, texas):
    folder = record(texas)
    path = folder / "out1_node_feature_label.txt"
    path.write_text(path.read_text().replace("5\t0,0,0\t2", "5\t0,0,0\t1"))
    code, out, err = run("data", "verify", "--data-root", texas, "--json")
    assert code == 2
    assert err == f"akegnn: texas: {path} differs from what is recorded (2 in all)\n"
    found = verified(out, "texas")
    assert {n for n, s in found.items() if s == "differs"} == {path.name, "content"}
    # A part of the files is no dataset, but what is there is compared.
    (folder / "out1_graph_edges.txt").unlink()
    code, out, err = run("data", "verify", "texas", "--data-root", texas, "--json")
    assert (code, err.count("\n")) == (2, 1)
    found = verified(out, "texas")
    assert (found["out1_graph_edges.txt"], found[path.name], found[""]) == ("missing", "differs", "not found")


def test_data_verify_takes_an_archive_that_was_packed_anew(run, texas, monkeypatch):
    archive = tiny_zip(texas)
    monkeypatch.setattr(cache, "FILES", {"tu/IMDB-BINARY.zip": "0" * 64})
    arguments = ("data", "verify", "imdb-binary", "--data-root", texas, "--json")
    assert run(*arguments)[0] == 2
    monkeypatch.setattr(cache, "REMADE", {"tu/IMDB-BINARY.zip"})
    code, out, _ = run(*arguments)
    assert code == 0
    assert verified(out, "imdb-binary") == {
        **{archive.name: "other", "content": "not recorded"},
        **{"IMDB-BINARY_splits.json": "missing"},
    }


# ---- the real ones ---------------------------------------------------------------------------------------------------

REAL = os.environ.get("AKEGNN_DATA", "")
real = pytest.mark.skipif(not REAL, reason="AKEGNN_DATA does not name a folder with the benchmark data")
LONG = {"dd", "reddit-binary"}  # PyG needs a quarter of a minute for these


def each(names: list[str]) -> list[object]:
    return [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in names]


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """One for all test processes of a run."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "akegnn-cache"


@pytest.fixture
def at_hand(monkeypatch, shared_cache):
    monkeypatch.setenv("AKEGNN_CACHE", str(shared_cache))

    def get(name: str) -> Data | list[Data]:
        if DATASETS[name].path(REAL) is None:
            pytest.skip(f"AKEGNN_DATA has no {name}")
        return load(name, REAL)

    return get


CLASSES = {  # as the README of the data folder, or by hand from the files
    "cora": [351, 217, 418, 818, 426, 298, 180],
    "cornell": [38, 16, 30, 82, 17],
    "cornell-2021": [33, 1, 18, 101, 30],
    "texas": [33, 1, 18, 101, 30],
    "dd": [691, 487],
    "nci1": [2053, 2057],
    "proteins": [663, 450],
    "imdb-binary": [500, 500],
    "reddit-binary": [1000, 1000],
}


@real
@pytest.mark.parametrize("name", each(NAMED))
def test_a_real_dataset_has_the_size_it_should(at_hand, name):
    graphs, size = at_hand(name), DATASETS[name].size
    many = [graphs] if isinstance(graphs, Data) else graphs
    y = torch.cat([g.y for g in many])
    assert len(many) == size.graphs
    assert sum(g.num_nodes for g in many) == size.nodes
    assert sum(g.num_edges for g in many) == size.edges
    assert {g.x.shape[1] for g in many} == {size.features}
    assert len(y.unique()) == size.classes
    assert {g.x.dtype for g in many} == {torch.float32}
    assert y.bincount().tolist() == CLASSES.get(name, y.bincount().tolist())
    if isinstance(graphs, Data):
        masks = [graphs[f"{p}_mask"] for p in PARTS]
        assert not bool((masks[0].int() + masks[1].int() + masks[2].int() > 1).any())
        first = [int((m if m.dim() == 1 else m[:, 0]).sum()) for m in masks]
        assert (f"10 x {first[0]}/{first[1]}/{first[2]}" if masks[0].dim() == 2 else "/".join(map(str, first))) == (
            size.splits
        )
    else:
        for field, file in DATASETS[name].source.folds.items():
            check_folds(graphs, field, file)


def check_folds(graphs: list[Data], field: str, file: str) -> None:
    folds = json.loads((Path(REAL) / "tu" / "splits_gnn_comparison" / file).read_text())
    assert all(len(g[field]) == len(folds) == 10 for g in graphs)
    for k, fold in enumerate(folds):
        (inner,) = fold["model_selection"]
        for part, members in (("train", inner["train"]), ("val", inner["validation"]), ("test", fold["test"])):
            assert [i for i, g in enumerate(graphs) if g[field][k] == part] == sorted(members)
    assert all(g[field].count("test") == 1 for g in graphs), "the test parts of the folds are a partition"


def linked(inside: Path, of: Path) -> None:
    inside.mkdir(parents=True)
    for path in of.iterdir():
        (inside / path.name).symlink_to(path)


@real
@pytest.mark.parametrize("name", ["cora", "citeseer", "actor", "cornell", "cornell-2021"])
def test_pyg_alone_reads_the_same(at_hand, tmp_path, name):
    ours, source = at_hand(name), DATASETS[name].path(REAL)
    raw = {"cora": "Cora/raw", "citeseer": "CiteSeer/raw", "actor": "raw"}.get(name, "cornell/raw")
    linked(tmp_path / "pyg" / raw, source)
    kinds = {"cora": (pyg.Planetoid, "Cora"), "citeseer": (pyg.Planetoid, "CiteSeer"), "actor": (pyg.Actor,)}
    kind, *title = kinds.get(name, (pyg.WebKB, "Cornell"))
    assert same_data(kind(str(tmp_path / "pyg"), *title)[0], ours)


@real
def test_pyg_alone_reads_the_same_graphs(at_hand, tmp_path, monkeypatch):
    ours = at_hand("proteins")
    monkeypatch.setattr(pyg.TUDataset, "url", f"{REAL}/tu")
    theirs = pyg.TUDataset(str(tmp_path / "pyg"), "PROTEINS")
    for a, b in zip(ours, theirs, strict=True):
        del a.split
        assert same_data(a, b)


@real
def test_real_arxiv_is_split_by_year(at_hand):
    data = at_hand("ogbn-arxiv-substitute")
    assert torch.equal(data.train_mask, data.node_year <= 2017)
    assert torch.equal(data.val_mask, data.node_year == 2018)
    assert torch.equal(data.test_mask, data.node_year >= 2019)
    assert float(data.x.mean(0).abs().max()) < 1e-3
    assert float((data.x.std(0) - 1).abs().max()) < 1e-3


@real
def test_a_real_file_that_was_changed_is_found(run, tmp_path, at_hand, monkeypatch):
    at_hand("texas")
    monkeypatch.setenv("AKEGNN_CACHE", str(tmp_path / "cache"))
    source = DATASETS["texas"].path(REAL)
    linked(tmp_path / "texas" / "raw", source)
    assert run("data", "verify", "texas", "--data-root", tmp_path)[0] == 0
    path = tmp_path / "texas" / "raw" / "texas_split_0.6_0.2_3.npz"
    path.unlink()
    path.symlink_to(source / "texas_split_0.6_0.2_4.npz")
    code, _, err = run("data", "verify", "texas", "--data-root", tmp_path, "--json")
    assert (code, err) == (2, f"akegnn: texas: {path} differs from what is recorded (2 in all)\n")
    assert refusal(lambda: load("texas", tmp_path)) == (
        f"texas: {path}: its test_mask, train_mask, val_mask differ from those recorded"
    )


@real
def test_the_real_files_are_those_recorded(run, at_hand, shared_cache):
    names = [n for n in ("cora", "actor", "cornell", "cornell-2021", "wisconsin", "proteins") if DATASETS[n].path(REAL)]
    code, out, err = run("data", "verify", *names, "--data-root", REAL, "--json")
    assert (code, err) == (0, "")
    assert {r["status"] for r in json.loads(out)} == {"ok"}


@real
@pytest.mark.parametrize("name", NAMED)
def test_every_real_file_has_its_hash(name):
    """Hashes alone: the content is checked wherever a dataset is loaded."""
    found = DATASETS[name].source.find(REAL)
    if found is None:
        pytest.skip(f"AKEGNN_DATA has no {name}")
    assert {k: sha(p) for k, p in found.every().items()} == {k: cache.FILES[k] for k in found.every()}
