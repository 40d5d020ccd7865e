"""The bench that all methods work on: trained once, never disturbed; cells, failures, what the paper leaves open."""

from __future__ import annotations

import copy
import gc
import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch_geometric import nn as pyg

import akegnn
from akegnn.errors import RunFailed
from akegnn.methods import METHODS
from akegnn.population import Population, Replica
from akegnn.settings import Phases, Settings, derive, from_toml, to_toml
from akegnn.tasks import make_task
from akegnn.training import Trainer, Training, seeded
from akegnn.views import DropEdges, Original, as_view
from methods.plain import HOW, NAMES, Cell, gcn, make, run, told
from small import exact, graph, graphs, refusal, still

QUICK = {"epochs": 2}


@pytest.fixture(autouse=True, scope="module")
def _little_to_collect():
    """A full garbage collection looks at every object of torch for a fifth of a second, but not at frozen ones."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def close(a, b, within=1e-8):
    assert a.keys() == b.keys()
    for k in a:
        torch.testing.assert_close(a[k], b[k], rtol=0, atol=within, msg=lambda m, k=k: f"{k}: {m}")


@pytest.fixture
def trainings(monkeypatch):
    """Every training of a population: phase, network, epochs, and the weights that it begins with."""
    seen, whole = [], Population.train

    def train(self, trainer, replicas, phase, *rest):
        names = tuple(dict.fromkeys(r.network for r in replicas))
        seen.append((phase, names, trainer.settings.epochs, {k: v.clone() for k, v in self.state.items()}))
        return whole(self, trainer, replicas, phase, *rest)

    monkeypatch.setattr(Population, "train", train)
    return seen


# ---- trained once ----------------------------------------------------------------------------------------------------


def test_what_several_methods_need_is_trained_once(trainings):
    bench = make(**QUICK)
    for method in METHODS.values():
        list(method(bench))
    list(METHODS["ake"](bench))
    counts = {}
    for phase, names, epochs, _ in trainings:
        counts[phase, names, epochs] = counts.get((phase, names, epochs), 0) + 1
    once = [("individual", (name,), 2) for name in ["base", *NAMES]]
    once += [("further training", (name,), 2) for name in NAMES]
    assert {k: counts[k] for k in once} == dict.fromkeys(once, 1)
    # Of their own: AKE (called twice) and weighting train again; methods without two phases train as long as both.
    assert {k: v for k, v in counts.items() if k not in once} == {
        **{("re-training", (name,), 2): 3 for name in NAMES},
        **{("re-training", (name,), 2): 1 for name in ("merged, trained again", "merged, taught")},
        ("individual", tuple(NAMES), 4): 1,
        ("individual", ("decorr",), 4): 3,
        ("individual", ("base",), 4): 1,
    }


def test_nothing_is_trained_that_is_not_needed(trainings):
    run(make(**QUICK), "single")
    assert [names for _, names, _, _ in trainings] == [("base",)]


def test_all_begin_with_the_weights_that_fit_begins_with(trainings):
    """A network's weights depend on the seed and on its place in the ring; the base is the first of the ring."""

    def weights(name):
        states = []
        for seed in (3, 5):
            with seeded(derive(seed, "weights", name)):
                states.append(gcn().state_dict())
        return {k: torch.stack([s[k] for s in states]) for k in states[0]}

    bench = make(**QUICK)
    for method in ("single", "ft", "averaging", "decorr", "adaptive-weighting-every-epoch"):
        list(METHODS[method](bench))
    akegnn.fit(graph(45), gcn, seeds=[3, 5], **{**HOW, **QUICK})
    first = [t for t in trainings if t[0] == "individual"]
    assert len(first) == 4 + 5 + 4
    for _, names, _, state in first:
        if len(names) > 1:
            parts = [weights(n) for n in names]
            close(state, {k: torch.cat([p[k] for p in parts]) for k in state}, 0)
        else:
            close(state, weights(names[0] if names[0] in NAMES else NAMES[0]), 0)


def test_methods_do_not_disturb_one_another():
    """In this order, in the other, and some on a bench of their own: the same lines."""
    forwards = told(make(**QUICK), *METHODS)
    backwards = told(make(**QUICK), *reversed(METHODS))
    assert sorted(forwards) == sorted(backwards)
    for method in ("ensemble-ft", "averaging"):
        assert all(line in forwards for line in told(make(**QUICK), method))
    assert len(forwards) == len({line[0] for line in forwards}) == 26


