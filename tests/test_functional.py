"""Exchange by function, against least squares, literal and exhaustive choice, and cases with a known answer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import combinations, pairwise
from statistics import median
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import elu, one_hot, relu
from torch_geometric import nn as pyg
from torch_geometric.data import Batch, Data

from akegnn import exchange, functional
from akegnn.backbones import BACKBONES
from akegnn.channels import RULES, ChannelMap, Rule
from akegnn.errors import AkeError
from akegnn.exchange import Swap, exchange_ring, why_not_merged
from akegnn.functional import Equations, greedy
from small import Net, Pooled, graph, graphs, refusal, same, still

SERVED = [name for name in BACKBONES if name != "unet"]  # what unet reads its scores from has no closed form


def graph64(**given: Any) -> Data:
    data = graph(**given)
    data.x = data.x.double()
    return data


def batches64() -> list[Data]:
    every = graphs(9)
    for data in every:
        data.x = data.x.double()
    return [Batch.from_data_list(every[:4]), Batch.from_data_list(every[4:])]


def awake(model: nn.Module, seed: int = 3) -> nn.Module:
    """In evaluation mode, and with no entry (bias, norm statistics) as it began."""
    g = torch.Generator().manual_seed(seed)
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.add_(0.2 * torch.rand(value.shape, generator=g, dtype=value.dtype))
    return model.eval()


def several(build: Callable[[], nn.Module], count: int = 3, dtype: torch.dtype = torch.float64) -> list[nn.Module]:
    """Different networks."""
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        made.append(awake(build().to(dtype), seed))
    return made


@torch.no_grad()
def outputs(model: nn.Module, data: Data | list[Data]) -> Tensor:
    found = []
    for d in data if isinstance(data, list) else [data]:
        pooled = isinstance(model, Pooled) or getattr(model, "pool", False)
        found.append(model(d.x, d.edge_index, batch=d.batch) if pooled else model(d.x, d.edge_index))
    return torch.cat(found)


def merged(networks: list[nn.Module], data: Data | list[Data], **how: Any) -> tuple[nn.Module, list[Swap]]:
    """The first of the networks becomes the one; all are copies."""
    target, *sources = [copy.deepcopy(n) for n in networks]
    swaps = exchange(target, sources, strategy="functional", data=data, **how)
    return target, swaps


def distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


# ---- least squares ---------------------------------------------------------------------------------------------------


def rows_of(seed: int, rows: int, columns: int, outs: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, n, generator=g, dtype=torch.float64) for n in (columns, outs))  # type: ignore[return-value]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    columns=st.integers(1, 8),
    outs=st.integers(1, 4),
    cuts=st.lists(st.integers(0, 30), max_size=3),
    dead=st.integers(0, 2),
    twice=st.booleans(),
)
def test_equations_are_solved_as_the_tall_matrix_is(
    seed: int, columns: int, outs: int, cuts: list[int], dead: int, twice: bool
) -> None:
    x, y = rows_of(seed, 30, columns, outs)
    x = torch.cat([x, torch.zeros(30, dead, dtype=torch.float64), *([x[:, :1]] if twice else [])], 1)
    equations = Equations()
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), 30], strict=True):
        equations.add(x[begin:end], y[begin:end])
    truth = torch.linalg.lstsq(x[:, :columns], y).solution
    found = equations.solve()
    assert distance(x @ found, x[:, :columns] @ truth) < 1e-6
    assert found[columns : columns + dead].abs().sum() == 0
    if not twice:
        assert distance(found[:columns], truth) < 1e-6
    some = torch.arange(0, columns, 2)
    assert distance(equations.solve(some), torch.linalg.lstsq(x[:, some], y).solution) < 1e-6


def test_small_columns_are_solved_as_well_as_large_ones() -> None:
    """A bias is a column of ones; sums over many neighbours beside it are not made smaller for it."""
    x, _ = rows_of(0, 40, 3, 1)
    x = torch.cat([1e6 * x, torch.ones(40, 1, dtype=torch.float64)], 1)
    truth = torch.tensor([[1e-6], [2e-6], [-1e-6], [5.0]], dtype=torch.float64)
    equations = Equations()
    equations.add(x, x @ truth)
    assert distance(equations.solve() / truth, torch.ones_like(truth)) < 1e-5


def test_weights_that_are_too_large_cost_as_little_as_it_takes() -> None:
    """A channel that is next to nothing, at a few nodes, would be read with a weight of a hundred million."""
    x, _ = rows_of(0, 40, 3, 1)
    x = torch.cat([x, torch.zeros(40, 1, dtype=torch.float64), torch.full((40, 1), 1e-6, dtype=torch.float64)], 1)
    x[:2, 3] = 1e-8
    y = x[:, :3] @ torch.tensor([[1.0], [2.0], [-1.0]], dtype=torch.float64) + 3.0
    y[:2] += 1.0
    equations = Equations()
    equations.add(x, y)
    least = equations.solve(limit=1e12)
    assert torch.equal(least, equations.solve())
    assert float(least[3].abs()) > 1e7
    limited = equations.solve(limit=50.0, free=1)
    assert float(limited[:4].abs().max()) <= 50.0
    assert float(limited[4]) > 1e6, "a bias may be as large as it takes"
    without = torch.linalg.lstsq(x[:, [0, 1, 2, 4]], y).solution
    error, best = (
        (x @ w - y).square().sum() for w in (limited, torch.cat([without[:3], torch.zeros(1, 1), without[3:]]))
    )
    assert float(error) < 1.001 * float(best), "what is left is what cannot be had without it"


def test_channels_that_are_next_to_nothing_are_not_blown_up() -> None:
    """As basis functions they are as good as any; but weights of 1e8 are no place to go on from."""
    data, networks = graph64(), several(lambda: still("gcn", num_layers=3))
    with torch.no_grad():
        for network in networks:
            network.convs[0].lin.weight[0] *= 1e-9
            network.convs[0].bias[0] *= 1e-9
    made = merged(networks, data)[0]
    largest = max(float(v.abs().max()) for n in networks for v in n.state_dict().values())
    assert max(float(v.abs().max()) for v in made.state_dict().values()) <= 100 * largest


def literal_error(readers: list[tuple[Tensor, Tensor]], units: int, free: int, chosen: list[int]) -> float:
    """The share of the targets that the chosen units leave unexplained, summed over readers."""
    total = 0.0
    for x, y in readers:
        wide = (x.shape[1] - free) // units
        columns = [c * wide + k for c in chosen for k in range(wide)] + list(range(x.shape[1] - free, x.shape[1]))
        rest = y
        if columns:
            rest = y - x[:, columns] @ torch.linalg.lstsq(x[:, columns], y).solution
        total += float(rest.square().sum() / y.square().sum())
    return total


def literal_greedy(readers: list[tuple[Tensor, Tensor]], units: int, count: int, free: int) -> list[int]:
    chosen: list[int] = []
    for _ in range(count):
        left = [u for u in range(units) if u not in chosen]
        chosen.append(min(left, key=lambda u: literal_error(readers, units, free, [*chosen, u])))
    return chosen


def pool_of(seed: int, units: int, wide: list[int], free: int) -> tuple[list[tuple[Tensor, Tensor]], list[Equations]]:
    readers = []
    for k, w in enumerate(wide):
        x, y = rows_of(seed * 7 + k, 40, units * w + free, 1 + k)
        if free:
            x[:, -1], y = 1.0, y + 3.0
        readers.append((x, y * 10**k))
    equations = []
    for x, y in readers:
        equations.append(Equations())
        equations[-1].add(x[:13], y[:13])
        equations[-1].add(x[13:], y[13:])
    return readers, equations


POOLS = st.tuples(
    st.integers(0, 10**6), st.integers(2, 6), st.lists(st.integers(1, 3), min_size=1, max_size=3), st.integers(0, 1)
)


@settings(max_examples=40, deadline=None)
@given(pool=POOLS, data=st.data())
def test_greedy_choice_is_forward_selection(pool: tuple[int, int, list[int], int], data: st.DataObject) -> None:
    seed, units, wide, free = pool
    count = data.draw(st.integers(1, units))
    readers, equations = pool_of(seed, units, wide, free)
    assert greedy(equations, units, count, free) == literal_greedy(readers, units, count, free)


@settings(max_examples=25, deadline=None)
@given(pool=POOLS, data=st.data())
def test_greedy_choice_is_at_most_exhaustive_choice(pool: tuple[int, int, list[int], int], data: st.DataObject) -> None:
    seed, units, wide, free = pool
    count = data.draw(st.integers(1, units))
    readers, equations = pool_of(seed, units, wide, free)
    chosen = greedy(equations, units, count, free)
    assert len(set(chosen)) == count
    assert set(chosen) <= set(range(units))
    best = min(literal_error(readers, units, free, list(c)) for c in combinations(range(units), count))
    found = literal_error(readers, units, free, chosen)
    assert found >= best - 1e-9
    if count in (1, units):
        assert found == pytest.approx(best, abs=1e-9)
    errors = [literal_error(readers, units, free, chosen[:k]) for k in range(count + 1)]
    assert all(after <= before + 1e-9 for before, after in pairwise(errors))


def test_greedy_choice_takes_no_unit_twice_when_nothing_is_left_to_explain() -> None:
    x, _ = rows_of(1, 20, 2, 1)
    equations = Equations()
    equations.add(torch.cat([x, x, torch.zeros(20, 2, dtype=torch.float64)], 1), x @ torch.ones(2, 1).double())
    assert sorted(greedy([equations], 6, 6)) == list(range(6))
    assert sorted(c % 2 for c in greedy([equations], 6, 2)) == [0, 1]


def test_greedy_choice_does_not_depend_on_the_scale_of_channels() -> None:
    readers, _ = pool_of(5, 5, [1], 0)
    (x, y) = readers[0]
    x = x * torch.tensor([1e6, 1.0, 1e3, 1.0, 1e5])
    equations = Equations()
    equations.add(x, y)
    assert greedy([equations], 5, 3) == literal_greedy([(x, y)], 5, 3, 0)


# ---- copies of one network -------------------------------------------------------------------------------------------


class Stack(nn.Module):
    """Plain PyG layers one after another."""

    def __init__(self, *convs: nn.Module, norms: list[nn.Module] | None = None, act: Any = relu, end: Any = None):
        super().__init__()
        self.convs, self.norms = nn.ModuleList(convs), nn.ModuleList(norms or [])
        self.act, self.end = act, end

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for k, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            if k < len(self.convs) - 1:
                x = self.act(self.norms[k](x) if k < len(self.norms) else x)
        return x if self.end is None else self.end(x)


class Skip(nn.Module):
    """The input lies beside the hidden channels, before or after them."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = pyg.GCNConv(5, 6), pyg.GCNConv(11, 4), pyg.GCNConv(15, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.a(x, edge_index).relu()
        deep = self.b(torch.cat([x, h], 1), edge_index).relu()
        return self.c(torch.cat([deep, x, h], 1), edge_index)


