"""Jumping knowledge networks (Xu et al., https://arxiv.org/abs/1806.03536)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..propagate import Edges, Features, dropout, features, gcn_adjacency
from .gcn import GraphConvolution


class JKNetCat(nn.Module):
    """Graph convolutions, each followed by ReLU and dropout; the last layer reads the outputs of all of them."""

    replicable = True  # replicas may have edges of their own, see akegnn.population
    sparse_features = True  # the first thing that happens to features is a product with weights

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 32,
        num_layers: int = 4,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            GraphConvolution(in_channels if k == 0 else hidden_channels, hidden_channels) for k in range(num_layers)
        )
        self.last = nn.Linear(self._width(hidden_channels, num_layers), out_channels)
        self.dropout = dropout

    @staticmethod
    def _width(hidden_channels: int, num_layers: int) -> int:
        return hidden_channels * num_layers

    @staticmethod
    def _jump(layers: list[Tensor]) -> Tensor:
        return torch.cat(layers, dim=-1)

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        for layer in (*self.convs, self.last):
            layer.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Features, edge_index: Tensor | Edges, edge_weight: Tensor | None = None) -> Tensor:
        """Logits (or embeddings) of nodes ``[N, out]``."""
        x = features(x)
        a = gcn_adjacency(edge_index, edge_weight, self.last.bias, x.shape[0])
        layers: list[Tensor] = []
        for conv in self.convs:
            x = conv(dropout(x, self.dropout, self.training), a).relu()
            layers.append(x)  # type: ignore[arg-type]
        return self.last(dropout(self._jump(layers), self.dropout, self.training))


class JKNetMax(JKNetCat):
    """As :class:`JKNetCat`, but the last layer reads the largest value that each channel has in any layer."""

    replicable = True  # said by every class itself: a person's own, derived from one of ours, may do anything

    @staticmethod
    def _width(hidden_channels: int, num_layers: int) -> int:
        return hidden_channels

    @staticmethod
    def _jump(layers: list[Tensor]) -> Tensor:
        return torch.stack(layers).amax(0)
