"""Table 5: seconds of training, exchange and re-training at 64, 128 and 256 channels, GCNII for large graphs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..fit import Plan
from ..phases import Bench, Line, total
from .base import Experiment, Job
from .tables import LARGE


def timed(plan: Plan, cells: Sequence[tuple[int, int]]) -> tuple[Bench, list[Line]]:
    """The three phases, each with the seconds that it took alone."""
    bench = plan.bench(cells)
    networks = bench.individual
    learned = total(networks)
    lines = [bench.line("training", bench.predict(networks[0]), learned)]
    assert bench.layers  # finding the channels is not part of the exchange
    began = time.perf_counter()
    bench.swap(networks)
    swapped = (time.perf_counter() - began) / len(cells)
    lines.append(bench.line("exchange", bench.predict(networks[0]), [swapped] * len(cells)))
    before = total(networks)
    bench.again(networks, "re-training")
    again = [after - b for after, b in zip(total(networks), before, strict=True)]
    lines.append(bench.line("re-training", bench.predict(networks[0]), again))
    return bench, lines


TABLE5 = Experiment(
    "table5",
    "Seconds of training four networks, of the exchange, and of re-training.",
    lambda: [
        Job(f"{n} channels", LARGE, LARGE, "gcnii-dense", (), 1, 1, {"model_args": {"hidden_channels": n}}, n, timed)
        for n in (64, 128, 256)
    ],
    axis="hidden channels",
    base="training",
    timed=True,
    shown=("training", "exchange", "re-training"),
    note="The paper's seconds are on the official features, on hardware that it does not name.",
)
