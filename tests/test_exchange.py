"""The exchange against independent references: scipy and numpy for the measures, ``literal.py`` for every swap."""

from __future__ import annotations

import importlib
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn
from torch_geometric.nn import GCN

import literal
from akegnn.channels import Layer, Slot, channel_map
from akegnn.errors import AkeError
from akegnn.exchange import Swap, Workbench, correlation, entropy, exchange, exchange_ring, ring, ring_steps
from akegnn.strategies import STRATEGIES, Choice, Strategy

# By name, because the package may offer the function `exchange` under the name of this module.
module = importlib.import_module("akegnn.exchange")

# No deadline: the machine is shared, and how long an example takes says nothing about whether it is right.
# Derandomised: a red test stays red until somebody mends the code.
slowly = settings(deadline=None, derandomize=True, database=None)


# ---- layers to exchange ----------------------------------------------------------------------------------------------


def normal(rng, shape):
    return rng.normal(size=shape)


def tied(rng, shape):
    """Few different values: many correlations, entropies and bin edges are exactly equal."""
    return rng.integers(-1, 2, size=shape).astype(float)


def on_edges(rng, shape):
    """Tenths of a whole number: values fall on bin edges, where every rounding of the edge shows."""
    return rng.integers(1, 8) * rng.integers(0, 11, size=shape) / 10


def constant_channels(rng, shape):
    values = rng.normal(size=shape)
    values[rng.random(shape[:2]) < 0.4] = rng.integers(-2, 3)
    return values


def constant_layers(rng, shape):
    """Every other network has one value everywhere: a range of zero."""
    values = rng.normal(size=shape)
    values[rng.integers(2) :: 2] = rng.integers(-2, 3)
    return values


def repeated_channels(rng, shape):
    """A handful of channels, each in several places: ties in everything but the place."""
    pool = rng.normal(size=(3, shape[2]))
    return pool[rng.integers(3, size=shape[:2])]


def different_scales(rng, shape):
    """A few channels hold the extreme values, so nearly every candidate changes the range of the layer."""
    return rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, size=(*shape[:2], 1))


KINDS = (normal, tied, on_edges, constant_channels, constant_layers, repeated_channels, different_scales)


def values_of(kind, shape, dtype=torch.float64, seed=0):
    """Weights ``[V, C, F]`` as one dtype holds them; rounding them first gives oracle and package the same numbers."""
    return torch.from_numpy(kind(np.random.default_rng(seed), shape)).to(dtype)


