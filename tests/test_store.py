"""The store: whole blocks or nothing, whatever happens to the process, the disk or the file."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import resource
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from akegnn import store as stores
from akegnn.experiments import Experiment, Job, base, blocks, entries, run, to_csv, to_markdown
from akegnn.experiments.shown import HEAD
from akegnn.store import Cell, Store, key_of
from small import child, csv_folder, outcome, refusal


def cells(
    block: str = "a", methods: tuple[str, ...] = ("base", "AKE"), seeds: int = 2, test: float = 0.5
) -> list[Cell]:
    return [
        Cell(block, "cora", "gcn", m, 0, k, 0.6, test + 0.01 * k, 0.1, "accuracy", 1, 99, 0.5)
        for m in sorted(methods)
        for k in range(seeds)
    ]


def add(kept: Store, block: str = "a", **given: object) -> bool:
    return kept.add(block, f"block {block}", {"epochs": 2}, cells(block, **given), 1.5)


@pytest.fixture
def kept(tmp_path):
    with Store(tmp_path / "store.sqlite") as opened:
        yield opened


# ---- what is written is read back ------------------------------------------------------------------------------------


def test_there_and_back(kept):
    history = [{"epoch": 1, "loss": 0.25}]
    assert kept.add("a", "gcn on cora", {"epochs": 2}, cells(), 1.5, 1000, history)
    kept.close()
    with Store(kept.path, create=False) as again:
        assert again.finished() == {"a"}
        assert again.cells() == cells()
        assert again.histories(["a"]) == {"a": history}
        [(label, count, seconds, _)] = again.overview()
        assert (label, count, seconds) == ("gcn on cora", 4, 1.5)
        assert again.failures() == []


def test_every_number_comes_back_bit_for_bit(kept):
    odd = Cell(
        "a", 'naïve "data"\'; drop table cells', "gcn", "AKE", 9, 99, 0.1 + 0.2, 1 / 3, None, "f1", 4, 2**40, 1e-9
    )
    kept.add("a", "a", {}, [odd], 0.0)
    assert kept.cells() == [odd]


def test_cells_come_in_one_order_whatever_order_they_were_written_in(tmp_path):
    with Store(tmp_path / "1") as one, Store(tmp_path / "2") as two:
        for k in "abc":
            add(one, k)
        for k in "cab":
            two.add(k, f"block {k}", {}, reversed(cells(k)), 1.0)
        assert one.cells() == two.cells()
        assert len(one.cells()) == 12


def test_some_blocks_only(kept):
    for k in "abc":
        add(kept, k)
    assert {c.block for c in kept.cells(["a", "c", "unknown"])} == {"a", "c"}
    assert kept.cells([]) == []
    assert set(kept.histories(["b"])) == {"b"}


def test_a_key_depends_on_the_settings_and_not_on_their_order():
    assert key_of({"a": 1, "b": {"c": [2], "d": None}}) == key_of({"b": {"d": None, "c": [2]}, "a": 1})
    several = [{"a": 1}, {"a": 2}, {"a": "1"}, {"a": [1]}, {"a": None}, {"b": 1}, {"a": 1, "b": 1}, {}]
    assert len({key_of(s) for s in several}) == len(several)


def test_what_was_computed_with_what_is_on_record(kept):
    add(kept)
    [(settings, environment)] = kept._rows("select settings, environment from blocks")
    assert settings == '{"epochs": 2}'
    assert '"torch"' in environment


# ---- a block is there whole or not at all ----------------------------------------------------------------------------


def test_a_block_that_cannot_be_written_whole_is_not_written(kept):
    """Two cells of one place are a mistake of the caller; nothing of the block must stay."""
    assert add(kept, "a")
    double = [*cells("b"), cells("b")[-1]]
    assert "UNIQUE" in refusal(lambda: kept.add("b", "b", {}, double, 1.0))
    assert kept.finished() == {"a"}
    assert kept.cells() == cells("a")
    assert add(kept, "b"), "and it can be written afterwards"


def test_cells_that_fail_while_they_are_made(kept):
    def broken():
        yield cells()[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kept.add("a", "a", {}, broken(), 1.0)
    assert (kept.finished(), kept.cells()) == (set(), [])
    assert add(kept)


def test_who_comes_second_changes_nothing(kept):
    assert add(kept, test=0.5)
    assert not add(kept, test=0.7)
    assert kept.cells() == cells(test=0.5)


def test_failures_are_noted_until_the_block_is_there(kept):
    kept.fail("a", "gcn on cora", "RuntimeError: first")
    kept.fail("a", "gcn on cora", "RuntimeError: second")
    kept.fail("b", "gat on cora", "MemoryError: no message")
    assert kept.failures() == [("gat on cora", "MemoryError: no message"), ("gcn on cora", "RuntimeError: second")]
    assert kept.finished() == set()
    add(kept, "a")
    assert kept.failures() == [("gat on cora", "MemoryError: no message")]


# ---- another store ---------------------------------------------------------------------------------------------------


def test_merge(kept, tmp_path):
    add(kept, "a", test=0.1)
    kept.fail("b", "block b", "MemoryError: no message")
    with Store(tmp_path / "elsewhere") as other:
        add(other, "a", test=0.9)
        add(other, "b")
        other.add("c", "block c", {"epochs": 3}, cells("c"), 2.5, 7, [{"loss": 1.0}])
    assert kept.merge(other.path) == (2, 1)
    assert kept.cells() == sorted(
        [*cells("a", test=0.1), *cells("b"), *cells("c")], key=lambda c: (c.method, c.seed, c.block)
    )
    assert kept.histories("c") == {"c": [{"loss": 1.0}]}
    assert kept.failures() == [], "what came is no failure any more"
    assert kept.lost(["a", "b", "c"]) == []
    before = kept.cells()
    assert kept.merge(other.path) == (0, 3)
    assert kept.cells() == before


def test_cells_that_failed_come_along(kept, tmp_path):
    with Store(tmp_path / "elsewhere") as other:
        add(other, "a")
        other.fail("a 0 7", "block a, split 0, seed 7", "the loss became NaN")
        other.fail("ab", "block ab", "no memory")
        other.fail("ab 0 1", "block ab, split 0, seed 1", "of a block that is not there")
        assert other.lost(["a"]) == [("block a, split 0, seed 7", "the loss became NaN")]
        kept.merge(other.path)
    assert kept.lost(["a", "ab"]) == kept.failures() == [("block a, split 0, seed 7", "the loss became NaN")]
    assert kept.lost([]) == []


def content(path: Path) -> bytes:
    return path.read_bytes()


def test_merge_changes_nothing_in_the_store_it_takes_from(kept, tmp_path):
    with Store(tmp_path / "elsewhere" / "store") as other:
        add(other)
    before = content(other.path)
    kept.merge(other.path)
    assert content(other.path) == before
    assert [p.name for p in other.path.parent.iterdir()] == ["store"]


@pytest.mark.parametrize("made", ["empty file", "another program's database"])
def test_what_is_not_a_store_is_refused_and_left_as_it_is(kept, tmp_path, made):
    path = tmp_path / "else.sqlite"
    path.touch()
    if made == "another program's database":
        with sqlite3.connect(path) as db:
            db.execute("create table recipes (name)")
        db.close()
    before = content(path)
    add(kept)
    for call in (lambda: kept.merge(path), lambda: Store(path, create=False)):
        assert str(path) in refusal(call)
        assert content(path) == before
    assert kept.cells() == cells()


def test_merge_from_a_store_that_is_being_written(kept, tmp_path):
    with Store(tmp_path / "elsewhere") as other:
        add(other)
        with other._writing():
            assert kept.merge(other.path) == (1, 0)
    assert kept.cells() == cells()


def test_merge_with_itself_or_nothing(kept, tmp_path):
    add(kept)
    assert refusal(lambda: kept.merge(kept.path)) == f"{kept.path}: is this very store"
    (tmp_path / "link").symlink_to(kept.path)
    assert "is this very store" in refusal(lambda: kept.merge(tmp_path / "link"))
    assert refusal(lambda: kept.merge(tmp_path / "no")) == f"{tmp_path / 'no'}: no such store"
    assert kept.cells() == cells()


def test_a_store_of_an_earlier_version(kept, tmp_path):
    """Its cells have a column more, ``error``, which was never filled: it is read, added to, and merged either way."""
    with sqlite3.connect(tmp_path / "old") as db:
        db.executescript(stores.SCHEMA.replace("seconds, primary key", "seconds, error, primary key"))
        db.execute("insert into blocks values ('a', 'block a', '{}', '{}', 1.5, 0, '[]', '2026-01-01T00:00:00Z')")
        rows = [(*dataclasses.astuple(c), "") for c in cells("a")]
        db.executemany(f"insert into cells values ({', '.join('?' * len(rows[0]))})", rows)
    db.close()
    with Store(tmp_path / "old", create=False) as old:
        assert old.cells() == cells("a")
    add(kept, "b")
    assert kept.merge(tmp_path / "old") == (1, 0)
    assert kept.cells() == sorted(cells("a") + cells("b"), key=lambda c: (c.method, c.split, c.seed, c.block))
    with Store(tmp_path / "old") as old:
        assert add(old, "c")
        assert old.merge(kept.path) == (1, 1)
        assert old.cells(["b", "c"]) == sorted(cells("b") + cells("c"), key=lambda c: (c.method, c.seed, c.block))


def test_merge_takes_all_of_a_store_or_nothing(kept, tmp_path):
    with Store(tmp_path / "elsewhere") as other:
        for k in "abc":
            add(other, k)
        other._db.execute("drop table cells")
        other._db.execute("create table cells (block, other)")
        other._db.execute("insert into cells values ('c', 1)")
    refusal(lambda: kept.merge(other.path))
    assert (kept.finished(), kept.cells()) == (set(), [])


# ---- files and folders that are not what they should be --------------------------------------------------------------


@pytest.mark.parametrize("junk", [b"not a database, but long enough to be one" * 50, b"\x00" * 5000])
def test_not_a_database(tmp_path, junk):
    path = tmp_path / "store.sqlite"
    path.write_bytes(junk)
    for create in (True, False):
        assert refusal(lambda create=create: Store(path, create=create)) == f"{path}: file is not a database"
    assert content(path) == junk


def test_cut_off_in_the_middle(tmp_path):
    path = tmp_path / "store.sqlite"
    with Store(path) as whole:
        for k in range(40):
            add(whole, str(k))
    path.write_bytes(content(path)[: len(content(path)) // 2])

    def read() -> object:
        with Store(path, create=False) as opened:
            return opened.cells()

    assert refusal(read).startswith(f"{path}: ")


def test_no_store(tmp_path):
    path = tmp_path / "no" / "store.sqlite"
    assert refusal(lambda: Store(path, create=False)) == f"{path}: no such store"
    assert not path.parent.exists()


@pytest.mark.parametrize("place", ["folder", "file/store", "/proc/store", "/dev/null/store", "/proc/new/store"])
def test_a_place_that_cannot_be_written(tmp_path, place):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    path = tmp_path / place
    assert refusal(lambda: Store(path)).startswith(f"{path}: ")
    assert (tmp_path / "file").read_text() == "mine"


# ---- another process -------------------------------------------------------------------------------------------------


@pytest.fixture
def public():
    """A folder that another user may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_nobody(work: Callable[[], object]) -> int:
    """In a process that may write nowhere in particular, even where tests are run by root."""

    def other() -> None:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        work()

    return outcome(child(other))


