"""The demo itself, as a person runs it: the command of ``make demo``, its table, its folder, its predictions."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import akegnn
from akegnn.data import embedded

MAKEFILE = Path(__file__).parents[1] / "Makefile"


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The commands that stand in the Makefile, in a folder of their own."""
    folder = tmp_path_factory.mktemp("demo")
    recipe = MAKEFILE.read_text().split("\ndemo:")[1].split("\n\n")[0]
    commands = re.findall(r"\$\(BIN\)/akegnn ([^&\n]+)", recipe)
    assert [c.split()[0] for c in commands] == ["train", "predict"]
    akegnn_ = str(Path(sys.executable).with_name("akegnn"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    ran = [
        subprocess.run([akegnn_, *c.split()], cwd=folder, env=environment, capture_output=True, text=True, check=True)
        for c in commands
    ]
    return folder / "runs" / "demo", folder / "runs" / "demo-predictions.csv", ran[0]


VIEWS = tuple(f"{k}: drop-edges" for k in range(1, 5))
WAYS = ("merged, trained again", "merged, taught")


def test_the_table(demo):
    folder, _, ran = demo
    run = akegnn.load(folder)
    names = ["base", *(f"view {v}" for v in VIEWS), "ensemble", "after exchange", *WAYS, "AKE"]
    scores = {s["name"]: s for s in run.metrics["scores"]}
    for name in names:
        (line,) = [x for x in ran.stdout.splitlines() if re.search(rf"[│|]\s*{re.escape(name)}\s*[│|]", x)]
        cells = re.findall(r"\d+\.\d\d|\d+", line.split(name, 1)[1])
        assert cells[:3] == [
            f"{100 * scores[name]['validation']:.2f}",
            f"{100 * scores[name]['test']:.2f}",
            "4" if name == "ensemble" else "1",
        ]
    # Better than chance by far, all of them: the demo shows networks that have learnt.
    assert run.metrics["floor"] < 0.2
    assert all(scores[name]["test"] > 0.6 for name in names)


def test_progress_without_a_terminal_is_plain_lines(demo):
    lines = demo[2].stderr.splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("[1/7] individual, base: 200 epochs")
    assert all(f"individual, {v}:" in line for v, line in zip(VIEWS, lines[1:5], strict=True))
    assert all(f"re-training, {w}:" in line for w, line in zip(WAYS, lines[5:], strict=True))


def test_the_folder_loads_and_predicts_what_the_command_predicted(demo):
    folder, predictions, _ = demo
    run, data = akegnn.load(folder), embedded.digits()
    with torch.no_grad():
        chances = run.model(data.x, data.edge_index).softmax(1)
    with predictions.open(newline="") as f:
        told = list(csv.DictReader(f))
    assert [int(r["id"]) for r in told] == list(range(1797))
    assert [int(r["prediction"]) for r in told] == chances.argmax(1).tolist()
    assert [float(r["probability"]) for r in told] == pytest.approx(chances.max(1).values.tolist(), abs=1e-5)
    # And they are as good as the table says.
    right = torch.tensor([int(r["prediction"]) for r in told]) == data.y
    (score,) = [s for s in run.metrics["scores"] if s["name"] == "AKE"]
    assert float(right[data.test_mask].double().mean()) == score["test"]
    assert float(right[data.val_mask].double().mean()) == score["validation"]


def test_what_the_demo_ran_with_is_the_recipe(demo):
    settings = akegnn.load(demo[0]).settings
    assert (settings.data, settings.task, settings.model, settings.recipe) == ("digits", "node", "gcn", "strong")
    assert [(v["kind"], v["resample"]) for v in settings.views] == [("drop-edges", "epoch")] * 4
    assert settings.exchange.strategy == "functional"
    assert sorted(p.name for p in demo[0].iterdir() if p.name.startswith(("UN", "."))) == []
