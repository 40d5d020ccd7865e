"""Splits: as they come, one column of several, or drawn class by class and recorded."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch_geometric.data import Data

from akegnn.data.splits import PARTS, complete, node_splits
from akegnn.tasks import make_task
from akegnn.views import Original
from small import graph, graphs, masked, refusal


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


# ---- drawn because a person says so ----------------------------------------------------------------------------------


def test_random_masks_leave_the_given_ones_aside():
    data = two_columns()
    parts, note = node_splits(data, 0, seed=4, masks="random")
    assert note == "train, val, test drawn by class with seed 4"
    bare, _ = node_splits(graph(), 0, seed=4)
    assert members(parts) == members(bare)
    assert [len(parts[p]) for p in PARTS] == [36, 12, 12]
    assert members(parts) != members(node_splits(data, 0, seed=5, masks="random")[0])
    # A number that the masks have no column for is a number like any other.
    assert members(make_task(data, split=9, masks="random").parts) != members(make_task(data, masks="random").parts)


@pytest.mark.parametrize("masks", ["drawn", "", None])
def test_masks_that_are_none(masks):
    assert refusal(lambda: node_splits(graph(), 0, 0, masks=masks)) == f"masks: {masks!r} is not one of given, random"
    assert refusal(lambda: make_task(graphs(), masks=masks)).startswith("masks: ")


def test_random_masks_of_graphs():
    made = graphs(30)
    for g in made:
        g.split = "train"
    task = make_task(made, masks="random")
    assert task.sizes == {"train": 18, "val": 6, "test": 6}
    assert task.splits_drawn.startswith("train, val, test drawn by class")
    assert make_task(made).splits_drawn.startswith("val, test drawn by class")


@st.composite
def labelled(draw):
    """A graph's labels, some missing, with validation and test nodes given or not."""
    classes, each = draw(st.integers(1, 4)), draw(st.integers(8, 14))
    g = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    labels = (torch.arange(classes * each) % classes)[torch.randperm(classes * each, generator=g)]
    data = Data(x=torch.zeros(len(labels), 1), edge_index=torch.zeros(2, 0, dtype=torch.long), y=labels)
    held = torch.rand(len(labels), generator=g)
    if draw(st.booleans()):
        data.train_mask, data.val_mask, data.test_mask = held < 0.1, (held > 0.8) & (held < 0.9), held >= 0.9
        assume(all(bool(data[f"{p}_mask"].any()) for p in PARTS))
    labels[held.argsort()[: draw(st.integers(0, 2))]] = -1
    if "train_mask" in data:
        assume(all(bool((data.y[data[f"{p}_mask"]] >= 0).all()) for p in PARTS))
    return data


@given(labelled(), st.integers(1, 3), st.integers(0, 99))
def test_so_many_labels_of_each_class(data, count, seed):
    """Exactly so many, none of them held out, all of them labelled; who is held out is who it always was."""
    usual, note = node_splits(data, 0, seed)
    free = (data.y >= 0) & ~torch.isin(torch.arange(len(data.y)), torch.cat([usual["val"], usual["test"]]))
    there = data.y[data.y >= 0].unique().tolist()
    assume(all(int((free & (data.y == c)).sum()) >= count for c in there))
    parts, said = node_splits(data, 0, seed, labels_per_class=count)
    assert data.y[parts["train"]].bincount(minlength=max(there) + 1).tolist() == [
        count if c in there else 0 for c in range(max(there) + 1)
    ]
    assert bool(free[parts["train"]].all())
    assert parts["train"].tolist() == sorted(set(parts["train"].tolist()))
    assert all(torch.equal(parts[p], usual[p]) for p in ("val", "test"))
    assert said == "; ".join(x for x in (note, f"{count} labels of each class drawn with seed {seed}") if x)
    torch.manual_seed(seed + 1)
    assert members(node_splits(data, 0, seed, labels_per_class=count)[0]) == members(parts)


