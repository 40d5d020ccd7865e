"""Graph isomorphism network (Xu et al., https://arxiv.org/abs/1810.00826)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import global_add_pool, global_mean_pool

from ..errors import AkeError
from ..propagate import Edges, Sparse, dropout, sum_adjacency

READOUTS = {"sum": global_add_pool, "mean": global_mean_pool}


class SumConvolution(nn.Module):
    """One layer: a perceptron on the sum of a node, times 1 + eps, and its neighbours."""

    def __init__(self, perceptron: nn.Sequential) -> None:
        super().__init__()
        self.nn, self.eps = perceptron, nn.Parameter(torch.zeros(1))

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        for layer in self.nn:
            if isinstance(layer, nn.Linear | nn.BatchNorm1d):
                layer.reset_parameters()
        nn.init.zeros_(self.eps)

    def forward(self, x: Tensor, a: Sparse) -> Tensor:
        """``nn(a @ x + (1 + eps) x)``."""
        return self.nn(a @ x + (1 + self.eps) * x)


class GIN(nn.Module):
    """``num_layers`` sums over neighbours, each followed by a two-layer perceptron with BatchNorm; then a linear layer.

    With ``pool`` the nodes of each graph are summed before the last layer, or averaged: that is ``readout``. The mean
    suits graphs of very different sizes, whose sums are too.
    """

    replicable = True  # replicas may have edges of their own, see akegnn.population
    tasks = ("node", "link", "graph")

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 32,
        num_layers: int = 3,
        dropout: float = 0.5,
        pool: bool = False,
        readout: str = "sum",
    ) -> None:
        super().__init__()
        if readout not in READOUTS:
            raise AkeError(f"readout: {readout!r} is not one of {', '.join(READOUTS)}")
        self.convs = nn.ModuleList()
        for k in range(num_layers):
            perceptron = nn.Sequential(
                nn.Linear(in_channels if k == 0 else hidden_channels, hidden_channels),
                nn.BatchNorm1d(hidden_channels),
                nn.ReLU(),
                nn.Linear(hidden_channels, hidden_channels),
                nn.ReLU(),
            )
            self.convs.append(SumConvolution(perceptron))
        self.head = nn.Linear(hidden_channels, out_channels)
        self.dropout, self.pool, self.readout = dropout, pool, readout

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        for layer in (*self.convs, self.head):
            layer.reset_parameters()  # type: ignore[operator]

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | Edges,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        """Logits (or embeddings) of nodes ``[N, out]``, of graphs ``[G, out]`` with ``pool``."""
        x = x if x.layout == torch.strided else x.to_dense()
        a = sum_adjacency(edge_index, edge_weight, self.head.bias, x.shape[0])
        for conv in self.convs:
            x = conv(x, a)
        if self.pool:
            x = READOUTS[self.readout](x, batch)
        return self.head(dropout(x, self.dropout, self.training))
