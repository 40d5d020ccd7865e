"""What an experiment is: a grid of jobs, computed into a store."""

from __future__ import annotations

import dataclasses
import difflib
import json
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

import torch

from .. import presets
from ..data import DATASETS
from ..errors import AkeError, RunFailed
from ..fit import RECIPES, Plan, plan
from ..methods import METHODS
from ..settings import Phases
from ..store import Cell, Store, key_of
from ..views import as_view

BLOCK = 100  # cells computed at once; part of a block's identity, because they share their draws of dropout
# Of methods and tasks: to be raised when a change of code changes their numbers, so that a store does not pass off old
# ones as new.
REVISIONS = {"strong": 6, "functional": 4, "decorr": 2, "graph": 2}
COMPARED = ("single", "ft", "ensemble", "ensemble-ft", "ake")


@dataclass(frozen=True)
class Job:
    """One place in the grid: a setting, and the methods that are compared on it."""

    row: str
    column: str
    data: str
    model: str
    methods: tuple[str, ...] = COMPARED
    splits: int = 1
    seeds: int = 100
    settings: Mapping[str, Any] = field(default_factory=dict)  # of akegnn.fit.plan, besides the preset
    x: float | None = None  # where it lies on the axis of a line plot
    compute: Callable[[Plan, Sequence[tuple[int, int]]], Any] | None = None  # instead of methods; see table1

    @property
    def label(self) -> str:
        """As people see it."""
        epochs = self.settings.get("epochs", 0)
        length = f", {epochs} epoch{'s' * (epochs > 1)}" if epochs else ""
        return f"{self.model} on {self.data}" + (f", {self.row}" if self.row != self.model else "") + length

    def plan(self, device: str, data_root: str | Path | None) -> Plan:
        """The settled run."""
        return plan(self.data, self.model, device=device, data_root=data_root, **{"recipe": "paper", **self.settings})


@dataclass(frozen=True)
class Block:
    """What is computed and stored at once: some cells of a job."""

    job: Job
    cells: tuple[tuple[int, int], ...]
    settings: Mapping[str, Any]
    kept_as: str = ""  # the key that a store knows it by

    @property
    def key(self) -> str:
        """A digest of everything that its numbers depend on."""
        return self.kept_as or key_of(self.settings)


@dataclass(frozen=True)
class Experiment:
    """A table or figure: its grid and what is said about it."""

    name: str
    about: str
    jobs: Callable[[], Sequence[Job]]
    _: KW_ONLY
    aside: str = ""  # added to its name, where it is not the experiment as it stands
    axis: str = ""  # what the axis of a line plot is; without, differences are plotted with their intervals
    base: str = "base"  # what lines are compared with
    timed: bool = False  # whether it is about seconds: they are shown, and the paper's numbers are seconds
    shown: tuple[str, ...] = ()  # lines in the table, in order; empty: all
    note: str = ""
    draw: Callable[[Any, Mapping[str, list[dict[str, Any]]]], None] | None = None  # on axes, from the epochs

    @property
    def stem(self) -> str:
        """What its files are called."""
        return self.name + self.aside

    def at(self, data_root: str | Path | None) -> Experiment:
        """The same with the datasets that lie there: an official one in place of its substitute."""

        def there(job: Job) -> Job:
            return next((o for o in _official(job) if DATASETS[o.data].path(data_root) is not None), job)

        return dataclasses.replace(self, jobs=lambda: [there(job) for job in self.jobs()])

    def anywhere(self) -> Experiment:
        """The same with official datasets beside their substitutes: whichever a store was filled with."""
        return dataclasses.replace(self, jobs=lambda: [j for job in self.jobs() for j in (*_official(job), job)])

    def lasting(self, epochs: int | None) -> Experiment:
        """The same with so many epochs instead of the preset's, to see what it does or costs; blocks of its own."""
        if epochs is None:
            return self
        if epochs < 1:
            raise AkeError(f"--epochs {epochs}: must be at least 1")
        said = f"Epochs of every training: {epochs}, which is not the protocol."
        return dataclasses.replace(
            self,
            jobs=lambda: [dataclasses.replace(j, settings={**j.settings, "epochs": epochs}) for j in self.jobs()],
            note=f"{said} {self.note}".strip(),
            aside=f"-{epochs}-epochs",
        )

    def chosen(self, seeds: int | None = None, splits: int | None = None, only: Sequence[str] = ()) -> list[Job]:
        """The jobs that are asked for: ``only`` names models, datasets, or ``model/dataset``."""
        for name, count in (("seeds", seeds), ("splits", splits)):
            if count is not None and count < 1:
                raise AkeError(f"--{name} {count}: must be at least 1")
        every = self.jobs()
        if unknown := [word for word in only if not any(_matches(j, word) for j in every)]:
            raise AkeError(f"--only {', '.join(unknown)}: nothing in {self.name}; {_meant(every, unknown)}")
        jobs = [j for j in every if not only or any(_matches(j, word) for word in only)]
        seeded = [dataclasses.replace(j, seeds=seeds or j.seeds) for j in jobs]
        return [dataclasses.replace(j, splits=min(splits or j.splits, j.splits)) for j in seeded]


