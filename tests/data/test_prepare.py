"""What is done to graphs beforehand: features by row, degrees or a constant, edges both ways or the other way round."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

import akegnn
from akegnn.data.prepare import prepare
from akegnn.tasks import make_task
from small import graph, graphs, refusal


def words(seed: int = 0) -> Data:
    """Counts of words, most of them zero, one node without any; edges one way, one loop."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(4, (20, 6), generator=g).float() * (torch.rand(20, 6, generator=g) < 0.4)
    x[7] = 0
    ends = torch.stack([torch.arange(19), torch.arange(1, 20)])
    ends = torch.cat([ends, torch.tensor([[3, 0], [3, 5]])], dim=1)
    return Data(x=x, edge_index=ends, y=torch.arange(20) % 2)


def by_row(x: torch.Tensor) -> np.ndarray:
    """Each row divided by its sum; a row of zeros stays."""
    rows = [np.array(row, dtype=np.float64) for row in x.tolist()]
    return np.array([row / row.sum() if row.sum() != 0 else row for row in rows])


def same(a: Data, b: Data) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in b.keys())  # noqa: SIM118 (Data is no dict)


def test_what_is_given_stays():
    data, many = words(), graphs(3)
    assert prepare(data) is data
    assert prepare(many) is many


@pytest.mark.parametrize("features", ["row", "degree", "constant"])
@pytest.mark.parametrize("edges", ["given", "undirected", "reversed"])
def test_what_a_person_gives_is_not_changed(features, edges):
    data, before = words(), words()
    made = prepare(data, features, edges)
    assert same(data, before)
    assert not torch.equal(made.x, data.x)
    assert torch.equal(made.y, data.y)


ROWS = {
    "counts": words().x,
    "shares": words().x / 100,  # sums below one
    "from one on": words().x + 1,
    "all alike": torch.ones(20, 6),
    "double": words().x.double(),
}


@pytest.mark.parametrize("x", ROWS.values(), ids=ROWS)
def test_features_by_row(x):
    data = words()
    data.x = x
    made = prepare(data, "row")
    assert made.x.dtype == x.dtype
    np.testing.assert_allclose(made.x.numpy(), by_row(x), rtol=1e-6)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_features_by_row_in_a_sparse_layout(layout):
    data = words()
    data.x = data.x.to_sparse(layout=layout)
    made = prepare(data, "row").x
    dense = made if made.layout == torch.strided else made.to_dense()
    np.testing.assert_allclose(dense.numpy(), by_row(words().x), rtol=1e-6)


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 5))
def test_rows_sum_to_one(seed, nodes, width):
    x = torch.randint(5, (nodes, width), generator=torch.Generator().manual_seed(seed)).float()
    data = Data(x=x, edge_index=torch.zeros(2, 0, dtype=torch.long))
    sums = prepare(data, "row").x.sum(1)
    assert torch.allclose(sums, (x.sum(1) > 0).float())


def test_degrees_are_the_numbers_of_neighbours():
    data = words()
    made = prepare(data, "degree")
    wanted = [sum(b == node for _, b in data.edge_index.t().tolist()) for node in range(20)]
    assert made.x.tolist() == [[float(w)] for w in wanted]
    both = prepare(data, "degree", "undirected")
    pairs = {tuple(e) for e in data.edge_index.t().tolist()} | {tuple(e[::-1]) for e in data.edge_index.t().tolist()}
    assert both.x.flatten().tolist() == [float(sum(b == node for _, b in pairs)) for node in range(20)]


def test_a_constant():
    assert torch.equal(prepare(words(), "constant").x, torch.ones(20, 1))
    bare = Data(edge_index=words().edge_index, num_nodes=23)
    assert prepare(bare, "constant").x.shape == (23, 1)


def test_every_edge_in_both_directions():
    data = words()
    made = prepare(data, edges="undirected")
    ends = {tuple(e) for e in data.edge_index.t().tolist()}
    found = [tuple(e) for e in made.edge_index.t().tolist()]
    assert set(found) == ends | {(b, a) for a, b in ends}
    assert len(set(found)) == len(found)


def test_an_undirected_graph_is_undirected_already():
    data = graph()
    made = prepare(data, edges="undirected")
    assert {tuple(e) for e in made.edge_index.t().tolist()} == {tuple(e) for e in data.edge_index.t().tolist()}


def test_weights_of_edges_that_go_both_ways_stay():
    """Done to a graph that has both directions already, it changes nothing; a new direction has the other's weight."""
    data = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1, 1], [1, 0, 2]]), edge_weight=torch.tensor([2.0, 2, 5]))
    made = prepare(data, edges="undirected")
    found = dict(zip(map(tuple, made.edge_index.t().tolist()), made.edge_weight.tolist(), strict=True))
    assert found == {(0, 1): 2, (1, 0): 2, (1, 2): 5, (2, 1): 5}


