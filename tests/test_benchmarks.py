"""What the scripts that measure share: rows are added once, stay, and tables find their place in a page."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def rows() -> ModuleType:
    spec = importlib.util.spec_from_file_location("rows", Path(__file__).parent.parent / "benchmarks" / "rows.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
