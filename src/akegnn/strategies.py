"""Which channel goes where: the paper's adaptive exchange and every alternative it is compared with.

A strategy looks at a :class:`~akegnn.exchange.Workbench` and yields :class:`Choice` after :class:`Choice`; the exchange
makes each swap before it asks for the next, so a strategy may always look at the present state. To add one, write
such a function and give it an entry in :data:`STRATEGIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from .errors import AkeError

if TYPE_CHECKING:
    from .exchange import Workbench


@dataclass(frozen=True)
class Choice:
    """Swaps to make now, for each of the G layers on the bench: all tensors are ``[G, K]``."""

    redundant: Tensor  # channels of the target
    informative: Tensor  # channels of the source
    correlation: Tensor | None = None  # of the redundant pair
    before: Tensor | None = None  # entropy of the target layer
    after: Tensor | None = None  # ... once the channel is in place

    def clone(self) -> Choice:
        """The same with tensors of its own."""
        return Choice(*(None if v is None else v.clone() for v in vars(self).values()))  # type: ignore[arg-type]


Chooser = Callable[["Workbench", int, int, int, list[torch.Generator]], Iterator[Choice]]


def adaptive(bench: Workbench, target: int, source: int, count: int, draws: list[torch.Generator]) -> Iterator[Choice]:
    """Eq. 8 of the paper: of the most correlated pair, the one whose replacement gives the highest entropy."""
    for _ in range(count):
        pair, correlation = bench.redundant_pair(target)
        side, informative, before, after = bench.most_informative(target, source, pair)
        yield Choice(pair.gather(1, side), informative, correlation, before, after)


def uniform(bench: Workbench, target: int, source: int, count: int, draws: list[torch.Generator]) -> Iterator[Choice]:
    """``count`` channels of each side, drawn without replacement."""
    yield Choice(bench.draw(count, draws), bench.draw(count, draws))


def first(bench: Workbench, target: int, source: int, count: int, draws: list[torch.Generator]) -> Iterator[Choice]:
    """The first ``count`` channels, each for its namesake."""
    channels = torch.arange(count, device=bench.device).expand(bench.layers, count)
    yield Choice(channels, channels)


def same_place(
    bench: Workbench, target: int, source: int, count: int, draws: list[torch.Generator]
) -> Iterator[Choice]:
    """``count`` places drawn without replacement, each exchanged with the same place of the source."""
    places = bench.draw(count, draws)
    yield Choice(places, places)


@dataclass(frozen=True)
class Strategy:
    """How channels are chosen and what is moved when one is."""

    choose: Chooser | None  # without, one network is made of all, instead of swaps round a ring: akegnn.functional
    about: str
    axis: Literal["output", "input", "point"] = "output"
    partner: Literal["source", "random", "self"] = "source"  # who gives: a trained network, an untrained one, itself
    neuron: bool = False  # move the outgoing weights as well
    adaptive: bool = False  # needs correlation and entropy

    @property
    def merges(self) -> bool:
        """Whether it makes one network of all: then no channel is chosen for another."""
        return self.choose is None

    def choices(
        self, bench: Workbench, target: int, source: int, count: int, draws: list[torch.Generator]
    ) -> Iterator[Choice]:
        """What is chosen; of a person's own function each choice is looked at before it is carried out."""
        assert self.choose is not None, "merged, not swapped"
        chosen = self.choose(bench, target, source, count, draws)
        if self.choose.__module__ == __name__:
            return chosen
        name = getattr(self.choose, "__name__", type(self.choose).__name__)
        if not isinstance(chosen, Iterable):
            raise AkeError(f"strategy {name}: must yield choices, returned a {type(chosen).__name__}")
        return (_looked_at(choice, bench, name) for choice in chosen)


def _looked_at(choice: object, bench: Workbench, name: str) -> Choice:
    if not isinstance(choice, Choice):
        raise AkeError(f"strategy {name}: must yield akegnn.strategies.Choice, yielded a {type(choice).__name__}")
    for side, channels in (("redundant", choice.redundant), ("informative", choice.informative)):
        if not isinstance(channels, torch.Tensor) or channels.dtype != torch.int64:
            raise AkeError(f"strategy {name}: {side} must be a tensor of int64, the numbers of channels")
        if channels.dim() != 2 or len(channels) != bench.layers or channels.shape != choice.redundant.shape:
            shape = tuple(channels.shape)
            raise AkeError(f"strategy {name}: {side} must be [{bench.layers}, K], as long on both sides, is {shape}")
        if channels.numel() and not 0 <= int(channels.min()) <= int(channels.max()) < bench.channels:
            raise AkeError(f"strategy {name}: {side} must be channels from 0 to {bench.channels - 1}")
        if bool((channels.sort(1).values.diff(dim=1) == 0).any()):
            raise AkeError(f"strategy {name}: {side} has a channel twice; yield one choice after another instead")
    return choice


STRATEGIES: dict[str, Strategy] = {
    "adaptive": Strategy(adaptive, "redundant output channels for informative ones (the paper's)", adaptive=True),
    "random-output": Strategy(uniform, "output channels drawn at random"),
    "first-output": Strategy(first, "the first M output channels"),
    "adaptive-input": Strategy(adaptive, "redundant input channels for informative ones", "input", adaptive=True),
    "random-input": Strategy(uniform, "input channels drawn at random", "input"),
    "first-input": Strategy(first, "the first input channels", "input"),
    "point": Strategy(same_place, "single weights drawn at random, each for the weight in the same place", "point"),
    "random-partner": Strategy(
        adaptive, "adaptive choice, but from a network with random weights", partner="random", adaptive=True
    ),
    "random-partner-random": Strategy(uniform, "random choice from a network with random weights", partner="random"),
    "self": Strategy(
        adaptive, "a redundant channel overwritten by another of the same layer", partner="self", adaptive=True
    ),
    "neuron": Strategy(
        adaptive, "as adaptive, and the weights that read the channel move with it", neuron=True, adaptive=True
    ),
    "functional": Strategy(None, "of all networks' channels those that together compute what the ensemble does"),
}
OURS = frozenset(STRATEGIES)  # those of the package


def strategy(name: str) -> Strategy:
    """Look a strategy up by name."""
    try:
        return STRATEGIES[name]
    except KeyError:
        raise AkeError(f"strategy: {name!r} is not one of {', '.join(STRATEGIES)}") from None
