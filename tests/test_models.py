"""What a person may say a model is, and what is filled in."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import akegnn
from akegnn.backbones import BACKBONES
from akegnn.models import build, complete_arguments, find_class, resolve
from akegnn.tasks import make_task
from small import SIZES, Net, fit, graph, graphs, refusal


@pytest.fixture(scope="module")
def task():
    return make_task(graph())


# ---- finding it ------------------------------------------------------------------------------------------------------


def test_by_name_and_by_path():
    assert find_class("gcn") is BACKBONES["gcn"]
    assert find_class("torch_geometric.nn:GAT") is pyg.GAT
    assert find_class("small:Net") is Net


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet", "model: 'resnet' is neither one of gcn,"),
        ("small.Net", "model: 'small.Net' is neither one of gcn,"),
        ("no_such_package.models:Net", "model: cannot import 'no_such_package.models'"),
        ("small:Nett", "model: 'small' has no 'Nett'"),
        ("small:QUICK", "model: 'small:QUICK' is a dict, expected a class or function"),
        ("small:", "model: "),
        (":Net", "model: "),
        ("..small:Net", "model: "),
        ("broken_module:Net", "model: cannot import 'broken_module'"),
    ],
)
def test_a_name_that_leads_nowhere(name, message, tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("from torch import nothing_of_that_name\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert refusal(lambda: find_class(name)).startswith(message)


# ---- filling in its arguments ----------------------------------------------------------------------------------------


def test_sizes_come_from_the_data(task):
    expected = {"in_channels": 5, "out_channels": 3}
    for name in BACKBONES:
        assert {k: v for k, v in complete_arguments(BACKBONES[name], {}, task).items() if k in expected} == expected
    assert complete_arguments(Net, {"width": 7}, task) == {"nfeat": 5, "nclass": 3, "width": 7}
    found = complete_arguments(pyg.GraphSAGE, {"hidden_channels": 9}, task)
    assert found == {"in_channels": 5, "out_channels": 3, "hidden_channels": 9, "num_layers": 2}


def test_what_is_given_is_kept(task):
    assert complete_arguments(BACKBONES["gcn"], {"out_channels": 9}, task)["out_channels"] == 9


@pytest.mark.parametrize("name", ["gcn", "gin"])
def test_a_backbone_pools_for_the_graph_task(name, task):
    assert complete_arguments(BACKBONES[name], {}, make_task(graphs()))["pool"] is True
    assert "pool" not in complete_arguments(BACKBONES[name], {}, task)


def test_a_size_we_do_not_know(task):
    message = refusal(lambda: complete_arguments(Net, {}, task))
    assert message == "model_args: Net needs 'width' (--model-arg width=...)"


def test_an_argument_that_it_does_not_take(task):
    message = refusal(lambda: complete_arguments(Net, {"width": 4, "heigth": 4}, task))
    assert message == "model_args: 'heigth' is not an argument of Net"


def test_a_class_that_takes_anything_is_given_it(task):
    assert complete_arguments(pyg.GCN, {"cached": True}, task)["cached"] is True


# ---- building it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (Net, {"nfeat": 5, "nclass": 3, "width": -1}, "model: Net cannot be built with"),
        (Net, {"nfeat": 5}, "model: Net cannot be built with"),
        (pyg.GAT, {"in_channels": 5, "hidden_channels": 7, "num_layers": 2, "heads": 2}, "model: GAT cannot be built"),
        (dict, {}, "model: dict built a dict, expected a torch.nn.Module"),
    ],
)
def test_what_cannot_be_built(kind, arguments, message):
    assert refusal(lambda: build(kind, arguments)).startswith(message)


def test_every_call_builds_a_network_of_its_own(task):
    factory, name, arguments = resolve(Net, {"width": 4}, task)
    assert (name, arguments) == ("small:Net", {"nfeat": 5, "nclass": 3, "width": 4})
    a, b = factory(), factory()
    assert a is not b
    assert type(a) is Net
    assert not torch.equal(a.first.lin.weight, b.first.lin.weight)


def test_a_function_is_called_as_it_is(task):
    def make():
        return Net(5, 3, 2)

    factory, name, arguments = resolve(make, {}, task)
    assert (factory, name, arguments) == (make, "given", {})
    assert refusal(lambda: resolve(make, {"width": 3}, task)).startswith("model_args: only for a model given by name")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Net(5, 3, 2), "model: give a function that builds one, such as `lambda: MyGNN(...)`, not a module"),
        (lambda: 3, "model: the function built a int, expected a torch.nn.Module"),
        ("small:not_a_model", "model: not_a_model built a int, expected a torch.nn.Module"),
        (nn.Linear, "Linear.forward: needs 'input', which the graph does not have"),
    ],
)
def test_what_is_no_model(model, message):
    assert refusal(lambda: fit(model=model)).startswith(message)


# ---- all the way -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_class", [True, False])
@pytest.mark.parametrize("name", ["GCN", "GAT", "GraphSAGE", "GIN"])
def test_the_models_of_pyg_work_as_they_are(name, as_class):
    kind = getattr(pyg, name)
    result = fit(model=kind if as_class else f"torch_geometric.nn:{name}", model_args={"hidden_channels": 8})
    assert type(result.model) is kind
    assert result.settings.model == (f"{kind.__module__}:{name}" if as_class else f"torch_geometric.nn:{name}")
    assert result.swaps
    data = graph()
    assert result.model(data.x, data.edge_index).shape == (60, 3)


@pytest.mark.parametrize("name", list(BACKBONES))
def test_every_backbone_works(name):
    result = fit(model=name, model_args=SIZES[name])  # some are deep by default
    assert type(result.model) is BACKBONES[name]
    assert result.settings.model == name
    assert result.swaps
    assert {r.part for r in akegnn.explain(result.model, graph()).rows} >= {"channels"}
