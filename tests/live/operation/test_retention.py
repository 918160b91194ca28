"""Retention: rounds and offers that are no longer kept, and the summary that takes their place."""

from __future__ import annotations

import json
import logging
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from live import fleets, restless_server
from live.serving import Server
from narrowing import known
from postgres import copy_store, stored_bytes, tables
from turnout.errors import ReportError, SettingError, StoreError
from turnout.live import FleetReader, Scheduler, certify
from turnout.live._internals import FleetTotals, StaleError, journal_of, read_totals
from turnout.live._internals import verify as verifier
from turnout.live.journal import summary as summary_module
from turnout.live.journal.journal import Journal
from turnout.live.retention import MIN_ROUNDS, Retention
from turnout.storage.files import database
from turnout.storage.store import Connection

KEPT = {**restless_server.SETTINGS, "keep_rounds": 10, "keep_offers": 3}
ROUNDS = 46


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two fleets that played the same script: one with retention, and one that keeps everything."""
    folder = tmp_path_factory.mktemp("twins")
    restless_server.play(str(folder / "kept.turnout"), ROUNDS, options=KEPT)
    restless_server.play(str(folder / "whole.turnout"), ROUNDS)
    return folder


@pytest.fixture
def kept(played: Path, folder: Path) -> Path:
    """The fleet with retention."""
    return copy_store(played / "kept.turnout", folder / "kept.turnout")


@pytest.fixture
def whole(played: Path, folder: Path) -> Path:
    """The fleet that keeps everything."""
    return copy_store(played / "whole.turnout", folder / "whole.turnout")


def totals_of(reader: FleetReader) -> FleetTotals:
    with journal_of(reader).reading() as db:
        return read_totals(db)


def read_summary(path: Path) -> None:
    with FleetReader(path) as reader:
        reader.summary()
        totals_of(reader)
        reader.replay_start()


def certificate_of(path: Path) -> dict[str, list[Any]]:
    with FleetReader(path) as scheduler:
        certificate = scheduler.certificate()
    columns = ("turns", "promised_units", "owed_units", "forfeited_units", "behind_units", "statuses", "broken_since")
    return {name: np.asarray(getattr(certificate, name)).tolist() for name in columns}


def test_state_certificate_and_choices_are_those_of_a_fleet_that_keeps_everything(kept: Path, whole: Path) -> None:
    with FleetReader(kept) as reader:
        summary = reader.summary()
    assert ROUNDS - 10 - 7 <= summary.round <= ROUNDS - 10
    assert fleets.packed_from_disk(kept) == fleets.packed_from_disk(whole)
    assert certificate_of(kept) == certificate_of(whole)
    columns = "round, row, id, kind, seconds, why, late_seconds, folded, loss"
    recent = f"SELECT {columns} FROM turns WHERE round > {ROUNDS - 4} ORDER BY round, row"
    assert fleets.rows_of(kept, recent) == fleets.rows_of(whole, recent) != []
    assert fleets.problems(kept) == []


def test_the_summary_is_the_oldest_state_from_which_rounds_are_replayed(kept: Path) -> None:
    with tables(kept) as db:
        db.execute("DELETE FROM snapshot")
    with closing(Journal(kept, "read")) as journal, journal.reading() as db:
        first = known(summary_module.first_state(db))
        begin = int(first.state["round"])
        for before in (None, begin + 1):
            state = known(summary_module.newest_state(db, before))
            assert state.event == first.event
        assert summary_module.newest_state(db, begin) is None


def test_nothing_before_the_summary_stays_in_the_file_for_long(kept: Path) -> None:
    with FleetReader(kept) as reader:
        summary = reader.summary()
    assert fleets.rows_of(kept, "SELECT MIN(seq) FROM events") == [(summary.event + 1,)]
    assert fleets.rows_of(kept, "SELECT MIN(round) FROM turns")[0][0] > summary.round
    assert fleets.rows_of(kept, "SELECT MIN(seq) > ? FROM masks".replace("?", str(summary.event))) == [(1,)]
    rounds = [number for (number,) in fleets.rows_of(kept, "SELECT round FROM offers ORDER BY round")]
    assert rounds[0] > ROUNDS - 3
    assert rounds[-1] == ROUNDS
    assert len(fleets.rows_of(kept, "SELECT seq FROM snapshot")) <= 6


def test_totals_are_those_of_all_rounds(kept: Path, whole: Path) -> None:
    with FleetReader(kept) as reader:
        summary, totals = reader.summary(), totals_of(reader)
    query = f"SELECT row, kind, seconds, round FROM turns WHERE round <= {summary.round}"
    counts = {kind: np.zeros_like(values) for kind, values in totals.counts.items()}
    last, seconds = np.zeros_like(totals.last_round), np.zeros_like(totals.seconds)
    for row, kind, spent, number in fleets.rows_of(whole, query):
        counts[kind][row] += 1
        last[row] = max(last[row], number)
        seconds[row] += spent if kind in ("arrived", "redundant") else 0.0
    assert {kind: values.tolist() for kind, values in counts.items()} == {
        kind: values.tolist() for kind, values in totals.counts.items()
    }
    assert last.tolist() == totals.last_round.tolist()
    assert seconds == pytest.approx(totals.seconds)


def test_rows_that_are_not_deleted_yet_count_once(whole: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The totals do not depend on how far the deletion of old rows has come."""
    monkeypatch.setattr("turnout.live.serving.server.drop_some", lambda *_: False)
    kept = folder / "kept.turnout"
    restless_server.play(str(kept), ROUNDS, options=KEPT)
    with FleetReader(kept) as reader:
        assert fleets.rows_of(kept, "SELECT MIN(round) FROM turns")[0][0] <= reader.summary().round
        before = totals_of(reader)
        assert next(iter(reader.events())).number == reader.summary().event + 1
    assert fleets.problems(kept) == []
    monkeypatch.undo()
    with Scheduler.open(kept) as scheduler:
        scheduler.compact()
    with FleetReader(kept) as reader:
        after = totals_of(reader)
    assert fleets.rows_of(kept, "SELECT COUNT(*) FROM totals")[0][0] > 0
    assert before.turns.sum() > 0
    assert certificate_of(kept) == certificate_of(whole)
    assert fleets.problems(kept) == []
    # Compacting may drop further rounds, whose turns are added.
    assert (after.turns >= before.turns).all()


