"""Client: all that is known of one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from turnout.dashboard.sources.base import Source
from turnout.dashboard.views.common import about, binned, flags_of, number, numbers, owed, promised
from turnout.dashboard.views.queues import debts_of, turns_and_presence
from turnout.dashboard.watch import Watch
from turnout.errors import ReportError
from turnout.scheduler import KINDS

NEWEST = 500


def client(watch: Watch, source: Source | None, *, wanted: str) -> dict[str, Any]:
    """History, availability, debts, and when its next turn may be expected."""
    if source is None:
        raise ReportError("there is no client yet: no run has begun")
    ledger = source.ledger
    row = source.row_of(wanted)
    rows = np.array([row])
    due, forfeited, _ = promised(ledger)
    debts = owed(ledger)
    counts, available, edges = turns_and_presence(ledger, rows)
    numbers_ = ledger.numbers
    came_back = ledger.history.reliability[row]
    rounds = ledger.round_column("rounds")
    return {
        "about": about(watch, source),
        "id": source.id_of(row),
        "turns": int(numbers_["turns"][row]),
        "share": number(ledger.shares()[row]),
        "promised": number(due[row]),
        "owed": number(debts[row]),
        "forfeited": number(forfeited[row]),
        "rank": int((debts > debts[row]).sum()) + 1 if math.isfinite(debts[row]) else None,
        "volunteered": int(numbers_["volunteered"][row]) if ledger.knows_available else None,
        "reliability": number(came_back),
        "mean_seconds": number(ledger.mean_seconds()[row]),
        "last_round": int(numbers_["last_round"][row]) or None,
        "joined": int(numbers_["joined"][row]),
        "flags": flags_of(source, rows)[0],
        "strip": {
            "x": rounds[edges[:-1]].tolist() if len(rounds) else [],
            "width": int(edges[1] - edges[0]) if len(edges) > 1 else 1,
            "available": None if available is None else numbers(available[:, 0]),
            "chosen": counts[:, 0].tolist(),
        },
        "times": _times(source, row),
        "debts": _debts(source, row),
        "next": _next(source, row),
    }


def _times(source: Source, row: int) -> dict[str, Any]:
    ledger = source.ledger
    mine = np.flatnonzero(ledger.turn_column("chosen") == row)[-NEWEST:]
    predicted, band = ledger.turn_column("predicted")[mine], ledger.turn_column("band")[mine]
    return {
        "round": ledger.round_of_each_turn[mine].tolist(),
        "seconds": numbers(ledger.turn_column("times")[mine]),
        "predicted": numbers(predicted),
        "low": numbers(np.maximum(predicted - band, 0.0)),
        "high": numbers(predicted + band),
        "outcome": [KINDS[kind] for kind in ledger.turn_column("kinds")[mine].tolist()],
    }


def _debts(source: Source, row: int) -> dict[str, Any] | None:
    ledger = source.ledger
    if ledger.queues is None:
        return None
    after, _ = debts_of(ledger, np.array([row]))
    if after is None or not len(after):
        return None
    x, (_, _, high) = binned(ledger.round_column("rounds")[-len(after) :], after[:, 0])
    return {"x": x, "owed": numbers(high)}


def _next(source: Source, row: int) -> str:
    """From its share so far; and at what it is promised."""
    ledger = source.ledger
    if ledger.retired[row]:
        return "It has left for good: no turn is to come."
    turns, rounds = int(ledger.numbers["turns"][row]), ledger.last - int(ledger.numbers["joined"][row])
    if rounds <= 0:
        return "It has just joined: nothing can be said yet."
    said = f"It had {turns:,} {'turn' if turns == 1 else 'turns'} in {rounds:,} rounds"
    if turns:
        every = rounds / turns
        since = ledger.last - int(ledger.numbers["last_round"][row])
        left = max(every - since, 0.0)
        said += f", one in {every:.1f}; the last was {_ago(since)}"
        said += (
            f", so the next may be expected in about {math.ceil(left):,}"
            if left >= 1
            else ", so the next may come at any time"
        )
    queues = ledger.queues
    if queues is not None and (rate := float(queues.guaranteed_rates[row])) > 0:
        whose = "it volunteers for" if queues.accrual == "available" else "there are"
        said += f". It is promised one in {1 / rate:.1f} of the rounds {whose}"
    return f"{said}."


def _ago(rounds: int) -> str:
    return (
        "in the newest round"
        if rounds == 0
        else "one round before the newest"
        if rounds == 1
        else f"{rounds:,} rounds ago"
    )