class TwoEnds(nn.Module):
    """Outputs are a sum of what two layers give, and of one that reads the input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = pyg.GCNConv(5, 6), nn.Linear(6, 3), pyg.GCNConv(6, 3), nn.Linear(5, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.a(x, edge_index).relu()
        return self.b(h) + self.c(h, edge_index) + self.d(x)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.gate, self.b = pyg.GCNConv(5, 6), nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.b(self.a(x, edge_index).relu() * self.gate(x).sigmoid())


class InPlace(nn.Module):
    """Activations are written over what the layers gave."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = pyg.GCNConv(5, 6), pyg.GCNConv(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.a(x, edge_index).relu_()
        h = relu(self.b(h, edge_index), inplace=True)
        return self.c(h)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = pyg.GCNConv(5, 6), pyg.GCNConv(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.a(x, edge_index).relu()
        return self.c(h + self.b(h, edge_index).relu())


def perceptron(inputs: int, outs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, outs))


gat, gcn, sage = pyg.GATConv, pyg.GCNConv, pyg.SAGEConv
PLAIN: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: Stack(gcn(5, 6), gcn(6, 3)),
    "gcn without bias": lambda: Stack(gcn(5, 6, bias=False), gcn(6, 3, bias=False)),
    "gcn of three": lambda: Stack(gcn(5, 6), gcn(6, 4), gcn(4, 3)),
    "norms": lambda: Stack(gcn(5, 6), gcn(6, 4), gcn(4, 3), norms=[nn.BatchNorm1d(6), pyg.BatchNorm(4)]),
    "log_softmax": lambda: Stack(gcn(5, 6), gcn(6, 3), end=lambda x: x.log_softmax(-1)),
    "sage": lambda: Stack(sage(5, 6), sage(6, 4), sage(4, 3)),
    "sage, largest": lambda: Stack(sage(5, 6, aggr="max"), sage(6, 3, aggr="max")),
    "gat": lambda: Stack(gat(5, 4, heads=2), gat(8, 4, heads=2), gat(8, 3), act=elu),
    "gat, averaged heads": lambda: Stack(gat(5, 4, heads=2), gat(8, 3, heads=3, concat=False), act=elu),
    "gat without bias": lambda: Stack(gat(5, 4, heads=2, bias=False), gat(8, 3, bias=False), act=elu),
    "one gat": lambda: Stack(gat(5, 3)),
    "gat and gcn": lambda: Stack(gat(5, 4, heads=2), gcn(8, 6), gat(6, 3), act=elu),
    "gin": lambda: Stack(pyg.GINConv(perceptron(5, 6)), pyg.GINConv(perceptron(6, 3))),
    "graphconv": lambda: Stack(pyg.GraphConv(5, 6), pyg.GraphConv(6, 3)),
    "cheb": lambda: Stack(pyg.ChebConv(5, 6, 3), pyg.ChebConv(6, 3, 2)),
    "tag": lambda: Stack(pyg.TAGConv(5, 6), pyg.TAGConv(6, 3)),
    "mixhop": lambda: Stack(pyg.MixHopConv(5, 4), pyg.MixHopConv(12, 2), gcn(6, 3)),
    "pyg's gcn": lambda: pyg.GCN(5, 6, 3, 3, jk="cat"),
    "pyg's sage": lambda: pyg.GraphSAGE(5, 6, 3, 3, norm="batch_norm", act="prelu"),
    "skip": Skip,
    "two ends": TwoEnds,
    "gated": Gated,
    "in place": InPlace,
    "residual": Residual,
}


@pytest.mark.parametrize("name", SERVED)
def test_copies_of_a_backbone_make_that_network(name: str) -> None:
    data, (network,) = graph64(), several(lambda: still(name), 1)
    made, _ = merged([network] * 3, data)
    assert distance(outputs(made, data), outputs(network, data)) < 1e-5


@pytest.mark.parametrize("name", ["gcn", "gat", "jknet-cat", "jknet-max", "gcnii", "gin", "gcn-res", "sage", "mixhop"])
def test_copies_of_a_deeper_backbone_make_that_network(name: str) -> None:
    data, (network,) = graph64(), several(lambda: still(name, num_layers=4), 1)
    made, _ = merged([network] * 2, data)
    assert distance(outputs(made, data), outputs(network, data)) < 1e-5 * max(1, float(outputs(network, data).std()))


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_copies_of_attention_with_several_output_heads_make_that_network(heads: int) -> None:
    data, (network,) = graph64(), several(lambda: still("gat", heads=2, output_heads=heads), 1)
    made, _ = merged([network] * 3, data)
    assert distance(outputs(made, data), outputs(network, data)) < 1e-5


