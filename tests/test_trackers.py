"""What trackers write, read back; and that nothing they do or fail to do reaches the training."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter

import akegnn
from akegnn import cli, runs, trackers
from akegnn.fit import Results
from akegnn.settings import Settings
from akegnn.trackers import TRACKERS, Kind
from akegnn.training import Epoch
from small import csv_folder, fit, graphs, refusal, same

PHASES = ("individual", "re-training")


def read(folder: Path) -> EventAccumulator:
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def drawn(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(e.step, e.value) for e in read(folder).Scalars(tag)]


def told(history: list[Epoch], phase: str, network: str, what: str) -> list[tuple[int, float]]:
    """The same curve from the history of the result."""
    chosen = [e for e in history if (e.phase, e.network) == (phase, network)]
    return [(e.epoch, pytest.approx(getattr(e, what), rel=1e-6)) for e in chosen]


def hyper_parameters(folder: Path) -> dict[str, Any]:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    content = read(folder).summary_metadata["_hparams_/session_start_info"].plugin_data.content
    return dict(HParamsPluginData.FromString(content).session_start_info.hparams)


# ---- TensorBoard -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tracked") / "logs"
    with trackers.tensorboard(folder) as tracker:
        result = fit(baseline=True, on_epoch=tracker.on_epoch)
        tracker.finish(result)
    return folder, result


@pytest.mark.parametrize("what", ["loss", "validation", "best"])
def test_curves_of_every_phase_and_network(tracked, what):
    folder, result = tracked
    curves = {("individual", "base"): "base"}
    curves |= {(phase, name): name.replace(": ", "-") for phase in PHASES for name in ("1: mask", "2: original")}
    assert {p.name for p in folder.iterdir() if p.is_dir()} == set(curves.values())
    for (phase, network), place in curves.items():
        assert drawn(folder / place, f"{phase}/{what}") == told(result.history, phase, network, what)


def test_scores_of_all_lines(tracked):
    folder, result = tracked
    for score in result.scores:
        name = score.name.replace(": ", "-").replace(" ", "-")
        for what in ("validation", "test", "seconds"):
            ((_, value),) = drawn(folder, f"{what}/{name}")
            assert value == pytest.approx(getattr(score, what), rel=1e-6)


def test_settings_are_hyper_parameters_and_text(tracked):
    folder, _ = tracked
    found = hyper_parameters(folder)
    assert found["training.lr"].number_value == 0.01
    assert found["exchange.strategy"].string_value == "adaptive"
    assert found["baseline"].string_value == "True"
    assert "mask" in found["views"].string_value
    (text,) = read(folder).Tensors("settings/text_summary")
    assert "| training.epochs | 3 |" in text.tensor_proto.string_val[0].decode()


def test_settings_in_one_table():
    found = trackers.flat(replace(Settings(), model_args={"heads": [8, 1], "inner": {"a": None}}, seeds=[1, 2]))
    assert found["model_args.heads"] == "[8, 1]"
    assert found["model_args.inner.a"] == "None"
    assert found["seeds"] == "[1, 2]"
    assert found["training.patience"] == "None"
    assert all(isinstance(v, bool | int | float | str) for v in found.values())


def test_settings_told_beforehand_are_there_if_the_run_fails(tmp_path):
    def fails() -> None:
        with trackers.tensorboard(tmp_path, Settings()):
            raise akegnn.RunFailed("no")

    with pytest.raises(akegnn.RunFailed):
        fails()
    assert read(tmp_path).Tags()["tensors"] == ["settings/text_summary"]


def test_several_seeds_are_means(tmp_path):
    with trackers.tensorboard(tmp_path) as tracker:
        results = fit(seeds=3, baseline=True, on_epoch=tracker.on_epoch)
        tracker.finish(results)
    assert isinstance(results, Results)
    assert drawn(tmp_path / "1-mask", "re-training/best") == told(results.history, "re-training", "1: mask", "best")
    line = results.summary()[-2]
    for name in ("test", "deviation", "low", "high", "gain", "gain_low", "gain_high"):
        assert drawn(tmp_path, f"{name}/AKE")[0][1] == pytest.approx(getattr(line, name), rel=1e-6)


def test_splits_one_after_another_are_curves_of_their_own(tmp_path):
    """On one curve the second would go back to the first epoch."""
    with trackers.tensorboard(tmp_path) as tracker:
        results = fit(graphs(), "gin", seeds=2, splits=2, masks="random", on_epoch=tracker.on_epoch)
    first, second = [e for e in results.history if (e.phase, e.network) == ("individual", "1: mask")]
    assert drawn(tmp_path / "1-mask-replicas-1-2", "individual/loss") == [(3, pytest.approx(first.loss))]
    assert drawn(tmp_path / "1-mask-replicas-3-4", "individual/loss") == [(3, pytest.approx(second.loss))]


def test_a_training_loop_of_your_own_has_no_loss(tmp_path):
    with trackers.tensorboard(tmp_path) as tracker:
        fit(train=lambda model, data: None, seeds=2, on_epoch=tracker.on_epoch)
    wanted = {f"{phase}/{what}" for phase in PHASES for what in ("validation", "best")}
    assert set(read(tmp_path / "1-mask-replica-2").Tags()["scalars"]) == wanted


@pytest.mark.parametrize(("name", "word"), [("3: drop-edges", "3-drop-edges"), ("../a b", "..-a-b"), ("::", "unnamed")])
def test_names_that_every_tracker_takes(name, word):
    assert trackers._word(name) == word


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("mine")
    message = refusal(lambda: trackers.tensorboard(tmp_path / "file" / "logs"))
    assert message.endswith(": cannot be written (Not a directory)")
    assert str(tmp_path / "file") in message


# ---- MLflow and wandb ------------------------------------------------------------------------------------------------


class Calls(list[tuple[str, Any]]):
    def note(self, name: str, answer: Any = None) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            self.append((name, (*given, *named.items())))
            return answer

        return call

    def of(self, name: str) -> list[Any]:
        return [given for called, given in self if called == name]


@pytest.fixture
def fake_mlflow(monkeypatch):
    """As much of MLflow as is used, and what it refuses."""
    calls, module = Calls(), ModuleType("mlflow")

    class Client:
        def __init__(self, uri: str | None = None) -> None:
            calls.append(("client", uri))

        get_experiment_by_name = staticmethod(calls.note("find"))
        create_experiment = staticmethod(calls.note("experiment", "7"))
        create_run = staticmethod(calls.note("run", SimpleNamespace(info=SimpleNamespace(run_id="r"))))
        set_terminated = staticmethod(calls.note("end"))

        def log_batch(self, run: str, metrics: Any = (), params: Any = ()) -> None:
            assert run == "r"
            assert len(metrics) <= 1000
            assert len(params) <= 100
            assert all(len(p.value) <= 500 for p in params)
            calls.extend([("metric", m) for m in metrics] + [("param", p) for p in params])

    module.MlflowClient = Client  # type: ignore[attr-defined]
    module.get_tracking_uri = lambda: "sqlite:///mlflow.db"  # type: ignore[attr-defined]
    module.entities = ModuleType("mlflow.entities")  # type: ignore[attr-defined]
    module.entities.Metric = lambda key, value, timestamp, step: SimpleNamespace(  # type: ignore[attr-defined]
        key=key, value=value, timestamp=timestamp, step=step
    )
    module.entities.Param = lambda key, value: SimpleNamespace(key=key, value=value)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", module.entities)
    return calls


def test_mlflow(fake_mlflow, monkeypatch):
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    with trackers.mlflow(name="mine") as tracker:
        result = fit(baseline=True, on_epoch=tracker.on_epoch)
        tracker.finish(result)
    assert fake_mlflow.of("client") == [None]
    assert fake_mlflow.of("experiment") == [("akegnn",)]
    assert fake_mlflow.of("run") == [("7", ("run_name", "mine"))]
    assert fake_mlflow.of("end") == [("r", "FINISHED")]
    points: dict[str, list[tuple[int, float]]] = {}
    for m in fake_mlflow.of("metric"):
        points.setdefault(m.key, []).append((m.step, m.value))
    assert points["individual/base/loss"] == told(result.history, "individual", "base", "loss")
    assert points["re-training/2-original/best"] == told(result.history, "re-training", "2: original", "best")
    assert points["test/AKE"] == [(0, result.score().test)]
    assert {p.key: p.value for p in fake_mlflow.of("param")}["training.lr"] == "0.01"


def test_mlflow_in_batches_that_it_takes(fake_mlflow):
    long = replace(Settings(), model_args={f"x{k}": "y" * 600 for k in range(250)})
    with trackers.mlflow("http://server", long) as tracker:
        for k in range(1, 1001):
            tracker.on_epoch(Epoch("individual", "base", k, 1000, 1.0, 0.5, 0.5))
    assert fake_mlflow.of("client") == ["http://server"]
    assert len(fake_mlflow.of("metric")) == 3000
    assert len(fake_mlflow.of("param")) == len(trackers.flat(long))


def test_mlflow_gives_up_soon_on_a_server_that_is_not_there(fake_mlflow, monkeypatch):
    """By itself it tries for minutes; later, in the thread, it may."""
    name = "MLFLOW_HTTP_REQUEST_MAX_RETRIES"
    monkeypatch.delenv(name, raising=False)
    seen: list[str | None] = []
    monkeypatch.setattr(sys.modules["mlflow"].MlflowClient, "__init__", lambda *_: seen.append(os.environ.get(name)))
    with trackers.mlflow():
        assert name not in os.environ
    monkeypatch.setenv(name, "9")
    with trackers.mlflow():
        assert os.environ[name] == "9"
    assert seen == ["2", "9"]


def test_mlflow_is_told_that_a_run_failed(fake_mlflow):
    with pytest.raises(akegnn.RunFailed), trackers.mlflow():
        raise akegnn.RunFailed("no")
    assert fake_mlflow.of("end") == [("r", "FAILED")]


@pytest.fixture
def fake_wandb(monkeypatch):
    calls, module = Calls(), ModuleType("wandb")
    run = SimpleNamespace(dir="wandb/offline-run-1/files", offline=True, url=None)
    run.log, run.define_metric, run.finish = (calls.note(name) for name in ("log", "define", "finish"))
    run.config, run.summary = (SimpleNamespace(update=calls.note(name)) for name in ("config", "summary"))
    module.Settings = lambda **given: given  # type: ignore[attr-defined]
    module.init = calls.note("init", run)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return calls


def test_wandb(fake_wandb, monkeypatch):
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    with trackers.wandb(name="mine") as tracker:
        result = fit(on_epoch=tracker.on_epoch)
        tracker.finish(result)
    assert tracker.where == "wandb sync wandb/offline-run-1"
    assert dict(fake_wandb.of("init")[0])["project"] == "akegnn"
    logged = [given[0] for given in fake_wandb.of("log")]
    for phase in PHASES:
        start = f"{phase}/1-mask"
        points = [(x[f"{start}/epoch"], x[f"{start}/validation"]) for x in logged if f"{start}/epoch" in x]
        assert points == told(result.history, phase, "1: mask", "validation")
        defined = (f"{start}/*", ("step_metric", f"{start}/epoch"))
        assert fake_wandb.of("define").count(defined) == 1
    assert fake_wandb.of("summary")[0][0]["test/AKE"] == result.score().test
    assert fake_wandb.of("config")[0][0]["training.lr"] == 0.01
    assert fake_wandb.of("finish") == [(("exit_code", 0),)]


@pytest.mark.filterwarnings("ignore")  # of other people's code
def test_the_real_mlflow(tmp_path, monkeypatch):
    """With its local store, where it is installed whole."""
    pytest.importorskip("sqlalchemy")
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with trackers.mlflow(uri, name="mine") as tracker:
        result = fit(on_epoch=tracker.on_epoch)
        tracker.finish(result)
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("akegnn").experiment_id])
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    assert run.data.metrics["test/AKE"] == result.score().test
    assert run.data.params["training.epochs"] == "3"
    found = client.get_metric_history(run.info.run_id, "individual/1-mask/loss")
    assert [(m.step, m.value) for m in found] == told(result.history, "individual", "1: mask", "loss")


@pytest.mark.filterwarnings("ignore")  # of other people's code
def test_the_real_wandb(tmp_path, monkeypatch):
    """Offline, where it is installed."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    said: list[str] = []
    with trackers.wandb(tmp_path, say=said.append) as tracker:
        result = fit(on_epoch=tracker.on_epoch)
        tracker.finish(result)
    (written,) = tmp_path.rglob("*.wandb")
    assert said == []
    assert tracker.where == f"wandb sync {written.parent}"
    content = written.read_bytes()
    assert all(word in content for word in (b"individual/1-mask", b"test/AKE", b"training.lr"))


