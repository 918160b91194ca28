"""What is written shows; what is gone is gone; nobody is kept from writing."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dashboard.contract import SHAPES
from dashboard.readings import made_up, write_made_up
from dashboard.served import Served, play_rounds, run_store, served, small_fleet
from scheduler.fleets import named, offered
from turnout.dashboard import watch as watch_module
from turnout.dashboard.sources.fleet import FleetSource
from turnout.dashboard.views.overview import overview
from turnout.dashboard.views.queues import turns
from turnout.dashboard.views.rounds import rounds
from turnout.dashboard.watch import Watch
from turnout.errors import StoreError
from turnout.scheduler import Reporter, Scheduler
from turnout.scheduler.journal import journal
from turnout.simulator import RunPlan, play_into
from turnout.store import RoundColumns, RunStore


@contextmanager
def watching(path: Path) -> Iterator[Watch]:
    watch = Watch(path)
    try:
        yield watch
    finally:
        watch.stop()


def everything(there: Served) -> dict[str, Any]:
    """All that any route tells, of all clients and rounds."""
    told: dict[str, Any] = {}
    runs = [one["id"] for one in there.json("/api/store")["runs"]] or [None]
    for run in runs:
        which = "" if run is None else f"run={run}&"
        asked = [f"/api/{route}?{which}" for route in SHAPES if route not in ("client", "explain")]
        rows = there.json(f"/api/clients?{which}size=500")["rows"]
        for row in rows:
            asked += [f"/api/client?{which}id={quote(row['id'], safe='')}"]
        for row in rows[:3]:
            asked += [f"/api/explain?{which}id={quote(row['id'], safe='')}"]
        asked += [f"/api/queues?{which}order={order}" for order in ("id", "turns")]
        for number in range(1, (there.json(f"/api/round?{which}")["last"] or 0) + 1):
            asked += [f"/api/round?{which}number={number}"]
        for one in asked:
            answer = there.get(one)
            told[one] = json.loads(answer.body)
    told["/metrics"] = there.get("/metrics").body.decode()
    return told


# A fleet


def test_new_rounds_appear_and_the_version_rises(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=5, is_open=False)
    with served(path) as there:
        there.wait_read()
        assert not there.json("/api/store")["live"]
        with Scheduler.open(path) as scheduler:
            versions = [there.json("/api/store")["version"]]
            for rounds in (6, 7, 9):
                play_rounds(scheduler, rounds - scheduler.round, scheduler.clients)
                there.wait_rounds(rounds)
                told = there.json("/api/overview")
                assert told["about"]["rounds"] == told["round"] == rounds
                assert there.json("/api/rounds")["rows"][0]["round"] == rounds
                versions.append(told["about"]["version"])
            assert versions == sorted(set(versions))
            store = there.json("/api/store")
            assert store["live"]
            assert store["trouble"] is None
            scheduler.register(["newcomer"])
            there.until(lambda: there.json("/api/overview")["about"]["clients"] == len(scheduler.clients))
            assert there.json("/api/client?id=newcomer")["turns"] == 0
            scheduler.retire("newcomer")
            there.until(lambda: "retired" in there.json("/api/client?id=newcomer")["flags"])


def read_all(watch: Watch) -> None:
    """Look until a watch that nobody has started has read everything."""
    while watch.look():
        pass


def test_a_version_stands_for_one_state(folder: Path) -> None:
    """While nothing is written, looking at the file changes neither the state nor the numbers."""
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=8, is_open=False)
    with watching(path) as watch:  # not started: it looks only when this test tells it to

        def pages() -> list[dict[str, Any]]:
            with watch.looking() as source:
                return [
                    overview(watch, source),
                    rounds(watch, source, page=1, size=50),
                    turns(watch, source, order="owed", page=1),
                ]

        read_all(watch)
        state, before = watch.state, pages()
        assert before[0]["round"] == 8
        for _ in range(50):
            assert watch.look() is False
            assert watch.state == state
        assert pages() == before
        with Scheduler.open(path) as scheduler:
            play_rounds(scheduler, 1, scheduler.clients)
            read_all(watch)
        assert watch.version > state.version
        assert pages()[0]["round"] == 9


def test_every_change_of_the_state_has_a_version_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading, being live, trouble and their ends: no two different states share a version."""
    monkeypatch.setattr(watch_module, "SLICE", -1.0)
    path, away = folder / "fleet.turnout", folder / "away"
    small_fleet(path, rounds=30, is_open=False)
    with watching(path) as watch:
        states = [watch.state]

        def look() -> None:
            watch.look()
            if watch.state != states[-1]:
                states.append(watch.state)

        look()
        assert watch.reading is not None
        while watch.reading is not None:
            watch_module.SLICE = 1.0
            look()
        with Scheduler.open(path) as scheduler:
            play_rounds(scheduler, 1, scheduler.clients)
        look()
        assert watch.live
        monkeypatch.setattr(watch_module, "LIVE_SECONDS", 0.0)
        look()
        assert not watch.live
        path.rename(away)
        look()
        assert watch.trouble is not None
        away.rename(path)
        look()
        assert watch.trouble is None
        versions = [state.version for state in states]
        assert versions == sorted(set(versions))
        assert len(states) >= 6