@pytest.mark.parametrize("name", PLAIN)
def test_copies_of_a_plain_model_make_that_network(name: str) -> None:
    data, (network,) = graph64(), several(PLAIN[name], 1)
    made, _ = merged([network] * 3, data)
    assert distance(outputs(made, data), outputs(network, data)) < 1e-5


POOLED: dict[str, Callable[[], nn.Module]] = {
    "own": lambda: Pooled(4, 2),
    "gin": lambda: still("gin", 4, 2, pool=True),
    "gcn": lambda: still("gcn", 4, 2, pool=True),
}


@pytest.mark.parametrize("name", POOLED)
def test_copies_of_a_model_of_graphs_make_that_network(name: str) -> None:
    data, (network,) = batches64(), several(POOLED[name], 1)
    made, _ = merged([network] * 3, data)
    assert distance(outputs(made, data), outputs(network, data)) < 1e-5


# By hand: hidden layers, each with the tensors (and axes) in which its channels lie, and those that read them.
Lies = list[tuple[str, int]]
PLACES: dict[str, tuple[Callable[[int], nn.Module], list[tuple[Lies, Lies]]]] = {
    "gcn": (
        lambda c: still("gcn", hidden_channels=c, num_layers=3),
        [([(f"convs.{k}.lin.weight", 0), (f"convs.{k}.bias", 0)], [(f"convs.{k + 1}.lin.weight", 1)]) for k in (0, 1)],
    ),
    "sage": (
        lambda c: Stack(sage(5, c), sage(c, 3)),
        [
            (
                [("convs.0.lin_l.weight", 0), ("convs.0.lin_r.weight", 0), ("convs.0.lin_l.bias", 0)],
                [("convs.1.lin_l.weight", 1), ("convs.1.lin_r.weight", 1)],
            )
        ],
    ),
    "appnp": (
        lambda c: still("appnp", hidden_channels=c),
        [([("first.weight", 0), ("first.bias", 0)], [("last.weight", 1)])],
    ),
    "norm": (
        lambda c: Stack(gcn(5, c), gcn(c, 3), norms=[nn.BatchNorm1d(c)]),
        [
            (
                [("convs.0.lin.weight", 0), ("convs.0.bias", 0)]
                + [(f"norms.0.{n}", 0) for n in ("weight", "bias", "running_mean", "running_var")],
                [("convs.1.lin.weight", 1)],
            )
        ],
    ),
    "gin": (
        lambda c: still("gin", hidden_channels=c, num_layers=1),
        [
            (
                [("convs.0.nn.0.weight", 0), ("convs.0.nn.0.bias", 0)]
                + [(f"convs.0.nn.1.{n}", 0) for n in ("weight", "bias", "running_mean", "running_var")],
                [("convs.0.nn.3.weight", 1)],
            ),
            ([("convs.0.nn.3.weight", 0), ("convs.0.nn.3.bias", 0)], [("head.weight", 1)]),
        ],
    ),
    "pooled": (
        lambda c: Pooled(4, 2, c),
        [([("conv.lin.weight", 0), ("conv.bias", 0)], [("head.weight", 1)])],
    ),
}


def shuffled(model: nn.Module, layers: list[tuple[Lies, Lies]], seed: int) -> nn.Module:
    other = copy.deepcopy(model)
    state = other.state_dict()
    g = torch.Generator().manual_seed(seed)
    for own, read in layers:
        order = torch.randperm(state[own[0][0]].shape[0], generator=g)
        for name, axis in (*own, *read):
            state[name].copy_(state[name].index_select(axis, order))
    return other


def doubled(narrow: nn.Module, wide: nn.Module, layers: list[tuple[Lies, Lies]], seed: int) -> nn.Module:
    """The same function of twice the channels: each is there twice, and what reads it is divided by chance."""
    g = torch.Generator().manual_seed(seed)
    state = {k: v.clone() for k, v in narrow.state_dict().items()}
    for own, read in layers:
        for name, axis in own:
            state[name] = torch.cat([state[name]] * 2, axis)
        for name, axis in read:
            part = torch.rand(state[name].shape, generator=g, dtype=torch.float64) * 3 - 1
            state[name] = torch.cat([state[name] * part, state[name] * (1 - part)], axis)
    wide.load_state_dict(state)
    return wide.eval()


@pytest.mark.parametrize("name", PLACES)
def test_networks_that_differ_by_the_order_of_channels_make_that_network(name: str) -> None:
    build, layers = PLACES[name]
    data: Any = batches64() if name == "pooled" else graph64()
    (network,) = several(lambda: build(6), 1)
    others = [shuffled(network, layers, seed) for seed in range(3)]
    assert all(distance(outputs(o, data), outputs(network, data)) < 1e-9 for o in others)
    made, _ = merged([network, *others], data)
    assert distance(outputs(made, data), outputs(network, data)) < 1e-5


@pytest.mark.parametrize("name", PLACES)
def test_channels_that_are_there_twice_fit_into_half_the_width(name: str) -> None:
    build, layers = PLACES[name]
    data: Any = batches64() if name == "pooled" else graph64()
    (narrow,) = several(lambda: build(4), 1)
    wide = [shuffled(doubled(narrow, build(8).double(), layers, seed), layers, seed) for seed in range(3)]
    target = build(4).double().eval()
    swaps = exchange(target, wide, strategy="functional", data=data, keep=False)
    assert distance(outputs(target, data), outputs(narrow, data)) < 1e-5
    assert {s.source for s in swaps} <= {0, 1, 2}


def test_a_head_that_is_there_twice_is_needed_once() -> None:
    data = graph64()
    (narrow,) = several(lambda: still("gat", heads=1), 1)
    wide = still("gat", heads=2).double()
    state = {k: v.clone() for k, v in narrow.state_dict().items()}
    for n in ("lin.weight", "bias"):
        state[f"convs.0.{n}"] = torch.cat([state[f"convs.0.{n}"]] * 2, 0)
    for n in ("att_src", "att_dst"):
        state[f"convs.0.{n}"] = torch.cat([state[f"convs.0.{n}"]] * 2, 1)
    reads = state["convs.1.lin.weight"]
    state["convs.1.lin.weight"] = torch.cat([0.3 * reads, 0.7 * reads], 1)
    wide.load_state_dict(state)
    assert distance(outputs(wide.eval(), data), outputs(narrow, data)) < 1e-9
    target = still("gat", heads=1).double().eval()
    exchange(target, [wide, copy.deepcopy(wide)], strategy="functional", data=data, keep=False)
    assert distance(outputs(target, data), outputs(narrow, data)) < 1e-5


def heads_then(last: Callable[[int], nn.Module], *heads: int, edge_dim: int | None = None) -> nn.Module:
    """Attention layers with so many heads of four channels each, and a last layer that is linear."""
    widths = [5, *(4 * h for h in heads)]
    layers = [gat(w, 4, heads=h, edge_dim=edge_dim) for w, h in zip(widths, heads, strict=False)]
    return Stack(*layers, last(widths[-1]), act=elu)


