"""Graph U-Net (Gao and Ji, https://arxiv.org/abs/1905.05178), PyG's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.utils import dropout_edge, is_undirected

from ..channels import RULES, Rule

# Pooling scores nodes by all channels together, and hands on those it keeps column by column.
RULES[pyg.TopKPooling] = Rule(reads=("select.weight@1",), passes=True)


class GraphUNet(nn.Module):
    """Convolutions between graphs of fewer and fewer nodes, down and up again.

    Which nodes are kept depends on the weights, so networks are trained one after another, not as a population.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 32,
        depth: int = 3,
        pool_ratios: float | Sequence[float] = 0.5,
        dropout: float = 0.92,
        edge_dropout: float = 0.2,
    ) -> None:
        super().__init__()
        ratios = pool_ratios if isinstance(pool_ratios, int | float) else list(pool_ratios)
        self.unet = pyg.GraphUNet(in_channels, hidden_channels, out_channels, depth, ratios)
        self.dropout, self.edge_dropout = dropout, edge_dropout

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        self.unet.reset_parameters()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (or embeddings) of nodes ``[N, out]``."""
        x = x if x.layout == torch.strided else x.to_dense()
        if self.training and self.edge_dropout > 0:  # both directions of an edge together, where there are both
            both = is_undirected(edge_index, num_nodes=x.shape[0])
            edge_index, _ = dropout_edge(edge_index, self.edge_dropout, force_undirected=both)
        with torch.sparse.check_sparse_tensor_invariants(enable=False):  # PyG does not say, and torch warns of that
            return self.unet(nn.functional.dropout(x, self.dropout, self.training), edge_index)
