"""GCN_res-v2, a residual network for large graphs (https://github.com/ytchx1999/ogbn_arxiv_GCN_res)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..propagate import Edges, Features, FirstLinear, dropout, features, gcn_adjacency
from .gcn import GraphConvolution


class ResGCN(nn.Module):
    """Graph convolutions with BatchNorm, each added to a part of the input and of the layer before it; the last layer
    reads a weighted mean of all of them."""

    replicable = True  # replicas may have edges of their own, see akegnn.population
    sparse_features = True  # the first thing that happens to features is a product with weights

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 128,
        num_layers: int = 8,
        alpha: float = 0.2,
        beta: float = 0.7,
        dropout: float = 0.5,
    ) -> None:
        """``alpha``: share of the input that is added; ``beta``: of the layer before."""
        super().__init__()
        self.first = FirstLinear(in_channels, hidden_channels)
        self.convs = nn.ModuleList(GraphConvolution(hidden_channels, hidden_channels) for _ in range(num_layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden_channels) for _ in range(num_layers))
        self.last = nn.Linear(hidden_channels, out_channels)
        self.shares = nn.Parameter(torch.zeros(num_layers))
        self.alpha, self.beta, self.dropout = alpha, beta, dropout

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        for layer in (self.first, *self.convs, *self.norms, self.last):
            layer.reset_parameters()  # type: ignore[operator]
        nn.init.zeros_(self.shares)

    def forward(self, x: Features, edge_index: Tensor | Edges, edge_weight: Tensor | None = None) -> Tensor:
        """Logits (or embeddings) of nodes ``[N, out]``."""
        x = features(x)
        a = gcn_adjacency(edge_index, edge_weight, self.last.bias, x.shape[0])
        x_0 = h = self.first(x)
        shares = self.shares.softmax(0)
        total: Tensor | float = 0.0
        for k, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            new = dropout(norm(conv(h, a)).relu(), self.dropout, self.training)
            h = new + self.alpha * x_0 + (self.beta * h if k > 0 else 0.0)
            total = total + shares[k] * h
        return self.last(total)
