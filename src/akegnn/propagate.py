"""The propagation step of our backbones, written once, with its own rule for many replicas at a time.

A :class:`Sparse` matrix is a shared pattern (:class:`Structure`) and values; ``a @ x`` sums ``values[e] * x[j]`` over
the entries ``e = (i, j)`` of each row ``i``. It serves for adjacencies and for sparse features alike. Under
``torch.vmap`` it stays one product: replicas that share their values are put side by side as columns, replicas with
values of their own become the blocks of one block-diagonal matrix with the pattern of one. No message tensor is built.
An edge that a replica does not have is a zero value, and the normalisation is computed from the values.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary
from torch_geometric.data import Data

CACHED = 1 << 17  # numbers that stay in a processor's cache
SPARSE_BELOW = {"cuda": 0.1, "cpu": 0.15}  # share of non-zero features under which sparse products, with their dropout,
# are faster than dense ones; on a CPU dropout of dense features takes longer than the product

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")


@dataclass(eq=False)
class Structure:
    """The pattern of a sparse matrix in CSR form; its values are kept apart, in the order of the given entries."""

    rows: int
    columns: int
    crow: Tensor  # [rows + 1]
    col: Tensor  # [E], by row
    order: Tensor  # [E]: which given entry each one is
    row: Tensor  # [E], by row
    _blocks: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, row: Tensor, col: Tensor, rows: int, columns: int) -> Structure:
        """From entries in any order."""
        order = (row * columns + col).argsort(stable=True)
        crow = torch.zeros(rows + 1, dtype=torch.int32, device=row.device)
        crow[1:] = torch.bincount(row, minlength=rows).cumsum(0)
        return cls(rows, columns, crow, col[order].int(), order, row[order])

    @cached_property
    def transposed(self) -> Structure:
        """The transposed pattern; its ``order`` refers to this one's entries by row."""
        return Structure.of(self.col.long(), self.row, self.columns, self.rows)

    def blocks(self, count: int) -> tuple[Tensor, Tensor]:
        """``crow`` and ``col`` of the block-diagonal matrix with ``count`` blocks of this pattern."""
        if count not in self._blocks:
            entries = len(self.col)
            if count * max(entries, self.columns) >= 2**31:  # indices are of 32 bits; half as many will do
                raise MemoryError(f"{count} matrices of {entries} entries are too many for one product")
            block = torch.arange(count, device=self.col.device, dtype=torch.int32).unsqueeze(1)
            crow = torch.cat([self.crow[:1], (self.crow[1:] + block * entries).flatten()])
            self._blocks.clear()  # one population at a time: the last chunk is smaller than the others
            self._blocks[count] = crow, (self.col + block * self.columns).flatten()
        return self._blocks[count]


def _product(s: Structure, values: Tensor, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):  # sparse products keep the precision of the values
        return _sparse_product(s, values, x)


def _sparse_product(s: Structure, values: Tensor, x: Tensor) -> Tensor:
    """Values by row ``[E]`` with ``x [M, F]``, or ``[B, E]`` with ``[B, M, F]``, as one sparse product."""
    if values.dim() == 1:
        matrix = torch.sparse_csr_tensor(s.crow, s.col, values, (s.rows, s.columns), check_invariants=False)
        return _times(matrix, x)
    count = len(values)
    crow, col = s.blocks(count)
    shape = (count * s.rows, count * s.columns)
    matrix = torch.sparse_csr_tensor(crow, col, values.reshape(-1), shape, check_invariants=False)
    return _times(matrix, x.reshape(count * s.columns, -1)).view(count, s.rows, -1)


def _times(matrix: Tensor, x: Tensor) -> Tensor:
    """Their product. On a CPU ``@`` fills the result with zeros and copies it: wide ones take three times as long."""
    return matrix @ x if x.is_cuda else x.new_empty(matrix.shape[0], x.shape[1]).addmm_(matrix, x, beta=0)


