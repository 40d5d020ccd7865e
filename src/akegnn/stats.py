"""Paired statistics: what a method gains over another on the same splits and seeds, and how sure that is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

EXACT = 13  # differences, up to which scipy goes through all signs where some are equal: seconds for a large table
Scores = Mapping[tuple[int, int], float]  # by (split, seed)


@dataclass(frozen=True)
class Mean:
    """A mean, the standard deviation over runs, and the mean's 95 % interval."""

    n: int
    mean: float
    deviation: float
    low: float
    high: float


@dataclass(frozen=True)
class Gain:
    """The mean paired difference, its 95 % interval, and Wilcoxon's p-value."""

    n: int  # pairs that the test is over
    over: str  # "splits" or "seeds"
    mean: float
    low: float
    high: float
    p: float | None  # None where there are too few pairs, or no difference at all


def summarise(scores: Scores) -> Mean:
    """Over seeds; with several splits, over the splits' means, because seeds on one split are not independent."""
    units = _units(scores)
    every = list(scores.values())
    if any(math.isnan(x) for x in every):
        return Mean(len(every), math.nan, math.nan, math.nan, math.nan)
    mean, half = interval(units)
    return Mean(len(every), mean, statistics.stdev(every) if len(every) > 1 else 0.0, mean - half, mean + half)


def paired(method: Scores, base: Scores) -> Gain:
    """What ``method`` gains over ``base``, on the splits and seeds that both have."""
    both = {cell: method[cell] - base[cell] for cell in method if cell in base}
    if not both:
        raise ValueError("no split and seed that both have")
    units = _units(both)
    if any(math.isnan(x) for x in units):
        return Gain(len(units), "seeds", math.nan, math.nan, math.nan, None)
    mean, half = interval(units)
    over = "splits" if len({split for split, _ in both}) > 1 else "seeds"
    return Gain(len(units), over, mean, mean - half, mean + half, wilcoxon(units))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % interval by Student's t."""
    from scipy.stats import t

    n = len(values)
    if n == 1:
        return values[0], 0.0
    return statistics.fmean(values), statistics.stdev(values) / n**0.5 * float(t.ppf(0.975, n - 1))


def wilcoxon(differences: Sequence[float]) -> float | None:
    """Two-sided signed-rank test that the differences are centred at zero."""
    from scipy.stats import wilcoxon as test

    rounded = np.round(np.asarray(differences), 12)  # equal scores differ by rounding at most
    if len(rounded) < 5 or not rounded.any():
        return None
    return _exact(rounded) if len(rounded) <= EXACT else float(test(rounded).pvalue)


def _exact(differences: np.ndarray) -> float:
    """The test's p, of all ways in which the ranks can have signs: what scipy finds by going through each of them."""
    from scipy.stats import rankdata

    there = differences[differences != 0]
    ranks = np.rint(2 * rankdata(np.abs(there))).astype(int)  # twice, because equal ones share a rank
    ways = np.ones(1)  # to reach each sum of positive ranks
    for rank in ranks:
        ways = np.convolve(ways, [1, *[0] * (rank - 1), 1])
    sum_of_positive, chances = ranks[there > 0].sum(), ways / ways.sum()
    return float(min(1.0, 2 * min(chances[: sum_of_positive + 1].sum(), chances[sum_of_positive:].sum())))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction for so many tests at once; ``None`` is no test."""
    order = sorted((p, k) for k, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, (p, k) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        corrected[k] = highest
    return corrected


def _units(scores: Scores) -> list[float]:
    """What counts as independent: the splits' means, or the seeds of one split."""
    groups: dict[int, list[float]] = {}
    for (split, _), score in sorted(scores.items()):
        groups.setdefault(split, []).append(score)
    if len(groups) == 1:
        return next(iter(groups.values()))
    return [statistics.fmean(group) for group in groups.values()]
