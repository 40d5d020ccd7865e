"""Graph convolutional network (Kipf and Welling, https://arxiv.org/abs/1609.02907)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear, global_mean_pool

from ..channels import RULES, Rule
from ..propagate import Edges, Features, Sparse, dropout, features, gcn_adjacency, linear


class GraphConvolution(nn.Module):
    """One layer: features times weights, averaged over neighbours. Parameters are named as in PyG's ``GCNConv``."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin = Linear(in_channels, out_channels, bias=False, weight_initializer="glorot")
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        self.lin.reset_parameters()
        nn.init.zeros_(self.bias)

    def forward(self, x: Features, a: Sparse) -> Tensor:
        """``a @ (x W) + b``."""
        return a @ linear(x, self.lin.weight) + self.bias


RULES[GraphConvolution] = Rule(("lin.weight@0",), ("bias@0",))


class GCN(nn.Module):
    """``num_layers`` graph convolutions, dropout before each, ReLU between.

    With ``pool`` the nodes of each graph are averaged and a linear layer follows: a classifier of graphs.
    """

    replicable = True  # replicas may have edges of their own, see akegnn.population
    tasks = ("node", "link", "graph")
    sparse_features = True  # the first thing that happens to features is a product with weights

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 16,
        num_layers: int = 2,
        dropout: float = 0.5,
        pool: bool = False,
    ) -> None:
        super().__init__()
        widths = [in_channels, *[hidden_channels] * (num_layers if pool else num_layers - 1)]
        if not pool:
            widths.append(out_channels)
        self.convs = nn.ModuleList(GraphConvolution(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(hidden_channels, out_channels) if pool else None
        self.dropout = dropout

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        for layer in [*self.convs, *([self.head] if self.head is not None else [])]:
            layer.reset_parameters()  # type: ignore[operator]

    def forward(
        self,
        x: Features,
        edge_index: Tensor | Edges,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        """Logits (or embeddings) of nodes ``[N, out]``, of graphs ``[G, out]`` with ``pool``."""
        x = features(x)
        a = gcn_adjacency(edge_index, edge_weight, self.convs[0].bias, x.shape[0])  # type: ignore[arg-type]
        for k, conv in enumerate(self.convs):
            if k > 0:
                x = x.relu()  # type: ignore[union-attr]
            x = conv(dropout(x, self.dropout, self.training), a)
        if self.head is None:
            return x  # type: ignore[return-value]
        return self.head(dropout(global_mean_pool(x.relu(), batch), self.dropout, self.training))  # type: ignore[union-attr]
