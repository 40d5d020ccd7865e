"""The run folder: written whole or marked unfinished, read back without running anything it contains.

| file | what is in it |
| --- | --- |
| `config.toml` | every setting; `akegnn train --config` repeats the run |
| `metrics.json` | scores (with deviation and interval over several seeds), split sizes, versions |
| `scores.csv` | every score of every seed |
| `history.csv` | loss and validation score of every epoch of every network |
| `swaps.csv` | every channel that moved |
| `model.safetensors` | the network that ships |
| `evidence.json` | what `akegnn report` shows besides: channels before and after the exchange, errors, a map |
| `README.md` | a short card |
| `tensorboard/` | where it was asked for: the same curves and scores for TensorBoard |
| `UNFINISHED` | only while a run is being written, or if it was cut off |
"""

from __future__ import annotations

import csv
import dataclasses
import fcntl
import io
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
import torch_geometric
from torch import Tensor, nn

from .backbones import BACKBONES
from .errors import AkeError
from .exchange import Swap
from .fit import Result, Results, Summary
from .models import build
from .settings import Settings, from_toml, to_toml
from .strategies import OURS as STRATEGIES
from .training import Epoch
from .views import OURS as VIEWS

MARK = "UNFINISHED"
FILES = ("config.toml", "metrics.json", "scores.csv", "history.csv", "swaps.csv", "model.safetensors", "README.md")
FOLDERS = ("tensorboard",)  # that may be there besides
MORE = ("evidence.json",)  # runs of earlier versions are whole without


@dataclass(frozen=True)
class SeedScore:
    """A line of ``scores.csv``."""

    split: int
    seed: int
    name: str
    validation: float
    test: float
    passes: int
    seconds: float


@dataclass
class Records:
    """What a finished run says about itself, without its network."""

    settings: Settings
    metrics: dict[str, Any]
    scores: list[SeedScore]
    history: list[Epoch]
    swaps: list[Swap]
    evidence: dict[str, Any] | None  # runs of earlier versions have none

    @property
    def shipped(self) -> int:
        """The replica whose network ships."""
        cells = list(dict.fromkeys((s.split, s.seed) for s in self.scores))
        s, m = self.settings, self.metrics
        shown = (m.get("split_of_model", s.split), m.get("seed_of_model", s.seed))
        return cells.index(shown) if shown in cells else 0


@dataclass
class Run:
    """A finished run, read back."""

    model: nn.Module
    settings: Settings
    metrics: dict[str, Any]


def save(result: Result | Results, path: Path) -> Path:
    """Write a run folder. An unfinished one is started over; a finished one is not overwritten."""
    with writing(path, result.settings) as folder:
        write(result, folder)
    return path


