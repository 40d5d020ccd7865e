"""The backbones with a training loss of their own: GRAND, deep graph infomax, and the bag of tricks."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from typer.testing import CliRunner

import akegnn
from akegnn import cli
from akegnn.backbones import DGI, GRAND, GCNTricks
from akegnn.forward import forward
from akegnn.tasks import NodeTask, make_task
from akegnn.training import training_loss
from small import fit, graph, masked, refusal, still

PARTS = {"train": list(range(24)), "val": list(range(24, 40)), "test": list(range(40, 60))}


def task(**given: object) -> NodeTask:
    data = masked(graph(**given), **PARTS)
    data.x = data.x.double()
    return make_task(data)


def softmax(x: Tensor) -> np.ndarray:
    e = np.exp(x.detach().numpy())
    return e / e.sum(1, keepdims=True)


# ---- GRAND -----------------------------------------------------------------------------------------------------------


def recorded(model: GRAND) -> list[Tensor]:
    """Every output from now on."""
    outs: list[Tensor] = []
    model.register_forward_hook(lambda module, given, out: outs.append(out))
    return outs


@pytest.mark.parametrize("consistency", [0.0, 0.7])
@pytest.mark.parametrize("temperature", [0.2, 0.5, 1.0])
def test_loss_of_grand_by_hand(temperature, consistency):
    """Mean cross entropy of the samples, and the mean square distance of each from their sharpened mean."""
    made, given = task(), {"samples": 3, "temperature": temperature, "consistency": consistency}
    model = still("grand", drop_node=0.5, official_init=False, **given).double().train()
    outs = recorded(model)
    loss = float(training_loss(model, made.data, made).detach())
    assert len(outs) == 3
    p = [softmax(out) for out in outs]
    supervised = np.mean([-np.log(q[range(24), made.labels[:24]]).mean() for q in p])
    sharp = (sum(p) / 3) ** (1 / temperature)
    sharp = sharp / sharp.sum(1, keepdims=True)
    away = np.mean([((q - sharp) ** 2).sum(1).mean() for q in p])
    assert away > 1e-4  # else the second term says nothing
    assert loss == pytest.approx(supervised + consistency * away, rel=1e-10)


def test_the_sharpened_mean_of_grand_is_a_target_and_not_a_way_for_gradients():
    made = task()
    model = still("grand", drop_node=0.5, samples=2, official_init=False).double().train()
    with torch.random.fork_rng():
        training_loss(model, made.data, made).backward()
    outs = [model(made.data.x, made.data.edge_index) for _ in range(2)]
    p = torch.stack([out.softmax(-1) for out in outs])
    target = p.mean(0).detach() ** 2
    target = target / target.sum(-1, keepdim=True)
    literal = sum(cross_entropy(out[:24], made.labels[:24]) for out in outs) / 2
    literal = literal + ((p - target) ** 2).sum(-1).mean()
    wanted = torch.autograd.grad(literal, list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_grand_drops_whole_nodes_and_evaluates_their_mean(rate):
    """In training a node's features are all there or all gone; in evaluation every node counts by its chance."""
    data, seen = task().data, []
    model = still("grand", drop_node=rate, order=0, official_init=False).double().requires_grad_(False)
    model.last.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    for _ in range(50):
        model.train()(data.x, data.edge_index)
    model.eval()(data.x, data.edge_index)
    *drawn, last = seen
    hidden = lambda x: (x @ model.first.weight.t() + model.first.bias).relu()  # noqa: E731
    torch.testing.assert_close(last, hidden((1 - rate) * data.x), rtol=1e-12, atol=1e-14)
    gone = hidden(torch.zeros_like(data.x))
    kept = torch.stack([~torch.isclose(h, gone, rtol=1e-12, atol=1e-14).all(1) for h in drawn])
    for h, there in zip(drawn, kept, strict=True):  # and what is there is not scaled up
        torch.testing.assert_close(h, hidden(data.x * there.unsqueeze(1)), rtol=1e-12, atol=1e-14)
    # 3,000 draws; five standard deviations.
    assert abs(float(kept.double().mean()) - (1 - rate)) <= 5 * math.sqrt(rate * (1 - rate) / kept.numel())


