from __future__ import annotations

from copy import copy
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.errors import InfeasiblePromise, SettingError
from turnout.kernel.feasibility import (
    binomial_turns,
    expected_turns,
    feasibility,
    largest_feasible_rate,
    require_feasible,
)


def turns_of(chances: list[Fraction], cohort_size: int) -> Fraction:
    """E[min(cohort_size, available)] by listing who may be there."""
    total = Fraction(0)
    for there in product([False, True], repeat=len(chances)):
        chance = Fraction(1)
        for present, one in zip(there, chances, strict=True):
            chance *= one if present else 1 - one
        total += chance * min(cohort_size, sum(there))
    return total


def scale_by_trying_all_sets(rates: list[Fraction], chances: list[Fraction], cohort_size: int) -> Fraction | None:
    """The largest factor that no set of clients forbids."""
    scales = []
    for size in range(1, len(rates) + 1):
        for some in combinations(range(len(rates)), size):
            together = sum((rates[row] for row in some), Fraction())
            if together:
                scales.append(turns_of([chances[row] for row in some], cohort_size) / together)
    return min(scales, default=None)


fractions = st.fractions(min_value=0, max_value=1, max_denominator=12)


@given(st.lists(st.tuples(fractions, fractions), min_size=1, max_size=6), st.integers(1, 7))
@settings(max_examples=200, deadline=None)
def test_looking_at_prefixes_equals_trying_all_sets(clients: list[tuple[Fraction, Fraction]], cohort_size: int) -> None:
    rates, chances = [rate for rate, _ in clients], [chance for _, chance in clients]
    found = feasibility([float(r) for r in rates], [float(p) for p in chances], cohort_size)
    truth = scale_by_trying_all_sets(rates, chances, cohort_size)
    if truth is None:
        assert found.scale == np.inf
        return
    assert found.scale == pytest.approx(float(truth), rel=1e-12, abs=1e-15)
    blamed = list(found.bottleneck)
    together = sum((rates[row] for row in blamed), Fraction())
    got = turns_of([chances[row] for row in blamed], cohort_size)
    assert float(got) == pytest.approx(float(truth * together), abs=1e-12)


def test_the_quick_test_is_too_generous_and_ours_is_not() -> None:
    """The specification's example: m/N and p both say 0.200, the truth is 0.175."""
    rate = largest_feasible_rate([0.2] * 40, 8)
    # The definition, by the binomial distribution.
    from math import comb

    truth = sum(comb(40, j) * 0.2**j * 0.8 ** (40 - j) * min(j, 8) for j in range(41)) / 40
    assert float(rate) == pytest.approx(truth, rel=1e-12)
    assert round(float(rate), 3) == 0.175


def test_the_answer_is_a_fraction_that_may_be_promised() -> None:
    rate = largest_feasible_rate([1.0] * 40, 8)
    assert rate == Fraction(1, 5)
    require_feasible([float(rate)] * 40, [1.0] * 40, 8)
    availability = np.random.default_rng(0).random(60)
    largest = largest_feasible_rate(availability, 9)
    require_feasible([float(largest)] * 60, availability, 9)
    with pytest.raises(InfeasiblePromise):
        require_feasible([float(largest) * 1.000001] * 60, availability, 9)


def test_nobody_can_be_promised_more_than_it_is_there() -> None:
    assert largest_feasible_rate([0.9, 0.05, 0.9], 3) == Fraction(1, 20)
    assert largest_feasible_rate([1.0, 1.0], 5) == 1
    assert largest_feasible_rate([0.0, 1.0], 1) == 0


def test_a_feasible_rate_is_reached_by_always_taking_the_most_owed() -> None:
    """Just below the bound debts stay small over a long run; just above they grow without end."""
    rng = np.random.default_rng(5)
    chances = np.array([0.1, 0.2, 0.2, 0.5, 0.9, 0.9])
    bound = float(largest_feasible_rate(chances, 2))
    worst = {}
    for factor in (0.97, 1.05):
        owed = np.zeros(6)
        for _ in range(30_000):
            there = np.flatnonzero(rng.random(6) < chances)
            chosen = there[np.argsort(-owed[there])][:2]
            owed += bound * factor
            owed[chosen] -= 1
            owed = np.maximum(owed, 0)
        worst[factor] = owed.max()
    assert worst[0.97] < 60 < 100 < worst[1.05]


