"""Populations: equal to training one by one, isolated from each other, within memory; and what ``fit`` makes of it."""

from __future__ import annotations

import csv
import dataclasses
import gc
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau, StepLR
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from typer.testing import CliRunner

import akegnn
from akegnn import cli, population, propagate
from akegnn.backbones import BACKBONES, GCN
from akegnn.channels import channel_map
from akegnn.errors import RunFailed
from akegnn.exchange import exchange_populations, exchange_ring
from akegnn.forward import forward
from akegnn.population import Outcome, Population, Replica, _Group
from akegnn.propagate import attention_pattern, gcn_adjacency, sum_adjacency
from akegnn.settings import Exchange, Training, derive
from akegnn.strategies import STRATEGIES
from akegnn.tasks import Task, make_task
from akegnn.training import Epoch, Trainer, evaluate, seeded
from akegnn.views import (
    CorruptFeatures,
    DropEdges,
    MaskFeatures,
    Original,
    Subgraph,
    Transform,
    View,
    leaves_out_edges,
)
from small import SIZES, exact, graph, graphs, masked, refusal, still

Factory = Callable[[], nn.Module]


@pytest.fixture(autouse=True, scope="module")
def _little_to_collect():
    """A full garbage collection looks at every object of torch for a fifth of a second, but not at frozen ones."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def graph64(**given: object) -> Data:
    data = graph(**given)
    for key in ("x", "edge_weight"):
        if data.get(key) is not None:
            data[key] = data[key].double()
    return data


def awkward() -> Data:
    """Directed and weighted, edges in no order, one of them twice, loops at some nodes, one node without edges."""
    data = graph64()
    g = torch.Generator().manual_seed(3)
    ends = data.edge_index[:, data.edge_index.amax(0) < 59]
    ends = ends[:, torch.rand(ends.shape[1], generator=g) < 0.7]
    ends = torch.cat([ends, ends[:, 4:5], torch.tensor([[7, 30], [7, 30]])], dim=1)
    data.edge_index = ends[:, torch.randperm(ends.shape[1], generator=g)]
    data.edge_weight = torch.rand(ends.shape[1], generator=g, dtype=torch.float64) + 0.5
    return data


def backbone(name: str, inputs: int = 5, outputs: int = 3, **given: object) -> Factory:
    """Small, in float64, and without dropout unless it is given."""
    return lambda: exact(name, inputs, outputs, **given)


LINKED = [name for name, kind in BACKBONES.items() if "link" in getattr(kind, "tasks", ("node", "link"))]
# Whose replicas may have edges of their own; the others are trained one after another.
REPLICABLE = [name for name, kind in BACKBONES.items() if getattr(kind, "replicable", False)]


def test_all_backbones_but_one_are_replicable():
    assert set(BACKBONES) - set(REPLICABLE) == {"unet"}


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as f:
        return list(csv.DictReader(f))


# ---- one by one, to compare with -------------------------------------------------------------------------------------


def train(
    factory: Factory, trainer: Trainer, views: Sequence[View], say: Callable[[str], None]
) -> tuple[Population, list[Outcome]]:
    """A population whose replica of seed ``r`` has the ``r``-th view."""
    networks = Population(factory, range(len(views)), "n")
    replicas = [Replica(seed, "n", view) for seed, view in enumerate(views)]
    return networks, networks.train(trainer, replicas, "individual", say)


def same_as_alone(factory: Factory, trainer: Trainer, views: Sequence[View], vectorised: bool = True) -> list[Outcome]:
    """Train together and alone; parameters, buffers, best epoch and validation must agree."""
    lines: list[str] = []
    networks, outcomes = train(factory, trainer, views, lines.append)
    assert [("one after another" in line) for line in lines] == ([] if vectorised else [True])
    for seed, view in enumerate(views):
        with seeded(derive(seed, "weights", "n")):
            model = factory()
        trained = trainer.train(model, view, "individual", "n", seed)
        assert not outcomes[seed].failed
        assert outcomes[seed].best_epoch == trained.best_epoch
        assert outcomes[seed].validation == pytest.approx(trained.validation, abs=1e-12)
        close(networks.state_dict(seed), trained.model.state_dict())
    return outcomes


def close(a: dict[str, Tensor], b: dict[str, Tensor], within: float = 1e-8) -> None:
    assert a.keys() == b.keys()
    for k in a:
        torch.testing.assert_close(a[k], b[k], rtol=0, atol=within, msg=lambda m, k=k: f"{k}: {m}")


KINDS = (Original, MaskFeatures, CorruptFeatures, DropEdges, Subgraph)
VIEWS: dict[str, list[View]] = {kind.__name__: [kind()] * 2 for kind in KINDS}
VIEWS["one of each"] = [kind() for kind in KINDS]


# The first four with each view alone, the others with one of each: features and edges that differ, in one population.
@pytest.mark.usefixtures("drawn_alike")
@pytest.mark.parametrize(
    ("name", "views"),
    [
        *((n, v) for n in ("gcn", "gat", "gcnii", "gin") for v in VIEWS if v != "one of each"),
        *((n, "one of each") for n in BACKBONES),
    ],
)
def test_equal_to_sequential(name, views):
    trainer = Trainer(make_task(graph64()), Training(epochs=50 if name in REPLICABLE else 5))
    same_as_alone(backbone(name), trainer, VIEWS[views], name in REPLICABLE)


@pytest.mark.usefixtures("drawn_alike")
@pytest.mark.parametrize("name", BACKBONES)
def test_equal_to_sequential_on_an_awkward_graph(name):
    trainer = Trainer(make_task(awkward()), Training(epochs=20 if name in REPLICABLE else 5))
    same_as_alone(backbone(name), trainer, VIEWS["one of each"], name in REPLICABLE)


# What a backbone has besides: norms, more samples, layers beside layers, labels as features.
VARIANTS = {
    "grand": {"batch_norm": True, "samples": 3, "consistency": 2.0, "official_init": False},
    "sage": {"batch_norm": True},
    "mixhop": {"powers": [0, 2], "num_layers": 1},
    "gcn-tricks": {"linear": True, "labels": True},
    "gat": {"output_heads": 2, "heads": 3},
}


@pytest.mark.usefixtures("drawn_alike")
@pytest.mark.parametrize("name", VARIANTS)
def test_equal_to_sequential_with_all_that_it_has(name):
    trainer = Trainer(make_task(awkward()), Training(epochs=20))
    same_as_alone(backbone(name, **VARIANTS[name]), trainer, VIEWS["one of each"])


class OwnLoss(pyg.GCN):
    """A person's own model with a training loss of its own: the task's, and a penalty on large outputs."""

    def training_loss(self, batch: Data, loss: Callable[[Tensor], Tensor]) -> Tensor:
        out = self(batch.x, batch.edge_index)
        return loss(out) + 0.1 * out.square().mean()


def test_equal_to_sequential_with_a_training_loss_of_its_own():
    trainer = Trainer(make_task(graph64()), Training(epochs=15))
    same_as_alone(lambda: OwnLoss(5, 8, 2, 3).double(), trainer, VIEWS["MaskFeatures"])
    plain, own = (
        train(lambda kind=kind: kind(5, 8, 2, 3).double(), trainer, VIEWS["MaskFeatures"], print)[0]
        for kind in (pyg.GCN, OwnLoss)
    )
    assert not torch.equal(plain.state["convs.0.lin.weight"], own.state["convs.0.lin.weight"])


HOW = {
    "patience": {"settings": {"patience": 3, "lr": 0.1}},
    "no weight decay": {"settings": {"weight_decay": 0.0}},
    "much weight decay": {"settings": {"weight_decay": 0.1}},
    "SGD": {"settings": {"optimizer": "SGD", "lr": 0.1}},
    "AdamW": {"settings": {"optimizer": "AdamW", "weight_decay": 0.1}},
    "RMSprop": {"settings": {"optimizer": "RMSprop"}},
    # Its step depends on the size of a whole tensor: a stack of tensors is not the same as each of them.
    "Adafactor": {"settings": {"optimizer": "Adafactor"}, "vectorised": False},
    "own optimizer": {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)},
    "StepLR": {"scheduler": lambda o: StepLR(o, 7, 0.5)},
    "cosine": {"scheduler": lambda o: CosineAnnealingLR(o, 50)},
    "weight decays": {"settings": {"weight_decays": {"convs.0.*": 0.3, "*.bias": 0.0}}},
    "best by loss": {"settings": {"select": "loss", "lr": 1.0}},
    "best by loss, patience": {"settings": {"select": "loss", "patience": 3, "lr": 1.0}},
    "patience by either": {"settings": {"stop": "either", "patience": 3, "lr": 1.0}},
    "best by loss, patience by either": {"settings": {"select": "loss", "stop": "either", "patience": 3, "lr": 1.0}},
    "step": {"settings": {"scheduler": "step:7:0.5"}},
    "warmup": {"settings": {"scheduler": "warmup:10"}},
    "plateau": {"scheduler": lambda o: ReduceLROnPlateau(o, patience=1), "vectorised": False},
}


@pytest.mark.parametrize(
    ("name", "how"), [*(("gcn", how) for how in HOW), ("gin", "patience"), ("gin", "StepLR"), ("gat", "AdamW")]
)
def test_equal_to_sequential_however_trained(name, how):
    how = HOW[how]
    trainer = Trainer(
        make_task(graph64()),
        Training(**{"epochs": 25, **how.get("settings", {})}),
        optimizer=how.get("optimizer"),
        scheduler=how.get("scheduler"),
    )
    outcomes = same_as_alone(backbone(name), trainer, VIEWS["one of each"], how.get("vectorised", True))
    if trainer.settings.select == "loss":
        by_score = dataclasses.replace(trainer, settings=dataclasses.replace(trainer.settings, select="score"))
        _, others = train(backbone(name), by_score, VIEWS["one of each"], print)
        assert [o.best_epoch for o in others] != [o.best_epoch for o in outcomes]
    if trainer.settings.patience and trainer.settings.stop == "best":
        stops = {o.best_epoch + trainer.settings.patience for o in outcomes}
        assert min(stops) < 25  # it did matter
        assert len(stops) > 1  # and not for all at the same time


@pytest.mark.parametrize("view", KINDS)
def test_equal_to_sequential_with_views_drawn_in_every_epoch(view):
    views = [view(resample="epoch"), view(resample="once"), view(resample="epoch")]
    same_as_alone(backbone("gcn"), Trainer(make_task(graph64()), Training(epochs=12)), views)


@pytest.mark.parametrize(
    ("name", "views"), [*(("gcn", v) for v in VIEWS), *((n, "one of each") for n in LINKED if n != "gcn")]
)
def test_equal_to_sequential_at_links(name, views):
    task = make_task(graph64(), "link")
    trainer = Trainer(task, Training(epochs=10 if name in REPLICABLE else 3))
    same_as_alone(backbone(name, outputs=8), trainer, VIEWS[views], name in REPLICABLE)


def test_equal_to_sequential_at_links_with_views_drawn_in_every_epoch():
    task = make_task(graph64(), "link")
    views = [CorruptFeatures(resample="epoch"), DropEdges(resample="epoch"), Original()]
    same_as_alone(backbone("gcn", outputs=8), Trainer(task, Training(epochs=10)), views)


def test_equal_to_sequential_by_another_metric():
    same_as_alone(backbone("gcn"), Trainer(make_task(graph64(), metric="f1"), Training(epochs=20)), VIEWS["DropEdges"])


def test_equal_to_sequential_with_frozen_parameters():
    def factory() -> nn.Module:
        model = backbone("gcn")()
        nn.init.normal_(model.convs[0].bias)
        model.convs[0].bias.requires_grad_(False)
        return model

    same_as_alone(factory, Trainer(make_task(graph64()), Training(epochs=10)), VIEWS["DropEdges"])


def test_attributes_that_the_model_does_not_take_are_no_obstacle():
    """Features of edges have another number of rows in every view."""
    data = graph64()
    data.edge_attr, data.kind = torch.rand(data.num_edges, 2), torch.arange(data.num_edges)
    same_as_alone(backbone("gcn"), Trainer(make_task(data), Training(epochs=5)), VIEWS["DropEdges"])


# ---- modules that are not ours ---------------------------------------------------------------------------------------

PLAIN: dict[str, Factory] = {
    "GCN": lambda: pyg.GCN(5, 8, 2, 3).double(),
    "GIN, BatchNorm": lambda: pyg.GIN(5, 8, 2, 3, norm="batch_norm").double(),
    "GraphSAGE": lambda: pyg.GraphSAGE(5, 8, 2, 3).double(),
    "GAT": lambda: pyg.GAT(5, 8, 2, 3, heads=2).double(),
}


@pytest.mark.parametrize("views", ["Original", "MaskFeatures"])
@pytest.mark.parametrize("factory", PLAIN.values(), ids=PLAIN)
def test_plain_modules_are_vectorised_where_edges_are_shared(factory, views):
    same_as_alone(factory, Trainer(make_task(graph64()), Training(epochs=15)), VIEWS[views])


@pytest.mark.parametrize("views", ["DropEdges", "one of each"])
@pytest.mark.parametrize("factory", PLAIN.values(), ids=PLAIN)
def test_plain_modules_with_edges_of_their_own_train_one_after_another(factory, views):
    """... and one line says so (see ``same_as_alone``)."""
    same_as_alone(factory, Trainer(make_task(graph64()), Training(epochs=5)), VIEWS[views], vectorised=False)


class Looking(nn.Module):
    """Looks at its numbers, which no vectorised call can do."""

    def __init__(self, in_channels: int = 5, out_channels: int = 3) -> None:
        super().__init__()
        self.conv = pyg.GCNConv(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out = self.conv(x, edge_index)
        return 2 * out if out.max() > 1 else out


class Tied(nn.Module):
    """Two names for one weight."""

    def __init__(self, in_channels: int = 5, out_channels: int = 3) -> None:
        super().__init__()
        self.first, self.convs = nn.Linear(in_channels, 4), nn.ModuleList(pyg.GCNConv(4, 4) for _ in range(2))
        self.last, self.convs[1].lin.weight = nn.Linear(4, out_channels), self.convs[0].lin.weight

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.first(x)
        for conv in self.convs:
            x = conv(x, edge_index).relu()
        return self.last(x)


@pytest.mark.parametrize("kind", [Looking, Tied])
def test_what_cannot_be_vectorised_trains_and_predicts_one_after_another(kind):
    task = make_task(graph64())
    same_as_alone(lambda: kind().double(), Trainer(task, Training(epochs=5)), VIEWS["Original"], vectorised=False)
    networks = Population(lambda: kind().double(), range(3), "n")
    found = networks.evaluate(task)
    torch.testing.assert_close(found, torch.stack([evaluate(m, task) for m in networks.modules()]), rtol=0, atol=1e-12)


class Counting(nn.Module):
    """Gives its buffer a new tensor, instead of writing into it as BatchNorm does."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = pyg.GCNConv(5, 4), pyg.GCNConv(4, 3)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.a(x, edge_index).relu()
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * h.mean(0).detach()
        self.seen = h  # kept, as some do to look at it later
        return self.b(h - self.mean, edge_index)


