"""The doctor names all damage and never crashes; it finds nothing in an intact file, even while it is in use."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from live.fleets import play_round, summary_round, take_snapshot
from live.forging import (
    alter,
    fetch_row,
    forge_event,
    forge_snapshot,
    forge_summary_state,
    forge_turn,
    swap_running_turns,
)
from live.serving import killed_after
from live.turns.slots.played import open_slots, play_turns
from postgres import copy_store, is_file, tables
from turnout.errors import StateError, StoreError
from turnout.lab import RunStore
from turnout.live import ClientStatus, Feature, Features, FleetReader, Reporter, Scheduler
from turnout.live.audit.doctor import Finding, examine
from turnout.live.turns.records import digest_of, pack_offer, unpack_offer
from turnout.live.turns.rounds.records import unpack_closed
from turnout.live.turns.slots.records import unpack_fill
from turnout.storage.store import Connection

#: A statement, or a function that changes the file.
Damage = str | Callable[[Connection], object]
SETTINGS = {"cohort_size": 3, "guaranteed_rate": 0.1}


def play_rounds(scheduler: Scheduler, rounds: int, seed: int = 0) -> None:
    """Plays rounds in which clients fail, are late, report their late times, or report losses."""
    rng = random.Random(seed)
    for _ in range(rounds):
        available = [f"phone-{n:02}" for n in range(10) if rng.random() < 0.8] or ["phone-00"]
        for client in scheduler.choose({id_: ClientStatus(rng.uniform(0.5, 2), 3.0) for id_ in available}):
            draw = rng.random()
            if draw < 0.1:
                scheduler.report_failure(client, "battery empty")
            elif draw > 0.25:
                scheduler.report(client, rng.uniform(5, 29), loss=draw if draw > 0.5 else None)
        scheduler.close_round()
        turns = [turn for client in scheduler.clients for turn in scheduler.history(client)]
        for turn in [turn for turn in turns if turn.kind == "late" and turn.late_seconds is None][:1]:
            if scheduler.round - turn.round < 10 and rng.random() < 0.5:
                scheduler.report(turn.id, 31 + rng.random(), loss=0.5, round=turn.round)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet with 24 closed rounds, a snapshot and an open round."""
    path = tmp_path_factory.mktemp("fleet") / "fleet.turnout"
    with Scheduler.open(path, settings=SETTINGS, deadline=30.0) as scheduler:
        play_rounds(scheduler, 18)
        take_snapshot(scheduler)
        play_rounds(scheduler, 6, seed=1)
        chosen = scheduler.choose({f"phone-{n:02}": ClientStatus(1.0, 3.0) for n in range(10)})
        scheduler.report(chosen[0], 7.0)
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    return copy_store(original, tmp_path / "fleet.turnout")


def findings_by_part(path: Path) -> dict[str, Finding]:
    return {finding.part: finding for finding in examine(path)}


def problems(path: Path) -> dict[str, Finding]:
    return {finding.part: finding for finding in examine(path) if finding.ok is False}


def assert_advises(remedy: str, path: Path, statement: str) -> None:
    """Checks that a remedy is a statement, with the command that executes it in a file."""
    assert (f"sqlite3 {path} '{statement}'" if is_file(path) else f"; {statement}` in the database") in remedy


def forge_offer(db: Connection, round_: int = 5, under: int | None = None, **changes: Any) -> None:
    """Changes an offer and its digest; `under` is the round under which it is stored, by default its own."""
    data, available = fetch_row(db, "SELECT data, available FROM offers WHERE round = ?", round_)
    offer = unpack_offer(data, available)
    data, available = pack_offer(replace(offer, **changes))
    put_offer(db, round_ if under is None else under, available, data)


def put_offer(db: Connection, round_: int, available: bytes, data: bytes) -> None:
    digest = digest_of(available, str(round_), data)
    db.execute("DELETE FROM offers WHERE round = ?", (round_,))
    db.execute(
        "INSERT INTO offers (round, available, data, digest, at) VALUES (?, ?, ?, ?, '')",
        (round_, available, data, digest),
    )


def count_a_turn_more(state: dict[str, Any]) -> None:
    """Changes a state: its first client has had a turn more."""
    state["policy.turns"][0] += 1


