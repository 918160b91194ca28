"""Overview: where things stand, and what to look at."""

from __future__ import annotations

from typing import Any

import numpy as np

from turnout.analysis.metrics import jain_index
from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.ledger import Ledger
from turnout.dashboard.views.common import about, binned, certificate, flags, number, numbers, owed
from turnout.dashboard.watch import Watch
from turnout.kernel.arrays import FloatArray
from turnout.scheduler import ARRIVED, KINDS, MISSED, RETURNED

RECENT = 50
BEHIND = 8
DRAWS = 400
NEWEST_TURNS = 200_000
NAMED = 3
#: Of one client, and of several.
WORTH_A_WARNING = {
    "context": (
        "What {} reports about itself no longer explains how long it takes.",
        "What {} report about themselves no longer explains how long they take.",
    ),
    "changed": ("{} has become faster or slower than it was.", "{} have become faster or slower than they were."),
    "seldom": (
        "{} volunteered for fewer rounds than it is promised: lower guaranteed_rate, or use accrual='available'.",
        "{} volunteered for fewer rounds than they are promised: lower guaranteed_rate, or use accrual='available'.",
    ),
}


NOTHING: dict[str, Any] = {
    **dict.fromkeys(
        ("open", "mean_round", "recent_round", "p95_round", "volunteers", "cohort", "random", "least_share")
    ),
    **dict.fromkeys(("least", "jain", "worst", "debts")),
    **dict.fromkeys(("round", "recent_of", "total_time"), 0),
    "certificate": {"holds": None, "words": "No run has begun yet."},
    "rounds": {"x": [], "mean": [], "low": [], "high": []},
    "outcomes": {},
    "warnings": [],
    "behind": [],
}


def overview(watch: Watch, source: Source | None) -> dict[str, Any]:
    """The round, the mean round against random, the worst debt, the certificate, warnings."""
    told: dict[str, Any] = {"about": about(watch, source)}
    if source is None:
        return {**told, **NOTHING}
    ledger = source.ledger
    seconds = ledger.round_column("seconds")
    x, (mean, low, high) = binned(ledger.round_column("rounds"), seconds)
    shares, debts = ledger.shares(), np.where(ledger.retired, np.nan, owed(ledger))
    least = _place_of_least(shares, ledger)
    worst = int(np.nanargmax(debts)) if np.isfinite(debts).any() else None
    sizes = np.diff(ledger.starts)
    volunteers = ledger.round_column("volunteers")
    known = volunteers[volunteers >= 0]
    return {
        **told,
        "round": ledger.last,
        "open": _open(source),
        "mean_round": number(seconds.mean()) if len(seconds) else None,
        "recent_round": number(seconds[-RECENT:].mean()) if len(seconds) else None,
        "recent_of": min(RECENT, len(seconds)),
        "p95_round": number(np.percentile(seconds, 95)) if len(seconds) else None,
        "total_time": number(seconds.sum()),
        "volunteers": number(known.mean()) if len(known) else None,
        "cohort": number(sizes.mean()) if len(sizes) else None,
        "random": at_random(watch, source),
        "least_share": None if least is None else number(shares[least]),
        "least": None if least is None else {"id": source.id_of(least)},
        "jain": number(jain_index(ledger.numbers["turns"])) if ledger.clients else None,
        "worst": None if worst is None else {"id": source.id_of(worst), "owed": number(debts[worst])},
        "certificate": certificate(ledger),
        "rounds": {"x": x, "mean": numbers(mean), "low": numbers(low), "high": numbers(high)},
        "debts": debts_over_time(ledger),
        "outcomes": outcomes(ledger),
        "warnings": _warnings(source),
        "behind": _behind(source, shares, debts),
    }


def debts_over_time(ledger: Ledger) -> dict[str, Any] | None:
    """The worst and the mean debt, and the 95th percentile, where anything is promised and on record."""
    course = ledger.course
    if ledger.queues is None or not len(course["rounds"]):
        return None
    told: dict[str, Any] = {}
    for name in ("worst", "mean", "p95"):
        told["x"], (mean, _, high) = binned(course["rounds"].astype(np.int64), course[name])
        told[name] = numbers(high if name == "worst" else mean)
    return told


