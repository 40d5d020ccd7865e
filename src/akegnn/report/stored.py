"""The page of a store: every table and figure that it has rows of, beside the paper's numbers, and all other cells."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..experiments import EXPERIMENTS, Block, Entry, Experiment, Job, entries, stored
from ..experiments.shown import aside, lines_of
from ..store import Cell, Store, key_of
from . import charts
from .charts import Chart, Table
from .page import Fact, Grid, Page, Section, Sheet

CURVE = 200  # points of a learning curve


def store_page(path: Path) -> Page:
    """Everything that a store holds."""
    with Store(path, create=False) as store:
        sections, used = [], set()
        for experiment in EXPERIMENTS.values():
            if wanted := stored(experiment, store):
                used |= {b.key for b in wanted}
                sections.append(_section(experiment, wanted, store))
        kept = store.blocks()
        if rest := others([block for block in kept if block[0] not in used], store):
            text = "Cells in the store that no table or figure of the paper names, or that another block is shown for."
            sections.append(_section(Experiment("other", text, lambda: []), rest, store, "Everything else"))
        overview, failures = store.overview(), store.failures()
        sections.append(_made_with(kept, overview, failures))
    cells = sum(count for _, count, _, _ in overview)
    lead = (
        "Each method on the same splits, seeds and initial weights as what it is compared with. Differences are "
        "paired. Intervals are 95 % intervals of the mean, over splits where there are several, else over seeds."
    )
    hours = sum(seconds for _, _, seconds, _ in overview) / 3600
    facts = [
        Fact("cells", f"{cells:,}", "scores of one method, split and seed", main=True),
        Fact("blocks", f"{len(overview):,}", "settings computed at once"),
        Fact("tables and figures", str(len(sections) - 1 - bool(rest)), "with rows here"),
        Fact(
            "computing", f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min", f"{len(failures)} blocks failed"
        ),
    ]
    return Page(f"{path.name}", "Store of results", lead, facts, sections)


def others(left: Sequence[tuple[str, str, dict[str, Any], dict[str, Any]]], store: Store) -> list[Block]:
    """Blocks that belong to no experiment, as jobs of their own; those of one setting stand together."""
    of: dict[str, list[Cell]] = {}
    for cell in store.cells([key for key, *_ in left]):
        of.setdefault(cell.block, []).append(cell)
    rows: dict[str, tuple[str, set[tuple[int, int]]]] = {}  # by row: which setting, and the cells it has already
    found = []
    for key, label, settings, _ in left:
        cells = {(c.split, c.seed) for c in of.get(key, [])}
        if not cells:
            continue
        alike = key_of({name: value for name, value in settings.items() if name != "cells"})
        row, count = label, 1
        while row in rows and (rows[row][0] != alike or rows[row][1] & cells):
            count += 1
            row = f"{label} ({count})"
        rows.setdefault(row, (alike, set()))[1].update(cells)
        first = of[key][0]
        job = Job(row, first.dataset, first.dataset, first.backbone)
        found.append(Block(job, tuple(sorted(cells)), settings, key))
    return found


def headline(name: str) -> str:
    """The name of an experiment as a heading: table4a is Table 4a."""
    spaced = re.sub(r"^table(?=\d)", "table ", name)
    return spaced[:1].upper() + spaced[1:]


def _section(experiment: Experiment, wanted: Sequence[Block], store: Store, title: str = "") -> Section:
    found = entries(experiment, wanted, store)
    lines = lines_of(wanted, store)
    drawn = []
    if experiment.axis and any(e.x is not None for e in found):
        drawn.append(_along(experiment, found))
    if experiment.draw is not None:
        drawn += _curves(store.histories([b.key for b in wanted]))
    text = [experiment.about, *([experiment.note] if experiment.note else [])]
    return Section(
        experiment.name, title or headline(experiment.name), text, charts=drawn, grid=_grid(experiment, found, lines)
    )


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 3)


def _grid(
    experiment: Experiment, found: Sequence[Entry], lines: Mapping[tuple[str, str], Mapping[str, Sequence[Cell]]]
) -> Grid:
    """The entries as compact rows; page.js knows their order."""
    words: dict[str, int] = {}
    grids: dict[tuple[tuple[int, int], ...], int] = {}
    base = {(e.row, e.column): e.paper for e in found if e.method == experiment.base}
    rows = []
    for e in found:
        own = lines[e.row, e.column][e.method]
        cells = tuple((c.split, c.seed) for c in own)
        gain, quoted = e.gain, base.get((e.row, e.column))
        paper_gain = round(e.paper[0] - quoted[0], 3) if e.paper and quoted and e.method != experiment.base else None
        rows.append(
            [
                *(words.setdefault(word, len(words)) for word in (e.row, e.column, e.method)),
                e.score.n,
                *(_percent(v) for v in (e.score.mean, e.score.deviation, e.score.low, e.score.high)),
                *([_percent(v) for v in (gain.mean, gain.low, gain.high)] if gain else [None] * 3),
                f"{gain.n} {gain.over}" if gain else "",
                None if e.p_holm is None else float(f"{e.p_holm:.2g}"),
                _percent(e.floor),
                e.passes,
                e.parameters,
                float(f"{e.seconds:.4g}"),
                *[*(e.paper or ()), None, None][:2],
                paper_gain,
                int(aside(e.method)),
                grids.setdefault(cells, len(grids)),
                [round(100_000 * c.test) for c in own],
            ]
        )
    metrics = {c.metric for by_line in lines.values() for own in by_line.values() for c in own}
    compared = list(dict.fromkeys(e.method for e in found if e.gain is not None and not aside(e.method)))
    return Grid(
        caption=f"{headline(experiment.name)}: test {' or '.join(sorted(metrics))} in per cent",
        base=experiment.base,
        metric=" or ".join(sorted(metrics)),
        words=list(words),
        cells=[[list(cell) for cell in cells] for cells in grids],
        rows=rows,
        forest=charts.forest(f"the line “{experiment.base}”", compared),
        strip=charts.strip(),
    )


def _along(experiment: Experiment, found: Sequence[Entry]) -> Chart:
    shown = [e for e in found if e.x is not None and not aside(e.method)]
    several = len({e.column for e in shown}) > 1
    rows = [
        [
            f"{e.method}, {e.column}" if several else e.method,
            e.x,
            *map(_percent, (e.score.mean, e.score.low, e.score.high)),
        ]
        for e in shown
    ]
    told = f"Mean test score by {experiment.axis}; bars are 95 % intervals of the mean. Drawn from this store's rows."
    values = [e.x for e in shown if e.x is not None]
    table = Table(("line", "x", "mean", "low", "high"), rows)
    spec = charts.along(experiment.axis, values, list(dict.fromkeys(str(row[0]) for row in rows)))
    return Chart(f"Test score by {experiment.axis}", told, spec, table, wide=True)


def _curves(histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Chart]:
    """Means over blocks, which are means over seeds themselves."""
    points: dict[tuple[str, str, int], list[float]] = {}
    for history in histories.values():
        for e in history:
            shift = e["epochs"] if e["phase"] == "re-training" else 0
            points.setdefault((e["network"], e["phase"], shift + e["epoch"]), []).append(e["validation"])
    if not points:
        return []
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for (network, phase, epoch), values in points.items():
        curves.setdefault((network, phase), []).append((epoch, statistics.fmean(values)))
    rows = []
    for (network, phase), curve in curves.items():
        step = -(-len(curve) // CURVE)
        rows += [[network, phase, epoch, _percent(v)] for epoch, v in sorted(curve)[::step]]
    told = "Means over seeds; re-training goes on where individual learning ended."
    table = Table(("network", "phase", "epoch", "validation"), rows)
    return [Chart("Validation score by epoch", told, charts.learning(), table, wide=True)]


def _made_with(
    kept: Sequence[tuple[str, str, dict[str, Any], dict[str, Any]]],
    overview: Sequence[tuple[str, int, float, str]],
    failures: Sequence[tuple[str, str]],
) -> Section:
    """The environments that blocks were computed in, and what failed."""
    seen: dict[str, list[str]] = {}
    for *_, environment in kept:
        for name, value in environment.items():
            known = seen.setdefault(name, [])
            if str(value) not in known:
                known.append(str(value))
    facts = [[name, ", ".join(values)] for name, values in sorted(seen.items())]
    times = sorted(when for *_, when in overview)
    facts += [["computed", f"{times[0]} to {times[-1]}"]] if times else []
    sheets = [Sheet("Environment of the blocks", ("", ""), facts, numbers=False)]
    if failures:
        rows = [[label, error] for label, error in failures]
        sheets.append(Sheet("Blocks that failed", ("block", "error"), rows, numbers=False))
    return Section("environment", "Setting and environment", sheets=sheets)
