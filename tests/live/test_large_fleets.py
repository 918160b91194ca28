"""What makes large fleets fast must not change what is stored: the limits are lowered here, so that few clients do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from live.fleets import (
    OpenFleet,
    client_rows,
    named,
    packed,
    packed_from_disk,
    play_round,
    problems,
    state_of,
    take_snapshot,
)
from postgres import tables
from turnout.errors import OfferError, StateError, TurnoutError
from turnout.live import FleetReader, FleetStatus, Scheduler
from turnout.live._internals import forget_in_steps
from turnout.live.identifiers import check_client_id, check_client_ids
from turnout.live.journal import changes, journal, redaction
from turnout.live.turns.clients import ClientCounters
from turnout.live.turns.rounds.state import RoundFleet
from turnout.storage.encoding.packing import copied

#: Ids with everything that JSON, SQL or the separator of ids could change.
ODD_IDS = [
    "plain",
    "with space",
    'quote"quote',
    "quote'quote",
    "back\\slash",
    "line\nline\ttab",
    "separator\x1fhere",
    "\x01\x7f",
    "ünïcode-☃-𝄞",
    "\u2028\ufeff\ufffe",
    "12",
    "1e5",
    "null",
    "[]",
    "x" * 1024,
]


def few_at_once(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(journal, "IDS_AT_ONCE", count)
    monkeypatch.setattr(changes, "JOINED_AT_ONCE", count)


def execute(path: Path, *statement: Any) -> list[Any]:
    with tables(path) as db:
        return db.execute(*statement).fetchall()


# Ids


@pytest.mark.parametrize("at_once", [1, 2, 4, 7, len(ODD_IDS), 100])
def test_ids_are_read_as_they_were_registered_however_many_are_read_at_once(
    open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    few_at_once(monkeypatch, at_once)
    plain = named(9)
    with open_fleet() as scheduler:
        assert scheduler.register(plain) == 9
        assert scheduler.register([*ODD_IDS, *plain, *ODD_IDS]) == len(ODD_IDS)
        assert client_rows(scheduler, ODD_IDS).tolist() == list(range(9, 9 + len(ODD_IDS)))
        state, path = packed(scheduler), scheduler.path
    with Scheduler.open(path) as reopened:
        assert reopened.clients == [*plain, *ODD_IDS]
        assert client_rows(reopened, ODD_IDS).tolist() == list(range(9, 9 + len(ODD_IDS)))
        assert packed(reopened) == state
    with FleetReader(path) as reader:
        assert reader.clients == [*plain, *ODD_IDS]
        joined = [client for event in reader.events() for client in event.clients]
        assert joined == [*plain, *ODD_IDS]
        assert reader.last_event == -(-9 // at_once) + -(-len(ODD_IDS) // at_once)
    assert problems(path) == []


def test_two_clients_never_have_the_same_id() -> None:
    fleet = RoundFleet(lambda clients: pytest.fail(f"{clients} clients"), backoff_after=3, late_window=3)
    fleet.ids = ["a", "b", "a"]
    with pytest.raises(StateError, match="1 client has the id of another one"):
        fleet.rows  # noqa: B018


@given(
    st.lists(st.one_of(st.text(max_size=5), st.sampled_from(["", "\0", "a\0b", "\ud800", "ü" * 600, "x" * 1025, 5])))
)
@example(["a", "x" * 1025])
def test_many_ids_are_checked_as_each_of_them_is(ids: list[Any]) -> None:
    def error_of(check: Any, *arguments: Any) -> str:
        try:
            check(*arguments, OfferError)
        except TurnoutError as error:
            return str(error)
        return ""

    first = next(filter(None, (error_of(check_client_id, client) for client in ids)), "")
    assert error_of(check_client_ids, ids) == first


# Snapshots


def test_a_large_fleet_is_opened_as_it_was_closed(open_fleet: OpenFleet) -> None:
    clients, rng = 20_000, np.random.default_rng(0)
    status = FleetStatus({"free_cpu": rng.uniform(0.5, 2, clients), "bandwidth": rng.uniform(1, 5, clients)})
    with open_fleet(settings={"cohort_size": 50, "guaranteed_rate": 0.001}) as scheduler:
        scheduler.register(named(clients))
        for _ in range(12):
            chosen = scheduler.choose(status)
            scheduler.report_many({client: float(rng.uniform(1, 9)) for client in chosen[:-1]})
            scheduler.close_round()
        take_snapshot(scheduler)
        assert packed(scheduler) == packed_from_disk(scheduler.path)
        ((stored,),) = execute(scheduler.path, "SELECT LENGTH(data) FROM snapshot")
        assert stored < len(packed(scheduler)) / 8


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Makes small fleets store differences as large ones do; says of each snapshot whether it was complete."""
    complete, pack = list[bool](), changes.Changes._pack_differences

    def counted(*arguments: Any) -> bytes | None:
        data = pack(*arguments)
        complete.append(data is None)
        return data

    monkeypatch.setattr(changes, "INCREMENTAL_FROM", 1)
    monkeypatch.setattr(changes.Changes, "_pack_differences", counted)
    return complete


