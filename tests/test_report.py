"""What a page says, against independent truth: scikit-learn, numpy, the store's own rows, the weights themselves."""

from __future__ import annotations

import copy
import dataclasses
import html
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, roc_auc_score

import akegnn
from akegnn import cli, evidence, report, runs
from akegnn.backbones import BACKBONES
from akegnn.experiments import EXPERIMENTS, Experiment, Job, base, blocks, entries, run, stored
from akegnn.report.page import in_script
from akegnn.report.run import flat, origins, shipped_line
from akegnn.report.stored import store_page
from akegnn.store import Cell, Store, key_of
from small import fit, graph, graphs, refusal

NASTY = "</script><script>document.title = 'owned'</script>"


def embedded(page: Path) -> dict[str, Any]:
    """The data of a page, as its own script reads it."""
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    return json.loads(text)


def words(page: Path) -> str:
    """The text of a page, without its scripts and styles."""
    bare = re.sub(r"<(script|style).*?</\1>", "", page.read_text(), flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", bare))


def values(data: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]


@pytest.fixture(scope="module")
def result():
    return fit("digits", baseline=True)


@pytest.fixture(scope="module")
def folder(result, tmp_path_factory):
    return result.save(tmp_path_factory.mktemp("run") / "digits")


@pytest.fixture(scope="module")
def page(folder, tmp_path_factory):
    return report.write(folder, tmp_path_factory.mktemp("page") / "report.html")


# ---- evidence --------------------------------------------------------------------------------------------------------


def predictions(result: akegnn.Result, data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and truth of the test part, straight from the model."""
    with torch.no_grad():
        probabilities = result.model(data.x, data.edge_index).double().softmax(-1)
    return probabilities[data.test_mask].numpy(), data.y[data.test_mask].numpy()


def test_the_confusion_matrix_is_scikit_learns(result):
    probabilities, truth = predictions(result, akegnn.load_data("digits"))
    expected = confusion_matrix(truth, probabilities.argmax(1), labels=range(10))
    assert result.evidence["confusion"] == expected.tolist()
    right = sum(row[k] for k, row in enumerate(result.evidence["confusion"])) / len(truth)
    assert right == pytest.approx(result.score().test)


def test_calibration_as_it_is_defined(result):
    probabilities, truth = predictions(result, akegnn.load_data("digits"))
    sure, right = probabilities.max(1), probabilities.argmax(1) == truth
    error = 0.0
    for k in range(10):
        here = [(s, r) for s, r in zip(sure, right, strict=True) if k / 10 <= s < (k + 1) / 10]
        if here:
            gap = sum(s for s, _ in here) - sum(r for _, r in here)
            error += abs(gap) / len(truth)
    assert result.evidence["calibration"]["error"] == pytest.approx(error, abs=1e-6)
    assert sum(b["count"] for b in result.evidence["calibration"]["bins"]) == len(truth)


def test_calibration_by_hand():
    """Four predictions of 0.75, three of them right, and one of certainty that is wrong."""
    sure = np.array([[0.75, 0.25]] * 4 + [[1.0, 0.0]])
    found = evidence.calibration(sure, np.array([0, 0, 0, 1, 1]))
    assert found["error"] == pytest.approx(0.2)
    assert [(b["bin"], b["count"], b["accuracy"]) for b in found["bins"]] == [(7, 4, 0.75), (9, 1, 0.0)]


def test_the_roc_curve_is_of_the_test_pairs():
    data = graph(80)
    found = fit(data, task="link")
    task = akegnn.make_task(data, "link")
    with torch.no_grad():
        scores = task.probability(found.model, task.pairs["test"])
    area = roc_auc_score(task.targets["test"], scores)
    assert found.evidence["roc"]["area"] == pytest.approx(area, abs=1e-6)
    points = np.array(found.evidence["roc"]["points"])
    assert points[0].tolist() == [0, 0]
    assert points[-1].tolist() == [1, 1]
    assert np.trapezoid(points[:, 1], points[:, 0]) == pytest.approx(area, abs=1e-3)
    assert "confusion" not in found.evidence
    assert len(found.evidence["map"]["points"]) == 80


def test_correlations_before_and_after_are_numpys():
    """Networks that are given: their weights are known before, and their exchange can be made once more."""
    given = [BACKBONES["gcn"](5, 3, hidden_channels=8) for _ in range(3)]
    found = fit(graph(), models=given, views=["original"] * 3, epochs=1)
    after = [copy.deepcopy(m) for m in given]
    akegnn.exchange_ring(after, data=graph(), iterations=3)
    for layer, number in (("convs.0", 0), ("convs.1", 1)):
        told = next(x for x in found.evidence["layers"] if x["name"] == layer)
        for when, network in (("before", given[0]), ("after", after[0])):
            expected = np.corrcoef(network.convs[number].lin.weight.detach().double().numpy())
            upper = expected[np.triu_indices(told["channels"], 1)]
            np.testing.assert_allclose(np.array(told[when]) / 100, upper, atol=0.00501)


def test_evidence_of_several_seeds_is_of_the_network_that_ships():
    results = fit(seeds=3)
    assert [r.evidence is not None for r in results.results] == [r is results.best for r in results.results]
    with torch.no_grad():
        out = results.best.model(graph().x, graph().edge_index).argmax(-1)
    right = sum(row[k] for k, row in enumerate(results.best.evidence["confusion"]))
    test = akegnn.make_task(graph(), "node").parts["test"]
    assert right == int((out[test] == graph().y[test]).sum())


def test_evidence_stays_small(monkeypatch):
    monkeypatch.setattr(evidence, "POINTS", 5)
    wide = fit(model_args={"hidden_channels": 129})
    assert [("before" in x, "entropy" in x) for x in wide.evidence["layers"]] == [(False, True), (True, True)]
    assert len(wide.evidence["map"]["points"]) == 5
    monkeypatch.setattr(evidence, "NUMBERS", 240)  # 16 channels have 120 pairs, before and after
    assert ["before" in x for x in fit().evidence["layers"]] == [True, False]


def test_a_network_that_blew_up_has_no_errors_to_show(monkeypatch):
    """A run must not fail at its very end because of what a page would show."""
    monkeypatch.setattr(evidence, "evaluate", lambda model, task: torch.full((60, 3), torch.nan))
    assert fit().evidence.keys() == {"layers"}


def test_graphs_have_evidence_too():
    found = fit(graphs(), "gin")
    assert sum(map(sum, found.evidence["confusion"])) == found.sizes["test"]
    assert {"calibration", "map", "layers"} <= found.evidence.keys()


def test_it_changes_no_score(monkeypatch):
    """Looking at a network draws nothing from any generator."""
    seen = fit("digits")
    monkeypatch.setattr(evidence, "collect", lambda *_: None)
    unseen = fit("digits")
    assert [dataclasses.replace(s, seconds=0) for s in seen.scores] == [
        dataclasses.replace(s, seconds=0) for s in unseen.scores
    ]
    assert unseen.evidence is None


# ---- the page of a run -----------------------------------------------------------------------------------------------


def test_the_page_has_every_part(page, result):
    text = words(page)
    for heading in (
        "What it gained",
        "How the networks learned",
        "What was exchanged",
        "errs",
        "Setting and environment",
    ):
        assert heading in text
    for score in result.scores:
        assert f"{100 * score.test:.2f}" in text
    assert akegnn.__version__ in text
    assert "model_args.out_channels" in text
    titles = re.findall(r"<figcaption><b>(.*?)</b>", page.read_text())
    assert titles == [
        "Test scores",
        *("Individual: validation score", "Individual: training loss"),
        *("Re-training: validation score", "Re-training: training loss"),
        *("Correlation of channels before the exchange", "Correlation of channels after the exchange"),
        *("Which channel came from where", "Entropy, step by step", "Entropy before and after the exchange"),
        *("Confusion matrix", "Calibration", "Map of the outputs"),
    ]


def test_it_needs_nothing_but_itself(page):
    """No address is fetched: nothing is linked but data and places in the page."""
    outside = re.sub(r"<script.*?</script>", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r'(?:src|href)="([^"]*)"|url\(([^)]*)\)|@import', outside)
    assert all((a or b).startswith(("#", "data:")) for a, b in links)


def test_the_charts_hold_the_records(page, folder, result):
    charts = embedded(page)["charts"]
    lines = [v for v in values(charts["scores-0"]["data"]) if v["part"] == "line"]
    names = ["base", "view 1: mask", "view 2: original", "ensemble", "AKE"]
    assert [(v["name"], v["test"]) for v in lines] == [(n, round(100 * result.score(n).test, 3)) for n in names]
    curve = [v["validation"] for v in values(charts["learning-0"]["data"]) if v["network"] == "base"]
    history = [e for e in result.history if (e.phase, e.network) == ("individual", "base")]
    assert curve == [round(100 * e.validation, 3) for e in history]
    assert charts["exchange-0"]["choices"]["convs.0"]["upper"] == result.evidence["layers"][0]["before"]
    assert charts["exchange-1"]["choices"]["convs.1"]["upper"] == result.evidence["layers"][1]["after"]
    steps = values(charts["exchange-3"]["choices"]["convs.0"])
    last = [s for s in result.swaps if (s.layer, s.target) == ("convs.0", 0)][-1]
    assert [v["entropy"] for v in steps if v["network"] == "1: mask"][-1] == round(last.entropy_after, 6)
    counts = np.array([v["count"] for v in values(charts["errors-0"]["data"])]).reshape(10, 10)
    assert counts.tolist() == result.evidence["confusion"]


def test_means_have_intervals_and_seeds_behind_them(tmp_path):
    results = fit(seeds=3, baseline=True)
    page = report.write(results.save(tmp_path / "run"), tmp_path / "page.html")
    data = values(embedded(page)["charts"]["scores-0"]["data"])
    for line in results.summary():
        if line.name in ("base", "AKE"):
            [mean] = [v for v in data if (v["part"], v["name"]) == ("line", line.name)]
            assert [mean[n] for n in ("test", "low", "high")] == [
                round(100 * v, 3) for v in (line.test, line.low, line.high)
            ]
            seeds = [v["test"] for v in data if (v["part"], v["name"]) == ("seed", line.name)]
            assert seeds == [round(100 * r.score(line.name).test, 3) for r in results.results]
    gain = results.summary()[-1].gain
    assert f"{100 * gain:+.2f}".replace("-", "−") in words(page)
    split, seed = results.best.settings.split, results.best.settings.seed
    assert f"The network of split {split}, seed {seed}" in words(page)


@pytest.mark.parametrize("strategy", ["adaptive", "random-output", "first-output", "self", "neuron", "random-partner"])
def test_channels_are_followed_to_where_they_came_from(strategy):
    """Every row of weights is different, so that the weights themselves tell where they were."""
    networks = [BACKBONES["gcn"](5, 3, hidden_channels=8) for _ in range(3)]
    before = [m.convs[0].lin.weight.detach().clone() for m in networks]
    swaps = akegnn.exchange_ring(networks, data=graph(), strategy=strategy, layers="hidden", channels=3, iterations=1)
    here = [s for s in swaps if s.layer == "convs.0"]
    table = origins(here, ["a", "b", "c"], 8)
    after = {name: m.convs[0].lin.weight for name, m in zip("abc", networks, strict=True)}
    moved = 0
    for row in map(dict, (zip(table.columns, r, strict=True) for r in table.rows)):
        now = after[row["network"]][row["channel"]]
        same = [("abc"[n], c) for n, w in enumerate(before) for c in range(8) if torch.equal(w[c], now)]
        expected = [(row["from"], row["was"])] if row["from"] in ("a", "b", "c") else []
        assert same == expected
        moved += row["moved"]
    assert len(table.rows) == 24
    assert moved > 0


@pytest.mark.parametrize("strategy", ["point", "random-input", "first-output"])
def test_strategies_that_tell_less_have_a_page_all_the_same(strategy, tmp_path):
    found = fit(exchange={"strategy": strategy})
    page = report.write(found.save(tmp_path / "run"), tmp_path / "page.html")
    titles = re.findall(r"<figcaption><b>(.*?)</b>", page.read_text())
    assert "Entropy, step by step" not in titles
    assert ("Which channel came from where" in titles) == (strategy != "point")


def test_a_run_without_any_swap(tmp_path):
    found = fit(views=["original"])
    assert found.swaps == []
    assert "No channels were exchanged" in words(report.write(found.save(tmp_path / "run"), tmp_path / "page.html"))


def test_a_training_loop_of_ones_own_has_no_curves(tmp_path):
    found = fit(train=lambda model, data: None)
    text = words(report.write(found.save(tmp_path / "run"), tmp_path / "page.html"))
    assert "config.toml alone does not repeat the run" in text


def test_a_folder_of_an_earlier_version(folder, tmp_path):
    old = Path(shutil.copytree(folder, tmp_path / "old"))
    (old / "evidence.json").unlink()
    assert runs.finished_settings(old) is not None, "it is whole without"
    page = report.write(old, tmp_path / "page.html")
    assert "written before runs kept their evidence" in words(page)
    titles = re.findall(r"<figcaption><b>(.*?)</b>", page.read_text())
    assert "Which channel came from where" in titles
    assert "Confusion matrix" not in titles


def test_a_table_of_an_earlier_version_has_defaults(folder, result):
    """Without its last column, and with one that nobody knows."""
    lines = [line.rsplit(",", 1)[0] + ",x" for line in (folder / "swaps.csv").read_text().splitlines()]
    older = folder.parent / "older.csv"
    older.write_text("\n".join(lines) + "\n")
    assert runs.read_rows(older, akegnn.Swap) == result.swaps
    assert runs.read_rows(folder / "swaps.csv", akegnn.Swap) == result.swaps


def test_names_cannot_break_the_page(tmp_path):
    """Class names come from people's files."""
    data = graph()
    data.classes = [NASTY, "b & c", "naïve"]
    found = fit(data)
    assert found.classes[0] == NASTY
    page = report.write(found.save(tmp_path / "run"), tmp_path / "page.html")
    assert NASTY not in page.read_text()
    labels = {v["truth"] for v in values(embedded(page)["charts"]["errors-0"]["data"])}
    assert labels == {NASTY, "b & c", "naïve"}


def test_numbers_that_json_has_no_words_for():
    assert json.loads(in_script({"a": [1.5, float("nan"), (float("inf"),)], "b": "<"})) == {
        "a": [1.5, None, [None]],
        "b": "<",
    }


def test_the_line_that_ships():
    lines = [
        {"name": n, "passes": p} for n, p in (("base", 1), ("ensemble", 4), ("strong", 1), ("strong network 2", 1))
    ]
    assert shipped_line(lines) == 2
    assert shipped_line([*lines, {"name": "AKE", "passes": 1}]) == 4
    assert shipped_line([{"name": "ensemble", "passes": 4}]) == 0


def test_few_points_need_no_t_sne():
    places, how = flat(np.arange(8.0).reshape(4, 2))
    assert (places, how) == ([[0, 1], [2, 3], [4, 5], [6, 7]], "The first two principal components")


# ---- the page of a store ---------------------------------------------------------------------------------------------

QUICK = {"epochs": 2, "views": ["mask:0.3"]}


def job(row: str = "gcn", **given: Any) -> Job:
    usual = {"column": "digits", "data": "digits", "model": "gcn", "seeds": 2, "settings": QUICK}
    return Job(row, **{**usual, **given})


def made_up(*jobs: Job, **given: Any) -> Experiment:
    return Experiment("made-up", "For the tests.", lambda: list(jobs), **given)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A table of two rows along an axis, computed, and a block that no experiment names."""
    experiment = made_up(
        *(job(f"{k} bins", x=k, settings={**QUICK, "exchange": {"bins": k}}) for k in (4, 10)), axis="bins"
    )
    path = tmp_path_factory.mktemp("store") / "results.sqlite"
    with Store(path) as kept:
        assert run(blocks(experiment.chosen()), kept, "cpu").done == 2
        odd = [
            Cell("odd", NASTY, "net", m, s, k, 0.5, 0.5 + k / 10, None, "f1", 1, 9, 0.1)
            for m in ("a", "base")
            for s in (0, 1)
            for k in (0, 1)
        ]
        kept.add("odd", f"net on {NASTY}", {"whatever": 1}, odd, 1.0)
        kept.fail("bad", "gat on cora", "RuntimeError: out of memory")
    return experiment, path


@pytest.fixture
def registered(store, monkeypatch):
    experiment, path = store
    monkeypatch.setitem(EXPERIMENTS, "made-up", experiment)
    return experiment, path


def rows_of(grid: dict[str, Any]) -> list[dict[str, Any]]:
    """A grid's rows in words: the last numbers are scores in hundred-thousandths, in the order of the cells."""
    found = []
    for row in grid["rows"]:
        row_, column, line = (grid["words"][k] for k in row[:3])
        seeds = {tuple(cell): score / 100_000 for cell, score in zip(grid["cells"][row[-2]], row[-1], strict=True)}
        found.append(
            {"place": (row_, column, line), "n": row[3], "mean": row[4], "difference": row[8:11], "seeds": seeds}
        )
    return found


def test_the_tables_are_those_of_the_store(registered, tmp_path):
    experiment, path = registered
    page = report.write(path, tmp_path / "page.html")
    data = embedded(page)
    assert list(data["grids"]) == ["made-up", "other"]
    with Store(path, create=False) as kept:
        expected = entries(experiment, stored(experiment, kept), kept)
        cells = kept.cells()
    found = rows_of(data["grids"]["made-up"])
    assert [r["place"] for r in found] == [(e.row, e.column, e.method) for e in expected]
    for shown, entry in zip(found, expected, strict=True):
        assert shown["mean"] == round(100 * entry.score.mean, 3)
        gain = entry.gain
        assert shown["difference"] == (
            [round(100 * v, 3) for v in (gain.mean, gain.low, gain.high)] if gain else [None] * 3
        )
    blocks_of = {b.job.row: b.key for b in base.blocks(experiment.chosen())}
    for shown in found:
        own = {
            (c.split, c.seed): c.test
            for c in cells
            if (c.block, c.method) == (blocks_of[shown["place"][0]], shown["place"][2])
        }
        assert shown["seeds"] == pytest.approx(own, abs=1e-5)
    line = values(data["charts"]["made-up-0"]["data"])
    assert {v["x"] for v in line} == {4, 10}
    assert "after exchange" not in {v["line"] for v in line}
    text = words(page)
    assert "gat on cora" in text
    assert "RuntimeError: out of memory" in text


def test_cells_that_no_experiment_names_are_shown(store, tmp_path):
    """Without the experiment, its blocks are such cells too."""
    _, path = store
    page = report.write(path, tmp_path / "page.html")
    grid = embedded(page)["grids"]["other"]
    found = {r["place"]: r for r in rows_of(grid)}
    assert found[f"net on {NASTY}", NASTY, "a"]["seeds"] == {(0, 0): 0.5, (0, 1): 0.6, (1, 0): 0.5, (1, 1): 0.6}
    assert found[f"net on {NASTY}", NASTY, "a"]["difference"] == [0, 0, 0]
    assert {p[0] for p in found} == {
        f"net on {NASTY}",
        "gcn on digits, 4 bins, 2 epochs",
        "gcn on digits, 10 bins, 2 epochs",
    }
    assert NASTY not in page.read_text()


def test_the_papers_numbers_stand_beside_ours(tmp_path):
    job = next(j for j in EXPERIMENTS["table3"].jobs() if (j.model, j.data) == ("gcn", "cora"))
    settings = as_stored(job, [[0, 0], [0, 1]])
    key = key_of(settings)
    scores = {"base": 0.81, "AKE": 0.82}
    cells = [
        Cell(key, "cora", "gcn", m, 0, k, 0.8, v + k / 100, 0.1, "accuracy", 1, 9, 1.0)
        for m, v in sorted(scores.items())
        for k in (0, 1)
    ]
    with Store(tmp_path / "store") as kept:
        kept.add(key, "gcn on cora", settings, cells, 1.0)
    data = embedded(report.write(tmp_path / "store", tmp_path / "page.html"))
    grid = data["grids"]["table3"]
    shown = {grid["words"][r[2]]: r for r in grid["rows"]}
    assert shown["base"][17:20] == [81.4, 0.6, None]
    assert shown["AKE"][17:20] == [82.8, 0.3, 1.4]
    assert shown["AKE"][8] == 1.0
    assert "openings" in data["grids"], "the same block is a row of another table"


def as_stored(job: Job, cells: list[list[int]]) -> dict[str, Any]:
    """What a block of a job has in the store, as far as a job settles it."""
    said = {**base._said(job), "data": job.data, "model": job.model}
    block = {"settings": said, "methods": list(job.methods), "cells": cells}
    block |= base._revisions(said, job.methods)
    block |= {"epochs": job.settings["epochs"]} if "epochs" in job.settings else {}
    return block | ({"compute": job.compute.__qualname__} if job.compute else {})


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_block_belongs_to_its_own_job(name):
    jobs = EXPERIMENTS[name].jobs()
    for job in jobs:
        block = as_stored(job, [[0, 0]])
        same = [other for other in jobs if base.belongs(block, other)]
        assert job in same
        for other in same:
            assert (other.data, other.model, base._said(other)) == (job.data, job.model, base._said(job))


def test_other_settings_do_not_belong():
    block = as_stored(job(), [[0, 0]])
    assert base.belongs(block, job())
    for changed in (
        job(settings={**QUICK, "views": ["mask:0.2"]}),
        job(settings={**QUICK, "exchange": {"strategy": "self"}}),
        job(settings={**QUICK, "phases": {"initial": "shared"}}),
        job(settings={**QUICK, "labels_per_class": 5}),
        job(settings={**QUICK, "resample": "epoch"}),
        job(settings={**QUICK, "epochs": 3}),
        job(methods=("single",)),
        job(data="cora"),
        job(model="gat"),
        job(compute=lambda plan, cells: None),
    ):
        assert not base.belongs(block, changed)


def test_blocks_are_found_whatever_their_seeds_and_are_not_mixed(tmp_path):
    """Two seeds and three of the same job: the three count, and the two are shown elsewhere."""
    experiment = made_up(job())
    with Store(tmp_path / "store") as kept:
        for seeds, score in ((2, 0.5), (3, 0.6)):
            settings = as_stored(job(), [[0, k] for k in range(seeds)])
            cells = [
                Cell(key_of(settings), "digits", "gcn", "base", 0, k, 0.5, score, None, "accuracy", 1, 9, 1.0)
                for k in range(seeds)
            ]
            kept.add(key_of(settings), "gcn on digits", settings, cells, 1.0)
        found = stored(experiment, kept)
        assert [b.cells for b in found] == [((0, 0), (0, 1), (0, 2))]
        [entry] = entries(experiment, found, kept)
        assert (entry.score.n, entry.score.mean) == (3, pytest.approx(0.6))
    page = store_page(tmp_path / "store")
    grid = page.sections[0].grid
    assert grid.words[:2] == ["gcn on digits", "digits"]
    assert sorted(row[3] for row in grid.rows) == [2, 3], "both, where no experiment names them"
    assert "gcn on digits (2)" in grid.words


def test_curves_are_drawn_from_the_stores_epochs(registered, monkeypatch, tmp_path):
    experiment, path = registered
    drawn = dataclasses.replace(experiment, axis="", draw=lambda axes, histories: None)
    monkeypatch.setitem(EXPERIMENTS, "made-up", drawn)
    points = values(embedded(report.write(path, tmp_path / "page.html"))["charts"]["made-up-0"]["data"])
    with Store(path, create=False) as kept:
        histories = list(kept.histories([b.key for b in stored(experiment, kept)]).values())
    first = [
        e["validation"]
        for h in histories
        for e in h
        if (e["phase"], e["network"], e["epoch"]) == ("individual", "base", 2)
    ]
    [shown] = [p for p in points if (p["network"], p["phase"], p["epoch"]) == ("base", "individual", 2)]
    assert shown["validation"] == pytest.approx(100 * sum(first) / len(first), abs=1e-3)
    assert {p["epoch"] for p in points if p["phase"] == "re-training"} == {4}, "it goes on where phase 1 ended"


def large_store(path: Path, places: int, seeds: int, lines: int) -> int:
    random = np.random.default_rng(0)
    names = ["base", *(f"method {k}" for k in range(2, lines)), "AKE"]
    with Store(path) as kept:
        for k in range(places):
            data, model = f"dataset {k % 25}", f"backbone {k // 25}"
            settings = {"settings": {"data": data, "model": model}, "cells": [[0, s] for s in range(seeds)]}
            key, scores = key_of(settings), random.random((lines, seeds)).tolist()
            cells = [
                Cell(key, data, model, name, 0, s, 0.5, scores[n][s], 0.1, "accuracy", 1, 9, 1.5)
                for n, name in enumerate(names)
                for s in range(seeds)
            ]
            kept.add(key, f"{model} on {data}", settings, cells, 1.0)
    return places * seeds * lines


def test_a_hundred_thousand_cells_make_a_page_under_ten_megabytes(tmp_path):
    assert large_store(tmp_path / "store", places=100, seeds=100, lines=10) == 100_000
    page = report.write(tmp_path / "store", tmp_path / "page.html")
    assert page.stat().st_size < 10_000_000
    grid = embedded(page)["grids"]["other"]
    assert sum(len(row[-1]) for row in grid["rows"]) == 100_000


def test_an_empty_store(tmp_path):
    Store(tmp_path / "store").close()
    assert "0 blocks failed" in words(report.write(tmp_path / "store", tmp_path / "page.html"))


# ---- the command and its refusals ------------------------------------------------------------------------------------


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    sys.argv = ["akegnn", *map(str, arguments)]
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0), capsys.readouterr().err


def test_the_command(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    code, said = command(capsys, "report", folder, "-o", tmp_path / "page.html")
    assert (code, said) == (0, f"akegnn: wrote {tmp_path / 'page.html'}\n")
    assert "What it gained" in words(tmp_path / "page.html")


def broken(folder: Path, tmp_path: Path, name: str, content: str) -> Path:
    copied = Path(shutil.copytree(folder, tmp_path / "broken"))
    (copied / name).write_text(content)
    return copied


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("UNFINISHED", "", "the run has not finished"),
        ("metrics.json", "{", "not valid JSON"),
        ("evidence.json", "[", "not valid JSON"),
        ("scores.csv", "split,seed\n0,0\n", "cannot be read as a table"),
        ("swaps.csv", "layer,step\na,b\n", "cannot be read as a table"),
    ],
    ids=["unfinished", "metrics", "evidence", "scores", "swaps"],
)
def test_a_broken_folder_is_told_of_in_one_line(name, content, message, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    (tmp_path / "page.html").write_text("<!doctype html>what was there")
    code, said = command(capsys, "report", broken(folder, tmp_path, name, content), "-o", tmp_path / "page.html")
    assert code == 2
    assert message in said
    assert said.count("\n") == 1
    assert (tmp_path / "page.html").read_text() == "<!doctype html>what was there"


def test_what_cannot_be_read_or_written(folder, tmp_path):
    assert "no such run folder or store" in refusal(lambda: report.write(tmp_path / "none", tmp_path / "page.html"))
    (tmp_path / "text").write_text("no database")
    assert "not a database" in refusal(lambda: report.write(tmp_path / "text", tmp_path / "page.html"))
    (tmp_path / "empty").mkdir()
    assert "config.toml is missing" in refusal(lambda: report.write(tmp_path / "empty", tmp_path / "page.html"))
    assert "is a folder" in refusal(lambda: report.write(folder, tmp_path))
    assert "cannot be written" in refusal(lambda: report.write(folder, tmp_path / "none" / "page.html"))
    Store(tmp_path / "store").close()
    assert "is the store itself" in refusal(lambda: report.write(tmp_path / "store", tmp_path / "store"))
    assert not (tmp_path / "page.html").exists()


def test_only_a_page_is_written_over(folder, tmp_path):
    mine, page = tmp_path / "nodes.csv", tmp_path / "page.html"
    mine.write_text("id,label\n")
    assert refusal(lambda: report.write(folder, mine)).startswith(f"{mine}: is there already and is no page; ")
    assert mine.read_text() == "id,label\n"
    page.touch()  # as mktemp makes it
    for _ in range(2):
        report.write(folder, page)
    assert "What it gained" in words(page)


@pytest.mark.parametrize("package", ["jinja2", "vl_convert"])
def test_a_missing_package_is_named_with_its_cure(package, folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    message = refusal(lambda: report.write(folder, tmp_path / "page.html"))
    assert message == f"report: {package} is not installed; pip install 'akegnn[report]'"


# ---- notebooks -------------------------------------------------------------------------------------------------------


def test_a_notebook_shows_a_table_and_a_picture(result):
    shown = result._repr_html_()
    for score in result.scores:
        assert f">{score.name}<" in shown
        assert f">{100 * score.test:.2f}<" in shown
    assert shown.count("<svg") == 1
    assert "<script" not in shown


def test_a_notebook_shows_means_and_intervals():
    results = fit(seeds=2, baseline=True)
    shown = results._repr_html_()
    for line in results.summary():
        assert f">{100 * line.test:.2f}<" in shown
        assert f">{100 * line.low:.2f} to {100 * line.high:.2f}<".replace("-", "−") in shown
    assert "<svg" in shown


def test_a_notebook_without_the_extra_shows_the_table(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    shown = result._repr_html_()
    assert shown.startswith("<table>")
    assert "<svg" not in shown


def test_names_are_escaped_in_a_notebook(result):
    odd = dataclasses.replace(result, scores=[dataclasses.replace(result.scores[0], name=NASTY), *result.scores[1:]])
    assert "<script" not in odd._repr_html_()
