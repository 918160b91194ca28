"""The paper's algorithms, read literally and slowly: what the fast kernel is held against."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray


def best_by_trying_all(
    times: FloatArray, owed: Sequence[Fraction], size: int, speed_weight: float, available: BoolArray
) -> list[int]:
    """P4 by trying every cohort, in rational arithmetic, with the tie rule of the specification."""
    rows = np.flatnonzero(available).tolist()
    size = min(size, len(rows))
    if size == 0:
        return []
    seconds = [Fraction(float(time)) for time in times]
    weight = Fraction(speed_weight)

    def order(cohort: tuple[int, ...]) -> tuple[Fraction, Fraction, list[tuple[Fraction, Fraction, int]]]:
        slowest = max(seconds[row] for row in cohort)
        objective = weight * slowest - sum(owed[row] for row in cohort)
        # Of equal cohorts: the smaller threshold; then, client by client in order of debt, the faster, the lower row.
        members = sorted((-owed[row], seconds[row], row) for row in cohort)
        return (objective, slowest, members)

    best: tuple[int, ...] = min(combinations(rows, size), key=order)
    return sorted(best)


def algorithm_one(
    times: FloatArray, owed: Sequence[Fraction], size: int, speed_weight: float, available: BoolArray
) -> list[int]:
    """Algorithm 1 of the paper line by line, O(N²): for each slowest client the most owed among the faster."""
    present = [row for row in range(len(times)) if available[row]]
    by_debt = sorted(present, key=lambda row: (-owed[row], times[row], row))
    k = min(size, len(present))
    if k == 0:
        return []
    best: tuple[float, float] | None = None
    best_cohort: list[int] = []
    for slowest in present:
        cohort: list[int] = []
        for row in by_debt:
            if times[row] <= times[slowest]:
                cohort.append(row)
            if len(cohort) == k:
                objective = speed_weight * float(times[slowest]) - float(sum((owed[r] for r in cohort), Fraction()))
                if best is None or (objective, float(times[slowest])) < best:
                    best, best_cohort = (objective, float(times[slowest])), cohort
                break
    return sorted(best_cohort)


def cohort_by_full_sort(
    times: FloatArray, owed: IntArray, size: int, speed_weight: float, available: BoolArray
) -> list[int]:
    """Sort all, sweep with a heap: a third way to P4, for fleets too large to try all cohorts."""
    rows = np.flatnonzero(available)
    size = min(size, len(rows))
    if size == 0:
        return []
    rows = rows[np.lexsort((rows, times[rows]))]
    seconds, debts = times[rows].tolist(), owed[rows].tolist()
    heap: list[tuple[int, int]] = []  # least owed first; of equals the later in order of time
    total, best, best_end = 0, float("inf"), 0
    for position, debt in enumerate(debts):
        total += debt
        heapq.heappush(heap, (debt, -position))
        if len(heap) > size:
            total -= heapq.heappop(heap)[0]
        last_of_its_time = position + 1 == len(rows) or seconds[position + 1] > seconds[position]
        if len(heap) == size and last_of_its_time:
            objective = speed_weight * seconds[position] - float(total)
            if best_end == 0 or objective < best:
                best, best_end = objective, position + 1
    members = sorted(range(best_end), key=lambda position: (-debts[position], position))[:size]
    return sorted(rows[members].tolist())


class LiteralQueue:
    """One client's debt, as the specification writes it, in fractions."""

    def __init__(self, rate: Fraction, cap: Fraction | None) -> None:
        self.rate, self.cap = rate, cap
        self.owed = self.forfeited = self.promised = Fraction(0)

    def advance(self, *, earns: bool, chosen: bool) -> None:
        if earns:
            self.promised += self.rate
        grown = max(self.owed + (self.rate if earns else 0) - chosen, Fraction(0))
        self.owed = grown if self.cap is None else min(grown, self.cap)
        self.forfeited += grown - self.owed
