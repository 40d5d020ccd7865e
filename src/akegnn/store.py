"""Results in SQLite: what is finished is never computed again, whatever happens.

A *block* is what is computed at once: one setting, some methods, some splits and seeds. It is written in one
transaction with all its cells, so that a block is there whole or not at all; a process may be killed, a disk may be
full, several processes may write at once. A changed setting is another block.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from .errors import AkeError
from .runs import versions

BUSY = 60.0  # seconds to wait for another process that writes


@dataclass(frozen=True)
class Cell:
    """One score."""

    block: str
    dataset: str
    backbone: str
    method: str
    split: int
    seed: int
    validation: float
    test: float
    floor: float | None
    metric: str
    passes: int
    parameters: int
    seconds: float


COLUMNS = ", ".join(f.name for f in fields(Cell))  # by name: stores of earlier versions have a column more
ADD_CELL = f"insert into cells ({COLUMNS}) values ({', '.join('?' * len(fields(Cell)))})"
SCHEMA = f"""
create table if not exists blocks (
    key text primary key, label text not null, settings text not null, environment text not null,
    seconds real not null, memory integer not null, history text not null, finished text not null
) without rowid;
create table if not exists cells (
    {COLUMNS}, primary key (block, method, split, seed),
    foreign key (block) references blocks (key)
) without rowid;
create table if not exists failures (
    key text primary key, label text not null, error text not null, failed text not null
) without rowid;
"""


def key_of(settings: Mapping[str, Any]) -> str:
    """A block's key: a digest of everything that its numbers depend on."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:32]


