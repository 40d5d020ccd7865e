"""Populations: many networks of one architecture, their parameters stacked, trained at the same time.

A replica sees exactly the graph it would see alone. Replicas are vectorised with ``torch.vmap`` where the model allows
it: our backbones always (edges may differ from replica to replica), other modules when all replicas have the same
edges. Whatever cannot be vectorised is trained one after another, with one line that says so.
"""

from __future__ import annotations

import copy
import gc
import inspect
import math
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch_geometric.data import Batch, Data

from .errors import AkeError, RunFailed
from .forward import arguments, check_built, duplicate, forget
from .propagate import Edges, Sparse, Structure, mostly_zero
from .settings import Training, derive
from .tasks import Task
from .training import Epoch, Targets, Trainer, batch_draws, evaluate, seeded, softened, training_loss
from .views import Original, View, leaves_out_edges

# Optimizers that treat every number by itself, so that stacked networks do not mix.
ELEMENTWISE = ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD")
DRAWN_AHEAD = 1 << 26  # edges of all replicas whose fate is drawn at once
LOOK_EVERY = 20  # epochs between looks at which replicas have stopped: a look makes a GPU wait
CACHE = 20 << 20  # bytes: on a CPU networks that need more are faster one by one (benchmarks/together.py)
GO_ON_WITHOUT = 2 / 3  # of the replicas left, at most: the others go on without those that have stopped


Hook = Callable[[dict[str, Tensor], int], None]


@dataclass(frozen=True)
class Replica:
    """One network of a population: its seed, its name within the run, and what it sees."""

    seed: int
    network: str
    view: View
    split: int | None = None  # of the data; by default the task's
    targets: Targets | None = None  # to learn from besides the labels


@dataclass
class Outcome:
    """How one replica's training went."""

    best_epoch: int
    validation: float
    seconds: float  # its share of the population's
    failed: str = ""  # why it has no result
    history: list[Epoch] = field(default_factory=list)


