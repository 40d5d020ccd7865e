"""Every backbone against the same network made of PyG's layers, and that it can be exchanged and learns."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.nn.inits import glorot, uniform

from akegnn.backbones import BACKBONES
from akegnn.channels import channel_map
from akegnn.data import load
from akegnn.forward import forward
from akegnn.propagate import Sparse
from akegnn.settings import Training
from akegnn.tasks import make_task
from akegnn.training import Trainer, evaluate
from akegnn.views import Original
from small import RATES, graph, refusal, still

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


class PyGCNIIVariant(PyGCNII):
    """The authors' GCNII* (github.com/chennnM/GCNII, model.py): PyG scales what the two weights read, they do not."""

    def __init__(self, layers: int, hidden: int, alpha: float, theta: float) -> None:
        super().__init__(layers, hidden, alpha, theta)
        self.convs = nn.ModuleList(pyg.GCN2Conv(hidden, alpha, theta, k + 1, False) for k in range(layers))

    def forward(self, x, edge_index, edge_weight=None):
        h = x_0 = self.first(x).relu()
        for conv in self.convs:
            near = averaged(h, edge_index, edge_weight)
            weighted = torch.cat([near, x_0], dim=1) @ torch.cat([conv.weight1, conv.weight2])
            h = (1 - conv.beta) * ((1 - conv.alpha) * near + conv.alpha * x_0) + conv.beta * weighted
            h = h.relu()
        return self.last(h)


class PyGIN(nn.Module):
    def __init__(self, layers: int, hidden: int, pool: Callable[..., Tensor] | None = None) -> None:
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
        return self.head(x if self.pool is None else self.pool(x, batch))


