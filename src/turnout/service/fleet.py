"""A fleet that is served: opened with its tokens, read in threads of its own; and its callers, by their tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from turnout.closing import close_on_error
from turnout.errors import OtherWriterError, SettingError, StoreError, TurnoutError
from turnout.live import FleetReader, Scheduler
from turnout.live._internals import StaleError, journal_of, session_of
from turnout.log import get_log
from turnout.service.access import FleetTokens
from turnout.service.errors import BusyError, StandbyError
from turnout.storage.address import DatabaseAddress
from turnout.storage.opening import store_exists
from turnout.storage.store import Location
from turnout.web.access import Caller
from turnout.web.errors import UNREADABLE

log = get_log("turnout.service")
#: The threads that read a fleet, and the most queries that wait for them.
READ_THREADS, MAX_READS = 4, 200
#: How long a query waits for the calls that are executed, in seconds.
READ_SECONDS = 5.0
#: How long a transaction waits for other processes, in seconds: the calls behind it wait as well.
FILE_SECONDS = 3.0
UNOPENED = "this fleet cannot be opened now: see the log of the service"
STANDBY = "this service is a standby of the fleet, which another one serves: send the request there"
UNSTORED = "nothing can be stored in this fleet now: see the log of the service"
OCCUPIED = "this fleet is occupied by other calls or processes: try again soon"
Result = TypeVar("Result")


class UnavailableError(StoreError):
    """A fleet cannot be used now. The text is for callers: paths and processes are named only in the log."""


class OccupiedError(UnavailableError):
    """A query has waited too long for the calls that are executed."""


class FleetFile:
    """A fleet in a file or a database, with its tokens. Each fleet has its own threads, so that none waits for another.

    Args:
        location: Where the fleet is.
        needs_tokens: Whether calls need tokens; the file must have some then.

    Attributes:
        tokens: The tokens; None if there are none, or the file is not open.
        refusal: Why the file was not opened; None if it was.
    """

    def __init__(self, location: Location, *, needs_tokens: bool = True) -> None:
        self.location, self._needs_tokens = location, needs_tokens
        self._scheduler: Scheduler | None = None
        self.tokens: FleetTokens | None = None
        self.refusal: Exception | None = None
        self._threads = ThreadPoolExecutor(READ_THREADS, f"turnout-{location.name}")
        self._reads = 0

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._scheduler is not None

    @property
    def is_standby(self) -> bool:
        """Whether another process writes the fleet, so that this one waits."""
        return isinstance(self.refusal, OtherWriterError)

    @property
    def problem(self) -> str | None:
        """Why the tokens cannot be read now, so that all calls are refused, for callers; None if they can."""
        return None if self.tokens is None or self.tokens.problem is None else UNREADABLE

    @property
    def is_replaced(self) -> bool:
        """Whether another process has taken over the fleet, which is open."""
        return isinstance(self.location, DatabaseAddress) and not session_of(self.scheduler).journal.file.is_in_place

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the fleet; raises UnavailableError if it is not open, StandbyError if this is a standby."""
        scheduler = self._scheduler
        if scheduler is None:
            raise StandbyError(STANDBY) if self.is_standby else UnavailableError(UNOPENED)
        return scheduler

    @property
    def committed(self) -> int:
        """The number of transactions that the scheduler has committed."""
        return session_of(self.scheduler).journal.file.committed

    def open(self) -> bool:
        """Opens the file; returns False if it cannot be opened now. Logs why if it is another reason than before."""
        try:
            self._open()
        except Exception as error:  # whatever is wrong with this file, the others are served
            trace = None if isinstance(error, TurnoutError) else error
            is_known = str(error) == str(self.refusal) or (self.is_standby and isinstance(error, OtherWriterError))
            if not is_known and (self.refusal is not None or trace is not None):
                log.error("%s still cannot be opened: %s", self.location, error, exc_info=trace)
            self.refusal = error
            return False
        if self.refusal is not None:
            log.warning("%s is served now", self.location)
        self.refusal = None
        return True

    def _open(self) -> None:
        if not store_exists(self.location):  # a scheduler would create it
            raise SettingError(f"there is no fleet at {self.location}: check the path", argument="fleet")
        if self._needs_tokens and self.tokens is None:
            self.tokens = _open_tokens(self.location)
        try:
            scheduler = Scheduler.open(self.location)
            with close_on_error(scheduler):
                session_of(scheduler).journal.file.wait_at_most(FILE_SECONDS)
        except OtherWriterError:
            raise  # a standby needs the tokens: only those who have one are told what it waits for
        except BaseException:
            self._close_tokens()
            raise
        self._scheduler = scheduler

    def stand_by(self, error: OtherWriterError) -> None:
        """Closes the fleet, which another process has taken over, and keeps the tokens."""
        log.error("%s was taken over by another process: this service waits as its standby now", self.location)
        scheduler, self._scheduler, self.refusal = self.scheduler, None, error
        scheduler.close()

    def open_reader(self) -> FleetReader:
        """Opens a reader for another thread, which reads while calls are executed; the caller closes it.

        Raises:
            UnavailableError: If the file is not open.
            StoreError: If another file has its name, or the database cannot be read.
        """
        is_file = not isinstance(self.location, DatabaseAddress)
        if is_file and not session_of(self.scheduler).journal.file.is_in_place:
            raise StoreError(f"{self.location} is not the file that is served: put that back, or restart the service")
        reader = FleetReader(self.scheduler.path if is_file else self.location)
        with close_on_error(reader):
            journal_of(reader).file.wait_at_most(FILE_SECONDS)
        return reader

    async def read(
        self, function: Callable[[], Result], *, seconds: float | None = None, in_turn: bool = True
    ) -> Result:
        """Returns what a function reads, in a thread of this fleet.

        Args:
            function: Reads with the scheduler; while it runs, no call is executed.
            seconds: How long it may wait until it begins; READ_SECONDS by default.
            in_turn: Whether it must wait for the calls that are executed; it must not use the scheduler otherwise.

        Raises:
            BusyError: If too many queries wait.
            OccupiedError: If it has waited too long.
            UnavailableError: If the file cannot be read.
        """
        if self._reads >= MAX_READS:
            raise BusyError(f"{MAX_READS:,} queries of this fleet are waiting already: try again soon")
        until = time.monotonic() + (READ_SECONDS if seconds is None else seconds)
        self._reads += 1
        try:
            run = partial(self._in_turn, function, until) if in_turn else function
            return await asyncio.get_running_loop().run_in_executor(self._threads, run)
        except (StoreError, OSError) as error:
            if isinstance(error, UnavailableError | StandbyError | StaleError):
                raise
            log.error("%s cannot be read: %s", self.location, error)
            raise UnavailableError(UNREADABLE) from error
        finally:
            self._reads -= 1

    def _in_turn(self, function: Callable[[], Result], until: float) -> Result:
        lock = session_of(self.scheduler).lock
        if not lock.acquire(timeout=max(0.0, until - time.monotonic())):
            raise OccupiedError(OCCUPIED)
        try:
            return function()
        finally:
            lock.release()

    def close(self) -> None:
        """Closes the file when the queries that run have ended."""
        self._threads.shutdown(cancel_futures=True)
        scheduler, self._scheduler = self._scheduler, None
        self._close_tokens()  # before the scheduler, which then moves the log into the file
        if scheduler is not None:
            scheduler.close()

    def _close_tokens(self) -> None:
        tokens, self.tokens = self.tokens, None
        if tokens is not None:
            tokens.close()


