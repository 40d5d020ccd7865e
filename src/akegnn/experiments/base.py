"""What an experiment is: a grid of jobs, computed into a store, and a table and a figure made of what is there."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import resource
import statistics
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from .. import presets
from ..data import DATASETS
from ..errors import AkeError, RunFailed
from ..fit import RECIPES, Plan, plan
from ..methods import METHODS
from ..settings import Phases
from ..stats import Gain, Mean, Scores, holm, paired, summarise
from ..store import Cell, Store, key_of
from ..views import as_view

BLOCK = 100  # cells computed at once; part of a block's identity, because they share their draws of dropout
# Of methods and tasks: to be raised when a change of code changes their numbers, so that a store does not pass off old
# ones as new.
REVISIONS = {"strong": 2, "decorr": 2, "graph": 2}
ONE_PANEL = 12  # places; where there are more, every row of the table has a panel, if there are several in a row
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
        return f"{self.model} on {self.data}" + (f", {self.row}" if self.row != self.model else "")

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
    axis: str = ""  # what the axis of a line plot is; without, differences are plotted with their intervals
    base: str = "base"  # what lines are compared with
    shown: tuple[str, ...] = ()  # lines in the table, in order; empty: all
    note: str = ""
    draw: Callable[[Any, Mapping[str, list[dict[str, Any]]]], None] | None = None  # on axes, from the epochs

    def at(self, data_root: str | Path | None) -> Experiment:
        """The same with the datasets that lie there: an official one in place of its substitute."""

        def there(job: Job) -> Job:
            return next((o for o in _official(job) if DATASETS[o.data].path(data_root) is not None), job)

        return dataclasses.replace(self, jobs=lambda: [there(job) for job in self.jobs()])

    def anywhere(self) -> Experiment:
        """The same with official datasets beside their substitutes: whichever a store was filled with."""
        return dataclasses.replace(self, jobs=lambda: [j for job in self.jobs() for j in (*_official(job), job)])

    def chosen(self, seeds: int | None = None, splits: int | None = None, only: Sequence[str] = ()) -> list[Job]:
        """The jobs that are asked for: ``only`` names models, datasets, or ``model/dataset``."""
        for name, count in (("seeds", seeds), ("splits", splits)):
            if count is not None and count < 1:
                raise AkeError(f"--{name} {count}: must be at least 1")
        jobs = [j for j in self.jobs() if not only or any(_matches(j, word) for word in only)]
        if not jobs:
            raise AkeError(f"--only {', '.join(only)}: nothing in {self.name}; it has {_names(self.jobs())}")
        seeded = [dataclasses.replace(j, seeds=seeds or j.seeds) for j in jobs]
        return [dataclasses.replace(j, splits=min(splits or j.splits, j.splits)) for j in seeded]


def _official(job: Job) -> list[Job]:
    """The job on the dataset that its own stands in for, if it does."""
    name = job.data.removesuffix("-substitute")
    return [dataclasses.replace(job, data=name, column=name)] if name != job.data and name in DATASETS else []


def _matches(job: Job, word: str) -> bool:
    return word in (job.model, job.data, job.row, f"{job.model}/{job.data}", f"{job.row}/{job.column}")


def _names(jobs: Sequence[Job]) -> str:
    return ", ".join(dict.fromkeys(f"{j.model}/{j.data}" for j in jobs))


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
        every = [[(split, seed) for seed in range(job.seeds)] for split in range(job.splits)]
        if prepared.trainer.task.mixes_splits:  # splits that are not trained together need not be lost together
            every = [[cell for cells in every for cell in cells]]
        for part in (tuple(cells[k : k + BLOCK]) for cells in every for k in range(0, len(cells), BLOCK)):
            what = {"settings": settled, "methods": job.methods, "cells": part, **_revisions(settled, job.methods)}
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

    How networks are trained is not compared, because presets may change, nor are the numbers of seeds and splits.
    """
    settled = settings.get("settings", {})
    if (settled.get("data"), settled.get("model")) != (job.data, job.model):
        return False
    if list(settings.get("methods", ())) != list(job.methods):
        return False
    if settings.get("compute") != (job.compute.__qualname__ if job.compute else None):
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


