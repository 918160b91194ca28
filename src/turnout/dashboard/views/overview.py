"""Overview: the state of the run or fleet, and warnings."""

from __future__ import annotations

from typing import Any

import numpy as np

from turnout.counting import pluralize
from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.ledger import Ledger
from turnout.dashboard.views.common import (
    ClientPromises,
    Since,
    bin_edges,
    bin_series,
    certificate,
    first_since,
    flags,
    mean_of,
    promises_of,
    tolerance_of,
)
from turnout.dashboard.views.rounds import OUT
from turnout.dashboard.watch import Watch
from turnout.kernel.arrays import FloatArray
from turnout.lab.analysis.metrics import jain_index
from turnout.live._internals import ARRIVED, KINDS, MISSED, RETURNED

RECENT_ROUNDS = 50
#: The number of running turns that the page lists, the oldest ones.
SHOWN_RUNNING_TURNS = 50
#: The number of decisions of which the recent rate is that of their updates: at least this many per slot.
RECENT_PER_SLOT = 20
RATE_POINTS = 60
SHOWN_CLIENTS = 8
SHOWN_EVENTS = 12
MAX_NAMED_CLIENTS = 3
#: The warning of a flag for one client, which the page shows after the client's id, and for several clients.
WARNINGS = {
    "context": (
        "Its context does not explain its exchange times: check its sensors and its software.",
        "The contexts that {} report do not explain their exchange times: check their sensors and their software.",
    ),
    "changed": ("Its exchange times have changed recently.", "The exchange times of {} have changed recently."),
    "rarely_available": (
        "It is available too rarely for its guarantee: lower guaranteed_rate, or set accrual='available'.",
        "{} are available too rarely for their guarantees: lower guaranteed_rate, or set accrual='available'.",
    ),
}


def overview(watch: Watch, source: Source, *, since: Since = None) -> dict[str, Any]:
    """Returns the current round, durations compared with random selection, the promise and warnings."""
    ledger = source.ledger
    seconds = ledger.round_column("seconds")
    first = first_since(ledger, since)
    x, (mean, low, high) = bin_series(ledger.round_column("rounds"), seconds, first=first)
    seconds = seconds[np.isfinite(seconds)]  # without rounds, turns may be running
    shares, promises, least = ledger.shares(), promises_of(ledger), ledger.least_served()
    summary = ledger.promise_summary()
    worst = None if summary is None else summary.worst
    sizes = np.diff(ledger.starts)
    available_count = ledger.round_column("available_count")
    known = available_count[available_count >= 0]
    return {
        "round": ledger.last_round,
        "open": _open_round(source),
        "mean_round": mean_of(seconds),
        "recent_round": mean_of(seconds[-RECENT_ROUNDS:]),
        "recent_of": min(RECENT_ROUNDS, len(seconds)),
        "p95_round": np.percentile(seconds, 95) if len(seconds) else None,
        "total_time": seconds.sum(),
        "available_count": mean_of(known),
        "cohort": mean_of(sizes),
        "slots": _slot_metrics(source, first),
        "running": _running(source),
        "least_share": None if least is None else shares[least],
        "least": None if least is None else {"id": source.id_of(least)},
        "jain": jain_index(ledger.counters["turns"]) if ledger.clients else None,
        "worst": None if worst is None else _behind_row(source, worst, promises, shares),
        "rounds": {"x": x, "mean": mean, "low": low, "high": high},
        "shortfall": shortfall_over_time(ledger, first),
        "outcomes": outcomes(ledger),
        "is_attended": None if source.run is not None or watch.kind != "fleet" else watch.writer is not None,
        "events": source.events(SHOWN_EVENTS),
        "warnings": _warnings(source),
        "behind": _furthest_behind(source, promises, shares),
    }


def shortfall_over_time(ledger: Ledger, first: int) -> dict[str, Any] | None:
    """Returns by round how far the client that is furthest behind is behind; None if that is not known."""
    series = ledger.fairness_series
    if not np.isfinite(series["behind"]).any():
        return None
    x, (_, _, high) = bin_series(series["rounds"].astype(np.int64), series["behind"], first=first)
    return {"x": x, "largest": high, "ever": np.nanmax(series["behind"]), "tolerance": tolerance_of(ledger)}


def outcomes(ledger: Ledger) -> dict[str, int]:
    """Returns the number of turns by outcome, also of rounds that are no longer kept."""
    counts = np.bincount(ledger.turn_column("kinds"), minlength=len(KINDS))[: len(KINDS)] + ledger.dropped_outcomes
    counted = zip(KINDS, counts.tolist(), strict=True)
    return {kind: count for kind, count in counted if count or kind == KINDS[ARRIVED]}