class PyAPPNP(nn.Module):
    def __init__(self, hidden: int, steps: int, alpha: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(IN, hidden), nn.Linear(hidden, OUT)
        self.spread = pyg.APPNP(steps, alpha)

    def forward(self, x, edge_index, edge_weight=None):
        return self.spread(self.last(self.first(x).relu()), edge_index, edge_weight)


class PyJK(nn.Module):
    def __init__(self, mode: str, layers: int, hidden: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(pyg.GCNConv(hidden if k else IN, hidden) for k in range(layers))
        self.jump = pyg.JumpingKnowledge(mode)
        self.last = nn.Linear(hidden * layers if mode == "cat" else hidden, OUT)

    def forward(self, x, edge_index, edge_weight=None):
        layers = []
        for conv in self.convs:
            x = conv(x, edge_index, edge_weight).relu()
            layers.append(x)
        return self.last(self.jump(layers))


def averaged(x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
    """By PyG's normalisation, as a dense product."""
    ends, weight = gcn_norm(edge_index, edge_weight, len(x), dtype=x.dtype)
    return torch.zeros(len(x), len(x), dtype=x.dtype).index_put((ends[1], ends[0]), weight, accumulate=True) @ x


class PyGRAND(nn.Module):
    def __init__(self, hidden: int, order: int, norm: bool = False) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm1d(IN), nn.BatchNorm1d(hidden)] if norm else [])
        self.first, self.last, self.order = nn.Linear(IN, hidden), nn.Linear(hidden, OUT), order

    def forward(self, x, edge_index, edge_weight=None):
        powers = [x]
        for _ in range(self.order):
            powers.append(averaged(powers[-1], edge_index, edge_weight))
        x = torch.stack(powers).mean(0)
        x = self.first(self.norms[0](x) if self.norms else x).relu()
        return self.last(self.norms[1](x) if self.norms else x)


class DenseConv(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight1, self.weight2 = (nn.Parameter(torch.empty(hidden, hidden)) for _ in range(2))
        glorot(self.weight1)
        glorot(self.weight2)


class PyGCNIIDense(nn.Module):
    """The authors' code for ogbn-arxiv (github.com/chennnM/GCNII, PyG/ogbn-arxiv): both weights with an identity."""

    def __init__(self, layers: int, hidden: int, alpha: float) -> None:
        super().__init__()
        self.first, self.last, self.alpha = nn.Linear(IN, hidden), nn.Linear(hidden, OUT), alpha
        self.convs = nn.ModuleList(DenseConv(hidden) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(layers))

    def forward(self, x, edge_index, edge_weight=None):
        h = x_0 = self.first(x).relu()
        one = torch.eye(h.shape[1], dtype=h.dtype)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            support = h @ (one + conv.weight1)
            initial = x_0 @ (self.alpha * one + conv.weight2)
            h = norm(averaged(support, edge_index, edge_weight) + initial).relu() + h
        return self.last(h)


class PyResGCN(nn.Module):
    def __init__(self, layers: int, hidden: int, alpha: float, beta: float) -> None:
        super().__init__()
        self.shares = nn.Parameter(torch.zeros(layers))
        self.first, self.last, self.alpha, self.beta = nn.Linear(IN, hidden), nn.Linear(hidden, OUT), alpha, beta
        self.convs = nn.ModuleList(pyg.GCNConv(hidden, hidden) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(layers))

    def forward(self, x, edge_index, edge_weight=None):
        x_0 = self.first(x)
        layers = [self.norms[0](self.convs[0](x_0, edge_index, edge_weight)).relu() + self.alpha * x_0]
        for conv, norm in list(zip(self.convs, self.norms, strict=True))[1:]:
            new = norm(conv(layers[-1], edge_index, edge_weight)).relu()
            layers.append(new + self.alpha * x_0 + self.beta * layers[-1])
        return self.last(sum(share * x for share, x in zip(self.shares.softmax(0), layers, strict=True)))


class PyTricks(nn.Module):
    def __init__(self, layers: int, hidden: int, linear: bool = False, labels: bool = False) -> None:
        super().__init__()
        widths = [IN + OUT * labels, *[hidden] * (layers - 1), OUT]
        self.convs = nn.ModuleList(pyg.GCNConv(a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(layers - 1))
        self.besides = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(widths) if linear)
        self.labels = labels

    def forward(self, x, edge_index, edge_weight=None, y=None, train_mask=None):
        if self.labels:
            known = torch.zeros(len(x), OUT, dtype=x.dtype)
            for node in range(len(x)) if y is not None else ():
                if train_mask[node]:
                    known[node, y[node]] = 1
            x = torch.cat([x, known], dim=1)
        for k, conv in enumerate(self.convs):
            beside = self.besides[k](x) if self.besides else 0
            x = conv(x, edge_index, edge_weight) + beside
            x = self.norms[k](x).relu() if k < len(self.convs) - 1 else x
        return x


class PySAGE(nn.Module):
    def __init__(self, layers: int, hidden: int, norm: bool = False) -> None:
        super().__init__()
        widths = [IN, *[hidden] * (layers - 1), OUT]
        self.convs = nn.ModuleList(pyg.SAGEConv(a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(layers - 1) if norm)

    def forward(self, x, edge_index):
        for k, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            if k < len(self.convs) - 1:
                x = (self.norms[k](x) if self.norms else x).relu()
        return x


class PySGC(nn.Module):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.conv = pyg.SGConv(IN, OUT, steps)

    def forward(self, x, edge_index, edge_weight=None):
        return self.conv(x, edge_index, edge_weight)


class PyMixHop(nn.Module):
    def __init__(self, layers: int, hidden: int, powers: list[int]) -> None:
        super().__init__()
        wide = hidden * len(powers)
        self.convs = nn.ModuleList(pyg.MixHopConv(wide if k else IN, hidden, powers) for k in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(wide) for _ in range(layers))
        self.last = nn.Linear(wide, OUT)

    def forward(self, x, edge_index, edge_weight=None):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x, edge_index, edge_weight))
        return self.last(x)


class PyUNet(nn.Module):
    def __init__(self, hidden: int, depth: int, ratio: float) -> None:
        super().__init__()
        self.unet = pyg.GraphUNet(IN, hidden, OUT, depth, ratio)

    def forward(self, x, edge_index):
        with torch.sparse.check_sparse_tensor_invariants(enable=False):  # else PyG's call warns
            return self.unet(x, edge_index)


class PyDGI(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.agreement = nn.Parameter(torch.empty(hidden, hidden))
        self.conv, self.activation, self.probe = pyg.GCNConv(IN, hidden), nn.PReLU(hidden), nn.Linear(hidden, OUT)
        uniform(hidden, self.agreement)

    def forward(self, x, edge_index, edge_weight=None):
        return self.probe(self.activation(self.conv(x, edge_index, edge_weight)).detach())


def ours(name: str, **given: object) -> nn.Module:
    return still(name, IN, OUT, **given)


SMALL = {"hidden_channels": 4, "num_layers": 3}
TWINS = {
    "gcn": (lambda: ours("gcn", **SMALL), lambda: PyGCN(3, 4)),
    "gcn, one layer": (lambda: ours("gcn", num_layers=1), lambda: PyGCN(1, 0)),
    "gcn, pool": (lambda: ours("gcn", **SMALL, pool=True), lambda: PyGCN(3, 4, True)),
    "gat": (lambda: ours("gat", hidden_channels=8), lambda: PyGAT(2, 8, 8, 1)),
    "gat, output heads": (lambda: ours("gat", **SMALL, heads=2, output_heads=3), lambda: PyGAT(3, 4, 2, 3)),
    "gat, one layer": (lambda: ours("gat", num_layers=1, output_heads=2), lambda: PyGAT(1, 0, 0, 2)),
    "gcnii": (lambda: ours("gcnii", hidden_channels=6, num_layers=8), lambda: PyGCNII(8, 6, 0.1, 0.5)),
    "gcnii, other": (
        lambda: ours("gcnii", hidden_channels=6, num_layers=2, alpha=0.3, theta=1.5),
        lambda: PyGCNII(2, 6, 0.3, 1.5),
    ),
    "gcnii, variant": (
        lambda: ours("gcnii", hidden_channels=6, num_layers=3, alpha=0.3, variant=True),
        lambda: PyGCNIIVariant(3, 6, 0.3, 0.5),
    ),
    "gin": (lambda: ours("gin", **SMALL), lambda: PyGIN(3, 4)),
    "gin, pool": (lambda: ours("gin", **SMALL, pool=True), lambda: PyGIN(3, 4, pyg.global_add_pool)),
    "gin, mean": (
        lambda: ours("gin", **SMALL, pool=True, readout="mean"),
        lambda: PyGIN(3, 4, pyg.global_mean_pool),
    ),
    "appnp": (lambda: ours("appnp", steps=10), lambda: PyAPPNP(4, 10, 0.1)),
    "appnp, other": (lambda: ours("appnp", steps=1, alpha=0.7), lambda: PyAPPNP(4, 1, 0.7)),
    "jknet-cat": (lambda: ours("jknet-cat", **SMALL), lambda: PyJK("cat", 3, 4)),
    "jknet-max": (lambda: ours("jknet-max", **SMALL), lambda: PyJK("max", 3, 4)),
    "grand": (lambda: ours("grand", order=4), lambda: PyGRAND(4, 4)),
    "grand, norms": (lambda: ours("grand", order=1, batch_norm=True), lambda: PyGRAND(4, 1, True)),
    "gcnii-dense": (lambda: ours("gcnii-dense", **SMALL), lambda: PyGCNIIDense(3, 4, 0.5)),
    "gcnii-dense, other": (lambda: ours("gcnii-dense", alpha=0.2), lambda: PyGCNIIDense(2, 4, 0.2)),
    "gcn-res": (lambda: ours("gcn-res", **SMALL), lambda: PyResGCN(3, 4, 0.2, 0.7)),
    "gcn-res, other": (lambda: ours("gcn-res", alpha=0.5, beta=0.1), lambda: PyResGCN(2, 4, 0.5, 0.1)),
    "gcn-tricks": (lambda: ours("gcn-tricks", **SMALL), lambda: PyTricks(3, 4)),
    "gcn-tricks, linear": (lambda: ours("gcn-tricks", linear=True), lambda: PyTricks(2, 4, linear=True)),
    "gcn-tricks, labels": (lambda: ours("gcn-tricks", labels=True), lambda: PyTricks(2, 4, labels=True)),
    "sage": (lambda: ours("sage", **SMALL), lambda: PySAGE(3, 4)),
    "sage, norms": (lambda: ours("sage", **SMALL, batch_norm=True), lambda: PySAGE(3, 4, True)),
    "sgc": (lambda: ours("sgc"), lambda: PySGC(2)),
    "sgc, other": (lambda: ours("sgc", steps=5), lambda: PySGC(5)),
    "mixhop": (lambda: ours("mixhop"), lambda: PyMixHop(2, 4, [0, 1, 2])),
    "mixhop, other": (lambda: ours("mixhop", num_layers=3, powers=[0, 1]), lambda: PyMixHop(3, 4, [0, 1])),
    "unet": (lambda: ours("unet"), lambda: PyUNet(4, 2, 0.5)),
    "unet, other": (lambda: ours("unet", depth=1, pool_ratios=0.8), lambda: PyUNet(4, 1, 0.8)),
    "dgi": (lambda: ours("dgi"), lambda: PyDGI(4)),
}
# PyG's GATConv, GINConv and SAGEConv take no weights, and neither does our U-Net.
WEIGHTED = [name for name in TWINS if name.partition(",")[0] not in ("gat", "gin", "sage", "unet")]


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
    data.y, data.train_mask = torch.arange(20) % OUT, torch.arange(20) % 4 < 2
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
    gradients |= buffers | ({"x": x.grad} if isinstance(x, Tensor) else {})
    # The embeddings of deep graph infomax are not trained by what is made of them; all else is.
    assert {k for k, g in gradients.items() if g is None} == (ENCODER if hasattr(model, "agreement") else set())
    return out.detach(), {k: g for k, g in gradients.items() if g is not None}


ENCODER = {"agreement", "conv.bias", "conv.lin.weight", "activation.weight", "x"}


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


def test_mixhop_of_other_powers():
    """PyG numbers the weights of a layer by power, ours are numbered one after another."""
    mine, theirs = scattered(ours("mixhop", powers=[1, 3])), PyMixHop(2, 4, [1, 3]).double()
    to_pyg = {"lins.1.": "lins.3.", "lins.0.": "lins.1."}
    renamed = {}
    for name, value in mine.state_dict().items():
        old = next((k for k in to_pyg if k in name), None)
        renamed[name.replace(old, to_pyg[old]) if old else name] = value
    theirs.load_state_dict(renamed)
    for weighted in (False, True):
        data = data64(weighted)
        torch.testing.assert_close(forward(mine.eval(), data), forward(theirs.eval(), data), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", [n for n in BACKBONES if getattr(BACKBONES[n], "sparse_features", False)])
@pytest.mark.parametrize("training", [False, True])
def test_sparse_features_are_equal_to_dense_ones(name, training):
    data = data64()
    data.x = data.x * (data.x > 0.7)
    model = scattered(ours(name))
    out, gradients = outcome(model, data, training)
    gradients.pop("x", None)
    buffers = dict(model.named_buffers())
    given = {"edge_index": data.edge_index, "x": Sparse.of(data.x)}
    found = model.train(training)(**given)
    model.zero_grad()
    (found * torch.arange(found.numel(), dtype=found.dtype).view_as(found).cos()).sum().backward()
    changed = {k: p.grad for k, p in model.named_parameters() if p.grad is not None}
    agree((out, {k: g for k, g in gradients.items() if k not in buffers}), (found.detach(), changed))


@pytest.mark.parametrize(("name", "rate"), [(name, rate) for name in BACKBONES for rate in RATES[name]])
def test_dropout_only_when_training(name, rate):
    """Each of its rates by itself draws something in training, and nothing else does."""
    data = data64()
    model, calm = (scattered(ours(name, **given)) for given in ({rate: 0.5}, {}))
    assert torch.equal(forward(model.eval(), data), forward(model.eval(), data))
    assert not torch.equal(forward(model.train(), data), forward(model.train(), data))
    assert torch.equal(forward(calm.train(), data), forward(calm.train(), data))


def test_unet_warns_of_nothing():
    """Torch warns, once, of sparse matrices that are made without saying whether to check them; PyG makes some."""
    code = (
        "import torch\n"
        "from akegnn.backbones import GraphUNet\n"
        "GraphUNet(4, 2, depth=1)(torch.rand(6, 4), torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr == ""


def test_unet_drops_edges_and_makes_none():
    """Of a graph whose edges go one way: what is left is a part of what was there, about as large as asked for."""
    data, model, seen = data64(), ours("unet", edge_dropout=0.4), []
    data.edge_index = data.edge_index.unique(dim=1)
    model.double().unet.register_forward_pre_hook(lambda module, given: seen.append(given[1]))
    there = set(map(tuple, data.edge_index.t().tolist()))
    assert not there >= {(b, a) for a, b in there}
    for _ in range(40):
        forward(model.train(), data)
    assert all(set(map(tuple, ends.t().tolist())) <= there for ends in seen)
    left = sum(ends.shape[1] for ends in seen) / 40
    assert left == pytest.approx(0.6 * len(there), rel=0.1)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("gcnii-dense", 2_148_648), ("gcn-res", 155_824)],  # as on OGB's leaderboard of ogbn-arxiv
)
def test_as_many_parameters_as_published(name, parameters):
    model = BACKBONES[name](128, 40)
    assert sum(p.numel() for p in model.parameters()) == parameters


# ---- exchange --------------------------------------------------------------------------------------------------------

# What has no entry of its own per channel, and so cannot go anywhere.
STAYS = {
    "gin": {f"convs.{k}.eps" for k in range(3)} | {f"convs.{k}.nn.1.num_batches_tracked" for k in range(3)},
    "gat, output heads": {"convs.2.bias"},  # one entry for three heads
    "gat, one layer": {"convs.0.bias"},
    "dgi": {"agreement"},  # who agrees with the graph is not asked in a prediction
    "unet": {f"unet.pools.{k}.select.weight" for k in range(2)},  # one score of all channels
    "unet, other": {"unet.pools.0.select.weight"},
    "gcn-res": {"shares"},  # one entry per layer
    "gcn-res, other": {"shares"},
    "grand, norms": {f"norms.0.{k}" for k in ("weight", "bias", "running_mean", "running_var")},  # of the features
}
STAYS["gin, pool"] = STAYS["gin, mean"] = STAYS["gin"]


def stays(name: str, model: nn.Module) -> set[str]:
    """And how often a norm was used; and norms of what several layers add up to."""
    added = name.startswith("gcnii-dense") or name == "gcn-tricks, linear"
    norms = {k for k in model.state_dict() if k.endswith("num_batches_tracked") or (added and "norms" in k)}
    return norms | STAYS.get(name, set())


@pytest.mark.parametrize("name", TWINS)
def test_channel_map_names_every_weight(name):
    model = TWINS[name][0]()
    found = channel_map(model, data64())
    assert [row.tensor for row in found.explain().rows] == list(model.state_dict())
    moving = {s.name for x in found.layers for s in (*x.weights, *x.travels)}
    assert set(model.state_dict()) - moving == stays(name, model)
    assert set(found.stays) == stays(name, model)
    wide = {k for k, p in model.named_parameters() if p.dim() == 2} - stays(name, model)
    assert {s.name for x in found.layers for s in x.weights} == wide


@pytest.mark.parametrize("name", TWINS)
def test_neurons_can_change_places(name):
    """The proof once more, by hand: a layer's channels and all who read them in another order, the same output."""
    model, data = scattered(TWINS[name][0]()).eval(), data64()
    wanted = forward(model, data)
    for layer in (x for x in channel_map(model, data).layers if x.tied is None and not x.output):
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


LONGER = {
    "grand": {"official_init": False, "order": 2, "samples": 2},  # the authors' weights are made for longer trainings
    "unet": {"dropout": 0.1, "depth": 2},
    "gcnii": {"num_layers": 4},
    "gcnii-dense": {"num_layers": 3},
    "gcn-res": {"num_layers": 3},
    "mixhop": {"dropout": 0.5, "hidden_channels": 16},
    "sgc": {},
}


@pytest.mark.parametrize("name", BACKBONES)
def test_learns_the_embedded_graph(name):
    task = make_task(load("digits"))
    given = {"hidden_channels": 32} if name in ("gcnii", "gcnii-dense", "gcn-res", "gcn-tricks", "dgi", "unet") else {}
    model = BACKBONES[name](task.features, task.outputs, **given, **LONGER.get(name, {}))
    lr = 0.2 if name == "sgc" else 0.01
    Trainer(task, Training(epochs=30, lr=lr)).train(model, Original(), "individual", "base", 0)
    assert task.score(evaluate(model, task), "test") > 3 * task.floor()


# The mean over pixels says little of a digit, so the GCN needs longer to say anything.
@pytest.mark.parametrize(("name", "epochs"), [("gcn", 30), ("gin", 10)])
def test_learns_the_embedded_graphs(name, epochs):
    task = make_task(load("digits-graphs")[:400], batch_size=32)
    model = BACKBONES[name](task.features, task.outputs, hidden_channels=32, num_layers=3, dropout=0.0, pool=True)
    Trainer(task, Training(epochs=epochs, weight_decay=0.0)).train(model, Original(), "individual", "base", 0)
    assert task.score(evaluate(model, task), "test") > 2 * task.floor()


def test_gin_refuses_an_unknown_readout():
    assert refusal(lambda: ours("gin", readout="max")) == "readout: 'max' is not one of sum, mean"


def test_weighted_gin_sums_by_weight():
    """PyG's GINConv has no weights to compare with: twice the weight is the edge twice."""
    model, data = scattered(ours("gin")).eval(), graph(features=IN)
    x, ends = data.x.double(), data.edge_index
    twice = torch.cat([ends, ends[:, :9]], dim=1)
    weight = torch.ones(ends.shape[1])
    weight[:9] = 2
    torch.testing.assert_close(model(x, ends, weight), model(x, twice), rtol=1e-10, atol=1e-10)
