"""Grids of jobs: what is computed, kept, shown and told, on the embedded digits with two epochs."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from akegnn import cli
from akegnn.errors import AkeError, RunFailed
from akegnn.experiments import (
    EXPERIMENTS,
    Experiment,
    Job,
    Shard,
    base,
    blocks,
    entries,
    run,
    shown,
    to_csv,
    to_json,
    to_markdown,
)
from akegnn.experiments.shown import figure, write
from akegnn.stats import paired, summarise
from akegnn.store import Cell, Store, key_of
from small import csv_folder, refusal

QUICK = {"epochs": 2, "views": ["mask:0.3"]}


def job(row: str = "gcn", **given) -> Job:
    usual = {"column": "digits", "data": "digits", "model": "gcn", "seeds": 2, "settings": QUICK}
    return Job(row, **{**usual, **given})


def broken(plan, cells):
    raise RuntimeError("out of memory\nand more lines")


def made_up(*jobs: Job, **given) -> Experiment:
    return Experiment("made-up", "For the tests.", lambda: list(jobs), **given)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """All methods of a table on digits, computed once."""
    experiment = made_up(job())
    wanted = blocks(experiment.chosen())
    with Store(tmp_path_factory.mktemp("digits") / "store") as kept:
        report = run(wanted, kept, "cpu")
        assert (report.done, report.all, report.failed) == (1, 1, [])
        yield experiment, wanted, kept


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A graph so small that it costs nothing."""
    return str(csv_folder(tmp_path_factory.mktemp("own") / "graph"))


# ---- computing -------------------------------------------------------------------------------------------------------


def test_what_is_there_is_not_computed_again(digits, monkeypatch):
    _, wanted, kept = digits
    before = kept.cells()
    monkeypatch.setattr(base, "compute", lambda *_: pytest.fail("computed again"))
    said = []
    report = run(wanted, kept, "cpu", say=said.append)
    assert (report.done, report.all) == (1, 1)
    assert said == [f"1 of 1 blocks are in {kept.path} already"]
    assert kept.cells() == before


def test_every_line_has_one_score_for_every_cell(digits):
    _, [block], kept = digits
    found, history, failed = base.compute(block, "cpu", None)
    assert failed == []
    places = [(c.method, c.split, c.seed) for c in found]
    methods = dict.fromkeys(c.method for c in found)
    assert sorted(places) == sorted((m, 0, seed) for m in methods for seed in (0, 1))
    assert list(methods) == [
        *("base", "FT", "ensemble", "ensemble, mean", "ensemble+FT", "ensemble+FT, mean", "after exchange", "AKE"),
    ]
    assert {(c.block, c.dataset, c.backbone, c.metric) for c in found} == {(block.key, "digits", "gcn", "accuracy")}
    again = sorted(dataclasses.astuple(dataclasses.replace(c, seconds=0)) for c in found)
    assert again == sorted(dataclasses.astuple(dataclasses.replace(c, seconds=0)) for c in kept.cells())
    assert kept.histories([block.key])[block.key][0].keys() == history[0].keys()


def test_the_scores_are_those_of_fit(digits):
    """The same seeds, as many at a time."""
    import akegnn

    _, _, kept = digits
    results = akegnn.fit("digits", "gcn", recipe="paper", seeds=2, device="cpu", **QUICK).results
    for name in ("base", "ensemble", "after exchange", "AKE"):
        found = [(c.validation, c.test) for c in kept.cells() if c.method == name]
        assert found == [(r.score(name).validation, r.score(name).test) for r in results], name
    assert [c.floor for c in kept.cells() if c.method == "base"] == [r.floor for r in results]


def test_changed_settings_are_other_blocks(own):
    small = job(data=own, methods=("single",))
    changed = [
        dataclasses.replace(small, settings={**QUICK, "epochs": 3}),
        dataclasses.replace(small, settings={**QUICK, "exchange": {"bins": 7}}),
        dataclasses.replace(small, settings={**QUICK, "views": ["mask:0.2"]}),
        dataclasses.replace(small, settings={**QUICK, "phases": {"initial": "shared"}}),
        dataclasses.replace(small, settings={**QUICK, "model_args": {"hidden_channels": 3}}),
        dataclasses.replace(small, model="gat"),
        dataclasses.replace(small, data="digits"),
        dataclasses.replace(small, methods=("single", "ft")),
        dataclasses.replace(small, seeds=3),
        dataclasses.replace(small, splits=2),
        dataclasses.replace(small, compute=broken),
    ]
    keys = [b.key for b in blocks([small, *changed])]
    assert len(set(keys)) == len(keys) == 1 + len(changed)
    renamed = dataclasses.replace(small, row="other", column="name", x=3.0)
    assert blocks([renamed])[0].key == keys[0], "what it is called changes no number"