def _open_round(source: Source) -> dict[str, Any] | None:
    current = source.open_round()
    if current is None:
        return None
    opened, turns = current
    kinds = [turn.kind for turn in turns]
    return {
        "round": opened.round,
        "elapsed": opened.elapsed,
        "deadline": opened.deadline,
        "target_size": opened.target_size,
        "out": kinds.count(None),
        "back": sum(map(kinds.count, RETURNED)),
        "failed": sum(map(kinds.count, MISSED)),
    }


def _furthest_behind(source: Source, promises: ClientPromises, shares: FloatArray) -> list[dict[str, Any]]:
    """Returns the clients that are furthest behind their promise."""
    behind = np.where(source.ledger.retired, -np.inf, promises.behind)
    rows = np.argsort(-behind, kind="stable")[:SHOWN_CLIENTS]
    return [_behind_row(source, row, promises, shares) for row in rows.tolist() if behind[row] > 0]


def _behind_row(source: Source, row: int, promises: ClientPromises, shares: FloatArray) -> dict[str, Any]:
    return {
        "id": source.id_of(row),
        "status": promises.status(row),
        "behind": promises.behind[row],
        "turns": promises.turns[row],
        "promised": promises.promised[row],
        "share": shares[row],
    }


def _warnings(source: Source) -> list[dict[str, Any]]:
    ledger, warnings = source.ledger, []
    checked = certificate(source)
    if checked["status"] == "broken":
        warnings.append({"level": "error", "text": f"The promise is {checked['text']}", "id": None})
    for flag, flagged in flags(source).items():
        rows = np.flatnonzero(flagged)
        if flag in WARNINGS and len(rows):
            names = [source.id_of(row) for row in rows[:MAX_NAMED_CLIENTS].tolist()]
            more = f" and {len(rows) - MAX_NAMED_CLIENTS:,} more" if len(rows) > MAX_NAMED_CLIENTS else ""
            text = WARNINGS[flag][len(rows) > 1].format(", ".join(names) + more)
            warnings.append({"level": "warning", "text": text, "id": names[0] if len(rows) == 1 else None})
    certified = ledger.certificate()
    if certified is not None and (forfeiting := int((certified.forfeited >= 1).sum())):
        forfeited = f"{pluralize(forfeiting, 'client')} forfeited turns above the cap"
        text = f"{forfeited}: raise max_owed, or lower guaranteed_rate."
        warnings.append({"level": "warning", "text": text, "id": None})
    warnings.extend({"level": "note", "text": text, "id": None} for text in source.notices())
    return warnings


def _slot_metrics(source: Source, first: int) -> dict[str, Any] | None:
    """Returns the rate of updates and their staleness; None for rounds."""
    ledger, slots = source.ledger, source.ledger.slots
    if slots is None:
        return None
    arrivals, started = _arrival_times(ledger), ledger.round_column("started")
    stale = ledger.round_column("staleness")
    known = stale[np.isfinite(stale)]
    rate, recent = rate_of(ledger), rate_of(ledger, RECENT_PER_SLOT * slots)
    return {
        "of": slots,
        "updates": len(arrivals),
        "rate": rate,
        "recent_rate": recent,
        "recent_of": min(RECENT_PER_SLOT * slots, len(started)),
        "elapsed": started[-1] - started[0] if len(started) else None,
        "staleness": mean_of(known),
        "stale_in": ledger.stale_in,
        "largest_staleness": known.max() if len(known) else None,
        "curve": _rate_curve(ledger, arrivals, first),
    }


def _running(source: Source) -> list[dict[str, Any]]:
    """Returns the running turns of a live fleet, the oldest first."""
    return [
        {
            "turn": running_turn.decision,
            "id": turn.id,
            "age": running_turn.elapsed,
            "deadline": running_turn.deadline,
            "outcome": turn.kind or OUT,
            "price": running_turn.reasons.get("price"),
            "behind": running_turn.reasons.get("behind"),
        }
        for running_turn, turn in source.running()[:SHOWN_RUNNING_TURNS]
    ]


def _arrival_times(ledger: Ledger) -> FloatArray:
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
    first, last = np.searchsorted(_arrival_times(ledger), [started[0], started[-1]], side="right")
    return float((last - first) / (started[-1] - started[0]))


def _rate_curve(ledger: Ledger, arrivals: FloatArray, first: int) -> dict[str, Any]:
    """Returns the updates per second between decisions from the `first` on, by the last one of each interval."""
    begin = int(np.searchsorted(ledger.round_column("rounds"), first))
    started, decisions = ledger.round_column("started")[begin:], ledger.round_column("rounds")[begin:]
    if len(started) < 2:
        return {"x": [], "rate": []}
    ends = bin_edges(len(started), RATE_POINTS)
    ends[-1] -= 1
    ends = np.unique(ends)
    counts = np.diff(np.searchsorted(arrivals, started[ends], side="right"))
    seconds = np.diff(started[ends])
    rates = np.divide(counts, seconds, out=np.full(len(seconds), np.nan), where=seconds > 0)
    return {"x": decisions[ends[1:]], "rate": rates}
