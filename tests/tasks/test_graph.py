"""Graph classification: every graph once per epoch, splits by mark or drawn, and what cannot be used."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch_geometric.data import Batch

from akegnn.tasks import GraphTask, make_task
from akegnn.views import DropEdges, MaskFeatures, Original, Subgraph, Transform, keep_edges
from small import Pooled, fit, graph, graphs, refusal

PARTS = ("train", "val", "test")


def marked(count=30, **given):
    made = graphs(count, **given)
    for k, g in enumerate(made):
        g.split = "train" if k % 5 < 3 else "val" if k % 5 == 3 else "test"
        g.name = f"g{k}"
    return made


def test_sizes_and_names():
    task = make_task(marked())
    assert isinstance(task, GraphTask)
    assert (task.name, task.metric_name, task.features, task.outputs) == ("graph", "accuracy", 4, 2)
    assert task.sizes == {"train": 18, "val": 6, "test": 6}
    assert task.splits_drawn == ""
    assert task.parts["val"].tolist() == [3, 8, 13, 18, 23, 28]


@pytest.mark.parametrize("size", [1, 4, 17, 18, 100])
def test_batches_cover_every_training_graph_once(size):
    task = make_task(marked(), batch_size=size)
    generator = torch.Generator().manual_seed(0)
    seen = task.seen(Original(), generator)
    orders = []
    for _ in range(2):
        batches = list(task.batches(seen, generator))
        sizes = [b.num_graphs for b in batches]
        assert len(sizes) == math.ceil(18 / size)
        assert max(sizes) - min(sizes) <= 1, "no last batch of a few graphs, which would settle BatchNorm's statistics"
        orders.append([name for b in batches for name in b.name])
        assert sorted(orders[-1]) == sorted(f"g{k}" for k in task.parts["train"].tolist())
        assert all(b.y.shape == (b.num_graphs,) for b in batches)
    assert orders[0] != orders[1], "every epoch has an order of its own"


def test_views_are_drawn_for_every_graph_on_its_own():
    task = make_task(marked())
    seen = task.seen(MaskFeatures(0.5), torch.Generator().manual_seed(0))
    kept = {tuple(g.x.any(0).tolist()) for g in seen}
    assert len(seen) == 18
    assert len(kept) > 1


@pytest.mark.parametrize("view", [DropEdges(1.0), Subgraph(0.9)])
def test_a_graph_of_one_edge_keeps_its_label(view):
    """PyG takes its one label for an attribute of its one edge."""
    given = graphs(30)
    for g in given[::3]:
        g.edge_index, g.edge_attr = torch.tensor([[0], [1]]), torch.ones(1, 2)
    for g in given:
        g.edge_attr = torch.ones(g.num_edges, 2)
    task = make_task(given)
    seen = task.seen(view, torch.Generator().manual_seed(0))
    assert [g.y.numel() for g in seen] == [1] * len(seen)
    assert all(len(g.edge_attr) == g.num_edges for g in seen)
    assert seen.batch(torch.arange(len(seen))).y.shape == (len(seen),)


def _as_drawn_one_by_one(task, view, seed):
    """The independent truth: PyG's batch of views that were drawn graph by graph."""
    draws = torch.Generator().manual_seed(seed)
    return [view(g, draws) for g in task.train_graphs]


def _assert_same(batch, graphs):
    truth = Batch.from_data_list(graphs)
    assert set(batch.keys()) - {"ptr"} == set(truth.keys()) - {"ptr"}
    assert all(torch.equal(batch[key], truth[key]) for key, _ in batch.items() if key != "ptr")


@pytest.mark.parametrize("directed", [(), range(0, 30, 7), range(30)], ids=["undirected", "both", "directed"])
@pytest.mark.parametrize("attributes", [False, True])
@pytest.mark.parametrize("view", [DropEdges(0.4), DropEdges(0.0), DropEdges(1.0), Subgraph(0.4), MaskFeatures(0.4)])
def test_graphs_drawn_as_one_are_those_drawn_one_by_one(view, attributes, directed):
    """Dropped edges are drawn for all graphs at once: the same draws, in batches and graph by graph."""
    given = graphs(30)
    for k, g in enumerate(given):
        if k in directed:
            g.edge_index = g.edge_index[:, g.edge_index[0] < g.edge_index[1]]
        if k == 4:
            g.edge_index = g.edge_index[:, :0]
        if attributes:
            g.edge_weight = torch.rand(g.num_edges)
            g.edge_attr = torch.rand(g.num_edges, 2)
    task = make_task(given)
    draws = torch.Generator().manual_seed(1)
    seen, other = (task.seen(view, draws) for _ in range(2))
    truth = _as_drawn_one_by_one(task, view, 1)
    assert len(seen) == len(truth)
    for a, b in zip(seen, truth, strict=True):
        assert set(a.keys()) == set(b.keys())
        assert all(torch.equal(a[key], b[key]) for key, _ in a.items())
    members = torch.tensor([5, 0, 4, 11])
    first = seen.batch(members)
    _assert_same(first, [truth[k] for k in members.tolist()])
    # what another view shares with it is taken from its batch, and nothing else
    for beside in (other, task.seen(Original(), draws), task.seen(MaskFeatures(0.5), draws)):
        _assert_same(beside.batch(members, seen, first), [beside[k] for k in members.tolist()])


