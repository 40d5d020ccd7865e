"""The one call: from a graph and a model to one better network."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import operator
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch_geometric.data import Data

from . import evidence, presets
from .channels import ChannelMap
from .data import DATASETS
from .data import load as load_data
from .data.own import digest, names_of
from .data.prepare import prepare
from .errors import AkeError, RunFailed
from .exchange import Swap, check_alike, why_not_merged
from .methods import METHODS
from .methods.ake import make as make_ring
from .methods.strong import RATE
from .methods.strong import make as make_strong
from .models import Factory, as_class, hidden_width, of_width, resolve
from .phases import Bench, Line, Made, total
from .settings import Exchange, Phases, Settings
from .stats import Scores, paired, summarise
from .strategies import STRATEGIES
from .tasks import Metric, Task, make_task
from .training import Epoch, MakeOptimizer, MakeScheduler, OwnLoop, Trainer
from .views import DropEdges, View, as_view, paper_views


@dataclass(frozen=True)
class Recipe:
    """A named full setting: what the networks see, how they exchange, and what is made of them."""

    about: str
    views: Callable[[], list[View]]
    exchange: Exchange
    make: Callable[[Bench], Made]


RECIPES = {
    "strong": Recipe(
        "networks on fewer edges, merged by function, taught what all agree on; validation decides",
        lambda: [DropEdges(RATE, resample="epoch") for _ in range(4)],
        Exchange("functional"),
        make_strong,
    ),
    "paper": Recipe(
        "the paper as written: four views, redundant channels swapped for informative ones, each trained again",
        paper_views,
        Exchange(),
        lambda bench: make_ring(bench, bench.individual),  # nobody else needs them
    ),
}


@dataclass(frozen=True)
class Score:
    """One line of the table: a network or an ensemble, measured on the original data at its best validation epoch."""

    name: str
    validation: float
    test: float
    passes: int  # forward passes that a prediction costs
    seconds: float  # of training that it took


@dataclass(repr=False)
class Result:
    """What :func:`fit` gives back."""

    model: nn.Module  # the network that ships: the first of the ring
    networks: list[nn.Module]  # all of the ring; of the recipe `strong`, the one that ships
    scores: list[Score]  # base, each view, ensemble, AKE, and AKE's other networks
    swaps: list[Swap]
    history: list[Epoch]
    settings: Settings
    metric: str
    floor: float | None  # test score of the commonest class
    sizes: dict[str, int]  # of the splits
    map: ChannelMap
    classes: list[str] | None = None  # their names, where the data has them
    features: list[str] | None = None  # likewise
    shipped: str = ""  # which candidate it is, where the recipe has several
    digest: str = ""  # of a person's own files, as they were read
    why_not: str = ""  # no channels were exchanged, where that was not possible
    evidence: dict[str, Any] | None = field(default=None, repr=False)  # of the network that ships, see akegnn.evidence

    def score(self, name: str = "AKE") -> Score:
        """One line of the table by its name."""
        return _named(self.scores, name)

    def save(self, path: str | Path) -> Path:
        """Write the run folder; see :mod:`akegnn.runs`."""
        from .runs import save  # runs reads and writes results, so it imports this module

        return save(self, Path(path))

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        width = max(len(s.name) for s in self.scores)
        lines = [f"{self.metric + ' %':{width}}  validation    test  passes  seconds"]
        for s in self.scores:
            validation, test = 100 * s.validation, 100 * s.test
            lines.append(f"{s.name:{width}}  {validation:10.2f}  {test:6.2f}  {s.passes:6d}  {s.seconds:7.1f}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from .report.notebook import scores_html

        return scores_html([dataclasses.asdict(s) for s in self.scores], self.metric)


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


L = TypeVar("L", Score, Summary)


def _named(lines: Sequence[L], name: str) -> L:
    for line in lines:
        if line.name == name:
            return line
    raise AkeError(f"score: no {name!r}; there are {', '.join(line.name for line in lines)}")


@dataclass(repr=False)
class Results:
    """What :func:`fit` gives back for several seeds."""

    results: list[Result]  # one per seed that did not fail
    settings: Settings
    failures: list[str]
    history: list[Epoch]  # means over seeds that were trained at once

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

    def score(self, name: str = "AKE") -> Summary:
        """One line of the table by its name: means over seeds."""
        return _named(self.summary(), name)

    def summary(self) -> list[Summary]:
        """Mean, deviation and interval of every line of the table; see :mod:`akegnn.stats`."""
        cells = [(r.settings.split, r.settings.seed) for r in self.results]
        lines = []
        base: Scores = {}
        for k, first in enumerate(self.best.scores):
            scores = [r.scores[k] for r in self.results]
            tests = dict(zip(cells, (x.test for x in scores), strict=True))
            mean = summarise(tests)
            validation, seconds = (statistics.fmean(getattr(x, f) for x in scores) for f in ("validation", "seconds"))
            test = (mean.mean, mean.deviation, mean.low, mean.high)
            gains: tuple[float, ...] = ()
            if self.settings.baseline and k > 0:
                gain = paired(tests, base)
                gains = (gain.mean, gain.low, gain.high)
            base = base or tests
            lines.append(Summary(first.name, mean.n, validation, *test, first.passes, seconds, *gains))
        return lines

    @property
    def counted(self) -> str:
        """What the means are over, and their intervals."""
        return counted({(r.settings.split, r.settings.seed) for r in self.results})

    def save(self, path: str | Path) -> Path:
        """Write the run folder, with the network of the best seed; see :mod:`akegnn.runs`."""
        from .runs import save

        return save(self, Path(path))

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        lines = self.summary()
        width = max(len(s.name) for s in lines)
        head = f"test {self.best.metric} %"
        text = [f"{head:{width}}   mean +-   sd  [95 % interval]    n  passes  seconds  over base, paired"]
        for s in lines:
            mean, deviation, low, high = (100 * v for v in (s.test, s.deviation, s.low, s.high))
            numbers = (
                f"{mean:6.2f} +- {deviation:4.2f}  [{low:6.2f}, {high:6.2f}]" if s.n > 1 else f"{mean:6.2f}{'':26}"
            )
            gain = ""
            if s.gain is not None and s.gain_low is not None and s.gain_high is not None:
                gain = f"{100 * s.gain:+.2f}"
                gain += f" [{100 * s.gain_low:+.2f}, {100 * s.gain_high:+.2f}]" if s.n > 1 else ""
            text.append(f"{s.name:{width}} {numbers}  {s.n:3d}  {s.passes:6d}  {s.seconds:7.2f}  {gain}".rstrip())
        return "\n".join([*text, *(f"failed: {line}" for line in self.failures)])

    def _repr_html_(self) -> str:
        from .report.notebook import scores_html

        lines = [dataclasses.asdict(s) for s in self.summary()]
        return scores_html(lines, self.best.metric, [s for r in self.results for s in r.scores])


def fit(
    data: Data | Sequence[Data] | str,
    model: str | type[nn.Module] | Factory = "gcn",
    *,
    models: Sequence[nn.Module] | None = None,
    model_args: Mapping[str, Any] | None = None,
    task: str | None = None,
    views: Sequence[View | Callable[[Data], Data] | str] | None = None,
    resample: str | None = None,
    recipe: str = "strong",
    preset: bool = True,
    seed: int = 0,
    seeds: int | Sequence[int] | None = None,
    split: int = 0,
    splits: int | Sequence[int] | None = None,
    masks: str = "given",
    labels_per_class: int | None = None,
    features: str | None = None,
    edges: str | None = None,
    train: OwnLoop | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    weight_decay: float | None = None,
    weight_decays: Mapping[str, float] | None = None,
    patience: int | None = None,
    select: str | None = None,
    stop: str | None = None,
    batch_size: int | None = None,
    optimizer: str | MakeOptimizer | None = None,
    scheduler: str | MakeScheduler | None = None,
    metric: str | Metric | None = None,
    exchange: Exchange | Mapping[str, Any] | None = None,
    phases: Phases | Mapping[str, Any] | None = None,
    baseline: bool = True,
    precision: str | None = None,
    device: str = "auto",
    data_root: str | Path | None = None,
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
        preset: use the settings of the backbone on the dataset that are known to reach published scores, where both
            are given by name and there are such; what is given besides overrides them.
        seed: of weights, views and dropout. The same seed gives the same result, bit for bit on a CPU. (Of several
            seeds at once, dropout is drawn for all together: the same seeds, as many at a time, give the same results.)
        seeds: how many seeds, from ``seed`` on, or which: all are trained at once and :class:`Results` come back.
        split: which column of two-dimensional masks, or which drawn split.
        splits: how many splits, from ``split`` on, or which: every seed is trained on each of them.
        masks: the graph's own (``given``), or ``random`` ones: 60 / 20 / 20 % of each class.
        labels_per_class: train on so many nodes of each class, drawn anew for each split.
        features: ``given``, ``row`` (each node's divided by their sum), ``degree`` or ``constant``.
        edges: ``given``, ``undirected`` or ``reversed``.
        train: your own loop, ``train(model, data)``, used in both phases. It may also ask for ``epochs``, ``seed``,
            ``phase``, ``redraw`` (a function that draws the view anew) and ``targets`` (what the other networks say of
            every node, ``[N, C]``, or ``None``).
        epochs, lr, weight_decay, patience, batch_size: of the built-in loop.
        weight_decays: other weight decays by name of the parameter, such as ``{"convs.*": 0.01}``.
        select: what makes an epoch the best: the validation ``score``, or the ``loss``.
        stop: whether patience counts from the ``best`` epoch, or from the last that was best by ``either`` of them.
        optimizer: a class of ``torch.optim`` by name, or a function of the parameters.
        scheduler: ``"step:50:0.5"``, ``"warmup:50"``, or a function of the optimizer.
        metric: ``accuracy``, ``f1``, ``roc_auc``, ``average_precision``, or a function of prediction and target.
        exchange: settings of the exchange, see :class:`akegnn.settings.Exchange`.
        phases: what the paper leaves open about its phases, see :class:`akegnn.settings.Phases`.
        baseline: also train a network on the original graph, to compare with.
        precision: of matrix products where networks are trained as a population (several seeds at once; on a GPU also
            one of a backbone of ours): ``float32``, ``tf32`` or ``bf16``.
        device: ``auto``, ``cpu`` or ``cuda``.
        data_root: where to look first for a dataset given by name.
        on_epoch: called with an :class:`~akegnn.training.Epoch` after each; after every twentieth, with means, where
            several seeds are trained at once. On a CPU large networks are trained one after another.
    """
    given = {k: v for k, v in locals().items() if k not in ("seeds", "splits")}
    prepared = plan(**given)
    if seeds is None and splits is None:
        return prepared.run()
    return prepared.run_seeds(
        number_list("seeds", 1 if seeds is None else seeds, seed),
        number_list("splits", 1 if splits is None else splits, split),
    )


