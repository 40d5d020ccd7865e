"""The channel map: which tensors of a model make up its channels, found by layer type and proven by permutation.

Three steps. :data:`RULES` declares, as data, what a channel is in each type of layer. *Tracing* finds out who reads a
channel: one output column is set to NaN, and wherever the NaN turns up that column arrived. *Proof*: permuting a
layer's channels together with all that travels with them and all that reads them must not change the model's output;
a layer that fails is left out, and :func:`explain` says so.
"""

from __future__ import annotations

import copy
import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

from .errors import AkeError
from .forward import check_built, duplicate, forward

# ---- what a map is made of -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slot:
    """Where channels lie in a tensor: ``size`` entries from ``start`` along ``axis`` (``span`` axes taken as one)."""

    name: str
    axis: int
    size: int
    start: int = 0
    span: int = 1

    def rows(self, stack: Tensor, lead: int = 2) -> Tensor:
        """View of ``[*lead, *shape]`` with this slot's channels as the first dimension after the leading ones."""
        axis = lead + self.axis
        if self.span > 1:
            stack = stack.flatten(axis, axis + self.span - 1)
        return stack.narrow(axis, self.start, self.size).movedim(axis, lead)


@dataclass(frozen=True)
class Layer:
    """One layer's channels: the weights that produce them, what travels with them, who reads them."""

    name: str
    channels: int
    weights: tuple[Slot, ...]
    inputs: tuple[Slot, ...] = ()  # the same weights along their input axis
    travels: tuple[Slot, ...] = ()
    readers: tuple[Slot, ...] = ()  # input axes of the layers that read the channels
    output: bool = False  # its channels are the model's outputs
    tied: str | None = None  # why its neurons cannot be moved whole
    together: tuple[str, ...] = ()  # layers whose channels lie in the same places: a residual stream
    shared: tuple[Slot, ...] = ()  # entries of norms of their sum: no layer's own, they move only where all of them do


def is_attention(slot: Slot) -> bool:
    """Whether these are vectors by which a head weighs its neighbours."""
    return slot.name.rpartition(".")[2].startswith("att")


@dataclass(frozen=True)
class ChannelMap:
    """A model's layers, and for every tensor that is not exchanged the reason."""

    layers: tuple[Layer, ...]
    stays: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]

    def chosen(self, layers: str = "all") -> tuple[Layer, ...]:
        """The layers that take part: ``all`` (as the paper writes) or only the ``hidden`` ones."""
        if layers not in ("all", "hidden"):
            raise AkeError(f"layers: {layers!r} is not one of all, hidden")
        chosen = tuple(x for x in self.layers if layers == "all" or not x.output)
        if not any(x.channels > 1 for x in chosen):
            reasons = "; ".join(f"{name}: {why}" for name, why in list(self.stays.items())[:3])
            raise AkeError(
                f"nothing can be exchanged: no {'hidden ' * (layers == 'hidden')}layer has channels to give "
                f"({reasons or 'no weights'})"
            )
        return chosen

    def head(self, layer: Layer) -> int:
        """How many channels of a layer have one attention and can only move together; one where there is none."""
        vectors = next(filter(is_attention, layer.travels), None)
        if vectors is None:
            return 1
        return self.shapes[vectors.name][vectors.axis + vectors.span - 1] if vectors.span > 1 else layer.channels

    def whole_neurons(self, layers: Iterable[Layer]) -> tuple[Layer, ...]:
        """Those of ``layers`` whose channels can move together with their outgoing weights."""
        whole = tuple(x for x in layers if x.tied is None and not x.output)
        if not whole:
            why = "; ".join(f"{x.name}: {x.tied or 'its channels are the outputs'}" for x in self.layers[:3])
            raise AkeError(f"strategy 'neuron': no layer's neurons can be moved whole ({why})")
        return whole

    def explain(self) -> Explanation:
        """Every tensor with its part in the exchange."""
        rows = []
        for name, shape in self.shapes.items():
            part, layer, why = "stays", "", self.stays.get(name, "not part of a known layer")
            for x in self.layers:
                if any(s.name == name for s in x.weights):
                    notes = ["its channels are the model's outputs"] if x.output else []
                    notes += [f"neurons cannot move whole: {x.tied}"] if x.tied and not x.output else []
                    notes += ["a single channel, skipped"] if x.channels < 2 else []
                    part, layer, why = "channels", x.name, "; ".join([f"{x.channels} channels, proven", *notes])
                elif any(s.name == name for s in x.travels):
                    part, layer, why = "travels", x.name, f"one entry per channel of {x.name}"
            rows.append(Row(name, shape, part, layer, why))
        return Explanation(tuple(rows))


