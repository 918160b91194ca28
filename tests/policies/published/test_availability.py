from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.examples import played
from turnout import RoundOffer
from turnout.kernel.randomness import round_rng
from turnout.policies import E3CS, REFL
from turnout.policies.check_support import SmallFleet

# E3CS


def literal_chances(weights: list[float], size: int, quota: float) -> tuple[list[float], list[bool]]:
    """Computes the probabilities of the paper by trying every number of capped clients, the largest weights first."""
    count = len(weights)
    if size >= count:
        return [1.0] * count, [True] * count
    floor, free = quota * size / count, size - size * quota
    ranked = sorted(weights, reverse=True)
    for capped in range(size + 1):
        left = free - (1 - floor) * capped
        uncapped = sum(ranked[capped:])
        cap = (1 - floor) * uncapped / left if left > 0 else math.inf
        if free <= 0 or ranked[capped] <= cap * (1 + 1e-12):
            is_capped = [capped > 0 and weight >= ranked[capped - 1] for weight in weights]
            total = capped * cap + uncapped if capped else uncapped
            return [
                1.0 if certain else floor + free * weight / total
                for weight, certain in zip(weights, is_capped, strict=True)
            ], is_capped
    raise AssertionError("at most `size` clients are capped")


@given(
    st.lists(st.sampled_from([1.0, 2.0, 3.5, 10.0, 1e3, 1e7]), min_size=1, max_size=12),
    st.integers(1, 13),
    st.sampled_from([0.0, 0.3, 0.8, 1.0]),
)
@settings(max_examples=80, deadline=None)
def test_probabilities_are_those_of_the_paper(weights: list[float], size: int, quota: float) -> None:
    policy = E3CS(len(weights), quota=quota)
    policy.log_weights = np.log(np.array(weights))
    chances = policy.chances(np.arange(len(weights)), size, 1)
    expected, is_capped = literal_chances(weights, size, quota)
    np.testing.assert_allclose(chances.each, expected, rtol=1e-9)
    assert chances.each.sum() == pytest.approx(min(size, len(weights)))
    assert chances.each.max() <= 1 + 1e-12
    assert chances.each.min() >= quota * min(size, len(weights)) / len(weights) - 1e-12
    if size < len(weights):
        assert chances.capped.tolist() == is_capped


def test_clients_are_selected_with_their_probabilities() -> None:
    policy = E3CS(6, cohort_size=3, quota=0.2)
    policy.log_weights = np.log([1.0, 2.0, 3.0, 4.0, 8.0, 100.0])
    chances = policy.chances(np.arange(6), 3, 1).each
    assert chances[5] == 1.0
    counts = np.zeros(6)
    for round_ in range(1, 1201):
        counts[policy.ask(RoundOffer(round_, np.ones(6, dtype=bool), np.ones((6, 3)))).clients] += 1
    np.testing.assert_allclose(counts / 1200, chances, atol=0.025)


def test_weights_grow_as_in_the_paper() -> None:
    policy = E3CS(40, cohort_size=6, quota=0.5, learning_rate=0.4)
    fleet = SmallFleet(2, availability=0.5, deadline=12.0, failure_rate=0.2)
    weights = dict.fromkeys(range(40), 1.0)
    for offer, _, report in played(policy, fleet, 100):
        rows = np.flatnonzero(offer.available).tolist()
        size = min(6, len(rows))
        chances, is_capped = literal_chances([weights[row] for row in rows], size, 0.5)
        assert report.outcomes is not None
        for row, outcome in zip(report.clients.tolist(), report.outcomes, strict=True):
            position = rows.index(row)
            if outcome == "arrived" and not is_capped[position]:
                gain = (size - size * 0.5) * 0.4 / (len(rows) * chances[position])
                weights[row] *= math.exp(gain)
    np.testing.assert_allclose(policy.log_weights, [math.log(weight) for weight in weights.values()], rtol=1e-9)


def test_the_quota_follows_its_schedule() -> None:
    policy = E3CS(4, quota=[(1, 0.0), (10, 0.5), (20, 1)])
    assert [policy.quota(round_) for round_ in (1, 9, 10, 19, 20, 1000)] == [0, 0, 0.5, 0.5, 1, 1]


def test_very_large_weights_do_not_overflow() -> None:
    policy = E3CS(5, cohort_size=2, quota=0.0, learning_rate=1.0)
    policy.log_weights = np.array([1e5, -1e5, 0.0, 5e4, 3.0])
    chances = policy.chances(np.arange(5), 2, 1).each
    assert chances.sum() == pytest.approx(2.0)
    assert np.isfinite(chances).all()
    assert len(policy.ask(RoundOffer(1, np.ones(5, dtype=bool), np.ones((5, 3)))).clients) == 2


# REFL


@pytest.mark.parametrize(("window", "hold_off"), [(1, 5), (3, 0)])
def test_150_rounds_equal_a_literal_implementation(window: int, hold_off: int) -> None:
    policy = REFL(40, cohort_size=6, window=window, hold_off=hold_off, seed=9)
    fleet = SmallFleet(2, availability=0.4)
    available_in: list[set[int]] = []
    last: dict[int, int] = {}
    for offer, selection, _ in played(policy, fleet, 150):
        rows = np.flatnonzero(offer.available).tolist()
        tie_break = round_rng(9, "refl", offer.round).standard_exponential(40).tolist()

        def rank(row: int, now: int = offer.round, tie_break: list[float] = tie_break) -> tuple[bool, float, float]:
            before = [t for t in range(len(available_in) - window) if row in available_in[t]]
            again = [t for t in before if row in available_in[t + window]]
            held_off = row in last and now - last[row] <= hold_off
            return held_off, (len(again) + 1) / (len(before) + 2), tie_break[row]

        if offer.round % 10 == 0:
            assert selection.clients.tolist() == sorted(sorted(rows, key=rank)[:6])
        available_in.append(set(rows))
        last.update(dict.fromkeys(selection.clients.tolist(), offer.round))
