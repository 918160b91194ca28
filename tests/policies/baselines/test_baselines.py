from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout import POLICIES, RoundOffer, RoundReport, SelectionPolicy, make_policy
from turnout.errors import OfferError, SettingError, StateError
from turnout.kernel.fairness import FairnessQueues
from turnout.policies import FairOracle, Fastest, FedCS, RoundRobin, SkewedRandom, UniformRandom
from turnout.policies.small_fleet import SmallFleet


def turns_after(policy: SelectionPolicy, rounds: int, seed: int = 0, availability: float = 0.8) -> np.ndarray:
    fleet = SmallFleet(seed, clients=policy.clients, availability=availability)
    turns = np.zeros(policy.clients, dtype=np.int64)
    for round_ in range(1, rounds + 1):
        offer = fleet.offer(round_)
        report = fleet.play(offer, policy.ask(offer))
        policy.tell(report)
        turns[report.clients] += 1
    return turns


def offer_of(times: list[float], available: list[bool] | None = None) -> RoundOffer:
    mask = np.ones(len(times), dtype=bool) if available is None else np.array(available)
    return RoundOffer(1, mask, np.ones((len(times), 3)), expected_times=np.array(times))


@given(st.sampled_from(sorted(POLICIES)), st.integers(0, 10**6), st.sampled_from([0.05, 0.3, 0.8]))
@settings(max_examples=40, deadline=None)
def test_the_certificate_inequality_holds_for_every_policy(name: str, seed: int, availability: float) -> None:
    """Whoever chooses, books that are kept honestly never promise more than was given, owed or forfeited."""
    fleet = SmallFleet(seed, availability=availability)
    policy = make_policy(name, 40)
    books = FairnessQueues(40, "1/7", accrual="available", max_owed=2)
    turns = np.zeros(40, dtype=np.int64)
    for round_ in range(1, 31):
        offer = fleet.offer(round_)
        report = fleet.play(offer, policy.ask(offer))
        policy.tell(report)
        books.advance(report.clients, offer.available)
        turns[report.clients] += 1
        assert books.certificate(turns).holds
        assert (books.owed >= 0).all()


def test_random_gives_everyone_about_the_same() -> None:
    turns = turns_after(UniformRandom(40, seed=5), 2000)
    assert abs(turns / 2000 - 0.2).max() < 0.04


def test_random_repeats_with_its_seed_only() -> None:
    one, same, other = UniformRandom(40, seed=1), UniformRandom(40, seed=1), UniformRandom(40, seed=2)
    offers = [SmallFleet().offer(round_) for round_ in range(1, 20)]
    assert [one.ask(offer) for offer in offers] == [same.ask(offer) for offer in offers]
    assert [one.ask(offer) for offer in offers] != [other.ask(offer) for offer in offers]


def test_skewed_random_draws_in_proportion_to_its_weights() -> None:
    policy = SkewedRandom(5, cohort_size=1, concentration=1.0, seed=3)
    everyone = np.ones(5, dtype=bool)
    turns = np.zeros(5)
    for round_ in range(1, 20_001):
        turns[policy.ask(RoundOffer(round_, everyone, np.ones((5, 3)))).clients] += 1
    np.testing.assert_allclose(turns / 20_000, policy.weights, atol=0.012)
    assert policy.weights.sum() == pytest.approx(1.0)


def test_skewed_random_without_replacement_equals_successive_draws() -> None:
    """Pairs drawn at once have the chances of drawing one, then another among the rest."""
    policy = SkewedRandom(4, cohort_size=2, concentration=1.0, seed=9)
    weight = policy.weights
    pairs: dict[tuple[int, ...], int] = {}
    for round_ in range(1, 20_001):
        pair = tuple(policy.ask(RoundOffer(round_, np.ones(4, dtype=bool), np.ones((4, 3)))).clients.tolist())
        pairs[pair] = pairs.get(pair, 0) + 1
    for (a, b), count in pairs.items():
        expected = weight[a] * weight[b] / (1 - weight[a]) + weight[b] * weight[a] / (1 - weight[b])
        assert count / 20_000 == pytest.approx(expected, abs=0.015)


def test_a_larger_concentration_is_more_even() -> None:
    spreads = [turns_after(SkewedRandom(40, concentration=c), 400).std() for c in (0.1, 1.0, 10.0, math.inf)]
    assert all(larger > smaller for larger, smaller in pairwise(spreads))


def test_the_most_uneven_weights_still_fill_the_cohort() -> None:
    policy = SkewedRandom(40, concentration=1e-4, cohort_size=30)
    assert len(policy.ask(SmallFleet(availability=1.0).offer(1)).clients) == 30


@pytest.mark.parametrize("concentration", [0, -1, 1e-310, float("nan")])
def test_a_concentration_that_cannot_be_is_refused(concentration: float) -> None:
    with pytest.raises(SettingError, match="concentration must be at least 1e-06"):
        SkewedRandom(40, concentration=concentration)


