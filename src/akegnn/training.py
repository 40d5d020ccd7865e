"""Training one network: the loop that both phases use."""

from __future__ import annotations

import copy
import inspect
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from .errors import AkeError, RunFailed
from .forward import forward
from .propagate import lean
from .settings import Training, derive
from .tasks import Task
from .views import View

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]
MakeScheduler = Callable[[torch.optim.Optimizer], Any]
OwnLoop = Callable[..., nn.Module | None]


@dataclass(frozen=True)
class Epoch:
    """What is known after an epoch; the progress display and ``history.csv`` are made of these."""

    phase: str
    network: str  # which network of the phase
    epoch: int  # from 1 on
    epochs: int
    loss: float
    validation: float
    best: float  # validation so far
    replicas: int = 1  # of this network in the run: one for each split and seed
    first: int = 0  # how many of them were finished before these began
    together: int = 1  # how many are trained at once; loss and scores are means over them
    stopped: int = 0  # how many of these will be trained no further

    @property
    def done(self) -> int:
        """Replicas of this network that are finished."""
        return self.first + self.stopped


@dataclass(frozen=True)
class Targets:
    """What others have learned, to be learned from: of every node, labelled or not, how likely each class is."""

    soft: Tensor  # [N, C]; each row adds up to one, or to how much its node counts
    weight: float  # of the loss on these; the rest is for the labels


@dataclass
class Trained:
    """A network at its best validation epoch."""

    model: nn.Module
    best_epoch: int
    validation: float
    seconds: float
    history: list[Epoch] = field(default_factory=list)


OFFERS = ("epochs", "seed", "phase", "redraw", "targets")  # what a loop of one's own may ask for


