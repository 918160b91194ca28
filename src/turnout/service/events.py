"""The events of a fleet as a stream of server-sent events, which clients can resume where it broke off."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from itertools import islice
from typing import Any

from starlette.concurrency import run_in_threadpool

from turnout.errors import StoreError
from turnout.live import FleetEvent, FleetReader, Scheduler
from turnout.live._internals import StaleError
from turnout.service.errors import BusyError, FutureEventError, code_of

#: The kinds of events that have a number of their own.
EVENT_KINDS = ("joined", "retired", "forgotten", "amended", "closed", "filled")
#: How many events are read at a time.
BATCH = 100
#: The most streams of a fleet at the same time.
MAX_STREAMS = 100
#: After how many seconds a stream ends: the caller opens it again, with a token that is checked then.
STREAM_SECONDS = 600.0
#: After how many seconds without an event a comment is sent, so that proxies keep the connection open.
KEEPALIVE_SECONDS = 15.0
#: How often a stream looks for changes, and how often for deadlines that have passed, in seconds.
POLL_SECONDS, DEADLINE_SECONDS = 0.1, 1.0


class EventLog:
    """Reads the events of a fleet for all its streams, with one connection of their own.

    Args:
        scheduler: The scheduler of the fleet.
        open_reader: Opens a reader of the fleet.
        version: Returns a number that increases with every transaction.
    """

    def __init__(
        self, scheduler: Scheduler, open_reader: Callable[[], FleetReader], version: Callable[[], int]
    ) -> None:
        self._scheduler, self._open_reader, self._version = scheduler, open_reader, version
        self._reader: FleetReader | None = None
        self._mutex = threading.Lock()
        self._streams = 0

    def begin(self, after: int | None) -> int:
        """Returns the event after which a stream begins; by default the newest, or 0 before the first.

        Raises:
            FutureEventError: If there is no event `after` yet.
            StaleError: If the next events are no longer kept.
            BusyError: If there are as many streams as there may be.
        """
        with self._mutex:
            newest, first = self._open().last_event, self._open().summary().event
        after = newest if after is None else after
        if after > newest:
            raise FutureEventError(f"there is no event {after:,}: begin after the newest, {newest:,}")
        if after < first:
            raise _stale(after, first)
        if self._streams >= MAX_STREAMS:
            raise BusyError(f"there are {MAX_STREAMS} streams of this fleet already: try again soon")
        return after

    async def stream(self, after: int, *, follow: bool, is_ending: Callable[[], bool]) -> AsyncIterator[str]:
        """Yields the events after event `after` in the format of server-sent events.

        Between them, an event "state" comes whenever the state differs from the one that was sent last; it has the
        number of the event before it, so that the stream can be resumed there. If the next events are no longer kept,
        or the file cannot be read, an event "stale" or "unreadable" is the last.

        Args:
            after: The number of the last event that the caller has.
            follow: Whether to wait for further events.
            is_ending: Returns whether the service is shutting down.
        """
        self._streams += 1
        try:
            async for text in self._texts(after, follow=follow, is_ending=is_ending):
                yield text
        except StaleError as error:
            yield _encode("stale", {"code": code_of(error), "detail": str(error)})
        except StoreError as error:
            yield _encode("unreadable", {"code": code_of(error), "detail": str(error)})
        finally:
            self._streams -= 1

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

    async def _texts(self, after: int, *, follow: bool, is_ending: Callable[[], bool]) -> AsyncIterator[str]:
        began = sent_at = time.monotonic()
        state: dict[str, Any] | None = None
        while True:
            version = self._version()
            events = await run_in_threadpool(self.after, after)
            for event in events:
                yield _encode(event.kind, event.to_dict(), event.number)
                after, sent_at = event.number, time.monotonic()
            if len(events) == BATCH:
                continue
            present = await run_in_threadpool(self.state)
            if present != state:
                state, sent_at = present, time.monotonic()
                yield _encode("state", present, after)
            if not follow:
                return
            if not await self._changed(version, is_ending) or time.monotonic() - began > STREAM_SECONDS:
                return
            if time.monotonic() - sent_at > KEEPALIVE_SECONDS:
                sent_at = time.monotonic()
                yield ": still there\n\n"

    async def _changed(self, version: int, is_ending: Callable[[], bool]) -> bool:
        """Waits for a change, or until a deadline may have passed; returns False if the service is shutting down."""
        until = time.monotonic() + DEADLINE_SECONDS
        while self._version() == version and time.monotonic() < until:
            if is_ending():
                return False
            await asyncio.sleep(POLL_SECONDS)
        return not is_ending()

    def _open(self) -> FleetReader:
        if self._reader is None:
            self._reader = self._open_reader()
        return self._reader


def _stale(after: int, first: int) -> StaleError:
    return StaleError(f"the events from {after + 1:,} to {first:,} are no longer kept: begin after event {first:,}")


def _encode(kind: str, data: dict[str, Any], identifier: int | None = None) -> str:
    head = "" if identifier is None else f"id: {identifier}\n"
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"{head}event: {kind}\ndata: {text}\n\n"
