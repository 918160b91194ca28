"""Follows a store in a background thread and publishes a new version with every change."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from turnout.counting import pluralize
from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.fleet import FleetSource
from turnout.dashboard.sources.run import Digest, RunSource, describe_run, make_digest
from turnout.errors import ReportError, StoreError, TurnoutError
from turnout.lab.analysis.judging import JudgedPromise, promise_of_runs
from turnout.lab.runs.info import RunInfo
from turnout.lab.runs.store import RunStore
from turnout.live import FleetReader
from turnout.live._internals import StaleError, is_fleet
from turnout.storage.files.lock import running_writer
from turnout.storage.store import Location
from turnout.web.errors import UNREADABLE

log = logging.getLogger("turnout.dashboard")
POLL_SECONDS = 0.5  # interval between two checks of an unchanged file
READ_SECONDS = 0.1  # longest read at a time, because requests wait for the lock meanwhile
FIRST_READ_SECONDS = 0.3  # longest read of a run when it is first requested
CACHED_RUNS = 4  # runs kept in memory
LIVE_SECONDS = 30.0
LISTED_RUNS = 500
#: What is not known about a store in a database.
UNKNOWN: dict[str, Any] = {"log_bytes": 0, "changed": None}


@dataclass(frozen=True, slots=True)
class WatchState:
    """The state that the stream of changes reports. Two states of one watch with the same version are equal.

    Attributes:
        version: Increases with every change.
        reading: The numbers of records read ("done") and stored ("of") of a source; None if all have been read.
        last_error: Why the file cannot be read at the moment; None if it can.
        live: Whether the file was written less than LIVE_SECONDS ago.
    """

    version: int = 1
    reading: dict[str, int] | None = None
    last_error: str | None = None
    live: bool = False


class Watch:
    """Follows one file. Views read its sources under a lock; `version` increases with every change.

    Args:
        path: The file of a fleet or of a store of runs, or the address of a fleet in a database.
        open_reader: Opens a reader of the fleet, in a service that has the fleet open already or will open it.
    """

    def __init__(self, path: Location, open_reader: Callable[[], FleetReader] | None = None) -> None:
        self.path, self._open_reader = path, open_reader
        self.kind = ""
        self.started_at = time.monotonic()
        self.infos: dict[int, RunInfo] = {}
        self._lock = threading.RLock()
        #: The current state, as one immutable value; reading it never waits for the lock.
        self.state = WatchState()
        self._last_changes: Any = None
        self._inode: int | None = None
        self._changed_at: float | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._fleet: FleetSource | None = None
        self._store: RunStore | None = None
        self._digests: dict[int, Digest] = {}
        self._promise: JudgedPromise | None = None  # once it is known
        self._runs: OrderedDict[int, RunSource] = OrderedDict()
        self._problem = ""  # the last that was logged
        if self._open_reader is None:
            self._open()
        else:
            self.kind = "fleet"
            self.poll()  # if it cannot be read yet, the pages say so

    def start(self) -> None:
        """Starts the background thread."""
        self._thread = threading.Thread(target=self._follow, name="turnout-dashboard", daemon=True)
        self._thread.start()

    def request_stop(self) -> None:
        """Asks the background thread and the streams of changes to end."""
        self._stop.set()

    def stop(self) -> None:
        """Ends the background thread and closes the file."""
        self.request_stop()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._close()

    @property
    def stopped(self) -> bool:
        """Whether a stop was requested."""
        return self._stop.is_set()

    @contextmanager
    def locked_source(self, run: int | None = None) -> Iterator[Source]:
        """Yields the fleet or a run, by default the newest, and keeps the lock; without runs, an empty source."""
        with self._lock:
            if self.kind == "fleet":
                if self._fleet is None:
                    raise StoreError(self.state.last_error or f"{self.path} cannot be read")
                yield self._fleet
            else:
                yield self._run(run)

    def runs(self) -> list[RunInfo]:
        """Returns all runs, newest first."""
        with self._lock:
            return list(reversed(self.infos.values()))

    def random_rounds(self, source: Source) -> tuple[float, str] | None:
        """Returns the mean round duration of random selection in the same world, and how it was found, in words.

        Without rounds, it is the mean time from one decision to the next. Uses the first rounds of these runs, as many
        as `source` has, and prefers runs with the same seed. Returns None if the store has no such run.
        """
        if self._store is None or source.run is None:
            return None
        own, rounds = self.infos[source.run], len(source.ledger)
        same_world = [
            info
            for info in self.infos.values()
            if info.plan.get("policy") == "random"
            and info.rounds >= rounds
            and all(info.plan.get(key) == own.plan.get(key) for key in ("world", "world_settings", "concurrency"))
            and info.clients == own.clients
        ]
        same_seed = [info for info in same_world if info.plan.get("seed") == own.plan.get("seed")]
        means = [float(self.digest(info).seconds[:rounds].mean()) for info in same_seed or same_world[:CACHED_RUNS]]
        if not means:
            return None
        what = f"{pluralize(len(means), 'run')} with random selection in this store"
        over = "rounds" if source.ledger.slots is None else "turns"
        return sum(means) / len(means), f"mean of {what}, over the same number of {over}"

    @property
    def promise(self) -> JudgedPromise:
        """The promise by which the runs of the store are judged."""
        with self._lock:
            if self._promise is None:
                self._promise = promise_of_runs(sorted(self.infos.values(), key=lambda info: info.id))
            return self._promise

    def has_digest(self, info: RunInfo) -> bool:
        """Returns whether the summary of a run is known, with all its rounds, without reading the run."""
        return info.id in self._digests and self._digests[info.id].rounds == info.rounds

    def digest(self, info: RunInfo, promise: JudgedPromise | None = None) -> Digest:
        """Returns the summary of a run, judged by a promise; by default by that of the store."""
        assert self._store is not None
        promise = promise or self.promise
        if not self.has_digest(info) or self._digests[info.id].promise != promise:
            self._digests[info.id] = make_digest(self._store.columns(info.id), promise, info)
        return self._digests[info.id]

    def describe(self) -> dict[str, Any]:
        """Returns the description of the store that the page shows, with the newest runs."""
        runs, state = self.runs(), self.state
        return {
            "version": state.version,
            "kind": self.kind,
            "name": self.path.name,
            "live": state.live,
            "last_error": state.last_error,
            "runs_total": len(runs),
            "runs": [describe_run(info) for info in runs[:LISTED_RUNS]],
        }

    @property
    def writer(self) -> str | None:
        """The process that holds the write lock; read from the lock file, because locking could block a writer."""
        if isinstance(self.path, Path):
            return running_writer(self.path)
        with self.locked_source():
            return None if self._fleet is None else self._fleet.store.writer

    def sizes(self) -> dict[str, Any]:
        """Returns the sizes of the store and of its write-ahead log in bytes, and the time of the last write."""
        if not isinstance(self.path, Path):
            with suppress(StoreError), self.locked_source():
                return {"bytes": None if self._fleet is None else self._fleet.store.bytes, **UNKNOWN}
            return {"bytes": None, **UNKNOWN}
        file, wal = (_stat(path) for path in (self.path, self.path.with_name(f"{self.path.name}-wal")))
        newest = max((stat.st_mtime for stat in (file, wal) if stat is not None), default=None)
        return {
            "bytes": None if file is None else file.st_size,
            "log_bytes": 0 if wal is None else wal.st_size,
            "changed": None if newest is None else datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds"),
        }

    def _run(self, run: int | None) -> Source:
        if self._store is None:
            raise StoreError(self.state.last_error or f"{self.path} cannot be read")
        if run is None:
            if not self.infos:
                return Source()
            run = max(self.infos)
        if run not in self.infos:
            raise ReportError(f"there is no run {run} in {self.path.name}: choose one of the runs in the list")
        source = self._runs.get(run)
        if source is None:
            source = RunSource(self._store, self.infos[run])
            source.read_on(FIRST_READ_SECONDS)
            self._runs[run] = source
            while len(self._runs) > CACHED_RUNS:
                self._runs.popitem(last=False)
            if source.reading is not None:
                self._publish(changed=True, reading=source.reading)
        self._runs.move_to_end(run)
        return source

    def _follow(self) -> None:
        while not self._stop.is_set():
            self._stop.wait(0.01 if self.poll() else POLL_SECONDS)

    def poll(self) -> bool:
        """Reads new records for about READ_SECONDS, publishes the new state, and returns whether there is more to read.

        Raises no exception: an error becomes `last_error`, which the pages show.
        """
        try:
            with self._lock:
                return self._step()
        except StaleError:
            return self._reopen()
        except TurnoutError as error:
            self._publish_error(str(error))
        except Exception as error:  # the thread must survive, and the pages must show that their data are outdated
            text = f"{self.path} cannot be read ({type(error).__name__}: {error}): see the log of the dashboard"
            self._publish_error(text, error)
        return False

    def _publish_error(self, text: str, error: Exception | None = None) -> None:
        """Publishes an error, without its details beside a service; logs those that are not shown, once."""
        is_beside = self._open_reader is not None
        if text != self._problem and (is_beside or error is not None):
            log.error("%s", text, exc_info=error)
        self._problem = text
        self._publish(last_error=UNREADABLE if is_beside else text)

    def _reopen(self) -> bool:
        try:
            with self._lock:
                self._close()
                self._open()
        except TurnoutError as error:
            self._publish_error(str(error))
            return False
        self._publish(changed=True)
        return True

    def _step(self) -> bool:
        """Reads some of the new records; returns whether there are more."""
        if isinstance(self.path, Path):
            stat = _stat(self.path)
            if stat is None:
                raise StoreError(f"{self.path} is missing: restore the file, or stop this dashboard")
            if self._inode != stat.st_ino:
                raise StaleError(f"{self.path} was replaced by another file")
        if self._fleet is None and self._store is None:
            raise StaleError(f"{self.path} is not open")
        changes = self._opened.changes
        changed = changes != self._last_changes
        if changed:
            self._changed_at = time.monotonic()
            self._list_runs()
        sources: list[Source] = [self._fleet] if self._fleet is not None else list(self._runs.values())
        has_new_records = changed or self.state.reading is not None
        if has_new_records:
            for source in sources:
                source.read_on(READ_SECONDS)
        self._last_changes = changes  # set after reading, so that a failed read is repeated
        reading = next((source.reading for source in sources if source.reading is not None), None)
        self._publish(changed=has_new_records, reading=reading, last_error=None)
        return reading is not None

    def _open(self) -> None:
        self.kind = "fleet" if self._open_reader is not None or is_fleet(self.path) else "runs"
        self._inode = self.path.stat().st_ino if isinstance(self.path, Path) else None
        self.infos = {}
        if self.kind == "fleet" or not isinstance(self.path, Path):
            open_reader = self._open_reader or partial(FleetReader, self.path)
            self._fleet = FleetSource(open_reader())
        else:
            self._store = RunStore(self.path, read_only=True)
        self._last_changes = self._opened.changes
        self._list_runs()
        self._publish(reading=None if self._fleet is None else self._fleet.reading)

    def _close(self) -> None:
        self._runs.clear()
        with suppress(TurnoutError):
            if self._fleet is not None:
                self._fleet.close()
            if self._store is not None:
                self._store.close()
        self._fleet = self._store = None

    @property
    def _opened(self) -> FleetSource | RunStore:
        opened = self._fleet or self._store
        assert opened is not None
        return opened

    def _list_runs(self) -> None:
        if self._store is None:
            return
        self.infos = {info.id: info for info in self._store.runs()}
        self._promise = None
        for run in [run for run in self._runs if run not in self.infos]:
            del self._runs[run]
        for run, source in self._runs.items():
            source.info = self.infos[run]

    def _publish(self, *, changed: bool = False, **fields: Any) -> None:
        """Updates fields of the state; its version increases if a field differs, or if the data have `changed`."""
        with self._lock:
            live = self._changed_at is not None and time.monotonic() - self._changed_at < LIVE_SECONDS
            state = replace(self.state, live=live, **fields)
            if changed or state != self.state:
                self.state = replace(state, version=state.version + 1)


def _stat(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None
