"""Where data files are looked for, what they should contain, and where finished copies are kept.

Nothing but the cache is ever written to, and what is written appears there whole: a temporary file, then a rename.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from ..errors import AkeError

_RECORDED = tomllib.loads((files(__package__) / "checksums.toml").read_text(encoding="utf-8"))
# Of every file that a dataset is made of, by its place in the usual layout.
FILES: dict[str, str] = _RECORDED["files"]
# Files that hold the upstream content but were written anew: the upstream ones have other bytes and are as good.
REMADE: set[str] = set(_RECORDED["remade"])
# Of every tensor of a dataset: see `content`.
CONTENT: dict[str, dict[str, str]] = _RECORDED["content"]


def folder() -> Path:
    """The user's cache: AKEGNN_CACHE, or ``akegnn`` where such things usually lie."""
    if own := os.environ.get("AKEGNN_CACHE"):
        return Path(own).expanduser()
    usual = os.environ.get("XDG_CACHE_HOME")
    return (Path(usual) if usual and Path(usual).is_absolute() else Path("~/.cache").expanduser()) / "akegnn"


def roots(given: str | Path | None) -> dict[Path, str]:
    """The folders that are looked in, first to last, each with what made it one."""
    places = {}
    if given is not None:
        places[Path(given).expanduser()] = "the data root given"
    if told := os.environ.get("AKEGNN_DATA"):
        places.setdefault(Path(told).expanduser(), "AKEGNN_DATA")
    places.setdefault(folder(), "the cache")
    return places


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    try:
        with path.open("rb") as f:
            return hashlib.file_digest(f, "sha256").hexdigest()
    except OSError as e:
        raise AkeError(f"{path}: cannot be read ({e.strerror})") from None


@contextmanager
def workshop() -> Iterator[Path]:
    """An empty folder that nobody else writes to, in the cache, or where that cannot be written among the system's
    temporary files."""
    try:
        place = folder() / "work"
        place.mkdir(parents=True, exist_ok=True)
        made = tempfile.mkdtemp(dir=place)
    except OSError:
        made = tempfile.mkdtemp(prefix="akegnn-")
    try:
        yield Path(made)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def keep(data: Data, path: Path) -> None:
    """Save a copy; where that is impossible there is none."""
    with suppress(OSError), _appearing(path) as temporary:
        try:
            torch.save(data, temporary)
        except RuntimeError as e:  # torch's word for a full disk or a folder that is gone
            raise OSError(str(e)) from None


def install(source: Path, path: Path) -> None:
    """Put a finished file into the cache; where that is impossible it is not there."""
    with suppress(OSError), _appearing(path) as temporary:
        shutil.copyfile(source, temporary)


@contextmanager
def _appearing(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        yield Path(name)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


# ---- content ---------------------------------------------------------------------------------------------------------


def pack(data: Data) -> Data:
    """The same values in the smallest of three types: a copy of a fourth of the size, and less to hash."""
    return Data.from_dict({key: _small(value) for key, value in data.items()})


def unpack(data: Data) -> Data:
    """What `pack` was given."""
    values: dict[str, Any] = {k: v if v.dtype == torch.bool else v.long() for k, v in data.items() if k != "x"}
    return Data.from_dict({"x": data.x.float(), **values})


def _small(value: Tensor) -> Tensor:
    if value.dtype == torch.bool:
        return value
    for kind in (torch.uint8, torch.int32):
        small = value.to(kind)
        if torch.equal(small.to(value.dtype), value):
            return small
    return value


def content(data: Data) -> dict[str, str]:
    """SHA-256 of every tensor of a packed dataset: its type, shape and bytes, edges ordered by source and target."""
    found = {}
    for key, value in sorted(data.items()):
        if key == "edge_index":
            order = value[0].long() * int(data.x.shape[0]) + value[1]
            if bool((order[1:] < order[:-1]).any()):
                value = value[:, order.argsort()]
        array = value.contiguous().numpy()
        found[key] = hashlib.sha256(f"{array.dtype} {array.shape} ".encode() + array.tobytes()).hexdigest()
    return found
