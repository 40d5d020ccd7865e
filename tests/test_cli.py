"""The command line: what goes where, exit codes, one line per error, every command in usual and unusual uses."""

from __future__ import annotations

import contextlib
import csv
import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch_geometric import transforms as T  # noqa: N812 (PyG's own name for it)
from torch_geometric.data import Data
from torch_geometric.nn import GATConv
from typer.testing import CliRunner

import akegnn
from akegnn import cli
from akegnn.backbones import BACKBONES
from akegnn.data import DATASETS
from akegnn.data.own import read_folder
from akegnn.models import find_class
from akegnn.strategies import STRATEGIES, Choice, Strategy
from akegnn.tasks import LinkTask
from akegnn.views import VIEWS, View
from small import Net, csv_folder, fit, graph, graphs, masked, same

QUICK = ["--recipe", "paper", "--epochs", "3", "--view", "mask", "--view", "original", "--device", "cpu"]
OWN = ["--model", "small:Net", "--model-arg", "width=4"]


@dataclass
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch):
    """The command as ``akegnn`` runs it, in this process."""

    def call(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["akegnn", *map(str, arguments)])
        monkeypatch.setattr(sys, "path", [*sys.path])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as exit_:
            cli.main()
        return Ran(exit_.value.code or 0, out.getvalue(), err.getvalue())

    return call


