"""The run folder: whole or marked unfinished at any moment, never mixed, read back without running anything in it."""

from __future__ import annotations

import csv
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from torch_geometric.nn import GATv2Conv, GCNConv

import akegnn
from akegnn import cli, runs
from akegnn.data.own import digest
from akegnn.errors import AkeError
from akegnn.runs import FILES, MARK, MORE, load, load_weights, save, writing
from akegnn.settings import Settings, from_toml, to_toml
from small import Net, child, csv_folder, fit, graph, masked, outcome, refusal, same

PROMISED = {"config.toml", "metrics.json", "history.csv", "swaps.csv", "model.safetensors", "README.md"}


@pytest.fixture(scope="module")
def result():
    return fit(baseline=True)


def cut_off(path: Path, settings: Settings) -> None:
    """A run that a person interrupts as soon as its folder is there."""
    with pytest.raises(KeyboardInterrupt), writing(path, settings):
        raise KeyboardInterrupt


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


# ---- there and back --------------------------------------------------------------------------------------------------


def test_what_is_saved_predicts_the_same_when_loaded(result, tmp_path):
    folder = result.save(tmp_path / "deep" / "run")
    run = akegnn.load(folder)
    assert same(run.model, result.model)
    assert not run.model.training
    data = graph()
    assert torch.equal(run.model(data.x, data.edge_index), result.model(data.x, data.edge_index))
    assert run.settings == result.settings
    assert type(run.model) is type(result.model)


def test_the_files(result, tmp_path):
    folder = result.save(tmp_path / "run")
    assert set(content(folder)) == {*FILES, *MORE} >= PROMISED
    assert from_toml(folder / "config.toml") == result.settings
    metrics = json.loads((folder / "metrics.json").read_text())
    assert [(s["name"], s["test"], s["passes"]) for s in metrics["scores"]] == [
        (s.name, s.test, s.passes) for s in result.scores
    ]
    assert (metrics["metric"], metrics["splits"], metrics["floor"]) == ("accuracy", result.sizes, result.floor)
    assert metrics["versions"]["akegnn"] == akegnn.__version__
    with (folder / "history.csv").open(newline="") as f:
        history = list(csv.DictReader(f))
    assert [(h["phase"], h["network"], int(h["epoch"]), float(h["loss"])) for h in history] == [
        (e.phase, e.network, e.epoch, e.loss) for e in result.history
    ]
    with (folder / "swaps.csv").open(newline="") as f:
        swaps = list(csv.DictReader(f))
    assert [(s["layer"], int(s["source_channel"]), float(s["entropy_after"])) for s in swaps] == [
        (s.layer, s.source_channel, s.entropy_after) for s in result.swaps
    ]
    card = (folder / "README.md").read_text()
    assert all(f"| {s.name} | {100 * s.validation:.2f} | {100 * s.test:.2f}" in card for s in result.scores)
    assert "drawn by class" in card


@pytest.mark.parametrize("kind", [Net, "small:Net"])
def test_a_model_of_ones_own_must_be_given_again(kind, tmp_path):
    """Nothing that a folder merely names is imported."""
    fitted = fit(model=kind, model_args={"width": 4})
    folder = fitted.save(tmp_path / "run")
    message = refusal(lambda: load(folder))
    assert message.startswith(f"{folder}: its model is 'small:Net'; pass model=")
    assert same(load(folder, model=Net).model, fitted.model)


def test_a_model_from_a_function_is_built_by_it_again(tmp_path):
    def make():
        return Net(5, 3, 7)

    fitted = fit(model=make)
    folder = fitted.save(tmp_path / "run")
    assert "its model is 'given'" in refusal(lambda: load(folder))
    assert same(load(folder, model=make).model, fitted.model)
    assert "Given in Python" in (folder / "README.md").read_text()


class Shared(nn.Module):
    """One layer used under three names, and a layer that shares its two weights."""

    def __init__(self, times: int = 3) -> None:
        super().__init__()
        layer = GCNConv(5, 5)
        self.layers = nn.ModuleList([layer] * times)
        self.last = GATv2Conv(5, 3, share_weights=True)

    def forward(self, x, edge_index):
        for layer in self.layers:
            x = layer(x, edge_index).relu()
        return self.last(x, edge_index)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_weights_under_several_names(times, tmp_path):
    fitted = fit(model=lambda: Shared(times))
    folder = fitted.save(tmp_path / "run")
    assert same(load(folder, model=lambda: Shared(times)).model, fitted.model)


