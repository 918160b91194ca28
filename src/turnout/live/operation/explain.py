"""Explains why a client of a live fleet was selected in a round, or was not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from turnout.errors import StoreError, UnknownTurnError
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.live.journal.journal import Journal, settings_before
from turnout.live.journal.replay import FleetState, load_before
from turnout.live.journal.turns import read_offer, read_offer_of_decision
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.offering import MAX_RECORDED_CLIENTS
from turnout.live.turns.records import RecordedOffer
from turnout.live.turns.rounds.choosing import places_of_selection
from turnout.live.turns.state import Fleet
from turnout.policies.explain.explanation import Explanation, SelectionOutcome, explain_choice, inexact_explanation


def explain_client(
    journal: Journal, state: FleetState, settings: SchedulerSettings, row: int, number: int
) -> Explanation:
    """Explains why a client was selected in a round, or was not.

    For a closed round, the state before its selection is computed from the journal and the selection is repeated. The
    explanation is exact only if that gives the recorded cohort with the recorded reasons.

    Args:
        journal: The journal of the fleet.
        state: The current state of the fleet, from which the open round is explained.
        settings: The settings of the fleet.
        row: The row of the client.
        number: The number of the round.
    """
    newest, unit = state.newest_round, settings.unit
    if not newest:
        begun = "no round was opened" if settings.has_rounds else "no turn was given"
        raise UnknownTurnError(f"there is no {unit} {number} to explain: {begun} yet")
    if not 1 <= number <= newest:
        raise UnknownTurnError(f"there is no {unit} {number} to explain: choose one from 1 to {newest}")
    ids = state.fleet.ids
    with journal.reading() as db:
        recorded = (read_offer if settings.has_rounds else read_offer_of_decision)(db, number)
        selection = _recorded_selection(journal, recorded, number)
        try:
            fleet = state.fleet if number > state.fleet.round else load_before(journal, number)
        except StoreError as error:
            why = str(error)
            return inexact_explanation(state.fleet.policy, selection, row, ids.__getitem__, why, unit=unit)
    was_available = row in selection.clients or (recorded is not None and bool(recorded.available[row : row + 1].any()))
    excluded = _explain_exclusion(fleet, selection, row, ids, was_available=was_available)
    if excluded is not None:
        return excluded
    contexts = None if recorded is None else recorded.whole_contexts()
    if recorded is None or contexts is None:
        why = _why_not_recorded(recorded, settings)
        return inexact_explanation(fleet.policy, selection, row, ids.__getitem__, why, unit=unit)
    places: int | None = 1
    if settings.has_rounds:
        overcommit = settings_before(journal, number).get("overcommit", 1.0)
        places = places_of_selection(fleet.policy.cohort_size, overcommit, len(selection.clients))
    offer = RoundOffer(number, recorded.available, contexts, places=places)
    return explain_choice(fleet.policy, offer, selection, row, ids.__getitem__, unit)


def _recorded_selection(journal: Journal, offer: RecordedOffer | None, number: int) -> Selection:
    """Returns the cohort of a round, with the reasons if its offer is recorded."""
    if offer is not None:
        return Selection(number, offer.rows, dict(offer.reasons))
    return Selection(number, np.array([turn.row for turn in journal.turns_of(number)], dtype=np.int64), {})


def _explain_exclusion(
    fleet: Fleet, selection: Selection, row: int, ids: list[str], *, was_available: bool
) -> Explanation | None:
    """Explains a client that was new, retired, training, resting or backed off; returns None for any other client.

    Args:
        fleet: The state before the selection.
        selection: The recorded selection.
        row: The row of the client.
        ids: The ids of all clients, by row.
        was_available: Whether the client could be selected.
    """
    outcome: SelectionOutcome
    if row >= len(fleet.ids):
        outcome, sentence = "not joined", f"had not joined the fleet before {fleet.unit} {selection.round}"
    elif (exclusion := fleet.exclusion(row, selection.round, was_available=was_available)) is not None:
        outcome, sentence = exclusion
    else:
        return None
    explanation = inexact_explanation(
        fleet.policy, selection, row, ids.__getitem__, "", outcome=outcome, unit=fleet.unit
    )
    return replace(explanation, sentence=f"{ids[row]} {sentence}.")


def _why_not_recorded(offer: RecordedOffer | None, settings: SchedulerSettings) -> str:
    if offer is None:
        dropped = "" if settings.keep_offers is None else f", is no longer kept (keep_offers={settings.keep_offers!r})"
        return (
            f"the offer of that round{dropped}{' or' if dropped else ''} is not recorded, because a client of the "
            "offer was forgotten since"
        )
    if not settings.persist_statuses:
        return "the statuses of clients are not persisted (persist_statuses=False)"
    return f"the fleet has more than {MAX_RECORDED_CLIENTS:,} clients, so only the selected clients are recorded"