# ---- failures --------------------------------------------------------------------------------------------------------


@pytest.fixture
def without(monkeypatch):
    """A package that is not installed."""

    def take(name: str) -> None:
        monkeypatch.setitem(sys.modules, TRACKERS[name].module, None)  # what an import then finds is an ImportError

    return take


@pytest.mark.parametrize("name", TRACKERS)
def test_a_package_that_is_not_installed(without, name):
    without(name)
    said = refusal(lambda: TRACKERS[name]("place"))
    assert said == f"{name}: is not installed; pip install 'akegnn[{name}]'"


def test_every_tracker_has_its_extra():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert all(f"\n{name} = [" in text for name in TRACKERS)


def test_a_package_that_cannot_be_imported(tmp_path, monkeypatch):
    (tmp_path / "broken_tracker.py").write_text("raise TypeError('Descriptors cannot be created directly.\\nMore.')")
    monkeypatch.syspath_prepend(tmp_path)
    said = refusal(lambda: Kind("broken", "broken_tracker", Failing)())
    assert said == "broken: cannot be imported (TypeError: Descriptors cannot be created directly.)"


class Failing:
    """A tracker whose server goes away."""

    where = "nowhere"
    at = "on_epoch"
    after = 2

    def __init__(self, place: object = None, name: str = "") -> None:
        self.calls = 0
        self._do("init")

    def _do(self, what: str) -> None:
        if what == self.at:
            self.calls += 1
            if self.calls > self.after:
                raise ConnectionError("server gone\nfor good")

    def on_epoch(self, epoch: Epoch) -> None:
        self._do("on_epoch")

    def settings(self, settings: object) -> None:
        self._do("settings")

    def finish(self, scores: object) -> None:
        self._do("finish")

    def flush(self) -> None:
        self._do("flush")

    def close(self, failed: bool) -> None:
        self._do("close")