def test_a_folder_that_may_only_be_read(public, tmp_path):
    """Nothing can be stored there; what is there can be read, and taken over."""
    with Store(public / "store") as made:
        add(made)
    public.chmod(0o555)
    (public / "store").chmod(0o444)

    def read() -> None:
        with Store(public / "store", create=False) as opened:
            assert opened.cells() == cells()

    def write() -> None:
        with Store(public / "store") as opened:
            add(opened, "b")

    assert as_nobody(lambda: Store(public / "new")) == 2
    assert as_nobody(write) == 2
    assert as_nobody(read) == 0
    public.chmod(0o755)


def test_opened_while_another_process_makes_the_store(tmp_path):
    """Who comes second waits until the tables are there; nobody is told that the file is locked."""
    first = sqlite3.connect(tmp_path / "store", isolation_level=None, check_same_thread=False)
    first.execute("begin immediate")
    later = threading.Timer(0.3, lambda: first.execute("commit"))
    later.start()
    try:
        with Store(tmp_path / "store") as second:
            assert add(second)
    finally:
        later.join()
        first.close()


def test_two_processes_write_the_same_blocks_at_once(kept):
    """Each block is written by one of them, whole; none is lost, none is there twice."""
    keys = [f"{k:02d}" for k in range(30)]

    def writes(test: float, order: list[str]) -> None:
        with Store(kept.path) as own:
            for k in order:
                add(own, k, test=test)

    pids = [child(lambda: writes(0.1, keys)), child(lambda: writes(0.7, keys[::-1]))]
    assert [outcome(pid) for pid in pids] == [0, 0]
    assert kept.finished() == set(keys)
    for k in keys:
        assert kept.cells([k]) in (cells(k, test=0.1), cells(k, test=0.7))


