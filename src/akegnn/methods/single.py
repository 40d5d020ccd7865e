"""One network on the original graph: what everything is compared with."""

from __future__ import annotations

from collections.abc import Iterator

from ..phases import Bench, Line


def single(bench: Bench) -> Iterator[Line]:
    """The base."""
    yield bench.line("base", bench.predict(bench.base), bench.base.seconds)
