"""What it is worth to smooth over the edges what the teachers say before it is taught, and to teach classes evenly.

    python benchmarks/smoothing.py --only cora/gcn --splits 10 --device cpu     rows, into results/smoothing.csv
    python benchmarks/smoothing.py --table docs/recipe.md                       only the tables, from the rows

Splits, scores and rows are those of recipe.py. Everything else is as the recipe does it: four teachers, temperature
1/4, weight 0.9, fewer edges in every epoch, from the merged network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from akegnn.methods.strong import RESTART, STEPS, sharper, smoothed
from akegnn.phases import Networks
from recipe import by_place, chosen, command, difference, held
from ways import Ways

RAREST = 0.1  # of an even share: a class that the teachers say less often than that counts as if they said it so often


def evenly(soft: Tensor) -> Tensor:
    """Soft targets ``[..., N, C]`` in which every class counts the same; rows no longer add up to one."""
    nodes, classes = soft.shape[-2:]
    share = soft.sum(-2, keepdim=True) * classes / nodes  # of an even one
    return soft / share.clamp_min(RAREST)


class Smooth(Ways):
    """Teachers' means that are smoothed, and what is taught with them."""

    def wide(self, restart: float = RESTART, steps: int = STEPS) -> Tensor:
        return smoothed(self.mean, self.bench.trainer.task.example, restart, steps)


Variant = Callable[[Smooth], Networks | Tensor]
TEACHERS: dict[str, Variant] = {  # no network: what is taught, before it is made sharper
    "teachers": lambda lab: lab.mean.log(),
    "teachers, smoothed": lambda lab: lab.wide().log(),
    "teachers, smoothed, restart 0.2": lambda lab: lab.wide(0.2).log(),
    "teachers, smoothed, restart 0.05, 20 steps": lambda lab: lab.wide(0.05, 20).log(),
}
TAUGHT: dict[str, Variant] = {
    "taught": lambda lab: lab.taught("taught"),
    "taught evenly": lambda lab: lab.taught("taught evenly", soft=evenly(lab.soft)),
    "smoothed, taught": lambda lab: lab.taught("smoothed", soft=sharper(lab.wide())),
    "smoothed, taught evenly": lambda lab: lab.taught("smoothed evenly", soft=evenly(sharper(lab.wide()))),
}
VARIANTS: dict[str, Variant] = {
    "base": lambda lab: lab.bench.base,
    "merged": lambda lab: lab.merged,
    "trained again": lambda lab: lab.again("again", lab.merged),
    **TEACHERS,
    **TAUGHT,
}


# ---- the tables ------------------------------------------------------------------------------------------------------

Rows = dict[str, dict[str, str]]  # of one split, by variant
BEFORE = ("base", "merged", "trained again")


def _gate(rows: Rows) -> str:
    """Whether the targets are smoothed, as the recipe decides it."""
    better = float(rows["teachers, smoothed"]["validation"]) >= float(rows["teachers"]["validation"])
    return "smoothed, " if better else ""


CHOICES: dict[str, Callable[[Rows], Sequence[str]]] = {  # which candidates there are besides BEFORE
    "taught": lambda rows: ["taught"],
    "taught; taught evenly": lambda rows: ["taught", "taught evenly"],
    "taught, always smoothed": lambda rows: ["smoothed, taught"],
    "both, always smoothed": lambda rows: ["smoothed, taught", "smoothed, taught evenly"],
    "taught, smoothed where validation allows it (the recipe)": lambda rows: [f"{_gate(rows)}taught"],
    "both, smoothed where validation allows it": lambda rows: [f"{_gate(rows)}taught", f"{_gate(rows)}taught evenly"],
}


def table(rows: list[dict[str, str]]) -> str:
    """What is taught, for every pair of backbone and dataset; then the teachers, and what ships, all pairs together."""
    whole = {place: v for place, v in by_place(rows).items() if set(VARIANTS) <= set(v)}
    pairs: dict[str, list[Rows]] = {}
    for (data, model, _), v in whole.items():
        pairs.setdefault(f"{model}, {data}", []).append(v)
    every = list(whole.values())

    def ships(v: Rows, how: str) -> float:
        return held(chosen(v, [*BEFORE, *CHOICES[how](v)]))

    first, *_, ours, both = CHOICES
    lines = [["over the plain network", *TAUGHT, f"what ships, over: {first}", "with a second one taught evenly"]]
    for about, found in {**pairs, "**all**": every}.items():
        gains = (difference([held(v[name]) - held(v["base"]) for v in found]) for name in TAUGHT)
        more = (difference([ships(v, a) - ships(v, b) for v in found]) for a, b in ((ours, first), (both, ours)))
        lines.append([about, *gains, *more])
    lines += [[], ["the teachers' mean, four passes", "over the plain network", "over the mean as it is"]]
    for name in TEACHERS:
        gains = (difference([held(v[name]) - held(v[other]) for v in every]) for other in ("base", "teachers"))
        lines.append([name.removeprefix("teachers, "), *gains])
    lines += [
        [],
        ["candidates besides plain, merged, trained again", "what ships, over the plain network", f"over: {first}"],
    ]
    for name in CHOICES:
        before = difference([ships(v, name) - ships(v, first) for v in every]) if name != first else ""
        lines.append([name, difference([ships(v, name) - held(v["base"]) for v in every]), before])
    return _markdown(lines)


def _markdown(lines: list[list[str]]) -> str:
    """Tables with an empty line between them; the first line of each is its head."""
    text, above = [], False
    for cells in lines:
        text.append("| " + " | ".join(cells) + " |" if cells else "")
        if cells and not above:
            text.append("|" + " --- |" * len(cells))
        above = bool(cells)
    return "\n".join(text)


if __name__ == "__main__":
    command(__doc__, "results/smoothing.csv", VARIANTS, Smooth, "smoothing", table)
