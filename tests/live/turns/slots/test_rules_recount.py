"""A literal recount of who may be given a turn, and of what everyone earns, under the rules of check-ins."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.check_ins import simulated_clock
from live.fleets import problems
from turnout import RunningTurn, Scheduler
from turnout.live import certify
from turnout.live._internals import verify as verifier

CLIENTS = [f"c{row}" for row in range(6)]
RATE, TTL = Fraction(1, 8), 20.0


@dataclass
class Recount:
    """What the documentation says, client by client and decision by decision, without arrays or arithmetic of debts.

    Args:
        rules: The settings of the fleet.
    """

    rules: dict[str, Any]
    now: float = 0.0
    decision: int = 0
    visits: dict[str, float] = field(default_factory=dict)  # when each visit began
    asked: dict[str, float] = field(default_factory=dict)  # until when each client was asked to wait
    running: dict[int, str] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)
    starts: dict[str, float] = field(default_factory=dict)  # of the last turn
    started: dict[str, int] = field(default_factory=dict)  # the decision of it
    known: list[str] = field(default_factory=list)
    earned: dict[str, Fraction] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)

    def is_resting(self, client: str) -> bool:
        rest = self.rules["min_turn_interval"]
        return rest is not None and client in self.starts and self.now < self.starts[client] + rest

    def end_turns(self) -> None:
        for turn in self.reported:
            client = self.running.pop(turn)
            self.turns[client] += self.rules["settings"]["counts"] == "completed"
        self.reported.clear()

    def can_be_given(self, offered: set[str], *, checks_in: bool) -> tuple[set[str], set[str], int]:
        """Returns who can be given a turn, who earns with a decision, and how many turns must be given now."""
        training = set(self.running.values())
        idle = {client for client in offered if client not in training and not self.is_resting(client)}
        waiting = {client for client, until in self.asked.items() if until >= self.now and not self.is_resting(client)}
        present = idle | waiting | training
        free = min(self.rules["concurrency"] - len(training), len(idle))
        if len(present) < self.rules["min_present"]:
            return idle, present, 0
        window = self.rules["window_seconds"]
        if checks_in and window is not None and idle:
            first = min(self.visits[client] for client in idle)
            if self.now < first + window:
                return idle, present, 0
        return idle, present, free

    def give(self, turn: RunningTurn, present: set[str]) -> None:
        """Counts a decision."""
        self.decision += 1
        assert turn.id == self.decision
        training = set(self.running.values())
        for client in self.known:
            if self.rules["settings"]["accrual"] == "available" and client not in present:
                continue
            if client in training and (self.decision - self.started[client]) * RATE > 1:
                continue  # it has earned a whole turn since this one began
            self.earned[client] += RATE
        self.running[turn.id] = turn.client
        self.starts[turn.client], self.started[turn.client] = self.now, turn.id
        self.turns[turn.client] += self.rules["settings"]["counts"] == "selected"
        self.visits.pop(turn.client, None)
        self.asked.pop(turn.client, None)

    def join(self, client: str) -> None:
        if client not in self.known:
            self.known.append(client)
            self.earned[client], self.turns[client] = Fraction(0), 0


@st.composite
def all_rules(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "concurrency": draw(st.integers(1, 4)),
        "status_ttl": TTL,
        "window_seconds": draw(st.sampled_from([None, 2.0, 10.0, 20.0])),
        "min_present": draw(st.sampled_from([1, 1, 2, 3, 4])),
        "min_turn_interval": draw(st.sampled_from([None, 4.0, 30.0, 200.0])),
        "persist_statuses": draw(st.booleans()),
        "settings": {
            "guaranteed_rate": str(RATE),
            "tolerance": 1.0,
            "counts": draw(st.sampled_from(["selected", "completed"])),
            "accrual": draw(st.sampled_from(["available", "available", "always"])),
        },
    }


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("check in"), st.sampled_from(CLIENTS)),
        st.tuples(st.just("check in"), st.sampled_from(CLIENTS)),
        st.tuples(st.just("pass"), st.sampled_from([0.5, 1.0, 2.0, 5.0, 25.0])),
        st.tuples(st.just("report"), st.integers(0, 3)),
        st.tuples(st.just("fill"), st.sets(st.sampled_from(CLIENTS), min_size=1, max_size=3)),
        st.tuples(st.just("open again"), st.just(None)),
    ),
    min_size=10,
    max_size=60,
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(rules=all_rules(), steps=STEPS)
def test_turns_rests_and_the_certificate_agree_with_a_literal_recount(rules: dict[str, Any], steps: list[Any]) -> None:
    check_steps(rules, steps)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(rules=all_rules(), steps=STEPS)
def test_more_steps_agree_with_a_literal_recount(rules: dict[str, Any], steps: list[Any]) -> None:
    check_steps(rules, steps)


def check_steps(rules: dict[str, Any], steps: list[Any]) -> None:
    """Takes the steps beside the recount, and compares the two after each of them."""
    with tempfile.TemporaryDirectory() as folder, simulated_clock() as clock:
        path, recount = Path(folder) / "fleet.turnout", Recount(rules)
        scheduler = Scheduler.open(path, **rules)
        for kind, value in steps:
            if kind == "check in":
                check_in(scheduler, recount, value)
            elif kind == "pass":
                clock.now += value
                recount.now = clock.now
            elif kind == "report":
                open_turns = sorted(set(recount.running) - recount.reported)
                for turn in open_turns[value : value + 1]:
                    scheduler.report(turn, 3.0)
                    recount.reported.add(turn)
            elif kind == "fill":
                fill(scheduler, recount, sorted(value))
            else:
                scheduler.close()
                scheduler = Scheduler.open(path)
                recount.visits.clear()
                recount.asked.clear()
            agree(scheduler, recount)
        scheduler.close()
        assert problems(path) == []
        if recount.known:
            certify(path, Path(folder) / "proof.json", Path(folder) / "proof.jsonl")
            record = (Path(folder) / "proof.jsonl").read_bytes().splitlines(True)
            assert verifier.differences((Path(folder) / "proof.json").read_bytes(), record) == []


def check_in(scheduler: Scheduler, recount: Recount, client: str) -> None:
    before = scheduler.round
    answer = scheduler.check_in(client)
    recount.join(client)
    recount.visits.setdefault(client, recount.now)
    recount.asked[client] = recount.now
    recount.end_turns()
    offered = {one for one, begun in recount.visits.items() if begun + TTL > recount.now or one == client}
    given = [turn for turn in scheduler.running() if turn.id > before]
    count_turns(recount, given, offered, checks_in=True)
    if client in recount.running.values():
        assert isinstance(answer, RunningTurn)
        recount.visits.pop(client, None)
        recount.asked.pop(client, None)
        return
    assert not isinstance(answer, RunningTurn)
    assert answer.seconds > 0
    if recount.is_resting(client):
        assert "rests" in answer.why
        assert answer.seconds == recount.starts[client] + recount.rules["min_turn_interval"] - recount.now
        recount.visits.pop(client)
    elif recount.visits[client] + TTL <= recount.now:
        recount.visits.pop(client)
    recount.asked[client] = recount.now + answer.seconds


def fill(scheduler: Scheduler, recount: Recount, clients: list[str]) -> None:
    given = scheduler.fill(clients)
    for client in clients:
        recount.join(client)
    recount.end_turns()
    kept = {client for client, begun in recount.visits.items() if begun + TTL > recount.now}
    count_turns(recount, given, kept | set(clients), checks_in=False)


def count_turns(recount: Recount, given: list[RunningTurn], offered: set[str], *, checks_in: bool) -> None:
    idle, present, count = recount.can_be_given(offered, checks_in=checks_in)
    assert len(given) == count
    assert {turn.client for turn in given} <= idle
    for turn in given:
        recount.give(turn, present)


def agree(scheduler: Scheduler, recount: Recount) -> None:
    assert scheduler.clients == recount.known
    assert {turn.id for turn in scheduler.running()} == set(recount.running) - recount.reported
    if not recount.known:
        return
    certificate = scheduler.certificate()
    assert [Fraction(value).limit_denominator(1000) for value in certificate.promised.tolist()] == [
        recount.earned[client] for client in recount.known
    ]
    assert certificate.turns.tolist() == [recount.turns[client] for client in recount.known]
