"""`persist_statuses=False`: no status and no context is written to the file, and selections are the same."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from live.fleets import (
    OpenFleet,
    World,
    client_rows,
    exported,
    packed,
    packed_from_disk,
    predicted_seconds,
    problems,
    rows_of,
    state_of,
    take_snapshot,
)
from narrowing import known
from postgres import stored_bytes
from turnout.dashboard.sources.recording import read_recording
from turnout.errors import ReportError, SettingError, StoreError
from turnout.kernel.rounds import RoundReport
from turnout.live import FleetReader, Scheduler, certify
from turnout.live._internals import examine
from turnout.live.journal.changes import Changes
from turnout.live.journal.journal import Journal
from turnout.live.journal.summary import first_state, newest_state
from turnout.live.operation.upkeep import write_snapshot

CLIENTS, COHORT = 14, 4
POLICIES = {
    "fair-pace": {"cohort_size": COHORT},
    "rbcsf": {"cohort_size": COHORT, "guaranteed_rate": 0.1},
    "oort": {"cohort_size": COHORT},
}


def play(scheduler: Scheduler, world: World, rounds: range) -> list[list[str]]:
    """Plays rounds in which clients arrive, fail or are late, some of which report their times a round later."""
    cohorts: list[list[str]] = []
    late: dict[str, tuple[int, float]] = {}
    for number in rounds:
        statuses = world.statuses(number)
        cohort = scheduler.choose(statuses)
        cohorts.append(cohort)
        for client, (round_, seconds) in late.items():
            scheduler.report(client, seconds, round=round_)
        times = {client: world.seconds(number, client, statuses[client]) for client in cohort}
        slow = cohort[-1] if number % 3 == 0 else None
        late = {} if slow is None else {slow: (number, times[slow] + 90.0)}
        failed = cohort[0] if number % 4 == 0 else None
        if failed is not None:
            scheduler.report_failure(failed, "its battery died")
        scheduler.report_many({client: own for client, own in times.items() if client not in (slow, failed)})
        scheduler.close_round()
    return cohorts


def learned(scheduler: Scheduler | FleetReader) -> dict[str, Any]:
    """Returns what the policy has learned about times."""
    state = {key: value for key, value in state_of(scheduler).state().items() if key.startswith("policy.")}
    return {key: value.tolist() for key, value in state.items() if "model" in key or "usual" in key}


def promises_of(scheduler: Scheduler | FleetReader) -> dict[str, Any]:
    """Returns what every client was promised and got."""
    return known(scheduler.certificate()).to_dict(scheduler.clients)


def numbers_in(path: Path, world: World, rounds: range) -> int:
    """Returns how many numbers of statuses and contexts are in the file or its log, apart from what was learned.

    The learned times of a client are computed from sums of its contexts, which after its first turn are its context.
    """
    raw = stored_bytes(path)
    tables = ("events", "offers", "open_round", "turns", "masks", "summary", "totals", "meta")
    stored = b"\0".join(
        value if isinstance(value, bytes) else str(value).encode()
        for table in tables
        for row in rows_of(path, f"SELECT * FROM {table}")
        for value in row
    )
    drawn = [status for number in rounds for status in world.statuses(number).values()]
    statuses = [number for status in drawn for number in (status.free_cpu, status.bandwidth)]
    contexts = [number for status in drawn for number in (1 / status.free_cpu, 20 / status.bandwidth)]
    return count_floats(statuses, raw) + count_floats([*statuses, *contexts], stored)


def count_floats(numbers: list[float], data: bytes) -> int:
    """Returns how many of the numbers are in the data, at any offset."""
    at_any_offset = [np.frombuffer(data, np.int64, (len(data) - start) // 8, start) for start in range(8)]
    return int(np.isin(np.array(numbers).view(np.int64), np.concatenate(at_any_offset)).sum())


@pytest.mark.parametrize("policy", POLICIES)
def test_selections_are_the_same_and_no_status_is_in_the_file(open_fleet: OpenFleet, policy: str) -> None:
    world, options = World(CLIENTS), {"policy": policy, "settings": POLICIES[policy], "deadline": 60.0}
    private = open_fleet("private.turnout", **options, persist_statuses=False)
    usual = open_fleet("usual.turnout", **options)
    for first in (1, 6, 11):
        rounds = range(first, first + 5)
        assert play(private, world, rounds) == play(usual, world, rounds)
        seen = range(1, first + 5)
        assert numbers_in(private.path, world, seen) == 0 < numbers_in(usual.path, world, seen)
        assert learned(private) == learned(usual)
        private.close()
        private = open_fleet("private.turnout")
        assert private.round == first + 4
    private.choose(world.statuses(16))  # nor is there one while a round is open
    assert numbers_in(private.path, world, range(1, 17)) == 0
    private.report(private.history()[0].id, 5.0)
    private.close_round()
    assert problems(private.path) == []


@pytest.mark.parametrize("persisted", [False, True])
def test_no_status_of_a_client_that_trains_is_in_the_file_of_a_fleet_without_rounds(
    open_fleet: OpenFleet, persisted: bool
) -> None:
    world, settings = World(CLIENTS), {"guaranteed_rate": "1/20"}
    scheduler = open_fleet(settings=settings, concurrency=3, persist_statuses=persisted)
    for number in range(1, 7):
        scheduler.fill(world.statuses(number))
        assert len(scheduler.running()) == 3
        assert (numbers_in(scheduler.path, world, range(1, number + 1)) > 0) == persisted
        with FleetReader(scheduler.path) as reader:
            assert all(np.isnan(running_turn.context).all() != persisted for running_turn, _ in reader.running())
        take_snapshot(scheduler)
        assert has_contexts(scheduler.path, "running_turns") == persisted
        for turn in scheduler.running()[: number % 3]:
            scheduler.report(turn.id, 4.0)


def test_after_a_restart_running_turns_count_but_teach_nothing(open_fleet: OpenFleet) -> None:
    world, settings = World(CLIENTS), {"guaranteed_rate": "1/20"}
    scheduler = open_fleet(settings=settings, concurrency=3, persist_statuses=False)
    given = scheduler.fill(world.statuses(1))
    scheduler.close()
    with Scheduler.open(scheduler.path) as restarted:
        known = learned(restarted)
        assert [turn.id for turn in restarted.running()] == [turn.id for turn in given]
        for turn in given:
            restarted.report(turn.id, 4.0)
        restarted.fill({})
        assert learned(restarted) == known
        assert restarted.certificate().turns.sum() == 3
        assert packed(restarted) == packed_from_disk(restarted.path)
        for turn in restarted.fill(world.statuses(2)):
            restarted.report(turn.id, 4.0)
        restarted.fill({})
        assert learned(restarted) != known
    assert problems(scheduler.path) == []


def test_a_large_fleet_stores_what_it_learned_now_and_then_and_when_it_is_closed(
    open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnout.live.operation.upkeep.SMALL_FLEET", 2)
    world, settings = World(CLIENTS), {"guaranteed_rate": "1/20"}
    scheduler = open_fleet(settings=settings, concurrency=3, persist_statuses=False)
    written = Mock(wraps=write_snapshot)
    monkeypatch.setattr("turnout.live.serving.slots.write_snapshot", written)
    for number in range(1, 12):
        for turn in scheduler.fill(world.statuses(number)):
            scheduler.report(turn.id, 4.0 + number)
        with FleetReader(scheduler.path) as killed:  # the state that another process would find after a kill
            assert promises_of(killed) == promises_of(scheduler)
            is_stored = learned(killed) == learned(scheduler)
    assert written.call_count == 1
    assert not is_stored
    before = learned(scheduler)
    scheduler.close()
    with Scheduler.open(scheduler.path) as again:
        assert learned(again) == before
    assert problems(scheduler.path) == []


def test_a_full_disk_does_not_keep_a_large_fleet_from_closing(
    open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("turnout.live.operation.upkeep.SMALL_FLEET", 2)
    scheduler = open_fleet(settings={"guaranteed_rate": "1/20"}, concurrency=3, persist_statuses=False)
    scheduler.fill(World(CLIENTS).statuses(1))
    monkeypatch.setattr(Changes, "put_snapshot", Mock(side_effect=StoreError("the disk is full")))
    scheduler.close()
    assert "what was learned from the last turns is not stored: the disk is full" in caplog.text
    with Scheduler.open(scheduler.path) as again:
        assert len(again.running()) == 3


@pytest.mark.parametrize("persisted", [False, True])
def test_no_context_of_a_late_client_is_in_a_stored_state(
    open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch, persisted: bool
) -> None:
    monkeypatch.setattr("turnout.live.retention.MIN_ROUNDS", 2)
    monkeypatch.setattr("turnout.live.retention.LATE_ROUNDS", 3)
    scheduler = open_fleet(settings=POLICIES["fair-pace"], deadline=60.0, keep_rounds=3, persist_statuses=persisted)
    world = World(CLIENTS)
    for number in range(1, 10):
        cohort = scheduler.choose(world.statuses(number))
        scheduler.report_many(dict.fromkeys(cohort[1:], 9.0))
        scheduler.close_round()  # the first is late
    take_snapshot(scheduler)
    assert has_contexts(scheduler.path) == persisted
    scheduler.forget(next(client for client in scheduler.clients if client not in cohort))
    assert has_contexts(scheduler.path) == persisted
    scheduler.compact()
    with closing(Journal(scheduler.path, "read")) as journal, journal.reading() as db:
        summary = known(first_state(db))
        assert np.isfinite(summary.state["awaited.contexts"]).any() == persisted


def has_contexts(path: Path, part: str = "awaited") -> bool:
    """Returns whether the stored state has contexts of clients that are late, or train ("running_turns"); some do."""
    with closing(Journal(path, "read")) as journal, journal.reading() as db:
        saved = known(newest_state(db))
        contexts = saved.state[f"{part}.contexts"]
        assert contexts.size
        return bool(np.isfinite(contexts).any())


def test_after_a_crash_the_open_round_counts_but_teaches_nothing(open_fleet: OpenFleet) -> None:
    world = World(CLIENTS)
    scheduler = open_fleet(settings=POLICIES["fair-pace"], deadline=60.0, persist_statuses=False)
    play(scheduler, world, range(1, 8))
    cohort = scheduler.choose(world.statuses(8))
    turns = scheduler.certificate().turns
    scheduler.close()  # as after a crash: only the file is left
    with Scheduler.open(scheduler.path) as restarted:
        assert restarted.choose(world.statuses(8)) == cohort
        assert predicted_seconds(restarted) == {}
        known = learned(restarted)
        assert len(known) >= 2
        restarted.report_many(dict.fromkeys(cohort, 7.5))
        restarted.close_round()
        rows = client_rows(restarted, cohort)
        assert (restarted.certificate().turns[rows] == turns[rows] + 1).all()
        assert learned(restarted) == known
        assert packed(restarted) == packed_from_disk(restarted.path)
        play(restarted, world, range(9, 12))
        assert learned(restarted) != known


@pytest.mark.files
def test_explain_replay_and_certify_say_what_they_lack(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler = open_fleet(settings=POLICIES["fair-pace"], deadline=60.0, persist_statuses=False)
    cohorts = play(scheduler, World(CLIENTS), range(1, 8))
    explanation = scheduler.explain(cohorts[-1][0], 7)
    assert not explanation.exact
    assert "not persisted (persist_statuses=False)" in str(explanation)
    with pytest.raises(SettingError, match=r"persist_statuses=False.*cannot be replayed"):
        read_recording(scheduler.path)
    content = certify(scheduler.path, folder / "c.json", folder / "c.jsonl")
    assert sum(client["turns"] for client in content["clients"].values()) == int(scheduler.certificate().turns.sum())
    assert [event["contexts"] for event in exported(scheduler) if event["kind"] == "round"] == [None] * 7
    state = next(finding for finding in examine(scheduler.path) if finding.part == "state")
    assert "the statuses of clients are not persisted" in state.message


def test_a_follower_counts_turns_and_debts_without_statuses(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings=POLICIES["fair-pace"], deadline=60.0, persist_statuses=False)
    play(scheduler, World(CLIENTS), range(1, 8))
    with FleetReader(scheduler.path) as reader:
        follower = reader.follow()
        for event in follower.poll():
            follower.apply(event)
    counted, certificate = follower.fleet.certificate(), scheduler.certificate()
    assert counted is not None
    assert counted.turns.tolist() == certificate.turns.tolist()
    assert counted.owed_units.tolist() == certificate.owed_units.tolist()


def test_the_setting_can_be_amended(open_fleet: OpenFleet) -> None:
    world = World(CLIENTS)
    scheduler = open_fleet(settings=POLICIES["fair-pace"], deadline=60.0)
    play(scheduler, world, range(1, 4))
    assert scheduler.amend(persist_statuses=False) == ["persist_statuses"]
    play(scheduler, world, range(4, 8))
    assert numbers_in(scheduler.path, world, range(4, 8)) == 0
    with FleetReader(scheduler.path) as reopened:
        assert learned(reopened) == learned(scheduler)
    scheduler.amend(persist_statuses=True)
    play(scheduler, world, range(8, 10))
    assert numbers_in(scheduler.path, world, range(8, 10)) > 0
    with FleetReader(scheduler.path) as reopened:
        assert learned(reopened) == learned(scheduler)


def report_of(contexts: list[list[float]], outcomes: list[str] | None = None) -> RoundReport:
    clients = np.arange(len(contexts))
    return RoundReport(1, clients, np.array(contexts), np.ones(len(contexts)), outcomes=outcomes)


def test_a_report_may_have_unknown_contexts_but_no_half_known_ones() -> None:
    nan = float("nan")
    report = report_of([[1.0, 2.0], [nan, nan], [3.0, 4.0]], ["arrived", "arrived", "failed"])
    informative = known(report.informative())
    assert informative.tolist() == [True, False, False]
    assert report_of([[1.0, 2.0], [3.0, 4.0]]).informative() is None
    for wrong in ([[1.0, nan]], [[float("inf"), float("inf")]]):
        with pytest.raises(ReportError, match="contexts"):
            report_of(wrong)
