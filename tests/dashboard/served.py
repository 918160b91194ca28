"""Serves dashboards in tests, and creates small stores for them."""

from __future__ import annotations

import atexit
import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import uvicorn

from benchmarks.browser import PROGRAMS, Page
from dashboard.readings import write_random_run
from live.fleets import named
from requesting import Reply, running, send_request
from turnout.dashboard import app as app_module
from turnout.dashboard import watch as watch_module
from turnout.dashboard.serving import make_server
from turnout.dashboard.sources.run import RunSource
from turnout.dashboard.watch import Watch
from turnout.kernel.randomness import round_rng
from turnout.lab import RoundColumns, RunPlan, RunStore, play_into
from turnout.live import ClientStatus, Scheduler
from turnout.storage.store import Location
from turnout.web.access import SharedToken
from turnout.web.serving import LIMITS, Limits
from waiting import MAX_WAIT, wait_until

needs_browser = pytest.mark.skipif(
    not any(map(shutil.which, PROGRAMS)), reason="no Chromium is installed: apt install chromium"
)
#: Poll interval in seconds, shorter than in production so that tests need not wait.
POLL_SECONDS = 0.05


@dataclass
class Served:
    """A running dashboard."""

    watch: Watch
    port: int
    server: uvicorn.Server
    url: str = field(init=False)

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{self.port}"

    @property
    def path(self) -> Path:
        """The file that the dashboard shows."""
        assert isinstance(self.watch.path, Path)
        return self.watch.path

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        """Sends a request without cookies and without following redirects."""
        return send_request(self.port, method, path, headers=headers)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        """Sends a GET request."""
        return self.ask("GET", path, headers)

    def send_raw(self, request: bytes) -> bytes:
        """Sends these bytes and returns all that is answered."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=MAX_WAIT) as connection:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def json(self, path: str) -> Any:
        """Returns the JSON of a route after everything in it has been read and computed; the status must be 200."""

        def read() -> Any:
            data = self.json_now(path)
            is_complete = data.get("about", {}).get("reading") is None and not data.get("pending")
            return data if is_complete else None

        return wait_until(read, f"{path}: everything has been read and computed")

    def json_now(self, path: str) -> Any:
        """Returns the JSON of a route at once, although some of it may not have been read or computed yet."""
        answer = self.get(path)
        assert answer.status == 200, (path, answer.status, answer.body[:500])
        return json.loads(answer.body)

    def until(self, happened: Callable[[], Any]) -> Any:
        """Waits until `happened` returns a true value, and returns it."""
        return wait_until(happened)

    def wait_read(self, run: int | None = None) -> None:
        """Waits until the fleet or a run, by default the newest, has been read completely."""

        def read() -> bool:
            with self.watch.locked_source(run) as source:
                return source is None or source.reading is None

        wait_until(read, "everything has been read")

    def wait_rounds(self, rounds: int, run: int | None = None) -> None:
        """Waits until the dashboard shows at least this many closed rounds."""
        path = "/api/overview" if run is None else f"/api/overview?run={run}"
        self.until(lambda: self.json(path)["about"]["rounds"] >= rounds)


def reserve() -> socket.socket:
    """Reserves a port: only sockets with the same option can use it, also while none listens on it."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as `socket.create_server` does
    reserved.bind(("127.0.0.1", 0))
    return reserved


@cache
def usual() -> socket.socket:
    """Reserves a port for one dashboard after another: a browser compiles the scripts of an address only once."""
    reserved = reserve()
    atexit.register(reserved.close)
    return reserved


def listen() -> socket.socket:
    """Listens on the usual port, or on another one if a dashboard of this process is there."""
    try:
        return socket.create_server(usual().getsockname())
    except OSError:
        return socket.create_server(("127.0.0.1", 0))


@contextmanager
def served(
    path: Location, *, token: str | None = None, limits: Limits = LIMITS, address: tuple[str, int] | None = None
) -> Iterator[Served]:
    """Runs the real server in a thread until the block ends, at an address or on a free port."""
    with (
        patch.object(watch_module, "POLL_SECONDS", POLL_SECONDS),
        patch.object(app_module, "STREAM_POLL_SECONDS", POLL_SECONDS),
        socket.create_server(address) if address else listen() as listener,
    ):
        watch = Watch(path)
        try:
            watch.start()
            server = make_server(watch, SharedToken(token), limits)
            with running(server, listener):
                try:
                    yield Served(watch, listener.getsockname()[1], server)
                finally:
                    watch.stop()  # before the server, so that open streams end
        finally:
            watch.stop()


@contextmanager
def watching(path: Path) -> Iterator[Watch]:
    """Watches a file, without a thread: only the test polls."""
    watch = Watch(path)
    try:
        yield watch
    finally:
        watch.stop()


@contextmanager
def served_fleet(folder: Path, rounds: int = 40, *, token: str | None = None, **fleet: Any) -> Iterator[Served]:
    """Serves a small fleet when it has been read."""
    small_fleet(folder / "fleet.turnout", rounds, **fleet)
    with served(folder / "fleet.turnout", token=token) as server:
        server.wait_read()
        yield server


@contextmanager
def served_run(folder: Path, settings: Mapping[str, Any], columns: RoundColumns) -> Iterator[Served]:
    """Serves a store with one run of RBCS-F, of which this is the record, when it has been read."""
    with RunStore(folder / "runs.turnout") as store:
        write_random_run(store, "rbcsf", settings, columns)
    with served(folder / "runs.turnout") as server:
        server.wait_read()
        yield server


