from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from policies.examples import play_rounds, played, turns_after
from turnout import RoundOffer, RoundReport
from turnout.kernel.randomness import round_rng
from turnout.policies import CSUCB, CSUCBQ, TiFL
from turnout.policies.check_support import SmallFleet

# CS-UCB and CS-UCB-Q


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
    for offer, selection, report in played(policy, fleet, 150):

        def index(row: int, round_: int = offer.round) -> float:
            rewards = arms[row].rewards
            if not rewards:
                return math.inf
            return sum(rewards) / len(rewards) + math.sqrt((5 + 1) * math.log(round_) / len(rewards))

        rows = sorted(np.flatnonzero(offer.available).tolist(), key=lambda row: (-index(row), row))
        assert selection.clients.tolist() == sorted(rows[:5])
        add_rewards(arms, report, 30.0)


def test_cs_ucb_q_equals_a_literal_implementation() -> None:
    policy = CSUCBQ(40, cohort_size=5, guaranteed_rate="1/10", fairness_weight=0.2, longest=30.0)
    arms = [LiteralArm() for _ in range(40)]
    fleet = SmallFleet(4, deadline=30.0, failure_rate=0.1)
    for offer, selection, report in played(policy, fleet, 150):

        def index(row: int, round_: int = offer.round) -> float:
            arm, reward = arms[row], 1.0
            if arm.rewards:
                bonus = math.sqrt(2 * math.log(round_) / len(arm.rewards))
                reward = min(sum(arm.rewards) / len(arm.rewards) + bonus, 1.0)
            return 0.8 * reward + 0.2 * float(arm.owed)

        rows = sorted(np.flatnonzero(offer.available).tolist(), key=lambda row: (-round(index(row), 12), row))
        assert selection.clients.tolist() == sorted(rows[:5])
        assert policy.owed.tolist() == pytest.approx([float(arm.owed) for arm in arms])
        add_rewards(arms, report, 30.0)
        for row, arm in enumerate(arms):
            arm.owed = max(arm.owed + Fraction(1, 10) - (row in selection.clients), Fraction(0))


def test_without_a_longest_time_the_longest_seen_has_reward_0() -> None:
    policy = CSUCB(3)
    policy.tell(RoundReport(1, np.array([0, 1]), np.ones((2, 3)), np.array([2.0, 8.0])))
    assert policy.rewards.means().tolist() == [0.75, 0.0, 0.0]
    policy.tell(RoundReport(2, np.array([0]), np.ones((1, 3)), np.array([1.0]), outcomes=["failed"]))
    assert policy.rewards.means().tolist() == [0.375, 0.0, 0.0]


def test_the_reasons_are_the_terms_of_the_index() -> None:
    policy = CSUCBQ(40, longest=20.0)
    turns_after(policy, 30)
    selection = policy.ask(SmallFleet().offer(31))
    np.testing.assert_array_equal(selection.reasons["owed"], policy.owed[selection.clients])
    rewards = 1 - selection.reasons["optimistic"] / 20.0
    total = (0.9 * rewards + 0.1 * selection.reasons["owed"]).sum()
    assert float(selection.reasons["objective"]) == pytest.approx(-total)


# TiFL