def learn_a_late_time_twice(db: Connection) -> None:
    """Changes the newest close event: it learns the times that the one before it learned."""
    events = db.execute("SELECT seq, data FROM events WHERE kind = 'close' ORDER BY seq DESC").fetchall()
    late = next(closed for _, data in events[1:] if (closed := unpack_closed(data, None)[0]).late.turns)

    def repeat(_: dict[str, Any], arrays: dict[str, Any]) -> None:
        arrays.update(late.late.to_arrays())

    forge_event(db, events[0][0], repeat)


def hide_a_turn_from_the_index(db: Any) -> None:
    """Changes the newest turn in the index of turns by id, but not in the table."""
    newest = "WHERE round = 25 AND row = (SELECT MIN(row) FROM turns WHERE round = 25)"
    (client,) = fetch_row(db, f"SELECT id FROM turns {newest}")
    index = fetch_row(db, "SELECT * FROM sqlite_master WHERE name = 'turns_by_id'")
    db.execute(f"UPDATE turns SET id = 'another' {newest}")
    db.execute("PRAGMA writable_schema = ON")
    db.execute("DELETE FROM sqlite_master WHERE name = 'turns_by_id'")
    db.commit()
    db.execute("PRAGMA writable_schema = RESET")  # which reads the schema again
    db.execute(f"UPDATE turns SET id = ? {newest}", (client,))
    db.execute("PRAGMA writable_schema = ON")
    db.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", index)


OFFER_DAMAGE: list[tuple[Damage, str]] = [
    ("UPDATE offers SET data = x'00' WHERE round = 5", "the offer of round 5 does not match its digest"),
    ("UPDATE offers SET available = 'x' WHERE round = 5", "the offer of round 5 does not match its digest"),
    ("UPDATE offers SET digest = x'00' WHERE round = 25", "the offer of round 25 does not match its digest"),
    ("UPDATE offers SET round = 99 WHERE round = 5", "the offer of round 99 does not match its digest"),
    (lambda db: put_offer(db, 5, b"", b"\0"), "the offer of round 5 cannot be unpacked"),
    (lambda db: forge_offer(db, round=6), "the offer of round 5 does not agree with the turns of that round"),
    (lambda db: forge_offer(db, under=99, round=99), "the offer of round 99 does not agree"),
    (lambda db: forge_offer(db, under=0, round=0), "the offer of round 0 does not agree"),
    (lambda db: forge_offer(db, rows=np.array([0, 1])), "the offer of round 5 does not agree"),
    (lambda db: forge_offer(db, 25, rows=np.array([0, 0, 0])), "the offer of round 25 does not agree"),
    (
        lambda db: forge_offer(db, available=np.zeros(10, np.bool_), contexts=None),
        "the offer of round 5 does not agree",
    ),
    (lambda db: forge_offer(db, contexts=np.ones((2, 3))), "the offer of round 5 does not agree"),
    ("ALTER TABLE offers RENAME COLUMN data TO other", "cannot be read ("),
]


def test_an_undamaged_file_is_intact_and_not_changed(path: Path) -> None:
    before = path.read_bytes()
    findings = findings_by_part(path)
    assert problems(path) == {}
    assert "give the same state as all events" in findings["state"].message
    assert "late times agree with the events" in findings["turns"].message
    assert "offers are recorded for 25 rounds" in findings["offers"].message
    assert re.search("no process holds the (file|fleet) now", findings["writer"].message)
    assert path.read_bytes() == before


def test_a_file_in_use_is_intact_and_its_writer_is_named(path: Path) -> None:
    with Scheduler.open(path) as scheduler, Reporter(path) as reporter:
        out = scheduler.status().out
        reporter.report(out[0], 9.0)
        assert problems(path) == {}
        scheduler.close_round()
        play_rounds(scheduler, 3)
        writer = findings_by_part(path)["writer"].message
        assert f"process {os.getpid()}" in writer
        assert re.search("holds the (file|fleet) now", writer)
        assert problems(path) == {}


@pytest.mark.files
def test_a_killed_writer_is_named_and_the_file_is_intact(path: Path) -> None:
    killed_after(lambda: continue_rounds(path))
    assert problems(path) == {}
    assert "was killed or crashed" in findings_by_part(path)["writer"].message