def test_one_reads_while_another_writes(kept, tmp_path):
    add(kept, "a")
    with Store(kept.path) as other, other._writing() as db:
        db.execute("delete from cells")
        assert kept.cells() == cells("a"), "of a change that is not finished nothing is seen, and nobody waits"
        db.execute("rollback")
        db.execute("begin")


def test_waiting_for_another_process_has_an_end(kept, monkeypatch):
    monkeypatch.setattr(stores, "BUSY", 0.05)
    with Store(kept.path) as late, kept._writing():
        assert refusal(lambda: add(late)) == f"{late.path}: database is locked"
    assert add(kept)


# ---- a full disk -----------------------------------------------------------------------------------------------------


def test_a_full_disk(kept):
    add(kept, "a")
    [(pages,)] = kept._rows("pragma page_count")
    kept._rows(f"pragma max_page_count = {pages + 2}")
    message = refusal(lambda: add(kept, "b", seeds=3000))
    assert message == f"{kept.path}: database or disk is full"
    assert kept.cells() == cells("a")
    kept._rows("pragma max_page_count = 1000000")
    assert add(kept, "b", seeds=3000), "with room again it goes on"
    assert len(kept.cells(["b"])) == 6000


def test_files_that_may_not_grow(kept):
    """What the disk really does: writing to the file fails."""
    add(kept, "a")

    def fills() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        with Store(kept.path) as own:
            add(own, "b", seeds=3000)

    assert outcome(child(fills)) == 2
    assert kept.cells() == cells("a")
    with Store(kept.path) as again:
        assert again.finished() == {"a"}
        assert add(again, "b", seeds=3000)
    assert len(kept.cells()) == 4 + 6000


