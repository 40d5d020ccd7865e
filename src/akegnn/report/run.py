"""The page of a run folder: what was trained, what it gained, what was exchanged, how the network that ships errs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..exchange import Swap
from ..experiments.shown import aside
from ..runs import Records, records, unrepeatable
from ..strategies import strategy
from . import charts
from .charts import Chart, Table, Triangle
from .page import Fact, Page, Section, Sheet

CURVE = 300  # points of a learning curve
MAPPED = 1000  # points of a map: more hide each other
CLASSES = 60  # of a confusion matrix that can still be read
COUNTED = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
OUTSIDE = "no network of the ring"
MERGED = "the merged network"
OLD = "This run folder was written before runs kept their evidence, so there is nothing to draw here. Train it again."


def run_page(folder: Path) -> Page:
    """Everything about one run."""
    run = records(folder)
    s = run.settings
    lines = run.metrics["scores"]
    count = len(s.views)
    networks = f"{COUNTED[count] if count < len(COUNTED) else count} networks" if count > 1 else "One network"
    seeds = len({(x.split, x.seed) for x in run.scores})
    lead = (
        f"{networks}, each trained on its own view of the graph, {_what_became(run)} "
        f"(recipe {s.recipe}); one ships. {_counted(seeds)}, {s.task} task, {run.metrics['metric']} in per cent on the "
        "original data, at each network's best validation epoch."
    )
    return Page(
        title=f"{s.model} on {_short(s.data)}",
        kind="Run",
        lead=lead,
        facts=_facts(lines),
        sections=[_gains(run), _learning(run), _exchange(run), *_errors(run), _setting(run)],
    )


def _counted(seeds: int) -> str:
    return "One seed" if seeds == 1 else f"{seeds} runs (splits and seeds)"


def _short(data: str) -> str:
    return "a graph given in Python" if data == "given" else Path(data).name or data


def _percent(value: float | None, sign: str = "") -> str:
    return "–" if value is None else f"{100 * value:{sign}.2f}".replace("-", "−")


# ---- scores ----------------------------------------------------------------------------------------------------------


def shipped_line(lines: Sequence[Mapping[str, Any]]) -> int:
    """Which line is the network that ships: AKE, or else the last that is a single network of its own."""
    names = [line["name"] for line in lines]
    if "AKE" in names:
        return names.index("AKE")
    own = [k for k, line in enumerate(lines) if line["passes"] == 1 and " network " not in line["name"]]
    return own[-1] if own else len(lines) - 1


def _facts(lines: Sequence[Mapping[str, Any]]) -> list[Fact]:
    ships = lines[shipped_line(lines)]
    several = ships.get("deviation") is not None
    facts = [
        Fact(
            f"{ships['name']}, {'mean' if several else 'which ships'}",
            _percent(ships["test"]),
            _spread(ships),
            main=True,
        )
    ]
    base = next((x for x in lines if x["name"] == "base"), None)
    if base is not None:
        facts.append(Fact("base, mean" if several else "base", _percent(base["test"]), _spread(base)))
        gain = ships.get("gain")
        note = "points, one seed: no interval"
        if gain is not None:
            note = f"points, 95 % interval {_percent(ships['gain_low'], '+')} to {_percent(ships['gain_high'], '+')}"
        gained = ships["test"] - base["test"] if gain is None else gain
        facts.append(Fact("gained over the base", _percent(gained, "+"), note))
    vote = next((x for x in lines if x["name"] == "ensemble"), None)
    if vote is not None:
        facts.append(Fact("ensemble", _percent(vote["test"]), f"{vote['passes']} passes for a prediction"))
    return facts


def _spread(line: Mapping[str, Any]) -> str:
    if line.get("deviation") is None:
        return f"test; validation {_percent(line['validation'])}"
    return f"± {_percent(line['deviation'])}, interval {_percent(line['low'])} to {_percent(line['high'])}"


def score_sheet(lines: Sequence[Mapping[str, Any]], metric: str) -> Sheet:
    """The table of scores."""
    several = lines[0].get("deviation") is not None
    gains = any(x.get("gain") is not None for x in lines)
    head = ["", "validation", "test", *(["± sd", "95 % interval"] if several else []), "passes", "seconds"]
    rows = []
    for x in lines:
        row = [x["name"], _percent(x["validation"]), _percent(x["test"])]
        if several:
            row += [_percent(x["deviation"]), f"{_percent(x['low'])} to {_percent(x['high'])}"]
        row += [str(x["passes"]), f"{x['seconds']:.1f}"]
        if gains:
            own = x.get("gain") is not None
            interval = f"{_percent(x['gain'], '+')} [{_percent(x['gain_low'], '+')}, {_percent(x['gain_high'], '+')}]"
            row.append(interval if own else "")
        rows.append(row)
    told = "in per cent. Passes: what a prediction costs; seconds: of training that it took."
    caption = f"{metric[:1].upper()}{metric[1:]} {told}"
    return Sheet(caption, (*head, *(["over base, paired"] if gains else [])), rows, shipped_line(lines))


def score_chart(lines: Sequence[Mapping[str, Any]], metric: str, seeds: Sequence[Any] = ()) -> Chart:
    """The same as a picture; ``seeds`` are single scores behind means."""
    ships = lines[shipped_line(lines)]["name"]
    shown = [x for x in lines if not aside(x["name"])]  # these would push all others to one side
    roles = {x["name"]: "ships" if x["name"] == ships else "base" if x["name"] == "base" else "other" for x in shown}
    several = lines[0].get("low") is not None
    names = ("test", "low", "high") if several else ("test",)
    rows: list[list[Any]] = [["line", x["name"], roles[x["name"]], *(_points(x[n]) for n in names)] for x in shown]
    if several and len(seeds) <= 5000:
        rows += [["seed", s.name, roles[s.name], _points(s.test), None, None] for s in seeds if s.name in roles]
    table = Table(("part", "name", "role", *names), rows)
    about = "Bars are 95 % intervals of the mean, strokes single runs." if several else "One seed."
    told = ", ".join(f"{x['name']} {_percent(x['test'])}" for x in shown)
    return Chart("Test scores", about, charts.scores(table, metric, len(shown)), table, told, wide=True)


def _points(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 3)


def _gains(run: Records) -> Section:
    lines, metric = run.metrics["scores"], run.metrics["metric"]
    text = []
    if run.metrics.get("floor") is not None:
        text.append(f"Chance, or always the commonest training class: {_percent(run.metrics['floor'])}.")
    if lines[0].get("deviation") is None:
        text.append("One seed tells little: train with `--seeds 10` to see how sure a difference is.")
    text += [f"Failed: {failure}" for failure in run.metrics.get("failures", [])]
    chart = score_chart(lines, metric, run.scores)
    return Section("scores", "What it gained", text, [score_sheet(lines, metric)], [chart])


# ---- learning --------------------------------------------------------------------------------------------------------


def _learning(run: Records) -> Section:
    phases = list(dict.fromkeys(e.phase for e in run.history))
    networks = list(dict.fromkeys([*_network_names(run), *(e.network for e in run.history)]))
    drawn = []
    for phase in phases:
        rows: list[list[Any]] = []
        for network in dict.fromkeys(e.network for e in run.history if e.phase == phase):
            epochs = [e for e in run.history if (e.phase, e.network) == (phase, network)]
            step = -(-len(epochs) // CURVE)
            rows += [[network, e.epoch, _points(e.validation), round(e.loss, 5)] for e in epochs[::step]]
        table = Table(("network", "epoch", "validation", "loss"), rows)
        name = phase[:1].upper() + phase[1:]
        present = list(dict.fromkeys(row[0] for row in rows))
        told = f"By epoch, one line for each of {len(present)} networks."
        few = len(rows) <= 15 * len(present)  # of several seeds, every twentieth epoch is recorded
        for what, field, unit in (("validation score", "validation", "per cent"), ("training loss", "loss", "loss")):
            drawn.append(Chart(f"{name}: {what}", told, charts.curves(field, unit, networks, present, few), table))
    text = [] if drawn else ["No epochs were recorded: the networks were trained by a loop of your own, or given."]
    return Section("learning", "How the networks learned", text, charts=drawn)


# ---- exchange --------------------------------------------------------------------------------------------------------


def _exchange(run: Records) -> Section:
    own = [x for x in run.swaps if x.replica == run.shipped]
    layers = (run.evidence or {}).get("layers", [])
    text = []
    if not own:
        why_not = run.metrics.get("why_not_exchanged")  # earlier versions did not tell
        text.append(f"No channels were exchanged: {why_not}." if why_not else "No channels were exchanged.")
    else:
        moved = sum(x.scalars for x in own)
        count = len(run.settings.views)
        if strategy(run.settings.exchange.strategy).merges:
            text.append(f"{len(own)} channels of {count} networks, {moved:,} weights, became one network.")
        else:
            text.append(f"{len(own)} swaps moved {moved:,} weights between {count} networks.")
    if run.evidence is None:
        text.append(OLD)
    names = list(dict.fromkeys([x["name"] for x in layers] + [x.layer for x in own]))
    drawn = []
    for when in ("before", "after"):
        found = {x["name"]: Triangle(x["channels"], x[when]) for x in layers if when in x}
        if found:
            told = "Pearson correlation between the channels of the selected layer, in the network that ships."
            title = f"Correlation of channels {when} the exchange"
            drawn.append(Chart(title, told, charts.correlations(), next(iter(found.values())), choices=dict(found)))
    drawn += _moves(run, own, layers)
    overview = _entropy_overview(layers)
    choose = ("Layer", names) if any(c.choices for c in drawn) and len(names) > 1 else None
    return Section("exchange", "What was exchanged", text, charts=[*drawn, *overview], choose=choose)


def _what_became(run: Records) -> str:
    if run.metrics.get("why_not_exchanged"):
        return "could not exchange channels; the best of them was trained again in several ways"
    if strategy(run.settings.exchange.strategy).merges:
        return "were merged into one, which was trained again in several ways"
    return "exchanged channels and were trained again"


def _moves(run: Records, swaps: Sequence[Swap], layers: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Where channels came from, and the entropy on the way; strategies that do not tell have no such chart."""
    named = _network_names(run)
    merged = strategy(run.settings.exchange.strategy).merges
    known = {x["name"]: x["channels"] for x in layers}
    channels = [x for x in swaps if x.source_channel is not None and x.target_channel is not None]
    origin: dict[str, Table] = {}
    entropy: dict[str, Table] = {}
    for layer in dict.fromkeys(x.layer for x in channels):
        here = [x for x in channels if x.layer == layer]
        origin[layer] = sources(here, named) if merged else origins(here, named, known.get(layer, 0))
        if steps := _entropy_steps(here, named):
            entropy[layer] = Table(("network", "step", "entropy"), steps)
    drawn = []
    if origin:
        told = (
            "Each square is a channel of the selected layer after the exchange, its colour the network that it comes "
            "from; pale squares never moved."
        )
        first = next(iter(origin.values()))
        outside = any(row[2] == OUTSIDE for table in origin.values() for row in table.rows)
        spec = charts.origins([*named, OUTSIDE] if outside else named, [MERGED] if merged else named)
        drawn.append(Chart("Which channel came from where", told, spec, first, choices={**origin}, wide=True))
    if entropy:
        told = "Entropy of the selected layer's weights in each network, after each step that changed it."
        first = next(iter(entropy.values()))
        drawn.append(
            Chart("Entropy, step by step", told, charts.entropies(named), first, choices={**entropy}, wide=not layers)
        )
    return drawn


