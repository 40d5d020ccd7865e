"""The recipe `strong`: a network merged by function, and what all views agree on taught to it; validation decides.

How each part was chosen, on validation scores of random splits: docs/recipe.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from ..errors import AkeError
from ..exchange import Swap
from ..phases import Bench, Line, Made, Networks, total
from ..training import Targets
from ..views import DropEdges, Original, View

WEIGHT = 0.9  # of the loss on soft targets
RATE = 0.3  # of the edges that are left out, anew in every epoch


def strong(bench: Bench) -> Iterator[Line]:
    """The network that ships, and every candidate for it."""
    yield from make(bench).lines


def functional(bench: Bench) -> Iterator[Line]:
    """The networks of phase 1 merged by function, with no training after it; also with half the channels."""
    merged, _ = bench.merge(bench.individual)
    yield bench.line("by function", bench.predict(merged), merged.seconds)
    half = max(layer.channels for layer in bench.map.layers if not layer.output) // 2
    if bench.slim is not None and half:
        merged, _ = bench.merge(bench.individual, bench.slim(half))
        line = bench.line("by function, half", bench.predict(merged), merged.seconds)
        yield replace(line, parameters=sum(p.numel() for p in merged.population.template.parameters()))


def make(bench: Bench) -> Made:
    """Merge, train the candidates, and take for each cell the one with the best validation score."""
    teachers = bench.individual
    start, swaps = _start(bench)
    lines = [bench.line("after exchange", bench.predict(start), start.seconds)]
    spent, tried = list(start.seconds), [start]
    if bench.factory is not None and not bench.exchange.width:
        tried.append(bench.base)
        spent = [a + b for a, b in zip(spent, bench.base.seconds, strict=True)]
    anew = DropEdges(RATE, resample="epoch")
    soft = _teach(bench, teachers) if _teachable(bench) else None
    ways: list[tuple[str, Networks, View, list[Targets] | None]] = [("merged, trained again", start, Original(), None)]
    if soft is None:
        ways.append(("merged, trained on fewer edges", start, anew, None))
    else:
        ways.append(("merged, taught", start, anew, soft))
        if bench.factory is not None:
            ways.append(("new, taught", bench.new(bench.names[0], narrow=True), anew, soft))
    for name, begun, view, targets in ways:
        network = begun.copy()
        bench.train(network, view, "re-training", name, targets=targets)
        tried.append(network)
        lines.append(bench.line(name, bench.predict(network), network.seconds))
        spent = [s + b - a for s, a, b in zip(spent, begun.seconds, network.seconds, strict=True)]
    best = choose(bench, tried)
    best.seconds = spent
    lines.append(bench.line("AKE", bench.predict(best), spent))
    return Made(lines, [best], swaps, None if bench.exchange.width else start.population.state)


def choose(bench: Bench, networks: Sequence[Networks]) -> Networks:
    """For each cell the network with the best validation score, then with the lowest validation loss."""
    predictions = [bench.predict(n) for n in networks]
    scores = torch.stack([bench.task.scores(p, "val") for p in predictions]).cpu()
    losses = torch.stack([bench.task.part_losses(p, "val") for p in predictions]).cpu().double()
    best = networks[0].copy()
    for k in range(len(bench.cells)):
        order = sorted(range(len(networks)), key=lambda n: (-float(scores[n, k]), float(losses[n, k])))
        best.population.load_state_dict(k, networks[order[0]].population.state_dict(k))
    return best


def _start(bench: Bench) -> tuple[Networks, list[Swap]]:
    """The network that the exchange makes; where that is not possible, the best of phase 1."""
    try:
        networks = [n.copy() for n in bench.individual]
        swaps = bench.swap(networks)
        networks[0].seconds = total(networks)
        return networks[0], swaps
    except AkeError as e:
        if bench.exchange.width:
            raise
        bench.say(f"exchange: {e}; going on with the best network of phase 1")
        best = choose(bench, bench.individual)
        best.seconds = total(bench.individual)
        return best, []


def _teachable(bench: Bench) -> bool:
    """Whether training can learn from soft targets: node classification, by our loop or one that asks for them."""
    loop = bench.trainer.own_loop
    return bench.trainer.task.name == "node" and (loop is None or "targets" in inspect.signature(loop).parameters)


def _teach(bench: Bench, teachers: Sequence[Networks]) -> list[Targets]:
    """The teachers' mean probability of every node, for each cell."""
    mean = torch.stack([bench.predict(n).softmax(-1) for n in teachers]).mean(0)
    return [Targets(soft, WEIGHT) for soft in mean]
