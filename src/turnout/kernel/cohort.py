"""The fastest fair cohort: problem P4, exactly.

Choose exactly `size` available clients that minimise

    speed_weight · max(time over the cohort) − Σ owed over the cohort

Ties, so that every implementation chooses alike: the smallest objective, then the smallest threshold
(the slowest time allowed); among equally owed clients the faster, then the lower row.

For a fixed threshold the best cohort is the most owed among the clients that are fast enough, so it is
enough to sweep the thresholds. Two things make that fast. *A filter*: a client is out of the race once
`size` faster clients are owed more; a grid of time buckets by debt buckets finds nearly all of those in
one pass, without sorting. *A sweep in linear time*: those left stand in line by debt; the first `size` are
the cohort of the slowest threshold; the slowest is sent away, one after the other, and where it was of the
cohort the next in line steps in.

The objective is a double. It is made of one product, one exact integer sum, one quotient and one
difference in the compiled kernel and here alike, and so are the times: both choose the same rows.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    as_count,
    as_floats,
    as_mask,
    as_number,
    as_times,
    require_length,
    smallest,
)
from turnout.kernel.backend import compiled_kernel
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.fairness import OwedTurns

SMALL_FLEET = 2048  # below this a filter costs more than it saves
TIME_BUCKETS = 256  # bucket 0 holds the times that are exactly 0
DEBT_BUCKETS = 128
LARGEST_SUM = 2**61


class Cohort(NamedTuple):
    """A cohort's rows in ascending order, their times, the slowest time allowed, and the objective.

    `considered` tells how many clients were left for the sweep: a measure of the work, not of the choice.
    """

    rows: IntArray
    times: FloatArray
    threshold: float
    objective: float
    considered: int


EMPTY_COHORT = Cohort(np.empty(0, dtype=np.int64), np.empty(0), math.nan, math.nan, 0)


def fastest_fair_cohort(
    times: npt.ArrayLike,
    owed: npt.ArrayLike,
    size: int,
    speed_weight: float,
    available: npt.ArrayLike | None = None,
) -> IntArray:
    """Rows of the `size` available clients that minimise P4, in ascending order; all of them if fewer are there.

    `owed` may be integers or fractions: then all sums are exact. Floats are rounded to a common power of two that
    leaves no room for error in a sum: with up to a thousand chosen, to less than 10⁻¹⁴ of the largest.

    >>> fastest_fair_cohort(times=[1.0, 9.0, 2.0, 3.0], owed=[0, 4, 1, 2], size=2, speed_weight=1.0)
    array([2, 3])
    >>> fastest_fair_cohort(times=[1.0, 9.0, 2.0, 3.0], owed=[0, 4, 1, 2], size=2, speed_weight=0.1)
    array([1, 3])
    """
    seconds = np.ascontiguousarray(as_times("times", times, SettingError, largest=np.inf))
    weight = as_number("speed_weight", speed_weight, SettingError, least=0)
    wanted = as_count("size", size, SettingError, least=0)
    turns = as_exact("owed", owed, wanted)
    require_length("owed", turns.units, len(seconds), "clients in times", SettingError)
    if available is None:
        mask = np.ones(len(seconds), dtype=np.bool_)
    else:
        mask = as_mask("available", available, SettingError)
        require_length("available", mask, len(seconds), "clients in times", SettingError)
    return cohort_of_times(seconds, turns, wanted, weight, mask).rows


def cohort_of_times(times: FloatArray, owed: OwedTurns, size: int, speed_weight: float, available: BoolArray) -> Cohort:
    """Solve P4 for known times, which are trusted to be finite and not negative."""
    size = _attainable(size, available, owed)
    if size == 0:
        return EMPTY_COHORT
    compiled = compiled_kernel()
    if compiled is None:
        return numpy_cohort(times, owed, size, speed_weight, available)
    return Cohort(*compiled.cohort_of_times(times, *_flat(owed), available.view(np.uint8), size, speed_weight))


def cohort_of_contexts(
    model: ExchangeTimeModel,
    contexts: FloatArray,
    exploration: float,
    owed: OwedTurns,
    size: int,
    speed_weight: float,
    available: BoolArray,
) -> Cohort:
    """Solve P4 for the model's optimistic times; the compiled kernel estimates and filters in one pass."""
    size = _attainable(size, available, owed)
    if size == 0:
        return EMPTY_COHORT
    compiled = compiled_kernel()
    if compiled is None:
        return numpy_cohort(model.optimistic(contexts, exploration), owed, size, speed_weight, available)
    return Cohort(
        *compiled.cohort_of_contexts(
            contexts, model.bank, exploration, *_flat(owed), available.view(np.uint8), size, speed_weight
        )
    )


