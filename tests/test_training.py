"""Training: the best epoch, patience, seeds, divergence, and what a person may bring of their own."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import lr_scheduler

import akegnn
from akegnn import population, training
from akegnn.errors import AkeError, RunFailed
from akegnn.settings import Training
from akegnn.tasks import make_task
from akegnn.training import Trainer
from akegnn.views import MaskFeatures, Transform
from small import Net, fit, graph, masked, refusal, same

PARTS = {"train": list(range(12)), "val": list(range(12, 33)), "test": list(range(33, 60))}


def start() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Net(5, 3, 4)


def retrained(model=None, **given):
    """One network, already there and trained once more on the graph itself: nothing but the loop."""
    model = start() if model is None else model
    return fit(masked(graph(), **PARTS), models=[model], views=["original"], **given)


# ---- the best epoch --------------------------------------------------------------------------------------------------


def watched(**given):
    """A training, with what the metric was shown of the validation nodes in each epoch, and how good that is."""
    shown, epochs = [], []

    def metric(prediction, target):
        if len(target) == len(PARTS["val"]):
            shown.append(prediction.detach().clone())
        return float((prediction.argmax(1) == target).double().mean())

    result = retrained(metric=metric, on_epoch=lambda epoch: epochs.append(shown[-1]), **given)
    target = graph().y[PARTS["val"]]
    standings = [
        (float((p.argmax(1) == target).double().mean()), -float(cross_entropy(p.double(), target))) for p in epochs
    ]
    return result, epochs, standings


@pytest.mark.parametrize("lr", [0.1, 1.0])
def test_the_network_is_put_back_to_its_best_epoch(lr):
    """Best by validation score, then by validation loss."""
    result, epochs, standings = watched(epochs=40, lr=lr)
    best = max(range(40), key=lambda k: standings[k])
    assert best < 39, "if the last epoch is the best, nothing is shown"
    assert [e.validation for e in result.history] == [s[0] for s in standings]
    assert [e.best for e in result.history] == [max(s[0] for s in standings[: k + 1]) for k in range(40)]
    with torch.no_grad():
        out = result.model(graph().x, graph().edge_index)[PARTS["val"]]
    distances = [float((out - p).abs().max()) for p in epochs]
    assert min(range(40), key=lambda k: distances[k]) == best
    assert distances[best] < 1e-5
    assert result.score().validation == standings[best][0]


@pytest.mark.parametrize("patience", [1, 3, 7])
def test_patience(patience):
    """It stops when so many epochs have passed since the best one, and is otherwise the same."""
    full, _, standings = watched(epochs=60, lr=0.3)
    since = [k - max(range(k + 1), key=lambda j: standings[j]) for k in range(60)]
    stop = next(k for k in range(60) if since[k] >= patience)
    assert stop < 59
    result = retrained(epochs=60, lr=0.3, patience=patience)
    assert result.history == [*full.history[:stop], replace(full.history[stop], stopped=1)]


def literal_stop(standings, select, stop, patience):
    """Epoch by epoch: which is the best, and after which it stops (counted from 0), from scores and minus losses."""
    best = 0
    for k in range(len(standings)):
        scores, losses = [s for s, _ in standings[: k + 1]], [-m for _, m in standings[: k + 1]]
        if select == "loss":
            best = min(range(k + 1), key=lambda j: (losses[j], -scores[j]))
        else:
            best = max(range(k + 1), key=lambda j: (scores[j], -losses[j]))
        # The last epoch that was not worse than all before it by one of the two.
        last = max(j for j in range(k + 1) if scores[j] == max(scores[: j + 1]) or losses[j] == min(losses[: j + 1]))
        if patience is not None and k - (best if stop == "best" else last) >= patience:
            return best, k
    return best, len(standings) - 1


WAYS = [(select, stop) for select in ("score", "loss") for stop in ("best", "either")]


@pytest.mark.parametrize(("select", "stop"), WAYS)
@pytest.mark.parametrize("patience", [1, 2, 5, None])
def test_the_best_epoch_and_the_last_by_score_loss_or_either(select, stop, patience):
    """Against the four rules written down, on the curves of a training that goes up and down."""
    full, epochs, standings = watched(epochs=60, lr=1.0)
    best, last = literal_stop(standings, select, stop, patience)
    result = retrained(epochs=60, lr=1.0, select=select, stop=stop, patience=patience)
    assert len(result.history) == last + 1
    assert [(e.loss, e.validation) for e in result.history] == [
        (e.loss, e.validation) for e in full.history[: last + 1]
    ]
    assert result.score().validation == standings[best][0]
    with torch.no_grad():
        out = result.model(graph().x, graph().edge_index)[PARTS["val"]]
    assert float((out - epochs[best]).abs().max()) < 1e-5


def test_the_four_ways_are_different():
    """Otherwise the test above would show nothing."""
    _, _, standings = watched(epochs=60, lr=1.0)
    found = [literal_stop(standings, *way, 5) for way in WAYS]
    assert len({best for best, _ in found}) == 3
    assert len({last for _, last in found}) == 3


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12),
    st.sampled_from(WAYS),
    st.none() | st.integers(1, 4),
)
def test_best_and_last_on_any_curve_alone_and_together(curve, way, patience):
    """Curves with many ties: one by one, and all replicas at once, by the literal rule."""
    select, stop = way
    best, last = literal_stop([(s, -float(m)) for s, m in curve], select, stop, patience)
    model = nn.Linear(1, 1, bias=False)
    alone = training._Best({"weight": torch.zeros(1, 1)}, by_loss=select == "loss")
    stopped = None
    for k, (score, loss) in enumerate(curve):
        nn.init.constant_(model.weight, k)
        alone.update(k + 1, float(score), float(loss), model)
        if patience is not None and k + 1 - (alone.epoch if stop == "best" else alone.last) >= patience:
            stopped = k
            break
    assert (alone.epoch - 1, len(curve) - 1 if stopped is None else stopped) == (best, last)
    assert float(alone.state["weight"]) == best

    live = {"weight": torch.zeros(2, 1)}
    networks = akegnn.Population.of([nn.Linear(1, 1, bias=False)] * 2)
    networks.state = {"weight": torch.zeros(2, 1)}
    settings = Training(select=select, stop=stop, patience=patience)
    together = population._Best(networks, live, torch.device("cpu"), settings)
    for k, (score, loss) in enumerate(curve):
        live["weight"].fill_(k)
        pair = [torch.tensor([float(v), 0.0], dtype=torch.float64) for v in (score, loss)]
        together.update(torch.zeros(2), torch.tensor([True, True]), *pair)
        if patience is not None:
            assert bool(together.active[0]) == (stopped is None or k < stopped)
    assert int(together.epoch[0]) - 1 == best
    assert float(together.state["weight"][0]) == best
    assert int(together.epoch[1]) == 1  # whose curve is flat: another's does not matter


def test_without_patience_it_goes_on_to_the_end():
    assert [e.epoch for e in retrained(epochs=40, lr=0.3).history] == list(range(1, 41))


# ---- seeds -----------------------------------------------------------------------------------------------------------


SETTINGS = {"views": ["mask:0.3", "corrupt:0.3", "drop-edges:0.3", "subgraph:0.3"], "baseline": True}


@pytest.mark.parametrize("task", ["node", "link"])
@pytest.mark.parametrize("resample", ["once", "epoch"])
def test_the_same_seed_gives_the_same_run_bit_for_bit(task, resample):
    runs = []
    for _ in range(2):
        torch.manual_seed(len(runs))  # what the caller has drawn before is no matter
        runs.append(fit(task=task, resample=resample, seed=3, **SETTINGS))
    a, b = runs
    assert all(same(x, y) for x, y in zip(a.networks, b.networks, strict=True))
    assert a.history == b.history
    assert a.swaps == b.swaps
    assert [(s.name, s.validation, s.test) for s in a.scores] == [(s.name, s.validation, s.test) for s in b.scores]
    other = fit(task=task, resample=resample, seed=4, **SETTINGS)
    assert not same(a.model, other.model)


@pytest.mark.parametrize("draw", [random.random, np.random.rand, torch.rand], ids=["random", "numpy", "torch"])
def test_a_view_may_draw_from_anywhere(draw):
    """PyG's own transforms draw from Python's generator as well (``RandomFlip``, ``RandomScale``)."""

    def scale(data):
        data = copy.copy(data)
        data.x = data.x * float(draw(1) if draw is torch.rand else draw())
        return data

    a, b = (fit(views=[scale, scale]) for _ in range(2))
    assert same(a.model, b.model)


def test_networks_start_from_different_weights():
    built = []

    def factory():
        built.append(Net(5, 3, 4))
        return built[-1]

    fit(model=factory, train=lambda model, data: None, exchange={"strategy": "self"})
    starts = {tuple(m.first.lin.weight.flatten().tolist()) for m in built}
    assert len(starts) == len(built)


def test_nothing_of_the_callers_is_disturbed():
    data, rng = masked(graph(), **PARTS), torch.random.get_rng_state()
    python, old = random.getstate(), np.random.get_state()[1].tolist()
    before = {k: v.clone() for k, v in data.items()}
    fit(data, **SETTINGS)
    assert torch.equal(torch.random.get_rng_state(), rng)
    assert random.getstate() == python
    assert np.random.get_state()[1].tolist() == old
    assert set(data.keys()) == set(before)
    assert all(torch.equal(data[k], v) for k, v in before.items())
    assert torch.is_grad_enabled()


# ---- divergence ------------------------------------------------------------------------------------------------------


class Breaks(Net):
    """Gives NaN from the given forward pass in training on."""

    passes = 0

    def forward(self, x, edge_index):
        self.passes += self.training
        return super().forward(x, edge_index) * (torch.nan if self.passes >= 3 else 1)


def test_a_nan_is_told_with_phase_network_and_epoch():
    with pytest.raises(RunFailed) as caught:
        fit(model=Breaks, model_args={"width": 4}, epochs=5, baseline=True)
    assert str(caught.value).startswith("individual, network base, epoch 3: the loss is nan")
    assert (caught.value.code, isinstance(caught.value, AkeError)) == (1, True)
    with pytest.raises(RunFailed, match=r"^re-training, network 1: original, epoch 3: the loss is nan"):
        retrained(Breaks(5, 3, 4), epochs=5)


@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_a_network_that_diverges_in_its_last_epoch_is_not_passed_on(epochs):
    """With one epoch the loss is still fine, and the weights are not."""
    with pytest.raises(RunFailed, match=r"^individual, network base, epoch [12]\b"):
        fit(epochs=epochs, lr=1e38, optimizer="SGD", baseline=True)


def test_an_own_loop_that_diverges_has_failed_and_says_where():
    def train(model, data):
        for p in model.parameters():
            nn.init.constant_(p, torch.nan)

    with pytest.raises(RunFailed, match=r"^individual, network 1: mask\b"):
        fit(train=train)


def test_a_metric_that_is_not_a_number_has_failed():
    """Nothing can be told better than NaN, so no epoch is the best."""
    with pytest.raises(RunFailed, match=r"^re-training, network 1: original, epoch 1: "):
        retrained(metric=lambda prediction, target: float("nan"))


# ---- optimizer, scheduler, metric, views -----------------------------------------------------------------------------


def test_one_step_by_hand():
    """SGD with weight decay: w - lr * (gradient + decay * w), of the mean loss over the training nodes."""
    data, model = masked(graph(), **PARTS), start()
    literal = copy.deepcopy(model)
    loss = cross_entropy(literal(data.x, data.edge_index)[PARTS["train"]], data.y[PARTS["train"]])
    loss.backward()
    result = retrained(model, epochs=1, optimizer="SGD", lr=0.2, weight_decay=0.1)
    assert result.history[0].loss == pytest.approx(float(loss.detach()), rel=1e-5)
    for (name, p), after in zip(literal.named_parameters(), result.model.parameters(), strict=True):
        assert torch.allclose(after, p - 0.2 * (p.grad + 0.1 * p), atol=1e-6), name


def test_an_optimizer_of_ones_own():
    made = []

    def quick(parameters):
        made.append(torch.optim.SGD(parameters, lr=0.2, weight_decay=0.1))
        return made[-1]

    result = retrained(epochs=4, optimizer=quick)
    assert same(result.model, retrained(epochs=4, optimizer="SGD", lr=0.2, weight_decay=0.1).model)
    assert len(made) == 1
    assert "quick" in result.settings.training.optimizer


@pytest.mark.parametrize("name", ["Adma", "lr_scheduler", "Optimizer", "LBFGS", "SparseAdam"])
def test_an_optimizer_that_cannot_be_used(name):
    assert refusal(lambda: retrained(optimizer=name)).startswith("optimizer: ")


DECAYS = {"first.*": 0.3, "*.bias": 0.05, "second.lin.weight": 0.0}


def test_weight_decays_by_name():
    """The first pattern that fits counts, others have the common one: as groups of torch.optim, made by hand."""
    wanted = {"first.lin.weight": 0.3, "first.bias": 0.3, "second.bias": 0.05, "second.lin.weight": 0.0}
    data, literal = masked(graph(), **PARTS), start()
    groups = [{"params": [p], "weight_decay": wanted[name]} for name, p in literal.named_parameters()]
    optimizer = torch.optim.SGD(groups, lr=0.2)
    for _ in range(3):
        optimizer.zero_grad()
        cross_entropy(literal(data.x, data.edge_index)[PARTS["train"]], data.y[PARTS["train"]]).backward()
        optimizer.step()
    states = []  # the metric rises from epoch to epoch, so that the last is the best
    result = retrained(
        epochs=3,
        optimizer="SGD",
        lr=0.2,
        weight_decay=0.7,
        weight_decays=DECAYS,
        metric=lambda prediction, target: states.append(0) or float(len(states)),
    )
    for (name, a), b in zip(literal.named_parameters(), result.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6), name
    assert result.settings.training.weight_decays == DECAYS


@pytest.mark.parametrize(
    ("decays", "wanted"),
    [
        ({}, {0.7: 4}),
        (DECAYS, {0.3: 2, 0.05: 1, 0.0: 1}),
        ({"*": 0.1, "first.*": 0.3}, {0.1: 4}),  # the first that fits
        ({"*.lin.*": 0.7, "first.bias": 0.7}, {0.7: 4}),  # equal ones are one group
        ({"[fs]*.bias": 1}, {1: 2, 0.7: 2}),
    ],
)
@pytest.mark.parametrize("optimizer", ["Adam", "SGD", "AdamW"])
def test_groups_of_weight_decays(decays, wanted, optimizer):
    made = make_task(masked(graph(), **PARTS))
    trainer = Trainer(made, Training(weight_decay=0.7, weight_decays=decays, optimizer=optimizer, lr=0.03))
    groups = trainer.make_optimizer(start().named_parameters()).param_groups
    assert {g["weight_decay"]: len(g["params"]) for g in groups} == wanted
    assert {g["lr"] for g in groups} == {0.03}


@pytest.mark.parametrize("pattern", ["FIRST.*", "first"])  # whole names, as they are written
def test_a_weight_decay_of_nothing_is_told(pattern):
    trainer = Trainer(make_task(masked(graph(), **PARTS)), Training(weight_decays={pattern: 0.3}))
    with pytest.raises(AkeError, match="weight_decays: no parameter is called"):
        trainer.make_optimizer(start().named_parameters())


@pytest.mark.parametrize(
    "given", [{"weight_decays": {"a": -0.1}}, {"weight_decays": {"a": "much"}}, {"weight_decay": "x"}]
)
def test_weight_decays_that_are_none(given):
    assert "a weight decay must be a number and not negative" in refusal(lambda: retrained(**given))


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64])
def test_weight_decays_of_numpy_are_numbers(kind):
    """One of ``np.linspace(...)``, whatever its width."""
    made = Training(weight_decay=kind(1), weight_decays={"a": kind(2)})
    assert (made.weight_decay, made.weight_decays["a"]) == (1, 2)


def rates_of(scheduler, epochs=8):
    """The learning rate of each epoch, as the optimizer had it."""
    made, rates = make_task(masked(graph(), **PARTS)), []

    class Watching(torch.optim.SGD):
        def step(self, *given):
            rates.append([g["lr"] for g in self.param_groups])
            return super().step(*given)

    trainer = Trainer(made, Training(epochs=epochs, scheduler=scheduler), optimizer=lambda p: Watching(p, lr=0.8))
    trainer.train(start(), MaskFeatures(), "individual", "n", 0)
    return [rate for (rate,) in rates]


@pytest.mark.parametrize(
    ("words", "theirs"),
    [
        ("step:3:0.5", lambda o: lr_scheduler.StepLR(o, 3, 0.5)),
        ("step:1:0.9", lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
        ("warmup:4", lambda o: lr_scheduler.LinearLR(o, 0.25, 1.0, 3)),
        ("warmup:1", lambda o: lr_scheduler.ConstantLR(o, 1.0)),
        ("", lambda o: lr_scheduler.ConstantLR(o, 1.0)),
    ],
)
def test_schedulers_in_words_are_those_of_torch(words, theirs):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.8)
    scheduler, wanted = theirs(optimizer), []
    for _ in range(8):
        wanted.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates_of(words) == pytest.approx(wanted)


def test_schedulers_by_hand():
    assert rates_of("step:3:0.5") == pytest.approx([0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2, 0.2])
    assert rates_of("warmup:4") == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.8, 0.8])


@pytest.mark.parametrize(
    "words",
    [
        *(
            "step",
            "step:",
            "step:5",
            "step:x:0.5",
            "step:5:x",
            "step:2.5:0.5",
            "warmup",
            "warmup:",
            "warmup:x",
            "cosine",
        ),
        *(
            "step:0:0.5",
            "step:-3:0.5",
            "step:5:nan",
            "step:5:-1",
            "step:5:0.5:7",
            "warmup:0",
            "warmup:-5",
            "warmup:5:6",
        ),
    ],
)
def test_a_scheduler_that_is_none_is_told_beforehand(words):
    trained = []
    message = refusal(lambda: retrained(scheduler=words, epochs=2, on_epoch=trained.append))
    assert message.startswith(f"scheduler: {words!r} is neither step:EPOCHS:FACTOR nor warmup:EPOCHS")
    assert trained == []


def test_a_scheduler_that_is_none_is_told_beforehand_with_an_optimizer_of_ones_own():
    trained = []
    given = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1), "on_epoch": trained.append}
    assert refusal(lambda: retrained(scheduler="cosine", **given)).startswith("scheduler: 'cosine'")
    assert trained == []


def test_a_scheduler_of_ones_own_is_made_for_real_optimizers_only():
    """Once for each training, with an optimizer that holds the network's parameters."""
    made = []

    def halve(optimizer):
        made.append(sum(p.numel() for g in optimizer.param_groups for p in g["params"]))
        return lr_scheduler.StepLR(optimizer, 1, 0.5)

    retrained(epochs=2, scheduler=halve)
    assert made == [sum(p.numel() for p in start().parameters())]


