"""The propagation step against dense matrices, alone and under ``vmap``, and the edges it is made of against PyG."""

from __future__ import annotations

import gc
import math
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.data import Data
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from akegnn import backbones, propagate
from akegnn.propagate import (
    Edges,
    Sparse,
    Structure,
    attention_pattern,
    dropout,
    edges_of,
    gcn_adjacency,
    lean,
    linear,
    sum_adjacency,
)

ROWS, COLUMNS, REPLICAS, HEADS, WIDTH = 6, 5, 3, 2, 4
LIKE = torch.zeros(0, dtype=torch.float64)

# Unsorted, with an entry twice, rows 2 and 5 and column 4 empty.
ROW = torch.tensor([4, 0, 3, 0, 4, 1, 0, 4])
COL = torch.tensor([1, 3, 0, 0, 2, 1, 3, 0])
S = Structure.of(ROW, COL, ROWS, COLUMNS)
E = len(ROW)


def normal(*shape: int, seed: int = 0, grad: bool = False) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).requires_grad_(grad)


def dense(a: Sparse) -> Tensor:
    """The matrix, or the matrices ``[..., rows, columns]``; entries that are there twice add up."""
    s, values = a.structure, a.values.detach()
    out = values.new_zeros(*values.shape[:-1], s.rows, s.columns)
    for k, (i, j) in enumerate(zip(s.row.tolist(), s.col.tolist(), strict=True)):
        out[..., i, j] += values[..., k]
    return out


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


# ---- structure -------------------------------------------------------------------------------------------------------


def test_structure_sorts_by_row_and_knows_where_entries_were_given():
    assert torch.equal(S.row, ROW[S.order])
    assert torch.equal(S.col.long(), COL[S.order])
    assert S.row.tolist() == sorted(ROW.tolist())
    assert torch.equal(S.crow.diff(), torch.tensor([3, 1, 0, 1, 3, 0], dtype=torch.int32))


@given(
    entries=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=12),
    count=st.integers(1, 3),
    data=st.data(),
)
def test_structure_of_any_entries(entries, count, data):
    """Product and transposed pattern, against matrices filled entry by entry; there may be no entry at all."""
    row, col = torch.tensor(entries, dtype=torch.long).view(-1, 2).t()
    s = Structure.of(row, col, 4, 3)
    given = normal(count, len(row), seed=data.draw(st.integers(0, 9)))
    literal = torch.zeros(count, 4, 3, dtype=torch.float64)
    for k, (i, j) in enumerate(entries):
        literal[:, i, j] += given[:, k]
    values, x = given[:, s.order], normal(count, 3, 2)
    close(Sparse(s, values) @ x, literal @ x)
    close(dense(Sparse(s.transposed, values[:, s.transposed.order])), literal.mT)


def test_blocks_follow_the_number_of_replicas():
    s = Structure.of(ROW, COL, ROWS, COLUMNS)
    for count in (3, 1, 2):  # the last chunk of a population is smaller than the others
        x, values = normal(count, COLUMNS, 2), normal(count, E)
        close(Sparse(s, values) @ x, dense(Sparse(s, values)) @ x)


def test_blocks_beyond_indices_of_32_bits_are_refused():
    """As memory that runs out is: fewer at a time will do."""
    s = Structure.of(torch.tensor([0]), torch.tensor([0]), 1, 2**30)
    assert len(s.blocks(1)[1]) == 1
    with pytest.raises(MemoryError):
        s.blocks(2)


# ---- products --------------------------------------------------------------------------------------------------------

LEADS = {"plain": (), "heads": (HEADS,)}
BATCHED = {"values shared": (None, 0), "x shared": (0, None), "both batched": (0, 0)}


@pytest.mark.parametrize("lead", LEADS.values(), ids=LEADS)
def test_product_and_its_gradients(lead):
    values, x = normal(*lead, E, grad=True), normal(*lead, COLUMNS, WIDTH, seed=1, grad=True)
    close((Sparse(S, values) @ x).detach(), dense(Sparse(S, values)) @ x.detach())
    assert torch.autograd.gradcheck(lambda v, x: Sparse(S, v) @ x, (values, x))
    # Each alone: what needs no gradient must not be missed by the other.
    assert torch.autograd.gradcheck(lambda v: Sparse(S, v) @ x.detach(), (values,))
    assert torch.autograd.gradcheck(lambda x: Sparse(S, values.detach()) @ x, (x,))