@contextmanager
def writing(path: Path, settings: Settings) -> Iterator[Path]:
    """Hold a folder for one run: marked unfinished from the first moment, the mark taken away when all is written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDONLY)
    except OSError as e:
        raise AkeError(f"{path}: cannot be written ({e.strerror})") from None
    try:
        try:
            # The lock is on the folder itself: it leaves nothing behind, and goes with the process, however it ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AkeError(f"{path}: another process is writing this run") from None
        there = {p.name for p in path.iterdir()}
        every = (*FILES, *MORE)
        known = (*every, *FOLDERS)
        ours = {name for name in there if name in known or any(name.startswith(f".{f}.") for f in every)}
        if MARK not in there:
            if finished_settings(path) is not None:
                raise AkeError(f"{path}: holds a finished run; choose another folder or delete it")
            ours = set()  # without a mark, nothing here is from a run that was cut off
        strangers = sorted(there - ours - {MARK})
        if strangers:
            raise AkeError(f"{path}: not an empty or a run folder (it holds {strangers[0]}); choose another")
        try:
            (path / MARK).write_text("This run has not finished. The same command starts it over.\n")
            for name in ours:  # what an interrupted run left behind must not be mixed with this one
                _remove(path / name)
        except OSError as e:
            raise AkeError(f"{path}: cannot be written ({e.strerror})") from None
        write_file(path / "config.toml", to_toml(settings).encode())
        yield path
        (path / MARK).unlink()
    finally:
        os.close(lock)


def finished_settings(path: Path) -> Settings | None:
    """The settings of a finished run, or ``None`` where there is none."""
    whole = all((path / name).is_file() for name in FILES)
    if not whole or (path / MARK).exists():
        return None
    return from_toml(path / "config.toml")


def write(result: Result | Results, folder: Path) -> None:
    """All files of a run; each appears whole or not at all. Of several seeds, the model is the best by validation."""
    shown = result if isinstance(result, Result) else result.best
    every = [result] if isinstance(result, Result) else result.results
    swaps = [dataclasses.replace(x, replica=k) for k, one in enumerate(every) for x in one.swaps]
    metrics = {
        "metric": shown.metric,
        "floor": shown.floor,
        "splits": shown.sizes,
        "classes": shown.classes,
        "features": shown.features,
        "data_digest": shown.digest,
        "scores": [dataclasses.asdict(s) for s in (result.summary() if isinstance(result, Results) else shown.scores)],
        "runs": result.counted if isinstance(result, Results) else "1 seed",
        "shipped": shown.shipped,
        "seed_of_model": shown.settings.seed,
        "split_of_model": shown.settings.split,
        "failures": [] if isinstance(result, Result) else result.failures,
        "swaps": len(swaps),
        "why_not_exchanged": shown.why_not,
        "parameters": sum(p.numel() for p in shown.model.parameters()),
        "versions": versions(),
    }
    write_file(folder / "config.toml", to_toml(result.settings).encode())
    write_rows(folder / "history.csv", Epoch, result.history)
    write_rows(folder / "swaps.csv", Swap, swaps)
    lines = [
        SeedScore(one.settings.split, one.settings.seed, **dataclasses.asdict(s)) for one in every for s in one.scores
    ]
    write_rows(folder / "scores.csv", SeedScore, lines)
    write_file(folder / "metrics.json", (json.dumps(metrics, indent=2) + "\n").encode())
    if shown.evidence is not None:
        write_file(folder / "evidence.json", (json.dumps(shown.evidence, separators=(",", ":")) + "\n").encode())
    write_file(folder / "README.md", card(result).encode())
    write_tensors(folder / "model.safetensors", shown.model.state_dict())


def load(path: str | Path, model: Callable[..., nn.Module] | None = None) -> Run:
    """Read a run folder back; ``run.model`` predicts as it did when it was saved.

    Args:
        path: the folder.
        model: the class or function that builds the model, needed where it is not one of our backbones: nothing that a
            folder merely names is imported.
    """
    path = Path(path)
    _check_finished(path, ("config.toml", "metrics.json", "model.safetensors"))
    settings = from_toml(path / "config.toml")
    if model is None and settings.model not in BACKBONES:
        raise AkeError(f"{path}: its model is {settings.model!r}; pass model= (--model) with the class that builds it")
    kind = model or BACKBONES[settings.model]
    narrow = {"hidden_channels": settings.exchange.width} if settings.exchange.width else {}  # before `ships` was noted
    try:
        network = build(kind, settings.ships or {**settings.model_args, **narrow})
    except AkeError as e:
        if settings.model != "given":
            raise
        hint = "its networks were given in Python: model must be what builds one without arguments"
        raise AkeError(f"{path}: {hint}, as `lambda: Net(16, 3)` or a function in a file ({e})") from None
    load_weights(network, path / "model.safetensors")
    return Run(network.eval(), settings, read_metrics(path))


def records(path: str | Path) -> Records:
    """Read what a run folder says about the run."""
    path = Path(path)
    _check_finished(path, ("config.toml", "metrics.json", "scores.csv", "history.csv", "swaps.csv"))
    scores, history, swaps = (
        read_rows(path / f"{name}.csv", kind)
        for name, kind in (("scores", SeedScore), ("history", Epoch), ("swaps", Swap))
    )
    more = path / "evidence.json"
    evidence = _read_json(more) if more.is_file() else None
    return Records(from_toml(path / "config.toml"), read_metrics(path), scores, history, swaps, evidence)


def read_metrics(folder: Path) -> dict[str, Any]:
    """The scores of a finished run and what belongs to them."""
    found = _read_json(folder / "metrics.json")
    for key in ("metric", "floor", "scores", "failures"):
        if key not in found:
            raise AkeError(f"{folder / 'metrics.json'}: {key!r} is missing")
    return found


def _check_finished(path: Path, needed: Sequence[str]) -> None:
    if not path.is_dir():
        raise AkeError(f"{path}: no such run folder")
    if (path / MARK).exists():
        raise AkeError(f"{path}: the run has not finished")
    for name in needed:
        if not (path / name).is_file():
            raise AkeError(f"{path}: not a run folder, {name} is missing")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise AkeError(f"{path}: not valid JSON ({type(e).__name__})") from None
    if not isinstance(found, dict):
        raise AkeError(f"{path}: holds a {type(found).__name__}, expected an object")
    return found


def load_weights(network: nn.Module, path: Path) -> None:
    """Put the tensors of a safetensors file into a module; names and shapes must agree."""
    tensors = read_tensors(path)
    state = network.state_dict()
    tied = _ties(state)
    for name, value in state.items():
        source = name if name in tensors else tied.get(name, name)
        if source not in tensors:
            raise AkeError(f"{path}: has no tensor {name!r}, which {type(network).__name__} needs")
        if tensors[source].shape != value.shape:
            found, wanted = tuple(tensors[source].shape), tuple(value.shape)
            raise AkeError(f"{path}: {name} has shape {found}, {type(network).__name__} needs {wanted}")
    for name in tensors:
        if name not in state:
            raise AkeError(f"{path}: holds {name!r}, which {type(network).__name__} does not have")
    network.load_state_dict(tensors, strict=False)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """A safetensors file; the format cannot carry code."""
    try:
        return dict(safetensors.torch.load_file(path))
    except OSError as e:
        raise AkeError(f"{path}: cannot be read ({e.strerror or 'no such file'})") from None
    except safetensors.SafetensorError as e:
        raise AkeError(f"{path}: not a safetensors file ({e})") from None


def write_tensors(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write a safetensors file, whole or not at all."""
    write_file(path, tensor_bytes(state))


