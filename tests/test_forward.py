"""Calling a model by the signature of its ``forward``."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data

from akegnn.errors import AkeError
from akegnn.forward import duplicate, forward


def graph(**more):
    edges = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]])
    return Data(x=torch.arange(6.0).reshape(3, 2), edge_index=edges, **more)


class Model(nn.Module):
    """Remembers what it was given, under the names it gave them."""

    def see(self, **given):
        self.seen = given
        return torch.ones(3, 1)


class Plain(Model):
    def forward(self, x, edge_index):
        return self.see(x=x, edge_index=edge_index)


class OnlyX(Model):
    def forward(self, x):
        return self.see(x=x)


class Swapped(Model):
    def forward(self, edge_index, x):
        return self.see(x=x, edge_index=edge_index)


class Weighted(Model):
    def forward(self, x, edge_index, edge_weight=None, edge_attr=None):
        return self.see(x=x, edge_index=edge_index, edge_weight=edge_weight, edge_attr=edge_attr)


class NeedsWeight(Model):
    def forward(self, x, edge_index, edge_weight):
        return self.see(x=x, edge_index=edge_index, edge_weight=edge_weight)


class Pooled(Model):
    def forward(self, x, edge_index, batch):
        return self.see(x=x, edge_index=edge_index, batch=batch)


class KeywordOnly(Model):
    def forward(self, *, x, edge_index, batch=None):
        return self.see(x=x, edge_index=edge_index, batch=batch)


class PositionalOnly(Model):
    def forward(self, x, edge_weight=None, edge_attr=None, /, *, edge_index):
        return self.see(x=x, edge_weight=edge_weight, edge_attr=edge_attr, edge_index=edge_index)


class Generous(Model):
    def forward(self, x, *args, hidden=False, **kwargs):
        return self.see(x=x, args=args, hidden=hidden, kwargs=kwargs)


EXTRA = {"edge_weight": torch.rand(4), "edge_attr": torch.rand(4, 5), "batch": torch.zeros(3, dtype=torch.long)}


@pytest.mark.parametrize(
    ("kind", "has", "gets"),
    [
        (Plain, [], ["x", "edge_index"]),
        (Plain, ["edge_weight", "batch"], ["x", "edge_index"]),
        (OnlyX, ["edge_weight"], ["x"]),
        (Swapped, [], ["x", "edge_index"]),
        (Weighted, [], ["x", "edge_index"]),
        (Weighted, ["edge_weight"], ["x", "edge_index", "edge_weight"]),
        (Weighted, ["edge_attr", "batch"], ["x", "edge_index", "edge_attr"]),
        (NeedsWeight, ["edge_weight"], ["x", "edge_index", "edge_weight"]),
        (Pooled, ["batch"], ["x", "edge_index", "batch"]),
        (KeywordOnly, [], ["x", "edge_index"]),
        (KeywordOnly, ["batch"], ["x", "edge_index", "batch"]),
        (PositionalOnly, [], ["x", "edge_index"]),
        (PositionalOnly, ["edge_weight"], ["x", "edge_index", "edge_weight"]),
        # The graph has no edge_weight: its place must not be taken by the next argument.
        (PositionalOnly, ["edge_attr"], ["x", "edge_index", "edge_attr"]),
    ],
)
def test_a_model_gets_what_it_names_and_the_graph_has(kind, has, gets):
    model, data = kind(), graph(**{k: EXTRA[k] for k in has})
    out = forward(model, data)
    assert torch.equal(out, torch.ones(3, 1))
    assert {k for k, v in model.seen.items() if v is not None} == set(gets)
    assert all(model.seen[k] is data[k] for k in gets)


def test_defaults_and_open_arguments_are_left_alone():
    model = Generous()
    forward(model, graph(**EXTRA))
    assert torch.equal(model.seen["x"], graph().x)
    assert (model.seen["args"], model.seen["hidden"], model.seen["kwargs"]) == ((), False, {})


class TakesData(Model):
    def forward(self, data, hidden=False):
        return self.see(data=data, hidden=hidden)


class TakesGraph(Model):
    def forward(self, graph):
        return self.see(data=graph)


class TakesG(Model):
    def forward(self, g, *args, **kwargs):
        return self.see(data=g)


class TakesDataByName(Model):
    def forward(self, *, data, hidden=False):
        return self.see(data=data, hidden=hidden)


@pytest.mark.parametrize("kind", [TakesData, TakesGraph, TakesG, TakesDataByName])
def test_one_argument_for_the_whole_graph(kind):
    model, data = kind(), graph()
    forward(model, data)
    assert model.seen["data"] is data
    assert not model.seen.get("hidden")


def test_a_batch_of_graphs():
    batch = Batch.from_data_list([graph(), graph()])
    model = Pooled()
    forward(model, batch)
    assert model.seen["batch"].tolist() == [0, 0, 0, 1, 1, 1]
    assert model.seen["x"] is batch.x


@pytest.mark.parametrize(
    ("kind", "data", "missing"),
    [
        (NeedsWeight, graph(batch=EXTRA["batch"]), "edge_weight"),
        (NeedsWeight, graph(edge_weight=None), "edge_weight"),
        (Pooled, graph(), "batch"),
        (KeywordOnly, Data(edge_index=graph().edge_index, num_nodes=3), "x"),
        (PositionalOnly, Data(x=graph().x), "edge_index"),
    ],
)
def test_a_missing_argument_is_named(kind, data, missing):
    with pytest.raises(AkeError, match=rf"^{kind.__name__}\.forward: needs '{missing}'") as error:
        forward(kind(), data)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("output", [None, (torch.ones(3), torch.ones(3)), [torch.ones(3)], {"out": torch.ones(3)}, 1.0])
@pytest.mark.parametrize("argument", ["x", "data"])
def test_the_output_must_be_one_tensor(output, argument):
    model = OnlyX() if argument == "x" else TakesData()
    model.see = lambda **_: output
    with pytest.raises(AkeError, match=rf"\.forward: must return one tensor, returned {type(output).__name__}"):
        forward(model, graph())


def test_gradients_and_hooks_are_the_models_own():
    """The model is called, not its ``forward``, so that hooks run; and nothing stops gradients."""
    model = nn.Sequential()
    model.lin = nn.Linear(2, 3)
    model.forward = lambda x: model.lin(x)
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    forward(model, graph()).sum().backward()
    assert calls == [1]
    assert model.lin.weight.grad is not None


def test_an_error_inside_the_model_comes_through():
    class Fails(Model):
        def forward(self, x):
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        forward(Fails(), graph())


class Labels(Model):
    def forward(self, x, edge_index, y=None):
        return self.see(y=y)


class AsksForLabels(Model):
    def forward(self, x, edge_index, y):
        return self.see(y=y)


class AsksForAdjacency(Model):
    def forward(self, x, adj_t):
        return self.see(adj_t=adj_t)


class KnownLabels(Model):
    def forward(self, x, edge_index, y, train_mask):
        return self.see(y=y, train_mask=train_mask)


def test_labels_are_given_only_with_the_mask_of_those_that_may_be_known():
    data, model = graph(y=torch.tensor([0, 1, 0]), train_mask=torch.tensor([True, False, False])), Labels()
    forward(model, data)
    assert model.seen == {"y": None}
    asks = KnownLabels()
    forward(asks, data)
    assert asks.seen == {"y": data.y, "train_mask": data.train_mask}
    with pytest.raises(AkeError, match="asks for 'y', the labels of all nodes"):
        forward(AsksForLabels(), data)


def test_a_model_that_wants_an_adjacency_is_told_what_there_is():
    with pytest.raises(AkeError, match="needs 'adj_t', but edges are given as 'edge_index'"):
        forward(AsksForAdjacency(), graph())


class Remembers(nn.Module):
    """Keeps activations as attributes, alone and in a list, and caches as PyG's layers do."""

    def __init__(self):
        super().__init__()
        self.lin, self.told = nn.Linear(2, 3), [1, "a"]

    def forward(self, x, edge_index):
        self.h = self.lin(x)
        self.all, self._cached_x = [self.h], x
        return self.h


def test_a_copy_has_seen_nothing():
    model = Remembers()
    model(graph().x, None)
    copied = duplicate(model)
    assert (copied.h, copied.all, copied._cached_x, copied.told) == (None, None, None, [1, "a"])
    assert torch.equal(copied.lin.weight, model.lin.weight)
    assert copied.lin.weight is not model.lin.weight
    assert model.h is not None


def test_a_copy_of_a_network_called_for_many_at_once():
    model = Remembers()
    state = {k: torch.stack([v, v]) for k, v in model.state_dict().items()}
    torch.vmap(lambda s: torch.func.functional_call(model, s, (graph().x, None)))(state)
    assert duplicate(model).h is None