@pytest.mark.parametrize("lead", LEADS.values(), ids=LEADS)
@pytest.mark.parametrize("dims", BATCHED.values(), ids=BATCHED)
@pytest.mark.parametrize("axis", [0, -1])
def test_product_under_vmap(lead, dims, axis):
    """Outputs and gradients equal separate runs, whichever dimension the replicas lie in."""
    shapes, inputs = ((*lead, E), (*lead, COLUMNS, WIDTH)), []
    for k, (shape, dim) in enumerate(zip(shapes, dims, strict=True)):
        t = normal(*shape, seed=k) if dim is None else normal(REPLICAS, *shape, seed=k).movedim(0, axis).contiguous()
        inputs.append(t.requires_grad_())
    in_dims = tuple(None if d is None else axis for d in dims)
    out = torch.vmap(lambda v, x: Sparse(S, v) @ x, in_dims=in_dims)(*inputs)
    pull = normal(*out.shape, seed=9)
    found = torch.autograd.grad((out * pull).sum(), inputs)

    def of(t: Tensor, d: int | None, r: int) -> Tensor:
        return t if d is None else t.select(d, r)

    alone = [Sparse(S, of(inputs[0], in_dims[0], r)) @ of(inputs[1], in_dims[1], r) for r in range(REPLICAS)]
    close(out, torch.stack(alone))
    wanted = torch.autograd.grad((torch.stack(alone) * pull).sum(), inputs)
    for a, b in zip(found, wanted, strict=True):
        close(a, b)


class _Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else [out]:
            if isinstance(t, Tensor):
                self.numel = max(self.numel, t.numel() if t.layout == torch.strided else t.values().numel())
        return out


@pytest.mark.parametrize("dims", BATCHED.values(), ids=BATCHED)
@pytest.mark.parametrize("learn_values", [False, True])
def test_no_message_tensor_is_built(monkeypatch, dims, learn_values):
    """Neither forward nor backward holds a number per edge and column at once, but for a few edges."""
    monkeypatch.setattr(propagate, "CACHED", 700)
    nodes, edges, width = 10, 300, 16
    ends = torch.randint(nodes, (2, edges), generator=torch.Generator().manual_seed(0))
    s = Structure.of(*ends, nodes, nodes)
    assert s.transposed.rows == nodes  # derived before anything is measured
    values = normal(*([] if dims[0] is None else [REPLICAS]), edges, grad=learn_values)
    x = normal(*([] if dims[1] is None else [REPLICAS]), nodes, width, grad=True)
    with _Largest() as seen:
        torch.vmap(lambda v, x: Sparse(s, v) @ x, in_dims=dims)(values, x).sum().backward()
    assert 0 < seen.numel < edges * width


def test_product_with_other_precision_keeps_that_of_the_matrix():
    out = Sparse(S, normal(E)) @ normal(COLUMNS, 2).float()
    assert out.dtype == torch.float64


# ---- softmax of rows -------------------------------------------------------------------------------------------------


def softmax_by_hand(logits: list[float]) -> list[float]:
    out = [0.0] * len(logits)
    for i in range(ROWS):
        inside = [k for k in range(E) if int(S.row[k]) == i and logits[k] > -math.inf]
        total = sum(math.exp(logits[k]) for k in inside)
        for k in inside:
            out[k] = math.exp(logits[k]) / total
    return out


def some_logits(seed: int = 0) -> Tensor:
    """One entry of the first row is absent, and so are all of the last that has any."""
    logits = normal(E, seed=seed)
    logits[1] = -torch.inf
    logits[S.row == 4] = -torch.inf
    return logits


@pytest.mark.parametrize("logits", [normal(E), some_logits(), normal(E) * 0 - torch.inf], ids=["all", "some", "none"])
def test_row_softmax(logits):
    found = Sparse(S, logits).row_softmax()
    assert found.structure is S
    close(found.values, torch.tensor(softmax_by_hand(logits.tolist()), dtype=torch.float64))