def tensor_bytes(state: Mapping[str, Tensor]) -> bytes:
    """What a safetensors file of these tensors consists of."""
    return safetensors.torch.save(_untied({k: v.detach().cpu().contiguous() for k, v in state.items()}))


def write_rows(path: Path, kind: type[Any], rows: list[Any]) -> None:
    """Write dataclass instances as a CSV file, whole or not at all."""
    write_file(path, row_bytes(kind, rows))


def read_rows(path: Path, kind: type[Any]) -> list[Any]:
    """The lines of a CSV file as dataclass instances; an empty field is ``None`` where that is allowed."""
    types = {f.name: str(f.type).split(" | ") for f in dataclasses.fields(kind)}
    parse: dict[str, Callable[[str], Any]] = {"int": int, "float": float}

    def value(name: str, text: str) -> Any:
        return None if not text and "None" in types[name] else parse.get(types[name][0], str)(text)

    try:
        with path.open(newline="", encoding="utf-8") as f:  # a column that came later has its default
            return [kind(**{k: value(k, v) for k, v in row.items() if k in types}) for row in csv.DictReader(f)]
    except (ValueError, TypeError, csv.Error) as e:
        raise AkeError(f"{path}: cannot be read as a table ({type(e).__name__}: {e})") from None


def card(result: Result | Results) -> str:
    """A short description of the run, in Markdown."""
    s, many = result.settings, result if isinstance(result, Results) else None
    lines = many.summary() if many else result.scores  # type: ignore[union-attr]
    if isinstance(result, Results):
        result = result.best
    rows = "\n".join(
        f"| {x.name} | {100 * x.validation:.2f} | {100 * x.test:.2f}"
        + (
            f" +- {100 * x.deviation:.2f} [{100 * x.low:.2f}, {100 * x.high:.2f}]"
            if isinstance(x, Summary) and x.n > 1
            else ""
        )
        + f" | {x.passes} | {x.seconds:.1f} |"
        for x in lines
    )
    seeds = f"seed {s.seed}"
    shipped = "the network named AKE"
    if many:
        seeds = f"{many.counted}; mean +- standard deviation [95 % interval of the mean]"
        on = f", split {result.settings.split}" if len({r.settings.split for r in many.results}) > 1 else ""
        shipped += f" of seed {result.settings.seed}{on}, the best by validation"
    floor = ""
    if result.floor is not None:
        floor = f"Chance, or always the commonest training class: {100 * result.floor:.2f}.\n"
    drawn = f"Splits: {s.splits_drawn}.\n" if s.splits_drawn else ""
    sizes = ", ".join(f"{k} {v}" for k, v in result.sizes.items())
    why_not = f"\nNo channels were exchanged: {result.why_not}." if result.why_not else ""
    missing = unrepeatable(s)
    repeat = "Repeat it with `akegnn train --config config.toml --out ANOTHER_FOLDER`."
    if missing:
        repeat = f"Given in Python, so that `config.toml` alone does not repeat the run: {', '.join(missing)}."
    return f"""# {s.model} on {s.data}, {s.task} task

One network made by adaptive knowledge exchange (recipe `{s.recipe}`, {seeds}) of {len(s.views)} networks.
{result.metric}, in per cent, on the original data, at each network's best validation epoch:

| | validation | test | passes at inference | seconds of training |
| --- | --- | --- | --- | --- |
{rows}

{floor}{drawn}Split sizes: {sizes}. {len(result.swaps)} swaps, see `swaps.csv`.{why_not}
`model.safetensors` holds {shipped}. {repeat}
"""