def outcomes(ledger: Ledger) -> dict[str, int]:
    """How many of the invited arrived, were late, failed."""
    counts = np.bincount(ledger.turn_column("kinds"), minlength=len(KINDS)).tolist()
    return {word: count for word, count in zip(KINDS, counts, strict=True) if count or word == KINDS[ARRIVED]}


def at_random(watch: Watch, source: Source) -> dict[str, Any] | None:
    """What rounds of a random choice last: as a run of this store shows, or as the known times suggest."""
    ledger = source.ledger
    if not len(ledger) or source.policy == "random":
        return None
    own = float(ledger.round_column("seconds").mean())
    found = watch.random_rounds(source)
    if found is not None:
        mean, runs = found
        how = f"{runs} {'run' if runs == 1 else 'runs'} of random choice in this store, over as many rounds"
    else:
        drawn = _drawn_at_random(ledger)
        if drawn is None:
            return None
        mean, clients = drawn
        how = f"estimated: {DRAWS} random cohorts of the {clients:,} clients whose times are known"
    return {"mean_round": number(mean), "saved": number(1 - own / mean) if mean else None, "how": how}


def _drawn_at_random(ledger: Ledger) -> tuple[float, int] | None:
    """The mean of the slowest time of random cohorts, each client with one of its own times; and of how many."""
    times = ledger.turn_column("times")[-NEWEST_TURNS:]
    came = np.isfinite(times) & (times > 0)
    rows, seconds = ledger.turn_column("chosen")[-NEWEST_TURNS:][came], times[came]
    size = round(float(np.diff(ledger.starts).mean()))
    order = np.argsort(rows, kind="stable")
    clients, first, count = np.unique(rows[order], return_index=True, return_counts=True)
    if len(clients) < 2 * size or size == 0:
        return None
    rng = np.random.default_rng(0)
    slowest = np.empty(DRAWS)
    for draw in range(DRAWS):
        who = rng.choice(len(clients), size, replace=False)
        which = first[who] + (rng.random(size) * count[who]).astype(np.int64)
        slowest[draw] = seconds[order[which]].max()
    return float(slowest.mean()), len(clients)


def _place_of_least(shares: FloatArray, ledger: Ledger) -> int | None:
    known = np.where(ledger.retired, np.nan, shares)
    return int(np.nanargmin(known)) if np.isfinite(known).any() else None


def _open(source: Source) -> dict[str, Any] | None:
    found = source.open_round()
    if found is None:
        return None
    opened, turns = found
    heard = [turn.kind for turn in turns]
    return {
        "round": opened.round,
        "elapsed": number(opened.elapsed),
        "deadline": None if opened.deadline is None else number(opened.deadline),
        "wanted": opened.wanted,
        "out": heard.count(None),
        "back": sum(map(heard.count, RETURNED)),
        "failed": sum(map(heard.count, MISSED)),
    }


def _behind(source: Source, shares: FloatArray, debts: FloatArray) -> list[dict[str, Any]]:
    ledger = source.ledger
    if ledger.queues is None:
        return []
    most = np.argsort(-debts, kind="stable")[:BEHIND]
    return [
        {
            "id": source.id_of(row),
            "owed": number(debts[row]),
            "turns": int(ledger.numbers["turns"][row]),
            "share": number(shares[row]),
        }
        for row in most.tolist()
        if debts[row] > 0
    ]


def _warnings(source: Source) -> list[dict[str, Any]]:
    ledger, found = source.ledger, []
    holds = certificate(ledger)
    if holds["holds"] is False:
        found.append({"level": "error", "text": holds["words"], "id": None})
    for word, flagged in flags(source).items():
        rows = np.flatnonzero(flagged)
        if word in WORTH_A_WARNING and len(rows):
            names = [source.id_of(row) for row in rows[:NAMED].tolist()]
            more = f" and {len(rows) - NAMED:,} more" if len(rows) > NAMED else ""
            text = WORTH_A_WARNING[word][len(rows) > 1].format(", ".join(names) + more)
            found.append({"level": "warning", "text": text, "id": names[0] if len(rows) == 1 else None})
    certified = ledger.certificate()
    if certified is not None and (lost := int((certified.forfeited >= 1).sum())):
        text = f"{lost:,} clients have forfeited turns to the cap: raise max_owed, or lower speed_weight."
        found.append({"level": "warning", "text": text, "id": None})
    found.extend({"level": "note", "text": text, "id": None} for text in source.notices())
    return found
