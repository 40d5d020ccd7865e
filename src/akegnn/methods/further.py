"""Further training: as many epochs as AKE has, on one view, without an exchange."""

from __future__ import annotations

from collections.abc import Iterator

from ..phases import Bench, Line, total


def further_training(bench: Bench) -> Iterator[Line]:
    """Of the networks trained further on their views, the one with the best validation score, seed by seed.

    All of them had to be trained to choose, so that is what it costs.
    """
    yield bench.line("FT", bench.best(bench.further), total(bench.further))
