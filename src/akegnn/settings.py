"""Settings as plain dataclasses, read from and written to TOML, and the seeds that are derived from one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import numbers
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import AkeError


@dataclass(frozen=True)
class Training:
    """How one network is trained; both phases use the same."""

    epochs: int = 200
    lr: float = 0.01
    weight_decay: float = 5e-4
    weight_decays: dict[str, float] = field(default_factory=dict)  # other ones, by parameter name: {"convs.*": 0.01}
    patience: int | None = None  # epochs without getting better on validation data before stopping; None: never
    select: str = "score"  # what makes an epoch the best: the validation "score" (then the loss), or the "loss"
    stop: str = "best"  # patience counts from the "best" epoch, or from the last with the best loss or score ("either")
    batch_size: int = 128  # graphs per batch (graph task only)
    optimizer: str = "Adam"  # a class of torch.optim; a function given in Python is recorded by its name
    scheduler: str = ""  # "step:50:0.5" (times 0.5 every 50 epochs), "warmup:50" (linear); a function by its name
    metric: str = ""  # empty: the task's own
    precision: str = "float32"  # of populations: or "tf32", "bf16"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", *(["patience"] if self.patience is not None else [])):
            value = getattr(self, name)
            if not isinstance(value, numbers.Integral):
                raise AkeError(f"{name}: must be a whole number, got {value!r}")
            if value < 1:
                raise AkeError(f"{name}: must be at least 1, got {value}")
        for name, words in (
            ("precision", ("float32", "tf32", "bf16")),
            ("select", ("score", "loss")),
            ("stop", ("best", "either")),
        ):
            if getattr(self, name) not in words:
                raise AkeError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(words)}")
        if not isinstance(self.lr, numbers.Real):
            raise AkeError(f"lr: must be a number, got {self.lr!r}")
        if not self.lr > 0:
            raise AkeError(f"lr: must be positive, got {self.lr}")
        for name, decay in (("weight_decay", self.weight_decay), *self.weight_decays.items()):
            if not isinstance(decay, numbers.Real) or not decay >= 0:
                raise AkeError(f"{name}: a weight decay must be a number and not negative, got {decay!r}")


@dataclass(frozen=True)
class Exchange:
    """How channels are exchanged between the phases."""

    strategy: str = "adaptive"
    channels: int = 5  # M, swapped per layer and step
    bins: int = 10  # B
    iterations: int = 3  # times round the ring: N = V * iterations steps
    layers: str = "all"  # or "hidden"
    # Channels of every hidden layer that "functional" makes, in whole heads, at most the model's; 0: as many as that.
    width: int = 0

    def __post_init__(self) -> None:
        for name in ("channels", "bins", "iterations"):
            if not isinstance(getattr(self, name), int):
                raise AkeError(f"{name}: must be a whole number, got {getattr(self, name)!r}")
            if getattr(self, name) < 1:
                raise AkeError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if self.bins < 2:
            raise AkeError(f"bins: must be at least 2, got {self.bins}: in one bin every layer has the same entropy")
        if self.layers not in ("all", "hidden"):
            raise AkeError(f"layers: {self.layers!r} is not one of all, hidden")
        if not isinstance(self.width, int) or self.width < 0:
            raise AkeError(f"width: must be a whole number and not negative, got {self.width!r}")


@dataclass(frozen=True)
class Phases:
    """What the paper leaves open about its phases."""

    initial: str = "own"  # initial weights of the networks of a ring: each its "own", or "shared" ones
    retrain_on: str = "view"  # each network is re-trained on its "view", or all on the "original" graph
    optimizer_state: str = "fresh"  # in re-training, or "kept" from individual learning

    def __post_init__(self) -> None:
        words = {"initial": ("own", "shared"), "retrain_on": ("view", "original"), "optimizer_state": ("fresh", "kept")}
        for name, known in words.items():
            if getattr(self, name) not in known:
                raise AkeError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(known)}")


@dataclass(frozen=True)
class Settings:
    """All that is needed to repeat a run."""

    data: str = "digits"  # a dataset's name, a folder or file, or "given" for a graph passed in Python
    task: str = "node"
    features: str = "given"  # or "row" (normalised), "degree", "constant"; see akegnn.data.prepare
    edges: str = "given"  # or "undirected", "reversed"
    split: int = 0  # which column, where masks have several, or which drawn split
    splits: list[int] = field(default_factory=list)  # all of them, where there are several
    masks: str = "given"  # the graph's own, or "random": 60 / 20 / 20 % of each class, drawn by the split's number
    labels_per_class: int | None = None  # train on so many nodes of each class, drawn by the split's number
    model: str = "gcn"  # a backbone's name, "package.module:Class", or "given"
    model_args: dict[str, Any] = field(default_factory=dict)
    ships: dict[str, Any] = field(default_factory=dict)  # the arguments of what ships, where it is narrower than these
    preset: str = ""  # where the settings that were not given come from
    recipe: str = "paper"  # what a file without this field means; the default of a run is in akegnn.fit
    views: list[dict[str, Any]] = field(default_factory=list)
    seed: int = 0
    seeds: list[int] = field(default_factory=list)  # all of them, where there are several
    device: str = "cpu"
    baseline: bool = True  # also train a network on the original graph, to compare with
    train: str = "built in"  # or the name of your own training function
    splits_drawn: str = ""  # what was drawn because the graph did not bring it
    training: Training = field(default_factory=Training)
    exchange: Exchange = field(default_factory=Exchange)
    phases: Phases = field(default_factory=Phases)


def to_toml(settings: Settings) -> str:
    """The settings as TOML; ``None`` is left out."""

    def value(v: Any) -> str:
        if v is None:  # inside the arguments of a model: TOML has no word for it
            return "{ none = true }"
        if isinstance(v, dict):
            return "{ " + ", ".join(f"{_key(k)} = {value(x)}" for k, x in v.items()) + " }"
        if isinstance(v, list | tuple):
            return "[" + ", ".join(value(x) for x in v) + "]"
        if isinstance(v, bool):
            return json.dumps(v)
        if isinstance(v, numbers.Integral):
            return str(int(v))
        if isinstance(v, numbers.Real):
            return repr(float(v))
        return _quoted(v if isinstance(v, str) else repr(v))

    tables = {"": dataclasses.asdict(settings)}
    for name in ("training", "exchange", "phases"):
        tables[name] = tables[""].pop(name)
    parts = []
    for name, table in tables.items():
        lines = [f"[{name}]"] if name else []
        lines += [f"{_key(k)} = {value(v)}" for k, v in table.items() if v is not None]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def from_toml(path: Path) -> Settings:
    """Read settings; an unknown or wrongly typed field is an error that names it."""
    try:
        with path.open("rb") as f:
            table = tomllib.load(f)
    except OSError as e:
        raise AkeError(f"{path}: cannot be read ({e.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise AkeError(f"{path}: not valid TOML ({e})") from None
    try:
        for name, kind in (("training", Training), ("exchange", Exchange), ("phases", Phases)):
            if not isinstance(table.get(name, {}), dict):
                raise AkeError(f"{name}: must be a table, got {table[name]!r}")
            table[name] = _build(kind, table.get(name, {}), f"{name}.")
        for name in ("model_args", "ships"):
            if isinstance(table.get(name), dict):
                table[name] = {k: _with_none(v) for k, v in table[name].items()}
        for view in table["views"] if isinstance(table.get("views"), list) else []:
            if not isinstance(view, dict):
                raise AkeError(f"views: each must be a table with a kind, got {view!r}")
        return _build(Settings, table, "")
    except AkeError as e:
        raise AkeError(f"{path}: {e}") from None


def _build(kind: type[Any], table: dict[str, Any], prefix: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for name, given in table.items():
        if name not in fields:
            raise AkeError(f"{prefix}{name}: unknown; expected one of {', '.join(fields)}")
        default = fields[name].default
        make = fields[name].default_factory
        if make is not dataclasses.MISSING:
            default = make()
        wanted = (int,) if default is None else (int, float) if isinstance(default, float) else (type(default),)
        if not isinstance(given, wanted) or (isinstance(given, bool) and bool not in wanted):
            names = " or ".join(t.__name__ for t in wanted)
            raise AkeError(f"{prefix}{name}: must be {names}, got {given!r}")
    return kind(**table)


def _key(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else _quoted(key)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML wants it escaped, JSON does not


def _with_none(value: Any) -> Any:
    """The way back from what ``to_toml`` writes for ``None``."""
    if isinstance(value, dict):
        return None if value == {"none": True} else {k: _with_none(v) for k, v in value.items()}
    return [_with_none(v) for v in value] if isinstance(value, list) else value


def derive(seed: int, *labels: object) -> int:
    """A seed of its own for each purpose, the same on every machine: ``derive(0, "view", 2)``."""
    text = repr((int(seed), *labels)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 2
