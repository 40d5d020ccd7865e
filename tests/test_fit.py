"""The one call: the table, the ways to bring a model, networks or a training loop, and what is refused beforehand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import transforms as T  # noqa: N812 (PyG's own name for it)

import akegnn
from akegnn import views
from akegnn.errors import AkeError
from akegnn.settings import Exchange
from akegnn.strategies import STRATEGIES
from small import Net, fit, graph, graphs, masked, refusal, same

PARTS = {"train": list(range(30)), "val": list(range(30, 42)), "test": list(range(42, 60))}


def data(**given):
    return masked(graph(**given), **PARTS)


def nets(count=2, width=4):
    return [Net(5, 3, width) for _ in range(count)]


@pytest.fixture(scope="module")
def paper():
    """The recipe as it is, with few epochs."""
    return akegnn.fit(data(), recipe="paper", epochs=4, device="cpu")


# ---- the table -------------------------------------------------------------------------------------------------------


def test_names_of_the_scores(paper):
    kinds = ("1: mask", "2: corrupt", "3: drop-edges", "4: subgraph")
    assert [s.name for s in paper.scores] == [
        "base",
        *(f"view {kind}" for kind in kinds),
        "ensemble",
        "after exchange",
        "AKE",
        *(f"AKE network {k}" for k in (2, 3, 4)),
    ]
    assert {s.name: s.passes for s in paper.scores if s.passes != 1} == {"ensemble": 4}
    assert (paper.metric, paper.sizes) == ("accuracy", {"train": 30, "val": 12, "test": 18})
    phases = [(e.phase, e.network) for e in paper.history if e.epoch == 1]
    assert sorted(phases) == sorted(
        [("individual", "base"), *((p, kind) for p in ("individual", "re-training") for kind in kinds)]
    )
    assert all(s.seconds > 0 for s in paper.scores)


def test_scores_are_those_of_the_networks_on_the_original_graph(paper):
    names = ["AKE", "AKE network 2", "AKE network 3", "AKE network 4"]
    for name, network in zip(names, paper.networks, strict=True):
        right = network(data().x, data().edge_index).argmax(1) == data().y
        assert paper.score(name).validation == float(right[PARTS["val"]].double().mean())
        assert paper.score(name).test == float(right[PARTS["test"]].double().mean())
    assert paper.model is paper.networks[0]
    assert not paper.model.training
    for kind in ("1: mask", "4: subgraph"):
        best = max(e.validation for e in paper.history if (e.phase, e.network) == ("individual", kind))
        assert paper.score(f"view {kind}").validation == best


def test_the_table_as_text(paper):
    lines = str(paper).splitlines()
    assert len(lines) == 1 + len(paper.scores)
    for score, line in zip(paper.scores, lines[1:], strict=True):
        assert line.startswith(score.name)
        assert f"{100 * score.test:.2f}" in line


def test_a_score_by_its_name(paper):
    assert paper.score().name == "AKE"
    assert "no 'best'; there are base, view 1: mask" in refusal(lambda: paper.score("best"))


def test_swaps_are_recorded(paper):
    """Every layer in every step of the ring: V x iterations steps, five channels each."""
    steps = {(s.step, s.source, s.target) for s in paper.swaps}
    assert steps == {(n, (n - 1) % 4, n % 4) for n in range(1, 13)}
    assert {s.layer for s in paper.swaps} == {x.name for x in paper.map.layers}
    widths = {x.name: min(5, x.channels) for x in paper.map.layers}
    assert len(paper.swaps) == 12 * sum(widths.values())


def test_the_floor(paper):
    assert paper.floor == pytest.approx(1 / 3)


def test_without_a_baseline():
    assert fit().scores[0].name == "view 1: mask"


def test_one_view_exchanges_nothing():
    start = Net(5, 3, 4)
    result = fit(data(), models=[start], views=["original"], train=lambda model, seen: None)
    assert result.swaps == []
    assert same(result.model, start)
    assert [s.name for s in result.scores] == ["network 1", "ensemble", "after exchange", "AKE"]


def test_everything_is_told_to_on_epoch_as_it_happens():
    heard = []
    result = fit(data(), on_epoch=heard.append, epochs=2)
    assert sorted(heard, key=str) == sorted(result.history, key=str)
    assert [e.phase for e in heard] == ["individual"] * 4 + ["re-training"] * 4


# ---- views -----------------------------------------------------------------------------------------------------------


def test_views_as_one_likes():
    given = ["mask:0.1", views.DropEdges(0.2, resample="epoch"), T.NormalizeFeatures(), lambda g: g]
    result = fit(data(), views=given)
    specs = result.settings.views
    assert [s["kind"] for s in specs] == ["mask", "drop-edges", "custom", "custom"]
    assert (specs[0]["rate"], specs[1]["rate"], specs[1]["resample"]) == (0.1, 0.2, "epoch")
    assert [s.name for s in result.scores][:4] == [
        "view 1: mask",
        "view 2: drop-edges",
        "view 3: Transform",
        "view 4: Transform",
    ]


def test_resample_holds_for_all_views():
    assert {v["resample"] for v in fit(data(), resample="epoch").settings.views} == {"epoch"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"views": []}, "views: at least one is needed"),
        ({"views": ["blur"]}, "view: 'blur' is not one of mask, corrupt"),
        ({"views": ["mask:much"]}, "view 'mask:much': the rate after ':' must be a number"),
        ({"views": ["mask:2"]}, "MaskFeatures: rate must lie between 0 and 1, got 2.0"),
        ({"views": [lambda g: g.subgraph(torch.arange(5))]}, "view "),
        ({"resample": "hourly"}, "MaskFeatures: resample must be 'once' or 'epoch', got 'hourly'"),
    ],
)
def test_views_that_cannot_be_used(given, message):
    assert refusal(lambda: fit(data(), **given)).startswith(message)


# ---- networks already trained ----------------------------------------------------------------------------------------


def test_given_networks_are_not_changed_and_not_trained_before_the_exchange():
    given = nets(4)
    before = copy.deepcopy(given)
    result = akegnn.fit(data(), models=given, recipe="paper", epochs=2, device="cpu")
    assert all(same(a, b) for a, b in zip(given, before, strict=True))
    assert all(m.training for m in given), "their mode is theirs too"
    assert {e.phase for e in result.history} == {"re-training"}
    assert [s.name for s in result.scores][:5] == [
        *(f"network {k}" for k in (1, 2, 3, 4)),
        "ensemble",
    ]
    right = given[0](data().x, data().edge_index).argmax(1) == data().y
    assert result.score("network 1").test == float(right[PARTS["test"]].double().mean())
    assert type(result.model) is Net
    assert not any(result.model is m for m in given)
    assert (result.settings.model, result.settings.baseline) == ("given", False)


def test_the_exchange_is_that_of_the_library_on_its_own():
    """With a loop that does nothing, what comes out is the ring's exchange and nothing else."""
    given = nets(3)
    expected = copy.deepcopy(given)
    swaps = akegnn.exchange_ring(expected, channels=2, iterations=2)
    result = fit(
        data(),
        models=given,
        views=["original"] * 3,
        train=lambda m, seen: None,
        exchange={"channels": 2, "iterations": 2},
    )
    assert result.swaps == swaps
    assert all(same(a, b) for a, b in zip(result.networks, expected, strict=True))


