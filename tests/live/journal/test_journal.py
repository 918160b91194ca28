"""The SQLite file of a journal: what is done if it is damaged, cannot be rewritten, or is only half trimmed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from live import fleets
from live.forging import alter, chain_events, fetch_row, forge_snapshot, forge_turn, swap_running_turns
from live.turns.slots.played import open_slots, play_turns
from postgres import stored_bytes, tables
from turnout.errors import SettingError, StoreError
from turnout.live import Feature, Features, FleetReader, Scheduler
from turnout.live._internals import forget_in_steps, journal_of, session_of
from turnout.live.journal.changes import Changes
from turnout.live.journal.journal import Journal
from turnout.live.journal.replay import load_after, load_before, stored_features
from turnout.live.journal.summary import read_totals, trim
from turnout.live.journal.turns import continue_redaction
from turnout.live.operation.monitoring import UNCLEAN_NOTICE
from turnout.live.retention import Retention
from turnout.live.turns.records import LateTimes, RecordedOffer, Turn
from turnout.live.turns.rounds.records import ClosedRound, OpenRound, pack_closed
from turnout.storage.store import Connection, Store

IDS = ["a", "b", "c"]
SETTINGS: dict[str, Any] = {"policy": "random", "settings": {"cohort_size": 2}, "features": {"declared": []}}
AT = "2026-05-01T10:00:00.000+00:00"


def opened_round(number: int, rows: list[int], clients: int) -> OpenRound:
    return OpenRound(
        round=number,
        target_size=len(rows),
        deadline=60.0,
        opened=AT,
        monotonic=1.0,
        boot="boot",
        joined=(),
        rows=np.array(rows),
        contexts=np.arange(2.0 * len(rows)).reshape(len(rows), 2),
        available=np.ones(clients, dtype=np.bool_),
        reasons={"score": np.arange(float(len(rows)))},
    )


def write_round(changes: Changes, number: int, rows: list[int], ids: list[str]) -> int:
    """Writes a round that is opened, reported and closed in one transaction; returns the number of its event."""
    opened = opened_round(number, rows, len(ids))
    changes.put_open_round(opened, [ids[row] for row in rows])
    offer = RecordedOffer(number, opened.rows, opened.reasons, opened.available, np.zeros((len(ids), 2)))
    changes.put_offer(offer, AT)
    closed = ClosedRound(
        round=number,
        rows=opened.rows,
        contexts=opened.contexts,
        seconds=np.full(len(rows), 2.5),
        kinds=np.zeros(len(rows), dtype=np.int64),
        available=opened.available,
        late=LateTimes.of([]),
    )
    data, mask = pack_closed(closed, opened=AT, closed=AT, target_size=len(rows))
    event = changes.add_event("close", data, mask)
    changes.put_closed_round(number)
    changes.put_turns([Turn(number, row, ids[row], "arrived", 2.5, at=AT) for row in rows])
    changes.drop_open_round(number)
    return event


def state_after(number: int, clients: int) -> dict[str, Any]:
    return {"clients": clients, "round": number, "ids": "", "values": np.arange(float(clients))}


def summarized(path: Path, rounds: int = 10, *, trims: bool = False) -> Path:
    """Writes a journal whose first six rounds are no longer kept; without `trims` their rows are still there."""
    Journal.make(path, SETTINGS)
    with closing(Journal(path)) as journal, journal.writing() as changes:
        changes.add_clients(0, IDS)
        for number in range(1, rounds + 1):
            event = write_round(changes, number, [number % 3], IDS)
            changes.put_snapshot(event, state_after(number, 3), AT, Retention(rounds=4))
        assert changes.summarize(Retention(rounds=4), rounds, rounds, AT)
        while trims and trim(changes.db):
            pass
    return path


def test_a_fleet_that_exists_already_is_left_as_it_is(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet()
    fleets.play_round(scheduler, fleets.offered("a", "b"))
    scheduler.close()
    before = scheduler.path.read_bytes()
    Journal.make(scheduler.path, {**SETTINGS, "policy": "fair-pace"})
    assert scheduler.path.read_bytes() == before


def test_a_damaged_snapshot_does_not_become_the_summary(folder: Path) -> None:
    path = folder / "fleet.turnout"
    Journal.make(path, SETTINGS)
    with closing(Journal(path)) as journal:
        with journal.writing() as changes:
            changes.add_clients(0, IDS)
            for number in range(1, 11):
                event = write_round(changes, number, [0], IDS)
                changes.put_snapshot(event, state_after(number, 3), AT, Retention(rounds=4))
        alter(path, "UPDATE snapshot SET digest = x'00' WHERE round = 6")
        with (
            pytest.raises(StoreError, match=r"the snapshot after event 7 does not match its digest: restore the file"),
            journal.writing() as changes,
        ):
            changes.summarize(Retention(rounds=4), 10, 10, AT)
        assert journal.summary().event == 0
        assert len([entry for entry in journal.events() if entry[1] == "close"]) == 10


def test_a_turn_without_an_outcome_is_not_counted_and_its_row_is_not_deleted(folder: Path) -> None:
    """Every client of a closed round has an outcome, so the file is damaged."""
    path = summarized(folder / "fleet.turnout")
    with closing(Journal(path, "read")) as journal:
        assert journal.summary().round == 6
        with journal.reading() as db:
            assert read_totals(db).counts["arrived"].tolist() == [2, 2, 2]
    alter(path, lambda db: forge_turn(db, "round = 4", "kind = NULL, seconds = NULL"))
    with closing(Journal(path)) as journal:
        with journal.reading() as db:
            totals = read_totals(db)
        assert totals.counts["arrived"].tolist() == [2, 1, 2]
        assert (totals.seconds.tolist(), totals.last_round.tolist()) == ([5.0, 2.5, 5.0], [6, 1, 5])
        with (
            pytest.raises(StoreError, match="the turn of row 1 in round 4 has no outcome: restore a backup"),
            journal.writing() as changes,
        ):
            trim(changes.db)
    assert fleets.rows_of(path, "SELECT COUNT(*) FROM turns") == [(10,)]


# Forgetting


def forgotten(open_fleet: fleets.OpenFleet) -> Scheduler:
    """Returns a fleet in which a client was forgotten."""
    scheduler = open_fleet(settings={"cohort_size": 2})
    for _ in range(3):
        fleets.play_round(scheduler, ["secret-phone", "b"])
    scheduler.forget("secret-phone")
    return scheduler


def test_a_large_file_is_not_rewritten_at_once_and_a_notice_says_so(
    open_fleet: fleets.OpenFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnout.live.journal.journal.VACUUM_UP_TO", 0)
    scheduler = forgotten(open_fleet)
    assert UNCLEAN_NOTICE in scheduler.status().notices
    scheduler.compact()
    assert UNCLEAN_NOTICE not in scheduler.status().notices
    scheduler.close()
    assert b"secret-phone" not in stored_bytes(scheduler.path)


def test_a_file_that_cannot_be_rewritten_stays_in_use_and_is_rewritten_when_it_is_opened_again(
    open_fleet: fleets.OpenFleet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(file: Store[Any]) -> None:
        raise StoreError(f"{file.location} cannot be written (disk is full)")

    with monkeypatch.context() as full, caplog.at_level(logging.WARNING, "turnout.live"):
        full.setattr(type(session_of(open_fleet("other.turnout")).journal.file), "vacuum", fail)
        scheduler = forgotten(open_fleet)
    assert "could not be rewritten after a client was forgotten" in caplog.text
    assert "disk is full" in caplog.text
    assert UNCLEAN_NOTICE in scheduler.status().notices
    fleets.play_round(scheduler, ["b", "c"])
    scheduler.close()
    with Scheduler.open(scheduler.path) as opened:
        assert UNCLEAN_NOTICE not in opened.status().notices
    assert b"secret-phone" not in stored_bytes(scheduler.path)


def test_forgetting_that_was_interrupted_is_completed_by_compact(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 2})
    for _ in range(3):
        fleets.play_round(scheduler, ["secret-phone", "b"])
    next(forget_in_steps(scheduler, "secret-phone"))  # the other steps are not done
    assert fleets.rows_of(scheduler.path, "SELECT COUNT(*) FROM meta WHERE key = 'redactions'") == [(1,)]
    scheduler.compact()
    assert fleets.rows_of(scheduler.path, "SELECT COUNT(*) FROM meta WHERE key = 'redactions'") == [(0,)]
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)
    scheduler.close()
    assert b"secret-phone" not in stored_bytes(scheduler.path)
    assert fleets.problems(scheduler.path) == []


def test_rows_that_are_no_longer_kept_are_deleted_before_a_client_is_redacted(
    open_fleet: fleets.OpenFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnout.live.retention.LATE_ROUNDS", 2)
    scheduler = open_fleet(settings={"cohort_size": 2}, keep_rounds=4)
    for _ in range(20):
        fleets.play_round(scheduler, ["secret-phone", *fleets.named(3)])
    for module in ("server", "session"):
        monkeypatch.setattr(f"turnout.live.serving.{module}.drop_some", lambda *_: False)
    monkeypatch.setattr("turnout.live.journal.journal.VACUUM_UP_TO", 0)
    scheduler.compact()
    monkeypatch.setattr("turnout.live.journal.summary.BATCH", 2)
    with FleetReader(scheduler.path) as reader:
        kept = reader.summary().round
    oldest = [fleets.rows_of(scheduler.path, "SELECT MIN(round) FROM turns")[0][0]]
    assert oldest[0] <= kept - 4
    ids = fleets.rows_of(scheduler.path, f"SELECT DISTINCT id FROM turns WHERE round <= {kept}")
    assert ("secret-phone",) in ids
    for _ in forget_in_steps(scheduler, "secret-phone"):
        oldest.append(fleets.rows_of(scheduler.path, "SELECT MIN(round) FROM turns")[0][0])
    assert oldest == sorted(oldest)
    assert oldest[-1] == kept + 1
    assert fleets.packed(scheduler) == fleets.packed_from_disk(scheduler.path)
    assert fleets.problems(scheduler.path) == []


def test_nothing_is_changed_if_no_client_is_to_be_redacted(folder: Path) -> None:
    path = summarized(folder / "fleet.turnout")
    with closing(Journal(path)) as journal:
        with journal.writing() as changes:
            before = changes.db.total_changes
            assert not continue_redaction(changes.db)
            assert changes.db.total_changes == before
        assert not journal.redact()


def test_no_summary_is_written_while_a_client_is_forgotten(folder: Path) -> None:
    path, ids = folder / "fleet.turnout", ["a", "secret", "c"]
    Journal.make(path, SETTINGS)
    with closing(Journal(path)) as journal:
        with journal.writing() as changes:
            changes.add_clients(0, ids)
            for number in range(1, 11):
                event = write_round(changes, number, [0, 1], ids)
            last = changes.forget(1, "secret", "forgotten-1", 0, None)
            changes.put_snapshot(last, state_after(10, 3), AT, Retention(rounds=4))
        with (
            pytest.raises(StoreError, match="a client is being forgotten: open the file again"),
            journal.writing() as changes,
        ):
            changes.put_summary(event - 4, state_after(6, 3), AT)
        with journal.writing() as changes:
            assert not changes.summarize(Retention(rounds=4), 20, 20, AT)
        assert journal.summary().event == 0
        while journal.redact():
            pass
        with journal.writing() as changes:
            changes.put_summary(event - 4, state_after(6, 3), AT)
        assert (journal.summary().event, journal.summary().round) == (event - 4, 6)
        assert len([entry for entry in journal.events() if entry[1] == "close"]) == 4


def append_event(db: Connection, kind: str, data: bytes, presence: bytes | None = None) -> None:
    """Appends an event, with the right digests."""
    (last,) = fetch_row(db, "SELECT MAX(seq) FROM events")
    db.execute("INSERT INTO events VALUES (?, ?, ?, x'')", (last + 1, kind, data))
    if presence is not None:
        db.execute("INSERT INTO masks VALUES (?, ?)", (last + 1, presence))
    chain_events(db)


def written_slots(path: Path) -> Path:
    """Writes a fleet without rounds and without a snapshot; returns its path."""
    with open_slots(path) as scheduler:
        play_turns(scheduler, 4)
        assert len(scheduler.running()) > 1
    return path


def test_an_event_of_an_unknown_kind_is_refused_with_the_advice_to_install_a_newer_version(
    open_fleet: fleets.OpenFleet,
) -> None:
    scheduler = open_fleet()
    fleets.play_round(scheduler, fleets.offered("a", "b"))
    scheduler.close()
    alter(scheduler.path, lambda db: append_event(db, "merge", b"{}"))
    refusal = "unknown event kind 'merge': install a newer version of turnout"
    with pytest.raises(StoreError, match=refusal):
        Scheduler.open(scheduler.path)
    with FleetReader(scheduler.path) as reader:
        events = reader.events()
        assert [next(events).kind for _ in range(2)] == ["joined", "closed"]
        with pytest.raises(StoreError, match=refusal):
            next(events)


def test_turns_without_rounds_are_refused_in_a_fleet_with_rounds(open_fleet: fleets.OpenFleet, folder: Path) -> None:
    other = written_slots(folder / "slots.turnout")
    with tables(other) as db:
        query = "SELECT e.data, m.data FROM events e JOIN masks m ON m.seq = e.seq WHERE kind = 'fill'"
        data, presence = fetch_row(db, query)
    scheduler = open_fleet()
    fleets.play_round(scheduler, fleets.offered("a", "b"))
    scheduler.close()
    alter(scheduler.path, lambda db: append_event(db, "fill", data, presence))
    with pytest.raises(StoreError, match="the fleet has rounds, but its journal has turns without rounds"):
        Scheduler.open(scheduler.path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda db: db.execute("UPDATE open_round SET digest = x'00'"),
            r"the turn \d+ that is running does not match its digest",
        ),
        (
            lambda db: db.execute("DELETE FROM open_round WHERE round = (SELECT MAX(round) FROM open_round)"),
            "the running turns are not those of the decisions",
        ),
        (swap_running_turns, "the running turns are not those of the decisions"),
        (
            "DELETE FROM masks WHERE seq = (SELECT MAX(seq) FROM masks)",
            "the presence of clients at a decision is not stored any more",
        ),
    ],
)
def test_a_fleet_without_rounds_is_refused_if_its_running_turns_or_presence_are_damaged(
    folder: Path, damage: str | Callable[[Connection], object], message: str
) -> None:
    path = written_slots(folder / "fleet.turnout")
    alter(path, damage)
    with pytest.raises(StoreError, match=message):
        Scheduler.open(path)


def test_the_state_around_a_round_that_was_not_closed_cannot_be_computed(open_fleet: fleets.OpenFleet) -> None:
    scheduler = open_fleet()
    for _ in range(3):
        fleets.play_round(scheduler, fleets.offered("a", "b", "c"))
    scheduler.choose(fleets.offered("a", "b", "c"))  # round 4 is open
    with FleetReader(scheduler.path) as reader:
        journal = journal_of(reader)
        for load in (load_before, load_after):
            for number in (4, 5):
                with pytest.raises(StoreError, match=rf"round {number} was not closed in .*: check the number"):
                    load(journal, number)
        assert load_before(journal, 3).round == 2
        event, fleet = load_after(journal, 3)
        assert (event, fleet.round) == (reader.last_event, 3)
    assert fleet.state()["clients.arrived"].tolist() == fleets.state_of(scheduler).state()["clients.arrived"].tolist()


def test_features_that_a_function_computes_are_read_without_it_but_not_computed(open_fleet: fleets.OpenFleet) -> None:
    features = Features.of(Feature("load", 0.1, 10), compute=lambda known: (known["load"],), outputs=1)
    with open_fleet(features=features) as scheduler:
        fleets.play_round(scheduler, {"a": {"load": 1.0}, "b": {"load": 2.0}})
        state = fleets.packed(scheduler)
    with FleetReader(scheduler.path) as reader:
        assert fleets.packed(reader) == state
        assert reader.features.outputs == 1
    stored = stored_features(features.to_dict())
    assert stored.compute is not None
    with pytest.raises(SettingError, match=r"computed by a function: open it with features=… to select"):
        stored.compute({"load": np.ones(2)})


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no number of clients": lambda state: state.pop("clients"),
    "no ids": lambda state: state.pop("ids"),
    "no turns": lambda state: state.pop("policy.turns"),
    "a text in place of an array": lambda state: state.update({"policy.turns": "many"}),
    "a client too few": lambda state: state.update({"clients.arrived": state["clients.arrived"][1:]}),
    "rounds of other clients": lambda state: state.update({"policy.queues.rounds": np.zeros(7)}),
    "half of the late clients": lambda state: state.update({"awaited.rows": np.zeros(7, dtype=np.int64)}),
    "an absurd round": lambda state: state.update({"round": 1e300}),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_malformed_snapshot_is_refused_clearly(
    open_fleet: fleets.OpenFleet, change: Callable[[dict[str, Any]], object]
) -> None:
    scheduler = open_fleet()
    fleets.play_round(scheduler, fleets.offered("a", "b", "c"))
    fleets.take_snapshot(scheduler)
    scheduler.close()
    alter(scheduler.path, lambda db: forge_snapshot(db, change))
    with pytest.raises(StoreError, match=r"is damaged \(the snapshot is malformed: .*: restore it from a backup"):
        Scheduler.open(scheduler.path)