def _official(job: Job) -> list[Job]:
    """The job on the dataset that its own stands in for, if it does."""
    name = job.data.removesuffix("-substitute")
    return [dataclasses.replace(job, data=name, column=name)] if name != job.data and name in DATASETS else []


def _matches(job: Job, word: str) -> bool:
    return word in (job.model, job.data, job.row, f"{job.model}/{job.data}", f"{job.row}/{job.column}")


def _meant(jobs: Sequence[Job], only: Sequence[str]) -> str:
    """The names that come nearest to what was asked for, or all where there are few."""
    names = list(dict.fromkeys(f"{j.row}/{j.column}" for j in jobs))
    near = [n for word in only for n in difflib.get_close_matches(word, names, 3)]
    if near:
        return f"did you mean {' or '.join(dict.fromkeys(near))}?"
    return f"it has {', '.join(names[:12])}" + (f" and {len(names) - 12} more" if len(names) > 12 else "")


# ---- computing -------------------------------------------------------------------------------------------------------


def blocks(
    jobs: Sequence[Job], data_root: str | Path | None = None, refused: list[tuple[str, str]] | None = None
) -> list[Block]:
    """All blocks of some jobs; a changed setting, preset or method makes another block.

    A job that cannot be settled, because its data is not there, is noted in ``refused`` while there are others.
    """
    found: list[Block] = []
    for job in jobs:
        try:
            prepared = job.plan("cpu", data_root)
        except AkeError as e:
            if refused is None or (job is jobs[-1] and not found):
                raise
            refused.append((job.label, str(e)))
            continue
        settled = dataclasses.asdict(prepared.settings)
        for name in ("seed", "split", "seeds", "splits", "device", "baseline", "splits_drawn"):
            settled.pop(name)
        if not settled["exchange"]["width"]:  # as it was before there was such a thing
            settled["exchange"].pop("width")
            settled.pop("ships")
        every = [[(split, seed) for seed in range(job.seeds)] for split in range(job.splits)]
        if prepared.trainer.task.mixes_splits:  # splits that are not trained together need not be lost together
            every = [[cell for cells in every for cell in cells]]
        for part in (tuple(cells[k : k + BLOCK]) for cells in every for k in range(0, len(cells), BLOCK)):
            what = {"settings": settled, "methods": job.methods, "cells": part, **_revisions(settled, job.methods)}
            if "epochs" in job.settings:  # said by a person, where everything else is the preset's
                what["epochs"] = job.settings["epochs"]
            if job.compute is not None:
                what["compute"] = job.compute.__qualname__
            found.append(Block(job, part, what))
    return found


