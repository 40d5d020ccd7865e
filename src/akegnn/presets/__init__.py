"""Settings of a backbone on a dataset, one data file each, with the published score they are held against.

``presets/cora/gcn.toml`` is used wherever ``gcn`` is trained on ``cora``; ``presets/cora/gcn-link.toml`` in the link
task. What a person gives besides overrides it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from ..errors import AkeError
from ..settings import Training


@dataclass(frozen=True)
class Published:
    """A score from the literature, in per cent."""

    score: float
    source: str
    deviation: float | None = None
    metric: str = "accuracy"
    comparable: bool = True  # False: other data, splits or model than ours; the note says which
    note: str = ""


@dataclass(frozen=True)
class Preset:
    """One file."""

    data: str
    model: str
    settings_from: str  # where the hyper-parameters come from
    task: str = "node"
    features: str = "given"
    edges: str = "given"
    protocol: str = ""  # which splits and how many seeds, in words
    splits: int = 1
    seeds: int = 100
    note: str = ""
    model_args: dict[str, Any] = field(default_factory=dict)
    training: Training = field(default_factory=Training)
    published: Published | None = None
    paper: Published | None = None  # the backbone's score in the AKE-GNN paper

    @property
    def name(self) -> str:
        """As the file is called, without the ending."""
        return f"{self.data}/{self.model}" + ("-link" if self.task == "link" else "")


def find(data: str, model: str, task: str | None = None) -> Preset | None:
    """The preset of a backbone on a dataset, ``None`` where there is none."""
    file = files(__name__) / data / f"{model}{'-link' if task == 'link' else ''}.toml"
    known = data.replace("-", "").isalnum() and model.replace("-", "").isalnum()  # names, not paths
    return _read(file) if known and file.is_file() else None


def every() -> Iterator[Preset]:
    """All presets, by name."""
    for folder in sorted((f for f in files(__name__).iterdir() if f.is_dir()), key=lambda f: f.name):
        for file in sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name):
            yield _read(file)


def _read(file: Traversable) -> Preset:
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    try:
        table["training"] = Training(**table.get("training", {}))
        for name in ("published", "paper"):
            if name in table:
                table[name] = Published(**table[name])
        return Preset(**table)
    except TypeError as e:
        raise AkeError(f"preset {file.name}: {e}") from None