@dataclass
class Plan:
    """A run that is fully settled but has not begun."""

    trainer: Trainer
    factory: Factory | None
    models: Sequence[nn.Module] | None
    views: list[View]
    settings: Settings
    slim: Callable[[int], Factory] | None = None  # builds networks of another width
    digest: str = ""  # of a person's own files, before they were read
    say: Callable[[str], None] = logging.getLogger("akegnn").warning  # takes the lines that are for people

    def run(self) -> Result:
        """Run it with its one seed."""
        return self.run_seeds([self.settings.seed]).results[0]

    def run_seeds(self, seeds: Sequence[int], splits: Sequence[int] | None = None) -> Results:
        """The three phases in order for all seeds on all splits at once, and the scores of everything on the way."""
        splits = [self.settings.split] if splits is None else splits
        if self.models is not None and len(seeds) * len(splits) > 1:
            raise AkeError("seeds: networks already trained have no seeds; give models= or seeds=, not both")
        if len(splits) > 1 and _same_parts(self.trainer.task.at(splits[0]), self.trainer.task.at(splits[1])):
            raise AkeError("splits: the data brings one split only; draw others with masks or labels_per_class")
        cells = [(split, seed) for split in splits for seed in seeds]
        settings = self.settings
        bench = self.bench(cells)
        # Find the channels first: a model that cannot be exchanged should not be trained for nothing.
        found = bench.map
        if settings.recipe != "strong":  # which goes on without an exchange
            found.chosen(settings.exchange.layers)
        lines: list[Line] = []
        if settings.baseline:
            lines += METHODS["single"](bench)
        predictions = [bench.predict(n) for n in bench.individual]
        for name, network, prediction in zip(bench.names, bench.individual, predictions, strict=True):
            what = f"network {name.split(':')[0]}" if self.models is not None else f"view {name}"
            lines.append(bench.line(what, prediction, network.seconds))
        lines.append(bench.line("ensemble", bench.combine(predictions), total(bench.individual), len(bench.views)))
        around = [evidence.weights(bench.individual[0].population.state, bench.layers)]
        made = RECIPES[settings.recipe].make(bench)
        compared = bench.layers if made.exchanged else ()  # channels of another number have no before and after
        around.append(evidence.weights(made.exchanged or {}, compared))
        lines += made.lines

        moved_in: list[list[Swap]] = [[] for _ in cells]
        for swap in made.swaps:
            moved_in[swap.replica].append(swap)
        many = len(cells) > 1
        several = settings
        if not (settings.seeds or settings.splits):  # else what was asked for is on record already
            asked = list(splits) if len(splits) > 1 else []
            several = replace(settings, seeds=list(seeds) if many else [], splits=asked)
        results = []
        for k, (split, seed) in enumerate(cells):
            if k in bench.failed:
                continue
            final = [n.population.module(k).eval() for n in made.networks]
            own, alone = replace(several, split=split, seed=seed), bench.task.alone(k)
            scores = [Score(x.name, x.validation[k], x.test[k], x.passes, x.seconds[k]) for x in lines]
            rest = (own, alone.metric_name, alone.floor(), dict(alone.sizes), found, names_of(alone.example, "classes"))
            result = Result(final[0], final, scores, moved_in[k], [] if many else bench.history, *rest)
            result.features, result.digest = names_of(alone.example, "feature_names"), self.digest
            result.shipped, result.why_not = made.shipped[k] if made.shipped else "", made.why_not
            results.append(result)
        every = Results(results, several, list(bench.failed.values()), bench.history)
        if results:  # of the one that ships: pages show no other
            best = every.best
            k = cells.index((best.settings.split, best.settings.seed))
            best.evidence = evidence.collect(
                best.model, bench.task.alone(k), compared, around, k, settings.exchange.bins
            )
        return every

    def bench(self, cells: Sequence[tuple[int, int]]) -> Bench:
        """Everything that methods need, for these splits and seeds."""
        s = self.settings
        rest = (s.exchange, cells, self.models, s.phases, self.slim, self.say)
        return Bench(self.trainer, self.factory, self.views, *rest)