def continue_rounds(path: Path) -> None:
    scheduler = Scheduler.open(path)
    scheduler.close_round()
    play_rounds(scheduler, 2)


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only /proc shows who holds a lock")
@pytest.mark.files
def test_an_ended_writer_is_not_taken_for_a_holder_if_its_number_is_in_use_again(path: Path) -> None:
    child, _ = killed_after(lambda: continue_rounds(path))
    lock = path.with_name(f"{path.name}.lock")
    lock.write_bytes(lock.read_bytes().replace(f"process {child} ".encode(), f"process {os.getpid()} ".encode()))
    assert "was killed or crashed" in findings_by_part(path)["writer"].message


@pytest.mark.parametrize(
    ("damage", "parts", "message"),
    [
        ("UPDATE events SET data = x'00' WHERE seq = 7", {"events"}, "event 7 (close)"),
        ("DELETE FROM events WHERE seq = 7", {"events", "turns"}, "event 7 is missing"),
        (
            "DELETE FROM events WHERE seq = (SELECT MAX(seq) FROM events)",
            {"events", "turns"},
            "the newest events are missing",
        ),
        ("UPDATE masks SET data = x'00' WHERE seq = 9", {"turns"}, "the availability in round 7 does not match its"),
        ("DELETE FROM masks WHERE seq = 9", {"turns"}, "the availability of clients at event 9 is missing"),
        ("UPDATE clients SET id = 'x' WHERE row = 3", {"state", "turns"}, "is in row 3, which has the id 'x'"),
        ("UPDATE clients SET id = 'phone-00' WHERE row = 3", {"state"}, "the table of clients does not match"),
        ("DELETE FROM clients WHERE row = 9", {"state"}, "the table of clients does not match"),
        ("UPDATE turns SET seconds = 1 WHERE round = 5", {"turns"}, "in round 5 does not match its checksum"),
        ("DELETE FROM turns WHERE round = 5", {"turns"}, "in round 5 is missing"),
        ("DELETE FROM turns WHERE round = 25", {"state"}, "the turns of the open round 25 are not those of its cohort"),
        (
            lambda db: forge_turn(db, "kind = 'arrived' AND round < 24", "seconds = 1.5"),
            {"turns"},
            "but is recorded as arrived after 1.5 s",
        ),
        (
            lambda db: forge_turn(db, "kind = 'arrived' AND round < 24 AND loss IS NOT NULL", "loss = NULL"),
            {"turns"},
            "but is recorded with loss None",
        ),
        ("UPDATE turns SET loss = 9 WHERE round = 5 AND kind = 'arrived'", {"turns"}, "in round 5"),
        (
            lambda db: forge_turn(db, "kind = 'failed'", "kind = 'arrived', seconds = 3.0"),
            {"turns", "books"},
            "ended as failed",
        ),
        (
            lambda db: forge_turn(db, "folded IS NOT NULL", "late_seconds = 77.0"),
            {"turns"},
            "has another late time than",
        ),
        (lambda db: forge_turn(db, "folded IS NOT NULL", "folded = NULL"), {"turns"}, "has another late time than"),
        (
            "INSERT INTO turns (round, row, id, seal) VALUES (99, 0, 'phone-00', 0)",
            {"turns"},
            "the turn of 'phone-00' in round 99 was given by no event",
        ),
        ("UPDATE snapshot SET data = x'00'", {"state"}, "the snapshot does not match its digest"),
        (lambda db: forge_snapshot(db, count_a_turn_more), {"state", "books"}, "gives another policy.turns"),
        ("UPDATE open_round SET data = x'00'", {"state"}, "the open round 25 does not match its digest"),
        ("UPDATE meta SET value = '{}' WHERE key = 'settings'", {"state"}, "the settings do not match their digest"),
        ("UPDATE meta SET value = 'x' WHERE key = 'seal'", {"state"}, "do not match their digest"),
        ("UPDATE meta SET value = '7' WHERE key = 'round'", {"state"}, "there are turns after round 24, the last one"),
        ("DROP TABLE turns", {"turns"}, "cannot be read ("),
        (learn_a_late_time_twice, {"turns"}, "was learned twice"),
        pytest.param(hide_a_turn_from_the_index, {"pages"}, "missing from index turns_by_id", marks=pytest.mark.files),
    ],
)
def test_damage_is_named(path: Path, damage: Damage, parts: set[str], message: str) -> None:
    alter(path, damage)
    findings = problems(path)
    assert parts <= findings.keys()
    assert any(message in finding.message for finding in findings.values()), findings
    assert all(finding.remedy for finding in findings.values())


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE meta SET value = '{' WHERE key = 'settings'",
        "UPDATE meta SET value = '[]' WHERE key = 'settings'",
        "DELETE FROM meta WHERE key = 'settings'",
        "DROP TABLE meta",
    ],
)
def test_a_file_whose_settings_cannot_be_read_is_checked_as_one_with_rounds(path: Path, damage: str) -> None:
    alter(path, damage)
    findings = findings_by_part(path)
    assert findings["state"].ok is False
    assert findings["state"].message.startswith("a scheduler cannot open this fleet")
    assert findings["summary"].message == "all rounds are kept"


