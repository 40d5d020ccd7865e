"""What a task is: what a network trains on under a view, its loss, its prediction and how good that is."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

from ..errors import AkeError
from ..forward import cast
from ..views import View

Metric = Callable[[Tensor, Tensor], float]


def accuracy(prediction: Tensor, target: Tensor) -> float:
    """Share of rows whose largest entry is the target's."""
    return float((prediction.argmax(-1) == target).double().mean())


def f1_macro(prediction: Tensor, target: Tensor) -> float:
    """Unweighted mean of the classes' F1."""
    from sklearn.metrics import f1_score

    return float(f1_score(target.cpu(), prediction.argmax(-1).cpu(), average="macro", zero_division=0.0))


def roc_auc(prediction: Tensor, target: Tensor) -> float:
    """Area under the ROC curve, of scores or of two columns of logits."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(target.cpu(), _one_score(prediction).cpu()))


def average_precision(prediction: Tensor, target: Tensor) -> float:
    """Average precision, of scores or of two columns of logits."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(target.cpu(), _one_score(prediction).cpu()))


def _one_score(prediction: Tensor) -> Tensor:
    if prediction.dim() == 1:
        return prediction
    if prediction.shape[-1] != 2:
        raise AkeError(f"metric: needs two classes, the prediction has {prediction.shape[-1]} columns")
    return prediction[:, 1] - prediction[:, 0]


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "f1": f1_macro,
    "roc_auc": roc_auc,
    "average_precision": average_precision,
}