def plan(
    data: Data | Sequence[Data] | str,
    model: str | type[nn.Module] | Factory = "gcn",
    *,
    models: Sequence[nn.Module] | None = None,
    model_args: Mapping[str, Any] | None = None,
    task: str | None = None,
    views: Sequence[View | Callable[[Data], Data] | str] | None = None,
    resample: str | None = None,
    recipe: str = "strong",
    preset: bool = True,
    seed: int = 0,
    split: int = 0,
    masks: str = "given",
    labels_per_class: int | None = None,
    features: str | None = None,
    edges: str | None = None,
    train: OwnLoop | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    weight_decay: float | None = None,
    weight_decays: Mapping[str, float] | None = None,
    patience: int | None = None,
    select: str | None = None,
    stop: str | None = None,
    batch_size: int | None = None,
    optimizer: str | MakeOptimizer | None = None,
    scheduler: str | MakeScheduler | None = None,
    metric: str | Metric | None = None,
    exchange: Exchange | Mapping[str, Any] | None = None,
    phases: Phases | Mapping[str, Any] | None = None,
    baseline: bool = True,
    precision: str | None = None,
    device: str = "auto",
    data_root: str | Path | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
) -> Plan:
    """Settle everything about a run, and check all that can be checked before it begins; arguments as :func:`fit`."""
    if recipe not in RECIPES:
        raise AkeError(f"recipe: {recipe!r} is not one of {', '.join(RECIPES)}")
    try:
        seed = operator.index(seed)
    except TypeError:
        raise AkeError(f"seed: must be a whole number, got {seed!r}") from None
    data = str(data) if isinstance(data, Path) else data
    # A graph, several in a list or a dataset, a name.
    if not hasattr(data, "__getitem__") or isinstance(data, torch.Tensor | tuple):
        raise AkeError(f"data: must be a graph, a list of graphs or a dataset's name, is a {type(data).__name__}")
    swapping = _replace("exchange", RECIPES[recipe].exchange, exchange)
    ways = _replace("phases", Phases(), phases)
    if swapping.strategy not in STRATEGIES:
        raise AkeError(f"strategy: {swapping.strategy!r} is not one of {', '.join(STRATEGIES)}")
    if isinstance(exchange, Mapping):
        told = "channels" in exchange
    else:
        told = exchange is not None and exchange.channels != Exchange.channels
    if STRATEGIES[swapping.strategy].merges and told:
        if swapping.width not in (0, swapping.channels):
            raise AkeError(
                f"width: {swapping.width}, but channels: {swapping.channels}; for strategy {swapping.strategy!r} "
                "both are the width of the network that is made"
            )
        swapping = replace(swapping, width=swapping.channels, channels=Exchange.channels)  # all that it can mean there
    found = presets.find(data, model, task) if preset and isinstance(data, str) and isinstance(model, str) else None
    known = found or presets.Preset("", "", "")
    given: dict[str, Any] = {"epochs": epochs, "lr": lr, "weight_decay": weight_decay, "patience": patience}
    given |= {"weight_decays": dict(weight_decays) if weight_decays is not None else None}
    given |= {"precision": precision, "select": select, "stop": stop, "batch_size": batch_size}
    given |= {"optimizer": _name(optimizer), "scheduler": _name(scheduler), "metric": _name(metric)}
    training = dataclasses.replace(known.training, **{k: v for k, v in given.items() if v is not None})
    features, edges = features or known.features, edges or known.edges

    of_files = digest(data) if isinstance(data, str) and data not in DATASETS else ""
    problem = make_task(
        prepare(load_data(data, data_root) if isinstance(data, str) else data, features, edges),
        task,
        split=split,
        metric=metric,
        batch_size=training.batch_size,
        masks=masks,
        labels_per_class=labels_per_class,
    )
    problem = problem.to(as_device(device))
    if isinstance(views, str | View):
        raise AkeError(f"views: must be a list, one for each network, is a {type(views).__name__}")
    shown = [as_view(v) for v in views] if views is not None else RECIPES[recipe].views()
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
        factory, name, arguments, slim = None, "given", dict(model_args or {}), None
    else:
        chosen = {**known.model_args, **(model_args or {})}
        factory, name, arguments = resolve(model, chosen, problem)
        slim = _slim(model, arguments, problem)
    ships: dict[str, Any] = {}
    if swapping.width:
        if not STRATEGIES[swapping.strategy].merges:
            raise AkeError(f"width: only for strategy 'functional', not for {swapping.strategy!r}")
        if slim is None:
            raise AkeError("width: only for a model given by name or class that has hidden_channels")
        kind = as_class(model)  # type: ignore[arg-type]
        own, head = hidden_width(kind, arguments, problem.example)
        if isinstance(own, int) and swapping.width > own:
            wider = f"--model-arg hidden_channels={swapping.width}" if not head else "--model-arg heads"
            raise AkeError(
                f"width: {swapping.width} channels wanted, {name} has {own}; a network that is made is never wider "
                f"({wider} widens all)"
            )
        assert factory is not None
        with torch.random.fork_rng(devices=[]):
            if why_not := why_not_merged(slim(swapping.width)(), factory(), problem.example):
                raise AkeError(f"width: {name} cannot be made of another width ({why_not})")
        ships = of_width(kind, arguments, swapping.width, problem.example)
    settings = Settings(
        data=data if isinstance(data, str) else "given",
        task=problem.name,
        features=features,
        edges=edges,
        split=split,
        masks=masks,
        labels_per_class=labels_per_class,
        model=name,
        model_args=arguments,
        ships=ships,
        preset=found.name if found else "",
        recipe=recipe,
        views=[v.spec() for v in shown],
        seed=seed,
        device=as_device(device).type,
        baseline=baseline and factory is not None,
        train="built in" if train is None else _name(train) or "given",
        splits_drawn=problem.splits_drawn,
        training=training,
        exchange=swapping,
        phases=ways,
    )
    trainer = Trainer(
        problem,
        training,
        optimizer=None if isinstance(optimizer, str) else optimizer,
        scheduler=None if isinstance(scheduler, str) else scheduler,
        own_loop=train,
        on_epoch=on_epoch or (lambda epoch: None),
    )
    # A wrong name is found out now, not after an epoch; what a person's own functions make is made when it is needed.
    trial: torch.optim.Optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    if trainer.optimizer is None:
        trial = trainer.make_optimizer([("", nn.Parameter(torch.zeros(1)))])
    if trainer.scheduler is None:
        trainer.make_scheduler(trial)
    return Plan(trainer, factory, models, shown, settings, slim, of_files)


