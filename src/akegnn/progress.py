"""Showing how a run is getting on: a live display on a terminal, plain lines elsewhere.

A display only takes note of an epoch. What a terminal shows is made from these notes a few times a second, in a thread
of its own, so that it costs the same however short an epoch is.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .training import Epoch

NARROW = 72  # columns of a terminal
SPEAK_EVERY = 60.0  # seconds of silence in a plain log, at most


@dataclass
class Forecast:
    """How long a run will take yet, from how long its trainings have taken so far.

    A training that stops early makes those to come shorter too: they are expected to end where others ended.
    """

    trainings: int
    began: float  # the present training, by the same clock as every ``now``
    took: list[float] = field(default_factory=list)  # seconds of each finished training
    ends: list[float] = field(default_factory=list)  # which share of its epochs each of them went through
    _first: tuple[float, float] = (0.0, 0.0)  # when the present training was first heard of, and how far it was
    _last: tuple[float, float] = (0.0, 0.0)  # the same, for the last time

    def hear(self, share: float, now: float) -> None:
        """The present training has gone through this share of its epochs."""
        self._last = now, share
        if not self._first[1]:
            self._first = self._last

    def close(self, now: float) -> None:
        """The present training is over; the next begins."""
        self.took.append(now - self.began)
        self.ends.append(self._last[1])
        self.began, self._first, self._last = now, (0.0, 0.0), (0.0, 0.0)

    def left(self, now: float) -> float | None:
        """Seconds to the end of the run; ``None`` while nothing is known."""
        coming = self.trainings - len(self.took)
        heard, share = self._last
        if not share:
            return max(0.0, coming * statistics.fmean(self.took) - (now - self.began)) if self.took else None
        end = statistics.fmean(self.ends) if self.ends else 1.0
        if share >= end:  # it has outlasted the others: nobody knows, so halfway to its last epoch
            end = (1 + share) / 2
        rest = (end - share) * self._seconds_per_share()
        usual = statistics.fmean(self.took) if self.took else heard - self.began + rest
        return max(0.0, rest + max(0, coming - 1) * usual - (now - heard))

    def _seconds_per_share(self) -> float:
        """From the first word of a training to the last; what comes before the first is no measure of an epoch."""
        (started, at), (heard, share) = self._first, self._last
        return (heard - started) / (share - at) if share > at else (heard - self.began) / share


class Display:
    """Call it with every :class:`~akegnn.training.Epoch`; use it as a context."""

    def __init__(self, trainings: int, quiet: bool = False, clock: Callable[[], float] = time.perf_counter) -> None:
        """``trainings``: how many networks will be trained, both phases together."""
        self.console = Console(file=sys.stderr)
        self.live = self.console.is_terminal and not quiet
        self.quiet, self.total = quiet, trainings
        self.done, self.clock = 0, clock
        self.started = self._spoken = clock()
        self.forecast = Forecast(trainings, self.started)
        self._current: tuple[str, str] | None = None
        self._last: Epoch | None = None
        self._groups: dict[int, Epoch] = {}  # the last word of each chunk or split of the present network
        self._shown = Live(console=self.console, get_renderable=self._picture, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self.started = self._spoken = self.forecast.began = self.clock()
        if self.live:
            self._shown.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._close()
        if self.live:
            self._shown.stop()

    def __call__(self, epoch: Epoch) -> None:
        """Take note of an epoch."""
        if (epoch.phase, epoch.network) != self._current:
            self._close()
            self._current = epoch.phase, epoch.network
            self.total = self.forecast.trainings = max(self.total, self.done + 1)
        self._last, self._groups[epoch.first] = epoch, epoch
        now = self.clock()
        self.forecast.hear(_share(epoch), now)
        if not self.live and now - self._spoken >= SPEAK_EVERY:
            where = f"{epoch.phase}, {epoch.network}: epoch {epoch.epoch}/{epoch.epochs}"
            self._speak(where, _best([epoch]), _replicas(epoch))

    def say(self, line: str) -> None:
        """A line for people."""
        if not self.quiet:
            self.warn(line)

    def warn(self, line: str) -> None:
        """A line for people who want no others."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _close(self) -> None:
        """A network is finished: a line that stays."""
        if self._last is None:
            return
        e, self._last = self._last, None
        groups, self._groups = list(self._groups.values()), {}
        self.done += 1
        self.forecast.close(self.clock())
        where = f"[{self.done}/{self.total}] {e.phase}, {e.network}: {max(g.epoch for g in groups)} epochs"
        self._speak(where, _best(groups), f"{e.replicas} replicas" if e.replicas > 1 else "")

    def _speak(self, *known: str) -> None:
        """A line of what is known, with the time."""
        self._spoken = now = self.clock()
        parts = [*known, f"{now - self.started:.1f} s"]
        if not self.live and self.done < self.total:
            parts.append(f"about {_time(self.forecast.left(now))} left")
        self.say(", ".join(filter(None, parts)))

    def _picture(self) -> Table:
        """What a terminal shows: a line for the network, a line for the run."""
        e, run, narrow = self._last, self.done, self.console.width < NARROW
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(no_wrap=True, overflow="ellipsis", max_width=max(16, self.console.width // 3))
        grid.add_column(ratio=1)
        grid.add_column(no_wrap=True, justify="right")
        grid.add_column(no_wrap=True)
        left = f"{_time(self.forecast.left(self.clock()))} left"
        count = f"network {min(run + 1, self.total)}/{self.total}"
        if e is None:  # nothing has been trained for an epoch yet
            grid.add_row(count, _bar(0.0), left, "")
            return grid
        best, replicas, epoch = _best([e]), _replicas(e), f"epoch {e.epoch}/{e.epochs}"
        if narrow:  # numbers before words
            best, replicas, epoch = best.replace("validation ", ""), replicas.replace(" done", ""), epoch[6:]
        grid.add_row(Text(f"{e.phase}, {e.network}"), _bar(e.epoch / e.epochs), epoch, best)
        grid.add_row(count, _bar((run + _share(e)) / self.total), left, replicas)
        return grid


def _share(e: Epoch) -> float:
    """How much of a network's training is behind it, all replicas together."""
    return (e.first + e.together * e.epoch / e.epochs) / e.replicas


def _best(groups: list[Epoch]) -> str:
    """The best validation score so far, as a mean where there are several replicas."""
    known = [g for g in groups if math.isfinite(g.best)]  # all replicas of a group may have failed
    if not known:
        return "no validation score"
    mean = sum(g.together * g.best for g in known) / sum(g.together for g in known)
    return f"best validation {100 * mean:.2f}" + (" (mean)" if groups[-1].replicas > 1 else "")


def _replicas(e: Epoch) -> str:
    return f"{e.done}/{e.replicas} replicas done" if e.replicas > 1 else ""


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(math.ceil(round(seconds, 3)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _bar(share: float) -> ProgressBar:
    return ProgressBar(total=1.0, completed=share)
