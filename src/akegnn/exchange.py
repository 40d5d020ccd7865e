"""Knowledge exchange as pure functions on tensors: correlation, entropy, and the swaps that follow from them.

Shapes: a *layer matrix* is ``[C, F]``, one row per channel, its weights side by side. Leading dimensions are networks
``V`` (those of one ring) and ``G`` (layers and replicas, independent of each other and worked on together).
Every choice is made in float64; values closer than :data:`TIE` are equal, and the lowest index wins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from .channels import ChannelMap, Layer, Slot, channel_map, check_finite, generic_copy, tried
from .errors import AkeError
from .forward import check_built, duplicate
from .functional import Pick, merge
from .settings import Exchange, derive
from .strategies import Choice, Strategy, adaptive
from .strategies import strategy as named_strategy

TIE = 1e-12
CPU_BYTES = 12 << 20  # layers worked on together: few enough to stay in the processor's cache
COUNTS = 1 << 27  # histogram counts held at a time
GPU_BYTES = 4 << 30  # ... many enough to hide the cost of starting a kernel


# ---- the two measures ------------------------------------------------------------------------------------------------


def standardise(channels: Tensor) -> tuple[Tensor, Tensor]:
    """Centre each channel and scale it to unit length, so that products of channels are Pearson correlations.

    Returns ``([..., C, F] float64, [..., C] bool)``; the flag marks channels that are constant, whose correlation is
    undefined and whose standardised form is zero.
    """
    z = channels.to(torch.float64, copy=True)
    constant = z.amax(-1) == z.amin(-1)
    z -= z.mean(-1, keepdim=True)
    if channels.dtype == torch.float64:  # squares of its extremes would not be finite, or zero
        z /= z.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    constant |= length.squeeze(-1) == 0  # differences too small to square
    return z.div_(length).masked_fill_(constant.unsqueeze(-1), 0.0), constant


def correlation(channels: Tensor) -> Tensor:
    """Pearson correlation between channels, ``[..., C, F] -> [..., C, C]``; 1 wherever a channel is constant.

    >>> correlation(torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [3.0, 2.0, 1.0]])).round(decimals=6)
    tensor([[ 1.,  1., -1.],
            [ 1.,  1., -1.],
            [-1., -1.,  1.]], dtype=torch.float64)
    """
    z, constant = standardise(channels)
    return (z @ z.mT).masked_fill(constant.unsqueeze(-1) | constant.unsqueeze(-2), 1.0)


def bin_edges(low: Tensor, high: Tensor, bins: int) -> Tensor:
    """The ``bins - 1`` inner edges of equal bins over ``[low, high]``, in a new last dimension (float64)."""
    k = torch.arange(1, bins, device=low.device, dtype=torch.float64)
    low, high = low.double().unsqueeze(-1), high.double().unsqueeze(-1)
    return low + (high - low) * k / bins


def count_below(ordered: Tensor, edges: Tensor) -> Tensor:
    """How many values of each sorted row lie strictly below each edge: ``[..., F], [..., Q] -> [..., Q]``."""
    queries = edges.to(ordered.dtype)
    if ordered.dtype != edges.dtype:
        # The smallest representable value not below the edge separates the row just as the edge does.
        queries = torch.where(queries.double() < edges, queries.nextafter(queries.new_tensor(math.inf)), queries)
    return torch.searchsorted(ordered, queries.contiguous(), out_int32=True)


def entropy_of_counts(below: Tensor, total: int) -> Tensor:
    """Eq. 7, from the number of values below each inner bin edge: ``[..., B-1] -> [...]``; the last bin is closed."""
    counts = torch.diff(
        below, prepend=torch.zeros_like(below[..., :1]), append=torch.full_like(below[..., :1], total)
    ).double()
    p = counts / total
    return -torch.xlogy(p, p).sum(-1)


def entropy(matrix: Tensor, bins: int = 10) -> Tensor:
    """Entropy of a layer's weights in ``bins`` equal bins over their range, natural log: ``[..., C, F] -> [...]``.

    >>> round(float(entropy(torch.tensor([[0.0, 1.0], [2.0, 3.0]]), bins=4)), 6)  # four values, four bins: ln 4
    1.386294
    """
    ordered = matrix.flatten(-2).sort(-1).values
    return entropy_of_counts(
        count_below(ordered, bin_edges(ordered[..., 0], ordered[..., -1], bins)), ordered.shape[-1]
    )


# ---- choosing --------------------------------------------------------------------------------------------------------


def _sort(x: Tensor) -> Tensor:
    """Sort the last dimension. numpy's sort is vectorised and an order of magnitude faster than torch's on a CPU."""
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        import numpy as np

        return torch.from_numpy(np.sort(x.numpy(), axis=-1))
    return x.sort(-1).values


def _first_within(values: Tensor, best: Tensor) -> Tensor:
    """Index of the first of the last dimension's values that is not below ``best`` by more than a tie, ``[..., 1]``."""
    return (values >= best - TIE).to(torch.uint8).argmax(-1, keepdim=True)