@pytest.mark.parametrize("sparse", [False, True])
def test_grand_mixes_fewer_columns_where_that_is_the_same(sparse):
    """Without dropout on propagated features they are weighted first; a rate that drops nothing forbids it."""
    data = task().data
    x = data.x.to_sparse_coo() if sparse else data.x
    model = still("grand", drop_node=0.5, order=3, official_init=False).double().train()
    literal = copy.deepcopy(model)
    literal.input_dropout = 1e-15
    assert model.sparse_features
    assert not GRAND(5, 3).sparse_features
    assert not GRAND(5, 3, input_dropout=0.0, batch_norm=True).sparse_features
    outs = []
    for network in (model, literal):
        torch.manual_seed(0)
        out = network(x, data.edge_index)
        outs.append((out, *torch.autograd.grad(out.square().sum(), list(network.parameters()))))
    for ours, expected in zip(*outs, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)


def test_official_weights_of_grand():
    """Normal with mean -d and deviation d, where d is one by the root of the layer's outputs; biases too."""
    model = GRAND(300, 400, hidden_channels=100)
    for layer in (model.requires_grad_(False).first, model.last):
        d = layer.out_features**-0.5
        assert float(layer.weight.mean()) == pytest.approx(-d, rel=0.05)
        assert float(layer.weight.std()) == pytest.approx(d, rel=0.05)
        assert float(layer.bias.mean()) == pytest.approx(-d, rel=0.5)
    plain = GRAND(300, 400, hidden_channels=100, official_init=False).requires_grad_(False)
    assert abs(float(plain.first.weight.mean())) < 1e-3


def test_grand_is_trained_on_every_node():
    """Nodes without a label take part in what the samples should agree on."""
    made = task()
    data = made.data.clone()
    model = still("grand", drop_node=0.5, samples=2, official_init=False, order=0).double().train()
    losses = []
    for scale in (1.0, 3.0):
        torch.manual_seed(0)
        changed = data.clone()
        changed.x[40:] *= scale  # with no steps, no other node knows of it
        losses.append(float(training_loss(model, changed, made).detach()))
    assert losses[0] != losses[1]