@dataclass(frozen=True)
class Row:
    """One line of :func:`explain`."""

    tensor: str
    shape: tuple[int, ...]
    part: str  # channels, travels or stays
    layer: str
    why: str


@dataclass(frozen=True)
class Explanation:
    """What takes part in an exchange and what does not; ``print`` it, or read ``rows``."""

    rows: tuple[Row, ...]

    def __str__(self) -> str:
        table = [("tensor", "shape", "part", "layer", "why")]
        table += [(r.tensor, "x".join(map(str, r.shape)) or "scalar", r.part, r.layer, r.why) for r in self.rows]
        widths = [max(len(line[k]) for line in table) for k in range(4)]
        lines = [
            "  ".join([*(cell.ljust(w) for cell, w in zip(line, widths, strict=False)), line[4]]) for line in table
        ]
        return "\n".join(line.rstrip() for line in lines)


# ---- what a channel is, by type of layer -----------------------------------------------------------------------------


_PATTERN = re.compile(r"(?P<name>[^@]+)@(?P<axis>\d+)(:(?P<end>\d+))?")


@dataclass(frozen=True)
class Rule:
    """A type of layer as data. Tensors are written ``name@axis``, or ``name@axis:end`` for several axes taken as one.

    ``weights`` along their output axis produce the channel, side by side; ``travels`` go with it. A rule without
    weights is a *norm* (keeps columns apart; its entries travel with the channels it norms) or only a reader.
    """

    weights: tuple[str, ...] = ()
    travels: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()  # input axes, where there are no weights of its own to tell
    norm: bool = False
    blocks: bool = False  # each weight is a block of outputs of its own
    passes: bool = False  # inputs also reach the output as they are, column by column

    def __post_init__(self) -> None:
        for pattern in (*self.weights, *self.travels, *self.reads):
            found = _PATTERN.fullmatch(pattern)
            if found is None or (found["end"] and int(found["end"]) <= int(found["axis"])):
                raise AkeError(f"Rule: {pattern!r} must be name@axis or name@axis:end, with axes from 0 on")


_GAT = ("att_src@1:3", "att_dst@1:3", "att_edge@1:3", "att@1:3", "lin_edge.weight@0", "bias@0")
_NORM = Rule(travels=("*@0",), norm=True)

RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: Rule(("weight@0",), ("bias@0",)),
    pyg.Linear: Rule(("weight@0",), ("bias@0",)),
    pyg.GCNConv: Rule(("lin.weight@0",), ("bias@0",)),
    pyg.GraphConv: Rule(("lin_rel.weight@0", "lin_root.weight@0"), ("lin_rel.bias@0",)),
    pyg.SAGEConv: Rule(("lin_l.weight@0", "lin_r.weight@0"), ("lin_l.bias@0",)),
    pyg.GATConv: Rule(("lin.weight@0", "lin_src.weight@0", "lin_dst.weight@0", "res.weight@0"), _GAT),
    pyg.GATv2Conv: Rule(("lin_l.weight@0", "lin_r.weight@0", "res.weight@0"), ("lin_l.bias@0", "lin_r.bias@0", *_GAT)),
    pyg.GCN2Conv: Rule(("weight1@1", "weight2@1"), passes=True),
    pyg.SGConv: Rule(("lin.weight@0",), ("lin.bias@0",)),
    pyg.TAGConv: Rule(("lins.*.weight@0",), ("bias@0",)),
    pyg.ChebConv: Rule(("lins.*.weight@0",), ("bias@0",)),
    pyg.MixHopConv: Rule(("lins.*.weight@0",), ("bias@0",), blocks=True),
    nn.LSTM: Rule(reads=("weight_ih_*@1",)),  # jumping knowledge by LSTM
    nn.PReLU: _NORM,
    nn.modules.batchnorm._BatchNorm: _NORM,
    nn.LayerNorm: _NORM,
    nn.GroupNorm: _NORM,
    pyg.BatchNorm: _NORM,
    pyg.LayerNorm: _NORM,
    pyg.InstanceNorm: _NORM,
    pyg.GraphNorm: _NORM,
    pyg.PairNorm: _NORM,
    pyg.MeanSubtractionNorm: _NORM,
    pyg.GraphSizeNorm: _NORM,
}


