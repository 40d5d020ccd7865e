"""Deep graph infomax (Velickovic et al., https://arxiv.org/abs/1809.10341) with its linear probe."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus
from torch_geometric.data import Data
from torch_geometric.nn.inits import uniform

from ..propagate import Edges, Features, Sparse, features, gcn_adjacency
from .gcn import GraphConvolution


class DGI(nn.Module):
    """An encoder that is trained without labels, to tell nodes from nodes with shuffled features, and a linear probe.

    The probe learns beside it, from embeddings that it does not change: one training, two losses that do not mix.
    """

    replicable = True  # replicas may have edges of their own, see akegnn.population
    sparse_features = True  # the first thing that happens to features is a product with weights
    tasks = ("node",)  # the probe needs labels

    def __init__(self, in_channels: int, out_channels: int, hidden_channels: int = 512) -> None:
        super().__init__()
        self.conv = GraphConvolution(in_channels, hidden_channels)
        self.activation = nn.PReLU(hidden_channels)
        self.agreement = nn.Parameter(torch.empty(hidden_channels, hidden_channels))
        self.probe = nn.Linear(hidden_channels, out_channels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw fresh weights."""
        self.conv.reset_parameters()
        nn.init.constant_(self.activation.weight, 0.25)
        uniform(self.agreement.shape[0], self.agreement)
        self.probe.reset_parameters()

    def encode(self, x: Features, a: Sparse) -> Tensor:
        """Embeddings of nodes ``[N, hidden]``."""
        return self.activation(self.conv(x, a))

    def forward(self, x: Features, edge_index: Tensor | Edges, edge_weight: Tensor | None = None) -> Tensor:
        """The probe's logits of nodes ``[N, out]``."""
        x = features(x)
        a = gcn_adjacency(edge_index, edge_weight, self.conv.bias, x.shape[0])
        return self.probe(self.encode(x, a).detach())

    def training_loss(self, batch: Data, loss: Callable[[Tensor], Tensor]) -> Tensor:
        """How badly nodes are told from shuffled ones by their agreement with the whole graph, and the probe's loss."""
        x = features(batch.x)
        a = gcn_adjacency(batch.edge_index, batch.get("edge_weight"), self.conv.bias, x.shape[0])
        true = self.encode(x, a)
        # Shuffling the rows of x is shuffling those of x W: the convolution begins with that product.
        order = torch.rand(x.shape[0], device=true.device).argsort()
        shuffled = self.activation(a @ (x @ self.conv.lin.weight.t()).index_select(0, order) + self.conv.bias)
        summary = self.agreement @ true.mean(0).sigmoid()
        told = softplus(-(true @ summary)).mean() + softplus(shuffled @ summary).mean()
        return told + loss(self.probe(true.detach()))
