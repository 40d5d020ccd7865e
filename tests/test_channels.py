"""Channel maps of many models, each proven here by a permutation that shares no code with the package's own proof."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from akegnn.channels import RULES, Layer, Rule, Slot, channel_map, explain
from akegnn.errors import AkeError
from small import refusal


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors this small only lose by threads, and on a busy machine they lose a lot."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ---- a proof of our own ----------------------------------------------------------------------------------------------


def graph(features=4, nodes=14):
    g = torch.Generator().manual_seed(5)
    around = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
    chords = torch.stack([torch.arange(0, nodes, 3), (torch.arange(0, nodes, 3) + 6) % nodes])
    edges = torch.cat([around, around.flip(0), chords, chords.flip(0)], 1)
    return Data(
        x=torch.randn(nodes, features, generator=g, dtype=torch.float64),
        edge_index=edges,
        edge_attr=torch.randn(edges.shape[1], 5, generator=g, dtype=torch.float64),
        batch=torch.arange(nodes) // 7,
    )


def run(model, data):
    wanted = inspect.signature(model.forward).parameters
    with torch.no_grad():
        return model(data) if "data" in wanted else model(**{k: v for k, v in data.items() if k in wanted})


def float_tensors(model):
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: t for name, t in named if t.is_floating_point()}


def randomised(model, seed=0):
    """A float64 copy for evaluation with all parameters and statistics random: a zero bias, a unit norm or a fresh
    running mean would hide that it was forgotten. Scaled so that no activation dies or saturates."""
    model = copy.deepcopy(model).double().eval()
    g = torch.Generator().manual_seed(seed)
    for name, t in float_tensors(model).items():
        noise = torch.randn(t.shape, generator=g, dtype=torch.float64)
        t.data = (
            noise.abs() + 0.5 if name.endswith("running_var") else noise / math.sqrt(t.shape[-1] if t.dim() > 1 else 4)
        )
    return model


def derangement(channels, heads, seed=0):
    """Every channel moves, within its head: a random cycle through each."""
    within, orders = channels // heads, []
    g = torch.Generator().manual_seed(seed)
    for head in range(heads):
        cycle = torch.randperm(within, generator=g)
        order = torch.empty(within, dtype=torch.long)
        order[cycle] = cycle.roll(1)
        orders.append(order + head * within)
    return torch.cat(orders)


def permuted(model, moves):
    """The model's copy with, for each (slot, order), the entries of the slot in that order."""
    model = copy.deepcopy(model)
    tensors = float_tensors(model)
    for slot, order in moves:
        t = tensors[slot.name]
        flat = t.data.reshape(*t.shape[: slot.axis], -1, *t.shape[slot.axis + slot.span :])
        index = torch.arange(flat.shape[slot.axis])
        index[slot.start : slot.start + slot.size] = slot.start + order
        t.data = flat.index_select(slot.axis, index).reshape(t.shape)
    return model


def heads_of(model, layer):
    name = layer.name
    return getattr(dict(model.named_modules()).get(name, model), "heads", 1)


def prove(model, layers, data):
    """Permute ``layers`` together by one order and hold the output against what it was."""
    model = randomised(model)
    channels = layers[0].channels
    heads = max(heads_of(model, x) for x in layers)
    order = derangement(channels, heads)
    assert channels // heads > 1, "a proof by the identity would prove nothing"
    own = dict.fromkeys(s for x in layers for s in (*x.weights, *x.travels))
    readers = dict.fromkeys(s for x in layers for s in x.readers)
    before = run(model, data)
    after = run(permuted(model, [(s, order) for s in (*own, *readers)]), data)
    is_output = any(x.output for x in layers)
    if is_output:
        assert before.shape[-1] == channels
    torch.testing.assert_close(after, before[..., order] if is_output else before, rtol=1e-9, atol=1e-9)
    # The proof could have failed: without the readers (or in the old order of the outputs) the model is another one.
    half = run(permuted(model, [(s, order) for s in own]), data)
    assert not torch.allclose(half, before, rtol=1e-4, atol=1e-6)


def prove_all(model, found, data):
    """Prove each layer that stands alone, and the tied ones together; returns the names of the proven."""
    alone = [x for x in found.layers if x.tied is None and x.channels > 1]
    for layer in alone:
        assert layer.readers or layer.output
        prove(model, [layer], data)
    tied = [x for x in found.layers if x.tied and "added" in x.tied and not x.output]
    if tied:
        prove(model, tied, data)
    return {x.name for x in (*alone, *tied)}


def check_explanation(model, found):
    """Every parameter and float buffer once, with its part and a reason, which agrees with the layers."""
    rows = found.explain().rows
    names = [r.tensor for r in rows]
    assert len(names) == len(set(names))
    assert set(names) >= set(float_tensors(model))
    assert set(names) <= set(model.state_dict())
    state, layers = model.state_dict(), {x.name: x for x in found.layers}
    for r in rows:
        assert r.shape == tuple(state[r.tensor].shape)
        assert r.part in ("channels", "travels", "stays")
        assert r.why.strip()
        if r.part == "stays":
            assert r.layer == ""
            assert not any(s.name == r.tensor for x in found.layers for s in (*x.weights, *x.travels))
        else:
            slots = layers[r.layer].weights if r.part == "channels" else layers[r.layer].travels
            assert r.tensor in {s.name for s in slots}


# ---- models ----------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    """Modules by name and a function that runs them."""

    def __init__(self, body, **modules):
        super().__init__()
        self.body = body
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x, edge_index):
        return self.body(self, x, edge_index)


def chain(conv1, conv2, between=F.relu, **modules):
    return Net(lambda m, x, e: m.conv2(between(m.conv1(x, e)), e), conv1=conv1, conv2=conv2, **modules)