def _revisions(settled: Mapping[str, Any], methods: Sequence[str]) -> dict[str, dict[str, int]]:
    """The part of a block's key that says which code it was; nothing for what never changed."""
    named = {name: REVISIONS[name] for name in (*methods, settled.get("task", "")) if name in REVISIONS}
    return {"revisions": named} if named else {}


@dataclass(frozen=True)
class Shard:
    """The share of one process of several: the second of three is ``Shard.of("2/3")``."""

    number: int
    count: int

    @classmethod
    def of(cls, text: str) -> Shard:
        """From ``K/N``."""
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise AkeError(f"--shard {text}: expected K/N, as 1/3, with K from 1 to N")
        return cls(int(number), int(count))

    def take(self, wanted: Sequence[Block]) -> list[Block]:
        """Every N-th block; by key, so that nobody has all blocks of the largest dataset."""
        mine = {b.key for b in sorted(wanted, key=lambda b: b.key)[self.number - 1 :: self.count]}
        return [b for b in wanted if b.key in mine]


@dataclass
class Report:
    """How far a grid has come."""

    done: int
    all: int
    failed: list[tuple[str, str]] = field(default_factory=list)


def run(
    wanted: Sequence[Block],
    store: Store,
    device: str = "auto",
    data_root: str | Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Report:
    """Compute the blocks that are not in the store. One that fails is noted with its error, and the others go on."""
    there = store.finished()
    left = [b for b in wanted if b.key not in there]
    report = Report(len(wanted) - len(left), len(wanted))
    if report.done:
        say(f"{report.done} of {report.all} blocks are in {store.path} already")
    for label, error in store.lost({b.key for b in wanted} & there):  # not tried again: a block is there or not
        report.failed.append((label, error))
        say(f"    failed: {label}: {error}")
    started, cells = time.perf_counter(), 0
    for k, block in enumerate(left, 1):
        say(f"[{report.done + 1}/{report.all}] {block.job.label}: {len(block.cells)} cells ...")
        began = time.perf_counter()
        try:
            found, history, lost = compute(block, device, data_root)
        except (AkeError, RuntimeError, MemoryError) as e:
            error = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else 'no message'}"
            report.failed.append((block.job.label, error))
            store.fail(block.key, block.job.label, error)
            say(f"    failed: {error}")
            continue
        seconds = time.perf_counter() - began
        store.add(block.key, block.job.label, block.settings, found, seconds, _memory(device), history)
        for (split, seed), error in lost:  # these cells alone; the others of the block are fine
            label = f"{block.job.label}, split {split}, seed {seed}"
            report.failed.append((label, error))
            store.fail(f"{block.key} {split} {seed}", label, error)
            say(f"    failed: split {split}, seed {seed}: {error}")
        report.done += 1
        cells += len(block.cells)
        spent = time.perf_counter() - started
        rest = spent / k * (len(left) - k)
        say(f"    {seconds:.0f} s; {cells / spent:.1f} cells a second, about {_duration(rest)} left")
    return report


