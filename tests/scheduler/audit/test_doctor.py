"""Damage is found, named and never a crash; a sound file is sound, also while it is in use."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnout.errors import StoreError
from turnout.scheduler import ClientStatus, Feature, Features, Reporter, Scheduler
from turnout.scheduler.audit.doctor.doctor import Finding, examine
from turnout.scheduler.records import digest_of, pack_offer, turn_from_row, unpack_offer
from turnout.store import RunStore
from turnout.store.packing import pack_snapshot, unpack_snapshot

Damage = Callable[[sqlite3.Connection], object]
SETTINGS = {"cohort_size": 3, "guaranteed_rate": 0.1, "speed_weight": 1.0}


def play_rounds(scheduler: Scheduler, rounds: int, seed: int = 0) -> None:
    """Some are late, some of those come back later, some fail; some tell their loss."""
    rng = random.Random(seed)
    for _ in range(rounds):
        volunteers = [f"phone-{n:02}" for n in range(10) if rng.random() < 0.8] or ["phone-00"]
        for client in scheduler.choose({one: ClientStatus(rng.uniform(0.5, 2), 3.0) for one in volunteers}):
            luck = rng.random()
            if luck < 0.1:
                scheduler.failed(client, "battery empty")
            elif luck > 0.25:
                scheduler.report(client, rng.uniform(5, 29), loss=luck if luck > 0.5 else None)
        scheduler.close_round()
        turns = [turn for client in scheduler.clients for turn in scheduler.history(client)]
        for turn in [one for one in turns if one.kind == "late" and one.late_seconds is None][:1]:
            if scheduler.round - turn.round < 10 and rng.random() < 0.5:
                scheduler.report(turn.id, 31 + rng.random(), loss=0.5, round=turn.round)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty rounds, a snapshot among them, and one more that is open."""
    path = tmp_path_factory.mktemp("fleet") / "fleet.turnout"
    with Scheduler.open(path, settings=SETTINGS, deadline=30.0) as scheduler:
        play_rounds(scheduler, 60)
        chosen = scheduler.choose({f"phone-{n:02}": ClientStatus(1.0, 3.0) for n in range(10)})
        scheduler.report(chosen[0], 7.0)
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(original, tmp_path))


def wrong(path: Path) -> dict[str, Finding]:
    return {one.part: one for one in examine(path) if one.sound is False}


def one(db: sqlite3.Connection, words: str, *values: object) -> tuple[object, ...]:
    found: tuple[object, ...] = db.execute(words, values).fetchone()
    return found


def forge_turn(db: sqlite3.Connection, where: str, change: str) -> None:
    """Change a turn and seal it anew, as a fault in our own code might."""
    told = one(db, f"SELECT round, row FROM turns WHERE {where} ORDER BY round LIMIT 1")
    db.execute(f"UPDATE turns SET {change} WHERE round = ? AND row = ?", told)
    turn, _ = turn_from_row(one(db, "SELECT * FROM turns WHERE round = ? AND row = ?", *told))
    db.execute("UPDATE turns SET seal = ? WHERE round = ? AND row = ?", (turn.checksum, *told))


def forge_snapshot(db: sqlite3.Connection) -> None:
    """Another number of turns, under a digest that fits."""
    seq, data = one(db, "SELECT seq, data FROM snapshot")
    state = unpack_snapshot(data)  # type: ignore[arg-type]
    state["policy.turns"][0] += 1
    data = pack_snapshot(state)
    db.execute("UPDATE snapshot SET data = ?, digest = ?", (data, digest_of(b"", str(seq), data)))


def forge_offer(db: sqlite3.Connection, round_: int = 5, under: int | None = None, **changes: Any) -> None:
    """Change an offer and seal it anew; `under`: it stands under this round then."""
    data, volunteers = one(db, "SELECT data, volunteers FROM offers WHERE round = ?", round_)
    offered = unpack_offer(data, volunteers)  # type: ignore[arg-type]
    data, volunteers = pack_offer(replace(offered, **changes))
    put_offer(db, round_ if under is None else under, volunteers, data)


def put_offer(db: sqlite3.Connection, round_: int, volunteers: bytes, data: bytes) -> None:
    digest = digest_of(volunteers, str(round_), data)
    db.execute("INSERT OR REPLACE INTO offers VALUES (?, ?, ?, ?)", (round_, volunteers, data, digest))


