"""Where a client stood in a choice: by how much it was in, or what it lacked.

*Not chosen.* A larger debt changes nothing for cohorts without the client, and lowers the objective of those with it;
so there is a smallest debt from which on it is chosen. For a threshold that admits the client its best cohort has the
client and the most owed of the others: that is one number a threshold, and the smallest debt is found by halving, with
the same product, sum, quotient and difference that the solver makes, and its rules for ties. Whole numbers have no
limit here, so the answer is exact also where the debt would not fit into 64 bits.

*Chosen.* The margin is the objective of the best cohort without the client, less that of the cohort.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray
from turnout.kernel.cohort import Cohort, cohort_of_times
from turnout.kernel.fairness import OwedTurns

LONGEST_DEBT = 1000  # bits: beyond it no debt helps


class CohortProblem(NamedTuple):
    """What a choice was made from: P4 with the debts and the weight that really counted."""

    times: FloatArray
    owed: OwedTurns
    size: int
    speed_weight: float
    available: BoolArray


@dataclass(frozen=True, slots=True)
class SelectionMargin:
    """Where one client stood in a choice, in numbers; clients are rows.

    `rival_*`: of the best cohort without it where it was chosen, with it where it was not; None if there is no such
    cohort. `leaving` and `joining`: who goes and comes from the cohort to the rival. `missing_units`: the smallest debt
    more that would have put it in: 0 if it was chosen, None if none would.
    """

    chosen: bool
    seconds: float
    owed_units: int
    units_per_turn: float
    threshold: float
    objective: float
    rival_threshold: float | None
    rival_objective: float | None
    leaving: tuple[int, ...]
    joining: tuple[int, ...]
    missing_units: int | None

    @property
    def margin(self) -> float | None:
        """By how much the cohort is better than its rival, in turns."""
        return None if self.rival_objective is None else self.rival_objective - self.objective


def selection_margin(problem: CohortProblem, row: int) -> SelectionMargin:
    """Where this client, which must be available, stood in the choice.

    >>> problem = CohortProblem(
    ...     times=np.array([1.0, 2.0, 5.0]), owed=OwedTurns(np.array([0, 0, 41]), 0, 1.0), size=1, speed_weight=20.0,
    ...     available=np.ones(3, dtype=np.bool_),
    ... )
    >>> selection_margin(problem, 2).missing_units
    40
    >>> selection_margin(problem, 0).margin
    20.0
    """
    if not problem.available[row]:
        raise ValueError(f"client {row} was not available")
    problem = problem._replace(size=min(problem.size, int(np.count_nonzero(problem.available))))
    cohort = cohort_of_times(*problem)
    chosen = row in cohort.rows.tolist()
    rival, missing = (_without(problem, row), 0) if chosen else _with(problem, cohort, row)
    before, after = set(cohort.rows.tolist()), set(cohort.rows.tolist() if rival is None else rival.rows)
    return SelectionMargin(
        chosen=chosen,
        seconds=float(problem.times[row]),
        owed_units=int(problem.owed.units[row]) + problem.owed.credit,
        units_per_turn=float(problem.owed.units_per_turn),
        threshold=cohort.threshold,
        objective=cohort.objective,
        rival_threshold=None if rival is None else rival.threshold,
        rival_objective=None if rival is None else rival.objective,
        leaving=tuple(sorted(before - after)),
        joining=tuple(sorted(after - before)),
        missing_units=missing,
    )


class _Rival(NamedTuple):
    rows: tuple[int, ...]
    threshold: float
    objective: float


def _without(problem: CohortProblem, row: int) -> _Rival | None:
    """The best cohort of the same size without this client."""
    others = problem.available.copy()
    others[row] = False
    if np.count_nonzero(others) < problem.size:
        return None
    best = cohort_of_times(*problem._replace(available=others))
    return _Rival(tuple(best.rows.tolist()), best.threshold, best.objective)


def _with(problem: CohortProblem, cohort: Cohort, row: int) -> tuple[_Rival | None, int | None]:
    """The best cohort with this client, which was not chosen, and the smallest debt more that puts it in."""
    if problem.size == 0:
        return None, None
    weight, per_turn = float(problem.speed_weight), float(problem.owed.units_per_turn)
    own = int(problem.owed.units[row]) + problem.size * problem.owed.credit
    admitted = list(_companions(problem, row))

    def objective(threshold: float, companions: int, more: int = 0) -> float:
        return weight * threshold - float(companions + own + more) / per_turn

    last = max(_rank(problem, member) for member in cohort.rows.tolist())

    def is_in(more: int) -> bool:
        for threshold, companions in admitted:
            value = objective(threshold, companions, more)
            if value < cohort.objective or (value == cohort.objective and threshold < cohort.threshold):
                return True
            if value == cohort.objective and threshold == cohort.threshold and _rank(problem, row, more) < last:
                return True
        return False

    value, threshold = min((objective(*one), one[0]) for one in admitted)
    best = _Rival((*_most_owed(problem, row, threshold), row), threshold, value)
    return best, _smallest(is_in)


def _companions(problem: CohortProblem, row: int) -> Iterator[tuple[float, int]]:
    """Thresholds that admit this client, and the units owed to the best that fill the other places.

    Only those where a slower threshold gains something.
    """
    others = np.flatnonzero(problem.available)
    others = others[others != row]
    others = others[np.argsort(problem.times[others], kind="stable")]
    times, units = problem.times[others].tolist(), problem.owed.units[others].tolist()
    places, own_time = problem.size - 1, float(problem.times[row])
    if places == 0:
        yield own_time, 0
        return
    best: list[int] = []
    total, told = 0, None
    for count, (time, debt) in enumerate(zip(times, units, strict=True), start=1):
        if len(best) < places:
            heapq.heappush(best, debt)
            total += debt
        elif debt > best[0]:
            total += debt - heapq.heapreplace(best, debt)
        is_last_of_equals = count == len(times) or times[count] > time
        admits_more_yet = time < own_time and count < len(times) and times[count] <= own_time
        if is_last_of_equals and not admits_more_yet and len(best) == places and (told is None or total > told):
            yield max(time, own_time), total
            told = total


def _most_owed(problem: CohortProblem, row: int, threshold: float) -> tuple[int, ...]:
    """Who fills the other places at this threshold."""
    fast = np.flatnonzero(problem.available & (problem.times <= threshold))
    fast = fast[fast != row]
    order = np.lexsort((fast, problem.times[fast], -problem.owed.units[fast]))
    return tuple(fast[order[: problem.size - 1]].tolist())


def _rank(problem: CohortProblem, row: int, more: int = 0) -> tuple[int, float, int]:
    """The solver's order: the more owed, of equals the faster, then the lower row."""
    return -(int(problem.owed.units[row]) + more), float(problem.times[row]), row


def _smallest(is_in: Callable[[int], bool]) -> int | None:
    """The smallest whole number that is in, where all larger ones are; None if none of a thousand bits is."""
    high = 1
    while not is_in(high):
        high *= 2
        if high.bit_length() > LONGEST_DEBT:
            return None
    low = high // 2  # not in, or 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_in(middle) else (middle, high)
    return high