def unrepeatable(settings: Settings) -> list[str]:
    """What of a run was given in Python and is not in its settings; what a person registered is there by name only."""
    missing = [name for name in ("data", "model") if getattr(settings, name) == "given"]
    missing += ["training function"] if settings.train != "built in" else []
    kinds = dict.fromkeys(v.get("kind") for v in settings.views if v.get("kind") not in VIEWS)
    missing += ["view" if kind == "custom" else f"view {kind!r}" for kind in kinds]
    missing += [f"strategy {settings.exchange.strategy!r}"] if settings.exchange.strategy not in STRATEGIES else []
    given = ("optimizer", "scheduler", "metric")
    return missing + [name for name in given if getattr(settings.training, name).startswith("given: ")]


def versions() -> dict[str, str]:
    """What the run was made with."""
    from . import __version__

    found = {"akegnn": __version__, "python": platform.python_version(), "torch": torch.__version__}
    found |= {"torch_geometric": torch_geometric.__version__, "platform": platform.platform()}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_device_name()
    return found


def row_bytes(kind: type[Any], rows: list[Any]) -> bytes:
    """Dataclass instances as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = [f.name for f in dataclasses.fields(kind)]
    writer.writerow(names)
    writer.writerows([getattr(row, name) for name in names] for row in rows)
    return text.getvalue().encode()


def write_file(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all; what is no plain file (a pipe, a terminal) is written to as it is."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(content)
            return
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as f:
                f.write(content)
                f.flush()
                os.fsync(f.fileno())
            os.chmod(temporary, 0o666 & ~_mask())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as e:
        raise AkeError(f"{path}: cannot be written ({e.strerror})") from None


def _mask() -> int:
    """What a person does not allow new files; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _ties(state: Mapping[str, Tensor]) -> dict[str, str]:
    """Names that share a tensor with an earlier name (``share_weights``): later name -> first name."""
    first: dict[int, str] = {}
    ties = {}
    for name, value in state.items():
        if value.numel() and first.setdefault(value.data_ptr(), name) != name:
            ties[name] = first[value.data_ptr()]
    return ties


def _untied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    ties = _ties(state)
    return {k: v for k, v in state.items() if k not in ties}
