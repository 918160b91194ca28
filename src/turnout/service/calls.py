"""One thread per fleet that executes all calls, those that arrive together in one transaction."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from turnout.errors import InterruptedGroupError, StoreError, TurnoutError
from turnout.live import FleetReader, Scheduler
from turnout.live._internals import StoredAnswer, session_of
from turnout.log import get_log
from turnout.service.errors import BusyError, ReusedKeyError, StoppingError
from turnout.service.events import EventLog
from turnout.service.holding import LOOK_SECONDS, HeldCheckIns

log = get_log("turnout.service")
#: The most calls that share a transaction, so that the first of them is not answered much later than alone.
MAX_AT_ONCE = 256
#: The most calls that wait for a fleet; further ones are refused at once, before they take memory.
MAX_WAITING = 1000


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call answers.

    Attributes:
        data: The values, for JSON.
        is_change: Whether the call has changed anything, so that a repetition must be answered from memory.
    """

    data: Mapping[str, Any]
    is_change: bool = True


@dataclass(frozen=True, slots=True)
class RequestKey:
    """Identifies a request that may be sent more than once: digests of its key and of its content."""

    key: bytes
    request: bytes


#: A call that runs in the transaction of its group.
GroupedCall = Callable[[Scheduler], Answer]
#: A call that writes transactions of its own, and lets other calls run after each `yield`. The first of them stores the
#: answer, so that the same request is not executed again whatever happens to the later ones.
SteppedCall = Callable[[Scheduler, StoredAnswer | None], Iterator[None]]


@dataclass(slots=True, eq=False)
class _Call:
    run: Callable[..., Any]
    is_stepped: bool
    key: RequestKey | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[str] = field(init=False)
    result: str | Exception = ""

    def __post_init__(self) -> None:
        self.future = self.loop.create_future()