@dataclasses.dataclass
class HeavyOnes(DropEdges):
    """Made from a view of ours, but what it keeps depends on the graph."""

    def draw(self, data, generator):
        return keep_edges(data, self.kept(data, generator))

    def kept(self, data, generator):
        return torch.arange(data.num_edges) > data.num_edges // 2


@dataclasses.dataclass
class Weighted(DropEdges):
    """Leaves out edges by their weight: each by itself, so that all graphs can be drawn as one."""

    edge_by_edge = True

    def draw(self, data, generator):
        return keep_edges(data, self.kept(data, generator))

    def kept(self, data, generator):
        return torch.rand(data.num_edges, generator=generator) < data.edge_weight


@dataclasses.dataclass
class Besides(DropEdges):
    """Does something besides, where it is called."""

    def __call__(self, data, generator=None):
        data = super().__call__(data, generator)
        data.x = torch.zeros_like(data.x)
        return data


def test_views_of_ones_own_are_drawn_as_they_say():
    given = graphs(30)
    for g in given:
        g.edge_weight = torch.rand(g.num_edges)
    task = make_task(given)
    for view in (Weighted(), Besides()):
        seen = task.seen(view, torch.Generator().manual_seed(1))
        _assert_same(seen.batch(torch.arange(6)), _as_drawn_one_by_one(task, view, 1)[:6])


def test_a_view_made_from_one_of_ours_is_drawn_graph_by_graph():
    task = make_task(graphs(30))
    seen = task.seen(HeavyOnes(), torch.Generator())
    assert [g.num_edges for g in seen] == [(g.num_edges - 1) // 2 for g in task.train_graphs]


def test_a_loop_of_ones_own_is_given_a_list_of_graphs():
    given = []

    def train(model, seen, redraw):
        given.extend([seen, redraw()])

    fit(marked(), "gcn", views=["drop-edges:0.5", "original"], train=train)
    assert all(type(seen) is list and len(seen) == 18 for seen in given)


def test_prediction_and_loss_go_graph_by_graph():
    given = marked()
    task = make_task(given, batch_size=5)
    model = Pooled(4, 2).requires_grad_(False)
    alone = torch.cat([model(g.x, g.edge_index, torch.zeros(g.num_nodes, dtype=torch.long)) for g in given])
    prediction = task.predict(model)
    assert torch.allclose(prediction, alone, atol=1e-6)
    target = torch.tensor([int(g.y) for g in given])
    for part in PARTS:
        scores, labels = task.part(prediction, part)
        assert labels.tolist() == target[task.parts[part]].tolist()
        assert task.score(prediction, part) == float((scores.argmax(1) == labels).double().mean())
        chances = scores.softmax(1)[torch.arange(len(labels)), labels]
        assert float(task.part_loss(prediction, part)) == pytest.approx(float(-chances.log().mean()), rel=1e-5)
    batch = Batch.from_data_list(given[:3])
    chances = alone[:3].softmax(1)[torch.arange(3), target[:3]]
    assert float(task.loss(alone[:3], batch)) == pytest.approx(float(-chances.log().mean()), rel=1e-5)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_label_of_any_shape(shape):
    given = marked()
    for g in given:
        g.y = g.y.view(shape)
    task = make_task(given)
    (batch,) = task.batches(task.seen(Original(), torch.Generator()), torch.Generator())
    assert torch.isfinite(task.loss(torch.randn(18, 2), batch))
    assert task.labels.tolist() == [k % 2 for k in range(30)]


def test_floor_is_the_commonest_training_class():
    given = marked()
    for k, g in enumerate(given):
        g.y = torch.tensor([2 if g.split == "train" and k > 10 else k % 2])
    test = [int(g.y) for g in given if g.split == "test"]
    given[4].y = torch.tensor([2])
    assert make_task(given).floor() == pytest.approx(1 / len(test))


def test_missing_splits_are_drawn_by_class_and_recorded():
    task = make_task(graphs(30))
    assert task.splits_drawn.startswith("train, val, test drawn by class with seed ")
    assert task.sizes == {"train": 18, "val": 6, "test": 6}
    assert all(task.labels[task.parts[p]].bincount().tolist() == [task.sizes[p] // 2] * 2 for p in PARTS)
    assert not torch.equal(task.parts["test"], make_task(graphs(30), split=1).parts["test"])


def test_graphs_without_a_mark_are_where_missing_parts_are_drawn_from():
    given = graphs(30)
    for k, g in enumerate(given):
        if k < 10:
            g.split = "train"
    task = make_task(given)
    assert task.splits_drawn.startswith("val, test drawn")
    assert task.parts["train"].tolist() == list(range(10))
    assert task.predict(Pooled(4, 2)).shape == (30, 2)


def spoiled(k, **changed):
    given = marked()
    for key, value in changed.items():
        given[k][key] = value
    return given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "data: the graph task needs at least one graph"),
        (spoiled(7, y=None), "data[7].y: must be one label per graph"),
        (spoiled(7, y=torch.tensor([0, 1])), "data[7].y: must be one label per graph"),
        (spoiled(7, y=torch.tensor([-1])), "y: number "),
        ([graph(8, y=torch.tensor([0.5])) for _ in range(9)], "y: must be one whole number each"),
        ([graph(8, y=torch.tensor([1])) for _ in range(9)], "y: only one class (1)"),
        (spoiled(7, x=None), "data[7].x: missing"),
        (spoiled(7, x=torch.ones(9, 3)), "data[7].x: 3 features, data[0] has 4"),
        (spoiled(7, x=torch.full((9, 4), torch.inf)), "data[7].x: contains NaN or infinite features"),
        (spoiled(7, edge_index=torch.tensor([[9], [0]])), "data[7].edge_index: names node 9, but there are 9"),
        (spoiled(7, split="trian"), "data[...].split: must be one of train, val, test"),
        ([g for g in marked() if g.split != "val"] + spoiled(0)[3:4], None),
    ],
)
def test_what_is_wrong_is_named(given, message):
    if message is None:  # the control: nothing wrong
        assert make_task(given, "graph").sizes["val"] == 1
    else:
        assert refusal(lambda: make_task(given, "graph")).startswith(message)