def rates(scheduler, epochs=4):
    made = []

    def optimizer(parameters):
        made.append(torch.optim.SGD(parameters, lr=0.8))
        return made[-1]

    result = retrained(epochs=epochs, optimizer=optimizer, scheduler=scheduler)
    return made[0].param_groups[0]["lr"], result


def test_a_scheduler_takes_a_step_per_epoch():
    def halve(optimizer):
        return lr_scheduler.StepLR(optimizer, 1, 0.5)

    rate, result = rates(halve)
    assert rate == pytest.approx(0.8 * 0.5**4)
    assert "halve" in result.settings.training.scheduler


def test_a_scheduler_that_waits_for_a_plateau_is_shown_the_loss():
    # No loss falls by so much: every epoch but the first is a plateau.
    rate, _ = rates(
        lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=1e9, threshold_mode="abs")
    )
    assert rate == pytest.approx(0.8 * 0.5**3)
    # Every loss is an improvement of sorts: no plateau.
    rate, _ = rates(
        lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0, threshold=-1e9, threshold_mode="abs")
    )
    assert rate == pytest.approx(0.8)


def test_a_metric_of_ones_own_chooses_and_is_recorded():
    def sureness(prediction, target):
        return float(prediction.softmax(1).max(1).values.mean())

    result = retrained(epochs=6, metric=sureness)
    assert (result.metric, result.settings.training.metric.rpartition(".")[2]) == ("sureness", "sureness")
    data = masked(graph(), **PARTS)
    with torch.no_grad():
        out = result.model(data.x, data.edge_index)
    assert result.score().test == pytest.approx(sureness(out[PARTS["test"]], None), rel=1e-5)
    assert result.score().validation == pytest.approx(max(e.validation for e in result.history))