@pytest.mark.files
def test_an_incomplete_index_of_turns_is_refused_also_by_readers(path: Path) -> None:
    alter(path, hide_a_turn_from_the_index)
    with FleetReader(path) as reader, pytest.raises(StoreError, match="the index of turns by id is incomplete"):
        reader.status()


def test_a_late_time_that_was_learned_twice_is_refused(path: Path) -> None:
    alter(path, learn_a_late_time_twice)
    with pytest.raises(StateError, match=r"the late time of client \d in turn \d+ was learned before"):
        Scheduler.open(path)
    (message,) = [finding.message for finding in examine(path) if finding.part == "state"]
    assert message.startswith("a scheduler cannot open this fleet: the late time of client")


def test_a_state_that_raises_an_unexpected_error_is_reported(path: Path) -> None:
    alter(path, lambda db: forge_snapshot(db, lambda state: state.pop("ids")))
    findings = problems(path)
    assert findings.keys() == {"state"}
    assert "the snapshot is malformed: StateError: the saved state has no 'ids'" in findings["state"].message
    assert_advises(findings["state"].remedy, path, "DELETE FROM snapshot")


@pytest.mark.parametrize(("rows", "clients"), [([0], "1 client"), ([0, 4, 9], "3 clients")])
def test_books_that_do_not_balance_are_found(tmp_path: Path, rows: list[int], clients: str) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, settings=SETTINGS, deadline=30.0) as scheduler:
        play_rounds(scheduler, 5)
        take_snapshot(scheduler)

    def owe_less(state: dict[str, Any]) -> None:
        state["policy.queues.balance"][rows] -= 1000

    alter(path, lambda db: forge_snapshot(db, owe_less))
    findings = problems(path)
    assert findings.keys() == {"state", "books"}
    assert findings["books"].message == f"the books of {clients} do not balance"
    assert "gives another policy.queues.balance than all events do" in findings["state"].message


def test_availability_that_a_large_fleet_dropped_with_a_snapshot_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fleet.turnout"
    for module in ("journal.changes", "audit.tables"):
        monkeypatch.setattr(f"turnout.live.{module}.KEEP_AVAILABILITY_UP_TO", 9)
    with Scheduler.open(path, settings=SETTINGS, deadline=30.0) as scheduler:
        play_rounds(scheduler, 5)
        take_snapshot(scheduler)
        play_rounds(scheduler, 2)
    assert problems(path) == {}
    assert "at some events was dropped" in findings_by_part(path)["state"].message
    monkeypatch.setattr("turnout.live.audit.tables.KEEP_AVAILABILITY_UP_TO", 10)
    assert problems(path)["turns"].message.count("is missing") == 5


@pytest.mark.parametrize(("damage", "message"), OFFER_DAMAGE)
def test_damage_of_an_offer_is_named_and_no_other_part_is_damaged(path: Path, damage: Damage, message: str) -> None:
    alter(path, damage)
    findings = problems(path)
    assert findings.keys() == {"offers"}
    assert message in findings["offers"].message


def test_one_damaged_offer_does_not_hide_another(path: Path) -> None:
    with tables(path) as db:
        put_offer(db, 3, b"", b"\0")
        db.execute("UPDATE offers SET data = x'00' WHERE round = 5")
        forge_offer(db, 7, rows=np.array([0, 1]))
    message = problems(path)["offers"].message
    assert all(f"offer of round {round_} " in message for round_ in (3, 5, 7))


def test_a_damaged_offer_can_be_deleted_if_everything_else_is_intact(path: Path) -> None:
    alter(path, "UPDATE offers SET data = x'00' WHERE round = 5")
    remedy = problems(path)["offers"].remedy
    assert_advises(remedy, path, "DELETE FROM offers WHERE round = N")
    alter(path, "DELETE FROM offers WHERE round = 5")
    assert problems(path) == {}
    with Scheduler.open(path) as scheduler:
        scheduler.close_round()
        assert not scheduler.explain("phone-00", 5).exact
        assert scheduler.explain("phone-00", 6).exact
    alter(path, "UPDATE offers SET data = x'00' WHERE round = 7")
    alter(path, "DELETE FROM masks WHERE seq = 9")
    assert problems(path)["offers"].remedy == "restore the file from a backup"