def test_fewer_networks_than_views_take_the_first_of_them():
    result = akegnn.fit(data(), models=nets(2), recipe="paper", epochs=1, device="cpu")
    assert [v["kind"] for v in result.settings.views] == ["mask", "corrupt"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"models": nets(5), "views": None}, "models: 5 networks for 4 views"),
        ({"models": nets(3), "views": ["mask", "original"]}, "models: 3 networks for 2 views"),
        ({"models": [], "views": None}, "models: "),
        ({"models": [Net(5, 3, 4), Net(5, 3, 6)]}, "first."),
        ({"models": [Net(5, 3, 4), nn.Linear(5, 3)]}, ""),
        ({"models": [Net, Net]}, "models: each must be a trained torch.nn.Module, one is the class Net"),
        ({"models": ["a", "b"]}, "models: each must be a trained torch.nn.Module, one is a str"),
    ],
)
def test_networks_that_do_not_fit(given, message):
    assert refusal(lambda: fit(data(), **given)).startswith(message)


# ---- a training loop of one's own ------------------------------------------------------------------------------------


def test_an_own_loop_is_used_in_both_phases_with_the_data_of_the_view():
    calls = []

    def train(model, seen, epochs, seed, phase, redraw):
        calls.append((model, seen, epochs, seed, phase, redraw()))
        return model

    given = [views.MaskFeatures(1.0), views.MaskFeatures(0.5), views.Original()]
    result = fit(data(features=30), lambda: Net(30, 3, 4), views=given, train=train, epochs=17)
    assert [c[4] for c in calls] == ["individual"] * 3 + ["re-training"] * 3
    assert {c[2] for c in calls} == {17}
    assert len({c[3] for c in calls}) == 6, "a seed for every training"
    for phase in (calls[:3], calls[3:]):
        masks, halves, plain = (c[1] for c in phase)
        assert not bool(masks.x.any())
        assert 0 < int(halves.x.any(0).sum()) < 30
        assert not torch.equal(phase[1][5].x, halves.x), "drawn anew"
        assert torch.equal(plain.x, data(features=30).x)
        assert torch.equal(plain.train_mask, data().train_mask), "a script finds its masks"
    assert torch.equal(calls[1][1].x, calls[4][1].x), "in both phases a network sees the same view"
    assert result.settings.train.endswith("train")
    assert all(same(c[0], network) for c, network in zip(calls[3:], result.networks, strict=True))


