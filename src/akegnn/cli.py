"""The command line: parse, call the library, print. Results go to standard output, all else to standard error."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn
from torch_geometric.data import Batch, Data

from . import __version__, data, runs
from .channels import explain as explain_model
from .errors import AkeError, RunFailed
from .exchange import Swap
from .exchange import exchange as exchange_networks
from .fit import Plan, Results, plan, seed_list
from .forward import forward
from .models import build, complete_arguments, find_class
from .progress import Display
from .settings import Exchange, Settings, from_toml, unrepeatable
from .tasks import TASKS, GraphTask, LinkTask, NodeTask, make_task
from .tasks.base import cast, check_graph, precision_of
from .views import VIEWS, from_spec

app = typer.Typer(
    name="akegnn",
    help="Turn several graph neural networks, trained on different views of a graph, into one better network.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="The datasets that are known by name.", no_args_is_help=True)
app.add_typer(data_app, name="data")

DataOption = Annotated[
    str,
    typer.Argument(
        help="A dataset's name (see `akegnn data list`), a folder with nodes.csv and edges.csv, "
        "or a file saved with torch.save(data, path)."
    ),
]
ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="A backbone's name, or package.module:Class for your own.")
]
ArgOption = Annotated[
    list[str] | None, typer.Option("--model-arg", help="key=value, passed to the model; may be repeated.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def main() -> None:
    """Run the command; an error meant for people is one line and its exit code, never a traceback."""
    sys.path.insert(0, "")  # your own model lies in the present folder
    try:
        app()
    except AkeError as e:
        print(f"akegnn: {e}", file=sys.stderr)
        sys.exit(e.code)
    except SystemExit as e:  # typer turns an interrupt into this
        if e.code == 130:
            print("akegnn: interrupted", file=sys.stderr)
        raise


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def train(
    dataset: DataOption = "digits",
    model: ModelOption = "gcn",
    model_arg: ArgOption = None,
    task: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(TASKS)}; by default what the data looks like.")
    ] = None,
    view: Annotated[
        list[str] | None,
        typer.Option(
            help=f"What a network sees, as kind or kind:rate ({', '.join(VIEWS)}); repeat it, one per network."
        ),
    ] = None,
    resample: Annotated[str | None, typer.Option(help="Draw the views `once`, or anew in every `epoch`.")] = None,
    recipe: Annotated[str, typer.Option(help="A named full setting; what you give besides overrides it.")] = "paper",
    seed: Annotated[int, typer.Option(help="Of weights, views and dropout.")] = 0,
    seeds: Annotated[
        int | None, typer.Option(help="So many seeds at once, from --seed on: mean, deviation, interval.")
    ] = None,
    split: Annotated[int, typer.Option(help="Which split, where the data has several.")] = 0,
    epochs: Annotated[int | None, typer.Option(show_default="200", help="Epochs of each phase.")] = None,
    lr: Annotated[float | None, typer.Option(show_default="0.01", help="Learning rate.")] = None,
    weight_decay: Annotated[float | None, typer.Option(show_default="0.0005", help="Weight decay.")] = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many epochs without a better validation score.")
    ] = None,
    optimizer: Annotated[str | None, typer.Option(show_default="Adam", help="A class of torch.optim.")] = None,
    metric: Annotated[str | None, typer.Option(help="accuracy, f1, roc_auc or average_precision.")] = None,
    strategy: Annotated[str | None, typer.Option(show_default="adaptive", help="How channels are chosen.")] = None,
    channels: Annotated[
        int | None, typer.Option(show_default="5", help="Channels exchanged per layer and step (M).")
    ] = None,
    bins: Annotated[
        int | None, typer.Option(show_default="10", help="Bins of the histogram behind the entropy (B).")
    ] = None,
    iterations: Annotated[int | None, typer.Option(show_default="3", help="Times round the ring of networks.")] = None,
    layers: Annotated[
        str | None, typer.Option(show_default="all", help="Exchange `all` layers or only the `hidden` ones.")
    ] = None,
    baseline: Annotated[bool, typer.Option(help="Also train a network on the original graph, to compare with.")] = True,
    precision: Annotated[str | None, typer.Option(help="With --seeds: float32, tf32 or bf16.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    out: Annotated[
        Path | None, typer.Option(show_default="runs/DATA-MODEL-TASK-SEED", help="The run folder to write.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Repeat a run from its config.toml; other options are not read.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a network per view, exchange their channels, re-train, and write the network that ships.

    Examples:

      akegnn train                                  the embedded graph

      akegnn train my_graph/ --model gcn            your own graph

      akegnn train my_graph/ --model my_models:Net --model-arg hidden=32
    """
    many = seed_list(seeds, seed) if seeds is not None else []
    if config is not None:
        recorded = from_toml(config)
        prepared, many = _plan_from(config, recorded), recorded.seeds
    else:
        swapping = {
            "strategy": strategy,
            "channels": channels,
            "bins": bins,
            "iterations": iterations,
            "layers": layers,
        }
        prepared = plan(
            dataset,
            model,
            model_args=_arguments(model_arg),
            task=task,
            views=view or None,
            resample=resample,
            recipe=recipe,
            seed=seed,
            split=split,
            epochs=epochs,
            lr=lr,
            weight_decay=weight_decay,
            patience=patience,
            optimizer=optimizer,
            metric=metric,
            exchange={k: v for k, v in swapping.items() if v is not None},
            baseline=baseline,
            precision=precision,
            device=device,
        )
    s = prepared.settings = dataclasses.replace(prepared.settings, seeds=many)
    folder = out or Path("runs") / (
        f"{Path(s.data).stem}-{s.model.replace(':', '.')}-{s.task}-seed{s.seed}" + (f"x{len(many)}" if many else "")
    )
    if (there := runs.finished_settings(folder)) is not None:
        if there != s:
            raise AkeError(f"{folder}: holds a finished run with other settings; choose another --out or delete it")
        print(f"akegnn: {folder} holds this very run, finished; nothing to do", file=sys.stderr)
        metrics = json.loads((folder / "metrics.json").read_text())
        _show_scores(metrics["scores"], metrics["metric"], metrics["floor"], folder, as_json)
        _report_failures(metrics["failures"])
        return
    trainings = int(s.baseline) + 2 * len(s.views)
    with runs.writing(folder, s) as writing:
        with Display(trainings, s.training.epochs, quiet) as display:
            prepared.trainer = dataclasses.replace(prepared.trainer, on_epoch=display)
            prepared.say = display.say
            result = prepared.run_seeds(many) if many else prepared.run()
        runs.write(result, writing)
    one = result.best if isinstance(result, Results) else result
    lines: Sequence[Any] = result.summary() if isinstance(result, Results) else result.scores
    _show_scores([dataclasses.asdict(x) for x in lines], one.metric, one.floor, folder, as_json)
    _report_failures(result.failures if isinstance(result, Results) else [])


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    dataset: Annotated[str | None, typer.Option("--data", help="Another graph than the one it was trained on.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="package.module:Class, if it was your own model.")
    ] = None,
    pairs: Annotated[
        Path | None, typer.Option(help="Link task: a CSV file with the columns source and target.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write a CSV file instead of printing it.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict with the network of a run: the class of every node or graph, or how likely pairs of nodes are joined."""
    loaded = runs.load(run, find_class(model) if model else None)
    s = loaded.settings
    if dataset is None and s.data == "given":
        raise AkeError(f"{run}: was trained on a graph given in Python; pass --data")
    graphs = data.load(dataset or s.data)
    rows = _predict(loaded.model, graphs, s.task, s.split, pairs, loaded.metrics.get("classes"))
    if as_json:
        print(json.dumps(rows))
        return
    try:
        text = sys.stdout if out is None else out.open("w", newline="")
    except OSError as e:
        raise AkeError(f"{out}: cannot be written ({e.strerror})") from None
    try:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    finally:
        if out is not None:
            text.close()


@app.command()
def exchange(
    target: Annotated[Path, typer.Argument(help="A run folder, or a safetensors file with --model.")],
    source: Annotated[Path, typer.Argument(help="Another of the same architecture.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for target.safetensors, source.safetensors, swaps.csv.")
    ],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="What builds the model of two safetensors files.")
    ] = None,
    model_arg: ArgOption = None,
    dataset: Annotated[
        str | None, typer.Option("--data", help="A graph, where the model needs more than features and edges.")
    ] = None,
    strategy: Annotated[str, typer.Option(help="How channels are chosen.")] = Exchange.strategy,
    channels: Annotated[int, typer.Option(help="Channels exchanged per layer (M).")] = Exchange.channels,
    bins: Annotated[int, typer.Option(help="Bins of the histogram behind the entropy (B).")] = Exchange.bins,
    layers: Annotated[str, typer.Option(help="`all` or `hidden`.")] = Exchange.layers,
    seed: Annotated[int, typer.Option(help="For the strategies that draw.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Swap redundant channels of one network for informative ones of another. The files given are not changed."""
    for given in (target, source):
        if given.resolve() in {(out / f"{name}.safetensors").resolve() for name in ("target", "source")}:
            raise AkeError(f"{given}: would be overwritten; choose another --out")
    first, second = (_network(path, model, model_arg) for path in (target, source))
    how: dict[str, Any] = {"strategy": strategy, "channels": channels, "bins": bins, "layers": layers, "seed": seed}
    swaps = exchange_networks(first, second, data=_some_graph(dataset), **how)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise AkeError(f"{out}: cannot be written ({e.strerror})") from None
    runs.write_tensors(out / "target.safetensors", first.state_dict())
    runs.write_tensors(out / "source.safetensors", second.state_dict())
    runs.write_rows(out / "swaps.csv", Swap, swaps)
    if as_json:
        print(json.dumps([dataclasses.asdict(x) for x in swaps]))
        return
    table = Table("layer", "target channel", "source channel", "correlation", "entropy before", "after", "weights")
    for x in swaps:
        numbers = (f"{v:.4f}" if v is not None else "-" for v in (x.correlation, x.entropy_before, x.entropy_after))
        table.add_row(x.layer, str(x.target_channel), str(x.source_channel), *numbers, str(x.scalars))
    _console().print(table)


@app.command()
def explain(
    model: Annotated[str, typer.Argument(help="A backbone's name, package.module:Class, or a run folder.")] = "gcn",
    model_arg: ArgOption = None,
    own: Annotated[
        str | None, typer.Option("--model", "-m", help="package.module:Class, if a run folder is of your own model.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--data", show_default="digits", help="The graph that decides what goes in and out.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show which tensors of a model take part in an exchange, which do not, and why."""
    if Path(model).is_dir():
        network = runs.load(model, find_class(own) if own else None).model
        rows = explain_model(network, _some_graph(dataset)).rows
    else:
        kind, task = find_class(model), make_task(data.load(dataset or "digits"))
        network = build(kind, complete_arguments(kind, _arguments(model_arg), task))
        rows = explain_model(network, task.example).rows
    if as_json:
        print(json.dumps([dataclasses.asdict(r) for r in rows]))
        return
    table = Table("tensor", "shape", "part", "layer", "why")
    for r in rows:
        table.add_row(r.tensor, "x".join(map(str, r.shape)) or "scalar", r.part, r.layer, r.why)
    _console().print(table)


@data_app.command("list")
def data_list(as_json: JsonOption = False) -> None:
    """The datasets by name, with their sizes."""
    rows = [_statistics(name, data.DATASETS[name].load()) for name in data.DATASETS]
    if as_json:
        print(json.dumps(rows))
        return
    table = Table(*(name for name in rows[0] if name != "about"))
    for row in rows:
        table.add_row(*(str(v) for name, v in row.items() if name != "about"))
    console = _console()
    console.print(table)
    for row in rows:
        console.print(f"{row['name']}: {row['about']}", highlight=False)


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _console() -> Console:
    """Where there is no terminal to tell the width, nothing is folded or cut."""
    console = Console()
    return console if console.is_terminal else Console(width=10_000)


def _plan_from(config: Path, s: Settings) -> Plan:
    if reasons := unrepeatable(s):
        raise AkeError(f"{config}: its {reasons[0]} was given in Python, so the run cannot be repeated from the file")
    t = s.training
    return plan(
        s.data,
        s.model,
        model_args=s.model_args,
        task=s.task,
        views=[from_spec(v) for v in s.views],
        recipe=s.recipe,
        seed=s.seed,
        split=s.split,
        epochs=t.epochs,
        lr=t.lr,
        weight_decay=t.weight_decay,
        patience=t.patience,
        batch_size=t.batch_size,
        optimizer=t.optimizer,
        metric=t.metric or None,
        exchange=s.exchange,
        baseline=s.baseline,
        precision=t.precision,
        device=s.device,
    )


def _arguments(given: list[str] | None) -> dict[str, Any]:
    arguments = {}
    for text in given or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise AkeError(f"--model-arg {text!r}: expected key=value")
        try:
            arguments[key] = json.loads(value)
        except json.JSONDecodeError:
            arguments[key] = {"True": True, "False": False}.get(value, value)
    return arguments


def _some_graph(dataset: str | None) -> Data | None:
    """One graph of a dataset, to call a model on."""
    graphs = data.load(dataset) if dataset is not None else None
    return graphs[0] if isinstance(graphs, list) else graphs


def _network(path: Path, model: str | None, model_arg: list[str] | None) -> nn.Module:
    if path.is_dir():
        return runs.load(path, find_class(model) if model else None).model
    if model is None:
        raise AkeError(f"{path}: a safetensors file needs --model (and --model-arg) to say what it holds")
    network = build(find_class(model), _arguments(model_arg))
    runs.load_weights(network, path)
    return network


def _predict(
    network: nn.Module, graphs: data.Graphs, task: str, split: int, pairs: Path | None, classes: list[str] | None
) -> list[dict[str, Any]]:
    if isinstance(graphs, Data) != (task != "graph"):
        needs = "a list of graphs" if task == "graph" else "one graph"
        raise AkeError(f"data: the run is of the {task} task, which needs {needs}")
    every = [data.own.with_edges(g) for g in ([graphs] if isinstance(graphs, Data) else graphs)]
    every = [cast(g, precision_of(network)) for g in every]
    for k, g in enumerate(every):
        check_graph(g, f"data[{k}]" if task == "graph" else "data")
    if task == "link":
        return _predict_links(network, LinkTask(every[0], split), every[0], pairs)
    if pairs is not None:
        raise AkeError("--pairs: only for the link task")
    bare = [Data(**{k: v for k, v in g.items() if k not in ("y", "split")}) for g in every]
    try:
        with torch.no_grad():
            logits = forward(network, every[0] if task == "node" else Batch.from_data_list(bare))
    except (RuntimeError, IndexError) as e:
        raise AkeError(f"data: the network cannot be run on it ({str(e).splitlines()[0]})") from None
    ids = every[0].get("ids") if task == "node" else None
    best = logits.softmax(-1).max(-1)
    return [
        {
            "id": ids[k] if ids else k,
            "prediction": classes[c] if classes and c < len(classes) else c,
            "probability": round(p, 6),
        }
        for k, (c, p) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    ]


def _predict_links(network: nn.Module, task: LinkTask, graph: Data, pairs: Path | None) -> list[dict[str, Any]]:
    """Of the given pairs, or of those held out for testing; the network sees the training edges, as it always did."""
    ids = graph.get("ids") or list(range(int(graph.num_nodes or 0)))
    if pairs is None:
        ends = task.pairs["test"]
    else:
        index = {str(name): k for k, name in enumerate(ids)}
        ends = data.own.read_pairs(pairs, index)
    with torch.no_grad():
        scores = task.probability(network, ends)
    return [
        {"source": ids[a], "target": ids[b], "probability": round(p, 6)}
        for a, b, p in zip(*ends.tolist(), scores.tolist(), strict=True)
    ]


def _show_scores(scores: list[dict[str, Any]], metric: str, floor: float | None, folder: Path, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"metric": metric, "floor": floor, "folder": str(folder), "scores": scores}))
        return
    many = "deviation" in scores[0]
    columns = ["± sd", "95 % interval"] if many else []
    gains = many and scores[-1].get("gain") is not None
    table = Table(
        "",
        "validation",
        "test",
        *columns,
        "passes",
        "seconds",
        *(["over base"] if gains else []),
        title=f"{metric} in per cent",
        title_justify="left",
    )
    for s in scores:
        aside = s["name"].startswith("AKE network") or s["name"] == "after exchange"
        style = "bold" if s["name"] == "AKE" else "dim" if aside else ""
        cells = [f"{100 * s['validation']:.2f}", f"{100 * s['test']:.2f}"]
        if many:
            cells += [f"{100 * s['deviation']:.2f}", f"{100 * s['low']:.2f} - {100 * s['high']:.2f}"]
        cells += [str(s["passes"]), f"{s['seconds']:.1f}"]
        if gains and s["gain"] is not None:
            cells.append(f"{100 * s['gain']:+.2f} [{100 * s['gain_low']:+.2f}, {100 * s['gain_high']:+.2f}]")
        table.add_row(s["name"], *cells, style=style)
    console = _console()
    console.print(table)
    if floor is not None:
        console.print(f"chance, or always the commonest training class: {100 * floor:.2f}", highlight=False)
    if many:
        console.print(
            f"{scores[0]['n']} seeds; mean, standard deviation and 95 % interval of the mean", highlight=False
        )
    console.print("passes: forward passes that a prediction costs; seconds: of training that it took", highlight=False)
    console.print(f"AKE is the network in {folder}/model.safetensors", soft_wrap=True, highlight=False)


def _report_failures(failures: list[str]) -> None:
    if failures:
        raise RunFailed(f"{len(failures)} seed(s) failed; the first: {failures[0]}")


def _statistics(name: str, graphs: data.Graphs) -> dict[str, Any]:
    known = data.DATASETS[name]
    many = [graphs] if isinstance(graphs, Data) else graphs
    task = NodeTask(graphs) if isinstance(graphs, Data) else GraphTask(graphs)
    return {
        "name": name,
        "tasks": ", ".join(known.tasks),
        "graphs": len(many),
        "nodes": sum(int(g.num_nodes or 0) for g in many),
        "edges": sum(g.num_edges for g in many),
        "features": task.features,
        "classes": task.outputs,
        "splits": "/".join(str(v) for v in task.sizes.values()),
        "present": "embedded",
        "about": known.about,
    }
