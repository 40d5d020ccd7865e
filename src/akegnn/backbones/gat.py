"""Graph attention network (Velickovic et al., https://arxiv.org/abs/1710.10903)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, leaky_relu
from torch_geometric.nn import Linear
from torch_geometric.nn.inits import glorot

from ..channels import RULES, Rule
from ..propagate import Edges, Features, Sparse, attention_pattern, dropout, features, linear


class GraphAttention(nn.Module):
    """One layer of several attention heads. Parameters are named as in PyG's ``GATConv``."""

    def __init__(self, in_channels: int, out_channels: int, heads: int, concat: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.width, self.concat, self.dropout = heads, out_channels, concat, dropout
        self.lin = Linear(in_channels, heads * out_channels, bias=False, weight_initializer="glorot")
        self.att_src = nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_channels))
        self.bias = nn.Parameter(torch.empty(heads * out_channels if concat else out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        self.lin.reset_parameters()
        glorot(self.att_src)
        glorot(self.att_dst)
        nn.init.zeros_(self.bias)

    def forward(self, x: Features, pattern: Sparse) -> Tensor:
        """Every node takes a weighted mean of its neighbours and itself, with weights of its own in each head."""
        h = linear(x, self.lin.weight).view(-1, self.heads, self.width).transpose(0, 1)  # [H, N, C]
        sends = (h * self.att_src.transpose(0, 1)).sum(-1)  # [H, N]
        takes = (h * self.att_dst.transpose(0, 1)).sum(-1)
        s = pattern.structure
        logits = leaky_relu(sends.index_select(1, s.col) + takes.index_select(1, s.row), 0.2)
        a = pattern.map(lambda absent: logits + absent).row_softmax()
        a = a.map(lambda values: dropout(values, self.dropout, self.training))
        out = a @ h  # [H, N, C]
        out = out.transpose(0, 1).flatten(1) if self.concat else out.mean(0)
        return out + self.bias


RULES[GraphAttention] = Rule(("lin.weight@0",), ("att_src@1:3", "att_dst@1:3", "bias@0"))


class GAT(nn.Module):
    """Attention layers with ELU between; the last averages its heads. ``hidden_channels`` is per head."""

    replicable = True  # replicas may have edges of their own, see akegnn.population
    sparse_features = True  # the first thing that happens to features is a product with weights

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 8,
        num_layers: int = 2,
        heads: int = 8,
        output_heads: int = 1,
        dropout: float = 0.6,
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        for k in range(num_layers - 1):
            width = in_channels if k == 0 else heads * hidden_channels
            self.convs.append(GraphAttention(width, hidden_channels, heads, True, dropout))
        width = in_channels if num_layers == 1 else heads * hidden_channels
        self.convs.append(GraphAttention(width, out_channels, output_heads, False, dropout))
        self.dropout = dropout

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        for conv in self.convs:
            conv.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Features, edge_index: Tensor | Edges, edge_weight: Tensor | None = None) -> Tensor:
        """Logits (or embeddings) of nodes ``[N, out]``; of ``edge_weight`` only counts whether it is zero."""
        x = features(x)
        pattern = attention_pattern(edge_index, edge_weight, self.convs[0].bias, x.shape[0])  # type: ignore[arg-type]
        for k, conv in enumerate(self.convs):
            if k > 0:
                x = elu(x)  # type: ignore[arg-type]
            x = conv(dropout(x, self.dropout, self.training), pattern)
        return x  # type: ignore[return-value]
