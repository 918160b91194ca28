"""Prices, urgent clients and waiting, against the formulas in rational arithmetic and a search through all cohorts."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.kernel.arrays import FloatArray
from turnout.kernel.backend import using_kernel
from turnout.kernel.pace.prices import (
    MAX_PRICE,
    Pace,
    PaceOutlook,
    exact_prices,
    fading,
    most_urgent,
    paced_cohort_of_times,
    price_order,
    room_at,
)
from turnout.kernel.pace.usual import Presence, absence

KERNELS = ("compiled", "numpy")


def make_pace(rounds: list[int], turns: list[int], *, rate: int = 3, tolerance: float = 2.0) -> Pace:
    return Pace(rate, np.array(rounds), np.array(turns, dtype=np.int32), 20, tolerance * 20 - rate, tolerance * 10)


@given(
    rate=st.integers(0, 20),
    rounds=st.integers(0, 300),
    turns=st.integers(0, 60),
    tolerance=st.fractions(Fraction(9, 8), 6, max_denominator=8),
    time=st.floats(0, 1e9),
    usual=st.floats(0, 1e9),
    places=st.integers(1, 200),
)
@settings(max_examples=100, deadline=None)
def test_prices_equal_the_formula(
    rate: int, rounds: int, turns: int, tolerance: Fraction, time: float, usual: float, places: int
) -> None:
    allowed, behind = tolerance - Fraction(rate, 20), Fraction(rate * (rounds + 1), 20) - turns
    pace = Pace(
        rate, rounds, np.array([turns], dtype=np.int32), 20, float(allowed * 20), float(tolerance * 10), age=400
    )
    row = np.array([0])
    assert Fraction(int(pace.behind(row)[0]), 20) == behind
    assert pace.slack(row)[0] == pytest.approx(float((allowed - behind) * 20), abs=1e-9)
    price = float(pace.prices(row, np.array([time]), np.array([usual]), 1.0, places)[0])
    if behind >= allowed:
        assert price == -1.0
    else:
        full = max(allowed, tolerance / 2) + tolerance
        advantage = 1 - Fraction(1, places)
        expected = (
            max(Fraction(usual) + advantage * (Fraction(usual) - Fraction(time)), Fraction(0))
            / max(Fraction(7, 10) * places, Fraction(1))
            * max(allowed, tolerance / 2)
            / (min(allowed - behind, full) + max(allowed - behind - full, Fraction(0)) * Fraction(425, 25 + rounds))
        )
        assert price == pytest.approx(float(expected), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("head_start", [0.0, 25.0])
def test_the_room_at_a_price_is_the_slack_and_the_head_start_of_who_has_it(head_start: float) -> None:
    pace = make_pace([1, 5, 9], [0, 1, 2])._replace(head_start=head_start)
    rows, usual = np.arange(3), np.array([4.0, 20.0, 7.5])
    prices = pace.prices(rows, np.array([9.0, 0.0, 7.5]), usual, 1.0, 1)
    rooms = [room_at(price, seconds, 1.85) for price, seconds in zip(prices, usual, strict=True)]
    assert rooms == pytest.approx(((pace.slack(rows) + head_start) / 20).tolist())


def test_prices_are_limited() -> None:
    pace = Pace(3, np.array([0]), np.zeros(1, dtype=np.int32), 20, np.array([3.0 + 1e-15]), 20.0)
    assert pace.prices(np.array([0]), np.ones(1), np.array([1e300]), 1.0, 1).tolist() == [MAX_PRICE]
    for kernel in KERNELS:
        with using_kernel(kernel):
            solved = paced_cohort_of_times(np.ones(1), np.array([1e300]), pace, 1, np.ones(1, dtype=np.bool_))
            assert solved.cohort.objective == pytest.approx(-MAX_PRICE)


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=12), st.integers(1, 40))
@settings(max_examples=80, deadline=None)
def test_exact_prices_keep_the_order_and_their_sums_fit(prices: list[float], size: int) -> None:
    exact = exact_prices(np.array(prices), size)
    order = price_order(np.array(prices))
    for a, b in itertools.combinations(range(len(prices)), 2):
        assert (prices[a] < prices[b]) == (order[a] < order[b])
        if prices[a] <= prices[b]:
            assert exact.units[a] <= exact.units[b]
    assert int(np.abs(exact.units).max()) * size < 2**62
    np.testing.assert_allclose(exact.of(np.arange(len(prices))), prices, atol=max(prices) * 2**-50 * size + 2**-1000)


def test_urgent_clients_are_ordered_by_slack_then_time_then_row() -> None:
    slack, times = np.array([-1.0, -3.0, -3.0, 0.0, -3.0]), np.array([1.0, 5.0, 4.0, 0.0, 4.0])
    assert most_urgent(np.arange(5), slack, times, 4).tolist() == [2, 4, 1, 0]
    assert most_urgent(np.arange(5), slack, times, 9).tolist() == [2, 4, 1, 0, 3]


def objective(times: FloatArray, prices: FloatArray, first: list[int], cohort: tuple[int, ...]) -> float:
    """Returns the slowest time of urgent clients and cohort, minus the prices of the cohort."""
    return float(times[[*first, *cohort]].max(initial=0.0)) - math.fsum(prices[list(cohort)])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seed", range(3))
def test_the_cohort_is_that_of_a_search_through_all_cohorts(kernel: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    urgent_counts = set()
    for _ in range(150):
        clients, size = int(rng.integers(1, 8)), int(rng.integers(1, 6))
        times = (rng.random(clients) * 9, rng.integers(0, 4, clients).astype(float))[rng.integers(2)]
        usual = (rng.random(clients) * 9, np.full(clients, 4.0))[rng.integers(2)]
        pace = make_pace(rng.integers(0, 16, clients).tolist(), rng.integers(0, 2, clients).tolist())
        available = rng.random(clients) < 0.8
        with using_kernel(kernel):
            solved = paced_cohort_of_times(times, usual, pace, size, available)
        rows = np.flatnonzero(available)
        slack = pace.slack(rows)
        first = most_urgent(rows[slack <= 0], slack[slack <= 0], times[rows[slack <= 0]], size).tolist()
        others = rows[slack > 0].tolist()
        prices = pace.prices(np.arange(clients), times, usual, 1.0, size)

        cohorts = itertools.combinations(others, min(size - len(first), len(others)))
        best = min(objective(times, prices, first, cohort) for cohort in cohorts)
        assert solved.urgent.tolist() == first
        assert set(first) <= set(solved.cohort.rows.tolist())
        assert len(solved.cohort.rows) == min(size, len(rows))
        if len(rows):
            assert solved.cohort.objective == pytest.approx(best, abs=1e-9)
            chosen = tuple(set(solved.cohort.rows.tolist()) - set(first))
            assert objective(times, prices, first, chosen) == pytest.approx(best, abs=1e-9)
            assert solved.cohort.threshold == times[solved.cohort.rows].max()
        urgent_counts.add(len(first))
    assert {0, 1, 2} <= urgent_counts


@pytest.mark.parametrize("head_start", [0.0, 30.0])
def test_the_outlook_of_a_waiting_client_is_its_price_in_later_rounds(head_start: float) -> None:
    terms: dict[str, Any] = {"losses": np.array([0.5, 2.0]), "loss_price": 3.0}
    pace = make_pace([3, 4], [1, 0])._replace(**terms, head_start=fading(head_start, 97))
    times, usual, weights = np.array([20.0, 25.0]), np.array([30.0, 60.0]), np.array([1.0, 2.0])
    outlook = PaceOutlook(pace, times, usual, weights, 4, None, 97, head_start)
    slack, prices = outlook.after(1, np.array([0, 1, 5, 9]))
    for index, waited in enumerate((0, 1, 5, 9)):
        later = make_pace([3, 4 + waited], [1, 0])._replace(**terms, head_start=fading(head_start, 97 + waited))
        assert slack[index] == later.slack(np.array([1]))[0]
        assert prices[index] == later.prices(np.array([1]), times[1:], usual[1:], 2.0, 4)[0]


# Presence


def test_the_longest_absence_is_that_of_the_rule() -> None:
    presence = Presence(3)
    for available in ([True, True, False], [True, False, False], [True, True, False]):
        presence.count(np.array(available))
    for rounds in (3, np.full(3, 3)):
        expected = [math.log(0.001) / math.log(1 - (there + 2) / (3 + 3)) for there in (3, 2, 0)]
        assert presence.longest_absence(rounds).tolist() == pytest.approx(expected)
    presence.count(None)
    assert presence.state()["present"].tolist() == [4, 3, 1]


def test_one_logarithm_per_count_gives_the_same_as_one_per_client() -> None:
    rng = np.random.default_rng(0)
    presence = Presence(500)
    for _ in range(40):
        presence.count(rng.random(500) < 0.5)
    np.testing.assert_array_equal(presence.longest_absence(40), absence(presence.state()["present"], np.full(500, 40)))


def test_forgotten_and_new_clients_begin_with_their_first_round() -> None:
    presence = Presence(2)
    for _ in range(9):
        presence.count(np.array([True, False]))
    presence.forget(np.array([1]), 9)
    presence.forget(np.array([], dtype=np.int64), 9)  # the rounds of those that were forgotten before stay discounted
    presence.add(1)
    first = math.log(0.001) / math.log(1 - 2 / 3)
    assert presence.longest_absence(np.array([9, 9, 0]))[1:].tolist() == pytest.approx([first, first])
    assert presence.of(1, 9) == (0, 0)
    assert presence.of(0, 9) == (9, 9)
    restored = Presence(3)
    restored.restore(presence.state())
    np.testing.assert_array_equal(
        restored.longest_absence(np.array([12, 12, 3])), presence.longest_absence(np.array([12, 12, 3]))
    )