def _network_names(run: Records) -> list[str]:
    return [f"{k}: {view.get('name') or view['kind']}" for k, view in enumerate(run.settings.views, 1)]


def sources(picks: Sequence[Swap], networks: Sequence[str]) -> Table:
    """Where every channel of a merged layer comes from."""
    rows = [[MERGED, x.target_channel, networks[x.source], x.source_channel, True] for x in picks]
    return Table(("network", "channel", "from", "was", "moved"), sorted(rows, key=lambda row: row[1]))


def origins(swaps: Sequence[Swap], networks: Sequence[str], channels: int) -> Table:
    """Where every channel of a layer lies in the end: the swaps are made again, with names instead of weights."""
    size = max([channels, *(1 + max(x.source_channel or 0, x.target_channel or 0) for x in swaps)])
    lies = {(n, c): (n, c) for n in range(len(networks)) for c in range(size)}
    for x in swaps:
        here, there = (x.target, x.target_channel or 0), (x.source, x.source_channel or 0)
        given, taken = lies.get(there, there), lies.get(here, here)
        lies[here] = given
        if x.source != x.target:  # within one network a channel is overwritten
            lies[there] = taken

    def name(n: int) -> str:
        return networks[n] if n < len(networks) else OUTSIDE

    rows = [[name(n), c, name(a), b, (n, c) != (a, b)] for (n, c), (a, b) in sorted(lies.items()) if n < len(networks)]
    return Table(("network", "channel", "from", "was", "moved"), rows)