# ---- the table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One line of a table."""

    row: str
    column: str
    method: str
    score: Mean
    validation: float
    gain: Gain | None
    p_holm: float | None
    floor: float | None
    passes: int
    seconds: float
    paper: tuple[float, ...] | None
    x: float | None = None


@cache
def paper_numbers() -> dict[str, Any]:
    """The paper's own numbers, by table, row, line and column."""
    return tomllib.loads((files(__package__) / "paper.toml").read_text(encoding="utf-8"))


def lines_of(wanted: Sequence[Block], store: Store) -> dict[tuple[str, str], dict[str, list[Cell]]]:
    """The cells of some blocks by row and column, then by line."""
    places: dict[str, list[tuple[str, str]]] = {}  # two jobs with the same settings are one block
    for b in wanted:
        places.setdefault(b.key, []).append((b.job.row, b.job.column))
    found: dict[tuple[str, str], dict[str, list[Cell]]] = {}
    for cell in store.cells(list(places)):
        for place in dict.fromkeys(places[cell.block]):
            found.setdefault(place, {}).setdefault(cell.method, []).append(cell)
    order = dict.fromkeys((b.job.row, b.job.column) for b in wanted)
    return {place: found[place] for place in order if place in found}


def entries(experiment: Experiment, wanted: Sequence[Block], store: Store) -> list[Entry]:
    """The table from what is in the store, with paired differences on the splits and seeds that both lines have."""
    axis = {(b.job.row, b.job.column): b.job.x for b in wanted}
    by_place = lines_of(wanted, store)
    numbers = paper_numbers().get(experiment.name, {})
    found: list[Entry] = []
    for row, column in axis:
        lines = by_place.get((row, column), {})
        base = _scores(lines[experiment.base]) if experiment.base in lines else None
        order = [name for name in (experiment.shown or lines) if name in lines]
        for name in order:
            own = lines[name]
            scores = _scores(own)
            gain = paired(scores, base) if base is not None and name != experiment.base else None
            floors = [c.floor for c in own if c.floor is not None]
            quoted = numbers.get(row, {}).get(name, {}).get(column)
            entry = Entry(
                row=row,
                column=column,
                method=name,
                score=summarise(scores),
                validation=statistics.fmean(c.validation for c in own),
                gain=gain,
                p_holm=None,
                floor=statistics.fmean(floors) if floors else None,
                passes=own[0].passes,
                seconds=statistics.fmean(c.seconds for c in own),
                paper=tuple(quoted) if quoted else None,
                x=axis[row, column],
            )
            found.append(entry)
    return _corrected(found)


def _scores(cells: Sequence[Cell]) -> Scores:
    return {(c.split, c.seed): c.test for c in cells}


def _corrected(found: list[Entry]) -> list[Entry]:
    """Holm's correction within one dataset and one line: over all that was tried there."""
    groups: dict[tuple[str, str], list[int]] = {}
    for k, e in enumerate(found):
        groups.setdefault((e.column, e.method), []).append(k)
    for members in groups.values():
        values = holm([gain.p if (gain := found[k].gain) else None for k in members])
        for k, p in zip(members, values, strict=True):
            found[k] = dataclasses.replace(found[k], p_holm=p)
    return found


HEAD = (
    *("row", "column", "method", "n", "mean", "deviation", "low", "high", "validation"),
    *("difference", "difference_low", "difference_high", "pairs", "over", "p", "p_holm"),
    *("floor", "passes", "seconds", "paper", "paper_deviation"),
)