@pytest.mark.parametrize("numbers", [((2,), (2,)), ((1,), (3,)), ((2, 2), (2, 2)), ((3, 1), (1, 2))])
@pytest.mark.parametrize("last", [lambda w: gcn(w, 3), lambda w: sage(w, 3)], ids=["gcn", "sage"])
def test_with_room_for_all_heads_the_network_is_the_ensemble(
    last: Callable[[int], nn.Module], numbers: tuple[tuple[int, ...], ...]
) -> None:
    """Also where the networks have other numbers of them, as PyG's layers and ours."""
    data = graph64()
    pool = [several(lambda n=n: heads_then(last, *n), k + 1)[-1] for k, n in enumerate(numbers)]  # type: ignore[misc]
    before = copy.deepcopy(pool)
    target = heads_then(last, *map(sum, zip(*numbers, strict=True))).double().eval()
    swaps = exchange(target, pool, strategy="functional", data=data, keep=False)
    mean = torch.stack([outputs(n, data) for n in pool]).mean(0)
    assert distance(outputs(target, data), mean) < 1e-5
    assert all(same(n, b) for n, b in zip(pool, before, strict=True))
    first = [(s.source, s.source_channel) for s in swaps if s.layer == "convs.0"]
    assert sorted(first) == [(v, 4 * h) for v, n in enumerate(numbers) for h in range(n[0])]


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_fewer_heads_are_chosen_as_well_as_any_could_be(heads: int) -> None:
    """One layer of attention: one of the choices in closed form; of single heads the best, of several no bad one."""
    data = graph64()
    pool = several(lambda: heads_then(lambda w: gcn(w, 3), 2), 2)
    mean = torch.stack([outputs(n, data) for n in pool]).mean(0)
    a = dense(data)
    with torch.no_grad():
        blocks = [b for n in pool for b in (a @ elu(n.convs[0](data.x, data.edge_index))).split(4, 1)]  # type: ignore[operator]
    errors = []
    for chosen in combinations(blocks, heads):
        columns = torch.cat([*chosen, torch.ones(len(mean), 1, dtype=mean.dtype)], 1)
        errors.append(float((columns @ torch.linalg.lstsq(columns, mean).solution - mean).square().sum()))
    target = heads_then(lambda w: gcn(w, 3), heads).double().eval()
    exchange(target, pool, strategy="functional", data=data, keep=False)
    error = float((outputs(target, data) - mean).square().sum())
    assert min(abs(error / e - 1) for e in errors) < 1e-3
    assert error <= 1.001 * (min(errors) if heads == 1 else median(errors))


@pytest.mark.parametrize("backbone", ["pyg", "ours"])
def test_output_heads_may_be_of_another_number_too(backbone: str) -> None:
    """In PyG's GAT there are as many in the last layer as in the others; their mean is what it gives."""

    def build(heads: int) -> nn.Module:
        if backbone == "pyg":
            return pyg.GAT(5, 4 * heads, 2, 3, heads=heads)
        return still("gat", heads=heads, output_heads=heads, hidden_channels=4)

    data = graph64()
    (one,) = several(lambda: build(2), 1)
    for heads in (2, 4):  # a network twice is that network, with room to spare or without
        target = build(heads).double().eval()
        exchange(target, [one, copy.deepcopy(one)], strategy="functional", data=data, keep=False)
        assert distance(outputs(target, data), outputs(one, data)) < 1e-5
    pool = [one, several(lambda: build(3), 2)[1]]
    mean = torch.stack([outputs(n, data) for n in pool]).mean(0)
    errors = []
    for heads in (1, 2, 5):
        target = build(heads).double().eval()
        exchange(target, pool, strategy="functional", data=data, keep=False)
        errors.append(float((outputs(target, data) - mean).square().mean()))
    assert errors[2] < 1e-10 + 0.01 * errors[0]
    assert errors[0] < 0.5 * float((mean - mean.mean(0)).square().mean())


class AddedToLinear(nn.Module):
    """Attention and a linear layer added up; the linear one is looked at first."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.att, self.lin, self.out = gat(5, 4, heads=heads), nn.Linear(5, 4 * heads), gcn(4 * heads, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        beside = self.lin(x)
        return self.out(elu(beside + self.att(x, edge_index)), edge_index)


class AfterAttention(nn.Module):
    """Averaged output heads, with or without a bias, and propagation behind them."""

    def __init__(self, heads: int, bias: bool, steps: int) -> None:
        super().__init__()
        self.a = gat(5, 4, heads=heads)
        self.b = gat(4 * heads, 3, heads=heads, concat=False, bias=bias)
        self.end = pyg.APPNP(steps, 0.1) if steps else None

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.b(elu(self.a(x, edge_index)), edge_index)
        return x if self.end is None else self.end(x, edge_index)


@pytest.mark.parametrize(
    "build",
    [
        AddedToLinear,
        lambda heads: AfterAttention(heads, bias=True, steps=0),
        lambda heads: AfterAttention(heads, bias=False, steps=0),
        lambda heads: AfterAttention(heads, bias=True, steps=5),
    ],
    ids=["added to a linear layer", "averaged", "no bias", "propagated"],
)
def test_heads_in_other_surroundings(build: Callable[[int], nn.Module]) -> None:
    """With room for all heads exact, with half of them better than a constant by far."""
    data, pool = graph64(), several(lambda: build(2))[:2]
    mean = torch.stack([outputs(n, data) for n in pool]).mean(0)
    for heads, share in ((4, 1e-8), (2, 0.3)):
        target = build(heads).double().eval()
        exchange(target, pool, strategy="functional", data=data, keep=False)
        error = (outputs(target, data) - mean).square().mean()
        assert error < share * (mean - mean.mean(0)).square().mean()


class AfterSum(nn.Module):
    """A norm of a sum, as behind every step of a residual stream: its entries are no layer's own."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, width), nn.Linear(width, 3)
        self.convs = nn.ModuleList(gcn(width, width) for _ in range(steps))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(steps))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x).relu()
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(x + conv(x, edge_index).relu())
        return self.last(x)


@pytest.mark.parametrize("steps", [1, 2])
def test_norms_of_sums_move_with_the_whole_stream(steps: int) -> None:
    """With room for all channels exact; narrower ones are better than a constant by far."""
    data, pool = graph64(), several(lambda: AfterSum(6, steps))
    mean = torch.stack([outputs(n, data) for n in pool]).mean(0)
    for width, share in ((18, 1e-10), (6, 0.1), (3, 0.3)):
        target = AfterSum(width, steps).double().eval()
        exchange(target, pool, strategy="functional", data=data, keep=False)
        error = (outputs(target, data) - mean).square().mean()
        assert error < share * (mean - mean.mean(0)).square().mean()


