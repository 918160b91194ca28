"""Follows a fleet as it is written, from the oldest state that its file has."""

from __future__ import annotations

from typing import Any, NamedTuple

from turnout.errors import StoreError
from turnout.live.features import Features
from turnout.live.journal.amendments import settings_at
from turnout.live.journal.events import FleetEvent, decode_event
from turnout.live.journal.journal import Journal
from turnout.live.journal.replay import apply_event, start_from
from turnout.live.journal.summary import first_state, has_all_availability, last_event, newest_state, read_summary
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.rounds.records import CLOSE
from turnout.live.turns.slots.records import FILL
from turnout.live.turns.state import Fleet


class ReplayStart(NamedTuple):
    """A state from which later events can be applied.

    Attributes:
        event: The number of the event after which it was taken.
        settings: The settings of the fleet then, as they are stored.
        fleet: The state.
    """

    event: int
    settings: dict[str, Any]
    fleet: Fleet


def find_start(
    journal: Journal, settings: SchedulerSettings, features: Features, *, with_availability: bool = True
) -> ReplayStart | None:
    """Returns the oldest state from which all later events can be applied; None for the beginning.

    Args:
        journal: The journal of the fleet.
        settings: Its present settings.
        features: Its present features.
        with_availability: Whether the events must have the availability of clients, which large fleets drop.
    """
    with journal.reading() as db:
        is_usable = not with_availability or has_all_availability(db)
        start = first_state(db) if is_usable else newest_state(db)
        if start is None:
            return None
        event, fleet = start_from(journal, start, settings, features)
        return ReplayStart(event, settings_at(journal, event), fleet)


class Follower:
    """Delivers the events of a fleet as they are written, and keeps the state of the fleet.

    Attributes:
        fleet: The state before the first event that was not applied. Pass each event to `apply` when the state before
            it is no longer needed.
        starts_after: The number of the last event that the initial state contains: 0; the event of the last snapshot if
            the file no longer has the availability of every round; or that of the summary of rounds that are no longer
            kept.
        summary: Where the events that are delivered begin.
        position: The number of the last event that was delivered.

    `poll` raises StaleError if a client was forgotten, or if the writer dropped data that was not delivered yet. What
    was read so far is then no longer in the file: follow it again from the beginning, with a new follower.
    """

    def __init__(self, journal: Journal, settings: SchedulerSettings, features: Features) -> None:
        self._journal = journal
        with journal.reading() as db:
            self._last_at_start = last_event(db)[0]
            self.summary = read_summary(db)
            self.position = self.summary.event
            start = find_start(journal, settings, features)
            self.starts_after = 0 if start is None else start.event
            self.fleet = start_from(journal, None, settings, features)[1] if start is None else start.fleet
            self._ids = self.fleet.ids[: self.summary.clients]

    def poll(self, limit: int = -1) -> list[FleetEvent]:
        """Returns the next events, at most `limit` of them; an empty list if there are none."""
        with self._journal.reading() as db:
            if read_summary(db).event > self.position:
                raise self._stale()
            events = []
            for number, kind, data, availability in self._journal.events(self.position, limit):
                forgotten = kind == "forget" and number > self._last_at_start
                if forgotten or (self.is_ahead(number) and kind in (CLOSE, FILL) and availability is None):
                    raise self._stale()
                event = decode_event(number, kind, data, availability, self._ids, len(self._ids))
                if event.kind == "joined":  # share the strings of the state, if it has these ids already
                    ids = event.clients if self.is_ahead(number) else [self.fleet.ids[row] for row in event.rows]
                    self._ids.extend(ids)
                self.position = number
                events.append(event)
            return events

    def _stale(self) -> StaleError:
        return StaleError(
            f"data was removed from {self._journal.location} since it was read: read it again from the beginning"
        )

    def apply(self, event: FleetEvent) -> None:
        """Applies the next event to the state of the fleet."""
        if self.is_ahead(event.number):
            apply_event(self.fleet, *event.stored)

    def is_ahead(self, number: int) -> bool:
        """Returns whether an event is newer than the initial state."""
        return number > self.starts_after


class StaleError(StoreError):
    """The data that was read so far is no longer in the file."""
