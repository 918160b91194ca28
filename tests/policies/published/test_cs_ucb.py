from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.examples import turns_after
from turnout import RoundReport
from turnout.policies import CSUCB, CSUCBQ
from turnout.policies.small_fleet import SmallFleet


class LiteralArm:
    """The rewards and the debt of one client."""

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.owed = Fraction(0)


def add_rewards(arms: list[LiteralArm], report: RoundReport, longest: float) -> None:
    assert report.outcomes is not None
    for row, time, outcome in zip(report.clients, report.exchange_times, report.outcomes, strict=True):
        arms[row].rewards.append(0.0 if outcome == "failed" else 1 - time / longest)


def test_cs_ucb_equals_a_literal_implementation() -> None:
    policy = CSUCB(40, cohort_size=5, longest=30.0)
    arms = [LiteralArm() for _ in range(40)]
    fleet = SmallFleet(4, deadline=30.0, failure_rate=0.1)
    for round_ in range(1, 151):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)

        def index(row: int, round_: int = round_) -> float:
            rewards = arms[row].rewards
            if not rewards:
                return math.inf
            return sum(rewards) / len(rewards) + math.sqrt((5 + 1) * math.log(round_) / len(rewards))

        rows = sorted(np.flatnonzero(offer.available).tolist(), key=lambda row: (-index(row), row))
        assert selection.clients.tolist() == sorted(rows[:5])
        report = fleet.play(offer, selection)
        policy.tell(report)
        add_rewards(arms, report, 30.0)


def test_cs_ucb_q_equals_a_literal_implementation() -> None:
    policy = CSUCBQ(40, cohort_size=5, guaranteed_rate="1/10", fairness_weight=0.2, longest=30.0)
    arms = [LiteralArm() for _ in range(40)]
    fleet = SmallFleet(4, deadline=30.0, failure_rate=0.1)
    for round_ in range(1, 151):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)

        def index(row: int, round_: int = round_) -> float:
            arm, reward = arms[row], 1.0
            if arm.rewards:
                bonus = math.sqrt(2 * math.log(round_) / len(arm.rewards))
                reward = min(sum(arm.rewards) / len(arm.rewards) + bonus, 1.0)
            return 0.8 * reward + 0.2 * float(arm.owed)

        rows = sorted(np.flatnonzero(offer.available).tolist(), key=lambda row: (-round(index(row), 12), row))
        assert selection.clients.tolist() == sorted(rows[:5])
        report = fleet.play(offer, selection)
        policy.tell(report)
        add_rewards(arms, report, 30.0)
        for row, arm in enumerate(arms):
            arm.owed = max(arm.owed + Fraction(1, 10) - (row in selection.clients), Fraction(0))
        assert policy.owed.tolist() == pytest.approx([float(arm.owed) for arm in arms])


def test_without_a_longest_time_the_longest_seen_has_reward_0() -> None:
    policy = CSUCB(3)
    policy.tell(RoundReport(1, np.array([0, 1]), np.ones((2, 3)), np.array([2.0, 8.0])))
    assert policy.rewards.means().tolist() == [0.75, 0.0, 0.0]
    policy.tell(RoundReport(2, np.array([0]), np.ones((1, 3)), np.array([1.0]), outcomes=["failed"]))
    assert policy.rewards.means().tolist() == [0.375, 0.0, 0.0]


def test_fast_clients_are_preferred_and_the_guarantee_is_kept() -> None:
    unfair, fair = turns_after(CSUCB(40), 200), turns_after(CSUCBQ(40, guaranteed_rate=0.15, fairness_weight=0.5), 200)
    assert unfair[:10].mean() > 1.2 * unfair[30:].mean()
    assert fair.min() / 200 > 0.14


@given(st.integers(0, 1000), st.sampled_from([0.001, 0.1, 1.0]), st.sampled_from(["always", "available"]))
@settings(max_examples=12, deadline=None)
def test_the_certificate_holds(seed: int, weight: float, accrual: Any) -> None:
    policy = CSUCBQ(12, cohort_size=3, fairness_weight=weight, accrual=accrual, max_owed=4, allow_infeasible=True)
    fleet = SmallFleet(seed, clients=12, availability=0.5, failure_rate=0.2)
    for round_ in range(1, 31):
        offer = fleet.offer(round_)
        policy.tell(fleet.play(offer, policy.ask(offer)))
        assert policy.certificate().books_balance
        assert (policy.owed >= 0).all()


def test_the_reasons_are_the_terms_of_the_index() -> None:
    policy = CSUCBQ(40, longest=20.0)
    turns_after(policy, 30)
    offer = SmallFleet().offer(31)
    selection = policy.ask(offer)
    np.testing.assert_array_equal(selection.reasons["owed"], policy.owed[selection.clients])
    rewards = 1 - selection.reasons["optimistic"] / 20.0
    total = (0.9 * rewards + 0.1 * selection.reasons["owed"]).sum()
    assert float(selection.reasons["objective"]) == pytest.approx(-total)
