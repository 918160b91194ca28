"""A process that has a fleet in a database open, and executes the calls that a test sends it."""

from __future__ import annotations

import gc
import signal
import time
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import cycle
from multiprocessing.connection import Client
from typing import Any

from turnout.errors import TurnoutError
from turnout.live import Reporter, Scheduler, clock
from turnout.live._internals import session_of
from turnout.storage.postgres import lease, store
from turnout.storage.postgres.connection import LEASE_SECONDS

#: Shorter than in production, with the same ratios: the tests wait for a takeover again and again.
LEASE, IDLE, TAKEOVER_WAIT = 1.5, 3.0, 1.0
#: What the clock of a process is ahead by, in seconds: first as it was started, then as often as it gets SIGUSR1.
SKEWS = (3600.0, -3600.0, 0.0)


class Clock:
    """The clock of the machine, ahead or behind."""

    def __init__(self, turn: int) -> None:
        self._skews = cycle(SKEWS[turn % 3 :] + SKEWS[: turn % 3])
        self._skew, self._time = next(self._skews), time.time
        signal.signal(signal.SIGUSR1, self._change)
        time.time = self._now

        class Shifted(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
                return (datetime.now(UTC) + timedelta(seconds=self._skew)).astimezone(tz)

        clock.datetime = Shifted  # type: ignore[attr-defined]

    def _change(self, *_: object) -> None:
        self._skew = next(self._skews)

    def _now(self) -> float:
        return self._time() + self._skew


class Calls:
    """The calls: each returns the same when it is repeated, whatever became of it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._opened: Scheduler | None = None
        self._reporter: Reporter | None = None

    def open(self, *, takeover: bool = False) -> int:
        """Opens the fleet as a standby; returns the epoch."""
        if self._opened is not None:
            self._opened.close()
        self._opened = Scheduler.open(self._address, standby=not takeover, takeover=takeover)
        return int(session_of(self._opened).journal.file._epoch)  # type: ignore[attr-defined]

    def register(self, client: str) -> None:
        """Registers a client."""
        self._scheduler.register([client])

    def choose(self, number: int, clients: list[str]) -> list[str]:
        """Returns the cohort of a round."""
        cohort = self._scheduler.choose(clients)
        opened = self._scheduler.open_round
        assert opened is not None
        assert opened.round == number, (opened.round, number)
        return cohort

    def report(self, number: int, reports: dict[str, float]) -> None:
        """Reports the times of clients, in one transaction."""
        if len(reports) > 1:
            self._scheduler.report_many(reports, round=number)
            return
        for client, seconds in reports.items():
            self._scheduler.report(client, seconds, round=number)

    def report_beside(self, number: int, reports: dict[str, float]) -> None:
        """Reports the times of clients beside the scheduler."""
        if self._reporter is None:
            self._reporter = Reporter(self._address)
        for client, seconds in reports.items():
            self._reporter.report(client, seconds, round=number)

    def close(self, number: int) -> None:
        """Closes a round."""
        if self._scheduler.open_round is not None:
            assert self._scheduler.close_round().round == number
        assert self._scheduler.round == number

    def write(self) -> None:
        """Stores a client without looking at the state of the fleet."""
        with session_of(self._scheduler).journal.file.writing() as db:
            db.execute("INSERT INTO clients VALUES (1000000, 'written by the old epoch')")

    @property
    def _scheduler(self) -> Scheduler:
        assert self._opened is not None
        return self._opened


def run(socket: str, address: str, turn: str) -> None:
    """Executes calls until the other end is closed; answers with a name of an error and its result or text."""
    Clock(int(turn))
    renewed = lease.RENEWED.replace(str(LEASE_SECONDS), str(LEASE))
    shorter = {
        "LEASE_SECONDS": LEASE,
        "IDLE_SECONDS": IDLE,
        "TAKEOVER_WAIT_SECONDS": TAKEOVER_WAIT,
        "RENEWED": renewed,
        "TAKE": store.TAKE.replace(lease.RENEWED, renewed),
        "END_SILENT": lease.END_SILENT.replace(str(lease.IDLE_SECONDS), str(IDLE)),
    }
    for module in (lease, store):
        for name, value in shorter.items():
            setattr(module, name, value)
    calls = Calls(address)
    with Client(socket) as connection:
        while True:
            try:
                name, values, options = connection.recv()
            except EOFError:
                return
            answer: tuple[str, Any]
            try:
                answer = ("", getattr(calls, name)(*values, **options))
            except TurnoutError as error:
                answer = (type(error).__name__, str(error))
                gc.collect()
            connection.send(answer)
