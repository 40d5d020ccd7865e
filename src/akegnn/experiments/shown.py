"""The table and the figure of an experiment, from what is in a store."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..errors import AkeError
from ..runs import write_file
from ..stats import Gain, Mean, Scores, holm, paired, summarise
from ..store import Cell, Store
from .base import Block, Experiment

ONE_PANEL = 12  # places; where there are more, every row of the table has a panel, if there are several in a row


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
    parameters: int  # of all networks that a prediction needs
    seconds: float
    paper: tuple[float, ...] | None
    paper_seconds: float | None = None
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
            quoted = numbers.get(row, {}).get(name)
            score = quoted.get(column) if isinstance(quoted, dict) else None
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
                parameters=own[0].parameters,
                seconds=statistics.fmean(c.seconds for c in own),
                paper=tuple(score) if score else None,
                paper_seconds=quoted if experiment.timed else None,
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
    *("floor", "passes", "parameters", "seconds", "paper", "paper_deviation"),
)


def to_csv(found: Sequence[Entry]) -> str:
    """All numbers of a table, in per cent; the paper's seconds, where it is about them."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEAD)
    for e in found:
        s, g = e.score, e.gain
        paper = [*(e.paper or ()), "", ""][:2] if e.paper_seconds is None else [f"{e.paper_seconds:g}", ""]
        row = [
            e.row,
            e.column,
            e.method,
            s.n,
            *(_percent(v) for v in (s.mean, s.deviation, s.low, s.high, e.validation)),
        ]
        row += [_percent(v) for v in (g.mean, g.low, g.high)] if g else [""] * 3
        row += [g.n, g.over, _p(g.p), _p(e.p_holm)] if g else [""] * 4
        writer.writerow([*row, _percent(e.floor), e.passes, e.parameters, f"{e.seconds:.3f}", *paper])
    return text.getvalue()


ROWS = (
    *("row", "dataset", "backbone", "method", "split", "seed"),
    *("validation", "test", "passes", "parameters", "seconds"),
)


def to_rows(by_place: Mapping[tuple[str, str], Mapping[str, Sequence[Cell]]]) -> str:
    """What a table is made of: every score of every split and seed, as shares.

    With all digits: a test of ranks asks which differences are equal.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(ROWS)
    for (row, _), lines in by_place.items():
        for c in (cell for cells in lines.values() for cell in cells):
            scores = (f"{c.validation:.15g}", f"{c.test:.15g}", c.passes, c.parameters, f"{c.seconds:.4g}")
            writer.writerow((row, c.dataset, c.backbone, c.method, c.split, c.seed, *scores))
    return text.getvalue()


def to_json(found: Sequence[Entry]) -> str:
    """All numbers of a table, for programs."""
    return json.dumps([dataclasses.asdict(e) for e in found])


def to_markdown(experiment: Experiment, found: Sequence[Entry]) -> str:
    """The table beside the paper's numbers. Seconds only where it is about them: no two runs have the same."""
    lines = [f"## {experiment.name}", "", experiment.about, ""]
    lines += [experiment.note, ""] if experiment.note else []
    head = ["", "dataset", "line", "n", "test", "over base, paired [95 %]", "p (Holm)", "floor", "passes", "parameters"]
    head += ["seconds", "paper, seconds"] if experiment.timed else ["paper"]
    lines += ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head))]
    for e in found:
        gain, p = "", ""
        if e.gain is not None:
            g = e.gain
            sure = f" [{100 * g.low:+.2f}, {100 * g.high:+.2f}]" if g.n > 1 else ""  # one pair says nothing of others
            gain = f"{100 * g.mean:+.2f}{sure}, {g.n} {g.over if g.n > 1 else g.over.removesuffix('s')}"
            p = _p(e.p_holm) or "-"
        floor = f"{100 * e.floor:.1f}" if e.floor is not None else "-"
        paper = f"{e.paper[0]:g}" + (f" ± {e.paper[1]:g}" if len(e.paper) > 1 else "") if e.paper else "-"
        if experiment.timed:
            paper = f"{e.seconds:.3g} | " + (f"{e.paper_seconds:g}" if e.paper_seconds is not None else "-")
        score = f"{100 * e.score.mean:.2f}" + (f" ± {100 * e.score.deviation:.2f}" if e.score.n > 1 else "")
        cells = [e.row, e.column, e.method, str(e.score.n), score, gain, p, floor, str(e.passes), f"{e.parameters:,}"]
        cells.append(paper)
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
            if experiment.timed:
                _seconds(axes, found)
            else:
                for name, points in _series([e for e in found if not aside(e.method)]).items():
                    xs, ys, spread = zip(*points, strict=True)
                    axes.errorbar(xs, ys, yerr=spread, marker="o", capsize=3, label=name)
                axes.set_ylabel("test score in per cent (bars: 95 % of the mean)")
            axes.set_xlabel(experiment.axis)
            axes.legend(frameon=False)
        else:
            gains = [e for e in found if e.gain is not None and not aside(e.method)] or list(found)
            plot = _panels(plt, gains)
        plot.suptitle(experiment.stem, fontsize="large")
        written = []
        for ending in ("png", "svg"):
            path = folder / f"{experiment.stem}.{ending}"
            plot.savefig(path, dpi=150, metadata={"Date": None} if ending == "svg" else None)
            written.append(path)
        plt.close(plot)
    return written


def _seconds(axes: Any, found: Sequence[Entry]) -> None:
    """Seconds along the axis, the paper's as dashed lines of the same colour."""
    for n, method in enumerate(dict.fromkeys(e.method for e in found)):
        own = sorted((e for e in found if e.method == method and e.x is not None), key=lambda e: e.x or 0.0)
        axes.plot([e.x for e in own], [e.seconds for e in own], "o-", color=f"C{n}", label=method)
        paper = [e for e in own if e.paper_seconds is not None]
        axes.plot(
            [e.x for e in paper], [e.paper_seconds for e in paper], "x--", color=f"C{n}", label=f"{method}, paper"
        )
    axes.set_yscale("log")
    axes.set_ylabel("seconds")


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
    what = (
        "paired difference to the base, points" if any(e.gain is not None for e in gains) else "test score in per cent"
    )
    plot.supxlabel(f"{what}, with 95 % interval", fontsize="medium")
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
    paths = [folder / f"{experiment.stem}.{ending}" for ending in texts]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, texts.values(), strict=True):
            write_file(path, text.encode())
    except OSError as e:
        raise AkeError(f"{folder}: cannot be written ({e.strerror})") from None
    try:
        return [*paths, *figure(experiment, found, folder, histories)]
    except ImportError:
        return paths  # without matplotlib there is no figure: pip install akegnn[figures]