def test_what_is_shared_stays_as_it_is():
    bench = make(**QUICK)
    shared = [bench.base, *bench.individual, *bench.further]
    before = [(copy.deepcopy(n.population.state), list(n.seconds)) for n in shared]
    for method in METHODS.values():
        list(method(bench))
        for (state, seconds), n in zip(before, shared, strict=True):
            close(state, n.population.state, 0)
            assert seconds == n.seconds


# ---- cells -----------------------------------------------------------------------------------------------------------

CELLS = [(0, 3), (1, 3), (1, 5)]


def columns(bench, *methods):
    """The scores of each cell by name of the line."""
    lines = run(bench, *methods)[0].values()
    return [{x.name: (x.validation[k], x.test[k]) for x in lines} for k in range(len(bench.cells))]


def test_splits_and_seeds_each_as_if_alone():
    methods = [m for m in METHODS if m != "decorr"]  # which draws for all cells together
    together = columns(make(cells=CELLS, **QUICK), *methods)
    assert together == [columns(make(cells=[cell], **QUICK), *methods)[0] for cell in CELLS]
    assert together[0] != together[1] != together[2]
    task = make().trainer.task
    assert task.at(0).parts["val"].tolist() != task.at(1).parts["val"].tolist()


@pytest.mark.parametrize("task", ["link", "graph"])
def test_the_other_tasks(task):
    """On splits and seeds, each as if alone."""
    methods = ["single", "ft", "ensemble", "ake"]
    given = {"task": task, "epochs": 2, "views": ["mask:0.4", "original"]}
    if task == "graph":
        given |= {"data": graphs(12), "model": lambda: exact("gin", 4, 2, pool=True)}
    together = columns(make(cells=CELLS, **given), *methods)
    assert together == [columns(make(cells=[cell], **given), *methods)[0] for cell in CELLS]
    assert list(together[0]) == ["base", "FT", "ensemble", "ensemble, mean", "after exchange", "AKE", "AKE network 2"]


# ---- cells that fail -------------------------------------------------------------------------------------------------


def failing(*bad):
    """A model whose weights are not numbers for these seeds and names of networks."""
    seeds = {derive(seed, "weights", name) for seed, name in bad}

    def factory():
        model = gcn()
        if torch.initial_seed() in seeds:
            with torch.no_grad():
                model.convs[0].lin.weight[0, 0] = math.nan
        return model

    return factory


THREE = [(0, 3), (0, 5), (0, 7)]


@pytest.fixture(scope="module")
def fine():
    """The scores of every method where nothing fails, cell by cell."""
    bench = make(cells=THREE, **QUICK)
    scores = {method: columns(bench, method) for method in METHODS}
    assert bench.failed == {}
    return scores


@pytest.mark.parametrize("method", METHODS)
def test_a_cell_that_fails_does_not_disturb_the_others(method, fine):
    bench = make(failing(*((5, name) for name in NAMES)), cells=THREE, **QUICK)
    found = columns(bench, method)
    assert (found[0], found[2]) == (fine[method][0], fine[method][2])
    assert list(bench.failed) == [1]
    assert "seed 5, epoch 1: the loss is not finite" in bench.failed[1]
    assert "\n" not in bench.failed[1]


def test_the_first_reason_stays():
    bench = make(failing((5, NAMES[0])), cells=THREE, epochs=1)
    run(bench, "single", "averaging", "decorr")
    assert bench.failed == {1: "individual, network base, seed 5, epoch 1: the loss is not finite; try a smaller lr"}


def test_the_reason_is_that_of_the_network_that_failed():
    bench = make(failing((5, NAMES[1])), cells=THREE, **QUICK)
    run(bench, "single", "ft", "ake")
    assert bench.failed == {
        1: "individual, network 2: drop-edges, seed 5, epoch 1: the loss is not finite; try a smaller lr"
    }


def test_fit_leaves_out_a_seed_that_fails():
    model = failing((5, NAMES[1]))
    found = akegnn.fit(graph(45), model, seeds=[3, 5, 7], **{**HOW, **QUICK})
    assert [r.settings.seed for r in found.results] == [3, 7]
    assert found.failures == [
        "individual, network 2: drop-edges, seed 5, epoch 1: the loss is not finite; try a smaller lr"
    ]


