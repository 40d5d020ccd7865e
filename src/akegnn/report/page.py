"""What a page is made of, and writing it: a template, Vega's JavaScript and the data, in one file."""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ..errors import AkeError
from ..runs import versions, write_file
from .charts import THEMES, Chart, Spec, Table, Triangle


@dataclass(frozen=True)
class Fact:
    """A number that is seen first."""

    name: str
    value: str
    note: str = ""
    main: bool = False


@dataclass(frozen=True)
class Sheet:
    """A small table that is written as it is."""

    caption: str
    head: tuple[str, ...]
    rows: list[list[str]]
    marked: int | None = None  # the row that matters most
    numbers: bool = True  # all columns but the first are numbers


@dataclass(frozen=True)
class Grid:
    """A large table that can be sorted and filtered; each row opens the seeds that it is made of.

    ``rows`` refer to ``words`` by number and to ``cells`` (lists of split and seed) for who the last column's scores
    are of: so a hundred thousand of them take less than a megabyte.
    """

    caption: str
    base: str
    metric: str
    words: list[str]
    cells: list[list[list[int]]]
    rows: list[list[Any]]
    forest: Spec
    strip: Spec


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading."""

    key: str
    title: str
    text: list[str] = field(default_factory=list)
    sheets: list[Sheet] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    grid: Grid | None = None
    choose: tuple[str, list[str]] | None = None  # what the reader selects, and from what
    closed: list[Sheet] = field(default_factory=list)  # shown when asked for


@dataclass(frozen=True)
class Page:
    """All of it."""

    title: str
    kind: str
    lead: str
    facts: list[Fact]
    sections: list[Section]


def write(source: str | Path, out: str | Path = "report.html") -> Path:
    """Write the page of a run folder or of a store; the file appears whole or not at all."""
    from .run import run_page
    from .stored import store_page

    source, out = Path(source), Path(out)
    if not source.exists():
        raise AkeError(f"{source}: no such run folder or store")
    if out.exists() and (out.is_dir() or out.resolve() == source.resolve()):
        raise AkeError(f"{out}: is {'a folder' if out.is_dir() else 'the store itself'}; choose another file to write")
    there = b""
    try:
        if out.is_file():
            with out.open("rb") as opened:
                there = opened.read(100)
    except OSError as e:
        raise AkeError(f"{out}: cannot be read ({e.strerror})") from None
    if there and not there.lower().startswith(b"<!doctype html"):
        raise AkeError(f"{out}: is there already and is no page; choose another file to write")
    check_installed()
    page = run_page(source) if source.is_dir() else store_page(source)
    write_file(out, render(page).encode())
    return out


def check_installed() -> None:
    """A page needs two packages that akegnn does without."""
    try:
        import jinja2  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as e:
        raise AkeError(f"report: {e.name} is not installed; pip install 'akegnn[report]'") from None


def render(page: Page) -> str:
    """The page as HTML."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("akegnn", "report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["code"] = _code
    drawn = [(f"{s.key}-{k}", s.key, c) for s in page.sections for k, c in enumerate(s.charts)]
    data = {
        "themes": THEMES,
        "charts": {name: _chart(c, key if c.choices else None) for name, key, c in drawn},
        "grids": {s.key: asdict(s.grid) for s in page.sections if s.grid is not None},
    }
    return environment.get_template("page.html").render(
        page=page,
        data=in_script(data),
        vega=_vega(),
        version=versions()["akegnn"],
    )


@cache
def _vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, which takes a second to put together."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def _code(text: str) -> Any:
    """Escaped, and what stands between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def in_script(data: Any) -> Any:
    """JSON that nothing in it can break out of: neither the script element nor a comment."""
    from markupsafe import Markup

    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(data), separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


def _finite(data: Any) -> Any:
    """The same without NaN and infinity, which JSON has no words for."""
    if isinstance(data, dict):
        return {k: _finite(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(v) for v in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _chart(chart: Chart, group: str | None) -> dict[str, Any]:
    return {
        "spec": {**chart.spec, "description": f"{chart.title}. {chart.about} {chart.told}".strip()},
        "data": _data(chart.data),
        "choices": {name: _data(d) for name, d in chart.choices.items()},
        "group": group,
    }


def _data(data: Table | Triangle) -> dict[str, Any]:
    return asdict(data)
