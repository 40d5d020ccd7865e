"""Several splits at once: each run as it would be alone, and what is made of all of them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn
from torch_geometric.data import Data
from typer.testing import CliRunner

import akegnn
from akegnn import cli
from akegnn.backbones import BACKBONES
from akegnn.fit import Results, Score
from akegnn.population import Population, Replica
from akegnn.settings import Training, derive
from akegnn.tasks import LinkTask, Metric, Task, make_task
from akegnn.training import Trainer, evaluate, seeded
from akegnn.views import DropEdges, MaskFeatures, Original, Transform, View
from small import exact, graph, graphs, refusal

FIT = {"epochs": 4, "views": ["mask", "drop-edges"], "device": "cpu"}


def columns(data: Data, splits: int = 3, sizes: Sequence[int] = (18, 14, 18)) -> Data:
    """The graph with masks of several columns; a node may be in another part of each. The first six are in none."""
    g = torch.Generator().manual_seed(7)
    orders = [6 + torch.randperm(int(data.num_nodes or 0) - 6, generator=g) for _ in range(splits)]
    start = 0
    for part, size in zip(("train", "val", "test"), sizes, strict=True):
        chosen = [torch.isin(torch.arange(data.num_nodes), o[start : start + size]) for o in orders]
        data[f"{part}_mask"] = torch.stack(chosen, dim=1)
        start += size
    return data


def uneven(data: Data) -> Data:
    """Splits of other sizes: a mean over nodes is not the same as over a mask of all of them."""
    columns(data)
    data.train_mask[data.train_mask[:, 1].nonzero()[3:], 1] = False
    data.test_mask[data.test_mask[:, 2].nonzero()[:9], 2] = False
    return data


def graph64(**given: object) -> Data:
    data = graph(**given)
    data.x = data.x.double()
    return data


def network(name: str = "gcn", **given: object) -> Callable[[], nn.Module]:
    return lambda: exact(name, **given)


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for k in a:
        torch.testing.assert_close(a[k], b[k], rtol=0, atol=1e-8, msg=lambda m, k=k: f"{k}: {m}")


# ---- replicas on splits of their own ---------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[int], View]] = {
    "original": lambda k: Original(),
    "mask": lambda k: MaskFeatures(),
    "drop-edges": lambda k: DropEdges(),
    "different": lambda k: (Original(), MaskFeatures(), DropEdges(), DropEdges(resample="epoch"))[k % 4],
}


def same_as_alone(
    data: Data | list[Data],
    factory: Callable[[], nn.Module],
    view: Callable[[int], View] = VIEWS["different"],
    task: str = "node",
    metric: str | Metric | None = None,
    vectorised: bool = True,
    chunk: int | None = None,
    **settings: object,
) -> Task:
    """Every split with every seed in one population, and each by itself on a task that knows no other split."""
    splits, seeds = (2, 0, 1), (3, 5)
    cells = list(product(splits, seeds))
    training = Training(**{"epochs": 15, **settings})
    made = make_task(data, task, metric=metric, batch_size=8)
    networks, lines = Population(factory, [seed for _, seed in cells], "n"), []
    replicas = [Replica(seed, "n", view(k), split) for k, (split, seed) in enumerate(cells)]
    outcomes = networks.train(Trainer(made, training, chunk=chunk), replicas, "individual", lines.append)
    assert all("one after another" in line for line in lines)
    assert bool(lines) is not vectorised
    judge = made.together([split for split, _ in cells])
    predictions = networks.evaluate(judge)
    for k, (split, seed) in enumerate(cells):
        own = make_task(data, task, split=split, metric=metric, batch_size=8)
        with seeded(derive(seed, "weights", "n")):
            model = factory()
        trained = Trainer(own, training).train(model, view(k), "individual", "n", seed)
        assert outcomes[k].best_epoch == trained.best_epoch
        assert outcomes[k].validation == pytest.approx(trained.validation, abs=1e-12)
        close(networks.state_dict(k), trained.model.state_dict())
        alone = evaluate(trained.model, own)
        torch.testing.assert_close(predictions[k], alone, rtol=0, atol=1e-8)
        for part in ("val", "test"):
            assert float(judge.scores(predictions, part)[k]) == pytest.approx(own.score(alone, part), abs=1e-12)
            if task == "node":
                found = float(judge.part_losses(predictions, part)[k])
                assert found == pytest.approx(float(own.part_loss(alone, part)), abs=1e-8)
        assert judge.alone(k).sizes == own.sizes
        assert judge.alone(k).floor() == own.floor()
    return judge


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_each_split_is_as_if_trained_alone(view):
    same_as_alone(columns(graph64()), network(), view)


@pytest.mark.usefixtures("drawn_alike")
@pytest.mark.parametrize("name", [n for n in BACKBONES if n not in ("gcn", "unet")])
def test_each_split_is_as_if_trained_alone_whichever_backbone(name):
    given = {"labels": True} if name == "gcn-tricks" else {}
    same_as_alone(columns(graph64()), network(name, **given), epochs=4)


def test_what_is_not_vectorised_is_trained_on_its_split_too():
    same_as_alone(columns(graph64()), network("unet"), epochs=2, vectorised=False)


@pytest.mark.parametrize("chunk", [1, 2, 4, 5])
def test_chunks_that_cut_through_splits(chunk):
    same_as_alone(columns(graph64()), network(), chunk=chunk, epochs=5)


WAYS = {
    "patience": {"patience": 2, "lr": 0.3},
    "loss": {"select": "loss", "patience": 2, "lr": 0.3},
    "either": {"stop": "either", "patience": 2, "lr": 0.3},
    "scheduler": {"scheduler": "step:3:0.5"},
    "weight decays": {"weight_decays": {"*.bias": 0.3}},
}


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_each_split_is_as_if_trained_alone_however(settings):
    same_as_alone(uneven(graph64()), network(), **settings)


def test_splits_that_were_drawn():
    same_as_alone(graph64(), network())


@pytest.mark.parametrize("given", [{"masks": "random"}, {"labels_per_class": 2}])
def test_splits_that_are_drawn_because_a_person_says_so(given):
    data = columns(graph64())
    made = make_task(data, **given)
    judge = made.together([1, 0, 1])
    for k, split in enumerate((1, 0, 1)):
        wanted = make_task(data, split=split, **given)
        assert all(torch.equal(judge.alone(k).parts[p], wanted.parts[p]) for p in ("train", "val", "test"))
    assert not torch.equal(judge.alone(0).parts["train"], judge.alone(1).parts["train"])


def least(prediction: torch.Tensor, target: torch.Tensor) -> float:
    """A metric of a person's own: the lowest probability of a right answer."""
    return float(prediction.softmax(-1)[torch.arange(len(target)), target].min())