class LiteralTiFL:
    """A literal implementation with one dictionary per client and one per tier."""

    def __init__(self, clients: int, size: int, tiers: int, credits_: int, interval: int, profiling: int, every: int):
        self.size, self.interval, self.profiling, self.every = size, interval, profiling, every
        self.credits = credits_
        self.client: dict[int, dict[str, Any]] = {
            row: {"times": [], "loss": None, "turns": 0, "tier": tiers // 2} for row in range(clients)
        }
        self.tier: dict[int, dict[str, Any]] = {
            tier: {"credits": credits_, "chance": 1 / tiers, "before": None} for tier in range(tiers)
        }
        self.rounds = 0

    def order(self, round_: int) -> list[int]:
        keys = round_rng(0, "tifl tiers", round_).standard_exponential(len(self.tier)).tolist()

        def arrival(tier: int) -> tuple[float, float]:
            chance = self.tier[tier]["chance"] if self.tier[tier]["credits"] > 0 else 0
            return (keys[tier] / chance if chance else math.inf, keys[tier])

        return sorted(self.tier, key=arrival)

    def choose(self, rows: list[int], round_: int) -> list[int]:
        tie_break = round_rng(0, "tifl", round_).random(len(self.client)).tolist()
        if self.rounds < self.profiling:
            return sorted(sorted(rows, key=lambda row: (self.client[row]["turns"], tie_break[row]))[: self.size])
        chosen: list[int] = []
        for tier in self.order(round_):
            members = sorted((row for row in rows if self.client[row]["tier"] == tier), key=lambda row: tie_break[row])
            chosen += members[: self.size - len(chosen)]
        return sorted(chosen)

    def learn(self, round_: int, report: RoundReport) -> None:
        drawn = self.order(round_)[0]
        if self.rounds >= self.profiling and len(report.clients):
            self.tier[drawn]["credits"] -= 1
        assert report.losses is not None
        assert report.outcomes is not None
        for position, row in enumerate(report.clients.tolist()):
            client = self.client[row]
            client["turns"] += 1
            if report.outcomes[position] != "failed":
                client["times"].append(float(report.exchange_times[position]))
            if not math.isnan(report.losses[position]):
                client["loss"] = float(report.losses[position])
        if all(tier["credits"] <= 0 for tier in self.tier.values()):
            for tier in self.tier.values():
                tier |= {"credits": self.credits, "chance": 1 / len(self.tier)}
        self.rounds += 1
        since = self.rounds - self.profiling
        if since > 0 and since % self.interval == 0:
            self.rank(drawn)
        if since >= 0 and since % self.every == 0:
            self.split()

    def split(self) -> None:
        means = {
            row: sum(client["times"]) / len(client["times"]) for row, client in self.client.items() if client["times"]
        }
        for row in self.client:
            self.client[row]["tier"] = len(self.tier) // 2
        for position, row in enumerate(sorted(means, key=lambda row: means[row])):
            self.client[row]["tier"] = position * len(self.tier) // len(means)

    def rank(self, drawn: int) -> None:
        losses: dict[int, float] = {}
        for tier in self.tier:
            members = [client for client in self.client.values() if client["tier"] == tier]
            reported = [client["loss"] for client in members if client["loss"] is not None]
            if reported:
                losses[tier] = sum(reported) / len(reported)
        before = self.tier[drawn]["before"]
        for tier in self.tier:
            self.tier[tier]["before"] = losses.get(tier)
        if before is None or drawn not in losses or losses[drawn] < before:
            return
        typical = sum(losses.values()) / len(losses)
        funded = [tier for tier in self.tier if self.tier[tier]["credits"] > 0]
        funded.sort(key=lambda tier: -losses.get(tier, typical))
        for each in self.tier.values():
            each["chance"] = 0
        for rank, tier in enumerate(funded):
            self.tier[tier]["chance"] = (len(funded) - rank) / (len(funded) * (len(funded) + 1) / 2)


@pytest.mark.parametrize("availability", [0.8, 0.1])
def test_100_rounds_equal_a_literal_implementation(availability: float) -> None:
    policy = TiFL(40, cohort_size=5, tiers=4, credits=6, interval=3, profiling_rounds=8, retier_every=15)
    literal = LiteralTiFL(40, 5, 4, 6, 3, 8, 15)
    fleet = SmallFleet(3, availability=availability, deadline=20.0, failure_rate=0.1, losses=True)
    for offer, selection, report in played(policy, fleet, 100):
        np.testing.assert_allclose(policy.chances, [tier["chance"] for tier in literal.tier.values()])
        assert policy.tier.tolist() == [client["tier"] for client in literal.client.values()]
        assert selection.clients.tolist() == literal.choose(np.flatnonzero(offer.available).tolist(), offer.round)
        if not policy.profiling:
            assert selection.reasons["tier"].tolist() == [literal.client[row]["tier"] for row in selection.clients]
        literal.learn(offer.round, report)


def test_without_losses_all_tiers_stay_equally_likely() -> None:
    policy = TiFL(40, interval=1)
    play_rounds(policy, SmallFleet(), 1, 59)
    assert policy.chances.tolist() == [0.2] * 5


def test_credits_limit_a_tier_and_are_renewed_when_all_are_spent() -> None:
    policy = TiFL(10, cohort_size=1, tiers=2, profiling_rounds=1, credits=[3, 1])
    policy.tell(RoundReport(1, np.arange(10), np.ones((10, 3)), np.arange(10.0)))
    drawn = []
    for round_ in range(2, 14):
        selection = policy.ask(RoundOffer(round_, np.ones(10, dtype=bool), np.ones((10, 3))))
        drawn.append(int(selection.reasons["tier"][0]))
        policy.tell(RoundReport(round_, selection.clients, np.ones((1, 3)), np.ones(1)))
    assert [sum(drawn[start : start + 4]) for start in (0, 4, 8)] == [1, 1, 1]