def _entropy_steps(swaps: Sequence[Swap], networks: Sequence[str]) -> list[list[Any]]:
    """Entropy of each network's layer at first, then after each of its steps."""
    told = [x for x in swaps if x.entropy_before is not None and x.entropy_after is not None]
    last: dict[tuple[int, int], float] = {}
    for x in told:
        last.setdefault((x.target, 0), x.entropy_before or 0.0)
        last[x.target, x.step] = x.entropy_after or 0.0
    return [
        [networks[n] if n < len(networks) else str(n + 1), step, round(v, 6)] for (n, step), v in sorted(last.items())
    ]


def _entropy_overview(layers: Sequence[Mapping[str, Any]]) -> list[Chart]:
    rows = [[x["name"], when, v] for x in layers for when, v in zip(("before", "after"), x["entropy"], strict=True)]
    if not rows:
        return []
    told = "Entropy of every exchanged layer's weights in the network that ships."
    table = Table(("layer", "when", "entropy"), rows)
    return [Chart("Entropy before and after the exchange", told, charts.before_after(len(layers)), table)]


# ---- errors ----------------------------------------------------------------------------------------------------------


def _errors(run: Records) -> list[Section]:
    found = run.evidence
    if found is None:
        return [Section("errors", "How the network that ships errs", [OLD])]
    drawn, text = [], []
    if len({(x.split, x.seed) for x in run.scores}) > 1:
        split, seed = run.metrics["split_of_model"], run.metrics["seed_of_model"]
        text.append(f"The network of split {split}, seed {seed}: the best of all runs by validation.")
    if "confusion" in found:
        if len(found["confusion"]) <= CLASSES:
            drawn.append(_confusion(found["confusion"], run.metrics.get("classes")))
        else:
            text.append(f"{len(found['confusion'])} classes are too many for a confusion matrix that can be read.")
    if "calibration" in found:
        rows = [[b["confidence"], b["accuracy"], b["count"]] for b in found["calibration"]["bins"]]
        error = found["calibration"]["error"]
        told = (
            f"Points below the diagonal: surer than right. Expected calibration error {100 * error:.1f} per cent, "
            "over ten equal bins."
        )
        table = Table(("confidence", "accuracy", "count"), rows)
        drawn.append(Chart("Calibration", told, charts.reliability(), table))
    if "roc" in found:
        told = f"Area under the curve: {100 * found['roc']['area']:.2f} per cent. The diagonal is chance."
        drawn.append(
            Chart("ROC curve of the test pairs", told, charts.roc(), Table(("false", "true"), found["roc"]["points"]))
        )
    if found.get("map"):
        chart = _map(found["map"], run.metrics.get("classes"))
        drawn.append(dataclasses.replace(chart, wide=len(drawn) != 1))
    if not drawn:
        text.append("Its output is not of a kind that can be drawn.")
    return [Section("errors", "How the network that ships errs", text, charts=drawn)]