class Grouped(nn.Module):
    """A norm that has as many groups as there are heads: a number that no weight tells."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.a, self.norm, self.b = gat(5, 4, heads=heads), nn.GroupNorm(heads, 4 * heads), gcn(4 * heads, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.b(elu(self.norm(self.a(x, edge_index))), edge_index)


def test_a_network_that_computes_something_else_with_other_heads_is_refused() -> None:
    data, pool = graph64(), several(lambda: Grouped(2))
    merged(pool, data)
    target = Grouped(4).double().eval()
    before = copy.deepcopy(target)
    message = refusal(lambda: exchange(target, pool, strategy="functional", data=data, keep=False))
    assert message.startswith("model: with other numbers of channels or heads it computes something else")
    assert same(target, before)


@pytest.mark.parametrize(("made", "given"), [((2, True), (1, True)), ((2, True), (2, False)), ((1, True), (2, True))])
def test_outputs_of_heads_side_by_side_are_never_taken_for_their_mean(
    made: tuple[int, bool], given: tuple[int, bool]
) -> None:
    def build(heads: int, concat: bool) -> nn.Module:
        return Stack(gat(5, 4, heads=2), gat(8, 3, heads=heads, concat=concat, bias=False), act=elu)

    data, pool = graph64(), several(lambda: build(*given), 2)
    target = build(*made).double().eval()
    before = copy.deepcopy(target)
    refusal(lambda: exchange(target, pool, strategy="functional", data=data, keep=False))
    assert same(target, before)


def test_vectors_of_one_attention_for_the_whole_layer_keep_it_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    class One(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.lin = nn.Linear(5, width, bias=False)
            self.att_src, self.bias = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            h = self.lin(x)
            weight = (h * self.att_src).sum(-1)[edge_index[0]].sigmoid()
            return torch.zeros_like(h).index_add(0, edge_index[1], weight[:, None] * h[edge_index[0]]) + self.bias

    monkeypatch.setitem(RULES, One, Rule(("lin.weight@0",), ("att_src@0", "bias@0")))
    data, networks = graph64(), several(lambda: Stack(One(6), gcn(6, 3)))
    swaps = merged(networks, data)[1]
    assert len({s.source for s in swaps if s.layer == "convs.0"}) == 1
    message = refusal(
        lambda: exchange(Stack(One(3), gcn(3, 3)).double(), networks, strategy="functional", data=data, keep=False)
    )
    assert message == "convs.0: heads of 3 and 6 channels; by function all heads must be as wide"


def test_heads_bring_their_edge_features_along() -> None:
    data = graph64()
    data.edge_attr = torch.rand(data.num_edges, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    class WithEdges(nn.Module):
        def __init__(self, heads: int) -> None:
            super().__init__()
            self.a, self.b = gat(5, 4, heads=heads, edge_dim=2), gcn(4 * heads, 3)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            return self.b(elu(self.a(x, edge_index, edge_attr)), edge_index)

    def given(model: nn.Module) -> Tensor:
        with torch.no_grad():
            return model(data.x, data.edge_index, data.edge_attr)

    pool = several(lambda: WithEdges(2), 2)
    target = WithEdges(4).double().eval()
    exchange(target, pool, strategy="functional", data=data, keep=False)
    assert distance(given(target), torch.stack([given(n) for n in pool]).mean(0)) < 1e-5


# ---- different networks ----------------------------------------------------------------------------------------------


def dense(data: Data) -> Tensor:
    """GCN's normalised adjacency, with loops, by hand."""
    a = torch.eye(data.num_nodes, dtype=torch.float64)
    a[data.edge_index[1], data.edge_index[0]] = 1.0
    scale = a.sum(1).rsqrt()
    return scale[:, None] * a * scale


def test_without_a_hidden_layer_the_network_is_the_ensemble() -> None:
    data, networks = graph64(), several(lambda: still("sgc"), 4)
    made, swaps = merged(networks, data)
    assert distance(outputs(made, data), torch.stack([outputs(n, data) for n in networks]).mean(0)) < 1e-9
    assert not swaps