def test_buffers_that_are_replaced_and_activations_that_are_kept():
    trainer = Trainer(make_task(graph64()), Training(epochs=5))
    same_as_alone(lambda: Counting().double(), trainer, VIEWS["Original"])
    networks = Population(lambda: Counting().double(), range(2), "n")
    networks.train(trainer, [Replica(seed, "n", Original()) for seed in range(2)], "individual")
    assert bool((networks.state["mean"] != 0).any())


@pytest.mark.parametrize("backbone", ["gcn", "gat"])
def test_nothing_of_a_training_stays_behind(backbone):
    def products() -> int:
        gc.collect()
        return sum("Propagate" in type(x).__name__ for x in gc.get_objects())

    akegnn.fit(graph(), backbone, seeds=2, epochs=2, device="cpu")
    before = products()
    akegnn.fit(graph(), backbone, seeds=2, epochs=2, device="cpu")
    assert products() == before


def test_a_metric_that_is_not_a_number_fails_the_seed_and_says_so():
    data = masked(graph(), train=list(range(20)), val=list(range(20, 40)), test=list(range(40, 60)))
    with pytest.raises(RunFailed, match=r"network base, seed 0, epoch 1: the metric <lambda> is nan"):
        akegnn.fit(data, metric=lambda prediction, target: math.nan, seeds=2, epochs=2)


@pytest.mark.parametrize("kind", [Looking, Tied])
def test_what_cannot_be_vectorised_can_be_fitted(kind):
    results = akegnn.fit(graph(), kind, seeds=2, epochs=2, views=["mask", "original"], device="cpu")
    assert [r.settings.seed for r in results.results] == [0, 1]


def test_what_turns_out_not_to_be_vectorisable_starts_from_where_it_began():
    """The first chunk shares its edges, the second does not: no replica may be trained twice."""
    views = [Original(), Original(), DropEdges(), DropEdges()]
    trainer = Trainer(make_task(graph64()), Training(epochs=5), chunk=2)
    same_as_alone(PLAIN["GCN"], trainer, views, vectorised=False)


