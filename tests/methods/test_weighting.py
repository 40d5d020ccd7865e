"""Adaptive Weighting: the shares, who is mixed with whom, and mixing in every epoch."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import literal
from akegnn.methods.weighting import mix
from akegnn.settings import derive
from methods.plain import NAMES, Cell, check, gcn, make, run

LAYERS = {"convs.0": ["convs.0.lin.weight", "convs.0.bias"], "convs.1": ["convs.1.lin.weight", "convs.1.bias"]}


def share(own, other, bins=10):
    """The weight of one's own layer."""
    h = [literal.entropy(x.numpy(), bins) for x in (own, other)]
    return np.round(0.4 / np.pi * np.arctan(500 * (h[0] - h[1])) + 0.5, 2)


def mixed(models, bins=10):
    """A GCN's layers, weight and bias, of every network with those of the one before; all as they were before."""
    before = [copy.deepcopy(m.state_dict()) for m in models]
    shares = []
    for k, model in enumerate(models):
        state = model.state_dict()
        for names in LAYERS.values():
            w = share(before[k][names[0]], before[k - 1][names[0]], bins)
            shares.append(w)
            for name in names:
                state[name].copy_(w * before[k][name] + (1 - w) * before[k - 1][name])
    return shares


def models_of(count, seed=0):
    torch.manual_seed(seed)
    made = [gcn() for _ in range(count)]
    for k, model in enumerate(made):
        with torch.no_grad():
            model.convs[0].lin.weight[0] += k  # other entropies, some far apart
            model.convs[0].bias += k
            model.convs[1].bias += k
    return made


@pytest.mark.parametrize("bins", [10, 4])
@pytest.mark.parametrize("count", [2, 3])
def test_mixing_by_hand(count, bins):
    """Two cells side by side, each as if it were alone."""
    bench = make(views=["original"])
    cells = [models_of(count, seed) for seed in (0, 1)]
    states = [
        {k: torch.stack([cell[n].state_dict()[k] for cell in cells]) for k in gcn().state_dict()} for n in range(count)
    ]
    assert {k for names in LAYERS.values() for k in names} == set(states[0])
    mix(states, bench.layers, bins)
    for c, cell in enumerate(cells):
        shares = mixed(cell, bins)
        assert len(set(shares)) > 1
        assert all(0.3 <= w <= 0.7 for w in shares)
        for n, model in enumerate(cell):
            for name, value in model.state_dict().items():
                torch.testing.assert_close(states[n][name][c], value, rtol=0, atol=1e-12)


def test_a_share_by_hand():
    """Entropies ln 2 and 0 (all weights alike but for an extreme): the surer share is 0.7, the other's 0.3."""
    bench = make(views=["original"])
    even, flat = gcn().state_dict(), gcn().state_dict()
    for name in even:
        even[name] = torch.zeros_like(even[name])
        flat[name] = torch.full_like(flat[name], 5.0)
    for name in ("convs.0.lin.weight", "convs.1.lin.weight"):
        even[name].view(-1)[::2] = 1.0
    stacks = [{k: v[None].clone() for k, v in s.items()} for s in (even, flat)]
    mix(stacks, bench.layers, 10)
    h = math.log(2)
    w = round(0.4 / math.pi * math.atan(500 * h) + 0.5, 2)
    assert w == 0.7
    for name in even:
        torch.testing.assert_close(stacks[0][name][0], 0.7 * even[name] + 0.3 * flat[name], rtol=0, atol=1e-12)
        torch.testing.assert_close(stacks[1][name][0], 0.3 * flat[name] + 0.7 * even[name], rtol=0, atol=1e-12)


def test_only_hidden_layers_where_that_is_asked_for():
    bench = make(views=["original"], exchange={"layers": "hidden"})
    models = models_of(2)
    stacks = [{k: v[None].clone() for k, v in m.state_dict().items()} for m in models]
    mix(stacks, bench.layers, 10)
    for stack, model in zip(stacks, models, strict=True):
        changed = {k for k, v in model.state_dict().items() if not torch.equal(stack[k][0], v)}
        assert changed == {"convs.0.lin.weight", "convs.0.bias"}


def test_mixed_once_then_trained_again():
    bench = make()
    lines, found = run(bench, "adaptive-weighting")
    title = "adaptive weighting"
    assert list(lines) == [title, f"{title} network 2", f"{title} network 3"]
    wanted = {name: [] for name in lines}
    for k in range(2):
        cell = Cell(bench, k)
        networks = cell.individual()
        mixed(networks)
        for name, model in zip(lines, cell.again(networks, "re-training"), strict=True):
            wanted[name].append(cell.predict(model))
    for name, line in lines.items():
        check(bench, line, found[name], wanted[name])
        assert line.passes == 1


def in_step(cell, networks, epochs):
    """All networks for one epoch, then each its validation, then mixed; each ends at its best epoch."""
    task = cell.task
    seen = [
        task.seen(v, torch.Generator().manual_seed(derive(cell.seed, "view", n)))
        for v, n in zip(cell.views, NAMES, strict=True)
    ]
    how = {"lr": cell.settings.lr, "weight_decay": cell.settings.weight_decay}
    optimizers = [torch.optim.Adam(m.parameters(), **how) for m in networks]
    best = [((-math.inf, -math.inf), None, 0)] * len(networks)
    train, val = (task.data[f"{part}_mask"] for part in ("train", "val"))
    for epoch in range(1, epochs + 1):
        for k, (model, optimizer, data) in enumerate(zip(networks, optimizers, seen, strict=True)):
            optimizer.zero_grad()
            cross_entropy(model(data.x, data.edge_index)[train], task.data.y[train]).backward()
            optimizer.step()
            prediction = cell.predict(model)
            loss = float(cross_entropy(prediction[val], task.data.y[val]))
            standing = (cell.score(prediction, "val"), -loss)
            if standing > best[k][0]:
                best[k] = (standing, copy.deepcopy(model.state_dict()), epoch)
        mixed(networks)
    for model, (_, state, _) in zip(networks, best, strict=True):
        model.load_state_dict(state)
    return [epoch for _, _, epoch in best]


def test_mixed_in_every_epoch():
    bench = make(epochs=3)
    lines, found = run(bench, "adaptive-weighting-every-epoch")
    wanted = {name: [] for name in lines}
    epochs = []
    for k in range(2):
        cell = Cell(bench, k)
        networks = [cell.new(name) for name in NAMES]
        epochs += in_step(cell, networks, 6)
        for name, model in zip(lines, networks, strict=True):
            wanted[name].append(cell.predict(model))
    assert max(epochs) > 3, "as many epochs as both phases have"
    assert len(lines) == 3
    for name, line in lines.items():
        check(bench, line, found[name], wanted[name])


def test_in_every_epoch_too_the_networks_of_a_ring_may_begin_with_shared_weights():
    bench = make(epochs=3, phases={"initial": "shared"})
    _, found = run(bench, "adaptive-weighting-every-epoch")
    cell = Cell(bench, 0)
    networks = [cell.new(NAMES[0]) for _ in NAMES]
    in_step(cell, networks, 6)
    for prediction, model in zip(found.values(), networks, strict=True):
        torch.testing.assert_close(prediction[0], cell.predict(model), rtol=0, atol=1e-8)
