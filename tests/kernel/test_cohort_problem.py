from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.kernel.certificate import OwedTurns
from turnout.kernel.cohort_problem import CohortProblem
from turnout.kernel.fairness import FairnessQueues


@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 4), st.sampled_from([0.0, 1.0, 20.0]))
@settings(max_examples=60, deadline=None)
def test_the_solution_minimises_the_documented_objective(seed: int, clients: int, size: int, weight: float) -> None:
    rng = np.random.default_rng(seed)
    available = rng.random(clients) < 0.8
    values = OwedTurns(rng.integers(0, 40, clients), 3, 20.0)
    problem = CohortProblem(rng.random(clients) * 5, values, size, weight, available)
    rows = np.flatnonzero(available).tolist()

    def objective(cohort: list[int]) -> float:
        return weight * float(problem.times[cohort].max()) - float(values.of(np.array(cohort)).sum())

    solution = problem.solve()
    assert len(solution.rows) == min(size, len(rows))
    if rows:
        best = min(objective(list(cohort)) for cohort in combinations(rows, min(size, len(rows))))
        np.testing.assert_allclose(objective(solution.rows.tolist()), best, atol=1e-9)
        np.testing.assert_allclose(solution.objective, best, atol=1e-9)
        assert solution.threshold == problem.times[solution.rows].max()


def test_a_cohort_of_urgent_clients_costs_its_slowest_time_times_the_weight() -> None:
    values, available = OwedTurns(np.zeros(3, dtype=np.int64), 0, 1.0), np.ones(3, dtype=np.bool_)
    problem = CohortProblem(np.array([1.0, 4.0, 3.0]), values, 2, 5.0, available, urgent=np.array([2, 1]))
    solution = problem.solve()
    assert (solution.rows.tolist(), solution.threshold, solution.objective) == ([1, 2], 4.0, 20.0)


def test_without_debts_or_a_sufficient_one_no_number_of_rounds_is_enough() -> None:
    values, available = OwedTurns(np.zeros(2, dtype=np.int64), 0, 1.0), np.ones(2, dtype=np.bool_)
    problem = CohortProblem(np.array([1.0, 4.0]), values, 1, 5.0, available)
    assert problem.rounds_until(1, Fraction(3)) == (None, "the policy guarantees nothing")
    owed = replace(problem, debts=FairnessQueues(2, "1/4"))
    assert owed.rounds_until(1, None) == (None, "no debt would be large enough")
    assert owed.rounds_until(1, Fraction(3)) == (12, "")