def test_round_robin_lets_nobody_fall_behind() -> None:
    turns = turns_after(RoundRobin(40), 500)
    assert turns.max() - turns.min() <= 2
    everyone = turns_after(RoundRobin(40), 500, availability=1.0)
    assert everyone.tolist() == [100] * 40


def test_fedcs_takes_all_that_are_below_the_deadline() -> None:
    policy = FedCS(5, deadline=3.0)
    offer = offer_of([1.0, 2.999, 3.0, 9.0, 0.5], [True, True, True, True, False])
    assert policy.ask(offer).clients.tolist() == [0, 1]
    assert policy.ask(offer_of([5.0] * 5)).clients.tolist() == []


def test_fedcs_with_three_seconds_takes_about_nine_of_the_papers_clients() -> None:
    """The specification: 8.8 a round with the logarithm to the base 2."""
    sizes = turns_after(FedCS(40), 500).sum() / 500
    assert sizes == pytest.approx(8.8, abs=0.3)


def test_fedcs_learns_where_nobody_knows_the_truth() -> None:
    policy = FedCS(40, deadline=8.0, estimates="learned")
    fleet = SmallFleet()
    for round_ in range(1, 200):
        offer = fleet.offer(round_)
        blind = RoundOffer(round_, offer.available, offer.contexts)
        policy.tell(fleet.play(offer, policy.ask(blind)))
    offer = fleet.offer(200)
    chosen = policy.ask(RoundOffer(200, offer.available, offer.contexts)).clients
    assert chosen.max() < 30  # the slowest class takes 12 s and more
    assert len(chosen) > 10


def test_fastest_takes_the_fastest_of_equals_the_lower_rows() -> None:
    policy = Fastest(5, cohort_size=2)
    assert policy.ask(offer_of([3.0, 1.0, 2.0, 2.0, 0.1], [True, True, True, True, False])).clients.tolist() == [1, 2]


def test_the_fair_oracle_is_faster_than_random_and_keeps_the_promise_in_the_long_run() -> None:
    rounds = 2000
    turns = turns_after(FairOracle(40, speed_weight=5.0, availability=0.8), rounds)
    assert turns.min() / rounds > 0.14


@pytest.mark.parametrize("name", ["fedcs", "fastest", "fair-oracle"])
def test_a_policy_that_must_be_told_the_truth_says_so(name: str) -> None:
    offer = SmallFleet().offer(1)
    with pytest.raises(OfferError, match=f"{name} needs the true expected times"):
        make_policy(name, 40).ask(RoundOffer(1, offer.available, offer.contexts))


def test_a_policy_without_state_takes_none_back() -> None:
    with pytest.raises(StateError, match="random has no state, but the saved state has turns"):
        UniformRandom(4).restore({"turns": np.zeros(4)})
    with pytest.raises(StateError, match="'turns' has shape"):
        RoundRobin(4).restore({"turns": np.zeros(5)})
    with pytest.raises(StateError, match="no 'turns'; it has nothing"):
        RoundRobin(4).restore({})


def test_unknown_names_and_settings_suggest_the_near_one() -> None:
    with pytest.raises(
        SettingError, match=r"unknown policy 'rbcfs' \(did you mean 'rbcsf'\?\); the policies are rbcsf, random"
    ):
        make_policy("rbcfs", 40)
    with pytest.raises(SettingError, match=r"no setting 'cohort' \(did you mean 'cohort_size'\?\)"):
        make_policy("random", 40, cohort=8)
    with pytest.raises(SettingError, match="clients must be at least 1"):
        make_policy("random", 0)


def test_every_policy_is_known_by_its_own_name() -> None:
    ours = ["rbcsf", "random", "skewed", "round-robin", "fedcs", "fastest", "fair-oracle"]
    published = [
        "data-size",
        "oort",
        "power-of-choice",
        "tifl",
        "active-fl",
        "refl",
        "cs-ucb",
        "cs-ucb-q",
        "e3cs",
        "ucb-cs",
    ]
    assert list(POLICIES) == [*ours, *published]
    assert all(policy.name == name for name, policy in POLICIES.items())


def test_reports_of_failures_are_part_of_the_small_fleet() -> None:
    fleet = SmallFleet(deadline=10.0, failure_rate=0.3)
    reports: list[RoundReport] = []
    for round_ in range(1, 30):
        offer = fleet.offer(round_)
        reports.append(fleet.play(offer, UniformRandom(40).ask(offer)))
    outcomes = np.concatenate([report.outcomes for report in reports if report.outcomes is not None])
    assert set(outcomes.tolist()) == {"arrived", "late", "failed"}
    assert max(report.duration for report in reports) <= 10.0