def _class(k: int, names: Sequence[str] | None) -> str:
    return str(names[k]) if names and 0 <= k < len(names) else str(k)


def _confusion(counts: Sequence[Sequence[int]], names: Sequence[str] | None) -> Chart:
    rows = [
        [_class(a, names), _class(b, names), count, round(count / max(sum(row), 1), 4)]
        for a, row in enumerate(counts)
        for b, count in enumerate(row)
    ]
    right = sum(row[k] for k, row in enumerate(counts)) / max(sum(map(sum, counts)), 1)
    told = f"Test part, true class by predicted class; {100 * right:.2f} per cent lie on the diagonal."
    table = Table(("truth", "predicted", "count", "share"), rows)
    return Chart("Confusion matrix", told, charts.confusion(len(counts)), table)


def _map(found: Mapping[str, Any], names: Sequence[str] | None) -> Chart:
    points = np.asarray(found["points"][:], dtype=float)
    some = np.unique(np.linspace(0, len(points) - 1, min(MAPPED, len(points))).round().astype(int))
    places, how = flat(points[some])
    labels, predicted = (
        [found[name][k] for k in some] if found.get(name) is not None else [None] * len(some)
        for name in ("labels", "predicted")
    )
    classes = sorted({c for c in labels if c is not None})
    order = sorted(range(len(some)), key=lambda k: labels[k] or 0)  # the legend counts up
    rows = []
    for k in order:
        known, guess = labels[k], predicted[k]
        shown = "–" if known is None else _class(known, names)
        right = guess is None or guess == known
        rows.append([*places[k], shown, "–" if guess is None else _class(guess, names), right])
    told = f"{how} of the network's outputs for {len(some):,} of {found['of']:,}, coloured by class"
    told += "; hollow where the prediction is wrong." if found.get("predicted") is not None else "."
    table = Table(("x", "y", "class", "predicted", "right"), rows)
    return Chart("Map of the outputs", told, charts.embedding(max(len(classes), 1)), table)