def _apply(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    return function.apply(*inputs)  # type: ignore[no-untyped-call]


def _sampled(s: Structure, left: Tensor, right: Tensor) -> Tensor:
    """Inner products of rows of ``left [.., rows, F]`` and ``right [.., columns, F]`` at the entries: ``[.., E]``."""
    if left.device.type == "cpu":  # torch's own is slower here; a few entries at a time, so that they stay in the cache
        lefts, rights = (t.reshape(-1, *t.shape[-2:]) for t in (left, right))
        total = left.new_empty(len(lefts), len(s.col))
        some = max(1, CACHED // max(1, left.shape[-1]))
        for out, a, b in zip(total, lefts, rights, strict=True):
            for part, row, col in zip(out.split(some), s.row.split(some), s.col.split(some), strict=True):
                torch.sum(a.index_select(0, row) * b.index_select(0, col), -1, out=part)
        return total.view(*left.shape[:-2], -1)
    count = left.shape[0] if left.dim() == 3 else 1
    crow, col = s.blocks(count) if left.dim() == 3 else (s.crow, s.col)
    shape = (count * s.rows, count * s.columns)
    pattern = torch.sparse_csr_tensor(crow, col, left.new_zeros(len(col)), shape, check_invariants=False)
    sampled = torch.sparse.sampled_addmm(pattern, left.reshape(shape[0], -1), right.reshape(shape[1], -1).t(), beta=0.0)
    return sampled.values().view(*left.shape[:-2], -1)


class _Propagate(torch.autograd.Function):
    """``(values by row, x, structure) -> product``, differentiable in both."""

    @staticmethod
    def forward(values: Tensor, x: Tensor, structure: Structure) -> Tensor:
        return _product(structure, values, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Structure], output: Tensor) -> None:
        values, x, ctx.structure = inputs
        ctx.save_for_backward(values, x if values.requires_grad else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        values, x = ctx.saved_tensors
        s: Structure = ctx.structure
        of_values = of_x = None
        if ctx.needs_input_grad[0]:
            of_values = _sampled(s, grad, x)
        if ctx.needs_input_grad[1]:
            of_x = _product(s.transposed, values[..., s.transposed.order], grad)
        return of_values, of_x, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None, None], values: Tensor, x: Tensor, structure: Structure
    ) -> tuple[Tensor, int]:
        count, (of_values, of_x, _) = info.batch_size, in_dims
        if of_values is None and values.dim() == 1:  # one matrix for all: replicas as columns
            assert of_x is not None
            wide = x.movedim(of_x, 1)  # [M, B, F]
            out = _apply(_Propagate, values, wide.reshape(len(wide), -1).contiguous(), structure)
            return out.view(len(out), count, -1), 1
        values = values.expand(count, *values.shape) if of_values is None else values.movedim(of_values, 0)
        x = x.expand(count, *x.shape) if of_x is None else x.movedim(of_x, 0)
        heads = values.shape[1:-1]  # leading dimensions that were there before, as attention heads are
        out = _apply(_Propagate, values.reshape(-1, values.shape[-1]), x.reshape(-1, *x.shape[-2:]), structure)
        return out.view(count, *heads, *out.shape[1:]), 0


class _RowSoftmax(torch.autograd.Function):
    """Softmax of ``[..., E]`` over the entries of each row; minus infinity means that the entry is not there."""

    @staticmethod
    def forward(logits: Tensor, structure: Structure) -> Tensor:
        row = structure.row.expand_as(logits)
        rows = (*logits.shape[:-1], structure.rows)
        top = logits.new_full(rows, -torch.inf).scatter_reduce(-1, row, logits, "amax", include_self=False)
        top = top.masked_fill(top == -torch.inf, 0.0)  # a row without entries
        p = (logits - top.gather(-1, row)).exp()
        total = logits.new_zeros(rows).scatter_add(-1, row, p)
        return p / total.gather(-1, row).clamp_min(torch.finfo(p.dtype).tiny)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Structure], output: Tensor) -> None:
        ctx.structure = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (p,) = ctx.saved_tensors
        row = ctx.structure.row.expand_as(p)
        weighted = p * grad
        mean = p.new_zeros((*p.shape[:-1], ctx.structure.rows)).scatter_add(-1, row, weighted)
        return weighted - p * mean.gather(-1, row), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None], logits: Tensor, structure: Structure) -> tuple[Tensor, int]:
        return _apply(_RowSoftmax, logits.movedim(in_dims[0], 0), structure), 0