def test_a_large_job_is_cut_into_blocks(own, monkeypatch):
    monkeypatch.setattr(base, "BLOCK", 4)
    cut = blocks([job(data=own, splits=2, seeds=5)])
    assert [b.cells for b in cut] == [
        ((0, 0), (0, 1), (0, 2), (0, 3)),
        ((0, 4), (1, 0), (1, 1), (1, 2)),
        ((1, 3), (1, 4)),
    ]
    assert len({b.key for b in cut}) == 3


def test_splits_that_are_not_trained_together_are_not_lost_together():
    cut = blocks([job(data="digits-graphs", splits=2, seeds=3, settings={**QUICK, "masks": "random"})])
    assert [b.cells for b in cut] == [((0, 0), (0, 1), (0, 2)), ((1, 0), (1, 1), (1, 2))]


def test_blocks_of_many_seeds_are_of_one_split(monkeypatch):
    monkeypatch.setattr(base, "BLOCK", 2)
    cut = blocks([job(data="digits-graphs", splits=2, seeds=3, settings={**QUICK, "masks": "random"})])
    assert [b.cells for b in cut] == [((0, 0), (0, 1)), ((0, 2),), ((1, 0), (1, 1)), ((1, 2),)]


@dataclass(frozen=True)
class Named:
    key: str


@given(st.sets(st.integers(0, 999), max_size=20), st.integers(1, 9))
def test_shards_are_all_blocks_once(names, processes):
    every = [Named(f"{name:03}") for name in names]
    shares = [Shard.of(f"{k}/{processes}").take(every) for k in range(1, processes + 1)]
    assert sorted(b.key for share in shares for b in share) == sorted(b.key for b in every)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    other = list(reversed(every))
    assert [set(s) for s in shares] == [set(Shard.of(f"{k}/{processes}").take(other)) for k in range(1, processes + 1)]


@pytest.mark.parametrize("part", ["", "1", "0/2", "3/2", "1/0", "-1/2", "a/b", "1/2/3"])
def test_shards_that_are_none(part):
    assert refusal(lambda: Shard.of(part)) == f"--shard {part}: expected K/N, as 1/3, with K from 1 to N"


def test_one_failure_is_noted_and_the_others_go_on(own, tmp_path):
    first, last = (
        job(row, data=own, methods=("single",), settings={**QUICK, "lr": rate})
        for row, rate in (("a", 0.1), ("c", 0.2))
    )
    bad = job("b", data=own, compute=broken)
    wanted = blocks([first, bad, last])
    with Store(tmp_path / "store") as kept:
        said = []
        report = run(wanted, kept, "cpu", say=said.append)
        assert (report.done, report.all) == (2, 3)
        assert report.failed == kept.failures() == [(bad.label, "RuntimeError: out of memory")]
        assert "    failed: RuntimeError: out of memory" in said
        assert kept.finished() == {wanted[0].key, wanted[2].key}
        again = run(wanted, kept, "cpu")
        assert (again.done, again.failed) == (2, report.failed), "it is tried again"


@pytest.mark.parametrize("error", [AkeError("one"), RunFailed("two"), MemoryError(), RuntimeError("")])
def test_errors_that_a_block_may_die_of(own, tmp_path, error):
    def dies(plan, cells):
        raise error

    with Store(tmp_path / "store") as kept:
        report = run(blocks([job(data=own, compute=dies)]), kept, "cpu")
        assert report.failed == [
            (
                f"gcn on {own}, 2 epochs",
                f"{type(error).__name__}: {error!s}" if str(error) else f"{type(error).__name__}: no message",
            )
        ]


def test_a_seed_that_fails_leaves_the_others(own, tmp_path):
    def one_fails(plan, cells):
        bench = plan.bench(cells)
        lines = [bench.line("base", bench.predict(bench.base), bench.base.seconds)]
        bench.failed[1] = "seed 1: the loss became NaN"
        return bench, lines

    with Store(tmp_path / "store") as kept:
        report = run(blocks([job(data=own, seeds=3, compute=one_fails)]), kept, "cpu")
        assert report.done == 1
        assert [c.seed for c in kept.cells()] == [0, 2]
        assert report.failed == [(f"gcn on {own}, 2 epochs, split 0, seed 1", "seed 1: the loss became NaN")]
        assert kept.failures() == report.failed
        said: list[str] = []
        again = run(blocks([job(data=own, seeds=3, compute=one_fails)]), kept, "cpu", say=said.append)
        assert again.failed == report.failed, "a table without a seed is not taken for whole the second time"
        assert f"    failed: {report.failed[0][0]}: {report.failed[0][1]}" in said


