"""Why a client of a live fleet was chosen in a round, or was not."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np

from turnout.errors import ReportError, StoreError
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.policies.explain.explanation import Explanation, explain_choice, inexact_explanation
from turnout.scheduler.features import Features
from turnout.scheduler.journal.journal import Journal
from turnout.scheduler.journal.reader import FleetReader
from turnout.scheduler.journal.replay import FleetState, load_before
from turnout.scheduler.records import RecordedOffer
from turnout.scheduler.rounds.state import Fleet
from turnout.scheduler.settings import SchedulerSettings


def explained(
    journal: Journal, memory: FleetState, settings: SchedulerSettings, features: Features, row: int, number: int
) -> Explanation:
    """Why the client of this row was chosen in a round or was not.

    The round that is open is explained from memory. For a closed one memory is folded again up to its choice, which is
    then made again: only if that gives the recorded choice, for the recorded reasons, is the answer exact.
    """
    newest = memory.fleet.round if memory.opened is None else memory.opened.round
    if not 1 <= number <= newest:
        raise ReportError(
            f"there is no round {number} to explain: {f'the newest is {newest}' if newest else 'none was'}"
        )
    ids = memory.fleet.ids
    with journal.reading():
        offered = journal.offered(number)
        selection = _selection(journal, offered, number)
        try:
            fleet = memory.fleet if number > memory.fleet.round else load_before(journal, settings, features, number)
        except StoreError as gone:
            return inexact_explanation(memory.fleet.policy, selection, row, ids.__getitem__, str(gone))
    absent = _absence(fleet, selection, row, ids)
    if absent is not None:
        return absent
    contexts = None if offered is None else offered.whole_contexts()
    if offered is None or contexts is None:
        return inexact_explanation(fleet.policy, selection, row, ids.__getitem__, _not_on_record(offered, settings))
    offer = RoundOffer(number, offered.available, contexts)
    return explain_choice(fleet.policy, offer, selection, row, ids.__getitem__)


def explain_closed_round(reader: FleetReader, fleet: Fleet, row: int, number: int) -> Explanation:
    """Explain a closed round with a state of the fleet that a follower has at hand, instead of loading it again."""
    with closing(Journal(reader.path, read_only=True)) as journal:
        return explained(journal, FleetState(fleet, None, 0), reader.settings, reader.features, row, number)


def _selection(journal: Journal, offered: RecordedOffer | None, number: int) -> Selection:
    """Who was chosen, with the reasons if they are on record."""
    if offered is not None:
        return Selection(number, offered.rows, dict(offered.reasons))
    return Selection(number, np.array([turn.row for turn in journal.turns_of(number)], dtype=np.int64), {})


def _absence(fleet: Fleet, selection: Selection, row: int, ids: list[str]) -> Explanation | None:
    """Why it could not be chosen at all, where that is so."""
    number, name = selection.round, ids.__getitem__
    if row >= len(fleet.ids):
        found = inexact_explanation(fleet.policy, selection, row, name, "", standing="not joined")
        return replace(found, sentence=f"{name(row)} had not joined yet in round {number}.")
    if fleet.numbers["retired"][row]:
        found = inexact_explanation(fleet.policy, selection, row, name, "", standing="retired")
        return replace(found, sentence=f"{name(row)} had left for good before round {number}.")
    last = int(fleet.numbers["rest_until"][row])
    if last > fleet.round:
        found = inexact_explanation(fleet.policy, selection, row, name, "", standing="resting")
        misses = int(fleet.numbers["misses"][row])
        after = "a miss" if misses == 1 else f"{misses} misses in a row"
        words = f"{name(row)} rested in round {number}, after {after}, up to and with round {last}."
        return replace(found, sentence=words)
    return None


def _not_on_record(offered: RecordedOffer | None, settings: SchedulerSettings) -> str:
    if offered is None:
        return (
            "what was offered in that round is not on record: an older turnout chose, or a client that volunteered was "
            "forgotten since"
        )
    return (
        f"the fleet has more than {settings.record_offers_up_to:,} clients (record_offers_up_to), so only the chosen "
        "are on record"
    )
