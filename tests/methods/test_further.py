"""Further training: every view's network goes on alone, and validation chooses."""

from __future__ import annotations

import torch

from methods.plain import Cell, check, make, run
from small import graph


def literal(bench, k):
    """The networks of one cell, trained once and again."""
    cell = Cell(bench, k)
    return cell, cell.again(cell.individual(), "further training")


def test_the_best_by_validation_of_networks_trained_further():
    bench = make(epochs=2)
    lines, found = run(bench, "ft")
    assert list(lines) == ["FT"]
    wanted, picked = [], []
    for k in range(2):
        cell, networks = literal(bench, k)
        predictions = [cell.predict(m) for m in networks]
        scores = [cell.score(p, "val") for p in predictions]
        assert len(set(scores)) > 1
        picked.append(scores.index(max(scores)))
        wanted.append(predictions[picked[-1]])
        assert not torch.allclose(wanted[-1], cell.predict(cell.individual()[picked[-1]])), "it did go on"
    check(bench, lines["FT"], found["FT"], wanted)
    assert lines["FT"].passes == 1
    assert lines["FT"].seconds == [sum(n.seconds[k] for n in bench.further) for k in range(2)], "all were needed"


def test_the_first_of_equals():
    """Different networks whose scores are made equal."""
    bench = make()
    bench.task.scores = lambda predictions, part: torch.zeros(len(predictions), dtype=torch.float64)
    _, found = run(bench, "ft")
    assert torch.equal(found["FT"], bench.predict(bench.further[0]))
    assert not torch.equal(found["FT"], bench.predict(bench.further[1]))


def test_never_by_test_scores():
    """Three networks, of which the best by validation is the worst in the test, and the other way round."""
    bench = make()
    labels, parts = bench.task.labels, bench.task.parts
    made = []
    for right_val, right_test in ((3, 9), (6, 2), (5, 9)):
        answer = torch.nn.functional.one_hot((labels + 1) % 3, 3).double()  # wrong everywhere
        for part, right in (("val", right_val), ("test", right_test)):
            nodes = parts[part][:right]
            answer[nodes] = torch.nn.functional.one_hot(labels[nodes], 3).double()
        made.append(answer.expand(2, -1, -1))
    bench.further = [type("Made", (), {"seconds": [0.0, 0.0]})() for _ in made]
    bench.predict = lambda network: made[bench.further.index(network)]
    lines, found = run(bench, "ft")
    assert torch.equal(found["FT"], made[1])
    sizes = {part: len(parts[part]) for part in ("val", "test")}
    assert (lines["FT"].validation, lines["FT"].test) == ([6 / sizes["val"]] * 2, [2 / sizes["test"]] * 2)


def test_every_cell_chooses_for_itself():
    bench = make(cells=[(0, seed) for seed in range(6)], data=graph(45, seed=4), epochs=2)
    _, found = run(bench, "ft")
    predictions = [bench.predict(n) for n in bench.further]
    picked = [[torch.equal(found["FT"][k], p[k]) for p in predictions].index(True) for k in range(6)]
    assert len(set(picked)) > 1
