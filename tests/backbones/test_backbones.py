"""Every backbone against the same network made of PyG's layers, and that it can be exchanged and learns."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from akegnn.backbones import BACKBONES
from akegnn.channels import channel_map
from akegnn.data import load
from akegnn.forward import forward
from akegnn.propagate import Sparse
from akegnn.settings import Training
from akegnn.tasks import make_task
from akegnn.training import Trainer, evaluate
from akegnn.views import Original
from small import graph

IN, OUT = 5, 3


class PyGCN(nn.Module):
    def __init__(self, layers: int, hidden: int, pool: bool = False) -> None:
        super().__init__()
        widths = [IN, *[hidden] * (layers - 1), hidden if pool else OUT]
        self.convs = nn.ModuleList(pyg.GCNConv(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(hidden, OUT) if pool else None

    def forward(self, x, edge_index, edge_weight=None, batch=None):
        for k, conv in enumerate(self.convs):
            x = conv(x.relu() if k else x, edge_index, edge_weight)
        return x if self.head is None else self.head(pyg.global_mean_pool(x.relu(), batch))


class PyGAT(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int, output_heads: int) -> None:
        super().__init__()
        widths = [IN, *[heads * hidden] * (layers - 1)]
        self.convs = nn.ModuleList(pyg.GATConv(w, hidden, heads) for w in widths[:-1])
        self.convs.append(pyg.GATConv(widths[-1], OUT, output_heads, concat=False))

    def forward(self, x, edge_index, edge_weight=None):
        for k, conv in enumerate(self.convs):
            x = conv(nn.functional.elu(x) if k else x, edge_index)
        return x


class PyGCNII(nn.Module):
    def __init__(self, layers: int, hidden: int, alpha: float, theta: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(IN, hidden), nn.Linear(hidden, OUT)
        self.convs = nn.ModuleList(pyg.GCN2Conv(hidden, alpha, theta, k + 1) for k in range(layers))

    def forward(self, x, edge_index, edge_weight=None):
        h = x_0 = self.first(x).relu()
        for conv in self.convs:
            h = conv(h, x_0, edge_index, edge_weight).relu()
        return self.last(h)


class PyGIN(nn.Module):
    def __init__(self, layers: int, hidden: int, pool: bool = False) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        for k in range(layers):
            first = (nn.Linear(hidden if k else IN, hidden), nn.BatchNorm1d(hidden), nn.ReLU())
            perceptron = nn.Sequential(*first, nn.Linear(hidden, hidden), nn.ReLU())
            self.convs.append(pyg.GINConv(perceptron, train_eps=True))
        self.head, self.pool = nn.Linear(hidden, OUT), pool

    def forward(self, x, edge_index, batch=None):
        for conv in self.convs:
            x = conv(x, edge_index)
        return self.head(pyg.global_add_pool(x, batch) if self.pool else x)


def ours(name: str, **given: object) -> nn.Module:
    return BACKBONES[name](IN, OUT, dropout=0.0, **given)


SMALL = {"hidden_channels": 4, "num_layers": 3}
TWINS = {
    "gcn": (lambda: ours("gcn", **SMALL), lambda: PyGCN(3, 4)),
    "gcn, one layer": (lambda: ours("gcn", num_layers=1), lambda: PyGCN(1, 0)),
    "gcn, pool": (lambda: ours("gcn", **SMALL, pool=True), lambda: PyGCN(3, 4, True)),
    "gat": (lambda: ours("gat"), lambda: PyGAT(2, 8, 8, 1)),
    "gat, output heads": (lambda: ours("gat", **SMALL, heads=2, output_heads=3), lambda: PyGAT(3, 4, 2, 3)),
    "gat, one layer": (lambda: ours("gat", num_layers=1, output_heads=2), lambda: PyGAT(1, 0, 0, 2)),
    "gcnii": (lambda: ours("gcnii", hidden_channels=6, num_layers=8), lambda: PyGCNII(8, 6, 0.1, 0.5)),
    "gcnii, other": (
        lambda: ours("gcnii", hidden_channels=6, num_layers=2, alpha=0.3, theta=1.5),
        lambda: PyGCNII(2, 6, 0.3, 1.5),
    ),
    "gin": (lambda: ours("gin", **SMALL), lambda: PyGIN(3, 4)),
    "gin, pool": (lambda: ours("gin", **SMALL, pool=True), lambda: PyGIN(3, 4, True)),
}
WEIGHTED = [name for name in TWINS if name.startswith("gc")]  # PyG's GATConv and GINConv take no weights


def test_every_backbone_has_a_twin():
    assert {name.partition(",")[0] for name in TWINS} == set(BACKBONES)


def data64(weighted: bool = False) -> Data:
    """Directed edges in any order, some twice, some loops, a node without edges; two graphs."""
    g = torch.Generator().manual_seed(0)
    ends = torch.randint(19, (2, 60), generator=g)
    ends = torch.cat([ends[:, ends[0] != ends[1]], torch.tensor([[3, 8], [3, 8]])], dim=1)
    ends = torch.cat([ends, ends[:, :5]], dim=1)
    data = Data(x=torch.randn(20, IN, generator=g, dtype=torch.float64), edge_index=ends)
    data.batch = (torch.arange(20) > 11).long()
    if weighted:
        data.edge_weight = torch.rand(ends.shape[1], generator=g, dtype=torch.float64) + 0.2
    return data


def scattered(model: nn.Module) -> nn.Module:
    """No tensor as it was initialised: zero biases and unit norms hide mistakes."""
    g = torch.Generator().manual_seed(1)
    for t in [*model.parameters(), *model.buffers()]:
        if t.is_floating_point():
            t.data = torch.rand(t.shape, generator=g, dtype=torch.float64) * 0.8 + (0.2 if t.dim() < 2 else -0.4)
    return model.double()


def outcome(model: nn.Module, data: Data, training: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Output, and the gradients of all parameters and features for a loss that weighs each output differently."""
    x = data.x
    if isinstance(x, Tensor):
        x = x.clone().requires_grad_()
        data = copy.copy(data)
        data.x = x
    model.train(training).zero_grad()
    out = forward(model, data)
    (out * torch.arange(out.numel(), dtype=out.dtype).view_as(out).cos()).sum().backward()
    gradients = {k: p.grad for k, p in model.named_parameters()}
    buffers = {k: b for k, b in model.named_buffers() if b.is_floating_point()}
    return out.detach(), gradients | buffers | ({"x": x.grad} if isinstance(x, Tensor) else {})


