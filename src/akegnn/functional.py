"""Exchange by function: of the channels of several networks, those that together compute what all of them compute.

What makes a channel redundant or informative is what it computes. The channels of all networks are pooled; as many as
one network holds are picked, one at a time, each the one that most reduces the squared error of reconstructing what the
next layers read off the whole pool; the weights that read the picked ones follow in closed form. From the input to the
output, layer by layer; the last step reconstructs the ensemble. No gradient is needed.

*Working copies* carry this through: each network keeps its own layers from the present one on and shares, before it,
the layers of the network that is being made, so that every pool is what the networks would compute from what was picked
so far. Which columns a layer multiplies its weights with (neighbours' means, residual parts) is found out by calling it
with unit weights; so nothing here knows a type of layer, but that attention is not linear.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch_geometric.data import Data

from .channels import ChannelMap, Layer, Slot, check_finite, is_attention, rule_of
from .errors import AkeError
from .forward import arguments, cast, duplicate

State = dict[str, Tensor]
RIDGE = 1e-10  # of each column's square: keeps dead and repeated channels from dividing by zero
ROWS, PER_COLUMN = 20_000, 50  # nodes to look at, in all and for each column of the pool: more settle nothing
LARGEST = 100.0  # times the largest weight of the networks: what a weight that replaces theirs may come to
SMALL = 1e-9  # of a column's square: what the chosen ones leave of it is rounding errors
COSTS = (0.0, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2)  # of weights, in columns' mean squares: the first that keeps to that


@dataclass(frozen=True)
class Pick:
    """One channel (or head) of the pool that was taken: where it comes from and which place it got."""

    layer: str
    order: int
    network: int
    channel: int
    place: int


# ---- least squares ---------------------------------------------------------------------------------------------------


@dataclass
class Equations:
    """Normal equations of ``columns @ w = targets``, summed over batches of rows, in float64."""

    gram: Tensor | float = 0.0  # [F, F]
    right: Tensor | float = 0.0  # [F, O]
    square: float = 0.0  # of the targets

    def add(self, columns: Tensor, targets: Tensor) -> None:
        """Rows ``[N, F]`` and what they are to give, ``[N, O]``."""
        columns, targets = columns.double(), targets.double()
        self.gram = self.gram + columns.mT @ columns
        self.right = self.right + columns.mT @ targets
        self.square += float(targets.square().sum())

    def solve(self, chosen: Tensor | None = None, limit: float | None = None, free: int = 0) -> Tensor:
        """The weights ``[F, O]`` of all columns, or of the chosen ones.

        With a ``limit``, weights cost as much as keeps them below it, but for those of the last ``free`` columns.
        Without, channels of GCNII that are 1e-8 at a few nodes are read with weights of 1e7: right, but no place to go
        on from.
        """
        assert isinstance(self.gram, Tensor)
        assert isinstance(self.right, Tensor)
        gram, right = self.gram, self.right
        if chosen is not None:
            gram, right = gram[chosen][:, chosen], right[chosen]
        size = len(gram) - free
        mean = gram.diagonal()[:size].sum() / max(size, 1)
        for cost in COSTS:
            weights = _solved(
                gram + torch.diag((torch.arange(len(gram), device=gram.device) < size) * cost * mean), right
            )
            if limit is None or float(weights[:size].abs().amax()) <= limit:
                break
        return weights

    def without_last(self) -> Equations:
        """The same once the last column explains its part, at no cost: that is what a bias does."""
        assert isinstance(self.gram, Tensor)
        assert isinstance(self.right, Tensor)
        own = self.gram[-1, -1].clamp_min(1e-300)
        share = self.gram[:-1, -1:] / own
        gram, right = self.gram[:-1, :-1] - share @ self.gram[-1:, :-1], self.right[:-1] - share @ self.right[-1:]
        return Equations(gram, right, max(self.square - float(self.right[-1].square().sum() / own), 0.0))


def _solved(gram: Tensor, right: Tensor) -> Tensor:
    scale = _scale(gram)
    gram = gram * scale * scale[:, None] + RIDGE * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return scale[:, None] * torch.linalg.solve(gram, scale[:, None] * right)


def _scale(gram: Tensor) -> Tensor:
    """By what to multiply columns so that they weigh alike: small ones (a bias beside sums) are no less exact."""
    return gram.diagonal().clamp_min(1e-300).rsqrt().where(gram.diagonal() > 0, 1.0)


@dataclass
class _Reading:
    """What the units picked so far leave of one reader's columns and targets: a Cholesky decomposition in the making.

    Kept up to date is only what the next choice looks at, two small blocks for each unit. Whatever else of a unit is
    needed is worked out when it is picked.
    """

    gram: Tensor  # [F, F] and
    right: Tensor  # [F, O], as they were
    own: Tensor  # [units, b, b], what is left of each unit's columns
    told: Tensor  # [units, b, b], what is left of what they tell of the targets, squared
    shares: Tensor  # [F, steps * b]: by these shares of what was picked ...
    parts: Tensor  # ... these products with it are explained, and ...
    truths: Tensor  # ... these products with the targets, [steps * b, O]
    used: int = 0

    @classmethod
    def of(cls, equations: Equations, units: int, count: int, free: int) -> _Reading:
        assert isinstance(equations.gram, Tensor)
        assert isinstance(equations.right, Tensor)
        scale = _scale(equations.gram)
        gram = equations.gram * scale * scale[:, None]
        right = scale[:, None] * equations.right / max(equations.square, 1e-300) ** 0.5
        b = (len(gram) - free) // units
        index = torch.arange(units, device=gram.device)
        own = gram[: units * b, : units * b].view(units, b, units, b)[index, :, index, :]
        rows = right[: units * b].view(units, b, -1)
        shares, parts = gram.new_empty(2, len(gram), count * b + free)
        reading = cls(
            gram, right, own, rows @ rows.mT, shares, parts, right.new_empty(count * b + free, right.shape[1])
        )
        for k in range(len(gram) - free, len(gram)):
            reading.take(torch.tensor([k], device=gram.device))
        return reading

    def gains(self) -> Tensor:
        """By how much each unit would reduce the squared error."""
        left = torch.where(self.own > SMALL, 1.0, 0.0) if self.own.shape[1] == 1 else 1.0
        return (left * _inverse(self.own) * self.told).sum((1, 2))

    def take(self, block: Tensor) -> None:
        """Let some columns explain their part of all others and of the targets."""
        units, b, _ = self.own.shape
        before, after = self.used, self.used + len(block)
        shares, truths = self.shares[:, :before], self.truths[:before]
        part = self.gram[block].mT - shares @ self.parts[block, :before].mT
        truth = self.right[block] - shares[block] @ truths
        both = self.right @ truth.mT - shares @ (truths @ truth.mT)  # what is left of the targets, by what goes
        share = part @ _inverse(part[block])
        self.shares[:, before:after], self.parts[:, before:after], self.truths[before:after] = share, part, truth
        self.used = after
        s, p, x = (each[: units * b].view(units, b, -1) for each in (share, part, both))
        self.own = self.own - s @ p.mT
        self.told = self.told - s @ x.mT - x @ s.mT + s @ (truth @ truth.mT) @ s.mT


def _inverse(blocks: Tensor) -> Tensor:
    """Of what is left of columns; where nothing is left but rounding errors, of nothing."""
    if blocks.shape[-1] == 1:
        return blocks.clamp_min(SMALL).reciprocal()
    return torch.linalg.pinv(blocks, atol=SMALL, hermitian=True)


def greedy(readers: Sequence[Equations], units: int, count: int, free: int = 0) -> list[int]:
    """Pick ``count`` of ``units``, each the one whose addition leaves the least squared error, over all readers.

    Every reader has ``F = units * b`` columns, ``b`` next to each other for each unit, then ``free`` ones that are
    there from the beginning (a bias). Readers weigh alike: each error counts as a share of its targets.
    """
    count = min(count, units)
    readings = [_Reading.of(equations, units, count, free) for equations in readers]
    chosen: list[int] = []
    for _ in range(count):
        gains = torch.stack([reading.gains() for reading in readings]).sum(0)
        gains[chosen] = -1.0
        best = int(gains.argmax())
        chosen.append(best)
        for reading in readings:
            b = reading.own.shape[1]
            reading.take(torch.arange(best * b, (best + 1) * b, device=reading.gram.device))
    return chosen


# ---- looking into a network ------------------------------------------------------------------------------------------


@dataclass
class _Call:
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Tensor

    @property
    def input(self) -> Tensor:
        """What nodes bring along."""
        x = self.args[0] if self.args else next(v for v in self.kwargs.values() if isinstance(v, Tensor | tuple))
        return x[0] if isinstance(x, tuple) else x


def _run(
    module: nn.Module, state: State, data: Data, sites: Sequence[str], instead: Mapping[str, Tensor] | None = None
) -> tuple[dict[str, _Call], Tensor]:
    """Call the network; what its sites were called with and gave, in order. ``instead``: outputs to put in place."""
    calls: dict[str, _Call] = {}

    def spy(name: str) -> Callable[..., Any]:
        def hook(m: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
            if name in calls:
                raise AkeError(f"{name}: called twice in one pass; it cannot be exchanged by function")
            if not isinstance(out, Tensor):
                raise AkeError(f"{name}: gives a {type(out).__name__}, expected a tensor to be exchanged by function")
            calls[name] = _Call(args, kwargs, out.clone())  # activations may be written over it
            return (instead or {}).get(name)

        return hook

    handles = [module.get_submodule(n).register_forward_hook(spy(n), with_kwargs=True) for n in sites]
    try:
        positional, named = arguments(module, data)
        out = functional_call(module, state, positional, named)
    finally:
        for handle in handles:
            handle.remove()
    return calls, out if out.dim() > 1 else out.unsqueeze(-1)


@dataclass
class _Reader:
    """A layer's module: the weights by which it reads, in order, and its bias."""

    name: str
    layers: list[Layer]
    weights: list[Slot]  # input axes
    bias: str | None
    blocks: bool
    attends: bool

    @classmethod
    def of(cls, module: nn.Module, layers: list[Layer], name: str) -> _Reader:
        rule = rule_of(module.get_submodule(name))
        assert rule is not None
        inner = module.get_submodule(name)
        attends = "att" in "".join(rule.travels)
        if attends and sum(len(layer.inputs) for layer in layers) != 1:
            raise AkeError(f"{name}: attention with several weights cannot be exchanged by function")
        if attends and layers[0].output and getattr(inner, "lin_edge", None) is not None:
            raise AkeError(f"{name}: outputs whose attention looks at edge features cannot be exchanged by function")
        if rule.blocks and any(layer.output for layer in layers):
            raise AkeError(f"{name}: outputs in blocks cannot be exchanged by function")
        weights = [slot for layer in layers for slot in layer.inputs]
        own = [s.name for s in layers[0].travels if s.name.startswith(name + ".") and s.name.endswith("bias")]
        return cls(name, layers, weights, own[0] if own else None, rule.blocks, attends)

    def columns(self, module: nn.Module, state: State, call: _Call) -> tuple[list[Tensor], Tensor | None, Tensor]:
        """What each weight is multiplied with ``[N, I]``, what the bias is ``[N, 1]``, and the output without them."""
        if self.attends:
            x = call.input
            return [x], None, torch.zeros_like(x[:, :1])
        inner = module.get_submodule(self.name)
        cut = len(self.name) + 1
        given = {n[cut:]: v for n, v in state.items() if n.startswith(self.name + ".")}
        size = given[self.weights[0].name[cut:]].shape[self.weights[0].axis]
        like = next(iter(given.values()))
        blank = {w.name[cut:]: like.new_zeros(size, size) for w in self.weights}
        wide = size * len(self.weights) if self.blocks else size
        bias = self.bias[cut:] if self.bias else None
        if bias:
            blank[bias] = like.new_zeros(wide)

        def probe(**changes: Tensor) -> Tensor:
            return functional_call(inner, {**given, **blank, **changes}, call.args, call.kwargs)  # type: ignore[no-any-return]

        try:
            base = probe()
            found = []
            for k, w in enumerate(self.weights):
                out = probe(**{w.name[cut:]: torch.eye(size, dtype=like.dtype, device=like.device)}) - base
                found.append(out[..., k * size : (k + 1) * size] if self.blocks else out)
            one = (probe(**{bias: torch.ones_like(blank[bias])}) - base)[..., :1] if bias else None
        except (RuntimeError, ValueError, TypeError) as e:
            line = str(e).splitlines()[0] if str(e) else type(e).__name__
            raise AkeError(f"{self.name}: cannot be exchanged by function ({line})") from None
        columns, one = [f.flatten(0, -2) for f in found], None if one is None else one.flatten(0, -2)
        base = base.flatten(0, -2)
        self.check(columns, one, base, state, call)
        return columns, one, base

    def check(self, columns: list[Tensor], one: Tensor | None, base: Tensor, state: State, call: _Call) -> None:
        """Whether the layer is what the columns say: a sum of products (not one brought to unit length)."""
        parts = [
            c @ (state[w.name].t() if w.axis == 1 else state[w.name])
            for c, w in zip(columns, self.weights, strict=True)
        ]
        made = torch.cat(parts, 1) if self.blocks else torch.stack(parts).sum(0)
        if one is not None and self.bias:
            made = made + one * state[self.bias]
        if base.shape == made.shape:
            made = made + base
        out = call.out.flatten(0, -2)
        if made.shape != out.shape or float((made - out).abs().max()) > 1e-3 * float(out.abs().max()) + 1e-6:
            raise AkeError(f"{self.name}: not linear in its weights; it cannot be exchanged by function")


