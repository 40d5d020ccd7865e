"""Graph isomorphism network (Xu et al., https://arxiv.org/abs/1810.00826)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import dropout
from torch_geometric.nn import GINConv, global_add_pool


class GIN(nn.Module):
    """``num_layers`` sums over neighbours, each followed by a two-layer perceptron with BatchNorm; then a linear layer.

    With ``pool`` the nodes of each graph are summed before the last layer.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        hidden_channels: int = 32,
        num_layers: int = 3,
        dropout: float = 0.5,
        pool: bool = False,
    ) -> None:
        super().__init__()
        self.convs = nn.ModuleList()
        for k in range(num_layers):
            perceptron = nn.Sequential(
                nn.Linear(in_channels if k == 0 else hidden_channels, hidden_channels),
                nn.BatchNorm1d(hidden_channels),
                nn.ReLU(),
                nn.Linear(hidden_channels, hidden_channels),
                nn.ReLU(),
            )
            self.convs.append(GINConv(perceptron, train_eps=True))
        self.head = nn.Linear(hidden_channels, out_channels)
        self.dropout, self.pool = dropout, pool

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        for conv in self.convs:
            conv.reset_parameters()  # type: ignore[operator]
        self.head.reset_parameters()

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        """Logits (or embeddings) of nodes ``[N, out]``, of graphs ``[G, out]`` with ``pool``."""
        for conv in self.convs:
            x = conv(x, edge_index)
        if self.pool:
            x = global_add_pool(x, batch)
        return self.head(dropout(x, self.dropout, self.training))