def agree(a: tuple[Tensor, dict[str, Tensor]], b: tuple[Tensor, dict[str, Tensor]]) -> None:
    assert a[1].keys() == b[1].keys()
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    assert all(bool(g.abs().sum() > 0) for k, g in a[1].items())  # nothing agrees because nothing happened


@pytest.mark.parametrize(("name", "weighted"), [*((n, False) for n in TWINS), *((n, True) for n in WEIGHTED)])
@pytest.mark.parametrize("training", [False, True])
def test_equal_to_pyg(name, weighted, training):
    mine, theirs = (make() for make in TWINS[name])
    scattered(mine)
    theirs.double().load_state_dict(mine.state_dict())  # the same names: weights can go either way
    agree(outcome(mine, data64(weighted), training), outcome(theirs, data64(weighted), training))


@pytest.mark.parametrize("name", [n for n in BACKBONES if getattr(BACKBONES[n], "sparse_features", False)])
@pytest.mark.parametrize("training", [False, True])
def test_sparse_features_are_equal_to_dense_ones(name, training):
    data = data64()
    data.x = data.x * (data.x > 0.7)
    model = scattered(ours(name, num_layers=2))
    out, gradients = outcome(model, data, training)
    del gradients["x"]
    given = {"edge_index": data.edge_index, "x": Sparse.of(data.x)}
    found = model.train(training)(**given)
    model.zero_grad()
    (found * torch.arange(found.numel(), dtype=found.dtype).view_as(found).cos()).sum().backward()
    agree((out, gradients), (found.detach(), {k: p.grad for k, p in model.named_parameters()}))


@pytest.mark.parametrize("name", BACKBONES)
def test_dropout_only_when_training(name):
    model, data = BACKBONES[name](IN, OUT, num_layers=2, dropout=0.5).double(), data64()
    assert torch.equal(forward(model.eval(), data), forward(model.eval(), data))
    assert not torch.equal(forward(model.train(), data), forward(model.train(), data))


# ---- exchange --------------------------------------------------------------------------------------------------------

