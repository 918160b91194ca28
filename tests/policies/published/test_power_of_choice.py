from __future__ import annotations

import math

import numpy as np

from turnout import RoundOffer, RoundReport
from turnout.kernel.randomness import round_rng
from turnout.policies import PowerOfChoice
from turnout.policies.small_fleet import SmallFleet

SIZES = [float(row % 6 + 1) for row in range(40)]


def test_150_rounds_equal_a_literal_implementation() -> None:
    """A loss is infinite before the first turn, and the mean of the others if it was not reported."""
    policy = PowerOfChoice(40, cohort_size=5, candidates=12, sizes=SIZES, seed=4)
    fleet = SmallFleet(1, availability=0.6, deadline=20.0, failure_rate=0.1, losses=True)
    last: dict[int, float] = {}
    tried: set[int] = set()
    for round_ in range(1, 151):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        keys = round_rng(4, "power-of-choice", round_).standard_exponential(40).tolist()
        tie_break = round_rng(4, "power-of-choice equals", round_).standard_exponential(40).tolist()
        mean = sum(last.values()) / len(last) if last else 1.0

        def loss(row: int, mean: float = mean) -> float:
            return last.get(row, mean if row in tried else math.inf)

        candidates = sorted(np.flatnonzero(offer.available).tolist(), key=lambda row: keys[row] / SIZES[row])[:12]
        best = sorted(candidates, key=lambda row: (-loss(row), tie_break[row]))[:5]
        assert selection.clients.tolist() == sorted(best)
        report = fleet.play(offer, selection)
        policy.tell(report)
        assert report.losses is not None
        for row, reported in zip(report.clients.tolist(), report.losses.tolist(), strict=True):
            tried.add(row)
            if not math.isnan(reported):
                last[row] = reported


def test_with_cohort_size_candidates_it_samples_by_data_size() -> None:
    policy = PowerOfChoice(3, cohort_size=1, candidates=1, sizes=[1, 2, 3])
    policy.tell(RoundReport(1, np.arange(3), np.ones((3, 3)), np.ones(3), losses=np.array([9.0, 1.0, 1.0])))
    offer = np.ones(3, dtype=bool), np.ones((3, 3))
    counts = np.bincount([int(policy.ask(RoundOffer(round_, *offer)).clients[0]) for round_ in range(2, 1502)])
    np.testing.assert_allclose(counts / 1500, [1 / 6, 2 / 6, 3 / 6], atol=0.03)


def test_with_all_clients_as_candidates_it_selects_the_largest_losses() -> None:
    policy = PowerOfChoice(6, cohort_size=2, candidates=6)
    policy.tell(RoundReport(1, np.arange(5), np.ones((5, 3)), np.ones(5), losses=np.array([3.0, 9.0, 1.0, 4.0, 8.0])))
    assert policy.ask(RoundOffer(2, np.ones(6, dtype=bool), np.ones((6, 3)))).clients.tolist() == [1, 5]
    known = np.array([True] * 5 + [False])
    selection = policy.ask(RoundOffer(2, known, np.ones((6, 3))))
    assert selection.clients.tolist() == [1, 4]
    assert selection.reasons["loss"].tolist() == [9.0, 8.0]
