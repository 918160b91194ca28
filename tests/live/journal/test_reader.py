"""A reader finds in a fleet's file what its scheduler did, event by event, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from live import restless_server
from live.fleets import OpenFleet, exported, named, offered, packed, play_round, rows_of, take_snapshot
from live.forging import alter
from narrowing import known
from postgres import tables
from turnout.errors import StoreError
from turnout.lab import RunStore
from turnout.live import Features, FleetEvent, FleetReader, Reporter, Scheduler
from turnout.live._internals import KINDS, StaleError, forget_in_steps
from turnout.live.journal import changes
from turnout.live.reader import Follower
from turnout.live.turns.records import RecordedOffer
from turnout.storage.encoding.packing import pack_snapshot

HERE = Path(__file__).parents[1]


@contextmanager
def follow(path: Path) -> Iterator[Follower]:
    with FleetReader(path) as reader:
        yield reader.follow()


def apply_new_events(follower: Follower, limit: int = 3) -> list[FleetEvent]:
    """Polls and applies all new events, at most `limit` at a time, and returns them."""
    events = []
    while polled := follower.poll(limit):
        assert len(polled) <= limit
        for event in polled:
            follower.apply(event)
        events += polled
    return events


def state_of(follower: Follower) -> bytes:
    """Returns the packed state without the ids, which tests compare separately."""
    return pack_snapshot({**follower.fleet.state(), "ids": ""})


def loaded_state(path: Path) -> bytes:
    with FleetReader(path) as reader:
        return pack_snapshot({**reader.state().state(), "ids": ""})


def play(scheduler: Scheduler, rounds: int, ids: list[str]) -> None:
    for _ in range(rounds):
        rng = np.random.default_rng(scheduler.round + 1)
        available = [client for client in ids if rng.random() < 0.9] or ids[:1]
        chosen = scheduler.choose(offered(*available, free_cpu=float(rng.uniform(0.5, 2.0))))
        for client in chosen:
            draw = rng.random()
            if draw < 0.1:
                scheduler.report_failure(client, "battery empty")
            elif draw < 0.8:
                scheduler.report(client, float(rng.uniform(1.0, 9.0)))
        scheduler.close_round()


def test_a_follower_has_the_state_of_the_scheduler_after_every_event(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    with follow(path) as follower:
        assert apply_new_events(follower) == []
        for step in range(6):
            if step == 2:
                scheduler.register(["late-1", "late-2"])
            if step == 4:
                scheduler.retire("c1")
            play(scheduler, 3, [client for client in [*named(5), "late-1"] if not (step >= 4 and client == "c1")])
            scheduler.register([f"joined-{step}"])
            apply_new_events(follower)
            assert state_of(follower) == loaded_state(path)
            assert follower.fleet.ids == scheduler.clients
            with FleetReader(path) as reader:
                assert follower.position == reader.last_event


def test_every_event_is_read_as_it_was_exported_from_any_number_on(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    scheduler.register(["first", "second"])
    play(scheduler, 12, ["first", "second", "third"])
    scheduler.retire("second")
    lines = exported(scheduler)
    with FleetReader(path) as reader:
        events = apply_new_events(reader.follow())
        assert [event.number for event in events] == list(range(1, len(lines) + 1))
        for after in range(len(events) + 1):
            assert_same_events(list(reader.events(after)), events[after:])
        for event, entry in zip(events, lines, strict=True):
            assert event.kind == {"round": "closed", "join": "joined", "retire": "retired"}[entry["kind"]]
            assert list(event.clients) == (entry["clients"] if "clients" in entry else [entry["client"]])
            assert [reader.clients[row] for row in event.rows] == list(event.clients)
            assert (event.closed is None) == (entry["kind"] != "round")


def assert_same_events(left: list[FleetEvent], right: list[FleetEvent]) -> None:
    """Asserts that two lists of events are equal, including the stored bytes."""
    assert [(event.number, event.kind, event.clients, event.rows, event.stored) for event in left] == [
        (event.number, event.kind, event.clients, event.rows, event.stored) for event in right
    ]


def test_a_closed_round_is_read_as_the_scheduler_exports_it(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play(scheduler, 20, named(5))
    chosen = scheduler.choose(offered(*named(5)))
    scheduler.report(chosen[0], 2.0, loss=0.5)
    scheduler.close_round(after=5.0)
    with Reporter(path) as reporter:
        reporter.report(chosen[1], 17.0)
    play(scheduler, 1, named(5))
    rounds = [event for event in exported(scheduler) if event["kind"] == "round"]
    with FleetReader(path) as reader:
        result = list(reader.closed_rounds())
        assert [closed.round for closed in result] == list(range(1, 23))
        assert [closed.round for closed in reader.closed_rounds(after=19)] == [20, 21, 22]
        for closed, entry in zip(result, rounds, strict=True):
            assert list(closed.clients) == entry["clients"]
            assert [reader.clients[row] for row in closed.rows.tolist()] == entry["clients"]
            assert [KINDS[kind] for kind in closed.kinds.tolist()] == entry["outcomes"]
            assert set(closed.outcomes.tolist()) <= {"arrived", "late", "failed"}
            assert closed.seconds.tolist() == entry["seconds"]
            assert closed.contexts.tolist() == entry["contexts"]
            assert closed.target_size == entry["target_size"]
            assert known(closed.available).sum() == entry["available"]
            assert closed.opened == datetime.fromisoformat(entry["opened"])
            assert closed.closed == datetime.fromisoformat(entry["closed"])
            late = [{"client": late.client, "round": late.round, "seconds": late.seconds} for late in closed.late]
            assert late == entry["late"]
            assert [reader.clients[late.row] for late in closed.late] == [late.client for late in closed.late]
        assert np.nanmax(known(result[20].losses)) == 0.5
        assert result[0].losses is None
        assert [(late.client, late.seconds) for late in result[21].late] == [(chosen[1], 17.0)]


def test_a_reader_has_the_data_of_its_scheduler(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(model_size=30.0), folder / "fleet.turnout"
    with FleetReader(path) as reader:
        assert (reader.clients, reader.round, reader.last_event, reader.open_round()) == ([], 0, 0, None)
        assert [*reader.events(), *reader.closed_rounds(), *reader.offers()] == []
        scheduler.register(named(5))
        play(scheduler, 4, named(5))
        scheduler.choose(offered(*named(4), "new"))
        assert reader.path == path
        assert reader.settings == scheduler.settings
        assert reader.features.declared == Features().declared
        assert (reader.clients, reader.round) == (named(5), 4), (
            "a client that is new in the open round joins when it is closed"
        )
        assert reader.history(round=2) == scheduler.history(round=2)
        assert [reader.explain("c0", number) for number in (3, 5)] == [scheduler.explain("c0", n) for n in (3, 5)]
        state = reader.state()
        assert pack_snapshot(state.state()) == packed(scheduler)
        assert known(state.opened).round == 5


def test_every_recorded_offer_is_read(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play(scheduler, 6, named(5))
    scheduler.choose(offered(*named(5)))
    with FleetReader(path) as reader:
        offers = list(reader.offers())
        assert [offer.round for offer in offers] == list(range(1, 8)), "the offer of the open round is included"
        assert reader.offer(8) is None
        for offer in offers:
            single = known(reader.offer(offer.round))
            assert_same_offer(offer, single)
        for closed, offer in zip(reader.closed_rounds(), offers[:6], strict=True):
            assert offer.rows.tolist() == closed.rows.tolist()
            assert offer.available.tolist() == known(closed.available).tolist()
            contexts = known(offer.whole_contexts())
            assert contexts[closed.rows].tolist() == closed.contexts.tolist()


def test_offers_with_a_client_that_is_being_forgotten_are_not_read(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet()
    for clients in (["a", "b"], ["b", "secret-phone"], ["a", "b"]):
        play_round(scheduler, offered(*clients))
    steps = forget_in_steps(scheduler, "secret-phone")
    with FleetReader(scheduler.path) as reader:
        assert [offer.round for offer in reader.offers()] == [1, 2, 3]
        next(steps)
    assert rows_of(scheduler.path, "SELECT round FROM offers") == [(1,), (2,), (3,)]
    with FleetReader(scheduler.path) as reader:
        assert [offer.round for offer in reader.offers()] == [1, 3]
        assert reader.offer(2) is None
    for _ in steps:
        pass
    assert rows_of(scheduler.path, "SELECT round FROM offers") == [(1,), (3,)]


def assert_same_offer(left: RecordedOffer, right: RecordedOffer) -> None:
    assert (left.round, left.rows.tolist()) == (right.round, right.rows.tolist())
    assert {name: values.tolist() for name, values in left.reasons.items()} == {
        name: values.tolist() for name, values in right.reasons.items()
    }
    assert left.contexts is not None
    assert right.contexts is not None
    assert left.contexts.tolist() == right.contexts.tolist()


def test_an_iterator_sees_one_state_of_the_file(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play(scheduler, 3, named(3))
    with FleetReader(path) as reader:
        rounds = []
        for closed in reader.closed_rounds():
            rounds.append(closed.round)
            play(scheduler, 1, named(3))
            assert reader.round == 3
        assert rounds == [1, 2, 3]
        assert reader.round == 6
        with reader.reading():
            assert reader.round == 6
            play(scheduler, 1, named(3))
            assert (reader.round, len(list(reader.closed_rounds()))) == (6, 6)
        assert reader.round == 7


def test_the_number_of_changes_differs_after_every_write_and_only_then(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    with FleetReader(path) as reader:
        seen = [reader.changes]
        assert reader.changes == seen[0]
        for write in (
            lambda: scheduler.register(["a", "b", "c"]),
            lambda: scheduler.choose(offered("a", "b", "c")),
            lambda: scheduler.report("a", 1.0),
            lambda: scheduler.close_round(),
            lambda: scheduler.retire("b"),
        ):
            write()
            seen.append(reader.changes)
            assert reader.changes == seen[-1]
        assert len(set(seen)) == len(seen)


def test_the_open_round_is_read_with_its_reports(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    with FleetReader(path) as reader:
        assert reader.open_round() is None
        chosen = scheduler.choose(offered("a", "b", "c"))
        with Reporter(path) as reporter:
            reporter.report(chosen[0], 2.5, loss=0.5)
        result = known(reader.open_round())
        opened, turns = result
        assert opened.round == 1
        assert {turn.id: turn.kind for turn in turns} == {chosen[0]: "arrived", chosen[1]: None}
        assert reader.last_event == 0, "clients that are new in the open round join when it is closed"
        scheduler.close_round()
        assert reader.open_round() is None
        assert [event.kind for event in reader.events()] == ["joined", "closed"]


def test_reading_does_not_change_the_files(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play(scheduler, 8, named(4))
    scheduler.choose(offered(*named(4)))
    before = {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}
    with FleetReader(path) as reader:
        apply_new_events(reader.follow())
        reader.open_round()
        assert len(list(reader.closed_rounds())) == 8
        assert len(list(reader.offers())) == 9
        reader.state()
    after = {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}
    assert after == before


# Data that was removed from the file


def test_a_follower_is_stale_after_a_client_was_forgotten(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play(scheduler, 6, named(5))
    with follow(path) as follower:
        apply_new_events(follower)
        scheduler.forget("c2")
        play(scheduler, 1, ["c0", "c1", "c3"])
        with pytest.raises(StaleError, match="read it again"):
            follower.poll(10)
        with pytest.raises(StaleError, match="read it again"):
            follower.poll(10)
    with follow(path) as new:
        apply_new_events(new)
        assert "c2" not in new.fleet.rows
        assert new.fleet.ids == scheduler.clients
        certificate = known(new.fleet.policy.certificate())
        np.testing.assert_array_equal(certificate.owed_units, scheduler.certificate().owed_units)


def test_only_the_turns_of_a_forgotten_client_are_read(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    scheduler.register(named(4))
    play(scheduler, 9, named(4))
    scheduler.forget("c2")
    with FleetReader(path) as reader:
        assert reader.clients == scheduler.clients == ["c0", "c1", "forgotten-2", "c3"]
        forgotten = [event for event in reader.events() if event.kind == "forgotten"]
        assert [(event.clients, event.rows) for event in forgotten] == [(("forgotten-2",), (2,))]
        taken = 0
        for closed in reader.closed_rounds():
            assert "c2" not in closed.clients
            forgotten_turn = closed.rows == 2
            taken += int(forgotten_turn.sum())
            assert not closed.seconds[forgotten_turn].any()
            assert not closed.contexts[forgotten_turn].any()
        assert taken > 0
        assert taken == sum(turn.row == 2 for round_ in range(1, 10) for turn in scheduler.history(round=round_))


@pytest.mark.parametrize(
    "options", [restless_server.SETTINGS, restless_server.RBCSF_SETTINGS], ids=["fair-pace", "rbcsf"]
)
def test_a_fleet_with_every_kind_of_event_is_followed(folder: Path, options: dict[str, Any]) -> None:
    path = folder / "fleet.turnout"
    restless_server.play(str(path), 20, options=options)
    with follow(path) as follower, FleetReader(path) as reader:
        assert follower.starts_after == 0
        events = apply_new_events(follower, 20)
        assert {event.kind for event in events} == {"joined", "closed", "retired", "forgotten"}
        assert follower.fleet.ids == reader.clients
        assert_same_state(follower, reader)


def assert_same_state(follower: Follower, reader: FleetReader) -> None:
    """Compares the state of a follower, which has applied all events, with that of a reader."""
    if reader.settings.policy == "rbcsf":
        assert state_of(follower) == loaded_state(reader.path)
        return
    # The fleet-wide regression is the same up to rounding errors, but the predictions of the rounds before a client
    # was forgotten used what it had reported, which is in the file no more.
    followed, loaded = follower.fleet.state(), reader.state().state()
    for key in followed.keys() - {"clients.context_errors"}:
        np.testing.assert_allclose(followed[key], loaded[key], rtol=1e-9, atol=1e-9, err_msg=key)
    assert loaded.keys() - followed.keys() == {"ids"}


def test_a_large_fleet_is_followed_from_its_snapshot(open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "KEEP_AVAILABILITY_UP_TO", 3)
    scheduler = open_fleet()
    path = scheduler.path
    play(scheduler, 9, named(5))
    take_snapshot(scheduler)
    play(scheduler, 4, named(6))
    with follow(path) as follower:
        assert follower.fleet.round == 9
        events = apply_new_events(follower)
        before = [event.kind for event in events if not follower.is_ahead(event.number)]
        assert len(before) == follower.starts_after
        assert before.count("closed") == 9
        rounds = [event.closed for event in events if event.closed]
        assert [closed.available is not None for closed in rounds] == [False] * 9 + [True] * 4
        assert [set(closed.clients) <= set(named(6)) for closed in rounds] == [True] * 13
        assert state_of(follower) == loaded_state(path)


@pytest.mark.parametrize("has_read", [True, False])
def test_a_follower_is_stale_only_if_availability_was_dropped_before_it_was_read(
    open_fleet: OpenFleet, folder: Path, monkeypatch: pytest.MonkeyPatch, has_read: bool
) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play(scheduler, 5, named(5))
    with FleetReader(path) as reader:
        follower = reader.follow()
        _ = apply_new_events(follower) if has_read else follower.poll(3)
        monkeypatch.setattr(changes, "KEEP_AVAILABILITY_UP_TO", 3)
        take_snapshot(scheduler)
        play(scheduler, 2, named(5))
        if not has_read:
            with pytest.raises(StaleError):
                follower.poll(10)
            follower = reader.follow()
        apply_new_events(follower)
        assert state_of(follower) == loaded_state(path)


# Files that are damaged or no fleets


def test_a_damaged_file_is_refused_and_closed(open_fleet: OpenFleet, folder: Path) -> None:
    """A connection that is left open raises a ResourceWarning, which is an error in tests."""
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play_round(scheduler, offered(*named(3)))
    scheduler.close()
    alter(path, "UPDATE meta SET value = replace(value, 'fair-pace', 'fair-pact') WHERE key = 'settings'")
    with pytest.raises(StoreError, match="damaged"):
        FleetReader(path)


def test_a_changed_event_is_refused(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play(scheduler, 3, named(3))
    scheduler.close()
    with tables(path) as db:
        db.execute("UPDATE events SET data = ? WHERE seq = 1", (b'["x","y","z"]',))
    with follow(path) as follower, pytest.raises(StoreError, match="event 1 is missing or does not match its digest"):
        follower.poll(5)
    with (
        FleetReader(path) as reader,
        pytest.raises(StoreError, match="event 1 is missing or does not match its digest"),
    ):
        list(reader.closed_rounds())


@pytest.mark.parametrize(
    ("make", "refusal"),
    [
        (lambda _: None, "there is no fleet at .*: check the path"),
        *(
            pytest.param(*case, marks=pytest.mark.files)
            for case in (
                (lambda path: path.write_bytes(b"x" * 2000), "is not a SQLite file"),
                (lambda path: path.write_bytes(b""), "has 0 bytes, too few for a turnout fleet"),
                (lambda path: RunStore(path).close(), "is a store of runs, not a fleet"),
                (lambda path: path.mkdir(), "is a folder, not a file"),
            )
        ),
    ],
    ids=["nothing", "text", "empty", "store of runs", "folder"],
)
def test_a_file_that_is_no_fleet_is_refused(folder: Path, make: Callable[[Path], object], refusal: str) -> None:
    path = folder / "fleet.turnout"
    make(path)
    with pytest.raises(StoreError, match=refusal):
        FleetReader(path)


def test_a_closed_reader_cannot_be_used(open_fleet: OpenFleet, folder: Path) -> None:
    play(open_fleet(), 1, named(3))
    reader = FleetReader(str(folder / "fleet.turnout"))
    reader.close()
    reader.close()
    with pytest.raises(StoreError, match="was closed: open it again"):
        reader.clients  # noqa: B018
