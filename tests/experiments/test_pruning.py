"""Table 1 against a literal pruning in numpy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from akegnn.experiments import EXPERIMENTS
from akegnn.experiments.pruning import BIAS, CHANNELS, FIRST, LAST, _without_a_pair, pruned
from akegnn.fit import plan
from small import csv_folder

CELLS = [(0, 0), (0, 1), (1, 0)]


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    folder = csv_folder(tmp_path_factory.mktemp("own") / "graph")
    return plan(str(folder), "gcn", epochs=2, views=["original"], device="cpu")


@pytest.fixture(scope="module")
def table(settled):
    return pruned(settled, CELLS)


def left(weight: np.ndarray) -> list[int]:
    """All channels but the two whose weights are most correlated."""
    found = np.corrcoef(weight)
    pairs = [(found[a, b], a, b) for a in range(len(weight)) for b in range(a + 1, len(weight))]
    _, a, b = max(pairs)
    return [c for c in range(len(weight)) if c not in (a, b)]


def outputs(weights: dict[str, np.ndarray], x: np.ndarray, edge_index: np.ndarray) -> np.ndarray:
    """Kipf and Welling's two layers, written out."""
    a = np.eye(len(x))
    a[edge_index[0], edge_index[1]] = 1
    degree = a.sum(1)
    a = a / np.sqrt(degree[:, None] * degree[None, :])
    hidden = np.maximum(a @ x @ weights[FIRST].T + weights[BIAS], 0)
    return a @ hidden @ weights[LAST].T + weights["convs.1.bias"]


def test_the_same_channels_go_and_the_same_outputs_come(settled):
    """Step by step from 16 channels to 2, without any training in between."""
    bench = settled.bench(CELLS)
    example = bench.trainer.task.example
    x, edges = example.x.double().numpy(), example.edge_index.numpy()
    networks = bench.base.copy()
    removed = set()
    expected = [{k: v[i].double().numpy() for k, v in networks.population.state.items()} for i in range(len(CELLS))]
    for count in CHANNELS[1:]:
        networks = _without_a_pair(networks, bench)
        predictions = bench.predict(networks)
        for i, weights in enumerate(expected):
            keep = left(weights[FIRST])
            removed.add(tuple(keep))
            weights.update({FIRST: weights[FIRST][keep], BIAS: weights[BIAS][keep], LAST: weights[LAST][:, keep]})
            found = {k: v[i].double().numpy() for k, v in networks.population.state.items()}
            assert len(found[FIRST]) == count
            for name, value in weights.items():
                assert np.array_equal(found[name], value), name
            literal = torch.from_numpy(outputs(weights, x, edges))
            module = networks.population.module(i).eval()
            with torch.no_grad():
                torch.testing.assert_close(
                    module(example.x, example.edge_index).double(), literal, rtol=1e-4, atol=1e-5
                )
            assert torch.equal(predictions[i].argmax(-1), literal.argmax(-1))
    assert len(removed) > len(CHANNELS), "each network loses its own channels"


def test_pruning_leaves_the_network_it_began_with_alone(settled):
    bench = settled.bench(CELLS)
    before = {k: v.clone() for k, v in bench.base.population.state.items()}
    networks = _without_a_pair(bench.base.copy(), bench)
    networks.population.state[FIRST].zero_()
    networks.population.state["convs.1.bias"].zero_()
    assert all(torch.equal(v, before[k]) for k, v in bench.base.population.state.items())


def test_the_smaller_networks_drop_out_as_much(settled):
    bench = settled.bench(CELLS)
    bench.base.population.template.dropout = 0.25
    smaller = _without_a_pair(bench.base, bench).population
    assert smaller.template.dropout == 0.25
    assert smaller.template.convs[0].bias.shape == (14,)


def test_a_line_for_every_number_of_channels_with_one_score_per_cell(table):
    bench, lines = table
    assert [line.name for line in lines] == [f"{n} channels" for n in (16, 14, 12, 10, 8, 6, 4, 2)]
    for line in lines:
        assert len(line.validation) == len(line.test) == len(line.seconds) == len(CELLS)
    assert lines[0].test == bench.line("", bench.predict(bench.base), bench.base.seconds).test
    assert not bench.failed


def test_training_goes_on_from_step_to_step(table):
    bench, lines = table
    for before, after in pairwise(lines):
        assert all(a > b for a, b in zip(after.seconds, before.seconds, strict=True)), "seconds add up"
    phases = list(dict.fromkeys(e.phase for e in bench.history))
    assert phases == ["individual", *(f"{n} channels" for n in CHANNELS[1:])]


def test_parameters_are_those_of_the_smaller_network(table):
    bench, lines = table
    features, classes = bench.trainer.task.features, bench.trainer.task.outputs
    expected = [n * (features + 1) + classes * (n + 1) for n in CHANNELS]
    assert [line.parameters for line in lines] == expected


def test_the_table_is_shown_from_many_channels_to_few():
    assert EXPERIMENTS["table1"].shown == tuple(f"{n} channels" for n in CHANNELS)
    assert EXPERIMENTS["table1"].base == "16 channels"