def normed(norm, width=6):
    body = lambda m, x, e: m.conv2(m.norm(m.conv1(x, e)).relu(), e)  # noqa: E731
    return Net(body, conv1=pyg.GCNConv(4, width), norm=norm, conv2=pyg.GCNConv(width, 3))


def gcnii(shared=True):
    def body(m, x, edge_index):
        x = first = m.lin1(x).relu()
        for conv in m.convs:
            x = conv(x, first, edge_index).relu()
        return m.lin2(x).log_softmax(-1)

    convs = [pyg.GCN2Conv(6, alpha=0.1, theta=0.5, layer=k + 1, shared_weights=shared) for k in range(3)]
    return Net(body, lin1=nn.Linear(4, 6), convs=nn.ModuleList(convs), lin2=nn.Linear(6, 3))


def residual(in_place=False, norm=None):
    def body(m, x, edge_index):
        x = m.lin1(x).relu()
        for conv in (m.conv1, m.conv2):
            h = conv(m.norm(x) if norm else x, edge_index)
            if in_place:
                h += x
                x = h.relu_()
            else:
                x = (h + x).relu()
        return m.lin2(x)

    convs = {"conv1": pyg.GCNConv(6, 6), "conv2": pyg.SAGEConv(6, 6)}
    return Net(body, lin1=nn.Linear(4, 6), **convs, lin2=nn.Linear(6, 3), **({"norm": norm} if norm else {}))


def gin():
    def mlp(size):
        return nn.Sequential(nn.Linear(size, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5))

    return Net(
        lambda m, x, e: m.lin(m.conv2(m.conv1(x, e).relu(), e).relu()),
        conv1=pyg.GINConv(mlp(4), train_eps=True),
        conv2=pyg.GINConv(mlp(5)),
        lin=nn.Linear(5, 3),
    )


class MLP(nn.Module):
    def __init__(self, out=3):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, out))

    def forward(self, x):
        return self.layers(x)


class GraphLevel(nn.Module):
    def __init__(self, pool=pyg.global_mean_pool):
        super().__init__()
        self.conv, self.lin1, self.lin2, self.pool = pyg.GCNConv(4, 6), nn.Linear(6, 5), nn.Linear(5, 3), pool

    def forward(self, x, edge_index, batch):
        return self.lin2(self.lin1(self.pool(self.conv(x, edge_index).relu(), batch)).relu())


