"""The paper's tables and figures, each a grid of jobs. To add one, give it an entry in :data:`EXPERIMENTS`."""

from __future__ import annotations

from .base import Block, Experiment, Job, Report, Shard, blocks, run, stored
from .openings import OPENINGS
from .pruning import TABLE1
from .shown import Entry, entries, to_csv, to_json, to_markdown, write
from .studies import STUDIES
from .tables import TABLES
from .timing import TABLE5

EXPERIMENTS: dict[str, Experiment] = {e.name: e for e in (TABLE1, *TABLES, TABLE5, *STUDIES, OPENINGS)}

__all__ = [
    "EXPERIMENTS",
    "Block",
    "Entry",
    "Experiment",
    "Job",
    "Report",
    "Shard",
    "blocks",
    "entries",
    "run",
    "stored",
    "to_csv",
    "to_json",
    "to_markdown",
    "write",
]