def rule_of(module: nn.Module) -> Rule | None:
    """The rule of the module's type or of the nearest type it derives from."""
    return next((RULES[t] for t in type(module).__mro__ if t in RULES), None)


# ---- discovery -------------------------------------------------------------------------------------------------------


@dataclass
class _Site:
    """A module with a rule, as found in a model: its channels before anything is known of its surroundings."""

    name: str
    module: nn.Module
    rule: Rule
    weights: list[Slot]
    inputs: list[Slot]  # input axes of the weights
    travels: list[Slot]
    shared: list[Slot]  # one entry for several channels (GAT without concatenation): permuted in the proof, never moved
    reads: list[Slot] = field(default_factory=list)  # all input axes, those of shared weights too
    heads: int = 1
    calls: list[Any] = field(default_factory=list)  # outputs of a clean run

    @property
    def in_size(self) -> int:
        return self.reads[0].size if self.reads else -1


@dataclass
class _Traced:
    """A layer with what tracing found: the sites and offsets at which its columns arrive."""

    layer: Layer
    site: _Site
    outputs: int  # columns; fewer than channels where several heads share one
    start: int  # first column in the site's output
    shared: tuple[Slot, ...]
    arrives: dict[str, int] = field(default_factory=dict)  # site name (or "" for the model's output) -> offset
    problem: str | None = None


def channel_map(
    model: nn.Module, data: Data | None = None, override: Mapping[str, Layer | None] | None = None
) -> ChannelMap:
    """Find and prove a model's channel map.

    Args:
        model: any module made of ``Linear`` and PyG layers; it is not changed.
        data: a graph the model can run on. Without it a small random graph is tried.
        override: by layer name, ``None`` to leave a layer out, or a :class:`Layer` to use as it is.
    """
    if not isinstance(model, nn.Module):
        raise AkeError(f"model: must be a torch.nn.Module, is {'a class' if isinstance(model, type) else repr(model)}")
    model = generic_copy(model)
    tensors = dict(_named_tensors(model))
    sites = list(_find_sites(model, tensors))
    data, reference = tried(model, data)
    traced = [t for site in sites for t in _layers_of(site)]
    _trace(model, data, sites, traced)
    stays = _reasons_to_stay(sites, tensors)
    layers: list[Layer] = []
    for group in _tied_groups(traced):
        layers += _prove(model, data, reference, group, {s.name: s for s in sites}, stays)
    order = {t.layer.name: k for k, t in enumerate(traced)}
    layers = sorted(layers, key=lambda x: order[x.name])
    for name, replacement in (override or {}).items():
        if replacement is None and not any(n == name or n.startswith(name + ".") for n in tensors):
            raise AkeError(f"override: the model has no layer {name!r}")
        layers = [x for x in layers if x.name != name and not x.name.startswith(name + ".")]
        if replacement is None:
            stays |= {n: "left out by you" for n in tensors if n.startswith(name + ".") or n == name}
        else:
            layers.append(replacement)
    used = {s.name for x in layers for s in (*x.weights, *x.travels)}
    shapes = {n: tuple(tensors[n].shape) for n in model.state_dict() if n in tensors}
    return ChannelMap(tuple(layers), {n: w for n, w in stays.items() if n not in used}, shapes)


@torch.no_grad()
def tried(model: nn.Module, given: Data | None) -> tuple[Data, Tensor]:
    """A graph that the model runs on, and its output: a small one, or one as large as the given one."""
    small = small_graph(model, given)
    try:
        return small, _run(model, small)
    except AkeError as e:
        raise AkeError(f"{e}; pass data= (--data)") if given is None and "needs" in str(e) else e from None
    except Exception as e:
        if given is not None:
            with suppress(Exception):  # some belong to one graph, as those with an embedding for each of its nodes
                large = _large_graph(given)
                return large, _run(model, large)
        width = small.x.shape[-1] if isinstance(small.get("x"), Tensor) else 0
        hint = "; pass data= (--data)" if given is None else f"; the graph has {width} features" if width else ""
        raise AkeError(
            f"{type(model).__name__}: could not be run on a small graph to find its channels "
            f"({type(e).__name__}: {str(e).splitlines()[0] if str(e) else 'no message'}){hint}"
        ) from e


