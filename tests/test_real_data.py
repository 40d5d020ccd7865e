"""A short real case of every task, where AKEGNN_DATA has the files."""

import os
from pathlib import Path

import pytest

import akegnn
from akegnn.fit import plan
from akegnn.population import Population, Replica
from akegnn.views import Original

ROOT = Path(os.environ.get("AKEGNN_DATA", "nowhere"))
pytestmark = pytest.mark.skipif(not ROOT.is_dir(), reason="AKEGNN_DATA does not name a folder with the benchmark data")


def base(data, model, seeds=(0,), splits=(0,), **given):
    """Mean test score of the preset's network on the original graph."""
    prepared = plan(data, model, device="cpu", **given)
    cells = [(split, seed) for split in splits for seed in seeds]
    networks = Population(prepared.factory, [seed for _, seed in cells], "base")
    networks.train(prepared.trainer, [Replica(seed, "base", Original(), split) for split, seed in cells], "individual")
    judge = prepared.trainer.task.together([split for split, _ in cells])
    return float(judge.scores(networks.evaluate(judge), "test").mean())


def test_a_gcn_reaches_its_published_score_and_the_literal_exchange_breaks_it():
    """Kipf and Welling report 81.5; the design's own trial of the exchange fell to 14 right after it."""
    given = {"seeds": 4, "epochs": 120, "views": ["mask", "drop-edges"], "device": "cpu"}
    results = akegnn.fit("cora", "gcn", recipe="paper", **given)
    scores = {s.name: s for s in results.summary()}
    assert 0.80 < scores["base"].test < 0.835
    assert scores["after exchange"].test < 0.5
    assert scores["AKE"].test > 0.75  # re-training mends it
    assert scores["AKE"].gain < 0.01  # and does not make it much better than the base


def test_merged_by_function_a_gcn_is_its_ensemble_and_taught_it_is_better():
    """An independent trial: 82.7 right after the exchange, as the ensemble; 84.6 after it was taught; single 81.8."""
    results = akegnn.fit("cora", "gcn", seeds=3, epochs=120, device="cpu")
    scores = {s.name: s for s in results.summary()}
    assert abs(scores["after exchange"].test - scores["ensemble"].test) < 0.01
    assert scores["AKE"].gain > 0.005
    assert scores["AKE"].passes == 1


def test_a_gcn_on_all_masks_of_texas():
    """An independent probe gives 58.8 with these settings, the majority class 58.9."""
    assert 0.55 < base("texas", "gcn", splits=range(10)) < 0.64


def test_a_gcn_finds_links_of_cora():
    """An independent probe gives 90.4."""
    assert 0.87 < base("cora", "gcn", task="link", epochs=60) < 0.95


def test_a_gin_tells_proteins_apart():
    """gnn-comparison reports 73.3 +- 4.0 over its folds; always the commoner class gives 59.6."""
    assert base("proteins", "gin", epochs=8) > 0.62


def test_few_labels_cost_accuracy():
    few, many = (base("cora", "gcn", splits=range(3), labels_per_class=k, epochs=60) for k in (1, 20))
    assert few < many - 0.05
