"""Adaptive Weighting, as in filter grafting (Meng et al., https://arxiv.org/abs/2001.05868): mix instead of swap.

Each layer of a network becomes a mean of its own and of the network's before it in the ring; the one with the higher
entropy weighs more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..channels import Layer
from ..errors import RunFailed
from ..exchange import entropy
from ..phases import Bench, Line, Networks
from ..population import Population, Replica
from .ake import lines

A, C = 0.4, 500.0  # the authors' defaults: shares lie between 0.3 and 0.7


def adaptive_weighting(bench: Bench) -> Iterator[Line]:
    """Mixed once, between the phases, then trained again: comparable with AKE."""
    networks = [n.copy() for n in bench.individual]
    mix([n.population.state for n in networks], bench.layers, bench.exchange.bins)
    bench.again(networks, "re-training")
    yield from lines(bench, networks, "adaptive weighting")


def adaptive_weighting_every_epoch(bench: Bench) -> Iterator[Line]:
    """Mixed after every epoch, all networks in step, as filter grafting does; as many epochs as both phases have."""
    names, count = bench.names, len(bench.cells)
    fresh = [bench.new(names[0] if bench.how.initial == "shared" else name) for name in names]
    together = Population.joined([n.population for n in fresh])
    replicas = [
        Replica(seed, name, view, split)
        for name, view in zip(names, bench.views, strict=True)
        for split, seed in bench.cells
    ]

    def hook(state: dict[str, Tensor], epoch: int) -> None:
        parts = [{k: v[i * count : (i + 1) * count] for k, v in state.items()} for i in range(len(names))]
        mix(parts, bench.layers, bench.exchange.bins)

    trainer = bench.longer(2)
    outcomes = together.train(trainer, replicas, "individual", bench.say, hook)
    failed = {k % count: outcome.failed for k, outcome in reversed(list(enumerate(outcomes))) if outcome.failed}
    if len(failed) == count:
        raise RunFailed(failed[0])
    bench.failed = failed | bench.failed
    networks = []
    for i in range(len(names)):
        members = list(range(i * count, (i + 1) * count))
        networks.append(Networks(together.pick(members), [outcomes[k].seconds for k in members]))
    yield from lines(bench, networks, "adaptive weighting every epoch")


@torch.no_grad()
def mix(states: list[dict[str, Tensor]], layers: tuple[Layer, ...], bins: int) -> None:
    """Every network with the one before it in the ring, in place; all mix with what was there before."""
    before = [{name: value.clone() for name, value in state.items()} for state in states]
    for k, state in enumerate(states):
        own, other = before[k], before[k - 1]
        for layer in layers:
            share = _share(_entropies(own, layer, bins), _entropies(other, layer, bins))
            for slot in (*layer.weights, *layer.travels):
                rows, mine, theirs = (slot.rows(s[slot.name], lead=1) for s in (state, own, other))
                w = share.view(-1, *[1] * (rows.dim() - 1)).to(rows.dtype)
                rows.copy_(w * mine + (1 - w) * theirs)


def _share(own: Tensor, other: Tensor) -> Tensor:
    share: Tensor = A / math.pi * torch.arctan(C * (own - other)) + 0.5
    return share.round(decimals=2)


def _entropies(state: dict[str, Tensor], layer: Layer, bins: int) -> Tensor:
    """Of each cell's layer, all its weights side by side: ``[cells]``."""
    channels = torch.cat([slot.rows(state[slot.name], lead=1).flatten(2) for slot in layer.weights], dim=-1)
    return entropy(channels.double(), bins)
