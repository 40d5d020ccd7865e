"""The paper's studies on Cora with GCN: ways of exchanging, depth, few labels, iterations, channels, views, curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..views import VIEWS
from .base import Experiment, Job

WAYS = {
    "(a) adaptive output": "adaptive",
    "(b) random output": "random-output",
    "(c) first output": "first-output",
    "(d) adaptive input": "adaptive-input",
    "(e) random input": "random-input",
    "(f) first input": "first-input",
    "(g) point-wise": "point",
    "(h) random partner, adaptive": "random-partner",
    "(h) random partner, random": "random-partner-random",
    "(i) self": "self",
}
SHORT = ("base", "ensemble", "after exchange", "AKE")
PAPER_VIEWS = ("mask", "corrupt", "drop-edges", "subgraph", "original")


def _job(
    row: str, x: float | None = None, seeds: int = 100, splits: int = 1, data: str = "cora", **settings: Any
) -> Job:
    methods = ("single", "ensemble", "ake")
    return Job(row, data, data, "gcn", methods, splits, seeds, settings, x)


def _exchange() -> list[Job]:
    jobs = [_job(row, exchange={"strategy": way}) for row, way in WAYS.items()]
    return [*jobs, _job("(j) no augmentation", views=["original"] * 4)]


def _depth() -> list[Job]:
    return [_job(f"{n} layers", n, 20, model_args={"num_layers": n}) for n in (2, 4, 8, 16, 32)]


def _few_shot() -> list[Job]:
    return [_job(f"{k} labels", k, 10, 10, labels_per_class=k) for k in (1, 5, 10, 20, 50)]


def _views() -> list[Job]:
    assert set(PAPER_VIEWS) <= set(VIEWS)
    return [_job(f"{n} views", n, views=list(PAPER_VIEWS[:n])) for n in range(1, 6)]


def draw_curves(axes: Any, histories: Mapping[str, list[dict[str, Any]]]) -> None:
    """Validation score by epoch, one curve for each network and phase; re-training goes on where phase 1 ended."""
    for history in histories.values():
        curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
        for e in history:
            shift = e["epochs"] if e["phase"] == "re-training" else 0
            curves.setdefault((e["phase"], e["network"]), []).append((shift + e["epoch"], 100 * e["validation"]))
        for (phase, network), points in curves.items():
            style = "--" if phase == "re-training" else "-"
            axes.plot(*zip(*points, strict=True), style, label=f"{network}, {phase}")
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation score in per cent")
    axes.legend(frameon=False, fontsize=7, ncols=2)


STUDIES = [
    Experiment("exchange", "The ten ways of exchanging, GCN on Cora.", _exchange, shown=SHORT),
    Experiment("depth", "Over-smoothing: 2 to 32 layers, GCN on Cora.", _depth, axis="layers", shown=SHORT),
    Experiment(
        "few-shot", "Labels per class, GCN on Cora, ten draws.", _few_shot, axis="labels per class", shown=SHORT
    ),
    Experiment(
        "iterations",
        "Times round the ring, GCN on Cora.",
        lambda: [_job(f"{n} iterations", n, exchange={"iterations": n}) for n in range(1, 6)],
        axis="iterations",
        shown=SHORT,
    ),
    Experiment(
        "channels",
        "Channels exchanged per layer and step, GCN on Cora.",
        lambda: [_job(f"{n} channels", n, exchange={"channels": n}) for n in (1, 3, 5, 7, 9, 11, 13, 15)],
        axis="channels",
        shown=SHORT,
    ),
    Experiment("views", "How many views, GCN on Cora.", _views, axis="views", shown=SHORT),
    Experiment(
        "curves",
        "Learning curves of base, individual learning and re-training, GCN on Cora: means over seeds.",
        lambda: [_job("gcn")],
        shown=SHORT,
        draw=draw_curves,
    ),
]