def _site_name(module: nn.Module, tensor: str) -> str:
    """The outermost module with a rule that holds a tensor."""
    parts = tensor.split(".")
    for k in range(1, len(parts)):
        name = ".".join(parts[:k])
        if rule_of(module.get_submodule(name)) is not None:
            return name
    raise AkeError(f"{tensor}: not in a layer of a known type")


# ---- merging ---------------------------------------------------------------------------------------------------------


@dataclass
class _Merge:
    modules: Sequence[nn.Module]
    maps: Sequence[ChannelMap]
    states: list[State]  # the working copies
    originals: list[State]
    batches: Sequence[Data]
    widths: Mapping[str, int]  # of the network to be made, by layer
    inner: bool  # outputs are embeddings, of which only inner products matter
    sites: dict[str, _Reader] = field(default_factory=dict)
    done: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # by layer: (network, unit) of every place
    picks: list[Pick] = field(default_factory=list)
    drawn: dict[int, Tensor] = field(default_factory=dict)  # which rows are looked at, of so many

    def __post_init__(self) -> None:
        first = self.maps[0]
        by_site: dict[str, list[Layer]] = {}
        for layer in first.layers:
            by_site.setdefault(_site_name(self.modules[0], layer.weights[0].name), []).append(layer)
        self.sites = {n: _Reader.of(self.modules[0], layers, n) for n, layers in by_site.items()}
        self.layer_of = [{layer.name: layer for layer in m.layers} for m in self.maps]
        self.read_by = {
            layer.name: list(dict.fromkeys(_site_name(self.modules[0], s.name) for s in layer.readers))
            for layer in first.layers
        }
        pools = [sum(m[layer.name].channels for m in self.layer_of) for layer in first.layers]
        times = max((len(site.weights) for site in self.sites.values()), default=0)  # that a reader has each channel
        self.most = max(ROWS, PER_COLUMN * times * max(pools, default=0))
        self.true = [
            [self.truth(m, s, b) for b in self.batches] for m, s in zip(self.modules, self.originals, strict=True)
        ]
        self.order = list(self.true[0][0][0])
        self.tail = self._tail(self.modules)
        heads = {x.name: first.head(x) for x in first.layers}
        self.units = {  # channels that can only move together: those of a head, and what is added to them
            x.name: math.lcm(*(heads[name] for name in x.together or (x.name,))) for x in first.layers
        }
        if any(site.attends for site in self.sites.values()):  # how many heads there are is the modules' to know
            own = {id(m): duplicate(m) for m in self.modules}
            self.modules = [own[id(m)] for m in self.modules]

    def truth(self, module: nn.Module, state: State, batch: Data) -> tuple[dict[str, _Call], Tensor]:
        """What an original network computes; inputs are kept only of attention, which is looked at before it."""
        calls, out = _run(module, state, batch, list(self.sites))
        return {n: c if self.sites[n].attends else _Call((), {}, c.out) for n, c in calls.items()}, out

    def few(self, rows: Tensor) -> Tensor:
        """Of very many rows as many as the pool needs, the same ones each time."""
        if len(rows) <= self.most:
            return rows
        if len(rows) not in self.drawn:
            some = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
            self.drawn[len(rows)] = some[: self.most].to(rows.device)
        return rows[self.drawn[len(rows)]]

    # -- what is where

    def start(self, network: int, layer: str, slot: Slot) -> int:
        """Where the columns of a layer begin in a tensor of a working copy, of which earlier ones have new widths."""
        moved: dict[int, int] = {}  # by where columns began: those that layers of a residual stream share count once
        for other in self.layer_of[network].values():
            for s in (*other.readers, *other.travels, *other.shared):
                if s.name == slot.name and s.axis == slot.axis and s.start < slot.start and other.name in self.done:
                    moved[s.start] = self.width(other.name) - s.size
        return slot.start + sum(moved.values())

    def width(self, layer: str) -> int:
        return len(self.done[layer]) * self.units[layer]

    def splice(self, network: int, layer: str, slot: Slot, rows: Tensor, size: int) -> None:
        """Put rows in the place of a layer's in one tensor of a working copy."""
        state = self.states[network]
        whole = state[slot.name]
        shape = whole.shape
        if slot.span > 1:
            whole = whole.flatten(slot.axis, slot.axis + slot.span - 1)
        begin = self.start(network, layer, slot)
        rows = rows.to(whole.dtype).movedim(0, slot.axis)
        after = whole.narrow(slot.axis, begin + size, whole.shape[slot.axis] - begin - size)
        whole = torch.cat([whole.narrow(slot.axis, 0, begin), rows, after], slot.axis)
        if slot.span > 1:
            rest = shape[slot.axis + 1 : slot.axis + slot.span]
            sizes = (-1, *rest) if is_attention(slot) else (shape[slot.axis], -1)
            whole = whole.unflatten(slot.axis, sizes)
        state[slot.name] = whole.contiguous()

    # -- steps

    def run(self) -> State:
        for name in self.order:
            site = self.sites[name]
            if any(layer.output for layer in site.layers):
                self.finish(site)
            else:
                self.hidden(site)
        return self.states[0]

    def hidden(self, site: _Reader) -> None:
        """One hidden layer: reconstruct the pool from what was picked before it, then pick."""
        raw = not any(site.name in readers for layer, readers in self.read_by.items() if layer in self.done)
        for layer in site.layers:
            if layer.name not in self.done:
                if not raw:
                    self.reconstruct_pool(site, layer)
                self.pick(layer)
            elif not raw:
                self.reconstruct_picked(site, layer)

    def reconstruct_pool(self, site: _Reader, layer: Layer) -> None:
        """Every network's own channels of this layer, from the shared layers before it."""
        counts = [self.layer_of[v][layer.name].channels for v in range(len(self.states))]
        solved = self.solve(site, layer, [(v, k) for v, n in enumerate(counts) for k in range(n)])
        for v, weights in enumerate(zip(*(w.split(counts, dim=1) for w in solved), strict=True)):
            self.write(site, layer, list(weights), [v], counts[v])

    def reconstruct_picked(self, site: _Reader, layer: Layer) -> None:
        """The picked channels of a later layer of a residual stream, in all copies at once."""
        unit = self.units[layer.name]
        members = [(v, u * unit + k) for v, u in self.done[layer.name] for k in range(unit)]
        weights = self.solve(site, layer, members)
        self.write(site, layer, weights, range(len(self.states)), len(members))

    def solve(self, site: _Reader, layer: Layer, members: Sequence[tuple[int, int]]) -> list[Tensor]:
        """Weights and bias by which the present input gives the original outputs of some channels."""
        equations = Equations()
        where = site.layers.index(layer)
        for b, batch in enumerate(self.batches):
            call = _run(self.modules[0], self.states[0], batch, [site.name])[0][site.name]
            columns, one, base = site.columns(self.modules[0], self.states[0], call)
            truth = [self.few(self.output(site, layer, v, b)) for v in range(len(self.states))]
            targets = torch.stack([truth[v][:, k] for v, k in members], 1)
            if base.shape[1] == targets.shape[1]:
                targets = targets - self.few(base)  # what a residual layer passes on as it is
            if site.blocks:
                columns = [columns[where]]
            equations.add(self.few(torch.cat([*columns, *([one] if one is not None else [])], 1)), targets)
        free = [one] if one is not None else []
        weights = equations.solve(limit=self.limit(layer), free=len(free))
        return list(weights.split([c.shape[1] for c in (*columns, *free)]))

    def limit(self, layer: Layer) -> float:
        """What the weights by which a layer reads may come to."""
        return LARGEST * max(float(s[slot.name].abs().amax()) for s in self.originals for slot in layer.inputs)

    def output(self, site: _Reader, layer: Layer, network: int, batch: int) -> Tensor:
        """What a layer of an original network gave; of attention, what enters it."""
        call = self.true[network][batch][0][site.name]
        mine = self.layer_of[network][layer.name]
        if site.attends:
            return call.input @ self.originals[network][mine.weights[0].name].t()  # type: ignore[no-any-return]
        out = call.out.flatten(0, -2)
        if site.blocks:
            begin = sum(self.layer_of[network][x.name].channels for x in site.layers[: site.layers.index(layer)])
            return out[:, begin : begin + mine.channels]
        return out

    def write(self, site: _Reader, layer: Layer, weights: list[Tensor], networks: Sequence[int], size: int) -> None:
        """Put solved weights ``[I, O]`` (and bias) where they belong."""
        inputs = layer.inputs
        for v in networks:
            state = self.states[v]
            for slot, w in zip(inputs, weights[: len(inputs)], strict=True):
                like = state[slot.name]
                state[slot.name] = (w.t() if slot.axis == 1 else w).to(like.dtype).contiguous()
            if site.bias and len(weights) > len(inputs):
                slot = next(s for s in self.layer_of[v][layer.name].travels if s.name == site.bias)
                self.splice(v, layer.name, slot, weights[-1].flatten(), size)

    def pick(self, layer: Layer) -> None:
        """Choose among the channels of all networks, and give every working copy the chosen ones."""
        together = layer.together or (layer.name,)
        unit = self.units[layer.name]
        counts = [self.layer_of[v][layer.name].channels // unit for v in range(len(self.states))]
        readers = list(dict.fromkeys(s for name in together for s in self.read_by[name]))
        if not readers:
            raise AkeError(f"{layer.name}: nothing reads it; it cannot be exchanged by function")
        for name in readers:
            if name not in self.sites:
                raise AkeError(f"{name}: reads {layer.name} in a way that cannot be exchanged by function")
        equations = {name: Equations() for name in readers}
        for batch in self.batches:
            calls = [_run(m, s, batch, readers)[0] for m, s in zip(self.modules, self.states, strict=True)]
            for name in readers:
                self.read(equations[name], name, together, [c[name] for c in calls], counts, unit)
        free = {name for name in readers if self.sites[name].bias and not self.sites[name].attends}
        settled = [e.without_last() if name in free else e for name, e in equations.items()]
        chosen = greedy(settled, sum(counts), self.widths[layer.name] // unit)
        owners = [(v, u) for v, n in enumerate(counts) for u in range(n)]
        members = [owners[k] for k in chosen]
        places = sorted(range(len(members)), key=lambda k: members[k])  # in the order of the pool
        for name in together:
            for place, k in enumerate(places):
                self.picks.append(Pick(name, k, members[k][0], members[k][1] * unit, place * unit))
        self.take(together, [members[k] for k in places], unit)

    def read(
        self, equations: Equations, name: str, together: Sequence[str], calls: list[_Call], counts: list[int], unit: int
    ) -> None:
        """What one reader reads off every channel of the pool, and what it makes of it in each network."""
        reader = self.sites[name]
        found, targets = [], []
        final = any(layer.output for layer in reader.layers)
        for v, call in enumerate(calls):
            columns, one, _ = reader.columns(self.modules[v], self.states[v], call)
            each, made = [], None
            for slot, c in zip(reader.weights, columns, strict=True):
                place = self.place(v, together, slot)
                if place is None:
                    continue
                part = c[:, place : place + counts[v] * unit]
                part = self.few(self.tail(part, v) if final and not reader.attends else part)
                weight = self.states[v][slot.name]
                weight = (weight if slot.axis == 1 else weight.t())[:, place : place + counts[v] * unit]
                each.append(part)
                made = part @ weight.t() if made is None or reader.blocks else made + part @ weight.t()
                if reader.blocks:
                    targets.append(made)
            # The columns of a unit lie next to each other, whichever weight reads them.
            stacked = torch.stack([e.view(len(e), counts[v], unit) for e in each], -1).flatten(1)
            found.append(stacked)
            if not reader.blocks and made is not None:
                targets.append(made)
        if final and not self.inner and not reader.blocks and len({t.shape for t in targets}) == 1:
            targets = [torch.stack(targets).mean(0)]  # with other numbers of output heads, what all of them make of it
        columns_, target = torch.cat(found, 1), torch.cat(targets, 1)
        if one is not None:  # a bias costs nothing; see pick
            columns_ = torch.cat([columns_, self.few(self.tail(one, 0) if final else one)], 1)
        equations.add(columns_, target)

    def place(self, network: int, together: Sequence[str], slot: Slot) -> int | None:
        for name in together:
            for s in self.layer_of[network][name].readers:
                if s.name == slot.name and s.axis == slot.axis:
                    return self.start(network, name, s)
        return None

    def moving(self, network: int, together: Sequence[str]) -> list[tuple[str, Slot]]:
        """What goes where the channels of a group of layers go, by layer; norms of their sum once for all."""
        layers = [self.layer_of[network][name] for name in together]
        norms = {s.name: (x.name, s) for x in layers for s in x.shared}
        return [*((x.name, s) for x in layers for s in (*x.weights, *x.travels)), *norms.values()]

    def take(self, together: Sequence[str], members: list[tuple[int, int]], unit: int) -> None:
        """Give the layers of a group the chosen channels, in every working copy; who reads them is settled later."""
        rows: dict[tuple[str, str], Tensor] = {}
        index = [(v, u * unit + k) for v, u in members for k in range(unit)]
        moving = [self.moving(v, together) for v in range(len(self.states))]
        for name, slot in moving[0]:
            each = []
            for v in range(len(self.states)):
                own = next(s for n, s in moving[v] if (n, s.name, s.axis) == (name, slot.name, slot.axis))
                whole = self.states[v][own.name]
                if own.span > 1:
                    whole = whole.flatten(own.axis, own.axis + own.span - 1)
                each.append(whole.movedim(own.axis, 0)[self.start(v, name, own) :])
            rows[name, slot.name] = torch.stack([each[v][k] for v, k in index])
        sizes = [{name: self.layer_of[v][name].channels for name in together} for v in range(len(self.states))]
        readers = {s.name: s for name in together for s in self.layer_of[0][name].readers}
        for v in range(len(self.states)):
            for name, slot in moving[v]:
                self.splice(v, name, slot, rows[name, slot.name], sizes[v][name])
            for tensor in readers:
                name, slot = next((n, s) for n in together for s in self.layer_of[v][n].readers if s.name == tensor)
                shape = list(self.states[v][tensor].movedim(slot.axis, 0).shape)
                blank = self.states[v][tensor].new_zeros(len(index), *shape[1:])
                self.splice(v, name, slot, blank, slot.size)
        self.done |= dict.fromkeys(together, members)
        for site in {_site_name(self.modules[0], self.layer_of[0][name].weights[0].name) for name in together}:
            if self.sites[site].attends:
                size = max(self.maps[0].head(x) for x in self.sites[site].layers)
                for module in self.modules:
                    module.get_submodule(site).heads = len(index) // size  # type: ignore[assignment]

    # -- the end

    def _tail(self, modules: Sequence[nn.Module]) -> Callable[[Tensor, int], Tensor]:
        """What happens to columns between the last layer and the output, where that is linear (APPNP); else nothing."""
        last = next((s.name for s in self.sites.values() if any(x.output for x in s.layers)), None)
        if last is None:
            raise AkeError("model: no layer gives its outputs; it cannot be exchanged by function")

        def tail(columns: Tensor, network: int) -> Tensor:
            return torch.cat(
                [
                    _run(modules[network], self.originals[network], batch, [last], {last: part})[1]
                    for batch, part in zip(self._current, columns.split(self._rows), strict=True)
                ]
            )

        outs = [self.true[0][b][0][last].out for b in range(len(self.batches))]
        finals = [self.true[0][b][1] for b in range(len(self.batches))]
        if all(o.shape == f.shape and torch.equal(o, f) for o, f in zip(outs, finals, strict=True)):
            return lambda columns, network: columns
        self._current, self._rows = self.batches, [len(o) for o in outs]
        whole = torch.cat(outs)
        try:
            twice, once = tail(3.0 * whole, 0), tail(whole, 0)
        except RuntimeError:
            return lambda columns, network: columns
        linear = torch.allclose(twice, 3.0 * once, rtol=1e-3, atol=1e-4 * float(once.abs().max()))
        if not linear or len(self.batches) > 1:
            return lambda columns, network: columns
        return tail

    def finish(self, site: _Reader) -> None:
        """The output layer: reconstruct the ensemble."""
        (layer,) = site.layers[:1]
        raw = not any(site.name in readers for name, readers in self.read_by.items() if name in self.done)
        if site.attends:
            self.finish_attention(site, layer)
        elif raw and not self.inner:  # linear in its weights: their mean is the ensemble
            for slot in (*layer.weights, *layer.travels):
                mean = torch.stack([s[slot.name] for s in self.states]).mean(0)
                for state in self.states:
                    state[slot.name] = mean.clone()
        else:
            equations = Equations()
            targets = self.ensemble(site)
            for b, batch in enumerate(self.batches):
                call = _run(self.modules[0], self.states[0], batch, [site.name])[0][site.name]
                columns, one, base = site.columns(self.modules[0], self.states[0], call)
                every = self.tail(torch.cat([*columns, *([one] if one is not None else [])], 1), 0)
                equations.add(every, targets[b] - (self.tail(base, 0) if base.shape == targets[b].shape else 0.0))
            sizes = [c.shape[1] for c in columns] + ([1] if one is not None else [])
            weights = list(equations.solve(limit=self.limit(layer), free=int(one is not None)).split(sizes))
            self.write(site, layer, weights, range(len(self.states)), layer.channels)

    def ensemble(self, site: _Reader) -> list[Tensor]:
        """The outputs to be reconstructed: the networks' mean.

        Embeddings of which only inner products matter have no common axes: side by side they have the mean of the inner
        products, and their principal axes keep most of it.
        """
        final = [
            [self.tail(call[0][site.name].out.flatten(0, -2), v).double() for call in self.true[v]]
            for v in range(len(self.states))
        ]
        if not self.inner:
            return [torch.stack(outs).mean(0) for outs in zip(*final, strict=True)]
        beside = [torch.cat(outs, 1) / len(final) ** 0.5 for outs in zip(*final, strict=True)]
        _, vectors = torch.linalg.eigh(sum(b.mT @ b for b in beside))  # type: ignore[arg-type]
        (layer,) = site.layers[:1]
        size = self.units[layer.name] if site.attends else layer.channels
        return [b @ vectors[:, -size:].flip(1) for b in beside]

    def finish_attention(self, site: _Reader, layer: Layer) -> None:
        """Heads of the output layer: those that together, each turned by a matrix, give the ensemble.

        A head keeps its attention when its outputs are turned by ``M`` and its attention vectors by the inverse.
        """
        module = duplicate(self.modules[0].get_submodule(site.name))
        module.concat = True  # type: ignore[assignment]
        cut, width = len(site.name) + 1, self.units[layer.name]
        heads = self.widths[layer.name] // width
        targets = self.ensemble(site)
        groups: list[list[tuple[Tensor, dict[str, Tensor]]]] = []
        for v in range(len(self.states)):
            mine = self.layer_of[v][layer.name]
            weights = self.solve(site, layer, [(v, k) for k in range(mine.channels)])
            weight = weights[0].t().view(-1, width, weights[0].shape[0])  # [H, O, I]
            own = {n[cut:]: t for n, t in self.originals[v].items() if n.startswith(site.name + ".")}
            vectors = {n: own[n].double() for n in own if n.startswith("att")}  # [1, H, O]
            groups.append([(weight[h], {n: t[0, h] for n, t in vectors.items()}) for h in range(len(weight))])
        owners = [(v, h) for v, own in enumerate(groups) for h in range(len(own))]
        pool = [head for own in groups for head in own]
        if heads == 1:
            pool.append(self._mean_head(site, pool))
            groups.append(pool[-1:])
        equations, bias = Equations(), f"{site.name}.bias"
        biased = bias in self.states[0]
        for b, batch in enumerate(self.batches):
            call = _run(self.modules[0], self.states[0], batch, [site.name])[0][site.name]
            columns = []
            for some in groups:
                module.heads = len(some)  # type: ignore[assignment]
                like = self.states[0][layer.weights[0].name]
                given = {layer.weights[0].name[cut:]: torch.cat([w for w, _ in some]).to(like.dtype)}
                given |= {n: torch.stack([a[n] for _, a in some])[None].to(like.dtype) for n in some[0][1]}
                if biased:
                    given["bias"] = like.new_zeros(width * len(some))
                columns.append(functional_call(module, given, call.args, call.kwargs))
            if biased:
                columns.append(torch.ones_like(columns[0][:, :1]))
            equations.add(self.tail(torch.cat(columns, 1), 0), targets[b])
        chosen = greedy([equations], len(pool), heads, free=int(biased))
        span = torch.tensor([c * width + k for c in chosen for k in range(width)] + [len(pool) * width] * biased)
        turn = equations.solve(span.to(targets[0].device))  # [H * O + 1, O]
        turned: list[Tensor] = []
        attention: dict[str, list[Tensor]] = {n: [] for n in pool[0][1]}
        for place, c in enumerate(chosen):
            m = turn[place * width : (place + 1) * width] * heads  # [O, O]; several are averaged
            turned.append(m.t() @ pool[c][0])
            for n, a in pool[c][1].items():
                attention[n].append(torch.linalg.pinv(m) @ a)
        for state in self.states:
            name = layer.weights[0].name
            state[name] = torch.cat(turned).to(state[name].dtype)
            for n, each in attention.items():
                full = f"{site.name}.{n}"
                state[full] = torch.stack(each)[None].to(state[full].dtype)
            if biased:
                state[bias] = turn[-1].to(state[bias].dtype)
        for whole in self.modules:
            last = whole.get_submodule(site.name)
            last.heads, last.concat = heads, heads == 1  # type: ignore[assignment]
        self.picks += [
            Pick(layer.name, k, owners[c][0], owners[c][1] * width, k * width)
            for k, c in enumerate(chosen)
            if c < len(owners)
        ]

    def _mean_head(
        self, site: _Reader, pool: list[tuple[Tensor, dict[str, Tensor]]]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean of single heads: of what enters their attention, and of what it weighs by."""
        weight = torch.stack([w for w, _ in pool]).mean(0)
        found = {}
        for n in pool[0][1]:
            equations = Equations()
            for batch in self.batches:
                call = _run(self.modules[0], self.states[0], batch, [site.name])[0][site.name]
                x = call.input.double()
                scores = torch.stack([x @ w.t() @ a[n] for w, a in pool]).mean(0)
                equations.add(x @ weight.t(), scores[:, None])
            found[n] = equations.solve()[:, 0]
        return weight, found


@torch.no_grad()
def merge(
    modules: Sequence[nn.Module],
    states: Sequence[Mapping[str, Tensor]],
    maps: Sequence[ChannelMap],
    batches: Sequence[Data],
    target: ChannelMap | None = None,
    inner: bool = False,
    made: nn.Module | None = None,
) -> tuple[State, list[Pick]]:
    """One network's tensors that compute what several networks compute on average.

    Args:
        modules: the networks, of one architecture but for the widths of their hidden layers (one module may serve all
            that have the same); in evaluation mode.
        states: their tensors by name.
        maps: their channel maps.
        batches: graphs to look at what channels compute; no labels are used.
        target: the channel map of the network to be made, where its widths are others than the first's.
        inner: whether outputs are embeddings that are compared by inner products.
        made: the network to be made, where it is not one of the modules; it is not changed.
    """
    for module, m, state in zip(modules, maps, states, strict=True):  # other buffers may be anything, as masks are
        moved = {slot.name for x in m.layers for slot in (*x.weights, *x.travels, *x.readers)}
        moved |= {name for name, _ in module.named_parameters()}
        check_finite(state, (name for name in state if name in moved))
        names: dict[int, str] = {}
        for name, p in module.named_parameters(remove_duplicate=False):
            if (first := names.setdefault(id(p), name)) != name:
                raise AkeError(f"{first}, {name}: are one parameter; they cannot be exchanged by function")
    wanted = {x.name: x.channels for x in (target or maps[0]).layers}
    pool = dict.fromkeys(wanted, 0)
    for m in maps:
        if {x.name for x in m.layers} != set(wanted):
            raise AkeError("strategy 'functional': the networks do not have the same layers")
        for x in m.layers:
            pool[x.name] += x.channels
    for name, channels in wanted.items():
        if channels > pool[name]:
            raise AkeError(f"{name}: {channels} channels wanted, all networks together have {pool[name]}")
    # Half precision is too coarse for least squares, and all must have one.
    every = {v.dtype for state in states for v in state.values() if v.is_floating_point()}
    wide = torch.float64 if torch.float64 in every else torch.float32
    given = {name: v.dtype for name, v in states[0].items()}
    states = [{n: v.to(wide) if v.is_floating_point() else v for n, v in state.items()} for state in states]
    batches = [cast(batch, wide) for batch in batches]
    _check([*modules, *([made] if made is not None else [])], states, maps, batches, target or maps[0])
    copies: list[State] = [dict(s) for s in states]
    try:
        work = _Merge(modules, maps, copies, [dict(s) for s in states], batches, wanted, inner)
        found = work.run()
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, AssertionError, StopIteration) as e:
        line = str(e).splitlines()[0] if str(e) else ""
        raise AkeError(f"the networks cannot be exchanged by function ({type(e).__name__}: {line})") from e
    shapes = (target or maps[0]).shapes
    for name in [n for n in found if n in shapes and tuple(found[n].shape) != shapes[n]]:
        if name in maps[0].stays and not _matters(modules[0], states[0], batches[0], name):
            del found[name]  # of no use to the outputs: the network that is made has its own
        else:
            raise AkeError(f"{name}: cannot be brought to the shape {shapes[name]} by function")
    if made is not None:
        _same_function(work, duplicate(made).eval(), found, wide)
    return {name: v.to(given[name]) for name, v in found.items()}, work.picks


def _same_function(work: _Merge, made: nn.Module, state: State, wide: torch.dtype) -> None:
    """Whether the network that is made computes what its working copy does: code may look at widths and heads, too."""
    own = {n: v.to(wide) if v.is_floating_point() else v for n, v in made.state_dict().items()}
    batch = work.batches[0]
    want = _run(work.modules[0], work.states[0], batch, [])[1]
    try:
        got = _run(made, {**own, **state}, batch, [])[1]
        same = got.shape == want.shape and float((got - want).abs().max()) <= 1e-3 * float(want.abs().max()) + 1e-6
    except (RuntimeError, ValueError, IndexError):
        same = False
    if not same:
        raise AkeError(
            "model: with other numbers of channels or heads it computes something else, not only with other weights; "
            "it cannot be exchanged by function"
        )


def _check(
    modules: Sequence[nn.Module],
    states: Sequence[Mapping[str, Tensor]],
    maps: Sequence[ChannelMap],
    batches: Sequence[Data],
    target: ChannelMap,
) -> None:
    """Refuse what would come out wrong."""
    for layer in maps[0].layers:
        every = [next(x for x in m.layers if x.name == layer.name) for m in (*maps, target)]
        each = {x.channels for x in every[:-1]}
        if layer.together and len(each) > 1:
            raise AkeError(
                f"{layer.name}: added to other layers, so it must be as wide in all networks that are merged; "
                f"they have {' and '.join(map(str, sorted(each)))} channels"
            )
        heads = {m.head(x) for m, x in zip((*maps, target), every, strict=True)}
        attends = any(map(is_attention, layer.travels))
        if layer.output and len(heads if attends else {x.channels for x in every}) > 1:
            raise AkeError(f"{layer.name}: the networks do not give the same outputs")
        site = _site_name(modules[0], layer.weights[0].name)
        rule = rule_of(modules[0].get_submodule(site))
        for inner in (m.get_submodule(site) for m in modules if rule is not None and "att" in "".join(rule.travels)):
            if int(getattr(inner, "heads", 1)) > 1 and getattr(inner, "concat", True) is layer.output:
                how = "outputs of heads side by side" if layer.output else "the mean of heads within a network"
                raise AkeError(f"{site}: {how} cannot be exchanged by function")
        for slot in (s for s in (*layer.travels, *layer.shared) if layer.output and not s.name.startswith(f"{site}.")):
            if any(not torch.equal(s[slot.name], states[0][slot.name]) for s in states):  # as BatchNorm's would
                raise AkeError(f"{slot.name}: differs after the output layer; it cannot be exchanged by function")
        if len(heads) > 1:
            told = " and ".join(map(str, sorted(heads)))
            raise AkeError(f"{layer.name}: heads of {told} channels; by function all heads must be as wide")
    for name, why in maps[0].stays.items():
        if name in states[0] and states[0][name].dim() > 1 and _matters(modules[0], states[0], batches[0], name):
            raise AkeError(f"{name}: cannot be exchanged by function ({why})")


def _matters(module: nn.Module, state: Mapping[str, Tensor], batch: Data, name: str) -> bool:
    """Whether a tensor has a part in the outputs."""
    if not state[name].is_floating_point():
        return False
    try:
        out = _run(module, {**state, name: torch.full_like(state[name], torch.nan)}, batch, [])[1]
    except (RuntimeError, ValueError, IndexError):
        return True
    return bool(out.isnan().any())
