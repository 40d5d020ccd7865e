"""A published table with some of its places measured again: results/NAME.* from its rows and those of newer runs.

    akegnn reproduce strong --only gcn/cora --seeds 50 --out runs/again
    python benchmarks/combine.py strong runs/again/strong.rows.csv --commit HASH

A place (a row and a dataset) that is in a newer file comes from there as a whole, so that all of its lines share seeds
and splits; the later of two files counts. The rows of all other places
stay; their lines in the table are made anew from them: Holm's p depends on all places, and rows with six digits, which
earlier versions wrote, give another p where differences are equal but for rounding (`strong` has none of these). So
look at what changed before it is kept. Whose code made a place's rows is noted in results/NAME.commits.csv.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterable
from pathlib import Path

import rows as kept
from akegnn.errors import AkeError
from akegnn.experiments import EXPERIMENTS, Job, entries, write
from akegnn.experiments.base import Block
from akegnn.store import Cell, Store

RESULTS = Path("results")
Place = tuple[str, str]


def combined(files: Iterable[Path]) -> dict[Place, list[dict[str, str]]]:
    """The rows of each place, from the last file that has it; floors from the table beside each."""
    found: dict[Place, list[dict[str, str]]] = {}
    for path in files:
        rows = kept.read(path)
        if not rows:
            raise AkeError(f"{path}: no rows of a table, as `akegnn reproduce` writes them")
        table = kept.read(beside := path.with_name(path.name.replace(".rows.csv", ".csv")))
        if not table:
            raise AkeError(f"{beside}: no table, from which the floors are taken")
        floors = {(t["row"], t["column"]): t["floor"] for t in table}
        own: dict[Place, list[dict[str, str]]] = {}
        for r in rows:
            place = (r["row"], r["dataset"])
            own.setdefault(place, []).append({**r, "floor": floors.get(place, "")})
        found |= own
    return found


def block(job: Job, rows: list[dict[str, str]]) -> tuple[Block, list[Cell]]:
    """The rows of a place as they lie in a store."""
    places = tuple(sorted({(int(r["split"]), int(r["seed"])) for r in rows}))
    made = Block(job, places, {"row": job.row, "column": job.column})
    cells = [
        Cell(
            *(made.key, r["dataset"], r["backbone"], r["method"], int(r["split"]), int(r["seed"])),
            *(float(r["validation"]), float(r["test"]), float(r["floor"]) / 100 if r["floor"] else None, ""),
            *(int(r["passes"]), int(r["parameters"]), float(r["seconds"])),
        )
        for r in rows
    ]
    return made, cells


def remember(path: Path, places: Iterable[Place], commit: str) -> Path:
    """Note which commit's code made the rows of some places."""
    commits = {(r["row"], r["dataset"]): r["commit"] for r in kept.read(path)} | dict.fromkeys(places, commit)
    with path.open("w", newline="", encoding="utf-8") as f:
        writer = csv.writer(f, lineterminator="\n")
        writer.writerow(("row", "dataset", "commit"))
        writer.writerows((*place, made_by) for place, made_by in commits.items())
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument("newer", nargs="+", type=Path, help="NAME.rows.csv of other runs, with NAME.csv beside them")
    parser.add_argument("--commit", required=True, help="of the code that made the newer rows")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    experiment = EXPERIMENTS[given.name].anywhere()
    if experiment.draw is not None:
        raise AkeError(f"{given.name}: its picture is drawn from epochs, which rows do not have")
    found = combined([given.results / f"{given.name}.rows.csv", *given.newer])
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "store.sqlite") as store:
        blocks = []
        for job in experiment.jobs():
            if rows := found.pop((job.row, job.data), None):
                made, cells = block(job, rows)
                store.add(made.key, job.label, made.settings, cells, 0.0, 0, [])
                blocks.append(made)
        if found:
            raise AkeError(f"{given.name} has no place {', '.join('/'.join(place) for place in found)}")
        for path in write(experiment, entries(experiment, blocks, store), given.results, blocks, store):
            print(path)
    print(remember(given.results / f"{given.name}.commits.csv", combined(given.newer), given.commit))


if __name__ == "__main__":
    main()