OFFER_DAMAGE: list[tuple[Damage, str]] = [
    (lambda db: db.execute("UPDATE offers SET data = x'00' WHERE round = 5"), "in round 5 is not what was written"),
    (lambda db: db.execute("UPDATE offers SET volunteers = 'x' WHERE round = 5"), "in round 5 is not what was written"),
    (lambda db: db.execute("UPDATE offers SET digest = x'00' WHERE round = 61"), "in round 61 is not what was written"),
    (lambda db: db.execute("UPDATE offers SET round = 99 WHERE round = 5"), "in round 99 is not what was written"),
    (lambda db: put_offer(db, 5, b"", b"\0"), "in round 5 cannot be unpacked"),
    (lambda db: forge_offer(db, round=6), "what was offered in round 6 stands under round 5"),
    (lambda db: forge_offer(db, under=99, round=99), "there is an offer of round 99, which was never closed"),
    (lambda db: forge_offer(db, under=0, round=0), "there is an offer of round 0, which was never closed"),
    (lambda db: forge_offer(db, rows=np.array([0, 1])), "other clients were chosen from what was offered in round 5"),
    (lambda db: forge_offer(db, 61, rows=np.array([0, 0, 0])), "other clients were chosen from what was offered in"),
    (
        lambda db: forge_offer(db, available=np.zeros(10, np.bool_), contexts=None),
        "in round 5 clients were chosen that had not volunteered",
    ),
    (lambda db: forge_offer(db, contexts=np.ones((2, 3))), "volunteered, and 2 have contexts"),
    (lambda db: db.execute("ALTER TABLE offers RENAME COLUMN data TO other"), "cannot be read (no such column"),
]


def test_a_file_that_was_only_used_is_sound(path: Path) -> None:
    findings = {one.part: one for one in examine(path)}
    assert all(one.sound is not False for one in findings.values())
    assert "round 61 is open with 3 clients" in findings["open round"].words
    assert "come to the same as all events" in findings["memory"].words
    assert "late times agree" in findings["rounds"].words
    assert "what was offered is on record of 61 rounds" in findings["offers"].words
    assert "nobody holds the file now" in findings["writer"].words


def test_looking_changes_nothing(path: Path) -> None:
    before = path.read_bytes()
    examine(path)
    assert path.read_bytes() == before


def test_a_file_in_use_is_sound_and_says_by_whom(path: Path) -> None:
    with Scheduler.open(path) as scheduler, Reporter(path) as reporter:
        out = scheduler.status().out
        reporter.report(out[0], 9.0)
        assert wrong(path) == {}
        scheduler.close_round()
        play_rounds(scheduler, 3)
        findings = {one.part: one.words for one in examine(path)}
        assert f"process {os.getpid()}" in findings["writer"]
        assert "holds the file now" in findings["writer"]
        assert wrong(path) == {}


def test_a_killed_writer_is_told_and_nothing_is_wrong(path: Path) -> None:
    child = os.fork()
    if child == 0:
        play_rounds_and_die(path)
    assert os.waitpid(child, 0)[1] == 9
    findings = {one.part: one for one in examine(path)}
    assert all(one.sound is not False for one in findings.values())
    assert "was killed or broke down" in findings["writer"].words


def play_rounds_and_die(path: Path) -> None:
    try:
        scheduler = Scheduler.open(path)
        scheduler.close_round()
        play_rounds(scheduler, 2)
    finally:
        os.kill(os.getpid(), 9)


