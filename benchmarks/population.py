"""How long many networks take: a plain loop over PyG networks, and a population of ours, side by side in one run.

    AKEGNN_DATA=... python benchmarks/population.py                     # Cora on this machine's CPU
    AKEGNN_DATA=... python benchmarks/population.py --device cuda --cases gcn gat gcnii exchange scaling

Both train the same networks for the same epochs, a training and a validation pass each; the plain loop runs a few of
them and is scaled to all. ``floor`` is the time that the fewest bytes an epoch must move (each
input of a product read once, each output written once, parameters and moments once) take at the memory bandwidth
measured in the same run. AKEGNN_DATA is a folder with planetoid/Cora/raw; without it the embedded digits are used.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, elu
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCN2Conv, GCNConv

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from akegnn import population
from akegnn.backbones import GAT, GCN, GCNII
from akegnn.channels import channel_map
from akegnn.data import load
from akegnn.exchange import exchange_populations
from akegnn.population import Population, Replica
from akegnn.settings import Exchange, Training
from akegnn.tasks import make_task
from akegnn.training import Trainer
from akegnn.views import DropEdges, Original, View


class PlainGCN(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = GCNConv(features, 16), GCNConv(16, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(dropout(x, 0.5, self.training), edge_index).relu()
        return self.second(dropout(x, 0.5, self.training), edge_index)


class PlainGAT(nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first = GATConv(features, 8, heads=8, dropout=0.6)
        self.second = GATConv(64, classes, heads=1, concat=False, dropout=0.6)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = elu(self.first(dropout(x, 0.6, self.training), edge_index))
        return self.second(dropout(x, 0.6, self.training), edge_index)


class PlainGCNII(nn.Module):
    def __init__(self, features: int, classes: int, layers: int = 64) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(features, 64), nn.Linear(64, classes)
        self.convs = nn.ModuleList(GCN2Conv(64, 0.1, 0.5, k + 1) for k in range(layers))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = x_0 = self.first(dropout(x, 0.6, self.training)).relu()
        for conv in self.convs:
            h = conv(dropout(h, 0.6, self.training), x_0, edge_index).relu()
        return self.last(dropout(h, 0.6, self.training))


CASES: dict[str, tuple[Callable[[int, int], nn.Module], Callable[[int, int], nn.Module]]] = {
    "gcn": (lambda f, c: GCN(f, c), PlainGCN),
    "gat": (lambda f, c: GAT(f, c), PlainGAT),
    "gcnii": (lambda f, c: GCNII(f, c), PlainGCNII),
}


OTHERS = ("own-edges", "exchange", "scaling", "stopping")


def cora() -> tuple[Data, str]:
    root = os.environ.get("AKEGNN_DATA")
    if root is None:
        return load("digits"), "digits"  # type: ignore[return-value]
    from torch_geometric.datasets import Planetoid
    from torch_geometric.transforms import NormalizeFeatures

    with tempfile.TemporaryDirectory() as copy:  # PyG writes beside the raw files
        shutil.copytree(Path(root) / "planetoid" / "Cora" / "raw", Path(copy) / "Cora" / "raw")
        return Planetoid(copy, "Cora", transform=NormalizeFeatures())[0], "Cora"


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def plain_seconds(make: Callable[[], nn.Module], data: Data, networks: int, epochs: int) -> float:
    """Seconds per network and epoch of the loop that everybody writes."""

    def train(epochs: int) -> None:
        model = make().to(data.x.device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
        best = 0.0
        for _ in range(epochs):
            model.train()
            optimizer.zero_grad()
            out = model(data.x, data.edge_index)
            cross_entropy(out[data.train_mask], data.y[data.train_mask]).backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                out = model(data.x, data.edge_index)
                right = (out[data.val_mask].argmax(-1) == data.y[data.val_mask]).float().mean()
            best = max(best, float(right))

    train(3)
    finish(data.x.device)
    started = time.perf_counter()
    for _ in range(networks):
        train(epochs)
    finish(data.x.device)
    return (time.perf_counter() - started) / networks / epochs


def population_seconds(
    make: Callable[[], nn.Module], data: Data, view: View, seeds: int, epochs: int, precision: str, chunk: int | None
) -> tuple[float, float, float]:
    """Seconds per epoch of all networks (from the difference of a long and a short run), of the whole run, and GB."""
    task = make_task(data)

    def run(epochs: int) -> float:
        networks = Population(make, range(seeds)).to(task.device)
        trainer = Trainer(task, Training(epochs=epochs, precision=precision), chunk=chunk)
        replicas = [Replica(seed, "benchmark", view) for seed in range(seeds)]
        finish(task.device)
        started = time.perf_counter()
        networks.train(trainer, replicas, "individual")
        finish(task.device)
        return time.perf_counter() - started

    few = 8
    run(few)
    gc.collect()
    memory = float("nan")
    if task.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        memory = -torch.cuda.memory_allocated() / 1e9  # what others left behind
    short, whole = run(few), run(epochs)
    if task.device.type == "cuda":
        memory += torch.cuda.max_memory_allocated() / 1e9
    return (whole - short) / (epochs - few), whole, memory


def stopping_seconds(make: Callable[[], nn.Module], data: Data, seeds: int, left: float) -> tuple[float, float]:
    """Seconds until all have stopped, with those that have stopped left behind; and their mean validation score."""
    task = make_task(data)
    population.GO_ON_WITHOUT = left
    for epochs in (8, 1000):  # the first of them is to warm up
        networks = Population(make, range(seeds)).to(task.device)
        trainer = Trainer(task, Training(epochs=epochs, lr=0.005, patience=100, stop="either"))
        finish(task.device)
        started = time.perf_counter()
        outcomes = networks.train(trainer, [Replica(s, "benchmark", Original()) for s in range(seeds)], "individual")
        finish(task.device)
    return time.perf_counter() - started, sum(o.validation for o in outcomes) / seeds


def bandwidth(device: torch.device) -> float:
    """Bytes per second of a large copy, read and written."""
    size = 1 << (30 if device.type == "cuda" else 27)
    a = torch.rand(size // 4, device=device)
    b = torch.empty_like(a)
    b.copy_(a)
    finish(device)
    started = time.perf_counter()
    for _ in range(10):
        b.copy_(a)
    finish(device)
    return 10 * 2 * size / (time.perf_counter() - started)


def floor_bytes(case: str, data: Data, classes: int, parameters: int, seeds: int) -> float:
    """The fewest bytes of an epoch of ``seeds`` networks in float32."""
    n, e = data.num_nodes, data.num_edges + data.num_nodes
    entries = int(data.x.count_nonzero())
    if case == "gcn":
        widths, features = [16, classes], 16
    elif case == "gat":
        widths, features = [64, classes], 64
        widths += [e * 8 / n, e / n]  # attention of every edge and head
    else:
        widths, features = [64] * 3 * 64 + [classes], 64  # propagated, mixed with the first layer, multiplied
    # Forward: each activation written once and read once; backward the same for its gradient, and it is read once more.
    activations = 5 * n * sum(widths) * 4
    first = 3 * (entries * 8 + n * features * 4)  # values and indices: forward, backward, validation
    validation = 2 * n * sum(widths) * 4
    moments = 9 * parameters * 4  # weight, gradient and two moments, read and written; the best weights
    return seeds * (activations + first + validation + moments) + 6 * e * 8


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--device", default="cpu")
    p.add_argument("--cases", nargs="*", default=["gcn"], choices=[*CASES, *OTHERS])
    p.add_argument("--seeds", type=int, default=100)
    p.add_argument("--epochs", type=int, default=None, help="of the population run (default 30 on a CPU, else 200)")
    p.add_argument("--plain-networks", type=int, default=2)
    p.add_argument("--precision", default="float32")
    p.add_argument("--chunk", type=int, default=None)
    p.add_argument("--json", type=Path, default=None, help="also write one JSON object per line here")
    given = p.parse_args()
    device = torch.device(given.device)
    data, name = cora()
    data = data.to(device)
    features, classes = data.x.shape[1], int(data.y.max()) + 1
    epochs = given.epochs or (30 if device.type == "cpu" else 200)
    speed = bandwidth(device)
    what = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{name}, {given.seeds} seeds, {what}, {given.precision}, copy bandwidth {speed / 1e9:.0f} GB/s", flush=True)

    def note(**row: object) -> None:
        row = {"data": name, "device": what, "seeds": given.seeds, "precision": given.precision, **row}
        if given.json is not None:
            with given.json.open("a") as f:
                f.write(json.dumps(row) + "\n")

    cases = [c for c in given.cases if c in CASES or c == "own-edges"]
    if cases:
        print("case       plain ms/net/epoch  ours ms/epoch  ratio  whole run  floor ms  of floor  GB", flush=True)
    for case in cases:
        ours, plain = CASES["gcn" if case == "own-edges" else case]
        view: View = DropEdges(0.3) if case == "own-edges" else Original()
        many = 20 if device.type == "cpu" else 100 if case == "gcnii" else epochs
        one = plain_seconds(lambda plain=plain: plain(features, classes), data, given.plain_networks, many)
        each, whole, memory = population_seconds(
            lambda ours=ours: ours(features, classes), data, view, given.seeds, epochs, given.precision, given.chunk
        )
        parameters = sum(x.numel() for x in ours(features, classes).parameters())
        floor = floor_bytes("gcn" if case == "own-edges" else case, data, classes, parameters, given.seeds) / speed
        ratio, ratio_whole = one * given.seeds / each, one * given.seeds * epochs / whole
        print(
            f"{case:10s} {1e3 * one:18.2f} {1e3 * each:14.2f} {ratio:6.0f} {ratio_whole:10.0f} {1e3 * floor:9.2f}"
            f" {each / floor:9.1f} {memory:5.1f}",
            flush=True,
        )
        note(case=case, plain_ms=1e3 * one, ours_ms=1e3 * each, ratio=ratio, ratio_whole_run=ratio_whole,
             floor_ms=1e3 * floor, gigabytes=memory, epochs=epochs)  # fmt: skip
    if "exchange" in given.cases:
        networks = [Population(lambda: GCN(features, classes), range(given.seeds), str(v)).to(device) for v in range(4)]
        found = channel_map(networks[0].template, data)
        best = float("inf")
        for _ in range(6):
            states = [{k: v.clone() for k, v in n.state.items()} for n in networks]
            finish(device)
            started = time.perf_counter()
            exchange_populations(
                states, networks[0].template, found.chosen(), found, Exchange(), list(range(given.seeds)), record=False
            )
            finish(device)
            best = min(best, time.perf_counter() - started)
        print(f"exchange of {given.seeds} seeds x 4 views, GCN: {best:.4f} s (best of 6)", flush=True)
        note(case="exchange", seconds=best)
    if "stopping" in given.cases:
        default = population.GO_ON_WITHOUT
        (to_the_end, a), (left_behind, b) = (
            stopping_seconds(lambda: GAT(features, classes), data, given.seeds, left) for left in (0.0, default)
        )
        print(
            f"GAT until all have stopped: {to_the_end:.1f} s with all to the end (validation {a:.4f}), "
            f"{left_behind:.1f} s without those that have stopped ({b:.4f}): {to_the_end / left_behind:.2f} times",
            flush=True,
        )
        note(case="stopping", all_seconds=to_the_end, seconds=left_behind, ratio=to_the_end / left_behind)
    if "scaling" in given.cases:
        print("replicas  ms/epoch  ms/epoch/network  GB")
        for seeds in (1, 10, 50, 100, 200, 400):
            each, _, memory = population_seconds(
                lambda: GCN(features, classes), data, Original(), max(seeds, 2), epochs, given.precision, given.chunk
            )
            print(f"{max(seeds, 2):8d} {1e3 * each:9.2f} {1e3 * each / max(seeds, 2):17.4f} {memory:5.2f}", flush=True)
            note(case="replicas", replicas=max(seeds, 2), ours_ms=1e3 * each, gigabytes=memory)
        print("edges     ms/epoch  GB")
        for factor in (1, 4, 16, 64):
            g = torch.Generator().manual_seed(0)
            extra = torch.randint(data.num_nodes, (2, (factor - 1) * data.num_edges), generator=g).to(device)
            larger = data.clone()
            larger.edge_index = torch.cat([data.edge_index, extra], dim=1)
            each, _, memory = population_seconds(
                lambda: GCN(features, classes), larger, Original(), given.seeds, epochs, given.precision, given.chunk
            )
            print(f"{larger.num_edges:8d} {1e3 * each:9.2f} {memory:5.2f}", flush=True)
            note(case="edges", edges=larger.num_edges, ours_ms=1e3 * each, gigabytes=memory)


if __name__ == "__main__":
    main()