@dataclass(frozen=True)
class Trainer:
    """Everything about training that does not change from network to network."""

    task: Task
    settings: Training
    optimizer: MakeOptimizer | None = None
    scheduler: MakeScheduler | None = None
    own_loop: OwnLoop | None = None
    chunk: int | None = None  # networks trained at the same time; None: as many as fit memory
    keep: bool = False  # populations go on with the state that their optimizer had when they were last trained
    replicas: int = 0  # of which these networks are some; 0: they are all
    first: int = 0  # how many replicas were trained before them
    on_epoch: Callable[[Epoch], None] = lambda epoch: None

    def __post_init__(self) -> None:
        if self.own_loop is None:
            return
        if not callable(self.own_loop):
            raise AkeError(f"train: must be a function of a model and its data, is a {type(self.own_loop).__name__}")
        signature = inspect.signature(self.own_loop)
        try:
            signature.bind(None, None, **{name: None for name in OFFERS if name in signature.parameters})
        except TypeError as e:
            raise AkeError(f"train: called as train(model, data), with any of {', '.join(OFFERS)}: {e}") from None

    def train(
        self, model: nn.Module, view: View, phase: str, network: str, seed: int, targets: Targets | None = None
    ) -> Trained:
        """Train ``model`` in place on ``view`` and put it back to its best validation epoch.

        Which epoch is best is decided on the original data: by validation score, then by validation loss, or by the
        loss alone (``select``).
        """
        views = torch.Generator().manual_seed(derive(seed, "view", network))
        seen = self.task.seen(view, views)
        job = _Job(model, view, seen, views, phase, network, seed, time.perf_counter(), targets)
        with seeded(derive(seed, phase, network)):
            return self._own(job) if self.own_loop is not None else self._loop(job)

    def _loop(self, job: _Job) -> Trained:
        model, settings = job.model, self.settings
        optimizer = self.make_optimizer(model.named_parameters())
        scheduler = self.make_scheduler(optimizer)
        draws = batch_draws(self.task, job.seed, job.phase, job.network)
        watched = self.task.watched()
        best = _Best(copy.deepcopy(model.state_dict()), by_loss=settings.select == "loss")
        history: list[Epoch] = []
        for epoch in range(1, settings.epochs + 1):
            if epoch > 1 and job.view.resample == "epoch":
                job.seen = self.task.seen(job.view, job.views)
            loss = self._epoch(job, optimizer, draws, epoch)
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step(loss)
            elif scheduler is not None:
                scheduler.step()
            prediction = evaluate(model, watched)
            score = self._judged(watched, prediction, f"{job.where}, epoch {epoch}")
            best.update(epoch, score, float(watched.part_loss(prediction, "val")), model)
            last = best.epoch if settings.stop == "best" else best.last
            waited = settings.patience is not None and epoch - last >= settings.patience
            over = waited or epoch == settings.epochs
            known = (loss, score, best.score, *self._place(over))
            history.append(Epoch(job.phase, job.network, epoch, settings.epochs, *known))
            self.on_epoch(history[-1])
            if over:
                break
        model.load_state_dict(best.state)
        return Trained(model, best.epoch, best.score, time.perf_counter() - job.started, history)

    def _epoch(self, job: _Job, optimizer: torch.optim.Optimizer, draws: torch.Generator, epoch: int) -> float:
        job.model.train()
        total, count = 0.0, 0
        seen = lean(job.seen, job.model) if isinstance(job.seen, Data) else job.seen
        for batch in self.task.batches(seen, draws):
            optimizer.zero_grad()
            loss = training_loss(job.model, softened(batch, job.targets), self.task)
            value = float(loss.detach())
            if not math.isfinite(value):
                raise RunFailed(f"{job.where}, epoch {epoch}: the loss is {value}; try a smaller lr")
            loss.backward()
            optimizer.step()
            total, count = total + value, count + 1
        return total / count

    def _own(self, job: _Job) -> Trained:
        """A person's own loop: called with the model and the view's data, and whatever else its signature asks for."""
        assert self.own_loop is not None
        model = job.model
        offers = {
            "epochs": self.settings.epochs,
            "seed": derive(job.seed, job.phase, job.network),
            "phase": job.phase,
            "redraw": lambda: _given(self.task.seen(job.view, job.views)),
            "targets": job.targets.soft if job.targets is not None else None,
        }
        wanted = inspect.signature(self.own_loop).parameters
        returned = self.own_loop(model, _given(job.seen), **{k: offers[k] for k in OFFERS if k in wanted})
        if isinstance(returned, nn.Module):
            model = _unwrapped(returned, like=model)
        elif returned is not None:
            raise AkeError(f"train: must return the model or None, returned {type(returned).__name__}")
        score = self._judged(self.task, evaluate(model, self.task), job.where)
        entry = Epoch(job.phase, job.network, 1, 1, math.nan, score, score, *self._place(over=True))
        self.on_epoch(entry)
        return Trained(model, 1, score, time.perf_counter() - job.started, [entry])

    def _place(self, over: bool) -> tuple[int, int, int, int]:
        """Where one network stands among the replicas; the last fields of an :class:`Epoch`."""
        return max(self.replicas, 1), self.first, 1, int(over)

    def _judged(self, task: Task, prediction: Tensor, where: str) -> float:
        """The validation score; a prediction or a score that is not a number is a failure."""
        if not bool(torch.isfinite(prediction).all()):
            raise RunFailed(f"{where}: the network predicts NaN or infinity; try a smaller lr")
        score = task.score(prediction, "val")
        if math.isnan(score):
            raise RunFailed(f"{where}: the metric {task.metric_name} is nan")
        return score

    def make_optimizer(self, parameters: Iterable[tuple[str, Tensor]]) -> torch.optim.Optimizer:
        """A fresh optimizer of named parameters; each name's weight decay is that of the first pattern it matches."""
        named = list(parameters)
        if self.optimizer is not None:
            return self.optimizer([p for _, p in named])
        kind = getattr(torch.optim, self.settings.optimizer, None)
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            raise AkeError(f"optimizer: torch.optim has no {self.settings.optimizer!r}")
        for pattern in self.settings.weight_decays:
            if len(named) > 1 and not any(fnmatchcase(name, pattern) for name, _ in named):
                raise AkeError(f"weight_decays: no parameter is called {pattern!r} (there is {named[0][0]})")
        groups: dict[float, list[Tensor]] = {}
        for name, p in named:
            patterns = self.settings.weight_decays.items()
            decay = next((d for pattern, d in patterns if fnmatchcase(name, pattern)), self.settings.weight_decay)
            groups.setdefault(decay, []).append(p)
        given: dict[str, Any] = {"lr": self.settings.lr, "weight_decay": self.settings.weight_decay}
        plain = all(p.device.type == "cpu" and p.is_floating_point() for _, p in named)
        if plain and "fused" in inspect.signature(kind).parameters:
            given["fused"] = True  # one pass over the parameters instead of a dozen
        try:
            return kind([{"params": group, "weight_decay": decay} for decay, group in groups.items()], **given)
        except (TypeError, ValueError) as e:
            raise AkeError(f"optimizer: {self.settings.optimizer} cannot be used ({e})") from None

    def make_scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        """A fresh scheduler, the one given or the one that the settings name; ``None`` without."""
        if self.scheduler is not None:
            return self.scheduler(optimizer)
        if not self.settings.scheduler:
            return None
        try:
            match self.settings.scheduler.split(":"):
                case ["step", epochs, factor] if int(epochs) > 0 and float(factor) > 0:
                    return torch.optim.lr_scheduler.StepLR(optimizer, int(epochs), float(factor))
                case ["warmup", epochs] if (rise := int(epochs)) > 0:
                    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: min(1.0, (epoch + 1) / rise))
        except ValueError:
            pass
        raise AkeError(f"scheduler: {self.settings.scheduler!r} is neither step:EPOCHS:FACTOR nor warmup:EPOCHS")