class Store:
    """A file of results."""

    def __init__(self, path: str | Path, create: bool = True) -> None:
        self.path = Path(path)
        if not create and not self.path.is_file():
            raise AkeError(f"{self.path}: no such store")
        with self._errors():
            if create:
                self._open()
            else:
                self._open_to_read()

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(self.path, timeout=BUSY, isolation_level=None)
        self._db.execute(f"pragma busy_timeout = {int(BUSY * 1000)}")
        if (tables := self._tables()) and "blocks" not in tables:
            self._refuse()
        end = time.monotonic() + BUSY
        while True:  # while another process makes the file, SQLite refuses this at once instead of waiting
            try:
                self._db.execute("pragma journal_mode = wal")
                break
            except sqlite3.OperationalError as e:
                if "locked" not in str(e) or time.monotonic() > end:
                    raise
                time.sleep(0.02)
        self._db.execute("pragma synchronous = full")  # a finished block survives a power cut
        self._db.executescript(SCHEMA)

    def _open_to_read(self) -> None:
        """Nothing is changed: neither another program's database, nor a store on a medium that may only be read."""
        mode = "mode=rw"
        if not (os.access(self.path, os.W_OK) and os.access(self.path.resolve().parent, os.W_OK)):
            wal = Path(f"{self.path.resolve()}-wal")
            mode = "mode=ro" if wal.exists() else "immutable=1"  # SQLite wants to write beside a file in WAL mode
        uri = f"{self.path.resolve().as_uri()}?{mode}"
        self._db = sqlite3.connect(uri, timeout=BUSY, isolation_level=None, uri=True)
        self._db.execute("pragma query_only = on")
        if not {"blocks", "cells", "failures"} <= self._tables():
            self._refuse()

    def _tables(self) -> set[str]:
        return {name for (name,) in self._db.execute("select name from sqlite_master where type = 'table'")}

    def _refuse(self) -> None:
        """A database of another program, which is left as it is."""
        self._db.close()
        raise AkeError(f"{self.path}: not a store of results")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as e:
            raise AkeError(f"{self.path}: {e}") from None
        except OSError as e:
            raise AkeError(f"{self.path}: cannot be written ({e.strerror})") from None

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it or nothing."""
        with self._errors():
            self._db.execute("begin immediate")
            try:
                yield self._db
                self._db.execute("commit")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("rollback")
                raise

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- writing

    def add(
        self,
        key: str,
        label: str,
        settings: Mapping[str, Any],
        cells: Iterable[Cell],
        seconds: float,
        memory: int = 0,
        history: Sequence[Any] = (),
    ) -> bool:
        """Write a finished block; ``False`` if another process was first, whose numbers stay."""
        texts = [json.dumps(x, sort_keys=True, default=str) for x in (settings, environment(), list(history))]
        with self._writing() as db:
            row = (key, label, texts[0], texts[1], seconds, memory, texts[2], _now())
            added = db.execute("insert or ignore into blocks values (?, ?, ?, ?, ?, ?, ?, ?)", row).rowcount
            if added:
                db.executemany(ADD_CELL, [astuple(c) for c in cells])
                db.execute("delete from failures where key = ?", (key,))
        return bool(added)

    def fail(self, key: str, label: str, error: str) -> None:
        """Take note of a block that could not be computed (it is tried again next time), or of a cell of one."""
        with self._writing() as db:
            db.execute("insert or replace into failures values (?, ?, ?, ?)", (key, label, error, _now()))

    def merge(self, other: str | Path) -> tuple[int, int]:
        """Take over the blocks of another store that are not here. Returns how many came, and how many were here."""
        path = Path(other)
        if not path.is_file():
            raise AkeError(f"{path}: no such store")
        if path.resolve() == self.path.resolve():
            raise AkeError(f"{path}: is this very store")
        with Store(path, create=False) as source, self._writing() as db:
            came = here = 0
            for row in source._rows("select * from blocks"):
                if not db.execute("insert or ignore into blocks values (?, ?, ?, ?, ?, ?, ?, ?)", row).rowcount:
                    here += 1
                    continue
                came += 1
                db.executemany(ADD_CELL, source._rows(f"select {COLUMNS} from cells where block = ?", (row[0],)))
                db.execute("delete from failures where key = ?", (row[0],))
                lost = source._rows("select * from failures where key like ?", (f"{row[0]} %",))
                db.executemany("insert or replace into failures values (?, ?, ?, ?)", lost)
        return came, here

    # ---- reading

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._errors():
            return self._db.execute(query, values).fetchall()

    def finished(self) -> set[str]:
        """The keys of all blocks that are here."""
        return {key for (key,) in self._rows("select key from blocks")}

    def lost(self, blocks: Collection[str]) -> list[tuple[str, str]]:
        """Label and error of the cells that failed in blocks that are here."""
        found = self._rows("select key, label, error from failures order by label")
        return [(label, error) for key, label, error in found if " " in key and key.split(" ")[0] in blocks]

    def failures(self) -> list[tuple[str, str]]:
        """Label and error of the blocks that could not be computed."""
        return [(label, error) for label, error in self._rows("select label, error from failures order by label")]

    def cells(self, blocks: Sequence[str] | None = None) -> list[Cell]:
        """The scores of some blocks, or all, in the same order whatever the order they came in."""
        order = "order by dataset, backbone, method, split, seed, block"
        if blocks is None:
            return [Cell(*row) for row in self._rows(f"select {COLUMNS} from cells {order}")]
        some = f"select {COLUMNS} from cells where block in (select value from json_each(?)) {order}"
        return [Cell(*row) for row in self._rows(some, (json.dumps(list(blocks)),))]

    def blocks(self) -> list[tuple[str, str, dict[str, Any], dict[str, Any]]]:
        """Key, label, settings and environment of every block."""
        query = "select key, label, settings, environment from blocks order by finished, label, key"
        return [(key, label, json.loads(a), json.loads(b)) for key, label, a, b in self._rows(query)]

    def histories(self, blocks: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """What each block's networks learned, epoch by epoch."""
        found = self._rows("select key, history from blocks")
        return {key: json.loads(text) for key, text in found if key in set(blocks)}

    def overview(self) -> list[tuple[str, int, float, str]]:
        """Label, number of cells, seconds and time of every block."""
        query = """select label, count(cells.block), blocks.seconds, finished from blocks
                   left join cells on cells.block = blocks.key group by blocks.key order by finished, label"""
        return [(label, count, seconds, when) for label, count, seconds, when in self._rows(query)]


def environment() -> dict[str, Any]:
    """What a block was computed with."""
    return {**versions(), "machine": platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