def test_an_own_loop_is_called_for_each():
    def loop(model: nn.Module, data: Data, seed: int) -> None:
        with torch.no_grad():
            for p in model.parameters():
                p += seed % 7

    same_as_alone(backbone("gcn"), Trainer(make_task(graph64()), Training(), own_loop=loop), VIEWS["Original"], False)


def graphs64() -> list[Data]:
    data = graphs()
    for g in data:
        g.x = g.x.double()
    return data


@pytest.mark.parametrize("name", ["gcn", "gin"])
@pytest.mark.parametrize("views", VIEWS)
def test_equal_to_sequential_on_graphs_in_batches(name, views):
    """Batches of which some are smaller; graphs whose edges, features or neither differ from network to network."""
    trainer = Trainer(make_task(graphs64(), batch_size=8), Training(epochs=3))
    same_as_alone(backbone(name, 4, 2, pool=True), trainer, VIEWS[views])


def test_graphs_with_node_labels_in_batches_of_one():
    """Features that are mostly zero; the first graph is larger than a batch of one of the others."""
    data = graphs64()
    for k, g in enumerate(data):
        nodes = 20 if k == 0 else int(g.num_nodes)
        g.x = torch.eye(20, dtype=torch.double)[(torch.arange(nodes) + k) % 20]
    task = make_task(data, batch_size=1)
    same_as_alone(backbone("gcn", 20, 2, pool=True), Trainer(task, Training(epochs=3)), VIEWS["Original"])


def test_equal_to_sequential_on_graphs_with_views_drawn_in_every_epoch():
    trainer = Trainer(make_task(graphs64(), batch_size=8), Training(epochs=3))
    views = [DropEdges(resample="epoch"), Original(), MaskFeatures(resample="epoch")]
    same_as_alone(backbone("gin", 4, 2, pool=True), trainer, views)


# ---- dropout ---------------------------------------------------------------------------------------------------------


# What each draws at random in training, switched on; the last two draw in their losses whether asked to or not.
DRAWS = {
    "gcn": {"dropout": 0.5},
    "grand": {"drop_node": 0.5},
    "unet": {"edge_dropout": 0.5},
    "gcn-tricks": {},
    "dgi": {},
}


def kinds_after(name: str, **given: object) -> int:
    """How many different networks four that are equal in everything have become after training."""
    networks = Population.of([backbone(name, **given)()] * 4)
    replicas = [Replica(0, "n", Original())] * 4
    networks.train(Trainer(make_task(graph64()), Training(epochs=3)), replicas, "individual")
    weights = next(v for k, v in networks.state.items() if k.endswith("weight"))
    return len({tuple(w.flatten().tolist()) for w in weights})


@pytest.mark.parametrize("name", DRAWS)
def test_replicas_draw_at_random_each_for_itself(name):
    """Networks equal in everything stay equal without dropout, and part with it."""
    if DRAWS[name]:
        assert kinds_after(name) == 1
    alone = name == "unet"  # one after another, each from its seed, and the seeds are equal
    assert kinds_after(name, **DRAWS[name]) == (1 if alone else 4)


def test_the_same_run_gives_the_same_bits():
    trainer = Trainer(make_task(graph()), Training(epochs=5))
    before = torch.get_rng_state()
    runs = [train(lambda: GCN(5, 3), trainer, VIEWS["one of each"], print)[0].state for _ in range(2)]
    assert all(torch.equal(runs[0][k], runs[1][k]) for k in runs[0])
    assert torch.equal(torch.get_rng_state(), before)  # torch's own generator is left alone


def agree_in_distribution(task: Task, a: Tensor, b: Tensor) -> None:
    """Predictions of two populations that differ in what they drew for dropout, and in nothing else.

    Losses are the sharper measure: replicas begin alike, so they are pairs, and a dropout of 0.3 instead of 0.5 shows.
    """
    scores, losses = ([measure(p, "test").tolist() for p in (a, b)] for measure in (task.scores, task.part_losses))
    assert all(x != y for x, y in zip(*losses, strict=True))  # drawn differently, else there is nothing to compare
    for x, y in (scores, losses):
        assert scipy.stats.mannwhitneyu(x, y).pvalue > 0.01
        assert scipy.stats.ks_2samp(x, y).pvalue > 0.01
    assert scipy.stats.wilcoxon(*losses).pvalue > 0.01


def dropout_agrees(name: str, seeds: int, epochs: int, **given: object) -> None:
    task, lines = make_task(akegnn.load_data("digits")), []
    trainer = Trainer(task, Training(epochs=epochs))
    networks = Population(lambda: BACKBONES[name](task.features, task.outputs, **given), range(seeds), "n")
    alone = [trainer.train(m, DropEdges(), "individual", "n", s).model for s, m in enumerate(networks.modules())]
    networks.train(trainer, [Replica(s, "n", DropEdges()) for s in range(seeds)], "individual", lines.append)
    assert lines == []
    agree_in_distribution(task, networks.evaluate(task), torch.stack([evaluate(m, task) for m in alone]))


def test_scores_with_dropout_agree_in_distribution():
    dropout_agrees("gcn", 20, 15)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seeds", "epochs"), [("gcn", 100, 60), ("gat", 40, 15)])
def test_scores_with_dropout_agree_in_distribution_over_many_seeds(name, seeds, epochs):
    dropout_agrees(name, seeds, epochs)


