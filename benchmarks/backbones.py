"""Every preset's base network, trained as its protocol says, beside the published score.

    python benchmarks/backbones.py --device cuda --out results/backbones.csv            all of them
    python benchmarks/backbones.py --only cora/gcn --only cora/gcn-link --seeds 10      some, with fewer seeds
    python benchmarks/backbones.py --table docs/backbones.md                            only the tables, from the rows

A row per run: dataset, backbone, task, split, seed, validation, test, best epoch, seconds. Presets whose rows are in
the file already are left out, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import rows as kept
from akegnn import presets
from akegnn.errors import AkeError
from akegnn.fit import plan
from akegnn.population import Population, Replica
from akegnn.views import Original

COLUMNS = ("dataset", "backbone", "task", "split", "seed", "validation", "test", "epoch", "seconds")


def run(preset: presets.Preset, splits: list[int], seeds: list[int], device: str) -> Iterator[tuple[object, ...]]:
    prepared = plan(preset.data, preset.model, task=preset.task, device=device)
    cells = [(split, seed) for split in splits for seed in seeds]
    networks = Population(prepared.factory, [seed for _, seed in cells], "base").to(prepared.trainer.task.device)
    replicas = [Replica(seed, "base", Original(), split) for split, seed in cells]
    outcomes = networks.train(prepared.trainer, replicas, "individual")
    judge = prepared.trainer.task.together([split for split, _ in cells])
    predictions = networks.evaluate(judge)
    found = judge.scores(predictions, "val").tolist(), judge.scores(predictions, "test").tolist()
    for (split, seed), outcome, validation, test in zip(cells, outcomes, *found, strict=True):
        if outcome.failed:
            print(f"{preset.name}: {outcome.failed}", file=sys.stderr)
            continue
        yield (
            *(preset.data, preset.model, preset.task, split, seed),
            *(f"{validation:.6f}", f"{test:.6f}", outcome.best_epoch, f"{outcome.seconds:.3f}"),
        )


def one(job: tuple[str, list[int], list[int], str]) -> tuple[str, list[tuple[object, ...]], float]:
    name, splits, seeds, device = job
    started = time.perf_counter()
    data, _, model = name.partition("/")
    task = "link" if model.endswith("-link") else None
    preset = presets.find(data, model.removesuffix("-link"), task)
    assert preset is not None
    try:
        rows = list(run(preset, splits, seeds, device))
    except (AkeError, RuntimeError) as e:
        print(f"{name}: {e}", file=sys.stderr, flush=True)
        rows = []
    return name, rows, time.perf_counter() - started


def _runs(seeds: list[int]) -> str:
    """How many, of each split."""
    if len(seeds) == 1:
        return f"{seeds[0]} seeds"
    fewest, most = min(seeds), max(seeds)
    return f"{len(seeds)} splits x {most}" if fewest == most else f"{len(seeds)} splits x {fewest} to {most}"


def table(rows: list[dict[str, str]], wanted: str) -> str:
    """The rows of one task beside the published scores, in Markdown."""
    lines = [
        "| dataset | backbone | ours | runs | published | difference | within | AKE-GNN paper |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for preset in presets.every():
        mine = [r for r in rows if _key(r) == (preset.data, preset.model, preset.task) and preset.task == wanted]
        if not mine:
            continue
        tests = [100 * float(r["test"]) for r in mine]
        by_split = [
            [100 * float(r["test"]) for r in mine if r["split"] == s] for s in dict.fromkeys(r["split"] for r in mine)
        ]
        mean, spread = statistics.fmean(statistics.fmean(g) for g in by_split), statistics.stdev(tests)
        cells = [preset.data, preset.model, f"{mean:.2f} ± {spread:.2f}", _runs([len(g) for g in by_split])]
        known = preset.published
        if known is None or not known.comparable:
            cells += ["-", "-", "-"]
        else:
            limit = known.deviation or 0.5
            shown = f"{known.score:g}" + (f" ± {known.deviation:g}" if known.deviation is not None else "")
            cells += [shown, f"{mean - known.score:+.2f}", "yes" if abs(mean - known.score) <= limit else "no"]
        paper = preset.paper
        cells.append(f"{paper.score:g} ± {paper.deviation:g}" if paper and paper.comparable else "-")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _key(row: dict[str, str]) -> tuple[str, str, str]:
    return row["dataset"], row["backbone"], row["task"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="a preset, such as cora/gcn; may be repeated")
    parser.add_argument("--seeds", type=int, help="instead of the protocol's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--workers", type=int, default=1, help="presets (graph task: folds) at the same time")
    parser.add_argument("--out", type=Path, default=Path("results/backbones.csv"))
    parser.add_argument("--table", type=Path, help="train nothing; put the tables of the rows into this page")
    given = parser.parse_args()
    rows = kept.read(given.out)
    if given.table is not None:
        for task in ("node", "link", "graph"):
            kept.fill(given.table, task, table(rows, task))
        return
    done = {(*_key(r), int(r["split"])) for r in rows}
    jobs = []
    for preset in presets.every():
        if given.only and preset.name not in given.only:
            continue
        seeds = list(range(given.seeds or preset.seeds))
        splits = [s for s in range(preset.splits) if (preset.data, preset.model, preset.task, s) not in done]
        groups = [[s] for s in splits] if preset.task in ("graph", "link") else [splits]
        jobs += [(preset.name, group, seeds, given.device) for group in groups if group]
    # A fresh process for each job: one that runs out of memory takes no other along.
    context = multiprocessing.get_context("spawn")
    with kept.adding(given.out, COLUMNS) as add, context.Pool(given.workers, maxtasksperchild=4) as pool:
        for name, found, seconds in pool.imap_unordered(one, jobs):
            add(found)
            tests = [100 * float(row[6]) for row in found]
            if tests:
                spread = statistics.stdev(tests) if len(tests) > 1 else 0.0
                print(f"{name}: {statistics.fmean(tests):.2f} +- {spread:.2f}, {len(tests)} runs, {seconds:.0f} s")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
