"""Small graphs, models and helpers that the tests of several rooms share."""

from __future__ import annotations

import csv
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv, global_mean_pool
from torch_geometric.utils import to_undirected

import akegnn
from akegnn.backbones import BACKBONES
from akegnn.errors import AkeError

# Two views and few epochs: enough for all three phases. Most tests are about phases that every recipe has, or about the
# ring of the paper's; tests/test_strong.py is about the default.
QUICK: dict[str, Any] = {
    "recipe": "paper",
    "epochs": 3,
    "views": ["mask:0.3", "original"],
    "baseline": False,
    "device": "cpu",
}

# Every backbone: small sizes, and the rates of all that it draws at random while training.
SIZES: dict[str, dict[str, Any]] = {name: {"hidden_channels": 4, "num_layers": 2} for name in BACKBONES}
SIZES["appnp"] = {"hidden_channels": 4, "steps": 3}
SIZES["grand"] = {"hidden_channels": 4, "order": 3, "samples": 2}
SIZES["sgc"] = {"steps": 2}
SIZES["unet"] = {"hidden_channels": 4, "depth": 2}
SIZES["dgi"] = {"hidden_channels": 4}
RATES = {name: ["dropout"] for name in BACKBONES} | {"sgc": [], "dgi": []}
RATES["grand"] = ["drop_node", "input_dropout", "dropout"]
RATES["gcn-tricks"] = RATES["mixhop"] = ["input_dropout", "dropout"]
RATES["unet"] = ["dropout", "edge_dropout"]


def still(name: str, inputs: int = 5, outputs: int = 3, **given: Any) -> nn.Module:
    """A small backbone whose forward pass draws nothing at random."""
    return BACKBONES[name](inputs, outputs, **{**SIZES[name], **dict.fromkeys(RATES[name], 0.0), **given})


def exact(name: str, inputs: int = 5, outputs: int = 3, **given: Any) -> nn.Module:
    """The same in float64, to be compared number by number after training in another order of sums."""
    model = still(name, inputs, outputs, **given).double()
    if len(getattr(model, "norms", ())) > 0:
        # A bias before BatchNorm has no gradient but rounding errors. Begun at zero, there is no weight decay either,
        # and Adam makes as much of the rounding errors as of anything else.
        for conv in (c for c in getattr(model, "convs", ()) if hasattr(c, "bias")):
            nn.init.normal_(conv.bias)
    return model


def graph(nodes: int = 60, classes: int = 3, features: int = 5, seed: int = 0, **given: Any) -> Data:
    """An undirected graph without self loops whose features and edges tell the classes; no masks unless given."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(nodes) % classes
    x = torch.randn(nodes, features, generator=g) + 2 * nn.functional.one_hot(y, features)
    ends = torch.randint(nodes, (2, 3 * nodes), generator=g)
    alike = torch.rand(3 * nodes, generator=g) < 0.8  # most edges join nodes of one class
    ends[1] = torch.where(alike, (ends[1] - y[ends[1]] + y[ends[0]]) % nodes, ends[1])
    data = Data(x=x, edge_index=to_undirected(ends[:, ends[0] != ends[1]]), y=y)
    for key, value in given.items():
        data[key] = value
    return data


def masked(data: Data, **parts: list[int]) -> Data:
    """The graph with masks: ``masked(data, train=[0, 1], val=[2])``."""
    for part, members in parts.items():
        data[f"{part}_mask"] = torch.isin(torch.arange(data.num_nodes), torch.tensor(members, dtype=torch.long))
    return data


def graphs(count: int = 30, classes: int = 2, **given: Any) -> list[Data]:
    return [graph(8 + k % 3, features=4, seed=k, y=torch.tensor([k % classes]), **given) for k in range(count)]


def fit(data: Any = None, model: Any = "gcn", **given: Any) -> akegnn.Result:
    return akegnn.fit(graph() if data is None else data, model, **{**QUICK, **given})


def refusal(call: Callable[[], object]) -> str:
    """The message of the error that is meant for people: one line."""
    with pytest.raises(AkeError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def child(work: Callable[[], object]) -> int:
    """Do ``work`` in a process that is a copy of this one: no need to import everything again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads; here they hold no lock
        pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        work()
        code = 0
    except AkeError as e:
        code = 2 if "\n" not in str(e) else 98
    finally:
        os._exit(code)


def outcome(pid: int) -> int:
    """Exit status, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def same(a: nn.Module, b: nn.Module) -> bool:
    """Bit for bit."""
    x, y = a.state_dict(), b.state_dict()
    return x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x)


def pairs_of(edge_index: Tensor) -> set[tuple[int, ...]]:
    """Undirected edges as sorted tuples."""
    return {tuple(sorted(p)) for p in edge_index.t().tolist()}


class Net(nn.Module):
    """A person's own model; its names of sizes are not ours, and ``width`` has no default."""

    def __init__(self, nfeat: int, nclass: int, width: int) -> None:
        super().__init__()
        self.first, self.second = GCNConv(nfeat, width), GCNConv(width, nclass)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


class Pooled(nn.Module):
    """A person's own classifier of graphs."""

    def __init__(self, in_channels: int, out_channels: int, hidden: int = 6) -> None:
        super().__init__()
        self.conv, self.head = GCNConv(in_channels, hidden), nn.Linear(hidden, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return self.head(global_mean_pool(self.conv(x, edge_index).relu(), batch))


def not_a_model(in_channels: int) -> int:
    return in_channels


def write_csv(path: Path, rows: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as f:
        csv.writer(f, lineterminator="\n").writerows(rows)


def csv_folder(folder: Path, data: Data | None = None, **files: str | list[list[Any]]) -> Path:
    """The graph as nodes.csv and edges.csv (ids n0, n1, ..., labels c0, c1, ...).

    ``nodes=`` or ``edges=`` replaces a file, as text or as rows."""
    data = graph() if data is None else data
    folder.mkdir(parents=True, exist_ok=True)
    header = ["id", "label", *(f"x{k}" for k in range(data.x.shape[1]))]
    nodes = [[f"n{k}", f"c{c}", *x] for k, (c, x) in enumerate(zip(data.y.tolist(), data.x.tolist(), strict=True))]
    edges = [[f"n{a}", f"n{b}"] for a, b in data.edge_index.t().tolist() if a <= b]
    content = {"nodes": [header, *nodes], "edges": [["source", "target"], *edges], **files}
    for name, rows in content.items():
        if isinstance(rows, str):
            (folder / f"{name}.csv").write_text(rows, encoding="utf-8")
        else:
            write_csv(folder / f"{name}.csv", rows)
    return folder
