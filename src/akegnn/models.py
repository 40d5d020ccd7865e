"""From what a person says a model is (a name, a path, a class, a function) to a function that builds one."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

from .backbones import BACKBONES
from .channels import channel_map, is_attention
from .errors import AkeError
from .tasks import Task

Factory = Callable[[], nn.Module]

# What constructors call the sizes that the data decides, and the ones we have to choose.
_INPUT = ("in_channels", "in_features", "in_dim", "input_dim", "num_features", "num_node_features", "nfeat")
_OUTPUT = ("out_channels", "num_classes", "out_features", "out_dim", "output_dim", "nclass")
_CHOSEN = {"hidden_channels": 64, "hidden_dim": 64, "hidden": 64, "nhid": 64, "num_layers": 2}


def find_class(name: str) -> Callable[..., nn.Module]:
    """A backbone by name, or ``package.module:Class`` or ``path/to/file.py:Class``, which is imported."""
    if name in BACKBONES:
        return BACKBONES[name]
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise AkeError(f"model: {name!r} is neither one of {', '.join(BACKBONES)} nor of the form package.module:Class")
    try:
        module = _run_file(Path(module_name)) if module_name.endswith(".py") else importlib.import_module(module_name)
        found = getattr(module, attribute)
    except (ImportError, ValueError, TypeError) as e:
        raise AkeError(
            f"model: cannot import {module_name!r} ({e}); a file is given as path/to/file.py:Class"
        ) from None
    except SyntaxError as e:
        raise AkeError(f"model: {e.filename}: line {e.lineno}: {e.msg}") from None
    except AttributeError:
        raise AkeError(f"model: {module_name!r} has no {attribute!r}") from None
    if not callable(found):
        raise AkeError(f"model: {name!r} is a {type(found).__name__}, expected a class or function")
    return found  # type: ignore[no-any-return]


def as_class(model: str | type[nn.Module]) -> Callable[..., nn.Module]:
    """A class, or the one that a name stands for."""
    return find_class(model) if isinstance(model, str) else model


def _run_file(path: Path) -> ModuleType:
    """A file as a module, as Python runs it: what lies beside it can be imported. The same file is run once."""
    if not path.is_file():
        raise AkeError(f"model: {path}: no such file")
    name = f"akegnn_model_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(path.resolve().parent))
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as e:
            del sys.modules[name]
            if isinstance(e, SyntaxError) or not isinstance(e, Exception):
                raise
            here = [f.lineno for f in traceback.extract_tb(e.__traceback__) if f.filename == str(path)]
            at = f"line {here[-1]}: " if here else ""
            raise AkeError(f"model: {path}: {at}{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}") from e
    return sys.modules[name]


def resolve(
    model: str | type[nn.Module] | Factory, arguments: Mapping[str, Any], task: Task
) -> tuple[Factory, str, dict[str, Any]]:
    """A function that builds the model, its name for the record, and the complete arguments it is built with."""
    if not callable(model) and not isinstance(model, str):
        raise AkeError(f"model: must be a name, a class or a function that builds one, is a {type(model).__name__}")
    if isinstance(model, nn.Module):
        raise AkeError(
            "model: give a function that builds one, such as `lambda: MyGNN(...)`, not a module: "
            "every view needs a network of its own (trained modules go to models=[...])"
        )
    if not isinstance(model, str) and not isinstance(model, type):
        if arguments:
            raise AkeError("model_args: only for a model given by name or class; a function builds it as it likes")
        return model, "given", {}
    kind = as_class(model)
    if kind in BACKBONES.values() and task.name not in getattr(kind, "tasks", ("node", "link")):
        raise AkeError(f"model: {model} does not serve the {task.name} task ({', '.join(_serving(task.name))} do)")
    complete = complete_arguments(kind, arguments, task)
    name = model if isinstance(model, str) else f"{model.__module__}:{model.__qualname__}"
    return lambda: build(kind, complete), name, complete


def _serving(task: str) -> list[str]:
    return [name for name, kind in BACKBONES.items() if task in getattr(kind, "tasks", ("node", "link"))]


def build(kind: Callable[..., nn.Module], arguments: Mapping[str, Any]) -> nn.Module:
    """Call a constructor; what it refuses is an input error."""
    label = getattr(kind, "__name__", str(kind))
    try:
        model = kind(**arguments)
    except (TypeError, ValueError, AssertionError, RuntimeError) as e:
        raise AkeError(f"model: {label} cannot be built with {dict(arguments)} ({e})") from None
    if not isinstance(model, nn.Module):
        raise AkeError(f"model: {label} built a {type(model).__name__}, expected a torch.nn.Module")
    return model


def hidden_width(kind: Callable[..., nn.Module], arguments: Mapping[str, Any], data: Data) -> tuple[Any, int]:
    """How many hidden channels a model has, and how many of them a head has; 0 where it has no heads.

    With heads it is looked at, since ``hidden_channels`` is of a head in our GAT, of all of them in PyG's.
    """
    if "heads" not in {*arguments, *inspect.signature(kind).parameters}:
        return _argument(kind, arguments, "hidden_channels"), 0
    heads = _argument(kind, arguments, "heads")
    if isinstance(heads, bool) or not isinstance(heads, int):
        raise AkeError(f"width: only where heads is a whole number, is {heads!r}")
    with torch.random.fork_rng(devices=[]):
        found = channel_map(build(kind, arguments), data)
    hidden = [x for x in found.layers if not x.output and any(map(is_attention, x.travels))]
    if not hidden:
        raise AkeError("width: no hidden layer has heads of which there could be fewer")
    widest = max(hidden, key=lambda x: x.channels)
    return widest.channels, found.head(widest)


def of_width(kind: Callable[..., nn.Module], arguments: Mapping[str, Any], width: int, data: Data) -> dict[str, Any]:
    """The arguments of a model with so many hidden channels: heads stay as they are, there are fewer of them."""
    own, head = hidden_width(kind, arguments, data)
    if not head:
        return {**arguments, "hidden_channels": width}
    if width % head:
        raise AkeError(f"width: must be a multiple of {head}, the channels of a head, got {width}")
    channels = _argument(kind, arguments, "hidden_channels")
    return {**arguments, "heads": width // head, "hidden_channels": width if channels == own else channels}


def _argument(kind: Callable[..., nn.Module], arguments: Mapping[str, Any], name: str) -> Any:
    return arguments[name] if name in arguments else inspect.signature(kind).parameters[name].default


def complete_arguments(kind: Callable[..., nn.Module], given: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """Fill in what the data decides (input and output sizes, pooling) and usual values for what has no default."""
    parameters = inspect.signature(kind).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in given:
        if name not in parameters and not takes_any:
            raise AkeError(f"model_args: {name!r} is not an argument of {getattr(kind, '__name__', kind)}")
    complete = dict(given)
    for names, size in ((_INPUT, task.features), (_OUTPUT, task.outputs)):
        for name in [n for n in names if n in parameters][:1]:
            complete.setdefault(name, size)
    if "pool" in parameters and task.name == "graph":
        complete.setdefault("pool", True)
    for name, p in parameters.items():
        if p.default is p.empty and name not in complete and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            if name not in _CHOSEN:
                raise AkeError(f"model_args: {getattr(kind, '__name__', kind)} needs {name!r} (--model-arg {name}=...)")
            complete[name] = _CHOSEN[name]
    return complete