@contextmanager
def used(page: Page, **kind: Any) -> Iterator[Page]:
    """Lets a block use a page of this kind, and resets it before its server stops."""
    if kind:
        page.reset(**kind)
    try:
        yield page
    finally:
        page.reset()


@contextmanager
def first_chunk_only() -> Iterator[Callable[[], None]]:
    """Stops reading runs after their first chunk; calling the yielded function lets the dashboard read the rest."""
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
    path: Location,
    rounds: int = 40,
    ids: Sequence[str] | None = None,
    *,
    is_open: bool = True,
    eventful: bool = True,
    **settings: Any,
) -> None:
    """Writes a fleet with closed rounds and, by default, an open round with some reports.

    Args:
        path: The file to create.
        rounds: The number of closed rounds.
        ids: The ids of the clients; by default twelve.
        is_open: Whether to leave a round open.
        eventful: Whether the last two clients join late, the one before them retires, and some clients are late, fail
            or are surplus; otherwise all clients return.
        **settings: Options of `Scheduler.open`.
    """
    defaults = {
        "policy": "rbcsf",
        "settings": {"cohort_size": 4, "guaranteed_rate": "1/6"},
        "deadline": 10.0,
        "overcommit": 1.3,
    }
    with Scheduler.open(path, **{**defaults, "allow_infeasible": True, "backoff_after": 3, **settings}) as scheduler:
        play_rounds(scheduler, rounds, named(12) if ids is None else ids, eventful=eventful)
        if is_open:
            opened = scheduler.choose(offer_of(list(scheduler.clients), scheduler.round + 1))
            if opened:
                scheduler.report(opened[0], 1.5, loss=0.75)
            if len(opened) > 1:
                scheduler.report_failure(opened[1], "the battery ran out")


def play_rounds(scheduler: Scheduler, rounds: int, ids: Sequence[str], *, eventful: bool = True) -> None:
    """Plays this many rounds of a live fleet."""
    first = scheduler.round + 1
    retires_in = first + (2 * rounds) // 3
    everyone = list(dict.fromkeys([*scheduler.clients, *ids]))
    newcomers = set(everyone[-2:]) if eventful and len(everyone) > 4 and first == 1 else set()
    retired: set[str] = set()
    for round_ in range(first, first + rounds):
        if newcomers and round_ == first + 5:
            scheduler.register(sorted(newcomers))
        if newcomers and round_ == retires_in and rounds > 5:
            retired.add(everyone[-3])
            scheduler.retire(everyone[-3])
        available = [
            client for client in everyone if client not in retired and (client not in newcomers or round_ >= first + 5)
        ]
        chosen = scheduler.choose(offer_of(available, round_))
        arrived, losses = {}, {}
        for index, client in enumerate(chosen):
            rng = round_rng(3, f"fate of {everyone.index(client)}", round_)
            fate, seconds = rng.random(), float(rng.uniform(1.0, 3.0)) * (1 + everyone.index(client) % 5) / 2
            if eventful and fate < 0.05:
                scheduler.report_failure(client, "disk full")
            elif not eventful or fate > 0.12:
                arrived[client], losses[client] = seconds, 2.0 / (1 + round_) + 0.01 * index
        scheduler.report_many(arrived, losses=losses)
        scheduler.close_round()


TWELVE = {f"h{index}": 60.0 + 420.0 * index / 11 for index in range(12)}  # mean times evenly from 60 to 480 s


def promise_fleet(path: Path, policy: str, rounds: int = 120, **settings: Any) -> None:
    """Plays a fleet of twelve clients whose mean times lie evenly between 60 and 480 s, of which 10 % is promised.

    RBCS-F with a speed weight of 20 breaks that promise on purpose: a slow client must be owed hundreds of turns first.
    """
    rules = {"cohort_size": 4, "guaranteed_rate": 0.1, **settings}
    with Scheduler.open(path, policy=policy, settings=rules) as scheduler:
        for _ in range(rounds):
            chosen = scheduler.choose(list(TWELVE))
            rng = round_rng(1, "times", scheduler.round)
            noise = dict(zip(TWELVE, rng.uniform(0.9, 1.1, len(TWELVE)).tolist(), strict=True))
            scheduler.report_many({client: TWELVE[client] * noise[client] for client in chosen})
            scheduler.close_round()


def offer_of(ids: Sequence[str], round_: int) -> dict[str, ClientStatus]:
    """Returns the statuses of about 80 % of the clients."""
    draws = round_rng(3, "offer", round_).random((len(ids), 3))
    return {
        client: ClientStatus(0.5 + 1.5 * cpu, 2.0 + 2.0 * bandwidth)
        for client, (draw, cpu, bandwidth) in zip(ids, draws.tolist(), strict=True)
        if draw < 0.8
    }


class Stored(NamedTuple):
    """The ids of the runs of `run_store`; the unfinished run is the newest."""

    fast: list[int]
    fair: list[int]
    random: list[int]
    fedcs: list[int]
    training: list[int]
    unfinished: int


class Stopped(Exception):
    """Raised to interrupt a run."""


def run_store(path: Path, *, rounds: int = 60, seeds: int = 2) -> Stored:
    """Writes runs of four policies in the paper's world, two training runs, and an unfinished run."""
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
        unfinished = store.find(plan.key)
        assert unfinished is not None
        return Stored(**runs, training=training, unfinished=unfinished.id)
