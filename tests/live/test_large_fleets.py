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
from turnout.live.turns.counters import ClientCounters
from turnout.live.turns.rounds.state import RoundFleet

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