@pytest.fixture
def refused(run):
    """The one line of a command that is refused."""

    def call(*arguments: object, code: int = 2) -> str:
        ran = run(*arguments)
        assert (ran.code, ran.out) == (code, "")
        assert ran.err.startswith("akegnn: ")
        assert ran.err.endswith("\n")
        assert ran.err.count("\n") == 1
        return ran.err.removeprefix("akegnn: ").rstrip("\n")

    return call


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a graph, and a finished run of each task and of an own model."""
    top = tmp_path_factory.mktemp("cli")
    csv_folder(top / "graph")
    torch.save(graphs(), top / "graphs.pt")
    fit(str(top / "graph")).save(top / "node")
    fit(str(top / "graph"), seed=1).save(top / "node1")
    fit(str(top / "graph"), task="link").save(top / "link")
    fit(str(top / "graphs.pt"), "gin").save(top / "gin")
    fit(str(top / "graph"), Net, model_args={"width": 4}).save(top / "own")
    fit(graph()).save(top / "given")
    return top


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


# ---- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "mentions"),
    [
        ([], ["train", "predict", "exchange", "explain", "data", "--version"]),
        (
            ["train"],
            [
                *("--model", "--model-arg", "--task", "--view", "--resample", "--recipe", "--seed", "--split"),
                *("--epochs", "--lr", "--weight-decay", "--patience", "--optimizer", "--metric", "--strategy"),
                *(
                    "--channels",
                    "--width",
                    "--bins",
                    "--iterations",
                    "--layers",
                    "--baseline",
                    "--device",
                    "--out",
                    "--config",
                ),
                *("--tensorboard", "--tensorboard-dir", "--mlflow", "--wandb"),
                *("--quiet", "--json", "nodes.csv", "drop-edges", "package.module:Class", "Examples"),
            ],
        ),
        (["predict"], ["--data", "--model", "--pairs", "--out", "--force", "--json"]),
        (["exchange"], ["--out", "--model", "--model-arg", "--strategy", "--channels", "--bins", "--layers", "--seed"]),
        (["explain"], ["--model-arg", "--data", "--json", "why"]),
        (["data"], ["list"]),
        (["data", "list"], ["--json"]),
    ],
)
def test_help(command, mentions):
    shown = CliRunner().invoke(cli.app, [*command, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    for word in mentions:
        assert word in shown.stdout, word


def test_version(run):
    assert run("--version") == Ran(0, f"{akegnn.__version__}\n", "")


@pytest.mark.parametrize("group", [[], ["data"], ["results"]])
def test_no_command_shows_what_there_is(run, group):
    ran = run(*group)
    assert (ran.code, ran.err) == (2, "")
    assert {"data": "verify", "results": "merge"}.get("".join(group), "train") in ran.out


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (["train", "--epochs", "x"], ["--epochs", "integer", "train --help"]),
        (["train", "--lr", "0,5"], ["--lr", "number"]),
        (["train", "--seed"], ["--seed", "argument"]),
        (["train", "--epoch", "3"], ["No such option", "--epoch", "--epochs"]),
        (["train", "a", "b"], ["unexpected", "b"]),
        (["trian"], ["No such command 'trian'", "'train'"]),
        (["data", "lst"], ["No such command 'lst'", "'list'", "data --help"]),
        (["exchange", "a"], ["source"]),
    ],
)
def test_a_command_that_is_misspelt_is_one_line(refused, given, names):
    message = refused(*given)
    assert all(name in message for name in names), message


# ---- train -----------------------------------------------------------------------------------------------------------


def test_results_go_to_standard_output_and_progress_to_standard_error(run, place, tmp_path):
    ran = run("train", place / "graph", "--out", tmp_path / "run", *QUICK)
    assert ran.code == 0
    loaded = akegnn.load(tmp_path / "run")
    for score in loaded.metrics["scores"]:
        assert any(score["name"] in line and f"{100 * score['test']:.2f}" in line for line in ran.out.splitlines()), (
            score["name"]
        )
    assert str(tmp_path / "run") in ran.out
    drawn, read, *lines = ran.err.splitlines()
    assert read == f"{place / 'graph'}: 60 nodes, 308 edges, 5 features, 3 classes (c0, c1, c2)"
    assert drawn.startswith("split 0: train, val, test drawn")
    names = ["base", "1: mask", "2: original"]
    expected = [f"individual, {n}" for n in names] + [f"re-training, {n}" for n in names[1:]]
    assert len(lines) == 5, "a line for every network that is finished"
    for k, (line, name) in enumerate(zip(lines, expected, strict=True), 1):
        left = "" if k == 5 else r", about \d+:\d\d left"
        assert re.fullmatch(rf"\[{k}/5\] {name}: 3 epochs, best validation \d+\.\d\d, \d+\.\d s{left}", line), line
    assert "\x1b" not in ran.out + ran.err, "no colours where nobody sees them"


def test_json(run, place, tmp_path):
    ran = run("train", place / "graph", "--out", tmp_path / "run", "--json", "--quiet", *QUICK)
    assert (ran.code, ran.err) == (0, "")
    told = json.loads(ran.out)
    assert told["folder"] == str(tmp_path / "run")
    assert [s["name"] for s in told["scores"]] == [
        *("base", "view 1: mask", "view 2: original", "ensemble", "after exchange", "AKE", "AKE network 2"),
    ]
    assert told["scores"] == akegnn.load(tmp_path / "run").metrics["scores"]


def test_options_arrive_where_they_belong(run, place, tmp_path):
    ran = run(
        *("train", place / "graph", "--out", tmp_path / "run", "--quiet", "--device", "cpu"),
        *("--model", "gin", "--model-arg", "hidden_channels=8", "--model-arg", "dropout=0.25"),
        *("--view", "corrupt:0.1", "--view", "subgraph", "--resample", "epoch", "--seed", "7", "--split", "2"),
        *("--epochs", "2", "--lr", "0.02", "--weight-decay", "0", "--patience", "5", "--optimizer", "SGD"),
        *("--metric", "f1", "--strategy", "random-output", "--channels", "2", "--bins", "7", "--iterations", "1"),
        *("--layers", "hidden", "--no-baseline"),
    )
    assert ran.code == 0
    s = akegnn.load(tmp_path / "run").settings
    assert (s.model, s.seed, s.split, s.baseline, s.task) == ("gin", 7, 2, False, "node")
    assert (s.model_args["hidden_channels"], s.model_args["dropout"]) == (8, 0.25)
    assert [(v["kind"], v["rate"], v["resample"]) for v in s.views] == [
        ("corrupt", 0.1, "epoch"),
        ("subgraph", 0.3, "epoch"),
    ]
    t, e = s.training, s.exchange
    assert (t.epochs, t.lr, t.weight_decay, t.patience, t.optimizer, t.metric) == (2, 0.02, 0, 5, "SGD", "f1")
    assert (e.strategy, e.channels, e.bins, e.iterations, e.layers) == ("random-output", 2, 7, 1, "hidden")


def test_width_and_channels(run, refused, place, tmp_path):
    """Of a network that is made by function, --channels is the width; of swaps, how many."""
    quick = ["--epochs", "1", "--view", "mask", "--view", "original", "--device", "cpu", "--quiet"]
    shapes = []
    for name in ("--width", "--channels"):
        assert run("train", place / "graph", "--out", tmp_path / name, name, "3", *quick).code == 0
        loaded = akegnn.load(tmp_path / name)
        assert (loaded.settings.exchange.width, loaded.settings.exchange.channels) == (3, 5)
        shapes.append(tuple(loaded.model.convs[0].lin.weight.shape))
    assert shapes == [(3, 5), (3, 5)]
    for name in ("--width", "--channels"):
        message = refused("train", place / "graph", "--out", tmp_path / "run", name, "64", *quick)
        assert message.startswith("width: 64 channels wanted, gcn has 16")
    message = refused("train", place / "graph", "--out", tmp_path / "run", "--width", "3", *QUICK)
    assert message == "width: only for strategy 'functional', not for 'adaptive'"
    assert not (tmp_path / "run").exists()


def test_the_command_does_what_the_library_does(run, place, tmp_path):
    run("train", place / "graph", "--out", tmp_path / "run", "--seed", "3", "--quiet", *QUICK)
    expected = fit(str(place / "graph"), seed=3, views=["mask", "original"], baseline=True)
    assert same(akegnn.load(tmp_path / "run").model, expected.model)


@pytest.mark.parametrize(
    ("parts", "given", "says"),
    [
        (
            {},
            [],
            r"split 0: train, val, test drawn by class with seed \d+, because \S+/d.pt has no masks for it \(train",
        ),
        (
            {"train": range(30)},
            ["--split", "2"],
            r"split 2: val, test drawn by class with seed \d+, because \S+ has no masks",
        ),
        ({}, ["--splits", "2"], r"split 0 \(the first of 2\): train, val, test drawn"),
        (
            {},
            ["--masks", "random"],
            r"split 0: train, val, test drawn by class with seed \d+ \(train 36, val 12, test 12\)$",
        ),
        ({"train": range(30), "val": range(30, 40), "test": range(40, 60)}, [], None),
        (
            {"train": range(30), "val": range(30, 40), "test": range(40, 60)},
            ["--labels-per-class", "2"],
            r"split 0: 2 labels of each class drawn with seed \d+ \(train 6, val 10, test 20\)$",
        ),
    ],
)
def test_a_split_that_was_drawn_is_told_first(run, tmp_path, parts, given, says):
    torch.save(masked(graph(), **{k: list(v) for k, v in parts.items()}), tmp_path / "d.pt")
    ran = run("train", tmp_path / "d.pt", "--out", tmp_path / "run", *QUICK, *given)
    assert ran.code == 0
    told = [line for line in ran.err.splitlines() if line.startswith("split ")]
    assert len(told) == (says is not None)
    if says is not None:
        assert re.match(says, told[0])
        assert ran.err.startswith(told[0])
        silent = run("train", tmp_path / "d.pt", "--out", tmp_path / "silent", "--quiet", *QUICK, *given)
        assert (silent.code, silent.err) == (0, "")


@pytest.mark.parametrize("task", ["node", "link", "graph"])
def test_a_run_is_repeated_exactly_from_its_config(run, place, tmp_path, task):
    data = place / ("graphs.pt" if task == "graph" else "graph")
    first, second = tmp_path / "first", tmp_path / "second"
    model = OWN if task == "node" else []
    common = ["--resample", "epoch", "--patience", "2", "--quiet", *QUICK, *model]
    assert run("train", data, "--out", first, "--task", task, "--seed", "5", *common).code == 0
    assert run("train", "--config", first / "config.toml", "--out", second, "--quiet").code == 0
    for name in ("config.toml", "history.csv", "swaps.csv", "model.safetensors"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_the_same_command_twice_says_that_it_is_finished(run, place, tmp_path):
    command = ["train", place / "graph", "--out", tmp_path / "run", "--quiet", "--json", *QUICK]
    first, second = run(*command), run(*command)
    assert second.code == 0
    assert second.err == f"akegnn: {tmp_path / 'run'} holds this very run, finished; nothing to do\n"
    assert json.loads(second.out)["scores"] == json.loads(first.out)["scores"]


def test_a_finished_run_on_other_data_is_not_this_one(run, refused, tmp_path):
    """Under the same name there may be another graph by now."""
    folder = csv_folder(tmp_path / "graph")
    command = ["train", folder, "--out", tmp_path / "run", "--quiet", *QUICK]
    assert run(*command).code == 0
    with (folder / "edges.csv").open("a") as f:
        f.write("n0,n1\n")
    says = f"{tmp_path / 'run'}: holds a finished run on {folder} as it was before; choose another --out or delete it"
    assert refused(*command) == says
    message = refused("predict", tmp_path / "run")
    assert (
        message == f"{folder}: is not what {tmp_path / 'run'} was trained on; pass --data to predict on it as it is now"
    )
    assert len(rows(run("predict", tmp_path / "run", "--data", folder).out)) == 60
    shutil.rmtree(folder)
    assert "is not what" not in refused("predict", tmp_path / "run")


def test_of_an_own_model_the_code_is_not_compared(run, place, tmp_path):
    command = ["train", place / "graph", "--out", tmp_path / "run", "--quiet", *QUICK, *OWN]
    assert run(*command).code == 0
    assert run(*command).err.endswith("finished; nothing to do (your model's code is not compared)\n")


def test_a_config_settles_everything_else(run, refused, place, tmp_path):
    """Else a person would get a result of settings that were not asked for."""
    config = place / "node" / "config.toml"
    for given, name in ((["--epochs", "9"], "--epochs"), (["cora"], "DATASET"), (["--no-baseline"], "--baseline")):
        message = refused("train", *given, "--config", config, "--out", tmp_path / "run")
        assert message == f"{name}: {config} has all settings; leave this out, or change it there"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("option", "value"), [("--bins", "5"), ("--iterations", "9"), ("--layers", "hidden")])
def test_options_of_swapping_are_refused_where_nothing_is_swapped(refused, place, tmp_path, option, value):
    message = refused("train", place / "graph", "--out", tmp_path / "run", option, value)
    assert message.startswith(f"{option}: not for strategy 'functional'")


def test_a_model_in_a_file(run, refused, place, tmp_path):
    """With what lies beside it; a mistake in it is told with its line."""
    (tmp_path / "models").mkdir()
    own, bad = tmp_path / "models" / "mine.py", tmp_path / "models" / "bad.py"
    (tmp_path / "models" / "beside_it.py").write_text("WIDTH = 4\n")
    own.write_text("from beside_it import WIDTH\nfrom small import Net as Base\n\n\n"
                   "class Net(Base):\n    def __init__(self, nfeat, nclass):\n"
                   "        super().__init__(nfeat, nclass, WIDTH)\n")  # fmt: skip
    bad.write_text("class Net:\n    def __init__(self:\n")
    given = ["--model", f"{own}:Net"]
    assert run("train", place / "graph", "--out", tmp_path / "run", "--quiet", *QUICK, *given).code == 0
    assert run("predict", tmp_path / "run", *given).code == 0
    train = ["train", place / "graph", "--out", tmp_path / "no"]
    assert refused(*train, "--model", f"{bad}:Net").startswith(f"model: {bad}: line 2: ")
    bad.write_text("x = 1\ny = torch.nosuch\n")
    assert refused(*train, "--model", f"{bad}:Net").startswith(f"model: {bad}: line 2: NameError: ")
    assert refused(*train, "--model", f"{tmp_path}/none.py:Net") == f"model: {tmp_path}/none.py: no such file"
    assert refused(*train, "--model", f"{own}:Other") == f"model: '{own}' has no 'Other'"


@pytest.mark.parametrize(
    ("model", "says"),
    [("gcn", "yes"), ("unet", "no ("), ("torch_geometric.nn:GCN", "yes")],
)
def test_explain_tells_whether_the_default_recipe_can_merge(run, model, says):
    last = run("explain", model).out.splitlines()[-1]
    assert last.startswith(f"exchange by function, as the recipe strong does it: {says}")


def test_data_and_device_may_be_elsewhere_when_a_run_is_repeated(run, refused, place, tmp_path):
    """The folder of the benchmark data and the machine are a person's, not the experiment's."""
    config = place / "node" / "config.toml"
    common = ["train", "--config", config, "--out", tmp_path / "run", "--quiet"]
    assert refused(*common, "--device", "cuda:99").startswith("device")
    assert run(*common, "--device", "cpu").code == 0


@pytest.mark.parametrize("argument", ["act=null", "act_kwargs={}", "norm=batch_norm", "dropout=0", "v2=True"])
def test_the_same_command_twice_however_the_model_is_built(run, place, tmp_path, argument):
    model = ["--model", "torch_geometric.nn:GAT", "--model-arg", "hidden_channels=8", "--model-arg", argument]
    command = ["train", place / "graph", "--out", tmp_path / "run", "--quiet", *QUICK, *model]
    assert [run(*command).code, run(*command).code] == [0, 0]


def test_another_command_does_not_touch_a_finished_run(refused, place):
    before = (place / "node" / "model.safetensors").read_bytes()
    message = refused("train", place / "graph", "--out", place / "node", "--seed", "8", *QUICK)
    assert message.startswith(f"{place / 'node'}: holds a finished run with other settings")
    assert (place / "node" / "model.safetensors").read_bytes() == before


def test_the_folder_has_a_name_of_its_own_where_none_is_given(run, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("train", place / "graph", "--seed", "4", "--quiet", *QUICK).code == 0
    assert akegnn.load(tmp_path / "runs" / "graph-gcn-node-seed4").settings.seed == 4


# ---- bad input -------------------------------------------------------------------------------------------------------


def nodes(change=lambda cells: cells) -> list[list[object]]:
    """The rows of nodes.csv, each changed."""
    data = masked(graph())
    header = ["id", "label", *(f"x{k}" for k in range(5))]
    every = [[f"n{k}", f"c{int(c)}", *x] for k, (c, x) in enumerate(zip(data.y, data.x.tolist(), strict=True))]
    return [header, *map(change, every)]


def at(row: int, column: int, value: object):
    table = nodes()
    table[row][column] = value
    return table


VALIDATED = [[*cells, "split" if k == 0 else "val"] for k, cells in enumerate(nodes())]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"nodes": at(0, 0, "name")}, ["nodes.csv", "missing column 'id'"]),
        ({"edges": [["from", "target"], ["n0", "n1"]]}, ["edges.csv", "missing column 'source'"]),
        (
            {"edges": [["source", "target"], ["n0", "n99"]]},
            ["edges.csv", "line 2", "target 'n99' is not the id of a node"],
        ),
        ({"nodes": at(7, 3, "tall")}, ["nodes.csv", "line 8", "column 'x1' must be a number, got 'tall'"]),
        ({"nodes": at(7, 3, "nan")}, ["nodes.csv", "line 8", "column 'x1' must be finite, got 'nan'"]),
        ({"nodes": nodes(lambda c: [c[0], "c0", *c[2:]])}, ["y: only one class (0)"]),
        ({"nodes": nodes(lambda c: [c[0], "", *c[2:]])}, ["data.y: missing"]),
        ({"nodes": VALIDATED}, ["train_mask: the train split is empty"]),
        ({"nodes": at(0, 2, "split")}, ["nodes.csv", "line 2", "split must be train, val, test or empty"]),
    ],
)
def test_a_folder_that_is_wrong(refused, tmp_path, files, says):
    folder = csv_folder(tmp_path / "graph", **files)
    message = refused("train", folder, "--out", tmp_path / "run", *QUICK)
    for part in says:
        assert part in message
    assert not (tmp_path / "run").exists()


PARTS = {"train": list(range(30)), "val": list(range(30, 40)), "test": list(range(40, 50))}


def unlabelled(data):
    data.y[3] = -1
    return data


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (unlabelled(masked(graph(), **PARTS)), "y: number "),
        (masked(graph(), **{**PARTS, "val": []}), "val_mask: the val split is empty"),
        (masked(graph(), **{**PARTS, "val": [3]}), "train_mask: shares nodes or graphs with val_mask"),
        (graph(y=torch.zeros(60).long()), "y: only one class (0); at least two are needed"),
        (graph(x=torch.full((60, 5), torch.nan)), "data.x: contains NaN or infinite features"),
        (graph(x=graph().x.tolist()), "data.x: "),
        (graph(edge_index=graph().edge_index.t()), "data.edge_index: "),
        (graph(y=graph().y.view(20, 3)), "data.y: must have one label per node (60)"),
        ({"x": graph().x}, "{path}: holds a dict; expected a PyG Data or a list of them"),
        (torch.nn.Linear(2, 2), "{path}: not a saved PyG Data (it names torch.nn.modules.linear.Linear)"),
    ],
)
def test_a_saved_graph_that_is_wrong(refused, tmp_path, data, says):
    path = tmp_path / "data.pt"
    torch.save(data, path)
    assert refused("train", path, "--out", tmp_path / "run", *QUICK).startswith(says.format(path=path))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--task", "edges"], "task: 'edges' is not one of node, link, graph"),
        (["--task", "graph"], "data: the graph task needs a list of graphs"),
        (["--model", "resnet"], "model: 'resnet' is neither one of"),
        (["--model", "no_such_module:Net"], "model: cannot import 'no_such_module'"),
        (["--model", "small:Net"], "model_args: Net needs 'width' (--model-arg width=...)"),
        (["--model", "small:not_a_model"], "model: not_a_model built a int"),
        (["--model-arg", "hidden_channels"], "--model-arg 'hidden_channels': expected key=value"),
        (["--model-arg", "heads=3"], "model_args: 'heads' is not an argument of GCN"),
        (["--model-arg", "hidden_channels=many"], "model: GCN cannot be built with"),
        (["--model-arg", "out_channels=4"], "model: its output has shape (60, 4), the node task needs 3 columns"),
        (["--model-arg", "in_channels=4"], "GCN: could not be run on a small graph"),
        (["--view", "blur"], "view: 'blur' is not one of mask"),
        (["--view", "mask:lots"], "view 'mask:lots': the rate after ':' must be a number"),
        (["--resample", "daily"], "MaskFeatures: resample must be"),
        (["--recipe", "best"], "recipe: 'best' is not one of strong, paper"),
        (["--metric", "acc"], "metric: 'acc' is not one of accuracy"),
        (["--metric", "roc_auc"], "metric: "),
        (["--task", "link", "--metric", "f1"], "metric: "),
        (["--strategy", "best"], "strategy: 'best' is not one of adaptive"),
        (["--layers", "some"], "layers: 'some' is not one of all, hidden"),
        (["--optimizer", "Adma"], "optimizer: torch.optim has no 'Adma'"),
        (["--optimizer", "LBFGS"], "optimizer: "),
        (["--epochs", "0"], "epochs: must be at least 1, got 0"),
        (["--lr", "0"], "lr: must be positive, got 0.0"),
        (["--channels", "0"], "channels: must be at least 1, got 0"),
        (["--device", "abacus"], "device: 'abacus' is not one of auto, cpu, cuda"),
        (["--device", "meta"], "device: 'meta' is not one of auto, cpu, cuda"),
        (["--config", "no.toml"], "no.toml: cannot be read (No such file or directory)"),
    ],
)
def test_options_that_are_wrong(refused, place, tmp_path, arguments, says):
    """Found before anything is trained: not a line of progress."""
    given = [*QUICK[:6], "--device", "cpu", *arguments]
    assert refused("train", place / "graph", "--out", tmp_path / "run", *given).startswith(says)


def test_a_folder_that_cannot_be_written(refused, place, tmp_path):
    (tmp_path / "file").write_text("mine")
    message = refused("train", place / "graph", "--out", tmp_path / "file" / "run", *QUICK)
    assert message == f"{tmp_path}/file/run: cannot be written (Not a directory)"
    assert refused("train", place / "graph", "--out", tmp_path / "file", *QUICK).startswith(f"{tmp_path}/file: ")
    assert (tmp_path / "file").read_text() == "mine"


def test_data_that_is_not_there(refused, tmp_path):
    assert refused("train", tmp_path / "no").startswith(f"data: '{tmp_path}/no' is neither a dataset (digits,")


def test_a_run_that_fails_is_no_bad_input(refused, place, tmp_path):
    arguments = ["--lr", "1e30", "--optimizer", "SGD", "--quiet", *QUICK]
    message = refused("train", place / "graph", "--out", tmp_path / "run", *arguments, code=1)
    assert re.match(r"individual, network base, epoch [12]: .*\b(nan|NaN|inf)", message)
    assert (tmp_path / "run" / "UNFINISHED").exists()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"data": graph()}, "its data was given in Python"),
        ({"model": lambda: Net(5, 3, 4)}, "its model was given in Python"),
        ({"train": lambda model, data: None}, "training function was given in Python"),
        ({"scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 1)}, "scheduler"),
        ({"optimizer": torch.optim.SGD}, "optimizer"),  # its learning rate is its own, not the setting's
        ({"metric": lambda prediction, target: 0.5}, "metric"),
        ({"views": [T.NormalizeFeatures(), "original"]}, "view"),
    ],
    ids=["data", "model", "train", "scheduler", "optimizer", "metric", "view"],
)
def test_what_was_given_in_python_cannot_be_repeated_from_a_file(refused, place, tmp_path, given, says):
    """Not silently repeated as something else."""
    given = {"data": str(place / "graph"), **given}
    config = fit(**given).save(tmp_path / "run") / "config.toml"
    assert says in refused("train", "--config", config, "--out", tmp_path / "again", "--quiet")


def test_what_was_registered_in_python_cannot_be_repeated_from_a_file(refused, place, tmp_path, monkeypatch):
    """The command does not know it, and whoever wrote it may draw from anywhere."""

    @dataclass
    class Jitter(View):
        rate: float = 0.1

        def draw(self, data, generator):
            data.x = data.x + self.rate * torch.randn(data.x.shape)
            return data

    def last(bench, target, source, count, draws):
        channels = torch.arange(bench.channels - count, bench.channels).expand(bench.layers, count)
        yield Choice(channels, channels)

    monkeypatch.setitem(VIEWS, "jitter", Jitter)
    monkeypatch.setitem(STRATEGIES, "last", Strategy(last, "the last"))
    for name, given in (
        ("view 'jitter'", {"views": ["jitter:0.2", "mask"]}),
        ("strategy 'last'", {"strategy": "last"}),
    ):
        how = given if "views" in given else {"exchange": given}
        folder = fit(str(place / "graph"), **how).save(tmp_path / name)
        says = f"does not repeat the run: {name}."
        assert says in (folder / "README.md").read_text()
        message = refused("train", "--config", folder / "config.toml", "--out", tmp_path / "again", "--quiet")
        assert f"its {name} was given in Python" in message


def test_an_interrupt_is_one_line(run, place, tmp_path, monkeypatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "plan", interrupt)
    assert run("train", place / "graph", "--out", tmp_path / "run") == Ran(130, "", "akegnn: interrupted\n")


# ---- real processes --------------------------------------------------------------------------------------------------


def process(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "akegnn", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_malicious_pickle_in_a_real_process(tmp_path):
    torch.save(graph(extra=Evil(tmp_path / "sprung")), tmp_path / "data.pt")
    ran = process(tmp_path, "train", "data.pt")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("akegnn: data.pt: not a saved PyG Data (it names posix.mkdir)")
    assert ran.stderr.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == ["data.pt"]


def test_an_own_model_that_diverges_in_a_real_process(place, tmp_path):
    """The model lies in the present folder, as a person's does."""
    shutil.copytree(place / "graph", tmp_path / "graph")
    (tmp_path / "my_models.py").write_text(
        "from torch_geometric.nn import GCN\n"
        "class Mine(GCN):\n"
        "    def forward(self, x, edge_index):\n"
        "        return 1e30 * super().forward(x, edge_index)\n"
    )
    ran = process(tmp_path, "train", "graph", "--model", "my_models:Mine", "--lr", "1e30", *QUICK)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert re.fullmatch(r"akegnn: individual, network base, epoch \d: .*\b(nan|NaN|inf).*\n", ran.stderr)


