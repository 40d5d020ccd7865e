"""Calling a person's model: which of a graph's tensors its ``forward`` wants is read off its signature."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from .errors import AkeError


def forward(model: nn.Module, data: Data) -> Tensor:
    """Call ``model`` by the names of its parameters (``x``, ``edge_index``, ``batch``, ...), or with ``data``."""
    positional, named = arguments(model, data)
    return _tensor(model, model(*positional, **named))


def arguments(model: nn.Module, data: Data) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What ``model.forward`` is to be called with."""
    parameters = [
        p
        for p in inspect.signature(model.forward).parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    required = [p for p in parameters if p.default is p.empty]
    if len(required) == 1 and required[0].name in ("data", "graph", "g"):
        by_name = required[0].kind is inspect.Parameter.KEYWORD_ONLY
        return ((), {required[0].name: data}) if by_name else ((data,), {})
    positional: list[Any] = []
    named: dict[str, Any] = {}
    blind = not any(p.name == "train_mask" for p in parameters)  # cannot tell which labels may be known
    for p in parameters:
        if blind and p.name == "y" and p in required:
            raise AkeError(
                f"{type(model).__name__}.forward: asks for 'y', the labels of all nodes, those to be predicted too, "
                "but not for 'train_mask', which tells those that may be known"
            )
        value = data.get(p.name) if not (blind and p.name == "y") else None
        if value is None:
            if p in required:
                there = f"which the graph does not have (it has {', '.join(sorted(data.keys()))})"
                if p.name == "adj_t":  # of one edge set; views change edges
                    there = "but edges are given as 'edge_index' and 'edge_weight'"
                raise AkeError(f"{type(model).__name__}.forward: needs {p.name!r}, {there}")
            if p.kind is p.POSITIONAL_ONLY:
                positional.append(p.default)
        elif p.kind is p.POSITIONAL_ONLY:
            positional.append(value)
        else:
            named[p.name] = value
    return tuple(positional), named


def forget(model: nn.Module) -> nn.Module:
    """Let layers that cache a graph (PyG's ``cached=True``) see each graph anew: a view is not the original."""
    for module in model.modules():
        if getattr(module, "cached", False) is True:
            module.cached = False  # type: ignore[assignment]
        for name in [n for n, v in vars(module).items() if n.startswith("_cached") and v is not None]:
            setattr(module, name, None)
    return model


def duplicate(model: nn.Module) -> nn.Module:
    """A copy that has seen nothing: graphs that layers cache, and activations kept as attributes, stay behind.

    Tensors with a history cannot be copied, and a network that keeps one is an ordinary network.
    """
    own = ("_parameters", "_buffers", "_modules")
    kept = ((name, value) for m in model.modules() for name, value in vars(m).items() if name not in own)
    seen = [v for name, v in kept if (_has_past(v) or (name.startswith("_cached") and not isinstance(v, int | str)))]
    return copy.deepcopy(model, {id(v): None for v in seen if v is not None})


def _has_past(value: object) -> bool:
    """Whether a tensor is the outcome of a computation, or something holds one that is."""
    if isinstance(value, list | tuple):
        return any(_has_past(v) for v in value)
    if isinstance(value, dict):
        return any(_has_past(v) for v in value.values())
    if not isinstance(value, Tensor):
        return False
    return torch._C._functorch.is_functorch_wrapped_tensor(value) or value.grad_fn is not None


def check_built(model: nn.Module) -> None:
    """Layers that wait for a graph to know their width have no weights yet."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise AkeError(f"{name}: has no shape yet; run the lazily built model once on your graph first")


def precision_of(model: nn.Module) -> torch.dtype:
    """The precision of a network's parameters."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.get_default_dtype())


def cast(data: Data, dtype: torch.dtype) -> Data:
    """A graph with its floating-point tensors in another precision."""
    change = lambda t: t.to(dtype) if t.is_floating_point() and t.dtype != dtype else t  # noqa: E731
    return copy.copy(data).apply(change)


def _tensor(model: nn.Module, output: object) -> Tensor:
    if not isinstance(output, Tensor):
        raise AkeError(f"{type(model).__name__}.forward: must return one tensor, returned {type(output).__name__}")
    return output