# What is drawn in a training loss: nodes that are dropped, nodes that are asked, rows that are shuffled.
LOSSES = {
    "grand": {"order": 3, "samples": 2, "official_init": False},
    "gcn-tricks": {"hidden_channels": 16, "labels": True},
    "dgi": {"hidden_channels": 16},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_scores_with_losses_of_their_own_agree_in_distribution(name):
    dropout_agrees(name, 40, 20, **LOSSES[name])


# ---- isolation -------------------------------------------------------------------------------------------------------

POISON = {"nan": math.nan, "infinite": math.inf, "huge": 1e308}


@pytest.mark.parametrize("views", ["Original", "one of each"])
@pytest.mark.parametrize(
    ("task", "name", "poison"),
    [*(("node", n, "nan") for n in BACKBONES), *((t, "gcn", p) for t in ("node", "link") for p in POISON)],
)
@pytest.mark.usefixtures("drawn_alike")
def test_one_that_blows_up_is_reported_and_leaves_the_others_alone(task, views, name, poison):
    trainer = Trainer(make_task(graph64(), task), Training(epochs=8))
    shown, bad = VIEWS[views], 1
    replicas = [Replica(seed, f"{seed}: n", view) for seed, view in enumerate(shown)]
    factory = backbone(name, outputs=trainer.task.outputs)
    whole = Population(factory, range(len(shown)), "n")
    fine = [k for k in range(len(shown)) if k != bad]
    rest = Population.of([whole.module(k) for k in fine])
    last = [k for k in whole.state if "norms" not in k][-1 if name != "gcnii" else -2]  # nothing after it tames it
    spoilt = whole.state_dict(bad)
    spoilt[next(k for k in spoilt if k.endswith("weight") or "weight1" in k)].fill_(POISON[poison])
    spoilt[last].fill_(POISON[poison])
    whole.load_state_dict(bad, spoilt)
    outcomes = whole.train(trainer, replicas, "individual")
    wanted = rest.train(trainer, [replicas[k] for k in fine], "individual")
    assert outcomes[bad].failed.startswith("individual, network 1: n, seed 1, epoch 1: ")
    for k, other in enumerate(fine):
        assert not outcomes[other].failed
        assert (outcomes[other].best_epoch, outcomes[other].validation) == (wanted[k].best_epoch, wanted[k].validation)
        close(whole.state_dict(other), rest.state_dict(k), 1e-12)


@pytest.mark.parametrize("vectorised", [True, False])
def test_divergence_is_found_in_the_epoch_in_which_it_happens(vectorised):
    """As alone, and reported in the same words whichever way networks are trained: phase, network, seed and epoch."""
    trainer = Trainer(make_task(graph64()), Training(epochs=30, lr=1e8, optimizer="SGD", weight_decay=0.0))
    factory = backbone("gcn", hidden_channels=8) if vectorised else PLAIN["GCN"]
    views = VIEWS["DropEdges"]
    _, outcomes = train(factory, trainer, views, print)
    failures = 0
    for seed, view in enumerate(views):
        with seeded(derive(seed, "weights", "n")):
            model = factory()
        try:
            trainer.train(model, view, "individual", "n", seed)
        except RunFailed as e:
            epoch = str(e).partition("epoch ")[2].partition(":")[0]
            failures += int(epoch) > 1
            assert outcomes[seed].failed.startswith(f"individual, network n, seed {seed}, epoch {epoch}: ")
        else:
            assert not outcomes[seed].failed
    assert failures


def test_progress_is_the_mean_of_those_that_have_not_failed():
    seen: list[Epoch] = []
    trainer = Trainer(make_task(graph64()), Training(epochs=25), on_epoch=seen.append)
    networks = Population(backbone("gcn"), range(4), "n")
    networks.state["convs.1.bias"][2] = math.nan
    outcomes = networks.train(trainer, [Replica(s, "n", Original()) for s in range(4)], "individual")
    assert [e.epoch for e in seen] == [20, 25]
    assert seen[-1].best == pytest.approx(np.mean([o.validation for k, o in enumerate(outcomes) if k != 2]))


def places(epochs: list[Epoch]) -> list[tuple[int, int, int, int, int]]:
    return [(e.epoch, e.replicas, e.first, e.together, e.stopped) for e in epochs]


def test_an_epoch_tells_which_replicas_it_is_of():
    """In chunks, one after another, and one split after another."""
    seen: list[Epoch] = []
    task, settings = make_task(graph64()), Training(epochs=25)
    replicas = [Replica(s, "n", Original()) for s in range(5)]
    Population(backbone("gcn"), range(5), "n").train(
        Trainer(task, settings, chunk=3, on_epoch=seen.append), replicas, "individual"
    )
    assert places(seen) == [(20, 5, 0, 3, 0), (25, 5, 0, 3, 3), (20, 5, 3, 2, 0), (25, 5, 3, 2, 2)]
    assert [e.done for e in seen] == [0, 3, 3, 5]

    seen.clear()
    alone = Trainer(task, settings, own_loop=lambda model, data: None, on_epoch=seen.append)
    Population(backbone("gcn"), range(3), "n").train(alone, replicas[:3], "individual")
    assert places(seen) == [(1, 3, 0, 1, 1), (1, 3, 1, 1, 1), (1, 3, 2, 1, 1)]

    seen.clear()
    trainer = Trainer(make_task(graph64(), "link"), Training(epochs=2), on_epoch=seen.append)
    mixed = [Replica(seed, "n", Original(), split) for split in (0, 1) for seed in (0, 1)]
    Population(backbone("gcn", outputs=4), [0, 1, 0, 1], "n").train(trainer, mixed, "individual")
    assert places(seen) == [(2, 4, 0, 2, 2), (2, 4, 2, 2, 2)]


def test_replicas_that_stopped_early_are_counted_as_they_stop():
    seen: list[Epoch] = []
    trainer = Trainer(make_task(graph64()), Training(epochs=400, lr=0.3, patience=30), on_epoch=seen.append)
    replicas = [Replica(s, "n", Original()) for s in range(6)]
    outcomes = Population(backbone("gcn"), range(6), "n").train(trainer, replicas, "individual")
    for e in seen:
        assert e.stopped == sum(o.best_epoch + 30 <= e.epoch for o in outcomes)
    assert seen[-1].epoch < 400
    assert seen[-1].done == 6


@pytest.fixture
def sizes(monkeypatch):
    """How many were trained together, one group after another; who has stopped is looked at every other epoch."""
    seen: list[int] = []
    begin = _Group.__init__

    def noted(self: _Group, population: Population, *rest: object) -> None:
        seen.append(len(population))
        begin(self, population, *rest)

    monkeypatch.setattr("akegnn.population.LOOK_EVERY", 2)
    monkeypatch.setattr(_Group, "__init__", noted)
    return seen


ANEW = {
    "once": VIEWS["one of each"] * 2,
    "edges anew": [DropEdges(resample="epoch"), Subgraph(resample="epoch")] * 5,
    "some anew": [kind(resample=when) for kind in (MaskFeatures, DropEdges) for when in ("once", "epoch")] * 2,
}


@pytest.mark.usefixtures("drawn_alike")
@pytest.mark.parametrize("how", ["plain", "SGD with momentum", "a scheduler"])
@pytest.mark.parametrize("views", ANEW)
@pytest.mark.parametrize("name", ["gcn", "gat", "grand"])
def test_those_left_go_on_without_those_that_stopped(sizes, name, views, how):
    trainer = Trainer(
        make_task(graph64()),
        Training(epochs=60, patience=3, lr=0.1),
        optimizer=(lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9)) if how == "SGD with momentum" else None,
        scheduler=(lambda o: StepLR(o, 4, 1.5)) if how == "a scheduler" else None,
    )
    same_as_alone(backbone(name), trainer, ANEW[views])
    assert sizes[0] == len(ANEW[views])
    assert len(sizes) > 1
    assert sizes == sorted(sizes, reverse=True)


def test_those_left_go_on_on_their_own_splits(sizes):
    task = make_task(graph64(), "node", masks="random")
    trainer = Trainer(task, Training(epochs=60, patience=3, lr=0.1))
    cells = [(split, seed) for split in range(3) for seed in range(3)]
    networks = Population(backbone("gcn"), [seed for _, seed in cells], "n")
    outcomes = networks.train(trainer, [Replica(s, "n", DropEdges(), split) for split, s in cells], "individual")
    assert len(sizes) > 2
    for k, (split, seed) in enumerate(cells):
        with seeded(derive(seed, "weights", "n")):
            model = backbone("gcn")()
        alone = dataclasses.replace(trainer, task=task.at(split)).train(model, DropEdges(), "individual", "n", seed)
        assert outcomes[k].best_epoch == alone.best_epoch
        close(networks.state_dict(k), alone.model.state_dict())


@pytest.mark.parametrize("kind", ["link", "graph"])
def test_those_left_go_on_at_links_and_graphs(sizes, kind):
    task = make_task(graph64(), "link") if kind == "link" else make_task(graphs64(), batch_size=8)
    trainer = Trainer(task, Training(epochs=60, patience=2, lr=0.1))
    views = [DropEdges(resample="epoch"), MaskFeatures(), Original(), Original()]
    same_as_alone(backbone("gcn", outputs=8) if kind == "link" else backbone("gin", 4, 2, pool=True), trainer, views)
    assert len(sizes) > 1


def test_networks_in_step_stay_together(sizes):
    trainer = Trainer(make_task(graph64()), Training(epochs=60, patience=3, lr=0.1))
    networks = Population(backbone("gcn"), range(5), "n")
    seen: list[int] = []
    networks.train(
        trainer,
        [Replica(s, "n", Original()) for s in range(5)],
        "individual",
        hook=lambda state, epoch: seen.append(len(state["convs.0.bias"])),
    )
    assert sizes == [5]
    assert set(seen) == {5}


class Poisoned(GCN):
    """One seed's network is spoilt from the start, of whichever of the networks are named."""

    networks: tuple[str, ...] = ("2: original",)

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, dropout=0.0)
        if torch.initial_seed() in [derive(1, "weights", n) for n in self.networks]:
            nn.init.constant_(self.convs[0].lin.weight, math.nan)


@pytest.mark.parametrize("networks", [("1: mask",), ("2: original",), ("1: mask", "2: original")])
def test_fit_goes_on_without_the_seed_that_failed(monkeypatch, networks):
    given = {"epochs": 3, "views": ["mask", "original"], "device": "cpu"}
    wanted = akegnn.fit(graph64(), lambda: Poisoned(5, 3).double(), seeds=[0, 2, 3], **given)
    monkeypatch.setattr(Poisoned, "networks", networks)
    found = akegnn.fit(graph64(), lambda: Poisoned(5, 3).double(), seeds=4, **given)
    assert [r.settings.seed for r in found.results] == [0, 2, 3]
    (failure,) = found.failures
    first = "base" if "1: mask" in networks else networks[0]  # the base starts from the first network's weights
    assert failure.startswith(f"individual, network {first}, seed 1, epoch 1: ")
    assert str(found).endswith(f"failed: {failure}")
    for a, b in zip(found.results, wanted.results, strict=True):
        assert [(s.name, s.validation, s.test) for s in a.scores] == [(s.name, s.validation, s.test) for s in b.scores]
        assert [dataclasses.replace(s, replica=0) for s in a.swaps] == [
            dataclasses.replace(s, replica=0) for s in b.swaps
        ]
        close(a.model.state_dict(), b.model.state_dict(), 1e-12)
    assert {line.n for line in found.summary()} == {3}


def test_fit_of_which_every_seed_fails():
    def spoilt() -> nn.Module:
        model = GCN(5, 3)
        nn.init.constant_(model.convs[0].bias, math.nan)
        return model

    with pytest.raises(RunFailed, match="seed 0, epoch 1"):
        print(akegnn.fit(graph(), spoilt, seeds=2, epochs=2, views=["original", "mask"], device="cpu"))


