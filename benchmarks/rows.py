"""Rows that a script adds to a CSV file: what is there already is read first, so that an interrupted run goes on."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from akegnn.errors import AkeError


def read(path: Path) -> list[dict[str, str]]:
    """The rows that are there; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="") as f:
        return list(csv.DictReader(f))


@contextmanager
def adding(path: Path, columns: Sequence[str]) -> Iterator[Callable[[Iterable[Sequence[object]]], None]]:
    """A function that adds rows, each time so that they stay whatever happens after it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as f:
        writer = csv.writer(f, lineterminator="\n")

        def add(rows: Iterable[Sequence[object]]) -> None:
            writer.writerows(rows)
            f.flush()
            os.fsync(f.fileno())

        if new:
            add([columns])
        yield add


def fill(page: Path, name: str, table: str) -> None:
    """Put a table between the marks of this name in a page, in place of the one that is there."""
    text = page.read_text(encoding="utf-8")
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    if start not in text or end not in text:
        raise AkeError(f"{page}: has no place for this table, expected {start} and {end}")
    page.write_text(f"{text.split(start)[0]}{start}\n{table}\n{end}{text.split(end)[1]}", encoding="utf-8")
