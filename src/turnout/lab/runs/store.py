"""A store of many runs in one SQLite file, with one writer and any number of readers."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from turnout.closing import Closable
from turnout.errors import StoreError
from turnout.kernel.arrays import as_count
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.tables import RunInfo, RunTable, TableKind, build_table
from turnout.storage.encoding.limits import check_clients, parse_json
from turnout.storage.encoding.packing import corruption_as_store_error, pack_snapshot, unpack_snapshot
from turnout.storage.files.database import RUNS
from turnout.storage.files.storefile import StoreFile
from turnout.storage.opening import create_store

_RUN = """
SELECT id, key, plan, clients,
       COALESCE((SELECT MAX(last) FROM chunks WHERE chunks.run = runs.id), 0), finished, code_version, started
FROM runs
"""


class RunStore(Closable):
    """A file of runs, each identified by its key.

    A run is started with `begin`, extended with `append`, whose last call finishes it, or written at once with
    `write_run`. When a method returns, its changes are on disk and survive a crash or a power failure. Only one process
    can write; the file `<path>.lock` names it. Any number of other processes can read at the same time; they see each
    append completely or not at all. Threads may share a store object; processes must not.

    A file that has lost rounds that were stored, for example because it was copied without its log, is refused.
    `accept_older` opens it nevertheless.
    """

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False, accept_older: bool = False) -> None:
        self.path = Path(path).resolve()
        self.read_only = read_only
        self._mutex = threading.RLock()
        if not self.path.exists():
            if read_only:
                raise StoreError(f"there is no store at {self.path}: check the path, or open it without read_only=True")
            create_store(self.path, RUNS)
        self._file = StoreFile(self.path, RUNS, "read" if read_only else "write", accept_older=accept_older)

    def begin(self, key: str, plan: Mapping[str, Any], *, clients: int, code_version: str) -> int:
        """Starts a run, or continues an unfinished run with the same key and plan, and returns its id."""
        with self._writing() as db:
            return self._begin(db, key, plan, clients, code_version)

    def append(
        self, run: int, columns: RoundColumns, *, snapshot: Mapping[str, Any] | None = None, finish: bool = False
    ) -> None:
        """Stores the next rounds of a run in one transaction.

        Args:
            run: The id of the run.
            columns: The rounds that follow the last stored round.
            snapshot: The state after the last of these rounds; it replaces an earlier snapshot.
            finish: Whether these rounds complete the run; without a snapshot, the earlier one is then deleted.
        """
        data = columns.to_bytes()
        state = None if snapshot is None else pack_snapshot(snapshot)
        with self._writing() as db:
            info = self._info(db, run)
            if info.finished:
                raise StoreError(f"run {run} ({info.key!r}) is finished: begin another run with another key")
            self._append(db, info, columns, data)
            if state is not None:
                last = info.rounds + len(columns)
                db.execute("INSERT OR REPLACE INTO snapshots (run, round, data) VALUES (?, ?, ?)", (run, last, state))
            if finish:
                db.execute("UPDATE runs SET finished = 1 WHERE id = ?", (run,))
                if state is None:
                    db.execute("DELETE FROM snapshots WHERE run = ?", (run,))

    def write_run(
        self, key: str, plan: Mapping[str, Any], columns: RoundColumns, *, clients: int, code_version: str
    ) -> int:
        """Stores a complete run and returns its id.

        A finished run with the same key and plan is left unchanged; an unfinished one is replaced.

        Args:
            key: The unique name of the run.
            plan: The settings that determine the run.
            columns: All rounds of the run.
            clients: The number of clients.
            code_version: The version of turnout that played the run.
        """
        data = columns.to_bytes()
        with self._writing() as db:
            info = self._find(db, key)
            if info is not None:
                _check_same_plan(info, _canonical_json(plan), clients)
                if info.finished:
                    return info.id
                db.execute("DELETE FROM runs WHERE id = ?", (info.id,))
            run = self._begin(db, key, plan, clients, code_version)
            self._append(db, self._info(db, run), columns, data)
            db.execute("UPDATE runs SET finished = 1 WHERE id = ?", (run,))
            return run

    def delete(self, run: int) -> None:
        """Deletes a run and its rounds; the file keeps its size and reuses the space."""
        with self._writing() as db:
            self._info(db, run)
            db.execute("DELETE FROM runs WHERE id = ?", (run,))

    def compact(self) -> None:
        """Rewrites the file without the space of deleted runs; this temporarily needs as much disk space again."""
        with self._mutex:
            self._file.vacuum()

    @property
    def changes(self) -> int:
        """A number that changes whenever another connection has written to the file."""
        with self._mutex:
            return self._file.changes

    def info(self, run: int) -> RunInfo:
        """Returns the summary of the run with this id."""
        with self._reading() as db:
            return self._info(db, run)

    def find(self, key: str) -> RunInfo | None:
        """Returns the summary of the run with this key, or None."""
        with self._reading() as db:
            return self._find(db, key)

    def runs(self) -> list[RunInfo]:
        """Returns the summaries of all runs in the order in which they were started."""
        with self._reading() as db:
            return [_as_info(row) for row in db.execute(f"{_RUN} ORDER BY id")]

    def columns(self, run: int, *, after: int = 0, most: int = -1) -> RoundColumns:
        """Returns the stored rounds of a run.

        Args:
            run: The id of the run.
            after: Returns only rounds after this one, which must be the last round that an earlier call returned.
            most: The largest number of appended chunks to return; a negative number means all.
        """
        with self._reading() as db:
            info = self._info(db, run)
            query = "SELECT last, data FROM chunks WHERE run = ? AND last > ? ORDER BY last LIMIT ?"
            chunks = db.execute(query, (run, after, most)).fetchall()
        parts, before = [RoundColumns.from_records([], clients=info.clients)], after
        for last, data in chunks:
            parts.append(self._unpack_chunk(run, before, last, data))
            before = last
        return RoundColumns.concatenate(parts)

    def table(self, table: TableKind = "rounds", *, runs: Iterable[int] | None = None) -> RunTable:
        """Returns many runs as one tidy table, with their settings as columns.

        Args:
            table: What a row is: "runs" (one row per run), "rounds" (per run and round), "clients" (per run and client)
                or "turns" (per run, round and selected client).
            runs: The ids of the runs; all by default.
        """
        infos = self.runs() if runs is None else [self.info(run) for run in runs]
        return build_table(table, ((info, self.columns(info.id)) for info in infos))

    def to_pandas(self, table: TableKind = "rounds", *, runs: Iterable[int] | None = None) -> Any:
        """Returns the result of `table` as a `pandas.DataFrame`; needs pandas, of the extra `tables`."""
        return self.table(table, runs=runs).to_pandas()

    def snapshot(self, run: int) -> tuple[int, dict[str, Any]] | None:
        """Returns the number of the round after which the newest snapshot was taken and the snapshot, or None."""
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
        """Closes the file and releases the lock; further calls have no effect."""
        self._file.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Opens a read transaction, in which one thread sees a consistent state of the file."""
        with self._mutex, self._file.reading() as db:
            yield db

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._mutex, self._file.writing() as db:
            yield db

    def _find(self, db: sqlite3.Connection, key: str) -> RunInfo | None:
        row = db.execute(f"{_RUN} WHERE key = ?", (key,)).fetchone()
        return None if row is None else _as_info(row)

    def _info(self, db: sqlite3.Connection, run: int) -> RunInfo:
        row = db.execute(f"{_RUN} WHERE id = ?", (run,)).fetchone()
        if row is None:
            raise StoreError(f"there is no run {run} in {self.path}: RunStore.runs() lists the runs", argument="run")
        return _as_info(row)

    def _begin(self, db: sqlite3.Connection, key: str, plan: Mapping[str, Any], clients: int, code_version: str) -> int:
        if not isinstance(key, str) or not key:
            raise StoreError(f"the key of a run must be a non-empty string, not {key!r}")
        plan_json = _canonical_json(plan)
        client_count = as_count("clients", clients, StoreError)
        info = self._find(db, key)
        if info is not None:
            _check_same_plan(info, plan_json, client_count)
            if info.finished:
                raise StoreError(f"run {info.id} ({key!r}) is finished: read it, delete it, or choose another key")
            return info.id
        now = datetime.now(UTC).isoformat(timespec="seconds")
        row = (key, plan_json, client_count, str(code_version), now)
        run = db.execute(
            "INSERT INTO runs (key, plan, clients, code_version, started) VALUES (?, ?, ?, ?, ?)", row
        ).lastrowid
        assert run is not None
        return run

    def _append(self, db: sqlite3.Connection, info: RunInfo, columns: RoundColumns, data: bytes) -> None:
        if columns.clients != info.clients:
            raise StoreError(
                f"run {info.id} has {info.clients} clients, but the rounds to append have {columns.clients}: append "
                "rounds of the same fleet"
            )
        if not len(columns):
            return
        expected = np.arange(info.rounds + 1, info.rounds + 1 + len(columns))
        wrong = np.flatnonzero(columns.rounds != expected)
        if len(wrong):
            actual_round, expected_round = int(columns.rounds[wrong[0]]), int(expected[wrong[0]])
            raise StoreError(
                f"round {actual_round} cannot follow round {expected_round - 1} of run {info.id} ({info.key!r}): "
                f"append round {expected_round} next"
            )
        db.execute("INSERT INTO chunks (run, last, data) VALUES (?, ?, ?)", (info.id, int(expected[-1]), data))

    def _unpack_chunk(self, run: int, before: int, last: int, data: bytes) -> RoundColumns:
        """Returns the rounds after `before` up to `last`."""
        location = f"rounds {before + 1} to {last} of run {run} in {self.path}"
        try:
            columns = RoundColumns.from_bytes(data)
        except StoreError as damage:
            raise StoreError(f"{location}: {damage}") from damage
        if not np.array_equal(columns.rounds, np.arange(before + 1, last + 1)):
            raise StoreError(
                f"{location}: the stored bytes are of other rounds: continue after the last round of an earlier "
                "read, or restore the store from a backup"
            )
        return columns


def _canonical_json(plan: Mapping[str, Any]) -> str:
    """Returns JSON text that is the same for equal plans."""
    if not isinstance(plan, Mapping):
        raise StoreError(f"the plan of a run must be a dict, not {plan!r}")
    try:
        return json.dumps(dict(plan), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(
            f"the plan of a run must be JSON ({error}): use strings, finite numbers, lists and dicts"
        ) from error


def _check_same_plan(info: RunInfo, plan: str, clients: int) -> None:
    if _canonical_json(info.plan) != plan:
        raise StoreError(
            f"run {info.id} ({info.key!r}) was started with another plan: choose another key, or delete that run"
        )
    if info.clients != clients:
        raise StoreError(
            f"run {info.id} ({info.key!r}) was started with {info.clients} clients, not {clients}: choose another key"
        )


def _as_info(row: tuple[Any, ...]) -> RunInfo:
    run, key, plan, clients, rounds, finished, code_version, started = row
    with corruption_as_store_error():
        return RunInfo(
            run, key, parse_json(plan), check_clients(clients), rounds, bool(finished), code_version, started
        )
