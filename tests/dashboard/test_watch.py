"""The watch follows every change of a file, reports errors, and never blocks a writer."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dashboard.contract import SHAPES
from dashboard.readings import random_columns, write_random_run
from dashboard.served import Served, play_rounds, run_store, served, served_fleet, small_fleet, watching
from live.fleets import named, offered, take_snapshot
from live.forging import alter
from turnout.dashboard import watch as watch_module
from turnout.dashboard.app import view_data
from turnout.dashboard.sources import fleet as fleet_module
from turnout.dashboard.sources.fleet import FleetSource
from turnout.dashboard.views.clients import turns
from turnout.dashboard.views.overview import overview
from turnout.dashboard.views.rounds import rounds
from turnout.dashboard.watch import Watch
from turnout.errors import StoreError
from turnout.lab import RoundColumns, RunPlan, RunStore, play_into
from turnout.live import FleetReader, Reporter, Scheduler
from turnout.live._internals import explain_closed_round
from turnout.live.journal import changes
from turnout.policies.explain.explanation import Explanation
from turnout.storage.files.lock import LINE
from turnout.web.errors import UNREADABLE


def everything(server: Served) -> dict[str, Any]:
    """Returns the responses of all routes, for all clients and rounds."""
    data: dict[str, Any] = {}
    runs = [run["id"] for run in server.json("/api/store")["runs"]] or [None]
    for run in runs:
        query = "" if run is None else f"run={run}&"
        paths = [f"/api/{route}?{query}" for route in SHAPES if route not in ("client", "explain")]
        rows = server.json(f"/api/clients?{query}size=500")["rows"]
        for row in rows:
            paths += [f"/api/client?{query}id={quote(row['id'], safe='')}"]
        for row in rows[:3]:
            paths += [f"/api/explain?{query}id={quote(row['id'], safe='')}"]
        paths += [f"/api/turns?{query}order={order}" for order in ("id", "turns")]
        for number in range(1, (server.json(f"/api/round?{query}")["last"] or 0) + 1):
            paths += [f"/api/round?{query}number={number}"]
        for path in paths:
            data[path] = json.loads(server.get(path).body)
    data["/metrics"] = server.get("/metrics").body.decode()
    return data


# A fleet


def test_new_rounds_appear_and_increase_the_version(folder: Path) -> None:
    with served_fleet(folder, 5, is_open=False) as server:
        assert not server.json("/api/store")["live"]
        with Scheduler.open(server.path) as scheduler:
            versions = [server.json("/api/store")["version"]]
            for rounds in (6, 7, 9):
                play_rounds(scheduler, rounds - scheduler.round, scheduler.clients)
                server.wait_rounds(rounds)
                data = server.json("/api/overview")
                assert data["about"]["rounds"] == data["round"] == rounds
                assert server.json("/api/rounds")["rows"][0]["round"] == rounds
                versions.append(data["about"]["version"])
            assert versions == sorted(set(versions))
            store = server.json("/api/store")
            assert store["live"]
            assert store["last_error"] is None
            scheduler.register(["newcomer"])
            server.until(lambda: server.json("/api/overview")["about"]["clients"] == len(scheduler.clients))
            assert server.json("/api/client?id=newcomer")["turns"] == 0
            scheduler.retire("newcomer")
            server.until(lambda: "retired" in server.json("/api/client?id=newcomer")["flags"])


def read_all(watch: Watch) -> None:
    """Polls a watch without a thread until it has read everything."""
    while watch.poll():
        pass


def test_polling_an_unchanged_file_keeps_the_state(folder: Path) -> None:
    """Polling changes neither the state nor the data while nothing is written."""
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=8, is_open=False)
    with watching(path) as watch:  # not started: only this test polls

        def pages() -> list[dict[str, Any]]:
            with watch.locked_source() as source:
                return [view_data(view, watch, source) for view in (overview, rounds, turns)]

        read_all(watch)
        state, before = watch.state, pages()
        assert before[0]["round"] == 8
        for _ in range(50):
            assert watch.poll() is False
            assert watch.state == state
        assert pages() == before
        with Scheduler.open(path) as scheduler:
            play_rounds(scheduler, 1, scheduler.clients)
            read_all(watch)
        assert watch.state.version > state.version
        assert pages()[0]["round"] == 9


def test_every_state_has_its_own_version(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No two states share a version: while reading, live, with an error, and after each of these."""
    monkeypatch.setattr(watch_module, "READ_SECONDS", -1.0)
    path, away = folder / "fleet.turnout", folder / "away"
    small_fleet(path, rounds=30, is_open=False)
    with watching(path) as watch:
        states = [watch.state]

        def poll() -> None:
            watch.poll()
            if watch.state != states[-1]:
                states.append(watch.state)

        poll()
        assert watch.state.reading is not None
        while watch.state.reading is not None:
            watch_module.READ_SECONDS = 1.0
            poll()
        with Scheduler.open(path) as scheduler:
            play_rounds(scheduler, 1, scheduler.clients)
        poll()
        assert watch.state.live
        monkeypatch.setattr(watch_module, "LIVE_SECONDS", 0.0)
        poll()
        assert not watch.state.live
        path.rename(away)
        poll()
        assert watch.state.last_error is not None
        away.rename(path)
        poll()
        assert watch.state.last_error is None
        versions = [state.version for state in states]
        assert versions == sorted(set(versions))
        assert len(states) >= 6