@pytest.mark.parametrize("cohort_size", [1, 3, 50, 500])
def test_large_fleets_end_early_and_stay_exact(cohort_size: int) -> None:
    chances = np.full(3000, 0.3)
    got = expected_turns(chances, cohort_size)
    rng = np.random.default_rng(0)
    for count in (1, 10, 150, 1700, 3000):
        drawn = np.minimum(rng.binomial(count, 0.3, 200_000), cohort_size).mean()
        assert got[count - 1] == pytest.approx(drawn, rel=0.02)
    assert got[-1] <= cohort_size


@pytest.mark.parametrize(
    ("clients", "chance", "cohort_size"), [(1, 0.3, 1), (40, 0.2, 8), (700, 0.01, 3), (900, 0.97, 870)]
)
def test_equal_clients_have_the_binomials_turns(clients: int, chance: float, cohort_size: int) -> None:
    by_steps = expected_turns(np.full(clients, chance), cohort_size)[-1]
    assert binomial_turns(clients, chance, cohort_size) == pytest.approx(by_steps, rel=1e-11)


def test_a_million_clients_are_refused_at_once_and_with_a_remedy() -> None:
    with pytest.raises(InfeasiblePromise) as caught:
        require_feasible(np.full(10**6, 0.15), np.full(10**6, 0.8), 100)
    enough = caught.value.cohort_size
    assert enough is not None
    assert 150_000 <= enough < 150_500
    assert feasibility(np.full(10**6, 0.15), np.full(10**6, 0.8), enough).holds
    assert not feasibility(np.full(10**6, 0.15), np.full(10**6, 0.8), enough - 1).holds


@given(st.lists(st.floats(0.5, 1), min_size=12, max_size=30), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_the_cohort_of_the_remedy_is_the_smallest_that_would_do(chances: list[float], cohort_size: int) -> None:
    rates = np.full(len(chances), 0.9 * min(chances))
    with pytest.raises(InfeasiblePromise) as caught:
        require_feasible(rates, chances, cohort_size)
    enough = caught.value.cohort_size
    assert enough is not None
    assert feasibility(rates, chances, enough).holds
    assert not feasibility(rates, chances, enough - 1).holds


def test_the_error_names_the_largest_rate_a_cohort_that_would_do_and_who_is_in_the_way() -> None:
    with pytest.raises(InfeasiblePromise) as caught:
        require_feasible([0.15] * 100, [1.0] * 100, 8)
    error = caught.value
    assert error.largest_rate == Fraction(2, 25)
    assert error.cohort_size == 15
    assert len(error.clients) == 100
    for part in ("largest feasible rate is 0.08", "at most 0.08", "cohort_size of at least 15", "allow_infeasible"):
        assert part in str(error)
    require_feasible([0.15] * 100, [1.0] * 100, 15)


def test_the_error_travels_between_processes_with_its_numbers() -> None:
    with pytest.raises(InfeasiblePromise) as caught:
        require_feasible([0.15] * 100, [1.0] * 100, 8)
    copied = copy(caught.value)
    assert str(copied) == str(caught.value)
    assert (copied.largest_rate, copied.cohort_size, copied.clients) == (Fraction(2, 25), 15, tuple(range(100)))


def test_a_client_that_is_hardly_there_is_named() -> None:
    with pytest.raises(InfeasiblePromise) as caught:
        require_feasible([0.15] * 4, [0.9, 0.9, 0.1, 0.9], 2)
    assert caught.value.clients == (2,)
    assert caught.value.cohort_size is None
    assert "client 2 is promised 0.15 of the rounds and is available in 0.1" in str(caught.value)
    assert "Use a guaranteed_rate of at most 0.1," in str(caught.value)


def test_different_rates_are_told_by_what_to_multiply_them() -> None:
    with pytest.raises(InfeasiblePromise, match=r"multiplied by 0.8"):
        require_feasible([1.0, 0.25], [1.0, 1.0], 1)


@pytest.mark.parametrize(
    ("availability", "cohort_size", "complaint"),
    [
        ([0.5, 1.5], 1, r"availability\[1\] = 1.5 must lie in \[0, 1\]"),
        ([0.5, -0.5], 1, r"availability\[1\] = -0.5 must lie in \[0, 1\]"),
        ([0.5, np.nan], 1, r"availability\[1\] = nan must be finite"),
        ([], 1, "one probability per client"),
        ([0.5], 0, "cohort_size must be at least 1"),
    ],
)
def test_nonsense_is_refused(availability: list[float], cohort_size: int, complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        largest_feasible_rate(availability, cohort_size)


def test_rates_and_availabilities_must_match() -> None:
    with pytest.raises(SettingError, match="rates has 2 entries, availability 3"):
        feasibility([0.1, 0.1], [1.0, 1.0, 1.0], 1)