@dataclass
class _Job:
    """One network to train."""

    model: nn.Module
    view: View
    seen: Any
    views: torch.Generator
    phase: str
    network: str
    seed: int
    started: float
    targets: Targets | None = None

    @property
    def where(self) -> str:
        return f"{self.phase}, network {self.network}"


@dataclass
class _Best:
    """The best epoch so far, and the last one that was as good as any before by score or by loss."""

    state: dict[str, Tensor]
    by_loss: bool
    standing: tuple[float, float] = (-math.inf, -math.inf)
    epoch: int = 0
    score: float = -math.inf
    top: float = -math.inf
    low: float = math.inf
    last: int = 0

    def update(self, epoch: int, score: float, loss: float, model: nn.Module) -> None:
        if score >= self.top or loss <= self.low:
            self.last = epoch
        self.top, self.low = max(self.top, score), min(self.low, loss)
        standing = (-loss, score) if self.by_loss else (score, -loss)
        if standing > self.standing:
            self.standing, self.epoch, self.score = standing, epoch, score
            for name, value in model.state_dict().items():
                self.state[name].copy_(value)


def _unwrapped(model: nn.Module, like: nn.Module) -> nn.Module:
    """The network in what a person's loop gave back, which may have wrapped it (to average or to compile it)."""
    wanted = {name: value.shape for name, value in like.state_dict().items()}
    inner: object = model
    while isinstance(inner, nn.Module):
        if {name: getattr(value, "shape", None) for name, value in inner.state_dict().items()} == wanted:
            return inner
        inner = getattr(inner, "_orig_mod", None) or getattr(inner, "module", None)
    raise AkeError(
        f"train: must return a model of the shape that it was given, returned another {type(model).__name__}"
    )


def _given(seen: Any) -> Any:
    """What a person's loop is given: a graph, or a list of graphs; copies, which it may change in place."""
    return seen.clone() if isinstance(seen, Data) else [graph.clone() for graph in seen]


def batch_draws(task: Task, seed: int, phase: str, network: str) -> torch.Generator:
    """What decides the batches of a training."""
    return torch.Generator().manual_seed(derive(seed if task.own_batches else 0, phase, network, "batches"))


def softened(batch: Data, targets: Targets | None) -> Data:
    """A batch that brings soft targets along; see :meth:`akegnn.tasks.node.NodeTask.loss`."""
    if targets is not None:
        batch = copy.copy(batch)
        batch.ake_soft, batch.ake_soft_weight = targets.soft, targets.weight
    return batch


def training_loss(model: nn.Module, batch: Data, task: Task) -> Tensor:
    """The task's loss on a batch, or the model's own: ``model.training_loss(batch, loss)``, with ``loss(output)`` the
    task's."""
    own = getattr(model, "training_loss", None)
    if own is not None:
        return own(batch, lambda out: task.loss(out, batch))  # type: ignore[no-any-return]
    return task.loss(forward(model, batch), batch)


def evaluate(model: nn.Module, task: Task) -> Tensor:
    """The model's prediction on the original data."""
    model.eval()
    with torch.no_grad():
        return task.predict(model)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run with torch's generators seeded, and leave them as they were."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