def test_the_certificate_begins_with_the_summary_and_is_verified(kept: Path, whole: Path, folder: Path) -> None:
    content = certify(kept, folder / "kept.json", folder / "kept.jsonl")
    expected = certify(whole, folder / "whole.json", folder / "whole.jsonl")
    assert content["clients"] == expected["clients"]
    keys = ("rounds", "events", "status", "worst", "since", "books_balance", "terms")
    assert {key: content[key] for key in keys} == {key: expected[key] for key in keys}
    with FleetReader(kept) as reader:
        summary = reader.summary()
    assert content["summary"] == {"event": summary.event, "round": summary.round}
    lines = (folder / "kept.jsonl").read_bytes().splitlines(keepends=True)
    assert json.loads(lines[1])["left"] != []
    assert verifier.differences((folder / "kept.json").read_bytes(), lines) == []


def test_explain_history_and_export_say_what_is_no_longer_kept(kept: Path) -> None:
    with FleetReader(kept) as scheduler:
        first = scheduler.summary().round
        old = scheduler.explain("c4", first)
        assert not old.exact
        assert f"rounds up to {first} are no longer kept" in str(old)
        without_offer = scheduler.explain("c4", ROUNDS - 4)
        assert not without_offer.exact
        assert "no longer kept (keep_offers=3)" in str(without_offer)
        assert scheduler.explain("c4", ROUNDS - 1).exact
        assert all(turn.round > first for turn in scheduler.history("c4"))
        lines = fleets.exported(scheduler)
        assert lines[0]["kind"] == "summary"
        assert lines[0]["round"] == first
        assert [line["event"] for line in lines] == list(range(lines[0]["event"], lines[-1]["event"] + 1))
        with pytest.raises(ReportError):
            scheduler.explain("c4", 0)


