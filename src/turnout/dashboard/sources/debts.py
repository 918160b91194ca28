"""The debts of clients after each round, computed again for the clients that a page shows."""

from __future__ import annotations

import sys

import numpy as np

from turnout.dashboard.sources.columns import UNKNOWN
from turnout.dashboard.sources.ledger import Ledger
from turnout.dashboard.sources.terms import Terms
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.fairness import FairnessQueues

#: A cap that no debt reaches, in units.
NO_CAP = np.iinfo(np.int64).max


def debt_history(ledger: Ledger, rows: IntArray) -> tuple[FloatArray | None, str | None]:
    """Returns the debts of these clients after each round with known debts, shape (rounds, clients).

    Repeats the update of the fairness queues for these clients only. The result must end with their current debts;
    otherwise the function returns None and the reason.
    """
    queues = ledger.queues
    assert queues is not None
    rounds = ledger.round_column("rounds")
    known = rounds > ledger.debts_from
    numbers = rounds[known]
    accrues = _accruing(ledger, queues, rows, numbers)
    if accrues is None:
        return None, "Availability by round is no longer stored, because this fleet is large."
    units_per_turn = int(queues.units_per_turn)
    rates, caps = _terms_by_round(ledger, queues, rows, numbers)
    paid, ended = _payments(ledger, rows)
    gains = accrues * rates - paid[known] * units_per_turn
    before = ended[len(ended) - len(gains) - 1 :] * units_per_turn
    units = _initial_units(ledger, queues)[rows]
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


def _accruing(ledger: Ledger, queues: FairnessQueues, rows: IntArray, numbers: IntArray) -> BoolArray | None:
    """Returns in which rounds clients accrue turns, shape (rounds, clients); None if that is not recorded."""
    if ledger.slots is not None:
        return ledger.earning.get(rows, numbers)
    if queues.accrual == "available":
        return ledger.availability.get(rows, numbers)
    return np.ones((len(numbers), len(rows)), dtype=np.bool_)


def _payments(ledger: Ledger, rows: IntArray) -> tuple[BoolArray, BoolArray]:
    """Returns the turns that count with each round and, without rounds, those that count as they end.

    The latter are those before each round, and have one row more than there are rounds: the turns that have ended since
    the last one.
    """
    chosen, arrived = ledger.participation(rows)
    ended = np.zeros((len(ledger) + 1, len(rows)), dtype=np.bool_)
    if ledger.counts == "selected":
        return chosen, ended
    if ledger.slots is None:
        return arrived, ended
    decisions, columns = np.nonzero(arrived)
    ended[ledger.round_column("learned")[decisions] - ledger.first_after, columns] = True
    column_of = {row: column for column, row in enumerate(rows.tolist())}
    for learned, row in ledger.early_payments:
        if row in column_of:
            ended[learned - ledger.first_after, column_of[row]] = True
    return np.zeros_like(chosen), ended


def _terms_by_round(
    ledger: Ledger, queues: FairnessQueues, rows: IntArray, numbers: IntArray
) -> tuple[IntArray, IntArray]:
    """Returns the rates of these clients in each round, and the cap after it, in units of the present terms."""
    terms = [*ledger.former_terms, Terms.of(queues, sys.maxsize)]
    rates, caps = np.empty((len(numbers), len(rows)), dtype=np.int64), np.empty(len(numbers), dtype=np.int64)
    which = np.searchsorted([former.until for former in ledger.former_terms], numbers)
    for index, term in enumerate(terms):
        finer = queues.units_per_turn // term.units_per_turn
        every = np.asarray(term.rates, dtype=np.int64) * finer
        if every.ndim:  # clients that joined later had no rate yet
            every = np.concatenate([every, np.zeros(ledger.clients - len(every), dtype=np.int64)])[rows]
        rates[which == index] = every
        cap = NO_CAP if term.cap is None else term.cap * finer
        caps[which == index] = cap
        if index:  # a lower cap applies at once, to what the round before the amendment left
            last = np.flatnonzero(numbers <= terms[index - 1].until)[-1:]
            caps[last] = np.minimum(caps[last], cap)
    return rates, caps


def _initial_units(ledger: Ledger, queues: FairnessQueues) -> IntArray:
    """Returns the debts before the first round with known debts, in units; clients that joined later start at 0."""
    units = np.zeros(ledger.clients, dtype=np.int64)
    if ledger.initial_debts is not None:
        initial, units_per_turn = ledger.initial_debts
        units[: len(initial)] = initial * (queues.units_per_turn // units_per_turn)
    return units
