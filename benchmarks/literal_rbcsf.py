"""RBCS-F in plain Python, one client at a time: a reference for results and speed."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from turnout.kernel.rounds import Selection
from turnout.lab.worlds.paper import PaperWorld

Matrix = list[list[float]]


class LiteralRBCSF:
    """Algorithm 2 of the paper, with Algorithm 1 in `choose`. `owed` has units of 1 / denominator of the rate."""

    def __init__(self, clients: int, *, cohort_size: int, guaranteed_rate: Fraction, speed_weight: float) -> None:
        self.cohort_size, self.rate, self.speed_weight = cohort_size, guaranteed_rate, speed_weight
        self.H: list[Matrix] = [[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]] for _ in range(clients)]
        self.b = [[0.0, 0.0, 0.0] for _ in range(clients)]
        self.owed = [0] * clients

    def choose(self, available: list[bool], contexts: list[list[float]]) -> list[int]:
        """Estimates all times; then, for each slowest client, selects the most owed among the faster clients."""
        times = [self._optimistic(n, context) for n, context in enumerate(contexts)]
        present = [n for n, is_available in enumerate(available) if is_available]
        by_debt = sorted(present, key=lambda n: (-self.owed[n], times[n], n))
        size = min(self.cohort_size, len(present))
        best, best_cohort = (math.inf, math.inf), list[int]()
        for slowest in present:
            cohort = [n for n in by_debt if times[n] <= times[slowest]][:size]
            if len(cohort) == size:
                value = self.speed_weight * times[slowest] - sum(self.owed[n] for n in cohort) / self.rate.denominator
                if (value, times[slowest]) < best:
                    best, best_cohort = (value, times[slowest]), cohort
        return sorted(best_cohort)

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


def literal_run(rounds: int, *, seed: int = 0, speed_weight: float = 20.0) -> list[list[int]]:
    """Plays the literal policy in the paper's world and returns the cohorts."""
    world = PaperWorld(seed)
    policy = LiteralRBCSF(world.clients, cohort_size=8, guaranteed_rate=Fraction(3, 20), speed_weight=speed_weight)
    chosen = []
    for round_ in range(1, rounds + 1):
        offer = world.offer(round_)
        contexts = offer.contexts.tolist()
        cohort = policy.choose(offer.available.tolist(), contexts)
        report = world.play(offer, Selection(round_, np.array(cohort, dtype=np.int64)))
        policy.learn(cohort, contexts, report.exchange_times.tolist())
        chosen.append(cohort)
    return chosen


def _inverse(m: Matrix) -> Matrix:
    (a, b, c), (_, e, f), (_, _, i) = m
    cofactors = [
        [e * i - f * f, c * f - b * i, b * f - c * e],
        [0.0, a * i - c * c, b * c - a * f],
        [0.0, 0.0, a * e - b * b],
    ]
    determinant = a * cofactors[0][0] + b * cofactors[0][1] + c * cofactors[0][2]
    return [[cofactors[min(r, s)][max(r, s)] / determinant for s in range(3)] for r in range(3)]
