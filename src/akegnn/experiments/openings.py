"""Our own: every open reading of the paper, one factor at a time, on Cora and Chameleon with GCN."""

from __future__ import annotations

from typing import Any

from .base import Experiment, Job

READINGS: dict[str, dict[str, Any]] = {
    "as the recipe `paper`": {},
    "hidden layers only": {"exchange": {"layers": "hidden"}},
    "whole neurons": {"exchange": {"strategy": "neuron", "layers": "hidden"}},
    "views anew every epoch": {"resample": "epoch"},
    "rate 0.1": {"views": ["mask:0.1", "corrupt:0.1", "drop-edges:0.1", "subgraph:0.1"]},
    "rate 0.2": {"views": ["mask:0.2", "corrupt:0.2", "drop-edges:0.2", "subgraph:0.2"]},
    "rate 0.5": {"views": ["mask:0.5", "corrupt:0.5", "drop-edges:0.5", "subgraph:0.5"]},
    "optimizer state kept": {"phases": {"optimizer_state": "kept"}},
    "shared initial weights": {"phases": {"initial": "shared"}},
    "re-trained on the original graph": {"phases": {"retrain_on": "original"}},
    "hidden layers only, re-trained on the original graph": {
        "exchange": {"layers": "hidden"},
        "phases": {"retrain_on": "original"},
    },
}
METHODS = ("single", "ft", "ensemble", "ensemble-ft", "ake")


def _jobs() -> list[Job]:
    places = (("cora", 1, 100), ("chameleon", 10, 10))
    return [Job(row, d, d, "gcn", METHODS, n, k, given) for d, n, k in places for row, given in READINGS.items()]


OPENINGS = Experiment(
    "openings",
    "What the paper leaves open, one factor at a time.",
    _jobs,
    shown=("base", "FT", "ensemble", "ensemble+FT", "after exchange", "AKE"),
)