@pytest.fixture
def command(monkeypatch, capsys):
    """The command as ``akegnn`` runs it: exit code, standard output, standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["akegnn", *map(str, arguments)])
        monkeypatch.setattr(sys, "path", [*sys.path])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return exit_.value.code or 0, *capsys.readouterr()

    return call


QUICK = ["--epochs", "3", "--view", "mask", "--view", "original", "--device", "cpu"]


def test_command_with_a_seed_that_failed(command, tmp_path):
    """Exit code 1, but the run folder holds what the other seeds gave; asked again, it says the same."""
    arguments = ["train", "--model", f"{__name__}:Poisoned", *QUICK, "--seeds", 3, "--out", tmp_path / "run", "--json"]
    first, again = command(*arguments), command(*arguments)
    for code, out, err in (first, again):
        assert code == 1
        assert {line["n"] for line in json.loads(out)["scores"]} == {2}
        assert "akegnn: 1 seed(s) failed; the first: individual, network 2: original, seed 1, epoch 1: " in err
    assert "nothing to do" in again[2]
    assert {row["seed"] for row in read_rows(tmp_path / "run/scores.csv")} == {"0", "2"}


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def chunks(monkeypatch):
    """How many networks were trained at a time; ``chunks.limit`` makes it fail above some number."""
    real = population._train_together

    class Chunks(list[int]):
        def limit(self, size: int, refuse: Callable[[], object], after: int = 0) -> None:
            def limited(part: Population, *rest: object) -> list[Outcome]:
                self.append(len(part))
                if len(part) > size and len(self) > after:
                    refuse()
                return real(part, *rest)

            monkeypatch.setattr(population, "_train_together", limited)

    found = Chunks()
    found.limit(10**9, list)
    return found


def seven(**given: object) -> tuple[Population, list[Outcome], list[str]]:
    lines: list[str] = []
    trainer = Trainer(make_task(graph64()), Training(epochs=5), **given)
    networks, outcomes = train(backbone("gcn"), trainer, [kind() for kind in (*KINDS, *KINDS[:2])], lines.append)
    return networks, outcomes, lines


def same_seven(found: tuple[Population, list[Outcome], list[str]]) -> None:
    networks, outcomes, _ = seven()
    close(found[0].state, networks.state, 1e-12)
    for a, b in zip(found[1], outcomes, strict=True):
        assert (a.best_epoch, a.validation, a.failed) == (b.best_epoch, b.validation, b.failed)


@pytest.mark.parametrize("chunk", [1, 3, 6, 7, 100])
def test_chunks_give_the_same_result(chunks, chunk):
    found = seven(chunk=chunk)
    assert chunks == [chunk] * (7 // chunk) + ([7 % chunk] if 7 % chunk else [])
    assert found[2] == []
    same_seven(found)


@pytest.mark.parametrize(("free", "many"), [(0, False), (1 << 40, True)])
def test_chunks_follow_free_memory(monkeypatch, chunks, free, many):
    monkeypatch.setattr(population, "_free_memory", lambda device: free)
    found = seven()
    assert chunks == ([7] if many else [1] * 7)
    monkeypatch.undo()
    same_seven(found)


def test_as_many_are_trained_at_a_time_as_fit(monkeypatch, chunks):
    trainer = Trainer(make_task(graph64()), Training(epochs=1))
    replicas = [Replica(s, "n", kind()) for s, kind in enumerate(KINDS[:2])]
    each = population._needed(Population(backbone("gcn"), range(2), "n"), trainer, replicas, "individual")
    monkeypatch.setattr(population, "_free_memory", lambda device: 3.1 * each / 0.6)
    seven()
    assert chunks == [3, 3, 1]


def test_large_networks_are_trained_one_by_one_on_a_cpu(monkeypatch, chunks):
    """What does not stay in the cache is faster alone; but not where somebody says how many, or they go in step."""
    with monkeypatch.context() as patched:
        patched.setattr(population, "CACHE", 0)
        found = seven()
        assert chunks == []
        seven(chunk=4)
        assert chunks == [4, 3]
        seven(keep=True)
        assert chunks == [4, 3, 7]
    assert found[2] == []
    same_seven(found)


def test_one_by_one_as_many_epochs_are_noted_as_of_a_population(monkeypatch):
    monkeypatch.setattr(population, "CACHE", 0)
    replicas = [Replica(s, "n", Original()) for s in range(2)]
    trainer = Trainer(make_task(graph64()), Training(epochs=45))
    outcomes = Population(backbone("gcn"), range(2), "n").train(trainer, replicas, "individual")
    assert [[e.epoch for e in o.history] for o in outcomes] == [[20, 40, 45]] * 2


def cuda_refuses() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory.")


def python_refuses() -> None:
    raise MemoryError


def cpu_refuses() -> None:
    torch.empty(1 << 60)  # what torch says on a CPU is a RuntimeError of its own


REFUSALS = pytest.mark.parametrize("refuse", [cuda_refuses, python_refuses, cpu_refuses])


@REFUSALS
def test_out_of_memory_halves_the_chunk_and_goes_on(chunks, refuse):
    chunks.limit(2, refuse)
    found = seven()
    assert chunks == [7, 4, 2, 2, 2, 1]
    assert [line.partition(": ")[2] for line in found[2]] == [
        f"out of memory, going on with {size} networks at a time" for size in (4, 2)
    ]
    same_seven(found)


@REFUSALS
def test_out_of_memory_keeps_what_is_finished(chunks, refuse):
    chunks.limit(1, refuse, after=1)  # the first chunk fits, then others take the memory away
    found = seven(chunk=3)
    assert chunks == [3, 3, 2, 1, 1, 1, 1]
    same_seven(found)


@REFUSALS
def test_one_network_that_does_not_fit(chunks, refuse):
    chunks.limit(0, refuse)
    with pytest.raises(RunFailed, match=r"^individual, n: one network alone does not fit"):
        seven()
    assert chunks == [7, 4, 2, 1]


def refusing(real: Callable[..., Tensor], size: int, refuse: Callable[[], None]) -> Callable[..., Tensor]:
    def call(self: object, state: dict[str, Tensor]) -> Tensor:
        if len(next(iter(state.values()))) > size:
            refuse()
        return real(self, state)

    return call


@REFUSALS
def test_memory_that_is_not_enough_for_two_to_be_measured(monkeypatch, refuse):
    """How much a network needs is measured on two of them."""
    with monkeypatch.context() as patch:
        patch.setattr(population._Vectorised, "losses", refusing(population._Vectorised.losses, 1, refuse))
        found = seven()
    same_seven(found)


@REFUSALS
def test_prediction_runs_within_memory(monkeypatch, refuse):
    """What fits for training one chunk after another must fit for the scores too."""
    task = make_task(graph64())
    networks = Population(backbone("gat"), range(5), "n")
    wanted = networks.evaluate(task)
    monkeypatch.setattr(population._Vectorised, "outputs", refusing(population._Vectorised.outputs, 2, refuse))
    torch.testing.assert_close(networks.evaluate(task), wanted, rtol=0, atol=1e-12)


# ---- the class -------------------------------------------------------------------------------------------------------


def test_population_is_public():
    assert akegnn.Population is Population
    assert "Population" in akegnn.__all__


def test_population_builds_each_as_it_is_built_alone():
    before = torch.get_rng_state()
    networks = Population(lambda: GCN(5, 3), [4, 9], "n")
    assert len(networks) == 2
    for i, seed in enumerate([4, 9]):
        with seeded(derive(seed, "weights", "n")):
            model = GCN(5, 3)
        close(networks.state_dict(i), model.state_dict(), 0.0)
        close(networks.module(i).state_dict(), model.state_dict(), 0.0)
    assert not torch.equal(networks.state["convs.0.lin.weight"][0], networks.state["convs.0.lin.weight"][1])
    assert torch.equal(torch.get_rng_state(), before)
    other = Population(lambda: GCN(5, 3), [4], "another")
    assert not torch.equal(other.state["convs.0.lin.weight"][0], networks.state["convs.0.lin.weight"][0])


def test_what_a_population_gives_out_is_a_copy():
    networks = Population(lambda: GCN(5, 3), range(2), "n")
    wanted = {k: v.clone() for k, v in networks.state.items()}
    networks.state_dict(0)["convs.0.bias"].fill_(7)
    nn.init.constant_(networks.module(1).convs[0].bias, 7)
    close(networks.state, wanted, 0.0)


def test_population_of_modules_and_back():
    modules = [BACKBONES["gin"](5, 3) for _ in range(3)]
    networks = Population.of(modules)
    assert len(networks) == 3
    for module, copied in zip(modules, networks.modules(), strict=True):
        close(copied.state_dict(), module.state_dict(), 0.0)
    nn.init.constant_(modules[0].head.bias, 7)
    assert not (networks.state["head.bias"] == 7).any()
    networks.load_state_dict(2, modules[0].state_dict())
    close(networks.state_dict(2), modules[0].state_dict(), 0.0)
    close(networks.state_dict(1), modules[1].state_dict(), 0.0)


TASKS: dict[str, Callable[[], Task]] = {
    "node": lambda: make_task(graph64()),
    "awkward": lambda: make_task(awkward()),
    "link": lambda: make_task(graph64(), "link"),
}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("factory", [*(backbone(n) for n in BACKBONES), *PLAIN.values()], ids=[*BACKBONES, *PLAIN])
def test_evaluate_is_that_of_each_module(factory, task):
    task = task()
    networks = Population(factory, range(3), "n")
    found = networks.evaluate(task)
    assert not found.requires_grad
    wanted = torch.stack([evaluate(m, task) for m in networks.modules()])
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    for part in ("val", "test"):
        scores = [task.score(p, part) for p in wanted]
        assert task.scores(found, part).tolist() == pytest.approx(scores, abs=1e-12)
        losses = [float(task.part_loss(p, part)) for p in wanted]
        assert task.part_losses(found, part).tolist() == pytest.approx(losses, abs=1e-12)


def test_evaluate_graphs():
    task = make_task(graphs64())
    networks = Population(lambda: BACKBONES["gcn"](4, 2, pool=True).double(), range(2), "n")
    wanted = torch.stack([evaluate(m, task) for m in networks.modules()])
    torch.testing.assert_close(networks.evaluate(task), wanted, rtol=0, atol=1e-12)  # some processors add otherwise


# ---- sparse features -------------------------------------------------------------------------------------------------


def bag_of_words() -> Data:
    """Few of many columns: a class is known by some of its words."""
    data = graph64(nodes=90)
    g = torch.Generator().manual_seed(5)
    x = torch.rand(90, 60, generator=g) < 0.04
    own = 20 * data.y.unsqueeze(1) + torch.randint(20, (90, 2), generator=g)
    data.x = (x | torch.zeros(90, 60, dtype=torch.bool).scatter(1, own, True)).double()
    return data


def stack_of(name: str, data: Data, views: Sequence[View]) -> population._Stack:
    task = make_task(data)
    batches = [task.seen(v, torch.Generator().manual_seed(k)) for k, v in enumerate(views)]
    networks = Population(backbone(name, task.features, task.outputs), range(len(views)), "n")
    return population._Vectorised.build(networks, batches, task).stack


@pytest.mark.parametrize("name", REPLICABLE)
@pytest.mark.parametrize("kind", [Original, MaskFeatures, CorruptFeatures, DropEdges])
def test_features_that_are_mostly_zero_stay_sparse(name, kind):
    data = bag_of_words()
    stored = int(data.x.count_nonzero())
    stack = stack_of(name, data, [kind()] * 3)
    of_their_own = kind in (MaskFeatures, CorruptFeatures)
    x = stack.own["x"] if of_their_own else stack.shared["x"]
    if name in ("gin", "gcn-tricks"):  # their first step is on features as they are
        assert stack.pattern is None
        assert x.shape[-2:] == data.x.shape
    else:
        assert len(stack.pattern.col) == stored
        assert x.shape == ((3, stored) if of_their_own else (stored,))


def test_features_that_a_view_fills_or_that_are_not_mostly_zero_are_dense():
    assert stack_of("gcn", graph64(), VIEWS["MaskFeatures"]).pattern is None
    stack = stack_of("gcn", bag_of_words(), [CorruptFeatures(mode="replace"), Original(), MaskFeatures()])
    assert stack.pattern is None
    assert stack.own["x"].shape == (3, 90, 60)


WORDS = {**VIEWS, "filled": [CorruptFeatures(mode="replace"), Original(), MaskFeatures()]}
# The same tensor for all, and not where the original is: shared, but not by the original's pattern.
ROLLED = bag_of_words().x.roll(1, 1)
WORDS["moved"] = [Transform(lambda data: data.update({"x": ROLLED}))] * 3


@pytest.mark.parametrize(
    ("name", "views"), [*(("gcn", v) for v in WORDS), ("gat", "one of each"), ("gcnii", "one of each")]
)
def test_sparse_features_give_the_same_as_dense_ones(monkeypatch, name, views):
    trainer = Trainer(make_task(bag_of_words()), Training(epochs=10))
    factory, views = backbone(name, 60), WORDS[views]
    same_as_alone(factory, trainer, views)
    networks, _ = train(factory, trainer, views, print)
    monkeypatch.setitem(propagate.SPARSE_BELOW, "cpu", 0.0)
    dense, _ = train(factory, trainer, views, print)
    close(networks.state, dense.state)


SPARSE = [n for n in BACKBONES if getattr(BACKBONES[n], "sparse_features", False)]


@pytest.mark.parametrize(
    ("name", "kind"), [(n, k) for n in SPARSE for k in ("node", "link") if k == "node" or n in LINKED]
)
def test_one_network_alone_is_given_sparse_features_too(monkeypatch, name, kind):
    """Where most are zero; what it learns is the same."""
    layouts, features = [], propagate.features
    monkeypatch.setattr(
        sys.modules[BACKBONES[name].__module__], "features", lambda x: (layouts.append(x.layout), features(x))[1]
    )
    trained = []
    for below in (propagate.SPARSE_BELOW["cpu"], 0.0):
        monkeypatch.setitem(propagate.SPARSE_BELOW, "cpu", below)
        task = make_task(bag_of_words(), kind)
        with seeded(1):
            model = backbone(name, 60, task.outputs)()
        trainer = Trainer(task, Training(epochs=4))
        trained.append(trainer.train(model, MaskFeatures(resample="epoch"), "individual", "n", 0).model.state_dict())
        assert set(layouts) == {torch.sparse_coo if below else torch.strided}
        layouts.clear()
    close(*trained)


def test_sparse_features_with_dropout_give_the_same_distribution(monkeypatch):
    """Dropout of what is zero anyway changes nothing, so that of the others alone is the same law."""
    data = bag_of_words()
    data.x = data.x.float()
    task, predictions = make_task(data), []
    for below in (propagate.SPARSE_BELOW["cpu"], 0.0):
        monkeypatch.setitem(propagate.SPARSE_BELOW, "cpu", below)
        networks = Population(lambda: GCN(60, 3), range(60), "n")
        replicas = [Replica(s, "n", MaskFeatures()) for s in range(60)]
        networks.train(Trainer(task, Training(epochs=6)), replicas, "individual")
        predictions.append(networks.evaluate(task))
    agree_in_distribution(task, *predictions)


@pytest.mark.usefixtures("drawn_alike")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize("name", BACKBONES)
def test_features_in_a_sparse_layout(name, layout):
    """Trained together or alone, the same as the same features in a dense layout."""
    data, views = bag_of_words(), [Original(), MaskFeatures(), DropEdges()]
    dense, _ = train(backbone(name, 60), Trainer(make_task(data), Training(epochs=5)), views, print)
    data = data.clone()
    data.x = data.x.to_sparse(layout=layout)
    trainer = Trainer(make_task(data), Training(epochs=5))
    same_as_alone(backbone(name, 60), trainer, views, name in REPLICABLE)
    sparse, _ = train(backbone(name, 60), trainer, views, print)
    close(sparse.state, dense.state)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize("name", ["gcn", "gat", "gcnii"])
def test_dropout_of_features_in_a_sparse_layout(name, layout):
    data = bag_of_words()
    data.x = data.x.to_sparse(layout=layout)
    task = make_task(data)
    trainer = Trainer(task, Training(epochs=100))
    model = backbone(name, 60, dropout=0.3)()
    assert trainer.train(model, MaskFeatures(0.1), "individual", "n", 0).validation > 1.5 * task.floor()
    _, outcomes = train(backbone(name, 60, dropout=0.3), trainer, [MaskFeatures(0.1)] * 2, print)
    assert all(o.validation > 1.5 * task.floor() for o in outcomes)


# ---- many graphs as one ----------------------------------------------------------------------------------------------


@st.composite
def edge_sets(draw: st.DrawFn) -> tuple[int, list[Data]]:
    nodes = draw(st.integers(1, 4))
    ends = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))
    weighted = draw(st.booleans())
    batches = []
    for edges in draw(st.lists(st.lists(ends, max_size=7), min_size=1, max_size=4)):
        data = Data(x=torch.zeros(nodes, 1, dtype=torch.float64), edge_index=torch.tensor(edges).long().view(-1, 2).t())
        if weighted:
            weight = draw(st.lists(st.integers(0, 4), min_size=len(edges), max_size=len(edges)))
            data.edge_weight = torch.tensor(weight, dtype=torch.float64)
        batches.append(data)
    return nodes, batches


@given(edge_sets())
def test_union_gives_every_replica_its_own_edges(case):
    nodes, batches = case
    edges, weight = population._union(batches)
    assert weight.shape == (len(batches), edges.edge_index.shape[1])
    for r, data in enumerate(batches):
        own = data.get("edge_weight")
        own = torch.ones(data.num_edges, dtype=torch.float64) if own is None else own
        # Edge by edge, with those that are there twice: exactly its own, and no other.
        there = sorted(
            zip(*edges.edge_index[:, weight[r] != 0].tolist(), weight[r][weight[r] != 0].tolist(), strict=True)
        )
        assert there == sorted(zip(*data.edge_index[:, own != 0].tolist(), own[own != 0].tolist(), strict=True))
        for kind in (sum_adjacency, gcn_adjacency):
            found, wanted = (
                kind(e, w, data.x, nodes) @ torch.eye(nodes, dtype=torch.float64)
                for e, w in ((edges, weight[r]), (data.edge_index, own))
            )
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
        attends = []
        for e, w in ((edges, weight[r]), (data.edge_index, own)):
            pattern = attention_pattern(e, w, data.x, nodes)
            s, there = pattern.structure, pattern.values == 0
            attends.append(sorted(zip(s.row[there].tolist(), s.col[there].tolist(), strict=True)))
        assert attends[0] == attends[1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=10))
def test_keys_tell_equal_edges_apart(edges):
    keys = population._keys(torch.tensor(edges).long().view(-1, 2).t(), 4).tolist()
    seen: dict[tuple[int, int], int] = {}
    for (a, b), key in zip(edges, keys, strict=True):
        again = seen[a, b] = seen.get((a, b), -1) + 1
        assert key == 4 * a + b + 16 * again


# ---- fit with several seeds ------------------------------------------------------------------------------------------

FIT = {"epochs": 6, "views": ["mask", "drop-edges", "original"], "device": "cpu"}


@pytest.fixture(scope="module")
def results() -> akegnn.fit.Results:
    return akegnn.fit(graph64(), backbone("gcn", hidden_channels=6), seeds=5, **FIT)


def test_each_seed_is_as_if_fitted_alone(results):
    assert [r.settings.seed for r in results.results] == list(range(5))
    for seed, found in enumerate(results.results):
        alone = akegnn.fit(graph64(), backbone("gcn", hidden_channels=6), seed=seed, **FIT)
        lines = [[(s.name, s.validation, s.test, s.passes) for s in r.scores] for r in (found, alone)]
        assert lines[0] == lines[1]
        assert len(found.swaps) == len(alone.swaps) > 0
        for a, b in zip(found.swaps, alone.swaps, strict=True):
            assert (a.layer, a.step, a.source_channel, a.target_channel) == (
                b.layer,
                b.step,
                b.source_channel,
                b.target_channel,
            )
        for a, b in zip(found.networks, alone.networks, strict=True):
            close(a.state_dict(), b.state_dict())


def test_summary_over_seeds(results):
    table = {
        s.name: np.array([(r.score(s.name).test, r.score(s.name).validation) for r in results.results])
        for s in results.best.scores
    }
    assert [line.name for line in results.summary()] == list(table)
    for line in results.summary():
        test, validation = table[line.name].T
        assert (line.n, line.test, line.validation) == (5, pytest.approx(test.mean()), pytest.approx(validation.mean()))
        assert line.deviation == pytest.approx(test.std(ddof=1))
        if test.std() > 0:  # scipy knows no interval of equal values
            low, high = scipy.stats.t.interval(0.95, 4, test.mean(), scipy.stats.sem(test))
            assert (line.low, line.high) == (pytest.approx(low), pytest.approx(high))
    assert sum(line.deviation > 0 for line in results.summary()) > 3
    assert len(str(results).splitlines()) == 1 + len(table)


def test_the_best_seed_is_chosen_by_validation(results):
    validations = [r.score().validation for r in results.results]
    assert len(set(validations)) > 1
    assert results.best is results.results[int(np.argmax(validations))]
    assert results.model is results.best.model


def test_history_over_seeds_tells_of_every_network(results):
    """Means over seeds, under the names that one seed's history has."""
    one = akegnn.fit(graph64(), backbone("gcn"), **FIT)
    assert {(e.phase, e.network) for e in results.history} == {(e.phase, e.network) for e in one.history}
    ends = {(e.phase, e.network): e for e in results.history}
    for name in ("base", "1: mask"):
        wanted = [r.score(name if name == "base" else f"view {name}").validation for r in results.results]
        assert ends["individual", name].best == pytest.approx(np.mean(wanted))


