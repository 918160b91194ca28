"""Applies the retention of a fleet: which rounds and offers are no longer kept."""

from __future__ import annotations

from typing import Any

from turnout.kernel.arrays import lending_arrays
from turnout.live.clock import now
from turnout.live.journal.changes import Changes
from turnout.live.journal.journal import Journal
from turnout.live.journal.replay import FleetState, load_after, start_from
from turnout.live.journal.summary import first_state, has_all_availability, trim
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.rounds.records import CLOSE, unpack_closed
from turnout.live.turns.slots.records import FILL, unpack_fill
from turnout.log import get_log

log = get_log("turnout.live")
#: The number of rounds, or of calls of `fill`, between snapshots, so that at most so many are replayed when the file is
#: opened.
SNAPSHOT_EVERY = 50
#: The number of clients up to which a fleet with slots that persists no statuses writes a snapshot in each call of
#: `fill`. A larger one would spend most of its time on them: it writes one in as many calls as it is times larger.
SMALL_FLEET = 20_000


def is_snapshot_due(settings: SchedulerSettings, memory: FleetState) -> bool:
    """Returns whether a call of `fill` writes a snapshot.

    Without statuses in the file, only snapshots contain what was learned: a large fleet that is killed loses the times
    of its last turns, but no turn.
    """
    calls = SNAPSHOT_EVERY if settings.persist_statuses else min(len(memory.fleet.ids) // SMALL_FLEET, SNAPSHOT_EVERY)
    return memory.unsaved >= max(calls, 1)


def write_snapshot(changes: Changes, settings: SchedulerSettings, memory: FleetState, event: int) -> None:
    """Writes a snapshot of the state after event `event`; a snapshot that is old enough becomes the summary."""
    at, retention = now(), settings.round_retention
    with lending_arrays():
        state = memory.state(with_contexts=settings.persist_statuses)
        memory.snapshot = changes.put_snapshot(event, state, at, retention, memory.snapshot)
    if retention is not None:
        changes.summarize(retention, memory.fleet.round, last_settled(memory, settings), at)
    memory.unsaved = 0


def last_settled(memory: FleetState, settings: SchedulerSettings) -> int:
    """Returns the last round, or decision, whose turns can no longer change: nobody may report late, and none lasts."""
    last = memory.fleet.round - settings.late_turns
    return min(last, *(decision - 1 for decision in memory.running_turns)) if memory.running_turns else last


def drop_some(changes: Changes, settings: SchedulerSettings, round: int) -> bool:
    """Deletes some of what is no longer kept, which takes milliseconds; returns whether any is left.

    Args:
        changes: An open transaction.
        settings: The settings of the fleet.
        round: The newest round.
    """
    is_left = trim(changes.db)
    if settings.offer_retention is not None:
        is_left |= changes.drop_offers(settings.offer_retention, round, now())
    return is_left


def summarize_at_once(journal: Journal, settings: SchedulerSettings, memory: FleetState) -> None:
    """Replaces all rounds that are no longer kept by a summary, also if no snapshot was kept for it.

    Args:
        journal: The journal of the fleet.
        settings: Its settings, which state for how long rounds are kept.
        memory: Its present state.
    """
    last = _last_dropped_round(journal, settings, memory)
    if last <= journal.summary().round:
        return
    with journal.reading() as db:
        is_computable = has_all_availability(db)
    if not is_computable:  # a large fleet: one of its snapshots becomes the summary in time
        log.info("%s: round %s is kept for now, because the state after it cannot be computed", journal.location, last)
        return
    event, fleet = load_after(journal, last)
    state = FleetState(fleet, None, 0).state(with_contexts=settings.persist_statuses)
    with journal.writing() as changes:
        changes.put_summary(event, state, now())


def _last_dropped_round(journal: Journal, settings: SchedulerSettings, memory: FleetState) -> int:
    """Returns the last round that is no longer kept; 0 if all are. Without rounds, it is that of a call of `fill`."""
    retention, newest = settings.round_retention, memory.fleet.round
    if retention is None:
        return 0
    settled = last_settled(memory, settings)
    if retention.rounds is not None and settings.has_rounds:
        return max(min(settled, newest - retention.rounds), 0)
    dropped, at = 0, now()
    for _, kind, data, _ in journal.events():
        if kind not in (CLOSE, FILL):
            continue
        if kind == FILL:
            filled = unpack_fill(data, None)
            last, closed_at = filled.last, filled.at
        else:
            closed, header = unpack_closed(data, None)
            last, closed_at = closed.round, header["closed"]
        if last > settled or not retention.is_over(last, closed_at, newest, at):
            break
        dropped = last
    return dropped


def summary_without(journal: Journal, row: int, name: str) -> dict[str, Any] | None:
    """Returns the state of the summary without what a client reported; None if the client is not in it.

    Args:
        journal: The journal of the fleet, before the client is forgotten.
        row: The row of the client.
        name: The name that replaces its id.
    """
    with journal.reading() as db:
        first = first_state(db)
        if first is None or row >= int(first.state["clients"]):
            return None
        _, fleet = start_from(journal, first)
        fleet.erase(row, name)  # it was retired later
        return FleetState(fleet, None, 0).state()