# ---- deep graph infomax ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_loss_of_dgi_is_that_of_pyg(weighted):
    """PyG's deep graph infomax with the same weights and the same shuffled rows, and the probe's cross entropy."""
    made = task()
    if weighted:
        made.data.edge_weight = torch.linspace(0.1, 2, made.data.num_edges, dtype=torch.float64)
    model = still("dgi").double()
    encoder = pyg.GCNConv(5, 4).double()
    encoder.load_state_dict(model.conv.state_dict())

    def embed(x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> Tensor:
        return model.activation(encoder(x, edge_index, edge_weight))

    def shuffle(x: Tensor, edge_index: Tensor, edge_weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        return x[torch.rand(len(x)).argsort()], edge_index, edge_weight

    theirs = pyg.DeepGraphInfomax(4, embed, lambda z, *rest: z.mean(0).sigmoid(), shuffle)
    theirs.weight = model.agreement
    with torch.random.fork_rng():
        found = training_loss(model, made.data, made)
    good, bad, summary = theirs(made.data.x, made.data.edge_index, made.data.get("edge_weight"))
    wanted = theirs.loss(good, bad, summary) + cross_entropy(model.probe(good)[:24], made.labels[:24])
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-10)


def gradients(loss: Callable[[DGI], Tensor]) -> dict[str, Tensor | None]:
    torch.manual_seed(3)
    model = still("dgi").double()
    loss(model).backward()
    return {k: p.grad for k, p in model.named_parameters()}


def test_the_probe_teaches_the_encoder_nothing():
    """Labels change the probe's gradient and no other; nor do they reach the encoder through a prediction."""
    made = task()
    other = task(y=torch.where(torch.arange(60) < 8, 0, graph().y))
    a, b = (gradients(lambda model, t=t: training_loss(model, t.data, t)) for t in (made, other))
    for name in a:
        assert torch.equal(a[name], b[name]) == (not name.startswith("probe")), name
        assert float(a[name].abs().sum()) > 0
    through = gradients(lambda model: forward(model, made.data).square().sum())
    assert {name for name, g in through.items() if g is not None} == {"probe.weight", "probe.bias"}


def test_dgi_tells_nodes_from_shuffled_ones():
    """Each node against the same nodes in another order: were they not shuffled, nothing could be told."""
    made = task()
    torch.manual_seed(0)
    model = DGI(5, 3, hidden_channels=16).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    told = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = training_loss(model, made.data, made)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            told.append(float(loss) - float(made.loss(forward(model, made.data), made.data)))
    assert np.mean(told[-20:]) < 0.7 * np.mean(told[:5])


# ---- the bag of tricks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [False, True])
def test_loss_of_the_tricks_by_hand(labels):
    """On about half of the training nodes: log(e + CE) - log(e), e = 1 - log 2; the others' labels are inputs."""
    made = task()
    model = still("gcn-tricks", labels=labels).double().train()
    called: list[tuple[Tensor, ...]] = []
    model.register_forward_hook(lambda module, given, out: called.append((*given, out)))
    sizes = []
    for _ in range(20):
        loss = float(training_loss(model, made.data, made).detach())
        *_, known, out = called.pop()
        asked = [k for k in range(24) if not known[k]]
        assert not known[24:].any()
        p = softmax(out)
        e = 1 - math.log(2)
        literal = np.mean([math.log(e - math.log(p[k, made.labels[k]])) - math.log(e) for k in asked])
        assert loss == pytest.approx(literal, rel=1e-10)
        sizes.append(len(asked))
    assert len(set(sizes)) > 1
    assert sum(sizes) / 20 == pytest.approx(12, abs=5 * math.sqrt(6 / 20))


def test_a_node_is_never_asked_for_a_label_that_it_was_told():
    """Whoever is asked has no label among the inputs: change it, and no output changes."""
    made = task()
    model = still("gcn-tricks", labels=True).double().eval()
    known = made.data.train_mask & (torch.arange(60) % 2 == 0)
    with torch.no_grad():
        given = (made.data.x, made.data.edge_index, None)
        out = model(*given, made.data.y, known)
        assert torch.equal(model(*given, torch.where(known, made.data.y, 0), known), out)
        assert not torch.equal(model(*given, torch.where(known, (made.data.y + 1) % 3, 0), known), out)
        blind = model(*given)
        assert torch.equal(model(*given, made.data.y, torch.zeros(60, dtype=torch.bool)), blind)
    assert not torch.equal(out, blind)


@pytest.mark.parametrize("unlabelled", [False, True])
def test_labels_of_validation_and_test_nodes_are_never_seen(unlabelled):
    """Trained and asked with other labels there (or none): the same network and the same answers, bit for bit."""
    networks, answers = [], []
    for other in (False, True):
        data = masked(graph(), **PARTS)
        if other:
            data.y[24:] = -1 if unlabelled else (data.y[24:] + 1) % 3
        made = NodeTask(data) if not (other and unlabelled) else None
        torch.manual_seed(0)
        model = GCNTricks(5, 3, hidden_channels=8, labels=True)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            loss = model.training_loss(made.data if made else data, lambda out: out.sum())
            loss.backward()
            optimizer.step()
        networks.append(model.state_dict())
        with torch.no_grad():
            answers.append(forward(model.eval(), made.data if made else data))
    assert all(torch.equal(networks[0][k], networks[1][k]) for k in networks[0])
    assert torch.equal(*answers)


@pytest.mark.parametrize("labels", [False, True])
def test_labels_beyond_the_classes_outside_every_split_are_no_matter(labels):
    """A class that no part holds has no output; the loss must not stumble over it."""
    data = masked(graph(), **PARTS)
    data.y[50:] = 7
    data.test_mask[50:] = False
    made = make_task(data)
    assert made.outputs == 3
    model = GCNTricks(5, 3, hidden_channels=8, labels=labels)
    assert math.isfinite(float(training_loss(model, made.data, made).detach()))
    assert forward(model.eval(), made.data).shape == (60, 3)


def test_the_tricks_at_links_are_those_of_the_task():
    """Of a graph that has labels and masks besides: they are not what the link task is about."""
    made = make_task(masked(graph(), **PARTS), "link")
    torch.manual_seed(0)
    model = still("gcn-tricks", 5, made.outputs)
    (batch,) = made.batches(made.data, torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert float(training_loss(model, batch, made)) == float(made.loss(forward(model, batch), batch))


def test_links_are_learnt_whether_or_not_the_nodes_have_labels():
    scores = []
    for data in (graph(200), masked(graph(200), train=list(range(100)), val=[100, 101], test=[102, 103])):
        result = fit(data, "gcn-tricks", task="link", model_args={"hidden_channels": 16}, epochs=5, views=["original"])
        scores.append([(s.name, s.validation, s.test) for s in result.scores])
    assert scores[0] == scores[1]


@pytest.mark.parametrize("given", [{}, {"masks": "random"}, {"labels_per_class": 3}])
def test_the_command_predicts_with_the_labels_that_the_network_was_trained_on(given, tmp_path):
    """Training labels are inputs: those of the run's own split, given or drawn."""
    data = masked(graph(), **PARTS)
    torch.save(data, tmp_path / "data.pt")
    labels = {"hidden_channels": 8, "labels": True}
    result = fit(str(tmp_path / "data.pt"), "gcn-tricks", model_args=labels, epochs=3, **given)
    result.save(tmp_path / "run")
    ran = CliRunner().invoke(cli.app, ["predict", str(tmp_path / "run"), "--json"])
    assert ran.exit_code == 0, ran.output
    with torch.no_grad():
        wanted = forward(result.model, make_task(data, **given).data).softmax(-1).max(-1).values
        assert not torch.allclose(forward(result.model, graph()).softmax(-1).max(-1).values, wanted, atol=1e-4)
    assert [row["probability"] for row in json.loads(ran.stdout)] == pytest.approx(wanted.tolist(), abs=2e-6)


# ---- through the front door ------------------------------------------------------------------------------------------


def test_a_person_may_bring_a_loss_of_their_own():
    """``training_loss(batch, loss)`` is asked for instead of the task's, and gets it to use."""
    asked: list[tuple[int, float]] = []

    class Mine(pyg.GCN):
        def training_loss(self, batch: Data, loss: Callable[[Tensor], Tensor]) -> Tensor:
            out = self(batch.x, batch.edge_index)
            asked.append((batch.num_nodes, float(loss(out).detach())))
            return 2 * loss(out)

    result = fit(masked(graph(), **PARTS), lambda: Mine(5, 8, 2, 3), epochs=2, views=["original"])
    assert len(asked) == 4  # two epochs, two phases
    assert [e.loss for e in result.history] == pytest.approx([2 * loss for _, loss in asked])


def test_a_loss_of_ones_own_that_fails_is_told():
    class Mine(pyg.GCN):
        def training_loss(self, batch: Data, loss: Callable[[Tensor], Tensor]) -> Tensor:
            return loss(self(batch.x, batch.edge_index)) * math.nan

    with pytest.raises(akegnn.errors.RunFailed, match="epoch 1: the loss is nan"):
        fit(graph(), lambda: Mine(5, 8, 2, 3), epochs=2, views=["original"])
    assert "seed 0, epoch 1: the loss is not finite" in refusal(
        lambda: akegnn.fit(graph(), lambda: Mine(5, 8, 2, 3), seeds=2, epochs=2, views=["original"], device="cpu")
    )
