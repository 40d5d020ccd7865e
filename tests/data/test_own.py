"""A person's own graph: CSV folders, saved objects, adjacencies, and every way in which they can be wrong."""

from __future__ import annotations

import pickle
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch_geometric import transforms as T  # noqa: N812 (PyG's own name for it)
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader.cluster import ClusterData
from torch_geometric.utils import is_undirected

from akegnn import data as datasets
from akegnn.data.own import in_order, names_of, read_folder, read_pairs, read_saved, with_edges
from akegnn.tasks import make_task
from small import csv_folder, fit, graph, graphs, pairs_of, refusal


def written(folder: Path, nodes: str, edges: str = "source,target\na,b\n") -> Path:
    return csv_folder(folder, nodes=nodes, edges=edges)


# ---- the folder with two CSV files -----------------------------------------------------------------------------------


def test_round_trip(tmp_path):
    data = graph()
    read = datasets.load(str(csv_folder(tmp_path, data)))
    assert torch.equal(read.x, data.x)
    assert torch.equal(read.y, data.y)
    assert read.classes == ["c0", "c1", "c2"]
    assert read.ids == [f"n{k}" for k in range(60)]
    assert pairs_of(read.edge_index) == pairs_of(data.edge_index)
    assert read.edge_index.shape == data.edge_index.shape
    assert not any(read.get(f"{part}_mask") is not None for part in ("train", "val", "test"))
    assert read.validate()


@pytest.mark.parametrize(
    ("labels", "classes", "numbers"),
    [
        (["pear", "apple", "fig"], ["apple", "fig", "pear"], [2, 0, 1]),
        (["10", "9", "2"], ["2", "9", "10"], [2, 1, 0]),  # as numbers, not as text
        (["1", "01", "1"], ["01", "1"], [1, 0, 1]),  # in one order, whatever order a set has
        (["7", "", "5"], ["5", "7"], [1, -1, 0]),
        (["b", "3", "a"], ["3", "a", "b"], [2, 0, 1]),
        (["²", "1", "2"], ["1", "2", "²"], [2, 0, 1]),  # a digit by Unicode, but not a number that can be read
    ],
)
def test_labels_are_counted_in_order(tmp_path, labels, classes, numbers):
    rows = "".join(f"{name},{label},1\n" for name, label in zip("abc", labels, strict=True))
    data = read_folder(written(tmp_path, f"id,label,x\n{rows}"))
    assert data.classes == classes
    assert data.y.tolist() == numbers


@pytest.mark.parametrize(
    ("labels", "count"),
    [(["-3e-2", "1.5", "0.25"], 3), (["0", "1", "0.5"], 3), (["0.5", "", "0.5"], 1), (["1.5", "nan", "2"], 3)],
)
def test_labels_that_are_measured_are_refused(tmp_path, labels, count):
    rows = "".join(f"{name},{label},1\n" for name, label in zip("abc", labels, strict=True))
    message = refusal(lambda: read_folder(written(tmp_path, f"id,label,x\n{rows}")))
    assert message.startswith(f"{tmp_path}/nodes.csv: column 'label' must be integers or text")
    assert f"it has {count} different numbers, such as {next(x for x in labels if '.' in x or 'e' in x)} " in message


@pytest.mark.parametrize(
    "labels",
    [["1.0", "2.0", "3.00"], ["1e1", "-2", "+3"], ["0.5", "half", "1.5"], ["nan", "inf", "1"], ["v1.5", "", "2"]],
)
def test_labels_that_are_whole_numbers_or_text_are_classes(tmp_path, labels):
    rows = "".join(f"{name},{label},1\n" for name, label in zip("abc", labels, strict=True))
    data = read_folder(written(tmp_path, f"id,label,x\n{rows}"))
    assert sorted(data.classes) == sorted(x for x in labels if x)
    assert [data.classes[k] if k >= 0 else "" for k in data.y.tolist()] == labels


def test_splits(tmp_path):
    rows = "".join(f"{name},{split},1\n" for name, split in zip("abcd", ["train", "", "test", "train"], strict=True))
    data = read_folder(written(tmp_path, f"id,split,x\n{rows}"))
    assert data.train_mask.tolist() == [True, False, False, True]
    assert data.test_mask.tolist() == [False, False, True, False]
    assert "val_mask" not in data  # to be drawn