# ---- predict ---------------------------------------------------------------------------------------------------------


def expected_nodes(place, name="node", kind=None):
    data = read_folder(place / "graph")
    with torch.no_grad():
        best = akegnn.load(place / name, kind).model(data.x, data.edge_index).softmax(1).max(1)
    return [
        {"id": data.ids[k], "prediction": data.classes[c], "probability": pytest.approx(p, abs=1e-6)}
        for k, (c, p) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    ]


def test_predict_nodes(run, place, tmp_path):
    as_json = run("predict", place / "node", "--json")
    assert (as_json.code, as_json.err) == (0, "")
    told = json.loads(as_json.out)
    assert told == expected_nodes(place)
    printed = run("predict", place / "node")
    assert [{**r, "probability": float(r["probability"])} for r in rows(printed.out)] == told
    assert run("predict", place / "node", "--out", tmp_path / "p.csv") == Ran(0, "", "")
    assert (tmp_path / "p.csv").read_text() == printed.out


def test_predictions_are_not_written_over_a_file(run, refused, place, tmp_path):
    path, link = tmp_path / "p.csv", tmp_path / "link.csv"
    path.write_text("mine\n")
    link.symlink_to(path)
    for out in (path, link):
        message = refused("predict", place / "node", "--out", out)
        assert message == f"{out}: is there already; choose another --out, delete it or pass --force"
    assert path.read_text() == "mine\n"
    printed = run("predict", place / "node").out
    assert run("predict", place / "node", "--out", link, "--force") == Ran(0, "", "")
    assert (path.read_text(), link.is_symlink()) == (printed, True)
    assert run("predict", place / "node", "--out", path) == Ran(0, "", ""), "the same again changes nothing"
    (tmp_path / "empty").touch()  # as mktemp makes it
    assert run("predict", place / "node", "--out", tmp_path / "empty") == Ran(0, "", "")
    assert (tmp_path / "empty").read_text() == printed
    assert {p.name for p in tmp_path.iterdir()} == {"p.csv", "link.csv", "empty"}


