"""Cohorts of the published policies at any availability: full, without unavailable clients or duplicates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from killing import TORTURE
from policies.examples import played
from turnout import POLICIES, make_policy
from turnout.errors import ReportError, SettingError
from turnout.policies.check_support import SmallFleet
from turnout.policies.registry import setting_names

NOT_PUBLISHED = ("rbcsf", "random", "skewed", "round-robin", "fedcs", "fastest", "fair-oracle")
PUBLISHED = [name for name in POLICIES if name not in NOT_PUBLISHED]
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in PUBLISHED),
    ("oort", {"max_turns": 5, "pacer_window": 3}),
    ("tifl", {"credits": 3, "tiers": 7, "retier_every": 7}),
    ("data-size", {"replacement": True, "sizes": [float(row % 4) for row in range(40)]}),
    ("power-of-choice", {"candidates": 8, "sizes": [float(row % 4) for row in range(40)]}),
    ("e3cs", {"quota": [(1, 0.0), (20, 0.8), (40, 1.0)]}),
    ("refl", {"window": 4, "hold_off": 0}),
    ("active-fl", {"dropped": 1.0, "uniform": 0.5}),
]


#: Availability and number of rounds; `make torture` plays as many for each.
FLEETS = {0.8: 45, 0.3: 25, 0.05: 25}
THOROUGH_FLEETS = {0.8: 500, 0.3: 150, 0.05: 150} if TORTURE == 1 else dict.fromkeys((0.8, 0.3, 0.05), 500)


@pytest.mark.parametrize(
    ("availability", "rounds"),
    [*FLEETS.items(), *(pytest.param(*fleet, marks=pytest.mark.thorough) for fleet in THOROUGH_FLEETS.items())],
)
@pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=lambda value: str(value)[:30])
def test_all_cohorts_are_full_and_have_no_duplicate_or_unavailable_client(
    name: str, settings: dict[str, Any], availability: float, rounds: int
) -> None:
    policy = make_policy(name, 40, **settings)
    fleet = SmallFleet(6, availability=availability, deadline=15.0, failure_rate=0.1, losses=True)
    assert policy.cohort_size is not None
    for offer, selection, _ in played(policy, fleet, rounds):
        chosen = selection.clients.tolist()
        assert len(chosen) == min(policy.cohort_size, int(offer.available.sum()))
        assert offer.available[selection.clients].all()
        assert chosen == sorted(set(chosen))
        assert all(len(reason) == len(chosen) for reason in selection.reasons.values() if reason.ndim)


@pytest.mark.parametrize("name", ["oort", "power-of-choice", "tifl", "active-fl", "cs-ucb", "e3cs", "ucb-cs"])
def test_a_client_that_always_fails_does_not_fill_the_cohorts(name: str) -> None:
    policy, fleet = make_policy(name, 40), SmallFleet(3, losses=True)
    turns = np.zeros(40)
    for round_ in range(1, 71):
        offer = fleet.offer(round_)
        report = fleet.play(offer, policy.ask(offer))
        fails = report.clients == 7
        assert report.losses is not None
        losses = np.where(fails, np.nan, report.losses)
        policy.tell(replace(report, outcomes=np.where(fails, "failed", "arrived"), losses=losses))
        turns[report.clients] += 1
    assert turns[7] <= 1.5 * turns.mean()


@pytest.mark.parametrize("name", ["refl", "e3cs"])
def test_a_report_without_the_mask_of_available_clients_is_refused_and_changes_nothing(name: str) -> None:
    policy, fleet = make_policy(name, 40), SmallFleet()
    offer = fleet.offer(1)
    report = fleet.play(offer, policy.ask(offer))
    before = policy.state()
    with pytest.raises(ReportError, match=f"{name} .* availab.*: pass the offer's mask"):
        policy.tell(replace(report, available=None))
    assert all(np.array_equal(before[key], policy.state()[key]) for key in before)


@pytest.mark.parametrize("name", ["data-size", "power-of-choice", "active-fl", "ucb-cs", "oort"])
def test_data_sizes_are_validated_and_prevent_clients_from_joining(name: str) -> None:
    with pytest.raises(SettingError, match="sizes has 2 rows, but there are 3 clients"):
        make_policy(name, 3, sizes=[1.0, 2.0])
    with pytest.raises(SettingError, match="sizes must not all be 0"):
        make_policy(name, 3, sizes=[0, 0, 0])
    policy = make_policy(name, 3, sizes=[1, 2, 3])
    with pytest.raises(SettingError, match=f"{name} has the data sizes of 3 clients, so 1 more cannot join"):
        policy.add(1)
    assert policy.clients == 3


@pytest.mark.parametrize("name", [name for name in POLICIES if "seed" in setting_names(name)])
def test_another_seed_gives_other_cohorts(name: str) -> None:
    fleet = SmallFleet()
    offers = [fleet.offer(round_) for round_ in range(1, 6)]
    cohorts = [[make_policy(name, 40, seed=seed).ask(offer) for offer in offers] for seed in (1, 1, 2)]
    assert cohorts[0] == cohorts[1] != cohorts[2]
