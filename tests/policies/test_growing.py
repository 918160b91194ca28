"""A policy that clients have joined equals one that was built with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.examples import SOME_PAIRS, around, same_state
from turnout import POLICIES, RoundOffer, RoundReport, SelectionPolicy, make_policy
from turnout.errors import SettingError
from turnout.policies import CoolDown, SkewedRandom
from turnout.policies.check_support import SmallFleet

SMALL = 9
Build = Callable[[int], SelectionPolicy]
#: With accrual="available", because otherwise clients of the larger policy earn turns before they join.
SETTINGS: dict[str, dict[str, Any]] = {
    "fair-pace": {"cohort_size": 3, "guaranteed_rate": "1/7"},
    "rbcsf": {"cohort_size": 3, "guaranteed_rate": "1/7", "speed_weight": 2.0, "accrual": "available"},
    "fair-oracle": {"cohort_size": 3, "guaranteed_rate": "1/7", "speed_weight": 2.0, "accrual": "available"},
    "random": {"cohort_size": 3},
    "round-robin": {"cohort_size": 3},
    "fastest": {"cohort_size": 3},
    "fedcs": {"deadline": 8.0, "estimates": "learned"},
    "data-size": {"cohort_size": 3},
    "oort": {"cohort_size": 3, "pacer_window": 2},
    "power-of-choice": {"cohort_size": 3, "candidates": 4},
    "tifl": {"cohort_size": 3, "tiers": 3, "profiling_rounds": 3, "retier_every": 2, "interval": 1},
    "active-fl": {"cohort_size": 3},
    "refl": {"cohort_size": 3, "window": 2},
    "cs-ucb": {"cohort_size": 3},
    "cs-ucb-q": {"cohort_size": 3, "guaranteed_rate": "1/7", "fairness_weight": 0.3, "accrual": "available"},
    "e3cs": {"cohort_size": 3},
    "ucb-cs": {"cohort_size": 3},
}


def _named(name: str) -> Build:
    return lambda clients: make_policy(name, clients, **SETTINGS[name])


def _wrapped(wrap: str, inner: str) -> Build:
    return lambda clients: around(wrap, inner, clients)


BUILD: dict[str, Build] = {
    **{name: _named(name) for name in SETTINGS},
    **{f"{wrap}({inner})": _wrapped(wrap, inner) for wrap, inner in SOME_PAIRS},
}


def padded(offer: RoundOffer, clients: int) -> RoundOffer:
    """Returns the offer with more clients, none of which is available."""
    more = clients - offer.clients
    assert offer.expected_times is not None
    return RoundOffer(
        offer.round,
        np.concatenate([offer.available, np.zeros(more, dtype=bool)]),
        np.concatenate([offer.contexts, np.ones((more, offer.contexts.shape[1]))]),
        np.concatenate([offer.expected_times, np.ones(more)]),
    )


def play_offer(policy: SelectionPolicy, fleet: SmallFleet, offer: RoundOffer) -> RoundReport:
    report = fleet.play(offer, policy.ask(offer))
    policy.tell(report)
    return report


@pytest.mark.parametrize("name", sorted(BUILD))
@given(st.integers(0, 10**6), st.integers(0, 12), st.lists(st.integers(0, 3), max_size=3))
@settings(max_examples=3, deadline=None)
def test_a_policy_that_clients_have_joined_equals_one_built_with_them(
    name: str, seed: int, rounds: int, steps: list[int]
) -> None:
    large = SMALL + sum(steps)
    grown, built = (BUILD[name](clients) for clients in (SMALL, large))
    small_fleet, fleet = SmallFleet(seed, clients=SMALL), SmallFleet(seed, clients=large)
    for round_ in range(1, rounds + 1):
        offer = small_fleet.offer(round_)
        report = play_offer(grown, small_fleet, offer)
        larger_offer = padded(offer, large)
        assert built.ask(larger_offer).clients.tolist() == report.clients.tolist()
        built.tell(
            RoundReport(
                round_, report.clients, report.contexts, report.exchange_times, available=larger_offer.available
            )
        )
    for step in steps:
        grown.add(step)
    assert grown.clients == built.clients == large
    assert same_state(grown.state(), built.state())
    for round_ in range(rounds + 1, rounds + 9):
        offer = fleet.offer(round_)
        assert grown.ask(offer) == built.ask(offer)
        report = fleet.play(offer, grown.ask(offer))
        grown.tell(report)
        built.tell(report)
    assert same_state(grown.state(), built.state())
    restored = BUILD[name](large)
    restored.restore(grown.state())
    assert restored.ask(offer) == grown.ask(offer)


@pytest.mark.parametrize("name", sorted(BUILD))
def test_an_invalid_count_is_refused_and_no_client_joins(name: str) -> None:
    policy = BUILD[name](SMALL)
    before = policy.state()
    for wrong in (-1, 1.5, True, "two"):
        with pytest.raises(SettingError, match="count must be"):
            policy.add(wrong)  # type: ignore[arg-type]
    policy.add(0)
    assert policy.clients == SMALL
    assert same_state(policy.state(), before)


def test_an_offer_with_the_former_number_of_clients_is_refused() -> None:
    for build in BUILD.values():
        policy = build(SMALL)
        policy.add(1)
        with pytest.raises(ValueError, match=f"the offer has {SMALL} clients, this policy was built for {SMALL + 1}"):
            policy.ask(SmallFleet(clients=SMALL).offer(1))


def test_no_client_can_join_if_the_weights_of_all_are_drawn_together() -> None:
    for policy in (SkewedRandom(SMALL), CoolDown(SkewedRandom(SMALL))):
        with pytest.raises(SettingError, match="skewed draws the weights of all clients at once: 3 more cannot join"):
            policy.add(3)
        assert policy.clients == SMALL


def test_clients_can_join_every_other_policy() -> None:
    assert set(POLICIES) == {*SETTINGS, "skewed"}
