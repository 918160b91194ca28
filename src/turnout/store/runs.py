"""Many runs in one file: one writer, any number of readers, nothing lost that was appended."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from turnout.errors import StoreError
from turnout.kernel.arrays import as_count
from turnout.kernel.rounds import RoundRecord
from turnout.store.columns import RoundColumns
from turnout.store.database import check_whole, connect, create, transaction, translate_sqlite_errors
from turnout.store.lock import WriterLock
from turnout.store.packing import corruption_as_store_error, pack_snapshot, unpack_snapshot

_RUN = """
SELECT id, key, plan, clients,
       COALESCE((SELECT MAX(last) FROM chunks WHERE chunks.run = runs.id), 0), finished, code_version, started
FROM runs
"""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What is known of a stored run without reading its rounds; `rounds` counts those that are stored."""

    id: int
    key: str
    plan: dict[str, Any]
    clients: int
    rounds: int
    finished: bool
    code_version: str
    started: str


class RunStore:
    """A file of runs, each known by its key.

    A run is begun, appended to, and finished; or written whole. What a method has returned from is on the disk,
    and survives a kill or a power cut. One process writes; its name stands in the file `<path>.lock`. Any number of
    others read meanwhile, and see every append as a whole. Threads may share a store; processes must not.
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.path = Path(path)
        self.read_only = read_only
        self._process = os.getpid()
        self._turn = threading.RLock()
        self._lock: WriterLock | None = None
        self._connection: sqlite3.Connection | None = None
        try:
            with translate_sqlite_errors(self.path):
                self._open()
        except BaseException:
            self.close()
            raise

    def begin(self, key: str, plan: Mapping[str, Any], *, clients: int, code_version: str) -> int:
        """The id of the run of this key, begun now unless it was begun before with the same plan."""
        with self._writing() as db:
            return self._begun(db, key, plan, clients, code_version)

    def append(
        self, run: int, columns: RoundColumns, *, snapshot: Mapping[str, Any] | None = None, finish: bool = False
    ) -> None:
        """Store the next rounds and, with them, the state after the last; only the newest state is kept.

        `finish`: these are the last, and the run is whole; without a snapshot it then keeps none.
        """
        data = columns.to_bytes()
        state = None if snapshot is None else pack_snapshot(snapshot)
        with self._writing() as db:
            info = self._info(db, run)
            if info.finished:
                raise StoreError(f"run {run} ({info.key!r}) is finished: begin another run, with another key")
            self._append(db, info, columns, data)
            if state is not None:
                last = info.rounds + len(columns)
                db.execute("INSERT OR REPLACE INTO snapshots (run, round, data) VALUES (?, ?, ?)", (run, last, state))
            if finish:
                db.execute("UPDATE runs SET finished = 1 WHERE id = ?", (run,))
                if state is None:
                    db.execute("DELETE FROM snapshots WHERE run = ?", (run,))

    def finish(self, run: int) -> None:
        """Mark a run as whole: nothing can be appended to it any more."""
        with self._writing() as db:
            self._info(db, run)
            db.execute("UPDATE runs SET finished = 1 WHERE id = ?", (run,))

    def write_run(
        self, key: str, plan: Mapping[str, Any], columns: RoundColumns, *, clients: int, code_version: str
    ) -> int:
        """Store a whole run at once and return its id; if it is finished already, leave it as it is.

        An unfinished run of this key is replaced.
        """
        data = columns.to_bytes()
        with self._writing() as db:
            info = self._known(db, key)
            if info is not None:
                _check_same_plan(info, _canonical(plan), clients)
                if info.finished:
                    return info.id
                db.execute("DELETE FROM runs WHERE id = ?", (info.id,))
            run = self._begun(db, key, plan, clients, code_version)
            self._append(db, self._info(db, run), columns, data)
            db.execute("UPDATE runs SET finished = 1 WHERE id = ?", (run,))
            return run

    def delete(self, run: int) -> None:
        """Forget a run and all its rounds; the file keeps its size and uses the space again."""
        with self._writing() as db:
            self._info(db, run)
            db.execute("DELETE FROM runs WHERE id = ?", (run,))

    def compact(self) -> None:
        """Give back the space of what was deleted; the file is written anew, and needs that much room beside it."""
        with self._turn, translate_sqlite_errors(self.path):
            db = self._check_process()
            if self.read_only:
                raise StoreError(f"{self.path} was opened to read: open it without read_only=True to write")
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # until then the new file is in the journal, beside the old

    @property
    def changes(self) -> int:
        """Another number whenever somebody else has written to the file."""
        with self._turn, translate_sqlite_errors(self.path):
            return int(self._check_process().execute("PRAGMA data_version").fetchone()[0])

    def info(self, run: int) -> RunInfo:
        """The run of this number."""
        with self._reading() as db:
            return self._info(db, run)

    def find(self, key: str) -> RunInfo | None:
        """The run of this key, or None."""
        with self._reading() as db:
            return self._known(db, key)

    def runs(self) -> list[RunInfo]:
        """All runs, in the order they were begun."""
        with self._reading() as db:
            return [_as_info(row) for row in db.execute(f"{_RUN} ORDER BY id")]

    def columns(self, run: int, *, after: int = 0, most: int = -1) -> RoundColumns:
        """The stored rounds of a run.

        `after`: only those after the last round of an earlier call. `most`: at most so many appends of them.
        """
        with self._reading() as db:
            info = self._info(db, run)
            words = "SELECT last, data FROM chunks WHERE run = ? AND last > ? ORDER BY last LIMIT ?"
            chunks = db.execute(words, (run, after, most)).fetchall()
        parts, before = [RoundColumns.from_records([], clients=info.clients)], after
        for last, data in chunks:
            parts.append(self._unpacked(run, before, last, data))
            before = last
        return RoundColumns.joined(parts)

    def records(self, run: int) -> Iterator[RoundRecord]:
        """The stored rounds of a run one by one, read as they are asked for."""
        with self._reading() as db:
            self._info(db, run)
        return self._records(run)

    def snapshot(self, run: int) -> tuple[int, dict[str, Any]] | None:
        """The newest stored state of a run and the round it was taken after, or None."""
        with self._reading() as db:
            self._info(db, run)
            row = db.execute("SELECT round, data FROM snapshots WHERE run = ?", (run,)).fetchone()
        if row is None:
            return None
        try:
            return int(row[0]), unpack_snapshot(row[1])
        except StoreError as damage:
            raise StoreError(f"the snapshot of run {run} in {self.path}: {damage}") from damage

    def close(self) -> None:
        """Let go of the file; a second time does nothing."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> None:
        """Look before locking: a stranger's file is left without a lock file beside it."""
        if not self.path.parent.is_dir():
            raise StoreError(f"there is no folder {self.path.parent}: create it, or choose another path")
        if not self.path.exists():
            if self.read_only:
                raise StoreError(f"there is no store at {self.path}: check the path, or open it without read_only=True")
            self._take_lock()
            if not self.path.exists():
                create(self.path)
        self._connection = connect(self.path, read_only=self.read_only)
        if not self.read_only and self._lock is None:
            self._take_lock()
        check_whole(self._connection, self.path)

    def _take_lock(self) -> None:
        self._lock = WriterLock(self.path)

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """One consistent view of the file, for one thread at a time."""
        with self._turn, translate_sqlite_errors(self.path):
            db = self._check_process()
            db.execute("BEGIN")
            try:
                yield db
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._turn, translate_sqlite_errors(self.path):
            db = self._check_process()
            if self.read_only:
                raise StoreError(f"{self.path} was opened to read: open it without read_only=True to write")
            with transaction(db):
                yield db

    def _check_process(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(f"{self.path} was closed: open it again")
        if os.getpid() != self._process:
            raise StoreError(f"{self.path} was opened by process {self._process}: open it anew in this one")
        return self._connection

    def _known(self, db: sqlite3.Connection, key: str) -> RunInfo | None:
        row = db.execute(f"{_RUN} WHERE key = ?", (key,)).fetchone()
        return None if row is None else _as_info(row)

    def _info(self, db: sqlite3.Connection, run: int) -> RunInfo:
        row = db.execute(f"{_RUN} WHERE id = ?", (run,)).fetchone()
        if row is None:
            raise StoreError(f"there is no run {run} in {self.path}: `turnout runs list` shows those there are")
        return _as_info(row)

    def _begun(self, db: sqlite3.Connection, key: str, plan: Mapping[str, Any], clients: int, code_version: str) -> int:
        if not isinstance(key, str) or not key:
            raise StoreError(f"the key of a run must be a word, not {key!r}")
        wanted = _canonical(plan)
        fleet = as_count("clients", clients, StoreError)
        info = self._known(db, key)
        if info is not None:
            _check_same_plan(info, wanted, fleet)
            if info.finished:
                raise StoreError(f"run {info.id} ({key!r}) is finished: read it, delete it, or choose another key")
            return info.id
        now = datetime.now(UTC).isoformat(timespec="seconds")
        row = (key, wanted, fleet, str(code_version), now)
        begun = db.execute(
            "INSERT INTO runs (key, plan, clients, code_version, started) VALUES (?, ?, ?, ?, ?)", row
        ).lastrowid
        assert begun is not None
        return begun

    def _append(self, db: sqlite3.Connection, info: RunInfo, columns: RoundColumns, data: bytes) -> None:
        if columns.clients != info.clients:
            raise StoreError(f"run {info.id} has {info.clients} clients, but the rounds to append {columns.clients}")
        if not len(columns):
            return
        wanted = np.arange(info.rounds + 1, info.rounds + 1 + len(columns))
        wrong = np.flatnonzero(columns.rounds != wanted)
        if len(wrong):
            found, expected = int(columns.rounds[wrong[0]]), int(wanted[wrong[0]])
            raise StoreError(
                f"round {found} cannot follow round {expected - 1} of run {info.id} ({info.key!r}): append round "
                f"{expected} next"
            )
        db.execute("INSERT INTO chunks (run, last, data) VALUES (?, ?, ?)", (info.id, int(wanted[-1]), data))

    def _records(self, run: int) -> Iterator[RoundRecord]:
        """A query a chunk: a reader that pauses must not hold back the writer's housekeeping."""
        before = 0
        while True:
            with self._reading() as db:
                chunk = db.execute(
                    "SELECT last, data FROM chunks WHERE run = ? AND last > ? ORDER BY last LIMIT 1", (run, before)
                ).fetchone()
            if chunk is None:
                return
            yield from self._unpacked(run, before, *chunk).records()
            before = chunk[0]

    def _unpacked(self, run: int, before: int, last: int, data: bytes) -> RoundColumns:
        """The rounds after `before` up to `last`."""
        where = f"rounds {before + 1} to {last} of run {run} in {self.path}"
        try:
            columns = RoundColumns.from_bytes(data)
        except StoreError as damage:
            raise StoreError(f"{where}: {damage}") from damage
        if not np.array_equal(columns.rounds, np.arange(before + 1, last + 1)):
            raise StoreError(f"{where}: the stored bytes are of other rounds: restore the store from a backup")
        return columns


def _canonical(plan: Mapping[str, Any]) -> str:
    """One text for equal plans."""
    if not isinstance(plan, Mapping):
        raise StoreError(f"the plan of a run must be a dict, not {plan!r}")
    try:
        return json.dumps(dict(plan), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"the plan of a run must be JSON ({error}): use words, finite numbers, lists and dicts"
        ) from error


def _check_same_plan(info: RunInfo, plan: str, clients: int) -> None:
    if _canonical(info.plan) != plan:
        raise StoreError(
            f"run {info.id} ({info.key!r}) was begun with another plan: choose another key, or delete that run"
        )
    if info.clients != clients:
        raise StoreError(f"run {info.id} ({info.key!r}) was begun with {info.clients} clients, not {clients}")


def _as_info(row: tuple[Any, ...]) -> RunInfo:
    number, key, plan, clients, rounds, finished, code_version, started = row
    with corruption_as_store_error():
        return RunInfo(number, key, json.loads(plan), clients, rounds, bool(finished), code_version, started)
