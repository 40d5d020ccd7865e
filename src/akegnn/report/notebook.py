"""What a notebook shows of a result: the table of scores and, with the extra ``report``, a picture of it.

Both are plain HTML and SVG, so they are there in any notebook, also one that does not trust what it holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .charts import to_svg
from .page import Sheet
from .run import score_chart, score_sheet


def scores_html(lines: Sequence[Mapping[str, Any]], metric: str, seeds: Sequence[Any] = ()) -> str:
    """Scores as a table and a chart; ``seeds`` are the single scores that means are made of."""
    table = _table(score_sheet(lines, metric))
    try:
        picture = to_svg(score_chart(lines, metric, seeds))
    except ImportError:
        return table
    return f'{table}<div style="margin-top:.6em">{picture}</div>'


def _table(sheet: Sheet) -> str:
    def row(values: Sequence[str], cell: str, bold: bool) -> str:
        weight = "bold" if bold else "normal"
        sides = ["left", *["right"] * (len(values) - 1)]
        return "".join(
            f'<{cell} style="text-align:{side};font-weight:{weight}">{escape(value)}</{cell}>'
            for value, side in zip(values, sides, strict=True)
        )

    body = "".join(f"<tr>{row(values, 'td', k == sheet.marked)}</tr>" for k, values in enumerate(sheet.rows))
    caption = f'<caption style="text-align:left">{escape(sheet.caption)}</caption>'
    return f"<table>{caption}<thead><tr>{row(sheet.head, 'th', False)}</tr></thead><tbody>{body}</tbody></table>"