def compute(
    block: Block, device: str, data_root: str | Path | None
) -> tuple[list[Cell], list[dict[str, Any]], list[tuple[tuple[int, int], str]]]:
    """The scores of all methods on all cells of a block, its epochs, and which cells failed, with their errors."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    job = block.job
    prepared = job.plan(device, data_root)
    if job.compute is not None:
        bench, lines = job.compute(prepared, block.cells)
    else:
        bench = prepared.bench(block.cells)
        lines = [line for name in job.methods for line in METHODS[name](bench)]
    found = []
    floors = {split: bench.task.alone(k).floor() for k, (split, _) in enumerate(block.cells)}
    for line in lines:
        for k, (split, seed) in enumerate(block.cells):
            if k in bench.failed:
                continue
            scores = (line.validation[k], line.test[k], floors[split], bench.task.metric_name)
            cost = (line.passes, line.parameters, line.seconds[k])
            found.append(Cell(block.key, job.data, job.model, line.name, split, seed, *scores, *cost))
    if not found:
        raise RunFailed(next(iter(bench.failed.values()), "no cell"))
    lost = [(block.cells[k], error) for k, error in sorted(bench.failed.items())]
    return found, [dataclasses.asdict(e) for e in bench.history], lost


def _memory(device: str) -> int:
    """The most that was in use, in bytes: on the GPU, or of this process."""
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# ---- what a store holds of an experiment -----------------------------------------------------------------------------


def stored(experiment: Experiment, store: Store) -> list[Block]:
    """The blocks of a store that belong to an experiment, whatever seeds and splits they have; no data is needed.

    Blocks of different settings are not mixed in one place: those count that have the most cells.
    """
    jobs = experiment.anywhere().jobs()
    of_place: dict[tuple[str, str], list[Block]] = {}
    for key, _, settings, _ in store.blocks():
        for job in jobs:
            if belongs(settings, job):
                block = Block(job, tuple((a, b) for a, b in settings["cells"]), settings, key)
                of_place.setdefault((job.row, job.column), []).append(block)
    return [b for job in jobs for b in _alike(of_place.pop((job.row, job.column), []))]


def belongs(settings: Mapping[str, Any], job: Job) -> bool:
    """Whether a stored block was computed for a job: all that the job says is as it was, and so is the exchange.

    How networks are trained is not compared, because presets may change, nor are the numbers of seeds and splits; but
    what lasted as long as somebody said is for those who say so.
    """
    settled = settings.get("settings", {})
    if (settled.get("data"), settled.get("model")) != (job.data, job.model):
        return False
    if list(settings.get("methods", ())) != list(job.methods):
        return False
    if settings.get("compute") != (job.compute.__qualname__ if job.compute else None):
        return False
    if settings.get("epochs") != job.settings.get("epochs"):
        return False
    if settings.get("revisions", {}) != _revisions(settled, job.methods).get("revisions", {}):
        return False  # computed by a method that has changed since
    return all(_says(settled, name, value) for name, value in _said(job).items())


def _said(job: Job) -> dict[str, Any]:
    """What a job settles beyond its data, model and preset."""
    given = dict(job.settings)
    recipe = RECIPES[given.pop("recipe", "paper")]
    chosen = [as_view(v) for v in given.pop("views", None) or recipe.views()]
    if resample := given.pop("resample", None):
        chosen = [dataclasses.replace(v, resample=resample) for v in chosen]  # type: ignore[type-var]
    known = presets.find(job.data, job.model, given.get("task"))
    said: dict[str, Any] = {"views": [v.spec() for v in chosen], "labels_per_class": None, "masks": "given"}
    said |= {"exchange": {**dataclasses.asdict(recipe.exchange), **given.pop("exchange", {})}}
    said |= {"model_args": {**(known.model_args if known else {}), **given.pop("model_args", {})}}
    said |= {"phases": {**dataclasses.asdict(Phases()), **given.pop("phases", {})}}
    return json.loads(json.dumps(said | given, default=str))  # type: ignore[no-any-return]


def _says(settled: Mapping[str, Any], name: str, value: Any) -> bool:
    if name not in settled:  # a setting of training, or one that came later than the block
        training = settled.get("training", {})
        return name not in training or bool(training[name] == value)
    if isinstance(value, dict):
        return all(settled[name].get(key, wanted) == wanted for key, wanted in value.items())
    return bool(settled[name] == value)


def _alike(found: Sequence[Block]) -> list[Block]:
    """Of some blocks those that may stand together: all of one setting, no cell twice."""
    groups: dict[str, list[Block]] = {}
    for block in sorted(found, key=lambda b: -len(b.cells)):
        group = groups.setdefault(key_of(block.settings["settings"]), [])
        if not set(block.cells) & {cell for other in group for cell in other.cells}:
            group.append(block)
    return max(groups.values(), key=lambda group: sum(len(b.cells) for b in group), default=[])


def grid(rows: Sequence[str], columns: Sequence[str], make: Callable[[str, str], Job]) -> Iterator[Job]:
    """A job for every row and column."""
    return (make(row, column) for row in rows for column in columns)