class FleetCalls:
    """Executes calls on a fleet, one after the other, in a thread of its own.

    All calls that wait when the thread is free are executed in one transaction, and are answered after its commit.
    While it is written to disk, the next ones gather. Nothing is answered that is not on disk.

    Args:
        scheduler: The scheduler of the fleet; it is closed by `stop`.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.events = EventLog(scheduler, self.open_reader, lambda: self.version)
        self.held = HeldCheckIns()
        self._waiting: deque[_Call] = deque()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._work, name=f"turnout-{scheduler.path.name}", daemon=True)
        #: Why the last transaction failed; None if it succeeded.
        self.last_error: str | None = None
        #: Increases with every transaction.
        self.version = 0
        #: The number of groups that were executed, and of calls in them.
        self.groups = self.grouped = 0

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Refuses new calls, executes those that wait, and closes the fleet."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join()
        self.events.close()
        self.scheduler.close()

    def open_reader(self) -> FleetReader:
        """Opens a reader for another thread, which reads while calls are executed; the caller closes it."""
        return FleetReader(self.scheduler.path)

    @property
    def is_ready(self) -> bool:
        """Whether calls are executed."""
        return self._thread.is_alive() and not self._is_stopping and self.last_error is None

    @property
    def waiting(self) -> int:
        """The number of calls that wait to be executed."""
        return len(self._waiting)

    async def execute(
        self, run: GroupedCall | SteppedCall, key: RequestKey | None = None, *, is_stepped: bool = False
    ) -> str:
        """Executes a call; returns its answer as JSON: an empty object for one that is stepped.

        Args:
            run: The call.
            key: If the same request was executed with this key before, it is not executed again, and its answer is
                returned.
            is_stepped: Whether it writes several transactions; others run in the next group.

        Raises:
            BusyError: If too many calls are waiting.
            ReusedKeyError: If another request has the same key.
        """
        call = _Call(run, is_stepped, key, asyncio.get_running_loop())
        with self._changed:
            if self._is_stopping:
                raise StoppingError("the service is shutting down: try again soon")
            if len(self._waiting) >= MAX_WAITING:
                raise BusyError(f"{MAX_WAITING:,} calls are waiting already: try again soon")
            self._waiting.append(call)
            self._changed.notify()
        return await call.future

    # In the thread

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_stopping, LOOK_SECONDS if self.held else None)
                if not self._waiting and self._is_stopping:
                    return
            if not self._run_group():
                with self._changed:
                    call = self._waiting.popleft()
                self._run_steps(call)
            self._look()

    def _look(self) -> None:
        """Wakes devices that wait in a call, if something has changed for them."""
        try:
            self.held.look(self.scheduler)
        except Exception as error:  # the next call meets it, too
            self._note(error)

    def _run_group(self) -> bool:
        """Executes the calls that wait in one transaction; returns False if the first of them needs several."""
        calls: list[_Call] = []
        with self._changed:
            while self._waiting and not self._waiting[0].is_stepped and len(calls) < MAX_AT_ONCE:
                calls.append(self._waiting.popleft())
            if not calls:
                return not self._waiting
        try:
            self._commit(calls)
        except InterruptedGroupError:
            for call in calls:
                with suppress(InterruptedGroupError):  # it is the result of the call
                    self._commit([call])
        _answer(calls)
        return True

    def _commit(self, calls: Sequence[_Call]) -> None:
        """Executes calls in one transaction; if it fails, so has each of them.

        Raises:
            InterruptedGroupError: If one of them has failed in such a way that all must be executed again.
        """
        try:
            with self.scheduler.group():
                for call in calls:
                    call.result = self._execute(call)
            self.last_error = None
            self.groups, self.grouped, self.version = self.groups + 1, self.grouped + len(calls), self.version + 1
        except Exception as error:  # nothing of the group is stored, and all its callers must know
            for call in calls:
                call.result = error
            if isinstance(error, InterruptedGroupError):
                raise
            self._note(error)

    def _execute(self, call: _Call) -> str | Exception:
        """Returns the answer of a call, or its error: what it changed is undone then.

        If its answer cannot be stored, an exception undoes the whole group.
        """
        previous = self._stored(call)
        if previous is not None:
            return previous
        try:
            answer = call.run(self.scheduler)
            text = _as_json(answer.data)
        except Exception as error:  # of this call only, whatever it is
            self._note(error)
            return error
        stored = _to_store(call, text)
        if stored is not None and answer.is_change:
            session_of(self.scheduler).store_answer(stored)
        return text

    def _stored(self, call: _Call) -> str | Exception | None:
        """Returns the answer to the same request before; None if there was none."""
        if call.key is None:
            return None
        stored = session_of(self.scheduler).stored_answer(call.key.key)
        if stored is None:
            return None
        if stored.request != call.key.request:
            return ReusedKeyError("the Idempotency-Key was used for another request before: use a new key")
        return stored.answer

    def _run_steps(self, call: _Call) -> None:
        try:
            result = self._stored(call)
            if result is None:
                result = _as_json({})
                for _ in call.run(self.scheduler, _to_store(call, result)):
                    self._run_group()
                    self._look()
            call.result = result
            self.version += 1
        except Exception as error:  # the caller must know
            self._note(error)
            call.result = error
        _answer([call])

    def _note(self, error: Exception) -> None:
        if isinstance(error, StoreError):
            self.last_error = str(error)
            log.error("%s", error)
        elif not isinstance(error, TurnoutError):
            log.error("a call failed", exc_info=error)


def _to_store(call: _Call, text: str) -> StoredAnswer | None:
    """Returns the answer of a call as it is stored; None if the request has no key."""
    return None if call.key is None else StoredAnswer(call.key.key, call.key.request, text, time.time())


def _answer(calls: Sequence[_Call]) -> None:
    """Passes the results to those who wait for them, each in its event loop."""
    for loop in {call.loop for call in calls}:
        try:
            loop.call_soon_threadsafe(_resolve, [call for call in calls if call.loop is loop])
        except RuntimeError:
            if not loop.is_closed():  # the server has ended, and nobody waits
                raise


def _resolve(calls: Sequence[_Call]) -> None:
    for call in calls:
        if call.future.done():  # the caller has gone
            continue
        if isinstance(call.result, Exception):
            call.future.set_exception(call.result)
        else:
            call.future.set_result(call.result)


def _as_json(data: Mapping[str, Any]) -> str:
    """Encodes an answer; ids are not escaped, so that the answers about a forgotten client can be found."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
