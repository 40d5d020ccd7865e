"""Graph convolutional network (Kipf and Welling, https://arxiv.org/abs/1609.02907)."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import dropout
from torch_geometric.nn import GCNConv, global_mean_pool


class GCN(nn.Module):
    """``num_layers`` graph convolutions, dropout before each, ReLU between.

    With ``pool`` the nodes of each graph are averaged and a linear layer follows: a classifier of graphs.
    """

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
        self.convs = nn.ModuleList(GCNConv(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(hidden_channels, out_channels) if pool else None
        self.dropout = dropout

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        for conv in self.convs:
            conv.reset_parameters()  # type: ignore[operator]
        if self.head is not None:
            self.head.reset_parameters()

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None, batch: Tensor | None = None
    ) -> Tensor:
        """Logits (or embeddings) of nodes ``[N, out]``, of graphs ``[G, out]`` with ``pool``."""
        for k, conv in enumerate(self.convs):
            if k > 0:
                x = x.relu()
            x = dropout(x, self.dropout, self.training)
            x = conv(x, edge_index, edge_weight)
        if self.head is None:
            return x
        x = global_mean_pool(x.relu(), batch)
        return self.head(dropout(x, self.dropout, self.training))