# ---- which jobs ------------------------------------------------------------------------------------------------------

GRID = made_up(
    *(job(m, model=m, column=d, data=d, splits=3, seeds=4) for m in ("gcn", "gat") for d in ("digits", "cora"))
)


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ([], ["gcn/digits", "gcn/cora", "gat/digits", "gat/cora"]),
        (["gat"], ["gat/digits", "gat/cora"]),
        (["cora"], ["gcn/cora", "gat/cora"]),
        (["gcn/cora", "gat/digits"], ["gcn/cora", "gat/digits"]),
    ],
)
def test_only(only, expected):
    assert [f"{j.model}/{j.data}" for j in GRID.chosen(only=only)] == expected


def test_only_what_is_not_there():
    message = refusal(lambda: GRID.chosen(only=["gin"]))
    assert message == "--only gin: nothing in made-up; it has gcn/digits, gcn/cora, gat/digits, gat/cora"
    message = refusal(lambda: GRID.chosen(only=["gcn/cora", "gat/coral"]))
    assert message == "--only gat/coral: nothing in made-up; did you mean gat/cora or gcn/cora?"


def test_seeds_and_splits():
    assert {(j.seeds, j.splits) for j in GRID.chosen()} == {(4, 3)}
    assert {(j.seeds, j.splits) for j in GRID.chosen(seeds=9)} == {(9, 3)}
    assert {(j.seeds, j.splits) for j in GRID.chosen(splits=2)} == {(4, 2)}
    assert {(j.seeds, j.splits) for j in GRID.chosen(seeds=1, splits=20)} == {(1, 3)}, "no more splits than there are"


@pytest.mark.parametrize("given", [{"seeds": 0}, {"seeds": -1}, {"splits": 0}, {"splits": -2}])
def test_no_seeds_or_splits_at_all(given):
    [name] = given
    assert name in refusal(lambda: GRID.chosen(**given))


# ---- the table -------------------------------------------------------------------------------------------------------


def stored(kept: Store, wanted, lift) -> None:
    """Made-up scores: ``lift(row, split, seed)`` is what AKE gains."""
    for b in wanted:
        found = []
        for split, seed in b.cells:
            score = 0.5 + 0.01 * ((7 * seed + 3 * split) % 5)
            for name, test in (("base", score), ("AKE", score + lift(b.job.row, split, seed))):
                cell = Cell(
                    b.key, b.job.data, b.job.model, name, split, seed, test - 0.1, test, 0.2, "accuracy", 1, 9, 2.0
                )
                found.append(cell)
        kept.add(b.key, b.job.label, b.settings, found, 1.0)


@pytest.fixture
def table(own, tmp_path):
    """Two rows over several blocks, with made-up numbers."""
    experiment = made_up(
        *(job(r, data=own, seeds=60, settings={**QUICK, "lr": x}, x=x) for r, x in (("one", 0.1), ("two", 0.2))),
        shown=("base", "AKE", "FT"),
    )
    wanted = blocks([dataclasses.replace(j, splits=2) for j in experiment.chosen()])
    assert len(wanted) == 4
    with Store(tmp_path / "store") as kept:
        rate = {"one": 0.002, "two": -0.0015}
        stored(kept, wanted, lambda row, split, seed: rate[row] * (1 + (seed * seed + split) % 7))
        yield experiment, wanted, kept


def test_entries_against_a_literal_computation(table):
    experiment, wanted, kept = table
    found = entries(experiment, wanted, kept)
    assert [(e.row, e.column, e.method) for e in found] == [
        (r, "digits", m) for r in ("one", "two") for m in ("base", "AKE")
    ]
    keys = {r: {b.key for b in wanted if b.job.row == r} for r in ("one", "two")}
    for e in found:
        own = {(c.split, c.seed): c for c in kept.cells() if c.block in keys[e.row] and c.method == e.method}
        reference = {(c.split, c.seed): c for c in kept.cells() if c.block in keys[e.row] and c.method == "base"}
        assert len(own) == e.score.n == 120
        tests = [c.test for c in own.values()]
        assert (e.score.mean, e.score.deviation) == pytest.approx((statistics.fmean(tests), statistics.stdev(tests)))
        assert e.validation == pytest.approx(statistics.fmean(tests) - 0.1)
        assert (e.floor, e.passes, e.seconds, e.paper) == (pytest.approx(0.2), 1, pytest.approx(2.0), None)
        assert e.x == {"one": 0.1, "two": 0.2}[e.row]
        if e.method == "base":
            assert (e.gain, e.p_holm) == (None, None)
            continue
        by_split = [statistics.fmean(own[s, k].test - reference[s, k].test for k in range(60)) for s in range(2)]
        expected = scipy.stats.ttest_1samp(by_split, 0).confidence_interval(0.95)
        assert (e.gain.mean, e.gain.low, e.gain.high) == pytest.approx((statistics.fmean(by_split), *expected))
        assert (e.gain.n, e.gain.over, e.gain.p) == (2, "splits", None)


