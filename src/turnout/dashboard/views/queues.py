"""Queues and Turns: heat maps with one row per client and one column per bin of rounds."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from typing import Any

import numpy as np

from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.ledger import UNKNOWN, FormerTerms, Ledger
from turnout.dashboard.views.common import (
    SHOWN_ROWS,
    about,
    bin_edges,
    histogram,
    json_number,
    json_numbers,
    ordered_rows,
    owed,
    owed_note,
    page_of,
    standings,
)
from turnout.dashboard.views.overview import debts_over_time
from turnout.dashboard.watch import Watch
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.kernel.fairness import FairnessQueues

COLUMNS = 160
#: A cap that no debt reaches, in units.
NO_CAP = np.iinfo(np.int64).max


def queues(watch: Watch, source: Source | None, *, order: str, page: int) -> dict[str, Any]:
    """Returns the debts of a page of clients by round, a summary of all debts by round, and their distribution now."""
    data: dict[str, Any] = {"about": about(watch, source), "order": order}
    empty = {"page": 1, "pages": 1, "total": 0, "x": [], "ids": [], "owed": None, "curve": None, "now": None}
    if source is None or not source.ledger.clients:
        return {**data, **empty, "cap": None, "owed_note": None, "empty_reason": None}
    ledger = source.ledger
    if ledger.queues is None:
        no_guarantee = f"The policy {source.policy} guarantees no turns, so no turns are owed."
        return {**data, **empty, "cap": None, "owed_note": None, "empty_reason": no_guarantee}
    rows = ordered_rows(ledger, order)
    current = page_of(len(rows), page, SHOWN_ROWS)
    shown = rows[current.start : current.end]
    debts, reason = debt_history(ledger, shown)
    x: list[int] = []
    if debts is not None:
        ends = bin_edges(len(debts), COLUMNS)[1:] - 1
        x = ledger.round_column("rounds")[len(ledger) - len(debts) :][ends].tolist()
        debts = debts[ends]
    cap = ledger.queues.max_owed
    return {
        **data,
        "page": current.number,
        "pages": current.pages,
        "total": len(rows),
        "x": x,
        "ids": [source.id_of(row) for row in shown.tolist()],
        "owed": None if debts is None else [json_numbers(column) for column in debts.T],
        "empty_reason": reason,
        "curve": debts_over_time(ledger),
        "now": histogram(owed(ledger)),
        "cap": None if cap is None else json_number(float(cap)),
        "owed_note": owed_note(standings(ledger)),
    }


def turns(watch: Watch, source: Source | None, *, order: str, page: int) -> dict[str, Any]:
    """Returns the turns and the availability of a page of clients by round (the "pull record" of the paper)."""
    data: dict[str, Any] = {"about": about(watch, source), "order": order}
    if source is None or not source.ledger.clients:
        empty = {"page": 1, "pages": 1, "total": 0, "x": [], "width": 1, "ids": [], "counts": [], "available": None}
        return {**data, **empty}
    ledger = source.ledger
    rows = ordered_rows(ledger, order)
    current = page_of(len(rows), page, SHOWN_ROWS)
    shown = rows[current.start : current.end]
    counts, available, edges = turns_and_availability(ledger, shown)
    rounds = ledger.round_column("rounds")
    return {
        **data,
        "page": current.number,
        "pages": current.pages,
        "total": len(rows),
        "x": rounds[edges[:-1]].tolist() if len(rounds) else [],
        "width": int(edges[1] - edges[0]) if len(edges) > 1 else 1,
        "ids": [source.id_of(row) for row in shown.tolist()],
        "counts": counts.T.tolist(),
        "available": None if available is None else [json_numbers(column) for column in available.T],
    }


def turns_and_availability(ledger: Ledger, rows: IntArray) -> tuple[IntArray, FloatArray | None, IntArray]:
    """Returns for each bin the turns of these clients, the share of rounds they were available in, and the bin edges.

    The shares are None if availability is not recorded.
    """
    edges = bin_edges(len(ledger), COLUMNS)
    taken = ledger.participation(rows)[0]
    if not len(ledger):
        return np.zeros((0, len(rows)), dtype=np.int64), None, edges
    counts = np.add.reduceat(taken.astype(np.int64), edges[:-1], axis=0)
    available = ledger.availability.get(rows, ledger.round_column("rounds"))
    if available is None:
        return counts, None, edges
    share = np.add.reduceat(available.astype(np.int64), edges[:-1], axis=0) / np.diff(edges)[:, None]
    return counts, share, edges


def debt_history(ledger: Ledger, rows: IntArray) -> tuple[FloatArray | None, str | None]:
    """Returns the debts of these clients after each round with known debts, shape (rounds, clients).

    Repeats the update of the fairness queues for these clients only. The result must end with their current debts;
    otherwise the function returns None and the reason.
    """
    queues = ledger.queues
    assert queues is not None
    rounds = ledger.round_column("rounds")
    known = rounds > ledger.debts_from
    accrues = ledger.accruing(rows, rounds[known])
    if accrues is None:
        return None, "Availability by round is no longer stored, because this fleet is large."
    units_per_turn = int(queues.units_per_turn)
    numbers = rounds[known]
    rates, caps = _terms_by_round(ledger, rows, numbers)
    paid, ended = ledger.payments(rows)
    gains = accrues * rates - paid[known] * units_per_turn
    # Without rounds, turns may count when they end: before a decision, or after the last one.
    before = np.zeros((len(gains) + 1, len(rows)), dtype=np.int64)
    if ended is not None:
        before[:] = ended[-len(before) :] * units_per_turn
    units = _initial_units(ledger)[rows]
    debts = np.empty(gains.shape, dtype=np.int64)
    joined, left = ledger.counters["joined"][rows], ledger.counters["left_in"][rows]
    for index, (number, gain) in enumerate(zip(numbers.tolist(), gains, strict=True)):
        earns = (joined < number) & ((left == UNKNOWN) | (number <= left))
        units = np.maximum(units - before[index], 0)
        units = np.maximum(units + np.where(earns, gain, 0), 0)
        units = np.minimum(units, caps[index])
        debts[index] = units
    if len(debts):
        debts[-1] = np.maximum(units - before[-1], 0)
    exact = queues.owed_exactly()
    if len(debts) and not np.array_equal(debts[-1], exact.units[rows] + exact.credit):
        return (
            None,
            "A wrapper of the policy changes which clients accrue turns, so debts by round are not available.",
        )
    return debts / units_per_turn, None


def _terms_by_round(ledger: Ledger, rows: IntArray, numbers: IntArray) -> tuple[IntArray, IntArray]:
    """Returns the rates of these clients in each round, and the cap after it, in units of the present terms."""
    queues = ledger.queues
    assert queues is not None
    terms = [*ledger.former_terms, _present_terms(queues)]
    rates, caps = np.empty((len(numbers), len(rows)), dtype=np.int64), np.empty(len(numbers), dtype=np.int64)
    which = np.searchsorted([former.until for former in ledger.former_terms], numbers)
    for index, term in enumerate(terms):
        finer = queues.units_per_turn // term.units_per_turn
        every = np.asarray(term.rates, dtype=np.int64) * finer
        if every.ndim:  # clients that joined later had no rate yet
            every = np.concatenate([every, np.zeros(ledger.clients - len(every), dtype=np.int64)])[rows]
        rates[which == index] = every
        caps[which == index] = _cap_units(term) * finer if term.max_owed is not None else NO_CAP
    # A lower cap applies at once, to what the round before the amendment left.
    for index, former in enumerate(ledger.former_terms):
        last = np.flatnonzero(numbers <= former.until)[-1:]
        following = terms[index + 1]
        if following.max_owed is not None:
            finer = queues.units_per_turn // following.units_per_turn
            caps[last] = np.minimum(caps[last], _cap_units(following) * finer)
    return rates, caps


def _present_terms(queues: FairnessQueues) -> FormerTerms:
    return FormerTerms(sys.maxsize, queues.accounts().rates, queues.units_per_turn, queues.max_owed)


def _cap_units(terms: FormerTerms) -> int:
    assert terms.max_owed is not None
    return math.floor(Fraction(terms.max_owed) * terms.units_per_turn)


def _initial_units(ledger: Ledger) -> IntArray:
    """Returns the debts before the first round with known debts, in units; clients that joined later start at 0."""
    units = np.zeros(ledger.clients, dtype=np.int64)
    if ledger.initial_units is not None:
        assert ledger.queues is not None
        finer = ledger.queues.units_per_turn // ledger.initial_units_per_turn
        units[: len(ledger.initial_units)] = ledger.initial_units * finer
    return units
