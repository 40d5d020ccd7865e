"""Table 1: the most correlated pair of hidden channels removed and the network trained again, from 16 channels to 2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..exchange import correlation
from ..fit import Plan
from ..phases import Bench, Line, Networks
from ..population import Population
from ..views import Original
from .base import Experiment, Job

CHANNELS = (16, 14, 12, 10, 8, 6, 4, 2)
FIRST, BIAS, LAST = "convs.0.lin.weight", "convs.0.bias", "convs.1.lin.weight"  # of a GCN with two layers


def pruned(plan: Plan, cells: Sequence[tuple[int, int]]) -> tuple[Bench, list[Line]]:
    """The base, then step by step two channels less, each trained again from the weights that are left."""
    bench = plan.bench(cells)
    networks, lines = bench.base.copy(), []
    for count in CHANNELS:
        if count < CHANNELS[0]:
            networks = _without_a_pair(networks, bench)
            bench.train(networks, Original(), f"{count} channels", "pruned")
        line = bench.line(f"{count} channels", bench.predict(networks), networks.seconds)
        parameters = sum(p.numel() for p in networks.population.template.parameters())
        lines.append(replace(line, parameters=parameters))
    return bench, lines


def _without_a_pair(networks: Networks, bench: Bench) -> Networks:
    """The same networks without the two channels whose weights are most correlated, in each network its own."""
    state = networks.population.state
    keep = torch.stack([_others(weight) for weight in state[FIRST]])  # [R, C - 2]
    smaller = dict(state)
    smaller[FIRST] = state[FIRST].gather(1, keep.unsqueeze(-1).expand(-1, -1, state[FIRST].shape[-1]))
    smaller[BIAS] = state[BIAS].gather(1, keep)
    smaller[LAST] = state[LAST].gather(2, keep.unsqueeze(1).expand(-1, state[LAST].shape[1], -1))
    task = bench.trainer.task
    template = type(networks.population.template)(task.features, task.outputs, hidden_channels=keep.shape[1])  # type: ignore[call-arg, arg-type]
    template.dropout = networks.population.template.dropout  # type: ignore[assignment]
    population = Population.of([template]).to(task.device)
    population.state = {k: v.clone() for k, v in smaller.items()}
    return Networks(population, networks.seconds)


def _others(weight: Tensor) -> Tensor:
    """All channels but the pair with the highest correlation."""
    found = correlation(weight.double())
    found = found.masked_fill(torch.ones_like(found).tril().bool(), -torch.inf)
    pair = divmod(int(found.argmax()), len(found))
    return torch.tensor([c for c in range(len(weight)) if c not in pair], device=weight.device)


TABLE1 = Experiment(
    "table1",
    "GCN on Cora, 50 runs: the most correlated pair of hidden channels is removed and the network trained again.",
    lambda: [Job("pruned", "cora", "cora", "gcn", (), seeds=50, compute=pruned)],
    base="16 channels",
    shown=tuple(f"{n} channels" for n in CHANNELS),
)
