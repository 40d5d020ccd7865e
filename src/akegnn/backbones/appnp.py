"""APPNP, predict then propagate (Gasteiger et al., https://arxiv.org/abs/1810.05997)."""

from __future__ import annotations

from torch import Tensor, nn

from ..propagate import Edges, Features, FirstLinear, dropout, features, gcn_adjacency


class APPNP(nn.Module):
    """A perceptron predicts for each node alone; ``steps`` of personalised PageRank spread the predictions."""

    replicable = True  # replicas may have edges of their own, see akegnn.population
    sparse_features = True  # the first thing that happens to features is a product with weights

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 64,
        steps: int = 10,
        alpha: float = 0.1,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        self.first = FirstLinear(in_channels, hidden_channels)
        self.last = nn.Linear(hidden_channels, out_channels)
        self.steps, self.alpha, self.dropout = steps, alpha, dropout

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        self.first.reset_parameters()
        self.last.reset_parameters()

    def forward(self, x: Features, edge_index: Tensor | Edges, edge_weight: Tensor | None = None) -> Tensor:
        """Logits (or embeddings) of nodes ``[N, out]``: ``z = (1 - alpha) a @ z + alpha h``, begun at ``z = h``."""
        x = features(x)
        a = gcn_adjacency(edge_index, edge_weight, self.last.bias, x.shape[0])
        hidden = self.first(dropout(x, self.dropout, self.training)).relu()
        z = h = self.last(dropout(hidden, self.dropout, self.training))
        for _ in range(self.steps):
            z = (1 - self.alpha) * (a @ z) + self.alpha * h
        return z
