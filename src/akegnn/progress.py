"""Showing how a run is getting on: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from .training import Epoch


class Display:
    """Call it with every :class:`~akegnn.training.Epoch`; use it as a context."""

    def __init__(self, trainings: int, epochs: int, quiet: bool = False) -> None:
        """``trainings``: how many networks will be trained, both phases together."""
        self.console = Console(file=sys.stderr)
        self.live = self.console.is_terminal and not quiet
        self.quiet, self.total, self.epochs = quiet, trainings, epochs
        self.done, self.started = 0, time.perf_counter()
        self._current: tuple[str, str] | None = None
        self._last: Epoch | None = None
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[best]}"),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self._whole: TaskID = self._bars.add_task("all networks", total=trainings * epochs, best="")
        self._one: TaskID = self._bars.add_task("", total=epochs, best="")

    def __enter__(self) -> Self:
        if self.live:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._close()
        if self.live:
            self._bars.stop()

    def __call__(self, epoch: Epoch) -> None:
        """Take note of an epoch."""
        if (epoch.phase, epoch.network) != self._current:
            self._close()
            self._current = epoch.phase, epoch.network
        self._last = epoch
        if self.live:
            best = f"best validation {100 * epoch.best:.2f}"
            name = f"{epoch.phase}, {epoch.network}"
            self._bars.update(self._one, description=name, completed=epoch.epoch, total=epoch.epochs, best=best)
            share = self.done + epoch.epoch / epoch.epochs
            self._bars.update(
                self._whole, completed=int(share * self.epochs), best=f"network {self.done + 1}/{self.total}"
            )

    def say(self, line: str) -> None:
        """A line for people."""
        if not self.quiet:
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _close(self) -> None:
        """A network is finished: a line that stays."""
        if self._last is None:
            return
        e, self._last = self._last, None
        self.done += 1
        seconds = time.perf_counter() - self.started
        self.say(
            f"[{self.done}/{self.total}] {e.phase}, {e.network}: {e.epoch} epochs, "
            f"best validation {100 * e.best:.2f}, {seconds:.1f} s"
        )