def _slim(
    model: str | type[nn.Module] | Factory, chosen: Mapping[str, Any], task: Task
) -> Callable[[int], Factory] | None:
    """How to build the model with another number of hidden channels, where that is an argument of it."""
    if not isinstance(model, str | type) or "hidden_channels" not in inspect.signature(as_class(model)).parameters:
        return None
    return lambda width: resolve(model, of_width(as_class(model), chosen, width, task.example), task)[0]


def counted(cells: Collection[tuple[int, int]]) -> str:
    """How many runs of which splits and seeds; intervals are over splits where there are several."""
    splits, seeds = ({cell[k] for cell in cells} for k in range(2))
    if len(splits) == 1:
        return f"{len(seeds)} seed{'s' * (len(seeds) > 1)}"
    return f"{len(cells)} runs on {len(splits)} splits, intervals over splits"


def number_list(name: str, numbers: int | Sequence[int], first: int) -> list[int]:
    """The seeds or splits that are meant: so many from ``first`` on, or these."""
    try:
        count = operator.index(numbers)  # type: ignore[arg-type]
        chosen = list(range(first, first + count))
    except TypeError:
        chosen = [int(s) for s in numbers]  # type: ignore[union-attr]
    if not chosen or len(set(chosen)) < len(chosen):
        raise AkeError(f"{name}: must be at least one and all different, got {numbers}")
    return chosen


def as_device(device: str) -> torch.device:
    """The device of a name; one that is not there is refused."""
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


def _same_parts(a: Task, b: Task) -> bool:
    parts = getattr(a, "parts", None), getattr(b, "parts", None)
    if parts[0] is None or parts[1] is None:
        return False
    return all(torch.equal(parts[0][name], parts[1][name]) for name in parts[0])


T = TypeVar("T", Exchange, Phases)


def _replace(name: str, settings: T, given: T | Mapping[str, Any] | None) -> T:
    if isinstance(given, type(settings)):
        return given
    changes = dict(given or {})  # type: ignore[arg-type]
    known = {f.name for f in dataclasses.fields(settings)}
    for key in changes:
        if key not in known:
            raise AkeError(f"{name}: {key!r} is not one of {', '.join(sorted(known))}")
    return dataclasses.replace(settings, **changes)


def _name(function: object) -> str | None:
    """How a function is recorded; what was given by name, by that."""
    if isinstance(function, str):
        return function
    return None if function is None else "given: " + str(getattr(function, "__qualname__", type(function).__name__))
