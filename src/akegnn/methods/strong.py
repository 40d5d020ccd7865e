"""The recipe `strong`: a network merged by function, and what all views agree on taught to it; validation decides.

How each part was chosen, on validation scores of random splits: docs/recipe.md.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch_geometric.data import Data

from ..errors import AkeError, RunFailed
from ..exchange import Swap
from ..phases import Bench, Line, Made, Networks, total
from ..propagate import gcn_adjacency
from ..strategies import strategy
from ..tasks import Task
from ..training import Targets, Trainer
from ..views import DropEdges, Original, View

WEIGHT = 0.9  # of the loss on soft targets
SHARPER = 4.0  # the power to which the teachers' probabilities are raised: a temperature of 1/4
FEW = 0.1  # of the nodes: where fewer are for training, what the teachers say may be smoothed over the edges
STEPS, RESTART = 10, 0.1  # of smoothing over edges: how far it goes, and what stays where it is in every step
TINY = 1e-30
STUDENTS = 2  # candidates that are trained from the merged network
RATE = 0.3  # of the edges that are left out, anew in every epoch
MERGED, BEST = "merged", "best of phase 1"  # where the other candidates start: the second where nothing can be merged
AGAIN, FEWER, TAUGHT = "merged, trained again", "merged, trained on fewer edges", "merged, taught"


def strong(bench: Bench) -> Iterator[Line]:
    """The network that ships, and every candidate for it."""
    names = {"AKE": "strong", "after exchange": "merged"}  # beside the method `ake`, whose lines have these names
    yield from (replace(line, name=names.get(line.name, line.name)) for line in make(bench).lines)


def functional(bench: Bench) -> Iterator[Line]:
    """The networks of phase 1 merged by function, with no training after it; also with half the channels."""
    yield bench.measure("by function", bench.merged[0])
    hidden = max((layer for layer in bench.map.layers if not layer.output), key=lambda x: x.channels, default=None)
    if bench.slim is None or hidden is None:
        return
    head = bench.map.head(hidden)
    if half := hidden.channels // 2 // head * head:
        try:
            made, _ = bench.merge(bench.individual, bench.slim(half))
        except AkeError as e:  # not every model has a narrower one
            bench.say(f"by function, half: {e}; left out")
        else:
            yield bench.measure("by function, half", made)


@dataclass
class Candidate:
    """A network that may ship."""

    name: str
    networks: Networks
    failed: Collection[int] = ()  # cells for which it cannot


def make(bench: Bench) -> Made:
    """Merge, train the candidates, and take for each cell the one with the best validation score."""
    teachers = bench.individual
    start, swaps, why_not = _start(bench)
    begun = BEST if why_not else MERGED
    lines = [bench.measure(BEST if why_not else "after exchange", start)]
    spent, tried = list(start.seconds), [Candidate(begun, start)]
    if bench.factory is not None and not bench.exchange.width:
        tried.append(Candidate("plain", bench.base))
        spent = [a + b for a, b in zip(spent, bench.base.seconds, strict=True)]
    lessons = [Targets(soft, WEIGHT) for soft in _lesson(bench, teachers)] if _teachable(bench.trainer) else None
    anew = DropEdges(RATE, resample="epoch")
    for name, view, targets in ((AGAIN, Original(), None), (TAUGHT if lessons else FEWER, anew, lessons)):
        candidate = _train(bench, name.replace(MERGED, begun), start.copy(), view, targets)
        tried.append(candidate)
        lines.append(bench.measure(candidate.name, candidate.networks))
        spent = [s + b - a for s, a, b in zip(spent, start.seconds, candidate.networks.seconds, strict=True)]
    best, shipped = choose(bench, tried)
    best.seconds = spent
    lines.append(bench.measure("AKE", best))
    exchanged = None if bench.exchange.width else start.population.state
    return Made(lines, [best], swaps, shipped, exchanged, why_not)


def _train(bench: Bench, name: str, network: Networks, view: View, targets: list[Targets] | None) -> Candidate:
    """One candidate; a cell where its training fails has the others still."""
    trial, begun = copy.copy(bench), network.copy()
    trial.failed = {}
    try:
        trial.train(network, view, "re-training", name, targets=targets)
    except RunFailed as e:
        bench.say(f"{name}: {e}; going on without it")
        return Candidate(name, begun, range(len(bench.cells)))
    for cell, why in trial.failed.items():  # its line shows what it began with
        bench.say(f"{name}: {why}; going on without it")
        network.population.load_state_dict(cell, begun.population.state_dict(cell))
    return Candidate(name, network, trial.failed)


def choose(bench: Bench, candidates: Sequence[Candidate]) -> tuple[Networks, list[str]]:
    """For each cell the candidate with the best validation score, then with the lowest loss; and what it is called."""
    predictions = [bench.predict(c.networks) for c in candidates]
    scores = torch.stack([bench.task.scores(p, "val") for p in predictions]).cpu().nan_to_num(nan=-math.inf)
    losses = torch.stack([bench.task.part_losses(p, "val") for p in predictions]).cpu().double().nan_to_num(math.inf)
    best, names = candidates[0].networks.copy(), []
    for k in range(len(bench.cells)):
        sound = [n for n, c in enumerate(candidates) if k not in c.failed]
        first = min(sound, key=lambda n: (-float(scores[n, k]), float(losses[n, k])))
        best.population.load_state_dict(k, candidates[first].networks.population.state_dict(k))
        names.append(candidates[first].name)
    return best, names


def _start(bench: Bench) -> tuple[Networks, list[Swap], str]:
    """The network that the exchange makes; where that is not possible, the best of phase 1, and why it is not."""
    try:
        if strategy(bench.exchange.strategy).merges and not bench.exchange.width:
            merged, swaps = bench.merged
            return merged.copy(), swaps, ""
        networks = [n.copy() for n in bench.individual]
        swaps = bench.swap(networks)
        networks[0].seconds = total(networks)
        return networks[0], swaps, ""
    except AkeError as e:
        if bench.exchange.width:
            raise
        bench.say(f"exchange: {e}; going on with the best network of phase 1")
        best, _ = choose(bench, [Candidate(name, n) for name, n in zip(bench.names, bench.individual, strict=True)])
        best.seconds = total(bench.individual)
        return best, [], str(e)


def _teachable(trainer: Trainer) -> bool:
    """Soft targets are for node classification, by our loop or one that asks for them."""
    loop = trainer.own_loop
    return trainer.task.name == "node" and (loop is None or "targets" in inspect.signature(loop).parameters)


def _lesson(bench: Bench, teachers: Sequence[Networks]) -> Tensor:
    """What is taught, ``[cells, N, C]``: the teachers' mean probabilities, made sharper.

    Where few nodes are labelled, the mean is smoothed over the edges first, in the cells in which validation says that
    this makes it no worse: neighbours are alike in one graph and not in another.
    """
    task, each = bench.trainer.task, torch.stack([bench.predict(n) for n in teachers])
    mean = each.to(torch.promote_types(each.dtype, torch.float32)).softmax(-1).mean(0)
    if _few_labels(task):
        wide = smoothed(mean, task.example)
        before, after = (bench.task.scores(p.clamp_min(TINY).log(), "val") for p in (mean, wide))
        mean = torch.where((after >= before).to(mean.device)[:, None, None], wide, mean)
    return sharper(mean).to(each.dtype)


def _few_labels(task: Task) -> bool:
    return task.sizes["train"] < FEW * int(task.example.num_nodes or 0)


def smoothed(probabilities: Tensor, graph: Data, restart: float = RESTART, steps: int = STEPS) -> Tensor:
    """Personalised PageRank over the edges, from each probability ``[..., N, C]``; rows add up to one again."""
    nodes, classes = probabilities.shape[-2:]
    start = probabilities.reshape(-1, nodes, classes).transpose(0, 1).reshape(nodes, -1)  # one wide product a step
    a = gcn_adjacency(graph.edge_index, graph.get("edge_weight"), start, nodes)
    z = start
    for _ in range(steps):
        z = torch.lerp(a @ z, start, restart)
    z = z.view(nodes, -1, classes).transpose(0, 1).reshape(probabilities.shape).clamp_min(TINY)
    return z / z.sum(-1, keepdim=True)


def sharper(probabilities: Tensor, power: float = SHARPER) -> Tensor:
    """At a lower temperature."""
    sharp = probabilities**power
    return sharp / sharp.sum(-1, keepdim=True)