def test_an_own_loop_may_change_its_graph_in_place():
    """Nobody else sees it: not the next network, not the person's own graph, not the scores."""
    ours, seen_first = data(), []

    def train(model, seen, redraw):
        seen_first.append(seen.x.clone())
        seen.x.zero_()
        seen.y.zero_()
        assert bool(redraw().x.any())

    before = ours.clone()
    result = fit(ours, lambda: Net(5, 3, 4), views=["original"] * 2, train=train)
    assert torch.equal(ours.x, before.x)
    assert torch.equal(ours.y, before.y)
    assert all(torch.equal(x, before.x) for x in seen_first)
    right = result.model(before.x, before.edge_index).argmax(1) == before.y
    assert result.score().test == float(right[PARTS["test"]].double().mean())


def test_an_own_loop_needs_to_ask_for_nothing_and_to_return_nothing():
    def train(model, seen):
        model.train()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        for _ in range(15):
            optimizer.zero_grad()
            out = model(seen.x, seen.edge_index)[seen.train_mask]
            nn.functional.cross_entropy(out, seen.y[seen.train_mask]).backward()
            optimizer.step()

    a, b = (fit(data(), train=train) for _ in range(2))
    assert same(a.model, b.model), "dropout in an own loop repeats with the seed"
    assert a.score().validation > 0.5


@pytest.mark.parametrize(
    ("loop", "says"),
    [
        (lambda model, data, rate: None, "missing a required argument: 'rate'"),
        (lambda model: None, "too many positional arguments"),
        ("train", "train: must be a function of a model and its data, is a str"),
    ],
)
def test_an_own_loop_that_cannot_be_called_is_refused_at_once(loop, says):
    seen = []
    message = refusal(lambda: fit(data(), train=loop, baseline=True, on_epoch=seen.append))
    assert message.startswith("train: ")
    assert message.endswith(says)
    assert not seen


def test_an_own_loop_may_return_another_module():
    replaced = []

    def train(model, seen):
        replaced.append(Net(5, 3, 4))
        return replaced[-1]

    assert all(
        same(a, b) for a, b in zip(fit(data(), lambda: Net(5, 3, 4), train=train).networks, replaced[2:], strict=True)
    )


class Wrapped(nn.Module):
    """As torch's AveragedModel and what torch.compile gives back, which hold a network under a name."""

    def __init__(self, name, model):
        super().__init__()
        setattr(self, name, model)


@pytest.mark.parametrize("name", ["module", "_orig_mod"])
def test_a_network_that_an_own_loop_wrapped_is_unwrapped(name):
    made = []

    def train(model, seen):
        made.append(Net(5, 3, 4))
        return Wrapped(name, Wrapped("module", made[-1]))

    result = fit(data(), lambda: Net(5, 3, 4), train=train)
    assert all(same(a, b) for a, b in zip(result.networks, made[2:], strict=True))


def test_an_own_loop_must_not_return_another_network():
    told = refusal(lambda: fit(data(), lambda: Net(5, 3, 4), train=lambda model, seen: Net(5, 3, 8)))
    assert told == "train: must return a model of the shape that it was given, returned another Net"


def test_an_own_loop_must_not_return_anything_else():
    assert refusal(lambda: fit(data(), train=lambda model, seen: 0.9)).startswith(
        "train: must return the model or None"
    )


# ---- what comes out, and what is recorded ----------------------------------------------------------------------------