@pytest.mark.parametrize("method", ["single", "ft", "adaptive-weighting-every-epoch", "decorr", "averaging"])
def test_if_all_fail_there_is_nothing_to_go_on_with(method):
    bad = failing(*((seed, name) for seed in (3, 5) for name in NAMES))
    with pytest.raises(RunFailed, match="the loss is not finite"):
        list(METHODS[method](make(bad, **QUICK)))


# ---- what the paper leaves open --------------------------------------------------------------------------------------


def test_initial_weights_of_their_own_or_shared(trainings):
    for initial in ("own", "shared"):
        bench = make(phases={"initial": initial}, **QUICK)
        assert len(bench.individual) == 3
    starts = [state for _, _, _, state in trainings]
    close(starts[0], starts[3], 0)
    for a, b, c, shared in ((*starts[:3], False), (*starts[3:], True)):
        for other in (b, c):
            assert all(torch.equal(a[k], other[k]) for k in a if "weight" in k) is shared


@pytest.mark.parametrize("retrain_on", ["view", "original"])
def test_trained_again_on_the_view_or_on_the_original_graph(retrain_on):
    bench = make(phases={"retrain_on": retrain_on})
    for k in range(2):
        cell = Cell(bench, k)
        for n, model in enumerate(cell.individual()):
            close(bench.individual[n].population.state_dict(k), model.state_dict())
            view = "original" if retrain_on == "original" else cell.views[n]
            cell.train(model, view, "further training", NAMES[n])
            close(bench.further[n].population.state_dict(k), model.state_dict())


def two_phases(cell, name, view, epochs, same_optimizer):
    """Both phases of one network, from the best epoch of the first on, with one optimizer or with two."""
    task, model = cell.task, cell.new(name)
    data = task.seen(as_view(view), torch.Generator().manual_seed(derive(cell.seed, "view", name)))
    train, val = (task.data[f"{part}_mask"] for part in ("train", "val"))
    optimizer, ends = None, []
    for _ in range(2):
        if optimizer is None or not same_optimizer:
            optimizer = torch.optim.Adam(model.parameters(), cell.settings.lr, weight_decay=cell.settings.weight_decay)
        best = (-math.inf, -math.inf)
        for epoch in range(1, epochs + 1):
            optimizer.zero_grad()
            cross_entropy(model(data.x, data.edge_index)[train], task.data.y[train]).backward()
            optimizer.step()
            prediction = cell.predict(model)
            standing = (cell.score(prediction, "val"), -float(cross_entropy(prediction[val], task.data.y[val])))
            if standing > best:
                best, kept, when = standing, copy.deepcopy(model.state_dict()), epoch
        model.load_state_dict(kept)
        ends.append(when)
    return model, ends


@pytest.mark.parametrize("state", ["fresh", "kept"])
def test_the_optimizer_goes_on_or_begins_anew(state):
    bench = make(phases={"optimizer_state": state}, lr=0.3)
    best = []
    for k in range(2):
        for n, view in enumerate(HOW["views"]):
            model, ends = two_phases(Cell(bench, k), NAMES[n], view, 5, state == "kept")
            best.append(ends[0])
            close(bench.further[n].population.state_dict(k), model.state_dict())
    assert min(best) < 5, "weights go back to the best epoch, the optimizer does not"


def test_an_optimizer_that_is_kept_makes_one_long_run():
    """Where every epoch is the best so far, two phases are as one of twice the length."""
    given = {"lr": 0.01, "select": "loss", "phases": {"optimizer_state": "kept"}, "views": ["original"] * 3}
    short, long = make(epochs=4, **given), make(epochs=8, **given)
    for n in range(3):
        close(short.further[n].population.state, long.individual[n].population.state, 1e-12)
    fresh = make(epochs=4, **{**given, "phases": {}})
    weight = "convs.0.lin.weight"
    assert not torch.allclose(fresh.further[0].population.state[weight], long.individual[0].population.state[weight])


