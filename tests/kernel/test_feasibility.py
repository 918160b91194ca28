from __future__ import annotations

import math
from copy import copy
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowing import known
from turnout.errors import InfeasiblePromise, SettingError
from turnout.kernel.feasibility import (
    binomial_turns,
    expected_turns,
    feasibility,
    largest_feasible_rate,
    require_feasible,
)


def turns_of(probabilities: list[Fraction], cohort_size: int) -> Fraction:
    """Returns E[min(cohort_size, available)] by enumerating all availability masks."""
    total = Fraction(0)
    for mask in product([False, True], repeat=len(probabilities)):
        mask_probability = Fraction(1)
        for available, probability in zip(mask, probabilities, strict=True):
            mask_probability *= probability if available else 1 - probability
        total += mask_probability * min(cohort_size, sum(mask))
    return total


def scale_by_testing_all_sets(
    rates: list[Fraction], probabilities: list[Fraction], cohort_size: int
) -> Fraction | None:
    """Returns the largest factor that is feasible for every set of clients."""
    scales = []
    for size in range(1, len(rates) + 1):
        for rows in combinations(range(len(rates)), size):
            promised = sum((rates[row] for row in rows), Fraction())
            if promised:
                scales.append(turns_of([probabilities[row] for row in rows], cohort_size) / promised)
    return min(scales, default=None)


fractions = st.fractions(min_value=0, max_value=1, max_denominator=12)


