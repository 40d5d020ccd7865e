"""Every strategy of the registry on two small networks: it runs, it can be repeated, and it moves what it says."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch_geometric.nn import GCN

from akegnn.errors import AkeError
from akegnn.exchange import exchange
from akegnn.strategies import STRATEGIES, Choice, Strategy, strategy
from small import refusal

DRAWING = ("random-output", "random-input", "point", "random-partner", "random-partner-random")
SWAPPING = tuple(name for name, way in STRATEGIES.items() if not way.merges)  # tests/test_functional.py has the rest
FIXED = tuple(name for name in SWAPPING if name not in DRAWING)
WEIGHTS = ("convs.0.lin.weight", "convs.1.lin.weight")
BIASES = ("convs.0.bias", "convs.1.bias")


def pair():
    """Two networks with layers 6 -> 5 and 5 -> 4; biases that are not zero, so that one sees them move."""
    torch.manual_seed(0)
    networks = [GCN(6, 5, 2, out_channels=4) for _ in range(2)]
    with torch.no_grad():
        for network in networks:
            for conv in network.convs:
                conv.bias.normal_()
    return networks


def exchanged(name, seed=0, channels=2):
    """Target and source after an exchange, and what it recorded."""
    target, source = pair()
    swaps = exchange(target, source, channels=channels, bins=6, strategy=name, seed=seed)
    return state(target), state(source), swaps


def state(network):
    return {name: t.clone() for name, t in network.state_dict().items()}


def same(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def before():
    return [state(network) for network in pair()]


@pytest.mark.parametrize("name", STRATEGIES)
def test_entry(name):
    way = STRATEGIES[name]
    assert strategy(name) is way
    assert way.about.strip()
    with pytest.raises(dataclasses.FrozenInstanceError):  # the registry is shared by everything in the process
        way.about = ""  # type: ignore[misc]


def test_no_two_entries_are_alike():
    settings = [dataclasses.replace(way, about="") for way in STRATEGIES.values()]
    assert len(set(settings)) == len(settings)
    assert len({way.about for way in STRATEGIES.values()}) == len(STRATEGIES)


def test_the_alternatives_of_the_paper_are_there():
    assert set(STRATEGIES) >= {"adaptive", *DRAWING, "first-output", "adaptive-input", "first-input", "self", "neuron"}


def test_who_chooses_nothing_merges():
    assert [name for name, way in STRATEGIES.items() if way.merges] == ["functional"]
    assert STRATEGIES["functional"].choose is None


def test_unknown_name():
    with pytest.raises(AkeError, match="'best' is not one of adaptive, random-output"):
        strategy("best")


@pytest.mark.parametrize("name", SWAPPING)
def test_runs_and_changes_the_target(name, before):
    target, source, swaps = exchanged(name)
    layers = {"convs.0"} if name == "neuron" else {"convs.0", "convs.1"}
    assert {s.layer for s in swaps} == layers
    for layer in layers:
        assert not torch.equal(target[f"{layer}.lin.weight"], before[0][f"{layer}.lin.weight"])
    # An untrained partner is a copy, and who takes from itself asks nobody: the source given is left alone.
    assert same(source, before[1]) == (STRATEGIES[name].partner != "source")
    measured = {(s.correlation is None, s.entropy_before is None, s.entropy_after is None) for s in swaps}
    assert measured == {(not STRATEGIES[name].adaptive,) * 3}


@pytest.mark.parametrize("name", SWAPPING)
def test_same_seed_same_exchange(name):
    target, source, swaps = exchanged(name, seed=7)
    torch.rand(3)  # other people's random numbers are of no account
    again_target, again_source, again = exchanged(name, seed=7)
    assert again == swaps
    assert same(again_target, target)
    assert same(again_source, source)


@pytest.mark.parametrize("name", DRAWING)
def test_other_seed_other_exchange(name):
    first = exchanged(name, seed=0)[0]
    assert not any(same(exchanged(name, seed=seed)[0], first) for seed in (1, 2, 3))


@pytest.mark.parametrize("name", FIXED)
def test_strategies_that_draw_nothing_need_no_seed(name):
    assert same(exchanged(name, seed=0)[0], exchanged(name, seed=1)[0])


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_first_output_moves_the_first_channels_each_to_its_namesake(channels, before):
    target, source, swaps = exchanged("first-output", channels=channels)
    for layer in ("convs.0", "convs.1"):
        moved = [(s.source_channel, s.target_channel) for s in swaps if s.layer == layer]
        assert moved == [(k, k) for k in range(channels)]
    for name in WEIGHTS + BIASES:
        assert torch.equal(target[name][:channels], before[1][name][:channels])
        assert torch.equal(source[name][:channels], before[0][name][:channels])
        assert torch.equal(target[name][channels:], before[0][name][channels:])
        assert torch.equal(source[name][channels:], before[1][name][channels:])


def test_first_input_moves_the_first_inputs_each_to_its_namesake(before):
    target, source, _ = exchanged("first-input", channels=2)
    for name in WEIGHTS:  # 2 * 6 weights are 3 inputs of 5, rounded up; 2 * 5 are 3 of 4
        assert torch.equal(target[name][:, :3], before[1][name][:, :3])
        assert torch.equal(source[name][:, :3], before[0][name][:, :3])
        assert torch.equal(target[name][:, 3:], before[0][name][:, 3:])
        assert torch.equal(source[name][:, 3:], before[1][name][:, 3:])


def test_point_moves_weights_only_between_the_same_places(before):
    target, source, swaps = exchanged("point", channels=2)
    for name in WEIGHTS:
        old_target, old_source = before[0][name], before[1][name]
        moved = target[name] != old_target
        assert int(moved.sum()) == 2 * old_target.shape[1]  # as many as two channels have
        assert torch.equal(target[name], torch.where(moved, old_source, old_target))
        assert torch.equal(source[name], torch.where(moved, old_target, old_source))
    for name in BIASES:
        assert torch.equal(target[name], before[0][name])
        assert torch.equal(source[name], before[1][name])
    assert [(s.source_channel, s.target_channel, s.scalars) for s in swaps] == [(None, None, 12), (None, None, 10)]


@pytest.mark.parametrize("name", ["random-output", "random-input"])
def test_random_channels_are_drawn_without_replacement(name):
    seen = set()
    for seed in range(20):
        _, _, swaps = exchanged(name, seed=seed)
        for layer in ("convs.0", "convs.1"):
            mine = [s for s in swaps if s.layer == layer]
            given, taken = [s.source_channel for s in mine], [s.target_channel for s in mine]
            assert len(set(given)) == len(given) == len(set(taken)) == len(taken)
            seen |= {(layer, r, i) for r, i in zip(taken, given, strict=True)}
    # Not each with its namesake, and no channel that is never drawn.
    sizes = {"random-output": {"convs.0": 5, "convs.1": 4}, "random-input": {"convs.0": 6, "convs.1": 5}}[name]
    for layer, size in sizes.items():
        assert {r for x, r, _ in seen if x == layer} == {i for x, _, i in seen if x == layer} == set(range(size))
        assert any(r != i for x, r, i in seen if x == layer)


def test_adaptive_and_neuron_choose_the_same_channels():
    # Whole neurons are chosen by their incoming weights; only what moves is different.
    chosen = [[s for s in exchanged(name)[2] if s.layer == "convs.0"] for name in ("adaptive", "neuron")]
    assert chosen[0] == chosen[1]


def test_a_strategy_of_ones_own_is_one_entry(monkeypatch, before):
    def last(bench, target, source, count, draws):
        channels = torch.arange(bench.channels - count, bench.channels).expand(bench.layers, count)
        yield Choice(channels, channels)

    monkeypatch.setitem(STRATEGIES, "last-output", Strategy(last, "the last M output channels"))
    target, _, _ = exchanged("last-output", channels=2)
    for name in WEIGHTS + BIASES:
        assert torch.equal(target[name][-2:], before[1][name][-2:])
        assert torch.equal(target[name][:-2], before[0][name][:-2])


def chooser(redundant, informative=None):
    def mine(bench, target, source, count, draws):
        yield Choice(redundant, redundant if informative is None else informative)

    return mine


@pytest.mark.parametrize(
    ("choose", "why"),
    [
        (lambda *given: None, "must yield choices, returned a NoneType"),
        (lambda *given: iter([3]), "must yield akegnn.strategies.Choice, yielded a int"),
        (chooser([[0]]), "redundant must be a tensor of int64, the numbers of channels"),
        (chooser(torch.tensor([[0.0]])), "redundant must be a tensor of int64, the numbers of channels"),
        (chooser(torch.tensor([0, 1])), "redundant must be [1, K], as long on both sides, is (2,)"),
        (chooser(torch.tensor([[0]]), torch.tensor([[0, 1]])), "informative must be [1, K], as long on both sides"),
        (chooser(torch.tensor([[99]])), "redundant must be channels from 0 to "),
        (chooser(torch.tensor([[0]]), torch.tensor([[-1]])), "informative must be channels from 0 to "),
        (chooser(torch.tensor([[1, 1]])), "redundant has a channel twice; yield one choice after another instead"),
    ],
)
def test_what_a_strategy_of_ones_own_has_wrong_is_told_in_a_line(choose, why, monkeypatch, before):
    monkeypatch.setitem(STRATEGIES, "mine", Strategy(choose, "mine"))
    message = refusal(lambda: exchanged("mine"))
    assert message.startswith("strategy ")
    assert why in message
