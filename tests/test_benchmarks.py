"""What the scripts that measure share: rows are added once, stay, and tables find their place in a page.

And what one of them has that the package does not: networks aligned neuron by neuron.
"""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from akegnn.fit import plan
from small import refusal


@pytest.fixture
def script(monkeypatch):
    """A script of ``benchmarks/`` by name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    return importlib.import_module


@pytest.fixture
def rows(script) -> ModuleType:
    return script("rows")


def test_rows_are_added_to_those_that_are_there(rows, tmp_path):
    path = tmp_path / "deep" / "rows.csv"
    assert rows.read(path) == []
    for name in ("a", "b"):
        with rows.adding(path, ("name", "score")) as add:
            add([(name, 1), (name, "2, or 3")])
            assert rows.read(path)[-1] == {"name": name, "score": "2, or 3"}, "there before the end"
    assert path.read_text() == 'name,score\na,1\na,"2, or 3"\nb,1\nb,"2, or 3"\n'


def test_a_table_takes_the_place_of_the_one_before(rows, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- a -->\nold\n<!-- end of a -->\nbetween\n<!-- b -->\n<!-- end of b -->\nbelow é\n")
    rows.fill(page, "b", "| 2 |")
    rows.fill(page, "a", "| 1 |")
    assert page.read_text(encoding="utf-8") == (
        "above\n<!-- a -->\n| 1 |\n<!-- end of a -->\nbetween\n<!-- b -->\n| 2 |\n<!-- end of b -->\nbelow é\n"
    )


def test_places_that_were_measured_again_take_the_place_of_older_ones(script, monkeypatch, tmp_path):
    """The table is made anew from rows alone; what was not measured again stays."""
    combine, rows = script("combine"), script("rows")
    head = "row,dataset,backbone,method,split,seed,validation,test,passes,parameters,seconds"

    def measured(folder, models, gain):
        folder.mkdir()
        lines = [head]
        for model in models:
            for seed in range(6):
                lines += [f"{model},cora,{model},base,0,{seed},0.5,0.6,1,9,1", f"{model},cora,{model},strong,0,{seed},"]
                lines[-1] += f"0.5,{0.6 + gain * (seed + 1):.15g},1,9,7"
        (folder / "strong.rows.csv").write_text("\n".join(lines) + "\n")
        floors = [f"{model},cora,base,31.9000" for model in models]
        (folder / "strong.csv").write_text("\n".join(["row,column,method,floor", *floors]) + "\n")
        return folder / "strong.rows.csv"

    measured(tmp_path / "results", ["gcn", "gat"], 0.01)
    newer = measured(tmp_path / "newer", ["gcn", "grand"], -0.001)
    results = tmp_path / "results"
    (results / "strong.commits.csv").write_text("row,dataset,commit\ngcn,cora,old\ngat,cora,old\n")
    given = ["strong", str(newer), "--commit", "new", "--results", str(results)]
    monkeypatch.setattr("sys.argv", ["combine.py", *given])
    combine.main()
    made_by = {r["row"]: r["commit"] for r in rows.read(results / "strong.commits.csv")}
    assert made_by == {"gcn": "new", "gat": "old", "grand": "new"}
    table = {(r["row"], r["method"]): r for r in rows.read(tmp_path / "results" / "strong.csv")}
    gains = {row: float(table[row, "strong"]["difference"]) for row in ("gcn", "gat", "grand")}
    assert gains == {"gcn": -0.35, "gat": 3.5, "grand": -0.35}
    assert {r["p"] for r in table.values()} == {"", "0.031"}  # two sides of six seeds of one sign: 2 / 2^6
    assert {(r["n"], r["floor"]) for r in table.values()} == {("6", "31.9000")}
    every = rows.read(tmp_path / "results" / "strong.rows.csv")
    assert len(every) == 3 * 12
    assert [r["test"] for r in every if r["row"] == "gcn"].count("0.599") == 1  # the newer one's


def test_what_cannot_be_combined_is_refused(script, monkeypatch, tmp_path):
    combine = script("combine")
    alone = tmp_path / "strong.rows.csv"
    alone.write_text("row,dataset\ngcn,cora\n")

    def said(*given):
        monkeypatch.setattr("sys.argv", ["combine.py", *map(str, given), "--commit", "a", "--results", str(tmp_path)])
        return refusal(combine.main)

    assert said("curves", alone).startswith("curves: its picture is drawn from epochs")
    assert said("strong", alone) == f"{tmp_path / 'strong.csv'}: no table, from which the floors are taken"
    assert said("table3", alone).startswith(f"{tmp_path / 'table3.rows.csv'}: no rows of a table")


def test_a_page_without_a_place_for_a_table_is_named(rows, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    assert refusal(lambda: rows.fill(page, "a", "")).startswith(f"{page}: has no place for this table")


@pytest.mark.parametrize("model", ["gcn", "jknet-cat", "appnp"])
def test_a_network_with_its_neurons_in_another_order_is_aligned_back(script, model):
    ways = script("ways")
    bench = plan("digits", model, device="cpu", epochs=2).bench([(0, 0), (0, 1)])
    given, other = bench.base, bench.base.copy()
    layers = bench.map.whole_neurons(bench.map.layers)
    for k in range(2):
        state = other.population.state_dict(k)
        for layer in layers:
            ways.permute(state, layer, torch.randperm(layer.channels, generator=torch.Generator().manual_seed(k)))
        other.population.load_state_dict(k, state)
    torch.testing.assert_close(bench.predict(other), bench.predict(given))
    apart = {k: not torch.equal(v, given.population.state[k]) for k, v in other.population.state.items()}
    assert any(apart.values())
    first, second = ways.align(bench, [given, other])
    for k, expected in given.population.state.items():
        assert torch.equal(first.population.state[k], expected)
        assert torch.equal(second.population.state[k], expected)


def measured(script, monkeypatch, about, lab, job):
    """Rows of all variants of a script, of two splits, with three epochs."""
    recipe = script("recipe")
    whole = recipe.prepared

    def short(*given):
        settled = whole(*given)
        trainer = settled.trainer
        return dataclasses.replace(
            settled, trainer=dataclasses.replace(trainer, settings=dataclasses.replace(trainer.settings, epochs=3))
        )

    monkeypatch.setattr(recipe, "prepared", short)
    found: list[tuple[object, ...]] = []
    recipe.measure(job, about.VARIANTS, lab, "cpu", 2, found.extend)
    read = [dict(zip(recipe.COLUMNS, map(str, row), strict=True)) for row in found]
    assert all(0 <= float(r["held"]) <= 1 for r in read)
    return read


def test_every_way_is_measured_and_shown(script, monkeypatch):
    """On the embedded graph; a way that the network does not allow is left out."""
    ways = script("ways")
    read = measured(script, monkeypatch, ways, ways.Ways, "digits/gcn")
    assert {r["variant"] for r in read} == set(ways.VARIANTS) - {"best epoch by score, not by loss"}
    text = ways.table(read)
    assert text.count(", 2, ") == 3 * len(ways.FORMS) + len(ways.TEACHING) - 1 + 1, "two splits, with many labels"


def test_smoothing_is_measured_and_shown(script, monkeypatch):
    smoothing = script("smoothing")
    read = measured(script, monkeypatch, smoothing, smoothing.Smooth, "digits/gcn")
    assert {r["variant"] for r in read} == set(smoothing.VARIANTS)
    tables = smoothing.table(read).split("\n\n")
    lines = [t.split("\n") for t in tables]
    assert [len(t) - 2 for t in lines] == [2, len(smoothing.TEACHERS), len(smoothing.CHOICES)]
    assert all(len({line.count("|") for line in t}) == 1 for t in lines), "as many cells in every line"


def test_evenly_every_class_counts_the_same(script):
    evenly = script("smoothing").evenly
    g = torch.Generator().manual_seed(0)
    soft = (torch.randn(2, 500, 4, generator=g) + torch.tensor([1.0, 0.0, 0.0, -1.0])).softmax(-1)
    even = evenly(soft)
    assert torch.allclose(even.sum(-2), torch.full((2, 4), 125.0), rtol=1e-4)
    ratio = even / soft
    assert torch.allclose(ratio, ratio[:, :1].expand_as(ratio), rtol=1e-4)  # the same factor for all nodes
    hardly = torch.tensor([1.0, 1e-9]).expand(100, 2)
    assert torch.allclose(evenly(hardly).sum(0), torch.tensor([50.0, 1e-6]))  # ten times as much at most


def test_what_ships_is_chosen_by_validation_and_targets_are_smoothed_by_it(script):
    smoothing = script("smoothing")

    def row(validation, held):
        return {"validation": str(validation), "held": str(held), "loss": "1"}

    rows = {name: row(0.5, 0.5) for name in smoothing.VARIANTS}
    rows |= {"taught": row(0.6, 0.61), "smoothed, taught": row(0.7, 0.71), "smoothed, taught evenly": row(0.8, 0.81)}

    def ships(how):
        return smoothing.held(smoothing.chosen(rows, [*smoothing.BEFORE, *smoothing.CHOICES[how](rows)]))

    wanted = {"taught": 61, "taught; taught evenly": 61, "taught, always smoothed": 71, "both, always smoothed": 81}
    assert {how: ships(how) for how in wanted} == pytest.approx(wanted)
    gated = [how for how in smoothing.CHOICES if "validation" in how]
    assert [ships(how) for how in gated] == pytest.approx([71, 81])  # of equals the smoothed ones
    rows["teachers"] = row(0.51, 0.5)
    assert [ships(how) for how in gated] == pytest.approx([61, 61])
