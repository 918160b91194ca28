"""Fairness, Clients, Queues, Turns and Client: what each client was promised and got."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from turnout.counting import pluralize
from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.columns import RUNNING
from turnout.dashboard.sources.ledger import Ledger
from turnout.dashboard.views.common import (
    FLAGS,
    OWED_WITH_SURPLUS,
    ClientOrder,
    ClientPromises,
    PageNumber,
    Since,
    Size,
    Text,
    bin_edges,
    bin_series,
    client_page,
    first_since,
    flags,
    histogram,
    owed_note,
    page_of,
    promises_of,
    queue_of,
    tolerance_of,
)
from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.lab.analysis.metrics import gini_coefficient, jain_index, lorenz_curve
from turnout.live._internals import KINDS
from turnout.policies.explain.explanation import Explanation

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
    promises, tolerance, masks = promises_of(source.ledger), tolerance_of(source.ledger), flags(source)
    return [
        {
            "id": source.id_of(row),
            **{name: column[row] for name, column in columns.items()},
            "tolerance": tolerance,
            "status": promises.status(row),
            "flags": [name for name in FLAGS if name in masks and masks[name][row]],
        }
        for row in rows.tolist()
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
    return {"x": x, "least_share": mean, "promised": None if queues is None else queues.guaranteed_rates.min()}


COLUMNS = 160


def queues(source: Source) -> dict[str, Any]:
    """Returns a summary of all debts by round, and their distribution now."""
    ledger = source.ledger
    queues = queue_of(ledger) if ledger.clients else None
    reason = source.no_clients
    if ledger.clients:
        reason = f"The policy {source.policy} does not select by a queue of owed turns."
    return {
        "empty_reason": reason if queues is None else None,
        "curve": debts_over_time(ledger),
        "now": None if queues is None else histogram(queues.owed),
        "cap": None if queues is None else queues.max_owed,
        "owed_note": owed_note(promises_of(ledger)),
    }


def debts_over_time(ledger: Ledger) -> dict[str, Any] | None:
    """Returns the worst, mean and 95th percentile of the debts by round; None if no debts are recorded."""
    series = ledger.fairness_series
    if queue_of(ledger) is None or not len(series["rounds"]):
        return None
    data: dict[str, Any] = {}
    for name in ("worst", "mean", "p95"):
        data["x"], (mean, _, high) = bin_series(series["rounds"].astype(np.int64), series[name])
        data[name] = high if name == "worst" else mean
    return data


def turns(source: Source, *, order: ClientOrder = "behind", page: PageNumber = 1) -> dict[str, Any]:
    """Returns the turns and the availability of a page of clients by round (the "pull record" of the paper)."""
    data, shown = client_page(source, order, page)
    counts, available, resting, edges = turns_and_availability(source.ledger, shown)
    return {
        **data,
        **turn_bins(source.ledger, edges),
        "counts": counts.T,
        "available": None if available is None else available.T,
        "resting": None if resting is None else resting.T,
    }


def turn_bins(ledger: Ledger, edges: IntArray) -> dict[str, Any]:
    """Returns the first round and the width of bins of rounds."""
    rounds = ledger.round_column("rounds")
    return {"x": rounds[edges[:-1]] if len(rounds) else [], "width": int(edges[1] - edges[0]) if len(edges) > 1 else 1}


def turns_and_availability(
    ledger: Ledger, rows: IntArray
) -> tuple[IntArray, FloatArray | None, FloatArray | None, IntArray]:
    """Returns for each bin the turns of these clients, the shares of its rounds, and the bin edges.

    The shares are those in which clients were available, None if that is not recorded, and in which they were backed
    off, None if no client ever was.
    """
    edges = bin_edges(len(ledger), COLUMNS)
    taken = ledger.participation(rows)
    if not len(ledger):
        return np.zeros((0, len(rows)), dtype=np.int64), None, None, edges
    counts = np.add.reduceat(taken.astype(np.int64), edges[:-1], axis=0)

    def share(mask: BoolArray | None) -> FloatArray | None:
        if mask is None:
            return None
        shares: FloatArray = np.add.reduceat(mask.astype(np.int64), edges[:-1], axis=0) / np.diff(edges)[:, None]
        return shares

    rounds = ledger.round_column("rounds")
    resting = ledger.back_offs.get(rows, rounds, sparse=True) if ledger.back_offs.first is not None else None
    return counts, share(ledger.availability.get(rows, rounds)), share(resting), edges


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