def test_p_values_are_corrected_over_the_rows_of_a_column(own, tmp_path):
    jobs = [job(r, data=own, seeds=8, settings={**QUICK, "lr": x}) for r, x in (("one", 0.1), ("two", 0.2))]
    gains = {"one": [0.01 * (k + 1) for k in range(8)], "two": [0.01 * (k - 2) + 0.001 for k in range(8)]}
    with Store(tmp_path / "store") as kept:
        wanted = blocks(jobs)
        stored(kept, wanted, lambda row, split, seed: gains[row][seed])
        one, two = (e for e in entries(made_up(*jobs), wanted, kept) if e.method == "AKE")
    small, large = (scipy.stats.wilcoxon([round(g, 12) for g in gains[r]]).pvalue for r in ("one", "two"))
    assert small < large
    assert (one.gain.p, two.gain.p) == pytest.approx((small, large))
    assert (one.p_holm, two.p_holm) == pytest.approx((2 * small, max(2 * small, large)))


def test_csv_parses_back(table):
    experiment, wanted, kept = table
    found = entries(experiment, wanted, kept)
    rows = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert len(rows) == len(found) == 4
    for row, e in zip(rows, found, strict=True):
        assert tuple(row) == shown.HEAD
        assert (row["row"], row["column"], row["method"], int(row["n"])) == (e.row, e.column, e.method, e.score.n)
        scores = (e.score.mean, e.score.deviation, e.score.low, e.score.high, e.validation, e.floor)
        names = ("mean", "deviation", "low", "high", "validation", "floor")
        assert [float(row[n]) for n in names] == pytest.approx([100 * s for s in scores], abs=1e-4)
        assert (row["paper"], row["paper_deviation"]) == ("", "")
        if e.gain is None:
            assert {row[n] for n in ("difference", "difference_low", "difference_high", "pairs", "over", "p")} == {""}
        else:
            assert float(row["difference"]) == pytest.approx(100 * e.gain.mean, abs=1e-4)
            assert (int(row["pairs"]), row["over"]) == (2, "splits")


def test_names_with_commas_and_quotes(table):
    experiment, wanted, kept = table
    odd = [dataclasses.replace(e, row='a, "b"\nc', paper=(81.5, 0.6)) for e in entries(experiment, wanted, kept)]
    rows = list(csv.DictReader(io.StringIO(to_csv(odd))))
    assert {r["row"] for r in rows} == {'a, "b"\nc'}
    assert {(r["paper"], r["paper_deviation"]) for r in rows} == {("81.5", "0.6")}


def test_json_and_markdown_have_every_line(table):
    experiment, wanted, kept = table
    found = entries(experiment, wanted, kept)
    told = json.loads(to_json(found))
    assert [(t["row"], t["method"], t["score"]["mean"]) for t in told] == [
        (e.row, e.method, e.score.mean) for e in found
    ]
    lines = to_markdown(experiment, found).splitlines()
    assert lines[0] == "## made-up"
    bodies = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]
    assert [b[:3] for b in bodies] == [[e.row, e.column, e.method] for e in found]
    assert all(line.count("|") == 12 for line in lines if line.startswith("|"))
    assert f"{100 * found[1].score.mean:.2f} ± {100 * found[1].score.deviation:.2f}" in lines[-3]


def test_a_place_of_which_nothing_is_there_has_no_line(table):
    experiment, wanted, kept = table
    more = blocks([dataclasses.replace(wanted[0].job, row="three", settings={**QUICK, "epochs": 9})])
    assert {e.row for e in entries(experiment, [*wanted, *more], kept)} == {"one", "two"}
    assert entries(experiment, more, kept) == []


