"""A fleet as an adapter sees it: a scheduler in this process, or a service that has one."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from typing import TypeAlias

import numpy as np

from turnout.adapters.common.remote import RemoteFleet
from turnout.client import FleetClient
from turnout.errors import SettingError
from turnout.kernel.arrays import IntArray
from turnout.live import RunningTurn, Scheduler, Turn
from turnout.live._internals import ARRIVED, KINDS, SelectedClient, selected_clients, session_of, target_size
from turnout.tracking import Tracker

Fleet: TypeAlias = Scheduler | RemoteFleet
#: The environment variable with the token of a service.
TOKEN = "TURNOUT_TOKEN"  # a name
#: How often a call is sent to a service that does not answer: for about five minutes.
ATTEMPTS = 64
GONE = "was not connected when the server restarted"


def is_address(text: str) -> bool:
    """Returns whether a text is the address of a service, or several."""
    return re.match("https?://", text) is not None


def open_fleet(fleet: Fleet | FleetClient | str, token: str | None = None) -> Fleet:
    """Returns a scheduler as it is, and otherwise the fleet of a client or of the address of a service.

    Args:
        fleet: The scheduler, the client, or the address; several addresses are separated by commas.
        token: The token; by default the value of TURNOUT_TOKEN.

    Raises:
        SettingError: If it is none of them.
        ServiceError: If the service refuses the call, or does not answer.
    """
    if isinstance(fleet, str) and is_address(fleet):
        with ExitStack() as opened:
            client = FleetClient(fleet, token=token or os.environ.get(TOKEN), attempts=ATTEMPTS)
            remote = RemoteFleet(opened.enter_context(client))
            weakref.finalize(remote, opened.pop_all().close)
        return remote
    if token is not None:
        raise SettingError("token is for the address of a service: leave it out")
    if isinstance(fleet, FleetClient):
        return RemoteFleet(fleet)
    if not isinstance(fleet, Scheduler | RemoteFleet):
        raise SettingError(
            "scheduler must be a Scheduler, a FleetClient, or the address of a service such as "
            f"https://host/v1/fleets/phones, got {fleet!r}: open a file or a database with Scheduler.open"
        )
    return fleet


class SchedulerFacts:
    """What an adapter reads of a fleet in this process, besides what a scheduler offers to everyone.

    Attributes:
        location: Where the fleet is.
        features: The features of a status.
        tracker: What receives the metrics of the fleet; None if nothing does.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        session = self._session = session_of(scheduler)
        self.location, self.features, self.tracker = session.location, session.features, session.tracker

    @property
    def target_size(self) -> int | None:
        """The number of updates that a round needs."""
        return target_size(self._session)

    def track(self, tracker: str | Tracker | None) -> None:
        """Sends the metrics of the fleet to a tracker from now on, and closes the one before."""
        self._session.track(tracker)

    def rows(self, clients: Iterable[str]) -> IntArray:
        """Returns the rows of clients, as a FleetStatus has them."""
        return np.array([self._session.row(client) for client in clients], dtype=np.int64)

    def have_returned(self, clients: Sequence[str]) -> list[bool]:
        """Returns whether each client has returned from a turn."""
        returned: list[bool] = (self._session.fleet.counters.last_trained[self.rows(clients)] > 0).tolist()
        return returned

    def selected(self) -> list[SelectedClient]:
        """Returns the clients of the open round."""
        return selected_clients(self._session)

    def close_round(self, after: float | None) -> list[Turn]:
        """Closes the open round, as `Scheduler.close_round` does, and returns its turns."""
        closed = self._scheduler.close_round(after=after)
        report, ids = closed.report, self._session.fleet.ids
        if not report.with_outcome(KINDS[ARRIVED]).all():
            return self._scheduler.history(round=closed.round)
        outcomes = zip(report.clients.tolist(), report.exchange_times.tolist(), strict=True)
        return [Turn(closed.round, row, ids[row], KINDS[ARRIVED], seconds) for row, seconds in outcomes]

    def promise(self) -> tuple[str, dict[str, float]] | None:
        """Returns a sentence about the promise, and its status as numbers by name; None if there is none."""
        certificate = self._session.certificate()
        if certificate is None:
            return None
        promise, metrics = certificate.summary(), dict[str, float]()
        if len(certificate.turns):
            metrics["most-behind-turns"] = promise.worst_behind
            metrics["broken-promises"] = float(promise.broken)
            metrics["fewest-turns"] = float(certificate.turns.min())
        return promise.sentence(self._session.fleet.ids.__getitem__), metrics


def facts_of(fleet: Fleet) -> SchedulerFacts | RemoteFleet:
    """Returns what an adapter reads of a fleet."""
    return fleet if isinstance(fleet, RemoteFleet) else SchedulerFacts(fleet)


def take_over_round(scheduler: Fleet, connected: Collection[str]) -> tuple[list[str], frozenset[str]]:
    """Returns the clients of the open round that can train again, and those whose outcome is recorded already.

    The turns of clients that are not connected have failed.
    """
    cohort, turns = scheduler.choose({}), scheduler.history()
    recorded = frozenset(turn.id for turn in turns if turn.kind is not None)
    failed = {turn.id for turn in turns if turn.kind == "failed"}
    for client in cohort:
        if client not in connected and client not in recorded:
            scheduler.report_failure(client, GONE)
    return [client for client in cohort if client in connected and client not in failed], recorded


def keep_turns(
    turns: Sequence[RunningTurn], connected: Collection[str], fail: Callable[[RunningTurn, str], object]
) -> list[RunningTurn]:
    """Returns the turns whose clients are connected, and train again; the others fail."""
    for turn in turns:
        if turn.client not in connected:
            fail(turn, GONE)
    return [turn for turn in turns if turn.client in connected]
