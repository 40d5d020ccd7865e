"""Presets: every file names a backbone and a dataset that exist, can be built, and says where it comes from."""

import dataclasses
import inspect
import re
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import akegnn
from akegnn import presets
from akegnn.backbones import BACKBONES
from akegnn.data import DATASETS
from akegnn.data.prepare import EDGES, FEATURES
from akegnn.fit import plan
from akegnn.models import build, complete_arguments
from akegnn.tasks import make_task

EVERY = list(presets.every())
FOLDER = Path(presets.__file__).parent
PAPER = {  # what the issue asks for
    *(f"{d}/{m}" for d in ("cora", "citeseer", "pubmed") for m in ("gcn", "gat", "appnp", "jknet-cat", "jknet-max")),
    *(f"{d}/{m}" for d in ("cora", "citeseer", "pubmed") for m in ("gcnii", "grand", "gcn-link")),
    *(f"{d}/{m}" for d in ("cora", "citeseer", "pubmed") for m in ("sgc", "mixhop", "sage", "unet", "dgi")),
    *(
        f"{d}/{m}"
        for d in ("chameleon", "squirrel", "actor", "cornell", "cornell-2021", "texas", "wisconsin")
        for m in ("gcn", "gat", "appnp", "jknet-cat", "jknet-max", "gcnii")
    ),
    *(f"{d}/{m}" for d in ("dd", "nci1", "proteins", "imdb-binary", "reddit-binary") for m in ("gcn", "gin")),
    *(f"ogbn-arxiv/{m}" for m in ("gcnii-dense", "gcn-res", "gcn-tricks", "sage")),
}


def test_there_is_a_preset_for_everything_in_the_paper():
    assert {p.name for p in EVERY} >= PAPER


@pytest.mark.parametrize("preset", EVERY, ids=lambda p: p.name)
def test_a_preset_is_complete(preset):
    known = DATASETS[preset.data]
    assert preset.task in (*known.tasks, "link")
    assert preset.features in FEATURES
    assert preset.edges in EDGES
    assert preset.settings_from
    assert preset.protocol
    assert presets.find(preset.data, preset.model, preset.task) == preset
    wanted = inspect.signature(BACKBONES[preset.model]).parameters
    assert set(preset.model_args) <= set(wanted)
    for score in (preset.published, preset.paper):
        assert score is None or (1 < score.score < 100 and score.source)
    file = FOLDER / preset.data / f"{preset.model}{'-link' if preset.task == 'link' else ''}.toml"
    fields = {f.name for f in dataclasses.fields(akegnn.Training)}
    assert set(tomllib.loads(file.read_text())["training"]) <= fields


@pytest.mark.parametrize("preset", EVERY, ids=lambda p: p.name)
def test_a_preset_builds_its_network_and_every_pattern_of_a_weight_decay_matches(preset):
    size = DATASETS[preset.data].size
    x, edges = torch.ones(4, size.features), torch.tensor([[0, 1], [1, 0]])
    if preset.task == "graph":
        graphs = [
            Data(x=x[:, :1] if preset.features == "degree" else x, edge_index=edges, y=torch.tensor([k % 2]))
            for k in range(20)
        ]
        task = make_task(graphs)
    else:
        nodes = 10 * size.classes
        graph = Data(x=torch.ones(nodes, size.features), edge_index=torch.arange(nodes).repeat(2, 1))
        graph.y = torch.arange(nodes) % size.classes
        task = make_task(graph, masks="random")
    kind = BACKBONES[preset.model]
    with torch.device("meta"):
        network = build(kind, complete_arguments(kind, preset.model_args, task))
    names = [name for name, _ in network.named_parameters()]
    for pattern in preset.training.weight_decays:
        assert any(re.fullmatch(pattern.replace(".", r"\.").replace("*", ".*"), name) for name in names), pattern


def test_what_is_given_overrides_the_preset(monkeypatch):
    data = akegnn.load_data("digits")
    monkeypatch.setattr(sys.modules["akegnn.fit"], "load_data", lambda name, root=None: data)
    settled = plan("cora", "gat", lr=0.5, model_args={"heads": 2}).settings
    assert settled.preset == "cora/gat"
    assert (settled.training.lr, settled.training.patience, settled.training.stop) == (0.5, 100, "either")
    assert (settled.model_args["heads"], settled.model_args["hidden_channels"]) == (2, 8)
    assert settled.features == "row"
    bare = plan("cora", "gat", preset=False).settings
    assert (bare.preset, bare.training, bare.features) == ("", akegnn.Training(), "given")


@pytest.mark.parametrize("data", ["digits", "../cora", "cora/gcn", ""])
def test_no_preset_where_there_is_none(data):
    assert presets.find(data, "gcn") is None


def test_a_backbone_of_ones_own_has_no_preset():
    assert presets.find("cora", "torch_geometric.nn:GCN") is None