class Task(ABC):
    """Data, splits, loss and metric of one learning problem. Higher scores are better."""

    name: str
    metric_name: str
    features: int
    outputs: int  # what a model must return per node or graph
    splits_drawn: str = ""  # a note where splits were not given
    example: Data  # one graph, to find out how a model is called
    sizes: dict[str, int]  # of the parts
    split: int = 0
    several: Sequence[Task] = ()  # one for each replica, where they have splits of their own and are trained alone

    def __init__(self, metric: str | Metric | None) -> None:
        if metric is not None and not callable(metric) and metric not in METRICS:
            raise AkeError(f"metric: {metric!r} is not one of {', '.join(METRICS)} nor a function")
        if callable(metric):
            self.metric_name, self._metric = getattr(metric, "__name__", "metric"), metric
        else:
            self.metric_name = metric or self.metric_name
            self._metric = METRICS[self.metric_name]

    @abstractmethod
    def seen(self, view: View, generator: torch.Generator) -> Any:
        """What a network trains on: a view of the training graph or graphs. Nothing held out is in it."""

    @abstractmethod
    def batches(self, seen: Any, generator: torch.Generator) -> Iterator[Data]:
        """The training batches of one epoch."""

    @abstractmethod
    def loss(self, out: Tensor, batch: Data) -> Tensor:
        """Training loss of the model's output on a batch."""

    @abstractmethod
    def predict(self, model: nn.Module) -> Tensor:
        """The model's raw prediction on the original data, for all parts at once."""

    @abstractmethod
    def part(self, prediction: Tensor, part: str) -> tuple[Tensor, Tensor]:
        """Prediction and target of one part: ``train``, ``val`` or ``test``."""

    @abstractmethod
    def part_loss(self, prediction: Tensor, part: str) -> Tensor:
        """The loss on one part, by which equal validation scores are told apart."""

    def score(self, prediction: Tensor, part: str) -> float:
        """The metric on one part."""
        return float(self._metric(*self.part(prediction, part)))

    def scores(self, predictions: Tensor, part: str) -> Tensor:
        """The metric of each replica's prediction, ``[R, ...] -> [R]``."""
        if self.several:
            return torch.cat([t.scores(p[None], part) for t, p in zip(self.several, predictions, strict=True)])
        if self._metric is accuracy:  # the usual one, without leaving the device
            target = self.part(predictions[0], part)[1]
            return torch.vmap(lambda p: (self.part(p, part)[0].argmax(-1) == target).double().mean())(predictions)
        found = [self.score(p, part) if bool(torch.isfinite(p).all()) else math.nan for p in predictions]
        return torch.tensor(found, device=predictions.device, dtype=torch.float64)

    def part_losses(self, predictions: Tensor, part: str) -> Tensor:
        """The loss of each replica's prediction, ``[R, ...] -> [R]``."""
        if self.several:
            return torch.stack([t.part_loss(p, part) for t, p in zip(self.several, predictions, strict=True)])
        return torch.vmap(lambda p: self.part_loss(p, part))(predictions)

    def watched(self) -> Task:
        """The task that is looked at after every epoch: only its validation part must be right."""
        return self

    # What populations need: the batches of all replicas side by side, and the graphs that predictions are made on.

    new_batches = False  # whether every epoch has batches of its own
    own_batches = True  # whether every seed has batches of its own
    mixes_splits = False  # whether replicas on different splits can be trained together

    @property
    def scores_on_device(self) -> bool:
        """Whether :meth:`scores` needs no look at the numbers."""
        return self._metric is accuracy

    @property
    def device(self) -> torch.device:
        """Where the data is."""
        return self.example.edge_index.device  # type: ignore[no-any-return]

    def joint_batches(self, seen: Sequence[Any], generators: Sequence[torch.Generator]) -> Iterator[list[Data]]:
        """The training batches of one epoch, of all replicas side by side."""
        each = (self.alone(k).batches(s, g) for k, (s, g) in enumerate(zip(seen, generators, strict=True)))
        return (list(batches) for batches in zip(*each, strict=True))

    @abstractmethod
    def originals(self) -> list[Data]:
        """What predictions are made on, one or several batches; the outputs are put one after another."""

    def looked_at(self) -> list[Data]:
        """Graphs on which one may look at what channels compute: all that is there in training, without labels."""
        return self.originals()

    def read_out(self, out: Tensor) -> Tensor:
        """The prediction, from the model's output on :meth:`originals`."""
        return out

    @abstractmethod
    def floor(self) -> float | None:
        """Test score of always predicting the commonest class; ``None`` if there is no such thing.

        Commonest among those to train on; where several are, among these by those to validate on.
        """

    def combine(self, predictions: Sequence[Tensor]) -> Tensor:
        """The ensemble's prediction: majority vote, ties by mean probability."""
        stacked = torch.stack([p.softmax(-1) for p in predictions])
        votes = torch.nn.functional.one_hot(stacked.argmax(-1), stacked.shape[-1]).sum(0)
        return votes + 0.5 * stacked.mean(0)  # the mean is at most 1, so it decides between equal votes and no others

    @abstractmethod
    def at(self, split: int) -> Task:
        """The same task on another split."""

    def together(self, splits: Sequence[int]) -> Task:
        """The task of replicas that each have a split of their own."""
        if all(s == self.split for s in splits):
            return self
        each = {split: self.at(split) for split in dict.fromkeys(splits)}
        task = copy.copy(self)
        task.several = [each[split] for split in splits]
        return task

    def alone(self, replica: int) -> Task:
        """The task of one of the replicas."""
        return self.several[replica] if self.several else self

    def to(self, device: torch.device) -> Task:
        """A copy whose tensors, graphs and collections of them are on ``device``."""
        return _changed(self, lambda value: value.to(device))


class Classification(Task):
    """Each node or graph has one label."""

    labels: Tensor
    parts: dict[str, Tensor]  # which nodes or graphs are in each

    def part_loss(self, prediction: Tensor, part: str) -> Tensor:
        return cross_entropy(*self.part(prediction, part))

    def check_metric(self) -> None:
        """The area under a curve has no value where all labels are alike; told before anything is trained."""
        for part in ("val", "test") if self._metric is roc_auc else ():
            found = self.labels[self.parts[part]].unique()
            if len(found) < 2:
                raise AkeError(f"metric: roc_auc has no value where all {part} labels are {int(found[0])}")

    def floor(self) -> float | None:
        train, val = (self.labels[self.parts[p]].bincount(minlength=self.outputs) for p in ("train", "val"))
        commonest = (train * (len(self.labels) + 1) + val).argmax()
        constant = torch.zeros(len(self.labels), self.outputs, device=self.labels.device)
        constant[:, commonest] = 1
        return self.score(constant, "test")


def in_precision(task: Task, dtype: torch.dtype) -> Task:
    """A copy whose graphs have their features and weights in the precision that the networks have."""
    return _changed(task, lambda value: cast(value, dtype) if isinstance(value, Data) else value)