@given(st.lists(st.tuples(fractions, fractions), min_size=1, max_size=5), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_prefixes_give_the_result_of_all_sets(clients: list[tuple[Fraction, Fraction]], cohort_size: int) -> None:
    rates, probabilities = [rate for rate, _ in clients], [probability for _, probability in clients]
    result = feasibility([float(r) for r in rates], [float(p) for p in probabilities], cohort_size)
    expected = scale_by_testing_all_sets(rates, probabilities, cohort_size)
    if expected is None:
        assert result.scale == np.inf
        return
    assert result.scale == pytest.approx(float(expected), rel=1e-12, abs=1e-15)
    bottleneck = list(result.bottleneck)
    promised = sum((rates[row] for row in bottleneck), Fraction())
    turns = turns_of([probabilities[row] for row in bottleneck], cohort_size)
    assert float(turns) == pytest.approx(float(expected * promised), abs=1e-12)


def test_the_largest_feasible_rate_is_a_feasible_fraction() -> None:
    rate = largest_feasible_rate([1.0] * 40, 8)
    assert rate == Fraction(1, 5)
    require_feasible([float(rate)] * 40, [1.0] * 40, 8)
    availability = np.random.default_rng(0).random(60)
    largest = largest_feasible_rate(availability, 9)
    require_feasible([float(largest)] * 60, availability, 9)
    with pytest.raises(InfeasiblePromise):
        require_feasible([float(largest) * 1.000001] * 60, availability, 9)


def test_no_client_can_be_guaranteed_more_than_its_availability() -> None:
    assert largest_feasible_rate([0.9, 0.05, 0.9], 3) == Fraction(1, 20)
    assert largest_feasible_rate([1.0, 1.0], 5) == 1
    assert largest_feasible_rate([0.0, 1.0], 1) == 0


@pytest.mark.parametrize("cohort_size", [1, 3, 50, 500])
def test_expected_turns_of_large_fleets_are_correct(cohort_size: int) -> None:
    turns = expected_turns(np.full(3000, 0.3), cohort_size)
    rng = np.random.default_rng(0)
    for count in (1, 10, 150, 1700, 3000):
        sample_mean = np.minimum(rng.binomial(count, 0.3, 200_000), cohort_size).mean()
        assert turns[count - 1] == pytest.approx(sample_mean, rel=0.02)
    assert turns[-1] <= cohort_size


@pytest.mark.parametrize(
    ("clients", "probability", "cohort_size"), [(1, 0.3, 1), (40, 0.2, 8), (700, 0.01, 3), (900, 0.97, 870)]
)
def test_equal_clients_have_the_expected_turns_of_the_binomial_distribution(
    clients: int, probability: float, cohort_size: int
) -> None:
    expected = expected_turns(np.full(clients, probability), cohort_size)[-1]
    assert binomial_turns(clients, probability, cohort_size) == pytest.approx(expected, rel=1e-11)


def test_an_infeasible_rate_for_a_million_clients_is_refused_with_a_remedy() -> None:
    with pytest.raises(InfeasiblePromise) as caught:
        require_feasible(np.full(10**6, 0.15), np.full(10**6, 0.8), 100)
    sufficient = known(caught.value.cohort_size)
    assert 150_000 <= sufficient < 150_500
    assert feasibility(np.full(10**6, 0.15), np.full(10**6, 0.8), sufficient).holds
    assert not feasibility(np.full(10**6, 0.15), np.full(10**6, 0.8), sufficient - 1).holds


@given(st.lists(st.floats(0.5, 1), min_size=12, max_size=30), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_the_remedy_names_the_smallest_sufficient_cohort_size(probabilities: list[float], cohort_size: int) -> None:
    rates = np.full(len(probabilities), 0.9 * min(probabilities))
    with pytest.raises(InfeasiblePromise) as caught:
        require_feasible(rates, probabilities, cohort_size)
    sufficient = known(caught.value.cohort_size)
    assert feasibility(rates, probabilities, sufficient).holds
    assert not feasibility(rates, probabilities, sufficient - 1).holds


@pytest.mark.parametrize(("rate", "probability"), [(0.49, 0.5), (0.499, 0.5), (0.4999, 0.5), (0.899, 0.9)])
def test_a_sufficient_cohort_size_far_from_the_sum_of_rates_is_the_smallest(rate: float, probability: float) -> None:
    rates, probabilities = np.full(200, rate), np.full(200, probability)
    smallest = next(size for size in range(1, 201) if feasibility(rates, probabilities, size).holds)
    with pytest.raises(InfeasiblePromise) as caught:
        require_feasible(rates, probabilities, 5)
    assert caught.value.cohort_size == smallest
    assert smallest > math.ceil(rates.sum()) + 1


def test_the_error_names_the_largest_rate_a_sufficient_cohort_size_and_the_bottleneck_also_when_it_is_copied() -> None:
    with pytest.raises(InfeasiblePromise) as caught:
        require_feasible([0.15] * 100, [1.0] * 100, 8)
    for error in (caught.value, copy(caught.value)):
        assert (error.largest_rate, error.cohort_size, error.clients) == (Fraction(2, 25), 15, tuple(range(100)))
        for part in ("largest feasible rate is 0.08", "at most 0.08", "cohort_size of at least 15", "allow_infeasible"):
            assert part in str(error)
    require_feasible([0.15] * 100, [1.0] * 100, 15)


def test_clients_that_are_rarely_or_never_available_and_the_feasible_rate_or_factor_are_named() -> None:
    with pytest.raises(InfeasiblePromise) as caught:
        require_feasible([0.15] * 4, [0.9, 0.9, 0.1, 0.9], 2)
    assert caught.value.clients == (2,)
    assert caught.value.cohort_size is None
    assert "client 2 is promised 0.15 of the rounds and is available in 0.1" in str(caught.value)
    assert "Use a guaranteed_rate of at most 0.1," in str(caught.value)
    with pytest.raises(InfeasiblePromise, match="Use a guaranteed_rate of at most 0,") as caught:
        require_feasible([0.1, 0.1], [0.5, 0.0], 1)
    assert (caught.value.clients, caught.value.largest_rate) == ((1,), Fraction(0))
    assert caught.value.cohort_size is None
    with pytest.raises(InfeasiblePromise, match=r"the largest feasible rate is 0\.5"):
        require_feasible([0.75], [0.5], 1)
    with pytest.raises(InfeasiblePromise, match=r"multiplied by 0.8"):
        require_feasible([1.0, 0.25], [1.0, 1.0], 1)


@pytest.mark.parametrize(
    ("availability", "cohort_size", "message"),
    [
        ([0.5, 1.5], 1, r"availability\[1\] = 1.5 must lie in \[0, 1\]"),
        ([0.5, -0.5], 1, r"availability\[1\] = -0.5 must lie in \[0, 1\]"),
        ([0.5, np.nan], 1, r"availability\[1\] = nan must be finite"),
        ([], 1, "one probability per client"),
        ([0.5], 0, "cohort_size must be at least 1"),
    ],
)
def test_invalid_availability_is_refused(availability: list[float], cohort_size: int, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        largest_feasible_rate(availability, cohort_size)
    with pytest.raises(SettingError, match="rates has 2 entries, availability 3"):
        feasibility([0.1, 0.1], [1.0, 1.0, 1.0], 1)
