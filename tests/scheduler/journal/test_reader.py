"""A reader of a fleet's file finds what its scheduler did, event by event, and leaves no trace."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from scheduler import restless_server
from scheduler.fleets import OpenFleet, named, offered, packed, play_round
from turnout.errors import StoreError
from turnout.scheduler import KINDS, FleetEvent, FleetReader, Follower, RecordedOffer, Reporter, Scheduler, StaleError
from turnout.scheduler.journal import journal
from turnout.store import RunStore
from turnout.store.packing import pack_snapshot

HERE = Path(__file__).parents[1]


@contextmanager
def following(path: Path) -> Iterator[Follower]:
    with FleetReader(path) as reader:
        yield reader.follow()


def read_on(follower: Follower, most: int = 3) -> list[FleetEvent]:
    """All that is new, a few events at a time, taken in."""
    every = []
    while some := follower.poll(most):
        assert len(some) <= most
        for event in some:
            follower.apply(event)
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
            with FleetReader(path) as reader:
                assert follower.position == reader.last_event


def test_every_event_is_read_as_it_was(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    scheduler.register(["first", "second"])
    play(scheduler, 12, ["first", "second", "third"])
    scheduler.retire("second")
    exported = list(scheduler.export())
    with FleetReader(path) as reader:
        every = read_on(reader.follow())
        assert [event.number for event in every] == list(range(1, len(exported) + 1))
        assert_alike(every, list(reader.events()))
        for event, told in zip(every, exported, strict=True):
            assert event.kind == {"round": "closed", "join": "joined", "retire": "retired"}[told["kind"]]
            assert list(event.clients) == (told["clients"] if "clients" in told else [told["client"]])
            assert [reader.ids[row] for row in event.rows] == list(event.clients)
            assert (event.closed is None) == (told["kind"] != "round")


def assert_alike(some: list[FleetEvent], others: list[FleetEvent]) -> None:
    """The same events, to the byte."""
    assert [(one.number, one.kind, one.clients, one.rows, one.stored) for one in some] == [
        (one.number, one.kind, one.clients, one.rows, one.stored) for one in others
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
    rounds = [event for event in scheduler.export() if event["kind"] == "round"]
    with FleetReader(path) as reader:
        found = list(reader.closed_rounds())
        assert [closed.round for closed in found] == list(range(1, 23))
        assert [closed.round for closed in reader.closed_rounds(after=19)] == [20, 21, 22]
        for closed, told in zip(found, rounds, strict=True):
            assert list(closed.clients) == told["clients"]
            assert [reader.ids[row] for row in closed.rows.tolist()] == told["clients"]
            assert [KINDS[kind] for kind in closed.kinds.tolist()] == told["outcomes"]
            assert set(closed.outcomes.tolist()) <= {"arrived", "late", "failed"}
            assert closed.seconds.tolist() == told["seconds"]
            assert closed.contexts.tolist() == told["contexts"]
            assert closed.wanted == told["wanted"]
            assert closed.available is not None
            assert closed.available.sum() == told["available"]
            assert closed.opened == datetime.fromisoformat(told["opened"])
            assert closed.closed == datetime.fromisoformat(told["closed"])
            late = [{"client": one.client, "round": one.round, "seconds": one.seconds} for one in closed.late]
            assert late == told["late"]
            assert [reader.ids[one.row] for one in closed.late] == [one.client for one in closed.late]
        assert found[20].losses is not None
        assert np.nanmax(found[20].losses) == 0.5
        assert found[0].losses is None
        assert [(one.client, one.seconds) for one in found[21].late] == [(chosen[1], 17.0)]


def test_a_reader_knows_what_its_scheduler_knows(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(model_size=30.0), folder / "fleet.turnout"
    with FleetReader(path) as reader:
        assert (reader.ids, reader.round, reader.last_event, reader.open_round()) == ([], 0, 0, None)
        assert [*reader.events(), *reader.closed_rounds(), *reader.offers()] == []
        scheduler.register(named(5))
        play(scheduler, 4, named(5))
        scheduler.choose(offered(*named(4), "new"))
        assert reader.path == path
        assert reader.settings == scheduler.settings
        assert reader.features.declared == scheduler.features.declared
        assert (reader.ids, reader.round) == (named(5), 4), "whoever is new in an open round joins when it is closed"
        assert reader.turns(2) == scheduler.turns(2)
        state = reader.state()
        assert pack_snapshot(state.state()) == packed(scheduler)
        assert state.opened is not None
        assert state.opened.round == 5


def test_every_offer_is_read_that_is_on_record(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play(scheduler, 6, named(5))
    scheduler.choose(offered(*named(5)))
    with FleetReader(path) as reader:
        offers = list(reader.offers())
        assert [offer.round for offer in offers] == list(range(1, 8)), "with that of the open round"
        assert reader.offer(8) is None
        for offer in offers:
            again = reader.offer(offer.round)
            assert again is not None
            assert_same_offer(offer, again)
        for closed, offer in zip(reader.closed_rounds(), offers[:6], strict=True):
            assert offer.rows.tolist() == closed.rows.tolist()
            assert closed.available is not None
            assert offer.available.tolist() == closed.available.tolist()
            whole = offer.whole_contexts()
            assert whole is not None
            assert whole[closed.rows].tolist() == closed.contexts.tolist()


def assert_same_offer(one: RecordedOffer, other: RecordedOffer) -> None:
    assert (one.round, one.rows.tolist(), list(one.reasons)) == (other.round, other.rows.tolist(), list(other.reasons))
    assert one.contexts is not None
    assert other.contexts is not None
    assert one.contexts.tolist() == other.contexts.tolist()


def test_events_are_read_from_any_number_on(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    for step in range(4):
        scheduler.register([f"joined-{step}-a", f"joined-{step}-b"])
        play(scheduler, 2, named(3))
    with FleetReader(path) as reader:
        every = list(reader.events())
        for after in range(len(every) + 1):
            assert_alike(list(reader.events(after)), every[after:])


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


def test_a_writer_in_another_process_is_followed_round_by_round(folder: Path) -> None:
    """The writer waits for a line after each round: it never gets ahead of what is checked here."""
    path = folder / "fleet.turnout"
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        with FleetReader(path) as reader:
            follower = reader.follow()
            assert follower.poll() == []
            for round_ in range(1, 6):
                print("play", file=writer.stdin, flush=True)
                cohort = writer.stdout.readline().split()
                events = read_on(follower)
                assert [event.kind for event in events] == (["joined"] if round_ == 1 else []) + ["closed"]
                assert events[-1].closed is not None
                assert list(events[-1].closed.clients) == cohort
                assert reader.round == follower.fleet.round == round_
            assert memory_of(follower) == memory_anew(path)
        writer.stdin.close()
        assert writer.wait() == 0


WRITER = """
import sys
from turnout.scheduler import Scheduler
with Scheduler.open(sys.argv[1], settings={"cohort_size": 2}, deadline=10.0, allow_infeasible=True) as scheduler:
    print("open", flush=True)
    for _ in sys.stdin:
        cohort = scheduler.choose({name: {"free_cpu": 1.0, "bandwidth": 2.0} for name in ("a", "b", "c")})
        scheduler.report_many(dict.fromkeys(cohort, 1.5))
        scheduler.close_round()
        print(*cohort, flush=True)