def as_exact(field: str, owed: npt.ArrayLike, size: int) -> OwedTurns:
    """Turns owed as integers: as they are, or floats scaled by a power of two."""
    given = np.asarray(owed)
    units_per_turn = 1
    if given.dtype == object and all(isinstance(debt, Fraction | int) for debt in given.flat):
        units_per_turn = math.lcm(*(Fraction(debt).denominator for debt in given.flat))
        given = np.array([int(debt * units_per_turn) for debt in given.flat]).reshape(given.shape)
    if given.ndim == 1 and given.dtype.kind in "iu":
        most = max(int(given.max(initial=0)), -int(given.min(initial=0)))
        if most * max(size, 1) > LARGEST_SUM:
            raise SettingError(f"{field} reaches {most} units: a cohort of {size} could not be summed in 64 bits")
        return OwedTurns(np.ascontiguousarray(given, dtype=np.int64), 0, float(units_per_turn))
    turns = as_floats(field, given, 1, SettingError)
    most_turns = float(np.abs(turns).max(initial=0.0))
    if most_turns == 0:
        return OwedTurns(np.zeros(len(turns), dtype=np.int64), 0, 1.0)
    bits = min(60 - math.frexp(most_turns)[1] - max(size, 1).bit_length(), 1000)
    return OwedTurns(np.rint(np.ldexp(turns, bits)).astype(np.int64), 0, math.ldexp(1.0, bits))


def numpy_cohort(times: FloatArray, owed: OwedTurns, size: int, speed_weight: float, available: BoolArray) -> Cohort:
    """The NumPy twin of the compiled kernel; `size` clients are known to be available."""
    rows = np.flatnonzero(available)
    if len(rows) > SMALL_FLEET:
        rows = _in_race(rows, times, owed.units, size)
    return _sweep(rows, times[rows], owed, size, speed_weight)


def _attainable(size: int, available: BoolArray, owed: OwedTurns) -> int:
    size = min(size, int(np.count_nonzero(available)))
    if owed.credit * size > LARGEST_SUM:
        raise SettingError(
            f"up to {owed.credit} units are owed: a cohort of {size} could not be summed in 64 bits. "
            "Use a guaranteed_rate with a smaller denominator, or max_owed"
        )
    return size


def _flat(owed: OwedTurns) -> tuple[Any, int, float]:
    return owed.units, owed.credit, owed.units_per_turn


def _in_race(rows: IntArray, times: FloatArray, debts: IntArray, size: int) -> IntArray:
    """Those of `rows` that may still be chosen: fewer than `size` surely faster ones are surely owed more."""
    cells = _cells(times[rows], debts[rows])
    counts = np.bincount(cells, minlength=TIME_BUCKETS * DEBT_BUCKETS).reshape(TIME_BUCKETS, DEBT_BUCKETS)
    faster = np.cumsum(counts, axis=0)
    # Those who take no time at all compete with their like, by debt alone; the others with faster buckets.
    faster[1:] = faster[:-1].copy()
    more_owed = np.cumsum(faster[:, ::-1], axis=1)[:, ::-1] - faster
    left = rows[(more_owed < size).ravel()[cells]]
    return _thin_out_idle(left, times[left] == 0, debts[left], size)


