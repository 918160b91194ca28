"""Explains why a client of a live fleet was selected in a round, or was not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from turnout.errors import ReportError, StoreError
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.live.features import Features
from turnout.live.identifiers import as_round
from turnout.live.journal.amendments import settings_before
from turnout.live.journal.journal import Journal
from turnout.live.journal.replay import FleetState, load_before
from turnout.live.journal.turns import read_offer, read_offer_of_decision
from turnout.live.reader import FleetReader
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.records import RecordedOffer
from turnout.live.turns.rounds.choosing import places_of_selection
from turnout.live.turns.rounds.state import Fleet
from turnout.live.turns.slots.standing import expected_staleness, too_stale
from turnout.live.turns.slots.state import SlotFleet
from turnout.policies.explain.explanation import Explanation, explain_choice, inexact_explanation
from turnout.policies.explain.sentences import ROUNDS, SLOTS, Wording


def explain_client(
    journal: Journal, state: FleetState, settings: SchedulerSettings, features: Features, row: int, number: int
) -> Explanation:
    """Explains why a client was selected in a round, or was not.

    For a closed round, the state before its selection is computed from the journal and the selection is repeated. The
    explanation is exact only if that gives the recorded cohort with the recorded reasons.

    Args:
        journal: The journal of the fleet.
        state: The current state of the fleet, from which the open round is explained.
        settings: The settings of the fleet.
        features: The features of the fleet.
        row: The row of the client.
        number: The number of the round.
    """
    newest = state.fleet.round if state.opened is None else state.opened.round
    wording = ROUNDS if settings.concurrency is None else SLOTS
    if not newest:
        begun = "no round was opened" if settings.concurrency is None else "no turn was given"
        raise ReportError(f"there is no {wording.moment} {number} to explain: {begun} yet")
    if not 1 <= number <= newest:
        raise ReportError(f"there is no {wording.moment} {number} to explain: choose one from 1 to {newest}")
    ids = state.fleet.ids
    with journal.reading() as db:
        recorded = (read_offer if settings.concurrency is None else read_offer_of_decision)(db, number)
        selection = _recorded_selection(journal, recorded, number)
        try:
            fleet = state.fleet if number > state.fleet.round else load_before(journal, settings, features, number)
        except StoreError as error:
            why = str(error)
            return inexact_explanation(state.fleet.policy, selection, row, ids.__getitem__, why, wording=wording)
    not_selectable = _explain_not_selectable(fleet, selection, row, ids, wording) or _explain_staleness(
        fleet, settings, recorded, selection, row, ids
    )
    if not_selectable is not None:
        return not_selectable
    contexts = None if recorded is None else recorded.whole_contexts()
    if recorded is None or contexts is None:
        why = _why_not_recorded(recorded, settings)
        return inexact_explanation(fleet.policy, selection, row, ids.__getitem__, why, wording=wording)
    places: int | None = 1
    if settings.concurrency is None:
        overcommit = settings_before(journal, number).get("overcommit", 1.0)
        places = places_of_selection(fleet.policy.cohort_size, overcommit, len(selection.clients))
    offer = RoundOffer(number, recorded.available, contexts, places=places)
    return explain_choice(fleet.policy, offer, selection, row, ids.__getitem__, wording)


def explain(reader: FleetReader, client: str, number: int | None = None, followed: Fleet | None = None) -> Explanation:
    """Explains why a client was selected in a round, or what it lacked, from a file that is only read.

    Args:
        reader: The reader of the fleet.
        client: The id of the client.
        number: The number of the round; by default the latest.
        followed: The state of a follower, from which closed rounds are explained without loading the state again.
    """
    with reader.reading():
        is_closed = followed is not None and number is not None and number <= followed.round
        state = FleetState(followed, None, 0) if followed is not None and is_closed else reader.state()
        if client not in state.fleet.rows:
            raise ReportError(f"there is no client {client!r} in {reader.path}: check the id")
        newest = state.fleet.round if state.opened is None else state.opened.round
        return explain_client(
            reader.journal,
            state,
            reader.settings,
            reader.features,
            state.fleet.rows[client],
            newest if number is None else as_round(number),
        )


def _recorded_selection(journal: Journal, offer: RecordedOffer | None, number: int) -> Selection:
    """Returns the cohort of a round, with the reasons if its offer is recorded."""
    if offer is not None:
        return Selection(number, offer.rows, dict(offer.reasons))
    return Selection(number, np.array([turn.row for turn in journal.turns_of(number)], dtype=np.int64), {})


def _explain_not_selectable(
    fleet: Fleet, selection: Selection, row: int, ids: list[str], wording: Wording
) -> Explanation | None:
    """Explains a client that was new, retired, training, resting or backed off; returns None for any other client.

    Args:
        fleet: The state before the selection.
        selection: The recorded selection.
        row: The row of the client.
        ids: The ids of all clients, by row.
        wording: The nouns of the sentence.
    """
    number, name, moment = f"{wording.moment} {selection.round}", ids.__getitem__, wording.moment
    if row >= len(fleet.ids):
        explanation = inexact_explanation(
            fleet.policy, selection, row, name, "", standing="not joined", wording=wording
        )
        return replace(explanation, sentence=f"{name(row)} had not joined the fleet before {number}.")
    if fleet.counters.retired[row]:
        explanation = inexact_explanation(fleet.policy, selection, row, name, "", standing="retired", wording=wording)
        return replace(explanation, sentence=f"{name(row)} was retired before {number}.")
    if isinstance(fleet, SlotFleet) and (since := fleet.in_flight.decision_of(row)):
        explanation = inexact_explanation(fleet.policy, selection, row, name, "", standing="training", wording=SLOTS)
        return replace(explanation, sentence=f"{name(row)} was training, in its turn of decision {since}.")
    if isinstance(fleet, SlotFleet) and row not in selection.clients and fleet.rest_left(fleet.called)[row]:
        explanation = inexact_explanation(fleet.policy, selection, row, name, "", standing="resting", wording=SLOTS)
        ago = fleet.called - float(fleet.given[row])
        why = f"its last turn began {ago:.3g} s before, and it is given at most one in {fleet.rest_seconds:g} s"
        return replace(explanation, sentence=f"{name(row)} rested in {number}: {why}.")
    if fleet.counters.backing_off(fleet.round)[row] and row not in selection.clients:
        explanation = inexact_explanation(fleet.policy, selection, row, name, "", standing="resting", wording=wording)
        misses, last = int(fleet.counters.misses[row]), int(fleet.counters.backoff_until[row])
        after = "a miss" if misses == 1 else f"{misses} consecutive misses"
        sentence = f"{name(row)} was backed off in {number} after {after}, up to and including {moment} {last}."
        return replace(explanation, sentence=sentence)
    return None


def _explain_staleness(
    fleet: Fleet,
    settings: SchedulerSettings,
    offer: RecordedOffer | None,
    selection: Selection,
    row: int,
    ids: list[str],
) -> Explanation | None:
    """Explains a client that was not offered because its update would have been too old; returns None for any other.

    Args:
        fleet: The state before the decision.
        settings: The settings of the fleet.
        offer: The recorded offer.
        selection: The recorded selection.
        row: The row of the client.
        ids: The ids of the clients.
    """
    if not isinstance(fleet, SlotFleet) or settings.max_staleness is None or settings.buffer is None:
        return None
    if offer is None or offer.contexts is None or offer.available[row] or not too_stale(fleet, settings)[row]:
        return None
    name = ids.__getitem__
    explanation = inexact_explanation(fleet.policy, selection, row, name, "", standing="excluded", wording=SLOTS)
    versions = float(expected_staleness(fleet, settings.buffer)[row])
    sentence = (
        f"{ids[row]} was not offered the turn of decision {selection.round}: during its turn of about "
        f"{float(fleet.history.typical_seconds[row]):.3g} s the server makes {versions:.1f} versions, more than "
        f"max_staleness={settings.max_staleness:g}, and it was less than half as far behind as it may be."
    )
    return replace(explanation, sentence=sentence)


def _why_not_recorded(offer: RecordedOffer | None, settings: SchedulerSettings) -> str:
    if offer is None:
        dropped = "" if settings.keep_offers is None else f", is no longer kept (keep_offers={settings.keep_offers!r})"
        return (
            f"the offer of that round{dropped}{' or' if dropped else ''} is not recorded, because a client of the "
            "offer was forgotten since"
        )
    if not settings.persist_statuses:
        return "the statuses of clients are not persisted (persist_statuses=False)"
    return (
        f"the fleet has more than {settings.record_offers_up_to:,} clients (record_offers_up_to), so only the selected "
        "clients are recorded"
    )
