"""Fairness: the turns of each client compared with its guarantee, and the list of all clients."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.ledger import Ledger
from turnout.dashboard.views.common import (
    ClientPromises,
    PageNumber,
    Since,
    Size,
    Text,
    bin_series,
    first_since,
    flag_names,
    histogram,
    owed_note,
    page_of,
    promises_of,
    tolerance_of,
)
from turnout.errors import SettingError
from turnout.kernel.arrays import IntArray
from turnout.lab.analysis.metrics import gini_coefficient, jain_index, lorenz_curve

#: A value for each client.
Column = npt.NDArray[Any]
MAX_POINTS = 2000
LORENZ_POINTS = 200
MAX_NAMED_UNSERVED = 20
MAX_MATCHES = 10_000


def fairness(source: Source, *, since: Since = None) -> dict[str, Any]:
    """Returns taken and promised turns, the distribution of shares, the Lorenz curve and the least share by round."""
    ledger = source.ledger
    shares, turns = ledger.shares(), ledger.counters["turns"]
    known = shares[np.isfinite(shares) & ~ledger.retired]
    promises, least = promises_of(ledger), ledger.least_served()
    return {
        "unserved": _unserved(source, promises),
        "owed_note": owed_note(promises),
        "least_share": None if least is None else shares[least],
        "jain": jain_index(turns) if ledger.clients else None,
        "gini": gini_coefficient(turns) if ledger.clients else None,
        "shares": histogram(known),
        "taken_vs_promised": _taken_vs_promised(source, promises),
        "lorenz": _lorenz(turns) if ledger.clients else {"x": [], "y": []},
        "worst_over_time": _worst_over_time(ledger, first_since(ledger, since)),
    }


def clients(
    source: Source,
    *,
    sort: Text = "behind",
    order: Literal["asc", "desc"] = "desc",
    page: PageNumber = 1,
    size: Size = 50,
    search: Text = "",
) -> dict[str, Any]:
    """Returns a page of the list of clients.

    Args:
        source: The run or fleet.
        sort: The sort key: "id", or a name of `client_columns`.
        order: Ascending or descending.
        page: The page number, counted from 1.
        size: The number of clients per page.
        search: Only clients whose ids contain this string; all clients if empty.
    """
    columns = client_columns(source.ledger)
    if sort not in ("id", *columns):
        raise SettingError(f"sort must be one of id, {', '.join(columns)}, got {sort!r}")
    rows = source.search(search.strip(), MAX_MATCHES) if search.strip() else np.arange(source.ledger.clients)
    rows = _sorted(rows, None if sort == "id" else columns[sort], order)
    part, paging = page_of(len(rows), page, size)
    shown = client_rows(source, rows[part], columns)
    return {"sort": sort, "order": order, **paging, "size": size, "rows": shown}


def client_rows(source: Source, rows: IntArray, columns: dict[str, Column]) -> list[dict[str, Any]]:
    """Returns what the list of clients shows about each of these."""
    promises, tolerance = promises_of(source.ledger), tolerance_of(source.ledger)
    return [
        {
            "id": source.id_of(row),
            **{name: column[row] for name, column in columns.items()},
            "tolerance": tolerance,
            "status": promises.status(row),
            "flags": names,
        }
        for row, names in zip(rows.tolist(), flag_names(source, rows), strict=True)
    ]


def client_columns(ledger: Ledger) -> dict[str, Column]:
    """Returns the columns of the list of clients."""
    promises = promises_of(ledger)
    last = ledger.counters["last_round"]
    return {
        "turns": ledger.counters["turns"],
        "share": ledger.shares(),
        "counted": promises.turns,
        "promised": promises.promised,
        "behind": promises.behind,
        "status": promises.levels,
        "owed": promises.owed,
        "forfeited": promises.forfeited,
        "offered": ledger.counters["offered"] if ledger.knows_availability else np.full(ledger.clients, np.nan),
        "backed_off": ledger.counters["backed_off"],
        "mean_seconds": ledger.mean_seconds(),
        "reliability": ledger.history.reliability,
        "last_round": np.where(last > 0, last, np.nan),
    }


def _unserved(source: Source, promises: ClientPromises) -> dict[str, Any]:
    """Returns the clients that were there for too few rounds to be served."""
    rows = np.flatnonzero(promises.unserved & ~source.ledger.retired)
    return {"total": len(rows), "ids": [source.id_of(row) for row in rows[:MAX_NAMED_UNSERVED].tolist()]}


def _sorted(rows: IntArray, values: Column | None, order: str) -> IntArray:
    """Sorts rows by these values; ties keep the order of joining, unknown values come last in both orders."""
    if values is None:
        return rows if order == "asc" else rows[::-1]
    keys = values[rows] if order == "asc" else -values[rows]
    return rows[np.argsort(keys, kind="stable")]


def _taken_vs_promised(source: Source, promises: ClientPromises) -> dict[str, Any] | None:
    ledger = source.ledger
    if ledger.certificate() is None:
        return None
    rows = np.arange(ledger.clients)
    if len(rows) > MAX_POINTS:  # the clients that are furthest behind, and an even sample of the others
        most = np.argsort(-promises.behind, kind="stable")[: MAX_POINTS // 10]
        evenly = np.linspace(0, len(rows) - 1, MAX_POINTS - len(most)).astype(np.int64)
        rows = np.unique(np.concatenate([most, evenly]))
    return {
        "ids": [source.id_of(row) for row in rows.tolist()],
        "turns": promises.turns[rows],
        "promised": promises.promised[rows],
        "behind": promises.behind[rows],
        "status": [promises.status(row) for row in rows.tolist()],
        "owed": promises.owed[rows],
        "tolerance": tolerance_of(ledger),
        "of": ledger.clients,
    }


def _lorenz(turns: IntArray) -> dict[str, Any]:
    curve = lorenz_curve(turns)
    points = np.unique(np.linspace(0, len(curve) - 1, LORENZ_POINTS).astype(np.int64))
    return {"x": curve[points, 0], "y": curve[points, 1]}


def _worst_over_time(ledger: Ledger, first: int) -> dict[str, Any]:
    series = ledger.fairness_series
    x, (mean, _, _) = bin_series(series["rounds"].astype(np.int64), series["least_share"], first=first)
    queues = ledger.queues
    return {
        "x": x,
        "least_share": mean,
        "promised": None if queues is None else queues.guaranteed_rates.min(),
    }