def test_reports_of_the_open_round_appear_and_an_abandoned_round_disappears(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small: dict[str, Any] = {"settings": {"cohort_size": 3}, "deadline": 30.0, "allow_infeasible": True}
    with ExitStack() as opened:
        scheduler = opened.enter_context(Scheduler.open(path, **small))
        server = opened.enter_context(served(path))
        chosen = scheduler.choose(offered(*named(6)))
        opened_round = server.until(lambda: server.json("/api/overview")["open"])
        elapsed = opened_round.pop("elapsed")
        counts = {"out": 3, "back": 0, "failed": 0}
        assert opened_round == {"round": 1, "deadline": 30, "target_size": 3, **counts}
        server.until(lambda: server.json("/api/overview")["open"]["elapsed"] > elapsed)
        with Reporter(path) as reporter:
            reporter.report(chosen[1], 2.25, loss=0.5)
            server.until(lambda: server.json("/api/overview")["open"]["back"] == 1)
            reporter.report_failure(chosen[2], "no battery")
            server.until(lambda: server.json("/api/overview")["open"]["failed"] == 1)
        data = server.json("/api/round")
        rows = {row["id"]: row for row in data["rows"]}
        assert (data["is_open"], data["number"], data["last"]) == (True, 1, 1)
        assert [rows[client]["outcome"] for client in chosen] == ["out", "arrived", "failed"]
        assert (rows[chosen[1]]["seconds"], rows[chosen[1]]["loss"]) == (2.25, 0.5)
        assert rows[chosen[2]]["why"] == "no battery"
        scheduler.close_round()
        server.until(lambda: server.json("/api/overview")["open"] is None)
        assert not server.json("/api/round")["is_open"]
        scheduler.choose(offered(*named(6)))
        server.until(lambda: server.json("/api/overview")["open"])
        scheduler.abandon_round()
        server.until(lambda: server.json("/api/overview")["open"] is None)
        assert server.json("/api/round")["number"] == 1


def test_a_forgotten_client_disappears_from_every_page(folder: Path) -> None:
    secret = "patient-Zoë-17"
    fleet = served_fleet(folder, 25, ids=[secret, *named(11)], is_open=False)
    with fleet as server, Scheduler.open(server.path) as scheduler:
        before = json.dumps(everything(server), ensure_ascii=False)
        assert before.count(secret) > 20, "the pages must show the client before"
        total = server.json("/api/overview")["outcomes"]
        known = server.json(f"/api/client?id={quote(secret)}")
        assert known["mean_seconds"] > 0
        turns = known["turns"]
        scheduler.forget(secret)
        server.until(lambda: server.get(f"/api/client?id={quote(secret)}").status == 404)
        server.wait_read()
        after = json.dumps(everything(server), ensure_ascii=False)
        assert secret not in after
        assert "Zoë" not in after
        assert server.json(f"/api/clients?search={quote('Zoë')}")["rows"] == []
        assert "forgotten-0" in after
        left = server.json("/api/client?id=forgotten-0")
        assert set(left["times"]["seconds"]) <= {0, None}, "its times must be erased"
        assert (left["mean_seconds"], left["turns"]) == (None, turns)
        mine = [row for number in left["times"]["round"] for row in server.json(f"/api/round?number={number}")["rows"]]
        assert {row["loss"] for row in mine if row["id"] == "forgotten-0"} == {None}
        assert server.json("/api/overview")["outcomes"] == total, "the totals must keep its turns"
        assert server.json("/api/overview")["about"]["rounds"] == 25
        play_rounds(scheduler, 2, named(8), eventful=False)
        server.wait_rounds(27)


def test_a_fleet_that_drops_its_masks_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served_fleet(folder, 10, is_open=False) as server, Scheduler.open(server.path) as scheduler:
        monkeypatch.setattr(changes, "KEEP_AVAILABILITY_UP_TO", 3)
        with server.watch.locked_source():  # prevents reads in between
            play_rounds(scheduler, 3, scheduler.clients)
            take_snapshot(scheduler)
        server.wait_rounds(13)
        server.wait_read()
        assert server.json("/api/overview")["about"]["rounds"] == 13
        rounds_are_consistent(server)
        overview_is_consistent(server)


def test_the_writer_is_shown_unless_its_process_is_dead(folder: Path) -> None:
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
        commit = lock.read_bytes()[:LINE]  # the last acknowledged one; the line after it names the writer
        lock.write_bytes(commit + b"process 1 on host elsewhere\n")
        assert watch.writer == "process 1 on host elsewhere"
        lock.write_bytes(commit + b"\xff\xfe")
        assert watch.writer is None


# Missing, replaced and damaged files


def test_a_missing_file_is_reported_until_it_is_restored(folder: Path) -> None:
    away = folder / "elsewhere"
    with served_fleet(folder, 6, is_open=False) as server:
        away.mkdir()
        moved = [file.name for file in folder.glob("fleet.turnout*")]
        for name in moved:
            (folder / name).rename(away / name)
        answer = server.until(lambda: answer if (answer := server.get("/healthz")).status == 503 else None)
        data = json.loads(answer.body)
        assert data["status"] == "unreadable"
        assert "is missing" in data["last_error"]
        assert "is missing" in server.json("/api/store")["last_error"]
        assert server.json("/api/overview")["about"]["rounds"] == 6, "the data read so far must still be shown"
        assert server.json("/api/system")["store"]["bytes"] is None
        assert b"turnout_up 0\n" in server.get("/metrics").body
        for name in moved:
            (away / name).rename(folder / name)
        server.until(lambda: server.get("/healthz").status == 200)
        assert server.json("/api/store")["last_error"] is None
        with Scheduler.open(server.path) as scheduler:
            play_rounds(scheduler, 1, scheduler.clients)
        server.wait_rounds(7)


def test_beside_a_service_a_fleet_that_is_not_there_yet_is_shown_later_and_no_file_is_named(folder: Path) -> None:
    path = folder / "fleet.turnout"
    watch = Watch(path, lambda: FleetReader(path))
    try:
        assert watch.state.last_error == UNREADABLE
        with pytest.raises(StoreError, match=UNREADABLE), watch.locked_source():
            pass
        small_fleet(path, rounds=2)
        read_all(watch)
        assert watch.state.last_error is None
        with watch.locked_source() as source:
            assert source.newest_round >= 2
    finally:
        watch.stop()


def replace_store(new: Path, path: Path) -> None:
    """Replaces a store atomically."""
    for suffix in ("-wal", "-shm", ".lock"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    new.replace(path)


def test_a_replaced_file_is_read(folder: Path) -> None:
    """Replaces a fleet by another fleet, by a store of runs, and by a fleet."""
    path = folder / "it.turnout"
    small_fleet(path, rounds=4, is_open=False)
    with served(path) as server:
        server.wait_read()
        small_fleet(folder / "other.turnout", rounds=7, ids=[f"new-{index}" for index in range(8)], is_open=False)
        replace_store(folder / "other.turnout", path)
        server.wait_rounds(7)
        assert server.json("/api/clients?sort=id&order=asc")["rows"][0]["id"] == "new-0"
        with RunStore(folder / "runs.turnout") as store:
            write_random_run(store, "rbcsf", {"cohort_size": 3}, random_columns(9, 10))
        replace_store(folder / "runs.turnout", path)
        server.until(lambda: server.json("/api/store")["kind"] == "runs")
        server.wait_rounds(9)
        assert server.json("/api/overview")["about"]["run"] == 1
        small_fleet(folder / "third.turnout", rounds=2, is_open=False)
        replace_store(folder / "third.turnout", path)
        server.until(lambda: server.json("/api/store")["kind"] == "fleet")
        server.wait_rounds(2)
        assert server.json("/api/store")["runs"] == []
        assert server.get("/healthz").status == 200


@pytest.mark.parametrize("kind", ["fleet", "runs"])
def test_a_file_replaced_by_garbage_is_reported(folder: Path, kind: str) -> None:
    path, good = folder / "it.turnout", folder / "good.turnout"
    if kind == "fleet":
        small_fleet(path, rounds=4, is_open=False)
        small_fleet(good, rounds=5, is_open=False)
    else:
        for file, rounds in ((path, 4), (good, 5)):
            with RunStore(file) as store:
                write_random_run(store, "rbcsf", {"cohort_size": 3}, random_columns(rounds, 10))
    garbage = folder / "garbage"
    garbage.write_bytes(b"this is not a store" * 1000)
    with served(path) as server:
        server.wait_rounds(4)
        replace_store(garbage, path)
        server.until(lambda: server.get("/healthz").status == 503)
        for route in ("overview", "clients", "system", "round", "compare", "training"):
            answer = server.get(f"/api/{route}")
            assert answer.status == 503, route
            assert str(path) in json.loads(answer.body)["detail"]
        assert server.get("/api/explain?id=0").status == 503
        assert server.json("/api/store")["last_error"]
        assert b"turnout_up 0\n" in server.get("/metrics").body
        replace_store(good, path)
        server.until(lambda: server.get("/healthz").status == 200)
        server.wait_rounds(5)


def test_later_damage_is_reported_and_reading_stops_before_it(folder: Path) -> None:
    with served_fleet(folder, 4, is_open=False) as server:
        with Scheduler.open(server.path) as scheduler:
            play_rounds(scheduler, 2, scheduler.clients)
            with server.watch.locked_source(), closing(sqlite3.connect(server.path)) as db, db:
                play_rounds(scheduler, 1, scheduler.clients)
                db.execute("UPDATE events SET data = zeroblob(10) WHERE seq = (SELECT MAX(seq) FROM events)")
        server.until(lambda: server.get("/healthz").status == 503)
        assert "damaged" in server.json("/api/store")["last_error"]
        data = server.json_now("/api/overview")["about"]
        assert data["rounds"] >= 4
        assert data["reading"]["done"] < data["reading"]["of"], "the damaged event counts as unread"


def test_a_persistent_error_is_published_once(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=4, is_open=False)
    with watching(path) as watch:
        read_all(watch)
        with Scheduler.open(path) as scheduler, closing(sqlite3.connect(path)) as db, db:
            play_rounds(scheduler, 1, scheduler.clients)
            db.execute("UPDATE events SET data = zeroblob(10) WHERE seq = (SELECT MAX(seq) FROM events)")
        watch.poll()
        state = watch.state
        assert "damaged" in str(state.last_error)
        for _ in range(20):
            watch.poll()
            assert watch.state == state


def test_a_damaged_run_is_reported_at_every_request(folder: Path) -> None:
    path = folder / "runs.turnout"
    with RunStore(path) as store:
        write_random_run(store, "rbcsf", {"cohort_size": 3}, random_columns(5, 10), key="whole")
        write_random_run(store, "rbcsf", {"cohort_size": 3}, random_columns(6, 10), key="damaged")
    alter(path, "UPDATE chunks SET data = zeroblob(100) WHERE run = 2")
    with served(path) as server:
        for _ in range(3):
            answer = server.get("/api/overview?run=2")
            assert answer.status == 503
            assert "of run 2" in json.loads(answer.body)["detail"]
        assert server.json("/api/overview?run=1")["about"]["rounds"] == 5


def test_an_unexpected_error_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: Any) -> None:
        raise ZeroDivisionError("unexpected")

    with served_fleet(folder, 4, is_open=False) as server, monkeypatch.context() as broken:
        broken.setattr(FleetSource, "catch_up", break_down)
        with Scheduler.open(server.path) as scheduler:
            play_rounds(scheduler, 1, scheduler.clients)
        server.until(lambda: server.get("/healthz").status == 503)
        assert "unexpected" in server.json("/api/store")["last_error"]
        broken.undo()
        server.until(lambda: server.get("/healthz").status == 200)
        server.wait_rounds(5)


def test_files_that_are_no_store_are_refused(folder: Path) -> None:
    with pytest.raises(StoreError, match="there is no file"):
        Watch(folder / "nothing.turnout")
    (folder / "text.turnout").write_text("hello")
    with pytest.raises(StoreError):
        Watch(folder / "text.turnout")
    with pytest.raises(StoreError):
        Watch(folder)
    alter(folder / "other.db", "CREATE TABLE t (x)")
    with pytest.raises(StoreError):
        Watch(folder / "other.db")


# A store of runs


def test_a_growing_store_of_runs(folder: Path) -> None:
    path, plan = (
        folder / "runs.turnout",
        RunPlan("rbcsf", 30, settings={"cohort_size": 3}, world_settings={"clients": 12}),
    )
    with RunStore(path) as store, served(path) as server:
        assert server.json("/api/store")["runs"] == []
        assert server.json("/api/overview")["about"]["run"] is None
        for route in ("client", "explain"):
            answer = server.get(f"/api/{route}?id=0")
            assert (answer.status, "there is no client '0' yet: this store has no run" in answer.error) == (404, True)
        seen: list[int] = []

        def check_progress(done: int) -> None:
            server.wait_rounds(done)
            data = server.json("/api/overview")
            assert (data["about"]["run"], data["round"], data["about"]["finished"]) == (1, done, done == 30)
            assert (data["about"]["planned"], len(data["rounds"]["x"])) == (30, done)
            seen.append(done)

        play_into(store, plan, every=10, watch=check_progress)
        assert seen == [10, 20, 30]
        play_into(store, RunPlan("random", 5, world_settings={"clients": 12}))
        server.until(lambda: server.json("/api/store")["runs_total"] == 2)
        assert server.json("/api/overview")["about"]["run"] == 2, "the newest run is the default"
        assert server.json("/api/overview?run=1")["about"]["rounds"] == 30


def test_a_deleted_run_disappears(folder: Path) -> None:
    path = folder / "runs.turnout"
    stored = run_store(path, rounds=20)
    with served(path) as server, RunStore(path) as store:
        gone = stored.fast[0]
        assert server.json(f"/api/overview?run={gone}")["about"]["run"] == gone
        store.delete(gone)
        server.until(lambda: server.get(f"/api/overview?run={gone}").status == 404)
        assert gone not in [run["id"] for run in server.json("/api/store")["runs"]]
        data = server.json(f"/api/compare?run={stored.fair[0]}")
        assert gone not in [run for group in data["groups"] for run in group["runs"]]
        assert server.get("/healthz").status == 200
        store.compact()
        server.until(lambda: server.get("/healthz").status == 200)
        assert server.json(f"/api/overview?run={stored.fair[0]}")["round"] == 20


def test_few_runs_are_cached_and_all_are_served(folder: Path) -> None:
    path = folder / "runs.turnout"
    with RunStore(path) as store:
        for seed in range(9):
            columns: RoundColumns = random_columns(5 + seed, 10, seed=seed)
            write_random_run(store, "rbcsf", {"cohort_size": 3}, columns, key=str(seed))
    with served(path) as server:
        for _ in range(2):
            for run in (1, 9, 3, 7, 5, 2, 8, 4, 6, 1):
                assert server.json(f"/api/overview?run={run}")["round"] == 4 + run
        assert len(server.watch._runs) <= watch_module.CACHED_RUNS


def test_a_long_run_is_read_in_steps_with_progress(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "FIRST_READ_SECONDS", -1.0)
    monkeypatch.setattr(watch_module, "READ_SECONDS", -1.0)
    path, columns = folder / "runs.turnout", random_columns(50, 10)
    with RunStore(path) as store:
        run = store.begin("long", {"policy": "rbcsf", "settings": {"cohort_size": 3}}, clients=10, code_version="test")
        for start in range(0, 50, 5):
            store.append(run, RoundColumns.from_records(list(columns.records())[start : start + 5], clients=10))
    with watching(path) as watch:  # not started: only this test polls
        with watch.locked_source() as source:
            assert len(source.ledger) == 5
        progress = []
        while watch.state.reading is not None:
            progress.append(watch.state.reading)
            before = watch.state.version
            watch.poll()
            assert watch.state.version > before
        assert progress == [{"done": done, "of": 50} for done in range(5, 50, 5)]
        with watch.locked_source() as source:
            assert len(source.ledger) == 50


# Concurrent requests


@contextmanager
def requesting(server: Served, checks: Sequence[Callable[[Served], object]]) -> Iterator[list[list[object]]]:
    """Repeats every check in a thread of its own while the block runs; yields what each of them has returned."""
    done, results = threading.Event(), [list[object]() for _ in checks]

    def repeat(check: Callable[[Served], object], own: list[object]) -> None:
        while not done.is_set():
            own.append(check(server))

    with ThreadPoolExecutor(len(checks)) as pool:
        tasks = [pool.submit(repeat, check, own) for check, own in zip(checks, results, strict=True)]
        try:
            yield results
        finally:
            done.set()
        for task in tasks:
            task.result()


def test_concurrent_requests_while_a_fleet_is_written(folder: Path) -> None:
    """Every response is consistent in itself while the fleet changes."""
    checks = [
        *(turns_are_consistent, clients_are_consistent, rounds_are_consistent),
        *(queues_are_consistent, turns_are_consistent, overview_is_consistent),
    ]
    with (
        served_fleet(folder, 6, is_open=False) as server,
        Scheduler.open(server.path) as scheduler,
        requesting(server, checks) as results,
    ):
        server.until(lambda: all(results))
        for round_ in range(30):
            play_rounds(scheduler, 1, scheduler.clients)
            if round_ % 10 == 4:
                scheduler.register([f"more-{round_}"])
            if round_ == 20:
                scheduler.forget("c3")
        server.wait_rounds(36)
        before = max(map(len, results))
        server.until(lambda: all(len(own) > before for own in results))


@pytest.mark.thorough
def test_explanations_do_not_disturb_each_other_or_the_watch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them have begun to read at the same time, each with a reader of its own, while the watch answers."""
    together, readers = threading.Barrier(3, timeout=60), list[FleetReader]()

    def held(reader: FleetReader, *arguments: Any) -> Explanation:
        with reader.reading():
            readers.append(reader)
            together.wait()
            together.wait()
            return explain_closed_round(reader, *arguments)

    monkeypatch.setattr(fleet_module, "explain_closed_round", held)
    with served_fleet(folder, 12) as server, ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(server.get, f"/api/explain?id=c1&round={number}") for number in (11, 12)]
        together.wait()
        assert server.get("/api/rounds").status == 200
        together.wait()
        assert [answer.result().status for answer in answers] == [200, 200]
    assert readers[0] is not readers[1]


def turns_are_consistent(server: Served) -> None:
    data = server.json("/api/turns?order=id")
    assert len(data["ids"]) == data["about"]["clients"]
    rounds = data["about"]["rounds"]
    assert all(len(line) == rounds for line in data["counts"])
    by_round = [sum(column) for column in zip(*data["counts"], strict=True)]
    sizes = {row["round"]: row["cohort"] for row in server.json("/api/rounds?size=500")["rows"]}
    assert all(sizes.get(index + 1, count) == count for index, count in enumerate(by_round))


def clients_are_consistent(server: Served) -> None:
    data = server.json("/api/clients?size=500")
    assert data["total"] == len(data["rows"]) == data["about"]["clients"]
    for row in data["rows"]:
        if row["promised"] is not None:
            assert row["turns"] >= row["promised"] - row["owed"] - row["forfeited"] - 1e-6


def rounds_are_consistent(server: Served) -> None:
    data = server.json("/api/rounds?size=500")
    assert [row["round"] for row in data["rows"]] == list(range(data["about"]["rounds"], 0, -1))


def queues_are_consistent(server: Served) -> None:
    data = server.json("/api/queues")
    if not data["about"]["clients"]:  # forgetting a client makes the watch read the fleet again
        return
    assert data["curve"]["x"] == list(range(1, data["about"]["rounds"] + 1))
    assert sum(data["now"]["counts"]) == data["about"]["clients"]


def overview_is_consistent(server: Served) -> None:
    data = server.json("/api/overview")
    assert data["round"] == data["about"]["rounds"] == len(data["rounds"]["x"])
    turns = sum(data["outcomes"].values())
    assert data["round"] == 0 or data["cohort"] == pytest.approx(turns / data["round"], rel=1e-5)


def newest_run(server: Served) -> set[int]:
    """Returns the run that the pages show by default; every run has 20 rounds."""
    abouts = [server.json(f"/api/{route}")["about"] for route in ("overview", "compare", "training", "turns")]
    assert {about["rounds"] for about in abouts} == {20}
    return {about["run"] for about in abouts}


def test_concurrent_requests_while_a_store_is_written(folder: Path) -> None:
    with RunStore(folder / "runs.turnout") as store:
        write_random_run(store, "rbcsf", {"cohort_size": 3}, random_columns(20, 10), key="first")
        with served(store.path) as server, requesting(server, [newest_run] * 4) as results:
            server.until(lambda: all({1} in own for own in results))
            for seed in range(12):
                columns = random_columns(20, 10, seed=seed)
                write_random_run(store, "rbcsf", {"cohort_size": 3}, columns, key=f"more {seed}")
            server.until(lambda: all({13} in own for own in results))
            assert server.json("/api/store")["runs_total"] == 13


# Shutdown


def test_a_stopped_watch_releases_its_resources(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=3, is_open=False)
    with caplog.at_level(logging.DEBUG, "turnout.dashboard"):
        watch = Watch(path)
        watch.start()
        watch.stop()
        watch.stop()
        assert watch.stopped
        assert not any(thread.name == "turnout-dashboard" for thread in threading.enumerate())
        with pytest.raises(StoreError), watch.locked_source():
            pass
    assert [record for record in caplog.records if record.name == "turnout.dashboard"] == []
