"""Soups (Wortsman et al., https://arxiv.org/abs/2203.05482): the weights of the networks of phase 1, averaged."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..phases import Bench, Line, Networks, total


def uniform_soup(bench: Bench) -> Iterator[Line]:
    """The mean of all."""
    soup = _mixed(bench, torch.ones(len(bench.individual), len(bench.cells), dtype=torch.bool))
    yield bench.line("uniform soup", bench.predict(soup), total(bench.individual))


def greedy_soup(bench: Bench) -> Iterator[Line]:
    """The best by validation, and of the others, in order, those whose addition does not lower validation."""
    scores = torch.stack([bench.task.scores(bench.predict(n), "val") for n in bench.individual]).cpu()  # [V, cells]
    order = scores.argsort(dim=0, descending=True, stable=True)
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter(0, order[:1], True)
    best = scores.gather(0, order[:1]).squeeze(0)
    for place in range(1, len(order)):
        trial = chosen.scatter(0, order[place : place + 1], True)
        score = bench.task.scores(bench.predict(_mixed(bench, trial)), "val").cpu()
        better = score >= best
        chosen, best = torch.where(better, trial, chosen), torch.where(better, score, best)
    yield bench.line("greedy soup", bench.predict(_mixed(bench, chosen)), total(bench.individual))


def _mixed(bench: Bench, chosen: Tensor) -> Networks:
    """The mean of each cell's chosen networks, ``chosen [V, cells]``."""
    soup = bench.individual[0].copy()
    share = chosen.double() / chosen.sum(0)
    for name, value in soup.population.state.items():
        if value.is_floating_point():
            stacked = torch.stack([n.population.state[name] for n in bench.individual])
            w = share.to(stacked.device, stacked.dtype).view(*share.shape, *[1] * (stacked.dim() - 2))
            soup.population.state[name] = (w * stacked).sum(0)
    return soup
