"""The command line: parse, call the library, print. Results go to standard output, all else to standard error."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn
from torch_geometric.data import Batch, Data

from . import __version__, data, experiments, runs
from .backbones import BACKBONES
from .channels import explain as explain_model
from .data.prepare import prepare
from .errors import AkeError, RunFailed
from .exchange import Swap, why_not_merged
from .exchange import exchange as exchange_networks
from .experiments import EXPERIMENTS, Shard
from .fit import Plan, Results, as_device, number_list, plan
from .forward import cast, forward, precision_of
from .methods.strong import STUDENTS
from .models import build, complete_arguments, find_class
from .progress import Display
from .report import write as write_report
from .settings import Exchange, Settings, from_toml
from .store import Store
from .strategies import STRATEGIES
from .tasks import TASKS, LinkTask, Task, make_task
from .tasks.base import check_graph
from .tasks.graph import alike
from .trackers import TRACKERS, Tracker
from .training import Epoch
from .views import VIEWS, from_spec

UsageError: Any = typer.BadParameter.__mro__[1]  # click's, which newer versions of typer bring along

app = typer.Typer(
    name="akegnn",
    help="Turn several graph neural networks, trained on different views of a graph, into one better network.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="The datasets that are known by name.", no_args_is_help=True)
app.add_typer(data_app, name="data")
results_app = typer.Typer(help="Stores of results.", no_args_is_help=True)
app.add_typer(results_app, name="results")

DataOption = Annotated[
    str,
    typer.Argument(
        help="A dataset's name (see `akegnn data list`), a folder with nodes.csv and edges.csv, "
        "or a file saved with torch.save(data, path)."
    ),
]
ModelOption = Annotated[
    str, typer.Option("--model", "-m", help="A backbone's name, or package.module:Class or file.py:Class for your own.")
]
ArgOption = Annotated[
    list[str] | None, typer.Option("--model-arg", help="key=value, passed to the model; may be repeated.")
]
RootOption = Annotated[
    Path | None,
    typer.Option(help="A folder with data files; then AKEGNN_DATA and the cache are looked in.", show_default=False),
]
REPRODUCED = Path("runs/reproduced")  # not where a project may keep tables that it shows
ForceOption = Annotated[bool, typer.Option("--force", help="Write over files that are there.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]


def main() -> None:
    """Run the command; an error meant for people is one line and its exit code, never a traceback."""
    sys.path.insert(0, "")  # your own model lies in the present folder
    try:
        code = app(standalone_mode=False) or 0
    except AkeError as e:
        code = _refuse(str(e), e.code)
    except UsageError as e:
        code = _misused(e)
    except typer.Abort:
        code = 130
    if code == 130:
        print("akegnn: interrupted", file=sys.stderr)
    sys.exit(code)


def _misused(error: Any) -> int:
    """A wrong command, option or argument; without any, the help is shown."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message(), end="")
        return int(error.exit_code)
    where = f" (see {error.ctx.command_path} --help)" if error.ctx is not None else ""
    return _refuse(" ".join(error.format_message().split()).removesuffix(".") + where, error.exit_code)


