"""Graph classification on many graphs, in mini-batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Batch, Data
from torch_geometric.utils import is_undirected

from ..data.splits import PARTS, complete
from ..errors import AkeError
from ..forward import forward
from ..settings import derive
from ..views import Original, View, draws_edge_by_edge, keep_edges, of_edges
from .base import Classification, Metric, check_classes, check_graph, check_outputs, whole_labels

EVALUATION_BATCH = 512


class Graphs(Sequence[Data]):
    """Graphs that are put into batches again and again: laid end to end once, so that a batch is a few look-ups.

    Batches are what PyG's ``Batch.from_data_list`` makes. Graphs with more than tensors of nodes, of edges and one
    label are left to it.
    """

    _kept: Tensor  # which edges of the source, of a view that was drawn of all as one

    def __init__(self, graphs: Sequence[Data], source: Graphs | None = None) -> None:
        """``source``: the graphs that these are a view of."""
        self.graphs, self._source = list(graphs), source
        self._kinds = self._flat()
        self._as_before: set[str] = set()  # what they share with their source, tensor for tensor
        if self._kinds is None:
            return
        self._nodes = torch.tensor([g.num_nodes for g in graphs])
        self._edges = torch.tensor([g.num_edges for g in graphs])
        self._tensors = {
            key: torch.cat([g[key].view(1) if kind == "graph" else g[key] for g in graphs], -1 if kind == "ends" else 0)
            for key, kind in self._kinds.items()
        }
        pairs = list(zip(graphs, self.source.graphs, strict=True))
        self._as_before = {key for key in self._kinds if all(key in b and a[key] is b[key] for a, b in pairs)}
        if all(a.num_nodes == b.num_nodes for a, b in pairs):
            self._as_before.add("batch")

    @property
    def source(self) -> Graphs:
        """What these are a view of, or they themselves."""
        return self if self._source is None else self._source

    @cached_property
    def graphs(self) -> list[Data]:
        """One by one, for those who ask: all were drawn as one."""
        each = self._kept.split(self.source._edges.tolist())
        return [keep_edges(copy.copy(g), kept) for g, kept in zip(self.source.graphs, each, strict=True)]

    def __len__(self) -> int:
        return len(self.source.graphs)

    def __getitem__(self, index: Any) -> Any:
        return self.graphs[index]

    def _flat(self) -> dict[str, str] | None:
        """What each tensor has a row of: nodes, edges or graphs."""
        kinds, first = {}, self.graphs[0]
        for key, value in first.items():
            if not isinstance(value, Tensor) or value.layout != torch.strided:
                return None
            if key == "edge_index":
                kinds[key] = "ends"
            elif key == "y" and value.numel() == 1:
                kinds[key] = "graph"
            elif first.is_edge_attr(key) and key.startswith("edge_") and "edge_label" not in key:
                kinds[key] = "edge"
            elif key == "x" or (key == "pos" and first.is_node_attr(key)):
                kinds[key] = "node"
            else:
                return None
        return kinds if all(set(g.keys()) == set(kinds) for g in self.graphs) else None

    @cached_property
    def _one(self) -> Data | None:
        """All as one graph, for views that draw for each edge by itself; ``None`` where that would be another view."""
        if self._kinds is None:
            return None
        # The edges of undirected graphs drop as pairs, those of others one by one.
        if len({is_undirected(g.edge_index, num_nodes=g.num_nodes) for g in self.graphs if g.num_edges}) > 1:
            return None
        ends = self._tensors["edge_index"]
        shift = _starts(self._nodes).repeat_interleave(self._edges).to(ends.device)
        return Data(**{**self._tensors, "edge_index": ends + shift}, num_nodes=int(self._nodes.sum()))

    def through(self, view: View, generator: torch.Generator) -> Graphs:
        """What is seen of each graph through a view."""
        assert self._source is None
        kept = view.kept(self._one, generator) if draws_edge_by_edge(type(view)) and self._one is not None else None
        if kept is None:
            return Graphs([view(graph, generator) for graph in self.graphs], self)
        seen, kinds = copy.copy(self), self._kinds or {}
        seen._source, seen._kept = self, kept
        del seen.graphs
        left = torch.cat([kept.new_zeros(1, dtype=torch.long), kept.cumsum(0)]).cpu()  # before each edge
        seen._edges = left[_starts(self._edges) + self._edges] - left[_starts(self._edges)]
        seen._tensors = dict(self._tensors)
        for key in (key for key, kind in kinds.items() if kind in ("ends", "edge")):
            seen._tensors[key] = self._tensors[key][:, kept] if kinds[key] == "ends" else self._tensors[key][kept]
        seen._as_before = {"batch", *(key for key in kinds if seen._tensors[key] is self._tensors[key])}
        return seen

    def _common(self, other: Graphs) -> set[str]:
        """What these graphs share with others: views leave most of a graph as it is."""
        return self._as_before & other._as_before if self.source is other.source else set()

    def batch(self, members: Tensor, other: Graphs | None = None, alike: Data | None = None) -> Data:
        """The graphs ``members`` as one; what they share with ``other`` is taken from its batch ``alike``."""
        if other is self and alike is not None:
            return alike
        if self._kinds is None:
            return Batch.from_data_list([self.graphs[i] for i in members.tolist()])
        common = self._common(other) if other is not None and alike is not None else set()
        device = self._tensors["edge_index"].device
        nodes, edges = self._nodes[members], self._edges[members]
        rows = {
            "node": _ranges(_starts(self._nodes)[members], nodes).to(device),
            "edge": _ranges(_starts(self._edges)[members], edges).to(device),
            "graph": members.to(device),
        }
        batch = Batch()
        for key, kind in self._kinds.items():
            if key in common:
                batch[key] = alike[key]  # type: ignore[index]
            elif kind == "ends":
                shift = _starts(nodes).repeat_interleave(edges).to(device)
                batch[key] = self._tensors[key].index_select(1, rows["edge"]) + shift
            else:
                batch[key] = self._tensors[key].index_select(0, rows[kind])
        if "batch" in common:
            batch.batch = alike.batch  # type: ignore[union-attr]
        else:
            batch.batch = torch.arange(len(members)).repeat_interleave(nodes).to(device)
        batch._num_graphs = len(members)
        return batch


def _in_batches(graphs: Sequence[Data]) -> list[Data]:
    return [Batch.from_data_list(graphs[k : k + EVALUATION_BATCH]) for k in range(0, len(graphs), EVALUATION_BATCH)]


def _starts(count: Tensor) -> Tensor:
    """Where each begins, when they lie end to end."""
    return count.cumsum(0) - count


def _ranges(first: Tensor, count: Tensor) -> Tensor:
    """``first[0], first[0] + 1, ...`` (``count[0]`` of them), then those of the next, and so on."""
    return torch.arange(int(count.sum())) + (first - _starts(count)).repeat_interleave(count)


def alike(graphs: Sequence[Data]) -> list[Data]:
    """Copies that can be put side by side: with the same attributes of nodes and edges, and no others that differ."""
    first, made = graphs[0], []
    common = set(first.keys()).intersection(*(g.keys() for g in graphs))
    for k, graph in enumerate(graphs):
        if not graph.num_nodes:
            raise AkeError(f"data[{k}]: has no nodes")
        for key in sorted(set(graph.keys()) ^ set(first.keys())):
            here = graph if key in graph else first
            if isinstance(here[key], Tensor) and (here.is_node_attr(key) or of_edges(here, key)):
                missing, there = (k, 0) if here is first else (0, k)
                raise AkeError(f"data[{missing}].{key}: missing, data[{there}] has it")
        graph = copy.copy(graph)
        for key in set(graph.keys()) - common:
            del graph[key]
        made.append(graph)
    return made


class GraphTask(Classification):
    """Each graph has one label; views are drawn for every graph on its own."""

    name = "graph"
    metric_name = "accuracy"

    def __init__(
        self,
        graphs: Sequence[Data],
        split: int = 0,
        metric: str | Metric | None = None,
        batch_size: int = 128,
        masks: str = "given",
    ) -> None:
        super().__init__(metric)
        graphs = list(graphs)
        if not graphs:
            raise AkeError("data: the graph task needs at least one graph")
        for k, graph in enumerate(graphs):
            check_graph(graph, f"data[{k}]")
            if graph.get("y") is None or graph.y.numel() != 1:
                raise AkeError(f"data[{k}].y: must be one label per graph")
            if graph.x.shape[1] != graphs[0].x.shape[1]:
                raise AkeError(f"data[{k}].x: {graph.x.shape[1]} features, data[0] has {graphs[0].x.shape[1]}")
        self.labels = whole_labels(torch.cat([g.y.view(1) for g in graphs]))
        if masks not in ("given", "random"):
            raise AkeError(f"masks: {masks!r} is not one of given, random")
        self._marks = [g.get("split") for g in graphs] if masks == "given" else [None] * len(graphs)
        graphs = [copy.copy(g) for g in graphs]
        for g in graphs:  # not part of a batch: some graphs may have no mark
            for key in ("split", "split_degree"):
                if key in g:
                    del g[key]
        graphs = alike(graphs)
        self.graphs, self.batch_size, self.features = graphs, batch_size, graphs[0].x.shape[1]
        self.evaluated = _in_batches(graphs)
        self.example = graphs[0]
        marks = [m if isinstance(m, list | tuple) else [m] for m in self._marks]
        marked = [int(y) for y, mark in zip(self.labels, marks, strict=True) if any(m is not None for m in mark)]
        self.outputs = max(marked, default=-1) + 1  # of any split: a network serves them all
        self._take(split)

    def _take(self, split: int) -> None:
        """Settle which graph is in which part; ``graph.split`` is its name, or a list with one for each split."""
        self.split = split
        marks = []
        for k, mark in enumerate(self._marks):
            if isinstance(mark, list | tuple):
                if not 0 <= split < len(mark):
                    raise AkeError(f"data[{k}].split: has splits 0 to {len(mark) - 1}, asked for {split}")
                mark = mark[split]
            marks.append(mark)
        if any(m is not None and m not in PARTS for m in marks):
            raise AkeError(f"data[...].split: must be one of {', '.join(PARTS)}")
        given = {p: torch.tensor([k for k, m in enumerate(marks) if m == p]) for p in PARTS if p in marks}
        self.parts, self.splits_drawn = complete(
            given, torch.arange(len(marks)), self.labels.cpu(), derive(split, "splits")
        )
        self.outputs = max(self.outputs, check_classes(self.labels.cpu(), self.parts))
        self.parts = {part: members.to(self.labels.device) for part, members in self.parts.items()}
        self.train_graphs = [self.graphs[k] for k in self.parts["train"].tolist()]
        self.sizes = {part: len(members) for part, members in self.parts.items()}
        self.check_metric()

    def at(self, split: int) -> GraphTask:
        if split == self.split:
            return self
        other = copy.copy(self)
        for key in [k for k in other.__dict__ if k.startswith("_cached")]:
            del other.__dict__[key]
        other._take(split)
        return other

    def seen(self, view: View, generator: torch.Generator) -> Graphs:
        if "_cached_graphs" not in self.__dict__:  # the same for all networks
            self._cached_graphs = Graphs(self.train_graphs)
        return self._cached_graphs if isinstance(view, Original) else self._cached_graphs.through(view, generator)

    new_batches = True
    own_batches = False  # which graphs come together is the same for all seeds, as the splits are

    def batches(self, seen: Graphs, generator: torch.Generator) -> Iterator[Data]:
        return (batches[0] for batches in self.joint_batches([seen], [generator]))

    def joint_batches(self, seen: Sequence[Graphs], generators: Sequence[torch.Generator]) -> Iterator[list[Data]]:
        order = torch.randperm(len(seen[0]), generator=generators[0])
        # All of nearly one size: BatchNorm is judged by what it saw last, and that must not be one or two graphs.
        for part in order.tensor_split(-(-len(order) // self.batch_size)):
            first = seen[0].batch(part)
            yield [first, *(s.batch(part, seen[0], first) for s in seen[1:])]

    def originals(self) -> list[Data]:
        return self.evaluated

    def looked_at(self) -> list[Data]:
        return _in_batches(self.train_graphs)

    def watched(self) -> GraphTask:
        if "_cached_watched" not in self.__dict__:
            task = copy.copy(self)
            members = self.parts["val"]
            task.labels = self.labels[members]
            task.evaluated = _in_batches([self.graphs[k] for k in members.tolist()])
            task.parts = {"val": torch.arange(len(members), device=members.device)}
            self._cached_watched = task
        return self._cached_watched

    def loss(self, out: Tensor, batch: Data) -> Tensor:
        check_outputs(self.name, out, self.outputs)
        if out.shape[0] != batch.num_graphs:
            raise AkeError(f"model: {out.shape[0]} rows for {batch.num_graphs} graphs; it must pool by `batch`")
        return cross_entropy(out, batch.y.view(-1))

    def predict(self, model: nn.Module) -> Tensor:
        return torch.cat([forward(model, batch) for batch in self.evaluated])

    def part(self, prediction: Tensor, part: str) -> tuple[Tensor, Tensor]:
        members = self.parts[part]
        return prediction[members], self.labels[members]
