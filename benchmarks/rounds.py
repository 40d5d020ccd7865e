"""Why a second round of teaching does not pay: how good and how different the teachers of each round are.

    python benchmarks/rounds.py --only cora/gcn --only citeseer/gcn > results/rounds.md

Splits and scores are those of recipe.py. The teachers of round 1 are the four networks of phase 1; those of the next
round are four students of the last, from new weights and with edges of their own each.
"""

from __future__ import annotations

import argparse
from itertools import combinations

import torch

from akegnn.methods.strong import SHARPER, WEIGHT, sharper
from akegnn.phases import Bench, Networks
from akegnn.training import Targets
from recipe import Lab, prepared

HEAD = (
    *("network, graph", "targets", "round", "one teacher", "mean of four", "two teachers differ on, %"),
    *("nodes that all four have wrong, %", "confidence of the mean"),
)


def described(bench: Bench, teachers: list[Networks]) -> list[str]:
    """Means over splits, on held nodes."""
    outs = torch.stack([bench.predict(n).softmax(-1) for n in teachers])  # [4, cells, N, C]
    mean, said = outs.mean(0), outs.argmax(-1)
    held = torch.stack([bench.task.alone(k).data.test_mask for k in range(len(bench.cells))])
    labels = bench.task.labels.expand_as(held)  # type: ignore[attr-defined]
    apart = torch.stack([(a != b)[held].double().mean() for a, b in combinations(said, 2)]).mean()
    wrong = (said != labels).all(0)[held].double().mean()
    ones = torch.stack([bench.task.scores(out, "test").mean() for out in outs]).mean()
    scores = (ones, bench.task.scores(mean, "test").mean(), apart, wrong, mean.max(-1).values[held].mean())
    return [f"{100 * float(s):.1f}" for s in scores]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="DATASET/BACKBONE; may be repeated")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    for cells in (HEAD, ["---"] * len(HEAD)):
        print("| " + " | ".join(cells) + " |", flush=True)
    for job in given.only:
        data, model = job.split("/")
        bench = prepared(data, model, given.device, given.splits).bench([(k, 0) for k in range(given.splits)])
        for about, power in (("as they are", 1.0), ("temperature 1/4", SHARPER)):
            teachers = bench.individual
            for number in range(1, given.rounds + 1):
                row = [f"{model}, {data}", about, str(number), *described(bench, teachers)]
                print("| " + " | ".join(row) + " |", flush=True)
                if number < given.rounds:
                    teachers = _students(bench, teachers, power, f"{about}, round {number}")


def _students(bench: Bench, teachers: list[Networks], power: float, name: str) -> list[Networks]:
    mean = torch.stack([bench.predict(n) for n in teachers]).softmax(-1).mean(0)
    targets = [Targets(soft, WEIGHT) for soft in sharper(mean, power)]
    students = [bench.new(network) for network in bench.names]
    for k, student in enumerate(students):
        bench.train(student, Lab.anew, "re-training", f"{name}, {k}", targets=targets)
    return students


if __name__ == "__main__":
    main()