def test_reports_of_the_open_round_show(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small: dict[str, Any] = {"settings": {"cohort_size": 3}, "deadline": 30.0, "allow_infeasible": True}
    with ExitStack() as opened:
        scheduler = opened.enter_context(Scheduler.open(path, **small))
        there = opened.enter_context(served(path))
        chosen = scheduler.choose(offered(*named(6)))
        there.until(lambda: there.json("/api/overview")["open"])
        assert there.json("/api/overview")["open"]["out"] == 3
        with Reporter(path) as reporter:
            reporter.report(chosen[1], 2.25, loss=0.5)
            there.until(lambda: there.json("/api/overview")["open"]["back"] == 1)
            reporter.failed(chosen[2], "no battery")
            there.until(lambda: there.json("/api/overview")["open"]["failed"] == 1)
        told = there.json("/api/round")
        rows = {row["id"]: row for row in told["rows"]}
        assert told["is_open"]
        assert [rows[one]["outcome"] for one in chosen] == ["out", "arrived", "failed"]
        assert (rows[chosen[1]]["seconds"], rows[chosen[1]]["loss"]) == (2.25, 0.5)
        assert rows[chosen[2]]["why"] == "no battery"
        scheduler.close_round()
        there.until(lambda: there.json("/api/overview")["open"] is None)
        assert not there.json("/api/round")["is_open"]


def test_an_abandoned_round_is_no_round(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=4, is_open=False)
    with served(path) as there, Scheduler.open(path) as scheduler:
        scheduler.choose(offered(*scheduler.clients[:6]))
        there.until(lambda: there.json("/api/overview")["open"])
        scheduler.abandon_round()
        there.until(lambda: there.json("/api/overview")["open"] is None)
        assert there.json("/api/round")["number"] == 4


def test_a_forgotten_client_is_nowhere_any_more(folder: Path) -> None:
    path, secret = folder / "fleet.turnout", "patient-Zoë-17"
    small_fleet(path, rounds=25, ids=[secret, *named(11)], is_open=False)
    with served(path) as there, Scheduler.open(path) as scheduler:
        there.wait_read()
        before = json.dumps(everything(there), ensure_ascii=False)
        assert before.count(secret) > 20, "or nothing is shown"
        total = there.json("/api/overview")["outcomes"]
        known = there.json(f"/api/client?id={quote(secret)}")
        assert known["mean_seconds"] > 0
        turns = known["turns"]
        scheduler.forget(secret)
        there.until(lambda: there.get(f"/api/client?id={quote(secret)}").status == 404)
        there.wait_read()
        told = everything(there)
        after = json.dumps(told, ensure_ascii=False)
        assert secret not in after
        assert "Zoë" not in after
        assert there.json(f"/api/clients?search={quote('Zoë')}")["rows"] == []
        assert "forgotten-0" in after
        left = there.json("/api/client?id=forgotten-0")
        assert set(left["times"]["seconds"]) <= {0, None}, "nor is what it told"
        assert (left["mean_seconds"], left["turns"]) == (None, turns)
        mine = [row for number in left["times"]["round"] for row in there.json(f"/api/round?number={number}")["rows"]]
        assert {row["loss"] for row in mine if row["id"] == "forgotten-0"} == {None}
        assert there.json("/api/overview")["outcomes"] == total, "its turns stay, they are the others' too"
        assert there.json("/api/overview")["about"]["rounds"] == 25
        play_rounds(scheduler, 2, named(8), eventful=False)
        there.wait_rounds(27)


def test_a_fleet_that_drops_its_masks_meanwhile_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=10, is_open=False)
    with served(path) as there, Scheduler.open(path) as scheduler:
        there.wait_read()
        monkeypatch.setattr(journal, "KEEP_AVAILABILITY_UP_TO", 3)
        with there.watch.looking():  # so that nothing is read in between
            play_rounds(scheduler, 3, scheduler.clients)
            scheduler.snapshot()
        there.wait_rounds(13)
        there.wait_read()
        assert there.get("/healthz").status == 200
        notes = [one["text"] for one in there.json("/api/overview")["warnings"] if one["level"] == "note"]
        assert any("up to round 13 is no longer on record" in note for note in notes)


