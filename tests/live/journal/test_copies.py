"""Copies of fleets between files and databases, and their restoration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

import pytest

pytest.importorskip("psycopg")

from live.fleets import play_round
from postgres import Cluster
from turnout.errors import OtherWriterError, StoreError
from turnout.live import FleetReader, Scheduler
from turnout.live._internals import StoredAnswer, copy_fleet, examine, has_tokens, journal_of, restore_fleet, session_of
from turnout.live.journal import files
from turnout.service.access import FleetTokens
from turnout.storage.address import DatabaseAddress
from turnout.storage.postgres.connection import rename
from turnout.storage.postgres.lease import LeaseKeeper
from turnout.storage.store import Location

pytestmark = pytest.mark.files
CLIENTS = [f"phone-{number}" for number in range(9)]
ROUNDS: dict[str, Any] = {"settings": {"cohort_size": 3, "guaranteed_rate": 0.2}, "deadline": 60.0}
SLOTS: dict[str, Any] = {"concurrency": 3, "settings": {"guaranteed_rate": "1/20", "tolerance": 1.0}}


@pytest.fixture
def address(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[DatabaseAddress]:
    address = cluster.address(f"copy-{crc32(request.node.nodeid.encode()):x}")
    yield address
    for name in (address, address.with_name(f"{address.name}.replaced"), address.with_name(f"{address.name}-b")):
        cluster.execute(f'DROP SCHEMA IF EXISTS "{name.schema}" CASCADE')


def answer(number: int) -> StoredAnswer:
    return StoredAnswer(b"key %d" % number, b"request", f'{{"number":{number}}}', 1e9 + number)


def play(location: Location, options: dict[str, Any], rounds: int = 30) -> None:
    with Scheduler.open(location, **options) as scheduler:
        for number in range(rounds):
            if scheduler.settings.has_rounds:
                seconds = {client: 1.0 + number + int(client[-1]) for client in CLIENTS[1:]}
                play_round(scheduler, CLIENTS, seconds)
            else:
                for turn in scheduler.fill(CLIENTS):
                    if turn.client != CLIENTS[0]:
                        scheduler.report(turn.id, 2.0)
        session_of(scheduler).snapshot()
        if scheduler.settings.has_rounds:
            scheduler.forget(CLIENTS[5])
            scheduler.choose(CLIENTS[:5])
        for number in range(3):
            session_of(scheduler).store_answer(answer(number))


def facts(location: Location) -> Any:
    """Returns everything that a copy must have."""
    with FleetReader(location) as reader, reader.reading():
        certificate = reader.certificate()
        state = reader.state()
        head = journal_of(reader).reading()
        with head as db:
            tables = [table for table in files.KEYS if table != "tokens" or has_tokens(db)]
            rows = {
                table: db.execute(f"SELECT * FROM {table} ORDER BY {files.KEYS[table]}").fetchall()
                for table in tables
                if table not in ("meta", "answers")
            }
            rows["answers"] = db.execute(
                "SELECT key, request, answer, at, seal FROM answers ORDER BY number"
            ).fetchall()
            meta = dict(db.execute("SELECT key, value FROM meta").fetchall())
        own = {"commits", "file_id", "in_use"}
        return (
            certificate.to_dict(state.fleet.ids),
            {key: value for key, value in meta.items() if key not in own},
            {table: [tuple(row) for row in found] for table, found in rows.items()},
        )


@pytest.mark.parametrize("options", [ROUNDS, {**ROUNDS, "keep_rounds": 10}, SLOTS], ids=["rounds", "kept", "slots"])
def test_a_copy_in_a_database_and_the_copy_of_that_are_the_same_fleet(
    tmp_path: Path, address: DatabaseAddress, options: dict[str, Any]
) -> None:
    path, back = tmp_path / "fleet.turnout", tmp_path / "back.turnout"
    play(path, options)
    with FleetTokens(path) as tokens:
        (new,) = tokens.create("server")
    shown: list[tuple[int, int]] = []
    with patch.object(files, "LARGE_ROWS", 2), patch.dict(files.PART, turns=5):
        content = copy_fleet(path, address, lambda done, total: shown.append((done, total)))
        assert copy_fleet(address, back) == content
    assert shown == sorted(shown)
    assert shown[-1][0] == shown[-1][1] > 20
    assert facts(path) == facts(address) == facts(back)
    for location in (address, back):
        assert [finding for finding in examine(location) if finding.ok is False] == []
        with FleetTokens(location, read_only=True) as tokens:
            assert tokens.find(new.text) == new.token
        with Scheduler.open(location) as scheduler:  # its answers go on
            session_of(scheduler).store_answer(answer(9))
            stored = [session_of(scheduler).stored_answer(b"key %d" % number) for number in (1, 9)]
            assert [each and each.answer for each in stored] == [answer(1).answer, answer(9).answer]


def test_a_copy_has_one_state_although_the_fleet_is_written(tmp_path: Path, address: DatabaseAddress) -> None:
    path = tmp_path / "fleet.turnout"
    play(address, ROUNDS, rounds=2)
    before = facts(address)
    with Scheduler.open(address) as scheduler:
        first = iter([True])

        def write(*_: int) -> None:
            if next(first, False):
                play_round(scheduler, [])

        copy_fleet(address, path, write)
        assert scheduler.round == 3
        assert not scheduler.open_round
    found = facts(path)
    assert (found[0], found[2]) == (before[0], before[2])


@pytest.mark.parametrize("is_file", [True, False], ids=["file", "database"])
def test_a_copy_replaces_nothing(tmp_path: Path, address: DatabaseAddress, is_file: bool) -> None:
    path = tmp_path / "fleet.turnout"
    play(path, ROUNDS, rounds=1)
    play(address, ROUNDS, rounds=2)
    source, target = (address, path) if is_file else (path, address)
    before = facts(target)
    with pytest.raises(StoreError, match="exists already"):
        copy_fleet(source, target)
    assert facts(target) == before


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, address: DatabaseAddress) -> None:
    path, back = tmp_path / "fleet.turnout", tmp_path / "back.turnout"
    play(path, ROUNDS, rounds=1)

    def fail(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_fleet(path, address, fail)
    copy_fleet(path, address)
    with pytest.raises(KeyboardInterrupt):
        copy_fleet(address, back, fail)
    assert not back.exists()
    with pytest.raises(StoreError, match="there is no fleet at"):
        copy_fleet(back, address)


def test_a_backup_takes_the_place_of_a_fleet_in_a_database_which_is_kept(
    tmp_path: Path, address: DatabaseAddress
) -> None:
    backup = tmp_path / "backup.turnout"
    play(address, ROUNDS, rounds=2)
    copy_fleet(address, backup)
    before = facts(backup)
    late = Scheduler.open(address)
    with pytest.raises(OtherWriterError, match="is being written by process"):
        restore_fleet(backup, address)
    play_round(late, [])
    late.close()
    later = facts(address)
    content, aside = restore_fleet(backup, address)
    assert content == "2 closed rounds of 9 clients"
    assert aside == address.with_name(f"{address.name}.replaced")
    assert (facts(address), facts(aside)) == (before, later)
    with pytest.raises(StoreError, match="exists already, from an earlier restoration"):
        restore_fleet(backup, address)
    assert facts(address) == before


def test_a_restoration_that_fails_leaves_the_fleet_in_its_place(tmp_path: Path, address: DatabaseAddress) -> None:
    backup = tmp_path / "backup.turnout"
    play(backup, ROUNDS, rounds=1)
    play(address, ROUNDS, rounds=2)
    before = facts(address)
    with (
        patch.object(files, "copy_fleet", side_effect=StoreError("no space")),
        pytest.raises(StoreError, match="no space"),
    ):
        restore_fleet(backup, address)
    assert facts(address) == before


def test_the_writer_of_a_fleet_that_was_replaced_is_refused_when_it_wakes_up(
    cluster: Cluster, tmp_path: Path, address: DatabaseAddress
) -> None:
    backup = tmp_path / "backup.turnout"
    play(backup, ROUNDS, rounds=1)
    with patch.object(LeaseKeeper, "_renew", return_value=True):
        asleep = Scheduler.open(address, **ROUNDS)
        cohort = asleep.choose(CLIENTS)
        cluster.execute(f"UPDATE \"{address.schema}\".control SET expires = 'epoch'")  # it has slept for long
        restore_fleet(backup, address)
        with Scheduler.open(address) as scheduler:
            play_round(scheduler, [])
            scheduler.choose(CLIENTS[:5])
        before = facts(address)
        with pytest.raises(StoreError, match="was taken over"):
            asleep.report_failure(cohort[0], "late")
    asleep.close()
    assert facts(address) == before


def test_a_store_is_renamed_only_to_a_free_name(address: DatabaseAddress) -> None:
    other = address.with_name(f"{address.name}-b")
    assert not rename(address, other)
    play(address, ROUNDS, rounds=1)
    assert rename(address, other)
    play(address, ROUNDS, rounds=1)
    with pytest.raises(StoreError, match="exists already"):
        rename(address, other)