def stacked(values, parts=1, axis=0, name="w"):
    """``values [V, C, F]`` as the tensors of a layer, with a bias that numbers all channels of all networks.

    The numbers tell where a channel came from, even where its weights are the same as another's.
    """
    networks, channels, width = values.shape
    widths = [width // parts + (k < width % parts) for k in range(parts)]
    stacks, weights, inputs = {}, [], []
    for k, part in enumerate(values.split(widths, dim=-1)):
        tensor = part if axis == 0 else part.mT
        stacks[f"{name}{k}"] = tensor.unsqueeze(1).clone(memory_format=torch.contiguous_format)
        weights.append(Slot(f"{name}{k}", axis, channels))
        inputs.append(Slot(f"{name}{k}", 1 - axis, part.shape[-1]))
    stacks[f"{name}.bias"] = torch.arange(networks * channels).view(networks, 1, channels).to(values.dtype)
    return stacks, Layer(name, channels, tuple(weights), tuple(inputs), (Slot(f"{name}.bias", 0, channels),))


def unstacked(stacks, parts=1, axis=0, name="w"):
    tensors = [stacks[f"{name}{k}"].squeeze(1) for k in range(parts)]
    return torch.cat([t if axis == 0 else t.mT for t in tensors], dim=-1), stacks[f"{name}.bias"].squeeze(1)


def arrays_of(values):
    return [network.to(torch.float64).numpy().copy() for network in values]


def check_against_literal(values, steps, count, bins, *, strategy="adaptive", parts=1, axis=0):
    """The same swaps, and bit for bit the same weights and biases, as by one histogram per candidate."""
    networks, channels, _ = values.shape
    stacks, layer = stacked(values, parts, axis)
    swaps = ring(stacks, [layer], STRATEGIES[strategy], steps=steps, channels=count, bins=bins)
    expected = arrays_of(values)
    record = literal.exchange_layer(expected, steps, count, bins, same_network=strategy == "self")
    assert [(s.step, s.source, s.target, s.source_channel, s.target_channel) for s in swaps] == record
    numbers = np.arange(networks * channels).reshape(networks, channels)
    for _, s, t, i, r in record:
        leaving, numbers[t, r] = numbers[t, r], numbers[s, i]
        if s != t:
            numbers[s, i] = leaving
    weights, bias = unstacked(stacks, parts, axis)
    assert weights.double().tolist() == np.stack(expected).tolist()
    assert bias.tolist() == numbers.tolist()
    return swaps


def steps_among(networks):
    """Any steps, not only a ring: what is kept from one step must never be wrong in another."""
    pair = st.permutations(range(networks)).map(lambda order: (order[0], order[1]))
    return st.lists(pair, min_size=1, max_size=6)


@st.composite
def cases(draw):
    networks = draw(st.integers(2, 4))
    shape = networks, draw(st.integers(2, 7)), draw(st.integers(1, 6))
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    values = values_of(draw(st.sampled_from(KINDS)), shape, dtype, draw(st.integers(0, 10_000)))
    steps = draw(st.one_of(st.just(list(ring_steps(networks, 1))), steps_among(networks)))
    return values, steps, draw(st.integers(1, 9)), draw(st.integers(2, 12))


# ---- correlation and entropy -----------------------------------------------------------------------------------------


@slowly
@given(channels=st.integers(2, 9), width=st.integers(2, 20), seed=st.integers(0, 10_000))
def test_correlation_is_pearson(channels, width, seed):
    matrix = np.random.default_rng(seed).normal(size=(channels, width))
    ours = correlation(torch.from_numpy(matrix)).numpy()
    np.testing.assert_allclose(ours, np.corrcoef(matrix), atol=1e-12)
    for a in range(channels):
        for b in range(channels):
            # Of two points scipy gives exactly +-1 and needs them not to be nearly equal; normal draws are not.
            assert ours[a, b] == pytest.approx(scipy.stats.pearsonr(matrix[a], matrix[b]).statistic, abs=1e-12)


def test_correlation_of_float32_is_computed_in_float64():
    matrix = values_of(normal, (1, 6, 30), torch.float32)[0] + 1000  # in float32 the differences would be rounded away
    ours = correlation(matrix)
    assert ours.dtype == torch.float64
    np.testing.assert_allclose(ours.numpy(), np.corrcoef(matrix.numpy().astype(np.float64)), atol=1e-11)


def test_constant_channels_count_as_fully_redundant():
    matrix = torch.tensor([[1.0, 2.0, 3.0], [0.1, 0.1, 0.1], [3.0, 2.0, 1.0], [0.0, 0.0, 0.0]])
    expected = [[1, 1, -1, 1], [1, 1, 1, 1], [-1, 1, 1, 1], [1, 1, 1, 1]]
    np.testing.assert_allclose(correlation(matrix).numpy(), expected, atol=1e-15)


def test_channels_of_one_weight_are_constant():
    assert correlation(torch.tensor([[1.0], [2.0], [-5.0]])).tolist() == [[1.0] * 3] * 3


def test_measures_of_many_layers_at_once():
    many = values_of(normal, (6, 5, 4)).view(2, 3, 5, 4)
    for a in range(2):
        for b in range(3):
            torch.testing.assert_close(correlation(many)[a, b], correlation(many[a, b]), rtol=0, atol=1e-15)
            assert entropy(many, 7)[a, b] == entropy(many[a, b], 7)


@pytest.mark.parametrize(
    ("values", "bins", "counts"),
    [
        ([0, 1, 2, 3], 4, [1, 1, 1, 1]),
        ([0, 1, 2, 4], 2, [2, 2]),  # the edge is 2: it belongs to the upper bin
        ([0, 1, 2], 2, [1, 2]),  # the largest value belongs to the last bin, which is closed
        ([0, 0, 0, 8], 4, [3, 1]),  # two empty bins add nothing
        ([5, 5, 5, 5], 3, [4]),  # no range at all
        ([0, 0.3, 3], 10, [1, 1, 1]),  # 3 * 1 / 10 is 0.3, but 3 * (1 / 10) is a little more
    ],
)
def test_entropy_by_hand(values, bins, counts):
    expected = -sum(n / len(values) * math.log(n / len(values)) for n in counts)
    assert float(entropy(torch.tensor([values], dtype=torch.float64), bins)) == pytest.approx(expected, abs=1e-15)


@slowly
@given(
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    shape=st.tuples(st.just(2), st.integers(1, 8), st.integers(1, 8)),
    bins=st.integers(2, 12),
    seed=st.integers(0, 10_000),
)
def test_entropy_is_that_of_a_histogram(kind, dtype, shape, bins, seed):
    for matrix in values_of(kind, shape, dtype, seed):
        expected = literal.entropy(matrix.double().numpy(), bins)
        assert float(entropy(matrix, bins)) == pytest.approx(expected, abs=1e-13)


def test_float32_weights_are_compared_with_float64_edges():
    # As float32, 0.3 is a little above the edge 0.3 and 0.7 a little below the edge 0.7.
    # Rounding the edges to float32 would put both on them: one value per bin but the last, which gets two.
    tenths = (torch.arange(11, dtype=torch.float64) / 10).float()
    exact = tenths.double().numpy()
    assert literal.histogram(exact, 10) != [1] * 9 + [2]
    assert float(entropy(tenths.view(1, -1), 10)) == pytest.approx(literal.entropy(exact, 10), abs=1e-15)


# ---- every swap against the literal oracle ---------------------------------------------------------------------------


@settings(slowly, max_examples=100)
@given(cases())
def test_same_swaps_as_the_literal_algorithm(case):
    check_against_literal(*case)


# Weight by weight from {-1, 0, 1}, so that a failure shrinks to a layer that fits in a head.
small_integers = st.tuples(st.integers(2, 3), st.integers(2, 4), st.integers(1, 3)).flatmap(
    lambda shape: arrays.arrays(np.float64, shape, elements=st.sampled_from([-1.0, 0.0, 1.0]))
)


@settings(slowly, max_examples=100)
@given(values=small_integers, count=st.integers(1, 5), bins=st.integers(2, 12))
def test_same_swaps_with_ties(values, count, bins):
    check_against_literal(torch.from_numpy(values), list(ring_steps(len(values), 1)), count, bins)


@settings(slowly, max_examples=40)
@given(cases())
def test_self_exchange_as_the_literal_algorithm(case):
    check_against_literal(*case, strategy="self")


@settings(slowly, max_examples=30)
@given(case=cases(), parts=st.integers(1, 3), axis=st.integers(0, 1))
def test_weights_side_by_side_and_output_on_either_axis(case, parts, axis):
    values, *rest = case
    check_against_literal(values, *rest, parts=min(parts, values.shape[-1]), axis=axis)


@pytest.mark.parametrize("kind", KINDS)
def test_two_channels_of_one_weight(kind):
    for seed in range(5):
        check_against_literal(values_of(kind, (2, 2, 1), seed=seed), list(ring_steps(2, 2)), 3, 10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [normal, tied, different_scales])
def test_a_larger_layer(kind, dtype):
    check_against_literal(values_of(kind, (3, 24, 40), dtype), list(ring_steps(3, 1)), 4, 10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    check_against_literal(values_of(normal, (2, 6, 8), dtype), list(ring_steps(2, 2)), 3, 10)


@settings(slowly, max_examples=25)
@given(case=cases())
def test_adaptive_input_is_adaptive_on_the_transposed_layer(case):
    values, steps, count, bins = case
    _, channels, width = values.shape
    stacks, layer = stacked(values)
    swaps = ring(stacks, [layer], STRATEGIES["adaptive-input"], steps=steps, channels=count, bins=bins)
    expected = arrays_of(values.mT)
    if width == 1:  # a single input channel, nothing to choose from
        assert swaps == []
    else:
        inputs = math.ceil(min(count, channels) * width / channels)
        record = literal.exchange_layer(expected, steps, inputs, bins)
        assert [(s.step, s.source, s.target, s.source_channel, s.target_channel) for s in swaps] == record
    assert stacks["w0"].squeeze(1).mT.double().tolist() == np.stack(expected).tolist()
    assert stacks["w.bias"].tolist() == stacked(values)[0]["w.bias"].tolist()  # belongs to the outputs: it stays


@settings(slowly, max_examples=25)
@given(cases())
def test_recorded_measures(case):
    values, steps, count, bins = case
    stacks, layer = stacked(values)
    now = arrays_of(values)
    for s in ring(stacks, [layer], STRATEGIES["adaptive"], steps=steps, channels=count, bins=bins):
        target, source = now[s.target], now[s.source]
        _, pair_correlation, after = literal.choose(target, source, bins)
        assert s.correlation == pytest.approx(pair_correlation, abs=1e-12)
        assert s.entropy_before == pytest.approx(literal.entropy(target, bins), abs=1e-12)
        assert s.entropy_after == pytest.approx(after, abs=1e-12)
        # Copies, because a row taken from an array is a window on it.
        leaving, joining = target[s.target_channel].copy(), source[s.source_channel].copy()
        target[s.target_channel], source[s.source_channel] = joining, leaving


def test_workbench_chooses_for_many_different_layers_at_once():
    kinds = [values_of(kind, (2, 6, 5), seed=seed) for kind in KINDS for seed in range(3)]
    matrices = torch.stack(kinds, dim=1)  # [V, G, C, F]
    bench = Workbench(matrices, bins=6)
    pair, best = bench.redundant_pair(1)
    side, informative, before, after = bench.most_informative(1, 0, pair)
    for g, (source, target) in enumerate(matrices.transpose(0, 1).numpy()):
        (r, i), pair_correlation, highest = literal.choose(target, source, 6)
        assert tuple(pair[g].tolist()) == literal.most_correlated_pair(target)[0]
        assert (int(pair[g, side[g, 0]]), int(informative[g, 0])) == (r, i)
        assert float(best[g, 0]) == pytest.approx(pair_correlation, abs=1e-12)
        assert float(before[g, 0]) == pytest.approx(literal.entropy(target, 6), abs=1e-12)
        assert float(after[g, 0]) == pytest.approx(highest, abs=1e-12)


# ---- layers, replicas and chunks are independent of each other -------------------------------------------------------


# Their numbers depend on the place of a layer among the others, so such a layer alone gets other ones.
DRAWING = ("random-output", "random-input", "random-partner-random", "point")


@pytest.fixture(scope="module")
def deep():
    """Four layers of one shape, with BatchNorm: worked on together."""
    return channel_map(GCN(5, 5, 4, out_channels=5, norm="batch_norm"))


@pytest.fixture(scope="module")
def plain():
    """Layers 6 -> 5 (with BatchNorm) and 5 -> 4."""
    return channel_map(GCN(6, 5, 2, out_channels=4, norm="batch_norm"))


def population(model_map, networks, replicas=1, seed=0):
    """A stack of networks with every number different, so that each can be recognised wherever it goes."""
    g = torch.Generator().manual_seed(seed)
    return {n: torch.randn(networks, replicas, *shape, generator=g) for n, shape in model_map.shapes.items() if shape}


def copied(stacks):
    return {name: t.clone() for name, t in stacks.items()}


def equal(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def taking_part(model_map, strategy):
    chosen = model_map.chosen()
    return model_map.whole_neurons(chosen) if strategy.neuron else chosen


RINGS = [n for n, s in STRATEGIES.items() if not s.merges]


def networks_for(strategy, ring_size):
    return ring_size * (2 if strategy.partner == "random" else 1)


@pytest.mark.parametrize("name", [n for n in RINGS if not STRATEGIES[n].neuron and n not in DRAWING])
def test_layers_together_as_one_at_a_time(deep, name):
    strategy = STRATEGIES[name]
    together = population(deep, networks_for(strategy, 3))
    apart = copied(together)
    options = {"steps": list(ring_steps(3, 2)), "channels": 2, "bins": 6}
    swaps = ring(together, deep.layers, strategy, **options)
    alone = [s for layer in deep.layers for s in ring(apart, [layer], strategy, **options)]
    order = {layer.name: k for k, layer in enumerate(deep.layers)}
    assert swaps == sorted(alone, key=lambda s: (s.step, order[s.layer]))
    assert equal(together, apart)


@pytest.mark.parametrize("name", RINGS)
def test_replicas_as_separate_calls(deep, name):
    strategy, seeds = STRATEGIES[name], (3, 1, 4)
    before = population(deep, networks_for(strategy, 3), replicas=3)
    together = copied(before)
    options = {"steps": list(ring_steps(3, 1)), "channels": 2, "bins": 6}
    layers = taking_part(deep, strategy)
    swaps = ring(together, layers, strategy, seeds=seeds, **options)
    assert not equal(together, before)
    for k, seed in enumerate(seeds):
        alone = {n: t[:, k : k + 1].clone() for n, t in before.items()}
        expected = ring(alone, layers, strategy, seeds=(seed,), **options)
        assert [replace(s, replica=0) for s in swaps if s.replica == k] == expected
        assert equal({n: t[:, k : k + 1] for n, t in together.items()}, alone)


@pytest.mark.parametrize("name", RINGS)
def test_chunks_change_nothing(deep, monkeypatch, name):
    strategy = STRATEGIES[name]
    layers = taking_part(deep, strategy)
    sizes = []

    class Watched(Workbench):
        def __init__(self, matrices, *args, **kwargs):
            sizes.append(matrices.shape[1])
            super().__init__(matrices, *args, **kwargs)

    monkeypatch.setattr(module, "Workbench", Watched)
    before = population(deep, networks_for(strategy, 3), replicas=2)
    whole, chunks = copied(before), copied(before)
    options = {"steps": list(ring_steps(3, 1)), "channels": 2, "bins": 6, "seeds": (0, 1)}
    swaps = ring(whole, layers, strategy, **options)
    assert sizes == [2 * len(layers)]  # all in one
    sizes.clear()
    monkeypatch.setattr(module, "CPU_BYTES", 1)
    assert ring(chunks, layers, strategy, **options) == swaps
    assert sizes == [2] * len(layers)  # a layer at a time
    assert equal(whole, chunks)
    assert not equal(whole, before)


def test_without_records_the_same_happens(plain):
    recorded = population(plain, 3)
    silent = copied(recorded)
    options = {"steps": list(ring_steps(3, 1)), "channels": 2, "bins": 6}
    assert ring(recorded, plain.layers, STRATEGIES["adaptive"], **options) != []
    assert ring(silent, plain.layers, STRATEGIES["adaptive"], record=False, **options) == []
    assert equal(recorded, silent)


# ---- what is kept ----------------------------------------------------------------------------------------------------


def channels_of(stacks, slots):
    """By network, its channels as rows of numbers: all in ``slots`` that belongs to one channel, side by side."""
    rows = []
    for slot in slots:
        tensor = stacks[slot.name].squeeze(1).movedim(1 + slot.axis, 1)  # [V, C, ...]
        rows.append(tensor.reshape(*tensor.shape[:2], -1))
    return torch.cat(rows, dim=-1).tolist()


def multiset(networks):
    return sorted(channel for network in networks for channel in network)


SWAPPING = [n for n in RINGS if STRATEGIES[n].axis == "output" and STRATEGIES[n].partner != "self"]
SWAPPING.remove("neuron")


@pytest.mark.parametrize("name", SWAPPING)
def test_channels_are_neither_lost_nor_doubled(plain, name):
    strategy = STRATEGIES[name]
    after = population(plain, networks_for(strategy, 4))
    before = copied(after)
    ring(after, plain.layers, strategy, steps=list(ring_steps(4, 2)), channels=2, bins=6)
    for layer in plain.layers:
        assert len(layer.travels) == (5 if layer.name == "convs.0" else 1)  # bias; four BatchNorm entries
        slots = layer.weights + layer.travels
        assert multiset(channels_of(after, slots)) == multiset(channels_of(before, slots))
        assert channels_of(after, slots) != channels_of(before, slots)


@pytest.mark.parametrize("name", [n for n, s in STRATEGIES.items() if s.axis == "input"])
def test_input_channels_are_neither_lost_nor_doubled(plain, name):
    after = population(plain, 4)
    before = copied(after)
    ring(after, plain.layers, STRATEGIES[name], steps=list(ring_steps(4, 2)), channels=2, bins=6)
    for layer in plain.layers:
        assert multiset(channels_of(after, layer.inputs)) == multiset(channels_of(before, layer.inputs))
        assert channels_of(after, layer.inputs) != channels_of(before, layer.inputs)
        assert channels_of(after, layer.travels) == channels_of(before, layer.travels)


def test_single_weights_are_neither_lost_nor_doubled(plain):
    after = population(plain, 4)
    before = copied(after)
    ring(after, plain.layers, STRATEGIES["point"], steps=list(ring_steps(4, 2)), channels=2, bins=6)
    for layer in plain.layers:
        (slot,) = layer.weights
        assert torch.equal(after[slot.name].sort(dim=0).values, before[slot.name].sort(dim=0).values)
        assert not torch.equal(after[slot.name], before[slot.name])
        assert channels_of(after, layer.travels) == channels_of(before, layer.travels)


def test_self_exchange_stays_within_a_network(plain):
    after = population(plain, 4)
    before = copied(after)
    ring(after, plain.layers, STRATEGIES["self"], steps=list(ring_steps(4, 2)), channels=2, bins=6)
    for layer in plain.layers:
        slots = layer.weights + layer.travels
        for old, new in zip(channels_of(before, slots), channels_of(after, slots), strict=True):
            assert all(channel in old for channel in new)
            assert new != old


def test_whole_neurons_keep_their_outgoing_weights(plain):
    after = population(plain, 2)
    before = copied(after)
    layers = taking_part(plain, STRATEGIES["neuron"])
    assert [x.name for x in layers] == ["convs.0"]  # the output layer has no outgoing weights
    (layer,) = layers
    ring(after, layers, STRATEGIES["neuron"], steps=[(0, 1)], channels=layer.channels, bins=6)
    slots = layer.weights + layer.travels + layer.readers
    assert [s.name for s in layer.readers] == ["convs.1.lin.weight"]
    assert multiset(channels_of(after, slots)) == multiset(channels_of(before, slots))
    assert channels_of(after, slots) != channels_of(before, slots)
    assert torch.equal(after["convs.1.bias"], before["convs.1.bias"])


class Mlp(nn.Module):
    def __init__(self, hidden=8):
        super().__init__()
        self.one, self.two = nn.Linear(5, hidden), nn.Linear(hidden, 3)

    def forward(self, x):
        return self.two(self.one(x).relu())


def test_whole_neurons_keep_the_sum_of_two_networks():
    # An output is a sum over hidden neurons, so moving neurons whole moves terms from one sum to the other.
    torch.manual_seed(0)
    a, b = Mlp().double(), Mlp().double()
    x = torch.randn(20, 5, dtype=torch.float64)
    alone, both = a(x), a(x) + b(x)
    assert len(exchange(a, b, channels=8, strategy="neuron")) == 8
    torch.testing.assert_close(a(x) + b(x), both)
    assert not torch.allclose(a(x), alone)


SCALARS = [  # strategies, M, weights moved into the target in layers 6 -> 5 and 5 -> 4
    ("output", 2, {"convs.0": 12, "convs.1": 10}),
    ("point", 2, {"convs.0": 12, "convs.1": 10}),
    ("input", 2, {"convs.0": 15, "convs.1": 12}),  # 12 weights need 3 inputs of 5; 10 need 3 of 4
    ("output", 99, {"convs.0": 30, "convs.1": 20}),  # cut to the whole layer
    ("point", 99, {"convs.0": 30, "convs.1": 20}),
    ("input", 99, {"convs.0": 30, "convs.1": 20}),
]


@pytest.mark.parametrize(("axis", "count", "expected"), SCALARS)
def test_every_strategy_moves_as_many_weights(plain, axis, count, expected):
    for strategy in (STRATEGIES[n] for n in RINGS if STRATEGIES[n].axis == axis):
        after = population(plain, networks_for(strategy, 2))
        before = copied(after)
        layers = taking_part(plain, strategy)
        moved = dict.fromkeys((x.name for x in layers), 0)
        for s in ring(after, layers, strategy, steps=[(0, 1)], channels=count, bins=6):
            moved[s.layer] += s.scalars
        assert moved == {x.name: expected[x.name] for x in layers}
        if not strategy.adaptive:  # an adaptive exchange may take a channel back that it has just given
            for layer in layers:
                (slot,) = layer.weights
                assert int((after[slot.name][1] != before[slot.name][1]).sum()) == expected[layer.name]


# ---- on modules ------------------------------------------------------------------------------------------------------


def gcns(count, hidden=5, depth=2, **options):
    torch.manual_seed(0)
    return [GCN(6, hidden, depth, out_channels=4, **options) for _ in range(count)]


def state(network):
    return {name: t.clone() for name, t in network.state_dict().items()}


def test_exchange_in_place():
    target, source = gcns(2, norm="batch_norm")
    for k, network in enumerate((target, source)):
        for t in network.state_dict().values():
            if t.is_floating_point() and t.dim() == 1:
                t.copy_(torch.arange(len(t)) + 10 * (k + 1))  # biases and norms that tell channels apart
    parameters = [*target.parameters(), *source.parameters()]
    before = [state(target), state(source)]
    swaps = exchange(target, source, channels=3, bins=6)
    assert all(new is old for new, old in zip([*target.parameters(), *source.parameters()], parameters, strict=True))
    assert all(p.requires_grad and p.is_leaf for p in parameters)

    assert [(s.layer, s.step, s.source, s.target, s.replica) for s in swaps] == [
        *[("convs.0", 1, 1, 0, 0)] * 3,
        *[("convs.1", 1, 1, 0, 0)] * 3,
    ]
    for s in swaps:
        assert isinstance(s, Swap)
        channels, width = target.state_dict()[f"{s.layer}.lin.weight"].shape
        assert s.scalars == width
        assert type(s.source_channel) is type(s.target_channel) is int
        assert 0 <= s.source_channel < channels
        assert 0 <= s.target_channel < channels
        assert -1 <= s.correlation <= 1 + 1e-12
        assert 0 <= s.entropy_before <= math.log(6) + 1e-12
        assert 0 <= s.entropy_after <= math.log(6) + 1e-12
    # Making the recorded swaps by hand leads to the same networks, whatever belongs to a channel included.
    first = ["norms.0.module." + n for n in ("weight", "bias", "running_mean", "running_var")]
    for s in swaps:
        for name in (f"{s.layer}.lin.weight", f"{s.layer}.bias", *(first if s.layer == "convs.0" else ())):
            a, b = before[0][name], before[1][name]
            leaving, joining = a[s.target_channel].clone(), b[s.source_channel].clone()
            a[s.target_channel], b[s.source_channel] = joining, leaving
    assert equal(before[0], target.state_dict())
    assert equal(before[1], source.state_dict())


def test_exchange_with_a_map_found_before():
    found, given_map = gcns(2), gcns(2)
    swaps = exchange(*found, channels=2)
    assert exchange(*given_map, channels=2, map=channel_map(given_map[0])) == swaps
    assert equal(found[0].state_dict(), given_map[0].state_dict())


def test_exchange_ring_of_modules_is_the_literal_ring():
    networks = gcns(4)
    weights = {n: arrays_of(x.state_dict()[n] for x in networks) for n in ("convs.0.lin.weight", "convs.1.lin.weight")}
    swaps = exchange_ring(networks, iterations=2, channels=2, bins=6)
    for name, expected in weights.items():
        record = literal.exchange_layer(expected, literal.ring(4, 2), 2, 6)
        mine = [s for s in swaps if f"{s.layer}.lin.weight" == name]
        assert [(s.step, s.source, s.target, s.source_channel, s.target_channel) for s in mine] == record
        assert [x.state_dict()[name].double().tolist() for x in networks] == [x.tolist() for x in expected]


@pytest.mark.parametrize("name", ["random-partner", "random-partner-random"])
def test_an_untrained_partner_leaves_no_trace_in_other_networks(name):
    networks = gcns(3)
    before = [state(x) for x in networks]
    drawn = torch.random.get_rng_state()
    swaps = exchange_ring(networks, [(0, 1)], channels=2, strategy=name)
    assert torch.equal(torch.random.get_rng_state(), drawn)  # a person's own random numbers stay as they were
    assert {(s.source, s.target) for s in swaps} == {(3, 1)}  # the untrained partner of network 0
    assert equal(before[0], networks[0].state_dict())
    assert equal(before[2], networks[2].state_dict())
    known = [channel for x in before for channel in x["convs.0.lin.weight"].tolist()]
    new = [channel for channel in networks[1].state_dict()["convs.0.lin.weight"].tolist() if channel not in known]
    assert 1 <= len(new) <= 2  # channels that no trained network had


def test_hidden_leaves_the_output_layer_alone():
    target, source = gcns(2)
    before = [state(target), state(source)]
    swaps = exchange(target, source, channels=2, layers="hidden")
    assert {s.layer for s in swaps} == {"convs.0"}
    for old, network in zip(before, (target, source), strict=True):
        now = network.state_dict()
        assert torch.equal(now["convs.1.lin.weight"], old["convs.1.lin.weight"])
        assert torch.equal(now["convs.1.bias"], old["convs.1.bias"])
        assert not torch.equal(now["convs.0.lin.weight"], old["convs.0.lin.weight"])


def test_one_network_alone_exchanges_nothing():
    (alone,) = gcns(1)
    before = state(alone)
    assert exchange_ring([alone], iterations=3) == []
    assert equal(before, alone.state_dict())


@pytest.mark.parametrize(
    ("networks", "iterations", "expected"),
    [
        (1, 3, []),
        (2, 2, [(0, 1), (1, 0), (0, 1), (1, 0)]),
        (4, 1, [(0, 1), (1, 2), (2, 3), (3, 0)]),
        (4, 2, [(0, 1), (1, 2), (2, 3), (3, 0), (0, 1), (1, 2), (2, 3), (3, 0)]),
    ],
)
def test_ring_steps(networks, iterations, expected):
    assert list(ring_steps(networks, iterations)) == expected == literal.ring(networks, iterations)


# ---- what cannot be done ---------------------------------------------------------------------------------------------


def test_other_shapes_are_refused():
    (target,), (source,) = gcns(1), gcns(1, hidden=7)
    before = [state(target), state(source)]
    with pytest.raises(AkeError, match=r"^convs\.0\.bias: \(5,\) .*\(7,\)"):
        exchange(target, source)
    assert equal(before[0], target.state_dict())
    assert equal(before[1], source.state_dict())


def test_other_depths_are_refused():
    (target,), (source,) = gcns(1), gcns(1, depth=3)
    with pytest.raises(AkeError, match=r"^convs\.1\.bias: \(4,\) .*\(5,\)"):
        exchange(target, source)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_other_tensors_are_refused(order):
    pair = [*gcns(1), *gcns(1, norm="batch_norm")]
    only = 1 + order.index(1)  # which of the two has the norm
    with pytest.raises(AkeError, match=rf"^norms\.0\.module\.bias: only in network {only}"):
        exchange(*(pair[k] for k in order))


def test_an_unknown_strategy_is_told_the_known_ones():
    with pytest.raises(AkeError, match="'adaptivve'") as told:
        exchange(*gcns(2), strategy="adaptivve")
    listed = str(told.value).rsplit(" of ", 1)[1].split(", ")
    assert listed == list(STRATEGIES)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("which", [0, 1])
def test_weights_that_are_not_finite_are_refused(which, value):
    pair = gcns(2)
    with torch.no_grad():
        pair[which].convs[1].lin.weight[2, 3] = value
    with pytest.raises(AkeError, match=r"^convs\.1\.lin\.weight: .*finite"):
        exchange(*pair)


@pytest.mark.parametrize(("option", "value"), [("channels", 0), ("channels", -1), ("bins", 0)])
def test_counts_start_at_one(option, value):
    with pytest.raises(AkeError, match=re.escape(f"{option}: must be at least 1, got {value}")):
        exchange(*gcns(2), **{option: value})


def test_iterations_start_at_one():
    with pytest.raises(AkeError, match="iterations: must be at least 1, got 0"):
        exchange_ring(gcns(2), iterations=0)


def test_unknown_layers_are_refused():
    with pytest.raises(AkeError, match="'visible' is not one of all, hidden"):
        exchange(*gcns(2), layers="visible")


def test_wide_layers_are_counted_in_parts(monkeypatch):
    """However few counts may be held at a time, the swaps are the same."""
    g = torch.Generator().manual_seed(0)
    stacks = {"w": torch.randn(3, 4, 7, 5, generator=g)}
    layer = Layer("w", 7, (Slot("w", 0, 7),))
    found = []
    for counts in (1 << 27, 1):
        monkeypatch.setattr(importlib.import_module("akegnn.exchange"), "COUNTS", counts)
        given = {"w": stacks["w"].clone()}
        how = {"steps": [(0, 1), (1, 2)], "channels": 3, "seeds": range(4)}
        found.append((ring(given, [layer], STRATEGIES["adaptive"], **how), given["w"]))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("own", [False, True])
def test_only_the_packages_own_choice_is_recorded_on_a_gpu(monkeypatch, own):
    """A choice that draws, recorded once and replayed, would have the numbers of its first draw for ever."""
    room = importlib.import_module("akegnn.exchange")

    class OnGpu(Workbench):  # a bench that believes to be there
        direct = property(lambda self: True, lambda self, value: None)

    class Recorded:
        def __init__(self, keep):
            recorded.append(keep)

        def __call__(self, *given):
            return room._move(*given)

    def drawing(bench, target, source, count, draws):
        for _ in range(count):
            pair, found = bench.redundant_pair(target)
            drawn.append(bench.draw(1, draws))
            yield Choice(pair[:, :1], drawn[-1], found)

    recorded, drawn = [], []
    monkeypatch.setattr(room, "Workbench", OnGpu)
    monkeypatch.setattr(room, "_Recorded", Recorded)
    strategy = Strategy(drawing, "redundant for any", adaptive=True) if own else STRATEGIES["adaptive"]
    stacks = {"w": torch.randn(3, 2, 7, 5, generator=torch.Generator().manual_seed(0))}
    swaps = ring(
        stacks, [Layer("w", 7, (Slot("w", 0, 7),))], strategy, steps=[(0, 1), (1, 2)], channels=3, seeds=(0, 1)
    )
    assert len(swaps) == 12
    assert recorded == ([] if own else [True])
    assert len(drawn) == (6 if own else 0)
