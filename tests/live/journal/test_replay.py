"""A journal whose events cannot be replayed is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from live.fleets import OpenFleet, offered, packed, play_round, state_of, take_snapshot
from live.forging import alter, chain_events, fetch_row, forge_snapshot
from live.turns.slots.played import open_slots, play_turns
from postgres import tables
from turnout.errors import SettingError, StoreError
from turnout.live import Feature, Features, FleetReader, Scheduler
from turnout.live._internals import journal_of
from turnout.live.journal.replay import load_after, load_before, stored_features
from turnout.live.turns.records import digest_of
from turnout.storage.store import Connection


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
    open_fleet: OpenFleet,
) -> None:
    scheduler = open_fleet()
    play_round(scheduler, offered("a", "b"))
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


def test_turns_without_rounds_are_refused_in_a_fleet_with_rounds(open_fleet: OpenFleet, folder: Path) -> None:
    other = written_slots(folder / "slots.turnout")
    with tables(other) as db:
        query = "SELECT e.data, m.data FROM events e JOIN masks m ON m.seq = e.seq WHERE kind = 'fill'"
        data, presence = fetch_row(db, query)
    scheduler = open_fleet()
    play_round(scheduler, offered("a", "b"))
    scheduler.close()
    alter(scheduler.path, lambda db: append_event(db, "fill", data, presence))
    with pytest.raises(StoreError, match="the fleet has rounds, but its journal has turns without rounds"):
        Scheduler.open(scheduler.path)


def test_a_fleet_without_rounds_is_refused_if_the_presence_at_a_decision_is_missing(folder: Path) -> None:
    path = written_slots(folder / "fleet.turnout")
    alter(path, "DELETE FROM masks WHERE seq = (SELECT MAX(seq) FROM masks)")
    with pytest.raises(StoreError, match="the presence of clients at a decision is not stored any more"):
        Scheduler.open(path)


def give_a_turn_to_another_client(db: Connection) -> None:
    """Stores the data of the newest running turn under the number of the oldest, with the right digest."""
    first, last = fetch_row(db, "SELECT MIN(round), MAX(round) FROM open_round")
    (data,) = fetch_row(db, "SELECT data FROM open_round WHERE round = ?", last)
    values = (data, digest_of(b"", str(first), data), first)
    db.execute("UPDATE open_round SET data = ?, digest = ? WHERE round = ?", values)


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
        (give_a_turn_to_another_client, "the running turns are not those of the decisions"),
    ],
)
def test_a_fleet_without_rounds_is_refused_if_its_running_turns_are_damaged(
    folder: Path, damage: Callable[[Connection], object], message: str
) -> None:
    path = written_slots(folder / "fleet.turnout")
    alter(path, damage)
    with pytest.raises(StoreError, match=message):
        Scheduler.open(path)


def test_the_state_around_a_round_that_was_not_closed_cannot_be_computed(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet()
    for _ in range(3):
        play_round(scheduler, offered("a", "b", "c"))
    scheduler.choose(offered("a", "b", "c"))  # round 4 is open
    with FleetReader(scheduler.path) as reader:
        known = (journal_of(reader), reader.settings, reader.features)
        for load in (load_before, load_after):
            for number in (4, 5):
                with pytest.raises(StoreError, match=rf"round {number} was not closed in .*: check the number"):
                    load(*known, number)
        assert load_before(*known, 3).round == 2
        event, fleet = load_after(*known, 3)
        assert (event, fleet.round) == (reader.last_event, 3)
    assert fleet.state()["clients.arrived"].tolist() == state_of(scheduler).state()["clients.arrived"].tolist()


def test_features_that_a_function_computes_are_read_without_it_but_not_computed(open_fleet: OpenFleet) -> None:
    features = Features.of(Feature("load", 0.1, 10), compute=lambda known: (known["load"],), outputs=1)
    with open_fleet(features=features) as scheduler:
        play_round(scheduler, {"a": {"load": 1.0}, "b": {"load": 2.0}})
        state = packed(scheduler)
    with FleetReader(scheduler.path) as reader:
        assert packed(reader) == state
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
    open_fleet: OpenFleet, change: Callable[[dict[str, Any]], object]
) -> None:
    scheduler = open_fleet()
    play_round(scheduler, offered("a", "b", "c"))
    take_snapshot(scheduler)
    scheduler.close()
    alter(scheduler.path, lambda db: forge_snapshot(db, change))
    with pytest.raises(StoreError, match=r"is damaged \(the snapshot is malformed: .*: restore it from a backup"):
        Scheduler.open(scheduler.path)
