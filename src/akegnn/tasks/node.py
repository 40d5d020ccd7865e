"""Node classification on one graph."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

from ..data.splits import PARTS, node_splits
from ..errors import AkeError
from ..forward import forward
from ..propagate import lean
from ..settings import derive
from ..views import View
from .base import Classification, Metric, Task, check_classes, check_graph, check_outputs, whole_labels


class NodeTask(Classification):
    """Every network sees the whole graph and is trained on the labels of the training nodes."""

    name = "node"
    metric_name = "accuracy"
    mixes_splits = True

    def __init__(
        self,
        data: Data,
        split: int = 0,
        metric: str | Metric | None = None,
        masks: str = "given",
        labels_per_class: int | None = None,
    ) -> None:
        super().__init__(metric)
        check_graph(data)
        if data.get("y") is None:
            raise AkeError("data.y: missing; the node task needs labels")
        if not isinstance(data.y, Tensor):
            raise AkeError(f"y: must be a tensor, is a {type(data.y).__name__}")
        labels = data.y.squeeze(-1) if data.y.dim() == 2 and data.y.shape[1] == 1 else data.y
        if labels.shape[:1] != (data.num_nodes,):
            raise AkeError(f"data.y: must have one label per node ({data.num_nodes}), has shape {tuple(labels.shape)}")
        data = copy.copy(data)
        data.y = self.labels = whole_labels(labels)
        self.features = data.x.shape[1]
        self._given, self._masks, self._labels_per_class = data, masks, labels_per_class
        self.outputs = self._classes()
        self._take(split)

    def _classes(self) -> int:
        """How many classes there are in any split: a network has one output for each, whichever split it is on."""
        there = self.labels >= 0
        given = [self._given.get(f"{part}_mask") for part in PARTS]
        if (
            self._masks == "given"
            and self._labels_per_class is None
            and all(isinstance(m, Tensor) and m.shape[:1] == there.shape for m in given)
        ):
            there &= torch.stack([m.bool().view(len(m), -1).any(1) for m in given]).any(0)
        return int(self.labels[there].max()) + 1 if bool(there.any()) else 0

    def _take(self, split: int) -> None:
        """Settle who is in which part."""
        self.split = split
        self.parts, self.splits_drawn = node_splits(
            self._given, split, derive(split, "splits"), self._masks, self._labels_per_class
        )
        self.outputs = max(self.outputs, check_classes(self.labels.cpu(), self.parts))
        self.data = copy.copy(self._given)
        for part, nodes in self.parts.items():  # for whoever looks: the split that is used
            mask = torch.zeros(len(self.labels), dtype=torch.bool)
            mask[nodes] = True
            self.data[f"{part}_mask"] = mask.to(self.labels.device)
        self.parts = {part: nodes.to(self.labels.device) for part, nodes in self.parts.items()}
        self.example = self.data
        self.sizes = {part: len(nodes) for part, nodes in self.parts.items()}
        self.check_metric()

    def at(self, split: int) -> NodeTask:
        other = copy.copy(self)
        other._take(split)
        return other

    def together(self, splits: Sequence[int]) -> Task:
        if all(s == self.split for s in splits):
            return self
        each = {split: self.at(split) for split in dict.fromkeys(splits)}
        return _ManySplits([each[split] for split in splits])

    def seen(self, view: View, generator: torch.Generator) -> Data:
        return view(self.data, generator)

    def batches(self, seen: Data, generator: torch.Generator) -> Iterator[Data]:
        batch = copy.copy(seen)
        for key in ("y", *(f"{part}_mask" for part in PARTS)):  # whatever a view has made of them
            batch[key] = self.data[key]
        yield batch

    def originals(self) -> list[Data]:
        return [self.data]

    def loss(self, out: Tensor, batch: Data) -> Tensor:
        check_outputs(self.name, out, self.outputs)
        train = self.parts["train"]
        return _mixed(cross_entropy(out.index_select(0, train), self.labels.index_select(0, train)), out, batch)

    def predict(self, model: nn.Module) -> Tensor:
        return forward(model, lean(self.data, model))

    def part(self, prediction: Tensor, part: str) -> tuple[Tensor, Tensor]:
        nodes = self.parts[part]
        return prediction.index_select(0, nodes), self.labels.index_select(0, nodes)


class _ManySplits(NodeTask):
    """Replicas with a split of their own each: parts are masks, so that all replicas have tensors of one shape."""

    def __init__(self, tasks: list[NodeTask]) -> None:
        self.__dict__.update(tasks[0].__dict__)
        self._each = tasks
        every = list(dict.fromkeys(tasks))
        self._which = torch.tensor([every.index(t) for t in tasks], device=tasks[0].labels.device)
        self._masks_of = {p: torch.stack([t.data[f"{p}_mask"] for t in every]) for p in tasks[0].parts}  # [S, N]
        self._target = self.labels.clamp(0, self.outputs - 1)  # of nodes in no split anything may be the label

    def alone(self, replica: int) -> NodeTask:
        return self._each[replica]

    def loss(self, out: Tensor, batch: Data) -> Tensor:
        check_outputs(self.name, out, self.outputs)
        return _mixed(_mean(cross_entropy(out, self._target, reduction="none"), batch.train_mask), out, batch)

    def scores(self, predictions: Tensor, part: str) -> Tensor:
        if not self.scores_on_device:
            return torch.cat([t.scores(p[None], part) for t, p in zip(self._each, predictions, strict=True)])
        right = (predictions.argmax(-1) == self._target).double()
        return _mean(right, self._masks_of[part][self._which])

    def part_losses(self, predictions: Tensor, part: str) -> Tensor:
        losses = cross_entropy(predictions.transpose(1, 2), self._target.expand(len(predictions), -1), reduction="none")
        return _mean(losses, self._masks_of[part][self._which])


def _mixed(hard: Tensor, out: Tensor, batch: Data) -> Tensor:
    """The loss on labels, or that and the one on soft targets of all nodes."""
    soft = batch.get("ake_soft")
    if soft is None:
        return hard
    weight: float = batch.get("ake_soft_weight")
    return (1 - weight) * hard + weight * cross_entropy(out, soft)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum(-1) / mask.sum(-1)
