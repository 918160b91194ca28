from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.examples import Spy, offer_of, report_of
from turnout.errors import SettingError
from turnout.policies import CoolDown, FedCS, UniformRandom


@given(st.integers(0, 10**6), st.integers(1, 4), st.booleans(), st.sampled_from([0.3, 0.6, 0.9]))
@settings(max_examples=20, deadline=None)
def test_recently_selected_clients_are_not_offered(seed: int, rounds: int, strict: bool, availability: float) -> None:
    rng = np.random.default_rng(seed)
    spy = Spy(9, cohort_size=3, seed=seed)
    policy = CoolDown(spy, rounds, strict=strict)
    cohorts: list[set[int]] = []
    for round_ in range(1, 25):
        mask = rng.random(9) < availability
        available = set(np.flatnonzero(mask).tolist())
        for length in range(rounds, -1, -1):
            offered = available - set().union(*cohorts[max(len(cohorts) - length, 0) :])
            if strict or len(offered) >= min(3, len(available)):
                break
        chosen = policy.ask(offer_of(round_, mask)).clients
        assert set(np.flatnonzero(spy.offers[-1].available).tolist()) == offered
        assert len(chosen) == min(3, len(offered))
        report = report_of(round_, chosen, available=mask)
        policy.tell(report)
        assert spy.reports[-1] is report  # clients in a cool-down count as available, and continue to earn turns
        cohorts.append(set(chosen.tolist()))


def test_a_policy_without_a_cohort_size_is_offered_at_least_one_client() -> None:
    policy = CoolDown(FedCS(2, deadline=9.0), 3)
    for round_ in range(1, 6):
        offer = offer_of(round_, [True, False], [1.0, 1.0])
        assert policy.ask(offer).clients.tolist() == [0]
        policy.tell(report_of(round_, [0]))
    assert CoolDown(FedCS(2, deadline=9.0), 3).ask(offer_of(1, [False, False], [1.0, 1.0])).clients.tolist() == []


def test_the_places_of_the_offer_decide_how_far_a_cool_down_is_shortened() -> None:
    spy = Spy(4, cohort_size=1)
    policy = CoolDown(spy, 3)
    policy.tell(report_of(1, [0]))
    policy.tell(report_of(2, [1]))
    for places, offered in ((1, [2, 3]), (2, [2, 3]), (3, [0, 2, 3]), (4, [0, 1, 2, 3])):
        policy.ask(offer_of(3, [True] * 4).restricted(places=places))
        assert np.flatnonzero(spy.offers[-1].available).tolist() == offered


def test_invalid_settings_are_refused() -> None:
    half: Any = 1.5
    with pytest.raises(SettingError, match=r"rounds must be a whole number, not 1\.5"):
        CoolDown(UniformRandom(9), half)
    yes: Any = "yes"
    with pytest.raises(SettingError, match="strict must be True or False, got 'yes'"):
        CoolDown(UniformRandom(9), 1, strict=yes)