def test_who_writes_is_told_and_who_died_is_not(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=3, is_open=False)
    with watching(path) as watch:
        assert watch.writer is None
        with Scheduler.open(path):
            assert watch.writer is not None
            assert f"process {os.getpid()} " in watch.writer
        assert watch.writer is None
        lock = path.with_name("fleet.turnout.lock")
        lock.write_text(lock.read_text() + f"process 4194999 on host {os.uname().nodename}\n")
        assert watch.writer is None
        lock.write_text("process 1 on host elsewhere\n")
        assert watch.writer == "process 1 on host elsewhere"
        lock.write_bytes(b"\xff\xfe")
        assert watch.writer is None


# The file


def test_a_file_that_is_gone_is_trouble_until_it_is_back(folder: Path) -> None:
    path, away = folder / "fleet.turnout", folder / "elsewhere"
    small_fleet(path, rounds=6, is_open=False)
    with served(path) as there:
        there.wait_read()
        away.mkdir()
        moved = [file.name for file in folder.glob("fleet.turnout*")]
        for name in moved:
            (folder / name).rename(away / name)
        answer = there.until(lambda: one if (one := there.get("/healthz")).status == 503 else None)
        told = json.loads(answer.body)
        assert told["status"] == "trouble"
        assert "is gone" in told["trouble"]
        assert "is gone" in there.json("/api/store")["trouble"]
        assert there.json("/api/overview")["about"]["rounds"] == 6, "what was read is still shown"
        assert there.json("/api/system")["store"]["bytes"] is None
        assert b"turnout_up 0\n" in there.get("/metrics").body
        for name in moved:
            (away / name).rename(folder / name)
        there.until(lambda: there.get("/healthz").status == 200)
        assert there.json("/api/store")["trouble"] is None
        with Scheduler.open(path) as scheduler:
            play_rounds(scheduler, 1, scheduler.clients)
        there.wait_rounds(7)


def put(made: Path, path: Path) -> None:
    """Another file in its place, at once."""
    for beside in ("-wal", "-shm", ".lock"):
        path.with_name(path.name + beside).unlink(missing_ok=True)
    made.replace(path)


def test_another_file_in_its_place_is_read(folder: Path) -> None:
    """Another fleet, then a store of runs, then a fleet again."""
    path = folder / "it.turnout"
    small_fleet(path, rounds=4, is_open=False)
    with served(path) as there:
        there.wait_read()
        small_fleet(folder / "other.turnout", rounds=7, ids=[f"new-{place}" for place in range(8)], is_open=False)
        put(folder / "other.turnout", path)
        there.wait_rounds(7)
        assert there.json("/api/clients?sort=id&order=asc")["rows"][0]["id"] == "new-0"
        with RunStore(folder / "runs.turnout") as store:
            write_made_up(store, "rbcsf", {"cohort_size": 3}, made_up(9, 10))
        put(folder / "runs.turnout", path)
        there.until(lambda: there.json("/api/store")["kind"] == "runs")
        there.wait_rounds(9)
        assert there.json("/api/overview")["about"]["run"] == 1
        small_fleet(folder / "third.turnout", rounds=2, is_open=False)
        put(folder / "third.turnout", path)
        there.until(lambda: there.json("/api/store")["kind"] == "fleet")
        there.wait_rounds(2)
        assert there.json("/api/store")["runs"] == []
        assert there.get("/healthz").status == 200


