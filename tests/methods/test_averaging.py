"""SWA and EMA: means over one network's training."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from methods.plain import NAMES, Cell, check, gcn, make, run
from small import exact


def epochs_of(cell, epochs):
    """The base's weights after every epoch."""
    model, data, states = cell.new(NAMES[0]), cell.task.data, []
    optimizer = torch.optim.Adam(model.parameters(), lr=cell.settings.lr, weight_decay=cell.settings.weight_decay)
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)[data.train_mask]
        cross_entropy(out, data.y[data.train_mask]).backward()
        optimizer.step()
        states.append({k: v.numpy().copy() for k, v in model.state_dict().items()})
    return states


def swa(states):
    last = states[int(0.75 * len(states)) :]
    return {k: np.mean([s[k] for s in last], axis=0) for k in states[0]}


def ema(states):
    moving = states[0]
    for epoch, state in enumerate(states[1:], 2):
        decay = min(0.99, epoch / (epoch + 10))
        moving = {k: decay * moving[k] + (1 - decay) * state[k] for k in state}
    return moving


def loaded(factory, state):
    model = factory()
    model.load_state_dict({k: torch.from_numpy(np.asarray(v)) for k, v in state.items()})
    return model


def literal(bench, epochs, factory=gcn, keep=()):
    """Predictions of both means, cell by cell; what is in ``keep`` is that of the last epoch."""
    found = {"SWA": [], "EMA": []}
    for k in range(len(bench.cells)):
        cell = Cell(bench, k, factory)
        states = epochs_of(cell, epochs)
        for name, mean in (("SWA", swa(states)), ("EMA", ema(states))):
            mean |= {key: states[-1][key] for key in keep}
            found[name].append(cell.predict(loaded(factory, mean)))
    return found


@pytest.mark.parametrize("epochs", [1, 2, 5, 6])
def test_means_over_as_many_epochs_as_both_phases_have(epochs):
    bench = make(epochs=epochs)
    lines, found = run(bench, "averaging")
    assert list(lines) == ["SWA", "EMA"]
    for name, wanted in literal(bench, 2 * epochs).items():
        check(bench, lines[name], found[name], wanted)
        assert (lines[name].passes, lines[name].parameters) == (1, bench.parameters)
    assert not torch.allclose(found["SWA"], found["EMA"], atol=1e-4)


def test_they_do_not_depend_on_which_epoch_is_best():
    """No epoch is chosen, so patience, which counts from the best, does not end the run either."""
    _, wanted = run(make(epochs=25, lr=0.5), "averaging")
    _, found = run(make(epochs=25, lr=0.5, patience=1), "averaging")
    for name in wanted:
        assert torch.equal(found[name], wanted[name]), name


def test_batch_statistics_are_those_of_the_last_epoch():
    def factory():
        return exact("sage", batch_norm=True)

    bench = make(factory, epochs=3)
    lines, found = run(bench, "averaging")
    statistics = [k for k in factory().state_dict() if "running" in k or "tracked" in k]
    assert len(statistics) == 3
    for name, wanted in literal(bench, 6, factory, keep=statistics).items():
        check(bench, lines[name], found[name], wanted, factory)


def test_one_seed_alone():
    bench = make(cells=[(0, 5)])
    _, found = run(bench, "averaging")
    for name, wanted in literal(bench, 10).items():
        torch.testing.assert_close(found[name][0], wanted[0], rtol=0, atol=1e-8)


def test_the_base_is_left_as_it_is():
    bench = make()
    before = copy.deepcopy(bench.base.population.state)
    run(bench, "averaging")
    assert all(torch.equal(before[k], v) for k, v in bench.base.population.state.items())
