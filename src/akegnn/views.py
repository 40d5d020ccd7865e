"""Views: a graph as one network sees it.

Pure functions that draw from a ``torch.Generator`` and return their result together with a mask of what was kept, and
thin PyG transforms over them. A view keeps the node set: features and edges change, nodes do not. Any other PyG
transform serves as a view too, see :func:`as_view`.
"""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import BaseTransform
from torch_geometric.utils import is_undirected

from .errors import AkeError

# ---- pure functions --------------------------------------------------------------------------------------------------


def mask_features(x: Tensor, rate: float, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Set whole columns to zero, each with probability ``rate``, the same for all nodes (Eq. 4 of the paper).

    Returns the new features and which columns were kept, ``[D]``.
    """
    kept = torch.rand(x.shape[1], generator=generator, device=_device(generator)).to(x.device) >= rate
    if x.layout == torch.strided:
        return x * kept.to(x.dtype), kept
    coo = x.to_sparse_coo().coalesce()
    inside = kept[coo.indices()[1]]
    return _sparse_like(x, coo.indices()[:, inside], coo.values()[inside]), kept


def corrupt_features(
    x: Tensor,
    rate: float,
    mode: Literal["multiply", "replace"] = "multiply",
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Disturb single entries with Gaussian noise :math:`\mathcal{N}(\mathrm{mean}(x_i), 1)` (Eq. 5 of the paper).

    ``multiply`` is the formula (an entry times the noise), on a fraction ``rate`` of the entries that are not zero, so
    that sparse features stay sparse. ``replace`` is the sentence (the noise itself), on a fraction of all entries; the
    result is dense. Returns the new features and which entries were kept: ``[N, D]``, or one flag per stored entry.
    """

    def drawn(shape: Sequence[int], means: Tensor) -> tuple[Tensor, Tensor]:
        device = _device(generator)
        chosen = torch.rand(*shape, generator=generator, device=device).to(x.device) < rate
        noise = torch.randn(*shape, generator=generator, device=device, dtype=x.dtype).to(x.device) + means
        return chosen, noise

    if x.layout != torch.strided and mode == "multiply":
        coo = x.to_sparse_coo().coalesce()
        means = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)
        means = means.index_add(0, coo.indices()[0], coo.values()) / x.shape[1]
        chosen, noise = drawn(coo.values().shape, means[coo.indices()[0]])
        chosen &= coo.values() != 0
        values = torch.where(chosen, coo.values() * noise, coo.values())
        return _sparse_like(x, coo.indices(), values), ~chosen
    dense = x if x.layout == torch.strided else x.to_dense()
    if mode == "replace":
        chosen, noise = drawn(dense.shape, dense.mean(1, keepdim=True))
        return torch.where(chosen, noise, dense), ~chosen
    # Draw for the non-zero entries only: cheap, and the same as for these features in a sparse layout.
    row, column = dense.nonzero(as_tuple=True)
    chosen, noise = drawn(row.shape, dense.mean(1)[row])
    kept = torch.ones(dense.shape, dtype=torch.bool, device=x.device)
    kept[row, column] = ~chosen
    values = dense[row, column]
    out = dense.clone()
    out[row, column] = torch.where(chosen, values * noise, values)
    return out, kept