@dataclass(eq=False)
class Sparse:
    """A sparse matrix: a pattern and its values by row, ``[E]``, or ``[H, E]`` for several matrices of one pattern."""

    structure: Structure
    values: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.structure.rows, self.structure.columns

    def __matmul__(self, x: Tensor) -> Tensor:
        return _apply(_Propagate, self.values, x.to(self.values.dtype), self.structure)  # type: ignore[no-any-return]

    def map(self, change: Callable[[Tensor], Tensor]) -> Sparse:
        """The same pattern with other values, such as dropped-out ones."""
        return Sparse(self.structure, change(self.values))

    def row_softmax(self) -> Sparse:
        """Values of each row as a softmax; minus infinity means that the entry is not there."""
        return self.map(lambda values: _apply(_RowSoftmax, values, self.structure))

    @classmethod
    def of(cls, x: Tensor) -> Sparse:
        """From a dense or sparse tensor."""
        coo = x.to_sparse_coo().coalesce()
        row, col = coo.indices()
        structure = Structure.of(row, col, *x.shape)
        return cls(structure, coo.values()[structure.order])


Features = Tensor | Sparse


def features(x: Features) -> Features:
    """Features of a sparse layout as :class:`Sparse`, others as they are."""
    return _derived(x, "sparse", Sparse.of) if isinstance(x, Tensor) and x.layout != torch.strided else x


def mostly_zero(x: Tensor) -> bool:
    """Whether so few entries are not zero (or are stored, in a sparse layout) that sparse products pay."""
    dense = x.layout == torch.strided
    there = int(x.count_nonzero()) if dense else x.to_sparse_coo().coalesce().values().numel()
    return there < SPARSE_BELOW["cuda" if x.is_cuda else "cpu"] * x.numel()


def lean(data: Data, model: nn.Module) -> Data:
    """The same graph with features in a sparse layout, if most are zero and the model has products for them."""
    if not getattr(model, "sparse_features", False) or data.x.layout != torch.strided:
        return data
    x = _derived(data.x, "lean", lambda x: x.to_sparse_coo().coalesce() if mostly_zero(x) else None)
    if x is not None:
        data = copy.copy(data)
        data.x = x
    return data


def linear(x: Features, weight: Tensor) -> Tensor:
    """``x`` times ``weight [out, in]`` transposed, dense or sparse."""
    return x @ weight.t()


class FirstLinear(nn.Linear):
    """A linear layer that takes sparse features too."""

    def forward(self, x: Features) -> Tensor:
        """``x W + b``."""
        out = linear(x, self.weight)
        return out if self.bias is None else out + self.bias


@overload
def dropout(x: Tensor, p: float, training: bool) -> Tensor: ...
@overload
def dropout(x: Features, p: float, training: bool) -> Features: ...
def dropout(x: Features, p: float, training: bool) -> Features:
    """Dropout; of sparse features, on the entries that are there (the others are zero anyway)."""
    if isinstance(x, Sparse):
        return x.map(lambda values: dropout(values, p, training))
    if x.is_cuda or not training or not 0 < p < 1:
        return torch.nn.functional.dropout(x, p, training)
    # On a CPU torch draws a coin three times as slowly as a number; float32, as coarser ones would not hit p.
    return x * (torch.rand(x.shape, dtype=torch.float32) < 1 - p) / (1 - p)


# ---- edges -----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Edges:
    """A graph's edges with all that is derived from them once. A backbone takes it wherever it takes ``edge_index``."""

    edge_index: Tensor
    nodes: int

    @cached_property
    def plain(self) -> Structure:
        """Receivers as rows, senders as columns."""
        return Structure.of(self.edge_index[1], self.edge_index[0], self.nodes, self.nodes)

    @cached_property
    def others(self) -> Tensor:
        """Which edges are not loops."""
        return (self.edge_index[0] != self.edge_index[1]).nonzero().flatten()

    @cached_property
    def loops(self) -> list[Tensor]:
        """Which are: the first loop of each node, the second of those that have two, and so on."""
        left = (self.edge_index[0] == self.edge_index[1]).nonzero().flatten()
        groups = []
        while len(left):
            nodes, which = self.edge_index[0, left].unique(return_inverse=True)
            first = torch.full((len(nodes),), len(left), device=left.device)
            first = first.scatter_reduce(0, which, torch.arange(len(left), device=left.device), "amin")
            groups.append(left[first])
            rest = torch.ones(len(left), dtype=torch.bool, device=left.device)
            rest[first] = False
            left = left[rest]
        return groups

    @cached_property
    def looped(self) -> Structure:
        """The edges that are not loops, then one loop for each node."""
        every = torch.arange(self.nodes, device=self.edge_index.device)
        ends = torch.cat([self.edge_index[:, self.others], torch.stack([every, every])], dim=1)
        return Structure.of(ends[1], ends[0], self.nodes, self.nodes)

    def weights(self, weight: Tensor | None, like: Tensor) -> Tensor:
        """One weight per edge."""
        if weight is None:
            return torch.ones(self.edge_index.shape[1], dtype=like.dtype, device=like.device)
        return weight.to(like.dtype)


