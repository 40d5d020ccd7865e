"""A graph convolutional network with a bag of tricks for large graphs (Wang et al., https://arxiv.org/abs/2103.13355)."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot
from torch_geometric.data import Data

from ..propagate import Edges, Sparse, dropout, gcn_adjacency
from .gcn import GraphConvolution

EPSILON = 1 - math.log(2)  # the loss log(eps + CE) - log(eps) has slope 1 where CE is log 2: outliers weigh less


class GCNTricks(nn.Module):
    """Graph convolutions with BatchNorm and dropout, trained by a robust loss on half of the training nodes at a time.

    ``linear`` adds a linear layer beside each convolution. ``labels`` feeds the labels of the other half in as
    features; they are those of all training nodes when the network predicts.
    """

    replicable = True  # replicas may have edges of their own, see akegnn.population

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 256,
        num_layers: int = 3,
        input_dropout: float = 0.1,
        dropout: float = 0.75,
        linear: bool = False,
        labels: bool = False,
    ) -> None:
        super().__init__()
        widths = [in_channels + labels * out_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.convs = nn.ModuleList(GraphConvolution(a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden_channels) for _ in range(num_layers - 1))
        self.besides = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(widths) if linear)
        self.input_dropout, self.dropout, self.classes = input_dropout, dropout, out_channels if labels else 0

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        for layer in (*self.convs, *self.norms, *self.besides):
            layer.reset_parameters()  # type: ignore[operator]

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Edges,
        edge_weight: Tensor | None = None,
        y: Tensor | None = None,
        train_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits (or embeddings) of nodes ``[N, out]``; of ``y`` only what ``train_mask`` marks is ever looked at."""
        x = x if x.layout == torch.strided else x.to_dense()
        if self.classes:
            known = x.new_zeros(x.shape[0], self.classes)
            if y is not None and train_mask is not None:
                known = one_hot((y * train_mask).view(-1), self.classes).to(x.dtype) * train_mask.view(-1, 1)
            x = torch.cat([x, known], dim=-1)
        a: Sparse = gcn_adjacency(edge_index, edge_weight, self.convs[0].bias, x.shape[0])  # type: ignore[arg-type]
        x = dropout(x, self.input_dropout, self.training)
        for k, conv in enumerate(self.convs):
            beside = self.besides[k](x) if self.besides else 0.0
            x = conv(x, a) + beside
            if k < len(self.convs) - 1:
                x = dropout(self.norms[k](x).relu(), self.dropout, self.training)
        return x

    def training_loss(self, batch: Data, loss: Callable[[Tensor], Tensor]) -> Tensor:
        """The robust loss on a random half of the training nodes; the other half's labels are inputs, if any are."""
        y, train = batch.get("y"), batch.get("train_mask")
        links = batch.get("edge_label") is not None
        if links or y is None or train is None or y.shape != train.shape:  # not classes of nodes: the task knows better
            return loss(self(batch.x, batch.edge_index, batch.get("edge_weight")))
        asked = train & (torch.rand(train.shape, device=train.device) < 0.5)
        out = self(batch.x, batch.edge_index, batch.get("edge_weight"), y, train & ~asked)
        each = cross_entropy(out, y.clamp(0, out.shape[-1] - 1), reduction="none")
        robust = (EPSILON + each).log() - math.log(EPSILON)
        return (robust * asked).sum() / asked.sum().clamp_min(1)
