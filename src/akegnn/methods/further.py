"""Further training: as many epochs as AKE has, on one view, without an exchange."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..phases import Bench, Line, total


def further_training(bench: Bench) -> Iterator[Line]:
    """Of the networks trained further on their views, the one with the best validation score, seed by seed.

    All of them had to be trained to choose, so that is what it costs.
    """
    predictions = torch.stack([bench.predict(n) for n in bench.further])  # [V, cells, ...]
    scores = torch.stack([bench.task.scores(p, "val") for p in predictions])
    best = scores.argmax(0)  # the first of equals
    chosen = predictions[best, torch.arange(len(best), device=best.device)]
    yield bench.line("FT", chosen, total(bench.further))
