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


def test_every_way_is_measured_and_shown(script, monkeypatch):
    """On the embedded graph, with three epochs; a way that the network does not allow is left out."""
    ways, recipe = script("ways"), script("recipe")
    whole = recipe.prepared

    def short(*given):
        settled = whole(*given)
        trainer = settled.trainer
        return dataclasses.replace(
            settled, trainer=dataclasses.replace(trainer, settings=dataclasses.replace(trainer.settings, epochs=3))
        )

    monkeypatch.setattr(recipe, "prepared", short)
    found: list[tuple[object, ...]] = []
    recipe.measure("digits/gcn", ways.VARIANTS, ways.Ways, "cpu", 2, found.extend)
    read = [dict(zip(recipe.COLUMNS, map(str, row), strict=True)) for row in found]
    assert {r["variant"] for r in read} == set(ways.VARIANTS) - {"best epoch by score, not by loss"}
    assert all(0 <= float(r["held"]) <= 1 for r in read)
    text = ways.table(read)
    assert text.count(", 2, ") == 3 * len(ways.FORMS) + len(ways.TEACHING) - 1 + 1, "two splits, with many labels"
