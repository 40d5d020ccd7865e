"""The short tables of docs/results.md and docs/recipe.md, from the tables and rows in results/.

    python benchmarks/pages.py            after `akegnn reproduce NAME ...` for whichever were run again

Nothing is computed but paired differences; differences are bold where their 95 % interval does not contain zero.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable
from pathlib import Path

import rows as kept
from akegnn.stats import Gain, Scores, paired, summarise

RESULTS = Path("results")
# Commits before which what few labels teach was not smoothed; cells with many labels are as they were.
UNSMOOTHED = ("9054a27", "33d5f59", "0b5c0f2", "270b72f", "7fbbae4", "570998b", "ac514bc")
CITATION = ("cora", "citeseer", "pubmed")
Places = dict[tuple[str, str], dict[str, Scores]]


def places(name: str) -> Places:
    """The scores of an experiment: by row and dataset, then by line."""
    found: dict[tuple[str, str], dict[str, dict[tuple[int, int], float]]] = {}
    for r in kept.read(RESULTS / f"{name}.rows.csv"):
        lines = found.setdefault((r["row"], r["dataset"]), {})
        lines.setdefault(r["method"], {})[int(r["split"]), int(r["seed"])] = float(r["test"])
    return found  # type: ignore[return-value]


def shown(gain: Gain | None) -> str:
    """A difference with its interval."""
    if gain is None:
        return "-"
    text = f"{100 * gain.mean:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"
    return f"**{text}**" if gain.low > 0 or gain.high < 0 else text


def over(lines: dict[str, Scores], method: str, other: str = "base") -> Gain | None:
    return paired(lines[method], lines[other]) if method in lines and other in lines else None


def mean(lines: dict[str, Scores], method: str) -> str:
    return f"{100 * summarise(lines[method]).mean:.1f}" if method in lines else "-"


def table(head: list[str], body: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def compared(name: str) -> str:
    """Base, further training, ensembles and AKE beside the paper's numbers."""
    paper = {(r["row"], r["column"], r["method"]): r["paper"] for r in kept.read(RESULTS / f"{name}.csv")}
    methods = ("FT", "ensemble", "ensemble+FT", "AKE")
    body = []
    for (row, data), lines in places(name).items():
        quoted = [paper.get((row, data, m), "") for m in ("base", "AKE")]
        start = [row, data, str(len(lines["base"])), mean(lines, "base")]
        body.append([*start, *(shown(over(lines, m)) for m in methods), ", ".join(quoted) if quoted[0] else "-"])
    return table(["backbone", "dataset", "n", "base", *methods, "paper: base, AKE"], body)


def study(name: str) -> str:
    """Base, ensemble, right after the exchange, and AKE, for every row of a study."""
    found = places(name)
    several = len({data for _, data in found}) > 1
    body = []
    for (row, data), lines in found.items():
        start = [f"{row}, {data}" if several else row, str(len(lines["base"])), mean(lines, "base")]
        body.append([*start, shown(over(lines, "ensemble")), mean(lines, "after exchange"), shown(over(lines, "AKE"))])
    return table(["", "n", "base", "ensemble", "right after exchange", "AKE"], body)


def beside(name: str) -> str:
    """Table 2: one line for every method, beside the paper's number."""
    paper = {(r["row"], r["column"], r["method"]): r["paper"] for r in kept.read(RESULTS / f"{name}.csv")}
    body, found = [], places(name)
    for (row, data, method), quoted in paper.items():
        if "network" not in method:
            lines = found[row, data]
            gain = shown(over(lines, method)) if method != "base" else ""
            start = [row, data, method, str(len(lines[method])), mean(lines, method), gain]
            body.append([*start, quoted or "-"])
    return table(["backbone", "dataset", "line", "n", "test", "over base", "paper"], body)


def steps(name: str) -> str:
    """Table 1: a line for every step, beside the paper's number."""
    body = []
    for r in kept.read(RESULTS / f"{name}.csv"):
        low, high = r["difference_low"], r["difference_high"]
        gain = f"{float(r['difference']):+.2f} [{float(low):+.2f}, {float(high):+.2f}]" if low else ""
        score = f"{float(r['mean']):.2f} ± {float(r['deviation']):.2f}"
        paper = f"{r['paper']} ± {r['paper_deviation']}"
        body.append([r["method"].removesuffix(" channels"), score, gain, paper])
    return table(["channels", "ours", "over 16 channels, paired [95 %]", "paper"], body)


