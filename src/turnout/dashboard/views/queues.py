"""Queues and Turns: one row a client, one column some rounds."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.ledger import UNKNOWN, Ledger
from turnout.dashboard.views.common import (
    SHOWN_ROWS,
    about,
    bins,
    histogram,
    in_order,
    number,
    numbers,
    owed,
    page_of,
)
from turnout.dashboard.views.overview import debts_over_time
from turnout.dashboard.watch import Watch
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.scheduler import ARRIVED

COLUMNS = 160


def queues(watch: Watch, source: Source | None, *, order: str, page: int) -> dict[str, Any]:
    """Debts of some clients over the rounds, of all over the rounds, and of all now."""
    told: dict[str, Any] = {"about": about(watch, source), "order": order}
    empty = {"page": 1, "pages": 1, "total": 0, "x": [], "ids": [], "owed": None, "curve": None, "now": None}
    if source is None or not source.ledger.clients:
        return {**told, **empty, "cap": None, "why_not": None}
    ledger = source.ledger
    if ledger.queues is None:
        nothing = f"The policy {source.policy} promises nothing, so nothing is owed."
        return {**told, **empty, "cap": None, "why_not": nothing}
    rows = in_order(ledger, order)
    place = page_of(len(rows), page, SHOWN_ROWS)
    shown = rows[place.start : place.end]
    after, why = debts_of(ledger, shown)
    x: list[int] = []
    if after is not None:
        edges = bins(len(after), COLUMNS)
        ends = edges[1:] - 1
        x = ledger.round_column("rounds")[len(ledger) - len(after) :][ends].tolist()
        after = after[ends]
    cap = ledger.queues.max_owed
    return {
        **told,
        "page": place.number,
        "pages": place.pages,
        "total": len(rows),
        "x": x,
        "ids": [source.id_of(row) for row in shown.tolist()],
        "owed": None if after is None else [numbers(column) for column in after.T],
        "why_not": why,
        "curve": debts_over_time(ledger),
        "now": histogram(owed(ledger)),
        "cap": None if cap is None else number(float(cap)),
    }


def turns(watch: Watch, source: Source | None, *, order: str, page: int) -> dict[str, Any]:
    """Who was chosen when, and who was there: the paper's pull record."""
    told: dict[str, Any] = {"about": about(watch, source), "order": order}
    if source is None or not source.ledger.clients:
        empty = {"page": 1, "pages": 1, "total": 0, "x": [], "width": 1, "ids": [], "counts": [], "available": None}
        return {**told, **empty}
    ledger = source.ledger
    rows = in_order(ledger, order)
    place = page_of(len(rows), page, SHOWN_ROWS)
    shown = rows[place.start : place.end]
    counts, available, edges = turns_and_presence(ledger, shown)
    rounds = ledger.round_column("rounds")
    return {
        **told,
        "page": place.number,
        "pages": place.pages,
        "total": len(rows),
        "x": rounds[edges[:-1]].tolist() if len(rounds) else [],
        "width": int(edges[1] - edges[0]) if len(edges) > 1 else 1,
        "ids": [source.id_of(row) for row in shown.tolist()],
        "counts": counts.T.tolist(),
        "available": None if available is None else [numbers(column) for column in available.T],
    }


def turns_and_presence(ledger: Ledger, rows: IntArray) -> tuple[IntArray, FloatArray | None, IntArray]:
    """In each bin of rounds the turns of these clients, and the share of it that each volunteered for, if known."""
    edges = bins(len(ledger), COLUMNS)
    taken = _chosen(ledger, rows)[0]
    if not len(ledger):
        return np.zeros((0, len(rows)), dtype=np.int64), None, edges
    counts = np.add.reduceat(taken.astype(np.int64), edges[:-1], axis=0)
    there = ledger.masks.of(rows, ledger.round_column("rounds"))
    if there is None:
        return counts, None, edges
    share = np.add.reduceat(there.astype(np.int64), edges[:-1], axis=0) / np.diff(edges)[:, None]
    return counts, share, edges


def debts_of(ledger: Ledger, rows: IntArray) -> tuple[FloatArray | None, str | None]:
    """What each of these clients was owed after each round since debts are known, (rounds, clients); or why not.

    The queues' own rule again, for these alone: what comes out must be what they are owed now, or it is not told.
    """
    queues = ledger.queues
    assert queues is not None
    rounds = ledger.round_column("rounds")
    known = rounds > ledger.debts_from
    there: BoolArray | None = np.ones((int(known.sum()), len(rows)), dtype=np.bool_)
    if queues.accrual == "available":
        there = ledger.masks.of(rows, rounds[known])
    if there is None:
        return None, "It is no longer on record who volunteered when: there are too many clients for that."
    state = queues.state()
    rates = np.broadcast_to(np.asarray(state["rates"], dtype=np.int64), ledger.clients)[rows]
    a_turn = int(queues.units_per_turn)
    cap = None if queues.max_owed is None else math.floor(Fraction(queues.max_owed) * a_turn)
    chosen, arrived = _chosen(ledger, rows)
    paid = (arrived if ledger.paid == "contributed" else chosen)[known]
    gains = there * rates - paid * a_turn
    units = _units_at_first(ledger)[rows]
    after = np.empty(gains.shape, dtype=np.int64)
    joined, left = ledger.numbers["joined"][rows], ledger.numbers["left_in"][rows]
    for place, (round_, gain) in enumerate(zip(rounds[known].tolist(), gains, strict=True)):
        earns = (joined < round_) & ((left == UNKNOWN) | (round_ <= left))
        units = np.maximum(units + np.where(earns, gain, 0), 0)
        if cap is not None:
            units = np.minimum(units, cap)
        after[place] = units
    exactly = queues.owed_exactly()
    if len(after) and not np.array_equal(after[-1], exactly.units[rows] + exactly.credit):
        return None, "A rule around the policy decides who earns, so debts over time cannot be counted again here."
    return after / a_turn, None


def _units_at_first(ledger: Ledger) -> IntArray:
    """What was owed where the record of debts begins; those who joined since were owed nothing."""
    units = np.zeros(ledger.clients, dtype=np.int64)
    if ledger.start_units is not None:
        units[: len(ledger.start_units)] = ledger.start_units
    return units


def _chosen(ledger: Ledger, rows: IntArray) -> tuple[BoolArray, BoolArray]:
    """Which of these clients were chosen in which round, and which of them arrived, (rounds, clients)."""
    column = np.full(ledger.clients, -1, dtype=np.int64)
    column[rows] = np.arange(len(rows))
    where = column[ledger.turn_column("chosen")]
    mine = where >= 0
    round_ = np.repeat(np.arange(len(ledger)), np.diff(ledger.starts))[mine]
    chosen = np.zeros((len(ledger), len(rows)), dtype=np.bool_)
    chosen[round_, where[mine]] = True
    arrived = np.zeros_like(chosen)
    came = ledger.turn_column("kinds")[mine] == ARRIVED
    arrived[round_[came], where[mine][came]] = True
    return chosen, arrived
