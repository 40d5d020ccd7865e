"""Networks by name. To add one, write a module in a file of its own and give it an entry in :data:`BACKBONES`.

A class may say which ``tasks`` it serves (by default node and link), that ``replicable`` replicas may have edges of
their own, that ``sparse_features`` may come in sparse, and may bring a ``training_loss(batch, loss)`` of its own.
"""

from __future__ import annotations

from torch import nn

from .appnp import APPNP
from .dgi import DGI
from .gat import GAT
from .gcn import GCN
from .gcn_tricks import GCNTricks
from .gcnii import GCNII, GCNIIDense
from .gin import GIN
from .grand import GRAND
from .jknet import JKNetCat, JKNetMax
from .mixhop import MixHop
from .resgcn import ResGCN
from .sage import GraphSAGE
from .sgc import SGC
from .unet import GraphUNet

BACKBONES: dict[str, type[nn.Module]] = {
    "gcn": GCN,
    "gat": GAT,
    "appnp": APPNP,
    "jknet-cat": JKNetCat,
    "jknet-max": JKNetMax,
    "gcnii": GCNII,
    "grand": GRAND,
    "gin": GIN,
    "gcnii-dense": GCNIIDense,
    "gcn-res": ResGCN,
    "gcn-tricks": GCNTricks,
    "sage": GraphSAGE,
    "sgc": SGC,
    "mixhop": MixHop,
    "unet": GraphUNet,
    "dgi": DGI,
}

__all__ = ["BACKBONES", *sorted(kind.__name__ for kind in BACKBONES.values())]
