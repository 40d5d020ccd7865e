"""One network on the original graph."""

from __future__ import annotations

import akegnn
from methods.plain import CELLS, HOW, Cell, check, gcn, make, run
from small import graph


def test_it_is_one_network_trained_alone():
    bench = make()
    lines, found = run(bench, "single")
    assert list(lines) == ["base"]
    cells = [Cell(bench, k) for k in range(2)]
    check(bench, lines["base"], found["base"], [c.predict(c.base()) for c in cells])
    assert (lines["base"].passes, lines["base"].parameters) == (1, sum(p.numel() for p in gcn().parameters()))


def test_it_is_the_base_of_fit():
    line = run(make(), "single")[0]["base"]
    for k, (_, seed) in enumerate(CELLS):
        alone = akegnn.fit(graph(45), gcn, seed=seed, **HOW).score("base")
        assert (line.validation[k], line.test[k]) == (alone.validation, alone.test)