def test_row_softmax_of_large_logits():
    """Differences count, not sizes."""
    logits = normal(E)
    close(Sparse(S, logits + 1e4).row_softmax().values, Sparse(S, (logits + 1e4) - 1e4).row_softmax().values)


def test_row_softmax_gradients():
    absent = torch.where(some_logits() == -torch.inf, -torch.inf, 0.0)
    for mask in (torch.zeros(E), absent):
        logits = normal(E, grad=True)
        assert torch.autograd.gradcheck(lambda v, mask=mask: Sparse(S, v + mask).row_softmax().values, (logits,))
    heads = normal(HEADS, E, grad=True)
    assert torch.autograd.gradcheck(lambda v: Sparse(S, v).row_softmax().values, (heads,))


@pytest.mark.parametrize("lead", LEADS.values(), ids=LEADS)
@pytest.mark.parametrize("axis", [0, -1])
def test_row_softmax_under_vmap(lead, axis):
    logits = torch.stack([some_logits(seed=r).expand(*lead, E) for r in range(REPLICAS)]).movedim(0, axis)
    logits = logits.contiguous().requires_grad_()
    out = torch.vmap(lambda v: Sparse(S, v).row_softmax().values, in_dims=axis)(logits)
    alone = torch.stack([Sparse(S, logits.select(axis, r)).row_softmax().values for r in range(REPLICAS)])
    close(out, alone)
    pull = normal(*out.shape)
    close(*(torch.autograd.grad((o * pull).sum(), logits)[0] for o in (out, alone)))


# ---- sparse matrices from others -------------------------------------------------------------------------------------


def mostly_zero() -> Tensor:
    x = normal(ROWS, COLUMNS)
    return x * (x > 0.5)


@pytest.mark.parametrize(
    "given",
    [
        mostly_zero(),
        mostly_zero().to_sparse_coo(),
        mostly_zero().to_sparse_csr(),
        torch.sparse_coo_tensor(
            [[3, 0, 3], [1, 4, 1]], torch.tensor([1.0, 2.0, 5.0]).double(), (ROWS, COLUMNS), check_invariants=True
        ),
        torch.zeros(ROWS, COLUMNS, dtype=torch.float64),
    ],
    ids=["dense", "coo", "csr", "coo, twice the same entry", "nothing"],
)
def test_sparse_of_any_layout(given):
    found, wanted = Sparse.of(given), given.to_dense()
    assert found.shape == (ROWS, COLUMNS)
    close(dense(found), wanted)
    weight = normal(3, COLUMNS, grad=True)
    close(linear(found, weight), linear(wanted, weight))
    close(*(torch.autograd.grad(linear(x, weight).square().sum(), weight)[0] for x in (found, wanted)))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.6])
def test_dropout_leaves_out_as_many_as_it_should_and_keeps_the_mean(p):
    x = torch.full((500, 400), 3.0, requires_grad=True)
    dropped = dropout(x, p, True)
    kept = dropped != 0
    deviation = math.sqrt(p * (1 - p) / x.numel())
    assert abs(float(kept.double().mean()) - (1 - p)) < 5 * deviation
    assert torch.allclose(dropped[kept], torch.tensor(3.0 / (1 - p)))
    dropped.sum().backward()
    assert torch.allclose(x.grad, kept / (1 - p))
    assert not torch.equal(dropout(x, p, True) != 0, kept)  # drawn anew each time
    assert torch.equal(dropout(x, p, False), x)


