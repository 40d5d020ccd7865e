"""Paired statistics, against scipy and against hand computations."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from akegnn.stats import holm, interval, paired, summarise, wilcoxon

SCORES = st.floats(0, 1, width=32)
P_VALUES = st.lists(st.none() | st.floats(0, 1), max_size=8)


def on_one_split(values) -> dict[tuple[int, int], float]:
    return {(0, seed): float(v) for seed, v in enumerate(values)}


def drawn(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.normal(0.82, 0.01, n), draw.normal(0.81, 0.01, n)


# ---- over the seeds of one split -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 5, 10, 100])
def test_a_gain_is_scipys_paired_t_interval_and_signed_rank_test(n):
    a, b = drawn(n)
    gain = paired(on_one_split(a), on_one_split(b))
    expected = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (gain.n, gain.over) == (n, "seeds")
    assert (gain.mean, gain.low, gain.high) == pytest.approx((np.mean(a - b), expected.low, expected.high), abs=1e-12)
    if n < 5:
        assert gain.p is None
    else:
        assert gain.p == pytest.approx(scipy.stats.wilcoxon(a, b).pvalue)


@pytest.mark.parametrize("n", [2, 5, 100])
def test_a_mean_is_scipys_one_sample_interval(n):
    a, _ = drawn(n)
    mean = summarise(on_one_split(a))
    expected = scipy.stats.ttest_1samp(a, 0).confidence_interval(0.95)
    assert mean.n == n
    assert (mean.mean, mean.deviation) == pytest.approx((np.mean(a), np.std(a, ddof=1)))
    assert (mean.low, mean.high) == pytest.approx((expected.low, expected.high))


def test_by_hand():
    """Differences 1, 2, 3 hundredths: mean 2, deviation 1, and t at 2 degrees of freedom is 4.3027."""
    gain = paired(on_one_split([0.51, 0.62, 0.73]), on_one_split([0.50, 0.60, 0.70]))
    half = 4.302652729911275 * 0.01 / 3**0.5
    assert (gain.mean, gain.low, gain.high) == pytest.approx((0.02, 0.02 - half, 0.02 + half))
    assert gain.p is None


def test_five_gains_in_five_by_hand():
    """All 32 sets of signs are equally likely; two are as extreme as all alike."""
    assert wilcoxon([0.01, 0.02, 0.03, 0.04, 0.05]) == pytest.approx(2 / 32)
    assert wilcoxon([-0.01, -0.02, -0.03, -0.04, -0.05]) == pytest.approx(2 / 32)


def test_pairs_are_those_that_both_have_whatever_the_order():
    method = {(0, 2): 0.9, (0, 0): 0.5, (0, 7): 0.1}
    base = {(0, 0): 0.4, (0, 1): 0.0, (0, 2): 0.6}
    gain = paired(method, base)
    assert gain.n == 2
    assert gain.mean == pytest.approx(0.2)


def test_nothing_in_common():
    with pytest.raises(ValueError, match="no split and seed that both have"):
        paired({(0, 0): 1.0}, {(0, 1): 1.0})


# ---- over splits -----------------------------------------------------------------------------------------------------


def test_seeds_are_averaged_within_their_splits():
    draw = np.random.default_rng(1)
    a, b = draw.normal(0.6, 0.1, (10, 4)), draw.normal(0.5, 0.1, (10, 4))
    method, base = ({(i, k): float(x[i, k]) for k in range(4) for i in range(10)} for x in (a, b))
    gain, mean = paired(method, base), summarise(method)
    expected = scipy.stats.ttest_rel(a.mean(1), b.mean(1)).confidence_interval(0.95)
    assert (gain.n, gain.over) == (10, "splits")
    assert (gain.mean, gain.low, gain.high) == pytest.approx((np.mean(a - b), expected.low, expected.high))
    assert gain.p == pytest.approx(scipy.stats.wilcoxon(a.mean(1), b.mean(1)).pvalue)
    alone = scipy.stats.ttest_1samp(a.mean(1), 0).confidence_interval(0.95)
    assert (mean.n, mean.deviation) == (40, pytest.approx(a.std(ddof=1)))
    assert (mean.low, mean.high) == pytest.approx((alone.low, alone.high))


def test_many_seeds_on_two_splits_are_two_pairs():
    method = {(split, seed): 0.5 + 0.001 * seed for split in (3, 4) for seed in range(50)}
    gain = paired(method, dict.fromkeys(method, 0.5))
    assert (gain.n, gain.p) == (2, None)


def test_a_split_with_fewer_seeds_counts_as_much_as_another():
    scores = {(0, 0): 0.0, (0, 1): 0.2, (0, 2): 0.4, (1, 0): 0.8}
    assert summarise(scores).mean == pytest.approx((0.2 + 0.8) / 2)


# ---- where there is no test ------------------------------------------------------------------------------------------


def test_one_score_has_no_spread():
    mean = summarise({(0, 0): 0.7})
    assert (mean.n, mean.mean, mean.deviation, mean.low, mean.high) == (1, 0.7, 0.0, 0.7, 0.7)
    assert interval([0.7]) == (0.7, 0.0)


@pytest.mark.parametrize("differences", [[0.1], [0.1] * 4, [0.0] * 20, [1e-16, -1e-16, 0.0, 1e-17, 0.0, 0.0]])
def test_too_few_pairs_or_no_difference_is_no_test(differences):
    assert wilcoxon(differences) is None


def test_rounding_errors_of_equal_scores_do_not_rank():
    """0.3 - 0.2 and 0.2 - 0.1 are the same difference, though not in binary."""
    uneven = [0.3 - 0.2, 0.2 - 0.1, -(0.4 - 0.3), 0.5 - 0.4, 0.6 - 0.5, -(0.9 - 0.8)]
    assert len({abs(d) for d in uneven}) > 1
    assert wilcoxon(uneven) == wilcoxon([0.1, 0.1, -0.1, 0.1, 0.1, -0.1])


@settings(max_examples=40)
@given(st.lists(st.sampled_from([0.0, 0.0, 0.01, -0.01, 0.02, 0.05]), min_size=1, max_size=7))
def test_ties_and_zeros_give_a_p_value_without_a_warning(differences):
    p = wilcoxon(differences)
    if len(differences) < 5 or not any(differences):
        assert p is None
    else:
        assert p == pytest.approx(scipy.stats.wilcoxon(differences).pvalue, abs=1e-12)


@pytest.mark.parametrize("n", [5, 9, 13, 14, 40])
def test_small_samples_are_tested_exactly_as_scipy_does(n):
    for differences in (np.random.default_rng(n).normal(0.3, 1, n), np.random.default_rng(n).integers(-2, 4, n) / 10):
        assert wilcoxon(differences) == pytest.approx(scipy.stats.wilcoxon(differences).pvalue, abs=1e-12)


@settings(max_examples=40)
@given(st.lists(st.tuples(SCORES, SCORES), min_size=2, max_size=8))
def test_a_gain_turned_round_is_a_loss(pairs):
    a, b = (on_one_split(x) for x in zip(*pairs, strict=True))
    there, back = paired(a, b), paired(b, a)
    assert (there.mean, there.low, there.high) == pytest.approx((-back.mean, -back.high, -back.low), abs=1e-12)
    assert there.p == (None if back.p is None else pytest.approx(back.p))
    assert there.low <= there.mean <= there.high


# ---- Holm ------------------------------------------------------------------------------------------------------------


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_counts_only_what_was_tested():
    assert holm([None, 0.02, None, 0.9]) == [None, pytest.approx(0.04), None, pytest.approx(0.9)]
    assert holm([None, None]) == [None, None]
    assert holm([]) == []


@given(P_VALUES)
def test_holm_against_its_definition(p_values):
    """The largest of (m - j + 1) p over all that are not above it, at most 1."""
    tested = sorted(p for p in p_values if p is not None)

    def adjusted(p: float) -> float:
        last = max(j for j, q in enumerate(tested) if q == p)
        return min(1.0, max((len(tested) - j) * q for j, q in enumerate(tested[: last + 1])))

    expected = [None if p is None else adjusted(p) for p in p_values]
    assert holm(p_values) == [None if e is None else pytest.approx(e) for e in expected]


@given(P_VALUES, st.sampled_from([0.01, 0.05, 0.2]))
def test_holm_rejects_step_by_step(p_values, level):
    """Smallest first, each at level / (tests left), until the first that is not rejected."""
    left = sorted((p, k) for k, p in enumerate(p_values) if p is not None)
    rejected = set()
    while left and left[0][0] * len(left) <= level:
        rejected.add(left.pop(0)[1])
    found = holm(p_values)
    assert {k for k, p in enumerate(found) if p is not None and p <= level} == rejected


def test_deviation_is_over_runs_not_over_splits():
    scores = {(0, 0): 0.1, (0, 1): 0.9, (1, 0): 0.1, (1, 1): 0.9}
    mean = summarise(scores)
    assert mean.deviation == pytest.approx(statistics.stdev([0.1, 0.9, 0.1, 0.9]))
    assert (mean.low, mean.high) == (0.5, 0.5)


def test_a_score_that_is_not_a_number_makes_none_of_it_one():
    bad, good = on_one_split([0.5, float("nan"), 0.7]), on_one_split([0.5, 0.6, 0.7])
    mean, gain = summarise(bad), paired(bad, good)
    assert mean.n == gain.n == 3
    assert np.isnan([mean.mean, mean.deviation, mean.low, mean.high, gain.mean, gain.low, gain.high]).all()
    assert gain.p is None
    assert summarise(good).mean == pytest.approx(0.6)