@pytest.mark.parametrize("name", ["gcn", "plain"])
def test_a_gcn_of_two_layers_by_hand(name: str) -> None:
    """Forward selection among all hidden channels, propagated; the output layer is lstsq on the mean logits."""
    data = graph64()
    networks = several(lambda: still("gcn") if name == "gcn" else Stack(gcn(5, 4), gcn(4, 3)))
    a, x = dense(data), data.x
    states = [n.state_dict() for n in networks]
    assert list(states[0]) == ["convs.0.bias", "convs.0.lin.weight", "convs.1.bias", "convs.1.lin.weight"]
    pool = [a @ (a @ x @ s["convs.0.lin.weight"].t() + s["convs.0.bias"]).relu() for s in states]
    logits = [p @ s["convs.1.lin.weight"].t() + s["convs.1.bias"] for p, s in zip(pool, states, strict=True)]
    for n, z in zip(networks, logits, strict=True):
        assert distance(outputs(n, data), z) < 1e-9
    mean, columns = torch.stack(logits).mean(0), torch.cat(pool, 1)
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    chosen = literal_greedy([(torch.cat([columns, ones], 1), mean)], 12, 4, 1)
    picked = torch.cat([columns[:, sorted(chosen)], ones], 1)
    weights = torch.linalg.lstsq(picked, mean).solution
    made, swaps = merged(networks, data)
    assert distance(outputs(made, data), picked @ weights) < 1e-6
    assert distance(made.state_dict()["convs.1.lin.weight"], weights[:-1].t()) < 1e-5
    assert distance(made.state_dict()["convs.1.bias"], weights[-1]) < 1e-5
    record = {(s.source, s.source_channel): s.step for s in swaps}
    assert record == {(c // 4, c % 4): k for k, c in enumerate(chosen, 1)}


def test_propagation_after_the_last_layer_counts() -> None:
    """APPNP spreads what its last layer gives: least squares on the spread columns, by hand."""
    data, networks = graph64(), several(lambda: still("appnp"))
    a, x = dense(data), data.x

    def spread(h: Tensor) -> Tensor:
        z = h
        for _ in range(3):
            z = 0.9 * (a @ z) + 0.1 * h
        return z

    states = [n.state_dict() for n in networks]
    columns = torch.cat([spread((x @ s["first.weight"].t() + s["first.bias"]).relu()) for s in states], 1)
    mean = torch.stack([outputs(n, data) for n in networks]).mean(0)
    made, swaps = merged(networks, data)
    chosen = [4 * s.source + s.source_channel for s in sorted(swaps, key=lambda s: s.step)]
    picked = torch.cat([columns[:, chosen], spread(torch.ones(len(x), 1, dtype=torch.float64))], 1)
    assert distance(outputs(made, data), picked @ torch.linalg.lstsq(picked, mean).solution) < 1e-6


@pytest.mark.parametrize("name", ["gcn", "gat", "appnp", "jknet-cat", "gcnii", "gin", "sage", "sgc", "gcn-res"])
def test_embeddings_that_differ_by_a_turn_keep_their_inner_products(name: str) -> None:
    """The networks' embeddings span two dimensions, each along axes of its own."""
    data, (network,) = graph64(), several(lambda: still(name, outputs=2), 1)
    last = [n for n in network.state_dict() if n.startswith(("last", "head", "convs.1", "conv."))]
    networks = []
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        turn, _ = torch.linalg.qr(torch.randn(2, 2, generator=g, dtype=torch.float64))
        other = copy.deepcopy(network)
        state = other.state_dict()
        for n in last:
            if "att" in n:
                state[n].copy_((turn @ state[n][0, 0])[None, None])
            elif state[n].shape[:1] == (2,):
                state[n].copy_(turn @ state[n])
        networks.append(other)
    truth = outputs(network, data)
    for n in networks:
        z = outputs(n, data)
        assert distance(z @ z.t(), truth @ truth.t()) < 1e-9
    made, _ = merged(networks, data, inner=True)
    z = outputs(made, data)
    assert distance(z @ z.t(), truth @ truth.t()) < 1e-5


EVERY = {name: (lambda name=name: still(name)) for name in SERVED} | {f"plain {name}": PLAIN[name] for name in PLAIN}


@pytest.mark.parametrize("name", EVERY)
def test_the_network_is_near_the_ensemble_and_its_channels_are_on_record(name: str) -> None:
    data, networks = graph64(), several(EVERY[name])
    each = torch.stack([outputs(n, data) for n in networks])
    mean = each.mean(0)
    made, swaps = merged(networks, data)
    assert (outputs(made, data) - mean).square().mean() < 0.2 * (each - mean).square().mean((1, 2)).min()
    by_layer: dict[str, list[Swap]] = {}
    for s in swaps:
        assert 0 <= s.source < 3
        by_layer.setdefault(s.layer, []).append(s)
    for moves in by_layer.values():
        assert len({s.target_channel for s in moves}) == len(moves)
        assert sorted(s.step for s in moves) == list(range(1, len(moves) + 1))
    if name in ("sgc", "plain one gat"):
        return
    # A channel of the first layer is taken as it is.
    first, state, states = swaps[0].layer, made.state_dict(), [n.state_dict() for n in networks]
    weights = [n for n in state if n.startswith(first + ".") and n.endswith("weight") and state[n].dim() == 2]
    assert weights
    for tensor in weights:
        for s in by_layer[first]:
            assert torch.equal(state[tensor][s.target_channel], states[s.source][tensor][s.source_channel])


@pytest.mark.parametrize("name", ["own", "gcn"])
def test_it_does_not_matter_which_graphs_come_together(name: str) -> None:
    data, networks = batches64(), several(POOLED[name])
    at_once = [Batch.from_data_list([g for b in data for g in b.to_data_list()])]
    first, moves = merged(networks, data)
    second, same_moves = merged(networks, at_once)
    assert moves == same_moves
    assert distance(outputs(first, data), outputs(second, data)) < 1e-6


# ---- as a function of modules ----------------------------------------------------------------------------------------


def wide_net(width: int) -> Net:
    torch.manual_seed(width)
    return awake(Net(5, 3, width).double(), width)  # type: ignore[return-value]


def test_networks_of_different_widths_are_pooled() -> None:
    data, sources = graph64(), [wide_net(w) for w in (3, 8, 5)]
    before = [copy.deepcopy(s.state_dict()) for s in sources]
    mean = torch.stack([outputs(n, data) for n in sources]).mean(0)
    errors = []
    for width in (4, 10, 16):
        target = wide_net(width)
        swaps = exchange(target, sources, strategy="functional", data=data, keep=False)
        errors.append(float((outputs(target, data) - mean).square().mean()))
        assert target.first.lin.weight.shape == (width, 5)
        assert sorted(s.target_channel for s in swaps) == list(range(width))
        for s in swaps:
            row = before[s.source]["first.lin.weight"][s.source_channel]
            assert torch.equal(target.first.lin.weight[s.target_channel], row)
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-12  # all channels
    for s, state in zip(sources, before, strict=True):
        assert all(torch.equal(v, state[k]) for k, v in s.state_dict().items())


def test_deep_networks_of_different_widths_are_pooled() -> None:
    data = graph64()
    sources = several(lambda: still("gcn", hidden_channels=8, num_layers=3), 2)
    target = still("gcn", hidden_channels=5, num_layers=3).double().eval()
    swaps = exchange(target, sources, strategy="functional", data=data, keep=False)
    mean = torch.stack([outputs(n, data) for n in sources]).mean(0)
    assert (outputs(target, data) - mean).square().mean() < (mean - mean.mean(0)).square().mean()
    assert {(s.layer, s.target_channel) for s in swaps} == {(f"convs.{k}", c) for k in (0, 1) for c in range(5)}


def test_keep_says_whether_the_target_is_among_the_networks() -> None:
    data, (first, second) = graph64(), several(lambda: still("gcn"), 2)
    alone = copy.deepcopy(first)
    exchange(alone, [second], strategy="functional", data=data, keep=False)
    assert distance(outputs(alone, data), outputs(second, data)) < 1e-6
    both = copy.deepcopy(first)
    swaps = exchange(both, second, strategy="functional", data=data)
    assert {s.source for s in swaps} <= {0, 1}
    assert distance(outputs(both, data), outputs(second, data)) > 1e-3


def test_every_hidden_channel_has_a_record() -> None:
    data = graph64()
    for name, layers in {
        "gcn": {"convs.0": 4},
        "jknet-cat": {"convs.0": 4, "convs.1": 4},
        "gcnii": {"first": 4, "convs.0": 4, "convs.1": 4},
        "gin": {f"convs.{k}.nn.{i}": 4 for k in (0, 1) for i in (0, 3)},
    }.items():
        _, swaps = merged(several(lambda name=name: still(name)), data)  # type: ignore[misc]
        found = sorted((s.layer, s.target_channel) for s in swaps)
        assert found == sorted((layer, c) for layer, count in layers.items() for c in range(count))
        assert all(0 <= s.source_channel < 4 for s in swaps)


@pytest.mark.parametrize("name", ["gcn", "gat", "jknet-max", "gcnii", "gin"])
def test_in_float32_it_is_the_same_up_to_rounding(name: str) -> None:
    data, networks = graph(), several(lambda: still(name), dtype=torch.float32)
    precise, _ = merged([n.double() for n in copy.deepcopy(networks)], graph64())
    made, _ = merged(networks, data)
    assert all(v.dtype == torch.float32 for v in made.state_dict().values() if v.is_floating_point())
    truth = outputs(precise, graph64())
    mean = torch.stack([outputs(n, data) for n in networks]).mean(0)
    error, best = ((z - mean).square().mean() for z in (outputs(made, data), truth))
    assert error < 1.5 * best + 1e-6


def test_nothing_else_is_changed() -> None:
    data, networks = graph64(), several(lambda: still("gin"), 3)
    target, *sources = networks
    sources[0].train()
    sources[1].convs[0].requires_grad_(False)
    target.train()
    target.head.bias.requires_grad_(False)
    before = [copy.deepcopy(n) for n in networks]
    x, edges = data.x.clone(), data.edge_index.clone()
    exchange(target, sources, strategy="functional", data=data)
    for n, b in zip(networks, before, strict=True):
        assert [m.training for m in n.modules()] == [m.training for m in b.modules()]
        assert [p.requires_grad for p in n.parameters()] == [p.requires_grad for p in b.parameters()]
        assert all(p.grad is None for p in n.parameters())
        assert not any(m._forward_hooks for m in n.modules())
    assert same(sources[0], before[1])
    assert same(sources[1], before[2])
    assert not same(target, before[0])
    assert torch.equal(data.x, x)
    assert torch.equal(data.edge_index, edges)


def test_modes_of_parts_are_restored() -> None:
    """A network whose norms are frozen in evaluation mode stays so."""
    data, (target, source) = graph64(), several(lambda: still("gin"), 2)
    for n in (target, source):
        n.train()
        n.convs[0].nn[1].eval()
    before = [[m.training for m in n.modules()] for n in (target, source)]
    exchange(target, source, strategy="functional", data=data)
    assert [[m.training for m in n.modules()] for n in (target, source)] == before


def test_dropout_and_norms_are_as_in_evaluation() -> None:
    data, networks = graph64(), several(lambda: still("gin", dropout=0.5), 2)
    quiet, _ = merged(networks, data)
    for n in networks:
        n.train()
    loud, _ = merged(networks, data)
    assert same(quiet, loud)


@pytest.mark.parametrize("name", ["gcn", "gat", "gin"])
def test_it_is_the_same_every_time(name: str) -> None:
    data, networks = graph64(), several(lambda: still(name))
    (first, moves), (second, again) = merged(networks, data), merged(networks, data)
    assert same(first, second)
    assert moves == again


def test_refusals_are_one_line() -> None:
    data, (first, second) = graph64(), several(lambda: still("gcn"), 2)
    state = copy.deepcopy(first.state_dict())

    def by_function(*given: Any, **how: Any) -> str:
        return refusal(lambda: exchange(*given, strategy="functional", **how))

    assert "graph" in by_function(first, second)
    assert "graph" in by_function(first, second, data=[])
    assert "at least one" in by_function(first, [], data=data, keep=False)
    assert "16 channels wanted" in by_function(still("gcn", hidden_channels=16).double(), second, data=data, keep=False)
    assert "architecture" in by_function(first, still("gcn", num_layers=3).double(), data=data)
    assert "one network" in refusal(lambda: exchange(first, [second, second]))
    assert "one graph" in refusal(lambda: exchange(first, second, data=[data]))
    assert "ring" in refusal(lambda: exchange_ring([first, second], strategy="functional"))
    assert all(torch.equal(v, state[k]) for k, v in first.state_dict().items())


def test_networks_that_give_other_outputs_are_refused() -> None:
    data = graph64()
    assert refusal(
        lambda: exchange(
            Net(5, 3, 4).double(), [Net(5, 2, 4).double(), Net(5, 2, 4).double()], strategy="functional", data=data
        )
    )


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 6), gcn(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.b(self.a(x).relu(), edge_index).relu()
        return self.c(self.b(h, edge_index).relu())


class Added(nn.Module):
    """Hidden channels are added to the features, which do not move."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = gcn(5, 6), gcn(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.c(x + self.b(self.a(x, edge_index).relu(), edge_index).relu())


class Tied(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.other = self.b

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.c(self.b(self.a(x).relu()).relu())


class ByName(nn.Module):
    """Layers are called with keywords only."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = gat(5, 3, heads=2), gat(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.b(x=self.a(x=x, edge_index=edge_index).relu(), edge_index=edge_index)


class Normed(nn.Module):
    """Outputs are normed, in each network by what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = gcn(5, 6), gcn(6, 3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.norm(self.b(self.a(x, edge_index).relu(), edge_index))


class WithEdges(nn.Module):
    """Attention that looks at edge features, in a hidden layer or in the last."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.last = last
        self.a = gat(5, 4, heads=2, edge_dim=None if last else 2)
        self.b = gat(8, 3, edge_dim=2 if last else None)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        first, second = (None, edge_attr) if self.last else (edge_attr, None)
        return self.b(self.a(x, edge_index, first).relu(), edge_index, second)


class ShowsAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = gat(5, 6), gcn(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h, _ = self.a(x, edge_index, return_attention_weights=True)
        return self.b(h.relu(), edge_index)


@pytest.mark.parametrize(
    ("build", "told"),
    [
        (Normed, "norm.weight: differs after the output layer"),
        (lambda: WithEdges(True), "b: outputs whose attention looks at edge features"),
        (ShowsAttention, "a: gives a tuple, expected a tensor"),
        (Tied, "b.weight, other.weight: are one parameter"),
    ],
)
def test_what_would_come_out_wrong_is_refused(build: Callable[[], nn.Module], told: str) -> None:
    data = graph()
    data.edge_attr = torch.rand(data.edge_index.shape[1], 2)
    one, other = awake(build()), awake(build(), 4)
    before = copy.deepcopy(one)
    assert refusal(lambda: exchange(one, other, strategy="functional", data=data)).startswith(told)
    assert same(one, before)


@pytest.mark.parametrize(
    "given", [{"channels": 8}, {"bins": 20}, {"layers": "hidden"}, {"map": ChannelMap((), {}, {})}]
)
def test_what_a_merge_has_no_use_for_is_refused(given: dict[str, Any]) -> None:
    one, other = (awake(Stack(gcn(5, 6), gcn(6, 3)), seed) for seed in (3, 4))
    told = refusal(lambda: exchange(one, other, strategy="functional", data=graph(), **given))
    assert told == f"{next(iter(given))}: not for strategy 'functional', which makes every channel of the target anew"


def test_hidden_attention_that_looks_at_edges_is_merged() -> None:
    data = graph()
    data.edge_attr = torch.rand(data.edge_index.shape[1], 2)
    one = awake(WithEdges(False))
    before = one(data.x, data.edge_index, data.edge_attr)
    exchange(one, copy.deepcopy(one), strategy="functional", data=data)
    assert torch.allclose(one(data.x, data.edge_index, data.edge_attr), before, atol=1e-4)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16, torch.float64])
def test_networks_of_other_precisions_are_merged_in_one_that_is_fine_enough(precision: torch.dtype) -> None:
    data = graph()
    one, other = (awake(Stack(gcn(5, 6), gcn(6, 3)), seed) for seed in (3, 4))
    with torch.no_grad():
        for p in (*one.parameters(), *other.parameters()):
            p.copy_(p.to(torch.bfloat16))  # so that what is merged is the same in all precisions
    wide = copy.deepcopy(one)
    exchange(wide, other, strategy="functional", data=data)
    exchange(one.to(precision), other, strategy="functional", data=data)  # one of them as it was
    assert {p.dtype for p in one.parameters()} == {precision}
    room = 2 * torch.finfo(precision).eps if precision != torch.float64 else 1e-4
    for mine, its in zip(one.parameters(), wide.parameters(), strict=True):
        assert torch.allclose(mine.float(), its, rtol=room, atol=room)


class OneNumber(nn.Module):
    """One output per node, without an axis of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = gcn(5, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.b(self.a(x, edge_index).relu()).squeeze(-1)


gat2 = pyg.GATv2Conv
AWKWARD: dict[str, Callable[[], nn.Module]] = {
    "unet": lambda: still("unet"),
    "called twice": Twice,
    "added to features": Added,
    "tied": Tied,
    "by name": ByName,
    "one number": OneNumber,
    "averaged hidden heads": lambda: Stack(gat(5, 4, heads=2, concat=False), gat(4, 3), act=elu),
    "outputs of heads side by side": lambda: Stack(gat(5, 4, heads=2), gat(8, 2, heads=2), act=elu),
    "attention with a residual": lambda: Stack(gat(5, 4, heads=2, residual=True), gat(8, 3, residual=True)),
    "gatv2": lambda: Stack(gat2(5, 4, heads=2), gat2(8, 3)),
    "gatv2, shared": lambda: Stack(gat2(5, 4, heads=2, share_weights=True), gat2(8, 3, share_weights=True)),
    "mixhop at the end": lambda: Stack(pyg.MixHopConv(5, 4), pyg.MixHopConv(12, 1)),
    "lstm": lambda: pyg.GCN(5, 6, 3, 3, jk="lstm"),
    "unit length": lambda: Stack(sage(5, 6, normalize=True), sage(6, 3, normalize=True)),
    "projected": lambda: Stack(sage(5, 6, project=True), sage(6, 3, project=True)),
    "layer norm": lambda: Stack(gcn(5, 6), gcn(6, 3), norms=[nn.LayerNorm(6)]),
    "pair norm": lambda: Stack(gcn(5, 6), gcn(6, 3), norms=[pyg.PairNorm()]),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_what_cannot_be_done_right_is_refused_in_one_line(name: str) -> None:
    """Copies must make that network; different ones something better than a constant. Or there is a line, and no
    network is changed."""
    data, networks = graph64(), several(AWKWARD[name])
    before, lines = copy.deepcopy(networks), []
    for pool in ([networks[0]] * 3, networks):
        mean = torch.stack([outputs(n, data) for n in pool]).mean(0)
        try:
            made, _ = merged(pool, data)
        except AkeError as e:
            lines.append(str(e))
            continue
        error = outputs(made, data) - mean
        if pool is networks:
            assert error.square().mean() < 0.5 * (mean - mean.mean(0)).square().mean()
        else:
            assert error.abs().max() < 1e-5
    assert all(same(n, b) for n, b in zip(networks, before, strict=True))
    assert not any("\n" in line for line in lines)


def test_heads_of_another_width_are_refused_or_right() -> None:
    data = graph64()
    for target, source in (
        ({"heads": 2, "hidden_channels": 4}, {"heads": 2, "hidden_channels": 8}),
        ({"heads": 2, "hidden_channels": 8}, {"heads": 2, "hidden_channels": 4}),
        ({"heads": 2, "hidden_channels": 4}, {"heads": 4, "hidden_channels": 4}),
        ({"heads": 4, "hidden_channels": 2}, {"heads": 2, "hidden_channels": 4}),
    ):
        made = awake(still("gat", **target).double())
        sources = several(lambda source=source: still("gat", **source), 2)  # type: ignore[misc]
        mean = torch.stack([outputs(n, data) for n in sources]).mean(0)
        for keep in (False, True):
            one = copy.deepcopy(made)
            want = (mean * 2 + outputs(one, data)) / 3 if keep else mean
            try:
                exchange(one, sources, strategy="functional", data=data, keep=keep)
            except AkeError:
                continue
            assert (outputs(one, data) - want).square().mean() < 0.5 * (want - want.mean(0)).square().mean()


def test_channels_are_looked_at_where_labels_play_no_part() -> None:
    data, networks = graph64(), several(lambda: still("gcn"))
    other = copy.copy(data)
    other.y = one_hot(data.y).argmin(1)
    assert same(merged(networks, data)[0], merged(networks, other)[0])


class Beside(nn.Module):
    """Two layers added up, and a third beside their sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two, self.three = (pyg.GCNConv(5, width) for _ in range(3))
        self.last = nn.Linear(2 * width, 3)

    def forward(self, x, edge_index):
        added = (self.one(x, edge_index) + self.two(x, edge_index)).relu()
        return self.last(torch.cat([added, self.three(x, edge_index).relu()], dim=-1))


def test_a_stream_beside_another_layer_at_another_width():
    """Columns that two layers share are narrowed once: what lies after them is found where it is."""
    torch.manual_seed(0)
    source, target = Beside(6).double(), Beside(3).double()
    with torch.no_grad():  # half of the channels say nothing
        for layer in (source.one, source.two, source.three):
            layer.lin.weight[3:] = 0
            layer.bias[3:] = 0
    data = graph()
    data.x = data.x.double()
    exchange(target, [source], strategy="functional", data=data, keep=False)
    with torch.no_grad():
        assert torch.allclose(target(data.x, data.edge_index), source(data.x, data.edge_index), atol=1e-6)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda a, b, d: exchange(a, [], strategy="functional", data=d), "source: at least one"),
        (lambda a, b, d: exchange(a, b, strategy="functional", data=d.x), "data: must be a graph"),
        (lambda a, b, d: exchange(a, b, strategy="functional", data=[d, None]), "data: must be a graph"),
        (lambda a, b, d: exchange(a, b, strategy="functional", data=broken(d)), "data.x: contains NaN"),
        (lambda a, b, d: exchange(a, b, keep=False), "keep: only for strategy 'functional'"),
        (lambda a, b, d: exchange(a, b, inner=True), "inner: only for strategy 'functional'"),
        (lambda a, b, d: exchange(Beside(3), Beside(6), strategy="functional", data=d), "one: added to other layers"),
        (lambda a, b, d: exchange("a", b), "target: must be a torch.nn.Module, is a str"),
        (
            lambda a, b, d: exchange(a, None, strategy="functional", data=d),
            "source: must be a torch.nn.Module, is a None",
        ),
        (lambda a, b, d: exchange(a, b.state_dict()), "source: must be a torch.nn.Module, is a OrderedDict"),
        (
            lambda a, b, d: exchange(a, [b, Beside(4)], strategy="functional", data=d),
            "source: not of the target's architecture (",
        ),
        (
            lambda a, b, d: exchange(pyg.GCN(5, 4, 2), pyg.GraphSAGE(5, 4, 2), strategy="functional", data=d),
            "source: not of the target's architecture (convs.0 is SAGEConv, in the target GCNConv)",
        ),
    ],
    ids=[
        *("no source", "features", "a list with a hole", "nan", "keep", "inner", "widths of a stream"),
        *("str", "none", "state", "another network", "another layer"),
    ],
)
def test_more_that_is_refused(call, said):
    assert refusal(lambda: call(Net(5, 3, 4), Net(5, 3, 4), graph())).startswith(said)


