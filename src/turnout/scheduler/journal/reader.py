"""Reads the file of a fleet, also while a scheduler writes it, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from turnout.errors import StoreError
from turnout.scheduler.features import Features
from turnout.scheduler.journal.events import FleetEvent, RecordedRound, decode_event
from turnout.scheduler.journal.journal import Journal
from turnout.scheduler.journal.replay import FleetState, apply_event, fresh_fleet, load, restore, stored_features
from turnout.scheduler.records import OpenRound, RecordedOffer, Turn
from turnout.scheduler.settings import SchedulerSettings


class FleetReader:
    """What the file of a fleet holds, read from any process and at any time.

    Each call reads the newest state; calls inside `with reader.reading():` and inside the loop over an iterator see
    one state of the file. One thread may use a reader at a time.

    >>> import tempfile
    >>> from turnout.scheduler import Scheduler
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name) / "fleet.turnout"
    >>> with Scheduler.open(path, policy="random", settings={"cohort_size": 1}, deadline=60.0) as scheduler:
    ...     _ = scheduler.choose({"phone": {"free_cpu": 1.0, "bandwidth": 2.0}})
    ...     _ = scheduler.report("phone", 1.5)
    ...     _ = scheduler.close_round()
    >>> with FleetReader(path) as reader:
    ...     print(reader.settings.policy, reader.ids, reader.round)
    ...     print([event.kind for event in reader.events()])
    ...     for closed in reader.closed_rounds():
    ...         print(closed.clients, closed.seconds)
    random ['phone'] 1
    ['joined', 'closed']
    ('phone',) [1.5]
    >>> folder.cleanup()
    """

    def __init__(self, path: str | Path) -> None:
        self._journal = Journal(Path(path), read_only=True)
        try:
            self.stored_settings: dict[str, Any] = self._journal.settings
            self.settings = SchedulerSettings.from_dict(self.stored_settings)
            self.features: Features = stored_features(self.stored_settings["features"])
        except BaseException:
            self._journal.close()
            raise

    @property
    def path(self) -> Path:
        """The file of the fleet."""
        return self._journal.path

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All calls in this block see one state of the file."""
        with self._journal.reading():
            yield

    # Clients and rounds

    @property
    def ids(self) -> list[str]:
        """The ids of all clients, by row; clients that are new in an open round join when it is closed."""
        return self._journal.ids()

    @property
    def round(self) -> int:
        """The last round that was closed; 0 before the first."""
        return self._journal.closed_round()

    def closed_rounds(self, after: int = 0) -> Iterator[RecordedRound]:
        """The closed rounds after round `after`, in order."""
        for event in self.events():
            if event.closed is not None and event.closed.round > after:
                yield event.closed

    def open_round(self) -> tuple[OpenRound, list[Turn]] | None:
        """The round that is open, with the turns of its cohort; None if none is open."""
        with self.reading():
            opened = self._journal.open_round()
            return None if opened is None else (opened, self.turns(opened.round))

    def turns(self, round: int) -> list[Turn]:
        """The turns of everyone who was invited in a round, by row."""
        return self._journal.turns_of(round)

    def offer(self, round: int) -> RecordedOffer | None:
        """What the cohort of a round was chosen from; None if that is not on record."""
        return self._journal.offered(round)

    def offers(self) -> Iterator[RecordedOffer]:
        """All offers that are on record, in the order of their rounds."""
        with self.reading():
            for round_ in self._journal.offered_rounds():
                offer = self.offer(round_)
                if offer is not None:
                    yield offer

    # Events

    def events(self, after: int = 0) -> Iterator[FleetEvent]:
        """All events after event `after`, in order, each checked against its digest."""
        with self.reading():
            ids, joined = self._journal.ids(), self._journal.joined_by(after)
            for stored in self._journal.events(after):
                event = decode_event(*stored, ids, joined)
                joined += len(event.clients) if event.kind == "joined" else 0
                yield event

    @property
    def last_event(self) -> int:
        """The number of the newest event; 0 before the first."""
        return self._journal.last_event()

    @property
    def head(self) -> str:
        """The digest of the newest event, which seals all events before it."""
        return self._journal.head()

    @property
    def changes(self) -> int:
        """Another number whenever another process or connection has written to the file."""
        return self._journal.changes

    def state(self) -> FleetState:
        """The state of the fleet after the newest event, as its scheduler has it, with the round that is open."""
        return load(self._journal, self.settings, self.features)

    def follow(self) -> Follower:
        """Follow the events of a live fleet from the first one on, with the state of the fleet before each."""
        return Follower(self, self._journal)

    def close(self) -> None:
        """Close the file; a second call has no effect."""
        self._journal.close()

    def __repr__(self) -> str:
        return f"FleetReader({str(self.path)!r}, policy={self.settings.policy!r})"

    def __enter__(self) -> FleetReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Follower:
    """Delivers the events of a fleet as they are written, and keeps the state of the fleet beside them.

    `fleet` is the state before the first event that was not applied: pass each event to `apply` when it is no longer
    needed. The state begins with the first event, or where the file no longer says who was available in every round
    with the last snapshot: then it already contains the events up to `starts_after`. `position` is the number of the
    last event that was delivered.

    `poll` raises StaleError if the writer has forgotten a client, or dropped something that was not delivered yet: what
    was read so far is no longer in the file, so follow it again from the beginning with a new follower.
    """

    def __init__(self, reader: FleetReader, journal: Journal) -> None:
        self._journal = journal
        self.fleet = fresh_fleet(reader.settings, reader.features)
        self.position = 0
        self._ids: list[str] = []
        with journal.reading():
            self._known = journal.last_event()
            saved = None if journal.has_all_masks() else journal.snapshot()
            self.starts_after = 0 if saved is None else saved[0]
            if saved is not None:
                restore(journal, self.fleet, saved[1], journal.ids())

    def poll(self, most: int = -1) -> list[FleetEvent]:
        """The next events, at most so many; empty if nothing new was written."""
        found = []
        for number, kind, data, mask in self._journal.events(self.position, most):
            forgotten = kind == "forget" and number > self._known
            if forgotten or (self.is_ahead(number) and kind == "close" and mask is None):
                raise StaleError(f"{self._journal.path} has forgotten something: read it again from the beginning")
            event = decode_event(number, kind, data, mask, self._ids, len(self._ids))
            if event.kind == "joined":  # where the state has these ids already, the strings are shared with it
                known = event.clients if self.is_ahead(number) else [self.fleet.ids[row] for row in event.rows]
                self._ids.extend(known)
            self.position = number
            found.append(event)
        return found

    def apply(self, event: FleetEvent) -> None:
        """Bring the state of the fleet up to and including this event; the next one in order."""
        if self.is_ahead(event.number):
            apply_event(self.fleet, *event.stored)

    def is_ahead(self, number: int) -> bool:
        """Whether the state at the beginning did not contain the event of this number yet."""
        return number > self.starts_after


class StaleError(StoreError):
    """What was read so far is no longer what is in the file."""