def test_two_rows_of_the_same_settings_are_both_shown(table):
    """They are one block, computed once."""
    experiment, wanted, kept = table
    twin = [dataclasses.replace(b, job=dataclasses.replace(b.job, row="twin")) for b in wanted[:2]]
    assert [e.row for e in entries(experiment, [*wanted, *twin], kept)] == ["one"] * 2 + ["two"] * 2 + ["twin"] * 2


# ---- figures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", ["", "rate"])
def test_figures(table, tmp_path, axis):
    experiment, wanted, kept = table
    experiment = dataclasses.replace(experiment, axis=axis)
    found = entries(experiment, wanted, kept)
    paths = write(experiment, found, tmp_path / "new" / "folder", wanted, kept)
    assert [p.name for p in paths] == [f"made-up.{end}" for end in ("csv", "rows.csv", "md", "png", "svg")]
    assert paths[0].read_text() == to_csv(found)
    assert paths[2].read_text() == to_markdown(experiment, found)
    assert paths[3].read_bytes().startswith(b"\x89PNG")
    assert paths[3].stat().st_size > 5000
    assert "</svg>" in paths[4].read_text()
    if axis:
        return  # once is enough
    before = [p.read_bytes() for p in paths]
    assert [p.read_bytes() for p in write(experiment, found, tmp_path / "new" / "folder", wanted, kept)] == before, (
        "the same each time"
    )


def test_a_table_can_be_made_from_its_rows(own, tmp_path):
    """Scores are fractions of 39 nodes, so that which differences are equal shows in the last digits only."""
    experiment = made_up(job("one", data=own, seeds=9, splits=8))
    wanted = blocks(experiment.chosen())
    with Store(tmp_path / "store") as kept:
        stored(kept, wanted, lambda row, split, seed: ((seed * seed + split * split * seed) % 9 - 3) / 39)
        found = entries(experiment, wanted, kept)
        rows = list(csv.DictReader(write(experiment, found, tmp_path, wanted, kept)[1].read_text().splitlines()))
    assert len(rows) == sum(e.score.n for e in found)
    lines = {
        m: {(int(r["split"]), int(r["seed"])): float(r["test"]) for r in rows if r["method"] == m}
        for m in ("base", "AKE")
    }
    of = {e.method: e for e in found}
    assert dataclasses.astuple(summarise(lines["base"])) == pytest.approx(
        dataclasses.astuple(of["base"].score), abs=1e-12
    )
    again = paired(lines["AKE"], lines["base"])
    assert (gain := of["AKE"].gain) is not None
    assert dataclasses.astuple(again) == pytest.approx(dataclasses.astuple(gain), abs=1e-12)


def test_a_table_without_a_line_can_be_written(table, tmp_path):
    assert len(write(made_up(), [], tmp_path, [], table[2])) == 5


def test_without_matplotlib_there_is_a_table_and_no_figure(table, tmp_path, monkeypatch):
    experiment, wanted, kept = table
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert [p.suffix for p in write(experiment, entries(experiment, wanted, kept), tmp_path, wanted, kept)] == [
        ".csv",
        ".csv",
        ".md",
    ]


@pytest.mark.parametrize("place", ["file", "file/out", "/proc/out"])
def test_a_folder_that_cannot_be_written(table, tmp_path, place):
    (tmp_path / "file").write_text("mine")
    assert refusal(lambda: write(made_up(), [], tmp_path / place, [], table[2])).startswith(
        f"{tmp_path / place}: cannot be written ("
    )


@pytest.mark.parametrize("name", ["table2", "depth", "openings"])
def test_figures_have_room_for_their_longest_names(name, table, tmp_path):
    """Matplotlib warns where names leave no room, and a warning is an error here."""
    _, wanted, kept = table
    experiment = EXPERIMENTS[name]
    some = entries(made_up(), wanted, kept)[1]
    longest = max(experiment.jobs(), key=lambda j: len(j.row + j.column))
    lines = sorted(experiment.shown, key=len)[-2:]
    found = [dataclasses.replace(some, row=longest.row, column=longest.column, method=m, x=longest.x) for m in lines]
    assert all(p.stat().st_size > 5000 for p in figure(experiment, found, tmp_path))


