"""What each ingredient of the recipe `strong` is worth: validation scores on random splits, never a test score.

    python benchmarks/recipe.py --only cora/gcn --splits 10 --device cuda --out results/recipe.csv

The citation graphs get 20 labels per class drawn anew for each split, the others random splits (60 / 20 / 20 %). A row
per split and variant: dataset, backbone, split, networks (how those of phase 1 were trained), variant, validation score
and validation loss. Jobs whose rows are in the file are left out.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from akegnn.fit import plan
from akegnn.phases import Bench, Networks
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", required=True, help="DATASET/BACKBONE; may be repeated")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--networks", choices=PHASE1, help="only these networks of phase 1")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/recipe.csv"))
    given = parser.parse_args()
    done = set()
    if given.out.exists():
        with given.out.open(newline="") as f:
            done = {(r["dataset"], r["backbone"], r["networks"]) for r in csv.DictReader(f)}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    new = not given.out.exists()
    with given.out.open("a", newline="") as f:
        writer = csv.writer(f, lineterminator="\n")
        if new:
            writer.writerow(COLUMNS)
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
                    for (split, _), score, loss in zip(bench.cells, scores, losses, strict=True):
                        writer.writerow((data, model, split, networks, name, f"{score:.6f}", f"{loss:.6f}"))
                    f.flush()
                print(f"{job}, {networks}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
