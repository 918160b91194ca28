"""Reads and follows the file of a fleet without changing it, even while a scheduler writes it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from turnout.closing import close_on_error
from turnout.errors import SettingError, StoreError
from turnout.live.features import Features
from turnout.live.journal import summary, turns
from turnout.live.journal.events import FleetEvent, RecordedRound, RecordedTurn, decode_event, ended_turns
from turnout.live.journal.journal import Amendment, Journal, amendments, settings_at
from turnout.live.journal.replay import FleetState, apply_event, load, start_from, stored_features
from turnout.live.journal.schema import meta_count
from turnout.live.journal.summary import Summary
from turnout.live.operation.monitoring import WriterMetrics, read_writer_metrics
from turnout.live.queries import FleetQueries
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.records import RecordedOffer, Turn
from turnout.live.turns.rounds.records import CLOSE, OpenRound
from turnout.live.turns.slots.records import FILL, RunningTurnRecord
from turnout.live.turns.state import Fleet
from turnout.storage.address import DatabaseAddress, as_location, file_of
from turnout.storage.store import Location

if TYPE_CHECKING:
    from turnout.policies.explain.explanation import Explanation


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


def find_start(journal: Journal, *, with_availability: bool = True) -> ReplayStart | None:
    """Returns the oldest state from which all later events can be applied; None for the beginning.

    Args:
        journal: The journal of the fleet.
        with_availability: Whether the events must have the availability of clients, which large fleets drop.
    """
    with journal.reading() as db:
        is_usable = not with_availability or summary.has_all_availability(db)
        start = summary.first_state(db) if is_usable else summary.newest_state(db)
        if start is None:
            return None
        event, fleet = start_from(journal, start)
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

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        with journal.reading() as db:
            self._last_at_start = summary.last_event(db)[0]
            self.summary = summary.read_summary(db)
            self.position = self.summary.event
            start = find_start(journal)
            self.starts_after = 0 if start is None else start.event
            self.fleet = start_from(journal, None)[1] if start is None else start.fleet
            self._ids = self.fleet.ids[: self.summary.clients]

    def poll(self, limit: int = -1) -> list[FleetEvent]:
        """Returns the next events, at most `limit` of them; an empty list if there are none."""
        with self._journal.reading() as db:
            if summary.read_summary(db).event > self.position:
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


class FleetReader(FleetQueries):
    """Reads the file of a fleet, from any process and at any time.

    Each call reads the newest state of the file. Calls inside `with reader.reading():`, and inside the loop over an
    iterator, all see the same state. Only one thread may use a reader at a time.

    In a fleet without rounds, `ended_turns` and `running` take the place of `closed_rounds` and `open_round`. A turn
    ends in any order, and what was learned at a decision depends on that order: so turns are read as they ended, and
    not by decision, as if each were a round of its own. Everything else has the number of a decision where it has that
    of a round elsewhere.

    >>> import tempfile
    >>> from turnout.live import Scheduler
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name) / "fleet.turnout"
    >>> with Scheduler.open(path, policy="random", settings={"cohort_size": 1}, deadline=60.0) as scheduler:
    ...     _ = scheduler.choose({"phone": {"free_cpu": 1.0, "bandwidth": 2.0}})
    ...     _ = scheduler.report("phone", 1.5)
    ...     _ = scheduler.close_round()
    >>> with FleetReader(path) as reader:
    ...     print(reader.settings.policy, reader.clients, reader.round)
    ...     print([event.kind for event in reader.events()])
    ...     for closed in reader.closed_rounds():
    ...         print(closed.clients, closed.seconds)
    random ['phone'] 1
    ['joined', 'closed']
    ('phone',) [1.5]
    >>> folder.cleanup()
    """

    def __init__(self, path: str | Path | DatabaseAddress, *, accept_older: bool = False) -> None:
        self._journal = Journal(as_location(path), "read", accept_older=accept_older)
        with close_on_error(self):
            self._stored = self._journal.settings
            self._settings = SchedulerSettings.from_dict(self._stored)

    def stored_settings(self, event: int | None = None) -> dict[str, Any]:
        """Returns the settings of the fleet and its features after an event, as they are stored.

        Args:
            event: The number of the event; 0 for the settings with which the fleet was created, None for the present
                ones.
        """
        return self._journal.settings if event is None else settings_at(self._journal, event)

    @property
    def settings(self) -> SchedulerSettings:
        """The settings of the fleet, as the last amendment left them."""
        stored = self.stored_settings()
        if stored != self._stored:
            self._stored, self._settings = stored, SchedulerSettings.from_dict(stored)
        return self._settings

    @property
    def features(self) -> Features:
        """The features of the clients, without the function that computes them."""
        return stored_features(self.stored_settings()["features"])

    @property
    def amendments(self) -> list[Amendment]:
        """All changes of the settings, in order."""
        return amendments(self._journal)

    @property
    def path(self) -> Path:
        """The file of the fleet; raises FleetKindError if it is in a database."""
        return file_of(self._journal.location)

    @property
    def location(self) -> Location:
        """The file of the fleet, or its address in a database."""
        return self._journal.location

    def reading(self) -> AbstractContextManager[object]:
        """Opens a block in which all calls see the same state of the file."""
        return self._journal.reading()

    @contextmanager
    def _querying(self) -> Iterator[Journal]:
        with self._journal.reading():
            yield self._journal

    def _state(self) -> FleetState:
        return self.state()

    # Clients and rounds

    @property
    def clients(self) -> list[str]:
        """The ids of all clients, by row. Clients that are new in the open round join when it is closed."""
        return self._journal.ids()

    @property
    def round(self) -> int:
        """The number of the last closed round; without rounds, of the last decision; 0 before the first."""
        with self._journal.reading() as db:
            return meta_count(db, "round")

    def closed_rounds(self, after: int = 0) -> Iterator[RecordedRound]:
        """Yields the closed rounds after round `after`, in order.

        Raises:
            SettingError: If the fleet has no rounds.
        """
        self._need(rounds=True, instead="ended_turns")
        closed = (event.closed for event in self.events() if event.closed is not None)
        return (round_ for round_ in closed if round_.round > after)

    def ended_turns(self) -> Iterator[RecordedTurn]:
        """Yields the turns of a fleet without rounds that have ended, in the order in which their results were learned.

        Raises:
            SettingError: If the fleet has rounds.
        """
        self._need(rounds=False, instead="closed_rounds")
        return ended_turns(self.events())

    def running(self) -> list[tuple[RunningTurnRecord, Turn]]:
        """Returns the turns of a fleet without rounds that are running, in the order of their decisions.

        The second value has the outcome, if one was reported: it is learned, and the slot is free, with the next fill.

        Raises:
            SettingError: If the fleet has rounds.
        """
        self._need(rounds=False, instead="open_round")
        with self._journal.reading() as db:
            outcomes = {turn.round: turn for turn in self._journal.turns_running()}
            return [
                (running_turn, outcomes[decision]) for decision, running_turn in turns.read_running_turns(db).items()
            ]

    def _need(self, *, rounds: bool, instead: str) -> None:
        if self.settings.has_rounds != rounds:
            what = "no rounds" if rounds else "rounds"
            raise SettingError(f"{self.location} is a fleet with {what}: use {instead} of its reader")

    def open_round(self) -> tuple[OpenRound, list[Turn]] | None:
        """Returns the open round with the turns of its cohort, or None if no round is open.

        Raises:
            SettingError: If the fleet has no rounds.
        """
        self._need(rounds=True, instead="running")
        with self._journal.reading() as db:
            opened = turns.read_open_round(db)
            return None if opened is None else (opened, self.history(round=opened.round))

    def writer(self) -> WriterMetrics:
        """Returns what the scheduler stored about itself when it closed the last round, and the age of its snapshot."""
        with self._journal.reading() as db:
            return read_writer_metrics(db)

    def offer(self, round: int) -> RecordedOffer | None:
        """Returns the offer from which the cohort of a round was selected, or None if it is not recorded."""
        with self._journal.reading() as db:
            return (turns.read_offer if self.settings.has_rounds else turns.read_offer_of_decision)(db, round)

    def offers(self) -> Iterator[RecordedOffer]:
        """Yields all recorded offers, in the order of their rounds.

        Where several slots were filled at once, only the offer of the first decision is recorded.
        """
        with self._journal.reading() as db:
            for (round_,) in db.execute("SELECT round FROM offers ORDER BY round").fetchall():
                offer = turns.read_offer(db, int(round_))
                if offer is not None:
                    yield offer

    # Events

    def events(self, after: int = 0) -> Iterator[FleetEvent]:
        """Yields the events after event `after`, in order, and checks each against its digest."""
        with self._journal.reading() as db:
            ids, joined = self._journal.ids(), summary.count_joined(db, after)
            for stored in self._journal.events(after):
                event = decode_event(*stored, ids, joined)
                joined += len(event.clients) if event.kind == "joined" else 0
                yield event

    def export(self) -> Generator[dict[str, Any]]:
        """Yields every event in order, as dictionaries that can be written as JSON, for an audit.

        If earlier events are no longer kept, a line of the kind "summary" comes first: it states the last of them, the
        last round that was closed by then, and the number of clients that had joined.
        """
        with self.reading():
            first = self.summary()
            if first.event:
                yield {"event": first.event, "kind": "summary", "round": first.round, "clients": first.clients}
            for event in self.events():
                yield event.to_dict()

    @property
    def last_event(self) -> int:
        """The number of the newest event; 0 before the first."""
        with self._journal.reading() as db:
            return summary.last_event(db)[0]

    @property
    def changes(self) -> int:
        """A number that changes whenever another process or connection has written to the file."""
        return self._journal.file.changes

    def state(self) -> FleetState:
        """Returns the state of the fleet after the newest event, with the open round, as its scheduler has it."""
        with self.reading():
            return load(self._journal)

    def summary(self) -> Summary:
        """Returns where the events that are kept begin; event 0 stands for the beginning."""
        return self._journal.summary()

    def replay_start(self, *, with_availability: bool = True) -> ReplayStart | None:
        """Returns the oldest state from which all later events can be applied; None for the beginning.

        Args:
            with_availability: Whether the events must have the availability of clients, which large fleets drop.
        """
        with self.reading():
            return find_start(self._journal, with_availability=with_availability)

    def follow(self) -> Follower:
        """Returns a follower, which delivers all events that are kept, with the state of the fleet."""
        return Follower(self._journal)

    def close(self) -> None:
        """Closes the file; a second call has no effect."""
        self._journal.close()

    def __repr__(self) -> str:
        return f"FleetReader({str(self.location)!r}, policy={self._settings.policy!r})"


def journal_of(reader: FleetReader) -> Journal:
    """Returns the journal behind a reader, for neighbours that need more than its methods."""
    return reader._journal


def explain_closed_round(reader: FleetReader, fleet: Fleet, row: int, number: int) -> Explanation:
    """Explains a closed round with the state of a follower, instead of loading the current state again."""
    from turnout.live.operation.explain import explain_client

    state = FleetState(fleet, None, 0)
    return explain_client(reader._journal, state, reader.settings, row, number)