# ---- killed ----------------------------------------------------------------------------------------------------------


def test_killed_before_the_end_of_a_transaction(kept):
    add(kept, "a")

    def dies() -> None:
        def half():
            yield cells("b")[0]
            os.kill(os.getpid(), signal.SIGKILL)

        with Store(kept.path) as own:
            own.add("b", "b", {}, half(), 1.0)

    assert outcome(child(dies)) == -signal.SIGKILL
    assert kept.cells() == cells("a")
    assert kept.finished() == {"a"}
    assert add(kept, "b"), "the dead hold no lock"


@pytest.mark.parametrize("k", range(5))
def test_killed_while_writing_one_block_after_another(tmp_path, k):
    path = tmp_path / "store"

    def writes() -> None:
        with Store(path) as own:
            for n in range(10_000):
                add(own, str(n))

    pid = child(writes)
    time.sleep(random.Random(k).uniform(0.0, 0.3))
    os.kill(pid, signal.SIGKILL)
    assert outcome(pid) == -signal.SIGKILL
    with Store(path) as after:
        there = after.finished()
        assert there == {str(n) for n in range(len(there))}
        assert all(after.cells([n]) == cells(n) for n in sorted(there)[:20])
        assert len(after.cells()) == 4 * len(there)
        assert after._rows("pragma integrity_check") == [("ok",)]
        assert add(after, "next")


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """A table of four blocks that takes about a second, and how it looks when nothing happens."""
    top = tmp_path_factory.mktemp("grid")
    folder = str(csv_folder(top / "graph"))
    settings = {"epochs": 1, "views": ["original"]}

    def jobs() -> list[Job]:
        return [
            Job(f"rate {rate}", "own", folder, "gcn", ("single", "ft"), 2, 2, {**settings, "lr": rate})
            for rate in (0.01, 0.02)
        ]

    experiment = Experiment("made-up", "For the tests.", jobs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "BLOCK", 2)
        wanted = blocks(experiment.chosen())
        assert len({b.key for b in wanted}) == 4
        with Store(top / "store") as kept:
            started = time.perf_counter()
            assert run(wanted, kept, "cpu").done == 4
            seconds = time.perf_counter() - started
            yield experiment, wanted, shown(experiment, wanted, kept), seconds


