"""Graphs by name, from a person's files, or as they are. To add a dataset, give it an entry in :data:`DATASETS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from torch_geometric.data import Data

from ..errors import AkeError
from . import embedded, own

Graphs: TypeAlias = Data | list[Data]


@dataclass(frozen=True)
class Dataset:
    """A named dataset: what it is for and how to get it."""

    load: Callable[[], Graphs]
    tasks: tuple[str, ...]
    about: str


DATASETS: dict[str, Dataset] = {
    "digits": Dataset(
        embedded.digits,
        ("node", "link"),
        "handwritten digits as one graph: edges from the upper half of each image, features from the lower",
    ),
    "digits-graphs": Dataset(embedded.digits_graphs, ("graph",), "handwritten digits, each image a grid of 64 pixels"),
}


def load(name: str) -> Graphs:
    """A named dataset, a folder with ``nodes.csv`` and ``edges.csv``, or a file from ``torch.save(data, path)``."""
    if name in DATASETS:
        return DATASETS[name].load()
    path = Path(name)
    if path.is_dir():
        return own.read_folder(path)
    if path.is_file():
        return own.read_saved(path)
    raise AkeError(f"data: {name!r} is neither a dataset ({', '.join(DATASETS)}) nor an existing folder or file")
