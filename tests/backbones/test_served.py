"""Every backbone in every task it serves, through the one call: it learns, exchanges, learns again and is explained."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import one_hot
from torch_geometric.data import Data

import akegnn
from akegnn.backbones import BACKBONES
from akegnn.forward import forward
from small import SIZES, graph, graphs, refusal

# Said once more, to hold the classes to it.
SERVED = {name: ["node", "link"] for name in BACKBONES}
SERVED["gcn"] = SERVED["gin"] = ["node", "link", "graph"]
SERVED["grand"] = SERVED["dgi"] = ["node"]
CASES = [(name, task) for name, tasks in SERVED.items() for task in tasks]
VIEWS = ["mask:0.2", "corrupt:0.2", "drop-edges:0.2", "subgraph:0.2", "original"]


def data_of(task: str) -> Data | list[Data]:
    """Easy to learn: groups that features tell, and within which most links are; graphs that differ in their level."""
    if task == "node":
        return graph(150)
    if task == "link":
        made = graph(300, classes=10, features=10)
        made.x = made.x + 4 * one_hot(made.y, 10)
        return made
    many = graphs(60)
    for g in many:
        g.x = g.x + g.y
    return many


def arguments(name: str, task: str) -> dict[str, object]:
    """Wide enough to learn within a second, and little dropout."""
    given = dict(SIZES[name])
    given |= {"hidden_channels": 16} if "hidden_channels" in given else {}
    given |= {"official_init": False} if name == "grand" else {}
    given |= {"dropout": 0.1} if name in ("unet", "mixhop", "gcn-tricks") else {}
    return given | ({"dropout": 0.0} if task == "graph" else {})


@pytest.mark.parametrize(("name", "task"), CASES)
def test_from_views_to_one_network(name, task):
    result = akegnn.fit(
        data_of(task),
        name,
        task=task,
        recipe="paper",
        model_args=arguments(name, task),
        views=VIEWS,
        epochs=15 if task != "graph" else 10,
        lr=0.2 if name == "sgc" else 0.03,
        weight_decay=0.0,
        batch_size=16,
        exchange={"channels": 2, "iterations": 1},
        device="cpu",
    )
    assert type(result.model) is BACKBONES[name]
    assert result.settings.task == task
    above = {"node": 1.5 * result.floor, "link": 0.6, "graph": 1.5 * result.floor}[task]
    assert result.score("base").test > above
    assert result.score("AKE").test > above
    # Every network gave and took, and re-training changed what the exchange had left.
    assert {s.source for s in result.swaps} == {s.target for s in result.swaps} == set(range(5))
    assert {e.network for e in result.history if e.phase == "re-training"} == {
        f"{k}: {v.partition(':')[0]}" for k, v in enumerate(VIEWS, 1)
    }
    told = result.map.explain().rows
    assert [row.tensor for row in told] == list(result.model.state_dict())
    assert all(row.why for row in told)
    swapped = {s.layer for s in result.swaps}
    assert swapped == {row.layer for row in told if row.part == "channels"}


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("task", ["node", "link", "graph"])
def test_a_task_that_a_backbone_does_not_serve(name, task):
    """By name or as a class: told before anything is trained, with those that do."""
    if task in SERVED[name]:
        return
    serving = [n for n, tasks in SERVED.items() if task in tasks]
    trained: list[object] = []
    given = {"task": task, "on_epoch": trained.append, "device": "cpu", "epochs": 1}
    for model in (name, BACKBONES[name]):
        message = refusal(lambda model=model: akegnn.fit(graphs() if task == "graph" else graph(), model, **given))
        assert message.startswith(f"model: {name if model is name else ''}")
        assert message.endswith(f" does not serve the {task} task ({', '.join(serving)} do)")
    assert trained == []


def test_what_a_person_brings_is_not_asked_which_tasks_it_serves():
    """A class of their own that happens to have an attribute of that name."""

    class Mine(BACKBONES["gcn"]):
        tasks = ("tea", "coffee")

    assert akegnn.fit(graph(), Mine, epochs=1, views=["original"], device="cpu").score().test >= 0


@pytest.mark.parametrize("name", BACKBONES)
def test_the_shipped_network_predicts_by_itself(name, tmp_path):
    """Saved, loaded and asked again: the same answers."""
    data = graph()
    views = ["mask", "original"]
    result = akegnn.fit(data, name, model_args=SIZES[name], epochs=2, views=views, baseline=False, device="cpu")
    run = akegnn.load(result.save(tmp_path / "run"))
    with torch.no_grad():
        assert torch.equal(forward(run.model, data), forward(result.model, data))


@pytest.mark.parametrize("name", BACKBONES)
def test_the_same_seeds_give_the_same_networks(name):
    """With all that it draws at random."""
    given = {"epochs": 2, "views": ["mask", "drop-edges"], "baseline": False, "device": "cpu", "seeds": 2}
    a, b = (akegnn.fit(graph(), name, model_args=SIZES[name], **given) for _ in range(2))
    for x, y in zip(a.results, b.results, strict=True):
        assert [(s.name, s.test) for s in x.scores] == [(s.name, s.test) for s in y.scores]
        one, other = x.model.state_dict(), y.model.state_dict()
        assert all(torch.equal(one[k], other[k]) for k in one)