def test_an_optimizer_is_kept_for_every_method_alike():
    """What one method makes of the state of an optimizer does not reach another."""
    methods = ["ft", "ake", "adaptive-weighting"]
    given = {"phases": {"optimizer_state": "kept"}, **QUICK}
    assert sorted(told(make(**given), *methods)) == sorted(told(make(**given), *reversed(methods)))
    bench = make(**given)
    before = [copy.deepcopy(n.population.moments) for n in bench.individual]
    run(bench, *methods)
    for moments, n in zip(before, bench.individual, strict=True):
        for key, slots in moments["state"].items():
            close(slots, n.population.moments["state"][key], 0)


def test_a_merged_network_has_an_optimizer_of_its_own():
    """The moments of another network's weights are not its."""
    bench = make(phases={"optimizer_state": "kept"}, **QUICK)
    assert all(n.population.moments is not None for n in bench.individual)
    assert bench.merged[0].population.moments is None
    bench.train(bench.merged[0], Original(), "re-training", "merged")
    assert bench.merged[0].population.moments is not None


@pytest.mark.parametrize("task", ["node", "link"])
def test_an_optimizer_is_kept_on_several_splits_too(task):
    given = {"task": task, "phases": {"optimizer_state": "kept"}, "epochs": 2, "views": ["original"]}
    together = make(cells=CELLS, **given).further[0].population
    for k, cell in enumerate(CELLS):
        close(together.state_dict(k), make(cells=[cell], **given).further[0].population.state_dict(0))


def test_an_optimizer_cannot_be_kept_in_a_loop_of_ones_own():
    given = {"phases": {"optimizer_state": "kept"}, "train": lambda model, seen: None, "epochs": 1, "device": "cpu"}
    message = refusal(lambda: akegnn.fit(graph(45), gcn, **given))
    assert message == "model: its networks cannot be trained in step (training loop of your own)"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"initial": "same"}, "initial: 'same' is not one of own, shared"),
        ({"retrain_on": "graph"}, "retrain_on: 'graph' is not one of view, original"),
        ({"optimizer_state": True}, "optimizer_state: True is not one of fresh, kept"),
        ({"order": "any"}, "phases: 'order' is not one of initial, optimizer_state, retrain_on"),
    ],
)
def test_words_that_are_not_known(given, message):
    assert refusal(lambda: akegnn.fit(graph(45), gcn, phases=given, **HOW)) == message


def test_there_and_back(tmp_path):
    path = tmp_path / "config.toml"
    for initial in ("own", "shared"):
        for retrain_on in ("view", "original"):
            for state in ("fresh", "kept"):
                settings = Settings(phases=Phases(initial, retrain_on, state))
                path.write_text(to_toml(settings))
                assert from_toml(path) == settings
    path.write_text('[phases]\ninitial = "same"\n')
    assert refusal(lambda: from_toml(path)).endswith("initial: 'same' is not one of own, shared")
    path.write_text("[phases]\nretrain = 1\n")
    assert "phases.retrain: unknown" in refusal(lambda: from_toml(path))
    path.write_text("seed = 4\n")
    assert from_toml(path).phases == Phases()


def test_fit_records_how():
    how = Phases("shared", "original", "kept")
    given = {**HOW, **QUICK}
    assert akegnn.fit(graph(45), gcn, phases=how, **given).settings.phases == how
    assert akegnn.fit(graph(45), gcn, phases={"initial": "shared"}, **given).settings.phases == Phases("shared")


# ---- the hook --------------------------------------------------------------------------------------------------------


def population(factory=gcn, view=None, epochs=3):
    task = make().trainer.task
    replicas = [Replica(s, "n", view or Original()) for s in (3, 5)]
    return Population(factory, [3, 5], "n"), Trainer(task, Training(epochs=epochs, lr=0.1)), replicas


def test_a_hook_is_called_after_every_epoch_with_the_stacked_weights():
    networks, trainer, replicas = population(epochs=23)
    start, seen = {k: v.shape for k, v in networks.state.items()}, []

    def hook(state, epoch):
        seen.append((epoch, {k: v.detach().clone() for k, v in state.items()}))

    networks.train(trainer, replicas, "individual", hook=hook)
    assert [epoch for epoch, _ in seen] == list(range(1, 24))
    assert all({k: v.shape for k, v in state.items()} == start for _, state in seen)
    for r, seed in enumerate((3, 5)):
        with seeded(derive(seed, "weights", "n")):
            model = gcn()
        optimizer = torch.optim.Adam(model.parameters(), 0.1, weight_decay=5e-4)
        data = trainer.task.data
        for _, state in seen:
            optimizer.zero_grad()
            out = model(data.x, data.edge_index)[data.train_mask]
            cross_entropy(out, data.y[data.train_mask]).backward()
            optimizer.step()
            close({k: v[r] for k, v in state.items()}, model.state_dict())