class Mine(nn.Module):
    """Takes the whole graph, and has a hidden and an output layer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, data):
        return self.second(self.first(data.x).relu())


@pytest.mark.parametrize("model", [Mine, lambda: Mine(), "small:Net", Net])
def test_the_network_is_of_the_class_that_was_given(model):
    arguments = {"width": 4} if model in ("small:Net", Net) else {}
    result = fit(data(), model, model_args=arguments)
    assert type(result.model) is (Net if arguments else Mine)
    assert result.swaps


def test_settings_tell_what_was_done():
    result = fit(graph(), seed=5, split=2, lr=0.02, patience=9, exchange={"channels": 2, "strategy": "random-output"})
    s = result.settings
    assert (s.data, s.task, s.model, s.seed, s.split, s.recipe, s.train) == (
        *("given", "node", "gcn", 5, 2, "paper", "built in"),
    )
    assert (s.training.lr, s.training.patience, s.training.epochs, s.device) == (0.02, 9, 3, "cpu")
    assert s.exchange == Exchange(channels=2, strategy="random-output")
    assert s.splits_drawn.startswith("train, val, test drawn by class with seed")
    assert s.model_args["in_channels"] == 5


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_every_strategy_goes_through(strategy):
    assert fit(data(), exchange=Exchange(strategy=strategy, channels=1, iterations=1)).swaps


@pytest.mark.parametrize("task", ["node", "link", "graph"])
def test_every_task_goes_through(task):
    result = fit(graphs() if task == "graph" else graph(), task=task)
    assert result.settings.task == task
    assert all(0 <= s.test <= 1 for s in result.scores)


def test_features_of_double_precision():
    """What comes from numpy is double precision, and a network is not."""
    assert same(fit(data(x=graph().x.double())).model, fit(data()).model)


def test_numbers_of_numpy_are_numbers():
    assert same(fit(data(), seed=np.int64(3), lr=np.float64(0.02)).model, fit(data(), seed=3, lr=0.02).model)


def test_edge_weights_are_used():
    even = fit(data(edge_weight=torch.ones(graph().num_edges)))
    uneven = fit(data(edge_weight=torch.linspace(0.1, 3, graph().num_edges)))
    assert same(even.model, fit(data()).model)
    assert not same(even.model, uneven.model)


# ---- what is refused -------------------------------------------------------------------------------------------------


class Wide(Net):
    """One output too many."""

    def __init__(self, nfeat, nclass, width=4):
        super().__init__(nfeat, nclass + 1, width)


@pytest.mark.parametrize(
    "given",
    [
        {"model": Wide},
        {"models": [Wide(5, 3), Wide(5, 3)]},
        {"model": Wide, "train": lambda model, seen: None},
        {"model": Wide, "baseline": True},
    ],
    ids=["trained here", "given", "own loop", "baseline"],
)
def test_a_model_whose_output_size_is_wrong(given):
    message = refusal(lambda: fit(data(), **given))
    assert message == "model: its output has shape (60, 4), the node task needs 3 columns"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"recipe": "best"}, "recipe: 'best' is not one of strong, paper"),
        ({"task": "edge"}, "task: 'edge' is not one of node, link, graph"),
        ({"metric": "acc"}, "metric: 'acc' is not one of accuracy"),
        ({"exchange": {"M": 3}}, "exchange: 'M' is not one of bins, channels"),
        ({"exchange": {"channels": 0}}, "channels: must be at least 1, got 0"),
        ({"exchange": {"layers": "some"}}, "layers: 'some' is not one of all, hidden"),
        ({"exchange": {"strategy": "best"}}, "strategy: 'best' is not one of adaptive"),
        ({"epochs": 0}, "epochs: must be at least 1, got 0"),
        ({"epochs": "5"}, "epochs: must be a whole number, got '5'"),
        ({"epochs": 2.5}, "epochs: must be a whole number, got 2.5"),
        ({"patience": 1.5}, "patience: must be a whole number, got 1.5"),
        ({"lr": "fast"}, "lr: must be a number, got 'fast'"),
        ({"seed": "a"}, "seed: must be a whole number, got 'a'"),
        ({"lr": -1.0}, "lr: must be positive, got -1.0"),
        ({"optimizer": "Adma"}, "optimizer: torch.optim has no 'Adma'"),
        ({"patience": 0}, "patience: must be at least 1, got 0"),
        ({"device": "abacus"}, "device: 'abacus' is not one of auto, cpu, cuda"),
        ({"device": "meta"}, "device: 'meta' is not one of auto, cpu, cuda"),
        ({"model_args": {"in_channels": 6}}, "GCN: could not be run"),
        ({"model": lambda: nn.Identity()}, "Identity"),
    ],
)
def test_what_can_be_checked_is_checked_before_anything_is_trained(given, message):
    trained = []
    model = given.pop("model", "gcn")
    assert refusal(lambda: fit(data(), model, on_epoch=trained.append, **given)).startswith(message)
    assert trained == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda_device():
    assert refusal(lambda: fit(data(), device="cuda")) == "device: no CUDA device was found; use cpu or auto"


def test_data_that_is_not_there():
    assert refusal(lambda: akegnn.fit("nowhere")).startswith("data: 'nowhere' is neither a dataset")


def test_a_path_is_a_name_too(tmp_path):
    torch.save(data(), tmp_path / "data.pt")
    assert fit(tmp_path / "data.pt").settings.data == str(tmp_path / "data.pt")


def test_a_model_of_which_nothing_can_be_exchanged_is_told_beforehand():
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(5, 3))

        def forward(self, x):
            return x @ self.table

    trained = []
    with pytest.raises(AkeError, match="nothing can be exchanged"):
        fit(data(), Fixed, on_epoch=trained.append)
    assert trained == []


@pytest.mark.parametrize("given", [None, 3, (torch.ones(3, 2), torch.zeros(2, 4))])
def test_data_that_is_no_graph(given):
    said = f"data: must be a graph, a list of graphs or a dataset's name, is a {type(given).__name__}"
    assert refusal(lambda: akegnn.fit(given)) == said