def flat(points: np.ndarray) -> tuple[list[list[float]], str]:
    """Points in the plane, and how they got there."""
    if len(points) < 10 or points.shape[1] <= 2:
        plane = np.hstack([points, np.zeros((len(points), 2))])[:, :2]
        return np.round(plane, 3).tolist(), "The first two principal components"
    from sklearn.manifold import TSNE

    plane = TSNE(perplexity=min(30.0, (len(points) - 1) / 3), init="pca", random_state=0).fit_transform(points)
    return np.round(plane.astype(float), 2).tolist(), "t-SNE"


# ---- setting ---------------------------------------------------------------------------------------------------------


def _setting(run: Records) -> Section:
    s, m = run.settings, run.metrics
    text = []
    if missing := unrepeatable(s):
        text.append(f"Given in Python, so that config.toml alone does not repeat the run: {', '.join(missing)}.")
    else:
        text.append("`akegnn train --config config.toml --out ANOTHER_FOLDER` repeats the run.")
    sizes = ", ".join(f"{name} {size:,}" for name, size in m["splits"].items())
    facts = [["parameters of a network", f"{m.get('parameters', 0):,}"], ["split sizes", sizes]]
    facts += [[name, str(value)] for name, value in m.get("versions", {}).items()]
    settings = [[name, value] for name, value in flattened(dataclasses.asdict(s))]
    return Section(
        "setting",
        "Setting and environment",
        text,
        sheets=[Sheet("Environment", ("", ""), facts, numbers=False)],
        closed=[Sheet("Every setting", ("setting", "value"), settings, numbers=False)],
    )


def flattened(tree: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """A tree of settings as dotted names and values."""
    found: list[tuple[str, str]] = []
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            found += flattened(value, f"{above}{name}.")
        elif isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
            for k, v in enumerate(value, 1):
                found += flattened(v, f"{above}{name}.{k}.")
        else:
            found.append((f"{above}{name}", "–" if value in (None, "", [], {}) else str(value)))
    return found
