"""Other ways of moving knowledge between networks, each in place of a part of the recipe `strong`, on the same splits.

    python benchmarks/ways.py --only cora/gcn --splits 10                     rows of all ways, into results/ways.csv
    python benchmarks/ways.py --table docs/recipe.md                          only the table, from the rows

Splits, scores and rows are those of recipe.py. Forms of exchange start from the same four networks of phase 1; what is
taught is taught as the recipe does it (weight 0.9, temperature 1/4, fewer edges in every epoch) but for what is said.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch_geometric.data import Data

from akegnn.channels import Layer, rule_of
from akegnn.errors import AkeError
from akegnn.exchange import correlation
from akegnn.forward import forward
from akegnn.methods.strong import WEIGHT, sharper
from akegnn.phases import Bench, Networks
from akegnn.settings import Exchange, Phases
from akegnn.training import Targets
from akegnn.views import CorruptFeatures, DropEdges, MaskFeatures, Subgraph, View
from recipe import CITATION, Lab, average, by_place, command, difference, held

ROUNDS = 4
VIEWS = [kind(0.3, resample="epoch") for kind in (MaskFeatures, CorruptFeatures, DropEdges, Subgraph)]


# ---- alignment -------------------------------------------------------------------------------------------------------


def align(bench: Bench, networks: Sequence[Networks]) -> list[Networks]:
    """All networks with their hidden neurons in the order of the first one's that they are most correlated with."""
    aligned = [n.copy() for n in networks]
    layers = bench.map.whole_neurons(bench.map.layers)
    for k in range(len(bench.cells)):
        batch = bench.task.alone(k).looked_at()[0]
        states = [n.population.state_dict(k) for n in aligned]
        modules = [copy.deepcopy(n.population.template).eval() for n in aligned]
        for layer in layers:  # from the input on: a layer is matched once those before it are
            for module, state in zip(modules, states, strict=True):
                module.load_state_dict(state)
            first, *others = (_activations(m, layer, batch) for m in modules)
            for state, activations in zip(states[1:], others, strict=True):
                both = correlation(torch.cat([first, activations], 1).mT.double()[None])[0]
                order = linear_sum_assignment(both[: layer.channels, layer.channels :].cpu(), maximize=True)[1]
                permute(state, layer, torch.as_tensor(order))
        for n, state in zip(aligned, states, strict=True):
            n.population.load_state_dict(k, state)
    return aligned


@torch.no_grad()
def _activations(module: nn.Module, layer: Layer, batch: Data) -> Tensor:
    """What the channels of a layer are for every node ``[N, C]``."""
    parts = layer.weights[0].name.split(".")
    names = (".".join(parts[:k]) for k in range(1, len(parts)))
    site = next(module.get_submodule(n) for n in names if rule_of(module.get_submodule(n)) is not None)
    seen: list[Tensor] = []
    handle = site.register_forward_hook(lambda m, args, out: seen.append(out.clone()))
    forward(module, batch)
    handle.remove()
    return seen[0]


def permute(state: dict[str, Tensor], layer: Layer, order: Tensor) -> None:
    """Put the neurons of a layer in another order, with all that travels with them and all that reads them."""
    for slot in dict.fromkeys((*layer.weights, *layer.travels, *layer.readers)):
        rows = slot.rows(state[slot.name], lead=0)
        rows.copy_(rows[order.to(rows.device)].clone())


# ---- ways ------------------------------------------------------------------------------------------------------------


