"""Networks by name. To add one, write a module in a file of its own and give it an entry in :data:`BACKBONES`."""

from __future__ import annotations

from torch import nn

from .gat import GAT
from .gcn import GCN
from .gcnii import GCNII
from .gin import GIN

BACKBONES: dict[str, type[nn.Module]] = {"gcn": GCN, "gat": GAT, "gcnii": GCNII, "gin": GIN}

__all__ = ["BACKBONES", "GAT", "GCN", "GCNII", "GIN"]