def _refuse(line: str, code: int) -> int:
    print(f"akegnn: {line}", file=sys.stderr)
    return code


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
    ctx: typer.Context,
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
    recipe: Annotated[str, typer.Option(help="A named full setting; what you give besides overrides it.")] = "strong",
    preset: Annotated[
        bool, typer.Option(help="Use the settings known for the model on the dataset, where there are such.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Of weights, views and dropout.")] = 0,
    seeds: Annotated[
        int | None, typer.Option(help="So many seeds at once, from --seed on: mean, deviation, interval.")
    ] = None,
    split: Annotated[int, typer.Option(help="Which split, where the data has several.")] = 0,
    splits: Annotated[int | None, typer.Option(help="So many splits at once, from --split on.")] = None,
    masks: Annotated[str, typer.Option(help="The graph's own splits (`given`), or `random` ones.")] = "given",
    labels_per_class: Annotated[
        int | None, typer.Option(help="Train on so many nodes of each class, drawn by the split's number.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(show_default="given", help="given, row (normalised), degree or constant.")
    ] = None,
    edges: Annotated[str | None, typer.Option(show_default="given", help="given, undirected or reversed.")] = None,
    epochs: Annotated[int | None, typer.Option(show_default="200", help="Epochs of each phase.")] = None,
    lr: Annotated[float | None, typer.Option(show_default="0.01", help="Learning rate.")] = None,
    weight_decay: Annotated[float | None, typer.Option(show_default="0.0005", help="Weight decay.")] = None,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many epochs without a better validation score.")
    ] = None,
    select: Annotated[
        str | None, typer.Option(show_default="score", help="The best epoch by validation `score` or `loss`.")
    ] = None,
    stop: Annotated[
        str | None,
        typer.Option(show_default="best", help="Patience counts from the `best` epoch by that, or `either`."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(show_default="128", help="Graphs per batch (graph task).")] = None,
    optimizer: Annotated[str | None, typer.Option(show_default="Adam", help="A class of torch.optim.")] = None,
    scheduler: Annotated[str | None, typer.Option(help="step:EPOCHS:FACTOR or warmup:EPOCHS.")] = None,
    metric: Annotated[str | None, typer.Option(help="accuracy, f1, roc_auc or average_precision.")] = None,
    strategy: Annotated[str | None, typer.Option(show_default="the recipe's", help="How channels are chosen.")] = None,
    channels: Annotated[
        int | None,
        typer.Option(
            show_default="5",
            help="Channels swapped per layer and step (M); with the strategy functional, which swaps none, as --width.",
        ),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default="the model's",
            help="Channels of every hidden layer of the network that the strategy functional makes; whole heads.",
        ),
    ] = None,
    bins: Annotated[
        int | None, typer.Option(show_default="10", help="Bins of the histogram behind the entropy (B).")
    ] = None,
    iterations: Annotated[int | None, typer.Option(show_default="3", help="Times round the ring of networks.")] = None,
    layers: Annotated[
        str | None, typer.Option(show_default="all", help="Exchange `all` layers or only the `hidden` ones.")
    ] = None,
    baseline: Annotated[bool, typer.Option(help="Also train a network on the original graph, to compare with.")] = True,
    precision: Annotated[str | None, typer.Option(help="With --seeds, or on a GPU: float32, tf32 or bf16.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    data_root: RootOption = None,
    out: Annotated[
        Path | None, typer.Option(show_default="runs/DATA-MODEL-TASK-SEED", help="The run folder to write.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Repeat a run from its config.toml, which settles all but where and how it is shown."),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Curves, scores and settings for TensorBoard, in the run folder.")
    ] = False,
    tensorboard_dir: Annotated[
        Path | None, typer.Option(help="The same in a sub-folder of this folder.", show_default=False)
    ] = None,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="The same for MLflow (MLFLOW_TRACKING_URI).")] = False,
    wandb: Annotated[bool, typer.Option("--wandb", help="The same for Weights & Biases (WANDB_MODE).")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a network per view, exchange their channels, re-train, and write the network that ships.

    Examples:

      akegnn train                                  the embedded graph

      akegnn train my_graph/ --model gcn            your own graph

      akegnn train my_graph/ --model my_models:Net --model-arg hidden=32
    """
    wanted = {"tensorboard": tensorboard or tensorboard_dir is not None, "mlflow": mlflow, "wandb": wandb}
    kinds = [TRACKERS[name] for name, asked in wanted.items() if asked]
    for kind in kinds:  # a missing package is told of at once
        kind.check()
    many = number_list("seeds", seeds, seed) if seeds is not None else []
    parts = number_list("splits", splits, split) if splits is not None else []
    if config is not None:
        recorded = from_toml(config)
        for name in sorted(_given(ctx) - BESIDE_CONFIG):
            raise AkeError(f"{name}: {config} has all settings; leave this out, or change it there")
        given = {"data_root": data_root, "device": device if device != "auto" else recorded.device}
        prepared, many, parts = _plan_from(config, recorded, given), recorded.seeds, recorded.splits
    else:
        swapping = {
            "strategy": strategy,
            "channels": channels,
            "width": width,
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
            preset=preset,
            seed=seed,
            split=split,
            masks=masks,
            labels_per_class=labels_per_class,
            features=features,
            edges=edges,
            epochs=epochs,
            lr=lr,
            weight_decay=weight_decay,
            patience=patience,
            select=select,
            stop=stop,
            batch_size=batch_size,
            optimizer=optimizer,
            scheduler=scheduler,
            metric=metric,
            data_root=data_root,
            exchange={k: v for k, v in swapping.items() if v is not None},
            baseline=baseline,
            precision=precision,
            device=device,
        )
        chosen = prepared.settings.exchange.strategy
        for name in ("bins", "iterations", "layers") if STRATEGIES[chosen].merges else ():
            if swapping[name] is not None:
                raise AkeError(f"--{name}: not for strategy {chosen!r}, which swaps no channels (--recipe paper does)")
    s = prepared.settings = dataclasses.replace(prepared.settings, seeds=many, splits=parts)
    several = bool(many or parts)
    folder = out or Path("runs") / (
        f"{Path(s.data).stem}-{s.model.replace(':', '.')}-{s.task}"
        + (f"-split{s.split}" if s.split or parts else "")
        + (f"x{len(parts)}" if parts else "")
        + f"-seed{s.seed}"
        + (f"x{len(many)}" if many else "")
    )
    if (there := runs.finished_settings(folder)) is not None:
        if there != s:
            raise AkeError(f"{folder}: holds a finished run with other settings; choose another --out or delete it")
        metrics = runs.read_metrics(folder)
        if metrics.get("data_digest", "") not in ("", prepared.digest):
            raise AkeError(
                f"{folder}: holds a finished run on {s.data} as it was before; choose another --out or delete it"
            )
        own = "" if s.model in BACKBONES else " (your model's code is not compared)"
        print(f"akegnn: {folder} holds this very run, finished; nothing to do{own}", file=sys.stderr)
        shipped = metrics.get("shipped", "")
        rest = (folder, as_json, shipped, metrics.get("runs"))
        _show_scores(metrics["scores"], metrics["metric"], metrics["floor"], *rest)
        _report_failures(metrics["failures"])
        return
    again, base = len(s.views), s.baseline
    if s.recipe == "strong":  # the candidates; the base is one of them
        again, base = STUDENTS, s.baseline or not s.exchange.width
    trainings = int(base) + len(s.views) + again
    display = Display(trainings, quiet)
    with runs.writing(folder, s) as writing, ExitStack() as stack:
        places = {"tensorboard": (tensorboard_dir / folder.name) if tensorboard_dir else writing / "tensorboard"}
        trackers = [
            stack.enter_context(kind(places.get(kind.name), s, folder.name, say=_warning(display))) for kind in kinds
        ]
        for tracker in trackers:
            display.say(f"{tracker.name}: {tracker.where}")
        with display:
            drawn = _drawn(s, prepared.trainer.task.sizes) if s.splits_drawn else ""
            read = _read(s.data, prepared.trainer.task) if prepared.digest else ""
            told = "\n".join(filter(None, (drawn, read)))
            prepared.trainer = dataclasses.replace(prepared.trainer, on_epoch=_all(display, trackers, told))
            prepared.say = display.say
            result = prepared.run_seeds(many or [s.seed], parts or None) if several else prepared.run()
        runs.write(result, writing)
        for tracker in trackers:
            tracker.finish(result)
    one = result.best if isinstance(result, Results) else result
    lines: Sequence[Any] = result.summary() if isinstance(result, Results) else result.scores
    counted = result.counted if isinstance(result, Results) else None
    _show_scores([dataclasses.asdict(x) for x in lines], one.metric, one.floor, folder, as_json, one.shipped, counted)
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
    force: ForceOption = False,
    data_root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict with the network of a run: the class of every node or graph, or how likely pairs of nodes are joined."""
    loaded = runs.load(run, find_class(model) if model else None)
    s = loaded.settings
    if dataset is None and s.data == "given":
        raise AkeError(f"{run}: was trained on a graph given in Python; pass --data")
    if dataset is None and s.data not in data.DATASETS and not Path(s.data).exists():
        raise AkeError(
            f"{s.data}: no such folder or file, on which {run} was trained; pass --data with where it is now"
        )
    graphs = prepare(data.load(dataset or s.data, data_root), s.features, s.edges)
    if dataset is None and loaded.metrics.get("data_digest", "") not in ("", data.own.digest(s.data)):
        raise AkeError(f"{s.data}: is not what {run} was trained on; pass --data to predict on it as it is now")
    if isinstance(graphs, Data):
        graphs = data.own.in_order(graphs, loaded.metrics.get("features"))
    split = loaded.metrics.get("split_of_model", s.split)
    if dataset is None and isinstance(graphs, Data) and s.task == "node":  # labels of training nodes may be inputs
        task = make_task(graphs, "node", split=split, masks=s.masks, labels_per_class=s.labels_per_class)
        graphs = task.example
    rows = _predict(loaded.model, graphs, s.task, split, pairs, loaded.metrics.get("classes"))
    if as_json:
        print(json.dumps(rows))
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    if out is None:
        sys.stdout.write(text.getvalue())
    else:
        _write({out: text.getvalue().encode()}, force)


@app.command()
def exchange(
    target: Annotated[Path, typer.Argument(help="A run folder, or a safetensors file with --model.")],
    source: Annotated[
        list[Path],
        typer.Argument(help="Another of the same architecture; functional takes several."),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="Folder for target.safetensors, swaps.csv, and source.safetensors where that changes too.",
        ),
    ],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="What builds the model of two safetensors files.")
    ] = None,
    model_arg: ArgOption = None,
    dataset: Annotated[
        str | None, typer.Option("--data", help="A graph, where the model or the strategy needs one.")
    ] = None,
    strategy: Annotated[str, typer.Option(help="How channels are chosen.")] = Exchange.strategy,
    channels: Annotated[
        int | None, typer.Option(show_default="5", help="Channels swapped per layer (M); functional swaps none.")
    ] = None,
    bins: Annotated[int, typer.Option(help="Bins of the histogram behind the entropy (B).")] = Exchange.bins,
    layers: Annotated[str, typer.Option(help="`all` or `hidden`.")] = Exchange.layers,
    seed: Annotated[int, typer.Option(help="For the strategies that draw.")] = 0,
    keep: Annotated[
        bool, typer.Option(help="Functional: pool the target's channels, too; else it only says how wide to be.")
    ] = True,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Swap redundant channels of one network for informative ones of another. The files given are not changed.

    Examples:

      akegnn exchange runs/a runs/b --out swapped

      akegnn exchange runs/a runs/b runs/c --strategy functional --data digits --out merged
    """
    for given in (target, *source):
        if given.resolve() in {(out / f"{name}.safetensors").resolve() for name in ("target", "source")}:
            raise AkeError(f"{given}: would be overwritten; choose another --out")
    if channels is not None and strategy in STRATEGIES and STRATEGIES[strategy].merges:
        raise AkeError(
            f"--channels: strategy {strategy!r} swaps none, and what it makes is as wide as the target "
            "(--no-keep takes nothing else of it; akegnn train --width makes narrower ones)"
        )
    channels = Exchange.channels if channels is None else channels
    first, *others = (_network(path, model, model_arg) for path in (target, *source))
    how: dict[str, Any] = {"strategy": strategy, "channels": channels, "bins": bins, "layers": layers, "seed": seed}
    swaps = exchange_networks(first, others, data=_some_graph(dataset), keep=keep, **how)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise AkeError(f"{out}: cannot be written ({e.strerror})") from None
    merges = STRATEGIES[strategy].merges  # into the target alone
    changed = {"target": first} if merges else {"target": first, "source": others[0]}
    if merges and (stale := out / "source.safetensors").exists():
        raise AkeError(f"{stale}: is there already, of another exchange; choose another --out or delete it")
    content = {out / f"{name}.safetensors": runs.tensor_bytes(n.state_dict()) for name, n in changed.items()}
    _write(content | {out / "swaps.csv": runs.row_bytes(Swap, swaps)}, force)
    if as_json:
        print(json.dumps([dataclasses.asdict(x) for x in swaps]))
        return
    if merges:
        table = Table("layer", "channel", "from", "channel there", "weights")
        for x in swaps:
            origin = str([*([target] if keep else []), *source][x.source])
            table.add_row(x.layer, str(x.target_channel), origin, str(x.source_channel), str(x.scalars))
        _console().print(table)
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
        network, graph = runs.load(model, find_class(own) if own else None).model, _some_graph(dataset)
    else:
        kind, task = find_class(model), make_task(data.load(dataset or "digits"))
        network, graph = build(kind, complete_arguments(kind, _arguments(model_arg), task)), task.example
    rows = explain_model(network, graph).rows
    if as_json:
        print(json.dumps([dataclasses.asdict(r) for r in rows]))
        return
    table = Table("tensor", "shape", "part", "layer", "why")
    for r in rows:
        table.add_row(r.tensor, "x".join(map(str, r.shape)) or "scalar", r.part, r.layer, r.why)
    why_not = why_not_merged(network, data=graph)
    _console().print(table)
    merged = f"no ({why_not}); the recipe strong goes on without" if why_not else "yes, as far as a small graph tells"
    _console().print(f"exchange by function, as the recipe strong does it: {merged}", highlight=False, markup=False)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="A table or figure, see --list.", show_default=False)] = None,
    show: Annotated[bool, typer.Option("--list", help="What there is.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Seeds (on each split) instead of the protocol's.")] = None,
    splits: Annotated[int | None, typer.Option(help="At most so many splits.")] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Epochs instead of the preset's: to see what a table does or costs.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="A model, a dataset, or model/dataset; may be repeated.")
    ] = None,
    store: Annotated[Path, typer.Option(help="Where results are kept and looked for.")] = REPRODUCED / "store.sqlite",
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for NAME.csv, NAME.rows.csv, NAME.md, NAME.png, NAME.svg.")
    ] = REPRODUCED,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    data_root: RootOption = None,
    shard: Annotated[
        str, typer.Option(metavar="K/N", help="The K-th of N shares, for N processes on one store or N machines.")
    ] = "1/1",
    render: Annotated[
        bool, typer.Option("--render", help="Compute nothing; the table of what is there, whatever seeds it has.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Reproduce a table or figure of the paper; what is in the store already is not computed again.

    Examples:

      akegnn reproduce --list

      akegnn reproduce table3 --only gcn/cora --seeds 100
    """
    if show or name is None:
        rows = [{"name": e.name, "about": e.about, "jobs": len(e.jobs())} for e in EXPERIMENTS.values()]
        _show_rows(rows, as_json)
        return
    if name not in EXPERIMENTS:
        raise AkeError(f"reproduce: {name!r} is not one of {', '.join(EXPERIMENTS)}")
    as_device(device)  # refused now, not block by block
    if out.exists() and not out.is_dir():
        raise AkeError(f"{out}: is a file, a folder is wanted")
    share, whatever = Shard.of(shard), render and seeds is None and splits is None
    asked = EXPERIMENTS[name].lasting(epochs)
    experiment = asked.anywhere() if whatever else asked.at(data_root)
    chosen = experiment.chosen(seeds, splits, only or [])
    refused: list[tuple[str, str]] = []
    with Store(store, create=not render) as kept:
        if whatever:
            places = {(job.row, job.column) for job in chosen}
            wanted = [b for b in experiments.stored(asked, kept) if (b.job.row, b.job.column) in places]
        else:
            wanted = experiments.blocks(chosen, data_root, refused)
            if refused and share.count > 1:  # others may have the data, and count other blocks
                raise AkeError(f"--shard {shard}: needs the data of all jobs; {refused[0][1]}")
        report = experiments.Report(0, 0)
        if not render:
            say = (lambda line: None) if quiet else (lambda line: print(line, file=sys.stderr, flush=True))
            report = experiments.run(share.take(wanted), kept, device, data_root, say)
        found = experiments.entries(experiment, wanted, kept)
        failed = [*report.failed, *refused]
        if not found and not failed:
            of = name + (f" with {epochs} epoch{'s' * (epochs > 1)}" if epochs else "")
            if render:
                raise AkeError(f"{store}: has nothing of {of}")
            print(f"akegnn: {store} has nothing of {of} yet, and shard {shard} has no block of it", file=sys.stderr)
            return
        paths = experiments.write(experiment, found, out, wanted, kept) if found else []  # a table is not written over
    if as_json:
        print(experiments.to_json(found))
    else:
        print(experiments.to_markdown(experiment, found))
        print(f"akegnn: wrote {', '.join(str(p) for p in paths) or 'nothing'}", file=sys.stderr)
    _report_missing(chosen, found)
    if failed:
        lines = "; ".join(f"{label}: {error}" for label, error in failed)
        raise RunFailed(f"{len(failed)} of {report.all + len(refused)} blocks failed: {lines}")


