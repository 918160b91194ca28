"""Fairness: who has had how many turns, of what was promised; and the list of all clients."""

from __future__ import annotations

from typing import Any

import numpy as np

from turnout.analysis.metrics import gini_coefficient, jain_index, lorenz_curve
from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.ledger import Ledger
from turnout.dashboard.views.common import (
    about,
    binned,
    certificate,
    flags_of,
    histogram,
    number,
    numbers,
    owed,
    page_of,
    promised,
)
from turnout.dashboard.watch import Watch
from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray

MOST_DOTS = 2000
LORENZ_POINTS = 200
MOST_FOUND = 10_000
SORTS = (
    "id",
    "turns",
    "share",
    "promised",
    "owed",
    "forfeited",
    "volunteered",
    "mean_seconds",
    "reliability",
    "last_round",
)


NOTHING: dict[str, Any] = {
    "certificate": {"holds": None, "words": "There is no client yet."},
    **dict.fromkeys(("least_share", "jain", "gini", "against")),
    "shares": {"edges": [], "counts": []},
    "lorenz": {"x": [], "y": []},
    "worst_over_time": {"x": [], "least_share": [], "promised": None},
    "groups": [],
}


def fairness(watch: Watch, source: Source | None) -> dict[str, Any]:
    """Turns against promised and owed, worst-off over time, Lorenz."""
    told: dict[str, Any] = {"about": about(watch, source)}
    if source is None or not source.ledger.clients:
        return {**told, **NOTHING}
    ledger = source.ledger
    shares, turns = ledger.shares(), ledger.numbers["turns"]
    known = shares[np.isfinite(shares) & ~ledger.retired]
    return {
        **told,
        "certificate": certificate(ledger),
        "least_share": number(known.min()) if len(known) else None,
        "jain": number(jain_index(turns)),
        "gini": number(gini_coefficient(turns)),
        "shares": histogram(known),
        "against": _against(source),
        "lorenz": _lorenz(turns),
        "worst_over_time": _worst_over_time(ledger),
        "groups": _groups(ledger),
    }


def clients(
    watch: Watch, source: Source | None, *, sort: str, order: str, page: int, size: int, search: str
) -> dict[str, Any]:
    """A page of the list of clients."""
    told: dict[str, Any] = {"about": about(watch, source), "sort": sort, "order": order}
    if sort not in SORTS:
        raise SettingError(f"sort must be one of {', '.join(SORTS)}, not {sort!r}")
    if order not in ("asc", "desc"):
        raise SettingError(f"order must be asc or desc, not {order!r}")
    if source is None or not source.ledger.clients:
        return {**told, "total": 0, "page": 1, "pages": 1, "size": size, "rows": []}
    columns = _columns(source.ledger)
    rows = source.found(search, MOST_FOUND) if search else np.arange(source.ledger.clients)
    rows = _sorted(rows, None if sort == "id" else columns[sort], order)
    place = page_of(len(rows), page, size)
    shown = rows[place.start : place.end]
    words = flags_of(source, shown)
    return {
        **told,
        "total": len(rows),
        "page": place.number,
        "pages": place.pages,
        "size": size,
        "rows": [
            {
                "id": source.id_of(row),
                **{name: number(column[row]) for name, column in columns.items()},
                "flags": flagged,
            }
            for row, flagged in zip(shown.tolist(), words, strict=True)
        ],
    }


def _columns(ledger: Ledger) -> dict[str, FloatArray]:
    due, forfeited, _ = promised(ledger)
    last = ledger.numbers["last_round"].astype(np.float64)
    volunteered = ledger.numbers["volunteered"].astype(np.float64)
    return {
        "turns": ledger.numbers["turns"].astype(np.float64),
        "share": ledger.shares(),
        "promised": due,
        "owed": owed(ledger),
        "forfeited": forfeited,
        "volunteered": volunteered if ledger.knows_available else np.full(ledger.clients, np.nan),
        "mean_seconds": ledger.mean_seconds(),
        "reliability": ledger.history.reliability,
        "last_round": np.where(last > 0, last, np.nan),
    }


def _sorted(rows: IntArray, values: FloatArray | None, order: str) -> IntArray:
    """By these values, ties as they joined; what is not known comes last either way."""
    if values is None:
        return rows if order == "asc" else rows[::-1]
    keys = values[rows] if order == "asc" else -values[rows]
    return rows[np.argsort(keys, kind="stable")]


def _against(source: Source) -> dict[str, Any] | None:
    ledger = source.ledger
    if ledger.queues is None:
        return None
    due, _, taken = promised(ledger)
    rows = np.arange(ledger.clients)
    if len(rows) > MOST_DOTS:  # the most owed, and others evenly
        most = np.argsort(-owed(ledger), kind="stable")[: MOST_DOTS // 10]
        evenly = np.linspace(0, len(rows) - 1, MOST_DOTS - len(most)).astype(np.int64)
        rows = np.unique(np.concatenate([most, evenly]))
    return {
        "ids": [source.id_of(row) for row in rows.tolist()],
        "turns": numbers(taken[rows]),
        "promised": numbers(due[rows]),
        "owed": numbers(owed(ledger)[rows]),
        "of": ledger.clients,
    }


def _lorenz(turns: IntArray) -> dict[str, Any]:
    curve = lorenz_curve(turns)
    points = np.unique(np.linspace(0, len(curve) - 1, LORENZ_POINTS).astype(np.int64))
    return {"x": numbers(curve[points, 0]), "y": numbers(curve[points, 1])}


def _worst_over_time(ledger: Ledger) -> dict[str, Any]:
    course = ledger.course
    x, (mean, _, _) = binned(course["rounds"].astype(np.int64), course["least_share"])
    queues = ledger.queues
    return {
        "x": x,
        "least_share": numbers(mean),
        "promised": None if queues is None else number(float(queues.guaranteed_rates.min())),
    }


def _groups(ledger: Ledger) -> list[dict[str, Any]]:
    groups = None if ledger.policy is None else ledger.policy.groups
    if groups is None:
        return []
    found = groups.certificate()
    return [
        {
            "name": name,
            "clients": int((groups.group_of == place).sum()),
            "turns": int(found.turns[place]),
            "share": number(found.turns[place] / max(len(ledger), 1)),
            "promised": number(found.promised[place]),
            "owed": number(found.owed[place]),
        }
        for place, name in enumerate(groups.names)
    ]