@pytest.mark.parametrize("kind", ["fleet", "runs"])
def test_rubbish_in_its_place_is_trouble_in_words(folder: Path, kind: str) -> None:
    path, good = folder / "it.turnout", folder / "good.turnout"
    if kind == "fleet":
        small_fleet(path, rounds=4, is_open=False)
        small_fleet(good, rounds=5, is_open=False)
    else:
        for place, rounds in ((path, 4), (good, 5)):
            with RunStore(place) as store:
                write_made_up(store, "rbcsf", {"cohort_size": 3}, made_up(rounds, 10))
    rubbish = folder / "rubbish"
    rubbish.write_bytes(b"this is no store at all" * 1000)
    with served(path) as there:
        there.wait_rounds(4)
        put(rubbish, path)
        there.until(lambda: there.get("/healthz").status == 503)
        for route in ("overview", "clients", "system", "round", "compare", "training"):
            answer = there.get(f"/api/{route}")
            assert answer.status == 503, route
            assert str(path) in json.loads(answer.body)["error"]
        assert there.get("/api/explain?id=0").status == 503
        assert there.json("/api/store")["trouble"]
        assert b"turnout_up 0\n" in there.get("/metrics").body
        put(good, path)
        there.until(lambda: there.get("/healthz").status == 200)
        there.wait_rounds(5)


def test_damage_that_is_met_later_is_trouble_that_stays(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=4, is_open=False)
    with served(path) as there:
        there.wait_read()
        with Scheduler.open(path) as scheduler:
            play_rounds(scheduler, 2, scheduler.clients)
            with there.watch.looking(), closing(sqlite3.connect(path)) as db, db:
                play_rounds(scheduler, 1, scheduler.clients)
                db.execute("UPDATE events SET data = zeroblob(10) WHERE seq = (SELECT MAX(seq) FROM events)")
        there.until(lambda: there.get("/healthz").status == 503)
        assert "damaged" in there.json("/api/store")["trouble"]
        told = there.json_now("/api/overview")["about"]
        assert told["rounds"] >= 4
        assert told["reading"]["done"] < told["reading"]["of"], "what is damaged was not read, and the page says so"


def test_trouble_that_stays_is_published_once(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=4, is_open=False)
    with watching(path) as watch:
        read_all(watch)
        with Scheduler.open(path) as scheduler, closing(sqlite3.connect(path)) as db, db:
            play_rounds(scheduler, 1, scheduler.clients)
            db.execute("UPDATE events SET data = zeroblob(10) WHERE seq = (SELECT MAX(seq) FROM events)")
        watch.look()
        state = watch.state
        assert "damaged" in str(state.trouble)
        for _ in range(20):
            watch.look()
            assert watch.state == state


def test_a_run_that_is_damaged_is_said_to_be_every_time(folder: Path) -> None:
    path = folder / "runs.turnout"
    with RunStore(path) as store:
        write_made_up(store, "rbcsf", {"cohort_size": 3}, made_up(5, 10), key="whole")
        write_made_up(store, "rbcsf", {"cohort_size": 3}, made_up(6, 10), key="damaged")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE chunks SET data = zeroblob(100) WHERE run = 2")
    with served(path) as there:
        for _ in range(3):
            answer = there.get("/api/overview?run=2")
            assert answer.status == 503
            assert "of run 2" in json.loads(answer.body)["error"]
        assert there.json("/api/overview?run=1")["about"]["rounds"] == 5


def test_an_error_nobody_thought_of_is_trouble_and_not_silence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=4, is_open=False)

    def break_down(*_: Any) -> None:
        raise ZeroDivisionError("nobody thought of it")

    with served(path) as there, monkeypatch.context() as broken:
        there.wait_read()
        broken.setattr(FleetSource, "catch_up", break_down)
        with Scheduler.open(path) as scheduler:
            play_rounds(scheduler, 1, scheduler.clients)
        there.until(lambda: there.get("/healthz").status == 503)
        assert "nobody thought of it" in there.json("/api/store")["trouble"]
        broken.undo()
        there.until(lambda: there.get("/healthz").status == 200)
        there.wait_rounds(5)


def test_what_is_no_store_is_refused_before_anything_is_served(folder: Path) -> None:
    with pytest.raises(StoreError, match="there is no file"):
        Watch(folder / "nothing.turnout")
    (folder / "text.turnout").write_text("hello")
    with pytest.raises(StoreError):
        Watch(folder / "text.turnout")
    with pytest.raises(StoreError):
        Watch(folder)
    with closing(sqlite3.connect(folder / "other.db")) as db, db:
        db.execute("CREATE TABLE t (x)")
    with pytest.raises(StoreError):
        Watch(folder / "other.db")


