from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from literal import algorithm_one, best_by_brute_force, cohort_by_full_sort
from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.backend import using_kernel
from turnout.kernel.certificate import OwedTurns
from turnout.kernel.cohort import (
    MAX_SUM,
    as_exact,
    cohort_of_contexts,
    cohort_of_times,
    fastest_fair_cohort,
    numpy_cohort,
)
from turnout.kernel.cohort_problem import CohortProblem
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.fairness import FairnessQueues

WEIGHTS = (0.0, 0.1, 1.0, 20.0, 1e6, 1e12)
KERNELS = ("compiled", "numpy")


def small_times(rng: np.random.Generator, clients: int) -> FloatArray:
    kinds = (
        rng.random(clients) * 5,
        rng.integers(0, 4, clients).astype(float),  # ties, and times that are exactly 0
        np.zeros(clients),
        np.full(clients, 2.5),
    )
    return kinds[rng.integers(len(kinds))]


def small_debts(rng: np.random.Generator, clients: int) -> IntArray:
    kinds = (rng.integers(0, 5, clients), np.full(clients, 3), np.zeros(clients, int), rng.integers(0, 1000, clients))
    return kinds[rng.integers(len(kinds))].astype(np.int64)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("problems", [120, pytest.param(2000, marks=pytest.mark.thorough)])