def _report_missing(jobs: Sequence[experiments.Job], entries: Sequence[experiments.Entry]) -> None:
    """So that a table of a part is not taken for the whole. Of official data and its substitute, one will do."""
    wanted, there = (dict.fromkeys((x.row, x.column.removesuffix("-substitute")) for x in xs) for xs in (jobs, entries))
    if missing := [place for place in wanted if place not in there]:
        named = "; ".join(", ".join(place) for place in missing[:5]) + "; ..." * (len(missing) > 5)
        print(f"akegnn: {len(wanted) - len(missing)} of {len(wanted)} places; missing: {named}", file=sys.stderr)


@app.command()
def report(
    source: Annotated[Path, typer.Argument(metavar="RUN|STORE", help="A run folder, or a store of results.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one HTML page about a run, or about a whole reproduction; it needs nothing but a browser.

    Examples:

      akegnn report runs/demo

      akegnn report runs/reproduced/store.sqlite -o results.html
    """
    print(f"akegnn: wrote {write_report(source, out)}", file=sys.stderr)


@results_app.command("show")
def results_show(
    store: Annotated[Path, typer.Argument(help="A store.")] = REPRODUCED / "store.sqlite",
    cells: Annotated[bool, typer.Option(help="Every score, as CSV, instead of an overview.")] = False,
    as_json: JsonOption = False,
) -> None:
    """What is in a store."""
    with Store(store, create=False) as kept:
        if cells:
            rows = [dataclasses.asdict(c) for c in kept.cells()]
            if as_json:
                print(json.dumps(rows))
            elif rows:
                writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
            return
        names = ("block", "scores", "seconds", "finished")
        rows = [dict(zip(names, (a, b, round(c, 1), d), strict=True)) for a, b, c, d in kept.overview()]
        rows += [{"block": a, "scores": 0, "seconds": 0, "finished": f"failed: {b}"} for a, b in kept.failures()]
    _show_rows(rows, as_json)


@results_app.command("merge")
def results_merge(
    store: Annotated[Path, typer.Argument(help="The store that takes.")],
    others: Annotated[list[Path], typer.Argument(help="Stores to take from; they are not changed.")],
) -> None:
    """Take over what other stores have and this one has not."""
    for other in others:
        if not other.is_file():
            raise AkeError(f"{other}: no such store")
    with Store(store) as kept:
        for other in others:
            came, here = kept.merge(other)
            print(f"{other}: {came} blocks taken over, {here} were here already")


@data_app.command("list")
def data_list(data_root: RootOption = None, as_json: JsonOption = False) -> None:
    """The datasets by name, with their sizes and where they are."""
    rows = [_statistics(name, data_root) for name in data.DATASETS]
    if as_json:
        print(json.dumps(rows))
        return
    aside = ("about", "home")
    table = Table(*(name for name in rows[0] if name not in aside))
    for row in rows:
        table.add_row(*(str(v) for name, v in row.items() if name not in aside))
    console = _console()
    console.print(table)
    for row in rows:
        console.print(f"{row['name']}: {row['about']}", highlight=False)


@data_app.command("verify")
def data_verify(
    names: Annotated[list[str] | None, typer.Argument(help="Datasets; all by default.")] = None,
    data_root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the files of datasets, and what they contain, with the checksums recorded."""
    rows: list[dict[str, str]] = []
    for name in names or data.DATASETS:
        source = data.find(name).source
        if not isinstance(source, data.Source):
            rows.append({"name": name, "file": "", "status": "embedded"})
            continue
        found = source.verify(data_root)
        absent = source.find(data_root) is None
        if absent and names and not any(status == "differs" for _, status in found):
            raise AkeError(source.missing(data_root))
        rows += [{"name": name, "file": file, "status": status} for file, status in found]
        if absent:
            rows.append({"name": name, "file": "", "status": "not found"})
    if as_json:
        print(json.dumps(rows))
    else:
        table = Table("name", "file", "status")
        for row in rows:
            table.add_row(*row.values())
        _console().print(table)
    if wrong := [row for row in rows if row["status"] == "differs"]:
        first = wrong[0]
        raise AkeError(f"{first['name']}: {first['file']} differs from what is recorded ({len(wrong)} in all)")


@data_app.command("path")
def data_path(
    name: Annotated[str, typer.Argument(help="A dataset.")],
    data_root: RootOption = None,
) -> None:
    """Print the folder or file that a dataset is read from."""
    known = data.find(name)
    if isinstance(known.source, data.Source) and known.path(data_root) is None:
        raise AkeError(known.source.missing(data_root))
    print(known.present(data_root))


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _all(display: Display, trackers: Sequence[Tracker], first: str) -> Callable[[Epoch], None]:
    """One function that tells all of them; before the first epoch of a run that was not refused, a line for people."""
    hooks: list[Callable[[Epoch], None]] = [display, *(t.on_epoch for t in trackers)]

    def on_epoch(epoch: Epoch) -> None:
        nonlocal first
        if first:
            display.say(first)
            first = ""
        for hook in hooks:
            hook(epoch)

    return on_epoch


def _read(name: str, task: Task) -> str:
    """What a person's own files were taken for: a label with a slip of the pen is one class more."""
    graph = task.example
    names = data.own.names_of(graph, "classes") or []
    told = f" ({', '.join(names[:10])}{', ...' if len(names) > 10 else ''})" if names else ""
    classes = f", {task.outputs} classes{told}" if task.name != "link" else ""
    size = f"{graph.num_nodes} nodes, {graph.num_edges} edges, " if task.name != "graph" else ""
    return f"{name}: {size}{task.features} features{classes}"


def _drawn(s: Settings, sizes: Mapping[str, int]) -> str:
    """What of the split was not in the data, or was asked for."""
    which = f"split {s.split}" + (f" (the first of {len(s.splits)})" if len(s.splits) > 1 else "")
    missing = f", because {s.data} has no masks for it" if s.masks == "given" and "by class" in s.splits_drawn else ""
    return f"{which}: {s.splits_drawn}{missing} ({', '.join(f'{part} {size}' for part, size in sizes.items())})"


def _warning(display: Display) -> Callable[[str], None]:
    return lambda line: display.warn(f"akegnn: {line}")


def _show_rows(rows: Sequence[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows))
        return
    table = Table(*rows[0]) if rows else Table("nothing")
    for row in rows:
        table.add_row(*(escape(str(v)) for v in row.values()))
    _console().print(table)


def _console() -> Console:
    """Where there is no terminal to tell the width, nothing is folded or cut."""
    console = Console()
    return console if console.is_terminal else Console(width=10_000)


BESIDE_CONFIG = {
    *("--config", "--out", "--device", "--data-root", "--quiet", "--json"),
    *("--tensorboard", "--tensorboard-dir", "--mlflow", "--wandb"),
}


def _given(ctx: typer.Context) -> set[str]:
    """What a person wrote on the command line, by the longest name of each option."""
    wrote = (p for p in ctx.command.params if ctx.get_parameter_source(p.name or "").name == "COMMANDLINE")  # type: ignore[union-attr]
    return {max(p.opts, key=len) if p.opts[0].startswith("-") else (p.name or "").upper() for p in wrote}


def _plan_from(config: Path, s: Settings, given: dict[str, Any]) -> Plan:
    if reasons := runs.unrepeatable(s):
        raise AkeError(f"{config}: its {reasons[0]} was given in Python, so the run cannot be repeated from the file")
    t = s.training
    prepared = plan(
        s.data,
        s.model,
        model_args=s.model_args,
        task=s.task,
        views=[from_spec(v) for v in s.views],
        recipe=s.recipe,
        preset=False,  # all of it is in the settings
        seed=s.seed,
        split=s.split,
        masks=s.masks,
        labels_per_class=s.labels_per_class,
        features=s.features,
        edges=s.edges,
        epochs=t.epochs,
        lr=t.lr,
        weight_decay=t.weight_decay,
        weight_decays=t.weight_decays,
        patience=t.patience,
        select=t.select,
        stop=t.stop,
        batch_size=t.batch_size,
        optimizer=t.optimizer,
        scheduler=t.scheduler or None,
        metric=t.metric or None,
        exchange=s.exchange,
        phases=s.phases,
        baseline=s.baseline,
        precision=t.precision,
        **given,
    )
    prepared.settings = dataclasses.replace(prepared.settings, preset=s.preset)  # where they are from
    return prepared


def _write(content: Mapping[Path, bytes], force: bool) -> None:
    """Write files, each whole or not at all; none where one is there that holds something else."""
    for path, new in content.items():
        try:
            other = not force and path.is_file() and path.read_bytes() not in (b"", new)
        except OSError as e:
            raise AkeError(f"{path}: cannot be read ({e.strerror})") from None
        if other:
            raise AkeError(f"{path}: is there already; choose another --out, delete it or pass --force")
    for path, new in content.items():
        runs.write_file(path.resolve() if path.is_file() else path, new)  # a link stays one


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
    network: nn.Module,
    graphs: Data | Sequence[Data],
    task: str,
    split: int,
    pairs: Path | None,
    classes: list[str] | None,
) -> list[dict[str, Any]]:
    if isinstance(graphs, Data) != (task != "graph"):
        needs = "a list of graphs" if task == "graph" else "one graph"
        raise AkeError(f"data: the run is of the {task} task, which needs {needs}")
    every = [data.own.usual(g) for g in ([graphs] if isinstance(graphs, Data) else graphs)]
    every = [cast(g, precision_of(network)) for g in every]
    for k, g in enumerate(every):
        check_graph(g, f"data[{k}]" if task == "graph" else "data")
    if task == "link":
        return _predict_links(network, LinkTask(every[0], split), every[0], pairs)
    if pairs is not None:
        raise AkeError("--pairs: only for the link task")
    bare = alike([Data(**{k: v for k, v in g.items() if k not in ("y", "split")}) for g in every])
    try:
        with torch.no_grad():
            logits = forward(network, every[0] if task == "node" else Batch.from_data_list(bare))
    except (RuntimeError, IndexError) as e:
        raise AkeError(f"data: the network cannot be run on it ({str(e).splitlines()[0]})") from None
    ids = _ids(every[0]) if task == "node" else None
    best = logits.softmax(-1).max(-1)
    return [
        {
            "id": ids[k] if ids else k,
            "prediction": classes[c] if classes and c < len(classes) else c,
            "probability": round(p, 6),
        }
        for k, (c, p) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    ]


def _ids(graph: Data) -> list[str] | None:
    """The nodes' names, where each has one."""
    names = data.own.names_of(graph, "ids")
    return names if names and len(names) == graph.num_nodes else None


def _predict_links(network: nn.Module, task: LinkTask, graph: Data, pairs: Path | None) -> list[dict[str, Any]]:
    """Of the given pairs, or of those held out for testing; the network sees the training edges, as it always did."""
    ids: Sequence[Any] = _ids(graph) or range(int(graph.num_nodes or 0))
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


def _show_scores(
    scores: list[dict[str, Any]],
    metric: str,
    floor: float | None,
    folder: Path,
    as_json: bool,
    shipped: str,
    counted: str | None,
) -> None:
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
            between = f"{100 * s['low']:.2f} - {100 * s['high']:.2f}"
            cells += [f"{100 * s['deviation']:.2f}", between] if s["n"] > 1 else ["-", "-"]
        cells += [str(s["passes"]), f"{s['seconds']:.1f}"]
        if gains and s["gain"] is not None:
            between = f" [{100 * s['gain_low']:+.2f}, {100 * s['gain_high']:+.2f}]" if s["n"] > 1 else ""
            cells.append(f"{100 * s['gain']:+.2f}{between}")
        table.add_row(s["name"], *cells, style=style)
    console = _console()
    console.print(table)
    if floor is not None:
        console.print(f"chance, or always the commonest training class: {100 * floor:.2f}", highlight=False)
    if many:
        console.print(
            f"{counted or scores[0]['n']}; mean, standard deviation and 95 % interval of the mean", highlight=False
        )
    console.print("passes: forward passes that a prediction costs; seconds: of training that it took", highlight=False)
    which = f" ({shipped})" if shipped else ""
    console.print(f"AKE is the network in {folder}/model.safetensors{which}", soft_wrap=True, highlight=False)


def _report_failures(failures: list[str]) -> None:
    if failures:
        raise RunFailed(f"{len(failures)} seed(s) failed; the first: {failures[0]}")


def _statistics(name: str, root: Path | None) -> dict[str, Any]:
    known = data.DATASETS[name]
    return {
        "name": name,
        "tasks": ", ".join(known.tasks),
        **dataclasses.asdict(known.size),
        "present": known.present(root),
        "about": known.about,
        "home": known.home,
    }
