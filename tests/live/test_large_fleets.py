"""What makes large fleets fast must not change what is stored: the limits are lowered here, so that few clients do."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from live import fleets
from narrowing import known
from postgres import stored_bytes, tables
from turnout.dashboard.sources.recording import read_recording
from turnout.errors import OfferError, ReportError, SettingError, StateError, StoreError, TurnoutError
from turnout.kernel.rounds import RoundReport
from turnout.live import FleetReader, FleetStatus, Scheduler, certify
from turnout.live._internals import examine, forget_in_steps
from turnout.live.identifiers import check_client_id, check_client_ids
from turnout.live.journal import changes, journal
from turnout.live.journal import turns as stored_turns
from turnout.live.journal.changes import Changes
from turnout.live.journal.journal import Journal
from turnout.live.journal.summary import first_state, newest_state
from turnout.live.operation.upkeep import write_snapshot
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
    open_fleet: fleets.OpenFleet, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    few_at_once(monkeypatch, at_once)
    plain = fleets.named(9)
    with open_fleet() as scheduler:
        assert scheduler.register(plain) == 9
        assert scheduler.register([*ODD_IDS, *plain, *ODD_IDS]) == len(ODD_IDS)
        assert fleets.client_rows(scheduler, ODD_IDS).tolist() == list(range(9, 9 + len(ODD_IDS)))
        state, path = fleets.packed(scheduler), scheduler.path
    with Scheduler.open(path) as reopened:
        assert reopened.clients == [*plain, *ODD_IDS]
        assert fleets.client_rows(reopened, ODD_IDS).tolist() == list(range(9, 9 + len(ODD_IDS)))
        assert fleets.packed(reopened) == state
    with FleetReader(path) as reader:
        assert reader.clients == [*plain, *ODD_IDS]
        joined = [client for event in reader.events() for client in event.clients]
        assert joined == [*plain, *ODD_IDS]
        assert reader.last_event == -(-9 // at_once) + -(-len(ODD_IDS) // at_once)
    assert fleets.problems(path) == []


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


def test_a_large_fleet_is_opened_as_it_was_closed(open_fleet: fleets.OpenFleet) -> None:
    clients, rng = 20_000, np.random.default_rng(0)
    status = FleetStatus({"free_cpu": rng.uniform(0.5, 2, clients), "bandwidth": rng.uniform(1, 5, clients)})
    with open_fleet(settings={"cohort_size": 50, "guaranteed_rate": 0.001}) as scheduler:
        scheduler.register(fleets.named(clients))
        for _ in range(12):
            chosen = scheduler.choose(status)
            scheduler.report_many({client: float(rng.uniform(1, 9)) for client in chosen[:-1]})
            scheduler.close_round()
        fleets.take_snapshot(scheduler)
        assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)
        ((stored,),) = execute(scheduler.path, "SELECT LENGTH(data) FROM snapshot")
        assert stored < len(fleets.packed(scheduler)) / 8


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
    open_fleet: fleets.OpenFleet, sizes: list[bool], options: dict[str, Any]
) -> None:
    settings = {"guaranteed_rate": "1/400"} | ({} if "concurrency" in options else {"cohort_size": 2})
    scheduler, rng = open_fleet(settings=settings, **options), np.random.default_rng(2)
    scheduler.register(clients := fleets.named(200))
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
            fleets.play_round(scheduler, there, 2.0 + step)
        if step == 20:
            scheduler.amend(tolerance=3.0)
        if step == 30:
            scheduler.register(["late"])
        if step == 40:
            scheduler.retire(clients.pop())
        if step == 45:
            scheduler.close()
            scheduler = open_fleet()
        fleets.take_snapshot(scheduler)
        assert fleets.packed_from_disk(scheduler.path) == fleets.packed(scheduler)
    assert 20 < sizes.count(False) < 58
    assert any(sizes)
    complete = "SELECT COUNT(*) FROM snapshot"
    assert execute(scheduler.path, complete)[0][0] <= (6 if "keep_rounds" in options else 2)
    scheduler.compact()
    assert fleets.packed_from_disk(scheduler.path) == fleets.packed(scheduler)
    assert fleets.problems(scheduler.path) == []


def test_a_forgotten_client_is_in_no_snapshot(open_fleet: fleets.OpenFleet, sizes: list[bool]) -> None:
    """Neither the complete snapshot nor the differences to it stay."""
    scheduler = open_fleet(settings={"cohort_size": 2})
    scheduler.register(fleets.named(300))
    for number in range(3):
        fleets.play_round(scheduler, ["c0", "c1"], {"c0": 987.5 + number, "c1": 5.0})
        fleets.take_snapshot(scheduler)
        base = known(fleets.state_of(scheduler).snapshot)
        base.size = 10**9
    assert sizes == [False, False]
    learned = fleets.state_of(scheduler).fleet.history.typical_seconds[:1].tobytes()
    snapshots = "SELECT data FROM snapshot ORDER BY seq"
    assert [learned in data for (data,) in execute(scheduler.path, snapshots)] == [False, True]
    scheduler.forget("c0")
    assert [learned in data for (data,) in execute(scheduler.path, snapshots)] == [False]
    fleets.take_snapshot(scheduler)
    assert fleets.packed_from_disk(scheduler.path) == fleets.packed(scheduler)


def test_an_interrupted_snapshot_is_no_base(
    open_fleet: fleets.OpenFleet, sizes: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state takes the memory of that of the snapshot before it, which then stays in the file."""

    def interrupt(*states: Any) -> None:
        copied(*states)
        raise KeyboardInterrupt

    scheduler = open_fleet(settings={"cohort_size": 2})
    scheduler.register(fleets.named(300))
    fleets.take_snapshot(scheduler)
    fleets.play_round(scheduler, fleets.named(2))
    base = known(fleets.state_of(scheduler).snapshot)
    base.size = 0  # so that a complete one follows
    with monkeypatch.context() as patch:
        patch.setattr(changes, "copied", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fleets.take_snapshot(scheduler)
    base.size = 10**9
    fleets.take_snapshot(scheduler)
    assert fleets.packed_from_disk(scheduler.path) == fleets.packed(scheduler)
    assert sizes == [True, True]


# Judging


def judged(scheduler: Scheduler, before: list[int]) -> list[int]:
    """Returns since when each client is beyond the tolerance, by a certificate after each round."""
    broken = fleets.state_of(scheduler).fleet.policy.certificate().broken  # type: ignore[union-attr]
    since = before + [0] * (len(broken) - len(before))
    return [(old or scheduler.round) if now else 0 for old, now in zip(since, broken.tolist(), strict=True)]


@pytest.mark.parametrize("policy", ["fair-pace", "rbcsf"])
def test_skipped_tests_miss_no_broken_promise_and_no_absent_client(
    open_fleet: fleets.OpenFleet, monkeypatch: pytest.MonkeyPatch, policy: str
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
        scheduler.register(fleets.named(12))
        for number in range(1, 121):
            available = [client for client in scheduler.clients if rng.random() < 0.6] or scheduler.clients[:1]
            chosen = scheduler.choose(available)
            scheduler.report_many({client: 1.0 for client in chosen if rng.random() < 0.7})
            scheduler.close_round()
            since = judged(scheduler, since)
            counters = fleets.state_of(scheduler).fleet.counters
            absent = (counters.retired > 0) | (counters.backoff_until > number)
            assert fleets.state_of(scheduler).fleet.unavailable.tolist() == absent.tolist()
            backed_off += int((counters.backoff_until > number).sum())
            assert fleets.state_of(scheduler).fleet.counters.broken_since.tolist() == since
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
                since = fleets.state_of(scheduler).fleet.counters.broken_since.tolist()
    assert sum(tested) < 120 - 20
    assert backed_off > 0
    assert broken > 20


# Reports


def test_a_batch_of_reports_equals_single_reports(open_fleet: fleets.OpenFleet) -> None:
    settings = {"cohort_size": 4}
    with open_fleet("many", settings=settings) as many, open_fleet("single", settings=settings) as single:
        for scheduler in (many, single):
            first = scheduler.choose(fleets.named(6))
            scheduler.report_many({first[0]: 1.0})
            scheduler.close_round()
            scheduler.choose(fleets.named(6))
        late = first[1:3]
        cohort = [turn.id for turn in many.history(round=2)]
        mixed = {client: 2.0 + index for index, client in enumerate(cohort)}
        mixed |= {client: 30.0 for client in late if client not in cohort}
        assert many.report_many(mixed) == sum(single.report(client, seconds) for client, seconds in mixed.items())
        assert many.report_many(mixed) == 0
        assert many.report_many({cohort[0]: 2.0}, round=2) == 0
        for scheduler in (many, single):
            scheduler.close_round()
        assert fleets.packed(many) == fleets.packed(single)
        assert [turn.late_seconds for turn in many.history(round=1)] == [
            turn.late_seconds for turn in single.history(round=1)
        ]


# Forgetting


def test_a_client_is_forgotten_step_by_step(open_fleet: fleets.OpenFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little a step may do, the result is the same, and the caller can do other work between the steps."""
    few_at_once(monkeypatch, 2)
    files = {}
    for most in (1, stored_turns.MAX_EVENT_BYTES):
        monkeypatch.setattr(stored_turns, "MAX_EVENT_BYTES", most)
        with open_fleet(f"{most}.turnout", settings={"cohort_size": 3}) as scheduler:
            scheduler.register(["secret-phone", *fleets.named(6)])
            for _ in range(5):
                fleets.play_round(scheduler, ["secret-phone", *fleets.named(3)])
            steps = 0
            for _ in forget_in_steps(scheduler, "secret-phone"):
                steps += 1
                assert "secret-phone" not in scheduler.clients
                assert scheduler.status().clients == 7
            assert steps > 9 if most == 1 else steps < 8
            events = execute(scheduler.path, "SELECT kind FROM events ORDER BY seq")
            files[most] = (fleets.packed(scheduler), events)
            path = scheduler.path
        assert b"secret-phone" not in path.read_bytes()
        assert fleets.problems(path) == []
    small, large = files.values()
    assert small == large


CLIENTS, COHORT = 14, 4
POLICIES = {
    "fair-pace": {"cohort_size": COHORT},
    "rbcsf": {"cohort_size": COHORT, "guaranteed_rate": 0.1},
    "oort": {"cohort_size": COHORT},
}


def play(scheduler: Scheduler, world: fleets.World, rounds: range) -> list[list[str]]:
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


def promises_of(scheduler: Scheduler | FleetReader) -> dict[str, Any]:
    """Returns what every client was promised and got."""
    return known(scheduler.certificate()).to_dict(scheduler.clients)


def numbers_in(path: Path, world: fleets.World, rounds: range) -> int:
    """Returns how many numbers of statuses and contexts are in the file or its log, apart from what was learned.

    The learned times of a client are computed from sums of its contexts, which after its first turn are its context.
    """
    raw = stored_bytes(path)
    tables = ("events", "offers", "open_round", "turns", "masks", "summary", "totals", "meta")
    stored = b"\0".join(
        value if isinstance(value, bytes) else str(value).encode()
        for table in tables
        for row in fleets.rows_of(path, f"SELECT * FROM {table}")
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
def test_selections_are_the_same_and_no_status_is_in_the_file(open_fleet: fleets.OpenFleet, policy: str) -> None:
    world, options = fleets.World(CLIENTS), {"policy": policy, "settings": POLICIES[policy], "deadline": 60.0}
    private = open_fleet("private.turnout", **options, persist_statuses=False)
    usual = open_fleet("usual.turnout", **options)
    for first in (1, 6, 11):
        rounds = range(first, first + 5)
        assert play(private, world, rounds) == play(usual, world, rounds)
        seen = range(1, first + 5)
        assert numbers_in(private.path, world, seen) == 0 < numbers_in(usual.path, world, seen)
        assert fleets.learned(private) == fleets.learned(usual)
        private.close()
        private = open_fleet("private.turnout")
        assert private.round == first + 4
    private.choose(world.statuses(16))  # nor is there one while a round is open
    assert numbers_in(private.path, world, range(1, 17)) == 0
    private.report(private.history()[0].id, 5.0)
    private.close_round()
    assert fleets.problems(private.path) == []


@pytest.mark.parametrize("persisted", [False, True])
def test_no_status_of_a_client_that_trains_is_in_the_file_of_a_fleet_without_rounds(
    open_fleet: fleets.OpenFleet, persisted: bool
) -> None:
    world, settings = fleets.World(CLIENTS), {"guaranteed_rate": "1/20"}
    scheduler = open_fleet(settings=settings, concurrency=3, persist_statuses=persisted)
    for number in range(1, 7):
        scheduler.fill(world.statuses(number))
        assert len(scheduler.running()) == 3
        assert (numbers_in(scheduler.path, world, range(1, number + 1)) > 0) == persisted
        with FleetReader(scheduler.path) as reader:
            assert all(np.isnan(running_turn.context).all() != persisted for running_turn, _ in reader.running())
        fleets.take_snapshot(scheduler)
        assert has_contexts(scheduler.path, "running_turns") == persisted
        for turn in scheduler.running()[: number % 3]:
            scheduler.report(turn.id, 4.0)


def test_a_large_fleet_stores_what_it_learned_now_and_then_and_when_it_is_closed(
    open_fleet: fleets.OpenFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnout.live.operation.upkeep.SMALL_FLEET", 2)
    world, settings = fleets.World(CLIENTS), {"guaranteed_rate": "1/20"}
    scheduler = open_fleet(settings=settings, concurrency=3, persist_statuses=False)
    written = Mock(wraps=write_snapshot)
    monkeypatch.setattr("turnout.live.serving.slots.write_snapshot", written)
    for number in range(1, 12):
        for turn in scheduler.fill(world.statuses(number)):
            scheduler.report(turn.id, 4.0 + number)
        with FleetReader(scheduler.path) as killed:  # the state that another process would find after a kill
            assert promises_of(killed) == promises_of(scheduler)
            is_stored = fleets.learned(killed) == fleets.learned(scheduler)
    assert written.call_count == 1
    assert not is_stored
    before = fleets.learned(scheduler)
    scheduler.close()
    with Scheduler.open(scheduler.path) as again:
        assert fleets.learned(again) == before
    assert fleets.problems(scheduler.path) == []


def test_a_full_disk_does_not_keep_a_large_fleet_from_closing(
    open_fleet: fleets.OpenFleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("turnout.live.operation.upkeep.SMALL_FLEET", 2)
    scheduler = open_fleet(settings={"guaranteed_rate": "1/20"}, concurrency=3, persist_statuses=False)
    scheduler.fill(fleets.World(CLIENTS).statuses(1))
    monkeypatch.setattr(Changes, "put_snapshot", Mock(side_effect=StoreError("the disk is full")))
    scheduler.close()
    assert "what was learned from the last turns is not stored: the disk is full" in caplog.text
    with Scheduler.open(scheduler.path) as again:
        assert len(again.running()) == 3


@pytest.mark.parametrize("persisted", [False, True])
def test_no_context_of_a_late_client_is_in_a_stored_state(
    open_fleet: fleets.OpenFleet, monkeypatch: pytest.MonkeyPatch, persisted: bool
) -> None:
    monkeypatch.setattr("turnout.live.retention.MIN_ROUNDS", 2)
    monkeypatch.setattr("turnout.live.retention.LATE_ROUNDS", 3)
    scheduler = open_fleet(settings=POLICIES["fair-pace"], deadline=60.0, keep_rounds=3, persist_statuses=persisted)
    world = fleets.World(CLIENTS)
    for number in range(1, 10):
        cohort = scheduler.choose(world.statuses(number))
        scheduler.report_many(dict.fromkeys(cohort[1:], 9.0))
        scheduler.close_round()  # the first is late
    fleets.take_snapshot(scheduler)
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


def test_after_a_crash_the_open_round_counts_but_teaches_nothing(open_fleet: fleets.OpenFleet) -> None:
    world = fleets.World(CLIENTS)
    scheduler = open_fleet(settings=POLICIES["fair-pace"], deadline=60.0, persist_statuses=False)
    play(scheduler, world, range(1, 8))
    cohort = scheduler.choose(world.statuses(8))
    turns = scheduler.certificate().turns
    scheduler.close()  # as after a crash: only the file is left
    with Scheduler.open(scheduler.path) as restarted:
        assert restarted.choose(world.statuses(8)) == cohort
        assert fleets.predicted_seconds(restarted) == {}
        learned = fleets.learned(restarted)
        assert len(learned) >= 2
        restarted.report_many(dict.fromkeys(cohort, 7.5))
        restarted.close_round()
        rows = fleets.client_rows(restarted, cohort)
        assert (restarted.certificate().turns[rows] == turns[rows] + 1).all()
        assert fleets.learned(restarted) == learned
        assert fleets.packed(restarted) == fleets.packed_from_disk(restarted.path)
        play(restarted, world, range(9, 12))
        assert fleets.learned(restarted) != learned
        with FleetReader(restarted.path) as reader:
            follower = reader.follow()
            for event in follower.poll():
                follower.apply(event)
        counted, certificate = known(follower.fleet.certificate()), restarted.certificate()
        assert counted.turns.tolist() == certificate.turns.tolist()
        assert counted.owed_units.tolist() == certificate.owed_units.tolist()


@pytest.mark.files
def test_explain_replay_and_certify_say_what_they_lack(open_fleet: fleets.OpenFleet, folder: Path) -> None:
    scheduler = open_fleet(settings=POLICIES["fair-pace"], deadline=60.0, persist_statuses=False)
    cohorts = play(scheduler, fleets.World(CLIENTS), range(1, 8))
    explanation = scheduler.explain(cohorts[-1][0], 7)
    assert not explanation.exact
    assert "not persisted (persist_statuses=False)" in str(explanation)
    with pytest.raises(SettingError, match=r"persist_statuses=False.*cannot be replayed"):
        read_recording(scheduler.path)
    content = certify(scheduler.path, folder / "c.json", folder / "c.jsonl")
    assert sum(client["turns"] for client in content["clients"].values()) == int(scheduler.certificate().turns.sum())
    assert [event["contexts"] for event in fleets.exported(scheduler) if event["kind"] == "round"] == [None] * 7
    state = next(finding for finding in examine(scheduler.path) if finding.part == "state")
    assert "the statuses of clients are not persisted" in state.message


def test_the_setting_can_be_amended(open_fleet: fleets.OpenFleet) -> None:
    world = fleets.World(CLIENTS)
    scheduler = open_fleet(settings=POLICIES["fair-pace"], deadline=60.0)
    play(scheduler, world, range(1, 4))
    assert scheduler.amend(persist_statuses=False) == ["persist_statuses"]
    play(scheduler, world, range(4, 8))
    assert numbers_in(scheduler.path, world, range(4, 8)) == 0
    with FleetReader(scheduler.path) as reopened:
        assert fleets.learned(reopened) == fleets.learned(scheduler)
    scheduler.amend(persist_statuses=True)
    play(scheduler, world, range(8, 10))
    assert numbers_in(scheduler.path, world, range(8, 10)) > 0
    with FleetReader(scheduler.path) as reopened:
        assert fleets.learned(reopened) == fleets.learned(scheduler)


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
