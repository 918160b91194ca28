"""The margin of one client in a selection: by how much it was selected, or what it lacked.

*Not selected.* A larger debt does not change cohorts without the client, and lowers the objective of those with it, so
there is a smallest debt with which the client is selected. For each threshold that admits the client, its best cohort
consists of the client and the most valuable of the others: one number per threshold. The smallest debt is found by
bisection, with the same floating-point operations as the solver and its tie-breaking rules. Python's integers have no
limit, so the answer is exact even if the debt does not fit 64 bits.

*Selected.* The margin is the objective of the best cohort without the client, minus that of the selected cohort.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from turnout.kernel.cohort import SolvedCohort
from turnout.kernel.cohort_problem import CohortProblem

MAX_DEBT_BITS = 1000  # beyond this size no debt helps


@dataclass(frozen=True, slots=True)
class SelectionMargin:
    """The position of one client relative to a selection; clients are rows.

    Attributes:
        chosen: Whether the client was selected.
        owed_units: The value of a turn of the client, in units.
        units_per_turn: The number of units in a turn.
        threshold: The slowest time of the cohort, those of urgent clients included.
        objective: The objective of the cohort.
        rival_threshold: The slowest time of the best cohort without the client (if it was selected) or with it (if
            not); None if there is no such cohort.
        rival_objective: The objective of that cohort.
        leaving: The clients that are in the cohort but not in the rival.
        joining: The clients that are in the rival but not in the cohort.
        missing_units: The smallest additional debt with which it would have been selected: 0 if it was, None if there
            is none.
    """

    chosen: bool
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
    def longer(self) -> float | None:
        """By how many seconds the round of the rival is longer; None if there is no rival."""
        return None if self.rival_threshold is None else self.rival_threshold - self.threshold

    @property
    def owed(self) -> float:
        """The value of a turn of the client, in turns."""
        return self.owed_units / self.units_per_turn

    @property
    def missing(self) -> float | None:
        """The missing debt, in turns; None if there is none."""
        return None if self.missing_units is None else self.missing_units / self.units_per_turn

    @property
    def margin(self) -> float | None:
        """By how much the cohort is better than its rival, in turns."""
        return None if self.rival_objective is None else self.rival_objective - self.objective


def selection_margin(problem: CohortProblem, row: int) -> SelectionMargin:
    """Returns the margin of an available client that competes for a place; urgent clients do not.

    >>> from turnout.kernel.fairness import OwedTurns
    >>> problem = CohortProblem(
    ...     times=np.array([1.0, 2.0, 5.0]), values=OwedTurns(np.array([0, 0, 41]), 0, 1.0), size=1, speed_weight=20.0,
    ...     available=np.ones(3, dtype=np.bool_),
    ... )
    >>> selection_margin(problem, 2).missing_units
    40
    >>> selection_margin(problem, 0).margin
    20.0
    """
    problem = problem.contested()
    if not problem.available[row]:
        raise ValueError(f"client {row} was not available")
    problem = replace(problem, size=min(problem.size, int(np.count_nonzero(problem.available))))
    cohort = problem.solve()
    chosen = row in cohort.rows.tolist()
    rival, missing = (_without(problem, row), 0) if chosen else _with(problem, cohort, row)
    before, after = set(cohort.rows.tolist()), set(cohort.rows.tolist() if rival is None else rival.rows)
    return SelectionMargin(
        chosen=chosen,
        owed_units=int(problem.values.units[row]) + problem.values.credit,
        units_per_turn=float(problem.values.units_per_turn),
        threshold=max(cohort.threshold, problem.floor),
        objective=cohort.objective,
        rival_threshold=None if rival is None else max(rival.threshold, problem.floor),
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
    """Returns the best cohort of the same size without this client."""
    others = problem.available.copy()
    others[row] = False
    if np.count_nonzero(others) < problem.size:
        return None
    best = replace(problem, available=others).solve()
    return _Rival(tuple(best.rows.tolist()), best.threshold, best.objective)


def _with(problem: CohortProblem, cohort: SolvedCohort, row: int) -> tuple[_Rival | None, int | None]:
    """Returns the best cohort with a client that was not selected, and the smallest additional debt that it needs."""
    if problem.size == 0:
        return None, None
    weight, per_turn = float(problem.speed_weight), float(problem.values.units_per_turn)
    own = int(problem.values.units[row]) + problem.size * problem.values.credit
    admitted = list(_companions(problem, row))

    def objective(threshold: float, companions: int, more: int = 0) -> float:
        return weight * max(threshold, problem.floor) - float(companions + own + more) / per_turn

    last = max(_rank(problem, member) for member in cohort.rows.tolist())

    def is_selected(more: int) -> bool:
        for threshold, companions in admitted:
            value = objective(threshold, companions, more)
            if value < cohort.objective or (value == cohort.objective and threshold < cohort.threshold):
                return True
            if value == cohort.objective and threshold == cohort.threshold and _rank(problem, row, more) < last:
                return True
        return False

    value, threshold = min((objective(*candidate), candidate[0]) for candidate in admitted)
    best = _Rival((*_most_valuable(problem, row, threshold), row), threshold, value)
    return best, _smallest(is_selected)


def _companions(problem: CohortProblem, row: int) -> Iterator[tuple[float, int]]:
    """Yields thresholds that admit this client, and the total value of the best clients for the other places.

    Thresholds that are slower without a larger value are left out.
    """
    others = np.flatnonzero(problem.available)
    others = others[others != row]
    others = others[np.argsort(problem.times[others], kind="stable")]
    times, units = problem.times[others].tolist(), problem.values.units[others].tolist()
    places, own_time = problem.size - 1, float(problem.times[row])
    if places == 0:
        yield own_time, 0
        return
    best: list[int] = []
    total, yielded = 0, None
    for count, (time, debt) in enumerate(zip(times, units, strict=True), start=1):
        if len(best) < places:
            heapq.heappush(best, debt)
            total += debt
        elif debt > best[0]:
            total += debt - heapq.heapreplace(best, debt)
        is_last_of_equals = count == len(times) or times[count] > time
        admits_more_yet = time < own_time and count < len(times) and times[count] <= own_time
        if is_last_of_equals and not admits_more_yet and len(best) == places and (yielded is None or total > yielded):
            yield max(time, own_time), total
            yielded = total


def _most_valuable(problem: CohortProblem, row: int, threshold: float) -> tuple[int, ...]:
    """Returns the clients that fill the other places at this threshold."""
    fast = np.flatnonzero(problem.available & (problem.times <= threshold))
    fast = fast[fast != row]
    keys = problem.values.units if problem.order is None else problem.order
    order = np.lexsort((fast, problem.times[fast], -keys[fast]))
    return tuple(fast[order[: problem.size - 1]].tolist())


def _rank(problem: CohortProblem, row: int, more: int = 0) -> tuple[int, int, float, int]:
    """Returns the solver's sort key: the larger value first, among equals the faster, then the lower row."""
    finer = 0 if problem.order is None else int(problem.order[row])
    return -(int(problem.values.units[row]) + more), -finer, float(problem.times[row]), row


def _smallest(is_selected: Callable[[int], bool]) -> int | None:
    """Returns the smallest positive integer that satisfies a monotone predicate; None above 1000 bits."""
    high = 1
    while not is_selected(high):
        high *= 2
        if high.bit_length() > MAX_DEBT_BITS:
            return None
    low = high // 2  # does not satisfy it, or 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_selected(middle) else (middle, high)
    return high
