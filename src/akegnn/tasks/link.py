"""Link prediction: the inner product of two nodes' embeddings says how likely they are joined."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch_geometric.data import Data
from torch_geometric.utils import is_undirected

from ..errors import AkeError
from ..forward import forward
from ..propagate import lean
from ..settings import derive
from ..views import View, keep_edges
from .base import Metric, Task, check_graph

VALIDATION, TEST = 0.05, 0.10  # shares of the edges that are held out


class LinkTask(Task):
    """85 / 5 / 10 % of the undirected edges; as many pairs without an edge, drawn anew in every epoch of training.

    The graph that networks see, and that views are made of, holds the training edges only.
    """

    name = "link"
    metric_name = "roc_auc"

    def __init__(self, data: Data, split: int = 0, metric: str | Metric | None = None, outputs: int = 64) -> None:
        super().__init__(metric)
        check_graph(data)
        if not is_undirected(data.edge_index, num_nodes=data.num_nodes):
            raise AkeError("data.edge_index: the link task needs an undirected graph (both directions of every edge)")
        self.nodes, self.outputs, self.features = int(data.num_nodes or 0), outputs, data.x.shape[1]
        self.split, self._given, self._metric_given = split, data, metric
        generator = torch.Generator().manual_seed(derive(split, "links"))
        if metric in ("accuracy", "f1"):
            raise AkeError(f"metric: {metric} is of classes; the link task has scores (roc_auc, average_precision)")
        once = (data.edge_index[0] < data.edge_index[1]).nonzero().flatten()
        order = self._ids(data.edge_index[:, once]).sort(stable=True)  # an edge that is listed twice counts once
        new = torch.ones_like(order.values, dtype=torch.bool)
        new[1:] = order.values[1:] != order.values[:-1]
        once = once[order.indices[new]]
        if len(once) < 20:
            raise AkeError(f"data.edge_index: {len(once)} undirected edges are too few to hold some out; 20 are needed")
        once = once[torch.randperm(len(once), generator=generator).to(once.device)]
        held = {"val": max(1, int(VALIDATION * len(once))), "test": max(1, int(TEST * len(once)))}
        every = self._ids(data.edge_index).unique().cpu().numpy()
        self.pairs, self.targets = {}, {}
        start = 0
        for part, size in held.items():
            joined = data.edge_index[:, once[start : start + size]]
            self.pairs[part] = torch.cat([joined, self.unjoined(size, generator, every)], dim=1)
            self.targets[part] = torch.cat([torch.ones(size), torch.zeros(size)]).to(joined.device)
            start += size
        self.pairs["train"] = data.edge_index[:, once[start:]]
        self.train_targets = (torch.arange(2 * (len(once) - start)) < len(once) - start).float().to(once.device)
        self.data = self._training_graph(data)
        # Held-out edges are not known in training: never to draw them as negatives would give them away.
        self.known = self._ids(self.data.edge_index).unique().cpu().numpy()  # an array: it stays where draws are made
        self.example = self.data
        self.sizes = {"train": len(once) - start, **held}

    def _training_graph(self, data: Data) -> Data:
        held = self._ids(torch.cat([self.pairs["val"], self.pairs["test"]], dim=1))
        kept = ~torch.isin(self._ids(data.edge_index), held)
        return keep_edges(copy.copy(data), kept)

    def _ids(self, pairs: Tensor) -> Tensor:
        return pairs.amin(0) * self.nodes + pairs.amax(0)

    def unjoined(self, count: int, generator: torch.Generator, edges: np.ndarray) -> Tensor:
        """``count`` pairs of different nodes, none of them one of ``edges``, sorted ids of pairs."""
        found = torch.empty(2, 0, dtype=torch.long)
        known = torch.from_numpy(edges)
        for _ in range(100):
            draw = torch.randint(self.nodes, (2, 2 * (count - found.shape[1]) + 8), generator=generator)
            ids = self._ids(draw)
            joined = known[torch.searchsorted(known, ids).clamp_max(len(known) - 1)] == ids
            draw = draw[:, (draw[0] != draw[1]) & ~joined]
            found = torch.cat([found, draw], dim=1)[:, :count]
            if found.shape[1] == count:
                return found.to(self._given.edge_index.device)
        raise AkeError("data.edge_index: too dense to find pairs without an edge")

    def seen(self, view: View, generator: torch.Generator) -> Data:
        return view(self.data, generator)

    def at(self, split: int) -> LinkTask:
        return self if split == self.split else LinkTask(self._given, split, self._metric_given, self.outputs)

    new_batches = True

    def batches(self, seen: Data, generator: torch.Generator) -> Iterator[Data]:
        joined = self.pairs["train"]
        batch = copy.copy(seen)
        batch.edge_label_index = torch.cat([joined, self.unjoined(joined.shape[1], generator, self.known)], dim=1)
        batch.edge_label = self.train_targets
        yield batch

    def originals(self) -> list[Data]:
        return [self.data]

    def read_out(self, out: Tensor) -> Tensor:
        return torch.cat([_scores(out, self.pairs[part]) for part in ("val", "test")])

    def loss(self, out: Tensor, batch: Data) -> Tensor:
        if out.dim() != 2:
            raise AkeError(
                f"model: its output has shape {tuple(out.shape)}, the link task needs one embedding per node"
            )
        return binary_cross_entropy_with_logits(_scores(out, batch.edge_label_index), batch.edge_label.to(out.dtype))

    def predict(self, model: nn.Module) -> Tensor:
        return self.read_out(forward(model, lean(self.data, model)))

    def probability(self, model: nn.Module, pairs: Tensor) -> Tensor:
        """How likely the pairs ``[2, P]`` are joined, seen from the training edges."""
        return _scores(forward(model, lean(self.data, model)), pairs).sigmoid()

    def part(self, prediction: Tensor, part: str) -> tuple[Tensor, Tensor]:
        middle = len(self.targets["val"])
        scores = prediction[:middle] if part == "val" else prediction[middle:]
        return scores, self.targets[part]

    def part_loss(self, prediction: Tensor, part: str) -> Tensor:
        scores, target = self.part(prediction, part)
        return binary_cross_entropy_with_logits(scores, target.to(scores.dtype))

    def combine(self, predictions: Sequence[Tensor]) -> Tensor:
        """Mean probability, as a logit: votes have no meaning for scores."""
        return torch.stack([p.sigmoid() for p in predictions]).mean(0).logit(eps=1e-7)

    def floor(self) -> float | None:
        return 0.5 if self.metric_name in ("roc_auc", "average_precision") else None


def _scores(embedding: Tensor, pairs: Tensor) -> Tensor:
    return (embedding[pairs[0]] * embedding[pairs[1]]).sum(-1)