def to_csv(found: Sequence[Entry]) -> str:
    """All numbers of a table, in per cent."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEAD)
    for e in found:
        s, g = e.score, e.gain
        paper = [*(e.paper or ()), "", ""][:2]
        row = [
            e.row,
            e.column,
            e.method,
            s.n,
            *(_percent(v) for v in (s.mean, s.deviation, s.low, s.high, e.validation)),
        ]
        row += [_percent(v) for v in (g.mean, g.low, g.high)] if g else [""] * 3
        row += [g.n, g.over, _p(g.p), _p(e.p_holm)] if g else [""] * 4
        writer.writerow([*row, _percent(e.floor), e.passes, f"{e.seconds:.3f}", *paper])
    return text.getvalue()


ROWS = ("row", "dataset", "backbone", "method", "split", "seed", "validation", "test", "passes", "seconds")


def to_rows(by_place: Mapping[tuple[str, str], Mapping[str, Sequence[Cell]]]) -> str:
    """What a table is made of: every score of every split and seed, as shares."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(ROWS)
    for (row, _), lines in by_place.items():
        for c in (cell for cells in lines.values() for cell in cells):
            scores = (f"{c.validation:.6g}", f"{c.test:.6g}", c.passes, f"{c.seconds:.4g}")
            writer.writerow((row, c.dataset, c.backbone, c.method, c.split, c.seed, *scores))
    return text.getvalue()


def to_json(found: Sequence[Entry]) -> str:
    """All numbers of a table, for programs."""
    return json.dumps([dataclasses.asdict(e) for e in found])


