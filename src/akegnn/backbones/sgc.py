"""Simple graph convolution (Wu et al., https://arxiv.org/abs/1902.07153)."""

from __future__ import annotations

from torch import Tensor, nn

from ..channels import RULES, Rule
from ..propagate import Edges, Features, Sparse, features, gcn_adjacency, linear


class SimpleConvolution(nn.Module):
    """Neighbours are averaged ``steps`` times and weighted once. Parameters are named as in PyG's ``SGConv``.

    The two commute, so the weighted columns are averaged instead of the features: there are fewer.
    """

    def __init__(self, in_channels: int, out_channels: int, steps: int) -> None:
        super().__init__()
        self.lin, self.steps = nn.Linear(in_channels, out_channels), steps

    def forward(self, x: Features, a: Sparse) -> Tensor:
        """``a^steps (x W) + b``."""
        z = linear(x, self.lin.weight)
        for _ in range(self.steps):
            z = a @ z
        return z + self.lin.bias


RULES[SimpleConvolution] = Rule(("lin.weight@0",), ("lin.bias@0",))


class SGC(nn.Module):
    """One such layer: logistic regression on smoothed features."""

    replicable = True  # replicas may have edges of their own, see akegnn.population
    sparse_features = True  # the first thing that happens to features is a product with weights

    def __init__(self, in_channels: int, out_channels: int, steps: int = 2) -> None:
        super().__init__()
        self.conv = SimpleConvolution(in_channels, out_channels, steps)

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        self.conv.lin.reset_parameters()

    def forward(self, x: Features, edge_index: Tensor | Edges, edge_weight: Tensor | None = None) -> Tensor:
        """Logits (or embeddings) of nodes ``[N, out]``."""
        x = features(x)
        return self.conv(x, gcn_adjacency(edge_index, edge_weight, self.conv.lin.bias, x.shape[0]))