@pytest.mark.parametrize(
    ("rows", "columns", "panels"), [(1, 1, 1), (1, 15, 1), (2, 6, 1), (2, 7, 2), (7, 10, 7), (11, 2, 1), (0, 0, 1)]
)
def test_many_places_are_drawn_row_by_row(table, tmp_path, rows, columns, panels, monkeypatch):
    """A picture of seventy places under each other would be seven feet high."""
    from matplotlib import pyplot

    _, wanted, kept = table
    some = entries(made_up(), wanted, kept)[1]
    found = [dataclasses.replace(some, row=f"r{i}", column=f"c{j}") for i in range(rows) for j in range(columns)]
    plots = []
    monkeypatch.setattr(pyplot, "close", plots.append)
    figure(made_up(), found, tmp_path)
    monkeypatch.undo()
    [plot] = plots
    shown = [axes for axes in plot.axes if axes.axison]
    assert len(shown) == panels
    assert sum(len(axes.get_yticks()) for axes in shown) == rows * columns
    assert max(plot.get_size_inches()) < 20
    pyplot.close(plot)


def test_a_picture_of_scores_alone_does_not_call_them_differences(table, tmp_path, monkeypatch):
    from matplotlib import pyplot

    _, wanted, kept = table
    plots = []
    monkeypatch.setattr(pyplot, "close", plots.append)
    found = entries(made_up(), wanted, kept)
    for some in (found, [e for e in found if e.gain is None]):
        figure(made_up(), some, tmp_path)
    monkeypatch.undo()
    said = [plot.get_supxlabel() for plot in plots]
    assert said[0] == "paired difference to the base, points, with 95 % interval"
    assert said[1] == "test score in per cent, with 95 % interval"
    for plot in plots:
        pyplot.close(plot)


# ---- the command -----------------------------------------------------------------------------------------------------