def broken(data: Data) -> Data:
    data.x[0, 0] = torch.nan
    return data


class Masked(nn.Module):
    """Has a buffer that is no weight and not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = pyg.GCNConv(5, 4), pyg.GCNConv(4, 3)
        self.register_buffer("mask", torch.tensor(-torch.inf))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.first(x, edge_index).relu(), edge_index) + self.mask.exp()


def test_a_buffer_that_is_no_weight_may_be_anything():
    networks = [Masked() for _ in range(2)]
    assert exchange(networks[0], networks[1:], strategy="functional", data=graph())
    assert networks[0].mask == -torch.inf


def test_sources_may_be_any_iterable():
    networks = [pyg.GCN(5, 4, 2, 3) for _ in range(3)]
    by_list, by_generator = (copy.deepcopy(networks[0]) for _ in range(2))
    exchange(by_list, networks[1:], strategy="functional", data=graph())
    exchange(by_generator, (n for n in networks[1:]), strategy="functional", data=graph())
    assert all(torch.equal(v, by_generator.state_dict()[k]) for k, v in by_list.state_dict().items())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("who", [0, 1])
def test_weights_that_are_not_finite_are_refused(value, who):
    """They would make all of the network that is made so; nothing is changed."""
    networks = [pyg.GCN(5, 4, 2, 3) for _ in range(2)]
    with torch.no_grad():
        networks[who].convs[1].bias[0] = value
    before = copy.deepcopy(networks[0].state_dict())
    said = refusal(lambda: exchange(*networks, strategy="functional", data=graph()))
    assert said == "convs.1.bias: weights must be finite to be exchanged, found NaN or infinity"
    assert all(torch.equal(v.nan_to_num(), before[k].nan_to_num()) for k, v in networks[0].state_dict().items())


def test_graphs_are_seen_in_the_networks_precision():
    networks = [pyg.GCN(5, 4, 2, 3).double() for _ in range(2)]
    data = graph()
    assert data.x.dtype == torch.float32
    exchange(*networks, strategy="functional", data=data)
    assert data.x.dtype == torch.float32
    assert {v.dtype for v in networks[0].state_dict().values()} == {torch.float64}


def test_of_very_many_rows_some_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the pool needs, the same ones each time; with fewer than that, all of them."""
    data = graph(600)
    data.x = data.x.double()
    networks = several(lambda: still("gcn", hidden_channels=6), 3)
    mean = torch.stack([outputs(n, data) for n in networks]).mean(0)

    def made() -> Tensor:
        one, *rest = copy.deepcopy(networks)
        exchange(one, rest, strategy="functional", data=data)
        return outputs(one, data)

    whole = made()
    monkeypatch.setattr(functional, "PER_COLUMN", 1)
    monkeypatch.setattr(functional, "ROWS", 600)
    assert torch.equal(made(), whole)
    monkeypatch.setattr(functional, "ROWS", 150)
    part = made()
    assert torch.equal(made(), part)
    assert not torch.equal(part, whole)
    assert (part - mean).square().mean() < 1.5 * (whole - mean).square().mean()


