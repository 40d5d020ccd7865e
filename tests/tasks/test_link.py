"""Link prediction: what is held out stays out, negatives are no edges, scores are scikit-learn's."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import nn

from akegnn.tasks import LinkTask, make_task
from akegnn.views import Original, Transform, paper_views
from small import fit, graph, pairs_of, refusal


@pytest.fixture(scope="module")
def big():
    return graph(300)


def positives(task, part):
    joined = task.pairs[part] if part == "train" else task.pairs[part][:, task.targets[part] == 1]
    return [tuple(sorted(p)) for p in joined.t().tolist()]


def negatives(task, part):
    return [tuple(sorted(p)) for p in task.pairs[part][:, task.targets[part] == 0].t().tolist()]


def test_85_5_10_of_the_undirected_edges(big):
    task = make_task(big, "link")
    edges = len(pairs_of(big.edge_index))
    assert (task.name, task.metric_name, task.features, task.splits_drawn) == ("link", "roc_auc", 5, "")
    assert task.sizes == {"train": edges - edges // 20 - edges // 10, "val": edges // 20, "test": edges // 10}
    for part in ("val", "test"):  # as many pairs without an edge
        assert task.targets[part].tolist() == [1.0] * task.sizes[part] + [0.0] * task.sizes[part]


def test_every_edge_is_in_one_part(big):
    task = LinkTask(big)
    found = [pair for part in ("train", "val", "test") for pair in positives(task, part)]
    assert sorted(found) == sorted(pairs_of(big.edge_index))


@pytest.mark.parametrize("times", [1, 2], ids=["simple", "every edge listed twice"])
def test_held_out_edges_are_in_no_graph_that_a_network_sees(big, times):
    data = big.clone()
    data.edge_index = data.edge_index.repeat(1, times)
    data.edge_weight = torch.arange(data.num_edges).float()
    task = LinkTask(data)
    held = {*positives(task, "val"), *positives(task, "test")}
    assert held
    assert not held & set(positives(task, "train"))
    assert not set(positives(task, "val")) & set(positives(task, "test"))
    assert pairs_of(task.data.edge_index) == set(positives(task, "train"))
    for view in [Original(), *paper_views()]:
        seen = task.seen(view, torch.Generator().manual_seed(1))
        assert not held & pairs_of(seen.edge_index)
        (batch,) = task.batches(seen, torch.Generator())
        assert not held & pairs_of(batch.edge_index)
        # What goes with an edge stays with it.
        weights = dict(zip(map(tuple, data.edge_index.t().tolist()), data.edge_weight.tolist(), strict=True))
        if times == 1:
            assert all(
                weights[tuple(e)] == w
                for e, w in zip(seen.edge_index.t().tolist(), seen.edge_weight.tolist(), strict=True)
            )


def test_networks_are_evaluated_on_the_training_edges_too(big):
    """A held-out edge in the graph would tell the answer."""
    task, graphs = LinkTask(big), []

    class Spy(nn.Module):
        def forward(self, x, edge_index):
            graphs.append(pairs_of(edge_index))
            return x

    task.predict(Spy())
    task.probability(Spy(), task.pairs["test"])
    assert graphs == [set(positives(task, "train"))] * 2


def test_own_loops_and_views_get_the_training_edges_only(big):
    held = {*positives(LinkTask(big), "val"), *positives(LinkTask(big), "test")}
    seen = []

    def view(data):
        seen.append(pairs_of(data.edge_index))
        return data

    def train(model, data):
        seen.append(pairs_of(data.edge_index))

    fit(big, task="link", views=[view, view], train=train)
    assert len(seen) == 8  # two views, drawn for each of two phases, and as many trainings
    assert not any(held & pairs for pairs in seen)


def test_negatives_are_different_nodes_without_an_edge(big):
    task = LinkTask(big)
    edges = pairs_of(big.edge_index)
    draws = [negatives(task, "val"), negatives(task, "test")]
    generator = torch.Generator().manual_seed(0)
    seen = task.seen(Original(), generator)
    for _ in range(3):
        (batch,) = task.batches(seen, generator)
        assert batch.edge_label.tolist() == [1.0] * task.sizes["train"] + [0.0] * task.sizes["train"]
        assert [tuple(sorted(p)) for p in batch.edge_label_index[:, batch.edge_label == 1].t().tolist()] == positives(
            task, "train"
        )
        draws.append([tuple(sorted(p)) for p in batch.edge_label_index[:, batch.edge_label == 0].t().tolist()])
    known = pairs_of(task.data.edge_index)
    for k, draw in enumerate(draws):
        assert not (edges if k < 2 else known) & set(draw)
        assert all(a != b for a, b in draw)
    assert len({tuple(draw) for draw in draws}) == 5, "every epoch has negatives of its own"


def test_training_negatives_do_not_tell_which_pairs_are_held_out():
    """Never to draw a held-out edge would give it away: it has to be drawn as often as a pair that is no edge."""
    pairs = torch.combinations(torch.arange(20)).t()
    edges = pairs[:, torch.randperm(pairs.shape[1], generator=torch.Generator().manual_seed(1))[:95]]
    task = LinkTask(graph(20, edge_index=torch.cat([edges, edges.flip(0)], dim=1)))
    generator = torch.Generator().manual_seed(0)
    drawn: dict[tuple[int, int], int] = {}
    for _ in range(400):
        (batch,) = task.batches(task.data, generator)
        for pair in batch.edge_label_index[:, batch.edge_label == 0].t().tolist():
            drawn[tuple(sorted(pair))] = drawn.get(tuple(sorted(pair)), 0) + 1
    held, free = positives(task, "test"), [tuple(p) for p in pairs.t().tolist() if tuple(p) not in pairs_of(edges)]
    counts = [sum(drawn.get(p, 0) for p in some) / len(some) for some in (held, free)]
    assert abs(counts[0] - counts[1]) < 5 * (counts[1] / len(held)) ** 0.5  # five standard errors of a mean of counts


def test_negatives_in_a_dense_graph_are_the_few_pairs_there_are():
    """Nine pairs in ten are edges, and a held-out edge is still an edge."""
    pairs = torch.combinations(torch.arange(30)).t()
    keep = torch.arange(pairs.shape[1]) % 10 > 0
    edges = pairs[:, keep]
    task = LinkTask(graph(30, edge_index=torch.cat([edges, edges.flip(0)], dim=1)))
    assert {*negatives(task, "val"), *negatives(task, "test")} <= pairs_of(pairs[:, ~keep])


def test_a_complete_graph_has_no_negatives():
    pairs = torch.combinations(torch.arange(12)).t()
    data = graph(12, edge_index=torch.cat([pairs, pairs.flip(0)], dim=1))
    assert refusal(lambda: LinkTask(data)) == "data.edge_index: too dense to find pairs without an edge"


def test_the_split_depends_on_its_number_alone(big):
    a, b, again = LinkTask(big, 0), LinkTask(big, 1), LinkTask(big, 0)
    assert torch.equal(a.pairs["test"], again.pairs["test"])
    assert torch.equal(a.pairs["val"], again.pairs["val"])
    assert set(positives(a, "test")) != set(positives(b, "test"))


class Table(nn.Module):
    """Embeddings that were thought up."""

    def __init__(self, values):
        super().__init__()
        self.values = values

    def forward(self, x):
        return self.values


@pytest.mark.parametrize("part", ["val", "test"])
@pytest.mark.parametrize(
    ("metric", "judge"), [("roc_auc", roc_auc_score), ("average_precision", average_precision_score)]
)
def test_scores_are_inner_products_judged_by_scikit_learn(big, part, metric, judge):
    task = LinkTask(big, metric=metric)
    values = torch.randn(300, 7)
    prediction = task.predict(Table(values))
    literal = [float(values[a] @ values[b]) for a, b in task.pairs[part].t().tolist()]
    assert task.part(prediction, part)[0].tolist() == pytest.approx(literal, rel=1e-4, abs=1e-5)
    assert task.score(prediction, part) == pytest.approx(judge(task.targets[part].numpy(), literal), abs=1e-6)
    probability = task.probability(Table(values), task.pairs[part])
    assert probability.tolist() == pytest.approx((1 / (1 + (-torch.tensor(literal)).exp())).tolist(), abs=1e-5)


def test_loss_is_the_cross_entropy_of_the_scores(big):
    task = LinkTask(big)
    values = torch.randn(300, 7)
    (batch,) = task.batches(task.data, torch.Generator())
    scores = torch.stack([values[a] @ values[b] for a, b in batch.edge_label_index.t().tolist()]).double()
    chances = torch.where(batch.edge_label == 1, scores.sigmoid(), (-scores).sigmoid())
    assert float(task.loss(values, batch)) == pytest.approx(float(-chances.log().mean()), rel=1e-4)


def test_the_ensemble_is_the_mean_probability(big):
    task = LinkTask(big)
    predictions = [torch.randn(2 * (task.sizes["val"] + task.sizes["test"])) for _ in range(3)]
    mean = torch.stack([1 / (1 + (-p).exp()) for p in predictions]).mean(0)
    assert torch.allclose(task.combine(predictions).sigmoid(), mean, atol=1e-6)


@pytest.mark.parametrize(("metric", "floor"), [("roc_auc", 0.5), ("average_precision", 0.5)])
def test_floor_is_chance(big, metric, floor):
    assert LinkTask(big, metric=metric).floor() == floor


@pytest.mark.parametrize("metric", ["accuracy", "f1"])
def test_a_metric_of_classes_has_no_meaning_for_scores(big, metric):
    assert refusal(lambda: make_task(big, "link", metric=metric)).startswith("metric: ")


def test_a_directed_graph_is_refused(big):
    data = big.clone()
    data.edge_index = data.edge_index[:, 1:]
    message = refusal(lambda: make_task(data, "link"))
    assert message.startswith("data.edge_index: the link task needs an undirected graph")


def test_too_few_edges():
    data = graph(30, edge_index=torch.stack([torch.arange(20), (torch.arange(20) + 1) % 20]))
    data.edge_index = torch.cat([data.edge_index[:, :19], data.edge_index[:, :19].flip(0)], dim=1)
    assert "19 undirected edges are too few" in refusal(lambda: make_task(data, "link"))


def test_self_loops_stay_and_are_never_asked_for(big):
    data = big.clone()
    data.edge_index = torch.cat([data.edge_index, torch.arange(300).repeat(2, 1)], dim=1)
    task = LinkTask(data)
    assert all(a != b for part in ("val", "test") for a, b in task.pairs[part].t().tolist())
    assert task.sizes == LinkTask(big).sizes
    assert int((task.data.edge_index[0] == task.data.edge_index[1]).sum()) == 300


def test_a_model_of_graphs_is_refused(big):
    task = LinkTask(big)
    (batch,) = task.batches(task.data, torch.Generator())
    assert "needs one embedding per node" in refusal(lambda: task.loss(torch.ones(300), batch))


def test_an_unlabelled_graph_will_do(big):
    data = big.clone()
    data.y = None
    assert len(fit(data, task="link", views=[Transform(lambda g: g)]).scores) == 4
