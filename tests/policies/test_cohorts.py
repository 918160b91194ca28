"""Cohorts of the published policies when clients fail, and data sizes and seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from turnout import POLICIES, make_policy
from turnout.errors import ReportError, SettingError
from turnout.policies.check_support import SmallFleet
from turnout.policies.registry import setting_names


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