def shown(experiment, wanted, kept) -> tuple[list[Cell], list[list[str]], str]:
    """All that can be seen of a grid, but for the seconds that it took."""
    found = entries(experiment, wanted, kept)
    assert found
    column = HEAD.index("seconds")
    rows = [line.split(",") for line in to_csv(found).splitlines()]
    table = [[x for k, x in enumerate(row) if k != column] for row in rows]
    return [dataclasses.replace(c, seconds=0) for c in kept.cells()], table, to_markdown(experiment, found)


def test_another_programs_database_is_left_alone(tmp_path):
    path = tmp_path / "other.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("create table theirs (x)")
    assert refusal(lambda: Store(path)) == f"{path}: not a store of results"
    with contextlib.closing(sqlite3.connect(path)) as other:
        assert other.execute("select name from sqlite_master").fetchall() == [("theirs",)]


def killed_and_resumed(grid, path: Path, k: int) -> None:
    experiment, wanted, expected, seconds = grid

    def computes() -> None:
        with Store(path) as own:
            run(wanted, own, "cpu")

    pid = child(computes)
    time.sleep(random.Random(k).uniform(0, 1.1 * seconds))
    os.kill(pid, signal.SIGKILL)
    outcome(pid)
    with Store(path) as kept:
        there = kept.finished()
        assert there == {b.key for b in wanted[: len(there)]}, "what was finished is there, in order"
        assert {c.block for c in kept.cells()} == there
        before = {c: c.seconds for c in kept.cells()}
        said: list[str] = []
        report = run(wanted, kept, "cpu", say=said.append)
        assert (report.done, report.failed) == (len(wanted), [])
        assert sum("cells ..." in line for line in said) == len(wanted) - len(there), "only the rest is computed"
        assert before.keys() <= set(kept.cells())
        assert shown(experiment, wanted, kept) == expected


@pytest.mark.parametrize("k", range(5))
def test_a_grid_killed_at_some_moment_and_run_again(grid, tmp_path, k):
    killed_and_resumed(grid, tmp_path / "store", k)


@pytest.mark.slow
@pytest.mark.parametrize("k", range(5, 55))
def test_a_grid_killed_at_many_moments_and_run_again(grid, tmp_path, k):
    killed_and_resumed(grid, tmp_path / "store", k)


def test_two_processes_on_one_grid(grid, tmp_path):
    experiment, wanted, expected, _ = grid

    def computes(order: list) -> None:
        with Store(tmp_path / "store") as own:
            run(order, own, "cpu")

    Store(tmp_path / "store").close()
    pids = [child(lambda: computes(wanted)), child(lambda: computes(wanted[::-1]))]
    assert [outcome(pid) for pid in pids] == [0, 0]
    with Store(tmp_path / "store") as kept:
        assert shown(experiment, wanted, kept) == expected


def test_a_grid_in_two_places_and_merged(grid, tmp_path):
    experiment, wanted, expected, _ = grid
    with Store(tmp_path / "here") as here:
        with Store(tmp_path / "there") as there:
            run(wanted[1:], there, "cpu")
        run(wanted[:2], here, "cpu")
        assert here.merge(tmp_path / "there") == (2, 1)
        assert shown(experiment, wanted, here) == expected
