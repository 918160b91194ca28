"""Follows a fleet's file while somebody else writes it: the rounds as they are closed, and memory after each."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from turnout.errors import StoreError
from turnout.scheduler.journal.journal import Journal
from turnout.scheduler.journal.replay import apply_event, fresh_fleet, restore, stored_features
from turnout.scheduler.records import ClosedRound, OpenRound, RecordedOffer, Turn, unpack_closed
from turnout.scheduler.settings import SchedulerSettings


@dataclass(frozen=True, slots=True, eq=False)
class FleetEvent:
    """Something that happened: clients joined, one left, or a round was closed.

    `is_new`: memory has not taken it in yet. `knows_available`: who volunteered is on record. `opened_at`, `closed_at`:
    when a round was chosen and closed, in seconds since 1970; `between`: seconds from the end of the one before.
    """

    kind: str
    data: bytes
    mask: bytes | None
    is_new: bool
    joined: int = 0
    left: int | None = None
    closed: ClosedRound | None = None
    offered: RecordedOffer | None = None
    opened_at: float = math.nan
    closed_at: float = math.nan
    between: float = math.nan

    @property
    def knows_available(self) -> bool:
        """Whether it is on record who volunteered."""
        return self.mask is not None


class Follower:
    """Reads a file from its first event on, and writes nothing.

    `fleet` is memory as it was before the next event: from the very beginning where the file still says who volunteered
    in every round, else as of the last snapshot. Give each event to `take` once it is no longer needed. Where the
    writer forgets a client, or drops what was not read yet, `next` says StaleError: begin anew.
    """

    def __init__(self, path: Path) -> None:
        self.journal = Journal(path, read_only=True)
        try:
            stored = self.journal.settings
            self.settings = SchedulerSettings.from_told(stored)
            self.features = stored_features(stored["features"])
            self.fleet = fresh_fleet(self.settings, self.features)
            with self.journal.reading():
                self._at_opening = self.journal.last_event()
                saved = None if self.journal.has_all_masks() else self.journal.snapshot()
                self.begins_after = 0 if saved is None else saved[0]
                if saved is not None:
                    restore(self.journal, self.fleet, saved[1], self.journal.ids())
        except BaseException:
            self.journal.close()
            raise
        self.read = 0
        self._closed_at = math.nan

    @property
    def events(self) -> int:
        """How many there are by now."""
        return self.journal.last_event()

    @property
    def changes(self) -> int:
        """Another number whenever somebody has written."""
        return self.journal.changes

    def open_round(self) -> tuple[OpenRound, list[Turn]] | None:
        """The round that is open now, and what was heard in it."""
        with self.journal.reading():
            opened = self.journal.open_round()
            return None if opened is None else (opened, self.journal.turns_of(opened.round))

    def next(self, most: int) -> list[FleetEvent]:
        """Up to so many more events, in order."""
        found = []
        for seq, kind, data, mask in self.journal.events(self.read, most):
            is_new = seq > self.begins_after
            forgotten = kind == "forget" and seq > self._at_opening
            if forgotten or (is_new and kind == "close" and mask is None):
                raise StaleError(f"{self.journal.path} has forgotten something: read it again from the beginning")
            self.read = seq
            found.append(self._followed(kind, data, mask, is_new))
        return found

    def take(self, event: FleetEvent) -> None:
        """Let memory take it in."""
        if event.is_new:
            apply_event(self.fleet, event.kind, event.data, event.mask)

    def close(self) -> None:
        """Let go of the file."""
        self.journal.close()

    def _followed(self, kind: str, data: bytes, mask: bytes | None, is_new: bool) -> FleetEvent:
        event = FleetEvent(kind, data, mask, is_new)
        if kind == "join":
            return replace(event, joined=len(json.loads(data)))
        if kind != "close":
            return replace(event, left=int(json.loads(data)["row"]))
        closed, header = unpack_closed(data, mask)
        opened_at, closed_at = (datetime.fromisoformat(header[word]).timestamp() for word in ("opened", "closed"))
        before, self._closed_at = self._closed_at, closed_at
        return replace(
            event,
            closed=closed,
            offered=self.journal.offered(closed.round),
            opened_at=opened_at,
            closed_at=closed_at,
            between=opened_at - before,
        )


class StaleError(StoreError):
    """What was read so far is no longer what is in the file."""
