"""Learning problems: node, link and graph."""

from __future__ import annotations

from collections.abc import Sequence

from torch_geometric.data import Data, HeteroData

from ..data import own
from ..errors import AkeError
from .base import METRICS, Metric, Task
from .graph import GraphTask
from .link import LinkTask
from .node import NodeTask

TASKS = ("node", "link", "graph")

__all__ = ["METRICS", "TASKS", "GraphTask", "LinkTask", "Metric", "NodeTask", "Task", "make_task"]


def make_task(
    data: Data | Sequence[Data],
    task: str | None = None,
    *,
    split: int = 0,
    metric: str | Metric | None = None,
    batch_size: int = 128,
    masks: str = "given",
    labels_per_class: int | None = None,
) -> Task:
    """The task for a graph or graphs; without a name, ``graph`` for several graphs and ``node`` for one.

    ``masks="random"`` draws the three parts, ``labels_per_class`` draws the training nodes, both by the number of the
    split; see :mod:`akegnn.data.splits`.
    """
    if isinstance(data, HeteroData):
        raise AkeError("data: has several kinds of nodes or edges, expected one of each (data.to_homogeneous())")
    one = isinstance(data, Data)
    task = task or ("node" if one else "graph")
    if task not in TASKS:
        raise AkeError(f"task: {task!r} is not one of {', '.join(TASKS)}")
    if one != (task != "graph"):
        raise AkeError(f"data: the {task} task needs {'one graph' if task != 'graph' else 'a list of graphs'}")
    if labels_per_class is not None and task != "node":
        raise AkeError(f"labels_per_class: of the node task only, not of the {task} task")
    if isinstance(data, Data):
        data = own.usual(data)
        if task == "node":
            made: Task = NodeTask(data, split, metric, masks, labels_per_class)
        else:
            made = LinkTask(data, split, metric)
    else:
        made = GraphTask([own.usual(g) for g in data], split, metric, batch_size, masks)
    return made.to(made.device)  # all of it where the data is