"""


def test_changes_are_another_number_after_every_write_and_the_same_without(open_fleet: OpenFleet, folder: Path) -> None:
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


def test_the_open_round_and_what_was_heard_in_it(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    with FleetReader(path) as reader:
        assert reader.open_round() is None
        chosen = scheduler.choose(offered("a", "b", "c"))
        with Reporter(path) as reporter:
            reporter.report(chosen[0], 2.5, loss=0.5)
        found = reader.open_round()
        assert found is not None
        opened, turns = found
        assert opened.round == 1
        assert {turn.id: turn.kind for turn in turns} == {chosen[0]: "arrived", chosen[1]: None}
        assert reader.last_event == 0, "whoever joined with an open round joins when it is closed"
        scheduler.close_round()
        assert reader.open_round() is None
        assert [event.kind for event in reader.events()] == ["joined", "closed"]


def test_it_leaves_no_trace(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play(scheduler, 8, named(4))
    scheduler.choose(offered(*named(4)))
    before = {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}
    with FleetReader(path) as reader:
        read_on(reader.follow())
        reader.open_round()
        assert len(list(reader.closed_rounds())) == 8
        assert len(list(reader.offers())) == 9
        reader.state()
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
            follower.poll(10)
        with pytest.raises(StaleError, match="read it again"):
            follower.poll(10)
    with following(path) as anew:
        read_on(anew)
        assert "c2" not in anew.fleet.rows
        assert anew.fleet.ids == scheduler.clients
        certificate = getattr(anew.fleet.policy, "certificate")()  # noqa: B009
        np.testing.assert_array_equal(certificate.owed_units, scheduler.certificate().owed_units)


def test_of_a_forgotten_client_nothing_is_read_but_its_turns(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    scheduler.register(named(4))
    play(scheduler, 9, named(4))
    scheduler.forget("c2")
    with FleetReader(path) as reader:
        assert reader.ids == scheduler.clients == ["c0", "c1", "forgotten-2", "c3"]
        forgotten = [event for event in reader.events() if event.kind == "forgotten"]
        assert [(event.clients, event.rows) for event in forgotten] == [(("forgotten-2",), (2,))]
        taken = 0
        for closed in reader.closed_rounds():
            assert "c2" not in closed.clients
            own = closed.rows == 2
            taken += int(own.sum())
            assert not closed.seconds[own].any()
            assert not closed.contexts[own].any()
        assert taken > 0
        assert taken == sum(turn.row == 2 for round_ in range(1, 10) for turn in scheduler.turns(round_))


def test_a_fleet_of_everything_that_can_happen(folder: Path) -> None:
    """Clients join, leave, are forgotten, come late; memory in the end holds what the scheduler's does."""
    path = folder / "fleet.turnout"
    restless_server.play(str(path), 40)
    with following(path) as follower, Scheduler.open(path, read_only=True) as scheduler:
        assert follower.starts_after == 0
        every = read_on(follower, 20)
        assert {event.kind for event in every} == {"joined", "closed", "retired", "forgotten"}
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
        before = [event.kind for event in every if not follower.is_ahead(event.number)]
        assert len(before) == follower.starts_after
        assert before.count("closed") == 9
        rounds = [event.closed for event in every if event.closed]
        assert [closed.available is not None for closed in rounds] == [False] * 9 + [True] * 4
        assert [set(closed.clients) <= set(named(6)) for closed in rounds] == [True] * 13
        assert memory_of(follower) == memory_anew(path)