def test_predictions_go_to_a_pipe_as_they_are(run, place, tmp_path):
    assert run("predict", place / "node", "--out", "/dev/null") == Ran(0, "", "")
    assert Path("/dev/null").is_char_device()
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit((tmp_path / "pipe").read_text)
        assert run("predict", place / "node", "--out", tmp_path / "pipe") == Ran(0, "", "")
        assert read.result(60) == run("predict", place / "node").out


def test_predict_with_an_own_model(run, refused, place):
    assert "pass model= (--model)" in refused("predict", place / "own")
    assert json.loads(run("predict", place / "own", "--model", "small:Net", "--json").out) == expected_nodes(
        place, "own", Net
    )


@pytest.mark.parametrize("labels", ["some", "none"])
def test_classes_keep_their_names_on_another_graph(run, place, tmp_path, labels):
    """A graph to predict on has not all labels, or none: the names are those of the training."""
    table = nodes(lambda c: [c[0], c[1] if labels == "some" and c[1] != "c0" else "", *c[2:]])
    folder = csv_folder(tmp_path / "new", nodes=table)
    assert json.loads(run("predict", place / "node", "--data", folder, "--json").out) == expected_nodes(place)


def test_columns_of_another_graph_may_be_in_another_order(run, refused, place, tmp_path):
    """What a column is, is said by its name."""
    table = nodes(lambda c: [*c[:2], *reversed(c[2:])])
    table[0] = [*table[0][:2], "x4", "x3", "x2", "x1", "x0"]
    folder = csv_folder(tmp_path / "new", nodes=table)
    assert json.loads(run("predict", place / "node", "--data", folder, "--json").out) == expected_nodes(place)
    made_up = ["--features", "constant", "--out", tmp_path / "constant", "--quiet", *QUICK]
    assert run("train", place / "graph", *made_up).code == 0
    assert run("predict", tmp_path / "constant", "--data", folder).code == 0, (
        "of features that are made, none has a name"
    )
    table[0][2] = "height"
    folder = csv_folder(tmp_path / "other", nodes=table)
    assert refused("predict", place / "node", "--data", folder) == "data: feature 'x4': missing"