@pytest.fixture
def failing(monkeypatch):
    """``failing("flush")`` is a tracker that fails there."""

    def make(at: str, after: int = 0) -> Kind:
        monkeypatch.setattr(Failing, "at", at)
        monkeypatch.setattr(Failing, "after", after)
        kind = Kind("failing", "json", Failing)
        monkeypatch.setitem(TRACKERS, "wandb", kind)
        return kind

    return make


def test_a_tracker_that_cannot_begin(failing):
    assert refusal(failing("init")) == "failing: cannot begin (ConnectionError: server gone)"


@pytest.mark.parametrize("at", ["on_epoch", "flush", "settings", "finish", "close"])
@pytest.mark.parametrize("pause", [0.001, 5.0])
def test_a_tracker_that_fails_changes_nothing_and_says_so_once(failing, monkeypatch, caplog, at, pause):
    monkeypatch.setattr(trackers, "PAUSE", pause)
    with caplog.at_level(logging.WARNING, "akegnn"), failing(at, after=at == "on_epoch")() as tracker:
        result = fit(on_epoch=tracker.on_epoch)
        tracker.finish(result)
    assert same(result.model, fit().model)
    assert caplog.messages == ["failing: tracking has ended (ConnectionError: server gone); the run goes on without it"]
    kept = len(tracker._waiting)
    tracker.finish(result)
    assert len(tracker._waiting) == kept, "nothing more is kept for a tracker that is gone"