@pytest.mark.parametrize(
    ("damage", "parts", "words"),
    [
        (lambda db: db.execute("UPDATE events SET data = x'00' WHERE seq = 7"), {"events"}, "event 7 (close)"),
        (lambda db: db.execute("DELETE FROM events WHERE seq = 7"), {"events", "rounds"}, "event 7 is missing"),
        (
            lambda db: db.execute("DELETE FROM events WHERE seq = (SELECT MAX(seq) FROM events)"),
            {"events", "rounds"},
            "the newest events are gone",
        ),
        (lambda db: db.execute("UPDATE masks SET data = x'00' WHERE seq = 9"), {"masks"}, "is not what was written"),
        (lambda db: db.execute("DELETE FROM masks WHERE seq = 9"), {"masks"}, "is missing"),
        (lambda db: db.execute("INSERT INTO masks VALUES (999, x'00')"), {"masks"}, "event 999, which closes no round"),
        (lambda db: db.execute("UPDATE clients SET id = 'x' WHERE row = 3"), {"clients", "rounds"}, "row 3 is 'x'"),
        (lambda db: db.execute("DELETE FROM clients WHERE row = 9"), {"clients"}, "9 clients are named, and 10 have"),
        (lambda db: db.execute("UPDATE turns SET seconds = 1 WHERE round = 5"), {"turns", "rounds"}, "in round 5"),
        (lambda db: db.execute("DELETE FROM turns WHERE round = 5"), {"rounds"}, "0 have turns in it"),
        (lambda db: db.execute("DELETE FROM turns WHERE round = 61"), {"open round"}, "other clients than have turns"),
        (
            lambda db: forge_turn(db, "kind = 'arrived' AND round < 60", "seconds = 1.5"),
            {"rounds"},
            "its turn says arrived after 1.5 s",
        ),
        (
            lambda db: forge_turn(db, "kind = 'arrived' AND round < 60 AND loss IS NOT NULL", "loss = NULL"),
            {"rounds"},
            "and its turn says None",
        ),
        (
            lambda db: db.execute("UPDATE turns SET loss = 9 WHERE round = 5 AND kind = 'arrived'"),
            {"turns", "rounds"},
            "in round 5",
        ),
        (
            lambda db: forge_turn(db, "kind = 'failed'", "kind = 'arrived', seconds = 3.0"),
            {"rounds", "promise"},
            "was closed as failed",
        ),
        (lambda db: forge_turn(db, "folded IS NOT NULL", "late_seconds = 77.0"), {"rounds"}, "is not the one that was"),
        (lambda db: forge_turn(db, "folded IS NOT NULL", "folded = NULL"), {"rounds"}, "no turn knows of it"),
        (
            lambda db: db.execute("INSERT INTO turns (round, row, id, seal) VALUES (99, 0, 'phone-00', 0)"),
            {"turns", "rounds"},
            "there are turns of round 99",
        ),
        (lambda db: db.execute("UPDATE snapshot SET data = x'00'"), {"memory"}, "the snapshot is not what was written"),
        (forge_snapshot, {"memory", "promise"}, "give another policy.turns"),
        (lambda db: db.execute("UPDATE open_round SET data = x'00'"), {"open round"}, "cannot be read"),
        (lambda db: db.execute("UPDATE meta SET value = '{}' WHERE key = 'settings'"), {"settings"}, "cannot be read"),
        (lambda db: db.execute("UPDATE meta SET value = 'x' WHERE key = 'seal'"), {"settings"}, "not what was written"),
        (
            lambda db: db.execute("UPDATE meta SET value = '7' WHERE key = 'round'"),
            {"rounds"},
            "should be 7, and is 60",
        ),
        (lambda db: db.execute("DROP TABLE turns"), {"turns", "rounds"}, "no such table"),
    ],
)
def test_damage_is_named(path: Path, damage: Damage, parts: set[str], words: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        damage(db)
    found = wrong(path)
    assert parts <= found.keys()
    assert any(words in one.words for one in found.values()), found
    assert all(one.remedy for one in found.values())


@pytest.mark.parametrize(("damage", "words"), OFFER_DAMAGE)
def test_damage_of_an_offer_is_named_and_is_that_of_the_offers_alone(path: Path, damage: Damage, words: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        damage(db)
    found = wrong(path)
    assert found.keys() == {"offers"}
    assert words in found["offers"].words


def test_one_damaged_offer_does_not_hide_another(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        put_offer(db, 3, b"", b"\0")
        db.execute("UPDATE offers SET data = x'00' WHERE round = 5")
        forge_offer(db, 7, rows=np.array([0, 1]))
    words = wrong(path)["offers"].words
    assert all(f"in round {round_} " in words for round_ in (3, 5, 7))


def test_a_damaged_offer_can_be_done_without_when_all_else_is_sound(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE offers SET data = x'00' WHERE round = 5")
    remedy = wrong(path)["offers"].remedy
    assert f"sqlite3 {path} 'DELETE FROM offers WHERE round = N'" in remedy
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM offers WHERE round = 5")
    assert wrong(path) == {}
    with Scheduler.open(path) as scheduler:
        scheduler.close_round()
        assert not scheduler.explain("phone-00", 5).exact
        assert scheduler.explain("phone-00", 6).exact
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE offers SET data = x'00' WHERE round = 7")
        db.execute("DELETE FROM masks WHERE seq = 9")
    assert wrong(path)["offers"].remedy == "restore the file from a backup"


@pytest.mark.parametrize("format_", [1, 2])
def test_files_of_older_releases_have_no_offers_to_look_at(tmp_path: Path, format_: int) -> None:
    path = Path(shutil.copy(Path(__file__).parents[1] / "data" / f"fleet-format-{format_}.turnout", tmp_path))
    findings = {one.part: one for one in examine(path)}
    assert all(one.sound is not False for one in findings.values()), findings
    assert findings["offers"].words == "none are on record: an older turnout wrote this file"
    with Scheduler.open(path) as scheduler:
        scheduler.close_round()
        scheduler.choose({f"new-{n}": ClientStatus(1.0, 3.0) for n in range(5)})
    findings = {one.part: one for one in examine(path)}
    assert all(one.sound is not False for one in findings.values()), findings
    assert "on record of 1 round" in findings["offers"].words


def test_offers_of_a_fleet_that_keeps_only_the_chosen_are_sound(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, settings=SETTINGS, deadline=30.0, record_offers_up_to=9) as scheduler:
        play_rounds(scheduler, 5)
        scheduler.choose({"phone-00": ClientStatus(1.0, 3.0)})
        scheduler.abandon_round()
    assert wrong(path) == {}


def test_a_wrong_snapshot_can_be_left_out_when_all_else_is_sound(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        forge_snapshot(db)
    remedy = wrong(path)["memory"].remedy
    assert f"sqlite3 {path} 'DELETE FROM snapshot'" in remedy
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM snapshot")
    assert wrong(path) == {}


def test_a_newer_format_is_told_and_nothing_is_guessed(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA user_version = 7")
    findings = examine(path)
    assert [(one.part, one.sound) for one in findings] == [("format", False), ("pages", True)]
    assert "it is of fleet format 7" in findings[0].words


def test_a_truncated_file_is_reported(path: Path) -> None:
    whole = path.read_bytes()
    for share in (0.05, 0.5, 0.99):
        path.write_bytes(whole[: int(len(whole) * share)])
        assert wrong(path)


def test_flipped_bytes_never_crash_it(path: Path) -> None:
    whole, rng, found = path.read_bytes(), random.Random(5), 0
    for _ in range(20):
        damaged = bytearray(whole)
        for _ in range(4):
            damaged[rng.randrange(100, len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        found += bool(wrong(path))
    assert found > 10  # much of a page is empty, and bytes there are nobody's


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
    assert "changes behind the damage are lost" in wrong(path)["log"].words


def test_forgetting_retiring_and_features_of_ones_own_are_sound(tmp_path: Path) -> None:
    path = tmp_path / "own.turnout"
    features = Features.of(
        Feature("load", 0.1, 10), compute=lambda known: (known["load"], 1 / known["load"]), outputs=2
    )
    with Scheduler.open(path, features=features, settings=SETTINGS, deadline="auto", overcommit=1.5) as scheduler:
        for turn in range(8):
            chosen = scheduler.choose({f"node-{n}": {"load": 1.0 + n} for n in range(9)})
            scheduler.report_many({client: 3.0 + place for place, client in enumerate(chosen) if client != "node-1"})
            scheduler.close_round()
            if turn == 4:
                scheduler.retire("node-2")
                scheduler.forget("node-1")
    findings = {one.part: one for one in examine(path)}
    assert all(one.sound is not False for one in findings.values()), findings
    assert "clients were forgotten" in findings["memory"].words
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE snapshot SET data = x'00'")
    assert wrong(path)["memory"].remedy == "restore the file from a backup"


@pytest.mark.parametrize("policy", ["random", "round-robin"])
def test_a_policy_that_promises_nothing_is_sound_too(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, policy=policy, settings={"cohort_size": 3}, deadline=30.0) as scheduler:
        play_rounds(scheduler, 5)
    findings = {one.part: one for one in examine(path)}
    assert all(one.sound is not False for one in findings.values())
    assert findings["promise"].words == "this policy promises nothing"


def test_a_new_fleet_is_sound(tmp_path: Path) -> None:
    Scheduler.open(tmp_path / "fleet.turnout", deadline=1.0).close()
    assert wrong(tmp_path / "fleet.turnout") == {}


def test_strangers_are_refused(tmp_path: Path) -> None:
    runs, words, empty = tmp_path / "runs.turnout", tmp_path / "words.txt", tmp_path / "empty"
    RunStore(runs).close()
    words.write_text(json.dumps({"not": "a fleet"}) * 100)
    empty.touch()
    for path, why in (
        (runs, "not a turnout fleet"),
        (words, "not a SQLite file"),
        (empty, "too few for a turnout fleet"),
        (tmp_path / "nowhere", "there is no fleet"),
        (tmp_path, "there is no fleet"),
    ):
        with pytest.raises(StoreError, match=why):
            examine(path)


def test_who_was_outrun_was_paid_where_choosing_pays(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    settings = {"cohort_size": 2, "guaranteed_rate": 0.1, "paid": "chosen"}
    with Scheduler.open(path, settings=settings, overcommit=2.0, deadline=60.0) as scheduler:
        chosen = scheduler.choose({f"phone-{n}": ClientStatus(1.0, 2.0) for n in range(6)})
        scheduler.report_many(dict.fromkeys(chosen[:2], 5.0))
        scheduler.close_round()
        assert [turn.kind for turn in scheduler.turns()].count("outrun") == 2
        assert scheduler.certificate().turns.sum() == 4
    assert all(finding.sound is not False for finding in examine(path))