# ---- who may write where ---------------------------------------------------------------------------------------------


def test_a_finished_run_is_not_overwritten(result, tmp_path):
    folder = result.save(tmp_path / "run")
    before = content(folder)
    assert refusal(lambda: result.save(folder)).startswith(f"{folder}: holds a finished run")
    assert content(folder) == before
    assert same(load(folder).model, result.model)


@pytest.mark.parametrize("name", ["thesis.txt", ".git", "README.md", "config.toml", "model.safetensors"])
def test_a_folder_of_something_else_is_refused_and_kept_as_it_is(result, tmp_path, name):
    (tmp_path / name).write_text("mine")
    assert str(tmp_path) in refusal(lambda: result.save(tmp_path))
    assert content(tmp_path) == {name: b"mine"}


def test_a_finished_run_with_a_note_beside_it_is_kept(result, tmp_path):
    folder = result.save(tmp_path / "run")
    (folder / "note.txt").write_text("mine")
    before = content(folder)
    refusal(lambda: result.save(folder))
    assert content(folder) == before
    assert same(load(folder).model, result.model)


def test_an_unfinished_run_is_started_over_and_nothing_of_it_stays(result, tmp_path):
    cut_off(tmp_path, Settings(seed=99))
    (tmp_path / "metrics.json").write_text("{}")
    (tmp_path / "model.safetensors").write_text("old")
    assert (tmp_path / MARK).exists()
    assert "has not finished" in refusal(lambda: load(tmp_path))
    assert from_toml(tmp_path / "config.toml").seed == 99
    with writing(tmp_path, result.settings) as folder:
        assert set(content(folder)) == {"config.toml", MARK}
        assert from_toml(folder / "config.toml") == result.settings
        runs.write(result, folder)
    assert same(load(tmp_path).model, result.model)


@pytest.mark.parametrize("place", ["file", "file/run", "/proc/run", "/dev/null/run"])
def test_a_folder_that_cannot_be_written(result, tmp_path, place):
    (tmp_path / "file").write_text("mine")
    path = tmp_path / place
    assert refusal(lambda: result.save(path)).startswith(f"{path}: cannot be written (")
    assert (tmp_path / "file").read_text() == "mine"


# ---- another process -------------------------------------------------------------------------------------------------


def test_two_at_once(result, tmp_path):
    path = tmp_path / "run"
    ready, go = os.pipe(), os.pipe()

    def first() -> None:
        with writing(path, result.settings) as folder:
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            runs.write(result, folder)

    pid = child(first)
    os.close(ready[1])
    assert os.read(ready[0], 1) == b"x"
    before = content(path)
    assert refusal(lambda: result.save(path)) == f"{path}: another process is writing this run"
    assert content(path) == before, "the second one changes nothing"
    os.write(go[1], b"x")
    assert outcome(pid) == 0
    assert same(load(path).model, result.model)


def test_a_dead_process_holds_nothing(result, tmp_path):
    def dies() -> None:
        with writing(tmp_path, result.settings):
            os.kill(os.getpid(), signal.SIGKILL)

    assert outcome(child(dies)) == -signal.SIGKILL
    assert same(load(result.save(tmp_path)).model, result.model)


def killed_at(moment: int, work: Callable[[], object]) -> int:
    """Kill the process at its ``moment``-th step that touches the file system, before the step is taken."""

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal moment
        touches = event in ("os.mkdir", "os.remove", "os.rename", "os.chmod", "os.truncate", "fcntl.flock")
        if touches or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            moment -= 1
            if moment == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def dying() -> None:
        sys.addaudithook(watch)
        work()

    return outcome(child(dying))