@pytest.mark.parametrize("options", [{}, {"concurrency": 2}, {"keep_rounds": 20}], ids=str)
def test_snapshots_of_what_differs_give_the_state_of_complete_ones(
    open_fleet: OpenFleet, sizes: list[bool], options: dict[str, Any]
) -> None:
    settings = {"guaranteed_rate": "1/400"} | ({} if "concurrency" in options else {"cohort_size": 2})
    scheduler, rng = open_fleet(settings=settings, **options), np.random.default_rng(2)
    scheduler.register(clients := named(200))
    for step in range(60):
        there = rng.choice(clients, 5, replace=False).tolist()
        if "concurrency" in options:
            for turn in scheduler.fill(there):
                if rng.random() < 0.9:
                    scheduler.report(turn.id, float(rng.uniform(1, 9)))
                else:
                    scheduler.report_failure(turn.id, "battery")
            scheduler.fill([])
        else:
            scheduler.report_many(dict.fromkeys(scheduler.choose(there), 2.0 + step))
            scheduler.close_round()
        if step == 20:
            scheduler.amend(tolerance=3.0)
        if step == 30:
            scheduler.register(["late"])
        if step == 40:
            scheduler.retire(clients.pop())
        if step == 45:
            scheduler.close()
            scheduler = open_fleet()
        take_snapshot(scheduler)
        assert packed_from_disk(scheduler.path) == packed(scheduler)
    assert 20 < sizes.count(False) < 58
    assert any(sizes)
    complete = "SELECT COUNT(*) FROM snapshot"
    assert execute(scheduler.path, complete)[0][0] <= (6 if "keep_rounds" in options else 2)
    scheduler.compact()
    assert packed_from_disk(scheduler.path) == packed(scheduler)
    assert problems(scheduler.path) == []


def test_a_forgotten_client_is_in_no_snapshot(open_fleet: OpenFleet, sizes: list[bool]) -> None:
    """Neither the complete snapshot nor the differences to it stay."""
    scheduler = open_fleet(settings={"cohort_size": 2})
    scheduler.register(named(300))
    for number in range(3):
        scheduler.choose(["c0", "c1"])
        scheduler.report_many({"c0": 987.5 + number, "c1": 5.0})
        scheduler.close_round()
        take_snapshot(scheduler)
        base = state_of(scheduler).snapshot
        assert base is not None
        base.size = 10**9
    assert sizes == [False, False]
    learned = state_of(scheduler).fleet.history.typical_seconds[:1].tobytes()
    snapshots = "SELECT data FROM snapshot ORDER BY seq"
    assert [learned in data for (data,) in execute(scheduler.path, snapshots)] == [False, True]
    scheduler.forget("c0")
    assert [learned in data for (data,) in execute(scheduler.path, snapshots)] == [False]
    take_snapshot(scheduler)
    assert packed_from_disk(scheduler.path) == packed(scheduler)


