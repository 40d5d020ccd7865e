"""What each ingredient of the recipe `strong` is worth, on random splits in which no public test node has a part.

    python benchmarks/recipe.py --only cora/gcn --splits 10 --device cuda --out results/recipe.csv
    python benchmarks/recipe.py --table docs/recipe.md                        only the tables, from the rows

The citation graphs get 20 labels per class for training and two times 500 nodes, all drawn anew from the nodes that are
not in the public test set; the other graphs, whose ten public splits cover all nodes, 60 / 20 / 20 %. Networks are
stopped and chosen by the first of the two ("validation"), variants are compared by the second ("held"). A row per split
and variant; what is in the file already is left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

import rows as kept
from akegnn.data.splits import PARTS, node_splits
from akegnn.errors import AkeError
from akegnn.fit import Plan, plan
from akegnn.methods.strong import sharper
from akegnn.phases import Bench, Networks
from akegnn.stats import interval, wilcoxon
from akegnn.tasks import make_task
from akegnn.training import Targets
from akegnn.views import DropEdges, Original, View

Adding = Callable[[Iterable[Sequence[object]]], None]
COLUMNS = ("dataset", "backbone", "split", "variant", "validation", "held", "loss")
CITATION = ("cora", "citeseer", "pubmed")
LABELS, HELD = 20, 500  # of each class to train on; nodes to choose by, and as many to compare by


# ---- splits ----------------------------------------------------------------------------------------------------------


def drawn(data: Data, few: bool, splits: int) -> Data:
    """The graph with masks ``[N, splits]`` drawn anew."""
    columns: dict[str, list[Tensor]] = {part: [] for part in PARTS}
    for split in range(splits):
        if few:
            parts = _few(data, split)
        else:
            parts, _ = node_splits(data, split, split, masks="random")
        for part, nodes in parts.items():
            columns[part].append(
                torch.zeros(int(data.num_nodes or 0), dtype=torch.bool).index_fill(0, nodes.cpu(), True)
            )
    made = data.clone()
    for part, masks in columns.items():
        made[f"{part}_mask"] = torch.stack(masks, 1).to(data.y.device)
    return made


def _few(data: Data, split: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(split)
    labels = data.y.cpu()
    order = torch.randperm(len(labels), generator=generator)
    order = order[~data.test_mask.cpu()[order] & (labels[order] >= 0)]
    train = torch.cat([order[labels[order] == c][:LABELS] for c in labels[order].unique()])
    rest = order[~torch.isin(order, train)]
    return {"train": train, "val": rest[:HELD], "test": rest[HELD : 2 * HELD]}


def prepared(data: str, model: str, device: str, splits: int) -> Plan:
    """A run with the preset's settings, on splits of ours."""
    settled = plan(data, model, device=device)
    graph = settled.trainer.task.example
    task = make_task(drawn(graph, data in CITATION, splits), "node")
    return replace(settled, trainer=replace(settled.trainer, task=task))


# ---- variants --------------------------------------------------------------------------------------------------------


class Lab:
    """What variants are made of, trained once: all from the same networks of phase 1."""

    anew, same = DropEdges(resample="epoch"), Original()

    def __init__(self, bench: Bench) -> None:
        self.bench, self.merged, self.third = bench, bench.merged[0], bench.individual[2]
        self.mean = torch.stack([bench.predict(n) for n in bench.individual]).softmax(-1).mean(0)
        self.known: dict[str, Networks] = {}

    def train(
        self, name: str, start: Networks, view: View | None = None, weight: float = 0.0, power: float = 1.0
    ) -> Networks:
        """Train again: on labels, or with soft targets of a weight, each probability to some power."""
        if name not in self.known:
            targets = [Targets(s, weight) for s in sharper(self.mean, power)] if weight else None
            self.known[name] = start.copy()
            self.bench.train(self.known[name], view or self.anew, "re-training", name, targets=targets)
        return self.known[name]

    def new(self, k: int = 0) -> Networks:
        return self.bench.new(self.bench.names[k])

    def students(self, start: str, power: float = 1.0) -> list[Networks]:
        """Four that are taught, each with edges of its own."""
        starts = [self.merged if start == "merged" else self.new(k) for k in range(4)]
        name = ("" if start == "merged" else f"{start}, ") + ("taught" if power == 1 else f"taught, power {power}")
        return [self.train(f"{name} {k}", n, weight=0.9, power=power) for k, n in enumerate(starts)]

    def by_function(self, networks: Sequence[Networks]) -> Networks:
        return self.bench.merge(networks)[0]

    def confident(self) -> Networks:
        """Nodes that the teachers are sure of count for more."""
        sure = self.mean.max(-1, keepdim=True).values
        rows = self.mean * sure / sure.mean(1, keepdim=True)  # a row that adds up to less counts less
        network = self.merged.copy()
        self.bench.train(network, self.anew, "re-training", "confident", targets=[Targets(r, 0.9) for r in rows])
        return network

    def second_round(self) -> Networks:
        """What four students say on average, taught to the network that they are merged into."""
        students = self.students("new")
        soft = torch.stack([self.bench.predict(n) for n in students]).softmax(-1).mean(0)
        network = self.by_function(students)
        self.bench.train(network, self.anew, "re-training", "round 2", targets=[Targets(r, 0.9) for r in soft])
        return network