class Population:
    """Networks of one architecture as stacked tensors: ``population.state["convs.0.bias"]`` is ``[R, ...]``."""

    moments: dict[str, Any] | None = None  # of the optimizer, where a trainer keeps them

    def __init__(self, factory: Callable[[], nn.Module], seeds: Sequence[int], network: str = "sample") -> None:
        """Build a network per seed, each just as it would be built alone."""
        if isinstance(factory, nn.Module) or not callable(factory):
            raise AkeError("model: give a function that builds one, such as `lambda: MyGNN(...)`, one for every seed")
        if not len(seeds):
            raise AkeError("seeds: at least one is needed")
        states = []
        for seed in seeds:
            with seeded(derive(seed, "weights", network)):
                model = factory()
            if not isinstance(model, nn.Module):
                raise AkeError(f"model: the function built a {type(model).__name__}, expected a torch.nn.Module")
            check_built(model)
            states.append(_tensors_of(forget(model)))
        self.template = model
        self.state = {k: torch.stack([s[k] for s in states]) for k in states[0]}

    @classmethod
    def of(cls, modules: Sequence[nn.Module]) -> Population:
        """From modules of one architecture; they are copied."""
        population = cls.__new__(cls)
        population.template = forget(duplicate(modules[0]))
        states = [_tensors_of(m) for m in modules]
        population.state = {k: torch.stack([s[k] for s in states]) for k in states[0]}
        return population

    @classmethod
    def joined(cls, populations: Sequence[Population]) -> Population:
        """Several populations of one architecture as one."""
        joined = copy.copy(populations[0])
        joined.state = {k: torch.cat([p.state[k] for p in populations]) for k in populations[0].state}
        return joined

    def __len__(self) -> int:
        return len(next(iter(self.state.values())))

    def to(self, device: torch.device) -> Population:
        """Move all networks."""
        self.template.to(device)
        self.state = {k: v.to(device) for k, v in self.state.items()}
        return self

    def state_dict(self, i: int) -> dict[str, Tensor]:
        """The parameters and buffers of one network (a copy)."""
        return {k: v[i].clone() for k, v in self.state.items()}

    def load_state_dict(self, i: int, state: Mapping[str, Tensor]) -> None:
        """Replace one network."""
        for k, v in state.items():
            self.state[k][i].copy_(v)

    def module(self, i: int) -> nn.Module:
        """One network as an ordinary module (a copy)."""
        model = duplicate(self.template)
        model.load_state_dict(self.state_dict(i))
        return model

    def modules(self) -> Iterator[nn.Module]:
        """All networks, one after another."""
        return (self.module(i) for i in range(len(self)))

    def evaluate(self, task: Task) -> Tensor:
        """Every network's prediction on the original data, ``[R, ...]``."""
        self.to(task.device)
        if len(self) > 1:
            try:
                check = _Check(self, task)
                with torch.no_grad():
                    return _attempt(lambda: check.predict(self.state))  # type: ignore[no-any-return]
            except (_NotVectorisable, torch.OutOfMemoryError, MemoryError):
                pass
        return torch.stack([evaluate(m, task.alone(i)) for i, m in enumerate(self.modules())])

    def train(
        self,
        trainer: Trainer,
        replicas: Sequence[Replica],
        phase: str,
        say: Callable[[str], None] = lambda line: None,
        hook: Hook | None = None,
    ) -> list[Outcome]:
        """Train all networks, each as :class:`Trainer` would train it alone, and put each back to its best epoch.

        ``hook(state, epoch)`` is called after every epoch with the stacked parameters of all networks, which it may
        change in place; it needs a model that can be trained as a population.
        """
        if len(replicas) != len(self):
            raise AkeError(f"replicas: {len(replicas)} for {len(self)} networks")
        trainer = replace(trainer, replicas=trainer.replicas or len(self))
        groups = _by_split(trainer.task, replicas)
        if len(groups) > 1:
            if hook is not None:
                raise AkeError(
                    f"splits: the {trainer.task.name} task takes one at a time where networks must go in step"
                )
            return self._train_in_groups(groups, trainer, replicas, phase, say)
        for split in groups:  # all on one split, which need not be the trainer's
            if split != trainer.task.split:
                trainer = replace(trainer, task=trainer.task.at(split))
        in_step = hook is not None or trainer.keep
        before = {k: v.clone() for k, v in self.state.items()}
        reason = "training loop of your own" if trainer.own_loop is not None else ""
        lone = len(self) == 1 and not in_step
        if not reason and (not lone or _recordable(self.template, trainer, replicas)):
            try:
                return self._train_in_chunks(trainer, replicas, phase, say, hook)
            except _NotVectorisable as e:
                reason, self.state = str(e), before
            except (RunFailed, RuntimeError):  # no memory for it, or a layer that cannot be recorded
                if not lone:
                    raise
                self.state = before
        if in_step:
            raise AkeError(f"model: its networks cannot be trained in step ({reason})")
        if len(self) > 1 and reason:
            say(f"{phase}, {replicas[0].network}: {len(self)} networks one after another ({reason})")
        return [self._train_alone(i, trainer, replica, phase) for i, replica in enumerate(replicas)]

    def _train_in_groups(
        self,
        groups: Mapping[int, list[int]],
        trainer: Trainer,
        replicas: Sequence[Replica],
        phase: str,
        say: Callable[[str], None],
    ) -> list[Outcome]:
        """One split after another, where replicas on different splits cannot be trained together."""
        outcomes: dict[int, Outcome] = {}
        kept = self.moments or {}  # here by split
        for split, members in groups.items():
            part = self.pick(members)
            part.moments = kept.get(f"split {split}")
            own = replace(trainer, task=trainer.task.at(split), first=len(outcomes))
            outcomes |= zip(members, part.train(own, [replicas[k] for k in members], phase, say), strict=True)
            for k, value in part.state.items():
                self.state[k][members] = value.to(self.state[k].device)
            kept[f"split {split}"] = part.moments
        self.moments = kept if trainer.keep else None
        return [outcomes[k] for k in range(len(self))]

    def _train_in_chunks(
        self,
        trainer: Trainer,
        replicas: Sequence[Replica],
        phase: str,
        say: Callable[[str], None],
        hook: Hook | None = None,
    ) -> list[Outcome]:
        """As many at a time as memory allows; where it turns out not to, half as many. What is finished stays."""
        self.to(trainer.task.device)
        gc.collect(1)  # torch's vmap leaves cycles behind that hold the tensors of earlier populations
        in_step = hook is not None or trainer.keep
        try:
            each = _needed(self, trainer, replicas, phase)
            free = not (in_step or trainer.chunk or len(self) == 1 or trainer.settings.precision != "float32")
            if trainer.task.device.type == "cpu" and each > CACHE and free:
                raise _NotVectorisable("")  # it is faster so, and nothing that a person need know
            fitting = max(1, int(0.6 * _free_memory(trainer.task.device) / each))
        except (torch.OutOfMemoryError, MemoryError):
            fitting = 1
        size = len(self) if in_step else min(len(self), trainer.chunk or len(self), fitting)
        outcomes: list[Outcome] = []
        while (start := len(outcomes)) < len(self):
            part, fits = self._slice(start, start + size), True
            try:
                own = replace(trainer, first=trainer.first + start)
                outcomes += _train_together(part, own, replicas[start : start + size], phase, hook)
            except (MemoryError, RuntimeError) as e:  # torch.OutOfMemoryError is one of the latter
                if not (isinstance(e, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(e)):
                    raise
                fits = False
            if not fits:  # out here, where the error no longer holds on to what it was about
                if size == 1 or in_step:
                    which = "one network alone does" if size == 1 else f"{size} networks in step do"
                    raise RunFailed(f"{phase}, {replicas[start].network}: {which} not fit memory")
                size = (size + 1) // 2
                gc.collect()
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                say(f"{phase}, {replicas[start].network}: out of memory, going on with {size} networks at a time")
                continue
            for k, value in part.state.items():
                self.state[k][start : start + size] = value
            self.moments = part.moments
        return outcomes

    def _slice(self, start: int, stop: int) -> Population:
        return self.pick(list(range(start, min(stop, len(self)))))

    def pick(self, members: list[int]) -> Population:
        """Some of the networks, copied."""
        part = copy.copy(self)
        part.state = {k: v[members].clone() for k, v in self.state.items()}
        return part

    def _train_alone(self, i: int, trainer: Trainer, replica: Replica, phase: str) -> Outcome:
        model = self.module(i).to(trainer.task.device)
        trainer = replace(trainer, first=trainer.first + i)
        if replica.split is not None:
            trainer = replace(trainer, task=trainer.task.at(replica.split))
        try:
            t = trainer.train(model, replica.view, phase, replica.network, replica.seed, replica.targets)
        except RunFailed as e:
            if len(self) == 1:
                raise
            named = f"network {replica.network}, "
            return Outcome(0, math.nan, 0.0, str(e).replace(named, f"{named}seed {replica.seed}, ", 1))
        self.load_state_dict(i, t.model.state_dict())
        history = t.history
        if len(self) > 1:  # as many epochs of each as a population notes of all
            history = [e for e in history if e.epoch % LOOK_EVERY == 0 or e is history[-1]]
        return Outcome(t.best_epoch, t.validation, t.seconds, history=history)


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """All that a network is made of."""
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise AkeError(f"{name}: must be a tensor, is a {type(value).__name__}; extra state cannot be kept")
    return state


class _NotVectorisable(Exception):
    pass


# ---- many graphs as one input ----------------------------------------------------------------------------------------


@dataclass
class _Stack:
    """The inputs of R replicas: what they share, and what each has of its own, stacked."""

    shared: dict[str, Any]
    own: dict[str, Tensor]
    edges: Edges | None = None  # of all replicas together, where they differ
    pattern: Structure | None = None  # of sparse features; "x" then holds values by row

    def one(self, own: Mapping[str, Any]) -> Data:
        """The batch of one replica, inside ``vmap``."""
        data = _Bag({**self.shared, **own})
        if self.edges is not None:
            data["edge_index"] = self.edges
        if self.pattern is not None:
            data["x"] = Sparse(self.pattern, data["x"])
        return data  # type: ignore[return-value]


class _Bag(dict[str, Any]):
    """Attributes of a batch without PyG's checks, which tensors inside ``vmap`` do not pass."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _stack(
    batches: Sequence[Data], differing_edges: bool, sparse: bool, like: Data, wanted: Collection[str] | None
) -> _Stack:
    """``wanted``: the attributes that the model takes, ``None`` for all."""
    first = batches[0]
    stack = _Stack({}, {})
    if isinstance(first, Batch):
        stack.shared["num_graphs"] = first.num_graphs
    keys = [k for k, _ in first.items() if k != "edge_index"]
    same_edges = all(b.edge_index is first.edge_index for b in batches)
    if same_edges:
        nodes = int(first.num_nodes or 0)
        stack.shared["edge_index"] = Edges(first.edge_index, nodes) if differing_edges else first.edge_index
    else:
        if not differing_edges:
            raise _NotVectorisable("its layers take one set of edges for all")
        stack.edges, weight = _union(batches)
        stack.own["edge_weight"] = weight
        keys = [k for k in keys if "edge_label" in k or not first.is_edge_attr(k)]
    for key in keys:
        values = [b[key] for b in batches]
        if key == "x" and sparse and values[0].shape == like.x.shape:  # a batch of graphs is not like one of them
            _stack_features(stack, values, like.x)
        elif all(v is values[0] for v in values) or not isinstance(values[0], Tensor):
            stack.shared[key] = values[0]
        elif len({v.shape for v in values}) == 1:
            stack.own[key] = torch.stack([v if v.layout == torch.strided else v.to_dense() for v in values])
        elif wanted is None or key in wanted:
            raise _NotVectorisable(f"data.{key} has another shape in each view")
    return stack


def _stack_features(stack: _Stack, values: list[Tensor], like: Tensor) -> None:
    """Features by the non-zero pattern of the original's, if it covers all views; else as they are."""
    original = Sparse.of(like)
    s = original.structure
    shared = all(v is values[0] for v in values)
    gathered = []
    for x in values[:1] if shared else values:
        dense = x if x.layout == torch.strided else x.to_dense()
        inside = dense[s.row, s.col.long()]
        if int(dense.count_nonzero()) != int(inside.count_nonzero()):  # a view put something where there was nothing
            if shared:
                stack.shared["x"] = dense
            else:
                stack.own["x"] = torch.stack([v if v.layout == torch.strided else v.to_dense() for v in values])
            return
        gathered.append(inside)
    stack.pattern = s
    if shared:
        stack.shared["x"] = gathered[0]
    else:
        stack.own["x"] = torch.stack(gathered)


def _union(batches: Sequence[Data]) -> tuple[Edges, Tensor]:
    """All edges of all replicas, and for each replica their weights: zero for an edge it does not have."""
    nodes = int(batches[0].num_nodes or 0)
    keys = [_keys(b.edge_index, nodes) for b in batches]
    every = torch.cat(keys).unique()
    like = batches[0].get("edge_weight")
    dtype = batches[0].x.dtype if like is None else like.dtype
    weight = torch.zeros(len(batches), len(every), dtype=dtype, device=every.device)
    for r, (key, b) in enumerate(zip(keys, batches, strict=True)):
        given = b.get("edge_weight")
        weight[r, torch.searchsorted(every, key)] = 1.0 if given is None else given
    pair = every % (nodes * nodes)
    return Edges(torch.stack([pair // nodes, pair % nodes]), nodes), weight


def _keys(edge_index: Tensor, nodes: int) -> Tensor:
    """A number for each edge; the second of two equal edges counts as another edge."""
    key = edge_index[0] * nodes + edge_index[1]
    ordered, order = key.sort(stable=True)
    place = torch.arange(len(key), device=key.device)
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = ordered[1:] != ordered[:-1]
    start = torch.where(new, place, torch.zeros_like(place)).cummax(0).values
    again = torch.empty_like(place)
    again[order] = place - start
    return key + again * nodes * nodes


# ---- training together -----------------------------------------------------------------------------------------------


class _Vectorised:
    """A template and stacked inputs as functions of stacked parameters."""

    def __init__(self, template: nn.Module, stack: _Stack, task: Task) -> None:
        self.template, self.stack, self.task = template, stack, task
        self.parameters = [k for k, p in template.named_parameters() if p.requires_grad]

    @classmethod
    def build(cls, population: Population, batches: Sequence[Data], task: Task) -> _Vectorised:
        template = population.template
        if len(dict(template.named_parameters(remove_duplicate=False))) > len(dict(template.named_parameters())):
            raise _NotVectorisable("some of its parameters have several names")
        if task.several:
            raise _NotVectorisable(f"the {task.name} task is trained on one split at a time")
        ours = bool(getattr(template, "replicable", False))
        like = task.example
        sparse = ours and bool(getattr(template, "sparse_features", False)) and mostly_zero(like.x)
        wanted: Collection[str] | None = inspect.signature(template.forward).parameters
        if "edge_index" not in (wanted or ()):  # takes the whole graph
            wanted = None
        return cls(template, _stack(batches, ours, sparse, like, wanted), task)

    def _loss(self, state: Mapping[str, Tensor], data: Data) -> Tensor:
        if hasattr(self.template, "training_loss"):  # through a module whose forward it is
            state = {f"model.{k}": v for k, v in state.items()}
            return functional_call(_OwnLoss(self.template, self.task), state, (data,))  # type: ignore[no-any-return]
        return self.task.loss(self._call(state, data), data)

    def _call(self, state: Mapping[str, Tensor], data: Data) -> Tensor:
        positional, named = arguments(self.template, data)
        given = dict(state)
        out = functional_call(self.template, given, positional, named)
        self._keep(state, given)
        return out  # type: ignore[no-any-return]

    def _keep(self, state: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
        """Buffers that were given new tensors, instead of being written into as BatchNorm does it."""
        for name, value in after.items():
            if name not in self.parameters and value is not state[name]:
                state[name].copy_(value.detach())

    def losses(self, state: Mapping[str, Tensor]) -> Tensor:
        """Each replica's training loss, ``[R]``."""
        self.template.train()

        def loss(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Tensor:
            data = self.stack.one(own)
            return self._loss(state, data)

        return torch.vmap(loss, randomness="different")(dict(state), self.stack.own or _nothing(state))

    def outputs(self, state: Mapping[str, Tensor]) -> Tensor:
        """Each replica's output, ``[R, ...]``."""
        self.template.eval()

        def output(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Tensor:
            return self._call(state, self.stack.one(own))

        return torch.vmap(output)(dict(state), self.stack.own or _nothing(state))


class _Check:
    """What is looked at after every epoch: predictions on the original data."""

    def __init__(self, population: Population, task: Task) -> None:
        self.task = task
        each = [task.alone(k).originals() for k in range(len(population))]
        self.parts = [_Vectorised.build(population, batches, task) for batches in zip(*each, strict=True)]

    def predict(self, state: Mapping[str, Tensor]) -> Tensor:
        """Each replica's prediction, ``[R, ...]``."""
        outputs = [part.outputs(state) for part in self.parts]
        out = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)
        return torch.vmap(self.task.read_out)(out)


class _OwnLoss(nn.Module):
    """A model's own training loss as a forward pass."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, data: Data) -> Tensor:
        return training_loss(self.model, data, self.task)


def _nothing(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    some = next(iter(state.values()))
    return {"_": some.new_zeros(len(some))}


def _needed(population: Population, trainer: Trainer, replicas: Sequence[Replica], phase: str) -> float:
    """The bytes that a replica needs, from what two of them keep for the backward pass."""
    two = population._slice(0, 2)
    inputs = _Inputs(two, trainer, replicas[:2], phase)
    learn, state = next(inputs.epoch()), _trainable(two)
    kept: dict[int, int] = {}

    def note(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t.detach()  # with its history it would hold itself, for good

    with seeded(0), torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        _attempt(lambda: learn.losses(state))
    check = _Check(two, inputs.task)
    with torch.no_grad():
        _attempt(lambda: check.predict(state))
    size = sum(v.numel() * v.element_size() for v in state.values())
    views = sum(v.numel() * v.element_size() for v in learn.stack.own.values())
    # Activations and as much again for their gradients; parameters, best, gradients and two moments of each.
    return max(1.0, (2 * sum(kept.values()) + 5 * size + 2 * views) / 2)


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 4 << 30  # not Linux: a modest guess, halved again if it was too much


def _attempt(call: Callable[[], Any]) -> Any:
    """A first call; what it raises says that the model cannot be vectorised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except (torch.OutOfMemoryError, MemoryError, AkeError):
        raise
    except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as e:
        raise _NotVectorisable(f"{type(e).__name__}: {str(e).splitlines()[0][:80] if str(e) else ''}") from None


def _splits(task: Task, replicas: Sequence[Replica]) -> list[int]:
    return [task.split if r.split is None else r.split for r in replicas]


def _by_split(task: Task, replicas: Sequence[Replica]) -> dict[int, list[int]]:
    """Which replicas can be trained together, by split."""
    groups: dict[int, list[int]] = {}
    for k, split in enumerate(_splits(task, replicas)):
        groups.setdefault(split, []).append(k)
    return groups if not task.mixes_splits else {}


def _trainable(population: Population) -> dict[str, Tensor]:
    """A copy of the parameters, to be trained, and of the buffers."""
    state = {k: v.clone() for k, v in population.state.items()}
    for k, p in population.template.named_parameters():
        if p.requires_grad:
            state[k].requires_grad_()
    return state


def _at_home(graphs: Sequence[Data]) -> list[Data]:
    """Graphs in main memory, where views are drawn; those that differ in their masks only are one."""
    moved: dict[int, Data] = {}
    for graph in graphs:
        if id(graph.edge_index) not in moved:
            moved[id(graph.edge_index)] = copy.copy(graph).cpu()
    return [moved[id(graph.edge_index)] for graph in graphs]


def _only_edges(model: nn.Module, task: Task, replicas: Sequence[Replica]) -> bool:
    """Whether all views are drawn anew and only leave out edges: then a new draw is a new row of zeros and ones."""
    if task.name != "node" or not getattr(model, "replicable", False):
        return False
    return all(r.view.resample == "epoch" and leaves_out_edges(type(r.view)) for r in replicas)


def _changes(model: nn.Module, task: Task, replicas: Sequence[Replica]) -> bool:
    """Whether an epoch has other tensors than the last one, and not only other numbers in them."""
    anew = task.new_batches or any(r.view.resample == "epoch" for r in replicas)
    return anew and not _only_edges(model, task, replicas)


class _Inputs:
    """What all replicas are trained on, epoch after epoch."""

    def __init__(self, population: Population, trainer: Trainer, replicas: Sequence[Replica], phase: str) -> None:
        self.population, self.replicas = population, replicas
        self.task = task = trainer.task.together(_splits(trainer.task, replicas))
        self.draws = [batch_draws(task, r.seed, phase, r.network) for r in replicas]
        self.views = [torch.Generator().manual_seed(derive(r.seed, "view", r.network)) for r in replicas]
        self.redraw = [k for k, r in enumerate(replicas) if r.view.resample == "epoch"]
        self.masked = _only_edges(population.template, task, replicas)
        self.changes = _changes(population.template, task, replicas)
        self.seen: list[Any] = []
        self._same: list[_Vectorised] = []
        self._ahead: list[Tensor] = []
        if self.masked:
            self.graphs = _at_home([task.alone(k).data for k in range(len(replicas))])  # type: ignore[attr-defined]

    def narrowed(self, population: Population, left: Sequence[int]) -> _Inputs:
        """The same for some of the replicas, from where their draws are."""
        part = copy.copy(self)
        part.population, part._same = population, []
        part.task = self.task.alone(0).together([self.task.alone(k).split for k in left])
        for name in ("replicas", "draws", "views", "seen", "graphs"):
            if of_each := getattr(self, name, None):
                setattr(part, name, [of_each[k] for k in left])
        part.redraw = [n for n, k in enumerate(left) if k in self.redraw]
        part._ahead = [rows[left] for rows in self._ahead]
        return part

    def refresh(self) -> None:
        """Draw the views of the next epoch, where they only leave out edges; everything else stays where it is."""
        if not self.masked:
            return
        if not self._same:
            self._same = [self._with_all_edges()]
        if not self._ahead:
            self._ahead = self._draw_ahead()
        weight = self.task.alone(0).data.get("edge_weight")  # type: ignore[attr-defined]
        rows = self._ahead.pop()
        self._weight.copy_(rows if weight is None else rows * weight)

    def _draw_ahead(self) -> list[Tensor]:
        """Which edges are kept in the epochs to come, ``[R, E]`` of each, the next one last.

        Several epochs are drawn and moved at once: a move of every draw would make a GPU wait for it.
        """
        replicas, edges = self._weight.shape
        epochs = max(1, min(LOOK_EVERY, DRAWN_AHEAD // max(replicas * edges, 1)))
        rows = torch.empty(epochs, replicas, edges, dtype=torch.bool)
        for k, (r, data, draws) in enumerate(zip(self.replicas, self.graphs, self.views, strict=True)):
            for epoch in range(epochs):
                kept = r.view.kept(data, draws)
                if kept is None:
                    raise AkeError(f"{type(r.view).__name__}.kept: must tell which edges are kept, told nothing")
                rows[epochs - 1 - epoch, k] = kept
        return list(rows.to(self._weight.device))

    def _with_all_edges(self) -> _Vectorised:
        """The one batch of the node task with all edges, and a weight of its own for each of every replica."""
        self.seen = [self._seen(k, Original()) for k in range(len(self.replicas))]
        (batch,) = self.task.joint_batches(self.seen, self.draws)
        made = _Vectorised.build(self.population, batch, self.task)
        made.stack.edges = made.stack.shared.pop("edge_index")
        like = next(p for p in self.population.state.values() if p.is_floating_point())
        self._weight = like.new_ones(len(self.replicas), batch[0].edge_index.shape[1])
        made.stack.own["edge_weight"] = self._weight
        return made

    def _seen(self, k: int, view: View) -> Any:
        return softened(self.task.alone(k).seen(view, self.views[k]), self.replicas[k].targets)

    def epoch(self) -> Iterator[_Vectorised]:
        """The batches of the next epoch."""
        if self.masked:
            if not self._same:
                self.refresh()
            return iter(self._same)
        again = self.redraw if self.seen else range(len(self.replicas))
        self.seen = self.seen or [None] * len(self.replicas)
        for k in again:
            self.seen[k] = self._seen(k, self.replicas[k].view)
        if self.changes or not self._same:
            batches = self.task.joint_batches(self.seen, self.draws)
            made = (_Vectorised.build(self.population, batch, self.task) for batch in batches)
            if self.changes:
                return made
            self._same = list(made)
        return iter(self._same)


class _Group:
    """Replicas in training: their parameters, what they are trained on, how far they are, and an epoch of them all."""

    def __init__(
        self,
        population: Population,
        inputs: _Inputs,
        state: dict[str, Tensor],
        optimizer: torch.optim.Optimizer,
        best: _Best,
        recorded: bool,
    ) -> None:
        """``recorded``: nothing but numbers changes from epoch to epoch, so that one can be recorded and replayed."""
        self.population, self.inputs, self.state = population, inputs, state
        self.optimizer, self.best, self.recorded = optimizer, best, recorded
        self.task = inputs.task.watched()
        self.check = _Check(population, self.task)
        self.run: Callable[[], None] = _Captured(self.epoch, optimizer) if recorded else self.epoch

    def epoch(self) -> None:
        """One epoch of all replicas: everything stays on the device, nothing waits."""
        precision = self.best.settings.precision
        short = torch.autocast(self.task.device.type, torch.bfloat16, enabled=precision == "bf16")
        seen: list[Tensor] = []
        for learn in self.inputs.epoch():
            self.optimizer.zero_grad()
            with short:
                losses = learn.losses(self.state)
            losses.sum().backward()
            self.optimizer.step()
            seen.append(losses.detach())
        losses = seen[0] if len(seen) == 1 else torch.stack(seen).mean(0)
        with torch.no_grad():
            with short:
                found = self.check.predict(self.state)
            found = found.to(next(iter(self.state.values())).dtype)
            sound = torch.isfinite(found).flatten(1).all(1)
            self.best.update(losses, sound, self.task.scores(found, "val"), self.task.part_losses(found, "val"))

    def narrowed(self, left: list[int]) -> _Group:
        """Some of them, to go on without the others."""
        self.close()
        population = self.population.pick(left)
        state = {k: v.detach()[left].requires_grad_(v.requires_grad) for k, v in self.state.items()}
        _hand_over(self.optimizer, [(v, state[k]) for k, v in self.state.items() if v.requires_grad], left)
        inputs, best = self.inputs.narrowed(population, left), self.best.part(left, state)
        return _Group(population, inputs, state, self.optimizer, best, self.recorded)

    def close(self) -> None:
        """Give back what a recorded epoch holds: now, not when Python happens to collect it."""
        if isinstance(self.run, _Captured):
            self.run.graph.reset()


def _hand_over(optimizer: torch.optim.Optimizer, pairs: Sequence[tuple[Tensor, Tensor]], left: list[int]) -> None:
    """Put parameters of some replicas in the place of those of all, with what the optimizer has noted of them."""
    new = {id(old): fresh for old, fresh in pairs}
    for group in optimizer.param_groups:
        group["params"] = [new[id(p)] for p in group["params"]]
    for old, fresh in pairs:
        noted = optimizer.state.pop(old, {})
        optimizer.state[fresh] = {
            k: v[left] if isinstance(v, Tensor) and v.shape == old.shape else v for k, v in noted.items()
        }


def _train_together(
    population: Population, trainer: Trainer, replicas: Sequence[Replica], phase: str, hook: Hook | None = None
) -> list[Outcome]:
    started = time.perf_counter()
    settings, count = trainer.settings, len(replicas)
    inputs, state = _Inputs(population, trainer, replicas, phase), _trainable(population)
    optimizer = trainer.make_optimizer([(k, v) for k, v in state.items() if v.requires_grad])
    if type(optimizer).__name__ not in ELEMENTWISE:
        raise _NotVectorisable(f"{type(optimizer).__name__} may not treat every number by itself")
    if trainer.keep and population.moments is not None:
        optimizer.load_state_dict(population.moments)
    scheduler = trainer.make_scheduler(optimizer)
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise _NotVectorisable("ReduceLROnPlateau follows the loss of one network")
    device, in_step = inputs.task.device, hook is not None or trainer.keep
    best = _Best(population, state, device, settings)
    recorded = _recordable(population.template, trainer, replicas) and _capturable(optimizer, device)
    group = _Group(population, inputs, state, optimizer, best, recorded)
    members, history = list(range(count)), list[Epoch]()
    every = LOOK_EVERY if count > 1 or in_step else 1
    with seeded(derive(replicas[0].seed, phase, replicas[0].network, count)), _precision(settings.precision):
        for k in range(1, settings.epochs + 1):
            group.inputs.refresh()
            group.run()
            if hook is not None:
                hook(state, k)
            if scheduler is not None:
                scheduler.step()
            if k % every == 0 or k == settings.epochs:
                best.put(members, group.best)
                entry = best.entry(phase, replicas[0].network, k, settings.epochs)
                history.append(replace(entry, replicas=trainer.replicas, first=trainer.first))
                trainer.on_epoch(history[-1])
                left = group.best.active.nonzero().flatten().tolist()
                if not left:
                    break
                if len(left) <= GO_ON_WITHOUT * len(members) and not in_step and k < settings.epochs:
                    group, members = group.narrowed(left), [members[i] for i in left]
    group.close()
    population.state = best.state
    population.moments = optimizer.state_dict() if trainer.keep else None
    outcomes = best.outcomes(phase, replicas, (time.perf_counter() - started) / count, inputs.task.metric_name)
    outcomes[0].history = history  # means over all of them
    return outcomes


def _recordable(model: nn.Module, trainer: Trainer, replicas: Sequence[Replica]) -> bool:
    """Whether epochs can be recorded and replayed: on a GPU even one network is then faster as a population of one."""
    task, ours = trainer.task, vars(type(model)).get("replicable", False)  # other layers may look at the numbers
    if task.device.type != "cuda" or not ours or not task.watched().scores_on_device:
        return False
    if trainer.scheduler is not None or trainer.settings.scheduler or _changes(model, task, replicas):
        return False
    return "capturable" in trainer.make_optimizer(model.named_parameters()).defaults


def _capturable(optimizer: torch.optim.Optimizer, device: torch.device) -> bool:
    """Whether an epoch can be recorded once as a CUDA graph and replayed: that saves the launch of every kernel."""
    if device.type != "cuda" or "capturable" not in optimizer.defaults:
        return False
    for group in optimizer.param_groups:
        group["capturable"] = True
    return True


class _Captured:
    """A function that is called a few times as it is, then recorded, then replayed."""

    WARM = 3

    def __init__(self, function: Callable[[], None], optimizer: torch.optim.Optimizer) -> None:
        self.function, self.optimizer = function, optimizer
        self.calls, self.graph = 0, torch.cuda.CUDAGraph()
        self.stream = torch.cuda.Stream()

    def __call__(self) -> None:
        self.calls += 1
        if self.calls <= self.WARM:  # on a stream of its own, as recording asks for
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.function()
            torch.cuda.current_stream().wait_stream(self.stream)
            return
        if self.calls == self.WARM + 1:
            self.optimizer.zero_grad(set_to_none=True)
            with torch.cuda.graph(self.graph):
                self.function()
        self.graph.replay()


@contextmanager
def _precision(precision: str) -> Iterator[None]:
    """Matrix products of float32 in tf32, if that is wanted."""
    before = torch.get_float32_matmul_precision()
    try:
        if precision == "tf32":
            torch.set_float32_matmul_precision("high")
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _Best:
    """Each replica's best epoch so far, and whether it is still in the running.

    Everything is updated in place on the device, so that an epoch can be recorded and replayed.
    """

    def __init__(
        self, population: Population, state: Mapping[str, Tensor], device: torch.device, settings: Training
    ) -> None:
        count = len(population)
        self.live, self.settings = state, settings
        self.state = {k: v.detach().clone() for k, v in population.state.items()}
        self.now = torch.zeros((), device=device, dtype=torch.long)
        self.score = torch.full((count,), -math.inf, device=device, dtype=torch.float64)
        self.loss = torch.full((count,), math.inf, device=device, dtype=torch.float64)
        self.epoch = torch.zeros(count, device=device, dtype=torch.long)
        self.top, self.low = self.score.clone(), self.loss.clone()  # of all epochs, whether best or not
        self.last = torch.zeros_like(self.epoch)  # the last epoch that reached one of them
        self.active = torch.ones(count, device=device, dtype=torch.bool)
        self.failed = torch.zeros(count, device=device, dtype=torch.long)  # the epoch in which it did
        self.unjudged = torch.zeros_like(self.active)  # whether that was because the metric was not a number
        self.training = torch.zeros(count, device=device, dtype=torch.float64)
        self.validation = torch.zeros(count, device=device, dtype=torch.float64)

    def _each(self) -> dict[str, Tensor]:
        """Everything that is kept of every replica."""
        noted = {k: v for k, v in vars(self).items() if isinstance(v, Tensor) and v.dim()}
        return noted | {f"state.{k}": v for k, v in self.state.items()}

    def part(self, left: list[int], live: Mapping[str, Tensor]) -> _Best:
        """Some of the replicas, whose parameters are now in ``live``."""
        part = copy.copy(self)
        part.live, part.now = live, self.now.clone()
        part.state = {k: v[left] for k, v in self.state.items()}
        for k, v in vars(self).items():
            if isinstance(v, Tensor) and v.dim():
                setattr(part, k, v[left])
        return part

    def put(self, members: list[int], part: _Best) -> None:
        """Take note of how far some of the replicas are."""
        if part is not self:
            kept = self._each()
            for k, v in part._each().items():
                kept[k][members] = v

    def update(self, training: Tensor, sound: Tensor, score: Tensor, loss: Tensor) -> None:
        """Take note of an epoch: training loss, whether predictions are finite, validation score and loss."""
        self.now += 1
        self.training.copy_(training)
        self.validation.copy_(score)
        finite = torch.isfinite(training) & sound
        self.unjudged |= self.active & finite & score.isnan()
        finite &= ~score.isnan()
        self.failed.copy_(torch.where(self.active & ~finite, self.now, self.failed))
        self.active &= finite
        self.last.copy_(torch.where((score >= self.top) | (loss <= self.low), self.now, self.last))
        self.top.copy_(torch.fmax(self.top, score))
        self.low.copy_(torch.fmin(self.low, loss))
        first, second = (self.score - score, loss - self.loss)  # below zero: better
        if self.settings.select == "loss":
            first, second = second, first
        better = self.active & ((first < 0) | ((first == 0) & (second < 0)))
        self.score.copy_(torch.where(better, score, self.score))
        self.loss.copy_(torch.where(better, loss, self.loss))
        self.epoch.copy_(torch.where(better, self.now, self.epoch))
        if better.device.type == "cpu":  # where a look costs nothing: touch those that are better only
            rows = better.nonzero().flatten()
            for k, kept in self.state.items():
                kept[rows] = self.live[k].detach()[rows]
        else:
            for k, kept in self.state.items():
                kept.copy_(torch.where(better.view(-1, *[1] * (kept.dim() - 1)), self.live[k].detach(), kept))
        if self.settings.patience is not None:
            last = self.epoch if self.settings.stop == "best" else self.last
            self.active &= self.now - last < self.settings.patience

    def entry(self, phase: str, network: str, epoch: int, epochs: int) -> Epoch:
        """The mean over replicas that have not failed."""
        fine, count = self.failed == 0, len(self.active)
        loss = validation = best = math.nan
        if bool(fine.any()):
            loss, validation, best = (float(x[fine].mean()) for x in (self.training, self.validation, self.score))
        stopped = count if epoch == epochs else count - int(self.active.sum())
        return Epoch(phase, network, epoch, epochs, loss, validation, best, together=count, stopped=stopped)

    def outcomes(self, phase: str, replicas: Sequence[Replica], seconds: float, metric: str) -> list[Outcome]:
        found = zip(replicas, *(x.tolist() for x in (self.epoch, self.score, self.failed, self.unjudged)), strict=True)
        why = ("the loss is not finite; try a smaller lr", f"the metric {metric} is nan")
        return [
            Outcome(epoch, score, seconds, f"{_where(phase, replica, failed)}: {why[unjudged]}" if failed else "")
            for replica, epoch, score, failed, unjudged in found
        ]


def _where(phase: str, replica: Replica, epoch: int) -> str:
    split = f"split {replica.split}, " if replica.split else ""
    return f"{phase}, network {replica.network}, {split}seed {replica.seed}, epoch {epoch}"