@pytest.mark.parametrize(("target", "sources"), [(16, (16, 8)), (16, (8, 16)), (32, (16, 16)), (8, (16, 16))])
def test_a_single_head_of_another_width_is_refused_in_a_plain_line(target: int, sources: tuple[int, ...]) -> None:
    def gat(width: int) -> nn.Module:
        return pyg.GAT(5, width, 2, 3)

    message = refusal(
        lambda: exchange(gat(target), map(gat, sources), strategy="functional", data=graph64(), keep=False)
    )
    wide = " and ".join(map(str, sorted({target, *sources})))
    assert message == f"convs.0: heads of {wide} channels; by function all heads must be as wide"


def test_why_networks_cannot_be_merged_is_known_without_training() -> None:
    before = torch.get_rng_state()
    assert why_not_merged(pyg.GCN(5, 8, 2, 3), pyg.GCN(5, 16, 2, 3)) == ""
    assert why_not_merged(pyg.GAT(5, 8, 2, 3, v2=True, heads=2)).endswith("cannot be exchanged by function")

    class Normed(pyg.GCN):
        def __init__(self) -> None:
            super().__init__(5, 8, 2, 3)
            self.after = nn.BatchNorm1d(3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
            return self.after(super().forward(x, edge_index))

    assert "differs after the output layer" in why_not_merged(Normed())
    torch.set_rng_state(before)
    network = pyg.GCN(5, 8, 2, 3)
    state = copy.deepcopy(network.state_dict())
    assert why_not_merged(network) == ""
    assert all(torch.equal(v, state[k]) for k, v in network.state_dict().items())