@dataclass
class _Counts:
    """How many values of each channel lie below the bin edges of one network's range, for it and for its source."""

    target: int
    source: int
    low: Tensor  # [G]
    high: Tensor
    kept: Tensor  # [G, C, B-1]: the target's channels
    given: Tensor  # the source's


class Workbench:
    """The layer matrices of a ring of networks, ready to be asked for redundant and informative channels.

    Nothing is recomputed that a swap leaves alone: a channel's standardised form (for correlations), its sorted values
    and their counts at the bin edges (for histograms) travel with it, and a swap changes one row and one column of the
    correlation matrix. The histogram of every candidate is a difference of counts; none is ever built.
    """

    def __init__(self, matrices: Tensor, bins: int = 10, measured: bool = True) -> None:
        """``matrices``: ``[V, G, C, F]``. With ``measured=False`` only places are kept (non-adaptive strategies)."""
        networks, self.layers, self.channels, width = matrices.shape
        self.device, self.bins, self.total = matrices.device, bins, self.channels * width
        places = torch.arange(networks * self.channels, device=self.device).view(networks, 1, self.channels)
        self.origin = places.repeat(1, self.layers, 1)  # what lies where: network * C + channel
        self._layer = torch.arange(self.layers, device=self.device).unsqueeze(1)  # [G, 1], to index with [G, K]
        self._index = torch.arange(self.channels, device=self.device)
        self.measured = measured
        if measured:
            self.standard, self.constant = standardise(matrices)
            exact = matrices if matrices.dtype in (torch.float32, torch.float64) else matrices.float()
            # A GPU counts faster than it can be asked what is already known, and must not be made to wait.
            self.direct = self.device.type != "cpu"
            self.ordered = _sort(exact.double() if self.direct else exact.detach())
            self._lower = torch.ones(self.channels, self.channels, dtype=torch.bool, device=self.device).tril_()
            self._correlation: tuple[int, Tensor] | None = None
            self._counts: _Counts | None = None

    def draw(self, count: int, draws: list[torch.Generator]) -> Tensor:
        """``count`` different channels for each layer, each layer with its own generator: ``[G, count]``."""
        return torch.stack([torch.randperm(self.channels, generator=g)[:count] for g in draws]).to(self.device)

    def redundant_pair(self, target: int) -> tuple[Tensor, Tensor]:
        """The pair ``(a, b)``, ``a < b``, with the highest correlation: ``[G, 2]``, and that correlation ``[G, 1]``."""
        upper = self._upper_correlation(target)
        row_best = upper.amax(-1)
        best = row_best.amax(-1, keepdim=True)
        a = _first_within(row_best, best)
        b = _first_within(upper[self._layer, a].squeeze(1), best)
        return torch.cat([a, b], 1), best

    def most_informative(self, target: int, source: int, pair: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Which of the pair to give up (0 or 1) and for which channel of the source, ``[G, 1]`` each.

        Then the entropy of the target layer before and after, ``[G, 1]`` each.
        """
        kept, given, channels = self.ordered[target], self.ordered[source], self.channels
        leaving = self._index == pair.unsqueeze(-1)  # [G, 2, C]
        # Range of the layer without each of the pair [G, 2], then with each candidate in its place [G, 2, C].
        rest_low = kept[..., 0].unsqueeze(1).masked_fill(leaving, math.inf).amin(-1)
        rest_high = kept[..., -1].unsqueeze(1).masked_fill(leaving, -math.inf).amax(-1)
        low = torch.minimum(rest_low.unsqueeze(-1), given[..., 0].unsqueeze(1))
        high = torch.maximum(rest_high.unsqueeze(-1), given[..., -1].unsqueeze(1))
        if self.direct:
            below = self._count_directly(kept, given, pair, low, high)
        else:
            counts = self._count_at_edges(target, source)
            below = self._count_by_difference(kept, given, pair, low, high, rest_low, rest_high, counts)
        found = entropy_of_counts(below, self.total)  # [G, 1 + 2C]: of the layer as it is, then with each candidate
        before, after = found[:, :1], found[:, 1:]
        if target == source:  # a channel does not replace itself
            after = after.masked_fill(leaving.flatten(1), -math.inf)
        place = _first_within(after, after.amax(-1, keepdim=True))
        return place // channels, place % channels, before, after.gather(1, place)

    def _count_directly(self, kept: Tensor, given: Tensor, pair: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Counts of the layer as it is and with each candidate, every one afresh: ``[G, 1 + 2C, B-1]``."""
        low = torch.cat([kept[..., 0].amin(-1, keepdim=True), low.flatten(1)], 1)
        high = torch.cat([kept[..., -1].amax(-1, keepdim=True), high.flatten(1)], 1)
        every = bin_edges(low, high, self.bins)
        counts = self._count_whole(kept, every)
        edges = every[:, 1:].unflatten(1, (2, self.channels))  # [G, 2, C, B-1]
        out = count_below(kept[self._layer, pair], edges.flatten(2)).view(edges.shape)
        joining = count_below(given, edges.transpose(1, 2).flatten(2)).view(self.layers, self.channels, 2, -1)
        counts[:, 1:] += (joining.transpose(1, 2) - out).flatten(1, 2)
        return counts

    def _count_by_difference(
        self,
        kept: Tensor,
        given: Tensor,
        pair: Tensor,
        low: Tensor,
        high: Tensor,
        rest_low: Tensor,
        rest_high: Tensor,
        counts: _Counts,
    ) -> Tensor:
        """The same, from counts at hand wherever a candidate leaves the edges as they are."""
        channels = self.channels
        # Most candidates lie within the range of the rest and share its edges: take the leaving channel's counts out of
        # the layer's and put the candidate's in.
        whole = counts.kept.sum(1, dtype=torch.int32)  # [G, B-1]
        rest = whole.unsqueeze(1) - counts.kept[self._layer, pair]
        below = rest.unsqueeze(2) + counts.given.unsqueeze(1)  # [G, 2, C, B-1]
        if bool((rest_low != counts.low.unsqueeze(1)).any() | (rest_high != counts.high.unsqueeze(1)).any()):
            # A leaving channel held the extreme value of the layer, so its rest has other edges.
            edges = bin_edges(rest_low, rest_high, self.bins)  # [G, 2, B-1]
            rest = self._count_whole(kept, edges) - count_below(kept[self._layer, pair], edges)
            joining = self._count_below(given, edges.flatten(1)).view(self.layers, channels, 2, -1)
            below = rest.unsqueeze(2) + joining.transpose(1, 2)
        below = below.flatten(1, 2)  # [G, 2C, B-1]
        wider = ((low < rest_low.unsqueeze(-1)) | (high > rest_high.unsqueeze(-1))).flatten(1)  # [G, 2C]
        if most := int(wider.sum(1).amax()):  # these bring edges of their own
            some = wider.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :most]
            edges = bin_edges(low.flatten(1).gather(1, some), high.flatten(1).gather(1, some), self.bins)
            out, candidate = kept[self._layer, pair.gather(1, some // channels)], given[self._layer, some % channels]
            moved = count_below(candidate, edges) - count_below(out, edges)
            below[self._layer, some] = self._count_whole(kept, edges) + moved
        return torch.cat([whole.unsqueeze(1), below], 1)

    def swap(self, target: int, source: int, choice: Choice) -> None:
        """Swap the chosen channels, or overwrite the target's where it is its own source."""
        r, i = choice.redundant, choice.informative
        place = self._layer * self.channels
        here = (target * self.layers * self.channels + place + r).flatten()
        there = (source * self.layers * self.channels + place + i).flatten()
        to, out_of = (torch.cat([here, there]), torch.cat([there, here])) if target != source else (here, there)
        for rows in [self.origin, self.standard, self.constant, self.ordered] if self.measured else [self.origin]:
            flat = rows.view(-1, *rows.shape[3:])
            flat[to] = flat[out_of]
        counts = self._counts if self.measured else None
        if counts is not None and (counts.target, counts.source) == (target, source):
            leaving, joining = counts.kept[self._layer, r], counts.given[self._layer, i]
            counts.kept[self._layer, r] = joining
            if target != source:
                counts.given[self._layer, i] = leaving
        if self.measured and self._correlation is not None:
            if self.direct:
                self._correlation = None
            else:
                self._correlate_again(target, r)

    def _upper_correlation(self, target: int) -> Tensor:
        """Correlations of pairs ``a < b`` of the target, minus infinity elsewhere: ``[G, C, C]``."""
        if self._correlation is None or self._correlation[0] != target:
            z, constant = self.standard[target], self.constant[target]
            upper = z @ z.mT
            if self.direct or bool(constant.any()):
                upper.masked_fill_(constant.unsqueeze(-1) | constant.unsqueeze(-2), 1.0)
            self._correlation = target, upper.masked_fill_(self._lower, -math.inf)
        return self._correlation[1]

    def _correlate_again(self, target: int, r: Tensor) -> None:
        """Bring the correlations up to date with the channels ``r [G, 1]`` that came."""
        assert self._correlation is not None
        assert self._correlation[0] == target
        upper, z, constant = self._correlation[1], self.standard[target], self.constant[target]
        new = (z @ z[self._layer, r].mT).squeeze(-1)  # [G, C]
        new = new.masked_fill(constant | constant.gather(1, r), 1.0)
        index, layer, column = self._index, self._layer.squeeze(1), r.squeeze(1)
        upper[layer, column] = new.masked_fill(index <= r, -math.inf)
        upper[layer, :, column] = new.masked_fill(index >= r, -math.inf)

    def _count_at_edges(self, target: int, source: int) -> _Counts:
        """The counts at the edges of the target's present range; those at hand, if the range is still the same."""
        kept, given = self.ordered[target], self.ordered[source]
        low, high = kept[..., 0].amin(-1), kept[..., -1].amax(-1)
        at_hand = self._counts
        if (
            at_hand is None
            or (at_hand.target, at_hand.source) != (target, source)
            or not (torch.equal(at_hand.low, low) and torch.equal(at_hand.high, high))
        ):
            edges = bin_edges(low, high, self.bins)
            kept_counts = self._count_below(kept, edges)
            given_counts = kept_counts if source == target else self._count_below(given, edges)
            self._counts = at_hand = _Counts(target, source, low, high, kept_counts, given_counts)
        return at_hand

    def _count_below(self, ordered: Tensor, edges: Tensor) -> Tensor:
        """Values of each channel below the layer's edges: ``[G, C, F], [G, Q] -> [G, C, Q]``."""
        return count_below(ordered, edges.unsqueeze(1).expand(-1, self.channels, -1))

    def _count_whole(self, ordered: Tensor, edges: Tensor) -> Tensor:
        """Values of the whole layer below each of its edges: ``[G, C, F], [G, Q, B-1] -> [G, Q, B-1]``."""
        flat = edges.flatten(1)
        # A wide layer (the input channels of Cora's features) has thousands of candidates with edges of their own: of
        # many replicas at once that would be more numbers than fit memory, and more than 32 bits can count.
        some = max(1, COUNTS // (self.channels * flat.shape[1]))
        parts = zip(ordered.split(some), flat.split(some), strict=True)
        return torch.cat([self._count_below(o, e).sum(1, dtype=torch.int32) for o, e in parts]).view_as(edges)


# ---- exchanging ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Swap:
    """One swap as it was made. A strategy that does not weigh its choice has no correlation or entropy to tell."""

    layer: str
    step: int
    source: int  # network
    target: int
    source_channel: int | None  # None: many single weights at once
    target_channel: int | None
    correlation: float | None
    entropy_before: float | None
    entropy_after: float | None
    scalars: int  # weights moved into the target
    replica: int = 0


def ring_steps(networks: int, iterations: int) -> Iterator[tuple[int, int]]:
    """``(source, target)`` of each of the ``V * iterations`` steps: every network takes from the one before it.

    >>> list(ring_steps(3, 1))
    [(0, 1), (1, 2), (2, 0)]
    """
    if networks > 1:
        for n in range(1, networks * iterations + 1):
            yield (n - 1) % networks, n % networks


def ring(
    stacks: Mapping[str, Tensor],
    layers: Sequence[Layer],
    strategy: Strategy,
    *,
    steps: Sequence[tuple[int, int]],
    channels: int = 5,
    bins: int = 10,
    seeds: Sequence[int] = (0,),
    record: bool = True,
) -> list[Swap]:
    """Exchange channels among stacked networks, in place.

    Args:
        stacks: tensors ``[V, R, ...]`` by state-dict name: ``V`` networks of a ring in ``R`` independent replicas. With
            a strategy whose partner is ``random``, networks ``V ... 2V - 1`` are the untrained ones.
        layers: the layers of the channel map that take part.
        steps: ``(source, target)`` pairs, see :func:`ring_steps`.
        channels: swaps per layer and step (M), cut to the number of channels.
        bins: of the histogram behind the entropy (B).
        seeds: one per replica, for the strategies that draw.
        record: whether to return what moved (off for large populations).
    """
    jobs = [job for job in (_Job.of(layer, stacks, strategy, channels) for layer in layers) if job is not None]
    swaps: list[Swap] = []
    for together in _batches(jobs, stacks):
        matrices = torch.cat([job.matrix(stacks) for job in together], dim=1)  # [V, G, C, F], G = layers x replicas
        bench = Workbench(matrices, bins, measured=strategy.adaptive)
        del matrices
        replicas = len(seeds)
        draws = [_generator(seed, layers.index(job.layer)) for job in together for seed in seeds]
        made: list[tuple[Choice, int, int, int]] = []
        # Of the package's own choice it is known that it depends on nothing but the bench; a person's may draw.
        move = _Recorded(keep=record) if strategy.choose is adaptive and bench.direct else _move
        for n, (source, target) in enumerate(steps, 1):
            if strategy.partner == "self":
                source = target
            elif strategy.partner == "random":
                source += len(bench.origin) // 2
            for choice in move(bench, strategy, target, source, together[0].count, draws):
                if record:
                    made.append((choice, n, source, target))
        for choice, n, source, target in made:  # only now, so that a GPU is not asked to wait in between
            swaps += _describe(choice, together, replicas, n, source, target)
        for job, origin in zip(together, bench.origin.split(replicas, dim=1), strict=True):
            job.origin = origin
    for job in jobs:  # from the input on: a neuron's outgoing weights move before the channels of the next layer do
        job.apply(stacks, neuron=strategy.neuron)
    order = {layer.name: k for k, layer in enumerate(layers)}
    return sorted(swaps, key=lambda s: (s.step, order[s.layer], s.replica))


def _move(
    bench: Workbench, strategy: Strategy, target: int, source: int, count: int, draws: list[torch.Generator]
) -> Iterator[Choice]:
    """Choose and swap, ``count`` times."""
    for choice in strategy.choices(bench, target, source, count, draws):
        bench.swap(target, source, choice)
        yield choice


class _Recorded:
    """The same on a GPU: a choice and its swap are some hundred small kernels, recorded once for each source and target
    as a CUDA graph and replayed. The adaptive choice depends on nothing but the bench, so one recording does."""

    def __init__(self, keep: bool) -> None:
        self.keep, self.warm = keep, False
        self.graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Choice]] = {}

    def __call__(
        self, bench: Workbench, strategy: Strategy, target: int, source: int, count: int, draws: list[torch.Generator]
    ) -> Iterator[Choice]:
        for _ in range(count):
            if not self.warm:  # libraries set themselves up in their first call, which cannot be recorded
                self.warm = True
                yield from _move(bench, strategy, target, source, 1, draws)
                continue
            if (target, source) not in self.graphs:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    (choice,) = _move(bench, strategy, target, source, 1, draws)
                self.graphs[target, source] = graph, choice
            graph, choice = self.graphs[target, source]
            graph.replay()
            # The next replay writes over these tensors.
            yield choice.clone() if self.keep else choice


@dataclass
class _Job:
    """One layer's part in an exchange: what counts as a channel of it and how many of them move in a step."""

    layer: Layer
    slots: tuple[Slot, ...]  # what is weighed, side by side
    size: int  # channels
    width: int  # weights per channel
    count: int  # swaps per step
    point: bool = False
    origin: Tensor | None = None

    @classmethod
    def of(cls, layer: Layer, stacks: Mapping[str, Tensor], strategy: Strategy, channels: int) -> _Job | None:
        if layer.channels < 2:
            return None
        width = sum(s.rows(stacks[s.name])[0, 0, 0].numel() for s in layer.weights)
        count = min(channels, layer.channels)
        if strategy.axis == "output":
            return cls(layer, layer.weights, layer.channels, width, count)
        scalars = count * width  # the alternatives move as many weights as the output channels would, rounded up
        if strategy.axis == "point":
            return cls(layer, layer.weights, layer.channels * width, 1, scalars, point=True)
        sizes = {s.size for s in layer.inputs}
        if len(sizes) != 1 or min(sizes) < 2:
            return None
        size = sizes.pop()
        weights = layer.channels * width // size
        return cls(layer, layer.inputs, size, weights, min(size, math.ceil(scalars / weights)))

    def matrix(self, stacks: Mapping[str, Tensor]) -> Tensor:
        rows = torch.cat([s.rows(stacks[s.name]).flatten(3) for s in self.slots], dim=-1)
        return rows.flatten(2).unsqueeze(-1) if self.point else rows

    def apply(self, stacks: Mapping[str, Tensor], neuron: bool) -> None:
        assert self.origin is not None
        if self.point:
            whole = self.matrix(stacks)
            moved = _gather(whole, self.origin).squeeze(-1).view(*whole.shape[:2], self.layer.channels, -1)
            widths = [s.rows(stacks[s.name]).flatten(3).shape[-1] for s in self.slots]
            for slot, part in zip(self.slots, moved.split(widths, dim=-1), strict=True):
                rows = slot.rows(stacks[slot.name])
                rows.copy_(part.reshape(rows.shape))
            return
        moving = list(self.slots)
        if self.slots is self.layer.weights:
            moving += self.layer.travels
        if neuron:
            moving += self.layer.readers
        for slot in moving:
            rows = slot.rows(stacks[slot.name])
            rows.copy_(_gather(rows, self.origin))


def _gather(rows: Tensor, origin: Tensor) -> Tensor:
    """Rows ``[V, R, C, ...]`` laid out anew as ``origin [V, R, C]`` (network * C + channel) says."""
    networks, replicas, channels = origin.shape
    pool = rows.transpose(0, 1).reshape(replicas, networks * channels, -1)
    index = origin.transpose(0, 1).reshape(replicas, -1, 1).expand(-1, -1, pool.shape[-1])
    return pool.gather(1, index).view(replicas, networks, *rows.shape[2:]).transpose(0, 1)


def _batches(jobs: list[_Job], stacks: Mapping[str, Tensor]) -> Iterator[list[_Job]]:
    """Layers of one shape, as many together as memory allows (a lone layer may be larger)."""
    shapes: dict[tuple[int, int, int], list[_Job]] = {}
    for job in jobs:
        shapes.setdefault((job.size, job.width, job.count), []).append(job)
    for (size, width, _), alike in shapes.items():
        some = stacks[alike[0].slots[0].name]
        networks = some.shape[0] * some.shape[1]
        # A layer in its own precision (twice), standardised, and the correlations of its target.
        need = networks * size * width * (2 * some.element_size() + 8) + some.shape[1] * size * size * 16
        layers = networks * size * width * some.element_size() * len(alike)
        # Not more than twice the layers themselves, but a mebibyte is nobody's concern.
        budget = min(max(2 * layers, 1 << 20), CPU_BYTES) if some.device.type == "cpu" else GPU_BYTES
        room = max(1, budget // need)
        for k in range(0, len(alike), room):
            yield alike[k : k + room]


def _generator(seed: int, layer: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed * 1_000_003 + layer) % 2**63)


def _describe(choice: Choice, jobs: list[_Job], replicas: int, step: int, source: int, target: int) -> Iterator[Swap]:
    nothing: list[list[float | None]] = [[None] * choice.redundant.shape[1]] * len(choice.redundant)
    sources, targets = choice.informative.tolist(), choice.redundant.tolist()
    measures = [nothing if m is None else m.tolist() for m in (choice.correlation, choice.before, choice.after)]
    for g in range(len(jobs) * replicas):
        job, replica = jobs[g // replicas], g % replicas
        if job.point:
            yield Swap(job.layer.name, step, source, target, None, None, None, None, None, len(sources[g]), replica)
            continue
        for k, (i, r) in enumerate(zip(sources[g], targets[g], strict=True)):
            found, before, after = (m[g][k] for m in measures)
            yield Swap(job.layer.name, step, source, target, i, r, found, before, after, job.width, replica)


# ---- on modules ------------------------------------------------------------------------------------------------------


def exchange(
    target: nn.Module,
    source: nn.Module | Iterable[nn.Module],
    *,
    channels: int = 5,
    bins: int = 10,
    strategy: str = "adaptive",
    layers: str = "all",
    seed: int = 0,
    data: Data | Sequence[Data] | None = None,
    map: ChannelMap | None = None,
    keep: bool = True,
    inner: bool = False,
) -> list[Swap]:
    """Swap redundant channels of ``target`` for informative ones of ``source``, in place on both. Returns what moved.

    With ``strategy="functional"`` the target becomes one network that computes what it and all sources compute on
    average (see :mod:`akegnn.functional`); the sources stay as they are. They may be wider or narrower than the target.

    Args:
        target, source: two modules of one architecture; for ``functional`` any number of sources.
        channels: swaps per layer (M), cut to the number of channels.
        bins: of the histogram behind the entropy (B).
        strategy: one of :data:`akegnn.strategies.STRATEGIES`.
        layers: ``all``, or ``hidden`` to leave the output layer alone.
        seed: for the strategies that draw.
        data: a graph to find the channels with, where a model needs more than ``x`` and ``edge_index``; for
            ``functional`` the graph, or batches of graphs, on which the networks are to agree.
        map: a channel map found before, see :func:`akegnn.channels.channel_map`.
        keep: for ``functional``, whether the target's own channels are among those to choose from; without, it says
            only how wide the network is to be.
        inner: for ``functional``, whether outputs are embeddings that are compared by inner products (links).
    """
    given: Any = source
    one = isinstance(given, nn.Module | Mapping) or not isinstance(given, Iterable)
    sources: list[Any] = [given] if one else list(given)
    for what, network in (("target", target), *(("source", s) for s in sources)):
        if not isinstance(network, nn.Module):
            raise AkeError(f"{what}: must be a torch.nn.Module, is a {type(network).__name__}")
    if named_strategy(strategy).merges:
        usual = Exchange()
        asked = {"channels": channels != usual.channels, "bins": bins != usual.bins, "layers": layers != usual.layers}
        for name in (n for n, given in {**asked, "map": map is not None}.items() if given):
            raise AkeError(f"{name}: not for strategy {strategy!r}, which makes every channel of the target anew")
        return _merge_modules(target, sources, data, keep, inner)
    if not keep or inner:
        raise AkeError(f"{'inner' if keep else 'keep'}: only for strategy 'functional', not for {strategy!r}")
    if len(sources) != 1:
        raise AkeError(f"source: strategy {strategy!r} takes one network, got {len(sources)}; see exchange_ring")
    if data is not None and not isinstance(data, Data):
        raise AkeError(f"data: strategy {strategy!r} takes one graph")
    return exchange_ring(
        [target, sources[0]],
        [(1, 0)],
        channels=channels,
        bins=bins,
        strategy=strategy,
        layers=layers,
        seed=seed,
        data=data,
        map=map,
    )


def _merge_modules(
    target: nn.Module, sources: list[nn.Module], data: Data | Sequence[Data] | None, keep: bool, inner: bool
) -> list[Swap]:
    batches = [] if data is None else [data] if isinstance(data, Data) else list(data)
    if not batches:
        raise AkeError("data: strategy 'functional' needs a graph, to see what channels compute; pass data= (--data)")
    for batch in batches:
        if not isinstance(batch, Data):
            raise AkeError(f"data: must be a graph or a list of them, is a {type(batch).__name__}")
        if batch.x is not None and not bool(torch.isfinite(batch.x.to_dense()).all()):
            raise AkeError("data.x: contains NaN or infinite features")
    if not sources:
        raise AkeError("source: at least one network is needed")
    networks = [target, *sources] if keep else sources
    for network in sources:
        _check_layers(target, network)
    modes = [(m, m.training) for n in networks for m in n.modules()]
    found = channel_map(target, batches[0])
    maps = [found if n is target else channel_map(n, batches[0]) for n in networks]
    for n in networks:
        n.eval()
    try:
        made = None if keep else target
        state, picks = merge(networks, [n.state_dict() for n in networks], maps, batches, found, inner, made)
    finally:
        for m, mode in modes:
            m.training = mode
    target.load_state_dict(state, strict=False)
    return as_swaps(picks, found)


def why_not_merged(target: nn.Module, source: nn.Module | None = None, data: Data | None = None) -> str:
    """Why networks like these cannot be exchanged by function; nothing where they can, as far as a small graph tells.

    Args:
        target: a network like the one that is to be made.
        source: one like those that it is to be made of; without, like the target.
        data: a graph like the real one, where a model needs more than ``x`` and ``edge_index``.
    """
    try:
        one, several = generic_copy(target), [generic_copy(source or target, seed) for seed in range(2)]
        exchange(one, several, strategy="functional", data=tried(several[0], data)[0], keep=False)
    except AkeError as e:
        return str(e)
    return ""


def _check_layers(target: nn.Module, source: nn.Module) -> None:
    """Networks of one architecture have parts of the same names and types, whatever their widths."""
    here, there = ({name: type(m).__name__ for name, m in n.named_modules() if name} for n in (target, source))
    for name in (*here, *there):
        if here.get(name) != there.get(name):
            which = f"{name} is {there.get(name, 'missing')}, in the target {here.get(name, 'missing')}"
            raise AkeError(f"source: not of the target's architecture ({which})")


def as_swaps(picks: Sequence[Pick], map: ChannelMap, replica: int = 0) -> list[Swap]:
    """What :func:`akegnn.functional.merge` picked, as a record of moves; the step is the order of the picks."""
    sizes = {x.name: sum(math.prod(map.shapes[s.name]) for s in x.weights) // x.channels for x in map.layers}
    return [
        Swap(p.layer, p.order + 1, p.network, 0, p.channel, p.place, None, None, None, sizes[p.layer], replica)
        for p in picks
    ]


def exchange_ring(
    networks: Sequence[nn.Module],
    steps: Sequence[tuple[int, int]] | None = None,
    *,
    iterations: int = 3,
    channels: int = 5,
    bins: int = 10,
    strategy: str = "adaptive",
    layers: str = "all",
    seed: int = 0,
    data: Data | None = None,
    map: ChannelMap | None = None,
) -> list[Swap]:
    """Exchange among several modules, in place: each takes from the one before it, ``iterations`` times round."""
    check_alike(networks)
    if named_strategy(strategy).merges:
        raise AkeError(f"strategy {strategy!r}: makes one network of all and has no ring; see exchange")
    map = map or channel_map(networks[0], data)
    how = Exchange(strategy, channels, bins, iterations, layers)
    states = [network.state_dict() for network in networks]
    stacks = [
        {name: value.unsqueeze(0) for name, value in state.items()} for state in states
    ]  # views: one replica each
    return exchange_populations(stacks, networks[0], map.chosen(layers), map, how, (seed,), steps)


def exchange_populations(
    states: Sequence[Mapping[str, Tensor]],
    template: nn.Module,
    chosen: Sequence[Layer],
    map: ChannelMap,
    how: Exchange,
    seeds: Sequence[int],
    steps: Sequence[tuple[int, int]] | None = None,
    record: bool = True,
) -> list[Swap]:
    """Exchange among V populations, in place: replica ``r`` of each takes from replica ``r`` of the one before it.

    ``states`` are tensors ``[R, ...]`` by name, one mapping per population; ``seeds`` has one seed per replica.
    """
    way = named_strategy(how.strategy)
    if way.neuron:
        chosen = map.whole_neurons(chosen)
    giving = list(states)
    if way.partner == "random":
        for k in range(len(states)):
            fresh = [untrained(template, derive(seed, "partner", k), chosen).state_dict() for seed in seeds]
            giving.append({name: torch.stack([f[name] for f in fresh]) for name in fresh[0]})
    names = {s.name for x in chosen for s in (*x.weights, *x.travels, *(x.readers if way.neuron else ()))}
    with torch.no_grad():
        stacks = {name: torch.stack([state[name] for state in giving]) for name in sorted(names)}
        check_finite(stacks, (slot.name for layer in chosen for slot in layer.weights))
        if steps is None:
            steps = list(ring_steps(len(states), how.iterations))
        swaps = ring(stacks, chosen, way, steps=steps, channels=how.channels, bins=how.bins, seeds=seeds, record=record)
        for k, state in enumerate(states):
            for name in names:
                state[name].copy_(stacks[name][k])
    return swaps


def check_alike(networks: Sequence[nn.Module]) -> None:
    """Channels can only change places between networks of one architecture."""
    if not networks:
        raise AkeError("models: at least one network is needed")
    for network in networks:
        if not isinstance(network, nn.Module):
            what = f"the class {network.__name__}" if isinstance(network, type) else f"a {type(network).__name__}"
            raise AkeError(f"models: each must be a trained torch.nn.Module, one is {what}")
        check_built(network)
    first = networks[0].state_dict()
    for k, network in enumerate(networks[1:], 2):
        other = network.state_dict()
        for name in sorted(first.keys() | other.keys()):
            here, there = first.get(name), other.get(name)
            if here is None or there is None:
                raise AkeError(f"{name}: only in network {1 if there is None else k}; both must be of one architecture")
            if here.data_ptr() == there.data_ptr() and here.numel():
                raise AkeError(f"{name}: networks 1 and {k} share it; they must be networks of their own")
            if here.dtype != there.dtype:
                raise AkeError(f"{name}: {here.dtype} in network 1 but {there.dtype} in network {k}")
            if here.shape != there.shape:
                raise AkeError(
                    f"{name}: {tuple(here.shape)} in network 1 but {tuple(there.shape)} in network {k}; "
                    "both must be of one architecture"
                )


def untrained(network: nn.Module, seed: int, layers: Sequence[Layer]) -> nn.Module:
    """A copy with fresh random weights, by every submodule's ``reset_parameters``."""
    fresh = duplicate(network)
    devices = [p.device for p in fresh.parameters() if p.device.type == "cuda"][:1]
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        for module in fresh.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    before, after = network.state_dict(), fresh.state_dict()
    for slot in (s for x in layers for s in x.weights):
        if torch.equal(before[slot.name], after[slot.name]):
            raise AkeError(f"{slot.name}: cannot be drawn anew, its module has no reset_parameters()")
    return fresh
