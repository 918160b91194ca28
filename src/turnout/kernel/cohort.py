"""An exact solver for problem P4 of the paper: the fastest fair cohort.

The solver selects exactly `size` available clients that minimise

    speed_weight · max(time over the cohort) − Σ owed over the cohort

Ties are resolved so that every implementation selects the same rows: the smallest objective, then the smallest
threshold (the slowest time allowed); among clients that are owed equally much the faster one, then the lower row.

For a fixed threshold the best cohort consists of the most owed clients among those that are fast enough, so it is
enough to sweep over the thresholds. Two steps make that fast:

1. *Filter*: a client cannot be selected once `size` faster clients are owed more. A two-dimensional histogram over
   time and owed turns finds nearly all such clients in one pass, without sorting.
2. *Linear-time sweep*: the remaining candidates are sorted by owed turns; the first `size` are the cohort of the
   slowest threshold. The sweep removes the slowest candidate again and again; if it was a member of the cohort, the
   next candidate in the order of owed turns replaces it.

The objective is a double. The compiled kernel and this module compute it, and the times, with the same operations in
the same order (one product, one exact integer sum, one quotient, one difference), so both select the same rows.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

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
from turnout.kernel.backend import compiled_kernel, kernel_threads
from turnout.kernel.certificate import OwedTurns
from turnout.kernel.exchange_time import ExchangeTimeModel

SMALL_FLEET = 2048  # for smaller fleets the filter costs more than it saves
TIME_BUCKETS = 256  # bucket 0 holds the times that are exactly 0
DEBT_BUCKETS = 128
MAX_SUM = 2**61


class SolvedCohort(NamedTuple):
    """A cohort: its rows in ascending order, their times, the slowest time allowed and the objective.

    `considered` is the number of candidates that the filter left for the sweep. It measures the work and does not
    affect the result.
    """

    rows: IntArray
    times: FloatArray
    threshold: float
    objective: float
    considered: int


EMPTY_COHORT = SolvedCohort(np.empty(0, dtype=np.int64), np.empty(0), math.nan, math.nan, 0)


def fastest_fair_cohort(
    times: npt.ArrayLike, owed: npt.ArrayLike, size: int, speed_weight: float, available: npt.ArrayLike | None = None
) -> IntArray:
    """Returns the rows of the `size` available clients that minimise P4, in ascending order.

    If fewer clients are available, all of them are returned.

    Args:
        times: The exchange time of each client in seconds.
        owed: The turns owed to each client. Sums of integers and fractions are exact. Floats are rounded to a common
            power of two for which no sum can overflow or round: for cohorts of up to a thousand clients the rounding
            is less than 10⁻¹⁴ of the largest value.
        size: The size of the cohort.
        speed_weight: The weight of the slowest time against the owed turns.
        available: A mask of the clients that may be selected; by default all of them.

    >>> fastest_fair_cohort(times=[1.0, 9.0, 2.0, 3.0], owed=[0, 4, 1, 2], size=2, speed_weight=1.0)
    array([2, 3])
    >>> fastest_fair_cohort(times=[1.0, 9.0, 2.0, 3.0], owed=[0, 4, 1, 2], size=2, speed_weight=0.1)
    array([1, 3])
    """
    seconds = np.ascontiguousarray(as_times("times", times, SettingError, largest=np.inf))
    weight = as_number("speed_weight", speed_weight, SettingError, least=0)
    target_size = as_count("size", size, SettingError, least=0)
    turns = as_exact("owed", owed, target_size)
    require_length("owed", turns.units, len(seconds), "clients in times", SettingError)
    mask = np.ones(len(seconds), dtype=np.bool_) if available is None else as_mask("available", available, SettingError)
    require_length("available", mask, len(seconds), "clients in times", SettingError)
    return cohort_of_times(seconds, turns, target_size, weight, mask).rows


def cohort_of_times(
    times: FloatArray,
    owed: OwedTurns,
    size: int,
    speed_weight: float,
    available: BoolArray,
    *,
    floor: float = 0.0,
    order: IntArray | None = None,
) -> SolvedCohort:
    """Solves P4 for known times.

    Args:
        times: The time of each client; finite and not negative, which is not checked.
        owed: The turns owed to each client.
        size: The size of the cohort.
        speed_weight: The weight of the slowest time against the owed turns.
        available: A mask of the clients that may be selected.
        floor: The round lasts at least this long, whichever clients are selected.
        order: Integers that order the clients as their debts do, but more finely; by default the debts. The compiled
            kernel does not support it.
    """
    size = _attainable_size(size, available, owed)
    if size == 0:
        return EMPTY_COHORT
    compiled = compiled_kernel()
    if compiled is None or order is not None:
        return numpy_cohort(times, owed, size, speed_weight, available, floor=floor, order=order)
    mask = available.view(np.uint8)
    threads = kernel_threads(len(times))
    return SolvedCohort(*compiled.cohort_of_times(times, *owed, mask, size, speed_weight, floor, threads))


def cohort_of_contexts(
    model: ExchangeTimeModel,
    contexts: FloatArray,
    exploration: float,
    owed: OwedTurns,
    size: int,
    speed_weight: float,
    available: BoolArray,
) -> SolvedCohort:
    """Solves P4 for the model's optimistic times; the compiled kernel estimates and filters in one pass.

    Args:
        model: The model that estimates the exchange times.
        contexts: One row of features per client.
        exploration: The width of the confidence band.
        owed: The turns owed to each client.
        size: The size of the cohort.
        speed_weight: The weight of the slowest time against the owed turns.
        available: A mask of the clients that may be selected.
    """
    size = _attainable_size(size, available, owed)
    if size == 0:
        return EMPTY_COHORT
    compiled = compiled_kernel()
    if compiled is None:
        return numpy_cohort(model.optimistic(contexts, exploration), owed, size, speed_weight, available)
    mask, threads = available.view(np.uint8), kernel_threads(len(contexts))
    return SolvedCohort(
        *compiled.cohort_of_contexts(contexts, model.bank, exploration, *owed, mask, size, speed_weight, threads)
    )


def as_exact(field: str, owed: npt.ArrayLike, size: int) -> OwedTurns:
    """Converts owed turns to integer units; floats are scaled by a power of two."""
    values = np.asarray(owed)
    units_per_turn = 1
    if values.dtype == object and all(isinstance(value, Fraction | int) for value in values.flat):
        units_per_turn = math.lcm(*(Fraction(value).denominator for value in values.flat))
        values = np.array([int(value * units_per_turn) for value in values.flat]).reshape(values.shape)
    if values.ndim == 1 and values.dtype.kind in "iu":
        largest = max(int(values.max(initial=0)), -int(values.min(initial=0)))
        if largest * max(size, 1) > MAX_SUM:
            raise SettingError(
                f"{field} reaches {largest} units: the sum over a cohort of {size} could exceed 64 bits. "
                "Use smaller numbers, or fractions with smaller denominators"
            )
        return OwedTurns(np.ascontiguousarray(values, dtype=np.int64), 0, float(units_per_turn))
    turns = as_floats(field, values, 1, SettingError)
    most_turns = float(np.abs(turns).max(initial=0.0))
    if most_turns == 0:
        return OwedTurns(np.zeros(len(turns), dtype=np.int64), 0, 1.0)
    bits = min(60 - math.frexp(most_turns)[1] - max(size, 1).bit_length(), 1000)
    return OwedTurns(np.rint(np.ldexp(turns, bits)).astype(np.int64), 0, math.ldexp(1.0, bits))


def numpy_cohort(
    times: FloatArray,
    owed: OwedTurns,
    size: int,
    speed_weight: float,
    available: BoolArray,
    *,
    floor: float = 0.0,
    order: IntArray | None = None,
) -> SolvedCohort:
    """Solves P4 with NumPy, with the same result as the compiled kernel.

    Args:
        times: The time of each client.
        owed: The turns owed to each client.
        size: The size of the cohort; at least so many clients must be available.
        speed_weight: The weight of the slowest time against the owed turns.
        available: A mask of the clients that may be selected.
        floor: The round lasts at least this long, whichever clients are selected.
        order: Integers that order the clients as their debts do, but more finely; by default the debts.
    """
    rows = np.flatnonzero(available)
    keys = owed.units if order is None else order
    if len(rows) > SMALL_FLEET:
        rows = _filter_candidates(rows, times, keys, size)
    by_time = rows[np.argsort(times[rows], kind="stable")]  # rows ascend, so equal times keep the lower row first
    seconds = times[by_time]
    by_owed = np.argsort(-keys[by_time], kind="stable")  # ties: the faster client, then the lower row
    durations = np.maximum(seconds, floor)
    admitted, objective = _best_threshold(seconds, durations, owed.units[by_time], by_owed, owed, size, speed_weight)
    members = np.sort(by_time[by_owed[by_owed < admitted][:size]])
    return SolvedCohort(members, times[members], float(seconds[admitted - 1]), objective, len(rows))


def _attainable_size(size: int, available: BoolArray, owed: OwedTurns) -> int:
    size = min(size, int(np.count_nonzero(available)))
    if owed.credit * size > MAX_SUM:
        raise SettingError(
            f"up to {owed.credit} units are owed: the sum over a cohort of {size} could exceed 64 bits. "
            "Use a guaranteed_rate with a smaller denominator, or max_owed"
        )
    return size


def _filter_candidates(rows: IntArray, times: FloatArray, owed: IntArray, size: int) -> IntArray:
    """Drops the rows for which at least `size` clients are certainly faster and certainly owed more."""
    cells = _histogram_cells(times[rows], owed[rows])
    counts = np.bincount(cells, minlength=TIME_BUCKETS * DEBT_BUCKETS).reshape(TIME_BUCKETS, DEBT_BUCKETS)
    faster = np.cumsum(counts, axis=0)
    # Clients in bucket 0 all have time 0, so there only the owed turns count; the others compete with faster buckets.
    faster[1:] = faster[:-1].copy()
    more_owed = np.cumsum(faster[:, ::-1], axis=1)[:, ::-1] - faster
    candidates = rows[(more_owed < size).ravel()[cells]]
    return _drop_zero_times(candidates, times[candidates] == 0, owed[candidates], size)


def _histogram_cells(times: FloatArray, owed: IntArray) -> npt.NDArray[np.int32]:
    """Returns the histogram cell of each client.

    The scale is estimated from a sample. It affects only the speed of the filter, never its correctness.
    """
    sample = slice(None, None, max(len(times) // 1024, 1))
    positive = times[sample][times[sample] > 0]
    widest = float(np.quantile(positive, 0.98)) if len(positive) else 1.0
    buckets_per_second = min((TIME_BUCKETS - 2) / widest, float(np.finfo(np.float64).max))
    with np.errstate(over="ignore"):
        cells = np.minimum(times * buckets_per_second, TIME_BUCKETS - 2).astype(np.int32)
    cells += 1
    cells[times == 0] = 0
    lowest, highest = int(owed[sample].min()), int(owed[sample].max())
    shift = max((highest - lowest).bit_length() - (DEBT_BUCKETS.bit_length() - 1), 0)
    owed_buckets = np.clip((owed - lowest) >> shift, 0, DEBT_BUCKETS - 1).astype(np.int32)
    cells *= DEBT_BUCKETS
    cells += owed_buckets
    return cells


def _drop_zero_times(rows: IntArray, zero_time: BoolArray, owed: IntArray, size: int) -> IntArray:
    """Keeps only the `size` most owed of the clients with time 0; ties go to the lower row."""
    indices = np.flatnonzero(zero_time)
    kept = ~zero_time
    kept[indices[smallest(-owed[indices], size)]] = True
    return rows[kept]


def _best_threshold(
    times: FloatArray,
    durations: FloatArray,
    units: IntArray,
    by_owed: IntArray,
    owed: OwedTurns,
    size: int,
    speed_weight: float,
) -> tuple[int, float]:
    """Returns how many candidates, in order of time, the best threshold admits, and its objective.

    It evaluates every threshold, from the slowest to the fastest.

    Args:
        times: The times of the candidates in ascending order.
        durations: The duration of a round whose slowest member is this candidate.
        units: The units owed to the candidates, in the same order.
        by_owed: The indices of the candidates from the most to the least owed.
        owed: Its `credit` and `units_per_turn` are used.
        size: The size of the cohort.
        speed_weight: The weight of the slowest time against the owed turns.
    """
    count = len(times)
    ranks = np.empty(count, dtype=np.int64)  # of each candidate in the order of owed turns
    ranks[by_owed] = np.arange(count)
    rank, units_by_time, units_by_rank = ranks.tolist(), units.tolist(), units[by_owed].tolist()
    # The cost of a threshold is stored at the last candidate that it admits; NaN where the next one is as fast.
    with np.errstate(over="ignore"):  # an infinite cost is valid
        costs = np.where(np.append(times[1:] > times[:-1], True), np.float64(speed_weight) * durations, np.nan).tolist()
    # A doubly linked list of the ranks that the current threshold admits.
    previous, following = list(range(-1, count - 1)), list(range(1, count + 1))
    last = size - 1  # the rank of the least owed member of the cohort
    total = sum(units_by_rank[:size])
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
        removed = rank[admitted - 1]
        if removed <= last:
            last = following[last]
            total += units_by_rank[last] - units_by_time[admitted - 1]
        before, after = previous[removed], following[removed]
        if before >= 0:
            following[before] = after
        if after < count:
            previous[after] = before
    return best_count, best