def drop_edges(
    edge_index: Tensor, rate: float, undirected: bool = True, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Drop each edge with probability ``rate`` (Eq. 6); with ``undirected``, both directions of an edge share its fate.

    Returns the remaining edges and which were kept, ``[E]``.
    """
    kept = _kept(*_pairs(edge_index, undirected), rate, generator)
    return edge_index[:, kept], kept


def _pairs(edge_index: Tensor, undirected: bool) -> tuple[Tensor, int]:
    """Which edges share a fate: a number for each edge, and how many numbers there are."""
    if not undirected:
        return torch.arange(edge_index.shape[1], device=edge_index.device), edge_index.shape[1]
    low, high = edge_index.long().aminmax(dim=0)
    pairs, which = torch.unique(low * (high.max() + 1 if len(high) else 1) + high, return_inverse=True)
    return which, len(pairs)


def _kept(which: Tensor, count: int, rate: float, generator: torch.Generator | None) -> Tensor:
    return (torch.rand(count, generator=generator, device=_device(generator)) >= rate).to(which.device)[which]


def subgraph_edges(
    edge_index: Tensor,
    num_nodes: int,
    rate: float,
    method: Literal["nodes", "walk"] = "nodes",
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Keep the edges inside a random subset of ``(1 - rate) * num_nodes`` nodes; the other nodes stay, without edges.

    The subset is drawn uniformly (``nodes``) or gathered along random walks (``walk``). Returns the remaining edges,
    which were kept ``[E]``, and which nodes are in the subset ``[N]``.
    """
    size = round((1 - rate) * num_nodes)
    if method == "nodes":
        order = torch.randperm(num_nodes, generator=generator, device=_device(generator)).to(edge_index.device)
    else:
        order = _walk_order(edge_index, num_nodes, size, generator)
    inside = torch.zeros(num_nodes, dtype=torch.bool, device=edge_index.device)
    inside[order[:size]] = True
    kept = inside[edge_index[0]] & inside[edge_index[1]]
    return edge_index[:, kept], kept, inside


def _walk_order(edge_index: Tensor, num_nodes: int, size: int, generator: torch.Generator | None) -> Tensor:
    """Nodes in the order in which random walks of ten steps, from ever new starts, first meet them."""
    row, by_row = edge_index[0].sort(stable=True)
    neighbours = edge_index[1][by_row]
    degree = torch.bincount(row, minlength=num_nodes)
    first = degree.cumsum(0) - degree
    device, at = _device(generator), edge_index.device
    starts = torch.randperm(num_nodes, generator=generator, device=device).to(at)
    met = torch.empty(0, dtype=torch.long, device=at)
    seen = torch.zeros(num_nodes, dtype=torch.bool, device=at)
    batch = max(1, size // 20)
    for k in range(0, num_nodes, batch):
        walkers = starts[k : k + batch]
        path = [walkers]
        for _ in range(10):
            draw = torch.rand(len(walkers), generator=generator, device=device).to(at)
            step = (draw * degree[walkers]).long().clamp_max((degree[walkers] - 1).clamp_min(0))
            place = (first[walkers] + step).clamp_max(max(len(neighbours) - 1, 0))
            moved = neighbours[place] if len(neighbours) else walkers
            walkers = torch.where(degree[walkers] > 0, moved, walkers)  # an isolated node stays where it is
            path.append(walkers)
        visits = torch.stack(path, dim=1).flatten()
        visits = visits[~seen[visits]]
        _, which = torch.unique(visits, return_inverse=True)
        firsts = torch.full((int(which.max()) + 1 if len(which) else 0,), len(visits), device=at)
        firsts = firsts.scatter_reduce(0, which, torch.arange(len(visits), device=at), "amin")
        new = visits[firsts.sort().values]
        seen[new] = True
        met = torch.cat([met, new])
        if len(met) >= size:
            break
    return met


def _device(generator: torch.Generator | None) -> torch.device:
    """Draw where the generator lives, so that a CPU generator gives the same view of a graph on any device."""
    return generator.device if generator is not None else torch.device("cpu")


def _sparse_like(x: Tensor, indices: Tensor, values: Tensor) -> Tensor:
    coo = torch.sparse_coo_tensor(indices, values, x.shape, is_coalesced=True, check_invariants=False)
    return coo if x.layout == torch.sparse_coo else coo.to_sparse_csr()


# ---- transforms ------------------------------------------------------------------------------------------------------

Resample = Literal["once", "epoch"]


@dataclass(repr=True)
class View(BaseTransform):
    """Base of the views: ``view(data)`` or ``view(data, generator)`` gives a new ``Data``, the given one stays.

    ``resample`` says when a training run draws the view: ``once``, or anew in every ``epoch``.
    """

    resample: Resample = dataclasses.field(default="once", kw_only=True)

    def __post_init__(self) -> None:
        if self.resample not in ("once", "epoch"):
            raise AkeError(f"{type(self).__name__}: resample must be 'once' or 'epoch', got {self.resample!r}")
        rate = getattr(self, "rate", 0.0)
        if not 0 <= rate <= 1:
            raise AkeError(f"{type(self).__name__}: rate must lie between 0 and 1, got {rate}")

    def __call__(self, data: Data, generator: torch.Generator | None = None) -> Data:
        return self.draw(copy.copy(data), generator)

    def forward(self, data: Data) -> Data:
        return self.draw(data, None)

    def draw(self, data: Data, generator: torch.Generator | None) -> Data:
        """Change ``data``, a shallow copy, by assigning new tensors to it."""
        raise NotImplementedError

    def kept(self, data: Data, generator: torch.Generator | None) -> Tensor | None:
        """Which edges of ``data`` are kept, ``[E]``, of a view that leaves everything else alone; else ``None``."""
        return None

    edge_by_edge: ClassVar[bool] = False  # whether `kept` draws for each edge (or pair) by itself, whatever the others

    def spec(self) -> dict[str, Any]:
        """The view as plain data; :func:`from_spec` is the way back."""
        kind = next((k for k, v in VIEWS.items() if v is type(self)), "custom")
        if kind == "custom":
            return {"kind": kind, "repr": repr(self), "resample": self.resample}
        return {"kind": kind, **dataclasses.asdict(self)}

    def _edges(self, data: Data) -> Tensor:
        if data.edge_index is None:
            raise AkeError(f"{type(self).__name__}: the graph has no edges (data.edge_index)")
        return data.edge_index

    def _features(self, data: Data) -> Tensor:
        if data.x is None:
            raise AkeError(f"{type(self).__name__}: the graph has no node features (data.x)")
        return data.x


@dataclass
class Original(View):
    """The graph as it is."""

    def draw(self, data: Data, generator: torch.Generator | None) -> Data:
        return data


@dataclass
class MaskFeatures(View):
    """Zero whole feature columns, see :func:`mask_features`."""

    rate: float = 0.3

    def draw(self, data: Data, generator: torch.Generator | None) -> Data:
        data.x, _ = mask_features(self._features(data), self.rate, generator)
        return data


@dataclass
class CorruptFeatures(View):
    """Disturb single features with noise, see :func:`corrupt_features`."""

    rate: float = 0.3
    mode: Literal["multiply", "replace"] = "multiply"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode not in ("multiply", "replace"):
            raise AkeError(f"CorruptFeatures: mode must be 'multiply' or 'replace', got {self.mode!r}")

    def draw(self, data: Data, generator: torch.Generator | None) -> Data:
        data.x, _ = corrupt_features(self._features(data), self.rate, self.mode, generator)
        return data


@dataclass
class DropEdges(View):
    """Drop edges, see :func:`drop_edges`. An undirected graph is recognised and its edges drop as pairs."""

    rate: float = 0.3

    def draw(self, data: Data, generator: torch.Generator | None) -> Data:
        return keep_edges(data, self.kept(data, generator))

    edge_by_edge = True

    def kept(self, data: Data, generator: torch.Generator | None) -> Tensor:
        edges, known = self._edges(data), self.__dict__.get("_known")
        if known is None or known[0] is not edges:  # pairing takes longer than drawing, and a graph is drawn often
            known = edges, _pairs(edges, is_undirected(edges, num_nodes=data.num_nodes))
            self.__dict__["_known"] = known
        which, count = known[1]
        return _kept(which, count, self.rate, generator)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_known"}


@dataclass
class Subgraph(View):
    """Keep the edges inside a random subset of nodes, see :func:`subgraph_edges`."""

    rate: float = 0.3
    method: Literal["nodes", "walk"] = "nodes"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method not in ("nodes", "walk"):
            raise AkeError(f"Subgraph: method must be 'nodes' or 'walk', got {self.method!r}")

    def draw(self, data: Data, generator: torch.Generator | None) -> Data:
        return keep_edges(data, self.kept(data, generator))

    def kept(self, data: Data, generator: torch.Generator | None) -> Tensor:
        return subgraph_edges(self._edges(data), int(data.num_nodes or 0), self.rate, self.method, generator)[1]


@dataclass
class Transform(View):
    """Any other PyG transform (or function from ``Data`` to ``Data``) as a view. It draws from torch's global
    generator, which is seeded for the call and put back after it."""

    transform: Callable[[Data], Data] = lambda data: data

    def draw(self, data: Data, generator: torch.Generator | None) -> Data:
        nodes, given = data.num_nodes, data
        data = data.clone()  # to be changed in place, if that is how it is written
        if generator is None:
            changed = self.transform(data)
        else:
            seed = int(torch.randint(2**62, (), generator=generator))
            python, numpy = random.getstate(), np.random.get_state()
            try:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed)
                    random.seed(seed)
                    np.random.seed(seed % 2**32)
                    changed = self.transform(data)
            finally:
                random.setstate(python)
                np.random.set_state(numpy)
        if changed.num_nodes != nodes:
            raise AkeError(
                f"view {self.transform!r}: a view must keep the node set, "
                f"but it made {changed.num_nodes} nodes of {nodes}"
            )
        for key, value in given:  # what it left alone stays the same tensor, from which much is derived once
            if isinstance(value, Tensor) and isinstance(changed.get(key), Tensor) and _same(value, changed[key]):
                changed[key] = value
        return changed


def _same(one: Tensor, other: Tensor) -> bool:
    if one.layout != torch.strided or (one.layout, one.dtype, one.device) != (other.layout, other.dtype, other.device):
        return False
    return torch.equal(one, other)


def leaves_out_edges(kind: type[View]) -> bool:
    """Whether a class of views says with ``kept`` all that it does, which a class made from it may change."""
    as_usual = _author(kind, "__call__") is View
    return as_usual and _author(kind, "kept") is not View and _author(kind, "draw") is _author(kind, "kept")


def draws_edge_by_edge(kind: type[View]) -> bool:
    """Whether many graphs may be drawn as one."""
    return kind.edge_by_edge and leaves_out_edges(kind) and _author(kind, "edge_by_edge") is _author(kind, "kept")


def _author(kind: type[View], name: str) -> type:
    """The class that an attribute is from."""
    return next(c for c in kind.__mro__ if name in vars(c))


def keep_edges(data: Data, kept: Tensor) -> Data:
    """Keep some of the edges of ``data``, a shallow copy, with all that belongs to them."""
    nodes = data.num_nodes
    for key in [k for k, v in data.items() if isinstance(v, Tensor) and of_edges(data, k)]:
        data[key] = data[key][kept]
    data.edge_index = data.edge_index[:, kept]
    if "x" not in data:  # PyG would count the nodes by the edges that are left
        data.num_nodes = nodes
    return data


def of_edges(data: Data, key: str) -> bool:
    """Whether a tensor has a row for each edge; PyG goes by sizes, and a graph of one edge may have one label."""
    if key in ("edge_index", "y") or "edge_label" in key:
        return False
    return data.is_edge_attr(key) and ("edge" in key or data.num_edges > 1)


VIEWS: dict[str, type[View]] = {
    "mask": MaskFeatures,
    "corrupt": CorruptFeatures,
    "drop-edges": DropEdges,
    "subgraph": Subgraph,
    "original": Original,
}
OURS = frozenset(VIEWS)  # those of the package: of a person's own a name does not say what it draws, nor where from


def paper_views(rate: float = 0.3, resample: Resample = "once") -> list[View]:
    """The paper's four views, in its order."""
    kinds: tuple[type[View], ...] = (MaskFeatures, CorruptFeatures, DropEdges, Subgraph)
    return [kind(rate, resample=resample) for kind in kinds]  # type: ignore[call-arg]


def as_view(view: View | Callable[[Data], Data] | str) -> View:
    """A view as it is, ``"kind"`` or ``"kind:rate"``, or any PyG transform."""
    if isinstance(view, View):
        return view
    if callable(view):
        return Transform(view)
    kind, _, rate = str(view).partition(":")
    try:
        return from_spec({"kind": kind, **({"rate": float(rate)} if rate else {})})
    except ValueError:
        raise AkeError(f"view {view!r}: the rate after ':' must be a number") from None


def from_spec(spec: dict[str, Any]) -> View:
    """Build a view from plain data, as :meth:`View.spec` writes it."""
    kind = spec.get("kind")
    if kind not in VIEWS:
        raise AkeError(f"view: {kind!r} is not one of {', '.join(VIEWS)}")
    try:
        return VIEWS[kind](**{k: v for k, v in spec.items() if k != "kind"})
    except TypeError:
        wanted = ", ".join(f.name for f in dataclasses.fields(VIEWS[kind]))
        raise AkeError(f"view {kind!r}: takes {wanted}, got {', '.join(k for k in spec if k != 'kind')}") from None
