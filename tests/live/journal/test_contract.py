"""What every journal must do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from turnout.errors import StoreError
from turnout.live.journal.amendments import Amendment, amendments, initial_settings, settings_at, write_amendment
from turnout.live.journal.changes import Changes
from turnout.live.journal.journal import Journal
from turnout.live.journal.schema import meta_count, meta_value
from turnout.live.journal.summary import count_joined, last_event, read_totals
from turnout.live.journal.turns import (
    find_turn,
    open_turns_of,
    read_offer,
    read_open_round,
    rounds_with_offers,
    turns_since,
)
from turnout.live.retention import Retention
from turnout.live.turns.records import ClosedRound, OpenRound, RecordedOffer, Turn, pack_closed, unpack_closed

SETTINGS: dict[str, Any] = {"policy": "random", "settings": {"cohort_size": 2}, "features": {"declared": []}}
AT = "2026-05-01T10:00:00.000+00:00"


class OpenJournal(Protocol):
    """Opens the journal of one fleet, which exists already."""

    def __call__(self, *, read_only: bool = False, reporting: bool = False, takeover: bool = False) -> Journal: ...


@pytest.fixture
def open_journal(folder: Path) -> Iterator[OpenJournal]:
    path = folder / "fleet.turnout"
    Journal.make(path, SETTINGS)
    with ExitStack() as opened:

        def open_(*, read_only: bool = False, reporting: bool = False, takeover: bool = False) -> Journal:
            journal = Journal(path, read_only=read_only, reporting=reporting, takeover=takeover)
            opened.callback(journal.close)
            return journal

        yield open_


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


def closed_round(opened: OpenRound) -> ClosedRound:
    count, none = len(opened.rows), np.empty(0, dtype=np.int64)
    return ClosedRound(
        round=opened.round,
        rows=opened.rows,
        contexts=opened.contexts,
        seconds=np.full(count, 2.5),
        kinds=np.zeros(count, dtype=np.int64),
        available=opened.available,
        late_rounds=none,
        late_rows=none,
        late_seconds=np.empty(0),
    )


def write_round(changes: Changes, number: int, rows: list[int], ids: list[str]) -> int:
    """Writes a round that is opened, reported and closed in one transaction; returns the number of its event."""
    opened = opened_round(number, rows, len(ids))
    changes.put_open_round(opened, [ids[row] for row in rows])
    offer = RecordedOffer(number, opened.rows, opened.reasons, opened.available, np.zeros((len(ids), 2)))
    changes.put_offer(offer, AT)
    data, mask = pack_closed(closed_round(opened), opened=AT, closed=AT, target_size=len(rows))
    event = changes.add_event("close", data, mask)
    changes.put_closed_round(number)
    changes.put_turns([Turn(number, row, ids[row], "arrived", 2.5, at=AT) for row in rows])
    changes.drop_open_round(number)
    return event


def head_of(journal: Journal) -> tuple[str, int]:
    """Returns the digest of the newest event, after comparing it with the events, and the last closed round."""
    with journal.reading() as db:
        assert last_event(db)[1].hex() == meta_value(db, "head")
        return meta_value(db, "head"), meta_count(db, "round")


def state_after(number: int, clients: int) -> dict[str, Any]:
    return {"clients": clients, "round": number, "ids": "", "values": np.arange(float(clients))}


def test_a_new_journal_has_its_settings_and_nothing_else(open_journal: OpenJournal) -> None:
    journal = open_journal()
    assert journal.settings == SETTINGS
    assert (journal.ids(), journal.last_event()) == ([], 0)
    assert (journal.snapshot(), journal.first_state()) == (None, None)
    assert (list(journal.events()), journal.turns_of(1)) == ([], [])
    with journal.reading() as db:
        assert (initial_settings(db), read_open_round(db), rounds_with_offers(db)) == (None, None, [])
        assert (meta_count(db, "round"), meta_value(db, "head")) == (0, "")


def test_what_was_written_is_read_by_every_kind_of_opening(open_journal: OpenJournal) -> None:
    ids = ["a", "b", "ünïcode\n"]
    journal = open_journal()
    with journal.writing() as changes:
        changes.add_clients(0, ids[:2])
        changes.add_clients(2, ids[2:])
        event = write_round(changes, 1, [0, 2], ids)
    for reader in (journal, open_journal(read_only=True), open_journal(reporting=True)):
        assert reader.ids() == ids
        assert reader.last_event() == event
        kinds = [(number, kind) for number, kind, _, _ in reader.events()]
        assert [number for number, _ in kinds] == list(range(1, event + 1))
        assert kinds[-1] == (event, "close")
        _, _, data, mask = list(reader.events())[-1]
        closed, header = unpack_closed(data, mask)
        assert (closed.rows.tolist(), header["opened"], closed.available.tolist()) == ([0, 2], AT, [True] * 3)
        assert [(turn.row, turn.id, turn.kind, turn.seconds) for turn in reader.turns_of(1)] == [
            (0, "a", "arrived", 2.5),
            (2, "ünïcode\n", "arrived", 2.5),
        ]
        with reader.reading() as db:
            (turn,) = reader.turns_of_client("a")
            assert find_turn(db, "a") == find_turn(db, "a", 1) == (turn, False)
            assert find_turn(db, "b") is None
            offer, joined = read_offer(db, 1), count_joined(db, event)
            assert (meta_count(db, "round"), read_offer(db, 2)) == (1, None)
        assert offer is not None
        assert (offer.rows.tolist(), offer.reasons["score"].tolist()) == ([0, 2], [0.0, 1.0])
        assert [event_after for event_after, *_ in reader.events(event - 1)] == [event]
        assert len(list(reader.events(0, 1))) == 1
        assert joined == 3


def test_a_transaction_is_written_completely_or_not_at_all(open_journal: OpenJournal) -> None:
    journal, reader = open_journal(), open_journal(read_only=True)
    with journal.writing() as changes:
        changes.add_clients(0, ["a"])
    head, before = head_of(journal), reader.changes

    def fail() -> None:
        with journal.writing() as changes:
            changes.add_clients(1, ["b"])
            changes.put_closed_round(7)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (journal.ids(), head_of(journal)) == (["a"], head)
    assert reader.ids() == ["a"]
    assert reader.changes == before
    with journal.writing() as changes:
        changes.add_clients(1, ["b"])
    assert reader.ids() == ["a", "b"]
    assert reader.changes != before


def test_a_reader_sees_one_state_until_its_block_ends(open_journal: OpenJournal) -> None:
    journal, reader = open_journal(), open_journal(read_only=True)
    with reader.reading():
        assert reader.ids() == []
        with journal.writing() as changes:
            changes.add_clients(0, ["a"])
        assert (reader.ids(), reader.last_event()) == ([], 0)
    assert (reader.ids(), reader.last_event()) == (["a"], 1)


def test_there_is_one_writer_and_a_takeover_stops_it(open_journal: OpenJournal) -> None:
    first = open_journal()
    with pytest.raises(StoreError, match="is being written by process"):
        open_journal()
    second = open_journal(takeover=True)
    with pytest.raises(StoreError, match="taken over"), first.writing():
        pass
    with pytest.raises(StoreError, match="taken over"):
        first.check_writer()
    with second.writing() as changes:
        changes.add_clients(0, ["a"])
    assert first.ids() == ["a"]


def test_a_read_only_journal_cannot_write(open_journal: OpenJournal) -> None:
    with pytest.raises(StoreError, match="read-only"), open_journal(read_only=True).writing():
        pass


def test_a_round_is_open_until_it_is_closed_once(open_journal: OpenJournal) -> None:
    journal = open_journal()
    with journal.writing() as changes:
        changes.add_clients(0, ["a", "b"])
        changes.put_open_round(opened_round(1, [1], 2), ["b"])
    with journal.reading() as db:
        opened = read_open_round(db)
        assert find_turn(db, "b") == (Turn(1, 1, "b"), True)
        assert open_turns_of(db, ["a", "b"]) == {"b": Turn(1, 1, "b")}
    assert opened is not None
    assert (opened.round, opened.rows.tolist(), opened.contexts.tolist()) == (1, [1], [[0.0, 1.0]])
    assert journal.turns_of(1) == [Turn(1, 1, "b")]
    with journal.writing() as changes:
        changes.drop_open_round(1)
        changes.drop_turns(1)
    with journal.reading() as db:
        assert (read_open_round(db), find_turn(db, "b")) == (None, None)
    with pytest.raises(StoreError, match="round 1 is not open"), journal.writing() as changes:
        changes.drop_open_round(1)


def test_late_times_wait_until_they_are_learned(open_journal: OpenJournal) -> None:
    journal = open_journal()
    late = Turn(1, 0, "a", "late", 60.0, at=AT, late_seconds=75.0, late_at=AT)
    with journal.writing() as changes:
        changes.add_clients(0, ["a", "b"])
        write_round(changes, 1, [0, 1], ["a", "b"])
        changes.put_turns([late])
    assert journal.pending_late_turns() == [late]
    assert journal.pending_late_turns(after=1) == []
    with journal.reading() as db:
        assert [turn.id for turn in turns_since(db, 0)] == ["a", "b"]
        assert turns_since(db, 1) == []
    with journal.writing() as changes:
        changes.put_turns([replace(late, folded=2)])
    assert journal.pending_late_turns() == []


def test_the_newest_snapshot_counts_and_those_before_a_round_can_be_asked_for(open_journal: OpenJournal) -> None:
    journal, ids = open_journal(), ["a", "b"]
    with journal.writing() as changes:
        changes.add_clients(0, ids)
        for number in (1, 2, 3, 4):
            event = write_round(changes, number, [0], ids)
            changes.put_snapshot(event, state_after(number, 2), AT, Retention(rounds=4))
    newest, before = journal.snapshot(), journal.snapshot(before=3)
    assert newest is not None
    assert before is not None
    assert (newest.event, newest.state["round"], newest.state["values"].tolist()) == (journal.last_event(), 4, [0, 1])
    assert before.state["round"] == 2
    with journal.writing() as changes:
        changes.put_snapshot(journal.last_event(), state_after(4, 2), AT)  # without retention, older ones go
    assert journal.snapshot(before=3) is None


def test_a_summary_takes_the_place_of_rounds_that_are_no_longer_kept(open_journal: OpenJournal) -> None:
    journal, ids = open_journal(), ["a", "b", "c"]
    with journal.writing() as changes:
        changes.add_clients(0, ids)
        for number in range(1, 11):
            event = write_round(changes, number, [number % 3], ids)
            changes.put_snapshot(event, state_after(number, 3), AT, Retention(rounds=4))
    kept = [entry[:3] for entry in journal.events() if entry[1] == "close"][-4:]
    with journal.writing() as changes:
        assert changes.summarize(Retention(rounds=4), 10, 8, AT)
        while changes.trim():
            pass
    summary, first = journal.summary(), journal.first_state()
    assert (summary.round, summary.clients, summary.event) == (6, 3, journal.last_event() - 4)
    assert first is not None
    assert first.state["round"] == 6
    assert [entry[:3] for entry in journal.events()] == kept
    assert journal.turns_of(6) == []
    assert len(journal.turns_of(7)) == 1
    with journal.reading() as db:
        assert (count_joined(db, journal.last_event()), read_offer(db, 6)) == (3, None)
        assert read_totals(db).counts["arrived"].tolist() == [2, 2, 2]
        assert read_totals(db).last_round.tolist() == [6, 4, 5]
    head_of(journal)
    with journal.writing() as changes:
        assert write_round(changes, 11, [0], ids) == kept[-1][0] + 1
    with journal.writing() as changes:
        assert not changes.drop_offers(Retention(rounds=2), 11, AT)
    with journal.reading() as db:
        assert rounds_with_offers(db) == [10, 11]


def test_amendments_are_found_by_event(open_journal: OpenJournal) -> None:
    journal = open_journal()
    amended = {**SETTINGS, "policy": "fair-pace"}
    with journal.writing() as changes:
        changes.add_clients(0, ["a"])
        event = write_amendment(changes, Amendment(0, AT, {"policy": "fair-pace"}, {"policy": "random"}, amended))
    assert journal.settings == amended
    assert settings_at(journal, event - 1) == SETTINGS
    assert settings_at(journal, event) == amended
    assert [amendment.changes for amendment in amendments(journal)] == [{"policy": "fair-pace"}]


def test_a_forgotten_client_is_in_no_answer_from_the_first_step_on(open_journal: OpenJournal) -> None:
    journal, ids = open_journal(), ["a", "secret", "c"]
    with journal.writing() as changes:
        changes.add_clients(0, ids)
        for number in range(1, 6):
            write_round(changes, number, [0, 1], ids)
    reader = open_journal(read_only=True)

    def answers() -> str:
        events = [(kind, data) for _, kind, data, _ in reader.events()]
        turns = [reader.turns_of(number) for number in range(1, 6)]
        with reader.reading() as db:
            return repr((reader.ids(), events, turns, [read_offer(db, number) for number in range(1, 6)]))

    assert "secret" in answers()
    with journal.writing() as changes:
        last = changes.forget(1, "secret", "forgotten-1", 0, None)
        changes.put_snapshot(last, state_after(5, 3), AT)
    assert "secret" not in answers()
    while journal.redact():
        assert "secret" not in answers()
    assert "secret" not in answers()
    assert [turn.seconds for turn in reader.turns_of(3)] == [2.5, 0.0]
    assert json.loads(next(iter(reader.events()))[2]) == ["a", "forgotten-1", "c"]
    assert not journal.needs_vacuum
    head_of(journal)


def test_no_summary_is_written_while_a_client_is_forgotten(open_journal: OpenJournal) -> None:
    journal, ids = open_journal(), ["a", "secret", "c"]
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
    head_of(journal)