def test_a_model_that_does_not_pool():
    task = make_task(marked())
    (batch,) = task.batches(task.seen(Original(), torch.Generator()), torch.Generator())
    rows = batch.num_nodes
    message = refusal(lambda: task.loss(torch.zeros(rows, 2), batch))
    assert message == f"model: {rows} rows for 18 graphs; it must pool by `batch`"


@pytest.mark.parametrize("model", ["gcn", "gin", Pooled])
def test_all_three_phases(model):
    calls = []

    def count(data):
        calls.append(data)
        return data

    result = fit(marked(), model, views=["drop-edges:0.5", Transform(count, resample="epoch")], epochs=2, batch_size=7)
    assert [s.name for s in result.scores][-2:] == ["AKE", "AKE network 2"]
    batch = Batch.from_data_list(marked()[:4])
    assert result.model(batch.x, batch.edge_index, batch=batch.batch).shape == (4, 2)
    assert len(calls) == 2 * 2 * 18, "each training graph, in both phases, in both epochs"


def test_graphs_need_the_same_attributes_of_nodes_and_edges():
    given = marked()
    given[3].edge_weight = torch.ones(given[3].num_edges)
    assert refusal(lambda: make_task(given)) == "data[0].edge_weight: missing, data[3] has it"
    for g in given:
        g.edge_weight = torch.ones(g.num_edges)
    del given[5]["edge_weight"]
    assert refusal(lambda: make_task(given)) == "data[5].edge_weight: missing, data[0] has it"


def test_what_only_some_graphs_have_and_nobody_reads_goes():
    given = marked()
    given[3].source = "a database"
    task = make_task(given)
    assert "source" not in task.graphs[3]
    assert given[3].source == "a database", "the given graphs must stay as they are"
    assert len(list(task.batches(task.seen(Original(), torch.Generator()), torch.Generator()))) > 0


def test_a_graph_without_nodes_is_named():
    given = marked()
    given[4].x, given[4].edge_index = torch.empty(0, 4), torch.empty(2, 0, dtype=torch.long)
    assert refusal(lambda: make_task(given)) == "data[4]: has no nodes"


def test_roc_auc_needs_both_labels_in_each_part():
    given = marked()
    for g in given:
        g.y = torch.tensor([int(g.split == "train" and int(g.name[1:]) % 2 == 0)])
    message = refusal(lambda: make_task(given, metric="roc_auc"))
    assert message == "metric: roc_auc has no value where all val labels are 0"