VARIANTS: dict[str, Callable[[Lab], Networks]] = {
    "base": lambda lab: lab.bench.base,
    "merged": lambda lab: lab.merged,
    "merged, soft 0.9, edges anew": lambda lab: lab.students("merged")[0],
    "from scratch, soft 0.9, edges anew": lambda lab: lab.students("new")[0],
    "students from merged: by function": lambda lab: lab.by_function(lab.students("merged")),
    "students from merged: averaged": lambda lab: average(lab.students("merged")),
    "students from new: by function": lambda lab: lab.by_function(lab.students("new")),
    "students from both: by function": lambda lab: lab.by_function([*lab.students("merged"), *lab.students("new")]),
    "students from new: by function, second round": Lab.second_round,
    "merged, labels, original": lambda lab: lab.train("merged, labels, original", lab.merged, lab.same),
    "merged, labels, edges anew": lambda lab: lab.train("merged, labels, edges anew", lab.merged),
    "third view, labels, edges anew": lambda lab: lab.train("third view, labels, edges anew", lab.third),
    "third view, soft 0.9, edges anew": lambda lab: lab.train("third view, soft 0.9, edges anew", lab.third, None, 0.9),
    "merged, soft 0.5, edges anew": lambda lab: lab.train("merged, soft 0.5, edges anew", lab.merged, None, 0.5),
    "merged, soft 0.9, original": lambda lab: lab.train("merged, soft 0.9, original", lab.merged, lab.same, 0.9),
    "from scratch, soft 0.5, edges anew": lambda lab: lab.train("from scratch, soft 0.5", lab.new(), None, 0.5),
    "merged, soft 0.9, temperature 1/2": lambda lab: lab.train("temperature 1/2", lab.merged, None, 0.9, 2.0),
    "merged, soft 0.9, temperature 1/4": lambda lab: lab.train("temperature 1/4", lab.merged, None, 0.9, 4.0),
    "from scratch, soft 0.9, temperature 1/2": lambda lab: lab.train("new, temperature 1/2", lab.new(), None, 0.9, 2.0),
    "students from new, temperature 1/2: by function": lambda lab: lab.by_function(lab.students("new", 2.0)),
    "students from merged, temperature 1/2: by function": lambda lab: lab.by_function(lab.students("merged", 2.0)),
    "merged, soft 0.9, by confidence": Lab.confident,
    "merged, labels, original: averaged with a second": lambda lab: average(
        [lab.train(f"again {k}", lab.merged, lab.same) for k in range(2)]
    ),
}


def average(networks: Sequence[Networks]) -> Networks:
    """The mean of all weights."""
    made = networks[0].copy()
    for key, value in made.population.state.items():
        if value.is_floating_point():
            made.population.state[key] = torch.stack([n.population.state[key] for n in networks]).mean(0)
    return made


# ---- the table -------------------------------------------------------------------------------------------------------

