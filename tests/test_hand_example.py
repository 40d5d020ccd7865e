"""One exchange computed by hand, number by number: two networks of two layers, M = 1 channel, B = 3 bins, one step.

Network A takes from network B. A channel is a row: its weights, then its bias after the bar.

    layer one   A: 1 2 3 | 10     B: 9 1 1 | 40     layer two   A: 0 1 2 | 1     B: 0 0 0 | 3
                   1 5 3 | 20        2 4 1 | 50                    2 0 1 | 2        6 4 2 | 4
                   3 2 1 | 30        2 2 2 | 60
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from akegnn.exchange import correlation, entropy, exchange

BINS = 3


class Net(nn.Module):
    def __init__(self, one, two):
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 2)
        for layer, rows in ((self.one, one), (self.two, two)):
            table = torch.tensor(rows, dtype=torch.float32)
            layer.weight.data, layer.bias.data = table[:, :-1].clone(), table[:, -1].clone()

    def forward(self, x):
        return self.two(self.one(x).relu())


def network_a():
    return Net(one=[[1, 2, 3, 10], [1, 5, 3, 20], [3, 2, 1, 30]], two=[[0, 1, 2, 1], [2, 0, 1, 2]])


def network_b():
    return Net(one=[[9, 1, 1, 40], [2, 4, 1, 50], [2, 2, 2, 60]], two=[[0, 0, 0, 3], [6, 4, 2, 4]])


def table(layer):
    return torch.cat([layer.weight.detach(), layer.bias.detach().unsqueeze(1)], dim=1).tolist()


def h(*counts):
    """Entropy of a histogram: of 4, 3, 2 values in three bins it is -(4/9 ln 4/9 + 3/9 ln 3/9 + 2/9 ln 2/9)."""
    total = sum(counts)
    return -sum(n / total * math.log(n / total) for n in counts)


def after(target, r, channel):
    """The layer with its row r replaced."""
    changed = target.clone()
    changed[r] = channel
    return changed


def test_correlations_of_layer_one():
    # Rows minus their means (2, 3, 2):   a0: -1 0 1    a1: -2 2 0    a2: 1 0 -1
    # Squared lengths:                    2             8             2
    # a0.a1 =  2, and  2 / sqrt(2 * 8) =  1/2   <- the highest: the redundant pair is (0, 1)
    # a0.a2 = -2, and -2 / sqrt(2 * 2) = -1
    # a1.a2 = -2, and -2 / sqrt(8 * 2) = -1/2
    expected = torch.tensor([[1, 1 / 2, -1], [1 / 2, 1, -1 / 2], [-1, -1 / 2, 1]], dtype=torch.float64)
    torch.testing.assert_close(correlation(network_a().one.weight), expected, rtol=0, atol=1e-12)


def test_correlations_of_layer_two():
    # Rows minus their means (1, 1):   c0: -1 0 1    c1: 1 -1 0    squared lengths 2 and 2
    # c0.c1 = -1, and -1 / sqrt(2 * 2) = -1/2: negative, but the only pair there is
    expected = torch.tensor([[1, -1 / 2], [-1 / 2, 1]], dtype=torch.float64)
    torch.testing.assert_close(correlation(network_a().two.weight), expected, rtol=0, atol=1e-12)


def test_entropies_before():
    # Layer one: 1 2 3 1 5 3 3 2 1 over [1, 5], edges 1 + 4/3 = 2.33 and 1 + 8/3 = 3.67: 1 2 1 2 1 | 3 3 3 | 5
    assert float(entropy(network_a().one.weight, BINS)) == pytest.approx(h(5, 3, 1), abs=1e-12)
    assert h(5, 3, 1) == pytest.approx(0.9369, abs=5e-5)
    # Layer two: 0 1 2 2 0 1 over [0, 2], edges 0.67 and 1.33: 0 0 | 1 1 | 2 2
    assert float(entropy(network_a().two.weight, BINS)) == pytest.approx(math.log(3), abs=1e-12)


# Which of the pair leaves (r), which of B's channels comes (i), the histogram of layer one with it, its entropy:
LAYER_ONE = [
    # r = 0 leaves the values 1 5 3 3 2 1
    (0, 0, (7, 1, 1), 0.6837),  # with 9 1 1: over [1, 9], edges 3.67 and 6.33: 1 3 3 2 1 1 1 | 5 | 9
    (0, 1, (5, 2, 2), 0.9950),  # with 2 4 1: over [1, 5], edges 2.33 and 3.67: 1 2 1 2 1 | 3 3 | 5 4
    (0, 2, (6, 2, 1), 0.8487),  # with 2 2 2: over [1, 5], edges 2.33 and 3.67: 1 2 1 2 2 2 | 3 3 | 5
    # r = 1 leaves the values 1 2 3 3 2 1; the 5 has gone, so the range shrinks
    (1, 0, (8, 1), 0.3488),  # with 9 1 1: over [1, 9], edges 3.67 and 6.33: 1 2 3 3 2 1 1 1 | none | 9
    (1, 1, (3, 3, 3), 1.0986),  # with 2 4 1: over [1, 4], edges 2 and 3: 1 1 1 | 2 2 2 | 3 3 4; ln 3
    (1, 2, (2, 5, 2), 0.9950),  # with 2 2 2: over [1, 3], edges 1.67 and 2.33: 1 1 | 2 2 2 2 2 | 3 3
]

# Both channels of layer two hold 0 1 2, so it makes no difference which one leaves: the first does.
LAYER_TWO = [
    (0, 0, (4, 1, 1), 0.8676),  # 2 0 1 with 0 0 0: over [0, 2], edges 0.67 and 1.33: 0 0 0 0 | 1 | 2
    (0, 1, (2, 2, 2), 1.0986),  # 2 0 1 with 6 4 2: over [0, 6], edges 2 and 4: 0 1 | 2 2 | 4 6; ln 3
    (1, 0, (4, 1, 1), 0.8676),  # 0 1 2 with 0 0 0
    (1, 1, (2, 2, 2), 1.0986),  # 0 1 2 with 6 4 2
]


@pytest.mark.parametrize(("layer", "candidates"), [("one", LAYER_ONE), ("two", LAYER_TWO)])
def test_entropy_with_each_candidate(layer, candidates):
    target, source = getattr(network_a(), layer).weight.detach(), getattr(network_b(), layer).weight.detach()
    for r, i, counts, value in candidates:
        assert h(*counts) == pytest.approx(value, abs=5e-5)
        assert float(entropy(after(target, r, source[i]), BINS)) == pytest.approx(h(*counts), abs=1e-12)


def test_the_exchange():
    a, b = network_a(), network_b()
    one, two = exchange(a, b, channels=1, bins=BINS)
    # Layer one: A's channel 1 against B's channel 1. Layer two: A's channel 0 (the first of a tie) against B's 1;
    # there the entropy was as high before. The swap is made all the same, as the paper writes.
    assert [(s.layer, s.step, s.source, s.target, s.scalars) for s in (one, two)] == [
        ("one", 1, 1, 0, 3),
        ("two", 1, 1, 0, 3),
    ]
    assert (one.source_channel, one.target_channel) == (1, 1)
    assert (two.source_channel, two.target_channel) == (1, 0)
    measures = [(s.correlation, s.entropy_before, s.entropy_after) for s in (one, two)]
    assert measures[0] == pytest.approx((1 / 2, h(5, 3, 1), math.log(3)), abs=1e-12)
    assert measures[1] == pytest.approx((-1 / 2, math.log(3), math.log(3)), abs=1e-12)
    # The bias (last column) goes with the weights; everything else is where it was.
    assert table(a.one) == [[1, 2, 3, 10], [2, 4, 1, 50], [3, 2, 1, 30]]
    assert table(b.one) == [[9, 1, 1, 40], [1, 5, 3, 20], [2, 2, 2, 60]]
    assert table(a.two) == [[6, 4, 2, 4], [2, 0, 1, 2]]
    assert table(b.two) == [[0, 0, 0, 3], [0, 1, 2, 1]]


def test_the_network_computes_with_what_it_got():
    a, b = network_a(), network_b()
    exchange(a, b, channels=1, bins=BINS)
    # Hidden: 1+2+3+10 = 16, 2+4+1+50 = 57, 3+2+1+30 = 36. Out: 6*16 + 4*57 + 2*36 + 4 = 400, 2*16 + 36 + 2 = 70.
    assert a(torch.ones(3)).tolist() == [400, 70]
