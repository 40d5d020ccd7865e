"""What a merge by function of four networks costs, beside an epoch of one of them.

    python benchmarks/merge.py                     a table, kept in results/merge-cpu.md; one thread, the digits graph
    python benchmarks/merge.py --nodes 100000      GCNs of PyG on a random graph: seconds, convolutions and memory

Networks are as they are built: what a merge costs does not depend on what they have learned.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCN
from torch_geometric.utils import to_undirected

import akegnn
from akegnn.backbones import BACKBONES
from akegnn.settings import Training
from akegnn.training import Trainer
from akegnn.views import Original

CASES = {
    "gcn 2x16": ("gcn", {}),
    "gcn 3x64": ("gcn", {"hidden_channels": 64, "num_layers": 3}),
    "gat 8x8": ("gat", {}),
    "jknet-cat 2x128": ("jknet-cat", {"hidden_channels": 128, "num_layers": 2}),
    "gcnii 8x64": ("gcnii", {"hidden_channels": 64, "num_layers": 8}),
    "gcnii-dense 4x256": ("gcnii-dense", {"hidden_channels": 256, "num_layers": 4}),
}
EPOCHS = 5


def large(nodes: int) -> None:
    """Four GCNs of three layers of 128 channels, on four edges a node."""
    edges = to_undirected(torch.randint(nodes, (2, 4 * nodes)))
    data = Data(x=torch.randn(nodes, 32), edge_index=edges)
    first, *others = (GCN(32, 128, 3, 10).eval() for _ in range(4))
    with torch.no_grad():
        for network in (first, *others):
            network(data.x, data.edge_index)
    before, calls = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    hooks = [c.register_forward_hook(lambda *_: calls.append(1)) for n in (first, *others) for c in n.convs]
    began = time.perf_counter()
    akegnn.exchange(first, others, strategy="functional", data=data)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for hook in hooks:
        hook.remove()
    peaks = f"{after / 1e6:.1f} GB at most, {before / 1e6:.1f} before"
    print(f"{nodes} nodes: {seconds:.0f} s, {len(calls)} calls of a convolution's module, {peaks}")


def small() -> None:
    """A table of networks on the digits graph."""
    data = akegnn.load_data("digits")
    task = akegnn.make_task(data)
    print("| networks | merge of four, s | an epoch of one, ms | merge, in epochs of one |")
    print("| --- | --- | --- | --- |")
    for name, (backbone, sizes) in CASES.items():
        first, *others = (BACKBONES[backbone](task.features, task.outputs, **sizes) for _ in range(4))
        trainer = Trainer(task, Training(epochs=EPOCHS))
        seconds = []
        for _ in range(2):  # the first time is to warm up
            began = time.perf_counter()
            trainer.train(first, Original(), "individual", "one", 0)
            middle = time.perf_counter()
            akegnn.exchange(first, others, strategy="functional", data=data)
            seconds = [(middle - began) / EPOCHS, time.perf_counter() - middle]
        epoch, merge = seconds
        print(f"| {name} | {merge:.2f} | {1000 * epoch:.1f} | {merge / epoch:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, help="a random graph of so many nodes instead of the digits")
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    small() if given.nodes is None else large(given.nodes)


if __name__ == "__main__":
    main()
