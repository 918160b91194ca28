"""Rules about who is given a turn when: a window that gathers check-ins, a minimum of clients, and rest."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.check_ins import Clock, simulated_clock
from live.fleets import amendments_of, named, packed, packed_from_disk, problems, state_of, summary_round
from live.turns.slots.played import wait_of
from turnout import InfeasiblePromise, RunningTurn, Scheduler, SettingError, Wait
from turnout.live import certify
from turnout.live.reporter import Outcome
from turnout.live.serving.session import open_session
from turnout.live.serving.slots import SlotServer
from turnout.live.turns.slots.state import SlotFleet

SETTINGS: dict[str, Any] = {"guaranteed_rate": "1/20", "tolerance": 1.0, "counts": "selected"}


@pytest.fixture
def clock() -> Iterator[Clock]:
    with simulated_clock() as time:
        yield time


def open_fleet(path: Path, **options: Any) -> Scheduler:
    return Scheduler.open(path, **{"concurrency": 2, "settings": SETTINGS, "status_ttl": 60.0, **options})


def training(scheduler: Scheduler) -> list[str]:
    return [turn.client for turn in scheduler.running()]


# The window


def test_check_ins_are_gathered_until_the_first_has_waited_for_the_window(tmp_path: Path, clock: Clock) -> None:
    with open_fleet(tmp_path / "fleet.turnout", window_seconds=20.0) as scheduler:
        assert scheduler.check_in("a") == Wait(20.0, "check-ins are gathered for 20 s more: 1 device is waiting")
        clock.now += 5
        assert wait_of(scheduler.check_in("b")).seconds == 15.0
        assert wait_of(scheduler.check_in("a")).seconds == 15.0  # who asks again does not count twice
        assert "2 devices are waiting" in wait_of(scheduler.check_in("b")).why
        for client in named(9):
            scheduler.check_in(client)
        clock.now += 14.5
        assert wait_of(scheduler.check_in("b")).seconds == 0.5
        assert scheduler.round == 0
        clock.now += 0.5
        scheduler.check_in("a")
        assert scheduler.round == 2
        assert len(set(training(scheduler)) & {"a", "b", *named(9)}) == 2


def test_devices_that_cannot_be_given_a_turn_do_not_end_a_window(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "fleet.turnout"
    with open_fleet(path, window_seconds=20.0, min_turn_interval=100.0) as scheduler:
        scheduler.fill(["a"])
        assert isinstance(scheduler.check_in("a"), RunningTurn)  # it is training
        assert "1 device is waiting" in wait_of(scheduler.check_in("b")).why
        scheduler.report(1, 3.0)
        assert "rests" in wait_of(scheduler.check_in("a")).why
        clock.now += 19.0
        assert wait_of(scheduler.check_in("b")) == Wait(1.0, "check-ins are gathered for 1 s more: 1 device is waiting")


# The minimum


def test_no_turn_is_given_while_too_few_clients_are_there(tmp_path: Path, clock: Clock) -> None:
    with open_fleet(tmp_path / "fleet.turnout", min_present=3) as scheduler:
        assert (
            "1 client is available or training, and turns are given from 3 on" in wait_of(scheduler.check_in("a")).why
        )
        wait = wait_of(scheduler.check_in("b"))
        assert wait.seconds == 15.0  # a quarter of the time for which its check-in is kept
        assert scheduler.round == 0
        assert isinstance(scheduler.check_in("c"), Wait | RunningTurn)
        assert scheduler.round == 2
        assert clock.now == 0


# Rest


def test_a_client_is_given_one_turn_in_the_time_of_a_rest(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "fleet.turnout"
    with open_fleet(path, min_turn_interval=7200.0) as scheduler:
        assert isinstance(scheduler.check_in("a"), RunningTurn)
        clock.now += 30.0
        scheduler.report(1, 30.0)
        assert scheduler.fill(["a"]) == []
        assert scheduler.check_in("a") == Wait(
            3600.0, "the client is given at most one turn in 7200 s, and rests for 7.17e+03 s more"
        )
        clock.now += 7200.0 - 30.0 - 5.0
        assert wait_of(scheduler.check_in("a")).seconds == 5.0
    with open_fleet(path) as scheduler:  # the rest outlasts the process
        assert wait_of(scheduler.check_in("a")).seconds == 5.0
        assert scheduler.fill(["a"]) == []
        clock.now += 5.0
        assert isinstance(scheduler.check_in("a"), RunningTurn)
        assert packed(scheduler) == packed_from_disk(path)


def test_a_rest_outlasts_snapshots_and_retention(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "fleet.turnout"
    with open_fleet(path, min_turn_interval=7200.0, keep_rounds=10, persist_statuses=False) as scheduler:
        scheduler.fill(["a"])
        scheduler.report(1, 3.0)
        for row in range(60):
            for turn in scheduler.fill([f"other-{row}"]):
                scheduler.report(turn.id, 3.0)
        scheduler.compact()
        assert summary_round(scheduler) > 1
    clock.now += 7199.0
    with open_fleet(path) as scheduler:
        assert scheduler.fill(["a"]) == []
        clock.now += 1.0
        assert [turn.client for turn in scheduler.fill(["a"])] == ["a"]
    assert problems(path) == []


def test_the_reason_of_a_rest_is_explained_by_the_settings_of_that_time(tmp_path: Path, clock: Clock) -> None:
    with open_fleet(tmp_path / "fleet.turnout", concurrency=1, min_turn_interval=100.0) as scheduler:
        scheduler.fill(["a"])
        scheduler.report(1, 3.0)
        clock.now += 40.0
        scheduler.fill(["a", "b"])
        scheduler.report(2, 3.0)
        assert scheduler.amend(min_turn_interval=None) == ["min_turn_interval"]
        explanation = scheduler.explain("a", 2)
        assert explanation.outcome == "resting"
        assert explanation.sentence == (
            "a rested in decision 2: its last turn began 40 s before, and it is given at most one in 100 s."
        )
        assert scheduler.explain("b", 2).outcome == "chosen"
        assert [turn.client for turn in scheduler.fill(["a"])] == ["a"]
        assert scheduler.explain("a", 3).outcome == "chosen"


def test_a_rest_that_is_amended_counts_from_turns_that_were_given_before(tmp_path: Path, clock: Clock) -> None:
    with open_fleet(tmp_path / "fleet.turnout") as scheduler:
        scheduler.fill(["a"])
        scheduler.report(1, 3.0)
        clock.now += 40.0
        assert scheduler.amend(min_turn_interval=50.0) == ["min_turn_interval"]
        assert amendments_of(scheduler)[-1].sentence() == "amended after turn 1: min_turn_interval from none to 50.0"
        assert scheduler.fill(["a"]) == []
        clock.now += 10.0
        assert len(scheduler.fill(["a"])) == 1


def test_a_clock_that_is_set_back_ends_no_rest_and_makes_none_endless(tmp_path: Path, clock: Clock) -> None:
    with open_fleet(tmp_path / "fleet.turnout", min_turn_interval=100.0) as scheduler:
        clock.now = 1000.0
        scheduler.fill(["a"])
        scheduler.report(1, 3.0)
        clock.now = 950.0
        assert scheduler.fill(["a"]) == []
        assert "rests for 150 s more" in wait_of(scheduler.check_in("a")).why
        clock.now = 900.0
        assert len(scheduler.fill(["a"])) == 1


def test_backing_off_and_resting_wait_for_the_longer_of_both(tmp_path: Path, clock: Clock) -> None:
    with open_fleet(tmp_path / "fleet.turnout", min_turn_interval=500.0, backoff_after=1) as scheduler:
        scheduler.fill(["a"])
        scheduler.report_failure(1, "battery")
        wait = wait_of(scheduler.check_in("a"))
        assert wait.seconds == 500.0
        assert "it is backed off" in wait.why
        assert "rests for 500 s more" in wait.why
        clock.now += 500.0
        # Back-off ends if nobody else is there.
        assert isinstance(scheduler.check_in("a"), RunningTurn)


def test_a_forgotten_client_leaves_no_time_of_its_last_turn(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "fleet.turnout"
    with open_fleet(path, min_turn_interval=500.0) as scheduler:
        scheduler.fill(["a", "b"])
        for turn in (1, 2):
            scheduler.report(turn, 3.0)
        scheduler.fill([])
        scheduler.forget("a")
        given = state_of(scheduler).state()["given"].tolist()
        assert [value == value for value in given] == [client == "b" for client in scheduler.clients]
        assert packed(scheduler) == packed_from_disk(path)
        assert clock.now == 0
    assert problems(path) == []


def test_a_rest_longer_than_all_turns_makes_equal_shares_feasible(tmp_path: Path, clock: Clock) -> None:
    """The fastest clients cannot take all turns while a slow one trains."""
    settings = {**SETTINGS, "guaranteed_rate": "1/20"}
    with open_fleet(tmp_path / "fleet.turnout", concurrency=3, settings=settings) as scheduler:
        for _ in range(2):
            for turn in scheduler.fill(named(4)):
                scheduler.report(turn.id, 50.0 if turn.client == "c0" else 1.0)
        scheduler.fill([])
        with pytest.raises(InfeasiblePromise):
            scheduler.amend(guaranteed_rate="1/5")
        assert scheduler.amend(guaranteed_rate="1/5", min_turn_interval=60.0) == [
            "guaranteed_rate",
            "min_turn_interval",
        ]
        assert clock.now == 0


# Settings


def test_a_window_lasts_no_longer_than_a_check_in_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with pytest.raises(SettingError, match="window_seconds must be at most status_ttl, 60, got 61: a check-in is kept"):
        open_fleet(path, window_seconds=61.0)
    with open_fleet(path, window_seconds=5.0, min_present=2, min_turn_interval=60.0) as scheduler:
        with pytest.raises(SettingError, match="window_seconds must be at most status_ttl, 4, got 5"):
            scheduler.amend(status_ttl=4.0)
        assert scheduler.amend(window_seconds=None, min_present=1) == ["window_seconds", "min_present"]
    with open_fleet(path, min_turn_interval=60) as scheduler:
        assert (scheduler.settings.window_seconds, scheduler.settings.min_present) == (None, 1)


def test_clients_that_rest_do_not_ask_for_turns(tmp_path: Path, clock: Clock) -> None:
    options = {"settings": SETTINGS, "concurrency": 2, "status_ttl": 60.0, "min_turn_interval": 100.0}
    path = tmp_path / "fleet.turnout"
    with closing(open_session(path, None, options, takeover=False, accept_older=False)) as session:
        server = SlotServer(session)
        for client in ("a", "b"):
            assert isinstance(server.check_in(client, None), RunningTurn)
        for client in ("c", "d", "e"):
            wait_of(server.check_in(client, None))
        clock.now += 4.0
        session.record([Outcome("a", 4.0)])
        assert "rests for" in wait_of(server.check_in("a", None)).why
        assert len(server.running()) == 2
        assert isinstance(session.fleet, SlotFleet)
        pace = server.check_ins.pace(session.fleet)
        assert pace is not None
        assert (pace.mean_turn, pace.clients) == (4.0, 4)  # two train and two wait; "a" rests


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


@pytest.mark.thorough
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(rules=all_rules(), steps=STEPS)
def test_turns_rests_and_the_certificate_agree_with_a_literal_recount(rules: dict[str, Any], steps: list[Any]) -> None:
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
            certify(path, Path(folder) / "proof.json", Path(folder) / "proof.jsonl")  # verifies it, too


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
