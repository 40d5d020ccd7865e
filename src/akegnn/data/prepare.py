"""What is done to a graph before anyone trains on it: features and edges, by names that are recorded with the run."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch_geometric.data import Data
from torch_geometric.transforms import ToUndirected
from torch_geometric.utils import degree

from ..errors import AkeError
from ..views import of_edges
from .own import with_edges

FEATURES = ("given", "row", "degree", "constant")
EDGES = ("given", "undirected", "reversed")


def prepare(graphs: Data | Sequence[Data], features: str = "given", edges: str = "given") -> Data | Sequence[Data]:
    """The graph or graphs with other features or edges; what is given is not changed.

    Args:
        graphs: one graph or several.
        features: ``given``; ``row``: each node's features divided by their sum; ``degree``: the number of neighbours,
            as one number; ``constant``: a one.
        edges: ``given``; ``undirected``: both directions of every edge; ``reversed``: every edge the other way round,
            so that a node listens to those it points to (as GCNII's authors do on the Geom-GCN graphs).
    """
    for name, word, words in (("features", features, FEATURES), ("edges", edges, EDGES)):
        if word not in words:
            raise AkeError(f"{name}: {word!r} is not one of {', '.join(words)}")
    if features == "given" and edges == "given":
        return graphs
    if isinstance(graphs, Data):
        return _prepared(graphs, features, edges)
    return [_prepared(g, features, edges) for g in graphs]


def _prepared(data: Data, features: str, edges: str) -> Data:
    data = with_edges(copy.copy(data))
    if data.get("edge_index") is None and (edges != "given" or features == "degree"):
        raise AkeError("data.edge_index: missing")
    if edges == "undirected":
        given = copy.copy(data)
        data = ToUndirected(reduce="mean")(data)  # of equal weights in both directions, the same
        for key, value in given.items():  # of a graph of one edge PyG takes its label for the edge's
            if key != "edge_index" and not of_edges(given, key):
                data[key] = value
    elif edges == "reversed":
        data.edge_index = data.edge_index.flip(0)
    if features == "row":
        if data.get("x") is None:
            raise AkeError("data.x: missing; there are no features to normalise")
        x = data.x if data.x.layout == torch.strided else data.x.to_dense()
        if not x.is_floating_point():
            raise AkeError(f"data.x: must be floating point, is {x.dtype}")
        total = x.sum(-1, keepdim=True)
        data.x = x / torch.where(total == 0, torch.ones_like(total), total)
    elif features == "degree":
        data.x = degree(data.edge_index[1], data.num_nodes).view(-1, 1)
        if data.get("split_degree") is not None:  # gnn-comparison has folds of their own for these features
            data.split = data.split_degree
    elif features == "constant":
        data.x = torch.ones(int(data.num_nodes or 0), 1)
    if features in ("degree", "constant") and "feature_names" in data:  # of columns that are there no more
        del data["feature_names"]
    return data