def test_the_solver_finds_the_cohort_that_brute_force_finds(seed: int, problems: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(problems):
        clients = int(rng.integers(1, 9))
        times, owed = small_times(rng, clients), small_debts(rng, clients)
        size, weight = int(rng.integers(0, clients + 2)), float(rng.choice(WEIGHTS))
        available = rng.random(clients) < rng.choice([0.3, 0.8, 1.0])
        exact = [Fraction(int(debt)) for debt in owed]
        expected = best_by_brute_force(times, exact, size, weight, available)
        for kernel in KERNELS:
            with using_kernel(kernel):
                assert fastest_fair_cohort(times, owed, size, weight, available).tolist() == expected
        assert algorithm_one(times, exact, size, weight, available) == expected


def large_times(rng: np.random.Generator, clients: int) -> FloatArray:
    kinds = (
        rng.random(clients) * 20,
        np.sort(rng.random(clients)) * 20,  # the first clients are not representative
        np.sort(rng.random(clients))[::-1] * 20,
        rng.integers(0, 40, clients).astype(float),
        rng.pareto(0.7, clients),
        np.where(rng.random(clients) < 0.9, 0.0, rng.random(clients)),
        np.zeros(clients),
        np.full(clients, 2.5),
        rng.random(clients) * 1e-300,
        rng.random(clients) * 1e300,
    )
    return np.ascontiguousarray(kinds[rng.integers(len(kinds))])


def large_debts(rng: np.random.Generator, times: FloatArray) -> IntArray:
    clients = len(times)
    ranks = np.argsort(np.argsort(times))
    kinds = (
        rng.integers(0, 50, clients),
        np.full(clients, 3),
        rng.integers(-(10**12), 10**12, clients),
        np.minimum(rng.pareto(0.6, clients), 1e12),
        ranks,  # every slower client is owed more
        -ranks,
        np.where(np.arange(clients) == clients // 2, 10**9, 0),  # an outlier that no sample contains
    )
    return kinds[rng.integers(len(kinds))].astype(np.int64)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("problems", [5, pytest.param(25, marks=pytest.mark.thorough)])
def test_both_kernels_and_a_full_sort_agree_on_large_fleets(seed: int, problems: int) -> None:
    rng = np.random.default_rng(100 + seed)
    for _ in range(problems):
        clients = int(rng.integers(2000, 12000))
        times = large_times(rng, clients)
        owed = large_debts(rng, times)
        size = int(rng.choice([1, 7, 100, clients // 100, clients // 2, clients]))
        weight = float(rng.choice([0.0, 1e-3, 1.0, 20.0, 1e6, 1e300]))
        available = rng.random(clients) < rng.choice([0.05, 0.8, 1.0])
        with np.errstate(over="ignore"):
            expected = cohort_by_full_sort(times, owed, size, weight, available)
        for kernel in KERNELS:
            with using_kernel(kernel):
                assert fastest_fair_cohort(times, owed, size, weight, available).tolist() == expected


@pytest.mark.parametrize("seed", range(8))
def test_the_number_of_threads_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(200 + seed)
    clients = int(rng.integers(131_072, 170_000))
    times = large_times(rng, clients)
    owed = OwedTurns(large_debts(rng, times), 0, 1.0)
    weight, available = float(rng.choice([0.0, 1.0, 1e6])), rng.random(clients) < rng.choice([0.05, 0.8, 1.0])
    for size in (30, 2000):
        with using_kernel("numpy"):
            expected = cohort_of_times(times, owed, size, weight, available)
        considered = set()
        for threads in (1, 2, 5):
            with using_kernel("compiled", threads):
                cohort = cohort_of_times(times, owed, size, weight, available)
            assert cohort.rows.tolist() == expected.rows.tolist()
            assert (cohort.threshold, cohort.objective) == (expected.threshold, expected.objective)
            considered.add(cohort.considered)
        assert len(considered) == 1


@pytest.mark.parametrize("times", [0.0, 2.5])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_filter_leaves_few_of_many_equal_clients(times: float, threads: int) -> None:
    """Of clients with the same time, or the same time and debt, the later rows cannot be selected."""
    rng = np.random.default_rng(0)
    clients = 150_000
    same, everyone = np.full(clients, times), np.ones(clients, dtype=bool)
    for debts, most in (
        (np.full(clients, 7), 5000),
        (rng.integers(0, 5, clients), 5000),
        (np.arange(clients), clients),
    ):
        with using_kernel("compiled", threads):
            cohort = cohort_of_times(same, OwedTurns(debts, 0, 1.0), 50, 1.0, everyone)
        assert cohort.considered <= most
        assert cohort.rows.tolist() == np.sort(np.lexsort((np.arange(clients), -debts))[:50]).tolist()


def trained_model(rng: np.random.Generator, clients: int, features: int) -> tuple[ExchangeTimeModel, FloatArray]:
    model = ExchangeTimeModel(clients, features=features, ridge=float(rng.choice([0.3, 1.0, 7.0])))
    for _ in range(int(rng.integers(0, 5))):
        rows = np.flatnonzero(rng.random(clients) < rng.choice([0.1, 0.9]))
        model.learn(rows, rng.random((len(rows), features)) * 3, rng.random(len(rows)) * 20)
    contexts = rng.random((clients, features)) * 3
    if rng.random() < 0.3:
        contexts[:] = contexts[0]
    return model, contexts


@pytest.mark.parametrize("features", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("problems", [5, pytest.param(20, marks=pytest.mark.thorough)])
def test_the_fused_kernel_agrees_with_numpy_and_a_full_sort_bit_for_bit(features: int, problems: int) -> None:
    rng = np.random.default_rng(features)
    for _ in range(problems):
        clients = int(rng.choice([1, 5, 300, 2049, 5000, 20000]))
        model, contexts = trained_model(rng, clients, features)
        exploration = float(rng.choice([0.0, 0.1, 2.0]))
        owed = OwedTurns(rng.integers(-300, 1, clients), 300, 20)
        size = int(rng.choice([1, 8, max(clients // 100, 1), clients]))
        weight = float(rng.choice(WEIGHTS))
        available = rng.random(clients) < 0.8
        with using_kernel("numpy"):
            times = model.optimistic(contexts, exploration)
            expected = cohort_of_contexts(model, contexts, exploration, owed, size, weight, available)
        full = cohort_by_full_sort(times, owed.units + owed.credit, size, weight * owed.units_per_turn, available)
        assert expected.rows.tolist() == full
        for layout in (contexts, np.asfortranarray(contexts), np.repeat(contexts, 2, axis=0)[::2]):
            with using_kernel("compiled"):
                actual = cohort_of_contexts(model, layout, exploration, owed, size, weight, available)
            assert actual.rows.tolist() == expected.rows.tolist()
            assert actual.times.tobytes() == expected.times.tobytes()
            np.testing.assert_array_equal(
                [actual.threshold, actual.objective], [expected.threshold, expected.objective]
            )


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 60)), min_size=1, max_size=8), st.integers(1, 8))
@settings(max_examples=75, deadline=None)
def test_float_debts_give_an_optimal_cohort(clients: list[tuple[float, float]], size: int) -> None:
    times, owed = np.array([t for t, _ in clients]), np.array([o for _, o in clients])
    available = np.ones(len(clients), dtype=bool)
    chosen = fastest_fair_cohort(times, owed, size, 3.0).tolist()
    best = best_by_brute_force(times, [Fraction(float(debt)) for debt in owed], size, 3.0, available)

    def objective(rows: list[int]) -> float:
        return 3.0 * float(times[rows].max()) - float(sum(Fraction(float(debt)) for debt in owed[rows]))

    assert objective(chosen) == pytest.approx(objective(best), rel=1e-15, abs=1e-14)


def test_equal_float_debts_are_ties_regardless_of_summation_order() -> None:
    owed = np.array([0.15, 0.3, 0.45, 0.15, 0.3, 0.45])
    assert fastest_fair_cohort(np.array([5.0, 5.0, 5.0, 4.0, 4.0, 4.0]), owed, 3, 0.0).tolist() == [2, 4, 5]


def test_fractions_are_solved_exactly() -> None:
    rng = np.random.default_rng(2)
    for _ in range(120):
        times = rng.integers(0, 5, 7).astype(float)
        owed = [Fraction(int(rng.integers(0, 9)), int(rng.integers(1, 8))) for _ in range(7)]
        expected = best_by_brute_force(times, owed, 3, 0.5, np.ones(7, dtype=bool))
        assert fastest_fair_cohort(times, owed, 3, 0.5).tolist() == expected  # type: ignore[arg-type]


def test_ties_go_to_the_smaller_threshold_then_the_faster_client_then_the_lower_row() -> None:
    assert fastest_fair_cohort([5.0, 3.0], [5, 3], 1, 1.0).tolist() == [1]
    assert fastest_fair_cohort([5.0, 3.0, 3.0], [4, 4, 4], 1, 0.0).tolist() == [1]
    assert fastest_fair_cohort([3.0, 5.0, 3.0, 5.0], [4, 9, 4, 9], 3, 0.0).tolist() == [0, 1, 3]


def test_the_cohort_is_empty_if_no_client_is_available() -> None:
    assert fastest_fair_cohort([1.0, 2.0], [0, 0], 2, 1.0, [False, False]).tolist() == []
    assert fastest_fair_cohort([], [], 2, 1.0).tolist() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, np.nan], [0, 0], 1, 1.0), r"times\[1\] = nan must be finite"),
        (([1.0, -2.0], [0, 0], 1, 1.0), r"times\[1\] = -2.0 must not be negative"),
        (([1.0, 2.0], [0.0, np.inf], 1, 1.0), r"owed\[1\] = inf must be finite"),
        (([1.0, 2.0], [0], 1, 1.0), "owed has 1 rows, but there are 2 clients in times"),
        (([1.0, 2.0], [0, 0], -1, 1.0), "size must be at least 0, not -1"),
        (([1.0, 2.0], [0, 0], 1.5, 1.0), "size must be a whole number"),
        (([1.0, 2.0], [0, 0], 1, -1.0), "speed_weight must be at least 0"),
        (([1.0, 2.0], [0, 0], 1, np.nan), "speed_weight must be finite"),
        (([1.0, 2.0], [0, 0], 1, 1.0, [1, 0]), "available must hold booleans"),
        (([1.0, 2.0], [0, 0], 1, 1.0, [True]), "available has 1 rows"),
        (([1.0, 2.0], [2**61, 0], 2, 1.0), "could exceed 64 bits"),
        (([1.0, 2.0], [-(2**61), 0], 2, 1.0), "could exceed 64 bits"),
        ((["a", "b"], [0, 0], 1, 1.0), "times must hold numbers"),
    ],
)
def test_invalid_arguments_are_refused_by_name(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        fastest_fair_cohort(*arguments)  # type: ignore[arg-type]


def test_a_debt_beyond_64_bits_is_refused_instead_of_wrapping_around() -> None:
    model, available = ExchangeTimeModel(2), np.ones(2, dtype=bool)
    owed = OwedTurns(np.zeros(2, dtype=np.int64), MAX_SUM, 1)
    with pytest.raises(SettingError, match="could exceed 64 bits"):
        cohort_of_contexts(model, np.ones((2, 3)), 0.1, owed, 2, 1.0, available)


def test_the_filter_leaves_few_candidates_of_a_large_fleet() -> None:
    rng = np.random.default_rng(0)
    times, available = rng.random(200_000) * 20, np.ones(200_000, dtype=bool)
    owed = as_exact("owed", rng.integers(0, 800, 200_000), 100)
    for kernel in KERNELS:
        with using_kernel(kernel):
            assert cohort_of_times(times, owed, 100, 20.0, available).considered < 20_000


def test_the_arguments_are_not_modified() -> None:
    rng = np.random.default_rng(1)
    times, owed, available = rng.random(3000), rng.integers(0, 9, 3000), rng.random(3000) < 0.5
    copies: list[FloatArray | IntArray | BoolArray] = [times.copy(), owed.copy(), available.copy()]
    for kernel in KERNELS:
        with using_kernel(kernel):
            fastest_fair_cohort(times, owed, 10, 1.0, available)
    for array, copy in zip((times, owed, available), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_queues_pass_owed_turns_to_the_solver_without_a_copy() -> None:
    queues = FairnessQueues(5000, 0.15)
    queues.advance(np.arange(10))
    owed = queues.owed_exactly()
    assert not owed.units.flags.writeable
    cohort = numpy_cohort(np.zeros(5000), owed, 5, 1.0, np.ones(5000, dtype=bool))
    assert cohort.rows.tolist() == [10, 11, 12, 13, 14]


# The problem of a policy


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
        assert solution.times.tolist() == problem.times[solution.rows].tolist()


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