def check_finite(tensors: Mapping[str, Tensor], names: Iterable[str]) -> None:
    """A NaN or an infinity would make every comparison meaningless."""
    for name in names:
        if not bool(torch.isfinite(tensors[name]).all()):
            raise AkeError(f"{name}: weights must be finite to be exchanged, found NaN or infinity")


def explain(
    model: nn.Module, data: Data | None = None, override: Mapping[str, Layer | None] | None = None
) -> Explanation:
    """Which tensors of ``model`` take part in an exchange, which do not, and why."""
    return channel_map(model, data, override).explain()


def _run(model: nn.Module, data: Data) -> Tensor:
    """The model's output with its columns last; one number per node or edge is one column."""
    out = forward(model, data)
    return out if out.dim() > 1 else out.reshape(-1, 1)


def _named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from ((n, b) for n, b in model.named_buffers() if b is not None)


def generic_copy(model: nn.Module, seed: int = 0) -> nn.Module:
    """A float64 copy in evaluation mode whose every entry is different, so that no symmetry of fresh weights
    (zero biases, unit norms) can make a wrong permutation look right."""
    check_built(model)
    # A caching layer must neither bring its own graph along nor remember a run on the small one.
    model = duplicate(model).cpu().double().eval()
    for module in model.modules():
        if getattr(module, "cached", False) is True:
            module.cached = False  # type: ignore[assignment]
    g = torch.Generator().manual_seed(seed)
    for _, t in _named_tensors(model):
        if t.is_floating_point():  # weights of either sign and moderate size, so that no activation dies or saturates
            if t.dim() > 1:
                t.data = torch.randn(t.shape, generator=g, dtype=torch.float64) / t.shape[-1] ** 0.5
            else:
                t.data = torch.rand(t.shape, generator=g, dtype=torch.float64) + 0.5
    return model


def small_graph(model: nn.Module, like: Data | None) -> Data:
    """A dozen nodes with random features, in two graphs, with every attribute that ``like`` has."""
    g = torch.Generator().manual_seed(0)
    nodes = 12
    around = torch.stack([torch.arange(nodes), (torch.arange(nodes) + 1) % nodes])
    chords = torch.stack([torch.arange(0, nodes, 2), (torch.arange(0, nodes, 2) + 5) % nodes])
    edges = torch.cat([around, around.flip(0), chords, chords.flip(0)], dim=1)

    def noise(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g, dtype=torch.float64) + 0.5

    if like is not None and like.x is not None:
        size = like.x.shape[-1]
    else:
        size = next((s.in_size for s in _find_sites(model, dict(_named_tensors(model))) if s.in_size > 0), 0)
        if size == 0:
            raise AkeError(f"{type(model).__name__}: no layer of a known type, so nothing can be exchanged")

    def rows(value: Tensor, count: int) -> Tensor:
        if value.is_floating_point():
            return noise(count, *value.shape[1:])
        return value.cpu()[torch.randint(len(value), (count,), generator=g)]

    x = rows(like.x, nodes) if like is not None and like.x is not None else noise(nodes, size)
    small = Data(x=x, edge_index=edges, edge_weight=noise(edges.shape[1]))
    small.batch = torch.arange(nodes) // 6
    for key, value in like.items() if like is not None else ():
        if key in small or not isinstance(value, Tensor) or like is None:
            continue
        if like.is_edge_attr(key):
            small[key] = rows(value, edges.shape[1])
        elif like.is_node_attr(key):
            small[key] = rows(value, nodes)
    return small


def _large_graph(like: Data) -> Data:
    """The given graph's nodes and edges, with random numbers in place of its own."""
    g = torch.Generator().manual_seed(0)
    made = copy.copy(like).cpu()
    for key, value in like:
        if isinstance(value, Tensor) and value.is_floating_point():
            made[key] = torch.rand(value.shape, generator=g, dtype=torch.float64) + 0.5
    return made