def test_masks_that_are_dropped_before_they_were_read_make_it_stale(
    open_fleet: OpenFleet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play(scheduler, 5, named(5))
    with following(path) as follower:
        follower.poll(3)
        monkeypatch.setattr(journal, "KEEP_MASKS", 3)
        scheduler.snapshot()
        with pytest.raises(StaleError):
            follower.poll(10)
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
        FleetReader(path)


def test_an_event_that_was_changed_is_refused(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, path = open_fleet(), folder / "fleet.turnout"
    play(scheduler, 3, named(3))
    scheduler.close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE events SET data = ? WHERE seq = 1", (b'["x","y","z"]',))
    with following(path) as follower, pytest.raises(StoreError, match="event 1 is missing or not what was written"):
        follower.poll(5)
    with FleetReader(path) as reader, pytest.raises(StoreError, match="event 1 is missing or not what was written"):
        list(reader.closed_rounds())


@pytest.mark.parametrize(
    ("make", "refusal"),
    [
        (lambda _: None, "there is no fleet at .*: check the path"),
        (lambda path: path.write_bytes(b"x" * 2000), "is not a SQLite file"),
        (lambda path: path.write_bytes(b""), "has 0 bytes, too few for a turnout fleet"),
        (lambda path: RunStore(path).close(), "is a SQLite file, but not a turnout fleet"),
        (lambda path: path.mkdir(), "cannot be used"),
    ],
    ids=["nothing", "text", "empty", "store of runs", "folder"],
)
def test_what_is_no_fleet_is_refused(folder: Path, make: Callable[[Path], object], refusal: str) -> None:
    path = folder / "fleet.turnout"
    make(path)
    with pytest.raises(StoreError, match=refusal):
        FleetReader(path)


def test_a_reader_that_was_closed_is_refused(open_fleet: OpenFleet, folder: Path) -> None:
    play(open_fleet(), 1, named(3))
    reader = FleetReader(str(folder / "fleet.turnout"))
    reader.close()
    reader.close()
    with pytest.raises(StoreError, match="cannot be used"):
        reader.ids  # noqa: B018


@pytest.mark.parametrize("file", sorted((HERE / "data").glob("*.turnout")), ids=lambda file: file.stem)
def test_files_of_older_formats_are_read_and_followed(folder: Path, file: Path) -> None:
    path = Path(shutil.copy(file, folder))
    with FleetReader(path) as reader, Scheduler.open(path, read_only=True) as scheduler:
        follower = reader.follow()
        assert_alike(read_on(follower), list(reader.events()))
        rounds = [event for event in scheduler.export() if event["kind"] == "round"]
        assert [list(closed.clients) for closed in reader.closed_rounds()] == [told["clients"] for told in rounds]
        assert [closed.seconds.tolist() for closed in reader.closed_rounds()] == [told["seconds"] for told in rounds]
        opened = reader.open_round()
        assert reader.round == follower.fleet.round == scheduler.round - (opened is not None)
        assert [offer.round for offer in reader.offers()] == [
            round_ for round_ in range(1, scheduler.round + 1) if reader.offer(round_) is not None
        ]
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