def test_killed_at_every_single_step_of_writing(result, tmp_path):
    """Afterwards the folder is whole, or marked and written by the same call again."""
    moment, whole = 0, 0
    while True:
        moment += 1
        path = tmp_path / str(moment)
        if killed_at(moment, lambda path=path: save(result, path)) == 0:
            break
        try:
            run = load(path)
            whole += 1
        except AkeError:
            run = load(save(result, path))
        assert same(run.model, result.model)
        assert set(content(path)) == {*FILES, *MORE}
    assert moment > 2 * len(FILES), "every file takes several steps"
    assert whole < moment - len(FILES), "most of the moments lie before the end"


def test_killed_while_trying_to_write_over_a_finished_run(result, tmp_path):
    """The run that was there is whole before, and must be after."""
    moment = 0
    while True:
        moment += 1
        path = result.save(tmp_path / str(moment))
        if killed_at(moment, lambda path=path: save(result, path)) == 2:
            break
        assert same(load(path).model, result.model)


# ---- the whole command, killed ---------------------------------------------------------------------------------------


def command(folder: Path, out: Path, *more: str) -> list[str]:
    views = ["--view", "mask", "--view", "drop-edges", "--device", "cpu", "--quiet"]
    return ["train", str(folder), "--out", str(out), "--epochs", "40", *views, *more]


def main(arguments: list[str]) -> None:
    """The command, in this process."""
    cli.app(arguments, standalone_mode=False)


def unmixed(out: Path, expected: dict[str, bytes]) -> None:
    found = content(out)
    assert found.keys() == expected.keys()
    for name in ("config.toml", "history.csv", "swaps.csv", "model.safetensors"):
        assert found[name] == expected[name], name


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = csv_folder(tmp_path_factory.mktemp("own") / "graph")
    started = time.perf_counter()
    main(command(folder, folder.parent / "run"))
    return folder, content(folder.parent / "run"), time.perf_counter() - started


@pytest.mark.parametrize("k", range(5))
def test_the_command_killed_at_some_moment(uninterrupted, tmp_path, capsys, k):
    folder, expected, seconds = uninterrupted
    out = tmp_path / "run"
    pid = child(lambda: main(command(folder, out)))
    time.sleep(random.Random(k).uniform(0, 1.2 * seconds))
    os.kill(pid, signal.SIGKILL)
    finished = outcome(pid) == 0
    assert not (finished and (out / MARK).exists())
    if out.exists() and not (out / MARK).exists():
        load(out)
    main(command(folder, out))  # the same command finishes it, or finds it finished
    unmixed(out, expected)
    load(out)