def test_columns_may_come_in_any_order_and_cells_may_be_quoted(tmp_path):
    data = read_folder(
        written(
            tmp_path,
            'height,id,label," weight "\n1.5,"Smith, Anna","tall, ""thin""",-2e1\n 2 , b ,"two\nlines",0\n\n',
            'target,source\nb,"Smith, Anna"\n',
        )
    )
    assert data.ids == ["Smith, Anna", "b"]
    assert data.classes == ['tall, "thin"', "two\nlines"]
    assert data.x.tolist() == [[1.5, -20], [2, 0]]
    assert data.edge_index.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_byte_order_mark_and_windows_line_ends_are_no_matter(tmp_path, ending):
    (tmp_path / "nodes.csv").write_bytes(("\ufeff" + ending.join(["id,x", "a,1", "ö,2", ""])).encode())
    (tmp_path / "edges.csv").write_bytes(("\ufeff" + ending.join(["source,target", "a,ö"])).encode())
    data = read_folder(tmp_path)
    assert data.ids == ["a", "ö"]
    assert data.x.tolist() == [[1], [2]]


def test_an_edge_listed_twice_counts_once_in_both_directions(tmp_path):
    data = read_folder(written(tmp_path, "id,x\na,1\nb,2\nc,3\n", "source,target\na,b\na,b\nb,a\nc,b\nc,c\n"))
    assert sorted(data.edge_index.t().tolist()) == [[0, 1], [1, 0], [1, 2], [2, 1], [2, 2]]


def test_weights_and_features_of_edges_go_both_ways(tmp_path):
    edges = "source,target,weight,kind,length\na,b,0.5,1,10\nc,b,2,0,30\n"
    data = read_folder(written(tmp_path, "id,x\na,1\nb,2\nc,3\n", edges))
    found = {
        tuple(ends): (weight, *features)
        for ends, weight, features in zip(
            data.edge_index.t().tolist(), data.edge_weight.tolist(), data.edge_attr.tolist(), strict=True
        )
    }
    ab, cb = (0.5, 1, 10), (2, 0, 30)
    assert found == {(0, 1): ab, (1, 0): ab, (2, 1): cb, (1, 2): cb}
    assert is_undirected(data.edge_index, [data.edge_weight, data.edge_attr])


@pytest.mark.parametrize(("column", "expected"), [("weight", "edge_weight"), ("length", "edge_attr")])
def test_weights_or_features_alone(tmp_path, column, expected):
    data = read_folder(written(tmp_path, "id,x\na,1\nb,2\n", f"source,target,{column}\na,b,3\n"))
    assert data[expected].flatten().tolist() == [3, 3]
    assert {"edge_weight", "edge_attr"} - {expected} not in data


NODES, EDGES = "id,label,x,y\na,0,1,2\nb,1,3,4\n", "source,target\na,b\n"


