"""Follows a store in a thread of its own, and says whenever something has changed."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.digests import Digest, Digests, yardstick_of
from turnout.dashboard.sources.fleet import FleetSource
from turnout.dashboard.sources.run import RunSource, name_of
from turnout.errors import ReportError, StoreError, TurnoutError
from turnout.scheduler import StaleError, is_fleet
from turnout.store import RunInfo, RunStore
from turnout.store.lock import Writer, lock_line

log = logging.getLogger("turnout.dashboard")
EVERY = 0.5  # seconds between two looks at a file that does not change
SLICE = 0.1  # seconds of reading at a time, so that pages are served meanwhile
AT_ONCE = 0.3  # seconds a page waits for a run that nobody has looked at yet
KEPT = 4  # runs in memory
LIVE_SECONDS = 30.0
RUNS_TOLD = 500


@dataclass(frozen=True, slots=True)
class WatchState:
    """What the stream of changes reports. Two states of one watch with the same version are equal.

    `reading`: how much of a source has been read, and of how much; None if every open source has been read to its end.
    `live`: the file was written less than LIVE_SECONDS ago.
    """

    version: int = 1
    reading: tuple[int, int] | None = None
    trouble: str | None = None
    live: bool = False


class Watch:
    """One file. Sources are looked at under a lock; `version` rises with every change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.kind = ""
        self.rounds_read, self.seconds_read, self.last_ms = 0, 0.0, 0.0
        self.begun = time.monotonic()
        self.infos: dict[int, RunInfo] = {}
        self._lock = threading.RLock()
        self._state = WatchState()
        self._seen: Any = None
        self._inode: int | None = None
        self._moved_at: float | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._fleet: FleetSource | None = None
        self._store: RunStore | None = None
        self._digests = Digests()
        self._runs: OrderedDict[int, RunSource] = OrderedDict()
        self._open()

    @property
    def state(self) -> WatchState:
        """The current state, as one immutable value; reading it never waits for the lock."""
        return self._state

    @property
    def version(self) -> int:
        """Rises with every change."""
        return self._state.version

    @property
    def reading(self) -> tuple[int, int] | None:
        """How much of the first unfinished source has been read, and of how much; None if everything has been read."""
        return self._state.reading

    @property
    def trouble(self) -> str | None:
        """Why the file cannot be followed at the moment."""
        return self._state.trouble

    @property
    def live(self) -> bool:
        """Whether the file was written less than LIVE_SECONDS ago."""
        return self._state.live

    def start(self) -> None:
        """Begin to follow."""
        self._thread = threading.Thread(target=self._follow, name="turnout-dashboard", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Say nothing more; whoever listens for changes may go."""
        self._stop.set()

    def stop(self) -> None:
        """End the thread and let go of the file."""
        self.end()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            self._shut()

    @property
    def stopped(self) -> bool:
        """Whether nothing more will be said."""
        return self._stop.is_set()

    @contextmanager
    def looking(self, run: int | None = None) -> Iterator[Source | None]:
        """The fleet, or a run, by default the newest; None where there is none yet. Nobody reads on meanwhile."""
        with self._lock:
            if self.kind == "fleet":
                if self._fleet is None:
                    raise StoreError(self.trouble or f"{self.path} cannot be read")
                yield self._fleet
            else:
                yield self._run(run)

    def runs(self) -> list[RunInfo]:
        """All runs, newest first."""
        with self._lock:
            return list(reversed(self.infos.values()))

    def random_rounds(self, source: Source) -> tuple[float, int] | None:
        """The mean round of random choice in the same world over as many rounds, and of how many runs; if any is there.

        With the same seed, if there is such a run.
        """
        if self._store is None or source.run is None:
            return None
        own, rounds = self.infos[source.run], len(source.ledger)
        alike = [
            one
            for one in self.infos.values()
            if one.plan.get("policy") == "random"
            and one.rounds >= rounds
            and all(one.plan.get(word) == own.plan.get(word) for word in ("world", "world_settings"))
            and one.clients == own.clients
        ]
        twins = [one for one in alike if one.plan.get("seed") == own.plan.get("seed")]
        means = [float(self.digest(one).seconds[:rounds].mean()) for one in twins or alike[:KEPT]]
        return (sum(means) / len(means), len(means)) if means else None

    @property
    def reference_rate(self) -> float | None:
        """The rate that most runs promise."""
        return yardstick_of(self.infos.values())

    def digest(self, info: RunInfo) -> Digest:
        """A run in a few numbers."""
        assert self._store is not None
        return self._digests.of(self._store, info, self.reference_rate)

    def told(self) -> dict[str, Any]:
        """What is there, in words."""
        runs, state = self.runs(), self.state
        return {
            "version": state.version,
            "kind": self.kind,
            "name": self.path.name,
            "live": state.live,
            "trouble": state.trouble,
            "runs_total": len(runs),
            "runs": [
                {
                    "id": one.id,
                    "name": name_of(one),
                    "policy": str(one.plan.get("policy", "")),
                    "seed": _whole(one.plan.get("seed")),
                    "world": str(one.plan.get("world", "")),
                    "rounds": one.rounds,
                    "planned": _whole(one.plan.get("rounds")),
                    "clients": one.clients,
                    "finished": one.finished,
                    "started": one.started,
                }
                for one in runs[:RUNS_TOLD]
            ],
        }

    @property
    def writer(self) -> str | None:
        """Who holds the file to write, if anybody does; without asking for the lock, which could keep a writer out."""
        try:
            holder = lock_line(self.path)
        except (OSError, UnicodeDecodeError):
            return None
        writer = Writer.parse(holder)
        if writer is not None and writer.is_dead:  # killed before it could empty the lock file
            return None
        return holder or None

    def sizes(self) -> dict[str, Any]:
        """Bytes of the file and of its log, and when it was last written to."""
        file, wal = (_stat(one) for one in (self.path, self.path.with_name(f"{self.path.name}-wal")))
        newest = max((one.st_mtime for one in (file, wal) if one is not None), default=None)
        return {
            "bytes": None if file is None else file.st_size,
            "log_bytes": 0 if wal is None else wal.st_size,
            "changed": None if newest is None else datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds"),
        }

    def _run(self, run: int | None) -> RunSource | None:
        if self._store is None:
            raise StoreError(self.trouble or f"{self.path} cannot be read")
        if run is None:
            if not self.infos:
                return None
            run = max(self.infos)
        if run not in self.infos:
            raise ReportError(f"there is no run {run} in {self.path.name}: choose one of the list")
        source = self._runs.get(run)
        if source is None:
            source = RunSource(self._store, self.infos[run])
            self._read(source, AT_ONCE)
            self._runs[run] = source
            while len(self._runs) > KEPT:
                self._runs.popitem(last=False)
            if source.reading is not None:
                self._publish(changed=True, reading=source.reading)
        self._runs.move_to_end(run)
        return source

    def _follow(self) -> None:
        while not self._stop.is_set():
            more = self.look()
            self._stop.wait(0.01 if more else EVERY)

    def look(self) -> bool:
        """Read what is new, for about SLICE seconds, and publish the new state.

        Returns whether there is more to read. Raises nothing: an error becomes `trouble`, which the pages show.
        """
        try:
            with self._lock:
                return self._step()
        except StaleError:
            return self._try_again()
        except TurnoutError as refused:
            self._publish(trouble=str(refused))
        except Exception as odd:  # whatever it is: pages must not go on as if all were well
            words = f"{self.path} cannot be followed any more ({type(odd).__name__}: {odd})"
            if words != self.trouble:
                log.error("%s", self.path, exc_info=odd)
            self._publish(trouble=words)
        return False

    def _try_again(self) -> bool:
        try:
            with self._lock:
                self._shut()
                self._open()
        except TurnoutError as refused:
            self._publish(trouble=str(refused))
            return False
        self._publish(changed=True)
        return True

    def _step(self) -> bool:
        """Look for what is new and read some of it; whether there is more."""
        found = _stat(self.path)
        if found is None:
            raise StoreError(f"{self.path} is gone: bring it back, or end this dashboard")
        if self._inode != found.st_ino:
            raise StaleError(f"{self.path} is another file now")
        if self._fleet is None and self._store is None:
            raise StaleError(f"{self.path} is not open")
        changes = self._changes_now()
        moved = changes != self._seen
        if moved:
            self._moved_at = time.monotonic()
            self._list_runs()
        sources: list[Source] = [self._fleet] if self._fleet is not None else list(self._runs.values())
        unfinished = moved or self.reading is not None
        if unfinished:
            for source in sources:
                self._read(source, SLICE)
        self._seen = changes  # only now: what could not be read is tried again
        reading = next((source.reading for source in sources if source.reading is not None), None)
        self._publish(changed=unfinished, reading=reading, trouble=None)
        return reading is not None

    def _read(self, source: Source, seconds: float) -> None:
        before, begun = len(source.ledger), time.monotonic()
        source.catch_up(seconds)
        took = time.monotonic() - begun
        if (fresh := len(source.ledger) - before) > 0:
            self.rounds_read += fresh
            self.seconds_read += took
            self.last_ms = 1e3 * took

    def _open(self) -> None:
        self.kind = "fleet" if is_fleet(self.path) else "runs"
        self._inode = self.path.stat().st_ino
        self.infos = {}
        if self.kind == "fleet":
            self._fleet = FleetSource(self.path)
        else:
            self._store = RunStore(self.path, read_only=True)
        self._seen = self._changes_now()
        self._list_runs()
        self._publish(reading=None if self._fleet is None else self._fleet.reading)

    def _shut(self) -> None:
        self._runs.clear()
        with suppress(TurnoutError):
            if self._fleet is not None:
                self._fleet.close()
            if self._store is not None:
                self._store.close()
        self._fleet = self._store = None

    def _changes_now(self) -> Any:
        if self._fleet is not None:
            return self._fleet.changes
        assert self._store is not None
        return self._store.changes

    def _list_runs(self) -> None:
        if self._store is None:
            return
        self.infos = {one.id: one for one in self._store.runs()}
        for run in [run for run in self._runs if run not in self.infos]:
            del self._runs[run]
        for run, source in self._runs.items():
            source.info = self.infos[run]

    def _publish(self, *, changed: bool = False, **news: Any) -> None:
        """Replace the state by one with these `news`; its version rises if it differs, or if the data have changed."""
        with self._lock:
            live = self._moved_at is not None and time.monotonic() - self._moved_at < LIVE_SECONDS
            state = replace(self._state, live=live, **news)
            if changed or state != self._state:
                self._state = replace(state, version=state.version + 1)


def _stat(file: Path) -> os.stat_result | None:
    try:
        return file.stat()
    except OSError:
        return None


def _whole(told: Any) -> int | None:
    """A plan may say anything."""
    return told if isinstance(told, int) else None
