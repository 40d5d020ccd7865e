"""Ensembles of the networks of all views, as trained in phase 1 or trained further: as many passes as networks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..phases import Bench, Line, Networks, total


def ensemble(bench: Bench) -> Iterator[Line]:
    """Majority vote and mean probability of the networks of phase 1."""
    yield from _ensembles(bench, bench.individual, "ensemble")


def ensemble_further(bench: Bench) -> Iterator[Line]:
    """The same of the networks trained further."""
    yield from _ensembles(bench, bench.further, "ensemble+FT")


def _ensembles(bench: Bench, networks: Sequence[Networks], name: str) -> Iterator[Line]:
    predictions = [bench.predict(n) for n in networks]
    yield bench.line(name, bench.combine(predictions), total(networks), len(networks))
    yield bench.line(f"{name}, mean", _mean(predictions), total(networks), len(networks))


def _mean(predictions: Sequence[Tensor]) -> Tensor:
    """Mean probability, as logits; of link scores too."""
    stacked = torch.stack(list(predictions))
    if stacked.dim() == 3:  # [V, cells, pairs]: one score each
        return stacked.sigmoid().mean(0).logit(eps=1e-7)
    return stacked.log_softmax(-1).logsumexp(0) - math.log(len(stacked))  # finite, however sure they are