class Ways(Lab):
    """Forms of exchange, teachers, schedules and views beside the recipe's own."""

    @cached_property
    def soft(self) -> Tensor:
        return sharper(self.mean)

    @cached_property
    def shared(self) -> Bench:
        """Four networks of phase 1 from the same initial weights."""
        return replace(self.bench, how=Phases(initial="shared"), history=[], failed={})

    def again(self, name: str, start: Networks) -> Networks:
        """Trained again on labels, on the original graph."""
        return self.train(f"{name}, labels", start, self.same)

    def taught(
        self,
        name: str,
        start: Networks | None = None,
        view: View | None = None,
        soft: Tensor | None = None,
        weight: float = WEIGHT,
        bench: Bench | None = None,
    ) -> Networks:
        """Taught as the recipe does, but for what is given."""
        if name not in self.known:
            network = (self.merged if start is None else start).copy()
            targets = [Targets(s, weight) for s in (self.soft if soft is None else soft)]
            (bench or self.bench).train(network, view or self.anew, "re-training", name, targets=targets)
            self.known[name] = network
        return self.known[name]

    def shorter(self, share: int) -> Bench:
        """The same with a share of the epochs."""
        settings = self.bench.trainer.settings
        return self._with(replace(settings, epochs=max(1, settings.epochs // share)))

    def _with(self, settings: object) -> Bench:
        other = copy.copy(self.bench)
        other.trainer = replace(self.bench.trainer, settings=settings)
        return other

    # -- forms of exchange, without any training after them

    def form(self, name: str) -> Networks:
        """One network of four; a way that the backbone does not allow is refused."""
        if name not in self.known:
            self.known[name] = FORMS[name](self)
        return self.known[name]

    def swapped(self, how: Exchange) -> Networks:
        networks = [n.copy() for n in self.bench.individual]
        replace(self.bench, exchange=how, history=[], failed={}).swap(networks)
        return networks[0]

    # -- ways of teaching

    def rounds(self, labels: bool) -> Networks:
        """Merged, trained apart for a quarter of the epochs, merged again, four times."""
        short, merged = self.shorter(ROUNDS), self.merged
        targets = None if labels else [Targets(s, WEIGHT) for s in self.soft]
        for r in range(ROUNDS):
            networks = [merged.copy() for _ in self.bench.names]
            for k, network in enumerate(networks):
                short.train(network, self.anew, "re-training", f"round {r}, {labels}, {k}", targets=targets)
            merged = self.by_function(networks)
        return merged

    def schedule(self, *steps: tuple[Tensor, float]) -> Networks:
        """Soft targets and their weight change after every part of the epochs."""
        short, network = self.shorter(len(steps)), self.merged.copy()
        for k, (soft, weight) in enumerate(steps):
            targets = [Targets(s, weight) for s in soft]
            short.train(network, self.anew, "re-training", f"step {k} of {weight}", targets=targets)
        return network

    def sure_first(self) -> Networks:
        """In the first half of the epochs only the nodes that the teachers are surest of."""
        sure = self.mean.max(-1).values
        half = sure >= sure.median(-1, keepdim=True).values
        return self.schedule((self.soft * half[..., None] * 2, WEIGHT), (self.soft, WEIGHT))

    def by_validation(self) -> Networks:
        """A teacher that is a point worse on validation nodes counts a third."""
        predictions = [self.bench.predict(n) for n in self.bench.individual]
        scores = torch.stack([self.bench.task.scores(p, "val") for p in predictions])  # [V, cells]
        weights = (100 * scores).softmax(0).to(self.mean)[..., None, None]
        mean = (torch.stack(predictions).softmax(-1) * weights).sum(0)
        return self.taught("by validation", soft=sharper(mean))

    def by_score(self) -> Networks:
        """The best epoch by validation score, where the preset takes the one with the lowest loss."""
        settings = self.bench.trainer.settings
        if settings.select == "score":
            raise AkeError("the preset does so already")
        return self.taught("by score", bench=self._with(replace(settings, select="score")))

    def others(self) -> Networks:
        """Four taught on a view of their own each, by function."""
        return self.by_function([self.taught(f"taught on {v}", view=v) for v in VIEWS])


FORMS: dict[str, Callable[[Ways], Networks]] = {
    "no exchange": lambda lab: lab.bench.individual[0],
    "as in the paper": lambda lab: lab.swapped(Exchange()),
    "as in the paper, hidden layers": lambda lab: lab.swapped(Exchange(layers="hidden")),
    "whole neurons": lambda lab: lab.swapped(Exchange(strategy="neuron")),
    "averaged": lambda lab: average(lab.bench.individual),
    "aligned, averaged": lambda lab: average(align(lab.bench, lab.bench.individual)),
    "shared start, averaged": lambda lab: average(lab.shared.individual),
    "shared start, by function": lambda lab: lab.shared.merged[0],
    "by function": lambda lab: lab.merged,
}
TAUGHT = "by function, taught"
TEACHING: dict[str, Callable[[Ways], Networks]] = {  # what is different, in place of TAUGHT
    "temperature 1": lambda lab: lab.taught("1", soft=lab.mean),
    "temperature 1/2": lambda lab: lab.taught("1/2", soft=sharper(lab.mean, 2.0)),
    "temperature 1/8": lambda lab: lab.taught("1/8", soft=sharper(lab.mean, 8.0)),
    "weight 0.5": lambda lab: lab.taught("0.5", weight=0.5),
    "weight 0.5 in the first half of the epochs, then 0.9": lambda lab: lab.schedule((lab.soft, 0.5), (lab.soft, 0.9)),
    "weight 0.9 in the first half, then 0.5": lambda lab: lab.schedule((lab.soft, 0.9), (lab.soft, 0.5)),
    "the surer half of the nodes in the first half": Ways.sure_first,
    "teachers by validation score": Ways.by_validation,
    "best epoch by score, not by loss": Ways.by_score,
    "on masked features": lambda lab: lab.taught(f"taught on {VIEWS[0]}", view=VIEWS[0]),
    "on subgraphs": lambda lab: lab.taught(f"taught on {VIEWS[3]}", view=VIEWS[3]),
    "four, each on another view, by function": Ways.others,
    "in rounds, merged after every quarter": lambda lab: lab.rounds(labels=False),
}


def _variants() -> dict[str, Callable[[Ways], Networks]]:
    found: dict[str, Callable[[Ways], Networks]] = {"base": lambda lab: lab.bench.base}
    for name in FORMS:
        found[name] = lambda lab, name=name: lab.form(name)
        found[f"{name}, trained again"] = lambda lab, name=name: lab.again(name, lab.form(name))
        found[f"{name}, taught"] = lambda lab, name=name: lab.taught(f"{name}, taught", lab.form(name))
    found["in rounds on labels"] = lambda lab: lab.rounds(labels=True)
    return found | TEACHING


VARIANTS = _variants()


# ---- the table -------------------------------------------------------------------------------------------------------


def table(rows: list[dict[str, str]]) -> str:
    """Each form of exchange over the base, and each way of teaching over the recipe's, by regime."""
    found = by_place(rows)

    def over(new: str, old: str, few: bool) -> str:
        both = [v for k, v in found.items() if (k[0] in CITATION) is few and new in v and old in v]
        return difference([held(v[new]) - held(v[old]) for v in both])

    head = ["one network of four", "right after it", "trained again on labels", "taught"]
    lines = []
    for few in (True, False):
        about = "few labels" if few else "many labels"
        lines += [f"| {about}: {head[0]} | {' | '.join(head[1:])} |", "| --- | --- | --- | --- |"]
        for name in FORMS:
            ends = (name, f"{name}, trained again", f"{name}, taught")
            lines.append(f"| {name} | {' | '.join(over(end, 'base', few) for end in ends)} |")
        lines.append("")
    lines += ["| instead of the recipe's way of teaching | few labels | many labels |", "| --- | --- | --- |"]
    lines += [f"| {name} | {over(name, TAUGHT, True)} | {over(name, TAUGHT, False)} |" for name in TEACHING]
    rounds = [over("in rounds on labels", "by function, trained again", few) for few in (True, False)]
    lines += ["", "| instead of training the merged network again | few labels | many labels |", "| --- | --- | --- |"]
    return "\n".join([*lines, f"| on fewer edges, merged again after every quarter | {' | '.join(rounds)} |"])


if __name__ == "__main__":
    command(__doc__, "results/ways.csv", VARIANTS, Ways, "ways", table)