def test_predict_links(run, place, tmp_path):
    data = read_folder(place / "graph")
    task, model = LinkTask(data), akegnn.load(place / "link").model
    told = json.loads(run("predict", place / "link", "--json").out)
    pairs = [(data.ids[a], data.ids[b]) for a, b in task.pairs["test"].t().tolist()]
    assert [(r["source"], r["target"]) for r in told] == pairs
    with torch.no_grad():
        z = model(task.data.x, task.data.edge_index)
    chances = [(z[a] @ z[b]).sigmoid().item() for a, b in task.pairs["test"].t().tolist()]
    assert [r["probability"] for r in told] == pytest.approx(chances, abs=1e-5)
    (tmp_path / "pairs.csv").write_text("source,target\nn5,n0\nn0,n7\n")
    asked = rows(run("predict", place / "link", "--pairs", tmp_path / "pairs.csv").out)
    assert [(r["source"], r["target"]) for r in asked] == [("n5", "n0"), ("n0", "n7")]
    chances = [(z[a] @ z[b]).sigmoid().item() for a, b in ((5, 0), (0, 7))]
    assert [float(r["probability"]) for r in asked] == pytest.approx(chances, abs=1e-5)


def test_predict_graphs(run, place):
    told = json.loads(run("predict", place / "gin", "--json").out)
    model = akegnn.load(place / "gin").model
    chances = torch.cat(
        [model(g.x, g.edge_index, batch=torch.zeros(g.num_nodes, dtype=torch.long)) for g in graphs()]
    ).softmax(1)
    assert [r["id"] for r in told] == list(range(30))
    assert [r["prediction"] for r in told] == chances.argmax(1).tolist()
    assert [r["probability"] for r in told] == pytest.approx(chances.max(1).values.tolist(), abs=1e-5)


