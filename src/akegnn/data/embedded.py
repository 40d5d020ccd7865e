"""Graphs made from scikit-learn's digits: no network, no file beside the installed packages.

1797 images of 8x8 pixels, ten classes. The splits are drawn once with a fixed seed and never change.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

NEIGHBOURS = 5
LABELS_PER_CLASS = 3


@functools.cache
def _images() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return (bunch.images / 16.0).astype(np.float32), bunch.target


def digits() -> Data:
    """One graph, a node per image. The upper four rows of pixels say who is whose neighbour (five nearest, made
    undirected), the lower four are the features: an edge tells something that the features do not.
    Three labels per class to train on, 300 nodes to validate, 1000 to test."""
    images, labels = _images()
    upper, lower = images[:, :4].reshape(len(images), -1), images[:, 4:].reshape(len(images), -1)
    # Pixels are whole numbers of sixteenths: distances are exact, and ties go to the lower index on any machine.
    whole = np.rint(upper.astype(np.float64) * 16)
    squares = (whole**2).sum(1)
    distance = squares[:, None] + squares - 2 * whole @ whole.T
    np.fill_diagonal(distance, np.inf)
    near = distance.argsort(axis=1, kind="stable")[:, :NEIGHBOURS]
    pairs = {(min(i, j), max(i, j)) for i, row in enumerate(near.tolist()) for j in row}
    one_way = torch.tensor(sorted(pairs)).t()
    edge_index = torch.cat([one_way, one_way.flip(0)], dim=1)
    edge_index = edge_index[:, (edge_index[0] * len(images) + edge_index[1]).argsort()]
    data = Data(x=torch.from_numpy(lower), edge_index=edge_index, y=torch.from_numpy(labels).long())
    order = np.random.default_rng(0).permutation(len(labels))
    train = np.concatenate([order[labels[order] == c][:LABELS_PER_CLASS] for c in range(10)])
    rest = order[~np.isin(order, train)]
    for name, nodes in (("train_mask", train), ("val_mask", rest[:300]), ("test_mask", rest[300:1300])):
        data[name] = _mask(nodes, len(labels))
    return data


def digits_graphs() -> list[Data]:
    """A graph per image: 64 pixels, each joined to its four neighbours; features are the pixel's value, row and column.
    1000 graphs to train on, 300 to validate, 497 to test, marked by ``graph.split``."""
    images, labels = _images()
    row, column = np.divmod(np.arange(64), 8)
    near = np.abs(row[:, None] - row) + np.abs(column[:, None] - column) == 1
    edge_index = torch.from_numpy(np.stack(np.nonzero(near)))
    place = np.stack([row, column], axis=1).astype(np.float32) / 7
    order = np.random.default_rng(0).permutation(len(labels))
    split = np.full(len(labels), "test", dtype=object)
    split[order[:1000]], split[order[1000:1300]] = "train", "val"
    return [
        Data(
            x=torch.from_numpy(np.concatenate([image.reshape(-1, 1), place], axis=1)),
            edge_index=edge_index,
            y=torch.tensor([int(label)]),
            split=str(part),
        )
        for image, label, part in zip(images, labels, split, strict=True)
    ]


def _mask(nodes: np.ndarray, size: int) -> Tensor:
    mask = torch.zeros(size, dtype=torch.bool)
    mask[torch.from_numpy(nodes)] = True
    return mask
