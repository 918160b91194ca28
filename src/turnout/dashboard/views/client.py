"""Client: the data of one client."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from turnout.counting import pluralize
from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.columns import RUNNING
from turnout.dashboard.views.common import (
    OWED_WITH_SURPLUS,
    ClientPromises,
    Text,
    promises_of,
)
from turnout.dashboard.views.fairness import client_columns, client_rows
from turnout.dashboard.views.queues import turn_bins, turns_and_availability
from turnout.live._internals import KINDS
from turnout.policies.explain.explanation import Explanation

SHOWN_TURNS = 500
#: When a client accrues turns, in words, for rounds and for decisions.
AVAILABLE = {"round": "in which it is available", "decision": "while it is there"}


def client(source: Source, *, id: Text) -> dict[str, Any]:
    """Returns the turns, availability and times of a client, and how it stands with its promise."""
    ledger = source.ledger
    row = source.row_of(id)
    rows = np.array([row])
    promises = promises_of(ledger)
    debts = promises.owed
    counts, available, resting, edges = turns_and_availability(ledger, rows)
    (listed,) = client_rows(source, rows, client_columns(ledger))
    return {
        **listed,
        "promise_text": _promise_text(source, promises, row),
        "rank": int((debts > debts[row]).sum()) + 1 if math.isfinite(debts[row]) else None,
        "joined": int(ledger.counters["joined"][row]),
        "strip": {
            **turn_bins(ledger, edges),
            "available": None if available is None else available[:, 0],
            "resting": None if resting is None else resting[:, 0],
            "chosen": counts[:, 0],
        },
        "times": _times(source, row),
        "next": _record_in_words(source, row),
    }


def _times(source: Source, row: int) -> dict[str, Any]:
    ledger = source.ledger
    is_over = ledger.turn_column("kinds") != RUNNING
    indices = np.flatnonzero((ledger.turn_column("chosen") == row) & is_over)[-SHOWN_TURNS:]
    predicted, band = ledger.turn_column("predicted")[indices], ledger.turn_column("band")[indices]
    return {
        "round": ledger.round_of_each_turn[indices],
        "seconds": ledger.turn_column("times")[indices],
        "predicted": predicted,
        "low": np.maximum(predicted - band, 0.0),
        "high": predicted + band,
        "outcome": [KINDS[kind] for kind in ledger.turn_column("kinds")[indices].tolist()],
    }


def next_turn(explanation: Explanation) -> str | None:
    """Returns when the client's next turn is due, as its explanation of a round says; None if that says nothing."""
    unit = explanation.time_unit
    number = f"{unit} {explanation.round:,}"
    if explanation.outcome == "chosen":
        return f"It was chosen in {number}; how long it waits is known after a {unit} without it."
    if explanation.outcome != "not chosen":
        return None
    if explanation.rounds_until is None:
        return f"How long it waits for its next turn is unknown; the explanation of {number} says why."
    rounds = pluralize(explanation.rounds_until, unit)
    return (
        f"Its next turn comes in about {rounds}, counted from {number}, if it is available in each "
        "and nothing else changes."
    )


def _promise_text(source: Source, promises: ClientPromises, row: int) -> str | None:
    """Returns the status of one client as a sentence; None if the policy guarantees nothing."""
    status, certified = promises.status(row), source.ledger.certificate()
    if status is None or certified is None:
        return None
    behind, tolerance = float(promises.behind[row]), float(certified.tolerance)
    distance = f"{abs(behind):.2f} turns {'behind' if behind >= 0 else 'ahead of'} its promise"
    text = f"{status}: {source.name_of(row)} is {distance}"
    if status == "broken":
        since = 0 if certified.broken_since is None else int(certified.broken_since[row])
        text += f", beyond the tolerance of {tolerance:g}{f', since {source.ledger.unit} {since:,}' if since else ''}"
    elif status == "behind":
        text += f", within the tolerance of {tolerance:g}"
    resting = int(source.ledger.counters["backed_off"][row])
    if resting and source.ledger.share_accrual == "available":
        text += f", without {source.ledger.unit.pluralize(resting)} of back-off, in which it earned nothing"
    if promises.unserved[row]:
        text += f"; it was there for too few {source.ledger.unit}s to be served"
    if promises.owed_with_surplus[row]:
        text += f". It is owed {promises.owed[row]:.2f} turns all the same: {OWED_WITH_SURPLUS}"
    return f"{text}."


def _record_in_words(source: Source, row: int) -> str:
    """States how often the client was selected, when it was last, its guaranteed rate, and until when it rests."""
    ledger, unit = source.ledger, source.ledger.unit
    if ledger.retired[row]:
        return "This client has retired and gets no more turns."
    turns, rounds = int(ledger.counters["turns"][row]), ledger.last_round - int(ledger.counters["joined"][row])
    if rounds <= 0:
        return "This client has just joined."
    text = f"This client was selected {pluralize(turns, 'time')} in {pluralize(rounds, unit)}"
    if turns:
        interval = rounds / turns
        since = ledger.last_round - int(ledger.counters["last_round"][row])
        text += f", once every {interval:.1f} {unit}s, last {_rounds_ago(since, unit)}"
    certified = ledger.certificate()
    if certified is not None and (counted := int(certified.turns[row])) != turns:
        count = "counts as a turn" if counted == 1 else "count as turns"
        text += f"; {counted:,} of these {count}, because {pluralize(turns - counted, 'update')} did not arrive in time"
    queues = ledger.queues
    if queues is not None and (rate := float(queues.guaranteed_rates[row])) > 0:
        rounds_counted = f"{unit}s {AVAILABLE[unit]}" if queues.accrual == "available" else f"{unit}s"
        text += f". Its guarantee is one turn every {1 / rate:.1f} {rounds_counted}"
    if (number := ledger.turn_running(row)) is not None:
        text += f". Its turn of decision {number:,} is running"
    if until := source.backed_off_until(row):
        text += f". It missed turns and is backed off: its next turn does not come before {unit} {until + 1:,}"
    return f"{text}."


def _rounds_ago(rounds: int, unit: str) -> str:
    if rounds == 0:
        return "in the last closed round" if unit == "round" else f"in the last {unit}"
    return f"{pluralize(rounds, unit)} ago"