@pytest.mark.parametrize(("task", "model"), [("node", "gcn"), ("link", "gcn"), ("graph", "gin")])
def test_predict_on_an_adjacency(run, tmp_path, task, model):
    """What can be trained on can be predicted on."""

    def by_adjacency(data):
        with torch.sparse.check_sparse_tensor_invariants():  # torch warns where it is not said whether to check
            made = T.ToSparseTensor(layout=torch.sparse_csr)(data)
        return type(data)(x=made.x, y=made.y, adj_t=made.adj_t)

    given = [by_adjacency(g) for g in graphs()] if task == "graph" else by_adjacency(graph())
    torch.save(given, tmp_path / "data.pt")
    out = tmp_path / "run"
    assert (
        run("train", tmp_path / "data.pt", "--task", task, "--model", model, "--out", out, "--quiet", *QUICK).code == 0
    )
    assert run("predict", out).code == 0


def test_predict_graphs_without_labels(run, place, tmp_path):
    """The labels are what is to be found out."""
    torch.save([graph(8, features=4, seed=k, y=None) for k in range(5)], tmp_path / "new.pt")
    assert len(json.loads(run("predict", place / "gin", "--data", tmp_path / "new.pt", "--json").out)) == 5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{place}/no"], "{place}/no: no such run folder"),
        (["{place}/graph"], "{place}/graph: not a run folder, config.toml is missing"),
        (["{place}/given"], "{place}/given: was trained on a graph given in Python; pass --data"),
        (["{place}/node", "--pairs", "{place}/graph/edges.csv"], "--pairs: only for the link task"),
        (["{place}/node", "--data", "{place}/graphs.pt"], "data: the run is of the node task, which needs one graph"),
        (["{place}/gin", "--data", "{place}/graph"], "data: the run is of the graph task, which needs a list"),
        (["{place}/link", "--data", "{place}/graphs.pt"], "data: the run is of the link task, which needs one graph"),
        (["{place}/node", "--data", "{tmp}/wide.pt"], "data"),
        (["{place}/link", "--pairs", "{tmp}/pairs.csv"], "{tmp}/pairs.csv: line 2: target 'n60' is not the id"),
        (["{place}/node", "--model", "small:Net"], "model: Net cannot be built with"),
        (["{place}/node", "--out", "{place}/graph/nodes.csv/x"], "{place}/graph/nodes.csv/x: cannot be written"),
    ],
)
def test_predictions_that_cannot_be_made(refused, place, tmp_path, arguments, says):
    torch.save(graph(features=6), tmp_path / "wide.pt")
    (tmp_path / "pairs.csv").write_text("source,target\nn0,n60\n")
    names = {"place": place, "tmp": tmp_path}
    assert refused("predict", *(a.format(**names) for a in arguments)).startswith(says.format(**names))