TAUGHT = "merged, soft 0.9, edges anew"
STEPS = (  # what is compared with what, in the same networks of phase 1
    ("merged by function, no training after it", "merged", "base"),
    ("merged, trained again on the original graph", "merged, labels, original", "base"),
    ("... on fewer edges instead", "merged, labels, edges anew", "merged, labels, original"),
    ("... the mean of two", "merged, labels, original: averaged with a second", "merged, labels, original"),
    ("a view's network instead of the merged one", "third view, labels, edges anew", "merged, labels, edges anew"),
    ("soft targets, weight 0.9, fewer edges", TAUGHT, "merged, labels, edges anew"),
    ("... temperature 1/2", "merged, soft 0.9, temperature 1/2", TAUGHT),
    ("... temperature 1/4", "merged, soft 0.9, temperature 1/4", TAUGHT),
    ("... nodes by the teachers' confidence", "merged, soft 0.9, by confidence", TAUGHT),
    ("... weight 0.5", "merged, soft 0.5, edges anew", TAUGHT),
    ("... on the original graph", "merged, soft 0.9, original", TAUGHT),
    ("... from a view's network", "third view, soft 0.9, edges anew", TAUGHT),
    ("... from scratch", "from scratch, soft 0.9, edges anew", TAUGHT),
    ("... from scratch, temperature 1/2", "from scratch, soft 0.9, temperature 1/2", TAUGHT),
    ("... from scratch, weight 0.5", "from scratch, soft 0.5, edges anew", TAUGHT),
    ("four taught from the merged network, by function", "students from merged: by function", TAUGHT),
    ("... the mean of their weights", "students from merged: averaged", TAUGHT),
    ("four taught from scratch, by function", "students from new: by function", "from scratch, soft 0.9, edges anew"),
    (
        "... temperature 1/2",
        "students from new, temperature 1/2: by function",
        "from scratch, soft 0.9, temperature 1/2",
    ),
    ("all eight, by function", "students from both: by function", TAUGHT),
    (
        "four from scratch, by function, then a second round",
        "students from new: by function, second round",
        "students from new: by function",
    ),
)
BEFORE = ("base", "merged", "merged, labels, original")
CHOICES = (  # which candidates there are; the one with the best validation score is taken
    ("base, merged, trained again, taught, from scratch", (*BEFORE, TAUGHT, "from scratch, soft 0.9, edges anew")),
    ("the same, without from scratch", (*BEFORE, TAUGHT)),
    ("... taught at temperature 1/4", (*BEFORE, "merged, soft 0.9, temperature 1/4")),
    (
        "... and four from scratch by function, temperature 1/2",
        (*BEFORE, "merged, soft 0.9, temperature 1/4", "students from new, temperature 1/2: by function"),
    ),
)


def by_place(rows: list[dict[str, str]]) -> dict[tuple[str, str, str], dict[str, dict[str, str]]]:
    """The rows of each dataset, backbone and split, by variant."""
    found: dict[tuple[str, str, str], dict[str, dict[str, str]]] = {}
    for r in rows:
        found.setdefault((r["dataset"], r["backbone"], r["split"]), {})[r["variant"]] = r
    return found


def table(rows: list[dict[str, str]]) -> str:
    """Each ingredient's paired difference in score on held nodes, over all networks and splits of a regime."""
    places = list(by_place(rows).items())
    lines = [
        "| ingredient | compared with | few labels: difference [95 %], n, p | many labels: difference [95 %], n, p |",
        "| --- | --- | --- | --- |",
    ]
    for about, new, old in STEPS:
        cells = []
        for few in (True, False):
            both = [v for (data, _, _), v in places if (data in CITATION) is few and new in v and old in v]
            cells.append(difference([held(v[new]) - held(v[old]) for v in both]))
        lines.append(f"| {about} | {old} | {cells[0]} | {cells[1]} |")
    first = CHOICES[0]
    lines += ["", f"| candidates | held, few labels | over the first: {first[0]} |", "| --- | --- | --- |"]
    every = {name for _, names in CHOICES for name in names}
    whole = [v for (data, _, _), v in places if data in CITATION and every <= set(v)]
    for about, names in CHOICES:
        taken = [held(chosen(v, names)) for v in whole]
        over = [a - held(chosen(v, first[1])) for a, v in zip(taken, whole, strict=True)]
        mean = f"{sum(taken) / len(taken):.2f}" if taken else "-"
        lines.append(f"| {about} | {mean} | {difference(over) if names != first[1] else ''} |")
    return "\n".join([*lines, "", *_choosing(places)])