def edges_of(edge_index: Tensor | Edges, nodes: int) -> Edges:
    """The edges of an ``edge_index``; derived once as long as that tensor lives and is not changed."""
    if isinstance(edge_index, Edges):
        return edge_index
    # Of a copy: what is derived must not keep the tensor alive.
    return _derived(edge_index, nodes, lambda edges: Edges(edges.clone(), nodes))  # type: ignore[no-any-return]


_known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def _derived(tensor: Tensor, what: object, derive: Callable[[Tensor], Any]) -> Any:
    """What follows from a tensor; derived once as long as that tensor lives and is not changed."""
    if tensor.is_inference():  # does not tell whether it was changed
        return derive(tensor)
    found = _known.get(tensor)
    if found is None or found[0] != (tensor._version, what):
        found = (tensor._version, what), derive(tensor)
        _known[tensor] = found
    return found[1]


def sum_adjacency(edge_index: Tensor | Edges, weight: Tensor | None, like: Tensor, nodes: int) -> Sparse:
    """Plain sum over neighbours, times the edge weights if there are any."""
    edges = edges_of(edge_index, nodes)
    return Sparse(edges.plain, edges.weights(weight, like)[edges.plain.order])


def gcn_adjacency(edge_index: Tensor | Edges, weight: Tensor | None, like: Tensor, nodes: int) -> Sparse:
    """Kipf and Welling's: loops added where there are none, then scaled by both ends' degrees to the power -1/2."""
    edges = edges_of(edge_index, nodes)
    given = edges.weights(weight, like)
    loops = torch.ones(nodes, dtype=like.dtype, device=like.device)
    for which in edges.loops:  # a node's own loop counts as it is, if it is there
        own, at = given[which], edges.edge_index[0, which]
        loops = loops.index_copy(0, at, torch.where(own != 0, own, loops[at]))
    s = edges.looped
    a = Sparse(s, torch.cat([given[edges.others], loops])[s.order])
    degree = (a @ loops.new_ones(nodes, 1)).squeeze(-1)
    scale = torch.where(degree > 0, degree, torch.ones_like(degree)).rsqrt() * (degree > 0)
    return a.map(lambda values: values * scale[s.row] * scale[s.col])


def mean_adjacency(edge_index: Tensor | Edges, weight: Tensor | None, like: Tensor, nodes: int) -> Sparse:
    """Mean over neighbours, weighted by the edge weights if there are any; a node without neighbours gets zero."""
    a = sum_adjacency(edge_index, weight, like, nodes)
    total = (a @ a.values.new_ones(nodes, 1)).squeeze(-1)
    scale = torch.where(total > 0, total, torch.ones_like(total)).reciprocal()
    return a.map(lambda values: values * scale[a.structure.row])


def attention_pattern(edge_index: Tensor | Edges, weight: Tensor | None, like: Tensor, nodes: int) -> Sparse:
    """Who attends to whom: zero for an edge or loop that is there, minus infinity for an edge of weight zero."""
    edges = edges_of(edge_index, nodes)
    given = edges.weights(weight, like)[edges.others]
    absent = torch.where(given == 0, -torch.inf, 0.0).to(like.dtype)
    s = edges.looped
    return Sparse(s, torch.cat([absent, torch.zeros(nodes, dtype=like.dtype, device=like.device)])[s.order])
