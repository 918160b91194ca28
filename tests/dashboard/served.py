"""A dashboard as it is served, for tests; and small stores for it to show."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from scheduler.fleets import named
from turnout.dashboard import app as app_module
from turnout.dashboard import watch as watch_module
from turnout.dashboard.serving import make_server
from turnout.dashboard.sources.run import RunSource
from turnout.dashboard.watch import Watch
from turnout.kernel.randomness import round_rng
from turnout.scheduler import ClientStatus, Scheduler
from turnout.simulator import RunPlan, play_into
from turnout.store import RunStore
from waiting import LONGEST_WAIT, wait_until

#: Looks at the file and at the version, in seconds: more often than in earnest, so that tests need not wait.
LOOKS = 0.02


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Served:
    """A dashboard that answers at `url`."""

    watch: Watch
    port: int
    url: str = field(init=False)

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Ask by any method; header names come back in lower case. No cookies, no redirects."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=LONGEST_WAIT)
        try:
            connection.request(method, path, headers=dict(headers or {}))
            answer = connection.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, told, answer.read())
        finally:
            connection.close()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """GET."""
        return self.ask("GET", path, headers)

    def json(self, path: str) -> Any:
        """What a route of the page tells once its source has been read to the end; anything but 200 is a failure."""

        def read() -> Any:
            told = self.json_now(path)
            return told if told.get("about", {}).get("reading") is None else None

        return wait_until(read, f"{path}: everything has been read")

    def json_now(self, path: str) -> Any:
        """What a route of the page tells at once, although its source may still be being read."""
        answer = self.get(path)
        assert answer.status == 200, (path, answer.status, answer.body[:500])
        return json.loads(answer.body)

    def until(self, happened: Callable[[], Any]) -> Any:
        """Wait until this is true of something, and give that."""
        return wait_until(happened)

    def wait_read(self, run: int | None = None) -> None:
        """Wait until everything written so far has been read: the fleet, or this run, by default the newest."""

        def read() -> bool:
            with self.watch.locked_source(run) as source:
                return source is None or source.reading is None

        wait_until(read, "everything has been read")

    def wait_rounds(self, rounds: int, run: int | None = None) -> None:
        """Until the page knows of so many closed rounds."""
        asked = "/api/overview" if run is None else f"/api/overview?run={run}"
        self.until(lambda: self.json(asked)["about"]["rounds"] >= rounds)


@contextmanager
def served(path: Path, *, token: str | None = None) -> Iterator[Served]:
    """The real server, in a thread, on a port of its own; it ends with the block."""
    with (
        patch.object(watch_module, "POLL_SECONDS", LOOKS),
        patch.object(app_module, "STREAM_POLL_SECONDS", LOOKS),
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        watch = Watch(path)
        try:
            watch.start()
            server = make_server(watch, token)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="served")
            thread.start()
            try:
                there = Served(watch, listener.getsockname()[1])
                there.get("/healthz")
                yield there
            finally:
                watch.stop()  # first, so that open streams end by themselves
                server.should_exit = True
                thread.join(LONGEST_WAIT)
                assert not thread.is_alive()
        finally:
            watch.stop()


@contextmanager
def first_chunk_only() -> Iterator[Callable[[], None]]:
    """Runs are read up to the end of their first chunk; calling what is yielded lets the dashboard read the rest."""
    released, read_on = threading.Event(), RunSource.catch_up

    def catch_up(source: RunSource, seconds: float) -> None:
        if released.is_set():
            read_on(source, seconds)
        elif not len(source.ledger):
            read_on(source, -1.0)

    with patch.object(RunSource, "catch_up", catch_up):
        yield released.set


# Small stores


def small_fleet(
    path: Path,
    rounds: int = 40,
    ids: Sequence[str] | None = None,
    *,
    is_open: bool = True,
    eventful: bool = True,
    **settings: Any,
) -> None:
    """A fleet that has played so many rounds, by default with one open in which some have reported.

    `eventful`: two clients join late, one retires, some are late, fail, or come after enough others; else all return.
    The first of `ids` is there from the start, the last two join late; the one before them retires.
    """
    given = {"settings": {"cohort_size": 4, "guaranteed_rate": "1/6"}, "deadline": 10.0, "overcommit": 1.3}
    with Scheduler.open(path, **{**given, "allow_infeasible": True, **settings}) as scheduler:
        play_rounds(scheduler, rounds, named(12) if ids is None else ids, eventful=eventful)
        if is_open:
            opened = scheduler.choose(offer_of(list(scheduler.clients), scheduler.round + 1))
            if opened:
                scheduler.report(opened[0], 1.5, loss=0.75)
            if len(opened) > 1:
                scheduler.report_failure(opened[1], "the battery ran out")


def play_rounds(scheduler: Scheduler, rounds: int, ids: Sequence[str], *, eventful: bool = True) -> None:
    """Go on for so many rounds."""
    first = scheduler.round + 1
    retires_in = first + (2 * rounds) // 3
    everyone = list(dict.fromkeys([*scheduler.clients, *ids]))
    newcomers = set(everyone[-2:]) if eventful and len(everyone) > 4 and first == 1 else set()
    gone: set[str] = set()
    for round_ in range(first, first + rounds):
        if newcomers and round_ == first + 5:
            scheduler.register(sorted(newcomers))
        if newcomers and round_ == retires_in and rounds > 5:
            gone.add(everyone[-3])
            scheduler.retire(everyone[-3])
        there = [one for one in everyone if one not in gone and (one not in newcomers or round_ >= first + 5)]
        chosen = scheduler.choose(offer_of(there, round_))
        for place, client in enumerate(chosen):
            rng = round_rng(3, f"fate of {everyone.index(client)}", round_)
            fate, seconds = rng.random(), float(rng.uniform(1.0, 3.0)) * (1 + everyone.index(client) % 5) / 2
            if eventful and fate < 0.05:
                scheduler.report_failure(client, "no room on the disk")
            elif not eventful or fate > 0.12:
                scheduler.report(client, seconds, loss=2.0 / (1 + round_) + 0.01 * place)
        scheduler.close_round()


def offer_of(ids: Sequence[str], round_: int) -> dict[str, ClientStatus]:
    """About four in five are there, each in its own condition."""
    rng = round_rng(3, "offer", round_)
    draws = rng.random((len(ids), 3))
    return {
        client: ClientStatus(0.5 + 1.5 * cpu, 2.0 + 2.0 * bandwidth)
        for client, (there, cpu, bandwidth) in zip(ids, draws.tolist(), strict=True)
        if there < 0.8
    }


class Stored(NamedTuple):
    """The runs of `run_store`, by their numbers; the unfinished one is the newest."""

    fast: list[int]
    fair: list[int]
    random: list[int]
    fedcs: list[int]
    training: list[int]
    unfinished: int


class Stopped(Exception):
    """Somebody ended a run before its time."""


def run_store(path: Path, *, rounds: int = 60, seeds: int = 2) -> Stored:
    """The paper's world under four policies; two runs that train on digits; and one that stopped half-way."""
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "fast": ("rbcsf", {"speed_weight": 50.0}),
        "fair": ("rbcsf", {"speed_weight": 1.0}),
        "random": ("random", {}),
        "fedcs": ("fedcs", {}),
    }
    with RunStore(path) as store:
        runs = {
            name: [play_into(store, RunPlan(policy, rounds, seed, settings), every=25) for seed in range(seeds)]
            for name, (policy, settings) in kinds.items()
        }
        small = {"items": 50, "hidden": 8, "world": {"clients": 12}}
        plans = [
            RunPlan(policy, 30, 0, {"cohort_size": 3}, world="training", world_settings=small)
            for policy in ("rbcsf", "random")
        ]
        training = [play_into(store, plan) for plan in plans]
        plan = RunPlan("rbcsf", rounds, seeds, {"speed_weight": 50.0})

        def stop(done: int) -> None:
            if done >= rounds // 2:
                raise Stopped

        with suppress(Stopped):
            play_into(store, plan, every=max(rounds // 4, 1), watch=stop)
        found = store.find(plan.key)
        assert found is not None
        return Stored(**runs, training=training, unfinished=found.id)
