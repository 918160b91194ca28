"""What is told to machines: /metrics, /healthz, and the stream of changes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dashboard.readings import made_up, write_made_up
from dashboard.served import Served, first_chunk_only, play_rounds, run_store, served, small_fleet
from turnout.dashboard import app as app_module
from turnout.dashboard import watch as watch_module
from turnout.scheduler import Scheduler
from turnout.store import RunStore
from waiting import LONGEST_WAIT

# Prometheus: https://prometheus.io/docs/instrumenting/exposition_formats/, text format 0.0.4

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"')
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?([eE][+-]?\d+)?|Inf|NaN)")


class Sample(NamedTuple):
    name: str
    labels: tuple[tuple[str, str], ...]


def parsed(text: str) -> tuple[dict[str, str], dict[Sample, float]]:
    """The type of each family and the value of each sample; anything that is not by the book is refused."""
    assert text.endswith("\n")
    kinds: dict[str, str] = {}
    helped: set[str] = set()
    found: dict[Sample, float] = {}
    family = ""
    for line in text.split("\n")[:-1]:
        assert line, "no empty lines"
        if line.startswith("# "):
            _, what, name, words = line.split(" ", 3)
            assert NAME.fullmatch(name)
            assert words
            if what == "HELP":
                assert name not in helped, "told once"
                helped.add(name)
                family = name
            else:
                assert what == "TYPE"
                assert name == family, "after its help"
                assert name not in kinds
                assert words in ("counter", "gauge", "histogram", "summary", "untyped")
                kinds[name] = words
            continue
        match = re.fullmatch(r"([^\s{]+)(?:\{(.*)\})? (\S+)", line)
        assert match, line
        name, inside, value = match.groups()
        assert name == family, "samples of a family stand together, below its type"
        labels = []
        while inside:
            one = LABEL.match(inside)
            assert one, line
            text_ = re.sub(r"\\(.)", lambda escaped: {"n": "\n"}.get(escaped[1], escaped[1]), one[2])
            labels.append((one[1], text_))
            inside = inside[one.end() :].removeprefix(",")
        assert len({label for label, _ in labels}) == len(labels)
        assert NUMBER.fullmatch(value), line
        sample = Sample(name, tuple(sorted(labels)))
        assert sample not in found, "each sample once"
        found[sample] = float(value)
    assert helped == set(kinds)
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in kinds.items())
    return kinds, found


def metrics_of(there: Served) -> dict[Sample, float]:
    answer = there.get("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return parsed(answer.body.decode())[1]


def value_of(found: dict[Sample, float], name: str, **labels: str) -> float:
    (value,) = (
        value for sample, value in found.items() if sample.name == name and set(labels.items()) <= set(sample.labels)
    )
    return value


def test_metrics_say_what_the_pages_say(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=30)
    with served(path) as there:
        there.wait_read()
        found, told = metrics_of(there), there.json("/api/overview")
        kinds, _ = parsed(there.get("/metrics").body.decode())
        assert value_of(found, "turnout_up") == 1
        assert value_of(found, "turnout_store_bytes") == path.stat().st_size
        assert value_of(found, "turnout_round", policy="rbcsf") == 30
        assert value_of(found, "turnout_clients") == 12
        assert value_of(found, "turnout_rounds_total") == 30
        assert value_of(found, "turnout_round_seconds_total") == pytest.approx(told["total_time"], rel=1e-5)
        assert value_of(found, "turnout_least_share") == pytest.approx(told["least_share"], rel=1e-5)
        assert value_of(found, "turnout_worst_debt_turns") == pytest.approx(told["worst"]["owed"], rel=1e-5)
        assert value_of(found, "turnout_promise_holds") == 1
        outcomes = {dict(one.labels)["outcome"]: count for one, count in found.items() if "outcomes" in one.name}
        assert outcomes == told["outcomes"]
        assert kinds["turnout_rounds_total"] == "counter"
        last = there.json("/api/rounds")["rows"][0]
        assert value_of(found, "turnout_last_round_seconds") == pytest.approx(last["seconds"], rel=1e-5)


def test_an_answer_about_a_run_that_is_still_being_read_says_so(folder: Path) -> None:
    """The state belongs to the run that was asked for: what another run lacks is not said of it."""
    stored = run_store(folder / "runs.turnout", rounds=60)
    newest, other = stored.unfinished, stored.fast[0]  # in chunks of 15 and of 25 rounds
    with first_chunk_only() as read_the_rest, served(folder / "runs.turnout") as there:
        for run, reading in ((other, {"done": 25, "of": 60}), (newest, {"done": 15, "of": 30})):
            for route in ("overview", "fairness", "clients", "queues", "turns", "speed", "rounds", "round", "system"):
                about = there.json_now(f"/api/{route}?run={run}")["about"]
                assert (about["rounds"], about["reading"]) == (reading["done"], reading), route
        assert there.get(f"/api/round?run={other}&number=26").body.startswith(b'{"error":"there is no round 26 yet')
        found = metrics_of(there)
        assert value_of(found, "turnout_read_ratio", run=str(newest)) == 0.5
        assert value_of(found, "turnout_rounds_total", run=str(newest)) == 15
        read_the_rest()
        there.wait_read(newest)
        assert there.json_now(f"/api/overview?run={newest}")["about"]["reading"] is None
        assert value_of(metrics_of(there), "turnout_read_ratio", run=str(newest)) == 1
        assert there.json(f"/api/overview?run={other}")["about"]["rounds"] == 60


def test_counters_rise(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=5, is_open=False)
    with served(path) as there, Scheduler.open(path) as scheduler:
        there.wait_read()
        kinds, before = parsed(there.get("/metrics").body.decode())
        for rounds in (6, 8):
            play_rounds(scheduler, rounds - scheduler.round, scheduler.clients)
            there.wait_rounds(rounds)
            after = metrics_of(there)
            counters = [sample for sample in before if kinds[sample.name] == "counter"]
            assert len(counters) >= 3
            assert all(after[sample] >= before[sample] for sample in counters)
            assert value_of(after, "turnout_rounds_total") == rounds > value_of(before, "turnout_rounds_total")
            assert value_of(after, "turnout_round_seconds_total") > value_of(before, "turnout_round_seconds_total")
            before = after


def test_metrics_of_a_store_with_nothing_in_it_and_of_runs(folder: Path) -> None:
    RunStore(folder / "empty.turnout").close()
    with served(folder / "empty.turnout") as there:
        assert {sample.name for sample in metrics_of(there)} == {"turnout_up", "turnout_store_bytes"}
    stored = run_store(folder / "runs.turnout", rounds=12)
    with served(folder / "runs.turnout") as there:
        found = metrics_of(there)
        assert value_of(found, "turnout_rounds_total", run=str(stored.unfinished), policy="rbcsf") == 6


@pytest.mark.parametrize(
    "policy", ['quo"te', "back\\slash", "new\nline", 'all "of\\\n them\\n', "<b>é\u202e</b>", "x" * 300]
)
def test_odd_names_are_escaped_in_labels(folder: Path, policy: str) -> None:
    with RunStore(folder / "runs.turnout") as store:
        write_made_up(store, policy, {}, made_up(5, 10))
    with served(folder / "runs.turnout") as there:
        assert value_of(metrics_of(there), "turnout_rounds_total", policy=policy, run="1") == 5
        assert there.json("/api/overview")["about"]["policy"] == policy


def test_large_numbers_are_told_to_the_last_digit(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=2, is_open=False, ids=[f"client-{place:05}" for place in range(3000)])
    with served(path) as there:
        there.wait_read()
        assert path.stat().st_size > 100_000
        assert value_of(metrics_of(there), "turnout_store_bytes") == path.stat().st_size


def test_healthz_says_ok(folder: Path) -> None:
    small_fleet(folder / "fleet.turnout", rounds=1, is_open=False)
    with served(folder / "fleet.turnout") as there:
        there.wait_read()
        told = json.loads(there.get("/healthz").body)
        assert told == {"status": "ok", "trouble": None, "version": there.watch.version}


# The stream


class Stream:
    """What /api/live sends."""

    def __init__(self, answer: HTTPResponse) -> None:
        self.answer = answer

    def next(self) -> dict[str, Any] | None:
        """The next event; None at the end."""
        words: list[str] = []
        while line := self.answer.readline().decode():
            if line == "\n":
                if words:
                    break
                continue
            if not line.startswith(":"):
                words.append(line.rstrip("\n"))
        if not words:
            return None
        assert words[0] == "event: change"
        assert len(words) == 2
        told = json.loads(words[1].removeprefix("data: "))
        assert set(told) == {"version", "reading", "trouble", "live"}
        return dict(told)


@contextmanager
def listening(there: Served) -> Iterator[Stream]:
    connection = HTTPConnection("127.0.0.1", there.port, timeout=LONGEST_WAIT)
    try:
        connection.request("GET", "/api/live")
        answer = connection.getresponse()
        assert answer.status == 200
        assert (answer.getheader("content-type") or "").startswith("text/event-stream")
        assert answer.getheader("cache-control") == "no-store"
        with answer:
            yield Stream(answer)
    finally:
        connection.close()


def test_the_stream_says_how_things_stand_at_once_and_after_every_change(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=5, is_open=False)
    with served(path) as there:
        there.wait_read()
        with listening(there) as stream, listening(there) as other:
            first = stream.next()
            assert first == {"version": there.watch.version, "reading": None, "trouble": None, "live": False}
            assert other.next() == first
            with Scheduler.open(path) as scheduler:
                play_rounds(scheduler, 1, scheduler.clients)
                for one in (stream, other):
                    told = first
                    while there.watch.version > told["version"] or told is first:
                        found = one.next()
                        assert found is not None
                        assert found["version"] > told["version"]
                        told = found
                    assert told["live"]
        there.wait_rounds(6)


def test_the_stream_tells_trouble(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=2, is_open=False)
    with served(path) as there:
        there.wait_read()
        with listening(there) as stream:
            stream.next()
            path.rename(folder / "away")
            told = stream.next()
            assert told is not None
            assert "is missing" in told["trouble"]
            (folder / "away").rename(path)
            told = stream.next()
            assert told is not None
            assert told["trouble"] is None


def test_the_stream_says_when_it_is_no_longer_live(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=2, is_open=False)
    with served(path) as there:
        there.wait_read()
        with listening(there) as stream:
            stream.next()
            Scheduler.open(path).close()
            while not (told := stream.next() or {})["live"]:
                pass
            monkeypatch.setattr(watch_module, "LIVE_SECONDS", 0.0)
            told = stream.next() or {}
            while told["live"]:
                told = stream.next() or {}
            assert told["version"] == there.watch.version


def test_a_silent_stream_says_that_it_is_still_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=2, is_open=False)
    monkeypatch.setattr(app_module, "KEEPALIVE_SECONDS", 0.05)
    with served(path) as there:
        there.wait_read()
        with listening(there) as stream:
            stream.next()
            assert stream.answer.readline().startswith(b": ")


def test_the_stream_ends_when_the_watch_stops(folder: Path) -> None:
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=2, is_open=False)
    with served(path) as there:
        there.wait_read()
        with listening(there) as stream:
            assert stream.next() is not None
            there.watch.request_stop()
            assert stream.next() is None


def test_whoever_hangs_up_is_no_longer_served(folder: Path) -> None:
    """A page that was closed leaves nothing behind: the server can end at once."""
    path = folder / "fleet.turnout"
    small_fleet(path, rounds=2, is_open=False)
    before = threading.active_count()
    with served(path) as there:
        there.wait_read()
        for _ in range(5):
            with listening(there) as stream:
                stream.next()
        assert there.json("/api/overview")["round"] == 2
    there.until(lambda: threading.active_count() <= before)
