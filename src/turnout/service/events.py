"""The events of a fleet as a stream of server-sent events, which clients can resume where it broke off."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool

from turnout.errors import StoreError
from turnout.live._internals import StaleError
from turnout.service.calls import FleetCalls
from turnout.service.eventlog import BATCH

#: The kinds of events that have a number of their own.
EVENT_KINDS = ("joined", "retired", "forgotten", "amended", "closed", "filled")
#: After how many seconds a stream ends: the caller opens it again, with a token that is checked then.
STREAM_SECONDS = 600.0
#: After how many seconds without an event a comment is sent, so that proxies keep the connection open.
KEEPALIVE_SECONDS = 15.0
#: How often a stream looks for changes, and how often for deadlines that have passed, in seconds.
POLL_SECONDS, DEADLINE_SECONDS = 0.1, 1.0


async def stream(calls: FleetCalls, after: int, *, follow: bool, is_ending: Callable[[], bool]) -> AsyncIterator[str]:
    """Yields the events after event `after` in the format of server-sent events.

    Between them, an event "state" comes whenever the state differs from the one that was sent last; it has the number
    of the event before it, so that the stream can be resumed there. If the next events are no longer kept, or the file
    cannot be read, an event "stale" or "unreadable" is the last.

    Args:
        calls: The fleet.
        after: The number of the last event that the caller has.
        follow: Whether to wait for further events.
        is_ending: Returns whether the service is shutting down.
    """
    try:
        with calls.events.streaming():
            async for text in _texts(calls, after, follow=follow, is_ending=is_ending):
                yield text
    except StaleError as error:
        yield _encode("stale", {"error": str(error)})
    except StoreError as error:
        yield _encode("unreadable", {"error": str(error)})


async def _texts(calls: FleetCalls, after: int, *, follow: bool, is_ending: Callable[[], bool]) -> AsyncIterator[str]:
    began = sent_at = time.monotonic()
    state: dict[str, Any] | None = None
    while True:
        version = calls.version
        events = await run_in_threadpool(calls.events.after, after)
        for event in events:
            yield _encode(event.kind, event.to_dict(), event.number)
            after, sent_at = event.number, time.monotonic()
        if len(events) == BATCH:
            continue
        present = await run_in_threadpool(calls.events.state)
        if present != state:
            state, sent_at = present, time.monotonic()
            yield _encode("state", present, after)
        if not follow:
            return
        if not await _changed(calls, version, is_ending) or time.monotonic() - began > STREAM_SECONDS:
            return
        if time.monotonic() - sent_at > KEEPALIVE_SECONDS:
            sent_at = time.monotonic()
            yield ": still there\n\n"


async def _changed(calls: FleetCalls, version: int, is_ending: Callable[[], bool]) -> bool:
    """Waits for a change, or until a deadline may have passed; returns False if the service is shutting down."""
    until = time.monotonic() + DEADLINE_SECONDS
    while calls.version == version and time.monotonic() < until:
        if is_ending():
            return False
        await asyncio.sleep(POLL_SECONDS)
    return not is_ending()


def _encode(kind: str, data: dict[str, Any], identifier: int | None = None) -> str:
    head = "" if identifier is None else f"id: {identifier}\n"
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"{head}event: {kind}\ndata: {text}\n\n"
