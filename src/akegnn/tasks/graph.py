"""Graph classification on many graphs, in mini-batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Batch, Data

from ..data.splits import PARTS, complete
from ..errors import AkeError
from ..forward import forward
from ..settings import derive
from ..views import View
from .base import Metric, Task, check_classes, check_graph, check_outputs, move

EVALUATION_BATCH = 512


class GraphTask(Task):
    """Each graph has one label; views are drawn for every graph on its own."""

    name = "graph"
    metric_name = "accuracy"

    def __init__(
        self, graphs: Sequence[Data], split: int = 0, metric: str | Metric | None = None, batch_size: int = 128
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
        self.labels = torch.cat([g.y.view(1) for g in graphs])
        marks = [g.get("split") for g in graphs]
        if any(m is not None and m not in PARTS for m in marks):
            raise AkeError(f"data[...].split: must be one of {', '.join(PARTS)}")
        graphs = [copy.copy(g) for g in graphs]
        for g in graphs:  # not part of a batch: some graphs may have no mark
            if "split" in g:
                del g.split
        given = {p: torch.tensor([k for k, m in enumerate(marks) if m == p]) for p in PARTS if p in marks}
        self.parts, self.splits_drawn = complete(
            given, torch.arange(len(graphs)), self.labels.cpu(), derive(split, "splits")
        )
        self.outputs = check_classes(self.labels, self.parts)
        self.batch_size, self.features = batch_size, graphs[0].x.shape[1]
        self.train_graphs = [graphs[k] for k in self.parts["train"].tolist()]
        self.evaluated = [
            Batch.from_data_list(graphs[k : k + EVALUATION_BATCH]) for k in range(0, len(graphs), EVALUATION_BATCH)
        ]
        self.example = graphs[0]
        self.sizes = {part: len(members) for part, members in self.parts.items()}

    def seen(self, view: View, generator: torch.Generator) -> list[Data]:
        return [view(graph, generator) for graph in self.train_graphs]

    def batches(self, seen: list[Data], generator: torch.Generator) -> Iterator[Data]:
        order = torch.randperm(len(seen), generator=generator).tolist()
        for k in range(0, len(seen), self.batch_size):
            yield Batch.from_data_list([seen[i] for i in order[k : k + self.batch_size]])

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

    def part_loss(self, prediction: Tensor, part: str) -> Tensor:
        return cross_entropy(*self.part(prediction, part))

    def floor(self) -> float | None:
        commonest = self.labels[self.parts["train"]].bincount().argmax()
        constant = torch.zeros(len(self.labels), self.outputs, device=self.labels.device)
        constant[:, commonest] = 1
        return self.score(constant, "test")

    def to(self, device: torch.device) -> Task:
        return move(self, device)
