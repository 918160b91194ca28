"""Reads the events of a fleet while it is served."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from turnout.errors import OfferError
from turnout.live import FleetEvent, FleetReader, Scheduler
from turnout.live._internals import StaleError
from turnout.service.errors import BusyError

#: How many events are read at a time.
BATCH = 100
#: The most streams of a fleet at the same time.
MAX_STREAMS = 100


class EventLog:
    """Reads the events of a fleet for all its streams, with one connection of their own.

    Args:
        scheduler: The scheduler of the fleet.
        open_reader: Opens a reader of the fleet.
    """

    def __init__(self, scheduler: Scheduler, open_reader: Callable[[], FleetReader]) -> None:
        self._scheduler, self._open_reader = scheduler, open_reader
        self._reader: FleetReader | None = None
        self._mutex = threading.Lock()
        self._streams = 0

    def begin(self, after: int | None) -> int:
        """Returns the event after which a stream begins; by default the newest, or 0 before the first.

        Raises:
            OfferError: If there is no event `after`.
            StaleError: If the next events are no longer kept.
            BusyError: If there are as many streams as there may be.
        """
        with self._mutex:
            newest, first = self._open().last_event, self._open().summary().event
        after = newest if after is None else after
        if after > newest:
            raise OfferError(f"there is no event {after:,} yet: the newest has number {newest:,}")
        if after < first:
            raise _stale(after, first)
        if self._streams >= MAX_STREAMS:
            raise BusyError(f"there are {MAX_STREAMS} streams of this fleet already: try again soon")
        return after

    def after(self, last: int) -> list[FleetEvent]:
        """Returns the next events after event `last`, a batch at most."""
        with self._mutex:
            reader = self._open()
            with reader.reading():
                if reader.summary().event > last:
                    raise _stale(last, reader.summary().event)
                return list(islice(reader.events(last), BATCH))

    def state(self) -> dict[str, Any]:
        """Returns what changes between the events: the reports of the open round, or the running turns."""
        scheduler = self._scheduler
        if not scheduler.settings.has_rounds:
            return {"running": len(scheduler.running()), "slots": scheduler.settings.concurrency}
        opened = scheduler.open_round
        if opened is None:
            return {"round": scheduler.round, "is_open": False, "ready": False, "arrived": 0, "target_size": 0}
        arrived = sum(turn.kind == "arrived" for turn in scheduler.history(round=opened.round))
        return {
            "round": opened.round,
            "is_open": True,
            "ready": scheduler.ready,
            "arrived": arrived,
            "target_size": int(opened.target_size),
        }

    def close(self) -> None:
        """Closes the connection."""
        with self._mutex:
            if self._reader is not None:
                self._reader.close()
            self._reader = None

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Counts a stream while the block runs."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    def _open(self) -> FleetReader:
        if self._reader is None:
            self._reader = self._open_reader()
        return self._reader


def _stale(after: int, first: int) -> StaleError:
    return StaleError(f"the events from {after + 1:,} to {first:,} are no longer kept: begin after event {first:,}")