class TakesData(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(4, 6), pyg.GCNConv(6, 3)

    def forward(self, data):
        return self.conv2(self.conv1(data.x, data.edge_index).relu(), data.edge_index)


class WithEdgeAttributes(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = pyg.GATConv(4, 3, heads=2, edge_dim=5)
        self.conv2 = pyg.GATv2Conv(6, 3, edge_dim=5)

    def forward(self, x, edge_index, edge_attr):
        return self.conv2(self.conv1(x, edge_index, edge_attr).relu(), edge_index, edge_attr)


def concatenated():
    """Two layers side by side under one norm."""

    def body(m, x, edge_index):
        first = m.conv1(x, edge_index).relu()
        return m.lin(m.norm(torch.cat([first, m.conv2(first, edge_index).relu()], -1)))

    convs = {"conv1": pyg.GCNConv(4, 6), "conv2": pyg.GCNConv(6, 5)}
    return Net(body, **convs, norm=nn.BatchNorm1d(11), lin=nn.Linear(11, 3))


def repeated():
    """One layer called twice, so that it reads its own channels."""

    def body(m, x, edge_index):
        x = m.lin1(x).relu()
        for _ in range(2):
            x = m.conv(x, edge_index).relu()
        return m.lin2(x)

    return Net(body, lin1=nn.Linear(4, 6), conv=pyg.GCNConv(6, 6), lin2=nn.Linear(6, 3))


@dataclass
class Case:
    """A model and which of its layers must be found: on their own, tied to others, as the output; ``free``: either."""

    make: object
    whole: set = field(default_factory=lambda: {"conv1"})
    tied: set = field(default_factory=set)
    output: set = field(default_factory=lambda: {"conv2"})
    free: set = field(default_factory=set)
    data: Data | None = None


def names(*numbers, pattern="convs.{}"):
    return {pattern.format(k) for k in numbers}


CONVS = {
    "gcn": (pyg.GCNConv(4, 6), pyg.GCNConv(6, 3)),
    "gcn no bias": (pyg.GCNConv(4, 6, bias=False), pyg.GCNConv(6, 3, bias=False)),
    "gat concat": (pyg.GATConv(4, 5, heads=2), pyg.GATConv(10, 3)),
    "gat residual": (pyg.GATConv(4, 5, heads=2, residual=True), pyg.GATConv(10, 3, residual=True)),
    "gat output": (pyg.GATConv(4, 5, heads=2), pyg.GATConv(10, 3, heads=3, concat=False)),
    # What reads by a residual weight of its own shape reads all the same.
    "gat output residual": (pyg.GATConv(4, 5, heads=2), pyg.GATConv(10, 3, heads=3, concat=False, residual=True)),
    "gatv2": (pyg.GATv2Conv(4, 5, heads=2), pyg.GATv2Conv(10, 3)),
    "gatv2 shared": (pyg.GATv2Conv(4, 5, heads=2, share_weights=True), pyg.GATv2Conv(10, 3, share_weights=True)),
    "gatv2 residual": (pyg.GATv2Conv(4, 5, heads=2, residual=True), pyg.GATv2Conv(10, 3, residual=True)),
    "gatv2 output residual": (pyg.GATv2Conv(4, 6), pyg.GATv2Conv(6, 3, heads=2, concat=False, residual=True)),
    "sage": (pyg.SAGEConv(4, 6), pyg.SAGEConv(6, 3)),
    "sage no root": (pyg.SAGEConv(4, 6, root_weight=False), pyg.SAGEConv(6, 3, root_weight=False, normalize=True)),
    "sage project": (pyg.SAGEConv(4, 6, project=True), pyg.GCNConv(6, 3)),
    "sgc": (pyg.SGConv(4, 6, K=2), pyg.SGConv(6, 3)),
    "tag": (pyg.TAGConv(4, 6, K=2), pyg.TAGConv(6, 3, K=2)),
    "cheb": (pyg.ChebConv(4, 6, K=3), pyg.ChebConv(6, 3, K=2)),
    "graph conv": (pyg.GraphConv(4, 6), pyg.GraphConv(6, 3)),
}
NORMS = {
    "torch batch": nn.BatchNorm1d(6),
    "torch batch plain": nn.BatchNorm1d(6, affine=False),
    "torch layer": nn.LayerNorm(6),
    "torch group of all": nn.GroupNorm(1, 6),
    "batch": pyg.BatchNorm(6),
    "layer": pyg.LayerNorm(6),
    "layer by node": pyg.LayerNorm(6, mode="node"),
    "graph": pyg.GraphNorm(6),
    "instance": pyg.InstanceNorm(6, affine=True),
    "instance tracked": pyg.InstanceNorm(6, affine=True, track_running_stats=True),
    "pair": pyg.PairNorm(),
    "pair by node": pyg.PairNorm(scale_individually=True),
    "prelu": nn.PReLU(6),
    "prelu of one number": nn.PReLU(),
}
GIN_LAYERS = {"conv1.nn.0", "conv1.nn.3", "conv2.nn.0", "conv2.nn.3"}
CASES = {
    **{name: Case(lambda pair=pair: chain(*copy.deepcopy(pair))) for name, pair in CONVS.items()},
    **{f"norm {name}": Case(lambda norm=norm: normed(copy.deepcopy(norm))) for name, norm in NORMS.items()},
    # A projection in the second layer hides what reads the first; leaving it out is allowed, mangling it is not.
    "sage project twice": Case(
        lambda: chain(pyg.SAGEConv(4, 6, project=True), pyg.SAGEConv(6, 3, project=True)), set(), free={"conv1"}
    ),
    "gat mean": Case(lambda: chain(pyg.GATConv(4, 5, heads=2, concat=False), pyg.GCNConv(5, 3)), set(), {"conv1"}),
    "gin": Case(gin, GIN_LAYERS, output={"lin"}),
    "gcnii": Case(gcnii, set(), {"lin1", *names(0, 1, 2)}, {"lin2"}),
    "gcnii two weights": Case(lambda: gcnii(shared=False), set(), {"lin1", *names(0, 1, 2)}, {"lin2"}),
    "mixhop": Case(lambda: chain(pyg.MixHopConv(4, 5), pyg.GCNConv(15, 3)), names(0, 1, 2, pattern="conv1.lins.{}")),
    "appnp": Case(
        lambda: Net(
            lambda m, x, e: m.prop(m.lin2(m.lin1(x).relu()), e),
            lin1=nn.Linear(4, 6),
            lin2=pyg.Linear(6, 3),
            prop=pyg.APPNP(3, 0.1),
        ),
        {"lin1"},
        output={"lin2"},
    ),
    "log softmax": Case(
        lambda: Net(
            lambda m, x, e: m.conv2(m.conv1(x, e).relu(), e).log_softmax(-1),
            conv1=pyg.GCNConv(4, 6),
            conv2=pyg.GCNConv(6, 3),
        )
    ),
    "residual": Case(residual, set(), {"lin1", "conv1", "conv2"}, {"lin2"}),
    "residual in place": Case(lambda: residual(in_place=True), set(), {"lin1", "conv1", "conv2"}, {"lin2"}),
    "repeated": Case(repeated, set(), {"lin1", "conv"}, {"lin2"}),
    "concatenated": Case(concatenated, {"conv1", "conv2"}, output={"lin"}),
    "mlp": Case(MLP, {"layers.0"}, output={"layers.3"}),
    "graph level": Case(GraphLevel, {"conv", "lin1"}, output={"lin2"}),
    "graph level max": Case(lambda: GraphLevel(pyg.global_max_pool), {"conv", "lin1"}, output={"lin2"}),
    "takes data": Case(TakesData),
    "edge attributes": Case(WithEdgeAttributes, data=graph()),
    "a bare layer": Case(lambda: pyg.GCNConv(4, 3), set(), output={"GCNConv"}),
    "a width of two": Case(lambda: chain(pyg.GCNConv(4, 2), pyg.GCNConv(2, 2))),
    "tanh and many features": Case(lambda: chain(pyg.GCNConv(64, 6), pyg.GCNConv(6, 3), torch.tanh), data=graph(64)),
}


def basic(kind, jk, norm):
    """One of PyG's ready-made networks of three layers."""
    heads = {"heads": 2} if kind is pyg.GAT else {}
    inner = "convs.{}.nn.lins.1" if kind is pyg.GIN else "convs.{}"
    hidden = names(0, 1, 2, pattern="convs.{}.nn.lins.0") if kind is pyg.GIN else set()
    last = {None: names(2, pattern=inner)}.get(jk, {"lin"})
    convs = names(0, 1, 2, pattern=inner) - last
    tied = convs if jk in ("max", "lstm") else set()
    return Case(lambda: kind(4, 6, 3, 3, jk=jk, norm=norm, **heads), hidden | (convs - tied), tied, last)


CASES |= {
    f"{kind.__name__} {jk} {norm}": basic(kind, jk, norm)
    for kind in (pyg.GCN, pyg.GAT, pyg.GraphSAGE, pyg.GIN)
    for jk in (None, "cat", "max", "lstm")
    for norm in (None, "batch", "layer", "graph")
}


@functools.cache
def built(name):
    """Model and map of a case, found once for all tests that look at them."""
    torch.manual_seed(0)
    model = CASES[name].make()
    return model, channel_map(model, CASES[name].data)


def layer_of(found, name):
    return next(x for x in found.layers if x.name == name)


# ---- what holds for every model --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_layers_are_found_and_proven(name):
    case, (model, found) = CASES[name], built(name)
    assert {x.name for x in found.layers if x.output} == case.output
    assert {x.name for x in found.layers if x.tied and not x.output} - case.free == case.tied
    assert {x.name for x in found.layers if not x.tied and not x.output} - case.free == case.whole
    proven = prove_all(model, found, case.data or graph())
    # Heads that share one output are permuted in a test of their own.
    by_heads = {x.name for x in found.layers if x.tied and "heads" in x.tied}
    assert proven == {x.name for x in found.layers} - by_heads


@pytest.mark.parametrize("name", CASES)
def test_every_tensor_is_explained_once(name):
    check_explanation(*built(name))


@pytest.mark.parametrize("name", CASES)
def test_slots_fit_their_tensors(name):
    """A layer's weights have as many rows as it has channels; its inputs are the other axis of the same weights."""
    model, found = built(name)
    tensors = float_tensors(model)
    for layer in found.layers:
        assert [s.size for s in (*layer.weights, *layer.travels)] == [layer.channels] * len(
            layer.weights + layer.travels
        )
        assert [s.name for s in layer.inputs] == [s.name for s in layer.weights]
        assert all(i.axis == 1 - w.axis for i, w in zip(layer.inputs, layer.weights, strict=True))
        for s in (*layer.weights, *layer.inputs, *layer.travels, *layer.readers):
            assert s.start + s.size <= math.prod(tensors[s.name].shape[s.axis : s.axis + s.span])
            rows = s.rows(tensors[s.name], lead=0)
            assert rows.shape[0] == s.size
            assert rows.numel() == s.size * math.prod(tensors[s.name].shape) // math.prod(
                tensors[s.name].shape[s.axis : s.axis + s.span]
            )


# ---- what is particular to some --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gcnii", "gcnii two weights"])
def test_gcn2_has_its_output_on_axis_one(name):
    _, found = built(name)
    for k in range(3):
        layer = layer_of(found, f"convs.{k}")
        expected = ["weight1"] if name == "gcnii" else ["weight1", "weight2"]
        assert [s.name for s in layer.weights] == [f"convs.{k}.{n}" for n in expected]
        assert {s.axis for s in layer.weights} == {1}
        assert {s.axis for s in layer.inputs} == {0}
        assert ("convs.0.weight1", 0) not in {(s.name, s.axis) for s in layer.readers}, "the first reads lin1 only"
    readers = {(s.name, s.axis) for s in layer_of(found, "lin1").readers}
    assert readers >= {*((f"convs.{k}.weight1", 0) for k in range(3)), ("lin2.weight", 1)}


def test_gcn2_makes_a_column_of_its_output_from_a_column_of_its_weight():
    """Both axes of its weight permute alike, so only this tells the output from the input."""
    conv, data = pyg.GCN2Conv(4, alpha=0.1).double(), graph()
    before = conv(data.x, data.x, data.edge_index)
    conv.weight1.data[:, 2] += 1
    changed = (conv(data.x, data.x, data.edge_index) != before).any(0)
    assert changed.tolist() == [False, False, True, False]


@pytest.mark.parametrize("name", ["gcnii", "gcnii two weights", "residual", "residual in place", "repeated"])
def test_a_residual_stream_ties_its_layers(name):
    _, found = built(name)
    assert all(x.tied for x in found.layers if not x.output)
    assert {x.name for x in found.chosen()} == {x.name for x in found.layers}, "channels can be exchanged all the same"
    with pytest.raises(AkeError, match=r"neuron.*added"):
        found.whole_neurons(found.chosen())


def test_a_norm_on_a_residual_stream_belongs_to_nobody():
    model = residual(norm=nn.BatchNorm1d(6))
    found = channel_map(model)
    assert {x.name for x in found.layers if x.tied} == {"lin1", "conv1", "conv2"}
    row = next(r for r in found.explain().rows if r.tensor == "norm.running_mean")
    assert (row.part, row.layer) == ("stays", "")
    assert "shared by lin1" in row.why


def test_whole_neurons_are_the_hidden_layers_that_stand_alone():
    _, found = built("gcn")
    assert [x.name for x in found.whole_neurons(found.chosen())] == ["conv1"]
    with pytest.raises(AkeError, match="neuron"):
        found.whole_neurons([layer_of(found, "conv2")])


@pytest.mark.parametrize("kind", [pyg.GATConv, pyg.GATv2Conv])
@pytest.mark.parametrize("with_residual", [False, True])
def test_heads_that_are_averaged_share_a_bias_that_stays(kind, with_residual):
    model = chain(kind(4, 5, heads=2, concat=False, residual=with_residual), pyg.GCNConv(5, 3))
    found = channel_map(model)
    layer = layer_of(found, "conv1")
    assert (layer.channels, layer.output) == (10, False)
    assert "heads" in layer.tied
    shared = ["conv1.bias", *(["conv1.res.weight"] if with_residual else [])]
    for r in found.explain().rows:
        if r.tensor in shared:
            assert (r.part, r.layer) == ("stays", "")
            assert "heads" in r.why
    # Proof: both heads in one order, with the shared entries and the reader.
    order = derangement(5, 1)
    moves = [(s, torch.cat([order, order + 5])) for s in (*layer.weights, *layer.travels)]
    moves += [(s, order) for s in layer.readers]
    model, data = randomised(model), graph()
    before = run(model, data)
    after = run(permuted(model, moves + [(Slot(n, 0, 5), order) for n in shared]), data)
    torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(run(permuted(model, moves), data), before, rtol=1e-4)


def test_heads_that_are_concatenated_have_attention_entries_that_travel():
    _, found = built("gat concat")
    layer = layer_of(found, "conv1")
    assert {(s.name, s.axis, s.span, s.size) for s in layer.travels} == {
        ("conv1.att_src", 1, 2, 10),
        ("conv1.att_dst", 1, 2, 10),
        ("conv1.bias", 0, 1, 10),
    }


def test_shared_weights_are_one_weight():
    _, found = built("gatv2 shared")
    assert [s.name for s in layer_of(found, "conv1").weights] == ["conv1.lin_l.weight"]


def test_sage_weights_lie_side_by_side():
    _, found = built("sage")
    layer = layer_of(found, "conv1")
    assert [s.name for s in layer.weights] == ["conv1.lin_l.weight", "conv1.lin_r.weight"]
    assert {s.name for s in layer.readers} == {"conv2.lin_l.weight", "conv2.lin_r.weight"}


def test_mixhop_powers_are_layers_of_their_own():
    _, found = built("mixhop")
    for k in range(3):
        layer = layer_of(found, f"conv1.lins.{k}")
        assert layer.weights == (Slot(f"conv1.lins.{k}.weight", 0, 5),)
        assert layer.travels == (Slot("conv1.bias", 0, 5, start=5 * k),)
        assert layer.readers == (Slot("conv2.lin.weight", 1, 5, start=5 * k),)


@pytest.mark.parametrize("norm", [None, "batch"])
def test_jumping_knowledge_is_read_twice(norm):
    _, found = built(f"GCN cat {norm}")
    read = {k: {(s.name, s.start, s.size) for s in layer_of(found, f"convs.{k}").readers} for k in range(3)}
    assert read[0] == {("convs.1.lin.weight", 0, 6), ("lin.weight", 0, 6)}
    assert read[1] == {("convs.2.lin.weight", 0, 6), ("lin.weight", 6, 6)}
    assert read[2] == {("lin.weight", 12, 6)}


def test_side_by_side_layers_take_their_part_of_the_norm():
    _, found = built("concatenated")
    for name, start, size in (("conv1", 0, 6), ("conv2", 6, 5)):
        parts = {s.name: (s.start, s.size) for s in layer_of(found, name).travels if s.name.startswith("norm.")}
        assert parts == dict.fromkeys(
            [f"norm.{n}" for n in ("weight", "bias", "running_mean", "running_var")], (start, size)
        )


@pytest.mark.parametrize(
    ("name", "prefix", "layer"),
    [
        ("norm torch batch", "norm.", "conv1"),
        ("norm batch", "norm.module.", "conv1"),
        ("gin", "conv1.nn.1.", "conv1.nn.0"),
    ],
)
def test_running_statistics_travel(name, prefix, layer):
    _, found = built(name)
    travels = {s.name for s in layer_of(found, layer).travels}
    assert travels >= {prefix + n for n in ("weight", "bias", "running_mean", "running_var")}
    parts = {r.tensor: (r.part, r.layer) for r in found.explain().rows}
    assert parts[prefix + "running_var"] == ("travels", layer)
    assert parts[prefix + "num_batches_tracked"] == ("stays", "")


def test_a_norm_of_the_input_stays():
    model = Net(lambda m, x, e: m.conv2(m.conv1(m.norm(x), e), e), norm=nn.BatchNorm1d(4), conv1=pyg.GCNConv(4, 6),
                conv2=pyg.GCNConv(6, 3))  # fmt: skip
    found = channel_map(model, graph())
    assert prove_all(model, found, graph()) == {"conv1", "conv2"}
    row = next(r for r in found.explain().rows if r.tensor == "norm.weight")
    assert row.part == "stays"
    assert "norm" in row.why


def test_hidden_is_all_but_the_output():
    _, found = built("gcn")
    assert [x.name for x in found.chosen("all")] == ["conv1", "conv2"]
    assert [x.name for x in found.chosen("hidden")] == ["conv1"]
    with pytest.raises(AkeError, match="'some'"):
        found.chosen("some")


# ---- couplings that the rules do not know ----------------------------------------------------------------------------


class Scaled(nn.Module):
    """A bare vector between two layers: the order of the channels matters, and no rule says so."""

    def __init__(self, conv1=None, act=F.relu, end=lambda x: x, scale=None):
        super().__init__()
        self.conv1 = conv1 or pyg.GCNConv(4, 6)
        self.scale = nn.Parameter(torch.rand(6)) if scale is None else scale
        self.conv2, self.act, self.end = pyg.GCNConv(6, 3), act, end

    def forward(self, x, edge_index):
        return self.end(self.conv2(self.act(self.conv1(x, edge_index) * self.scale), edge_index))


def dead():
    """Trained into a corner: a bias so low that the channels are silent on any small graph."""
    model = Scaled()
    nn.init.constant_(model.conv1.bias, -100.0)
    return model


def halves(x):
    return x[:, :6] * x[:, 6:].sigmoid()


COUPLED = {
    "scale": Scaled,
    **{f"scale of channel {k}": lambda k=k: Scaled(scale=1 + F.one_hot(torch.tensor(k), 6).double()) for k in range(6)},
    # These hide the coupling from a proof that lets activations saturate or die, or that moves nothing.
    "scale before tanh": lambda: Scaled(pyg.GCNConv(300, 6), torch.tanh),
    "scale before softmax": lambda: Scaled(pyg.GCNConv(300, 6), end=lambda x: x.softmax(-1)),
    "scale of silent channels": dead,
    "scale of one-channel heads": lambda: Scaled(pyg.GATConv(4, 1, heads=6)),
    "glu": lambda: chain(pyg.GCNConv(4, 12), pyg.GCNConv(6, 3), halves),
    "torch glu": lambda: chain(pyg.GCNConv(4, 12), pyg.GCNConv(6, 3), F.glu),
    "reversed": lambda: chain(pyg.GCNConv(4, 6), pyg.GCNConv(6, 3), lambda x: x.flip(-1)),
    "rolled": lambda: chain(pyg.GCNConv(4, 6), pyg.GCNConv(6, 3), lambda x: x.roll(1, -1)),
    "two in the middle swapped": lambda: chain(
        pyg.GCNConv(4, 6), pyg.GCNConv(6, 3), lambda x: x[:, [0, 1, 3, 2, 4, 5]]
    ),
    "cumulated": lambda: chain(pyg.GCNConv(4, 6), pyg.GCNConv(6, 3), lambda x: x.cumsum(-1)),
    "two groups": lambda: normed(nn.GroupNorm(2, 6)),
    "three groups": lambda: normed(nn.GroupNorm(3, 6)),
    "differentiable groups": lambda: normed(pyg.DiffGroupNorm(6, 2)),
}


@pytest.mark.parametrize("name", COUPLED)
def test_hidden_couplings_are_left_out(name):
    torch.manual_seed(0)
    model = COUPLED[name]()
    data = graph(model.conv1.in_channels)
    found = channel_map(model, data)
    assert "conv1" not in {x.name for x in found.layers}
    rows = {r.tensor: r for r in found.explain().rows}
    for tensor in (n for n in model.state_dict() if n.startswith("conv1.")):
        assert rows[tensor].part == "stays"
        assert "conv1 left out: " in rows[tensor].why
    assert prove_all(model, found, data) == {"conv2"}, "what does not take part in the coupling is not lost"
    check_explanation(model, found)


@pytest.mark.parametrize("heads", [1, 2])
def test_a_layer_without_a_rule_is_taken_apart_safely(heads):
    model = chain(pyg.TransformerConv(4, 6 // heads, heads=heads), pyg.GCNConv(6, 3))
    found = channel_map(model)
    check_explanation(model, found)
    assert prove_all(model, found, graph()) == {x.name for x in found.layers}
    assert "conv2" in {x.name for x in found.layers}
    kept = {"conv1.lin_value", "conv1.lin_skip"} if heads == 1 else set()  # with two, values may not change heads
    assert {x.name for x in found.layers if x.name.startswith("conv1")} - {"conv1.lin_key", "conv1.lin_query"} == kept


# ---- overrides -------------------------------------------------------------------------------------------------------


class Table(nn.Module):
    """A layer type of a person's own: a matrix, and a few numbers for each channel."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(outputs, inputs)), nn.Parameter(torch.randn(outputs))
        self.more, self.cube = nn.Parameter(torch.randn(outputs, 2)), nn.Parameter(torch.randn(2, outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.t() + self.bias + self.more.sum(1)


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Table(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.two(self.one(x).relu())


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"weights": ("weight@1",), "travels": ("bias@0", "more@0")}, "one.bias has 6 entries along axis 0, not 5"),
        (
            {"weights": ("cube@0",)},
            "one.cube: a weight must be a matrix with its channels along axis 0 or 1; its rule says 'cube@0', "
            "its shape is (2, 6, 5)",
        ),
        ({"weights": ("weight@2",)}, "its rule says 'weight@2', its shape is (6, 5)"),
        ({"weights": ("weight@0:2",)}, "its rule says 'weight@0:2', its shape is (6, 5)"),
        ({"weights": ("bias@0",)}, "its rule says 'bias@0', its shape is (6,)"),
        ({"weights": ("weight@-1",)}, "Rule: 'weight@-1' must be name@axis or name@axis:end, with axes from 0 on"),
        ({"weights": ("weight",)}, "Rule: 'weight' must be name@axis or name@axis:end, with axes from 0 on"),
        ({"weights": ("weight@0",), "travels": ("bias@0", "more@1")}, "one.more has 2 entries along axis 1, not 6"),
        ({"weights": ("weight@0",), "travels": ("more@0:3",)}, "one.more: its rule says 'more@0:3', but its shape"),
        ({"weights": ("weight@0",), "travels": ("more@1",), "blocks": True}, "one.more has 2 entries along axis 1"),
    ],
)
def test_a_rule_with_a_wrong_axis_is_told_in_one_line(monkeypatch, given, why):
    data = Data(x=torch.randn(9, 5), edge_index=torch.randint(9, (2, 20)))
    monkeypatch.setitem(RULES, Table, Rule(("weight@0",), ("bias@0", "more@0")))
    assert [x.name for x in channel_map(Tables(), data).layers] == ["one", "two"]

    def told() -> str:
        try:
            monkeypatch.setitem(RULES, Table, Rule(**given))
            found = {r.tensor: r for r in explain(Tables(), data).rows}
        except AkeError as e:
            return str(e)
        assert found["two.weight"].part == "channels", "the others still take part"
        return found["one.weight"].why

    assert why in told()
    assert "\n" not in told()


class Scales(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Parameter(torch.randn(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.more.sum(1)


def test_a_norm_with_a_wrong_axis_is_told_in_one_line(monkeypatch):
    data = Data(x=torch.randn(9, 5), edge_index=torch.randint(9, (2, 20)))
    model = Tables()
    model.one = nn.Sequential(nn.Linear(5, 6), Scales())
    monkeypatch.setitem(RULES, Scales, Rule(travels=("more@0",), norm=True))
    assert [x.name for x in channel_map(model, data).layers] == ["one.0", "two"]
    monkeypatch.setitem(RULES, Scales, Rule(travels=("more@1",), norm=True))
    assert channel_map(model, data).stays["one.0.weight"] == (
        "one.0 left out: one.1.more has 2 entries along axis 1, not 6"
    )


@pytest.mark.parametrize("name", ["gcn", "mixhop", "norm torch batch"])
def test_a_layer_can_be_left_out(name):
    model, found = built(name)
    without = channel_map(model, override={"conv1": None})
    assert without.layers == tuple(x for x in found.layers if not x.name.startswith("conv1"))
    check_explanation(model, without)
    for row in without.explain().rows:
        if row.tensor.startswith("conv1."):
            assert (row.part, row.why) == ("stays", "left out by you")
        if row.tensor.startswith("norm."):
            assert row.part == "stays"
    assert explain(model, override={"conv1": None}) == without.explain()


def test_a_layer_can_be_declared():
    model, found = built("gcn")
    mine = Layer("conv1", 6, (Slot("conv1.lin.weight", 0, 6),), tied="because I say so")
    declared = channel_map(model, override={"conv1": mine})
    assert [x for x in declared.layers if x.name == "conv1"] == [mine]
    assert layer_of(declared, "conv2") == layer_of(found, "conv2")
    rows = {r.tensor: r for r in declared.explain().rows}
    assert rows["conv1.lin.weight"].part == "channels"
    assert "because I say so" in rows["conv1.lin.weight"].why
    assert rows["conv1.bias"].part == "stays", "what is not declared does not travel"
    check_explanation(model, declared)


def test_a_layer_can_be_declared_where_none_was_found():
    mine = Layer("conv1", 6, (Slot("conv1.lin.weight", 0, 6),), travels=(Slot("scale", 0, 6), Slot("conv1.bias", 0, 6)))
    declared = channel_map(Scaled(), override={"conv1": mine})
    assert mine in declared.layers
    assert {x.name for x in declared.layers} == {"conv1", "conv2"}
    check_explanation(Scaled(), declared)


# ---- what cannot be mapped -------------------------------------------------------------------------------------------


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 3))

    def forward(self, x):
        return x @ self.weight


class OnlyEmbedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(14, 3)

    def forward(self, x):
        return self.emb(torch.arange(len(x)))


@pytest.mark.parametrize("kind", [Bare, OnlyEmbedding])
@pytest.mark.parametrize("data", [None, graph()], ids=["no data", "data"])
def test_nothing_to_exchange_is_an_error(kind, data):
    with pytest.raises(AkeError, match=r"nothing can be exchanged"):
        channel_map(kind(), data).chosen()


def test_a_single_output_is_skipped():
    model = MLP(out=1)
    found = channel_map(model)
    assert layer_of(found, "layers.3").channels == 1
    row = next(r for r in found.explain().rows if r.tensor == "layers.3.weight")
    assert "single channel, skipped" in row.why
    assert prove_all(model, found, graph()) == {"layers.0"}
    only = Net(lambda m, x, e: m.lin(x), lin=nn.Linear(4, 1))
    with pytest.raises(AkeError, match="nothing can be exchanged"):
        channel_map(only).chosen()


@pytest.mark.parametrize(
    "end",
    [lambda x: x.squeeze(-1), lambda x: x.sum(), lambda x: x.sigmoid().view(-1)],
    ids=["flat", "scalar", "sigmoid"],
)
def test_an_output_need_not_have_columns(end):
    """Binary classifiers return one number per node, link predictors one per edge."""
    body = lambda m, x, e: end(m.lin(m.conv1(x, e).relu()))  # noqa: E731
    model = Net(body, conv1=pyg.GCNConv(4, 6), lin=nn.Linear(6, 1))
    found = channel_map(model)
    assert "conv1" in {x.name for x in found.whole_neurons(found.chosen())}
    prove(model, [layer_of(found, "conv1")], graph())


def test_a_decoder_by_inner_products_leaves_hidden_layers_in():
    def body(m, x, edge_index):
        z = m.conv2(m.conv1(x, edge_index).relu(), edge_index)
        return (z[edge_index[0]] * z[edge_index[1]]).sum(-1)

    model = Net(body, conv1=pyg.GCNConv(4, 6), conv2=pyg.GCNConv(6, 5))
    found = channel_map(model)
    assert "conv1" in {x.name for x in found.layers}
    prove(model, [layer_of(found, "conv1")], graph())


@pytest.mark.parametrize(
    "make",
    [
        lambda: chain(pyg.GCNConv(-1, 6), pyg.GCNConv(6, 3)),
        lambda: chain(pyg.SAGEConv(-1, 6), pyg.SAGEConv(-1, 3)),
        lambda: Net(lambda m, x, e: m.lin(x), lin=nn.LazyLinear(3)),
    ],
    ids=["gcn", "sage", "torch"],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_a_lazy_model_has_to_be_run_first(make):
    model = make()
    with pytest.raises(AkeError, match=r"weight: has no shape yet; run .* once"):
        channel_map(model)
    data = graph()
    model.double()(data.x, data.edge_index)
    assert channel_map(model).chosen()


class NeedsMore(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.GATConv(4, 3, edge_dim=5)

    def forward(self, x, edge_index, edge_attr):
        return self.conv(x, edge_index, edge_attr)


def fails(m, x, edge_index):
    raise ValueError("not on such a graph")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Net(fails, lin=nn.Linear(4, 3)), "ValueError: not on such a graph"),
        # The first layer registered is not the first to run, so the guessed number of features is wrong.
        (lambda: Net(lambda m, x, e: m.b(m.a(x)), b=nn.Linear(6, 3), a=nn.Linear(4, 6)), "RuntimeError"),
        (NeedsMore, "edge_attr"),
    ],
    ids=["raises", "other features", "other attributes"],
)
def test_a_model_that_cannot_be_run_asks_for_data(make, reason):
    with pytest.raises(AkeError, match=rf"(?s){reason}.*pass data="):
        channel_map(make())


def test_data_tells_what_a_model_runs_on():
    model = Net(lambda m, x, e: m.b(m.a(x).relu()), b=nn.Linear(6, 3), a=nn.Linear(4, 6))
    assert prove_all(model, channel_map(model, graph()), graph()) == {"a", "b"}
    found = channel_map(NeedsMore(), graph())
    assert {s.name for s in layer_of(found, "conv").travels} >= {"conv.lin_edge.weight", "conv.att_edge"}


class OfOneGraph(nn.Module):
    """Has an embedding for each node of one graph, so that it runs on no other."""

    def __init__(self, nodes):
        super().__init__()
        self.own = nn.Embedding(nodes, 2)
        self.conv1, self.conv2 = pyg.GCNConv(6, 5), pyg.GCNConv(5, 3)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(torch.cat([x, self.own.weight], 1), edge_index).relu(), edge_index)


def test_a_model_of_one_graph_is_looked_at_on_that_graph():
    data = graph()
    model = OfOneGraph(data.num_nodes)
    assert prove_all(model, channel_map(model, data), data) == {"conv1", "conv2"}
    assert data.x.equal(graph().x)
    with pytest.raises(AkeError, match="could not be run on a small graph"):
        channel_map(OfOneGraph(data.num_nodes + 1), data)


class Relational(nn.Module):
    """Integers among the inputs: node types that are embedded, edge types that choose a weight."""

    def __init__(self):
        super().__init__()
        self.emb, self.rel = nn.Embedding(5, 4), nn.Embedding(3, 1)
        self.conv1, self.conv2 = pyg.GCNConv(4, 6), pyg.GCNConv(6, 3)

    def forward(self, x, edge_index, edge_type):
        weight = self.rel(edge_type).sigmoid().squeeze(-1)
        return self.conv2(self.conv1(self.emb(x), edge_index, weight).relu(), edge_index, weight)


def test_integer_inputs_are_kept_integers():
    data = graph()
    data.x, data.edge_type = torch.arange(14) % 5, torch.arange(data.num_edges) % 3
    found = channel_map(Relational(), data)
    assert prove_all(Relational(), found, data) == {"conv1", "conv2"}


# ---- nothing happens to the model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["gin", "GAT lstm batch", "residual"])
def test_the_model_is_not_changed(name, training):
    model = CASES[name].make().train(training)
    modes = [m.training for m in model.modules()]
    before = {k: v.clone() for k, v in model.state_dict().items()}
    identities = [id(t) for t in model.state_dict(keep_vars=True).values()]
    random = torch.get_rng_state()
    channel_map(model)
    after = model.state_dict(keep_vars=True)
    assert all(torch.equal(after[k], v) and after[k].dtype == v.dtype for k, v in before.items())
    assert [id(t) for t in after.values()] == identities
    assert [m.training for m in model.modules()] == modes
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    for m in model.modules():
        assert not m._forward_hooks
        assert not m._forward_pre_hooks
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize(("kind", "cache"), [(pyg.GCNConv, "_cached_edge_index"), (pyg.SGConv, "_cached_x")])
def test_a_caching_model_is_mapped_on_another_graph_and_keeps_its_cache(kind, cache, used):
    """A trained model remembers its own graph, normalised; the small graph must not be mistaken for it."""
    model = chain(kind(4, 6, cached=True), pyg.GCNConv(6, 3, cached=True))
    own = torch.stack([torch.arange(40), (torch.arange(40) + 1) % 40])
    if used:
        model(torch.rand(40, 4), own)
    before = getattr(model.conv1, cache)
    assert (before is not None) == used
    assert [x.name for x in channel_map(model).layers] == ["conv1", "conv2"]
    assert model.conv1.cached
    assert model.conv2.cached
    assert getattr(model.conv1, cache) is before


def test_the_map_does_not_depend_on_the_weights_or_the_precision():
    model, found = built("gat residual")
    for other in (randomised(model, 3), copy.deepcopy(model).half(), copy.deepcopy(model).double().eval()):
        assert channel_map(other) == found


# ---- to be read ------------------------------------------------------------------------------------------------------


def test_the_explanation_is_a_table():
    model, found = built("gin")
    text = str(explain(model))
    assert text == str(found.explain())
    header, *lines = text.splitlines()
    assert header.split() == ["tensor", "shape", "part", "layer", "why"]
    assert len(lines) == len(model.state_dict())
    column = {word: header.index(word) for word in header.split()}
    for line, row in zip(lines, found.explain().rows, strict=True):
        assert line == line.rstrip()
        assert line.startswith(row.tensor + " ")
        assert line[column["shape"] :].split()[0] == ("x".join(map(str, row.shape)) or "scalar")
        assert line[column["part"] :].startswith(row.part + " ")
        assert line[column["layer"] : column["why"]].strip() == row.layer
        assert line[column["why"] :] == row.why


def test_an_explanation_without_layers_is_a_table_too():
    text = str(explain(Scaled(), override={"conv2": None}))
    assert text.splitlines()[0].split() == ["tensor", "shape", "part", "layer", "why"]
    assert "left out by you" in text
    assert "channels " not in text.splitlines()[1]


@pytest.mark.parametrize("model", ["gcn", pyg.GCN, None])
def test_what_is_no_module_is_refused(model):
    assert refusal(lambda: explain(model)).startswith("model: must be a torch.nn.Module, is ")
