"""The phases, for all splits and seeds of a run at once: individual learning, exchange, training again.

A :class:`Bench` is what every method works on. It trains what several methods need only once (the base, a network per
view, these trained further), always from the same initial weights, splits and views, and hands out copies.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from .channels import ChannelMap, Layer, channel_map
from .errors import AkeError, RunFailed
from .exchange import Swap, as_swaps, exchange_populations
from .forward import duplicate, forward, precision_of
from .functional import merge
from .models import Factory
from .population import Hook, Population, Replica
from .settings import Exchange, Phases
from .strategies import strategy
from .tasks import Task
from .tasks.base import check_outputs, in_precision
from .training import Epoch, Targets, Trainer
from .views import Original, View


@dataclass(frozen=True)
class Line:
    """What one method gives: scores of every cell, on the original data, and what they cost."""

    name: str
    validation: list[float]
    test: list[float]
    passes: int  # forward passes that a prediction costs
    parameters: int  # of all networks that a prediction needs
    seconds: list[float]  # of training, each cell's share


@dataclass
class Made:
    """What a recipe makes: lines of scores, the networks (the first ships), and which channels moved."""

    lines: list[Line]
    networks: list[Networks]
    swaps: list[Swap]
    shipped: list[str] = field(default_factory=list)  # by cell: which candidate it is, where there are several
    exchanged: dict[str, Tensor] | None = None  # the first network right after the exchange, where it is of that shape
    why_not: str = ""  # no channels were exchanged, where that was not possible


@dataclass
class Networks:
    """Trained networks, one for each cell, and the seconds of training that each took."""

    population: Population
    seconds: list[float]

    def copy(self) -> Networks:
        """To be changed without changing these."""
        population = copy.copy(self.population)
        population.moments = copy.deepcopy(self.population.moments)
        population.state = {k: v.clone() for k, v in self.population.state.items()}
        return Networks(population, list(self.seconds))


@dataclass
class Bench:
    """One backbone on one task, for all ``cells`` (split, seed)."""

    trainer: Trainer
    factory: Factory | None
    views: Sequence[View]
    exchange: Exchange
    cells: Sequence[tuple[int, int]]
    given: Sequence[nn.Module] | None = None  # networks already trained, one per view
    how: Phases = field(default_factory=Phases)
    slim: Callable[[int], Factory] | None = None  # how to build networks of another width
    say: Callable[[str], None] = lambda line: None
    history: list[Epoch] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)  # by cell: why it has no result

    def __post_init__(self) -> None:
        sample = self.given[0] if self.given is not None else self._build([0], "sample").module(0)
        task = in_precision(self.trainer.task, precision_of(sample))
        self.trainer = replace(self.trainer, task=task, keep=self.how.optimizer_state == "kept")
        self.names = [f"{k}: {view_name(v)}" for k, v in enumerate(self.views, 1)]
        self.task: Task = task.together([split for split, _ in self.cells])
        self.parameters = sum(p.numel() for p in sample.parameters())
        self._sample = sample
        assert self.map.shapes  # found first: a model that cannot be run should be told of in a line
        if task.name == "node":
            with torch.no_grad():
                out = forward(duplicate(sample).to(task.device).eval(), task.example)
            check_outputs(task.name, out, task.outputs)

    @cached_property
    def map(self) -> ChannelMap:
        """The channels of the networks."""
        return channel_map(self._sample, self.trainer.task.example)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that are exchanged. Where none can be, a merge says so itself, and its recipe goes on without."""
        return self.map.layers if strategy(self.exchange.strategy).merges else self.map.chosen(self.exchange.layers)

    # ---- networks

    def new(self, network: str) -> Networks:
        """Fresh networks; their weights depend on the seed and on which network they are."""
        return Networks(self._build([seed for _, seed in self.cells], network), [0.0] * len(self.cells))

    def _build(self, seeds: Sequence[int], network: str, factory: Factory | None = None) -> Population:
        factory = factory or self.factory
        assert factory is not None
        return Population(factory, seeds, network).to(self.trainer.task.device)

    def _narrow(self) -> Factory | None:
        """How to build a network of the width that is asked for, if one is."""
        if not self.exchange.width:
            return None
        if self.slim is None:
            raise AkeError("width: only for a model given by name or class that has hidden_channels")
        return self.slim(self.exchange.width)

    @cached_property
    def base(self) -> Networks:
        """Trained on the original graph, from the weights of the ring's first network, which is the one that ships."""
        base = self.new(self.names[0])
        self.train(base, Original(), "individual", "base")
        return base

    @cached_property
    def individual(self) -> list[Networks]:
        """Phase 1: a network trained on each view."""
        if self.given is not None:
            return [
                Networks(Population.of([m]).to(self.trainer.task.device), [0.0] * len(self.cells)) for m in self.given
            ]
        networks = [self.new(self.names[0] if self.how.initial == "shared" else name) for name in self.names]
        for name, view, network in zip(self.names, self.views, networks, strict=True):
            self.train(network, view, "individual", name)
        return networks

    @cached_property
    def merged(self) -> tuple[Networks, list[Swap]]:
        """The networks of phase 1 as one, by function; and which channels it took."""
        return self.merge(self.individual)

    @cached_property
    def further(self) -> list[Networks]:
        """The networks of phase 1 trained on their views for as long again, without any exchange."""
        return self.again([n.copy() for n in self.individual], "further training")

    def again(self, networks: list[Networks], phase: str) -> list[Networks]:
        """Phase 3: train each on its own view again, with a fresh optimizer."""
        for name, view, network in zip(self.names, self.views, networks, strict=True):
            self.train(network, view if self.how.retrain_on == "view" else Original(), phase, name)
        return networks

    def swap(self, networks: list[Networks]) -> list[Swap]:
        """Phase 2: exchange channels round the ring, in place. By function, all become the network that is made."""
        if strategy(self.exchange.strategy).merges:
            made, swaps = self.merge(networks, self._narrow())
            for n in networks:
                n.population, n.seconds = made.copy().population, [s / len(networks) for s in made.seconds]
            return swaps
        started = time.perf_counter()
        swaps = exchange_populations(
            [n.population.state for n in networks],
            networks[0].population.template,
            self.layers,
            self.map,
            self.exchange,
            [seed for _, seed in self.cells],
        )
        share = (time.perf_counter() - started) / len(self.cells) / len(networks)
        for n in networks:
            n.seconds = [s + share for s in n.seconds]
        return swaps

    def merge(self, networks: Sequence[Networks], factory: Factory | None = None) -> tuple[Networks, list[Swap]]:
        """One network of several, by function, cell by cell; ``factory`` builds one of another width."""
        started = time.perf_counter()
        module = duplicate(networks[0].population.template).eval()
        made = networks[0].copy()
        made.population.moments = None  # of other weights
        wanted = self.map
        if factory is not None:
            made.population = self._build([seed for _, seed in self.cells], "merged", factory)
            wanted = channel_map(made.population.template, self.trainer.task.example)
        swaps: list[Swap] = []
        inner = self.trainer.task.name == "link"
        for k in range(len(self.cells)):
            states = [n.population.state_dict(k) for n in networks]
            batches = self.task.alone(k).looked_at()
            count = len(networks)
            new = made.population.template if factory is not None else None
            state, picks = merge([module] * count, states, [self.map] * count, batches, wanted, inner, new)
            made.population.load_state_dict(k, {**made.population.state_dict(k), **state})
            swaps += as_swaps(picks, wanted, k)
        share = (time.perf_counter() - started) / len(self.cells)
        made.seconds = [s + share for s in total(networks)]
        return made, swaps

    def train(
        self,
        networks: Networks,
        view: View,
        phase: str,
        name: str,
        hook: Hook | None = None,
        targets: Sequence[Targets] | None = None,
    ) -> None:
        """Train in place. A cell that fails has no result; another's weights take its place, so that all can go on."""
        replicas = [
            Replica(seed, name, view, split, targets[k] if targets is not None else None)
            for k, (split, seed) in enumerate(self.cells)
        ]
        outcomes = networks.population.train(self.trainer, replicas, phase, self.say, hook)
        fine = [k for k, outcome in enumerate(outcomes) if not outcome.failed]
        if not fine:
            raise RunFailed(outcomes[0].failed)
        for k, outcome in enumerate(outcomes):
            self.history.extend(outcome.history)
            networks.seconds[k] += outcome.seconds
            if outcome.failed:
                self.failed.setdefault(k, outcome.failed)
                networks.population.load_state_dict(k, networks.population.state_dict(fine[0]))

    def longer(self, times: int) -> Trainer:
        """A trainer for so many times the epochs: for methods whose two phases are one."""
        settings = self.trainer.settings
        return replace(self.trainer, settings=replace(settings, epochs=times * settings.epochs))

    def with_trainer(self, trainer: Trainer, factory: Factory | None = None) -> Bench:
        """The same cells with other training, or with other networks of the same tensors."""
        factory = factory or self.factory
        return replace(self, trainer=trainer, factory=factory, given=None, history=[], failed={})

    # ---- scores

    def predict(self, networks: Networks) -> Tensor:
        """Predictions on the original data, ``[cells, ...]``."""
        return networks.population.evaluate(self.task)

    def best(self, networks: Sequence[Networks], failed: Sequence[Collection[int]] = ()) -> Tensor:
        """The predictions of those with the best validation score, cell by cell; the first of equals.

        ``failed``: for each of them the cells in which it cannot be.
        """
        predictions = torch.stack([self.predict(n) for n in networks])  # [V, cells, ...]
        scores = torch.stack([self.task.scores(p, "val") for p in predictions]).nan_to_num(nan=-math.inf)
        for score, cells in zip(scores, failed, strict=False):
            score[list(cells)] = -math.inf
        first = scores.argmax(0)
        return predictions[first, torch.arange(len(first), device=first.device)]

    def line(self, name: str, predictions: Tensor, seconds: Sequence[float], passes: int = 1) -> Line:
        """The scores of predictions."""
        validation, test = (self.task.scores(predictions, part).tolist() for part in ("val", "test"))
        return Line(name, validation, test, passes, passes * self.parameters, list(seconds))

    def measure(self, name: str, network: Networks) -> Line:
        """The scores of a network, which may be of another width."""
        size = sum(p.numel() for p in network.population.template.parameters())
        return replace(self.line(name, self.predict(network), network.seconds), parameters=size)

    def combine(self, predictions: Sequence[Tensor]) -> Tensor:
        """The majority vote of several networks, cell by cell."""
        combine = self.trainer.task.combine
        return torch.stack([combine(list(p)) for p in zip(*predictions, strict=True)])


def total(networks: Sequence[Networks]) -> list[float]:
    """Seconds of training of several networks together, cell by cell."""
    return [sum(seconds) for seconds in zip(*(n.seconds for n in networks), strict=True)]


def view_name(view: View) -> str:
    """Short name of a view for tables."""
    kind = view.spec()["kind"]
    return type(view).__name__ if kind == "custom" else str(kind)
