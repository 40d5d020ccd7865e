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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .errors import AkeError, RunFailed
from .forward import forward
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


@dataclass
class Trained:
    """A network at its best validation epoch."""

    model: nn.Module
    best_epoch: int
    validation: float
    seconds: float
    history: list[Epoch] = field(default_factory=list)


@dataclass(frozen=True)
class Trainer:
    """Everything about training that does not change from network to network."""

    task: Task
    settings: Training
    optimizer: MakeOptimizer | None = None
    scheduler: MakeScheduler | None = None
    own_loop: OwnLoop | None = None
    chunk: int | None = None  # networks trained at the same time; None: as many as fit memory
    on_epoch: Callable[[Epoch], None] = lambda epoch: None

    def train(self, model: nn.Module, view: View, phase: str, network: str, seed: int) -> Trained:
        """Train ``model`` in place on ``view`` and put it back to its best validation epoch.

        Which epoch is best is decided on the original data: by validation score, then by validation loss.
        """
        started = time.perf_counter()
        views = torch.Generator().manual_seed(derive(seed, "view", network))
        seen = self.task.seen(view, views)
        with seeded(derive(seed, phase, network)):
            if self.own_loop is not None:
                return self._own(model, view, seen, views, phase, network, seed, started)
            return self._loop(model, view, seen, views, phase, network, seed, started)

    def _loop(
        self,
        model: nn.Module,
        view: View,
        seen: Any,
        views: torch.Generator,
        phase: str,
        network: str,
        seed: int,
        started: float,
    ) -> Trained:
        optimizer = self.make_optimizer(model.parameters())
        scheduler = self.scheduler(optimizer) if self.scheduler else None
        draws = torch.Generator().manual_seed(derive(seed, phase, network, "batches"))
        best = (-math.inf, -math.inf)
        best_state, best_epoch = copy.deepcopy(model.state_dict()), 0
        history: list[Epoch] = []
        for epoch in range(1, self.settings.epochs + 1):
            if epoch > 1 and view.resample == "epoch":
                seen = self.task.seen(view, views)
            loss = self._epoch(model, optimizer, seen, draws, phase, network, epoch)
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step(loss)
            elif scheduler is not None:
                scheduler.step()
            prediction = evaluate(model, self.task)
            score = self._judged(prediction, f"{phase}, network {network}, epoch {epoch}")
            standing = (score, -float(self.task.part_loss(prediction, "val")))
            if standing > best:
                best, best_epoch = standing, epoch
                for name, value in model.state_dict().items():
                    best_state[name].copy_(value)
            history.append(Epoch(phase, network, epoch, self.settings.epochs, loss, score, best[0]))
            self.on_epoch(history[-1])
            if self.settings.patience is not None and epoch - best_epoch >= self.settings.patience:
                break
        model.load_state_dict(best_state)
        return Trained(model, best_epoch, best[0], time.perf_counter() - started, history)

    def _epoch(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        seen: Any,
        draws: torch.Generator,
        phase: str,
        network: str,
        epoch: int,
    ) -> float:
        model.train()
        total, count = 0.0, 0
        for batch in self.task.batches(seen, draws):
            optimizer.zero_grad()
            loss = self.task.loss(forward(model, batch), batch)
            value = float(loss.detach())
            if not math.isfinite(value):
                raise RunFailed(f"{phase}, network {network}, epoch {epoch}: the loss is {value}; try a smaller lr")
            loss.backward()
            optimizer.step()
            total, count = total + value, count + 1
        return total / count

    def _own(
        self,
        model: nn.Module,
        view: View,
        seen: Any,
        views: torch.Generator,
        phase: str,
        network: str,
        seed: int,
        started: float,
    ) -> Trained:
        """A person's own loop: called with the model and the view's data, and whatever else its signature asks for."""
        assert self.own_loop is not None
        offers = {
            "epochs": self.settings.epochs,
            "seed": derive(seed, phase, network),
            "phase": phase,
            "redraw": lambda: self.task.seen(view, views),
        }
        wanted = inspect.signature(self.own_loop).parameters
        returned = self.own_loop(model, seen, **{k: v for k, v in offers.items() if k in wanted})
        if isinstance(returned, nn.Module):
            model = returned
        elif returned is not None:
            raise AkeError(f"train: must return the model or None, returned {type(returned).__name__}")
        score = self._judged(evaluate(model, self.task), f"{phase}, network {network}")
        entry = Epoch(phase, network, 1, 1, math.nan, score, score)
        self.on_epoch(entry)
        return Trained(model, 1, score, time.perf_counter() - started, [entry])

    def _judged(self, prediction: Tensor, where: str) -> float:
        """The validation score; a prediction or a score that is not a number is a failure."""
        if not bool(torch.isfinite(prediction).all()):
            raise RunFailed(f"{where}: the network predicts NaN or infinity; try a smaller lr")
        score = self.task.score(prediction, "val")
        if math.isnan(score):
            raise RunFailed(f"{where}: the metric {self.task.metric_name} is nan")
        return score

    def make_optimizer(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """A fresh optimizer."""
        if self.optimizer is not None:
            return self.optimizer(parameters)
        kind = getattr(torch.optim, self.settings.optimizer, None)
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            raise AkeError(f"optimizer: torch.optim has no {self.settings.optimizer!r}")
        try:
            return kind(parameters, lr=self.settings.lr, weight_decay=self.settings.weight_decay)  # type: ignore[call-arg]
        except (TypeError, ValueError) as e:
            raise AkeError(f"optimizer: {self.settings.optimizer} cannot be used ({e})") from None


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