@pytest.mark.parametrize("metric", ["f1", least])
def test_another_metric(metric):
    same_as_alone(uneven(graph64()), network(), metric=metric, epochs=6)


def missing() -> Data:
    """Class 2 is in no part of split 0, class 1 is not trained on in split 1; and some nodes have no label."""
    data = columns(graph64())
    two, one = data.y == 2, data.y == 1
    for part in ("train", "val", "test"):
        data[f"{part}_mask"][two, 0] = False
    data.train_mask[one, 1] = False
    data.y[:6] = -1
    return data


def test_classes_that_a_split_does_not_have():
    """A network has an output for every class of any split, whichever it is trained on."""
    judge = same_as_alone(missing(), network())
    assert [judge.alone(k).outputs for k in range(6)] == [3] * 6
    assert sorted(set(missing().y[missing().train_mask[:, 0]].tolist())) == [0, 1]


def beyond() -> Data:
    """Some nodes that are in no split have a label that no split has."""
    data = columns(graph64())
    data.y[:6] = 9
    return data


def test_labels_that_no_split_has():
    assert make_task(beyond()).outputs == 3
    same_as_alone(beyond(), network(), epochs=3)


def other_masks(data: Data) -> Data:
    """A view with masks of its own, as PyG's RandomNodeSplit makes them: what is trained on is not its to say."""
    data = data.clone()
    data.train_mask = ~data.train_mask
    data.val_mask = data.test_mask = torch.zeros_like(data.train_mask)
    return data


def test_a_view_does_not_decide_what_is_trained_on():
    same_as_alone(columns(graph64()), network(), lambda k: Transform(other_masks), epochs=5)


def test_links_on_several_splits():
    """One split after another, the seeds of each together."""
    judge = same_as_alone(graph64(), network(outputs=8), task="link", epochs=3)
    pairs = [judge.alone(k).pairs["test"] for k in (0, 2, 4)]
    assert not torch.equal(pairs[0], pairs[1])
    assert not torch.equal(pairs[1], pairs[2])


def folds(count: int = 30, splits: int = 3) -> list[Data]:
    made = graphs(count)
    for k, g in enumerate(made):
        g.x = g.x.double()
        g.split = [("train", "train", "val", "test", "train")[(k + 2 * s) % 5] for s in range(splits)]
    return made


@pytest.mark.parametrize("drawn", [False, True])
def test_graphs_on_several_splits(drawn):
    data = [Data(**{k: v for k, v in g.items() if k != "split"}) for g in folds()] if drawn else folds()
    same_as_alone(data, network("gin", inputs=4, outputs=2, pool=True), task="graph", epochs=2)


