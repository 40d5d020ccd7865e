"""One self-contained HTML page of a run folder or of a store of results, and what notebooks show.

``page.py`` says what a page is made of and writes it; ``run.py`` and ``stored.py`` fill it; ``charts.py`` has the
Vega-Lite specifications; ``page.html``, ``page.css`` and ``page.js`` are what arrives in the browser. Needs the extra
``report``.
"""

from .page import write

__all__ = ["write"]
