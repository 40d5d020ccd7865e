"""AKE-GNN: several graph neural networks in, one better network out, at the inference cost of one."""

from . import trackers, views
from .channels import ChannelMap, Explanation, Layer, Slot, channel_map, explain
from .data import load as load_data
from .errors import AkeError, RunFailed
from .exchange import Swap, exchange, exchange_ring
from .fit import Result, Results, Score, fit
from .population import Population, Replica
from .runs import Run, load
from .settings import Exchange, Training
from .tasks import make_task
from .training import Trainer

__version__ = "0.1.0"

__all__ = [
    "AkeError",
    "ChannelMap",
    "Exchange",
    "Explanation",
    "Layer",
    "Population",
    "Replica",
    "Result",
    "Results",
    "Run",
    "RunFailed",
    "Score",
    "Slot",
    "Swap",
    "Trainer",
    "Training",
    "channel_map",
    "exchange",
    "exchange_ring",
    "explain",
    "fit",
    "load",
    "load_data",
    "make_task",
    "trackers",
    "views",
]