def test_every_edge_the_other_way_round():
    """In its place, so that weights stay with their edges."""
    data = words()
    data.edge_weight = torch.arange(data.num_edges).float()
    made = prepare(data, edges="reversed")
    assert made.edge_index.tolist() == data.edge_index.tolist()[::-1]
    assert torch.equal(made.edge_weight, data.edge_weight)
    assert same(data, words().update({"edge_weight": torch.arange(data.num_edges).float()}))
    # What a node hears of is then what it points to.
    into = prepare(data, "degree", "reversed").x.flatten().tolist()
    assert into == [float(sum(a == node for a, _ in data.edge_index.t().tolist())) for node in range(20)]


def test_masks_and_labels_are_no_edges():
    """Where there are as many nodes as edges, all the same."""
    data = words()
    data.edge_index = data.edge_index[:, :20]
    data.train_mask = torch.arange(20) < 5
    assert data.num_edges == data.num_nodes
    made = prepare(data, edges="undirected")
    assert torch.equal(made.y, data.y)
    assert torch.equal(made.train_mask, data.train_mask)
    assert torch.equal(made.x, data.x)


def test_many_graphs_one_by_one():
    many = graphs(4)
    made = prepare(many, "degree")
    assert [g.x.shape for g in made] == [(g.num_nodes, 1) for g in many]
    assert all(same(a, b) for a, b in zip(many, graphs(4), strict=True))


def test_folds_of_degrees():
    """Where the data has folds of their own for degrees, they are those of degrees and of nothing else."""
    many = graphs(4)
    for g in many:
        g.split, g.split_degree = ["train"], ["test"]
    assert [g.split for g in prepare(many, "degree")] == [["test"]] * 4
    assert [g.split for g in prepare(many, "constant")] == [["train"]] * 4
    assert [g.split for g in many] == [["train"]] * 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"features": "rows"}, "features: 'rows' is not one of given, row, degree, constant"),
        ({"edges": "both"}, "edges: 'both' is not one of given, undirected, reversed"),
    ],
)
def test_words_that_are_none(given, message):
    for data in (words(), graphs(2)):
        assert refusal(lambda data=data: prepare(data, **given)) == message
    assert refusal(lambda: akegnn.fit(words(), epochs=1, device="cpu", **given)) == message


BARE = {
    "no features": (Data(edge_index=words().edge_index, y=words().y), "row"),
    "whole numbers": (Data(x=words().x.long(), edge_index=words().edge_index, y=words().y), "row"),
    "no edges": (Data(x=words().x, y=words().y), "degree"),
}


def test_a_graph_given_by_its_adjacency():
    """``adj_t``, as PyG's ToSparseTensor leaves it."""
    data = words()
    ones = torch.ones(data.num_edges)
    adjacency = torch.sparse_coo_tensor(data.edge_index.flip(0), ones, (20, 20), check_invariants=False)
    other = Data(x=data.x, y=data.y, adj_t=adjacency)
    for features, edges in (("degree", "given"), ("given", "undirected"), ("given", "reversed")):
        made, wanted = (make_task(prepare(d, features, edges)) for d in (other, data))
        assert torch.equal(made.data.x, wanted.data.x)
        assert set(map(tuple, made.data.edge_index.t().tolist())) == set(
            map(tuple, wanted.data.edge_index.t().tolist())
        )


@pytest.mark.parametrize(("data", "features"), BARE.values(), ids=BARE)
def test_graphs_that_it_cannot_be_done_to(data, features):
    message = refusal(lambda: akegnn.fit(data, features=features, epochs=1, device="cpu"))
    assert message.startswith("data.")


def test_fit_prepares_and_records():
    given = {"epochs": 1, "views": ["original"], "device": "cpu"}
    result = akegnn.fit(graph(), features="degree", edges="undirected", **given)
    assert (result.settings.features, result.settings.edges) == ("degree", "undirected")
    assert result.settings.model_args["in_channels"] == 1
    plain = akegnn.fit(graph(), **given)
    assert (plain.settings.features, plain.settings.edges) == ("given", "given")
    # The same as when a person does it.
    own = akegnn.fit(prepare(graph(), "degree"), **given)
    assert [(s.name, s.test) for s in own.scores] == [(s.name, s.test) for s in result.scores]


@pytest.mark.parametrize("label", ["y", "anything"])
def test_the_label_of_a_graph_of_one_edge_is_no_attribute_of_it(label):
    data = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([1]))
    data[label] = torch.tensor([1])
    assert prepare(data, edges="undirected").y.tolist() == [1]
    task = make_task([prepare(g, edges="undirected") for g in [data, *graphs(20)][1:]], "graph")
    assert task.labels.dim() == 1