@pytest.mark.parametrize(
    ("nodes", "edges", "names"),
    [
        ("name,x\na,1\n", EDGES, ["nodes.csv", "missing column 'id'", "name, x"]),
        ("", EDGES, ["nodes.csv", "missing column 'id'", "none"]),
        ("id,x\n", EDGES, ["nodes.csv", "no node"]),
        ("id,label,split\na,0,train\n", EDGES, ["nodes.csv", "no feature column"]),
        ("id,x,x\na,1,1\n", EDGES, ["nodes.csv", "column name appears twice"]),
        ("id,x\na,1\na,2\n", EDGES, ["nodes.csv", "line 3", "'a' appears twice"]),
        ("id,x\na,1\n\nb,2,3\n", EDGES, ["nodes.csv", "line 4", "3 cells, expected 2"]),
        ("id,x\na\n", EDGES, ["nodes.csv", "line 2", "1 cells, expected 2"]),
        ("id,x\na,1\nb,one\n", EDGES, ["nodes.csv", "line 3", "column 'x' must be a number, got 'one'"]),
        ("id,x\na,\n", EDGES, ["nodes.csv", "line 2", "column 'x' must be a number, got ''"]),
        ("id,x\na,nan\n", EDGES, ["nodes.csv", "line 2", "column 'x' must be finite, got 'nan'"]),
        ("id,x\na,-inf\n", EDGES, ["nodes.csv", "line 2", "column 'x' must be finite, got '-inf'"]),
        ("id,x\na,1e999\n", EDGES, ["nodes.csv", "line 2", "column 'x' must be finite, got '1e999'"]),
        ("id,x\na,1e39\n", EDGES, ["nodes.csv", "line 2", "column 'x'", "'1e39'"]),  # beyond single precision
        ("id,split,x\na,trian,1\n", EDGES, ["nodes.csv", "line 2", "train, val, test or empty, got 'trian'"]),
        (f"id,x\na,1\nb,{'1' * 200_000}\n", EDGES, ["nodes.csv", "line 3"]),  # an unclosed quote reads like this
        (NODES, "", ["edges.csv", "missing column 'source'", "none"]),
        (NODES, "source,target\n", ["edges.csv", "no edge"]),
        (NODES, "source,to\na,b\n", ["edges.csv", "missing column 'target'", "source, to"]),
        (NODES, "source,target\na,b\na,z\n", ["edges.csv", "line 3", "target 'z' is not the id of a node"]),
        (NODES, "source,target\n0,b\n", ["edges.csv", "line 2", "source '0' is not the id of a node"]),
        (NODES, "source,target,weight\na,b,x\n", ["edges.csv", "line 2", "column 'weight' must be a number"]),
        (NODES, "source,target,length\na,b,nan\n", ["edges.csv", "line 2", "column 'length' must be finite"]),
        (NODES, "source,target,weight\na,b,1e39\n", ["edges.csv", "line 2", "column 'weight'", "'1e39'"]),
        (NODES, "source,target\na,b,c\n", ["edges.csv", "line 2", "3 cells, expected 2"]),
    ],
)
def test_what_is_wrong_is_named_with_file_line_and_column(tmp_path, nodes, edges, names):
    message = refusal(lambda: datasets.load(str(written(tmp_path, nodes, edges))))
    assert message.startswith(str(tmp_path))
    for name in names:
        assert name in message


@pytest.mark.parametrize("name", ["nodes.csv", "edges.csv"])
def test_a_file_that_is_missing_or_no_text(tmp_path, name):
    path = csv_folder(tmp_path) / name
    path.write_bytes(b"id,x\n\xff\xfe,1\n")
    assert refusal(lambda: read_folder(tmp_path)) == f"{path}: not UTF-8 text"
    path.unlink()
    assert refusal(lambda: read_folder(tmp_path)) == f"{path}: cannot be read (No such file or directory)"