@dataclass
class Ran:
    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch, tmp_path):
    """``akegnn``, in this process and an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["akegnn", *map(str, arguments)])
        monkeypatch.setattr(sys, "path", [*sys.path])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as exit_:
            cli.main()
        return Ran(exit_.value.code or 0, out.getvalue(), err.getvalue())

    return call


@pytest.fixture
def grid(monkeypatch, own):
    """An experiment of three jobs, of which one fails as long as ``mended`` is empty."""
    mended: list[bool] = []

    def sometimes(plan, cells):
        if not mended:
            raise RuntimeError("no room")
        bench = plan.bench(cells)
        return bench, [bench.line("base", bench.predict(bench.base), bench.base.seconds)]

    some = {"data": own, "methods": ("single",)}
    jobs = [job(**some), job("bad", **some, compute=sometimes), job("gat", **some, model="gat")]
    monkeypatch.setitem(EXPERIMENTS, "made-up", made_up(*jobs))
    return mended


def test_reproduce_with_a_failure_and_once_more(command, grid, tmp_path):
    ran = command("reproduce", "made-up", "--device", "cpu")
    assert ran.code == 1
    assert ran.err.splitlines()[-1].startswith("akegnn: 1 of 3 blocks failed: gcn on ")
    assert ran.err.splitlines()[-1].endswith(", bad, 2 epochs: RuntimeError: no room")
    assert "Traceback" not in ran.err
    assert "| gcn | digits | base | 2 |" in ran.out
    assert "| gat | digits | base | 2 |" in ran.out, "the others went on"
    assert "| bad |" not in ran.out
    assert {p.name for p in (tmp_path / "runs/reproduced").iterdir()} >= {
        "store.sqlite",
        *(f"made-up.{e}" for e in ("csv", "md", "png", "svg")),
    }
    shown = command("results", "show")
    assert "failed: RuntimeError: no room" in shown.out
    grid.append(True)
    again = command("reproduce", "made-up", "--device", "cpu")
    assert again.code == 0
    assert "2 of 3 blocks are in" in again.err
    assert "| bad | digits | base | 2 |" in again.out
    assert "failed" not in command("results", "show").out


def test_reproduce_only_some(command, grid):
    ran = command(
        "reproduce", "made-up", "--only", "gat", "--seeds", "1", "--splits", "1", "--device", "cpu", "--json", "--quiet"
    )
    assert (ran.code, ran.err) == (0, "")
    [told] = json.loads(ran.out)
    assert (told["row"], told["method"], told["score"]["n"]) == ("gat", "base", 1)
    cells = json.loads(command("results", "show", "--cells", "--json").out)
    assert [(c["backbone"], c["split"], c["seed"], c["test"]) for c in cells] == [("gat", 0, 0, told["score"]["mean"])]
    listed = list(csv.DictReader(io.StringIO(command("results", "show", "--cells").out)))
    assert [float(c["test"]) for c in listed] == [told["score"]["mean"]]


def test_shards_make_the_table_together(command, grid):
    """Two processes on one store: the first has its share, the last the whole table."""
    grid.append(True)
    given = ("reproduce", "made-up", "--device", "cpu")
    bad = command(*given, "--shard", "3/2")
    assert (bad.code, bad.err) == (2, "akegnn: --shard 3/2: expected K/N, as 1/3, with K from 1 to N\n")
    first = command(*given, "--shard", "1/2")
    assert (first.code, first.out.count("| base |")) == (0, 2)
    last = command(*given, "--shard", "2/2")
    assert (last.code, last.out.count("| base |")) == (0, 3)
    assert "[1/1]" in last.err
    assert command(*given, "--store", "alone.sqlite").out == last.out
    idle = command(*given, "--store", "new.sqlite", "--shard", "4/4")
    assert (idle.code, idle.out) == (0, "")
    assert idle.err == "akegnn: new.sqlite has nothing of made-up yet, and shard 4/4 has no block of it\n"


def test_render_computes_nothing(command, grid, monkeypatch):
    ran = command("reproduce", "made-up", "--only", "gcn", "--only", "gat", "--device", "cpu", "--quiet")
    monkeypatch.setattr(base, "compute", lambda *_: pytest.fail("computed"))
    rendered = command("reproduce", "made-up", "--render")
    assert rendered.code == 0
    assert "| gcn | digits | base | 2 |" in rendered.out
    assert rendered.out == ran.out
    assert "akegnn: 2 of 3 places; missing: bad, digits\n" in rendered.err, "a part is not taken for the whole"


def test_what_lasts_as_long_as_said_is_not_the_protocols(command, grid, monkeypatch):
    """A quick look at a table is kept beside the table, and shown to those who ask for it."""
    given = ("reproduce", "made-up", "--only", "gcn", "--device", "cpu")
    grid.append(True)
    short = command(*given, "--epochs", "1", "--seeds", "3")
    assert short.code == 0
    assert "Epochs of every training: 1, which is not the protocol." in short.out
    whole = command(*given)
    assert (whole.code, whole.out.count("| base | 2 |")) == (0, 2), "with fewer seeds, yet not the short ones"
    assert "Epochs of every training" not in whole.out
    monkeypatch.setattr(base, "compute", lambda *_: pytest.fail("computed"))
    assert command("reproduce", "made-up", "--render").out == whole.out
    assert command("reproduce", "made-up", "--render", "--epochs", "1").out == short.out
    assert command(*given, "--epochs", "1", "--seeds", "3").out == short.out
    assert {p.name.partition(".")[0] for p in Path("runs/reproduced").iterdir()} == {
        "store",
        "made-up",
        "made-up-1-epochs",
    }
    shown_blocks = command("results", "show").out
    assert ", 1 epoch " in shown_blocks
    bad = command(*given, "--epochs", "0")
    assert (bad.code, bad.err) == (2, "akegnn: --epochs 0: must be at least 1\n")


def test_nothing_is_written_over_by_nothing(command, grid, tmp_path):
    """A run that fails, or a look at what is not there, leaves the tables that are there."""
    given = ("reproduce", "made-up", "--device", "cpu")
    assert command(*given).code == 1, "one of three fails"
    tables = {p: p.read_bytes() for p in (tmp_path / "runs/reproduced").glob("made-up.*")}
    assert len(tables) == 5
    failed = command(*given, "--only", "bad")
    assert (failed.code, "akegnn: wrote nothing" in failed.err) == (1, True)
    rendered = command(*given, "--render", "--only", "bad", "--seeds", "7")
    assert (rendered.code, rendered.err) == (2, "akegnn: runs/reproduced/store.sqlite: has nothing of made-up\n")
    rendered = command(*given, "--render", "--epochs", "3")
    assert rendered.err == "akegnn: runs/reproduced/store.sqlite: has nothing of made-up with 3 epochs\n"
    assert {p: p.read_bytes() for p in tables} == tables


def test_one_run_is_not_shown_as_certain(table):
    experiment, wanted, kept = table
    first, second = entries(experiment, wanted, kept)[:2]
    one = dataclasses.replace(
        second, score=dataclasses.replace(second.score, n=1), gain=dataclasses.replace(second.gain, n=1, over="splits")
    )
    line = to_markdown(experiment, [first, one]).splitlines()[-1]
    mean, gain = 100 * one.score.mean, 100 * one.gain.mean
    assert f"| 1 | {mean:.2f} | {gain:+.2f}, 1 split | " in line


def test_render_without_a_store_is_refused_and_writes_nothing(command, grid, tmp_path):
    ran = command("reproduce", "made-up", "--render", "--store", "mistyped.sqlite")
    assert (ran.code, ran.out, ran.err) == (2, "", "akegnn: mistyped.sqlite: no such store\n")
    assert list(tmp_path.glob("*.sqlite")) == []


def test_reproduce_lists_what_there_is(command):
    told = json.loads(command("reproduce", "--list", "--json").out)
    assert [(t["name"], t["jobs"]) for t in told] == [(e.name, len(e.jobs())) for e in EXPERIMENTS.values()]
    assert all(name in command("reproduce").out for name in EXPERIMENTS)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["reproduce", "table9"], "reproduce: 'table9' is not one of table1, "),
        (
            ["reproduce", "made-up", "--only", "sgc"],
            "--only sgc: nothing in made-up; it has gcn/digits, bad/digits, gat/",
        ),
        (
            ["reproduce", "made-up", "--only", "gxt/digits"],
            "--only gxt/digits: nothing in made-up; did you mean gat/digits",
        ),
        (["reproduce", "made-up", "--device", "tpu"], "device: 'tpu' is not one of auto, cpu, cuda"),
        (["reproduce", "made-up", "--out", "/dev/null"], "/dev/null: is a file, a folder is wanted"),
        (["reproduce", "made-up", "--store", "/dev/null/s"], "/dev/null/s: cannot be written ("),
        (["results", "show", "no.sqlite"], "no.sqlite: no such store"),
        (["results", "merge", "a.sqlite", "no.sqlite"], "no.sqlite: no such store"),
    ],
)
def test_one_line_for_what_cannot_be_done(command, grid, arguments, line):
    ran = command(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"akegnn: {line}")
    assert ran.err.count("\n") == 1


def test_results_merge(command, tmp_path):
    cell = Cell("a", "cora", "gcn", "base", 0, 0, 0.6, 0.5, None, "accuracy", 1, 9, 0.5)
    with Store(tmp_path / "other.sqlite") as other:
        other.add("a", "gcn on cora", {}, [cell], 1.0)
    expected = "other.sqlite: 1 blocks taken over, 0 were here already\n"
    assert command("results", "merge", "mine.sqlite", "other.sqlite") == Ran(0, expected, "")
    assert "0 blocks taken over, 1 were here already" in command("results", "merge", "mine.sqlite", "other.sqlite").out
    [told] = json.loads(command("results", "show", "mine.sqlite", "--json").out)
    assert (told["block"], told["scores"], told["seconds"]) == ("gcn on cora", 1, 1.0)


def test_an_error_with_brackets_is_shown_as_it_is(command, tmp_path):
    with Store(tmp_path / "s.sqlite") as kept:
        kept.fail("a", "gcn on [bold]/data[/cora]", "RuntimeError: shape [/x] is [red]")
    ran = command("results", "show", "s.sqlite")
    assert ran.code == 0
    assert "failed: RuntimeError: shape [/x] is [red]" in ran.out


def test_key_is_a_digest_of_all_that_matters(own):
    [block] = blocks([job(data=own)])
    assert block.key == key_of(block.settings)
    assert block.settings["settings"]["training"]["epochs"] == 2
    assert block.settings["cells"] == ((0, 0), (0, 1))


def test_what_an_earlier_revision_of_a_method_computed_is_not_taken_for_this_one(own, tmp_path, monkeypatch):
    experiment = made_up(job(data=own))
    [block] = blocks(experiment.jobs())
    assert "revisions" not in block.settings
    with Store(tmp_path / "store") as kept:
        stored(kept, [block], lambda *cell: 0.5)
        assert len(base.stored(experiment, kept)) == 1
        monkeypatch.setitem(base.REVISIONS, experiment.jobs()[0].methods[0], 2)
        [now] = blocks(experiment.jobs())
        assert now.key not in kept.finished()
        assert base.stored(experiment, kept) == []
        stored(kept, [now], lambda *cell: 0.6)
        assert [b.key for b in base.stored(experiment, kept)] == [now.key]


def test_a_job_whose_data_is_not_there_leaves_the_others(tmp_path):
    here, nowhere = str(csv_folder(tmp_path / "graph")), str(tmp_path / "nowhere")
    jobs = [Job("gcn", data, data, "gcn", ("single",), seeds=1) for data in (nowhere, here, nowhere)]
    refused: list[tuple[str, str]] = []
    assert [b.job.data for b in blocks(jobs, refused=refused)] == [here]
    assert [label for label, _ in refused] == [f"gcn on {nowhere}"] * 2
    assert all("nowhere" in why for _, why in refused)
    with pytest.raises(AkeError, match="nowhere"):  # of all of them
        blocks(jobs[:1] * 2, refused=[])
