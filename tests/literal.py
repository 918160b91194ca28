"""Direct, slow implementations of the paper's algorithms, as references for the fast kernel."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray


def best_by_brute_force(
    times: FloatArray, owed: Sequence[Fraction], size: int, speed_weight: float, available: BoolArray
) -> list[int]:
    """Solves P4 by testing every cohort in rational arithmetic, with the tie rules of the specification.

    Args:
        times: The time of each client.
        owed: The turns owed to each client.
        size: The size of the cohort.
        speed_weight: The weight of the slowest time against the owed turns.
        available: A mask of the clients that may be selected.
    """
    rows = np.flatnonzero(available).tolist()
    size = min(size, len(rows))
    if size == 0:
        return []
    seconds = [Fraction(float(time)) for time in times]
    weight = Fraction(speed_weight)

    def order(cohort: tuple[int, ...]) -> tuple[Fraction, Fraction, list[tuple[Fraction, Fraction, int]]]:
        slowest = max(seconds[row] for row in cohort)
        objective = weight * slowest - sum(owed[row] for row in cohort)
        # Ties: the smaller threshold; then, client by client in order of debt, the faster client, then the lower row.
        members = sorted((-owed[row], seconds[row], row) for row in cohort)
        return (objective, slowest, members)

    best: tuple[int, ...] = min(combinations(rows, size), key=order)
    return sorted(best)


def algorithm_one(
    times: FloatArray, owed: Sequence[Fraction], size: int, speed_weight: float, available: BoolArray
) -> list[int]:
    """Follows Algorithm 1 of the paper line by line in O(N²).

    For each client as the slowest member, it selects the most owed of the clients that are at least as fast. The
    arguments are those of `best_by_brute_force`.
    """
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
    """Solves P4 by a full sort and a sweep with a heap, for fleets that are too large for brute force.

    The arguments are those of `best_by_brute_force`, with debts as integers.
    """
    rows = np.flatnonzero(available)
    size = min(size, len(rows))
    if size == 0:
        return []
    rows = rows[np.lexsort((rows, times[rows]))]
    seconds, debts = times[rows].tolist(), owed[rows].tolist()
    heap: list[tuple[int, int]] = []  # the least owed client first; ties: the slower client first
    total, best, best_end = 0, float("inf"), 0
    for position, debt in enumerate(debts):
        total += debt
        heapq.heappush(heap, (debt, -position))
        if len(heap) > size:
            total -= heapq.heappop(heap)[0]
        is_threshold = position + 1 == len(rows) or seconds[position + 1] > seconds[position]
        if len(heap) == size and is_threshold:
            objective = speed_weight * seconds[position] - float(total)
            if best_end == 0 or objective < best:
                best, best_end = objective, position + 1
    members = sorted(range(best_end), key=lambda position: (-debts[position], position))[:size]
    return sorted(rows[members].tolist())


class LiteralQueue:
    """The debt of one client in fractions, exactly as the specification defines it."""

    def __init__(self, rate: Fraction, cap: Fraction | None) -> None:
        self.rate, self.cap = rate, cap
        self.owed = self.forfeited = self.promised = Fraction(0)

    def advance(self, *, accrues: bool, chosen: bool) -> None:
        if accrues:
            self.promised += self.rate
        uncapped = max(self.owed + (self.rate if accrues else 0) - chosen, Fraction(0))
        self.owed = uncapped if self.cap is None else min(uncapped, self.cap)
        self.forfeited += uncapped - self.owed


class LiteralRBCSF:
    """Algorithm 2 of the paper, one client at a time. `owed` has units of 1 / denominator of the rate."""

    def __init__(self, clients: int, *, cohort_size: int, guaranteed_rate: Fraction, speed_weight: float) -> None:
        self.cohort_size, self.rate, self.speed_weight = cohort_size, guaranteed_rate, speed_weight
        self.H = [[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]] for _ in range(clients)]
        self.b = [[0.0, 0.0, 0.0] for _ in range(clients)]
        self.owed = [0] * clients

    def choose(self, available: BoolArray, contexts: list[list[float]]) -> list[int]:
        """Estimates all times, and solves P4 by Algorithm 1."""
        times = np.array([self._optimistic(n, context) for n, context in enumerate(contexts)])
        owed = [Fraction(units, self.rate.denominator) for units in self.owed]
        return algorithm_one(times, owed, self.cohort_size, self.speed_weight, available)

    def learn(self, chosen: list[int], contexts: list[list[float]], times: list[float]) -> None:
        """Updates the turns owed, and the regressions of the selected clients."""
        accrual, turn = self.rate.numerator, self.rate.denominator
        self.owed = [max(owed + accrual - turn * (n in chosen), 0) for n, owed in enumerate(self.owed)]
        for n, time in zip(chosen, times, strict=True):
            c = contexts[n]
            for i in range(3):
                self.b[n][i] += time * c[i]
                for j in range(3):
                    self.H[n][i][j] += c[i] * c[j]

    def _optimistic(self, n: int, c: list[float]) -> float:
        inverse = _inverse(self.H[n])
        gain = [sum(inverse[i][j] * c[j] for j in range(3)) for i in range(3)]
        mean = sum(gain[i] * self.b[n][i] for i in range(3))
        return max(mean - 0.1 * math.sqrt(sum(gain[i] * c[i] for i in range(3))), 0.0)


def _inverse(m: list[list[float]]) -> list[list[float]]:
    """Returns the inverse of a symmetric matrix of three rows."""
    (a, b, c), (_, e, f), (_, _, i) = m
    cofactors = [
        [e * i - f * f, c * f - b * i, b * f - c * e],
        [0.0, a * i - c * c, b * c - a * f],
        [0.0, 0.0, a * e - b * b],
    ]
    determinant = a * cofactors[0][0] + b * cofactors[0][1] + c * cofactors[0][2]
    return [[cofactors[min(r, s)][max(r, s)] / determinant for s in range(3)] for r in range(3)]