def _find_sites(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[_Site]:
    """The outermost modules with a rule, in order of registration."""

    def walk(prefix: str, module: nn.Module) -> Iterator[_Site]:
        rule = rule_of(module)
        if rule is None:
            for name, child in module.named_children():
                yield from walk(f"{prefix}.{name}" if prefix else name, child)
            return
        heads = int(getattr(module, "heads", 1))
        site = _Site(prefix, module, rule, [], [], [], [], heads=heads)
        for slot in _slots(prefix, rule.weights, tensors, matrices=True):
            site.weights.append(slot)
            site.inputs.append(Slot(slot.name, 1 - slot.axis, tensors[slot.name].shape[1 - slot.axis]))
        site.reads = [*site.inputs, *_slots(prefix, rule.reads, tensors)]
        channels = site.weights[0].size if site.weights else None
        for slot in list(site.weights):
            if not rule.blocks and slot.size != channels:
                site.weights.remove(slot)
                site.inputs = [s for s in site.inputs if s.name != slot.name]
                site.shared.append(slot)
        for slot in _slots(prefix, rule.travels, tensors):
            if rule.norm and slot.size == 1:  # PReLU's one slope for all
                continue
            fits = rule.norm or rule.blocks or slot.size == channels
            (site.travels if fits else site.shared).append(slot)
        yield site

    yield from walk("", model)


def _slots(
    prefix: str, patterns: Iterable[str], tensors: Mapping[str, Tensor], matrices: bool = False
) -> Iterator[Slot]:
    for pattern in patterns:
        found = _PATTERN.fullmatch(pattern)
        assert found is not None
        axis = int(found["axis"])
        end = int(found["end"] or axis + 1)
        full = f"{prefix}.{found['name']}" if prefix else found["name"]
        for name in (n for n in tensors if fnmatch.fnmatchcase(n, full)):
            shape = tuple(tensors[name].shape)
            if matrices and (len(shape) != 2 or end > axis + 1 or axis > 1):
                raise AkeError(
                    f"{name}: a weight must be a matrix with its channels along axis 0 or 1; "
                    f"its rule says {pattern!r}, its shape is {shape}"
                )
            if axis < len(shape) < end:
                raise AkeError(f"{name}: its rule says {pattern!r}, but its shape is {shape}")
            if axis < len(shape):
                yield Slot(name, axis, math.prod(shape[axis:end]), 0, end - axis)


def _layers_of(site: _Site) -> Iterator[_Traced]:
    if not site.weights:
        return
    if site.rule.blocks:
        start = 0
        for slot, inputs in zip(site.weights, site.inputs, strict=True):
            travels = tuple(replace(t, start=start, size=slot.size) for t in site.travels)
            layer = Layer(slot.name.rsplit(".", 1)[0], slot.size, (slot,), (inputs,), travels)
            start += slot.size
            odd = next((t for t in site.travels if t.size < start), None)
            yield _Traced(layer, site, slot.size, start - slot.size, (), problem=_misnamed(odd, start))
        return
    channels = site.weights[0].size
    averaged = site.heads > 1 and getattr(site.module, "concat", True) is False
    outputs = channels // site.heads if averaged else channels
    name = site.name or type(site.module).__name__
    layer = Layer(name, channels, tuple(site.weights), tuple(site.inputs), tuple(site.travels))
    # Several heads may share an entry; anything else of another size is not what the rule says.
    odd = next((s for s in site.shared if s.size != outputs), None)
    yield _Traced(layer, site, outputs, 0, tuple(site.shared), problem=_misnamed(odd, outputs))


def _misnamed(slot: Slot | None, wanted: int) -> str | None:
    """Why a layer is left out, of a tensor whose rule names the wrong axis."""
    return f"{slot.name} has {slot.size} entries along axis {slot.axis}, not {wanted}" if slot else None


def _trace(model: nn.Module, data: Data, sites: list[_Site], traced: list[_Traced]) -> None:
    """Fill in where each layer's columns arrive, by running the model with one column at a time set to NaN."""
    with torch.no_grad():
        with _Hooks(sites, _remember):
            forward(model, data)
        for t in traced:
            wide = min(map(_columns, t.site.calls), default=math.inf)
            if t.problem is None and wide < t.start + t.outputs:
                w = t.layer.weights[0]
                t.problem = f"{w.name} has {w.size} channels along axis {w.axis}, but its output has {wide} columns"
            if t.problem is not None:
                continue
            first = _arrivals(model, data, sites, t, 0)
            last = _arrivals(model, data, sites, t, t.outputs - 1) if t.outputs > 1 else first
            for name, columns in first.items():
                if name == "" and len(columns) > 1:
                    t.arrives[""] = 0  # spread by a softmax over the outputs; the proof decides
                elif len(columns) == 1 and last.get(name) == {next(iter(columns)) + t.outputs - 1}:
                    t.arrives[name] = next(iter(columns))
                else:
                    t.problem = f"its channels are mixed before {name or 'the output'} reads them"
            if not first:
                t.problem = "nothing reads its channels"


def _remember(site: _Site, call: int, out: Any, hit: set[int]) -> Any:
    site.calls.append(_taint(out, set()))
    return out


def _arrivals(model: nn.Module, data: Data, sites: list[_Site], t: _Traced, column: int) -> dict[str, set[int]]:
    """At which columns of which sites' inputs (``""``: the model's output) an output column of ``t`` arrives."""
    arrived: dict[str, set[int]] = {}

    def respond(site: _Site, k: int, out: Any, hit: set[int]) -> Any:
        if hit:
            arrived.setdefault(site.name, set()).update(hit)
        columns = set(hit) if site.rule.norm or site.rule.passes else set()
        if site is t.site:
            columns.add(t.start + column)
        return _taint(site.calls[k], columns)

    with _Hooks(sites, respond):
        out = _run(model, data)
    hit = _nan_columns(out)
    if hit:
        arrived[""] = hit
    return arrived


class _Hooks:
    """Let ``respond(site, call, output, tainted input columns)`` decide the output of every site."""

    def __init__(self, sites: list[_Site], respond: Callable[[_Site, int, Any, set[int]], Any]) -> None:
        self.sites, self.respond = sites, respond

    def __enter__(self) -> None:
        self.handles = [s.module.register_forward_hook(self._hook(s), with_kwargs=True) for s in self.sites]

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _hook(self, site: _Site) -> Callable[..., Any]:
        calls = 0

        def hook(module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
            nonlocal calls
            size = site.in_size if not site.rule.norm else None
            hit = set().union(*(_nan_columns(x) for x in _floats((args, kwargs)) if size in (None, x.shape[-1])))
            calls += 1
            return self.respond(site, calls - 1, out, hit)

        return hook


def _floats(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.dim() > 1 and value.layout == torch.strided:
            yield value
    elif isinstance(value, Mapping):
        for v in value.values():
            yield from _floats(v)
    elif isinstance(value, tuple | list):
        for v in value:
            yield from _floats(v)


def _nan_columns(x: Tensor) -> set[int]:
    return set(x.isnan().flatten(0, -2).any(0).nonzero().flatten().tolist())


def _columns(out: Any) -> float:
    """Of the output of a layer, or the first of several; no end of them, where there are none to be looked at."""
    if isinstance(out, Tensor) and out.is_floating_point():
        return out.shape[-1] if out.dim() else 0
    return _columns(out[0]) if isinstance(out, tuple) and out and not hasattr(out, "_fields") else math.inf


def _taint(value: Any, columns: set[int]) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        value = value.clone()  # the model may work on it in place
        value[..., sorted(columns)] = torch.nan
    elif isinstance(value, tuple) and not hasattr(value, "_fields"):
        value = tuple(_taint(v, columns) for v in value[:1]) + value[1:]
    return value


def _tied_groups(traced: list[_Traced]) -> list[list[_Traced]]:
    """Layers whose columns arrive in the same place (added, or compared) can only be permuted together."""
    groups: list[list[_Traced]] = []
    for t in traced:
        places = set(t.arrives.items())
        mine = [g for g in groups if any(places & set(o.arrives.items()) and o.outputs == t.outputs for o in g)]
        groups = [g for g in groups if g not in mine] + [[o for g in mine for o in g] + [t]]
    return groups


def _prove(
    model: nn.Module,
    data: Data,
    reference: Tensor,
    group: list[_Traced],
    sites: Mapping[str, _Site],
    stays: dict[str, str],
) -> list[Layer]:
    """Settle a group's travelling tensors and readers, then permute it and compare the model's output."""
    complete = [_complete(t, group, sites, stays) for t in group]
    problem = next((p for t in group if (p := t.problem or _misfit(t, sites))), None)
    if problem is None and not all(_invariant(model, data, reference, group, complete, sites, seed) for seed in (1, 2)):
        problem = "the model's output depends on the order of its channels, by something not of a known type"
    if problem is None:
        names = tuple(x.name for x in complete) if len(complete) > 1 else ()
        return [replace(x, together=names) for x in complete]
    for layer in complete:
        stays |= {s.name: f"{layer.name} left out: {problem}" for s in (*layer.weights, *layer.travels)}
    return []


def _complete(t: _Traced, group: list[_Traced], sites: Mapping[str, _Site], stays: dict[str, str]) -> Layer:
    travels, readers, shared = list(t.layer.travels), [], []
    whole = t.outputs == t.layer.channels
    for name, offset in t.arrives.items():
        if name == "":
            continue
        site = sites[name]
        if not site.rule.norm:
            readers += [replace(s, start=offset, size=t.outputs) for s in site.reads]
        elif whole and sum(o.arrives.get(name) == offset for o in group) == 1:
            travels += [replace(s, start=offset, size=t.outputs) for s in site.travels]
        elif site.travels:
            others = ", ".join(o.layer.name for o in group[:3]) if whole else "several heads"
            stays |= {s.name: f"{name} is shared by {others}" for s in site.travels}
            shared += [replace(s, start=offset, size=t.outputs) for s in site.travels if whole]
    output = "" in t.arrives
    tied = None
    if t.site.rule.passes or len(group) > 1:
        tied = "its channels are added to or compared with those of other layers"
    elif not whole:
        tied = "several heads share one output"
    settled = replace(t.layer, travels=tuple(travels), readers=tuple(readers), shared=tuple(shared))
    return replace(settled, output=output, tied=tied)


def _misfit(t: _Traced, sites: Mapping[str, _Site]) -> str | None:
    """A tensor that is too small for the columns that arrive there: its rule names another axis."""
    for name, offset in t.arrives.items():
        for s in () if name == "" else sites[name].travels if sites[name].rule.norm else sites[name].reads:
            if s.size < offset + t.outputs:
                return _misnamed(s, offset + t.outputs)
    return None


def _invariant(
    model: nn.Module,
    data: Data,
    reference: Tensor,
    group: list[_Traced],
    layers: list[Layer],
    sites: Mapping[str, _Site],
    seed: int = 1,
) -> bool:
    outputs = group[0].outputs
    # Heads attend on their own, so channels may only change places within a head.
    heads = max(t.site.heads if t.outputs == t.layer.channels else 1 for t in group)
    within = outputs // heads
    places = _cycle(heads, seed)
    perm = torch.cat([_cycle(within, seed + h) + places[h] * within for h in range(heads)])
    moves: dict[Slot, Tensor] = {}
    expected = reference.clone()
    for t, layer in zip(group, layers, strict=True):
        repeats = layer.channels // outputs
        own = torch.cat([perm + k * outputs for k in range(repeats)])
        moves |= dict.fromkeys((*layer.weights, *t.layer.travels), own)
        moves |= dict.fromkeys((*layer.readers, *t.shared), perm)
        for name, offset in t.arrives.items():
            if name == "":
                if reference.shape[-1] < offset + outputs:
                    return False
                expected[..., offset : offset + outputs] = reference[..., offset + perm]
            elif sites[name].rule.norm:
                moves |= {replace(s, start=offset, size=outputs): perm for s in sites[name].travels}
    permuted = duplicate(model)
    tensors = dict(_named_tensors(permuted))
    with torch.no_grad():
        for slot, order in moves.items():
            rows = slot.rows(tensors[slot.name], lead=0)
            rows.copy_(rows[order].clone())
        out = _run(permuted, data)
    return bool((out - expected).abs().max() <= 1e-8 * (1 + reference.abs().max()))


def _cycle(size: int, seed: int) -> Tensor:
    """A random order in which nothing keeps its place."""
    cycle = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    return torch.empty_like(cycle).scatter_(0, cycle, cycle.roll(1))


def _reasons_to_stay(sites: list[_Site], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    stays = {}
    for name, t in tensors.items():
        site = next((s for s in sites if name.startswith(s.name + ".") or not s.name), None)
        if t.dim() == 0 or t.numel() == 1:
            stays[name] = "a single number, not one per channel"
        elif site is None:
            stays[name] = "not part of a known layer"
        elif site.heads > 1 and any(s.name == name for s in site.shared):
            stays[name] = "one entry for several heads"
        elif site.rule.norm:
            stays[name] = f"no exchanged layer feeds {site.name}"
        else:
            stays[name] = f"not a channel of {type(site.module).__name__}"
    return stays
