from __future__ import annotations

from policies.examples import same_state
from turnout.policies import RBCSF, FairPace, FedCS, UniformRandom, WarmUp
from turnout.policies.small_fleet import SmallFleet


def test_the_first_rounds_are_random_and_the_policy_inside_learns_from_them() -> None:
    policy, random, inner = WarmUp(RBCSF(40), 6, seed=3), UniformRandom(40, seed=3), RBCSF(40)
    fleet, prices = SmallFleet(), WarmUp(FairPace(40), 6)
    for round_ in range(1, 12):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        assert selection == (random if round_ <= 6 else inner).ask(offer)
        assert (policy.cohort_problem(offer) is None) == (round_ <= 6)
        assert (prices.client_prices(offer) is None) == (round_ <= 6)
        report = fleet.play(offer, selection)
        policy.tell(report)
        inner.tell(report)
    assert same_state(policy.policy.state(), inner.state())


def test_cohort_size_is_that_of_the_random_selection_if_the_policy_inside_has_none() -> None:
    policy = WarmUp(FedCS(40, estimates="learned", deadline=9.0), 2, cohort_size=5)
    assert policy.cohort_size is None
    assert len(policy.ask(SmallFleet().offer(1)).clients) == 5
    assert len(policy.ask(SmallFleet().offer(3)).clients) > 20