def test_offers_without_contexts_are_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.live.turns.offering.MAX_RECORDED_CLIENTS", 9)
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, settings=SETTINGS, deadline=30.0) as scheduler:
        play_rounds(scheduler, 5)
        scheduler.choose({"phone-00": ClientStatus(1.0, 3.0)})
        scheduler.abandon_round()
    assert problems(path) == {}


def test_a_wrong_snapshot_can_be_deleted_if_everything_else_is_intact(path: Path) -> None:
    alter(path, lambda db: forge_snapshot(db, count_a_turn_more))
    remedy = problems(path)["state"].remedy
    assert_advises(remedy, path, "DELETE FROM snapshot")
    alter(path, "DELETE FROM snapshot")
    assert problems(path) == {}


@pytest.mark.files
def test_of_a_newer_format_only_the_pages_are_checked(path: Path) -> None:
    alter(path, "PRAGMA user_version = 7")
    findings = examine(path)
    assert [(finding.part, finding.ok) for finding in findings] == [("format", False), ("pages", True)]
    assert "the file has fleet format 7" in findings[0].message


@pytest.mark.files
def test_a_truncated_file_is_reported(path: Path) -> None:
    whole = path.read_bytes()
    for share in (0.05, 0.5, 0.99):
        path.write_bytes(whole[: int(len(whole) * share)])
        assert problems(path)


@pytest.mark.parametrize("times", [8, pytest.param(40, marks=pytest.mark.thorough)])
@pytest.mark.files
def test_flipped_bytes_never_crash_the_doctor(path: Path, times: int) -> None:
    whole, rng, result = path.read_bytes(), random.Random(5), 0
    for _ in range(times):
        damaged = bytearray(whole)
        for _ in range(8):
            damaged[rng.randrange(100, len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        result += bool(problems(path))
    assert result > times // 2  # bytes in unused parts of a page do no damage


@pytest.mark.files
def test_a_schema_that_cannot_be_parsed_is_reported(path: Path) -> None:
    whole = path.read_bytes()
    assert b"CREATE TABLE turns" in whole
    path.write_bytes(whole.replace(b"CREATE TABLE turns", b"CREATE TABLE 'urns"))
    findings = problems(path)
    assert findings.keys() == {"pages"}
    assert "malformed database schema" in findings["pages"].message
    assert f"sqlite3 {path} .recover" in findings["pages"].remedy


@pytest.mark.files
def test_a_damaged_log_is_reported(path: Path) -> None:
    scheduler = Scheduler.open(path)
    scheduler.close_round()
    play_rounds(scheduler, 5)
    log = path.with_name(f"{path.name}-wal")
    kept, copied = path.read_bytes(), bytearray(log.read_bytes())
    scheduler.close()
    path.write_bytes(kept)
    copied[5000] ^= 1
    log.write_bytes(copied)
    assert "commits that were acknowledged: its log" in problems(path)["log"].message


def test_a_fleet_with_forgotten_and_retired_clients_and_its_own_features_is_intact(tmp_path: Path) -> None:
    path = tmp_path / "own.turnout"
    features = Features.of(
        Feature("load", 0.1, 10), compute=lambda known: (known["load"], 1 / known["load"]), outputs=2
    )
    with Scheduler.open(path, features=features, settings=SETTINGS, deadline="auto", overcommit=1.5) as scheduler:
        for round_ in range(8):
            chosen = scheduler.choose({f"node-{n}": {"load": 1.0 + n} for n in range(9)})
            scheduler.report_many({client: 3.0 + index for index, client in enumerate(chosen) if client != "node-1"})
            scheduler.close_round()
            if round_ == 4:
                scheduler.retire("node-2")
                scheduler.forget("node-1")
    assert problems(path) == {}
    assert "clients were forgotten" in findings_by_part(path)["state"].message
    alter(path, "UPDATE snapshot SET data = x'00'")
    assert problems(path)["state"].remedy == "restore the file from a backup"


@pytest.mark.parametrize("forgets", [True, False])
def test_a_late_time_that_was_learned_needs_no_record_once_its_client_is_forgotten(
    tmp_path: Path, forgets: bool
) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 2}, deadline=30.0, allow_infeasible=True) as scheduler:
        for _ in range(2):
            play_round(scheduler, {client: ClientStatus(1.0, 3.0) for client in ("a", "b")}, {"a": 5.0})
            if scheduler.round == 1:
                scheduler.report("b", 40.0, round=1)
        if forgets:
            scheduler.forget("b")
    assert problems(path) == {}
    assert "1 late time agree" in findings_by_part(path)["turns"].message
    alter(path, lambda db: forge_turn(db, "row = 1 AND folded = 2", "folded = NULL"))
    results = {part: finding.message for part, finding in problems(path).items()}
    problem = "the turn of 'b' in round 1 has another late time than the one that was learned"
    assert results.get("turns") == (None if forgets else problem)


