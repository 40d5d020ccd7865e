"""The one call: from a graph and a model to one better network."""

from __future__ import annotations

import copy
import dataclasses
import logging
import operator
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from .channels import ChannelMap, channel_map
from .data import load as load_data
from .errors import AkeError, RunFailed
from .exchange import Swap, check_alike, exchange_populations
from .forward import forward
from .models import Factory, resolve
from .population import Population, Replica
from .settings import Exchange, Settings, Training
from .strategies import STRATEGIES
from .tasks import Metric, make_task
from .tasks.base import check_outputs, in_precision, precision_of
from .training import Epoch, MakeOptimizer, MakeScheduler, OwnLoop, Trainer
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
    classes: list[str] | None = None  # their names, where the data has them

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


@dataclass(frozen=True)
class Summary:
    """One line of the table over seeds: mean, standard deviation and 95 % interval of the mean."""

    name: str
    n: int
    validation: float
    test: float
    deviation: float
    low: float
    high: float
    passes: int
    seconds: float
    gain: float | None = None  # over the base, seed by seed, and the 95 % interval of its mean
    gain_low: float | None = None
    gain_high: float | None = None


@dataclass
class Results:
    """What :func:`fit` gives back for several seeds."""

    results: list[Result]  # one per seed that did not fail
    settings: Settings
    failures: list[str]
    history: list[Epoch]  # means over seeds

    @property
    def best(self) -> Result:
        """The seed whose shipped network has the highest validation score."""
        if not self.results:
            raise RunFailed(f"every seed failed; the first: {self.failures[0]}")
        return max(self.results, key=lambda r: r.score().validation)

    @property
    def model(self) -> nn.Module:
        """The network of the best seed by validation."""
        return self.best.model

    def summary(self) -> list[Summary]:
        """Mean, deviation and interval of every line of the table."""
        lines = []
        for k, first in enumerate(self.best.scores):
            scores = [r.scores[k] for r in self.results]
            tests = [x.test for x in scores]
            mean, deviation, half = _interval(tests)
            validation, seconds = (statistics.fmean(getattr(x, f) for x in scores) for f in ("validation", "seconds"))
            test = (mean, deviation, mean - half, mean + half)
            gains: tuple[float, ...] = ()
            if self.settings.baseline and k > 0:
                gain, _, half = _interval(
                    [x.test - r.scores[0].test for x, r in zip(scores, self.results, strict=True)]
                )
                gains = (gain, gain - half, gain + half)
            lines.append(Summary(first.name, len(tests), validation, *test, first.passes, seconds, *gains))
        return lines

    def save(self, path: str | Path) -> Path:
        """Write the run folder, with the network of the best seed; see :mod:`akegnn.runs`."""
        from .runs import save

        return save(self, Path(path))

    def __str__(self) -> str:
        lines = self.summary()
        width = max(len(s.name) for s in lines)
        head = f"test {self.best.metric} %"
        text = [f"{head:{width}}   mean +-   sd  [95 % interval]    n  passes  seconds  over base, paired"]
        for s in lines:
            mean, deviation, low, high = (100 * v for v in (s.test, s.deviation, s.low, s.high))
            numbers = f"{mean:6.2f} +- {deviation:4.2f}  [{low:6.2f}, {high:6.2f}]"
            gain = ""
            if s.gain is not None and s.gain_low is not None and s.gain_high is not None:
                gain = f"{100 * s.gain:+.2f} [{100 * s.gain_low:+.2f}, {100 * s.gain_high:+.2f}]"
            text.append(f"{s.name:{width}} {numbers}  {s.n:3d}  {s.passes:6d}  {s.seconds:7.2f}  {gain}".rstrip())
        return "\n".join([*text, *(f"failed: {line}" for line in self.failures)])


