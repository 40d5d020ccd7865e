"""Node classification on one graph."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

from ..data.splits import node_splits
from ..errors import AkeError
from ..forward import forward
from ..settings import derive
from ..views import View
from .base import Metric, Task, check_classes, check_graph, check_outputs, move, whole_labels


class NodeTask(Task):
    """Every network sees the whole graph and is trained on the labels of the training nodes."""

    name = "node"
    metric_name = "accuracy"

    def __init__(self, data: Data, split: int = 0, metric: str | Metric | None = None) -> None:
        super().__init__(metric)
        check_graph(data)
        if data.get("y") is None:
            raise AkeError("data.y: missing; the node task needs labels")
        if not isinstance(data.y, Tensor):
            raise AkeError(f"y: must be a tensor, is a {type(data.y).__name__}")
        labels = data.y.squeeze(-1) if data.y.dim() == 2 and data.y.shape[1] == 1 else data.y
        if labels.shape[:1] != (data.num_nodes,):
            raise AkeError(f"data.y: must have one label per node ({data.num_nodes}), has shape {tuple(labels.shape)}")
        labels = whole_labels(labels)
        data = copy.copy(data)
        data.y = labels
        self.parts, self.splits_drawn = node_splits(data, split, derive(split, "splits"))
        self.outputs = check_classes(labels.cpu(), self.parts)
        for part, nodes in self.parts.items():  # for a training loop of one's own: the split that is used
            mask = torch.zeros(len(labels), dtype=torch.bool)
            mask[nodes] = True
            data[f"{part}_mask"] = mask.to(labels.device)
        self.data, self.labels, self.features = data, labels, data.x.shape[1]
        self.example = data
        self.sizes = {part: len(nodes) for part, nodes in self.parts.items()}

    def seen(self, view: View, generator: torch.Generator) -> Data:
        return view(self.data, generator)

    def batches(self, seen: Data, generator: torch.Generator) -> Iterator[Data]:
        yield seen

    def whole_batch(self, seen: Data, generator: torch.Generator) -> Data | None:
        return seen

    def original(self) -> Data | None:
        return self.data

    def loss(self, out: Tensor, batch: Data) -> Tensor:
        check_outputs(self.name, out, self.outputs)
        train = self.parts["train"]
        return cross_entropy(out.index_select(0, train), self.labels.index_select(0, train))

    def predict(self, model: nn.Module) -> Tensor:
        return forward(model, self.data)

    def part(self, prediction: Tensor, part: str) -> tuple[Tensor, Tensor]:
        nodes = self.parts[part]
        return prediction.index_select(0, nodes), self.labels.index_select(0, nodes)

    def part_loss(self, prediction: Tensor, part: str) -> Tensor:
        return cross_entropy(*self.part(prediction, part))

    def floor(self) -> float | None:
        commonest = self.labels[self.parts["train"]].bincount().argmax()
        constant = torch.zeros(len(self.labels), self.outputs, device=self.labels.device)
        constant[:, commonest] = 1
        return self.score(constant, "test")

    def to(self, device: torch.device) -> Task:
        return move(self, device)