def test_a_disk_that_is_full(tmp_path, monkeypatch, caplog, capfd):
    """TensorBoard's writer has a thread of its own, and what it dies of is one line too, without a traceback."""

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    hook = threading.excepthook
    monkeypatch.setattr(trackers, "PAUSE", 0.001)
    with trackers.tensorboard(tmp_path) as tracker:
        tracker.on_epoch(Epoch("individual", "base", 1, 1, 1.0, 0.5, 0.5))
        monkeypatch.setattr(RecordWriter, "write", full)
        result = fit(on_epoch=tracker.on_epoch)
        tracker.finish(result)
    threading.excepthook = hook
    assert same(result.model, fit().model)
    assert caplog.messages == [
        "tensorboard: tracking has ended (OSError: [Errno 28] No space left on device); the run goes on without it"
    ]
    assert capfd.readouterr().err == ""


def test_what_other_threads_die_of_is_still_told(tmp_path, monkeypatch):
    heard: list[str] = []
    monkeypatch.setattr(threading, "excepthook", hook := lambda raised: heard.append(str(raised.exc_value)))

    def dies() -> None:
        raise ValueError("mine")

    with trackers.tensorboard(tmp_path):
        thread = threading.Thread(target=dies)
        thread.start()
        thread.join()
    assert heard == ["mine"]
    assert threading.excepthook is hook


