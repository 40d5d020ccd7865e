"""GRAND, random propagation and consistency (Feng et al., https://arxiv.org/abs/2005.11079)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from ..forward import arguments
from ..propagate import Edges, Features, FirstLinear, Sparse, dropout, features, gcn_adjacency


class GRAND(nn.Module):
    """Whole nodes' features are dropped, propagated over up to ``order`` steps and read by a perceptron.

    Training draws ``samples`` of these and asks that they agree on every node, labelled or not.
    """

    replicable = True  # replicas may have edges of their own, see akegnn.population
    tasks = ("node",)  # its loss is about classes of nodes

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 32,
        order: int = 8,
        samples: int = 4,
        drop_node: float = 0.5,
        input_dropout: float = 0.5,
        dropout: float = 0.5,
        temperature: float = 0.5,
        consistency: float = 1.0,
        batch_norm: bool = False,
        official_init: bool = True,
    ) -> None:
        """``official_init``: weights and biases with a negative mean, as the authors' code draws them."""
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm1d(in_channels), nn.BatchNorm1d(hidden_channels)] if batch_norm else [])
        self.first = FirstLinear(in_channels, hidden_channels)
        self.last = nn.Linear(hidden_channels, out_channels)
        self.order, self.samples, self.drop_node = order, samples, drop_node
        self.input_dropout, self.dropout = input_dropout, dropout
        self.temperature, self.consistency, self.official_init = temperature, consistency, official_init
        self.sparse_features = not (batch_norm or input_dropout)  # then their first step is a product with weights
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        for layer in (self.first, self.last):
            layer.reset_parameters()
            if self.official_init:
                deviation = layer.out_features**-0.5
                nn.init.normal_(layer.weight, -deviation, deviation)
                nn.init.normal_(layer.bias, -deviation, deviation)
        for norm in self.norms:
            norm.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Features, edge_index: Tensor | Edges, edge_weight: Tensor | None = None) -> Tensor:
        """Logits of nodes ``[N, out]``; in training with nodes dropped at random."""
        a = gcn_adjacency(edge_index, edge_weight, self.last.bias, x.shape[0])
        if self.norms or (self.training and self.input_dropout):
            assert isinstance(x, Tensor)
            h = self._propagate(x if x.layout == torch.strided else x.to_dense(), a)
            h = self.norms[0](h) if self.norms else h
            h = self.first(dropout(h, self.input_dropout, self.training)).relu()
            h = self.norms[1](h) if self.norms else h
        else:  # nothing happens to features between steps and weights: they commute, and there are fewer columns
            b = self.first.bias
            h = (self._propagate(self.first(features(x)) - b, a) + b).relu()
        return self.last(dropout(h, self.dropout, self.training))

    def _propagate(self, x: Tensor, a: Sparse) -> Tensor:
        """The mean of ``a^0 x`` to ``a^order x``, of features whose every node is there, or not, with all of them."""
        keep = torch.full((x.shape[0], 1), 1 - self.drop_node, dtype=x.dtype, device=x.device)
        x = x * (torch.bernoulli(keep) if self.training else keep)
        total = x.clone()
        for _ in range(self.order):
            x = a @ x
            total.add_(x)  # in place: features are wide
        return total.div_(self.order + 1)

    def training_loss(self, batch: Data, loss: Callable[[Tensor], Tensor]) -> Tensor:
        """Mean loss of the samples, and how far each is from their sharpened mean."""
        positional, named = arguments(self, batch)
        outs = [self(*positional, **named) for _ in range(self.samples)]
        supervised = torch.stack([loss(out) for out in outs]).mean()
        p = torch.stack([out.softmax(-1) for out in outs])  # [S, N, C]
        sharp = p.detach().mean(0) ** (1 / self.temperature)
        sharp = sharp / sharp.sum(-1, keepdim=True)
        return supervised + self.consistency * (p - sharp).square().sum(-1).mean()
