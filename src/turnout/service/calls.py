"""One thread per fleet that executes all calls, those that arrive together in one transaction."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Any

from turnout.errors import InterruptedCallError, InterruptedGroupError, OtherWriterError, StoreError, TurnoutError
from turnout.live import Scheduler
from turnout.live._internals import StoredAnswer, session_of
from turnout.log import get_log
from turnout.service.errors import BusyError, ReusedKeyError, StandbyError, StoppingError
from turnout.service.events import EventLog
from turnout.service.fleet import STANDBY, UNOPENED, UNSTORED, FleetFile, UnavailableError
from turnout.service.holding import LOOK_SECONDS, HeldCheckIns
from turnout.storage.address import DatabaseAddress

log = get_log("turnout.service")
STOPPING = "the service is shutting down"
#: The most calls that share a transaction, so that the first of them is not answered much later than alone.
MAX_AT_ONCE = 256
#: The most calls that wait for a fleet; further ones are refused at once, before they take memory.
MAX_WAITING = 1000
#: The shortest and the longest pause before a file that could not be opened is tried again, in seconds.
OPEN_SECONDS, MAX_OPEN_SECONDS = 1.0, 30.0
#: The pause between two attempts of a standby to take over; each waits until the lease is renewed or expires.
STANDBY_SECONDS = 0.25
#: How often it is tried whether changes can be stored, and how long those who ask wait for it, in seconds.
PROBE_SECONDS, PROBE_WAIT_SECONDS = 2.0, 0.5


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call answers.

    Attributes:
        data: The values, for JSON.
        is_change: Whether the call has changed anything, so that a repetition must be answered from memory.
    """

    data: Mapping[str, Any]
    is_change: bool = True

    @property
    def text(self) -> str:
        """The values as JSON; ids are not escaped, so that the answers about a forgotten client can be found."""
        return json.dumps(self.data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class RequestKey:
    """Identifies a request that may be sent more than once: digests of its key and of its content."""

    key: bytes
    request: bytes


GroupedCall = Callable[[Scheduler], Answer]  # runs in the transaction of its group
#: A call that writes transactions of its own, and lets other calls run after each `yield` of its answer so far, which
#: each transaction that changes it stores, so that a request is executed once. None stands for an empty object.
SteppedCall = Callable[[Scheduler, StoredAnswer | None], Iterator[str | None]]
AnyCall = GroupedCall | SteppedCall


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

    Args:
        file: The fleet, which `stop` closes. If it is not open, the thread opens it as soon as it can.
    """

    def __init__(self, file: FleetFile) -> None:
        self.file = file
        self.events = EventLog(file, lambda: self.version)
        self.held = HeldCheckIns()
        self._waiting: deque[_Call] = deque()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._work, name=f"turnout-{file.location.name}", daemon=True)
        self._probe: asyncio.Future[None] | None = None
        self._next_probe = 0.0
        self._replaced: OtherWriterError | None = None  # once another process has taken over the fleet
        self._has_lost_commits = False  # the database: a person must decide
        #: Why the last transaction failed; None if it succeeded.
        self.last_error: str | None = None
        #: A number that increases with every transaction, the groups that were executed, and the calls in them.
        self.version = self.groups = self.grouped = 0

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
        self.file.close()

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the fleet; raises UnavailableError if its file is not open."""
        return self.file.scheduler

    @property
    def problem(self) -> str | None:
        """Why calls cannot be executed, for callers; None if they can."""
        if self._is_stopping or not self._thread.is_alive():
            return STOPPING
        if not self.file.is_open:
            return STANDBY if self.file.is_standby else UNOPENED
        return self.file.problem if self.last_error is None else UNSTORED

    async def probe(self) -> str | None:
        """Tries whether changes can be stored now; returns why not, and None if they can.

        After a failure, a transaction is written; otherwise one is only begun, so that an idle file is not written.
        This is done every PROBE_SECONDS at most. While it is not done, the answer is what was known before.
        """
        now = time.monotonic()
        if self.file.is_open and now >= self._next_probe and (self._probe is None or self._probe.done()):
            self._next_probe = now + PROBE_SECONDS
            self._probe = asyncio.ensure_future(self._try_to_store())
        if self._probe is not None:
            await asyncio.wait([self._probe], timeout=PROBE_WAIT_SECONDS)
        return self.problem

    async def _try_to_store(self) -> None:
        with suppress(TurnoutError):  # it is noted
            await self.execute(_begin if self.last_error is None else _write, is_stepped=True)

    @property
    def waiting(self) -> int:
        """The number of calls that wait to be executed."""
        return len(self._waiting)

    async def execute(self, run: AnyCall, key: RequestKey | None = None, *, is_stepped: bool = False) -> str:
        """Executes a call; returns its answer as JSON.

        Args:
            run: The call.
            key: If the same request was executed with this key before, its answer is returned.
            is_stepped: Whether it writes several transactions; others run in the next group.

        Raises:
            BusyError: If too many calls are waiting.
            ReusedKeyError: If another request has the same key.
        """
        call = _Call(run, is_stepped, key, asyncio.get_running_loop())
        with self._changed:
            if self._is_stopping:
                raise StoppingError(f"{STOPPING}: try again soon")
            self.file.scheduler  # noqa: B018  # raises the error of a fleet that is not open
            if len(self._waiting) >= MAX_WAITING:
                raise BusyError(f"{MAX_WAITING:,} calls are waiting already: try again soon")
            self._waiting.append(call)
            self._changed.notify()
        return await call.future

    # In the thread

    def _work(self) -> None:
        is_database = isinstance(self.file.location, DatabaseAddress)
        while self._open():
            with self._changed:
                pause = LOOK_SECONDS if self.held or is_database else None
                self._changed.wait_for(lambda: self._waiting or self._is_stopping or self._replaced, pause)
                if not self._waiting and self._is_stopping:
                    return
            if self.file.is_replaced and not self._has_lost_commits:
                self._check_writer()
            if self._replaced is not None:
                self._stand_by(self._replaced)
            elif not self._run_group():
                with self._changed:
                    call = self._waiting.popleft()
                self._run_steps(call)
            self._look()

    def _open(self) -> bool:
        """Opens the fleet as soon as that is possible; returns False if the service is shutting down before."""
        pause = OPEN_SECONDS
        while not self.file.is_open:
            with self._changed:
                is_standby = self.file.is_standby
                if self._changed.wait_for(lambda: self._is_stopping, STANDBY_SECONDS if is_standby else pause):
                    return False
            self.file.open()
            pause = OPEN_SECONDS if is_standby else min(2 * pause, MAX_OPEN_SECONDS)
        return True

    def _check_writer(self) -> None:
        """Notes whether another process has taken over the fleet, or the database has lost commits."""
        try:
            with self.scheduler.group():
                pass
        except Exception as error:
            self._note(error)

    def _stand_by(self, error: OtherWriterError) -> None:
        """Closes the fleet, which another process has taken over; those who wait are told to ask that one."""
        self.file.stand_by(error)
        self._replaced = self.last_error = None
        with self._changed:
            calls = list(self._waiting)
            self._waiting.clear()
        for call in calls:
            call.result = StandbyError(STANDBY)
        _answer(calls)

    def _look(self) -> None:
        """Wakes devices that wait in a call, if something has changed for them."""
        try:
            if self.file.is_open:
                self.held.look(self.scheduler)
        except Exception as error:  # the next call meets it, too
            self._note(error)

    def _run_group(self, select: Callable[..., Iterable[_Call]] = takewhile) -> bool:
        """Executes the calls that wait in one transaction; returns False if the first of them needs several.

        Args:
            select: `takewhile` for the calls before the first of several transactions, `filter` for those behind too.
        """
        with self._changed:
            calls = list(islice(select(lambda call: not call.is_stepped, self._waiting), MAX_AT_ONCE))
            for call in calls:
                self._waiting.remove(call)
            if not calls:
                return not self._waiting
        try:
            self._commit(calls)
        except InterruptedCallError:
            self._repeat(calls)
        _answer(calls)
        return True

    def _repeat(self, calls: Sequence[_Call]) -> None:
        """Executes each call of a group by itself, of which nothing was stored."""
        for number, call in enumerate(calls):
            try:
                self._commit([call])
            except InterruptedCallError as error:  # it is the result of the call
                if not isinstance(error, InterruptedGroupError):  # the others need not wait for the database, too
                    self.last_error = str(error)
                    for other in calls[number:]:
                        other.result = call.result
                    return

    def _commit(self, calls: Sequence[_Call]) -> None:
        """Executes calls in one transaction; if it fails, so has each of them.

        Raises:
            InterruptedCallError: If nothing was stored, and each must be executed again by itself.
        """
        try:
            with self._noting_success(), self.scheduler.group():
                for call in calls:
                    call.result = self._execute(call)
            self.groups, self.grouped, self.version = self.groups + 1, self.grouped + len(calls), self.version + 1
        except Exception as error:  # nothing of the group is stored, and all its callers must know
            told = self._note(error)
            for call in calls:
                call.result = told
            if isinstance(error, InterruptedCallError):
                raise

    def _execute(self, call: _Call) -> str | Exception:
        """Returns the answer of a call, or its error: what it changed is undone then.

        If its answer cannot be stored, an exception undoes the whole group.
        """
        previous = self._stored(call)
        if previous is not None:
            return previous
        try:
            answer = call.run(self.scheduler)
            text: str = answer.text
        except InterruptedCallError:
            raise  # nothing of the group can be stored
        except Exception as error:  # of this call only, whatever it is
            return self._note(error)
        if answer.is_change and (stored := _to_store(call, text)) is not None:
            session_of(self.scheduler).store_answer(stored)
        return text

    def _stored(self, call: _Call) -> str | Exception | None:
        """Returns the answer to the same request before; None if there was none."""
        stored = None if call.key is None else session_of(self.scheduler).stored_answer(call.key.key)
        if call.key is None or stored is None:
            return None
        if stored.request != call.key.request:
            return ReusedKeyError("the Idempotency-Key was used for another request before: use a new key")
        return stored.answer

    def _run_steps(self, call: _Call) -> None:
        try:
            result = self._stored(call)
            if result is None:
                result = Answer({}).text
                with self._noting_success():
                    for answer in call.run(self.scheduler, _to_store(call, result)):
                        result = answer or result
                        self._run_group(filter)
                        self._look()
            call.result = result
            self.version += 1
        except Exception as error:  # the caller must know
            call.result = self._note(error)
        _answer([call])

    @contextmanager
    def _noting_success(self) -> Iterator[None]:
        """Notes that changes can be stored if the block has stored any: calls without a change prove nothing."""
        before = self.file.committed
        yield
        if self.file.committed != before:
            self.last_error = None

    def _note(self, error: Exception) -> Exception:
        """Notes an error and returns the one for the caller, which names no file and no process."""
        if not isinstance(error, TurnoutError):
            log.error("a call failed", exc_info=error)
        if not isinstance(error, StoreError):
            return error
        if isinstance(error, InterruptedCallError):  # then the calls are repeated
            log.warning("%s", error)
        elif isinstance(error, OtherWriterError):
            self._replaced = error
        else:
            self.last_error, self._has_lost_commits = str(error), error.argument == "accept_older"
            log.error("%s", error)
        is_standby = isinstance(error, OtherWriterError | StandbyError)
        return StandbyError(STANDBY) if is_standby else UnavailableError(UNSTORED)


def _begin(scheduler: Scheduler, _: StoredAnswer | None) -> Iterator[None]:
    """Begins a transaction and writes nothing."""
    with scheduler.group():
        pass
    yield


def _write(scheduler: Scheduler, _: StoredAnswer | None) -> Iterator[None]:
    """Writes a transaction that only counts itself."""
    session = session_of(scheduler)
    with session.lock, session.journal.writing():
        pass
    yield


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
