"""The embedded graphs: sizes, splits, where edges and features come from, the same on every machine."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch_geometric.utils import contains_self_loops, is_undirected

from akegnn import data as datasets
from akegnn.data import embedded
from akegnn.tasks import make_task
from small import refusal

PARTS = ("train", "val", "test")
# Facts of the graphs as they were first published; a change of any of them changes everybody's results.
EDGES = "0ed0042d77915c31"
TRAINED_ON = [
    *(68, 360, 374, 416, 524, 567, 600, 655, 667, 683, 689, 698, 812, 813, 829),
    *(850, 899, 929, 1087, 1098, 1129, 1151, 1168, 1180, 1258, 1347, 1436, 1482, 1742, 1773),
]
FIRST_GRIDS = [2, 5, 8, 12, 13, 15, 17, 19, 20, 21]


@pytest.fixture(scope="module")
def digits():
    return embedded.digits()


@pytest.fixture(scope="module")
def grids():
    return embedded.digits_graphs()


@pytest.fixture(scope="module")
def images():
    """The pixels as scikit-learn gives them: whole numbers from 0 to 16."""
    return load_digits().images.astype(int)


# ---- digits ----------------------------------------------------------------------------------------------------------


def test_digits_is_the_graph_it_has_always_been(digits):
    assert digits.x.shape == (1797, 32)
    assert digits.edge_index.shape == (2, 12620)
    assert int(digits.edge_index[0].sum()) == int(digits.edge_index[1].sum())
    # Whole numbers, so the bytes do not depend on the machine.
    assert hashlib.sha256(digits.edge_index.numpy().astype("<i8").tobytes()).hexdigest()[:16] == EDGES
    assert digits.train_mask.nonzero().flatten().tolist() == TRAINED_ON
    assert digits.y[:10].tolist() == list(range(10))


def test_two_loads_are_equal(digits):
    again = embedded.digits()
    assert again.keys() == digits.keys()
    assert all(torch.equal(again[key], digits[key]) for key in digits.keys())  # noqa: SIM118 (Data is no dict)


def test_edges_go_both_ways_once_and_never_back_to_their_node(digits):
    assert is_undirected(digits.edge_index)
    assert not contains_self_loops(digits.edge_index)
    assert len(set(map(tuple, digits.edge_index.t().tolist()))) == digits.num_edges


def test_features_are_the_lower_pixels_between_0_and_1(digits, images):
    assert digits.x.dtype == torch.float32
    assert (float(digits.x.min()), float(digits.x.max())) == (0, 1)
    assert torch.equal(digits.x, torch.tensor(images[:, 4:].reshape(1797, 32) / 16, dtype=torch.float32))


def test_edges_and_features_come_from_different_pixels(digits, monkeypatch):
    """Otherwise an edge would say nothing that the features do not, and links would be trivial to predict."""
    pixels, labels = embedded._images()
    for blank, same_edges, same_features in ((slice(4, 8), True, False), (slice(0, 4), False, True)):
        changed = pixels.copy()
        changed[:, blank] = np.random.default_rng(0).integers(0, 17, changed[:, blank].shape) / 16
        monkeypatch.setattr(embedded, "_images", lambda changed=changed: (changed, labels))
        other = embedded.digits()
        equal_edges = other.num_edges == digits.num_edges and torch.equal(other.edge_index, digits.edge_index)
        assert equal_edges == same_edges
        assert torch.equal(other.x, digits.x) == same_features


def nearest(images, node):
    """The five nearest by the upper pixels, in whole numbers, ties to the lower index."""
    distances = ((images[:, :4] - images[node, :4]) ** 2).sum((1, 2)).tolist()
    return set(sorted(set(range(len(images))) - {node}, key=lambda other: (distances[other], other))[:5])


@pytest.mark.parametrize("node", [0, 777, 1796])
def test_neighbours_are_the_five_nearest_by_the_upper_pixels(digits, images, node):
    mine = nearest(images, node)
    joined = set(digits.edge_index[1, digits.edge_index[0] == node].tolist())
    assert mine <= joined
    # Made undirected: everybody else joined to this node has it among their own five.
    assert all(node in nearest(images, other) for other in joined - mine)


def test_digits_splits(digits):
    members = {part: set(digits[f"{part}_mask"].nonzero().flatten().tolist()) for part in PARTS}
    assert {part: len(nodes) for part, nodes in members.items()} == {"train": 30, "val": 300, "test": 1000}
    assert not members["train"] & members["val"]
    assert not (members["train"] | members["val"]) & members["test"]
    assert digits.y[digits.train_mask].bincount().tolist() == [3] * 10
    for part in PARTS:
        assert digits.y[digits[f"{part}_mask"]].unique().tolist() == list(range(10))


# ---- digits-graphs ---------------------------------------------------------------------------------------------------


def test_a_graph_per_image(grids, images):
    assert len(grids) == 1797
    assert {(g.num_nodes, g.num_edges, g.num_node_features) for g in grids} == {(64, 224, 3)}
    assert [int(g.y) for g in grids] == load_digits().target.tolist()
    for k in (0, 1796):
        pixels = [[images[k, r, c] / 16, r / 7, c / 7] for r in range(8) for c in range(8)]
        assert torch.equal(grids[k].x, torch.tensor(pixels, dtype=torch.float32))


def test_a_pixel_is_joined_to_the_four_around_it(grids):
    expected = {
        (8 * r + c, 8 * (r + dr) + c + dc)
        for r in range(8)
        for c in range(8)
        for dr, dc in ((0, 1), (1, 0), (0, -1), (-1, 0))
        if 0 <= r + dr < 8 and 0 <= c + dc < 8
    }
    assert len(expected) == 224
    assert set(map(tuple, grids[0].edge_index.t().tolist())) == expected
    assert all(torch.equal(g.edge_index, grids[0].edge_index) for g in grids)


def test_grid_splits(grids):
    members = {part: [k for k, g in enumerate(grids) if g.split == part] for part in PARTS}
    assert {part: len(found) for part, found in members.items()} == {"train": 1000, "val": 300, "test": 497}
    assert members["train"][:10] == FIRST_GRIDS
    for found in members.values():
        assert {int(grids[k].y) for k in found} == set(range(10))


# ---- by name ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["digits", "digits-graphs"])  # the others need files, see test_named.py
def test_a_dataset_serves_the_tasks_it_names(name):
    known = datasets.DATASETS[name]
    for task in known.tasks:
        made = make_task(datasets.load(name), task)
        assert (made.name, made.splits_drawn) == (task, "")


def test_an_unknown_name_says_what_there_is(tmp_path):
    message = refusal(lambda: datasets.load(str(tmp_path / "nowhere")))
    assert "nowhere" in message
    assert "digits, digits-graphs" in message