def test_what_is_not_vectorised_at_links_is_trained_on_its_split_too():
    same_as_alone(graph64(), network("unet", outputs=8), task="link", epochs=1, vectorised=False)


def test_a_task_on_its_own_split_alone_is_itself():
    for made in (make_task(columns(graph())), make_task(graph(), "link"), make_task(folds())):
        assert made.together([0, 0]) is made
        assert made.alone(1) is made


# ---- fit -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def results() -> Results:
    return akegnn.fit(uneven(graph64()), network(), splits=3, seeds=2, **FIT)


def lines(result: akegnn.Result) -> list[tuple[object, ...]]:
    return [(s.name, s.validation, s.test, s.passes) for s in result.scores]


def test_each_run_is_as_if_fitted_alone(results):
    cells = [(r.settings.split, r.settings.seed) for r in results.results]
    assert cells == list(product(range(3), range(2)))
    for (split, seed), found in zip(cells, results.results, strict=True):
        alone = akegnn.fit(uneven(graph64()), network(), split=split, seed=seed, **FIT)
        assert lines(found) == lines(alone)
        assert found.sizes == alone.sizes
        assert found.floor == alone.floor
        places = [[(s.layer, s.step, s.source_channel, s.target_channel) for s in r.swaps] for r in (found, alone)]
        assert places[0] == places[1]
        for a, b in zip(found.networks, alone.networks, strict=True):
            close(a.state_dict(), b.state_dict())
    assert len({json.dumps(r.sizes) for r in results.results}) == 3


def test_summary_over_splits(results):
    """The interval is that of the splits' means: runs on one split are not independent of one another."""
    for k, line in enumerate(results.summary()):
        table = np.array([[results.results[2 * s + j].scores[k].test for j in range(2)] for s in range(3)])
        base = np.array([[results.results[2 * s + j].scores[0].test for j in range(2)] for s in range(3)])
        assert (line.n, line.test) == (6, pytest.approx(table.mean()))
        assert line.deviation == pytest.approx(table.std(ddof=1))
        for found, values in (((line.low, line.high), table), ((line.gain_low, line.gain_high), table - base)):
            if found[0] is None:
                assert k == 0
                continue
            means = values.mean(1)
            if means.std() > 0:  # scipy knows no interval of equal values
                wanted = scipy.stats.t.interval(0.95, 2, means.mean(), scipy.stats.sem(means))
                assert found == (pytest.approx(wanted[0]), pytest.approx(wanted[1]))
    assert results.summary()[0].deviation > 0


def test_summary_by_hand():
    """Three splits with scores .5 .7 / .6 .6 / .9 .7: means .6 .6 .8, their deviation .11547, t(2) = 4.30265."""
    made = akegnn.fit(columns(graph()), splits=3, seeds=2, **{**FIT, "epochs": 1, "baseline": False})
    for result, score in zip(made.results, (0.5, 0.7, 0.6, 0.6, 0.9, 0.7), strict=True):
        result.scores = [Score("AKE", 0.5, score, 1, 0.0)]
    (line,) = made.summary()
    assert line.test == pytest.approx(2 / 3)
    assert line.deviation == pytest.approx(0.1366260, abs=1e-6)
    half = 4.302653 * 0.1154701 / 3**0.5
    assert (line.low, line.high) == (pytest.approx(2 / 3 - half, abs=1e-6), pytest.approx(2 / 3 + half, abs=1e-6))
    # A run that failed: means of what is there.
    del made.results[0]
    (line,) = made.summary()
    means = [0.7, 0.6, 0.8]
    low, high = scipy.stats.t.interval(0.95, 2, np.mean(means), scipy.stats.sem(means))
    assert (line.n, line.low, line.high) == (5, pytest.approx(low), pytest.approx(high))


def test_one_seed_on_several_splits():
    found = akegnn.fit(columns(graph()), splits=3, seed=4, **FIT)
    assert [(r.settings.split, r.settings.seed) for r in found.results] == [(0, 4), (1, 4), (2, 4)]
    tests = np.array([r.score("base").test for r in found.results])
    line = found.summary()[0]
    low, high = scipy.stats.t.interval(0.95, 2, tests.mean(), scipy.stats.sem(tests))
    assert (line.n, line.deviation) == (3, pytest.approx(tests.std(ddof=1)))
    assert (line.low, line.high) == (pytest.approx(low), pytest.approx(high))


def test_splits_may_be_named_and_are_recorded():
    found = akegnn.fit(columns(graph()), splits=[2, 0], seeds=[5], **FIT)
    assert [(r.settings.split, r.settings.seed) for r in found.results] == [(2, 5), (0, 5)]
    assert (found.settings.splits, found.settings.seeds) == ([2, 0], [5])
    counted = akegnn.fit(columns(graph()), splits=2, split=1, **{**FIT, "epochs": 1})
    assert [r.settings.split for r in counted.results] == [1, 2]