def to_markdown(experiment: Experiment, found: Sequence[Entry]) -> str:
    """The table beside the paper's numbers."""
    lines = [f"## {experiment.name}", "", experiment.about, ""]
    lines += [experiment.note, ""] if experiment.note else []
    lines += [
        "| | dataset | line | n | test | over base, paired [95 %] | p (Holm) | floor | passes | paper |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for e in found:
        gain, p = "", ""
        if e.gain is not None:
            g = e.gain
            gain = f"{100 * g.mean:+.2f} [{100 * g.low:+.2f}, {100 * g.high:+.2f}], {g.n} {g.over}"
            p = _p(e.p_holm) or "-"
        floor = f"{100 * e.floor:.1f}" if e.floor is not None else "-"
        paper = f"{e.paper[0]:g}" + (f" ± {e.paper[1]:g}" if len(e.paper) > 1 else "") if e.paper else "-"
        score = f"{100 * e.score.mean:.2f} ± {100 * e.score.deviation:.2f}"
        cells = [e.row, e.column, e.method, str(e.score.n), score, gain, p, floor, str(e.passes), paper]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.4f}"


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def figure(
    experiment: Experiment,
    found: Sequence[Entry],
    folder: Path,
    histories: Mapping[str, list[dict[str, Any]]] | None = None,
) -> list[Path]:
    """A picture of the table, as PNG and SVG: lines along an axis, or differences with their intervals."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    with plt.rc_context({"svg.hashsalt": experiment.name, "font.size": 9}):
        if experiment.draw is not None:
            plot, axes = plt.subplots(figsize=(6.5, 4), layout="constrained")
            experiment.draw(axes, histories or {})
        elif experiment.axis and any(e.x is not None for e in found):
            plot, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
            for name, points in _series([e for e in found if not aside(e.method)]).items():
                xs, ys, spread = zip(*points, strict=True)
                axes.errorbar(xs, ys, yerr=spread, marker="o", capsize=3, label=name)
            axes.set_xlabel(experiment.axis)
            axes.set_ylabel("test score in per cent (bars: 95 % of the mean)")
            axes.legend(frameon=False)
        else:
            gains = [e for e in found if e.gain is not None and not aside(e.method)] or list(found)
            plot = _panels(plt, gains)
        plot.suptitle(experiment.name, fontsize="large")
        written = []
        for ending in ("png", "svg"):
            path = folder / f"{experiment.name}.{ending}"
            plot.savefig(path, dpi=150, metadata={"Date": None} if ending == "svg" else None)
            written.append(path)
        plt.close(plot)
    return written


def _panels(plt: Any, gains: Sequence[Entry]) -> Any:
    """Differences to the base: one panel, or where there are many places one for each row of the table."""
    methods = list(dict.fromkeys(e.method for e in gains))
    rows, every = list(dict.fromkeys(e.row for e in gains)), {(e.row, e.column) for e in gains}
    together = len(rows) < 2 or len(every) <= max(ONE_PANEL, 4 * len(rows))
    panels = {"": list(gains)} if together else {row: [e for e in gains if e.row == row] for row in rows}
    most = max(1, *(len({(e.row, e.column) for e in own}) for own in panels.values()))
    across = min(len(panels), 4)
    down = -(-len(panels) // across)
    height = 1.0 + max(0.3, 0.07 * (len(methods) + 2)) * most  # of a panel, in inches
    size = (7.5 if together else 3.6 * across, 0.6 + height * down)
    plot, grid = plt.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
    for axes, (row, own) in zip(grid.flat, panels.items(), strict=False):
        places = list(dict.fromkeys((e.row, e.column) for e in own))
        _differences(axes, own, places, methods, [", ".join(dict.fromkeys(p[not together :])) for p in places])
        axes.set_title(row)
        axes.set_ylim(most - 0.5, -0.5)  # the same for all
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    if methods:
        plot.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside right upper", frameon=False)
    plot.supxlabel("paired difference to the base, points, with 95 % interval", fontsize="medium")
    return plot


def _differences(
    axes: Any, gains: Sequence[Entry], places: Sequence[tuple[str, str]], methods: Sequence[str], labels: Sequence[str]
) -> None:
    """Differences to the base with their intervals, place under place, all lines of a place together."""
    for n, method in enumerate(methods):
        own = [e for e in gains if e.method == method]
        shown = [e.gain or e.score for e in own]
        down = [places.index((e.row, e.column)) + (n + 1) / (len(methods) + 1) - 0.5 for e in own]
        sides = [[100 * (m.mean - m.low) for m in shown], [100 * (m.high - m.mean) for m in shown]]
        how = {"fmt": "o", "markersize": 3, "capsize": 1.5, "linewidth": 1, "color": f"C{n}"}
        axes.errorbar([100 * m.mean for m in shown], down, xerr=sides, label=method, **how)
    for k in range(1, len(places)):
        axes.axhline(k - 0.5, color="lightgrey", linewidth=0.5)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(places)), labels)


def aside(method: str) -> bool:
    """Lines that are in the table but would hide the others in a picture."""
    return method == "after exchange" or " network " in method


def _series(found: Sequence[Entry]) -> dict[str, list[tuple[float, float, float]]]:
    series: dict[str, list[tuple[float, float, float]]] = {}
    for e in found:
        if e.x is not None:
            half = 100 * (e.score.high - e.score.mean)
            series.setdefault(f"{e.method}, {e.column}", []).append((e.x, 100 * e.score.mean, half))
    return {name: sorted(points) for name, points in series.items()}


def write(
    experiment: Experiment,
    found: Sequence[Entry],
    folder: Path,
    wanted: Sequence[Block],
    store: Store,
) -> list[Path]:
    """CSV, the rows it is made of, Markdown and figure of an experiment, from the blocks that are in the store."""
    texts = {"csv": to_csv(found), "rows.csv": to_rows(lines_of(wanted, store)), "md": to_markdown(experiment, found)}
    histories = store.histories([b.key for b in wanted])
    paths = [folder / f"{experiment.name}.{ending}" for ending in texts]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, texts.values(), strict=True):
            path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise AkeError(f"{folder}: cannot be written ({e.strerror})") from None
    try:
        return [*paths, *figure(experiment, found, folder, histories)]
    except ImportError:
        return paths  # without matplotlib there is no figure: pip install akegnn[figures]


def grid(rows: Sequence[str], columns: Sequence[str], make: Callable[[str, str], Job]) -> Iterator[Job]:
    """A job for every row and column."""
    return (make(row, column) for row in rows for column in columns)
