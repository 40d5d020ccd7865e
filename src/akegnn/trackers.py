"""Trackers: the curves, scores and settings of a run in TensorBoard, MLflow or Weights & Biases, while it goes on.

.. code-block:: python

    with akegnn.trackers.tensorboard("logs") as tracker:
        result = akegnn.fit(data, on_epoch=tracker.on_epoch)
        tracker.finish(result)

A tracker works in a thread of its own: training does not wait for a disk or a server, and goes on when one fails.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from .errors import AkeError
from .fit import Result, Results
from .settings import Settings
from .training import Epoch

PAUSE = 1.0  # seconds between two writings: what is live for people, and a rare interruption for training
WAIT = 30.0  # seconds that a finished run waits at most for its tracker
PROJECT = "akegnn"  # what runs are filed under, unless the environment says otherwise

_warn = logging.getLogger("akegnn").warning
Setting = bool | int | float | str


class Log(Protocol):
    """What a new tracker is: one class with these, and an entry in :data:`TRACKERS`."""

    where: str  # how to look at it

    def on_epoch(self, epoch: Epoch) -> None:
        """Another point of the curves."""

    def settings(self, settings: Mapping[str, Setting]) -> None:
        """The hyper-parameters; called once."""

    def finish(self, scores: Mapping[str, float]) -> None:
        """The scores of all lines of the table."""

    def flush(self) -> None:
        """Everything so far should be there to be seen."""

    def close(self, failed: bool) -> None:
        """The run is over."""


class Tracker:
    """Hands a run to a :class:`Log`, in a thread of its own; use it as a context.

    The first thing that fails ends the tracking with one line, and nothing else.
    """

    def __init__(self, name: str, log: Log, say: Callable[[str], None]) -> None:
        self.name, self.where = name, log.where
        self._log, self._say = log, say
        self._told = False  # of the settings
        self._waiting: deque[Callable[[], None]] = deque()
        self._over = threading.Event()
        self._failed = False
        self._thread = threading.Thread(target=self._work, name=f"akegnn {name}", daemon=True)
        self._thread.start()

    def on_epoch(self, epoch: Epoch) -> None:
        """Take note of an epoch; for ``fit(on_epoch=...)``."""
        self._do(partial(self._log.on_epoch, epoch))

    def settings(self, settings: Settings) -> None:
        """Take note of the settings; those of the result if they were not told before."""
        if not self._told:
            self._told = True
            self._do(partial(self._log.settings, flat(settings)))

    def finish(self, result: Result | Results) -> None:
        """Take note of what came out."""
        self.settings(result.settings)
        self._do(partial(self._log.finish, scores(result)))

    def close(self, failed: bool = False) -> None:
        """Write what is left; the thread ends."""
        self._failed = failed
        self._over.set()
        self._thread.join(WAIT)
        if self._thread.is_alive():
            say, self._say = self._say, lambda line: None  # one line is enough, whatever comes of it
            say(f"{self.name}: did not come to an end within {WAIT:.0f} s; the last of it may be missing")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=kind is not None)

    def _do(self, call: Callable[[], None]) -> None:
        if self._thread.is_alive():
            self._waiting.append(call)

    def _work(self) -> None:
        try:
            going = True
            while going:
                going = not self._over.wait(PAUSE)
                self._write()
            self._log.close(self._failed)
        except Exception as e:
            self._say(f"{self.name}: tracking has ended ({_reason(e)}); the run goes on without it")

    def _write(self) -> None:
        if self._waiting:
            while self._waiting:
                self._waiting.popleft()()
            self._log.flush()


@dataclass(frozen=True)
class Kind:
    """An entry of :data:`TRACKERS`; called, it begins to track."""

    name: str  # also of the extra that installs what it needs
    module: str  # which it needs
    log: Callable[[str | Path | None, str], Log]

    def check(self) -> None:
        """Refuse in one line where the package is missing; before training, not after."""
        try:
            importlib.import_module(self.module)
        except ImportError:
            raise AkeError(f"{self.name}: is not installed; pip install 'akegnn[{self.name}]'") from None
        except Exception as e:  # an import runs other people's code
            raise AkeError(f"{self.name}: cannot be imported ({_reason(e)})") from None

    def __call__(
        self,
        place: str | Path | None = None,
        settings: Settings | None = None,
        name: str = "akegnn",
        say: Callable[[str], None] = _warn,
    ) -> Tracker:
        """Begin to track.

        Args:
            place: the folder that TensorBoard's or wandb's files go to, or MLflow's tracking URI; by default what the
                package takes itself (``MLFLOW_TRACKING_URI``, ``WANDB_DIR``), for TensorBoard the folder
                ``tensorboard``.
            settings: known beforehand; by default those of the result are taken at the end.
            name: of the run.
            say: takes the line that tells of a failure.
        """
        self.check()
        try:
            tracker = Tracker(self.name, self.log(place, name), say)
        except Exception as e:
            if isinstance(e, OSError) and e.strerror:
                raise AkeError(f"{e.filename or place or self.name}: cannot be written ({e.strerror})") from None
            raise AkeError(f"{self.name}: cannot begin ({_reason(e)})") from None
        if settings is not None:
            tracker.settings(settings)
        return tracker


# ---- what is told ----------------------------------------------------------------------------------------------------


def flat(settings: Settings) -> dict[str, Setting]:
    """Settings as one table: ``{"training.lr": 0.01, ...}``."""

    def items(value: Any, name: str) -> Iterator[tuple[str, Setting]]:
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                yield from items(inner, f"{name}.{key}" if name else str(key))
        else:
            yield name, value if isinstance(value, bool | int | float | str) else str(value)

    return dict(items(dataclasses.asdict(settings), ""))


def scores(result: Result | Results) -> dict[str, float]:
    """Every number of the table: ``{"test/AKE": 0.81, ...}``, as means where there are several seeds."""
    many = isinstance(result, Results)
    names = ["validation", "test", "seconds"] + (["deviation", "low", "high", "gain", "gain_low", "gain_high"] * many)
    lines: list[Any] = result.summary() if isinstance(result, Results) else result.scores
    found = {f"{name}/{_word(line.name)}": getattr(line, name) for line in lines for name in names}
    return {k: float(v) for k, v in found.items() if v is not None and math.isfinite(v)}


def curve(epoch: Epoch) -> str:
    """Which curve of its phase an epoch belongs to: the network's, or of some replicas where not all go together."""
    name = _word(epoch.network)
    if epoch.together == epoch.replicas:
        return name
    first, last = epoch.first + 1, epoch.first + epoch.together
    return f"{name}-replica-{first}" if first == last else f"{name}-replicas-{first}-{last}"