def costs(name: str) -> str:
    """Table 5: seconds of every phase, beside the paper's."""
    body = [[r["row"], r["method"], r["seconds"], r["paper"] or "-"] for r in kept.read(RESULTS / f"{name}.csv")]
    return table(["", "phase", "seconds", "paper, seconds"], body)


def commits(name: str) -> dict[tuple[str, str], str]:
    """Which commit's code made the rows of each place; see combine.py."""
    return {(r["row"], r["dataset"]): r["commit"] for r in kept.read(RESULTS / f"{name}.commits.csv")}


def strong(name: str) -> str:
    """The recipe `strong` beside base, further training and ensembles."""
    made_by = commits(name)
    methods = ("FT", "ensemble+FT", "by function", "by function, half", "strong")
    body = []
    for (row, data), lines in places(name).items():
        start = [row, data, str(len(lines["base"])), mean(lines, "base")]
        last = over(lines, "strong", "ensemble+FT")
        p = f", p = {last.p:.2g}" if last is not None and last.p is not None else ""
        body.append([*start, *(shown(over(lines, m)) for m in methods), shown(last) + p])
        body[-1] += [made_by.get((row, data), "-")] if made_by else []
    head = ["backbone", "dataset", "n", "base", "FT", "ensemble+FT", "by function", "half the channels"]
    return table([*head, "**strong**", "strong over ensemble+FT", *(["commit"] if made_by else [])], body)


def summary() -> str:
    """How the recipe `strong` stands against its aims, counted from the rows."""
    found = places("strong")
    lines = []
    for about, chosen in (
        ("Citation graphs without GRAND", {k: v for k, v in found.items() if k[1] in CITATION and k[0] != "grand"}),
        ("Geom-GCN sets", {k: v for k, v in found.items() if k[1] not in CITATION}),
    ):
        for other in ("ensemble+FT", "FT", "base"):
            gains = {k: g for k, v in chosen.items() if (g := over(v, "strong", other)) is not None}
            sure = [k for k, g in gains.items() if g.mean > 0 and g.p is not None and g.p < 0.01]
            below = ["/".join(k) for k, g in gains.items() if g.mean < 0 and g.p is not None and g.p < 0.05]
            average = 100 * statistics.fmean(g.mean for g in gains.values())
            text = f"{about}, {len(gains)} cells: {average:+.2f} over {other} on average; p < 0.01 in {len(sure)}"
            lines.append(f"- {text}; below it with p < 0.05: {', '.join(below) or 'none'}.")
    citation = {k: v for k, v in found.items() if k[1] in CITATION and k[0] != "grand"}
    near = {k: g for k, v in citation.items() if (g := over(v, "by function", "ensemble, mean")) is not None}
    half = {k: g for k, v in citation.items() if (g := over(v, "by function, half")) is not None}
    apart = [f"{'/'.join(k)} {100 * g.mean:+.2f}" for k, g in near.items() if abs(g.mean) > 0.003]
    lines.append(
        f"- Right after the merge, within 0.3 points of the mean-probability ensemble in {len(near) - len(apart)} of "
        f"{len(near)} citation cells ({', '.join(apart) or 'no other'}); with half the channels above the single "
        f"network in {sum(g.mean > 0 for g in half.values())} of {len(half)}."
    )
    made_by = commits("strong")
    before = {k: v for k, v in citation.items() if made_by.get(k) in UNSMOOTHED}
    now = {k: v for k, v in citation.items() if k not in before}
    for about, cells in (("the recipe as it is", now), ("the recipe before it smoothed", before)):
        gains = [g.mean for v in cells.values() if (g := over(v, "strong", "ensemble+FT")) is not None]
        if gains:
            named = ", ".join(map("/".join, cells))
            text = f"{100 * statistics.fmean(gains):+.2f} over ensemble+FT on average ({named})"
            lines.append(f"- Of the citation cells {len(gains)} are of {about}: {text}.")
    return "\n".join(lines)


PAGES: dict[str, dict[str, Callable[[str], str]]] = {
    "docs/results.md": {
        "table1": steps,
        "table3": compared,
        "table4a": compared,
        "table4b": compared,
        "table2": beside,
        "table5-2-epochs": costs,
        **dict.fromkeys(("exchange", "openings", "iterations", "channels", "views", "depth", "few-shot"), study),
    },
    "docs/recipe.md": {"strong": strong, "strong-tasks": strong, "summary": lambda _: summary()},
}


def main() -> None:
    for page, tables in PAGES.items():
        for name in re.findall(r"<!-- end of ([\w-]+) -->", Path(page).read_text(encoding="utf-8")):
            if name in tables:
                kept.fill(Path(page), name, tables[name](name))


if __name__ == "__main__":
    main()