def test_a_real_process_killed(uninterrupted, tmp_path, capsys):
    folder, expected, _ = uninterrupted
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "akegnn", *command(folder, out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        while not (out / "config.toml").exists():
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    assert "has not finished" in refusal(lambda: load(out))
    main(command(folder, out))
    unmixed(out, expected)


def test_the_command_with_other_settings_starts_an_unfinished_run_over(uninterrupted, tmp_path, capsys):
    folder, expected, _ = uninterrupted
    out = tmp_path / "run"
    cut_off(out, Settings(seed=5))
    main(command(folder, out))
    unmixed(out, expected)


# ---- folders that are not what they should be ------------------------------------------------------------------------


def test_no_run_folder(tmp_path):
    assert refusal(lambda: load(tmp_path / "no")) == f"{tmp_path}/no: no such run folder"
    assert refusal(lambda: load(tmp_path)) == f"{tmp_path}: not a run folder, config.toml is missing"


@pytest.mark.parametrize("name", ["config.toml", "metrics.json", "model.safetensors"])
@pytest.mark.parametrize("content", [b"{", b"\x00\xff", None], ids=["cut off", "garbage", "missing"])
def test_a_file_that_was_spoiled(result, tmp_path, name, content):
    folder = result.save(tmp_path / "run")
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    assert name in refusal(lambda: load(folder))


@pytest.mark.parametrize("key", ["metric", "floor", "scores", "failures"])
def test_metrics_that_lack_something(result, tmp_path, key):
    folder = result.save(tmp_path / "run")
    found = json.loads((folder / "metrics.json").read_text())
    del found[key]
    for content, says in ((found, f"{key!r} is missing"), ([], "holds a list, expected an object")):
        (folder / "metrics.json").write_text(json.dumps(content))
        assert refusal(lambda: load(folder)) == f"{folder / 'metrics.json'}: {says}"


def test_files_are_as_public_as_a_person_lets_new_files_be(result, tmp_path):
    before = os.umask(0o027)
    try:
        folder = result.save(tmp_path / "run")
        assert {(p.stat().st_mode & 0o777) for p in folder.iterdir()} == {0o640}
        assert os.umask(0o027) == 0o027, "reading the mask must leave it as it was"
    finally:
        os.umask(before)


def test_the_digest_is_of_the_files_that_are_read(tmp_path):
    folder = csv_folder(tmp_path / "graph")
    first = digest(str(folder))
    (folder / "note.txt").write_text("mine")
    assert digest(str(folder)) == first != ""
    with (folder / "edges.csv").open("a") as f:
        f.write("n0,n1\n")
    assert digest(str(folder)) not in ("", first)
    assert digest("cora") == digest(str(tmp_path / "none")) == ""


def test_the_digest_is_of_the_graph_that_was_trained_on(tmp_path):
    """Also where the files change while it is trained."""
    folder = csv_folder(tmp_path / "graph")
    before = digest(str(folder))

    def changes(epoch):
        with (folder / "edges.csv").open("a") as f:
            f.write("n0,n1\n")

    result = fit(str(folder), on_epoch=changes)
    assert result.digest == before != digest(str(folder))
    assert json.loads((result.save(tmp_path / "run") / "metrics.json").read_text())["data_digest"] == before
    assert fit(graph()).digest == fit("digits", epochs=1).digest == ""


def spoiled(result, tmp_path, change) -> Path:
    folder = result.save(tmp_path / "run")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    change(tensors)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("convs.0.bias"), "has no tensor 'convs.0.bias', which GCN needs"),
        (lambda t: t.update(extra=torch.ones(2)), "holds 'extra', which GCN does not have"),
        (lambda t: t.update({"convs.0.bias": torch.ones(3)}), "convs.0.bias has shape (3,), GCN needs (16,)"),
    ],
)
def test_tensors_that_do_not_fit_are_named(result, tmp_path, change, message):
    folder = spoiled(result, tmp_path, change)
    assert refusal(lambda: load(folder)) == f"{folder / 'model.safetensors'}: {message}"


def test_weights_of_another_class(result, tmp_path):
    folder = result.save(tmp_path / "run")
    message = refusal(lambda: load_weights(Net(5, 3, 4), folder / "model.safetensors"))
    assert "has no tensor 'first." in message


def test_weights_that_were_cut_off(result, tmp_path):
    folder = result.save(tmp_path / "run")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    assert refusal(lambda: load(folder)).startswith(f"{path}: not a safetensors file")


def test_a_config_that_asks_for_another_model(result, tmp_path):
    folder = result.save(tmp_path / "run")
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace('model = "gcn"', 'model = "os:system"'))
    assert "its model is 'os:system'; pass model=" in refusal(lambda: load(folder))


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_loading_never_unpickles(result, tmp_path, monkeypatch):
    folder = result.save(tmp_path / "run")
    trap = tmp_path / "sprung"
    for write in (lambda f: pickle.dump(Evil(trap), f), lambda f: torch.save(Evil(trap), f)):
        for name in ("model.safetensors", "config.toml"):
            kept = (folder / name).read_bytes()
            with (folder / name).open("wb") as f:
                write(f)
            refusal(lambda: load(folder))
            (folder / name).write_bytes(kept)
    assert not trap.exists()

    def never(*_: object, **__: object) -> None:
        raise AssertionError("unpickled")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, never)
    assert same(load(folder).model, result.model)


def test_settings_come_back_however_odd_the_names_are(tmp_path):
    """A folder name with quotes, newlines and signs, in the graph's place and in the run's."""
    folder = csv_folder(tmp_path / 'my "graph"\n= [ü] #', masked(graph(), train=[0, 1, 2, 3, 4, 5]))
    fitted = fit(str(folder))
    out = fitted.save(folder / "run")
    assert load(out).settings == fitted.settings
    assert from_toml(out / "config.toml") == fitted.settings
    assert to_toml(load(out).settings) == to_toml(fitted.settings)
