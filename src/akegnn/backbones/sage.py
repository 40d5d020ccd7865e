"""GraphSAGE with the mean of neighbours (Hamilton et al., https://arxiv.org/abs/1706.02216)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear

from ..channels import RULES, Rule
from ..propagate import Edges, Features, Sparse, dropout, features, linear, mean_adjacency


class MeanConvolution(nn.Module):
    """One layer: a node and the mean of its neighbours, each with its own weights, named as in PyG's ``SAGEConv``."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.lin_l = Linear(in_channels, out_channels)
        self.lin_r = Linear(in_channels, out_channels, bias=False)

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        self.lin_l.reset_parameters()
        self.lin_r.reset_parameters()

    def forward(self, x: Features, a: Sparse) -> Tensor:
        """``a @ (x W_l) + x W_r + b``."""
        return a @ linear(x, self.lin_l.weight) + linear(x, self.lin_r.weight) + self.lin_l.bias


RULES[MeanConvolution] = Rule(("lin_l.weight@0", "lin_r.weight@0"), ("lin_l.bias@0",))


class GraphSAGE(nn.Module):
    """``num_layers`` mean convolutions with ReLU and dropout between, and BatchNorm with ``batch_norm``."""

    replicable = True  # replicas may have edges of their own, see akegnn.population
    sparse_features = True  # the first thing that happens to features is a product with weights

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 64,
        num_layers: int = 2,
        dropout: float = 0.5,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.convs = nn.ModuleList(MeanConvolution(a, b) for a, b in pairwise(widths))
        norms = num_layers - 1 if batch_norm else 0
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden_channels) for _ in range(norms))
        self.dropout = dropout

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        for layer in (*self.convs, *self.norms):
            layer.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Features, edge_index: Tensor | Edges, edge_weight: Tensor | None = None) -> Tensor:
        """Logits (or embeddings) of nodes ``[N, out]``."""
        x = features(x)
        like: Tensor = self.convs[0].lin_l.bias  # type: ignore[assignment, union-attr]
        a = mean_adjacency(edge_index, edge_weight, like, x.shape[0])
        for k, conv in enumerate(self.convs):
            x = conv(x, a)
            if k < len(self.convs) - 1:
                x = self.norms[k](x) if self.norms else x
                x = dropout(torch.relu(x), self.dropout, self.training)  # type: ignore[arg-type]
        return x  # type: ignore[return-value]