def test_seeds_may_be_named():
    found = akegnn.fit(graph(), seeds=[7, 3], seed=1, **{**FIT, "epochs": 2})
    assert [r.settings.seed for r in found.results] == [7, 3]
    assert found.settings.seeds == [7, 3]
    assert [r.settings.seed for r in akegnn.fit(graph(), seeds=2, seed=5, **{**FIT, "epochs": 2}).results] == [5, 6]


@pytest.mark.parametrize("seeds", [0, [], [1, 1], -2])
def test_seeds_that_are_none(seeds):
    assert refusal(lambda: akegnn.fit(graph(), seeds=seeds, **FIT)).startswith("seeds: ")


def test_given_models_have_no_seeds():
    models = [GCN(5, 3) for _ in range(3)]
    assert refusal(lambda: akegnn.fit(graph(), models=models, seeds=2, **FIT)).startswith("seeds: ")


def test_graphs_over_seeds():
    given = {"epochs": 2, "views": ["mask", "original"], "device": "cpu"}
    factory = backbone("gin", 4, 2, pool=True)
    found = akegnn.fit(graphs64(), factory, seeds=2, **given)
    assert [r.settings.seed for r in found.results] == [0, 1]
    for r in found.results:
        alone = akegnn.fit(graphs64(), factory, seed=r.settings.seed, **given)
        assert [(s.name, s.validation, s.test) for s in r.scores] == [
            (s.name, s.validation, s.test) for s in alone.scores
        ]