# ---- exchange --------------------------------------------------------------------------------------------------------


def test_exchange_of_two_runs(run, place, tmp_path):
    before = [(place / name / "model.safetensors").read_bytes() for name in ("node", "node1")]
    ran = run("exchange", place / "node", place / "node1", "--out", tmp_path, "--channels", "2", "--json")
    target, source = (akegnn.load(place / name).model for name in ("node", "node1"))
    swaps = akegnn.exchange(target, source, channels=2)
    assert [(s["layer"], s["target_channel"], s["source_channel"]) for s in json.loads(ran.out)] == [
        (s.layer, s.target_channel, s.source_channel) for s in swaps
    ]
    arguments = ["--model", "gcn", "--model-arg", "in_channels=5", "--model-arg", "out_channels=3"]
    for name, expected in (("target", target), ("source", source)):
        cli.runs.load_weights(fresh := BACKBONES["gcn"](5, 3), tmp_path / f"{name}.safetensors")
        assert same(fresh, expected)
    assert len(rows((tmp_path / "swaps.csv").read_text())) == len(swaps)
    assert [(place / name / "model.safetensors").read_bytes() for name in ("node", "node1")] == before
    # And once more, of the two files.
    files = [tmp_path / "target.safetensors", tmp_path / "source.safetensors"]
    assert run("exchange", *files, "--out", tmp_path / "again", *arguments).code == 0
    akegnn.exchange(target, source)
    cli.runs.load_weights(fresh, tmp_path / "again" / "target.safetensors")
    assert same(fresh, target)


def test_exchange_by_function_of_several_runs(run, refused, place, tmp_path):
    """The target alone is made anew; --no-keep leaves its channels out of the pool."""
    common = ["--strategy", "functional", "--data", place / "graph"]
    runs_ = [place / "node", place / "node1", place / "node1"]
    for extra, origins in (([], {0, 1, 2}), (["--no-keep"], {0, 1})):
        out = tmp_path / f"out{len(origins)}"
        ran = run("exchange", *runs_, *common, *extra, "--out", out, "--json")
        assert ran.code == 0, ran.err
        assert {s["source"] for s in json.loads(ran.out)} <= origins
        assert {p.name for p in out.iterdir()} == {"target.safetensors", "swaps.csv"}
        networks = [akegnn.load(p).model for p in runs_]
        graph_ = read_folder(place / "graph")
        akegnn.exchange(networks[0], networks[1:], strategy="functional", data=graph_, keep=not extra)
        made = akegnn.load(place / "node").model
        akegnn.runs.load_weights(made, out / "target.safetensors")
        assert same(made, networks[0])
    shown = run("exchange", *runs_, *common, "--out", tmp_path / "shown").out
    assert str(place / "node1") in shown
    (tmp_path / "out3" / "source.safetensors").touch()
    message = refused("exchange", *runs_, *common, "--out", tmp_path / "out3", "--force")
    assert message.startswith(f"{tmp_path}/out3/source.safetensors: is there already, of another exchange")
    message = refused("exchange", *runs_, "--out", tmp_path / "no")
    assert message == "source: strategy 'adaptive' takes one network, got 2; see exchange_ring"


@pytest.mark.parametrize("there", ["target.safetensors", "source.safetensors", "swaps.csv"])
def test_an_exchange_is_not_written_over_files(run, refused, place, tmp_path, there):
    given = ["exchange", place / "node", place / "node1", "--out", tmp_path, "--json"]
    (tmp_path / there).write_text("mine")
    assert refused(*given) == f"{tmp_path / there}: is there already; choose another --out, delete it or pass --force"
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [(there, "mine")], "nor is any other written"
    assert run(*given, "--force").code == 0
    assert run(*given).code == 0, "the same again changes nothing"
    assert (tmp_path / there).read_bytes() != b"mine"
    assert "is there already" in refused(*given, "--channels", "1")


def test_exchange_shows_every_swap(run, place, tmp_path):
    ran = run("exchange", place / "node", place / "node1", "--out", tmp_path)
    swaps = rows((tmp_path / "swaps.csv").read_text())
    lines = [line for line in ran.out.splitlines() if "convs." in line]
    assert len(lines) == len(swaps)
    assert all(f"{float(s['entropy_after']):.4f}" in line for s, line in zip(swaps, lines, strict=True))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{place}/node", "{place}/gin"], "convs.0.bias: only in network 1; both must be of one architecture"),
        (["{place}/node", "{place}/link"], "convs.1."),
        (["{place}/node", "{place}/no"], "{place}/no: "),
        (["{place}/node/model.safetensors"] * 2, "{place}/node/model.safetensors: a safetensors file needs --model"),
        (["{place}/graph/nodes.csv"] * 2 + ["--model", "small:Net"], "model: Net cannot be built with"),
        (["{place}/node", "{place}/node1", "--strategy", "best"], "strategy: 'best' is not one of adaptive"),
        (["{place}/node", "{place}/node1", "--layers", "some"], "layers: 'some' is not one of all, hidden"),
        (["{place}/node", "{place}/node1", "--channels", "0"], "channels: must be at least 1"),
        (
            ["{place}/node", "{place}/node1", "--strategy", "functional", "--channels", "3", "--data", "{place}/graph"],
            "--channels: strategy 'functional' swaps none, and what it makes is as wide as the target",
        ),
        (
            ["{place}/node", "{place}/node1", "--out", "{place}/graph/nodes.csv/x"],
            "{place}/graph/nodes.csv/x: cannot be",
        ),
    ],
)
def test_exchanges_that_cannot_be_made(refused, place, tmp_path, arguments, says):
    filled = [a.format(place=place) for a in arguments]
    out = [] if "--out" in filled else ["--out", tmp_path / "out"]
    assert refused("exchange", *filled, *out).startswith(says.format(place=place))
    assert not (tmp_path / "out").exists()