def test_other_labels_for_another_split():
    data = masked(graph(), train=[0], val=list(range(40, 50)), test=list(range(50, 60)))
    drawn = [make_task(data, split=k, labels_per_class=3).parts["train"].tolist() for k in range(5)]
    assert len({tuple(d) for d in drawn}) == 5
    assert {node for d in drawn for node in d} <= set(range(40))
    again = make_task(data, split=1, labels_per_class=3)
    assert again.parts["train"].tolist() == drawn[1]
    assert again.splits_drawn.startswith("3 labels of each class drawn with seed ")


def test_every_free_node_may_be_drawn():
    data = masked(graph(), train=[0], val=list(range(40, 50)), test=list(range(50, 60)))
    drawn = {n for k in range(60) for n in make_task(data, split=k, labels_per_class=3).parts["train"].tolist()}
    assert drawn == set(range(40))


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (0, "labels_per_class: must be at least 1, got 0"),
        (-2, "labels_per_class: must be at least 1, got -2"),
        (14, "labels_per_class: class 1 has only 13 nodes to train on, asked for 14"),
    ],
)
def test_labels_per_class_that_cannot_be(count, message):
    data = masked(graph(), train=[0], val=list(range(40, 50)), test=list(range(50, 60)))
    assert refusal(lambda: make_task(data, labels_per_class=count)) == message


@pytest.mark.parametrize("task", ["link", "graph"])
def test_labels_per_class_are_of_nodes(task):
    message = refusal(lambda: make_task(graphs() if task == "graph" else graph(), task, labels_per_class=2))
    assert message == f"labels_per_class: of the node task only, not of the {task} task"


# ---- folds of graphs -------------------------------------------------------------------------------------------------


def folded():
    made = graphs(10)
    for k, g in enumerate(made):
        g.split = [PARTS[k % 3], PARTS[(k + 1) % 3], "train" if k < 6 else "val" if k < 8 else None]
    made[9].split[2] = made[8].split[2] = "test"
    return made


@pytest.mark.parametrize("kind", [list, tuple])
def test_folds_as_lists(kind):
    given_graphs = folded()
    for g in given_graphs:
        g.split = kind(g.split)
    for split, wanted in enumerate(
        [
            {"train": [0, 3, 6, 9], "val": [1, 4, 7], "test": [2, 5, 8]},
            {"train": [2, 5, 8], "val": [0, 3, 6, 9], "test": [1, 4, 7]},
            {"train": [0, 1, 2, 3, 4, 5], "val": [6, 7], "test": [8, 9]},
        ]
    ):
        task = make_task(given_graphs, split=split)
        assert members(task.parts) == wanted
        assert members(make_task(given_graphs).at(split).parts) == wanted
        assert (task.split, task.splits_drawn) == (split, "")
        assert [len(g.split) for g in given_graphs] == [3] * 10, "the given graphs stay as they are"
        # What it trains on follows.
        assert len(task.at(split).seen(Original(), torch.Generator())) == len(wanted["train"])


def test_a_graph_may_be_in_no_part_of_a_fold():
    made = folded()
    made[3].split[0] = None
    assert members(make_task(made).parts)["train"] == [0, 6, 9]


@pytest.mark.parametrize(
    ("split", "changed", "message"),
    [
        (3, {}, "data[0].split: has splits 0 to 2, asked for 3"),
        (-1, {}, "data[0].split: has splits 0 to 2, asked for -1"),
        (2, {4: ["train", "val"]}, "data[4].split: has splits 0 to 1, asked for 2"),
        (0, {4: ["trian", "val", "test"]}, "data[...].split: must be one of train, val, test"),
        (0, {4: [["train"], "val", "test"]}, "data[...].split: must be one of train, val, test"),
        (0, {4: []}, "data[4].split: has "),
        (0, {4: 1}, "data[...].split: must be one of train, val, test"),
    ],
)
def test_folds_that_are_none(split, changed, message):
    made = folded()
    for k, value in changed.items():
        made[k].split = value
    assert refusal(lambda: make_task(made, split=split)).startswith(message)