# A store of runs


def test_a_store_of_runs_that_grows(folder: Path) -> None:
    path, plan = (
        folder / "runs.turnout",
        RunPlan("rbcsf", 30, settings={"cohort_size": 3}, world_settings={"clients": 12}),
    )
    with RunStore(path) as store, served(path) as there:
        assert there.json("/api/store")["runs"] == []
        assert there.json("/api/overview")["about"]["run"] is None
        seen: list[int] = []

        def look(done: int) -> None:
            there.wait_rounds(done)
            told = there.json("/api/overview")
            assert (told["about"]["run"], told["round"], told["about"]["finished"]) == (1, done, False)
            assert (told["about"]["planned"], len(told["rounds"]["x"])) == (30, done)
            seen.append(done)

        play_into(store, plan, every=10, watch=look)
        assert seen == [10, 20, 30]
        there.until(lambda: there.json("/api/overview")["about"]["finished"])
        play_into(store, RunPlan("random", 5, world_settings={"clients": 12}))
        there.until(lambda: there.json("/api/store")["runs_total"] == 2)
        assert there.json("/api/overview")["about"]["run"] == 2, "the newest, unless one is chosen"
        assert there.json("/api/overview?run=1")["about"]["rounds"] == 30


def test_a_run_that_is_deleted_disappears(folder: Path) -> None:
    path = folder / "runs.turnout"
    stored = run_store(path, rounds=20)
    with served(path) as there, RunStore(path) as store:
        gone = stored.fast[0]
        assert there.json(f"/api/overview?run={gone}")["about"]["run"] == gone
        store.delete(gone)
        there.until(lambda: there.get(f"/api/overview?run={gone}").status == 404)
        assert gone not in [one["id"] for one in there.json("/api/store")["runs"]]
        told = there.json(f"/api/compare?run={stored.fair[0]}")
        assert gone not in [run for group in told["groups"] for run in group["runs"]]
        assert there.get("/healthz").status == 200
        store.compact()
        there.until(lambda: there.get("/healthz").status == 200)
        assert there.json(f"/api/overview?run={stored.fair[0]}")["round"] == 20


def test_only_a_few_runs_are_kept_in_memory_and_all_can_be_looked_at(folder: Path) -> None:
    path = folder / "runs.turnout"
    with RunStore(path) as store:
        for place in range(9):
            columns: RoundColumns = made_up(5 + place, 10, seed=place)
            write_made_up(store, "rbcsf", {"cohort_size": 3}, columns, key=str(place))
    with served(path) as there:
        for _ in range(2):
            for run in (1, 9, 3, 7, 5, 2, 8, 4, 6, 1):
                assert there.json(f"/api/overview?run={run}")["round"] == 4 + run
        assert len(there.watch._runs) <= watch_module.KEPT


def test_a_long_run_is_read_bit_by_bit_and_says_how_far(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "AT_ONCE", -1.0)
    monkeypatch.setattr(watch_module, "SLICE", -1.0)
    path, columns = folder / "runs.turnout", made_up(50, 10)
    with RunStore(path) as store:
        run = store.begin("long", {"policy": "rbcsf", "settings": {"cohort_size": 3}}, clients=10, code_version="test")
        for start in range(0, 50, 5):
            records = list(columns.records())[start : start + 5]
            store.append(run, RoundColumns.from_records(records, clients=10))
    with watching(path) as watch:  # which nobody has started: it reads when it is told to
        with watch.looking() as source:
            assert source is not None
            assert len(source.ledger) == 5
        told = []
        while watch.reading is not None:
            told.append(watch.reading)
            before = watch.version
            watch.look()
            assert watch.version > before
        assert told == [(done, 50) for done in range(5, 50, 5)]
        with watch.looking() as source:
            assert source is not None
            assert len(source.ledger) == 50


# Many at once