def test_exchange_files_of_another_shape(refused, place, tmp_path):
    path = place / "node" / "model.safetensors"
    sizes = ["--model", "gcn", "--model-arg", "in_channels=6", "--model-arg", "out_channels=3"]
    message = refused("exchange", path, path, "--out", tmp_path / "out", *sizes)
    assert message == f"{path}: convs.0.lin.weight has shape (16, 5), GCN needs (16, 6)"


def test_exchange_does_not_change_the_files_given(refused, place, tmp_path):
    for name, run_ in (("target", "node"), ("source", "node1")):
        shutil.copy(place / run_ / "model.safetensors", tmp_path / f"{name}.safetensors")
    files = [tmp_path / "target.safetensors", tmp_path / "source.safetensors"]
    before = [f.read_bytes() for f in files]
    sizes = ["--model", "gcn", "--model-arg", "in_channels=5", "--model-arg", "out_channels=3"]
    refused("exchange", *files, "--out", tmp_path, *sizes)
    assert [f.read_bytes() for f in files] == before


# ---- explain and data ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [*BACKBONES, "torch_geometric.nn:GraphSAGE"])
def test_explain_a_model(run, model):
    deep = "num_layers" in inspect.signature(find_class(model)).parameters
    size = ["--model-arg", "num_layers=3"] if deep else []  # some are deep by default
    told = json.loads(run("explain", model, *size, "--json").out)
    built = fit(model=model, model_args={"num_layers": 3} if deep else {}, epochs=1).model
    assert [r["tensor"] for r in told] == list(built.state_dict())
    assert {r["part"] for r in told} >= {"channels"}
    shown = run("explain", model, *size)
    assert (shown.code, shown.err) == (0, "")
    for row in told:  # whole names, also where there is no terminal to tell the width
        assert row["tensor"] in shown.out


def test_explain_an_own_class_and_a_run(run, place):
    own = json.loads(run("explain", *OWN[1:2], *OWN[2:], "--data", place / "graph", "--json").out)
    assert {r["tensor"]: r["shape"] for r in own}["first.lin.weight"] == [4, 5]
    folder = json.loads(run("explain", place / "node", "--json").out)
    assert {r["tensor"]: r["shape"] for r in folder}["convs.0.lin.weight"] == [16, 5]
    pooled = json.loads(run("explain", "gcn", "--data", place / "graphs.pt", "--json").out)
    assert {r["tensor"]: r["shape"] for r in pooled}["head.weight"] == [2, 16]


def test_explain_a_run_of_an_own_model(run, place):
    """The message of a run with an own model says to pass --model, so it can be passed."""
    told = json.loads(run("explain", place / "own", "--model", "small:Net", "--json").out)
    assert {r["tensor"]: r["shape"] for r in told}["first.lin.weight"] == [4, 5]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["resnet"], "model: 'resnet' is neither one of"),
        (["small:Net"], "model_args: Net needs 'width'"),
        (["gcn", "--data", "no"], "data: 'no' is neither a dataset"),
        (["gcn", "--model-arg", "=3"], "--model-arg '=3': expected key=value"),
        (["small:not_a_model"], "model: not_a_model built a int"),
    ],
)
def test_what_cannot_be_explained(refused, arguments, says):
    assert refused("explain", *arguments).startswith(says)


def test_data_list(run):
    told = json.loads(run("data", "list", "--json").out)
    found = {r["name"]: r for r in told}
    assert set(found) == set(DATASETS)
    assert {k: found["digits"][k] for k in ("graphs", "nodes", "edges", "features", "classes", "splits")} == {
        **{"graphs": 1, "nodes": 1797, "edges": 12620, "features": 32, "classes": 10, "splits": "30/300/1000"},
    }
    many = found["digits-graphs"]
    assert (many["graphs"], many["nodes"], many["edges"]) == (1797, 1797 * 64, 1797 * 224)
    assert (many["features"], many["classes"], many["splits"]) == (3, 10, "1000/300/497")
    shown = run("data", "list")
    assert (shown.code, shown.err) == (0, "")
    for row in told:  # whole cells, also where there is no terminal to tell the width
        for key in ("name", "tasks", "nodes", "edges", "splits"):
            assert str(row[key]) in shown.out, (row["name"], key)
        assert row["about"] in shown.out.replace("\n", " ").replace("  ", " ")


class EdgeNet(torch.nn.Module):
    """A network that cannot be called without edge features."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = GATConv(in_channels, out_channels, edge_dim=2)

    def forward(self, x, edge_index, edge_attr):
        return self.conv(x, edge_index, edge_attr)


def test_a_model_that_needs_edge_features_is_exchanged_with_a_graph(run, refused, tmp_path):
    """Without one it cannot be called, and the message names the option."""
    name = f"{__name__}:EdgeNet"
    edged = Data(x=torch.rand(9, 4), edge_index=torch.randint(9, (2, 20)), edge_attr=torch.rand(20, 2))
    torch.save(edged, tmp_path / "graph.pt")
    for file in ("a", "b"):
        save_file(EdgeNet(4, 3).state_dict(), tmp_path / f"{file}.safetensors")
    given = ["exchange", tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--out", tmp_path / "out"]
    given += ["--model", name, "--model-arg", "in_channels=4", "--model-arg", "out_channels=3", "--json"]
    assert "pass data= (--data)" in refused(*given)
    assert {s["layer"] for s in json.loads(run(*given, "--data", tmp_path / "graph.pt").out)} == {"conv"}
