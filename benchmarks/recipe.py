"""What each ingredient of the recipe `strong` is worth: validation scores on random splits, never a test score.

    python benchmarks/recipe.py --only cora/gcn --splits 10 --device cuda --out results/recipe.csv
    python benchmarks/recipe.py --table docs/recipe.md                        only the tables, from the rows

The citation graphs get 20 labels per class drawn anew for each split, the others random splits (60 / 20 / 20 %). A row
per split and variant: dataset, backbone, split, networks (how those of phase 1 were trained), variant, validation score
and validation loss. Jobs whose rows are in the file are left out.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import rows as kept
from akegnn.fit import plan
from akegnn.phases import Bench, Networks
from akegnn.stats import interval, wilcoxon
from akegnn.training import Targets
from akegnn.views import DropEdges, Original, View, paper_views

COLUMNS = ("dataset", "backbone", "split", "networks", "variant", "validation", "loss")
CITATION = ("cora", "citeseer", "pubmed")
PHASE1 = {
    "views once": paper_views,
    "edges anew": lambda: [DropEdges(resample="epoch") for _ in range(4)],
}


def variants(bench: Bench) -> Iterator[tuple[str, Tensor]]:
    """The prediction of every variant, all from the same networks of phase 1."""
    yield "base", bench.predict(bench.base)
    predictions = torch.stack([bench.predict(n) for n in bench.individual])
    yield "ensemble, mean", predictions.softmax(-1).mean(0).log()
    for name, prediction in zip(bench.names, predictions, strict=True):
        yield f"view {name}", prediction
    merged, _ = bench.merge(bench.individual)
    third = bench.individual[2]
    anew, same = DropEdges(resample="epoch"), Original()
    yield "merged", bench.predict(merged)
    grid: list[tuple[str, Networks, View, float]] = [
        ("merged, labels, original", merged, same, 0.0),
        ("merged, labels, edges anew", merged, anew, 0.0),
        ("merged, soft 0.9, edges anew", merged, anew, 0.9),
        ("merged, soft 0.5, edges anew", merged, anew, 0.5),
        ("merged, soft 0.9, original", merged, same, 0.9),
        ("third view, labels, edges anew", third, anew, 0.0),
        ("third view, soft 0.9, edges anew", third, anew, 0.9),
        ("from scratch, soft 0.9, edges anew", bench.new(bench.names[0]), anew, 0.9),
        ("from scratch, soft 0.5, edges anew", bench.new(bench.names[0]), anew, 0.5),
    ]
    for name, start, view, weight in grid:
        network = start.copy()
        targets = [Targets(soft, weight) for soft in predictions.softmax(-1).mean(0)] if weight else None
        bench.train(network, view, "re-training", name, targets=targets)
        yield name, bench.predict(network)


STEPS = (  # what is compared with what, in the same networks of phase 1
    ("merged by function, no training after it", "merged", "base"),
    ("merged, trained again on the original graph", "merged, labels, original", "base"),
    ("... on fewer edges instead", "merged, labels, edges anew", "merged, labels, original"),
    ("a view's network instead of the merged one", "third view, labels, edges anew", "merged, labels, edges anew"),
    ("soft targets, weight 0.9, fewer edges", "merged, soft 0.9, edges anew", "merged, labels, edges anew"),
    ("... weight 0.5", "merged, soft 0.5, edges anew", "merged, soft 0.9, edges anew"),
    ("... on the original graph", "merged, soft 0.9, original", "merged, soft 0.9, edges anew"),
    ("... from a view's network", "third view, soft 0.9, edges anew", "merged, soft 0.9, edges anew"),
    ("... from scratch", "from scratch, soft 0.9, edges anew", "merged, soft 0.9, edges anew"),
    ("... from scratch, weight 0.5", "from scratch, soft 0.5, edges anew", "merged, soft 0.9, edges anew"),
)


def table(rows: list[dict[str, str]]) -> str:
    """Each ingredient's paired difference in validation score, over all networks and splits of a regime."""
    scores: dict[tuple[str, ...], dict[str, float]] = {}
    for r in rows:
        place = (r["networks"], r["dataset"], r["backbone"], r["split"])
        scores.setdefault(place, {})[r["variant"]] = 100 * float(r["validation"])
    lines = [
        "| ingredient | compared with | few labels: difference [95 %], n, p | many labels: difference [95 %], n, p |",
        "| --- | --- | --- | --- |",
    ]
    for about, new, old in STEPS:
        cells = []
        for few in (True, False):
            differences = [
                found[new] - found[old]
                for (networks, dataset, _, _), found in scores.items()
                if networks == "edges anew" and (dataset in CITATION) is few and new in found
            ]
            mean, half = interval(differences)
            spread = f"[{mean - half:+.2f}, {mean + half:+.2f}]"
            cells.append(f"{mean:+.2f} {spread}, {len(differences)}, {wilcoxon(differences):.1g}")
        lines.append(f"| {about} | {old} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, help="train nothing; put the table of the rows into this page")
    parser.add_argument("--only", action="append", default=[], help="DATASET/BACKBONE; may be repeated")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--networks", choices=PHASE1, help="only these networks of phase 1")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/recipe.csv"))
    given = parser.parse_args()
    rows = kept.read(given.out)
    if given.table is not None:
        kept.fill(given.table, "ingredients", table(rows))
        return
    done = {(r["dataset"], r["backbone"], r["networks"]) for r in rows}
    with kept.adding(given.out, COLUMNS) as add:
        for job in given.only:
            data, model = job.split("/")
            how = {"labels_per_class": 20} if data in CITATION else {"masks": "random"}
            for networks, views in PHASE1.items():
                if given.networks and networks != given.networks:
                    continue
                if (data, model, networks) in done:
                    continue
                started = time.perf_counter()
                settled = plan(data, model, device=given.device, views=views(), **how)  # type: ignore[arg-type]
                bench = settled.bench([(split, 0) for split in range(1, given.splits + 1)])
                for name, prediction in variants(bench):
                    scores = bench.task.scores(prediction, "val").tolist()
                    losses = bench.task.part_losses(prediction, "val").tolist()
                    add(
                        (data, model, split, networks, name, f"{score:.6f}", f"{loss:.6f}")
                        for (split, _), score, loss in zip(bench.cells, scores, losses, strict=True)
                    )
                print(f"{job}, {networks}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
