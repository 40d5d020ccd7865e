"""DeCorr: the loss by hand, in training only, on a network whose tensors keep their names."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from akegnn.backbones import BACKBONES
from akegnn.errors import RunFailed
from akegnn.forward import forward
from akegnn.methods import METHODS
from akegnn.methods.decorr import correlation_loss, decorrelated
from akegnn.phases import Bench
from akegnn.training import training_loss
from methods.plain import Cell, check, gcn, make, run
from small import exact, refusal


@pytest.fixture
def first_rows(monkeypatch):
    """The sample of rows is always the first ones, without any draw."""
    draw = torch.randint

    def again(high, size, generator=None, **given):
        return torch.arange(*size) if generator is None else draw(high, size, generator=generator, **given)

    monkeypatch.setattr(torch, "randint", again)


def by_hand(x):
    x = x[: int(np.sqrt(len(x)))]
    c = (x - x.mean(0)).T @ (x - x.mean(0))
    d = len(c)
    return np.sqrt(((c / np.sqrt((c**2).sum()) - np.eye(d) / np.sqrt(d)) ** 2).sum())


@pytest.mark.usefixtures("first_rows")
@pytest.mark.parametrize("shape", [(45, 4), (16, 1), (9, 7)])
def test_the_loss_by_hand(shape):
    x = np.random.default_rng(1).normal(size=shape)
    assert float(correlation_loss(torch.from_numpy(x))) == pytest.approx(by_hand(x), abs=1e-12)


@pytest.mark.usefixtures("first_rows")
def test_columns_without_correlation_have_no_loss_and_equal_ones_the_most():
    """Covariance a multiple of the identity: 0. All columns equal: every entry is 1 / d instead."""
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
    assert float(correlation_loss(signs.repeat(4, 1))) == pytest.approx(0, abs=1e-12)
    d = 5
    wanted = np.linalg.norm(np.full((d, d), 1 / d) - np.eye(d) / np.sqrt(d))
    assert float(correlation_loss(signs.repeat(4, 1)[:, :1].expand(-1, d))) == pytest.approx(wanted)


def test_constant_columns_have_a_finite_loss_and_gradient():
    x = torch.ones(16, 3, dtype=torch.float64, requires_grad=True)
    loss = correlation_loss(x)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(1)
    assert bool(torch.isfinite(x.grad).all())


def test_as_many_rows_as_the_root_of_all_are_drawn():
    """Of 100 rows 10 may have another value than zero only if they were drawn."""
    seen = []
    for seed in range(20):
        torch.manual_seed(seed)
        x = torch.eye(100, dtype=torch.float64).requires_grad_()
        correlation_loss(x).backward()
        seen.append({int(k) for k in x.grad.abs().sum(1).nonzero()})
    assert all(0 < len(rows) <= 10 for rows in seen)
    assert len(set.union(*seen)) > 60


@pytest.mark.usefixtures("first_rows")
@pytest.mark.parametrize("alpha", [1.0, 0.1])
def test_training_adds_it_and_evaluation_does_not(alpha):
    bench = make(views=["original"])
    task, plain = bench.task, exact("gcn", num_layers=3)
    model = decorrelated(copy.deepcopy(plain), ("convs.0", "convs.1"), alpha)
    assert list(model.state_dict()) == list(plain.state_dict())
    assert torch.equal(forward(model.eval(), task.data), forward(plain.eval(), task.data))
    hidden = []
    handles = [c.register_forward_hook(lambda m, i, out: hidden.append(out)) for c in plain.convs[:2]]
    out = forward(plain, task.data).detach()
    for handle in handles:
        handle.remove()
    wanted = float(cross_entropy(out[task.parts["train"]], task.labels[task.parts["train"]]))
    wanted += alpha * sum(by_hand(h.detach().numpy()) for h in hidden)
    loss = training_loss(model, next(task.batches(task.data, None)), task)
    assert float(loss.detach()) == pytest.approx(wanted, abs=1e-12)
    assert not any(m._forward_hooks for m in model.modules()), "nothing is left behind"


@pytest.mark.usefixtures("first_rows")
def test_one_network_for_as_long_as_both_phases():
    bench = make()
    lines, found = run(bench, "decorr")
    assert list(lines) == ["DeCorr"]
    wanted = []
    for k in range(2):
        cell = Cell(bench, k)
        tried = []
        for alpha in (1.0, 0.1, 0.01):
            model = decorrelated(cell.new("1: mask"), ("convs.0",), alpha)
            tried.append(cell.predict(cell.train(model, "original", "individual", "decorr", epochs=10)))
        right = [(t.argmax(-1) == cell.task.labels)[cell.task.parts["val"]].sum() for t in tried]
        wanted.append(tried[int(torch.stack(right).argmax())])
        plain = cell.predict(cell.train(cell.new("1: mask"), "original", "individual", "decorr", epochs=10))
        assert not torch.allclose(plain, wanted[-1], atol=1e-3)
    check(bench, lines["DeCorr"], found["DeCorr"], wanted)
    assert lines["DeCorr"].passes == 1
    assert lines["DeCorr"].parameters == sum(p.numel() for p in gcn().parameters())


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_that_has_no_loss_of_its_own(name):
    bench = make(lambda: exact(name), epochs=1, views=["original"])
    if hasattr(BACKBONES[name], "training_loss"):
        message = f"method 'decorr': {BACKBONES[name].__name__} has a loss of its own"
        assert refusal(lambda: list(METHODS["decorr"](bench))) == message
    else:
        (line,) = METHODS["decorr"](bench)
        assert all(0 <= score <= 1 for score in line.test)
        assert bench.failed == {}


def test_a_weight_that_fails_leaves_the_others(monkeypatch):
    """In one cell, in all cells; only where every weight fails is there no result."""
    train = Bench.train
    for weights, cells, lost in (((1.0,), (0,), set()), ((1.0,), (0, 1), set()), ((1.0, 0.1, 0.01), (0,), {0})):

        def failing(self, networks, *given, weights=weights, cells=cells, **named):
            train(self, networks, *given, **named)
            if getattr(networks.population.template, "alpha", None) in weights:
                if len(cells) == 2:
                    raise RunFailed("the loss is not finite")
                self.failed |= dict.fromkeys(cells, "the loss is not finite")

        monkeypatch.setattr(Bench, "train", failing)
        bench = make(epochs=2)
        (line,) = METHODS["decorr"](bench)
        assert set(bench.failed) == lost
        monkeypatch.setattr(Bench, "train", train)
        alone = run(make(epochs=2), "decorr")[0]["DeCorr"]
        assert line.validation[1] <= alone.validation[1]
