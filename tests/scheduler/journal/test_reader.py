"""Who follows a fleet's file reads what its scheduler did, event by event, and leaves no trace."""

from __future__ import annotations

import math
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from scheduler import restless_server
from scheduler.fleets import OpenFleet, named, offered, packed, play_round
from turnout.errors import StoreError
from turnout.scheduler import Reporter, Scheduler
from turnout.scheduler.journal import journal
from turnout.scheduler.journal.reader import FleetEvent, Follower, StaleError
from turnout.store.packing import pack_snapshot

HERE = Path(__file__).parents[1]


@contextmanager
def following(path: Path) -> Iterator[Follower]:
    with closing(Follower(path)) as follower:
        yield follower


def read_on(follower: Follower, most: int = 3) -> list[FleetEvent]:
    """All that is new, a few events at a time, taken in."""
    every = []
    while some := follower.next(most):
        assert len(some) <= most
        for event in some:
            follower.take(event)
        every += some
    return every


def memory_of(follower: Follower) -> bytes:
    """As a scheduler would pack it; the ids are compared beside."""
    return pack_snapshot({**follower.fleet.state(), "ids": ""})


def memory_anew(path: Path) -> bytes:
    with Scheduler.open(path, read_only=True) as reader:
        return pack_snapshot({**reader.state(), "ids": ""})


def play(scheduler: Scheduler, rounds: int, ids: list[str]) -> None:
    for _ in range(rounds):
        rng = np.random.default_rng(scheduler.round + 1)
        there = [client for client in ids if rng.random() < 0.9] or ids[:1]
        chosen = scheduler.choose(offered(*there, free_cpu=float(rng.uniform(0.5, 2.0))))
        for client in chosen:
            fate = rng.random()
            if fate < 0.1:
                scheduler.failed(client, "it fell")
            elif fate < 0.8:
                scheduler.report(client, float(rng.uniform(1.0, 9.0)))
        scheduler.close_round()


