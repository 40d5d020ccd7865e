"""Ensembles: votes, mean probabilities, and scores of links."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from methods.plain import Cell, check, make, run
from small import graph


def probabilities(prediction):
    e = np.exp(prediction.numpy() - prediction.numpy().max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def vote(predictions):
    """The class with most votes, node by node; of those with equally many the most probable on average."""
    shares = np.stack([probabilities(p) for p in predictions])
    answers = []
    for node in range(shares.shape[1]):
        votes = np.bincount(shares[:, node].argmax(-1), minlength=shares.shape[2])
        leading = np.flatnonzero(votes == votes.max())
        answers.append(max(leading, key=lambda c: shares[:, node, c].mean()))
    return np.array(answers)


def of_cell(bench, k, further):
    cell = Cell(bench, k)
    networks = cell.individual()
    if further:
        cell.again(networks, "further training")
    return cell, [cell.predict(m) for m in networks]


@pytest.mark.parametrize(("method", "name"), [("ensemble", "ensemble"), ("ensemble-ft", "ensemble+FT")])
def test_votes_and_means_of_networks_trained_alone(method, name):
    bench = make(epochs=2)
    lines, found = run(bench, method)
    assert list(lines) == [name, f"{name}, mean"]
    means = []
    for k in range(2):
        cell, predictions = of_cell(bench, k, further=method == "ensemble-ft")
        answers = vote(predictions)
        assert found[name][k].argmax(-1).tolist() == answers.tolist()
        for part, scores in (("val", lines[name].validation), ("test", lines[name].test)):
            nodes = cell.task.parts[part].numpy()
            assert scores[k] == pytest.approx((answers == cell.task.labels.numpy())[nodes].mean(), abs=1e-12)
        means.append(torch.from_numpy(np.log(np.mean([probabilities(p) for p in predictions], 0))))
        assert (means[-1].argmax(-1).numpy() != answers).any(), "a vote is not a mean"
    check(bench, lines[f"{name}, mean"], found[f"{name}, mean"], means)
    one = lines[name].parameters // 3
    assert {(x.passes, x.parameters) for x in lines.values()} == {(3, 3 * one)}
    assert one == sum(p.numel() for p in bench.individual[0].population.template.parameters())
    used = bench.individual if method == "ensemble" else bench.further
    assert lines[name].seconds == [sum(n.seconds[k] for n in used) for k in range(2)]


def made(bench, *predictions):
    """A bench whose networks predict these in every cell."""
    networks = [type("Made", (), {"seconds": [0.0] * len(bench.cells)})() for _ in predictions]
    bench.individual = networks
    bench.predict = lambda n: predictions[networks.index(n)].expand(len(bench.cells), *predictions[0].shape)
    return bench


def logits(*rows):
    """Every node of the graph predicted by the first of these rows; the others follow in turn."""
    return torch.tensor(rows, dtype=torch.float64).log()[torch.arange(45) % len(rows)]


def test_two_against_one_who_is_sure_and_a_tie_by_mean_probability():
    bench = make()
    a = logits([0.51, 0.49, 0.00001], [0.6, 0.3, 0.1])
    b = logits([0.51, 0.49, 0.00001], [0.1, 0.8, 0.1])
    c = logits([0.00001, 1.0, 0.00001], [0.2, 0.2, 0.6])
    _, found = run(made(bench, a, b, c), "ensemble")
    # The first node: two votes for class 0, though 1 is likelier. The second: one vote each, 1 is the likeliest.
    assert found["ensemble"][0, :2].argmax(-1).tolist() == [0, 1]
    assert found["ensemble, mean"][0, :2].argmax(-1).tolist() == [1, 1]


def test_scores_of_links_are_mean_probabilities():
    bench = make(task="link", epochs=2)
    lines, found = run(bench, "ensemble")
    predictions = np.stack([bench.predict(n).numpy() for n in bench.individual])
    mean = (1 / (1 + np.exp(-predictions))).mean(0)
    wanted = torch.from_numpy(np.log(mean / (1 - mean)))
    for name in ("ensemble", "ensemble, mean"):
        torch.testing.assert_close(found[name], wanted, rtol=0, atol=1e-9)
    from sklearn.metrics import roc_auc_score

    for k in range(2):
        held = len(bench.task.targets["val"])
        assert lines["ensemble"].test[k] == roc_auc_score(bench.task.targets["test"], mean[k, held:])
        assert lines["ensemble"].validation[k] == roc_auc_score(bench.task.targets["val"], mean[k, :held])


def test_networks_that_are_sure_have_a_score_with_any_metric():
    """Logits so far apart that a probability is no longer a number above zero."""
    bench = make(metric="f1")
    right = 1e4 * torch.nn.functional.one_hot(graph(45).y, 3).double()
    lines, _ = run(made(bench, right, right), "ensemble")
    assert lines["ensemble"].test == [1.0, 1.0]
    assert lines["ensemble, mean"].test == [1.0, 1.0]
