"""What a merge by function of four networks costs, beside an epoch of one of them.

    python benchmarks/merge.py        a table, kept in results/merge-cpu.md; one thread, the digits graph

Networks are as they are built: what a merge costs does not depend on what they have learned.
"""

from __future__ import annotations

import time

import torch

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


def main() -> None:
    torch.set_num_threads(1)
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


if __name__ == "__main__":
    main()