def test_run_folder_of_several_seeds(tmp_path):
    found = akegnn.fit(graph(), "gcn", seeds=3, **FIT)
    run = akegnn.load(found.save(tmp_path / "run"))
    assert run.settings == found.settings
    assert run.settings.seeds == [0, 1, 2]
    assert run.metrics["seed_of_model"] == found.best.settings.seed
    assert run.metrics["scores"] == [dataclasses.asdict(line) for line in found.summary()]
    with torch.no_grad():
        assert torch.equal(forward(run.model, graph()), forward(found.model, graph()))
    rows = read_rows(tmp_path / "run/scores.csv")
    wanted = [(r.settings.seed, s.name, s.validation, s.test) for r in found.results for s in r.scores]
    assert [(int(x["seed"]), x["name"], float(x["validation"]), float(x["test"])) for x in rows] == wanted
    swaps = read_rows(tmp_path / "run/swaps.csv")
    assert len(swaps) == sum(len(r.swaps) for r in found.results)
    assert {x["replica"] for x in swaps} == {"0", "1", "2"}
    assert len((tmp_path / "run/history.csv").read_text().splitlines()) > 1


def test_command_with_several_seeds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def scores(*arguments: object) -> tuple[dict[str, object], list[dict[str, object]]]:
        ran = CliRunner().invoke(cli.app, ["train", "--json", *map(str, arguments)])
        assert ran.exit_code == 0, ran.output
        shown = json.loads(ran.stdout)
        return shown, [{k: v for k, v in s.items() if k != "seconds"} for s in shown["scores"]]

    shown, lines = scores(*QUICK, "--seed", 4, "--seeds", 3)
    assert shown["folder"] == "runs/digits-gcn-node-seed4x3"
    assert {line["n"] for line in lines} == {3}
    assert all(line["low"] <= line["test"] <= line["high"] for line in lines)
    assert {row["seed"] for row in read_rows(tmp_path / shown["folder"] / "scores.csv")} == set("456")
    # Repeated from its file, the same to the last digit: dropout too is drawn from the seeds.
    again, repeated = scores("--config", f"{shown['folder']}/config.toml", "--out", "again")
    assert repeated == lines
    assert (tmp_path / "again/config.toml").read_text() == (tmp_path / shown["folder"] / "config.toml").read_text()
    assert again["metric"] == shown["metric"]


