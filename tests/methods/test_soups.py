"""Soups: means of weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from methods.plain import Cell, check, make, run
from small import exact, graph


def mean_of(cell, models):
    soup = cell.factory()
    mean = {k: np.mean([m.state_dict()[k].numpy() for m in models], axis=0) for k in soup.state_dict()}
    soup.load_state_dict({k: torch.from_numpy(np.asarray(v)) for k, v in mean.items()})
    return soup


def greedy(cell, models):
    """Which networks are in the soup: the best first, then each that does not make it worse."""
    scores = [cell.score(cell.predict(m), "val") for m in models]
    order = sorted(range(len(models)), key=lambda k: -scores[k])
    members, best = order[:1], scores[order[0]]
    for k in order[1:]:
        score = cell.score(cell.predict(mean_of(cell, [models[m] for m in [*members, k]])), "val")
        if score >= best:
            members, best = [*members, k], score
    return members


def test_the_uniform_soup_is_the_mean_of_all():
    bench = make()
    lines, found = run(bench, "uniform-soup")
    assert list(lines) == ["uniform soup"]
    cells = [Cell(bench, k) for k in range(2)]
    check(bench, lines["uniform soup"], found["uniform soup"], [c.predict(mean_of(c, c.individual())) for c in cells])
    assert lines["uniform soup"].passes == 1
    assert lines["uniform soup"].seconds == [sum(n.seconds[k] for n in bench.individual) for k in range(2)]


@pytest.mark.parametrize("initial", ["own", "shared"])
def test_the_greedy_soup(initial):
    """Some networks go in and others do not, in some cells all."""
    bench = make(cells=[(0, seed) for seed in range(5)], data=graph(45, seed=2), epochs=3, phases={"initial": initial})
    lines, found = run(bench, "greedy-soup")
    wanted, sizes = [], []
    for k in range(5):
        cell = Cell(bench, k)
        models = [n.population.module(k) for n in bench.individual]
        members = greedy(cell, models)
        sizes.append(len(members))
        wanted.append(cell.predict(mean_of(cell, [models[m] for m in members])))
    check(bench, lines["greedy soup"], found["greedy soup"], wanted)
    assert min(sizes) < 3
    assert len(set(sizes)) > 1
    assert lines["greedy soup"].passes == 1
    best = torch.stack([bench.task.scores(bench.predict(n), "val") for n in bench.individual]).amax(0)
    assert all(a >= b for a, b in zip(lines["greedy soup"].validation, best.tolist(), strict=True))


def test_a_soup_of_one_network_is_that_network():
    bench = make(views=["original"])
    _, found = run(bench, "uniform-soup", "greedy-soup")
    for prediction in found.values():
        torch.testing.assert_close(prediction, bench.predict(bench.individual[0]), rtol=0, atol=1e-12)


def test_norms_in_a_soup():
    """Batch statistics are averaged too; their counts, whole numbers, stay."""

    def factory():
        return exact("sage", batch_norm=True)

    bench = make(factory)
    lines, found = run(bench, "uniform-soup")
    wanted = []
    for k in range(2):
        cell = Cell(bench, k, factory)
        models = [n.population.module(k) for n in bench.individual]
        soup = mean_of(cell, models)
        wanted.append(cell.predict(soup))
    check(bench, lines["uniform soup"], found["uniform soup"], wanted, factory)
