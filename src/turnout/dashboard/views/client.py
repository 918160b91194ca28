"""Client: the data of one client."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from turnout.dashboard.sources.base import Source
from turnout.dashboard.views.common import (
    about,
    bin_series,
    count_of,
    flag_names,
    json_number,
    json_numbers,
    owed,
    promised,
)
from turnout.dashboard.views.queues import debt_history, turns_and_availability
from turnout.dashboard.watch import Watch
from turnout.errors import ReportError
from turnout.scheduler import KINDS

SHOWN_TURNS = 500


def client(watch: Watch, source: Source | None, *, client_id: str) -> dict[str, Any]:
    """Returns the turns, availability, times and debts of a client, and an estimate of its next turn."""
    if source is None:
        raise ReportError("there is no client yet: this store has no run")
    ledger = source.ledger
    row = source.row_of(client_id)
    rows = np.array([row])
    promised_turns, forfeited, _ = promised(ledger)
    debts = owed(ledger)
    counts, available, edges = turns_and_availability(ledger, rows)
    counters = ledger.counters
    rounds = ledger.round_column("rounds")
    return {
        "about": about(watch, source),
        "id": source.id_of(row),
        "turns": int(counters["turns"][row]),
        "share": json_number(ledger.shares()[row]),
        "promised": json_number(promised_turns[row]),
        "owed": json_number(debts[row]),
        "forfeited": json_number(forfeited[row]),
        "rank": int((debts > debts[row]).sum()) + 1 if math.isfinite(debts[row]) else None,
        "volunteered": int(counters["volunteered"][row]) if ledger.knows_availability else None,
        "reliability": json_number(ledger.history.reliability[row]),
        "mean_seconds": json_number(ledger.mean_seconds()[row]),
        "last_round": int(counters["last_round"][row]) or None,
        "joined": int(counters["joined"][row]),
        "flags": flag_names(source, rows)[0],
        "strip": {
            "x": rounds[edges[:-1]].tolist() if len(rounds) else [],
            "width": int(edges[1] - edges[0]) if len(edges) > 1 else 1,
            "available": None if available is None else json_numbers(available[:, 0]),
            "chosen": counts[:, 0].tolist(),
        },
        "times": _times(source, row),
        "debts": _debts(source, row),
        "next": _next_turn(source, row),
    }


def _times(source: Source, row: int) -> dict[str, Any]:
    ledger = source.ledger
    indices = np.flatnonzero(ledger.turn_column("chosen") == row)[-SHOWN_TURNS:]
    predicted, band = ledger.turn_column("predicted")[indices], ledger.turn_column("band")[indices]
    return {
        "round": ledger.round_of_each_turn[indices].tolist(),
        "seconds": json_numbers(ledger.turn_column("times")[indices]),
        "predicted": json_numbers(predicted),
        "low": json_numbers(np.maximum(predicted - band, 0.0)),
        "high": json_numbers(predicted + band),
        "outcome": [KINDS[kind] for kind in ledger.turn_column("kinds")[indices].tolist()],
    }


def _debts(source: Source, row: int) -> dict[str, Any] | None:
    ledger = source.ledger
    if ledger.queues is None:
        return None
    debts, _ = debt_history(ledger, np.array([row]))
    if debts is None or not len(debts):
        return None
    x, (_, _, high) = bin_series(ledger.round_column("rounds")[-len(debts) :], debts[:, 0])
    return {"x": x, "owed": json_numbers(high)}


def _next_turn(source: Source, row: int) -> str:
    """Estimates the next turn from the client's share so far, and states its guaranteed rate."""
    ledger = source.ledger
    if ledger.retired[row]:
        return "This client has retired and gets no more turns."
    turns, rounds = int(ledger.counters["turns"][row]), ledger.last_round - int(ledger.counters["joined"][row])
    if rounds <= 0:
        return "This client has just joined, so its next turn cannot be estimated yet."
    text = f"This client had {count_of(turns, 'turn')} in {count_of(rounds, 'round')}"
    if turns:
        interval = rounds / turns
        since = ledger.last_round - int(ledger.counters["last_round"][row])
        remaining = max(interval - since, 0.0)
        text += f", one every {interval:.1f} rounds; the last was {_rounds_ago(since)}"
        text += (
            f". Its next turn is expected in about {count_of(math.ceil(remaining), 'round')}"
            if remaining >= 1
            else ". Its next turn is due"
        )
    queues = ledger.queues
    if queues is not None and (rate := float(queues.guaranteed_rates[row])) > 0:
        rounds_counted = "rounds in which it is available" if queues.accrual == "available" else "rounds"
        text += f". Its guarantee is one turn every {1 / rate:.1f} {rounds_counted}"
    return f"{text}."


def _rounds_ago(rounds: int) -> str:
    return "in the last closed round" if rounds == 0 else f"{count_of(rounds, 'round')} ago"