def points(epoch: Epoch) -> dict[str, float]:
    """The numbers of an epoch; a loss that nobody knows (a training loop of your own) is left out."""
    found = {"loss": epoch.loss, "validation": epoch.validation, "best": epoch.best}
    return {k: v for k, v in found.items() if math.isfinite(v)}


def _word(name: str) -> str:
    """A name that every tracker takes."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-") or "unnamed"


def _reason(e: Exception) -> str:
    lines = str(e).strip().splitlines()
    return f"{type(e).__name__}: {lines[0][:200]}" if lines else type(e).__name__


# ---- the trackers ----------------------------------------------------------------------------------------------------


class _TensorBoard:
    """Each network has a folder of its own, so that the networks of a phase are drawn in one chart."""

    def __init__(self, place: str | Path | None, name: str) -> None:
        self._folder = Path(place or "tensorboard")
        self._writers: dict[str, Any] = {}
        self._settings: dict[str, Setting] = {}
        self._writer(".")
        self._hook = threading.excepthook
        threading.excepthook = self._except
        self.where = f"tensorboard --logdir {self._folder}"

    def _except(self, raised: threading.ExceptHookArgs) -> None:
        """A writer's own thread hands us what it dies of; that it also prints a traceback helps nobody."""
        if type(raised.thread).__name__ != "_AsyncWriterThread":
            self._hook(raised)

    def _writer(self, name: str) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        if name not in self._writers:
            self._writers[name] = SummaryWriter(str(self._folder / name))
        return self._writers[name]

    def on_epoch(self, epoch: Epoch) -> None:
        for name, value in points(epoch).items():
            self._writer(curve(epoch)).add_scalar(f"{_word(epoch.phase)}/{name}", value, epoch.epoch)

    def settings(self, settings: Mapping[str, Setting]) -> None:
        # torch takes True for the number 1, which is no name of a setting.
        self._settings = {k: str(v) if isinstance(v, bool) else v for k, v in settings.items()}
        rows = "\n".join(f"| {name} | {value} |" for name, value in settings.items())
        self._writer(".").add_text("settings", f"| setting | value |\n| --- | --- |\n{rows}")

    def finish(self, scores: Mapping[str, float]) -> None:
        self._writer(".").add_hparams(self._settings, dict(scores), run_name=".")

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def close(self, failed: bool) -> None:
        for writer in self._writers.values():
            writer.close()
        if threading.excepthook == self._except:
            threading.excepthook = self._hook


