"""Averages of one network's weights over its training: SWA (https://arxiv.org/abs/1803.05407) and EMA.

Both are of the base's own run, made once more with the same draws for as many epochs as both phases have; they are
measured at its end, with no epoch chosen, but for the batch statistics of norms, which are those of the last epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ..phases import Bench, Line, Networks
from ..views import Original

SWA_FROM = 0.75  # the share of the epochs after which the average begins
EMA_DECAY = 0.99


def averaging(bench: Bench) -> Iterator[Line]:
    """The mean over the last quarter of the epochs, and the exponential mean over all."""
    network = bench.new(bench.names[0])
    trainer = bench.longer(2)
    trainer = replace(trainer, settings=replace(trainer.settings, patience=None))  # no epoch is chosen
    weights = {name for name, _ in network.population.template.named_parameters()}
    first = int(SWA_FROM * trainer.settings.epochs)
    mean: dict[str, Tensor] = {}
    moving: dict[str, Tensor] = {}
    counted = 0

    @torch.no_grad()
    def hook(state: dict[str, Tensor], epoch: int) -> None:
        nonlocal counted
        counted += epoch > first
        for name, value in state.items():
            value = value.detach()
            if name not in weights or epoch == 1:
                mean[name], moving[name] = value.clone(), value.clone()
                continue
            moving[name].lerp_(value, 1 - min(EMA_DECAY, epoch / (epoch + 10)))  # the first epochs are soon forgotten
            if epoch > first:
                mean[name].lerp_(value, 1 / counted)

    longer = bench.with_trainer(trainer)
    longer.train(network, Original(), "individual", "base", hook)
    bench.failed = longer.failed | bench.failed
    for name, state in (("SWA", mean), ("EMA", moving)):
        averaged = Networks(network.population.pick(list(range(len(bench.cells)))), network.seconds)
        averaged.population.state = state
        yield bench.line(name, bench.predict(averaged), network.seconds)