def test_a_new_fleet_and_one_whose_policy_guarantees_nothing_are_intact(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, policy="random", settings={"cohort_size": 3}, deadline=30.0) as scheduler:
        assert problems(path) == {}
        play_rounds(scheduler, 5)
    assert problems(path) == {}
    assert findings_by_part(path)["books"].message == "this policy guarantees nothing"


@pytest.mark.files
def test_files_that_are_no_fleets_are_refused(tmp_path: Path) -> None:
    runs, text, empty = tmp_path / "runs.turnout", tmp_path / "text.txt", tmp_path / "empty"
    RunStore(runs).close()
    text.write_text(json.dumps({"not": "a fleet"}) * 100)
    empty.touch()
    for path, why in (
        (runs, "is a store of runs, not a fleet"),
        (text, "not a SQLite file"),
        (empty, "too few for a turnout fleet"),
        (tmp_path / "nowhere", "there is no fleet"),
        (tmp_path, "there is no fleet"),
    ):
        with pytest.raises(StoreError, match=why):
            examine(path)


def test_a_cut_off_client_is_paid_if_selection_is_paid(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    settings = {"cohort_size": 2, "guaranteed_rate": 0.1, "counts": "selected"}
    with Scheduler.open(path, settings=settings, overcommit=2.0, deadline=60.0) as scheduler:
        chosen = scheduler.choose({f"phone-{n}": ClientStatus(1.0, 2.0) for n in range(6)})
        scheduler.report_many(dict.fromkeys(chosen[:2], 5.0))
        scheduler.close_round()
        assert [turn.kind for turn in scheduler.history()].count("cut_off") == 2
        assert scheduler.certificate().turns.sum() == 4
    assert problems(path) == {}


def end_the_turn_of_another_client(db: Connection) -> None:
    """Changes the newest event that ended a turn: the turn was that of the client in the next row."""
    events = db.execute("SELECT seq, data FROM events WHERE kind = 'fill' ORDER BY seq DESC")
    number = next(seq for seq, data in events if len(unpack_fill(data, None).ended))
    forge_event(db, number, lambda _, arrays: arrays["ended_rows"].__setitem__(0, (arrays["ended_rows"][0] + 1) % 10))


#: What is done to the file, and the part and the message of a finding.
DAMAGES: list[tuple[str | Callable[[Connection], None], str, str]] = [
    (
        "UPDATE turns SET seconds = 99 WHERE round = 100",
        "turns",
        r"the turn of '\w+' in decision 100 does not match its checksum",
    ),
    (
        "UPDATE offers SET digest = x'00' WHERE round = (SELECT MAX(round) FROM offers)",
        "offers",
        r"the offer of decision \d+ does not match its digest",
    ),
    ("UPDATE turns SET round = 999 WHERE round = 100", "turns", r"the turn of row \d in decision 100 is missing"),
    ("UPDATE meta SET value = '100' WHERE key = 'round'", "state", r"there are turns after decision \d+, the last one"),
    ("UPDATE summary SET digest = x'00'", "summary", r"the summary of earlier turns does not match its digest"),
    ("DELETE FROM masks WHERE seq = (SELECT MAX(seq) FROM masks)", "turns", r"at event \d+ is missing"),
    (
        "UPDATE masks SET data = x'00' WHERE seq = (SELECT MAX(seq) FROM masks)",
        "turns",
        r"the presence of clients at decision \d+ does not match its digest",
    ),
    (
        "DELETE FROM events WHERE seq = (SELECT MAX(seq) - 1 FROM events)",
        "turns",
        r"^decision (\d+) follows decision (?!\1)\d+",
    ),
    (
        "UPDATE open_round SET digest = x'00' WHERE round = (SELECT MAX(round) FROM open_round)",
        "state",
        r"the turn \d+ that is running does not match its digest",
    ),
    # Their digests are right, as a bug in turnout might write them.
    (end_the_turn_of_another_client, "turns", r"^the turn of row \d in decision \d+ ended, but was not running"),
    (
        lambda db: forge_turn(db, "round = 100", "id = 'stranger'"),
        "turns",
        r"^the turn of 'stranger' in decision 100 is in row \d, which has the id 'c\d'$",
    ),
    (
        lambda db: forge_turn(db, "round >= 100 AND kind = 'arrived'", "loss = 9.5"),
        "turns",
        r"^the turn of 'c\d' in decision \d+ ended with loss 0\.0\d+, but is recorded with loss 9\.5$",
    ),
    (
        lambda db: forge_turn(db, "round >= 100 AND kind = 'arrived'", "loss = NULL"),
        "turns",
        r"^the turn of 'c\d' in decision \d+ ended with loss 0\.0\d+, but is recorded with loss None$",
    ),
    (swap_running_turns, "state", "the running turns are not those of the decisions"),
    (
        lambda db: forge_summary_state(db, lambda state: state.update(round=state["round"] - 1)),
        "summary",
        "^the state in the summary is not that of its last decision$",
    ),
]


@pytest.fixture(scope="module")
def slots_written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet whose first turns are no longer kept; the tests do not change it."""
    slots_path = tmp_path_factory.mktemp("written") / "fleet.turnout"
    with open_slots(slots_path, keep_rounds=40) as scheduler:
        play_turns(scheduler, 80)
        scheduler.compact()
        assert 0 < summary_round(scheduler) < 100 < scheduler.round
    return slots_path


@pytest.fixture
def slots_path(slots_written: Path, folder: Path) -> Path:
    """A copy of the fleet."""
    return copy_store(slots_written, folder / "fleet.turnout")


def texts_of(slots_path: Path) -> list[str]:
    """Returns what the doctor says; the name of a column in a command is not a word about the fleet."""
    return [f"{finding.message} {finding.remedy}".replace("WHERE round = N", "") for finding in examine(slots_path)]


def test_findings_about_an_intact_fleet_without_rounds_do_not_speak_of_rounds(slots_path: Path, folder: Path) -> None:
    texts = texts_of(slots_path)
    assert not [text for text in texts if "round" in text]
    assert any(re.match(r"decisions up to \d+ are no longer kept; their summary matches", text) for text in texts)
    assert any(re.match(r"offers are recorded for \d+ decisions and agree", text) for text in texts)
    new = folder / "new.turnout"
    with open_slots(new) as scheduler:
        scheduler.fill(["a"])
    assert not [text for text in texts_of(new) if "round" in text]
    assert any(text.startswith("all decisions are kept") for text in texts_of(new))


@pytest.mark.thorough
@pytest.mark.parametrize(("damage", "part", "message"), DAMAGES)
def test_findings_about_a_damaged_fleet_without_rounds_do_not_speak_of_rounds(
    slots_path: Path, damage: str | Callable[[Connection], None], part: str, message: str
) -> None:
    alter(slots_path, damage)
    (findings,) = [finding for finding in examine(slots_path) if finding.part == part]
    assert findings.ok is False
    assert re.search(message, findings.message), findings.message
    assert not [text for text in texts_of(slots_path) if "round" in text]


def test_decisions_are_named_that_are_no_longer_kept_or_whose_offer_or_turn_is_damaged(slots_path: Path) -> None:
    with FleetReader(slots_path) as reader:
        explanation = reader.explain("c1", 1)
        assert f"decisions up to {reader.summary().round} are no longer kept" in explanation.sentence
    alter(slots_path, "UPDATE offers SET digest = x'00' WHERE round = (SELECT MAX(round) FROM offers)")
    (findings,) = [finding for finding in examine(slots_path) if finding.part == "offers"]
    assert "for each damaged decision N: only the explanation of that decision is lost" in findings.remedy
    alter(slots_path, "UPDATE turns SET seconds = 99 WHERE round = 100")
    match = "in decision 100 does not match its checksum"
    with pytest.raises(StoreError, match=match), Scheduler.open(slots_path) as scheduler:
        scheduler.history(round=100)
