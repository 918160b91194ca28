from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from policies.examples import offer_of, play_rounds, turns_after
from turnout import RoundReport, make_policy
from turnout.errors import OfferError, StateError
from turnout.policies import DataSize, FairOracle, Fastest, FedCS, RoundRobin, SkewedRandom, UniformRandom
from turnout.policies.check_support import SmallFleet


@pytest.mark.parametrize(("rounds", "most"), [(500, 0.056), pytest.param(1000, 0.04, marks=pytest.mark.thorough)])
def test_random_selects_all_clients_about_equally_often(rounds: int, most: float) -> None:
    """The limit is about three standard deviations."""
    assert abs(turns_after(UniformRandom(40, seed=5), rounds) / rounds - 0.2).max() < most


@pytest.mark.parametrize("draws", [2000, pytest.param(6000, marks=pytest.mark.thorough)])
def test_skewed_random_without_replacement_equals_successive_draws(draws: int) -> None:
    """Pairs have the probabilities of drawing one client, then another one among the others."""
    policy = SkewedRandom(4, cohort_size=2, concentration=1.0, seed=9)
    weight = policy.weights
    assert weight.sum() == pytest.approx(1.0)
    pairs: dict[tuple[int, ...], int] = {}
    for round_ in range(1, draws + 1):
        pair = tuple(policy.ask(offer_of(round_, [True] * 4)).clients.tolist())
        pairs[pair] = pairs.get(pair, 0) + 1
    for (a, b), count in pairs.items():
        expected = weight[a] * weight[b] / (1 - weight[a]) + weight[b] * weight[a] / (1 - weight[b])
        assert count / draws == pytest.approx(expected, abs=0.015)


def test_a_larger_concentration_gives_more_equal_weights() -> None:
    spreads = [turns_after(SkewedRandom(40, concentration=c), 80).std() for c in (0.1, 1.0, 10.0, math.inf)]
    assert all(larger > smaller for larger, smaller in pairwise(spreads))


def test_round_robin_gives_all_clients_equally_many_turns() -> None:
    turns = turns_after(RoundRobin(40), 200)
    assert turns.max() - turns.min() <= 2
    assert turns_after(RoundRobin(40), 100, availability=1.0).tolist() == [20] * 40


def test_fedcs_selects_all_clients_below_the_deadline() -> None:
    policy = FedCS(5, deadline=3.0)
    offer = offer_of(1, [True, True, True, True, False], [1.0, 2.999, 3.0, 9.0, 0.5])
    assert policy.ask(offer).clients.tolist() == [0, 1]
    assert policy.ask(offer_of(1, [True] * 5, [5.0] * 5)).clients.tolist() == []


def test_fedcs_with_three_seconds_selects_about_nine_clients_of_the_papers_world() -> None:
    """8.8 clients per round, with the logarithm to the base 2 in the channel capacity."""
    sizes = turns_after(FedCS(40), 250).sum() / 250
    assert sizes == pytest.approx(8.8, abs=0.3)


def test_fedcs_can_learn_the_times() -> None:
    policy = FedCS(40, deadline=8.0, estimates="learned")
    fleet = SmallFleet()
    play_rounds(policy, fleet, 1, 99)
    chosen = policy.ask(fleet.offer(100).without_truth()).clients
    assert chosen.max() < 30  # the slowest class takes 12 s and more
    assert len(chosen) > 10


def test_fastest_selects_the_shortest_times_and_among_equals_the_lower_rows() -> None:
    policy = Fastest(5, cohort_size=2)
    assert policy.ask(offer_of(1, [True] * 4 + [False], [3.0, 1.0, 2.0, 2.0, 0.1])).clients.tolist() == [1, 2]


@pytest.mark.parametrize(("rounds", "speed_weight"), [(400, 2.0), pytest.param(1000, 5.0, marks=pytest.mark.thorough)])
def test_the_fair_oracle_nearly_keeps_its_guarantee_in_the_long_run(rounds: int, speed_weight: float) -> None:
    turns = turns_after(FairOracle(40, speed_weight=speed_weight, availability=0.8), rounds)
    assert turns.min() / rounds > 0.14


@pytest.mark.parametrize("name", ["fedcs", "fastest", "fair-oracle"])
def test_an_offer_without_expected_times_is_refused_by_policies_that_need_them(name: str) -> None:
    offer = SmallFleet().offer(1)
    with pytest.raises(OfferError, match=f"{name} needs the true expected times"):
        make_policy(name, 40).ask(offer.without_truth())


def test_a_state_that_does_not_fit_is_refused() -> None:
    with pytest.raises(StateError, match="random has no state, but the saved state has turns"):
        UniformRandom(4).restore({"turns": np.zeros(4)})
    with pytest.raises(StateError, match="'turns' has shape"):
        RoundRobin(4).restore({"turns": np.zeros(5)})
    with pytest.raises(StateError, match="no 'turns'; it has nothing"):
        RoundRobin(4).restore({})


def test_the_small_fleet_reports_late_clients_and_failures() -> None:
    fleet = SmallFleet(deadline=10.0, failure_rate=0.3)
    reports: list[RoundReport] = []
    for round_ in range(1, 30):
        offer = fleet.offer(round_)
        reports.append(fleet.play(offer, UniformRandom(40).ask(offer)))
    outcomes = np.concatenate([report.outcomes for report in reports if report.outcomes is not None])
    assert set(outcomes.tolist()) == {"arrived", "late", "failed"}
    assert max(report.duration for report in reports) <= 10.0


# Sampling by data size


SIZES = [1.0, 2.0, 3.0, 4.0]


def test_clients_are_selected_in_proportion_to_their_data_sizes() -> None:
    policy = DataSize(4, cohort_size=1, sizes=SIZES)
    counts = np.bincount([int(policy.ask(offer_of(round_, [True] * 4)).clients[0]) for round_ in range(1, 2001)])
    np.testing.assert_allclose(counts / 2000, np.array(SIZES) / 10, atol=0.025)


def test_without_sizes_all_clients_are_equally_likely() -> None:
    policy = DataSize(4, cohort_size=2)
    counts = np.concatenate([policy.ask(offer_of(round_, [True] * 4)).clients for round_ in range(1, 1001)])
    np.testing.assert_allclose(np.bincount(counts) / 2000, 0.25, atol=0.02)


def test_draws_with_replacement_add_up_to_the_cohort_size_and_are_unbiased() -> None:
    policy = DataSize(4, cohort_size=3, sizes=SIZES, replacement=True)
    draws = np.zeros(4)
    filled_up = 0
    for round_ in range(1, 1001):
        selection = policy.ask(offer_of(round_, [True] * 4))
        own_draws = selection.reasons["draws"]
        assert len(selection.clients) == 3
        assert own_draws.sum() == 3
        draws[selection.clients] += own_draws
        filled_up += int((own_draws == 0).sum())
    np.testing.assert_allclose(draws / draws.sum(), np.array(SIZES) / 10, atol=0.025)
    assert filled_up > 0


def test_clients_without_data_are_selected_last() -> None:
    for replacement in (False, True):
        policy = DataSize(4, cohort_size=2, sizes=[0, 1, 0, 5], replacement=replacement)
        assert {tuple(policy.ask(offer_of(round_, [True] * 4)).clients.tolist()) for round_ in range(1, 50)} == {(1, 3)}
        larger = DataSize(4, cohort_size=3, sizes=[0, 1, 0, 5], replacement=replacement)
        assert len({tuple(larger.ask(offer_of(round_, [True] * 4)).clients.tolist()) for round_ in range(1, 50)}) == 2