def test_dropout_of_nothing_and_of_everything():
    x = torch.randn(5, 4)
    assert torch.equal(dropout(x, 0.0, True), x)
    assert torch.equal(dropout(x, 1.0, True), torch.zeros(5, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_dropout_keeps_the_precision_and_its_rate_in_it(dtype):
    x = torch.ones(1000, 500, dtype=dtype)
    dropped = dropout(x, 0.001, True)
    assert dropped.dtype == dtype
    assert 380 < int((dropped == 0).sum()) < 620  # 500, give or take five deviations


def test_replicas_drop_out_entries_of_their_own():
    x = torch.ones(3, 20, 10)
    draws = torch.vmap(lambda x: dropout(x, 0.5, True), randomness="different")(x)
    shared = torch.vmap(lambda _, x: dropout(x, 0.5, True), (0, None), randomness="different")(torch.zeros(3), x[0])
    for made in (draws, shared):
        assert made.shape == (3, 20, 10)
        assert not torch.equal(made[0], made[1])


def test_dropout_of_sparse_features_keeps_the_pattern():
    x = Sparse.of(normal(200, 30))
    dropped = dropout(x, 0.25, True)
    assert dropped.structure is x.structure
    kept = dropped.values != 0
    close(dropped.values[kept], x.values[kept] / 0.75)
    assert abs(float(kept.double().mean()) - 0.75) < 0.03  # five standard deviations of 6000 draws
    assert torch.equal(dropout(x, 0.25, False).values, x.values)
    assert not torch.equal(dropout(x, 0.25, True).values, dropped.values)  # drawn anew each time


# ---- edges -----------------------------------------------------------------------------------------------------------

NODES = 7


def directed(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Edges in any order, some twice, with loops at two nodes and one node without any edge; and their weights."""
    g = torch.Generator().manual_seed(seed)
    ends = torch.randint(NODES - 1, (2, 14), generator=g)
    ends = ends[:, ends[0] != ends[1]]
    ends = torch.cat([ends, ends[:, :2], torch.tensor([[1, 4], [1, 4]])], dim=1)
    ends = ends[:, torch.randperm(ends.shape[1], generator=g)]
    return ends, torch.rand(ends.shape[1], generator=g, dtype=torch.float64) + 0.5


def with_zeros(seed: int = 0) -> tuple[Tensor, Tensor]:
    """The same with some weights of zero, one loop's among them."""
    ends, weight = directed(seed)
    weight[::3] = 0.0
    weight[(ends[0] == ends[1]).nonzero()[0]] = 0.0
    return ends, weight


def test_edges_are_derived_once():
    ends, _ = directed()
    first = edges_of(ends, NODES)
    assert edges_of(ends, NODES) is first
    assert edges_of(first, NODES) is first
    assert edges_of(ends.clone(), NODES) is not first
    assert edges_of(ends, NODES + 1).nodes == NODES + 1
    assert torch.equal(edges_of(ends, NODES).edge_index, ends)


def test_lean_features_follow_the_features():
    """Found once; found again where they were changed in place; and not kept where nobody has them any more."""
    model = backbones.GCN(10, 3)
    data = Data(torch.eye(20)[:, :10], torch.zeros(2, 0, dtype=torch.long))
    first = lean(data, model)
    assert data.x.layout == torch.strided
    assert torch.equal(first.x.to_dense(), data.x)
    assert lean(data, model).x is first.x
    data.x[15, 0] = 5
    assert torch.equal(lean(data, model).x.to_dense(), data.x)
    there = weakref.ref(first.x)
    del first
    gc.collect()
    assert there() is None
    data.x[:, :2] = 1  # a quarter of them
    assert lean(data, model) is data
    plain = Data(torch.eye(20))
    assert lean(plain, nn.Linear(20, 2)) is plain


def test_edges_follow_a_change_in_place():
    ends, _ = directed()
    before = dense(sum_adjacency(ends, None, LIKE, NODES))
    ends[:, 0] = torch.tensor([6, 6])
    after = dense(sum_adjacency(ends, None, LIKE, NODES))
    assert not torch.equal(before, after)
    assert after[6, 6] == 1


def test_edges_do_not_outlive_their_tensor():
    ends, _ = directed()
    known, alive = len(propagate._known), weakref.ref(ends)
    found = weakref.ref(edges_of(ends, NODES))
    assert len(propagate._known) == known + 1
    assert found() is not None
    del ends
    gc.collect()
    assert (alive(), found(), len(propagate._known)) == (None, None, known)


def test_edges_of_a_tensor_made_in_inference_mode():
    """Such a tensor has no count of changes; a batch that a loader puts together in that mode consists of them."""
    ends, weight = directed()
    wanted = dense(gcn_adjacency(ends, weight, LIKE, NODES))
    with torch.inference_mode():
        made = ends.clone()
        close(dense(gcn_adjacency(made, weight, LIKE, NODES)), wanted)


def test_sum_adjacency():
    ends, weight = directed()
    for w in (None, weight):
        literal = torch.zeros(NODES, NODES, dtype=torch.float64)
        literal.index_put_((ends[1], ends[0]), torch.ones_like(weight) if w is None else w, accumulate=True)
        close(dense(sum_adjacency(ends, w, LIKE, NODES)), literal)
    assert sum_adjacency(ends, weight, torch.zeros(0), NODES).values.dtype == torch.float32


def pyg_adjacency(ends: Tensor, weight: Tensor | None) -> Tensor:
    (sender, receiver), w = gcn_norm(ends, weight, NODES, dtype=torch.float64)
    return torch.zeros(NODES, NODES, dtype=torch.float64).index_put((receiver, sender), w, accumulate=True)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weighted", [False, True])
def test_gcn_adjacency_is_that_of_pyg(seed, weighted):
    ends, weight = directed(seed)
    w = weight.requires_grad_() if weighted else None
    found, wanted = gcn_adjacency(ends, w, LIKE, NODES), pyg_adjacency(ends, w)
    close(dense(found), wanted.detach())
    if weighted:  # the normalisation is differentiable too
        pull = normal(NODES, NODES)
        s = found.structure
        close(
            torch.autograd.grad((found.values * pull[s.row, s.col.long()]).sum(), w)[0],
            torch.autograd.grad((wanted * pull).sum(), w)[0],
        )


def test_gcn_adjacency_of_no_edges():
    none = torch.empty(2, 0, dtype=torch.long)
    close(dense(gcn_adjacency(none, None, LIKE, NODES)), torch.eye(NODES, dtype=torch.float64))


ADJACENCIES = {"sum": sum_adjacency, "gcn": gcn_adjacency}


@pytest.mark.parametrize("kind", ADJACENCIES.values(), ids=ADJACENCIES)
@pytest.mark.parametrize("seed", range(3))
def test_an_edge_of_weight_zero_is_no_edge(kind, seed):
    ends, weight = with_zeros(seed)
    there = weight != 0
    assert not there[ends[0] == ends[1]].all()
    close(dense(kind(ends, weight, LIKE, NODES)), dense(kind(ends[:, there], weight[there], LIKE, NODES)))


@pytest.mark.parametrize("absent", [0, 1])
def test_of_two_loops_the_one_that_is_there_counts(absent):
    """A replica may lack one of two loops of a node, and sees the other just as if it had never been two."""
    ends, weight = torch.tensor([[2, 2, 0], [2, 2, 2]]), torch.tensor([3.0, 5.0, 1.0]).double()
    weight[absent] = 0.0
    there = weight != 0
    found = dense(gcn_adjacency(ends, weight, LIKE, NODES))
    close(found, dense(gcn_adjacency(ends[:, there], weight[there], LIKE, NODES)))


@pytest.mark.parametrize("kind", ADJACENCIES.values(), ids=ADJACENCIES)
def test_adjacency_under_vmap(kind):
    """Every replica its own weights, some of them zero."""
    ends, _ = directed()
    weights = torch.stack([torch.where(normal(ends.shape[1], seed=r) > 0, 1.5, 0.0) for r in range(REPLICAS)]).double()
    edges = Edges(ends, NODES)
    values = torch.vmap(lambda w: kind(edges, w, LIKE, NODES).values)(weights)
    for r in range(REPLICAS):
        there = weights[r] != 0
        alone = kind(ends[:, there], weights[r, there], LIKE, NODES)
        close(dense(Sparse(kind(edges, None, LIKE, NODES).structure, values[r])), dense(alone))


@pytest.mark.parametrize("weighted", [False, True])
def test_attention_pattern(weighted):
    """Zero where there is an edge or a loop, which every node has once whatever was given; else minus infinity."""
    ends, weight = with_zeros()
    found = attention_pattern(ends, weight if weighted else None, LIKE, NODES)
    there = [(int(b), int(a)) for k, (a, b) in enumerate(ends.t()) if a != b and (not weighted or weight[k] != 0)] + [
        (i, i) for i in range(NODES)
    ]
    s = found.structure
    shown = [(i, j) for i, j, v in zip(s.row.tolist(), s.col.tolist(), found.values.tolist(), strict=True) if v == 0]
    assert sorted(shown) == sorted(there)
    assert set(found.values.tolist()) == ({0.0, -math.inf} if weighted else {0.0})
    assert len(found.values) == int((ends[0] != ends[1]).sum()) + NODES
