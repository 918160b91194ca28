from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowing import known
from policies.examples import INNER, Spy, offer_of, report_of, same_state
from turnout.policies import Eligible, UniformRandom
from turnout.policies.small_fleet import SmallFleet


def test_a_mask_rows_and_tags_are_equivalent() -> None:
    offer = SmallFleet(clients=6, availability=1.0).offer(1)
    groups = ["a", ["b", "new"], None, ("a", "b"), "c", []]
    for allowed in (
        [False, True, False, True, True, False],
        np.array([False, True, False, True, True, False]),
        [4, 1, 3],
        np.array([3, 4, 1]),
        {"groups": groups, "names": ["b", "c"]},
        {"groups": groups, "names": {"new", "b", "c"}},
    ):
        policy = Eligible(UniformRandom(6, cohort_size=4), allowed)
        assert policy.allowed.tolist() == [False, True, False, True, True, False]
        assert policy.ask(offer).clients.tolist() == [1, 3, 4]


@given(st.integers(0, 10**6), st.sampled_from([0.05, 0.3, 0.8]))
@settings(max_examples=10, deadline=None)
def test_to_the_policy_inside_other_clients_are_not_available(seed: int, availability: float) -> None:
    allowed = np.random.default_rng(seed).random(40) < 0.4
    allowed[0] = True
    policy, inner = Eligible(INNER["rbcsf"](40), allowed), INNER["rbcsf"](40)
    fleet = SmallFleet(seed, availability=availability)
    for round_ in range(1, 20):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        assert selection == inner.ask(replace(offer, available=offer.available & allowed))
        report = fleet.play(offer, selection)
        policy.tell(report)
        inner.tell(replace(report, available=offer.available & allowed))
    assert same_state(policy.policy.state(), inner.state())
    assert (known(policy.debts).owed[~allowed] == 0).all()


def test_rows_of_clients_that_join_later_can_be_listed_in_advance() -> None:
    policy = Eligible(UniformRandom(2, cohort_size=4), [1, 3])
    assert policy.allowed.tolist() == [False, True]
    policy.add(3)
    assert policy.allowed.tolist() == [False, True, False, True, False]
    assert policy.ask(offer_of(1, [True] * 5)).clients.tolist() == [1, 3]


def test_a_report_with_a_selected_client_that_is_not_allowed_is_accepted() -> None:
    spy = Spy(3, cohort_size=1)
    Eligible(spy, [1]).tell(report_of(1, [2], available=np.ones(3, dtype=bool)))
    assert known(spy.reports[0].available).tolist() == [False, True, True]
    Eligible(spy, [1]).tell(report_of(2, [2]))
    assert spy.reports[1].available is None
