"""Splits: as they come, one column of several, or drawn class by class and recorded."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from akegnn.data.splits import PARTS, complete, node_splits
from small import graph, masked, refusal


def members(parts):
    return {part: parts[part].tolist() for part in PARTS}


def everybody(parts):
    return sorted(node for part in PARTS for node in parts[part].tolist())


def test_given_masks_are_taken_as_they_are():
    data = masked(graph(), train=[3, 1], val=[2, 50], test=[0, 59, 7])
    parts, note = node_splits(data, 0, seed=1)
    assert members(parts) == {"train": [1, 3], "val": [2, 50], "test": [0, 7, 59]}
    assert note == ""


def two_columns():
    """Masks with two splits for training and validation and one for testing, as WikiCS has them."""
    data = masked(graph(), test=[0, 1])
    for part, columns in (("train", ([2, 3], [4, 5])), ("val", ([4, 5], [2, 3]))):
        data[f"{part}_mask"] = torch.stack([torch.isin(torch.arange(60), torch.tensor(c)) for c in columns], dim=1)
    return data


@pytest.mark.parametrize(("split", "train", "val"), [(0, [2, 3], [4, 5]), (1, [4, 5], [2, 3])])
def test_one_column_of_several(split, train, val):
    parts, _ = node_splits(two_columns(), split, seed=0)
    assert members(parts) == {"train": train, "val": val, "test": [0, 1]}


@pytest.mark.parametrize("split", [2, -1])
def test_a_column_that_is_not_there(split):
    message = refusal(lambda: node_splits(two_columns(), split, seed=0))
    assert message == f"train_mask: has splits 0 to 1, asked for {split}"


@pytest.mark.parametrize("shape", [(59,), (2, 60), (60, 1, 1)])
def test_a_mask_of_another_size(shape):
    data = masked(graph(), val=[1], test=[2])
    data.train_mask = torch.ones(shape) > 0
    message = refusal(lambda: node_splits(data, 0, seed=0))
    assert message.startswith("train_mask: must have one entry per node (60)")


def test_masks_of_numbers_serve_too():
    data = masked(graph(), train=[0], val=[1], test=[2])
    data.train_mask = data.train_mask.to(torch.uint8)
    assert members(node_splits(data, 0, seed=0)[0])["train"] == [0]


def test_all_missing_are_drawn_by_class_and_recorded():
    data = graph()
    data.y[:9] = -1  # no label: belongs nowhere
    parts, note = node_splits(data, 0, seed=7)
    assert note == "train, val, test drawn by class with seed 7"
    assert everybody(parts) == list(range(9, 60))
    for part, share in (("train", 0.6), ("val", 0.2), ("test", 0.2)):
        counts = data.y[parts[part]].bincount(minlength=3)
        assert bool(((counts - 17 * share).abs() <= 1).all()), (part, counts)


def test_a_draw_depends_on_its_seed_alone():
    drawn = [members(node_splits(graph(), 0, seed=s)[0]) for s in (1, 1, 2)]
    torch.manual_seed(5)
    assert drawn[0] == drawn[1] == members(node_splits(graph(), 0, seed=1)[0])
    assert drawn[0] != drawn[2]


def test_only_training_nodes_given():
    """The others are drawn from what is left, and what was given stays as it is."""
    data = masked(graph(), train=list(range(12)))
    parts, note = node_splits(data, 0, seed=3)
    assert note == "val, test drawn by class with seed 3"
    assert members(parts)["train"] == list(range(12))
    assert sorted(members(parts)["val"] + members(parts)["test"]) == list(range(12, 60))
    assert [len(parts[p]) for p in ("val", "test")] == [24, 24]
    assert data.y[parts["val"]].bincount().tolist() == [8, 8, 8]


def test_only_training_nodes_given_and_they_are_all():
    """Nothing is left to draw from, so the training nodes are shared out."""
    data = masked(graph(), train=list(range(60)))
    parts, note = node_splits(data, 0, seed=3)
    assert note.startswith("val, test drawn")
    assert [len(parts[p]) for p in PARTS] == [36, 12, 12]
    assert everybody(parts) == list(range(60))


@pytest.mark.parametrize("missing", PARTS)
def test_one_part_missing(missing):
    given_parts = {"train": list(range(0, 12)), "val": list(range(12, 24)), "test": list(range(24, 36))}
    data = masked(graph(), **{p: m for p, m in given_parts.items() if p != missing})
    parts, note = node_splits(data, 0, seed=0)
    assert note == f"{missing} drawn by class with seed 0"
    kept = {node for p, m in given_parts.items() if p != missing for node in m}
    assert members(parts)[missing] == sorted(set(range(60)) - kept)


@pytest.mark.parametrize("part", PARTS)
def test_an_empty_part(part):
    data = masked(graph(), **{"train": [0, 1], "val": [2, 3], "test": [4, 5], part: []})
    assert refusal(lambda: node_splits(data, 0, seed=0)) == f"{part}_mask: the {part} split is empty"


def test_too_few_left_to_draw_from():
    data = masked(graph(), train=list(range(59)))
    assert "split is empty" in refusal(lambda: node_splits(data, 0, seed=0))


@pytest.mark.parametrize(("a", "b"), [("train", "val"), ("train", "test"), ("val", "test")])
def test_overlapping_parts(a, b):
    data = masked(graph(), **{"train": [0, 1], "val": [2, 3], "test": [4, 5], a: [7, 8], b: [8, 9]})
    assert refusal(lambda: node_splits(data, 0, seed=0)) == f"{a}_mask: shares nodes or graphs with {b}_mask"


@given(st.integers(5, 60), st.integers(1, 4), st.sets(st.sampled_from(PARTS), max_size=2), st.integers(0, 99))
def test_parts_never_overlap_and_lose_nothing(size, classes, known, seed):
    labels = torch.arange(size * classes) % classes
    fixed = {part: torch.tensor([k]) for k, part in enumerate(sorted(known))}
    parts, _ = complete(dict(fixed), torch.arange(len(labels)), labels, seed)
    assert everybody(parts) == list(range(len(labels)))
    assert all(parts[p].tolist() == m.tolist() for p, m in fixed.items())
