"""AKE-GNN as a method: the same lines that fit gives, and the ring of plain modules."""

from __future__ import annotations

import pytest
import torch

import akegnn
from methods.plain import CELLS, HOW, Cell, check, gcn, make, run
from small import graph

SWAPS = {"channels": 2, "iterations": 2}


def test_the_lines_of_fit():
    bench = make(exchange=SWAPS)
    lines = run(bench, "ake")[0]
    assert list(lines) == ["after exchange", "AKE", "AKE network 2", "AKE network 3"]
    found = akegnn.fit(graph(45), gcn, seeds=[seed for _, seed in CELLS], exchange=SWAPS, **HOW)
    for k, result in enumerate(found.results):
        for line in lines.values():
            score = result.score(line.name)
            assert (line.validation[k], line.test[k], line.passes) == (score.validation, score.test, 1)


def test_a_ring_of_networks_trained_alone():
    bench = make(exchange=SWAPS)
    lines, found = run(bench, "ake")
    wanted = {name: [] for name in lines}
    for k in range(2):
        cell = Cell(bench, k)
        networks = cell.individual()
        akegnn.exchange_ring(networks, channels=2, iterations=2, seed=cell.seed)
        wanted["after exchange"].append(cell.predict(networks[0]))
        for name, model in zip(list(lines)[1:], cell.again(networks, "re-training"), strict=True):
            wanted[name].append(cell.predict(model))
    for name, line in lines.items():
        check(bench, line, found[name], wanted[name])
    assert len({x.parameters for x in lines.values()}) == 1
    assert lines["AKE"].seconds[0] > lines["after exchange"].seconds[0] > sum(n.seconds[0] for n in bench.individual)


@pytest.mark.parametrize("strategy", ["random-output", "first-output", "adaptive-input"])
def test_the_exchange_is_that_of_the_settings(strategy):
    bench = make(exchange={"strategy": strategy, **SWAPS}, epochs=1)
    _, found = run(bench, "ake")
    cell = Cell(bench, 1)
    networks = cell.individual()
    akegnn.exchange_ring(networks, channels=2, iterations=2, strategy=strategy, seed=cell.seed)
    torch.testing.assert_close(found["after exchange"][1], cell.predict(networks[0]), rtol=0, atol=1e-8)