def _interval(values: list[float]) -> tuple[float, float, float]:
    """Mean, standard deviation, and half the width of the mean's 95 % interval by Student's t."""
    from scipy.stats import t

    n = len(values)
    if n == 1:
        return values[0], 0.0, 0.0
    deviation = statistics.stdev(values)
    return statistics.fmean(values), deviation, deviation / n**0.5 * float(t.ppf(0.975, n - 1))


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
    seeds: int | Sequence[int] | None = None,
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
    precision: str | None = None,
    device: str = "auto",
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Result | Results:
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
        seed: of weights, views and dropout. The same seed gives the same result, bit for bit on a CPU. (Of several
            seeds at once, dropout is drawn for all together: the same seeds, as many at a time, give the same results.)
        seeds: how many seeds, from ``seed`` on, or which: all are trained at once and :class:`Results` come back.
        split: which column of two-dimensional masks, or which drawn split.
        train: your own loop, ``train(model, data)``, used in both phases. It may also ask for ``epochs``, ``seed``,
            ``phase`` and ``redraw`` (a function that draws the view anew).
        epochs, lr, weight_decay, patience, batch_size: of the built-in loop.
        optimizer: a class of ``torch.optim`` by name, or a function of the parameters.
        scheduler: a function of the optimizer.
        metric: ``accuracy``, ``f1``, ``roc_auc``, ``average_precision``, or a function of prediction and target.
        exchange: settings of the exchange, see :class:`akegnn.settings.Exchange`.
        baseline: also train a network on the original graph, to compare with.
        precision: of matrix products where several seeds are trained at once: ``float32``, ``tf32`` or ``bf16``.
        device: ``auto``, ``cpu`` or ``cuda``.
        on_epoch: called with an :class:`~akegnn.training.Epoch` after each; after every twentieth, with means, where
            several seeds are trained at once.
    """
    given = {k: v for k, v in locals().items() if k != "seeds"}
    prepared = plan(**given)
    return prepared.run() if seeds is None else prepared.run_seeds(seed_list(seeds, seed))


@dataclass
class Plan:
    """A run that is fully settled but has not begun."""

    trainer: Trainer
    factory: Factory | None
    models: Sequence[nn.Module] | None
    views: list[View]
    settings: Settings
    say: Callable[[str], None] = logging.getLogger("akegnn").warning  # takes the lines that are for people

    def run(self) -> Result:
        """Run it with its one seed."""
        return self.run_seeds([self.settings.seed]).results[0]

    def run_seeds(self, seeds: Sequence[int]) -> Results:
        """The three phases in order for all seeds at once, and the scores of everything on the way."""
        if self.models is not None and len(seeds) > 1:
            raise AkeError("seeds: networks already trained have no seeds; give models= or seeds=, not both")
        views, settings = self.views, self.settings
        sample = self.models[0] if self.models is not None else self._new(seeds[:1], "sample").module(0)
        task = in_precision(self.trainer.task, precision_of(sample))
        trainer = replace(self.trainer, task=task)
        names = [f"{k}: {view_name(v)}" for k, v in enumerate(views, 1)]
        count = len(seeds)
        scores: list[list[Score]] = [[] for _ in seeds]
        history: list[Epoch] = []
        failed: dict[int, str] = {}

        # Find the channels first: a model that cannot be exchanged should not be trained for nothing.
        found = channel_map(sample, task.example)
        chosen = found.chosen(settings.exchange.layers)
        if task.name == "node":
            with torch.no_grad():
                out = forward(copy.deepcopy(sample).to(task.device).eval(), task.example)
            check_outputs(task.name, out, task.outputs)

        def measure(name: str, predictions: Tensor, passes: int, seconds: Sequence[float]) -> None:
            found = task.scores(predictions, "val").tolist(), task.scores(predictions, "test").tolist()
            for k, (validation, test) in enumerate(zip(*found, strict=True)):
                scores[k].append(Score(name, validation, test, passes, seconds[k]))

        def train(population: Population, view: View, phase: str, name: str) -> list[float]:
            replicas = [Replica(seed, name, view) for seed in seeds]
            outcomes = population.train(trainer, replicas, phase, self.say)
            fine = [k for k, outcome in enumerate(outcomes) if not outcome.failed]
            if not fine:
                raise RunFailed(outcomes[0].failed)
            for k, outcome in enumerate(outcomes):
                history.extend(outcome.history)
                if outcome.failed:  # its place is taken, so that the others can go on together; it has no result
                    failed.setdefault(seeds[k], outcome.failed)
                    population.load_state_dict(k, population.state_dict(fine[0]))
            return [outcome.seconds for outcome in outcomes]

        # Phase 1, individual learning: a network per view, and one on the original graph to compare with.
        if settings.baseline:
            base = self._new(seeds, names[0])  # from the weights of the first network, which is the one that ships
            spent = train(base, Original(), "individual", "base")
            measure("base", base.evaluate(task), 1, spent)
        if self.models is not None:
            networks = [Population.of([m]).to(task.device) for m in self.models]
            cost = [0.0] * count
        else:
            networks, cost = [self._new(seeds, name) for name in names], [0.0] * count
        predictions = []
        for name, view, network in zip(names, views, networks, strict=True):
            spent = train(network, view, "individual", name) if self.models is None else [0.0] * count
            predictions.append(network.evaluate(task))
            measure(f"view {name}", predictions[-1], 1, spent)
            cost = [a + b for a, b in zip(cost, spent, strict=True)]
        together = torch.stack([task.combine(list(p)) for p in zip(*predictions, strict=True)])
        measure("ensemble", together, len(networks), cost)

        # Phase 2, knowledge exchange round the ring.
        started = time.perf_counter()
        swaps = exchange_populations(
            [n.state for n in networks], networks[0].template, chosen, found, settings.exchange, seeds
        )
        exchanged = (time.perf_counter() - started) / count
        measure("after exchange", networks[0].evaluate(task), 1, [c + exchanged for c in cost])

        # Phase 3, re-training, each on its own view again.
        cost = [c + exchanged for c in cost]
        for name, view, network in zip(names, views, networks, strict=True):
            cost = [a + b for a, b in zip(cost, train(network, view, "re-training", name), strict=True)]
        for k, network in enumerate(networks):
            measure("AKE" if k == 0 else f"AKE network {k + 1}", network.evaluate(task), 1, cost)
        results = []
        moved_in: list[list[Swap]] = [[] for _ in seeds]
        for swap in swaps:
            moved_in[swap.replica].append(swap)
        for k, seed in enumerate(seeds):
            if seed in failed:
                continue
            final = [network.module(k).eval() for network in networks]
            own = replace(settings, seed=seed, seeds=list(seeds) if count > 1 else [])
            moved = moved_in[k]
            rest = (own, task.metric_name, task.floor(), dict(task.sizes), found, task.example.get("classes"))
            results.append(Result(final[0], final, scores[k], moved, history if count == 1 else [], *rest))
        return Results(results, replace(settings, seeds=list(seeds)), list(failed.values()), history)

    def _new(self, seeds: Sequence[int], network: str) -> Population:
        """Fresh networks; their weights depend on the seed and on which network they are."""
        assert self.factory is not None
        return Population(self.factory, seeds, network).to(self.trainer.task.device)


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
    precision: str | None = None,
    device: str = "auto",
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Plan:
    """Settle everything about a run, and check all that can be checked before it begins; arguments as :func:`fit`."""
    if recipe not in RECIPES:
        raise AkeError(f"recipe: {recipe!r} is not one of {', '.join(RECIPES)}")
    seed = int(seed)
    data = str(data) if isinstance(data, Path) else data
    recipe_views, recipe_exchange = RECIPES[recipe]()
    swapping = _replace(recipe_exchange, exchange)
    if swapping.strategy not in STRATEGIES:
        raise AkeError(f"strategy: {swapping.strategy!r} is not one of {', '.join(STRATEGIES)}")
    given: dict[str, Any] = {"epochs": epochs, "lr": lr, "weight_decay": weight_decay, "patience": patience}
    given |= {"precision": precision}
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
        optimizer=None if isinstance(optimizer, str) else optimizer,
        scheduler=scheduler,
        own_loop=train,
        on_epoch=on_epoch or (lambda epoch: None),
    )
    if trainer.optimizer is None:
        trainer.make_optimizer([nn.Parameter(torch.zeros(1))])  # a wrong name is found out now, not after an epoch
    return Plan(trainer, factory, models, shown, settings)


def seed_list(seeds: int | Sequence[int], first: int) -> list[int]:
    """The seeds that are meant: so many from ``first`` on, or these."""
    try:
        count = operator.index(seeds)  # type: ignore[arg-type]
        chosen = list(range(first, first + count))
    except TypeError:
        chosen = [int(s) for s in seeds]  # type: ignore[union-attr]
    if not chosen or len(set(chosen)) < len(chosen):
        raise AkeError(f"seeds: must be at least one and all different, got {seeds}")
    return chosen


def view_name(view: View) -> str:
    """Short name of a view for tables."""
    kind = view.spec()["kind"]
    return type(view).__name__ if kind == "custom" else str(kind)


def _device(device: str) -> torch.device:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise AkeError(f"device: {device!r} is not one of auto, cpu, cuda") from None
    if chosen.type not in ("cpu", "cuda"):
        raise AkeError(f"device: {device!r} is not one of auto, cpu, cuda")
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
    return None if function is None else "given: " + str(getattr(function, "__qualname__", type(function).__name__))