def _open_tokens(fleet: Location) -> FleetTokens:
    try:
        return FleetTokens(fleet, read_only=True)
    except StoreError as error:
        if error.argument == "token":
            raise SettingError(str(error), argument="tokens") from error
        raise


class FleetAccess:
    """Finds the caller of a request by its token.

    A token is looked up for every request, so that a change takes effect with the next one.

    Args:
        fleets: The fleets by name; None if the service needs no tokens, so that every caller is an operator.
    """

    def __init__(self, fleets: Mapping[str, FleetFile] | None) -> None:
        self._fleets = fleets

    @property
    def needs_token(self) -> bool:
        """Whether a request needs a token."""
        return self._fleets is not None

    def caller(self, text: str) -> Caller | None:
        """Returns the caller with this token; None if the token gives no access.

        Raises:
            StoreError: If the tokens of a fleet cannot be read, and the token is of no other fleet.
        """
        if self._fleets is None:
            return Caller("operator")
        problem: StoreError | None = None
        for fleet, file in self._fleets.items():
            try:
                if file.tokens is None:
                    raise StoreError(f"the fleet {fleet!r} is not open")
                token = file.tokens.find(text)
            except StoreError as error:  # of this fleet only
                problem = error
                continue
            if token is not None:
                return Caller(token.role, fleet, token.client, token.id)
        if problem is not None:
            raise problem
        return None