def test_an_export_has_the_rounds_that_were_kept_when_it_was_begun(
    open_fleet: fleets.OpenFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAIT_SECONDS", 0.01)  # compact() waits so long for the export
    scheduler = open_fleet(keep_rounds=10)
    for _ in range(30):
        fleets.play_round(scheduler, fleets.offered(*"abc"))
    with FleetReader(scheduler.path) as reader:
        export, last = reader.export(), reader.last_event
        begun = [next(export) for _ in range(7)]
        scheduler.compact()
        lines = [*begun, *export]
        assert [line["event"] for line in lines] == list(range(1, last + 1))
        assert sum(line["kind"] == "round" for line in lines) == 30
        again = list(reader.export())
        assert again[0]["kind"] == "summary"
        assert again[1:] == lines[again[0]["event"] :]


def test_a_forgotten_client_is_not_in_the_summary(kept: Path, folder: Path) -> None:
    client = "stranger-7"
    with Scheduler.open(kept) as scheduler:
        assert scheduler.certificate().turns[fleets.client_rows(scheduler, [client])[0]] > 0
        row = fleets.client_rows(scheduler, [client])[0]
        scheduler.forget(client)
        assert fleets.packed(scheduler) == fleets.packed_from_disk(kept)
        certificate = scheduler.certificate()
    with FleetReader(kept) as reader:
        start = known(reader.replay_start())
        assert start.fleet.ids[row].startswith("forgotten")
        assert start.fleet.history.arrived[row] == 0
        assert totals_of(reader).seconds[row] == 0.0
        assert totals_of(reader).turns[row] > 0
        assert client not in reader.clients
    assert client.encode() not in stored_bytes(kept)
    assert fleets.problems(kept) == []
    content = certify(kept, folder / "c.json", folder / "c.jsonl")
    assert content["clients"][start.fleet.ids[row]]["turns"] == certificate.turns[row]


def test_a_follower_begins_with_the_summary_and_notices_that_it_has_moved(kept: Path, whole: Path) -> None:
    with FleetReader(kept) as reader, FleetReader(whole) as complete:
        follower, other = reader.follow(), complete.follow()
        assert follower.position == reader.summary().event
        for event in follower.poll():
            follower.apply(event)
        for event in other.poll():
            other.apply(event)
        assert follower.fleet.state()["policy.turns"].tolist() == other.fleet.state()["policy.turns"].tolist()
        behind = reader.follow()
        restless_server.play(str(kept), ROUNDS + 14)
        assert reader.summary().event > behind.position
        with pytest.raises(StaleError, match="read it again"):
            behind.poll()


@pytest.mark.parametrize("every", [15, pytest.param(7, marks=pytest.mark.thorough)])
@pytest.mark.files
def test_a_server_that_is_killed_at_any_write_continues_with_its_summary(
    folder: Path, server: Server, every: int
) -> None:
    start, whole = folder / "start.turnout", folder / "whole.turnout"
    options = {**restless_server.SETTINGS, "keep_rounds": 10, "keep_offers": 2}
    restless_server.play(str(start), 44, options=options)
    restless_server.play(str(whole), 46)
    expected = fleets.packed_from_disk(whole)
    with FleetReader(start) as reader:
        first = reader.summary().round
    assert first > 0
    for kill in range(1, 60, every):
        path = copy_store(start, folder / f"{kill}.turnout")
        server.play(path, 46, die_at=kill)
        assert server.killed
        assert fleets.problems(path) == []
        server.play(path, 46)
        assert fleets.packed_from_disk(path) == expected
        assert certificate_of(path) == certificate_of(whole)
        with FleetReader(path) as reader:
            assert reader.summary().round > first


@pytest.mark.parametrize("table", ["summary", "totals"])
def test_a_changed_byte_in_the_summary_is_found(kept: Path, table: str) -> None:
    with Scheduler.open(kept) as scheduler:
        scheduler.compact()
    changes = {
        "summary": ["round = round + 1", "previous = x'00'", "notes = x'7b7d'", "data = x'00'", "seq = seq + 1"],
        "totals": ["arrived = arrived + 1", "seconds = seconds + 1", "last_round = 0"],
    }
    original = copy_store(kept, kept.with_name("original.turnout"))
    for change in changes[table]:
        with tables(kept) as db:
            db.execute(f"UPDATE {table} SET {change}")
        assert fleets.problems(kept), change
        with pytest.raises(StoreError):
            read_summary(kept)
        copy_store(original, kept)


@pytest.mark.files
def test_compact_drops_everything_at_once_also_in_a_fleet_that_kept_everything_before(
    open_fleet: fleets.OpenFleet,
) -> None:
    scheduler, world = open_fleet(settings={"cohort_size": 3}), fleets.World(12)
    for number in range(1, 71):
        statuses = world.statuses(number)
        fleets.play_round(
            scheduler, statuses, {client: world.seconds(number, client, statuses[client]) for client in statuses}
        )
    before, certificate = fleets.packed(scheduler), certificate_of(scheduler.path)
    scheduler.compact()  # everything is in the file, and nothing in the log
    large = scheduler.path.stat().st_size
    scheduler.amend(keep_rounds=20, keep_offers=10)
    scheduler.compact()
    with FleetReader(scheduler.path) as reader:
        assert reader.summary().round == 50
        assert [offer.round for offer in reader.offers()] == list(range(61, 71))
        assert [closed.round for closed in reader.closed_rounds()] == list(range(51, 71))
    empty = open_fleet("empty.turnout").path.stat().st_size
    assert scheduler.path.stat().st_size - empty < (large - empty) / 2
    assert certificate_of(scheduler.path) == certificate
    assert fleets.packed_from_disk(scheduler.path) == fleets.packed(scheduler) == before
    assert fleets.problems(scheduler.path) == []
    scheduler.compact()  # a second time has no effect
    with FleetReader(scheduler.path) as reader:
        assert reader.summary().round == 50


def test_amendments_before_the_summary_are_still_known(open_fleet: fleets.OpenFleet, folder: Path) -> None:
    scheduler = open_fleet(settings={"cohort_size": 2, "guaranteed_rate": "1/5"}, keep_rounds=10)
    for number in range(40):
        fleets.play_round(scheduler, fleets.offered(*"abcdef"))
        if number == 7:
            scheduler.amend(guaranteed_rate="1/7")
        if number == 35:
            scheduler.amend(tolerance=3)
    scheduler.compact()
    with FleetReader(scheduler.path) as reader:
        assert reader.summary().round == 30
    assert [amendment.round for amendment in fleets.amendments_of(scheduler)] == [8, 36]
    content = certify(scheduler.path, folder / "c.json", folder / "c.jsonl")
    assert content["terms"]["units_per_turn"] == 35
    assert content["clients"]["a"]["promised_units"] == 8 * 7 + 32 * 5
    assert fleets.problems(scheduler.path) == []
    with FleetReader(scheduler.path) as reopened:
        assert fleets.packed(reopened) == fleets.packed(scheduler)


def test_a_large_fleet_is_certified_from_its_last_snapshot(
    open_fleet: fleets.OpenFleet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its availability before the snapshot is not stored any more."""
    monkeypatch.setattr("turnout.live.journal.changes.KEEP_AVAILABILITY_UP_TO", 3)
    scheduler = open_fleet()
    for _ in range(6):
        fleets.play_round(scheduler, fleets.offered(*"abcde"))
    fleets.take_snapshot(scheduler)
    for _ in range(3):
        fleets.play_round(scheduler, fleets.offered(*"abcde"))
    scheduler.choose(fleets.offered("new"))  # the record has a new client only after its round is closed
    content = certify(scheduler.path, folder / "c.json", folder / "c.jsonl")
    assert list(content["clients"]) == list("abcde")
    assert content["summary"]["round"] == 6
    assert content["rounds"] == 9
    assert sum(client["turns"] for client in content["clients"].values()) == 18


def test_compact_keeps_rounds_whose_state_a_large_fleet_can_no_longer_compute(
    open_fleet: fleets.OpenFleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in ("journal.changes", "audit.tables"):
        monkeypatch.setattr(f"turnout.live.{module}.KEEP_AVAILABILITY_UP_TO", 3)
    monkeypatch.setattr("turnout.live.retention.LATE_ROUNDS", 1)
    scheduler = open_fleet()
    for _ in range(9):
        fleets.play_round(scheduler, fleets.offered(*"abcde"))
    fleets.take_snapshot(scheduler)
    before, certificate = fleets.packed(scheduler), certificate_of(scheduler.path)
    scheduler.amend(keep_rounds=4)
    with caplog.at_level(logging.INFO, "turnout.live"):
        scheduler.compact()
    assert "round 5 is kept for now, because the state after it cannot be computed" in caplog.text
    with FleetReader(scheduler.path) as reader:
        assert reader.summary().event == 0
        assert [closed.round for closed in reader.closed_rounds()] == list(range(1, 10))
    assert fleets.packed_from_disk(scheduler.path) == fleets.packed(scheduler) == before
    assert certificate_of(scheduler.path) == certificate
    assert fleets.problems(scheduler.path) == []


def test_compact_drops_nothing_before_the_first_turn_of_a_fleet_without_rounds(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(concurrency=2, settings={"guaranteed_rate": "1/20"}, keep_rounds=20)
    scheduler.register(["a", "b"])
    scheduler.compact()
    with FleetReader(scheduler.path) as reader:
        assert reader.summary().event == 0
        assert [event.kind for event in reader.events()] == ["joined"]
    assert len(scheduler.fill(["a", "b"])) == 2


# Periods


def test_periods_are_rounds_or_days() -> None:
    assert Retention.parse("keep", 7) == Retention(rounds=7)
    for text in ("30 days", "30d", " 30 DAYS ", "30.0 day"):
        assert Retention.parse("keep", text).stored == "30 days"
    for wrong in ("30", "x days", "-1 days", "0 days", "1e9 days", 0, -3, True, 2.5, "3 weeks"):
        with pytest.raises(SettingError, match="keep"):
            Retention.parse("keep", wrong)


def test_a_period_in_days_is_judged_by_the_clock_and_keeps_some_rounds_in_any_case() -> None:
    period = Retention(days=30.0)
    now = datetime(2026, 5, 31, tzinfo=UTC)
    old, young = ((now - timedelta(days=days)).isoformat(timespec="milliseconds") for days in (31, 29))
    at = now.isoformat(timespec="milliseconds")
    assert period.is_over(1, old, 1 + MIN_ROUNDS, at)
    assert not period.is_over(2, old, 1 + MIN_ROUNDS, at)
    assert not period.is_over(1, young, 10**6, at)
    assert not period.is_over(1, None, 10**6, at)
    assert period.has_quarter_passed(1, old, 2, at)
    assert not period.has_quarter_passed(1, young, 2, young)
    quarter, less = ((now - timedelta(days=days)).isoformat(timespec="milliseconds") for days in (7.5, 7.5 - 1e-8 * 2))
    assert period.has_quarter_passed(1, quarter, 2, at)
    assert not period.has_quarter_passed(1, less, 2, at)
    assert Retention(rounds=10).is_over(5, None, 15, at)
    assert not Retention(rounds=10).is_over(6, None, 15, at)


def test_rounds_are_kept_for_days(open_fleet: fleets.OpenFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round every 2 hours, for 10 days: the rounds of the last 5 days, and at most a quarter more, are kept."""
    start, clock = datetime(2026, 1, 1, tzinfo=UTC), {"hours": 0}

    def now() -> str:
        return (start + timedelta(hours=clock["hours"])).isoformat(timespec="milliseconds")

    for module in ("serving.rounds", "serving.session", "operation.upkeep", "turns.rounds.choosing"):
        monkeypatch.setattr(f"turnout.live.{module}.now", now)
    monkeypatch.setattr("turnout.live.serving.rounds.SNAPSHOT_EVERY", 10)
    for module in ("retention", "journal.changes"):
        monkeypatch.setattr(f"turnout.live.{module}.MIN_ROUNDS", 30)
    scheduler = open_fleet(settings={"cohort_size": 1}, keep_rounds="5 days", keep_offers="5 days")
    for number in range(120):
        clock["hours"] = 2 * number
        fleets.play_round(scheduler, ["a", "b"])
    with FleetReader(scheduler.path) as reader:
        first = reader.summary().round
        assert 120 - 60 - 15 - 10 <= first <= 120 - 60
        assert next(offer.round for offer in reader.offers()) == 120 - 60 + 1
    scheduler.compact()
    with FleetReader(scheduler.path) as reader:
        assert reader.summary().round == 120 - 60
    assert fleets.problems(scheduler.path) == []


def test_the_same_period_in_other_words_is_the_same_setting(open_fleet: fleets.OpenFleet, folder: Path) -> None:
    open_fleet(keep_rounds="30 days").close()
    with Scheduler.open(folder / "fleet.turnout", keep_rounds="30 DAYS") as scheduler:
        assert scheduler.settings.keep_rounds == "30 days"
        assert scheduler.amend(keep_rounds="30d") == []
    with pytest.raises(SettingError, match="was created with keep_rounds='30 days', got 7"):
        Scheduler.open(folder / "fleet.turnout", keep_rounds=7)


def test_one_transaction_deletes_a_bounded_number_of_rows(
    open_fleet: fleets.OpenFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary_module, "BATCH", 4)
    monkeypatch.setattr(summary_module, "TURNS", 6)
    scheduler = open_fleet()
    for _ in range(45):
        fleets.play_round(scheduler, fleets.offered(*"abcde"))
    scheduler.amend(keep_rounds=10)
    deleted: list[int] = []
    trim = summary_module.trim

    def counted(db: Connection) -> bool:
        before = [db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in ("events", "turns")]
        is_left = trim(db)
        after = [db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0] for table in ("events", "turns")]
        deleted.extend(b - a for a, b in zip(after, before, strict=True))
        return is_left

    monkeypatch.setattr("turnout.live.operation.upkeep.trim", counted)
    scheduler.compact()
    assert sum(deleted) > 100
    assert max(deleted) <= 6
    assert fleets.rows_of(scheduler.path, "SELECT MIN(round) FROM turns") == [(36,)]
