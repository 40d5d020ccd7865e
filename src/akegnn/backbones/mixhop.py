"""MixHop, several powers of the adjacency side by side (Abu-El-Haija et al., https://arxiv.org/abs/1905.00067)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch_geometric.nn import Linear

from ..channels import RULES, Rule
from ..propagate import Edges, Features, Sparse, dropout, features, gcn_adjacency, linear


class MixHopConvolution(nn.Module):
    """One layer: a block of channels for each power. Of powers 0, 1, 2 it is PyG's ``MixHopConv``, name for name."""

    def __init__(self, in_channels: int, out_channels: int, powers: Sequence[int]) -> None:
        super().__init__()
        self.powers = tuple(powers)
        self.lins = nn.ModuleList(Linear(in_channels, out_channels, bias=False) for _ in powers)
        self.bias = nn.Parameter(torch.zeros(len(powers) * out_channels))

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        for lin in self.lins:
            lin.reset_parameters()  # type: ignore[operator]
        nn.init.zeros_(self.bias)

    def forward(self, x: Features, a: Sparse) -> Tensor:
        """``[a^p (x W_p) for p in powers]``, one after another, ``+ b``."""
        blocks = []
        for power, lin in zip(self.powers, self.lins, strict=True):
            block = linear(x, lin.weight)  # type: ignore[arg-type]
            for _ in range(power):
                block = a @ block
            blocks.append(block)
        return torch.cat(blocks, dim=-1) + self.bias


RULES[MixHopConvolution] = Rule(("lins.*.weight@0",), ("bias@0",), blocks=True)


class MixHop(nn.Module):
    """``num_layers`` such layers, each with BatchNorm and dropout, then a linear layer."""

    replicable = True  # replicas may have edges of their own, see akegnn.population
    sparse_features = True  # the first thing that happens to features is a product with weights

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 60,
        num_layers: int = 2,
        powers: Sequence[int] = (0, 1, 2),
        input_dropout: float = 0.7,
        dropout: float = 0.9,
    ) -> None:
        super().__init__()
        wide = hidden_channels * len(powers)
        self.convs = nn.ModuleList(
            MixHopConvolution(in_channels if k == 0 else wide, hidden_channels, powers) for k in range(num_layers)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(wide) for _ in range(num_layers))
        self.last = nn.Linear(wide, out_channels)
        self.input_dropout, self.dropout = input_dropout, dropout

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        for layer in (*self.convs, *self.norms, self.last):
            layer.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Features, edge_index: Tensor | Edges, edge_weight: Tensor | None = None) -> Tensor:
        """Logits (or embeddings) of nodes ``[N, out]``."""
        x = features(x)
        a = gcn_adjacency(edge_index, edge_weight, self.last.bias, x.shape[0])
        x = dropout(x, self.input_dropout, self.training)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = dropout(norm(conv(x, a)), self.dropout, self.training)
        return self.last(x)