def _cells(times: FloatArray, debts: IntArray) -> npt.NDArray[np.int32]:
    """The cell of the grid that each client falls into; the scale only has to be useful, never right."""
    few = slice(None, None, max(len(times) // 1024, 1))
    moving = times[few][times[few] > 0]
    widest = float(np.quantile(moving, 0.98)) if len(moving) else 1.0
    per_second = min((TIME_BUCKETS - 2) / widest, float(np.finfo(np.float64).max)) if widest > 0 else 1.0
    with np.errstate(over="ignore"):
        slowness = np.minimum(times * per_second, TIME_BUCKETS - 2).astype(np.int32)
    slowness += 1
    slowness[times == 0] = 0
    lowest, highest = int(debts[few].min()), int(debts[few].max())
    shift = max((highest - lowest).bit_length() - (DEBT_BUCKETS.bit_length() - 1), 0)
    debt = np.clip((debts - lowest) >> shift, 0, DEBT_BUCKETS - 1).astype(np.int32)
    slowness *= DEBT_BUCKETS
    slowness += debt
    return slowness


def _thin_out_idle(rows: IntArray, idle: BoolArray, debts: IntArray, size: int) -> IntArray:
    """Of the clients that take no time at all only the `size` most owed matter, of equals the lower rows."""
    places = np.flatnonzero(idle)
    kept = ~idle
    kept[places[smallest(-debts[places], size)]] = True
    return rows[kept]


def _sweep(rows: IntArray, times: FloatArray, owed: OwedTurns, size: int, speed_weight: float) -> Cohort:
    """Send the slowest away, one after the other, and remember the best cohort on the way."""
    by_time = np.argsort(times, kind="stable")  # rows ascend, so equal times keep the lower row first
    ordered_times = times[by_time]
    debts = owed.units[rows[by_time]]
    line = np.argsort(-debts, kind="stable")  # equally owed: the faster, then the lower row
    left = _best_threshold(ordered_times, debts, line, owed, size, speed_weight)
    members = by_time[line[line < left[0]][:size]]
    members.sort()
    return Cohort(rows[members], times[members], float(ordered_times[left[0] - 1]), left[1], len(rows))


def _best_threshold(
    times: FloatArray, debts: IntArray, line: IntArray, owed: OwedTurns, size: int, speed_weight: float
) -> tuple[int, float]:
    """How many clients, in order of time, the best threshold admits, and its objective."""
    count = len(times)
    place = np.empty(count, dtype=np.int64)
    place[line] = np.arange(count)
    places, units, in_line = place.tolist(), debts.tolist(), debts[line].tolist()
    # The cost of a threshold, at the last client it admits; NaN where the next one is as fast.
    with np.errstate(over="ignore"):  # an infinite cost is a cost
        costs = np.where(np.append(times[1:] > times[:-1], True), np.float64(speed_weight) * times, np.nan).tolist()
    before, behind = list(range(-1, count - 1)), list(range(1, count + 1))
    last = size - 1
    total = sum(in_line[:size])
    credit, units_per_turn = size * owed.credit, float(owed.units_per_turn)
    best, best_count = math.inf, count
    for admitted in range(count, size - 1, -1):
        cost = costs[admitted - 1]
        if cost == cost:
            value = cost - float(total + credit) / units_per_turn
            if value <= best:
                best, best_count = value, admitted
        if admitted == size:
            break
        gone = places[admitted - 1]
        if gone <= last:
            last = behind[last]
            total += in_line[last] - units[admitted - 1]
        ahead, next_in_line = before[gone], behind[gone]
        if ahead >= 0:
            behind[ahead] = next_in_line
        if next_in_line < count:
            before[next_in_line] = ahead
    return best_count, best