def test_training_does_not_wait_for_a_tracker(monkeypatch, caplog):
    """A server that does not answer: the run ends, and then waits for so long and no longer."""
    answer = threading.Event()

    class Silent(Failing):
        at = ""

        def on_epoch(self, epoch: Epoch) -> None:
            answer.wait()

    monkeypatch.setattr(trackers, "PAUSE", 0.001)
    monkeypatch.setattr(trackers, "WAIT", 0.01)
    try:
        with Kind("silent", "json", Silent)() as tracker:
            fit(on_epoch=tracker.on_epoch)
        assert caplog.messages == ["silent: did not come to an end within 0 s; the last of it may be missing"]
    finally:
        answer.set()
        tracker._thread.join()


def test_tracking_changes_no_bit(tracked):
    _, result = tracked
    assert same(result.model, fit(baseline=True).model)


# ---- the command -----------------------------------------------------------------------------------------------------

QUICK = ["--recipe", "paper", "--epochs", "3", "--view", "mask", "--view", "original", "--device", "cpu"]


@pytest.fixture
def command(monkeypatch, capfd, tmp_path):
    """``akegnn train`` on a small graph: exit code, standard output, standard error."""
    csv_folder(tmp_path / "graph")
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        given = ["akegnn", "train", "graph", "--out", "run", *QUICK, *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", given)
        monkeypatch.setattr(sys, "path", [*sys.path])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        return exit_.value.code or 0, *capfd.readouterr()

    return call


def test_the_command_with_tensorboard(command):
    code, _, err = command("--tensorboard")
    assert code == 0
    assert err.splitlines()[0] == "tensorboard: tensorboard --logdir run/tensorboard"
    assert len(err.splitlines()) == 8, "this one, the split that was drawn, what was read, five networks"
    run = akegnn.load("run")
    for score in run.metrics["scores"]:
        name = score["name"].replace(": ", "-").replace(" ", "-")
        assert drawn(Path("run/tensorboard"), f"test/{name}")[0][1] == pytest.approx(score["test"])
    assert len(drawn(Path("run/tensorboard/base"), "individual/loss")) == 3
    assert "nothing to do" in command("--tensorboard")[2], "the folder is a finished run like any other"


def test_the_command_with_a_folder_given(command):
    """Several runs lie side by side in it, each under its name."""
    assert command("--tensorboard-dir", "logs", "--quiet")[::2] == (0, "")
    assert len(drawn(Path("logs/run/2-original"), "re-training/best")) == 3
    assert not Path("run/tensorboard").exists()


@pytest.mark.parametrize("given", [["--seeds", 3], ["--seeds", 2, "--splits", 2, "--masks", "random"]])
def test_the_command_with_several_seeds_and_splits(command, given):
    code, out, err = command("--tensorboard", "--json", "--quiet", *given)
    assert (code, err) == (0, "")
    told = {line["name"]: line for line in json.loads(out)["scores"]}
    assert drawn(Path("run/tensorboard"), "test/AKE")[0][1] == pytest.approx(told["AKE"]["test"])


def test_the_command_with_several_trackers(command, fake_mlflow, fake_wandb):
    code, _, err = command("--tensorboard", "--mlflow", "--wandb")
    assert code == 0
    assert [line.split(":")[0] for line in err.splitlines()[:3]] == ["tensorboard", "mlflow", "wandb"]
    assert dict(fake_wandb.of("init")[0])["name"] == "run"
    assert len(fake_wandb.of("log")) == 15
    assert len([m for m in fake_mlflow.of("metric") if m.key.endswith("/loss")]) == 15
    assert len(drawn(Path("run/tensorboard/base"), "individual/loss")) == 3


@pytest.mark.parametrize("name", TRACKERS)
def test_the_command_without_the_package(command, without, name):
    """Told before anything is read, trained or written."""
    without(name)
    said = f"akegnn: {name}: is not installed; pip install 'akegnn[{name}]'\n"
    assert command(f"--{name}", "--tensorboard") == (2, "", said)
    assert not Path("run").exists()


def test_the_command_with_a_folder_that_cannot_be_written(command):
    Path("logs").write_text("mine")
    code, out, err = command("--tensorboard-dir", "logs")
    assert (code, out) == (2, "")
    assert err.startswith("akegnn: ")
    assert err.endswith(": cannot be written (Not a directory)\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_the_command_with_a_tracker_that_fails(command, failing, quiet):
    """The run is whole, and the one line is heard in any case."""
    failing("on_epoch", after=1)
    code, out, err = command("--wandb", *quiet)
    assert code == 0
    line = "akegnn: failing: tracking has ended (ConnectionError: server gone); the run goes on without it"
    assert err.splitlines().count(line) == 1
    assert len(err.splitlines()) == (1 if quiet else 9)
    scores = akegnn.load("run").metrics["scores"]
    assert f"{100 * scores[-1]['test']:.2f}" in out


def test_a_run_that_was_cut_off_is_started_over_without_its_old_curves(command):
    (Path("run") / "tensorboard").mkdir(parents=True)
    (Path("run") / runs.MARK).touch()
    (Path("run") / "tensorboard" / "old").touch()
    assert command("--tensorboard", "--quiet")[0] == 0
    assert not (Path("run") / "tensorboard" / "old").exists()


def test_a_folder_of_that_name_in_somebody_elses_folder_stays(command):
    Path("run/tensorboard").mkdir(parents=True)
    (Path("run/tensorboard") / "mine").touch()
    code, _, err = command("--tensorboard")
    assert code == 2
    assert "not an empty or a run folder (it holds tensorboard)" in err
    assert (Path("run/tensorboard") / "mine").exists()