def test_memory_goes_along_event_by_event(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    with following(path) as follower:
        assert read_on(follower) == []
        for step in range(6):
            if step == 2:
                scheduler.register(["late-1", "late-2"])
            if step == 4:
                scheduler.retire("c1")
            play(scheduler, 5, [one for one in [*named(5), "late-1"] if not (step >= 4 and one == "c1")])
            scheduler.register([f"joined-{step}"])
            read_on(follower)
            assert memory_of(follower) == memory_anew(path)
            assert follower.fleet.ids == scheduler.clients
            assert follower.read == follower.events


def test_every_event_is_told_as_it_was(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    scheduler.register(["first", "second"])
    play(scheduler, 12, ["first", "second", "third"])
    scheduler.retire("second")
    exported = list(scheduler.export())
    with following(path) as follower:
        every = read_on(follower)
        assert [event.kind for event in every] == [{"round": "close"}.get(one["kind"], one["kind"]) for one in exported]
        closed_before: datetime | None = None
        for event, told in zip(every, exported, strict=True):
            assert event.is_new
            assert event.joined == (len(told["clients"]) if told["kind"] == "join" else 0)
            assert event.left == (1 if told["kind"] == "retire" else None)
            if told["kind"] != "round":
                assert event.closed is None
                continue
            assert event.closed is not None
            assert event.knows_available
            assert [follower.fleet.ids[row] for row in event.closed.rows.tolist()] == told["clients"]
            assert event.closed.seconds.tolist() == told["seconds"]
            assert event.offered is not None
            assert event.offered.rows.tolist() == event.closed.rows.tolist()
            opened, closed = (datetime.fromisoformat(told[word]) for word in ("opened", "closed"))
            assert (event.opened_at, event.closed_at) == (opened.timestamp(), closed.timestamp())
            if closed_before is None:
                assert math.isnan(event.between)
            else:
                assert event.between == pytest.approx((opened - closed_before).total_seconds(), abs=1e-5)
            closed_before = closed


def test_changes_are_another_number_after_every_write_and_the_same_without(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    with following(path) as follower:
        seen = [follower.changes]
        assert follower.changes == seen[0]
        for write in (
            lambda: scheduler.register(["a", "b", "c"]),
            lambda: scheduler.choose(offered("a", "b", "c")),
            lambda: scheduler.report("a", 1.0),
            lambda: scheduler.close_round(),
            lambda: scheduler.retire("b"),
        ):
            write()
            seen.append(follower.changes)
            assert follower.changes == seen[-1]
        assert len(set(seen)) == len(seen)


def test_the_open_round_and_what_was_heard_in_it(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    with following(path) as follower:
        assert follower.open_round() is None
        chosen = scheduler.choose(offered("a", "b", "c"))
        with Reporter(path) as reporter:
            reporter.report(chosen[0], 2.5, loss=0.5)
        found = follower.open_round()
        assert found is not None
        opened, turns = found
        assert opened.round == 1
        assert {turn.id: turn.kind for turn in turns} == {chosen[0]: "arrived", chosen[1]: None}
        assert follower.events == 0, "who joined with an open round joins when it is closed"
        scheduler.close_round()
        assert follower.open_round() is None
        assert [event.kind for event in read_on(follower)] == ["join", "close"]


def test_it_leaves_no_trace(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play(scheduler, 8, named(4))
    scheduler.choose(offered(*named(4)))
    before = {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}
    with following(path) as follower:
        read_on(follower)
        follower.open_round()
        with pytest.raises(StoreError, match="opened to read"), follower.journal.writing():
            pass
    after = {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}
    assert after == before


# What is no longer there


def test_whoever_forgets_a_client_makes_it_stale(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play(scheduler, 6, named(5))
    with following(path) as follower:
        read_on(follower)
        scheduler.forget("c2")
        play(scheduler, 1, ["c0", "c1", "c3"])
        with pytest.raises(StaleError, match="read it again"):
            follower.next(10)
        with pytest.raises(StaleError, match="read it again"):
            follower.next(10)
    with following(path) as anew:
        read_on(anew)
        assert "c2" not in anew.fleet.rows
        assert anew.fleet.ids == scheduler.clients
        certificate = getattr(anew.fleet.policy, "certificate")()  # noqa: B009
        np.testing.assert_array_equal(certificate.owed_units, scheduler.certificate().owed_units)


def test_a_fleet_of_everything_that_can_happen(folder: Path) -> None:
    """Clients join, leave, are forgotten, come late; memory in the end holds what the scheduler's does."""
    path = folder / "fleet.turnout"
    restless_server.play(str(path), 40)
    with following(path) as follower, Scheduler.open(path, read_only=True) as scheduler:
        assert follower.begins_after == 0
        every = read_on(follower, 20)
        assert {event.kind for event in every} == {"join", "close", "retire", "forget"}
        assert follower.fleet.ids == scheduler.clients
        assert memory_of(follower) == memory_anew(path)


def test_a_large_fleet_is_followed_from_its_snapshot(
    open_fleet: OpenFleet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "KEEP_MASKS", 3)
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play(scheduler, 9, named(5))
    scheduler.snapshot()
    play(scheduler, 4, named(6))
    with following(path) as follower:
        assert follower.fleet.round == 9
        every = read_on(follower)
        told_before = [event.kind for event in every if not event.is_new]
        assert len(told_before) == follower.begins_after
        assert told_before.count("close") == 9
        assert [event.is_new for event in every] == sorted(event.is_new for event in every)
        assert [event.knows_available for event in every if event.closed] == [False] * 9 + [True] * 4
        assert memory_of(follower) == memory_anew(path)


def test_masks_that_are_dropped_before_they_were_read_make_it_stale(
    open_fleet: OpenFleet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play(scheduler, 5, named(5))
    with following(path) as follower:
        follower.next(3)
        monkeypatch.setattr(journal, "KEEP_MASKS", 3)
        scheduler.snapshot()
        with pytest.raises(StaleError):
            follower.next(10)
    with following(path) as anew:
        read_on(anew)
        assert memory_of(anew) == memory_anew(path)


def test_masks_that_are_dropped_after_they_were_read_do_no_harm(
    open_fleet: OpenFleet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play(scheduler, 5, named(5))
    with following(path) as follower:
        read_on(follower)
        monkeypatch.setattr(journal, "KEEP_MASKS", 3)
        scheduler.snapshot()
        play(scheduler, 2, named(5))
        read_on(follower)
        assert memory_of(follower) == memory_anew(path)


# What was never a fleet, or is one no more


def test_damage_is_said_in_words_and_lets_go_of_the_file(open_fleet: OpenFleet, folder: Path) -> None:
    """An open connection left behind would be a ResourceWarning, which is an error here."""
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play_round(scheduler, offered(*named(3)))
    scheduler.close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE meta SET value = replace(value, 'rbcsf', 'rbcsx') WHERE key = 'settings'")
    with pytest.raises(StoreError, match="damaged"):
        Follower(path)


def test_an_event_that_was_changed_is_refused(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play(scheduler, 3, named(3))
    scheduler.close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE events SET data = ? WHERE seq = 1", (b'["x","y","z"]',))
    with following(path) as follower, pytest.raises(StoreError, match="event 1 is missing or not what was written"):
        follower.next(5)


@pytest.mark.parametrize("file", sorted((HERE / "data").glob("*.turnout")), ids=lambda file: file.stem)
def test_files_of_older_formats_are_followed(folder: Path, file: Path) -> None:
    path = Path(shutil.copy(file, folder))
    with following(path) as follower:
        assert read_on(follower)
        opened = follower.open_round()
        if opened is not None:  # a scheduler counts those in who will have joined when it is closed
            follower.fleet.join(opened[0].joined)
        assert memory_of(follower) == memory_anew(path)


def test_a_packed_memory_tells_apart_what_differs(open_fleet: OpenFleet) -> None:
    """Or the comparisons above would say nothing."""
    scheduler = open_fleet()
    play(scheduler, 2, named(3))
    before = packed(scheduler)
    play(scheduler, 1, named(3))
    assert packed(scheduler) != before