def test_an_interrupted_snapshot_is_no_base(
    open_fleet: OpenFleet, sizes: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state takes the memory of that of the snapshot before it, which then stays in the file."""

    def interrupt(*states: Any) -> None:
        copied(*states)
        raise KeyboardInterrupt

    scheduler = open_fleet(settings={"cohort_size": 2})
    scheduler.register(named(300))
    take_snapshot(scheduler)
    play_round(scheduler, named(2))
    base = state_of(scheduler).snapshot
    assert base is not None
    base.size = 0  # so that a complete one follows
    with monkeypatch.context() as patch:
        patch.setattr(changes, "copied", interrupt)
        with pytest.raises(KeyboardInterrupt):
            take_snapshot(scheduler)
    base.size = 10**9
    take_snapshot(scheduler)
    assert packed_from_disk(scheduler.path) == packed(scheduler)
    assert sizes == [True, True]


# Judging


def judged(scheduler: Scheduler, before: list[int]) -> list[int]:
    """Returns since when each client is beyond the tolerance, by a certificate after each round."""
    broken = state_of(scheduler).fleet.policy.certificate().broken  # type: ignore[union-attr]
    since = before + [0] * (len(broken) - len(before))
    return [(old or scheduler.round) if now else 0 for old, now in zip(since, broken.tolist(), strict=True)]


@pytest.mark.parametrize("policy", ["fair-pace", "rbcsf"])
def test_skipped_tests_miss_no_broken_promise_and_no_absent_client(
    open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    """Clients retire, join and are forgotten, and settings are amended, while promises break and are mended."""
    settings = {"cohort_size": 2, "guaranteed_rate": 0.3, "tolerance": 1.5}
    rng, since, tested, broken, backed_off = np.random.default_rng(1), [0] * 12, list[int](), 0, 0
    judge = ClientCounters.judge

    def counted(counters: ClientCounters, *arguments: Any) -> None:
        tested.append(1)
        judge(counters, *arguments)

    monkeypatch.setattr(ClientCounters, "judge", counted)
    with open_fleet(
        policy=policy, settings=settings, deadline=5.0, backoff_after=2, allow_infeasible=True
    ) as scheduler:
        scheduler.register(named(12))
        for number in range(1, 121):
            available = [client for client in scheduler.clients if rng.random() < 0.6] or scheduler.clients[:1]
            chosen = scheduler.choose(available)
            scheduler.report_many({client: 1.0 for client in chosen if rng.random() < 0.7})
            scheduler.close_round()
            since = judged(scheduler, since)
            counters = state_of(scheduler).fleet.counters
            absent = (counters.retired > 0) | (counters.backoff_until > number)
            assert state_of(scheduler).fleet.unavailable.tolist() == absent.tolist()
            backed_off += int((counters.backoff_until > number).sum())
            assert state_of(scheduler).fleet.counters.broken_since.tolist() == since
            broken += any(since)
            if number == 30:
                scheduler.amend(guaranteed_rate=0.05, tolerance=20.0)
                since = judged(scheduler, since)
            if number == 50:
                scheduler.register(["late-1", "late-2"])
            if number == 60:
                scheduler.retire("c3")
            if number == 70:
                scheduler.forget("c4")
            if number == 90:
                scheduler.amend(guaranteed_rate=0.4, tolerance=1.0)
                since = state_of(scheduler).fleet.counters.broken_since.tolist()
    assert sum(tested) < 120 - 20
    assert backed_off > 0
    assert broken > 20


# Reports


def test_a_batch_of_reports_equals_single_reports(open_fleet: OpenFleet) -> None:
    settings = {"cohort_size": 4}
    with open_fleet("many", settings=settings) as many, open_fleet("single", settings=settings) as single:
        for scheduler in (many, single):
            first = scheduler.choose(named(6))
            scheduler.report_many({first[0]: 1.0})
            scheduler.close_round()
            scheduler.choose(named(6))
        late = first[1:3]
        cohort = [turn.id for turn in many.history(round=2)]
        mixed = {client: 2.0 + index for index, client in enumerate(cohort)}
        mixed |= {client: 30.0 for client in late if client not in cohort}
        assert many.report_many(mixed) == sum(single.report(client, seconds) for client, seconds in mixed.items())
        assert many.report_many(mixed) == 0
        assert many.report_many({cohort[0]: 2.0}, round=2) == 0
        for scheduler in (many, single):
            scheduler.close_round()
        assert packed(many) == packed(single)
        assert [turn.late_seconds for turn in many.history(round=1)] == [
            turn.late_seconds for turn in single.history(round=1)
        ]


# Forgetting


def test_a_client_is_forgotten_step_by_step(open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little a step may do, the result is the same, and the caller can do other work between the steps."""
    few_at_once(monkeypatch, 2)
    files = {}
    for most in (1, redaction.MAX_EVENT_BYTES):
        monkeypatch.setattr(redaction, "MAX_EVENT_BYTES", most)
        with open_fleet(f"{most}.turnout", settings={"cohort_size": 3}) as scheduler:
            scheduler.register(["secret-phone", *named(6)])
            for _ in range(5):
                play_round(scheduler, ["secret-phone", *named(3)])
            steps = 0
            for _ in forget_in_steps(scheduler, "secret-phone"):
                steps += 1
                assert "secret-phone" not in scheduler.clients
                assert scheduler.status().clients == 7
            assert steps > 9 if most == 1 else steps < 8
            events = execute(scheduler.path, "SELECT kind FROM events ORDER BY seq")
            files[most] = (packed(scheduler), events)
            path = scheduler.path
        assert b"secret-phone" not in path.read_bytes()
        assert problems(path) == []
    small, large = files.values()
    assert small == large