def _choosing(places: list[tuple[tuple[str, str, str], dict[str, dict[str, str]]]]) -> Iterator[str]:
    """Ways of choosing among the recipe's four candidates, over the base."""
    yield "| the one that ships | few labels, over the base | Wikipedia and Actor | Texas and Wisconsin |"
    yield "| --- | --- | --- | --- |"
    groups = (CITATION, ("chameleon", "squirrel", "actor"), ("texas", "wisconsin"))
    ways: dict[str, Callable[[dict[str, str]], tuple[float, float]]] = {
        "has the best validation score, then the lowest loss (the recipe)": lambda r: (_score(r), -float(r["loss"])),
        "has the lowest validation loss": lambda r: (-float(r["loss"]), 0.0),
    }
    for margin in (1, 2, 4):
        ways[f"is the plain network unless another is better by more than {margin} point{'s' * (margin > 1)}"] = (
            lambda r, margin=margin: (
                _score(r) - (0.0 if r["variant"] == "base" else margin),
                -float(r["loss"]),
            )
        )
    for about, key in ways.items():
        cells = []
        for group in groups:
            taught = "merged, soft 0.9, temperature 1/4" if group is CITATION else "merged, soft 0.9, temperature 1/2"
            names = (*BEFORE, taught)
            whole = [v for (data, _, _), v in places if data in group and set(names) <= set(v)]
            cells.append(difference([held(max((v[n] for n in names), key=key)) - held(v["base"]) for v in whole]))
        yield f"| {about} | {' | '.join(cells)} |"


def _score(row: dict[str, str]) -> float:
    return 100 * float(row["validation"])


def held(row: dict[str, str]) -> float:
    return 100 * float(row["held"])


def chosen(variants: dict[str, dict[str, str]], names: Sequence[str]) -> dict[str, str]:
    """The best validation score, then the lowest loss, as the recipe chooses."""
    return max((variants[n] for n in names), key=lambda r: (float(r["validation"]), -float(r["loss"])))


def difference(values: list[float]) -> str:
    if len(values) < 2:
        return "-"
    (mean, half), p = interval(values), wilcoxon(values)
    told = "-" if p is None else f"{p:.1g}"
    return f"{mean:+.2f} [{mean - half:+.2f}, {mean + half:+.2f}], {len(values)}, {told}"


def measure(
    job: str,
    variants: Mapping[str, Callable[[Any], Networks | Tensor]],
    lab: type[Lab],
    device: str,
    splits: int,
    add: Adding,
) -> None:
    """Rows of all variants for one ``DATASET/BACKBONE``."""
    data, model = job.split("/")
    started = time.perf_counter()
    bench = prepared(data, model, device, splits).bench([(k, 0) for k in range(splits)])
    made = lab(bench)
    for name, variant in variants.items():
        try:
            found = variant(made)
            prediction = found if isinstance(found, Tensor) else bench.predict(found)
        except AkeError as e:  # a way that the backbone does not allow
            print(f"{job}, {name}: {e}", flush=True)
            continue
        scores = [bench.task.scores(prediction, part).tolist() for part in ("val", "test")]
        losses = bench.task.part_losses(prediction, "val").tolist()
        add(
            (data, model, split, name, f"{score:.6f}", f"{held:.6f}", f"{loss:.6f}")
            for (split, _), score, held, loss in zip(bench.cells, *scores, losses, strict=True)
        )
    print(f"{job}: {time.perf_counter() - started:.0f} s", flush=True)


def command(
    about: str | None,
    out: str,
    variants: Mapping[str, Callable[[Any], Networks | Tensor]],
    lab: type[Lab],
    mark: str,
    table: Callable[[list[dict[str, str]]], str],
) -> None:
    """The command line of this script and of ways.py."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, help="train nothing; put the table of the rows into this page")
    parser.add_argument("--only", action="append", default=[], help="DATASET/BACKBONE; may be repeated")
    parser.add_argument("--variant", action="append", choices=variants, help="may be repeated; all without it")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path(out))
    given = parser.parse_args()
    rows = kept.read(given.out)
    if given.table is not None:
        kept.fill(given.table, mark, table(rows))
        return
    done = {(f"{r['dataset']}/{r['backbone']}", r["variant"]) for r in rows}
    with kept.adding(given.out, COLUMNS) as add:
        for job in given.only:
            wanted = {v: variants[v] for v in given.variant or variants if (job, v) not in done}
            if wanted:
                measure(job, wanted, lab, given.device, given.splits, add)


if __name__ == "__main__":
    command(__doc__, "results/recipe.csv", VARIANTS, Lab, "ingredients", table)