# ---- exchange on the stack -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [n for n, s in STRATEGIES.items() if not s.merges])
@pytest.mark.parametrize("name", ["gcn", "gat", "gin"])
def test_exchange_on_the_stack_is_that_of_each_replica(name, strategy):
    seeds = [3, 11, 4]
    how = Exchange(strategy, channels=2, iterations=1)
    networks = [Population(backbone(name, hidden_channels=6), seeds, f"{k}: n") for k in range(3)]
    rings = [[n.module(r) for n in networks] for r in range(len(seeds))]
    found = channel_map(networks[0].template)
    swaps = exchange_populations(
        [n.state for n in networks], networks[0].template, found.chosen(how.layers), found, how, seeds
    )
    for r, ring in enumerate(rings):
        before = [{k: v.clone() for k, v in m.state_dict().items()} for m in ring]
        alone = exchange_ring(ring, iterations=1, channels=2, strategy=strategy, seed=seeds[r], map=found)
        assert [dataclasses.replace(s, replica=0) for s in swaps if s.replica == r] == alone
        assert alone
        for k, module in enumerate(ring):
            close(networks[k].state_dict(r), module.state_dict(), 0.0)
        assert any(not torch.equal(b[k], m.state_dict()[k]) for b, m in zip(before, ring, strict=True) for k in b)


def test_exchange_on_the_stack_can_go_unrecorded():
    made = [[Population(backbone("gcn"), range(2), f"{k}: n") for k in range(2)] for _ in range(2)]
    found = channel_map(made[0][0].template)
    for networks, record in zip(made, (True, False), strict=True):
        chosen = found.chosen()
        states = [n.state for n in networks]
        swaps = exchange_populations(states, networks[0].template, chosen, found, Exchange(), [0, 1], record=record)
        assert bool(swaps) is record
    for a, b in zip(*made, strict=True):
        close(a.state, b.state, 0.0)


# ---- precision -------------------------------------------------------------------------------------------------------


def test_precision_that_is_none():
    assert refusal(lambda: Training(precision="fp8")) == "precision: 'fp8' is not one of float32, tf32, bf16"


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("name", REPLICABLE)
@pytest.mark.parametrize("views", ["MaskFeatures", "DropEdges"])
def test_lower_precision_learns_too(precision, name, views):
    """Coarse, but training: above the floor, with weights still in float32 and torch's own setting left as it was."""
    task, before = make_task(graph()), torch.get_float32_matmul_precision()
    wide = {"hidden_channels": 32} if "hidden_channels" in SIZES[name] else {}
    wide |= {"official_init": False} if name == "grand" else {}  # the authors' weights need longer
    networks = Population(lambda: still(name, **wide), range(2), "n")
    replicas = [Replica(s, "n", v) for s, v in enumerate(VIEWS[views])]
    lines: list[str] = []
    training = Training(epochs=20, precision=precision, lr=0.1 if name == "sgc" else 0.01)  # it has few weights
    outcomes = networks.train(Trainer(task, training), replicas, "individual", lines.append)
    assert lines == []
    assert all(o.validation > 1.5 * task.floor() for o in outcomes)
    assert {v.dtype for v in networks.state.values() if v.is_floating_point()} == {torch.float32}
    assert torch.get_float32_matmul_precision() == before


def test_lower_precision_is_kept_where_large_networks_would_be_trained_one_by_one(monkeypatch):
    trainer = Trainer(make_task(graph64()), Training(epochs=3, precision="bf16"))
    found = []
    for cache in (population.CACHE, 0):
        monkeypatch.setattr(population, "CACHE", cache)
        found.append(train(backbone("gcn"), trainer, [Original(), Original()], lambda line: None)[0])
    assert all(torch.equal(v, found[1].state[k]) for k, v in found[0].state.items())


def test_lower_precision_is_an_option_of_fit():
    given = {**FIT, "epochs": 2}
    found = akegnn.fit(graph(), "gcn", seeds=2, precision="bf16", **given)
    assert found.settings.training.precision == "bf16"
    assert refusal(lambda: akegnn.fit(graph(), "gcn", seeds=2, precision="fp8", **given)).startswith("precision: ")
    assert akegnn.fit(graph(), "gcn", seeds=2, **given).settings.training.precision == "float32"


@dataclasses.dataclass
class Noisy(DropEdges):
    """A view that does more than the one it is made from."""

    def draw(self, data, generator):
        data = super().draw(data, generator)
        data.x = torch.zeros_like(data.x)
        return data


def test_a_view_made_from_one_of_ours_is_drawn_as_it_says():
    """``kept`` is inherited, but it no longer tells all that ``draw`` does."""
    told = leaves_out_edges
    assert [told(kind) for kind in (DropEdges, Subgraph, Noisy, Original)] == [True, True, False, False]


@pytest.mark.parametrize("view", [Original(), MaskFeatures(), DropEdges(resample="epoch")])
@pytest.mark.parametrize("name", ["gcn", "gat", "appnp"])
def test_a_population_of_one_is_trained_as_it_would_be_alone(monkeypatch, name, view):
    """As on a GPU, where a network alone is a population of one, because its epochs can be recorded."""
    together = []
    monkeypatch.setattr(population, "_recordable", lambda *_: together.append(True) or True)
    same_as_alone(backbone(name), Trainer(make_task(graph64()), Training(epochs=25, lr=0.05)), [view])
    assert together


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), RuntimeError("cannot be recorded")])
def test_a_population_of_one_that_fails_is_trained_by_the_plain_loop(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(population, "_recordable", lambda *_: True)
    monkeypatch.setattr(population, "_train_together", fail)
    same_as_alone(backbone("gcn"), Trainer(make_task(graph64()), Training(epochs=5)), [Original()])


def test_a_population_of_one_tells_of_every_epoch(monkeypatch):
    monkeypatch.setattr(population, "_recordable", lambda *_: True)
    told: list[int] = []
    trainer = Trainer(make_task(graph64()), Training(epochs=25), on_epoch=lambda e: told.append(e.epoch))
    _, [outcome] = train(backbone("gcn"), trainer, [Original()], lambda line: None)
    assert told == [e.epoch for e in outcome.history] == list(range(1, 26))


def test_a_population_of_one_that_cannot_be_vectorised_is_trained_by_the_plain_loop(monkeypatch):
    monkeypatch.setattr(population, "_recordable", lambda *_: True)
    same_as_alone(backbone("unet"), Trainer(make_task(graph64()), Training(epochs=3)), [Original()])


class Elsewhere:
    """A task as it would be on a GPU."""

    def __init__(self, task: Task) -> None:
        self.task, self.device = task, torch.device("cuda")

    def __getattr__(self, name: str) -> object:
        return getattr(self.task, name)


@pytest.mark.parametrize("name", BACKBONES)
def test_backbones_say_themselves_that_they_are_replicable(name):
    """What is inherited does not count: it might be a person's own class, made from one of ours."""
    kind = BACKBONES[name]
    assert vars(kind).get("replicable", False) == getattr(kind, "replicable", False)


def test_which_networks_are_recorded():
    task = Elsewhere(make_task(graph()))
    trainer, usual = Trainer(task, Training()), [Replica(0, "n", DropEdges(resample="epoch"))]
    told = population._recordable
    assert told(GCN(5, 3), trainer, usual)
    assert told(GCN(5, 3), trainer, [Replica(0, "n", MaskFeatures())])
    assert not told(GCN(5, 3), dataclasses.replace(trainer, task=task.task), usual), "on a CPU nothing is recorded"
    assert not told(GCN(5, 3), trainer, [Replica(0, "n", MaskFeatures(resample="epoch"))]), "new tensors every epoch"
    mixed = [*usual, Replica(1, "n", DropEdges())]
    assert not told(GCN(5, 3), trainer, mixed), "some have new edges every epoch, others have fewer edges"
    assert not told(pyg.GCN(5, 4, 2), trainer, usual), "a layer that is not ours may look at the numbers"
    assert not told(type("Mine", (GCN,), {})(5, 3), trainer, usual), "nor is a class made from ours"
    assert not told(GCN(5, 3), Trainer(task, Training(optimizer="SGD")), usual), "no CUDA graph of this optimizer"
    assert not told(GCN(5, 3), Trainer(task, Training(scheduler="step:5:0.5")), usual)
    assert not told(GCN(5, 3), dataclasses.replace(trainer, scheduler=CosineAnnealingLR), usual)
    assert not told(GCN(5, 3), Trainer(Elsewhere(make_task(graph(), metric="f1")), Training()), usual)
    assert not told(GCN(4, 2), Trainer(Elsewhere(make_task(graphs())), Training()), usual)


def test_what_a_population_cannot_be_built_from():
    assert "give a function that builds one" in refusal(lambda: Population(still("gcn"), range(2)))
    assert refusal(lambda: Population(lambda: still("gcn"), [])) == "seeds: at least one is needed"
    population = Population(lambda: still("gcn"), range(3))
    trainer = Trainer(make_task(graph()), Training(epochs=1))
    message = refusal(lambda: population.train(trainer, [Replica(0, "n", Original())], "individual"))
    assert message == "replicas: 1 for 3 networks"
