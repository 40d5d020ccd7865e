"""Node classification: labels, loss, scores, the vote of an ensemble, and graphs that cannot be used."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, roc_auc_score
from torch import nn
from torch_geometric.data import Data, HeteroData

from akegnn.tasks import NodeTask, make_task
from akegnn.views import MaskFeatures, Original
from small import Net, graph, graphs, masked, refusal

PARTS = {"train": [0, 1, 2, 3, 6, 9], "val": [10, 11, 12], "test": [20, 21, 22, 24]}


def task(metric=None, **given):
    return NodeTask(masked(graph(**given), **PARTS), metric=metric)


def test_sizes_and_names():
    made = make_task(masked(graph(), **PARTS))
    assert isinstance(made, NodeTask)
    assert (made.name, made.metric_name, made.features, made.outputs) == ("node", "accuracy", 5, 3)
    assert made.sizes == {"train": 6, "val": 3, "test": 4}
    assert made.splits_drawn == ""


def test_drawn_splits_depend_on_the_number_of_the_split():
    a, b, again = (make_task(graph(), split=k) for k in (0, 1, 0))
    assert a.splits_drawn.startswith("train, val, test drawn by class with seed ")
    assert all(torch.equal(a.parts[p], again.parts[p]) for p in PARTS)
    assert not torch.equal(a.parts["train"], b.parts["train"])


def test_a_network_sees_the_whole_graph_under_its_view_and_is_judged_on_the_original():
    made = task()
    seen = made.seen(MaskFeatures(1.0), torch.Generator())
    assert not bool(seen.x.any())
    (batch,) = made.batches(seen, torch.Generator())
    assert batch.num_nodes == 60
    model = Net(5, 3, 4)
    assert torch.equal(made.predict(model), model(made.data.x, made.data.edge_index))


def test_loss_is_that_of_the_training_nodes():
    made = task()
    out = torch.randn(60, 3)
    (batch,) = made.batches(made.seen(Original(), torch.Generator()), torch.Generator())
    literal = -sum(math.log(out[k].exp()[int(batch.y[k])] / out[k].exp().sum()) for k in PARTS["train"]) / 6
    assert float(made.loss(out, batch)) == pytest.approx(literal, rel=1e-5)
    assert float(made.part_loss(out, "train")) == pytest.approx(literal, rel=1e-5)


@pytest.mark.parametrize("part", list(PARTS))
def test_scores_are_those_of_scikit_learn(part):
    out = torch.randn(60, 3)
    truth, guess = graph().y[PARTS[part]].numpy(), out[PARTS[part]].argmax(1).numpy()
    assert task().score(out, part) == pytest.approx(accuracy_score(truth, guess))
    assert task("f1").score(out, part) == pytest.approx(f1_score(truth, guess, average="macro", zero_division=0))


def test_ranking_metrics_of_two_classes():
    y, out = torch.arange(60) % 2, torch.randn(60, 2)
    probability = out.softmax(1)[:, 1].numpy()[PARTS["train"]]
    truth = y[PARTS["train"]].numpy()
    assert task("roc_auc", y=y).score(out, "train") == pytest.approx(roc_auc_score(truth, probability))
    expected = average_precision_score(truth, probability)
    assert task("average_precision", y=y).score(out, "train") == pytest.approx(expected)


def test_a_ranking_metric_needs_two_classes():
    assert "two classes" in refusal(lambda: task("roc_auc").score(torch.randn(60, 3), "val"))


def test_a_function_is_a_metric():
    def largest(prediction, target):
        return float(prediction.max()) + len(target)

    made = task(largest)
    assert made.metric_name == "largest"
    assert made.score(torch.arange(180.0).view(60, 3), "val") == 38 + 3


@pytest.mark.parametrize("kind", [torch.tensor, np.float32])
def test_what_a_metric_gives_may_be_a_number_of_any_kind(kind):
    task = make_task(graph(), metric=lambda prediction, target: kind(0.25))
    found = task.score(torch.zeros(60, 3), "val")
    assert (type(found), found) == (float, 0.25)


def test_a_graph_of_several_kinds_is_refused():
    assert refusal(lambda: make_task(HeteroData())).startswith("data: has several kinds of nodes or edges")


def test_an_unknown_metric():
    assert refusal(lambda: task("acuracy")).startswith("metric: 'acuracy' is not one of accuracy, f1")


# ---- the floor and the ensemble --------------------------------------------------------------------------------------


def test_floor_is_the_score_of_the_commonest_training_class():
    # Training labels are 0 1 2 0 0 0, test labels 2 0 1 0.
    assert task().floor() == 0.5


def test_floor_of_equally_common_classes_is_of_the_one_that_validation_has_most_of():
    """As on the citation graphs, where every class has twenty training nodes."""
    data = Data(x=torch.eye(9), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0, 1, 2, 2, 2, 0, 2, 2, 1]))
    for part, nodes in (("train", [0, 1, 2]), ("val", [3, 4, 5]), ("test", [6, 7, 8])):
        data[f"{part}_mask"] = torch.zeros(9, dtype=torch.bool).index_fill(0, torch.tensor(nodes), True)
    assert make_task(data).floor() == pytest.approx(2 / 3)


def test_floor_is_measured_by_the_metric():
    expected = f1_score([2, 0, 1, 0], [0, 0, 0, 0], average="macro", zero_division=0)
    assert task("f1").floor() == pytest.approx(expected)


def literal_vote(predictions):
    """Each network has one vote; among the classes with most votes the one of highest mean probability wins."""
    chosen = []
    for node in range(predictions.shape[1]):
        probabilities = [np.exp(p) / np.exp(p).sum() for p in predictions[:, node].double().numpy()]
        votes = [sum(int(p.argmax()) == c for p in probabilities) for c in range(predictions.shape[2])]
        best = [c for c in range(len(votes)) if votes[c] == max(votes)]
        chosen.append(max(best, key=lambda c: np.mean([p[c] for p in probabilities])))
    return chosen


@pytest.mark.parametrize("networks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("spread", [0.1, 1, 10])  # 10: networks that are sure of themselves
def test_majority_vote(networks, spread):
    predictions = spread * torch.randn(networks, 60, 3)
    assert task().combine(list(predictions)).argmax(1).tolist() == literal_vote(predictions)


@pytest.mark.parametrize(
    ("probabilities", "winner"),
    [
        ([[0.6, 0.4, 0.0], [0.1, 0.9, 0.0]], 1),  # one vote each: the surer one wins
        ([[0.9, 0.1, 0.0], [0.4, 0.6, 0.0]], 0),
        ([[0.34, 0.33, 0.33], [0.34, 0.33, 0.33], [0.0, 1.0, 0.0]], 0),  # two votes beat one, however sure it is
        ([[0.5, 0.1, 0.4], [0.1, 0.5, 0.4]], 0),  # equal votes and equal means: 0 and 1 are alike, 2 has no vote
    ],
)
def test_votes_by_hand(probabilities, winner):
    logits = [torch.tensor([p]).log().clamp_min(-50) for p in probabilities]
    assert int(task().combine(logits).argmax()) == winner


# ---- graphs that cannot be used --------------------------------------------------------------------------------------


def labels(**changed):
    y = graph().y
    for node, label in changed.items():
        y[int(node[1:])] = label
    return y


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"y": None}, "data.y: missing"),
        ({"y": torch.arange(59) % 3}, "data.y: must have one label per node (60)"),
        ({"y": torch.zeros(60, dtype=torch.long)}, "y: only one class (0)"),
        ({"y": labels(n0=-1)}, "y: number 0 (counted from 0) is for train and has no label (-1)"),
        ({"y": labels(n21=-100)}, "y: number 21 (counted from 0) is for test and has no label (-100)"),
        ({"y": labels(n0=10**6)}, "y: label 1000000 with only 13 labels"),
        ({"y": graph().y.float()}, "y: must be one whole number each, got torch.float32"),
        ({"y": torch.randint(2, (60, 3))}, "y: must be one whole number each, got torch.int64 of shape (60, 3)"),
        ({"y": graph().y.tolist()}, "y: "),
        ({"x": None}, "data.x: missing"),
        ({"x": torch.ones(60, 5, dtype=torch.long)}, "data.x: must be floating point"),
        ({"x": torch.full((60, 5), torch.nan)}, "data.x: contains NaN or infinite features"),
        ({"x": torch.eye(60, 5).log()}, "data.x: contains NaN or infinite features"),
        ({"x": torch.ones(60)}, "data.x: "),
        ({"x": graph().x.tolist()}, "data.x: "),
        ({"edge_index": None}, "data.edge_index: missing"),
        ({"edge_index": torch.tensor([[0, 60], [60, 0]])}, "data.edge_index: names node 60, but there are 60"),
        ({"edge_index": torch.tensor([[0, -1], [-1, 0]])}, "data.edge_index: names node -1; nodes count from 0"),
        ({"edge_index": graph().edge_index.t()}, "data.edge_index: "),
        ({"edge_index": graph().edge_index.float()}, "data.edge_index: "),
        ({"edge_index": graph().edge_index.tolist()}, "data.edge_index: "),
        ({"edge_weight": torch.ones(3)}, "data.edge_weight: "),
        ({"edge_weight": torch.full((graph().num_edges,), torch.nan)}, "data.edge_weight: "),
    ],
)
def test_what_is_wrong_is_named(given, message):
    data = masked(graph(), **PARTS)
    for key, value in given.items():
        data[key] = value
    assert refusal(lambda: make_task(data)).startswith(message)


@pytest.mark.parametrize("y", [torch.randint(2, (60, 3)), torch.rand(60, 3), torch.rand(60), torch.zeros(60).long()])
def test_labels_that_cannot_be_used_are_found_before_splits_are_drawn_by_them(y):
    assert refusal(lambda: make_task(graph(y=y))).startswith("y: ")


def test_a_node_without_a_label_is_not_drawn():
    made = make_task(graph(y=labels(n0=-1, n7=-1)))
    assert not {0, 7} & set(torch.cat(list(made.parts.values())).tolist())


def test_an_unlabelled_node_outside_the_splits_is_no_matter():
    assert task(y=labels(n59=-1)).outputs == 3


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8, torch.bool])
def test_labels_of_any_whole_type(kind):
    """Whole numbers are whole numbers; cross entropy wants long ones."""
    y = (graph().y % 2).to(kind)
    made = task(y=y)
    (batch,) = made.batches(made.seen(Original(), torch.Generator()), torch.Generator())
    assert torch.isfinite(made.loss(torch.randn(60, 2), batch))


def test_labels_in_a_column():
    data = masked(graph(y=graph().y.view(-1, 1)), **PARTS)
    assert torch.equal(make_task(data).labels, graph().y)
    assert data.y.shape == (60, 1), "the given graph must stay as it is"


@pytest.mark.parametrize(
    ("data", "name", "message"),
    [
        (graph(), "graph", "data: the graph task needs a list of graphs"),
        (graphs(3), "node", "data: the node task needs one graph"),
        (graphs(3), "link", "data: the link task needs one graph"),
        (graph(), "edges", "task: 'edges' is not one of node, link, graph"),
    ],
)
def test_data_and_task_must_agree(data, name, message):
    assert refusal(lambda: make_task(data, name)) == message


@pytest.mark.parametrize("shape", [(60, 4), (60, 2), (60,), (60, 3, 1)])
def test_a_model_of_another_output_size(shape):
    made = task()
    message = refusal(lambda: made.loss(torch.zeros(shape), made.data))
    assert message == f"model: its output has shape {shape}, the node task needs 3 columns"


def test_a_copy_on_a_device_is_a_copy():
    made = task()
    moved = made.to(torch.device("cpu"))
    assert moved is not made
    assert isinstance(moved, NodeTask)
    model: nn.Module = Net(5, 3, 4)
    assert torch.equal(moved.predict(model), made.predict(model))


def test_weights_and_masks_that_are_no_tensors():
    data = graph()
    data.edge_weight = [1.0] * data.num_edges
    assert refusal(lambda: make_task(data)) == "data.edge_weight: must be a tensor, is a list"
    data = graph()
    data.train_mask = data.val_mask = data.test_mask = [True] * 60
    assert refusal(lambda: make_task(data)) == "train_mask: must be a tensor, is a list"


def test_masks_of_another_length_or_of_indices():
    data = masked(graph(), train=[0, 1, 2], val=[3, 4, 5], test=[6, 7, 8])
    for mask in (data.train_mask[:40], data.train_mask.nonzero().view(-1), torch.tensor(True)):
        data.train_mask = mask
        message = refusal(lambda: make_task(data))
        assert message == f"train_mask: must have one entry per node (60), has shape {tuple(mask.shape)}"


def test_an_attribute_of_a_person_is_not_taken_for_soft_targets():
    data = masked(graph(), train=[0, 1, 2], val=[3, 4, 5], test=[6, 7, 8])
    out = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    plain = make_task(data)
    expected = float(plain.loss(out, plain.example))
    data.soft, data.soft_weight = torch.ones(60, 3) / 3, 0.5
    task = make_task(data)
    assert float(task.loss(out, task.example)) == expected