@pytest.mark.parametrize(("resample", "draws"), [("once", 1), ("epoch", 4)])
@pytest.mark.parametrize("phases", [1, 2])
def test_views_are_drawn_once_or_in_every_epoch(resample, draws, phases):
    drawn = []

    def view(data):
        drawn.append(torch.rand(()).item())
        return data

    model = {"models": [Net(5, 3, 4)]} if phases == 1 else {}
    fit(masked(graph(), **PARTS), views=[Transform(view, resample=resample)], epochs=4, **model)
    assert len(drawn) == phases * draws
    assert len(set(drawn)) == draws, "in both phases a network sees the same draws"


@pytest.mark.parametrize(("resample", "different"), [("once", 1), ("epoch", 5)])
def test_a_network_trains_on_what_was_drawn(resample, different):
    seen = []

    class Spy(Net):
        def forward(self, x, edge_index):
            if self.training:
                seen.append(tuple(x.any(0).tolist()))
            return super().forward(x, edge_index)

    akegnn.fit(
        graph(features=40),
        models=[Spy(40, 3, 4)],
        views=[MaskFeatures(0.5, resample=resample)],
        recipe="paper",
        epochs=5,
        device="cpu",
    )
    assert len(seen) == 5
    assert len(set(seen)) == different


def test_dropout_and_norms_are_in_training_mode_only_while_training():
    modes = []

    class Watched(Net):
        def forward(self, x, edge_index):
            modes.append((self.training, torch.is_grad_enabled()))
            return super().forward(x, edge_index)

    result = retrained(Watched(5, 3, 4), epochs=2)
    while modes[0] != (True, True):
        modes.pop(0)
    assert modes[:4] == [(True, True), (False, False)] * 2
    assert (True, True) not in modes[4:]
    assert not result.model.training
