"""The paper's exchange, literally: one loop per symbol, one histogram per candidate, plain Python and numpy.

Independent of the package (it shares no code with it) and slow; tests compare swaps with it, and
``benchmarks/exchange.py`` times it. A layer is an array ``[channels, weights of the channel]``.
"""

from __future__ import annotations

import math

import numpy as np

TIE = 1e-12


def pearson(a, b):
    """Pearson correlation of two channels; a constant channel counts as fully redundant."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a.max() == a.min() or b.max() == b.min():
        return 1.0
    a, b = a - a.mean(), b - b.mean()
    a, b = a / np.abs(a).max(), b / np.abs(b).max()
    return float((a * b).sum() / math.sqrt((a * a).sum() * (b * b).sum()))


def histogram(values, bins):
    """Counts in equal bins over the values' own range, the last bin closed."""
    values = np.asarray(values, dtype=np.float64).ravel()
    low, high = values.min(), values.max()
    edges = [low + (high - low) * k / bins for k in range(1, bins)]
    counts = []
    for k in range(bins):
        inside = np.ones(values.shape, dtype=bool)
        if k > 0:
            inside &= values >= edges[k - 1]
        if k < bins - 1:
            inside &= values < edges[k]
        counts.append(int(inside.sum()))
    return counts


def entropy(values, bins):
    counts = histogram(values, bins)
    total = sum(counts)
    return -sum(n / total * math.log(n / total) for n in counts if n)


def most_correlated_pair(layer):
    best, pair = -math.inf, None
    for a in range(len(layer)):
        for b in range(a + 1, len(layer)):
            r = pearson(layer[a], layer[b])
            if r > best + TIE:
                best, pair = r, (a, b)
    return pair, best


def substitute(layer, r, channel):
    changed = layer.copy()
    changed[r] = channel
    return changed


def choose(target, source, bins, same_network=False):
    """``(r, i)`` of the paper's argmax, the pair's correlation, and the entropy after the substitution."""
    pair, correlation = most_correlated_pair(target)
    best, choice = -math.inf, None
    for r in pair:
        for i in range(len(source)):
            if same_network and i == r:
                continue
            h = entropy(substitute(target, r, source[i]), bins)
            if h > best + TIE:
                best, choice = h, (r, i)
    return choice, correlation, best


def exchange_layer(networks, steps, count, bins, same_network=False):
    """Exchange one layer of several networks in place. Returns ``(step, source, target, i, r)`` for each swap."""
    record = []
    for n, (s, t) in enumerate(steps, 1):
        if same_network:
            s = t
        for _ in range(min(count, len(networks[t]))):
            (r, i), _, _ = choose(networks[t], networks[s], bins, same_network)
            leaving, joining = networks[t][r].copy(), networks[s][i].copy()
            networks[t][r] = joining
            if not same_network:
                networks[s][i] = leaving
            record.append((n, s, t, i, r))
    return record


def ring(networks, iterations):
    return [((n - 1) % networks, n % networks) for n in range(1, networks * iterations + 1)] if networks > 1 else []
