"""Turns without rounds: updates per second, the running turns, and one decision as a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np

from turnout.counting import pluralize
from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.columns import RUNNING
from turnout.dashboard.sources.ledger import Ledger
from turnout.dashboard.views.common import bin_edges, json_number, json_numbers, mean_of
from turnout.dashboard.watch import Watch
from turnout.kernel.arrays import FloatArray
from turnout.live._internals import ARRIVED, FAILED, KINDS, LATE

#: The number of turns that the page lists, the oldest ones.
SHOWN_RUNNING_TURNS = 50
#: The number of decisions of which the recent rate is that of their updates: at least this many per slot.
RECENT_PER_SLOT = 20
RATE_POINTS = 60
OUT = "out"


def kind_name(kind: int) -> str:
    """Returns the outcome of a turn; "out" if it has not ended yet."""
    return OUT if kind == RUNNING else KINDS[kind]


def slot_metrics(watch: Watch, source: Source) -> dict[str, Any] | None:
    """Returns the rate of updates, their staleness and the comparison with random selection; None for rounds."""
    ledger, slots = source.ledger, source.ledger.slots
    if slots is None:
        return None
    arrivals, started = arrival_times(ledger), ledger.round_column("started")
    stale = ledger.round_column("staleness")
    known = stale[np.isfinite(stale)]
    rate, recent = rate_of(ledger), rate_of(ledger, RECENT_PER_SLOT * slots)
    return {
        "of": slots,
        "updates": len(arrivals),
        "rate": json_number(rate),
        "recent_rate": json_number(recent),
        "recent_of": min(RECENT_PER_SLOT * slots, len(started)),
        "elapsed": json_number(started[-1] - started[0]) if len(started) else None,
        "staleness": mean_of(known),
        "stale_in": ledger.stale_in,
        "largest_staleness": json_number(known.max()) if len(known) else None,
        "random": _random_rate(watch, source, slots, rate),
        "curve": _rate_curve(ledger, arrivals),
    }


def running(source: Source) -> list[dict[str, Any]]:
    """Returns the running turns of a live fleet, the oldest first."""
    return [
        {
            "turn": running_turn.decision,
            "id": turn.id,
            "age": json_number(running_turn.elapsed),
            "deadline": json_number(running_turn.deadline),
            "outcome": turn.kind or OUT,
            "price": json_number(running_turn.reasons.get("price")),
            "behind": json_number(running_turn.reasons.get("behind")),
        }
        for running_turn, turn in source.running()[:SHOWN_RUNNING_TURNS]
    ]


def arrival_times(ledger: Ledger) -> FloatArray:
    """Returns when the updates arrived, in order."""
    arrived = ledger.turn_column("kinds") == ARRIVED
    times: FloatArray = np.sort(ledger.round_column("finished")[arrived])
    return times


def rate_of(ledger: Ledger, decisions: int | None = None) -> float:
    """Returns the updates per second until the last turn was given, from the first kept turn on; NaN if unknown.

    Args:
        ledger: The ledger.
        decisions: If given, only the time since this many decisions counts.
    """
    started = ledger.round_column("started")[-(decisions or 0) :]
    if len(started) < 2 or started[-1] <= started[0]:
        return float("nan")
    arrivals = arrival_times(ledger)
    first, last = np.searchsorted(arrivals, [started[0], started[-1]], side="right")
    return float((last - first) / (started[-1] - started[0]))


def _rate_curve(ledger: Ledger, arrivals: FloatArray) -> dict[str, Any]:
    """Returns the updates per second between decisions, by the last decision of each interval."""
    started, decisions = ledger.round_column("started"), ledger.round_column("rounds")
    if len(started) < 2:
        return {"x": [], "rate": []}
    ends = bin_edges(len(started), RATE_POINTS)
    ends[-1] -= 1
    ends = np.unique(ends)
    counts = np.diff(np.searchsorted(arrivals, started[ends], side="right"))
    seconds = np.diff(started[ends])
    rates = np.divide(counts, seconds, out=np.full(len(seconds), np.nan), where=seconds > 0)
    return {"x": decisions[ends[1:]].tolist(), "rate": json_numbers(rates)}


def _random_rate(watch: Watch, source: Source, slots: int, rate: float) -> dict[str, Any] | None:
    """Returns the rate of random selection, from runs of this store or estimated from known times."""
    ledger = source.ledger
    if source.policy == "random" or not np.isfinite(rate):
        return None
    recorded = watch.random_rounds(source)
    if recorded is not None and recorded[0] > 0:
        started, (between, runs) = ledger.round_column("started"), recorded
        times = between * len(started) / float(started[-1])
        how = f"mean of {pluralize(runs, 'run')} with random selection in this store, over the same number of turns"
    else:
        means, seconds = ledger.mean_seconds(), ledger.round_column("seconds")
        known, ended = means[np.isfinite(means)], seconds[np.isfinite(seconds)]
        if len(known) < 2 * slots or not ended.any():
            return None
        # As long as all slots are in use, the rate is their number divided by the mean turn.
        times = float(known.mean() / ended.mean())
        how = f"estimated: with turns of all {len(known):,} clients with known times equally often"
    return {"rate": json_number(rate / times), "times": json_number(times), "how": how}


def turn_of(source: Source, index: int) -> dict[str, Any] | None:
    """Returns the client, the outcome, the predicted time and the staleness of a turn without rounds."""
    ledger = source.ledger
    if ledger.slots is None:
        return None
    return {
        "id": source.id_of(int(ledger.turn_column("chosen")[index])),
        "outcome": kind_name(int(ledger.turn_column("kinds")[index])),
        "predicted": json_number(ledger.turn_column("predicted")[index]),
        "staleness": json_number(ledger.round_column("staleness")[index]),
        "stale_in": ledger.stale_in,
    }


def decision_summary(row: dict[str, Any]) -> str:
    """Returns what a decision was and what came of it; `row` is the decision as the list has it."""
    turn, seconds = row["turn"], row["seconds"]
    text = f"{turn['id']} was given a turn"
    text += (
        f", as one of {pluralize(row['available_count'], 'idle client')}" if row["available_count"] is not None else ""
    )
    if turn["outcome"] == OUT:
        return f"{text}. It is running{'' if seconds is None else f' since {seconds:.1f} s'}."
    if turn["outcome"] == KINDS[FAILED]:
        return f"{text}. It failed after {seconds:.2f} s."
    if turn["outcome"] == KINDS[LATE]:
        return f"{text}. It was late: its deadline passed after {seconds:.2f} s."
    text += f". Its update arrived after {seconds:.2f} s"
    if turn["staleness"] is not None:
        text += f"; its staleness was {turn['staleness']:g} {turn['stale_in']}"
    if turn["predicted"] is not None:
        text += f". The model had predicted {turn['predicted']:.2f} s"
    return f"{text}."