def test_many_ask_while_it_is_written(folder: Path) -> None:
    """No answer is torn: what is told of one moment fits together, and the writer is never kept waiting for long."""
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=6, is_open=False)
    done, answered = threading.Event(), Counter[int]()

    def keep_asking(there: Served, number: int, check: Callable[[Served], None]) -> None:
        while not done.is_set():
            check(there)
            answered[number] += 1

    with served(path) as there, Scheduler.open(path) as scheduler, ThreadPoolExecutor(6) as pool:
        there.wait_read()
        checks = [turns_fit, clients_fit, rounds_fit, queues_fit, turns_fit, overview_fits]
        asking = [pool.submit(keep_asking, there, number, check) for number, check in enumerate(checks)]

        def all_have_asked(times: int) -> bool:
            return any(one.done() for one in asking) or all(answered[number] >= times for number in range(len(checks)))

        try:
            there.until(lambda: all_have_asked(1))
            for round_ in range(30):
                play_rounds(scheduler, 1, scheduler.clients)
                if round_ % 10 == 4:
                    scheduler.register([f"more-{round_}"])
                if round_ == 20:
                    scheduler.forget("c3")
            there.wait_rounds(36)
            before = max(answered.values())
            there.until(lambda: all_have_asked(before + 1))
        finally:
            done.set()
        for one in asking:
            one.result()


def turns_fit(there: Served) -> None:
    told = there.json("/api/turns?order=id")
    assert len(told["ids"]) == told["about"]["clients"]
    rounds = told["about"]["rounds"]
    assert all(len(line) == rounds for line in told["counts"])
    by_round = [sum(column) for column in zip(*told["counts"], strict=True)]
    listed = there.json("/api/rounds?size=500")
    sizes = {row["round"]: row["cohort"] for row in listed["rows"]}
    assert all(sizes.get(place + 1, count) == count for place, count in enumerate(by_round))


def clients_fit(there: Served) -> None:
    told = there.json("/api/clients?size=500")
    assert told["total"] == len(told["rows"]) == told["about"]["clients"]
    for row in told["rows"]:
        if row["promised"] is not None:
            assert row["turns"] >= row["promised"] - row["owed"] - row["forfeited"] - 1e-6


def rounds_fit(there: Served) -> None:
    told = there.json("/api/rounds?size=500")
    assert [row["round"] for row in told["rows"]] == list(range(told["about"]["rounds"], 0, -1))


def queues_fit(there: Served) -> None:
    told = there.json("/api/queues?order=id")
    if not told["about"]["clients"]:  # read anew from its beginning, as somebody was forgotten
        return
    assert told["x"] == list(range(1, told["about"]["rounds"] + 1))
    assert told["owed"] is not None, told["why_not"]
    worst = [max(column) for column in zip(*told["owed"], strict=True)]
    assert worst == pytest.approx(told["curve"]["worst"], rel=1e-5)


def overview_fits(there: Served) -> None:
    told = there.json("/api/overview")
    assert told["round"] == told["about"]["rounds"] == len(told["rounds"]["x"])
    turns = sum(told["outcomes"].values())
    assert told["round"] == 0 or told["cohort"] == pytest.approx(turns / told["round"], rel=1e-5)


def test_a_store_is_written_to_while_many_look(folder: Path) -> None:
    path = folder / "runs.turnout"
    with RunStore(path) as store:
        write_made_up(store, "rbcsf", {"cohort_size": 3}, made_up(20, 10), key="first")
    done = threading.Event()
    seen: list[set[int]] = [set() for _ in range(4)]

    def keep_asking(there: Served, own: set[int]) -> None:
        while not done.is_set():
            for route in ("overview", "compare", "training", "turns"):
                told = there.json(f"/api/{route}")
                assert told["about"]["rounds"] == 20
                own.add(told["about"]["run"])

    with served(path) as there, RunStore(path) as store, ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(keep_asking, there, own) for own in seen]

        def all_have_seen(run: int) -> bool:
            return any(one.done() for one in asking) or all(run in own for own in seen)

        try:
            there.until(lambda: all_have_seen(1))
            for place in range(12):
                write_made_up(store, "rbcsf", {"cohort_size": 3}, made_up(20, 10, seed=place), key=f"more {place}")
            there.until(lambda: all_have_seen(13))
        finally:
            done.set()
        for one in asking:
            one.result()
        assert there.json("/api/store")["runs_total"] == 13


# The end


def test_a_watch_that_is_stopped_lets_go_of_everything(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=3, is_open=False)
    with caplog.at_level(logging.DEBUG, "turnout.dashboard"):
        watch = Watch(path)
        watch.start()
        watch.stop()
        watch.stop()
        assert watch.stopped
        assert not any(thread.name == "turnout-dashboard" for thread in threading.enumerate())
        with pytest.raises(StoreError), watch.looking():
            pass
    assert caplog.records == []
