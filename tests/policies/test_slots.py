"""Turns that are given one at a time, while other clients are training."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from narrowing import known
from policies.examples import INNER, WRAP, around
from policies.literal_fair_pace import LiteralFairPace
from turnout import POLICIES, FairPace, RoundOffer, RoundReport, SelectionPolicy, make_policy
from turnout.errors import ReportError, SettingError
from turnout.kernel.slots.turns import RunningTurns, TurnStart
from turnout.policies import Eligible, RoundRobin, UniformRandom, WithGuarantee
from turnout.policies.check_support import SmallFleet

FILLING: tuple[str, ...] = (
    "fair-pace",
    "rbcsf",
    "fair-oracle",
    "random",
    "skewed",
    "round-robin",
    "fastest",
    "oort",
    "power-of-choice",
    "active-fl",
    "ucb-cs",
    "data-size",
)
NOBODY = np.empty(0, dtype=np.int64)


class Slots:
    """A small fleet in which every third step ends the oldest turn, and every other step gives a turn."""

    def __init__(self, policy: SelectionPolicy, seed: int = 0, *, slots: int = 4, failure_rate: float = 0.0) -> None:
        self.policy, self.slots = policy, slots
        self.fleet = SmallFleet(seed, clients=policy.clients, availability=0.7, failure_rate=failure_rate, losses=True)
        self.running_turns = RunningTurns(policy.clients)
        self.reports: dict[int, RoundReport] = {}
        self.decision = 0

    def offer(self) -> RoundOffer:
        """Returns the next offer for one place: some of the idle clients are available, at least one."""
        offer = self.fleet.offer(self.decision + 1)
        if not (offer.available & self.running_turns.idle).any():
            offer = RoundOffer(offer.round, self.running_turns.idle, offer.contexts, offer.expected_times)
        return offer.restricted(self.running_turns.idle, 1)

    def give(self) -> tuple[TurnStart, int]:
        """Lets the policy decide about one slot; returns what happened, and the client."""
        offer = self.offer()
        chosen = self.policy.ask(offer)
        (client,) = chosen.clients.tolist()
        assert offer.available[client]
        self.decision += 1
        report = self.fleet.play(offer, chosen)
        present = offer.available | ~self.running_turns.idle
        turn = TurnStart(self.decision, client, present, self.running_turns.capped(self.decision, self.policy.debts))
        self.policy.tell_started(turn)
        self.running_turns.start(turn)
        self.reports[client] = report
        return turn, client

    def end_oldest(self) -> RoundReport:
        """Reports the result of the turn that began first."""
        client = int(self.running_turns.rows[0])
        self.running_turns.finish(client)
        report = self.reports.pop(client)
        self.policy.tell_finished(report)
        return report

    def step(self) -> None:
        if len(self.running_turns) == self.slots:
            self.end_oldest()
        self.give()


def as_comparable(state: dict[str, Any]) -> dict[str, Any]:
    return {key: np.asarray(value).tolist() for key, value in state.items()}


@pytest.mark.parametrize("name", POLICIES)
def test_policies_give_turns_one_at_a_time_or_refuse(name: str) -> None:
    if name not in FILLING:
        policy = make_policy(name, 12)
        assert not policy.fills_slots
        turn = TurnStart(1, 0, np.ones(12, dtype=np.bool_), NOBODY)
        with pytest.raises(SettingError, match=f"{name} cannot give turns one at a time: use rounds, or another"):
            policy.tell_started(turn)
        with pytest.raises(SettingError, match="cannot give turns one at a time"):
            policy.tell_finished(RoundReport(1, np.array([0]), np.ones((1, 3)), np.ones(1)))
        return
    rate = {"guaranteed_rate": 0.05} if make_policy(name, 12).guarantee is not None else {}
    policy = make_policy(name, 12, cohort_size=1, **rate)
    run = Slots(policy, failure_rate=0.1)
    for _ in range(30):
        before = as_comparable(policy.state())
        policy.ask(run.offer())
        assert as_comparable(policy.state()) == before  # ask changes nothing
        run.step()
    assert run.decision == 30
    while len(run.running_turns):
        run.end_oldest()
    # A policy with the same state goes on in the same way.
    again = make_policy(name, 12, cohort_size=1, **rate)
    again.restore(policy.state())
    offer = run.offer()
    assert again.ask(offer).clients.tolist() == policy.ask(offer).clients.tolist()


@pytest.mark.parametrize("accrual", ["available", "always"])
@pytest.mark.parametrize("counts", ["selected", "completed"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))])
def test_fair_pace_decides_as_its_rule_is_worded(accrual: Any, counts: Any, seed: int) -> None:
    rates = [Fraction(1, 20), Fraction(1, 10), Fraction(3, 40), Fraction(1, 20), Fraction(0), Fraction(1, 8)]
    policy = FairPace(
        6,
        cohort_size=1,
        guaranteed_rate=[str(rate) for rate in rates],
        tolerance=1.0,
        accrual=accrual,
        counts=counts,
        allow_infeasible=True,
    )
    literal = LiteralFairPace(rates, Fraction(1), 1, accrual, counts)
    run, seen_capped, earned = Slots(policy, seed, slots=3, failure_rate=0.15), 0, [Fraction(0)] * 6
    for step in range(60):
        # The turn of client 5 lasts for a long time, so that it earns a whole turn meanwhile.
        if len(run.running_turns) == 3:
            client = next(row for row in run.running_turns.rows.tolist() if row != 5 or step % 20 == 0)
            run.running_turns.finish(client)
            report = run.reports.pop(client)
            policy.tell_finished(report)
            outcome = "arrived" if report.outcomes is None else report.outcomes[0]
            if counts == "completed" and outcome == "arrived":
                literal.turns[client] += 1
            if outcome != "failed":
                literal._learn_times(
                    [(report.round, client, report.contexts[0].tolist(), float(report.exchange_times[0]))]
                )
        offer = run.offer()
        expected = literal.choose(offer)
        training = run.running_turns.rows.tolist()
        turn, client = run.give()
        assert [client] == expected
        if counts == "selected":
            literal.turns[client] += 1
        for row in range(6):
            is_there = bool(offer.available[row]) or row in training
            is_capped = row in training and earned[row] + rates[row] > 1
            seen_capped += is_capped
            if is_capped:
                continue
            earned[row] += rates[row] if row in training else 0
            literal.present[row] += is_there
            literal.earned[row] += is_there or accrual == "always"
        earned[client] = Fraction(0)
        assert turn.decision == run.decision
        assert policy.certificate().turns.tolist() == literal.turns
        promised = [rate * count for rate, count in zip(rates, literal.earned, strict=True)]
        assert policy.certificate().promised == pytest.approx([float(value) for value in promised])
    assert seen_capped > 0


def test_round_robin_counts_turns_when_they_are_given() -> None:
    policy = RoundRobin(5, cohort_size=1)
    run = Slots(policy, slots=3)
    run.fleet.availability = 1.0
    assert [run.give()[1] for _ in range(3)] == [0, 1, 2]
    assert policy.turns.tolist() == [1, 1, 1, 0, 0]
    run.end_oldest()
    assert policy.turns.tolist() == [1, 1, 1, 0, 0]
    assert run.give()[1] == 3


@pytest.mark.parametrize("wrapper", WRAP)
@pytest.mark.parametrize("inner", ["random", "rbcsf", "oort"])
def test_wrappers_pass_decisions_on_or_refuse(wrapper: str, inner: str) -> None:
    policy = around(wrapper, inner)
    if wrapper in ("overcommit", "exclude-busy", "quota", "cool-down", "cool-down-strict"):
        assert not policy.fills_slots
        with pytest.raises(SettingError, match=f"{policy.name} cannot give turns one at a time"):
            policy.tell_started(TurnStart(1, 0, np.ones(40, dtype=np.bool_), NOBODY))
        return
    run = Slots(policy)
    for _ in range(25):
        if len(run.running_turns) == 4:
            run.end_oldest()
        _, client = run.give()
        if wrapper == "eligible":
            assert client % 3 == 0
    again = around(wrapper, inner)
    again.restore(policy.state())
    assert as_comparable(again.state()) == as_comparable(policy.state())
    if policy.debts is not None:
        assert known(policy.certificate()).promised.sum() > 0


def test_a_wrapper_around_a_policy_that_needs_rounds_refuses_too() -> None:
    assert not WithGuarantee(INNER["tifl"](40), 0.1).fills_slots
    assert not make_policy("rbcsf", 12, horizon=100).fills_slots
    assert WithGuarantee(UniformRandom(40, cohort_size=1), 0.01).fills_slots


def test_clients_that_are_not_allowed_earn_nothing() -> None:
    policy = Eligible(FairPace(4, cohort_size=1, guaranteed_rate=0.2), [0, 2])
    policy.tell_started(TurnStart(1, 2, np.array([True, True, True, False]), np.array([0, 1])))
    certificate = known(policy.certificate())
    assert certificate.promised.tolist() == [0.0, 0.0, 0.2, 0.0]
    assert certificate.turns.tolist() == [0, 0, 1, 0]


def test_a_guarantee_around_random_keeps_everybody_within_its_urgency() -> None:
    policy = WithGuarantee(
        UniformRandom(12, cohort_size=1, seed=3), 0.06, urgency=1.0, accrual="available", counts="selected"
    )
    run, largest = Slots(policy, slots=4), 0.0
    for _ in range(300):
        run.step()
        largest = max(largest, float(policy.owed.max()))
    assert 1.0 <= largest < 3.0


def test_a_decision_about_another_number_of_clients_is_refused() -> None:
    with pytest.raises(ReportError, match="present has 3 clients, this policy was built for 4"):
        FairPace(4, cohort_size=1).tell_started(TurnStart(1, 0, np.ones(3, dtype=np.bool_), NOBODY))