def test_what_a_hook_changes_is_trained_on():
    """Each epoch ends with one network's weights taken from the other: from then on both have the same loss."""
    networks, trainer, replicas = population()
    seen = []

    @torch.no_grad()
    def hook(state, epoch):
        seen.append({k: v.clone() for k, v in state.items()})
        for value in state.values():
            value[1] = value[0]

    networks.train(replace(trainer, optimizer=lambda p: torch.optim.SGD(p, lr=0.1)), replicas, "individual", hook=hook)
    weight = "convs.0.lin.weight"
    assert not torch.allclose(seen[0][weight][0], seen[0][weight][1])
    for state in seen[1:]:
        close({k: v[0] for k, v in state.items()}, {k: v[1] for k, v in state.items()}, 1e-12)


def test_a_hook_that_changes_nothing():
    (a, trainer, replicas), (b, _, _) = population(), population()
    a.train(trainer, replicas, "individual")
    b.train(trainer, replicas, "individual", hook=lambda state, epoch: None)
    close(a.state, b.state, 0)


def test_one_network_alone_has_its_hook_too():
    networks, trainer, replicas = population()
    one, calls = networks.pick([1]), []
    one.train(trainer, replicas[1:], "individual", hook=lambda state, epoch: calls.append(epoch))
    assert calls == [1, 2, 3]
    networks.train(trainer, replicas, "individual")
    close(one.state_dict(0), networks.state_dict(1))


@pytest.mark.parametrize(
    ("factory", "view", "trainer"),
    [
        (lambda: pyg.GCN(5, 4, 2, 3).double(), DropEdges(), {}),
        (lambda: still("unet").double(), Original(), {}),
        (gcn, Original(), {"optimizer": lambda p: torch.optim.Adafactor(p)}),
        (gcn, Original(), {"own_loop": lambda model, seen: None}),
    ],
    ids=["edges that differ", "layers", "optimizer", "own loop"],
)
def test_networks_that_cannot_go_in_step(factory, view, trainer):
    networks, usual, replicas = population(factory, view)
    before = copy.deepcopy(networks.state)
    message = refusal(
        lambda: networks.train(replace(usual, **trainer), replicas, "individual", hook=lambda state, epoch: None)
    )
    assert message.startswith("model: its networks cannot be trained in step (")
    close(networks.state, before, 0)


def test_splits_that_cannot_go_in_step():
    bench = make(cells=CELLS, task="link", **QUICK)
    for method in ("averaging", "adaptive-weighting-every-epoch"):
        message = refusal(lambda method=method: list(METHODS[method](bench)))
        assert message == "splits: the link task takes one at a time where networks must go in step"


@pytest.mark.parametrize("split", [0, 1])
def test_one_split_goes_in_step_whichever_it_is(split):
    bench, lines = make(cells=[(split, 3), (split, 5)], task="link", **QUICK), []
    bench.say = lines.append
    run(bench, "single", "averaging")
    assert lines == []


# ---- populations joined and picked -----------------------------------------------------------------------------------


def test_joined_and_picked():
    a, b = (Population(gcn, [k, k + 1], "n") for k in (3, 8))
    both = Population.joined([a, b])
    assert len(both) == 4
    for k, (part, i) in enumerate([(a, 0), (a, 1), (b, 0), (b, 1)]):
        close(both.state_dict(k), part.state_dict(i), 0)
    some = both.pick([3, 0])
    close(some.state_dict(0), b.state_dict(1), 0)
    close(some.state_dict(1), a.state_dict(0), 0)
    for value in (*some.state.values(), *both.state.values()):
        value.zero_()
    assert bool(a.state["convs.0.lin.weight"].any()), "copied"
    assert bool(b.state["convs.0.lin.weight"].any())


def test_a_task_in_another_precision_is_that_of_the_networks():
    assert make().trainer.task.data.x.dtype == torch.float64
    assert make(lambda: still("gcn")).trainer.task.data.x.dtype == torch.float32
    assert make_task(graph(45)).data.x.dtype == torch.float32