def _changed(task: Task, change: Callable[[Any], Any]) -> Task:
    def changed(value: Any) -> Any:
        if isinstance(value, Tensor | Data):
            return change(value)
        if isinstance(value, dict):
            return {k: changed(v) for k, v in value.items()}
        if isinstance(value, list):
            return [changed(v) for v in value]
        return value

    task = copy.copy(task)
    task.__dict__ = {k: changed(v) for k, v in task.__dict__.items() if not k.startswith("_cached")}
    return task


def whole_labels(labels: Any) -> Tensor:
    """One whole number each, as a long tensor."""
    if not isinstance(labels, Tensor):
        raise AkeError(f"y: must be a tensor, is a {type(labels).__name__}")
    if labels.is_floating_point() or labels.dim() != 1:
        hint = "data.y.long() where they are classes; numbers to be predicted (regression) are not supported"
        if labels.dim() == 2:
            hint = "data.y.argmax(1) where one of each row is 1; several labels at once are not supported"
        raise AkeError(f"y: must be one whole number each, got {labels.dtype} of shape {tuple(labels.shape)} ({hint})")
    return labels.long()


def check_classes(labels: Tensor, parts: dict[str, Tensor]) -> int:
    """Labels must lie from 0 on, and be of at least two classes. Returns the number of classes."""
    used = labels[torch.cat(list(parts.values()))]
    for part, members in parts.items():
        bare = members[labels[members] < 0]
        if len(bare):
            which = f"number {int(bare[0])} (counted from 0) is for {part}"
            raise AkeError(f"y: {which} and has no label ({int(labels[bare[0]])})")
    if len(used.unique()) < 2:
        raise AkeError(f"y: only one class ({int(used[0])}); at least two are needed")
    classes = int(used.max()) + 1
    if classes > 10 * len(used):
        raise AkeError(f"y: label {classes - 1} with only {len(used)} labels; labels must be 0 to classes - 1")
    return classes


def check_outputs(task: str, out: Tensor, classes: int) -> None:
    """A classifier needs one column per class."""
    if out.dim() != 2 or out.shape[-1] != classes:
        raise AkeError(f"model: its output has shape {tuple(out.shape)}, the {task} task needs {classes} columns")


def check_graph(data: Data, name: str = "data") -> None:
    """What every task needs of a graph."""
    if data.get("edge_index") is None:
        raise AkeError(f"{name}.edge_index: missing")
    if data.get("x") is None:
        raise AkeError(f"{name}.x: missing; node features are needed")
    for key in ("x", "edge_index"):
        if not isinstance(data[key], Tensor) or data[key].dim() != 2:
            raise AkeError(f"{name}.{key}: must be a matrix, a tensor of two dimensions")
    if data.edge_index.shape[0] != 2 or data.edge_index.is_floating_point():
        kind = f"{data.edge_index.dtype} of shape {tuple(data.edge_index.shape)}"
        raise AkeError(f"{name}.edge_index: must be whole numbers of shape (2, edges), is {kind}")
    weight = data.get("edge_weight")
    if weight is not None:
        if not isinstance(weight, Tensor):
            raise AkeError(f"{name}.edge_weight: must be a tensor, is a {type(weight).__name__}")
        if weight.shape != data.edge_index.shape[1:]:
            shape, edges = tuple(weight.shape), data.edge_index.shape[1]
            raise AkeError(f"{name}.edge_weight: must be one weight per edge, has shape {shape} for {edges} edges")
        if not bool(torch.isfinite(weight).all()):
            raise AkeError(f"{name}.edge_weight: contains NaN or infinite weights")
    x = data.x if data.x.layout == torch.strided else data.x.to_sparse_coo().coalesce().values()
    if not x.is_floating_point():
        raise AkeError(f"{name}.x: must be floating point, is {data.x.dtype}")
    if not bool(torch.isfinite(x).all()):
        raise AkeError(f"{name}.x: contains NaN or infinite features")
    if data.edge_index.numel() and int(data.edge_index.max()) >= data.num_nodes:
        raise AkeError(f"{name}.edge_index: names node {int(data.edge_index.max())}, but there are {data.num_nodes}")
    if data.edge_index.numel() and int(data.edge_index.min()) < 0:
        raise AkeError(f"{name}.edge_index: names node {int(data.edge_index.min())}; nodes count from 0")
