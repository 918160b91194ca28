"""The events of a fleet as a stream of server-sent events, which clients can resume where it broke off."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import islice
from typing import Any

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from turnout.errors import StoreError
from turnout.live import FleetEvent, FleetReader
from turnout.live._internals import StaleError
from turnout.service.errors import BusyError, FutureEventError, code_of
from turnout.service.fleet import FleetFile, OccupiedError
from turnout.web.guard import caller_of, is_still_allowed

STREAM = "text/event-stream"

#: The kinds of events that have a number of their own.
EVENT_KINDS = ("joined", "retired", "forgotten", "amended", "closed", "filled")
#: How many events are read at a time.
BATCH = 100
#: The most streams of a fleet at the same time, and of one token.
MAX_STREAMS, MAX_OWN_STREAMS = 100, 20
#: After how many seconds a stream ends: the caller opens it again.
STREAM_SECONDS = 600.0
#: After how many seconds without an event a comment is sent, so that proxies keep the connection open.
KEEPALIVE_SECONDS = 15.0
#: How often a stream looks for changes, and how often for deadlines that have passed, in seconds.
POLL_SECONDS, DEADLINE_SECONDS = 0.1, 1.0


class EventStream(StreamingResponse):
    """A stream of server-sent events.

    Args:
        texts: The events.
        release: Called when the stream has ended, even if it never began.
    """

    def __init__(self, texts: AsyncIterator[str], release: Callable[[], None]) -> None:
        super().__init__(texts, media_type=STREAM)
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events until the caller leaves."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()


class EventLog:
    """Reads the events of a fleet for all its streams, with one connection of their own.

    Args:
        file: The file of the fleet.
        version: Returns a number that increases with every transaction.
    """

    def __init__(self, file: FleetFile, version: Callable[[], int]) -> None:
        self._file, self._version = file, version
        self._reader: FleetReader | None = None
        self._mutex = threading.Lock()
        self._streams: Counter[str] = Counter()  # of each token

    async def respond(self, request: Request, after: int | None, *, follow: bool) -> EventStream:
        """Returns the stream of events after event `after`, by default from now on.

        It ends when the service does, and when the token of the caller no longer gives access.

        Raises:
            BusyError: If there are as many streams as there may be.
        """
        caller = caller_of(request.scope)
        token = "" if caller is None else caller.token
        release = self._count(token)
        try:
            begin = await self._file.read(partial(self.begin, after), in_turn=False)
        except BaseException:
            release()
            raise
        texts = self.stream(
            begin,
            follow=follow,
            is_ending=request.app.state.ending.is_set,
            is_allowed=partial(is_still_allowed, request.scope),
        )
        return EventStream(texts, release)

    def _count(self, token: str) -> Callable[[], None]:
        """Counts a stream of a token, in the event loop; returns what releases it."""
        if self._streams.total() >= MAX_STREAMS:
            raise BusyError(f"there are {MAX_STREAMS} streams of this fleet already: try again soon")
        if token and self._streams[token] >= MAX_OWN_STREAMS:
            raise BusyError(f"there are {MAX_OWN_STREAMS} streams of this token already: end one of them")
        self._streams[token] += 1

        def release() -> None:
            self._streams[token] -= 1
            self._streams += Counter()  # forgets tokens without a stream

        return release

    def begin(self, after: int | None) -> int:
        """Returns the event after which a stream begins; by default the newest, or 0 before the first.

        Raises:
            FutureEventError: If there is no event `after` yet.
            StaleError: If the next events are no longer kept.
        """
        with self._mutex:
            newest, first = self._open().last_event, self._open().summary().event
        after = newest if after is None else after
        if after > newest:
            raise FutureEventError(f"there is no event {after:,}: begin after the newest, {newest:,}")
        if after < first:
            raise _stale(after, first)
        return after

    async def stream(
        self, after: int, *, follow: bool, is_ending: Callable[[], bool], is_allowed: Callable[[], bool]
    ) -> AsyncIterator[str]:
        """Yields the events after event `after` in the format of server-sent events.

        Between them, an event "state" comes whenever the state differs from the one that was sent last; it has the
        number of the event before it, so that the stream can be resumed there. If the next events are no longer kept,
        or the file cannot be read, an event "stale" or "unreadable" is the last.

        Args:
            after: The number of the last event that the caller has.
            follow: Whether to wait for further events.
            is_ending: Returns whether the service is shutting down.
            is_allowed: Returns whether the caller may still read.
        """
        began = sent_at = time.monotonic()
        state: dict[str, Any] | None = None
        try:
            while is_allowed():
                version = self._version()
                events = await self._file.read(partial(self.after, after), in_turn=False)
                for event in events:
                    yield _encode(event.kind, event.to_dict(), event.number)
                    after, sent_at = event.number, time.monotonic()
                if len(events) == BATCH:
                    continue
                present = await self._present_state() or state
                if present is not None and present != state:
                    state, sent_at = present, time.monotonic()
                    yield _encode("state", present, after)
                if not follow:
                    return
                if not await self._changed(version, is_ending) or time.monotonic() - began > STREAM_SECONDS:
                    return
                if time.monotonic() - sent_at > KEEPALIVE_SECONDS:
                    sent_at = time.monotonic()
                    yield ": still there\n\n"
        except StoreError as error:
            kind = "stale" if isinstance(error, StaleError) else "unreadable"
            yield _encode(kind, {"code": code_of(error), "detail": str(error)})

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
        scheduler = self._file.scheduler
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

    async def _present_state(self) -> dict[str, Any] | None:
        """Returns the state; None if the fleet is occupied, and it must be sent later."""
        try:
            return await self._file.read(self.state)
        except (OccupiedError, BusyError):
            return None

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
            self._reader = self._file.open_reader()
        return self._reader


def _stale(after: int, first: int) -> StaleError:
    return StaleError(f"the events from {after + 1:,} to {first:,} are no longer kept: begin after event {first:,}")


def _encode(kind: str, data: dict[str, Any], identifier: int | None = None) -> str:
    head = "" if identifier is None else f"id: {identifier}\n"
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"{head}event: {kind}\ndata: {text}\n\n"
