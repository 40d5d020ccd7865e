"""Networks of a population trained together or one by one on a CPU, side by side: where `population.CACHE` comes from.

    AKEGNN_DATA=... OMP_NUM_THREADS=1 python benchmarks/together.py > results/together-cpu.md

Every pair is a preset's network; four seeds are trained for a few epochs, each with edges left out anew, once together
and once one by one. Seconds are of the processor, so that other processes count for little.
"""

from __future__ import annotations

import argparse
import time

import torch

from akegnn import population
from akegnn.fit import plan
from akegnn.population import Population, Replica
from akegnn.views import DropEdges

PAIRS = {  # with epochs that take some seconds
    **{"wisconsin/jknet-max": 100, "cora/gcn": 100, "chameleon/gcn": 100, "imdb-binary/gcn": 5, "cora/appnp": 50},
    **{"citeseer/grand": 50, "chameleon/jknet-cat": 30, "cora/gat": 30, "cora/jknet-cat": 20, "nci1/gin": 2},
    **{"proteins/gin": 4, "dd/gcn": 2, "pubmed/gcn": 10, "cora/grand": 3, "pubmed/gat": 4, "cora/gcnii": 4},
}
HEAD = ("graph/network", "MB a network", "together, ms", "one by one, ms", "one by one is faster by")


def measured(pair: str, epochs: int, seeds: int) -> tuple[float, float, float]:
    """Bytes that a network needs; milliseconds of an epoch of one network, together and one by one."""
    data, model = pair.split("/")
    settled = plan(data, model, device="cpu", epochs=epochs)
    replicas = [Replica(seed, "one", DropEdges(resample="epoch")) for seed in range(seeds)]

    def networks() -> Population:
        assert settled.factory is not None
        return Population(settled.factory, range(seeds), "one")

    def took(cache: float) -> float:
        population.CACHE = cache  # type: ignore[assignment]
        some, began = networks(), time.process_time()
        some.train(settled.trainer, replicas, "individual")
        return 1e3 * (time.process_time() - began) / epochs / seeds

    took(0)  # to warm up
    need = population._needed(networks(), settled.trainer, replicas, "individual")
    return need, took(float("inf")), took(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=PAIRS, help="may be repeated; all without it")
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    print(f"{given.seeds} seeds, {torch.get_num_threads()} threads; milliseconds of one network's epoch.\n")
    for cells in (HEAD, ["---"] * len(HEAD)):
        print("| " + " | ".join(cells) + " |")
    found = [(pair, *measured(pair, PAIRS[pair], given.seeds)) for pair in given.only or PAIRS]
    for pair, need, together, alone in sorted(found, key=lambda row: row[1]):
        print(f"| {pair} | {need / 2**20:.1f} | {together:.1f} | {alone:.1f} | {together / alone:.2f} |")


if __name__ == "__main__":
    main()
