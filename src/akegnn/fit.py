"""The one call: from a graph and a model to one better network."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from .channels import ChannelMap, channel_map
from .data import load as load_data
from .errors import AkeError
from .exchange import Swap, check_alike, exchange_ring
from .models import Factory, resolve
from .settings import Exchange, Settings, Training, derive
from .tasks import Metric, Task, make_task
from .training import Epoch, MakeOptimizer, MakeScheduler, OwnLoop, Trained, Trainer, evaluate, seeded
from .views import Original, View, as_view, paper_views

RECIPES: dict[str, Callable[[], tuple[list[View], Exchange]]] = {
    "paper": lambda: (paper_views(), Exchange()),
}


@dataclass(frozen=True)
class Score:
    """One line of the table: a network or an ensemble, measured on the original data at its best validation epoch."""

    name: str
    validation: float
    test: float
    passes: int  # forward passes that a prediction costs
    seconds: float  # of training that it took


@dataclass
class Result:
    """What :func:`fit` gives back."""

    model: nn.Module  # the network that ships: the first of the ring
    networks: list[nn.Module]  # all of the ring
    scores: list[Score]  # base, each view, ensemble, AKE, and AKE's other networks
    swaps: list[Swap]
    history: list[Epoch]
    settings: Settings
    metric: str
    floor: float | None  # test score of the commonest class
    sizes: dict[str, int]  # of the splits
    map: ChannelMap

    def score(self, name: str = "AKE") -> Score:
        """One line of the table by its name."""
        for score in self.scores:
            if score.name == name:
                return score
        raise AkeError(f"score: no {name!r}; there are {', '.join(s.name for s in self.scores)}")

    def save(self, path: str | Path) -> Path:
        """Write the run folder; see :mod:`akegnn.runs`."""
        from .runs import save  # runs reads and writes results, so it imports this module

        return save(self, Path(path))

    def __str__(self) -> str:
        width = max(len(s.name) for s in self.scores)
        lines = [f"{self.metric + ' %':{width}}  validation    test  passes  seconds"]
        for s in self.scores:
            validation, test = 100 * s.validation, 100 * s.test
            lines.append(f"{s.name:{width}}  {validation:10.2f}  {test:6.2f}  {s.passes:6d}  {s.seconds:7.1f}")
        return "\n".join(lines)


def fit(
    data: Data | Sequence[Data] | str,
    model: str | type[nn.Module] | Factory = "gcn",
    *,
    models: Sequence[nn.Module] | None = None,
    model_args: Mapping[str, Any] | None = None,
    task: str | None = None,
    views: Sequence[View | Callable[[Data], Data] | str] | None = None,
    resample: str | None = None,
    recipe: str = "paper",
    seed: int = 0,
    split: int = 0,
    train: OwnLoop | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    weight_decay: float | None = None,
    patience: int | None = None,
    batch_size: int | None = None,
    optimizer: str | MakeOptimizer | None = None,
    scheduler: MakeScheduler | None = None,
    metric: str | Metric | None = None,
    exchange: Exchange | Mapping[str, Any] | None = None,
    baseline: bool = True,
    device: str = "auto",
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Result:
    """Train a network per view, exchange their channels, train them again; the first of them is ``result.model``.

    Args:
        data: a PyG ``Data`` (masks one- or two-dimensional; what is missing is drawn), a list of them for the graph
            task, or the name or path of a dataset.
        model: a backbone's name, ``"package.module:Class"``, a class, or a function that builds a module.
        models: networks already trained, one per view: the first phase is skipped. They are not changed.
        model_args: arguments of a model given by name or class.
        task: ``node``, ``link`` or ``graph``; by default what the data looks like.
        views: what each network sees, as views, names such as ``"mask:0.3"``, or any PyG transforms.
        resample: when views are drawn, ``once`` or in every ``epoch``; overrides what each view says.
        recipe: a named full setting; what is given besides overrides it.
        seed: of weights, views and dropout. The same seed gives the same result, bit for bit on a CPU.
        split: which column of two-dimensional masks, or which drawn split.
        train: your own loop, ``train(model, data)``, used in both phases. It may also ask for ``epochs``, ``seed``,
            ``phase`` and ``redraw`` (a function that draws the view anew).
        epochs, lr, weight_decay, patience, batch_size: of the built-in loop.
        optimizer: a class of ``torch.optim`` by name, or a function of the parameters.
        scheduler: a function of the optimizer.
        metric: ``accuracy``, ``f1``, ``roc_auc``, ``average_precision``, or a function of prediction and target.
        exchange: settings of the exchange, see :class:`akegnn.settings.Exchange`.
        baseline: also train a network on the original graph, to compare with.
        device: ``auto``, ``cpu`` or ``cuda``.
        on_epoch: called with an :class:`~akegnn.training.Epoch` after each.
    """
    return plan(**locals()).run()


@dataclass
class Plan:
    """A run that is fully settled but has not begun."""

    trainer: Trainer
    factory: Factory | None
    models: Sequence[nn.Module] | None
    views: list[View]
    settings: Settings

    def run(self) -> Result:
        """The three phases in order, and the scores of everything on the way."""
        trainer, factory, models, views, settings = self.trainer, self.factory, self.models, self.views, self.settings
        task = trainer.task
        names = [f"{k}: {view_name(v)}" for k, v in enumerate(views, 1)]
        scores: list[Score] = []
        history: list[Epoch] = []

        # Find the channels first: a model that cannot be exchanged should not be trained for nothing.
        sample = models[0] if models is not None else _new(factory, trainer, "sample")
        found = channel_map(sample, task.example)
        found.chosen(settings.exchange.layers)

        def measure(name: str, prediction: Tensor, passes: int, seconds: float) -> None:
            scores.append(Score(name, task.score(prediction, "val"), task.score(prediction, "test"), passes, seconds))

        # Phase 1, individual learning: a network per view, and one on the original graph to compare with.
        if settings.baseline:
            base = trainer.train(_new(factory, trainer, "base"), Original(), "individual", "base")
            history += base.history
            measure("base", evaluate(base.model, task), 1, base.seconds)
        if models is not None:
            networks = [copy.deepcopy(m).to(_where(task)) for m in models]
            spent = [0.0] * len(networks)
        else:
            trained = [
                trainer.train(_new(factory, trainer, name), view, "individual", name)
                for name, view in zip(names, views, strict=True)
            ]
            history += [e for t in trained for e in t.history]
            networks, spent = [t.model for t in trained], [t.seconds for t in trained]
        predictions = [evaluate(network, task) for network in networks]
        for name, prediction, seconds in zip(names, predictions, spent, strict=True):
            measure(f"view {name}", prediction, 1, seconds)
        measure("ensemble", task.combine(predictions), len(networks), sum(spent))

        # Phase 2, knowledge exchange round the ring.
        started = time.perf_counter()
        swaps = exchange_ring(networks, seed=settings.seed, map=found, **dataclasses.asdict(settings.exchange))
        exchanged = time.perf_counter() - started
        measure("after exchange", evaluate(networks[0], task), 1, sum(spent) + exchanged)

        # Phase 3, re-training, each on its own view again.
        again: list[Trained] = [
            trainer.train(network, view, "re-training", name)
            for name, view, network in zip(names, views, networks, strict=True)
        ]
        history += [e for t in again for e in t.history]
        cost = sum(spent) + exchanged + sum(t.seconds for t in again)
        for k, t in enumerate(again):
            measure("AKE" if k == 0 else f"AKE network {k + 1}", evaluate(t.model, task), 1, cost)
        final = [t.model.eval() for t in again]
        return Result(
            final[0], final, scores, swaps, history, settings, task.metric_name, task.floor(), dict(task.sizes), found
        )


def plan(
    data: Data | Sequence[Data] | str,
    model: str | type[nn.Module] | Factory = "gcn",
    *,
    models: Sequence[nn.Module] | None = None,
    model_args: Mapping[str, Any] | None = None,
    task: str | None = None,
    views: Sequence[View | Callable[[Data], Data] | str] | None = None,
    resample: str | None = None,
    recipe: str = "paper",
    seed: int = 0,
    split: int = 0,
    train: OwnLoop | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    weight_decay: float | None = None,
    patience: int | None = None,
    batch_size: int | None = None,
    optimizer: str | MakeOptimizer | None = None,
    scheduler: MakeScheduler | None = None,
    metric: str | Metric | None = None,
    exchange: Exchange | Mapping[str, Any] | None = None,
    baseline: bool = True,
    device: str = "auto",
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Plan:
    """Settle everything about a run, and check all that can be checked before it begins; arguments as :func:`fit`."""
    if recipe not in RECIPES:
        raise AkeError(f"recipe: {recipe!r} is not one of {', '.join(RECIPES)}")
    recipe_views, recipe_exchange = RECIPES[recipe]()
    swapping = _replace(recipe_exchange, exchange)
    given: dict[str, Any] = {"epochs": epochs, "lr": lr, "weight_decay": weight_decay, "patience": patience}
    given |= {"batch_size": batch_size, "optimizer": optimizer if isinstance(optimizer, str) else _name(optimizer)}
    given |= {"scheduler": _name(scheduler), "metric": metric if isinstance(metric, str) else _name(metric)}
    training = dataclasses.replace(Training(), **{k: v for k, v in given.items() if v is not None})

    problem = make_task(
        load_data(data) if isinstance(data, str) else data,
        task,
        split=split,
        metric=metric,
        batch_size=training.batch_size,
    )
    problem = problem.to(_device(device))
    shown = [as_view(v) for v in views] if views is not None else recipe_views
    if not shown:
        raise AkeError("views: at least one is needed")
    if resample is not None:
        shown = [dataclasses.replace(v, resample=resample) for v in shown]  # type: ignore[arg-type]
    if models is not None:
        if views is None and len(models) <= len(shown):
            shown = shown[: len(models)]
        if len(models) != len(shown):
            raise AkeError(f"models: {len(models)} networks for {len(shown)} views; give as many views as networks")
        check_alike(models)
        factory, name, arguments = None, "given", dict(model_args or {})
    else:
        factory, name, arguments = resolve(model, model_args or {}, problem)
    settings = Settings(
        data=data if isinstance(data, str) else "given",
        task=problem.name,
        split=split,
        model=name,
        model_args=arguments,
        recipe=recipe,
        views=[v.spec() for v in shown],
        seed=seed,
        device=_device(device).type,
        baseline=baseline and factory is not None,
        train="built in" if train is None else _name(train) or "given",
        splits_drawn=problem.splits_drawn,
        training=training,
        exchange=swapping,
    )
    trainer = Trainer(
        problem,
        training,
        seed,
        optimizer=None if isinstance(optimizer, str) else optimizer,
        scheduler=scheduler,
        own_loop=train,
        on_epoch=on_epoch or (lambda epoch: None),
    )
    return Plan(trainer, factory, models, shown, settings)


def view_name(view: View) -> str:
    """Short name of a view for tables."""
    kind = view.spec()["kind"]
    return type(view).__name__ if kind == "custom" else str(kind)


def _new(factory: Factory | None, trainer: Trainer, network: str) -> nn.Module:
    """A fresh network; its weights depend on the seed and on which network it is."""
    assert factory is not None
    with seeded(derive(trainer.seed, "weights", network)):
        model = factory()
    if not isinstance(model, nn.Module):
        raise AkeError(f"model: the function built a {type(model).__name__}, expected a torch.nn.Module")
    return model.to(_where(trainer.task))


def _where(task: Task) -> torch.device:
    return task.example.edge_index.device  # type: ignore[no-any-return]


def _device(device: str) -> torch.device:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise AkeError(f"device: {device!r} is not one of auto, cpu, cuda") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise AkeError("device: no CUDA device was found; use cpu or auto")
    return chosen


def _replace(settings: Exchange, given: Exchange | Mapping[str, Any] | None) -> Exchange:
    if isinstance(given, Exchange):
        return given
    known = {f.name for f in dataclasses.fields(Exchange)}
    for name in given or {}:
        if name not in known:
            raise AkeError(f"exchange: {name!r} is not one of {', '.join(sorted(known))}")
    return dataclasses.replace(settings, **(given or {}))


def _name(function: object) -> str | None:
    return None if function is None else str(getattr(function, "__qualname__", type(function).__name__))