@pytest.mark.parametrize("splits", [0, [], [1, 1], -1])
def test_splits_that_are_none(splits):
    assert refusal(lambda: akegnn.fit(columns(graph()), splits=splits, **FIT)).startswith(
        "splits: must be at least one"
    )


@pytest.mark.parametrize("splits", [4, [0, 3], [-1, 0]])
def test_splits_that_the_graph_does_not_have(splits):
    trained: list[object] = []
    message = refusal(lambda: akegnn.fit(columns(graph()), splits=splits, on_epoch=trained.append, **FIT))
    assert message.startswith("train_mask: has splits 0 to 2, asked for ")
    assert trained == []


def test_given_models_have_no_splits():
    models = [BACKBONES["gcn"](5, 3) for _ in range(2)]
    refusal(lambda: akegnn.fit(columns(graph()), models=models, splits=2, **FIT))


@pytest.mark.parametrize("recipe", ["paper", "strong"])
@pytest.mark.parametrize("task", ["link", "graph"])
def test_links_and_graphs_fitted_on_several_splits(task, recipe):
    data = graph64() if task == "link" else folds()
    factory = network(outputs=8) if task == "link" else network("gin", inputs=4, outputs=2, pool=True)
    given = {**FIT, "epochs": 2, "task": task, "recipe": recipe}
    found = akegnn.fit(data, factory, splits=2, seeds=2, **given)
    assert [(r.settings.split, r.settings.seed) for r in found.results] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for r in found.results:
        alone = akegnn.fit(data, factory, split=r.settings.split, seed=r.settings.seed, **given)
        assert [x[:1] for x in lines(r)] == [x[:1] for x in lines(alone)]
        for a, b in zip(lines(r), lines(alone), strict=True):
            assert a[1:] == pytest.approx(b[1:], abs=1e-9)
        assert (r.sizes, r.floor) == (alone.sizes, alone.floor)


def test_a_class_of_graphs_that_the_first_split_does_not_have():
    """Networks are built once for all splits: with an output for every class of any of them."""
    data = folds(splits=2)
    for k, g in enumerate(data):
        if k % 6 == 0:  # the third class takes part in the second split only
            g.y, g.split = torch.tensor([2]), [None, g.split[1]]
    found = akegnn.fit(data, "gin", splits=2, **{**FIT, "epochs": 1})
    assert [r.settings.split for r in found.results] == [0, 1]


def test_the_folder_of_several_splits(tmp_path, results):
    run = akegnn.load(akegnn.fit(columns(graph()), splits=2, seeds=2, **FIT).save(tmp_path / "run"))
    assert (run.settings.splits, run.settings.seeds) == ([0, 1], [0, 1])
    with (tmp_path / "run/scores.csv").open(newline="") as f:
        rows = list(csv.DictReader(f))
    assert {(row["split"], row["seed"]) for row in rows} == set(product("01", "01"))
    assert run.metrics["split_of_model"] in (0, 1)


# ---- the command -----------------------------------------------------------------------------------------------------


def command(*arguments: object) -> tuple[int, str, str]:
    ran = CliRunner().invoke(cli.app, [str(a) for a in arguments])
    return ran.exit_code, ran.stdout, str(ran.exception or "") + ran.stderr


@pytest.mark.parametrize("given", [["--splits", 2], ["--splits", 1], ["--seeds", 1], ["--splits", 2, "--seeds", 2]])
def test_the_same_command_again_has_nothing_to_do(given, tmp_path):
    torch.save(columns(graph()), tmp_path / "data.pt")
    quick = ["--epochs", 1, "--view", "mask", "--view", "original", "--device", "cpu", "--out", tmp_path / "run"]
    for again in (False, True):
        code, _, err = command("train", tmp_path / "data.pt", *quick, *given)
        assert code == 0, err
        assert ("nothing to do" in err) == again


def test_prediction_of_links_is_on_the_split_of_the_network(tmp_path):
    """Another split's test edges are edges that the network has seen."""
    data = graph(150)
    torch.save(data, tmp_path / "data.pt")
    found = akegnn.fit(str(tmp_path / "data.pt"), "gcn", task="link", splits=4, **{**FIT, "epochs": 2})
    assert found.best.settings.split != found.settings.split  # else nothing is shown
    found.save(tmp_path / "run")
    code, out, err = command("predict", tmp_path / "run", "--json")
    assert code == 0, err
    pairs = LinkTask(data, found.best.settings.split).pairs["test"]
    assert [(row["source"], row["target"]) for row in json.loads(out)] == [tuple(p) for p in pairs.t().tolist()]
