"""The file of a fleet that is served: opened with its tokens, and read in threads of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from turnout.errors import SettingError, StoreError, TurnoutError
from turnout.live import FleetReader, Scheduler
from turnout.live._internals import StaleError, session_of
from turnout.log import get_log
from turnout.service.access.tokens import FleetTokens
from turnout.service.errors import BusyError
from turnout.web.errors import UNREADABLE

log = get_log("turnout.service")
#: The threads that read a fleet, and the most queries that wait for them.
READ_THREADS, MAX_READS = 4, 200
#: How long a query waits for the calls that are executed, in seconds.
READ_SECONDS = 5.0
#: How long a transaction waits for other processes, in seconds: the calls behind it wait as well.
FILE_SECONDS = 3.0
UNOPENED = "this fleet cannot be opened now: see the log of the service"
UNSTORED = "nothing can be stored in this fleet now: see the log of the service"
OCCUPIED = "this fleet is occupied by other calls or processes: try again soon"
Result = TypeVar("Result")


class UnavailableError(StoreError):
    """A fleet cannot be used now. The text is for callers: paths and processes are named only in the log."""


class OccupiedError(UnavailableError):
    """A query has waited too long for the calls that are executed."""


class FleetFile:
    """The file of a fleet, with its tokens. Each fleet has its own threads, so that none waits for another.

    Args:
        path: The file.
        needs_tokens: Whether calls need tokens; the file must have some then.

    Attributes:
        tokens: The tokens; None if there are none, or the file is not open.
        refusal: Why the file was not opened; None if it was.
    """

    def __init__(self, path: Path, *, needs_tokens: bool = True) -> None:
        self.path, self._needs_tokens = path, needs_tokens
        self._scheduler: Scheduler | None = None
        self.tokens: FleetTokens | None = None
        self.refusal: Exception | None = None
        self._threads = ThreadPoolExecutor(READ_THREADS, f"turnout-{path.name}")
        self._reads = 0

    @property
    def is_open(self) -> bool:
        """Whether the file is open."""
        return self._scheduler is not None

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the fleet; raises UnavailableError if the file is not open."""
        if self._scheduler is None:
            raise UnavailableError(UNOPENED)
        return self._scheduler

    @property
    def changes(self) -> int:
        """The number of rows that the scheduler has written."""
        return int(session_of(self.scheduler).journal.file.connection.total_changes)

    def open(self) -> bool:
        """Opens the file; returns False if it cannot be opened now. Logs why if it is another reason than before."""
        try:
            self._open()
        except Exception as error:  # whatever is wrong with this file, the others are served
            trace = None if isinstance(error, TurnoutError) else error
            if str(error) != str(self.refusal) and (self.refusal is not None or trace is not None):
                log.error("%s still cannot be opened: %s", self.path, error, exc_info=trace)
            self.refusal = error
            return False
        if self.refusal is not None:
            log.warning("%s is served now", self.path)
        self.refusal = None
        return True

    def _open(self) -> None:
        if not self.path.is_file():  # a scheduler would create it
            raise SettingError(f"there is no fleet at {self.path}: check the path", argument="fleet")
        tokens = _open_tokens(self.path) if self._needs_tokens else None
        try:
            scheduler = Scheduler.open(self.path)
        except BaseException:
            if tokens is not None:
                tokens.close()
            raise
        session_of(scheduler).journal.file.connection.execute(f"PRAGMA busy_timeout = {FILE_SECONDS * 1000:.0f}")
        self.tokens, self._scheduler = tokens, scheduler

    def open_reader(self) -> FleetReader:
        """Opens a reader for another thread, which reads while calls are executed; the caller closes it.

        Raises:
            UnavailableError: If the file is not open.
            StoreError: If another file has its name.
        """
        if not session_of(self.scheduler).journal.file.is_in_place:
            raise StoreError(f"{self.path} is not the file that is served: put that back, or restart the service")
        return FleetReader(self.scheduler.path)

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
            if isinstance(error, UnavailableError | StaleError):
                raise
            log.error("%s cannot be read: %s", self.path, error)
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
        if self.tokens is not None:
            self.tokens.close()  # before the scheduler, which then moves the log into the file
        if scheduler is not None:
            scheduler.close()


def _open_tokens(fleet: Path) -> FleetTokens:
    try:
        return FleetTokens(fleet, read_only=True)
    except StoreError as error:
        if error.argument == "token":
            raise SettingError(str(error), argument="tokens") from error
        raise