# What has no entry of its own per channel, and so cannot go anywhere.
STAYS = {
    "gin": {f"convs.{k}.eps" for k in range(3)} | {f"convs.{k}.nn.1.num_batches_tracked" for k in range(3)},
    "gin, pool": {f"convs.{k}.eps" for k in range(3)} | {f"convs.{k}.nn.1.num_batches_tracked" for k in range(3)},
    "gat, output heads": {"convs.2.bias"},  # one entry for three heads
    "gat, one layer": {"convs.0.bias"},
}


@pytest.mark.parametrize("name", TWINS)
def test_channel_map_names_every_weight(name):
    model = TWINS[name][0]()
    found = channel_map(model)
    moving = {s.name for x in found.layers for s in (*x.weights, *x.travels)}
    assert set(model.state_dict()) - moving == STAYS.get(name, set())
    assert set(found.stays) == STAYS.get(name, set())
    wide = {k for k, p in model.named_parameters() if p.dim() == 2}
    assert {s.name for x in found.layers for s in x.weights} == wide


@pytest.mark.parametrize("name", TWINS)
def test_neurons_can_change_places(name):
    """The proof once more, by hand: a layer's channels and all who read them in another order, the same output."""
    model, data = scattered(TWINS[name][0]()).eval(), data64()
    wanted = forward(model, data)
    for layer in (x for x in channel_map(model).layers if x.tied is None and not x.output):
        moved = copy.deepcopy(model)
        tensors = {**dict(moved.named_parameters()), **dict(moved.named_buffers())}
        heads = getattr(moved.get_submodule(layer.name), "heads", 1)
        order = torch.arange(layer.channels).view(heads, -1).flip(1).flatten()  # attention is within a head
        assert layer.readers
        with torch.no_grad():
            for slot in (*layer.weights, *layer.travels, *layer.readers):
                rows = slot.rows(tensors[slot.name], lead=0)
                rows.copy_(rows[order].clone())
        torch.testing.assert_close(forward(moved, data), wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", TWINS)
def test_reset_parameters_draws_everything_anew(name):
    model = TWINS[name][0]()
    fresh = {k: v.clone() for k, v in model.state_dict().items()}
    for t in [*model.parameters(), *model.buffers()]:
        t.data.fill_(7)
    model.reset_parameters()
    for k, v in model.state_dict().items():
        assert not (v == 7).any(), k
        drawn = len(fresh[k].unique()) > 1
        assert torch.equal(v, fresh[k]) is not drawn, k  # a constant is put back, all else is drawn
        if drawn and v.numel() > 15:
            assert 0.5 < float(v.std() / fresh[k].std()) < 2, k  # of the size that a new network has


# ---- learning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BACKBONES)
def test_learns_the_embedded_graph(name):
    task = make_task(load("digits"))
    given = {"num_layers": 4, "hidden_channels": 32} if name == "gcnii" else {}
    model = BACKBONES[name](task.features, task.outputs, **given)
    Trainer(task, Training(epochs=30)).train(model, Original(), "individual", "base", 0)
    assert task.score(evaluate(model, task), "test") > 3 * task.floor()


# The mean over pixels says little of a digit, so the GCN needs longer to say anything.
@pytest.mark.parametrize(("name", "epochs"), [("gcn", 30), ("gin", 10)])
def test_learns_the_embedded_graphs(name, epochs):
    task = make_task(load("digits-graphs")[:400], batch_size=32)
    model = BACKBONES[name](task.features, task.outputs, hidden_channels=32, num_layers=3, dropout=0.0, pool=True)
    Trainer(task, Training(epochs=epochs, weight_decay=0.0)).train(model, Original(), "individual", "base", 0)
    assert task.score(evaluate(model, task), "test") > 2 * task.floor()


def test_weighted_gin_sums_by_weight():
    """PyG's GINConv has no weights to compare with: twice the weight is the edge twice."""
    model, data = scattered(ours("gin", num_layers=2)).eval(), graph(features=IN)
    x, ends = data.x.double(), data.edge_index
    twice = torch.cat([ends, ends[:, :9]], dim=1)
    weight = torch.ones(ends.shape[1])
    weight[:9] = 2
    torch.testing.assert_close(model(x, ends, weight), model(x, twice), rtol=1e-10, atol=1e-10)
