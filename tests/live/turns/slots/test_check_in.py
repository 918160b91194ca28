"""Devices that check in by themselves, in a fleet without rounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.check_ins import Clock, check_ins, simulated_clock
from live.fleets import client_rows, named, packed, packed_from_disk, problems
from live.turns.slots.played import wait_of
from turnout import ClientStatus, RunningTurn, Scheduler, Wait
from turnout.errors import OfferError
from turnout.live import FleetStatus, certify
from turnout.live._internals import listen, news_since
from turnout.live.turns.slots.check_ins import RECENT, CheckIns
from turnout.live.turns.slots.filling import ended_turns
from turnout.live.turns.slots.records import RunningTurnRecord
from turnout.live.turns.slots.turns import SlotNews

SETTINGS: dict[str, Any] = {"guaranteed_rate": "1/20", "tolerance": 1.0}


@pytest.fixture
def clock() -> Iterator[Clock]:
    with simulated_clock() as time:
        yield time


def open_devices(path: Path, **options: Any) -> Scheduler:
    return Scheduler.open(path, **{"concurrency": 2, "settings": SETTINGS, "status_ttl": 10.0, **options})


def turn_of(answer: RunningTurn | Wait) -> RunningTurn:
    assert isinstance(answer, RunningTurn), answer
    return answer


def test_a_device_gets_a_free_slot_and_the_same_turn_again_if_the_answer_was_lost(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "fleet.turnout"
    with open_devices(path) as scheduler:
        first = turn_of(scheduler.check_in("a", ClientStatus(1.0, 2.0)))
        assert (first.id, first.client) == (1, "a")
        assert scheduler.check_in("a") == first
        assert turn_of(scheduler.check_in("b", {"free_cpu": 1.0, "bandwidth": 2.0})).id == 2
        assert "all 2 slots are in use" in wait_of(scheduler.check_in("c")).why
        assert scheduler.clients == ["a", "b", "c"]
        assert packed(scheduler) == packed_from_disk(path)
    with open_devices(path) as scheduler:  # the turns are durable
        assert scheduler.check_in("a") == first
        clock.now += 1
        scheduler.report(first.id, 1.0)
        again = scheduler.check_in("a")
        assert isinstance(again, RunningTurn)
        assert again.id == 3


def test_a_device_that_waits_is_given_the_next_slot_and_gets_it_when_it_comes_back(
    tmp_path: Path, clock: Clock
) -> None:
    with open_devices(tmp_path / "fleet.turnout", concurrency=1) as scheduler:
        first = turn_of(scheduler.check_in("a"))
        wait = wait_of(scheduler.check_in("b"))
        assert 0 < wait.seconds <= 10.0
        scheduler.report(first.id, 3.0)
        clock.now += wait.seconds / 2
        # The slot is free and "b" is behind, so another device does not get it.
        assert "the only slot is in use" in wait_of(scheduler.check_in("c")).why
        assert [turn.client for turn in scheduler.running()] == ["b"]
        clock.now += wait.seconds / 2
        assert turn_of(scheduler.check_in("b")).id == 2


def test_a_check_in_is_kept_for_its_time_and_its_client_waits_longer_after_that(tmp_path: Path, clock: Clock) -> None:
    with open_devices(tmp_path / "fleet.turnout", concurrency=1) as scheduler:
        first = turn_of(scheduler.check_in("a"))
        waits, visit = [], 0.0
        while visit <= 10.0:
            waits.append(wait_of(scheduler.check_in("b")).seconds)
            visit += waits[-1]
            clock.now += waits[-1]
        assert len(waits) == 5
        assert sum(waits[:-1]) == pytest.approx(10.0)
        assert waits[-1] == 10.0  # nothing is known about the pace of the server yet
        clock.now -= 5.0  # "b" is away, as it was told
        scheduler.report(first.id, 3.0)
        assert turn_of(scheduler.check_in("c")).client == "c"
        assert scheduler.certificate().promised[scheduler.clients.index("b")] == pytest.approx(1 / 20)


def test_a_device_that_listens_need_not_ask_and_is_told_of_its_turn(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "fleet.turnout"
    with open_devices(path, deadline=100.0) as scheduler:
        turns = [turn_of(listen(scheduler, client, None)) for client in "ab"]
        assert wait_of(listen(scheduler, "c", None)).seconds == 10.0  # until its visit ends
        assert news_since(scheduler, 0) == SlotNews(2, ["b", "a"], 0, has_ended=False)
        clock.now += 6.0
        assert wait_of(listen(scheduler, "c", None)).seconds == 4.0
        scheduler.report(turns[0].id, 6.0)
        assert news_since(scheduler, 2) == SlotNews(2, [], 0, has_ended=True)
        assert [turn.client for turn in scheduler.fill([])] == ["c"]
        assert news_since(scheduler, 2) == SlotNews(3, ["c"], 0, has_ended=False)
    with open_devices(path) as scheduler:
        assert news_since(scheduler, 0) == SlotNews(3, ["c", "b"], 0, has_ended=False)
        clock.now += 97.0  # "b" is late
        assert news_since(scheduler, 3) == SlotNews(3, [], 0, has_ended=True)
        scheduler.fill([])
        assert news_since(scheduler, 3) == SlotNews(3, [], 1, has_ended=False)


def test_a_client_that_is_further_ahead_waits_longer(tmp_path: Path, clock: Clock) -> None:
    with open_devices(tmp_path / "fleet.turnout", concurrency=1, status_ttl=0.001) as scheduler:
        for step in range(60):
            clock.now += 1.0
            turn = turn_of(scheduler.check_in("a" if step % 3 else "b"))
            clock.now += 2.0
            scheduler.report(turn.id, 2.0)
        turn_of(scheduler.check_in("c"))
        waits = {}
        for client in "ab":
            scheduler.check_in(client)
            clock.now += 0.01
            waits[client] = wait_of(scheduler.check_in(client))
        assert waits["a"].seconds > waits["b"].seconds > 0
        assert "turns ahead of its promise" in waits["a"].why


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        ("random", {}),
        ("with-guarantee", {"policy": "random", "settings": {}, "guaranteed_rate": "1/20", "urgency": 1.0}),
    ],
)
def test_policies_without_prices_use_a_simple_rule(
    tmp_path: Path, clock: Clock, policy: str, settings: dict[str, Any]
) -> None:
    with open_devices(tmp_path / "fleet.turnout", concurrency=1, policy=policy, settings=settings) as scheduler:
        clients = named(8)
        for step in range(40):
            turn = scheduler.check_in(clients[step % 8])
            clock.now += 5.0
            for given in scheduler.running():
                scheduler.report(given.id, 5.0)
        turn = scheduler.check_in("c0")
        assert isinstance(turn, RunningTurn) or scheduler.running()
        idle = next(client for client in clients if client not in {turn.client for turn in scheduler.running()})
        scheduler.check_in(idle)
        clock.now += 10.0
        wait = wait_of(scheduler.check_in(idle))
        assert wait.seconds >= 5.0
        assert "slot is in use" in wait.why


def test_clients_that_retired_or_are_backed_off_are_told_so(tmp_path: Path, clock: Clock) -> None:
    with open_devices(tmp_path / "fleet.turnout", backoff_after=1) as scheduler:
        turn_of(scheduler.check_in("good"))
        scheduler.report_failure(turn_of(scheduler.check_in("bad")).id, "battery")
        wait = wait_of(scheduler.check_in("bad"))
        assert wait.why == "the last turn of the client failed or was late: it is backed off for 2 more turns"
        assert wait.seconds > 0
        third = turn_of(scheduler.check_in("third"))
        assert wait_of(scheduler.check_in("bad")).why.endswith("it is backed off for 1 more turn")
        clock.now += 1.0
        scheduler.report(third.id, 1.0)
        fourth = turn_of(scheduler.check_in("fourth"))
        assert "all 2 slots are in use" in wait_of(scheduler.check_in("bad")).why, "its back-off is over"
        scheduler.report(fourth.id, 1.0)
        scheduler.retire("bad")
        wait = wait_of(scheduler.check_in("bad"))
        assert wait == Wait(3600.0, "the client has retired")
        clock.now += 1.0
        assert turn_of(scheduler.check_in("new")).client == "new"


def test_back_off_ends_if_nobody_else_is_there(tmp_path: Path, clock: Clock) -> None:
    with open_devices(tmp_path / "fleet.turnout", backoff_after=1) as scheduler:
        for _ in range(4):  # back-off is counted in decisions: without this, there would be no further one
            clock.now += 1.0
            scheduler.report_failure(turn_of(scheduler.check_in("only")).id, "battery")
        (turn,) = scheduler.fill(["only"])
        assert turn.client == "only"


def test_fill_gives_turns_to_devices_that_have_checked_in(tmp_path: Path, clock: Clock) -> None:
    with open_devices(tmp_path / "fleet.turnout", concurrency=1) as scheduler:
        scheduler.check_in("a")
        scheduler.check_in("b")
        scheduler.report(1, 3.0)
        (turn,) = scheduler.fill([])
        assert turn.client == "b"
        assert scheduler.check_in("b") == turn
        scheduler.check_in("c", ClientStatus(1.0, 2.0))
        clock.now += 1.0
        scheduler.report(2, 3.0)
        columns = {"free_cpu": [1.0], "bandwidth": [2.0]}
        (turn,) = scheduler.fill(FleetStatus(columns, rows=client_rows(scheduler, ["a"])))
        assert turn.client == "c"  # it competes with "a", and is behind
        assert packed(scheduler) == packed_from_disk(scheduler.path)


def test_a_turn_whose_device_does_not_come_back_is_late(tmp_path: Path, clock: Clock) -> None:
    with open_devices(tmp_path / "fleet.turnout", concurrency=1, deadline=30.0) as scheduler:
        turn_of(scheduler.check_in("a"))
        clock.now += 31.0
        assert turn_of(scheduler.check_in("b")).id == 2
        assert [turn.kind for turn in scheduler.history("a")] == ["late"]
        clock.now += 31.0
        assert turn_of(scheduler.check_in("b")).id == 3  # not the turn that is over


def test_check_ins_that_are_refused_change_nothing(tmp_path: Path) -> None:
    with open_devices(tmp_path / "fleet.turnout", settings={"guaranteed_rate": "1/2"}) as scheduler:
        before = packed(scheduler)
        for client, status in (("", None), ("a", {"free_cpu": -1.0, "bandwidth": 1.0}), ("a", {"free_cpu": 1.0})):
            with pytest.raises(OfferError):
                scheduler.check_in(client, status)
        assert packed(scheduler) == before
        assert scheduler.clients == []
        assert turn_of(scheduler.check_in("a")).id == 1


def test_check_ins_do_not_survive_a_restart_or_forgetting(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with open_devices(path, concurrency=1) as scheduler:
        scheduler.check_in("a")
        scheduler.check_in("b")
    with open_devices(path, concurrency=1) as scheduler:
        scheduler.report(1, 3.0)
        assert scheduler.fill([]) == []
        scheduler.check_in("b")
        scheduler.report(2, 3.0)
        scheduler.check_in("a")
        scheduler.check_in("b")
        assert scheduler.amend(status_ttl=20.0) == ["status_ttl"]
        scheduler.forget("b")
        scheduler.report(3, 3.0)
        assert scheduler.fill([]) == []
        assert problems(path) == []


def test_devices_are_served_by_the_rule_and_faster_than_first_come(tmp_path: Path) -> None:
    own, first = check_ins(devices=24, slots=3, turns=150, folder=tmp_path).rows
    assert own["most turns behind"] < 1.0
    assert own["fewest turns / mean"] > 0.4
    assert own["updates per second"] > 1.05 * first["updates per second"]
    assert own["calls per turn"] < 6
    assert first["most turns behind"] is None
    content = certify(tmp_path / "devices.turnout", tmp_path / "proof.json", tmp_path / "proof.jsonl")
    assert content["settings"]["concurrency"] is not None


def test_the_pace_of_decisions_is_known_after_more_of_them_than_there_are_slots(clock: Clock) -> None:
    """The first decisions fill all slots at once, which says nothing about the pace."""
    check_ins = CheckIns(60.0, 2)
    running_turn = RunningTurnRecord(1, 0, np.zeros(3), None, "", 0.0, "", {})
    nothing, _ = ended_turns({}, [])
    check_ins.count([running_turn, running_turn], nothing)
    clock.now += 10.0
    assert check_ins.decisions_per_second is None
    check_ins.count([running_turn], nothing)
    assert check_ins.decisions_per_second == pytest.approx(0.2)  # two decisions since the first, in ten seconds


def test_after_a_restart_waits_follow_the_turns_of_those_clients_that_had_one(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "fleet.turnout"
    with open_devices(path, concurrency=1) as scheduler:
        first = turn_of(scheduler.check_in("a"))
        scheduler.register(["b", "c"])
        assert wait_of(scheduler.check_in("b")).seconds == 2.5  # a quarter of the time for which a check-in is kept
        clock.now += 4.0
        scheduler.report(first.id, 4.0)
        assert [turn.client for turn in scheduler.fill([])] == ["b"]
    with open_devices(path, concurrency=1) as scheduler:
        assert wait_of(scheduler.check_in("c")).seconds == 1.0  # a quarter of a turn


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "postpone", "remove", "pass"]), st.integers(0, 4), st.integers(0, 20)),
    max_size=120,
)


@given(STEPS)
def test_the_clients_that_wait_are_counted_without_a_look_at_all(steps: list[tuple[str, int, int]]) -> None:
    with simulated_clock() as time:
        check_ins = CheckIns(5.0, 2)
        known: set[int] = set()
        for step, row, seconds in steps:
            if step == "pass":
                time.now += seconds
            elif step == "add":
                check_ins.add(str(row), row, None)
                known.add(row)
            elif row in known and step == "postpone":
                check_ins.postpone(str(row), row, seconds, None)
            elif row in known:
                check_ins.remove(str(row), row)
                known.discard(row)
            assert check_ins.count_awaited() == np.count_nonzero(check_ins.awaited(5))
            assert len(check_ins._due_times) <= 2 * 5 + RECENT
