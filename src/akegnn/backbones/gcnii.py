"""GCNII, a deep network with initial residual and identity mapping (Chen et al., https://arxiv.org/abs/2007.02133)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch_geometric.nn.inits import glorot

from ..channels import RULES, Rule
from ..propagate import Edges, Features, FirstLinear, Sparse, dropout, features, gcn_adjacency


class ResidualConvolution(nn.Module):
    """One layer: neighbours' mean and the first layer's features, partly passed on as they are, partly weighted.

    With ``variant`` (the authors' GCNII*) the two have weights of their own and are not mixed before them.
    """

    def __init__(self, channels: int, alpha: float, beta: float, variant: bool = False) -> None:
        super().__init__()
        self.alpha, self.beta = alpha, beta
        self.weight1 = nn.Parameter(torch.empty(channels, channels))  # [in, out], as in PyG's GCN2Conv
        self.weight2 = nn.Parameter(torch.empty(channels, channels)) if variant else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        glorot(self.weight1)
        glorot(self.weight2)

    def forward(self, x: Tensor, x_0: Tensor, a: Sparse) -> Tensor:
        """``(1 - beta) h + beta h W`` with ``h = (1 - alpha) a @ x + alpha x_0``.

        With ``variant``: ``(1 - beta) h + beta (a @ x W_1 + x_0 W_2)``.
        """
        near = a @ x
        h = torch.lerp(near, x_0.to(near.dtype), self.alpha)
        weighted = h @ self.weight1 if self.weight2 is None else near @ self.weight1 + x_0 @ self.weight2
        return torch.lerp(h, weighted.to(h.dtype), self.beta)


RULES[ResidualConvolution] = Rule(("weight1@1", "weight2@1"), passes=True)


class GCNII(nn.Module):
    """A linear layer, ``num_layers`` residual convolutions, a linear layer; with ``variant`` the authors' GCNII*."""

    replicable = True  # replicas may have edges of their own, see akegnn.population
    sparse_features = True  # the first thing that happens to features is a product with weights

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 64,
        num_layers: int = 64,
        alpha: float = 0.1,
        theta: float = 0.5,
        dropout: float = 0.6,
        variant: bool = False,
    ) -> None:
        super().__init__()
        self.first = FirstLinear(in_channels, hidden_channels)
        self.convs = nn.ModuleList(
            ResidualConvolution(hidden_channels, alpha, math.log(theta / (k + 1) + 1), variant)
            for k in range(num_layers)
        )
        self.last = nn.Linear(hidden_channels, out_channels)
        self.dropout = dropout

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        for layer in (self.first, *self.convs, self.last):
            layer.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Features, edge_index: Tensor | Edges, edge_weight: Tensor | None = None) -> Tensor:
        """Logits (or embeddings) of nodes ``[N, out]``."""
        x = features(x)
        a = gcn_adjacency(edge_index, edge_weight, self.last.bias, x.shape[0])
        x = dropout(x, self.dropout, self.training)
        h = x_0 = self.first(x).relu()
        for conv in self.convs:
            h = conv(dropout(h, self.dropout, self.training), x_0, a).relu()
        return self.last(dropout(h, self.dropout, self.training))


class DenseResidualConvolution(nn.Module):
    """One layer for large graphs: neighbours' mean and the first layer's features, as they are and weighted."""

    def __init__(self, channels: int, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha
        self.weight1 = nn.Parameter(torch.empty(channels, channels))  # [in, out], as in PyG's GCN2Conv
        self.weight2 = nn.Parameter(torch.empty(channels, channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        glorot(self.weight1)
        glorot(self.weight2)

    def forward(self, x: Tensor, x_0: Tensor, a: Sparse) -> Tensor:
        """``a @ (x + x W_1) + alpha x_0 + x_0 W_2``."""
        return a @ (x + x @ self.weight1) + self.alpha * x_0 + x_0 @ self.weight2


RULES[DenseResidualConvolution] = Rule(("weight1@1", "weight2@1"), passes=True)


class GCNIIDense(nn.Module):
    """The variant for large graphs: BatchNorm after each convolution, and the layer before it added."""

    replicable = True  # replicas may have edges of their own, see akegnn.population
    sparse_features = True  # the first thing that happens to features is a product with weights

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 256,
        num_layers: int = 16,
        alpha: float = 0.5,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.first = FirstLinear(in_channels, hidden_channels)
        self.convs = nn.ModuleList(DenseResidualConvolution(hidden_channels, alpha) for _ in range(num_layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden_channels) for _ in range(num_layers))
        self.last = nn.Linear(hidden_channels, out_channels)
        self.dropout = dropout

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        for layer in (self.first, *self.convs, *self.norms, self.last):
            layer.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Features, edge_index: Tensor | Edges, edge_weight: Tensor | None = None) -> Tensor:
        """Logits (or embeddings) of nodes ``[N, out]``."""
        x = features(x)
        a = gcn_adjacency(edge_index, edge_weight, self.last.bias, x.shape[0])
        h = x_0 = self.first(dropout(x, self.dropout, self.training)).relu()
        for conv, norm in zip(self.convs, self.norms, strict=True):
            new = conv(dropout(h, self.dropout, self.training), x_0, a)
            h = norm(new).relu() + h
        return self.last(dropout(h, self.dropout, self.training))
