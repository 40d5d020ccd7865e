"""Every cell once more: plain modules, one network after another, to compare the methods with."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch

from akegnn.fit import plan
from akegnn.forward import forward
from akegnn.methods import METHODS
from akegnn.phases import Bench
from akegnn.settings import derive
from akegnn.training import Trainer, seeded
from akegnn.views import as_view
from small import exact, graph

VIEWS = ["mask:0.4", "drop-edges:0.5", "original"]
NAMES = ["1: mask", "2: drop-edges", "3: original"]
CELLS = [(0, 3), (0, 5)]
# An odd number of epochs at a high rate: views differ, and the best epoch is not always the last.
HOW: dict[str, Any] = {"recipe": "paper", "epochs": 5, "lr": 0.1, "views": VIEWS, "device": "cpu"}


def gcn():
    return exact("gcn")


def make(model=gcn, cells=CELLS, data=None, **given) -> Bench:
    """A bench on a small graph; all numbers in float64, nothing drawn in training."""
    return plan(graph(45) if data is None else data, model, **{**HOW, **given}).bench(cells)


def run(bench, *methods):
    """The lines by name, and the predictions that they are the scores of."""
    lines, predictions = {}, {}
    whole = bench.line

    def line(name, given, *rest):
        predictions[name] = given.clone()
        return whole(name, given, *rest)

    bench.line = line
    for method in methods:
        lines |= {x.name: x for x in METHODS[method](bench)}
    bench.line = whole
    return lines, predictions


def told(bench, *methods):
    """What does not depend on the clock."""
    return [(x.name, x.validation, x.test, x.passes, x.parameters) for x in run(bench, *methods)[0].values()]


class Cell:
    """One split and seed: modules trained alone."""

    def __init__(self, bench, cell, factory=gcn):
        self.seed, self.factory = bench.cells[cell][1], factory
        self.task = bench.trainer.task.at(bench.cells[cell][0])
        self.settings = bench.trainer.settings
        self.views = [as_view(v) for v in VIEWS]

    def new(self, name):
        with seeded(derive(self.seed, "weights", name)):
            return self.factory()

    def train(self, model, view, phase, name, **settings):
        """In place, to its best epoch, with a fresh optimizer."""
        trainer = Trainer(self.task, replace(self.settings, **settings))
        return trainer.train(model, as_view(view), phase, name, self.seed).model

    def base(self):
        return self.train(self.new(NAMES[0]), "original", "individual", "base")

    def individual(self):
        return [self.train(self.new(n), v, "individual", n) for n, v in zip(NAMES, self.views, strict=True)]

    def again(self, models, phase):
        return [self.train(m, v, phase, n) for m, v, n in zip(models, self.views, NAMES, strict=True)]

    def predict(self, model):
        with torch.no_grad():
            return forward(copy.deepcopy(model).eval(), self.task.data)

    def score(self, prediction, part):
        """Share of the part's nodes whose largest entry is the label's."""
        mask = self.task.data[f"{part}_mask"]
        right = [int(row.argmax()) == int(y) for row, y, m in zip(prediction, self.task.data.y, mask, strict=True) if m]
        return sum(right) / len(right)


def check(bench, line, found, wanted, factory=gcn):
    """Predictions number by number (``wanted``: one for each cell), and the scores of a line counted by hand."""
    for k, prediction in enumerate(wanted):
        torch.testing.assert_close(found[k], prediction, rtol=0, atol=1e-8)
        cell = Cell(bench, k, factory)
        assert line.validation[k] == cell.score(prediction, "val")
        assert line.test[k] == cell.score(prediction, "test")
    assert len(found) == len(wanted) == len(line.test)