class _MLflow:
    """Points are sent in batches: a request for each would take longer than an epoch."""

    POINTS, PARAMETERS = 1000, 100  # MLflow's limits of one batch

    def __init__(self, place: str | Path | None, name: str) -> None:
        import mlflow

        self._points: list[Any] = []
        group = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        with _few_attempts():
            self._client = mlflow.MlflowClient(None if place is None else str(place))
            known = self._client.get_experiment_by_name(group)
            number = known.experiment_id if known else self._client.create_experiment(group)
            self._run = self._client.create_run(number, run_name=name).info.run_id
        self.where = f"experiment {group}, run {name} at {place or mlflow.get_tracking_uri()}"

    def on_epoch(self, epoch: Epoch) -> None:
        start = f"{_word(epoch.phase)}/{curve(epoch)}"
        self._note({f"{start}/{name}": value for name, value in points(epoch).items()}, epoch.epoch)

    def settings(self, settings: Mapping[str, Setting]) -> None:
        from mlflow.entities import Param

        every = [Param(name, str(value)[:500]) for name, value in settings.items()]  # longer ones are refused
        for k in range(0, len(every), self.PARAMETERS):
            self._client.log_batch(self._run, params=every[k : k + self.PARAMETERS])

    def finish(self, scores: Mapping[str, float]) -> None:
        self._note(scores, 0)

    def _note(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._points += [Metric(name, value, now, step) for name, value in values.items()]

    def flush(self) -> None:
        while self._points:
            self._client.log_batch(self._run, metrics=self._points[: self.POINTS])
            del self._points[: self.POINTS]

    def close(self, failed: bool) -> None:
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


@contextmanager
def _few_attempts() -> Iterator[None]:
    """A server that is not there should be told of in seconds; by itself MLflow tries for minutes."""
    name = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
    ours = name not in os.environ
    os.environ.setdefault(name, "2")
    try:
        yield
    finally:
        if ours:
            del os.environ[name]


class _Wandb:
    """Every curve counts its own epochs: wandb's own steps only ever rise."""

    def __init__(self, place: str | Path | None, name: str) -> None:
        import wandb

        # Its console would copy our progress line by line, and its own lines would break into it.
        quiet = wandb.Settings(console="off", silent=True)
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self._run: Any = wandb.init(
            project=project, name=name, dir=None if place is None else str(place), settings=quiet
        )
        self._known: set[str] = set()
        offline = getattr(self._run, "offline", False)
        self.where = f"wandb sync {Path(self._run.dir).parent}" if offline else str(self._run.url)

    def on_epoch(self, epoch: Epoch) -> None:
        start = f"{_word(epoch.phase)}/{curve(epoch)}"
        if start not in self._known:
            self._known.add(start)
            self._run.define_metric(f"{start}/*", step_metric=f"{start}/epoch")
        self._run.log({f"{start}/{k}": v for k, v in points(epoch).items()} | {f"{start}/epoch": epoch.epoch})

    def settings(self, settings: Mapping[str, Setting]) -> None:
        self._run.config.update(dict(settings))

    def finish(self, scores: Mapping[str, float]) -> None:
        self._run.summary.update(dict(scores))

    def flush(self) -> None:
        pass  # it has a process of its own that sees to that

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


tensorboard = Kind("tensorboard", "torch.utils.tensorboard", _TensorBoard)
mlflow = Kind("mlflow", "mlflow", _MLflow)
wandb = Kind("wandb", "wandb", _Wandb)
TRACKERS = {kind.name: kind for kind in (tensorboard, mlflow, wandb)}