def test_pairs(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("source,target,note\nb,a,x\na,c,y\n")
    index = {"a": 0, "b": 1, "c": 2}
    assert read_pairs(path, index).tolist() == [[1, 0], [0, 2]]
    path.write_text("source,target\n")
    assert refusal(lambda: read_pairs(path, index)) == f"{path}: no pair"
    path.write_text("source,target\na,d\n")
    assert refusal(lambda: read_pairs(path, index)) == f"{path}: line 2: target 'd' is not the id of a node"


# ---- saved objects ---------------------------------------------------------------------------------------------------


def test_a_saved_graph_comes_back(tmp_path):
    data = graph(edge_weight=torch.rand(graph().num_edges), names=["a", "b", "c"], train_mask=torch.ones(60, 2) > 0)
    torch.save(data, tmp_path / "data.pt")
    read = datasets.load(str(tmp_path / "data.pt"))
    assert type(read) is Data
    assert read.keys() == data.keys()
    for key, value in data.items():
        assert torch.equal(read[key], value) if isinstance(value, torch.Tensor) else read[key] == value


@pytest.mark.parametrize("use", [Data.num_nodes.fget, T.ToUndirected(), lambda data: data.is_edge_attr("x")])
def test_a_graph_that_was_in_use_comes_back(tmp_path, use):
    """PyG keeps notes in a graph of what it has found out about it, and saves them too."""
    data = graph()
    use(data)
    torch.save(data, tmp_path / "data.pt")
    assert torch.equal(read_saved(tmp_path / "data.pt").x, data.x)


@pytest.mark.parametrize("kind", [list, tuple])
def test_saved_graphs_come_back(tmp_path, kind):
    given = graphs(5, split="train")
    torch.save(kind(given), tmp_path / "data.pt")
    read = read_saved(tmp_path / "data.pt")
    assert [(g.num_nodes, int(g.y), g.split) for g in read] == [(g.num_nodes, int(g.y), "train") for g in given]
    assert all(torch.equal(a.x, b.x) for a, b in zip(read, given, strict=True))


class Evil:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return shutil.copyfile, (__file__, str(self.path))


def save_plain(value, path):
    with open(path, "wb") as f:
        pickle.dump(value, f)


def save_old(value, path):
    torch.save(value, path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("save", [torch.save, save_old, save_plain])
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a graph"])
def test_a_malicious_pickle_is_refused_unread(tmp_path, save, inside):
    trap, path = tmp_path / "sprung", tmp_path / "data.pt"
    save(graph(extra=Evil(trap)) if inside else Evil(trap), path)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        message = refusal(lambda: datasets.load(str(path)))
    assert not trap.exists()
    assert message.startswith(f"{path}: not a saved PyG Data")
    assert not heard, "on the command line a warning is a second line on standard error"
    with path.open("rb") as f:  # the trap works where it is not refused
        torch.load(f, weights_only=False) if save is not save_plain else pickle.load(f)
    assert trap.exists()


class Detour:
    """Names only a class that PyG allows everywhere, whose constructor reads another file, and that without care."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return ClusterData, (graph(), 2, False, str(self.path.parent), str(self.path), False)


def test_what_others_allow_is_not_allowed_here(tmp_path):
    """PyG adds to the classes that torch reads in the whole process; the list of this package is its own."""
    trap = tmp_path / "sprung"
    torch.save(Evil(trap), tmp_path / "second.pt")
    torch.save(Detour(tmp_path / "second.pt"), tmp_path / "data.pt")
    allowed = set(torch.serialization.get_safe_globals())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG's, on the way to the trap
        message = refusal(lambda: read_saved(tmp_path / "data.pt"))
    assert not trap.exists()
    assert "ClusterData" in message
    assert set(torch.serialization.get_safe_globals()) == allowed, "what others allow is theirs"


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (nn.Linear(2, 2), "torch.nn.modules.linear.Linear"),
        (HeteroData(), "torch_geometric.data"),
        (graph(extra=T.ToUndirected()), "ToUndirected"),
        ({"x": torch.ones(2)}, "holds a dict"),
        (torch.ones(2), "holds a Tensor"),
        ([], "holds a list"),
        ([graph(), 3], "holds a list"),
    ],
)
def test_another_object_is_refused_by_its_name(tmp_path, value, named):
    path = tmp_path / "data.pt"
    torch.save(value, path)
    message = refusal(lambda: read_saved(path))
    assert message.startswith(f"{path}: ")
    assert named in message


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\x80\x02.", b"PK\x03\x04"])
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    (tmp_path / "data.pt").write_bytes(content)
    assert refusal(lambda: read_saved(tmp_path / "data.pt")).startswith(f"{tmp_path / 'data.pt'}: ")


def test_a_file_that_was_cut_off_is_refused(tmp_path):
    path = tmp_path / "data.pt"
    torch.save(graph(), path)
    path.write_bytes(path.read_bytes()[:-200])
    assert refusal(lambda: read_saved(path)).startswith(f"{path}: ")


# ---- an adjacency instead of edges -----------------------------------------------------------------------------------


def by_adjacency(data: Data, attr: str | None = None) -> Data:
    """As PyG's own transform makes it."""
    with torch.sparse.check_sparse_tensor_invariants():  # torch warns where it is not said whether to check
        return T.ToSparseTensor(attr=attr, remove_edge_index=True, layout=torch.sparse_csr)(data.clone())


def test_direction_of_a_transposed_adjacency():
    crow, column = torch.tensor([0, 0, 2, 3]), torch.tensor([0, 2, 1])  # rows are targets: 0 -> 1, 2 -> 1, 1 -> 2
    adjacency = torch.sparse_csr_tensor(crow, column, torch.ones(3), (3, 3), check_invariants=True)
    data = Data(x=torch.ones(3, 1), adj_t=adjacency)
    assert set(map(tuple, with_edges(data).edge_index.t().tolist())) == {(0, 1), (2, 1), (1, 2)}
    assert "edge_index" not in data, "the given graph must stay as it is"


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_adjacency_gives_the_edges_back(directed, weighted):
    data = graph()
    if directed:
        data.edge_index = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
    expected = dict.fromkeys(map(tuple, data.edge_index.t().tolist()), 1.0)
    if weighted:
        data.edge_weight = torch.arange(data.num_edges) + 0.5
        expected = dict(zip(expected, data.edge_weight.tolist(), strict=True))
    task = make_task(by_adjacency(data, "edge_weight" if weighted else None))
    found = task.example
    weights = found.edge_weight.tolist() if weighted else [1.0] * found.num_edges
    assert dict(zip(map(tuple, found.edge_index.t().tolist()), weights, strict=True)) == expected
    assert ("edge_weight" in found) == weighted
    assert "adj_t" not in found


def test_a_graph_with_both_keeps_its_edges():
    """And loses the adjacency, which no view changes and in which held-out edges would stay."""
    data = graph()
    data.adj_t = by_adjacency(data).adj_t
    found = with_edges(data)
    assert torch.equal(found.edge_index, data.edge_index)
    assert "adj_t" not in found
    assert "adj_t" in data, "the given graph must stay as it is"


def test_adjacencies_of_many_graphs():
    given = graphs(10)
    task = make_task([by_adjacency(g) for g in given], "graph")
    assert task.example.num_edges == given[0].num_edges


def test_a_saved_adjacency(tmp_path):
    torch.save(by_adjacency(graph()), tmp_path / "data.pt")
    assert pairs_of(with_edges(read_saved(tmp_path / "data.pt")).edge_index) == pairs_of(graph().edge_index)


# ---- features and nodes by name --------------------------------------------------------------------------------------


def named(*names: str) -> Data:
    return Data(x=torch.arange(6.0).view(2, 3), feature_names=list(names))


def test_features_go_by_their_names():
    data = named("c", "a", "b")
    found = in_order(data, ["a", "b", "c"])
    assert found.x.tolist() == [[1, 2, 0], [4, 5, 3]]
    assert found.feature_names == ["a", "b", "c"]
    assert data.x.tolist() == [[0, 1, 2], [3, 4, 5]], "the given graph must stay as it is"
    assert in_order(data, None) is data
    assert in_order(data, ["c", "a", "b"]) is data
    bare = Data(x=torch.ones(2, 3))
    assert in_order(bare, ["a", "b", "c"]) is bare


def test_features_of_other_names_are_named():
    assert refusal(lambda: in_order(named("a", "b", "d"), ["a", "b", "c"])) == "data: feature 'c': missing"
    message = refusal(lambda: in_order(named("a", "b", "c"), ["a", "b"]))
    assert message == "data: feature 'c': not one that the network knows"


@pytest.mark.parametrize("other", [3, ["a", 1], torch.arange(3), "text", None])
def test_what_is_under_a_name_of_ours_and_is_no_list_of_names_is_not_ours(other):
    assert names_of(Data(ids=other), "ids") is None
    data = graph()
    data.ids = data.classes = data.feature_names = other
    assert fit(data, epochs=1).classes is None


def test_a_header_that_is_no_csv(tmp_path):
    folder = written(tmp_path, "id,label,x\na,0,1\nb,1,2\n", edges="source," + "x" * 200_000 + "\n")
    assert refusal(lambda: read_folder(folder)).startswith(f"{folder / 'edges.csv'}: line 1: ")


@pytest.mark.parametrize("kind", [torch.int32, torch.int16, torch.uint8])
def test_edges_of_other_whole_numbers(kind):
    data = graph()
    data.edge_index = data.edge_index.to(kind)
    assert torch.equal(make_task(data).example.edge_index, graph().edge_index)
    assert data.edge_index.dtype == kind


def test_features_that_were_computed_have_no_gradient():
    data = graph()
    data.x = data.x.requires_grad_() * 1
    assert not make_task(data).example.x.requires_grad
    assert data.x.requires_grad
