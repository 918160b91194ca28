"""Measures the service: check-ins, reports and batches of reports, and an empty endpoint of the same process."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.harness import MILLION, Repeats, Result, Server, Target, announce, served, silenced
from benchmarks.load import Load, http_request, send_load
from turnout.live import Scheduler
from turnout.service.access import FleetTokens
from turnout.web.access import Role

#: The targets: calls per second, in units of the requests per second of an empty endpoint, the CPU milliseconds of a
#: check-in that gets a turn, and the CPU seconds of the start.
MIN_RATIO, MAX_TURN_MS, MAX_START = 0.5, 20.0, 3.0
START = "CPU time of the start"
SLOTS = 100
#: The number of turns that devices get in a repetition.
GIVEN = 40
#: The number of requests of one kind that follow each other.
PART = 500
#: The number of reports in a batch.
BATCH = 100
PERCENTILES = (50, 95, 99)
EMPTY, WAITING, TURNS, TURN_REPORTS, REPORTS, BATCHES = LOADS = (
    "empty",
    "check-in, asked to wait",
    "check-in, gets a turn",
    "report of a turn",
    "report in a round",
    f"batch of {BATCH} reports",
)
#: The loads that are compared with the empty endpoint.
COMPARED = (WAITING, REPORTS)
_BUSY, _FREE, _ROUNDS = "busy", "free", "rounds"


def service(
    clients: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Clients of each fleet; by default 10,000, then a million. Repeatable."),
    ] = None,
    calls: Annotated[int, typer.Option(min=10, help="Number of calls of a kind in each repetition.")] = 5000,
    connections: Annotated[int, typer.Option(min=1, help="Number of connections at the same time.")] = 64,
    persist_statuses: Annotated[bool, typer.Option(help="Whether the files contain statuses.")] = True,
    repeats: Repeats = 5,
) -> Result:
    """Measure calls over HTTP, each on disk before it is answered, and an empty endpoint (minutes).

    Three fleets are served by one `turnout fleet serve`; another process sends the requests, in turns. Devices of a
    fleet without rounds check in, each with a token of its own; nearly all are asked to wait, as in a fleet with far
    more clients than slots. In another one, slots are free: devices get turns, one after the other as it is between
    calls that wait, and their server reports them. Devices of a fleet with rounds report, each once; in the next round,
    its server sends their reports in batches. Every call has an idempotency key. The empty endpoint is /healthz.

    The rates depend on all that runs on the machine. The CPU time of the service for each call hardly does: a process
    can use little more than one core. The start is that of a service with one fleet and its dashboard.

    Example: python -m benchmarks service --clients 10000 --calls 1000
    """
    rows: list[dict[str, Any]] = []
    figures: list[tuple[str, float, str]] = []
    targets: list[Target] = []
    for size in clients or (10_000, MILLION):
        measured, own = _measure(size, min(calls, size), connections, repeats, persist_statuses=persist_statuses)
        rows += (by_name := {name: _row(size, name, measured) for name in LOADS}).values()
        figures += [(f"{size:,} clients: {what}", value, unit) for what, value, unit in own]
        targets += [
            Target(f"{size:,} clients, {name}: / empty", by_name[name]["/ empty"], MIN_RATIO, is_minimum=True)
            for name in COMPARED
        ]
        cpu = by_name[TURNS]["CPU ms"]
        targets += [] if cpu is None else [Target(f"{size:,} clients, {TURNS}: CPU ms", cpu, MAX_TURN_MS)]
        targets += [
            Target(f"{size:,} clients, {what} in s", value, MAX_START) for what, value, _ in own if what == START
        ]
    title = f"{connections} connections; times of answers in ms by percentile, and CPU time of the service per call"
    return Result(title, rows, figures, targets)


def _measure(
    clients: int, calls: int, connections: int, repeats: int, *, persist_statuses: bool
) -> tuple[dict[str, list[Load]], list[tuple[str, float, str]]]:
    """Returns the repetitions of each load, and single figures."""
    measured: dict[str, list[Load]] = {name: [] for name in LOADS}
    with tempfile.TemporaryDirectory() as folder:
        announce(f"creating three fleets of {clients:,} clients")
        paths = {name: Path(folder) / f"{name}.turnout" for name in (_BUSY, _FREE, _ROUNDS)}
        ids = [f"client-{row:07d}" for row in range(clients)]
        create = partial(_create, persist_statuses=persist_statuses)
        for name, slots in ((_BUSY, min(SLOTS, clients)), (_FREE, SLOTS)):
            create(paths[name], ids, concurrency=slots, settings={"guaranteed_rate": f"1/{2 * max(clients, slots)}"})
        create(paths[_ROUNDS], ids, settings={"cohort_size": calls, "guaranteed_rate": f"{calls}/{2 * clients}"})
        devices = ids[:: max(clients // calls, 1)][:calls]
        story = _Story(
            devices,
            {name: _tokens(path, "device", devices) for name, path in paths.items()},
            {name: _tokens(path, "server")[0] for name, path in paths.items()},
        )
        figures = _measure_start(paths[_BUSY])
        with served("serve", *paths.values(), "--no-page") as server, _sender(server) as send:
            for repeat in range(repeats + 1):
                announce(f"repetition {repeat} of {repeats}" if repeat else "warming up")
                parts: dict[str, list[Load]] = {name: [] for name in LOADS}
                for kind, requests in story.repetition(repeat):
                    load = send(requests, 1 if kind == TURNS else connections)
                    if kind is not None:
                        parts[kind].append(load)
                for name in LOADS if repeat else ():
                    measured[name].append(_merge(parts[name]))
            figures.append(("memory for all three fleets, after the calls", (server.memory() or 0.0) / 1e6, "MB"))
    return measured, figures


def _measure_start(path: Path) -> list[tuple[str, float, str]]:
    """Returns how long a service with one fleet and its page takes to start, and how much memory it holds then."""
    start = time.perf_counter()
    with served("serve", path) as server:
        send_load(server.port, [http_request("GET", "/healthz")], 1)
        return [
            ("seconds until the first answer", time.perf_counter() - start, "s"),
            (START, server.cpu_seconds() or 0.0, "s"),
            ("memory for one fleet", (server.memory() or 0.0) / 1e6, "MB"),
            ("file", path.stat().st_size / 1e6, "MB"),
        ]


@contextmanager
def _sender(server: Server) -> Iterator[Callable[[Sequence[bytes], int], Load]]:
    """Yields a function that sends requests from another process, which must all succeed, and returns the load."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:

        def send(requests: Sequence[bytes], connections: int) -> Load:
            before = server.cpu_seconds()
            load = pool.submit(send_load, server.port, requests, connections).result()
            after = server.cpu_seconds()
            if load.statuses != {200: len(requests)}:
                raise RuntimeError(f"the service refused calls: it answered with {load.statuses}")
            return load if before is None or after is None else replace(load, cpu=after - before)

        yield send


@dataclass(frozen=True, slots=True)
class _Story:
    """The requests that are sent.

    Attributes:
        devices: The ids of the devices.
        tokens: Their tokens of each fleet.
        servers: The token of the server of each fleet.
    """

    devices: Sequence[str]
    tokens: Mapping[str, Sequence[str]]
    servers: Mapping[str, str]

    def repetition(self, repeat: int) -> Iterator[tuple[str | None, list[bytes]]]:
        """Yields the requests of a repetition in short turns, so that other programs slow all kinds alike.

        Requests without the name of a load are not measured.
        """
        calls, given = len(self.devices), min(GIVEN, len(self.devices))
        offer = json.dumps({"clients": self.devices}).encode()
        report = b'{"seconds": 12.5, "loss": 0.7}'
        yield None, [self._serve(_ROUNDS, "rounds", f"choose-{repeat}", offer)]
        kinds = {
            EMPTY: [http_request("GET", "/healthz")] * calls,
            WAITING: [_call(_BUSY, "check-ins", token, f"check-in-{repeat}") for token in self.tokens[_BUSY]],
            REPORTS: [_call(_ROUNDS, "reports", token, f"report-{repeat}", report) for token in self.tokens[_ROUNDS]],
        }
        for first in range(0, calls, PART):
            for name, requests in kinds.items():
                yield name, requests[first : first + PART]
        yield None, [self._close(2 * repeat + 1)]
        yield None, [self._serve(_ROUNDS, "rounds", f"choose-again-{repeat}", offer)]
        batches = [self.devices[first : first + BATCH] for first in range(0, calls, BATCH)]
        bodies = [
            json.dumps({"reports": [{"client": client, "seconds": 12.5, "loss": 0.7} for client in batch]}).encode()
            for batch in batches
        ]
        keys = [f"batch-{repeat}-{number}" for number in range(len(batches))]
        yield (
            BATCHES,
            [self._serve(_ROUNDS, "reports/batch", key, body) for key, body in zip(keys, bodies, strict=True)],
        )
        yield None, [self._close(2 * repeat + 2)]
        yield TURNS, [_call(_FREE, "check-ins", token, f"turn-{repeat}") for token in self.tokens[_FREE][:given]]
        turns = range(repeat * given + 1, (repeat + 1) * given + 1)  # their numbers follow each other
        ended = [json.dumps({"turn": turn, "seconds": 12.5}).encode() for turn in turns]
        yield (
            TURN_REPORTS,
            [self._serve(_FREE, "reports", f"turn-{turn}", body) for turn, body in zip(turns, ended, strict=True)],
        )

    def _close(self, round: int) -> bytes:
        return self._serve(_ROUNDS, f"rounds/{round}/close", f"close-{round}")

    def _serve(self, fleet: str, path: str, key: str, body: bytes = b"{}") -> bytes:
        return _call(fleet, path, self.servers[fleet], key, body)


def _row(clients: int, name: str, measured: Mapping[str, Sequence[Load]]) -> dict[str, Any]:
    """Returns the median rate of a load, its median ratio to the empty endpoint just before, and its latencies."""
    merged = _merge(measured[name])
    pairs = zip(measured[name], measured[EMPTY], strict=True)
    return {
        "clients": clients,
        "request": name,
        "per second": statistics.median(load.per_second for load in measured[name]),
        "/ empty": statistics.median(load.per_second / empty.per_second for load, empty in pairs),
        **{f"{percent} %": merged.percentile(percent) * 1e3 for percent in PERCENTILES},
        "CPU ms": None if merged.cpu is None else merged.cpu * 1e3 / len(merged.latencies),
    }


def _merge(loads: Sequence[Load]) -> Load:
    """Returns the figures of loads that followed each other."""
    latencies = sorted(seconds for load in loads for seconds in load.latencies)
    cpu = [load.cpu for load in loads if load.cpu is not None]
    return Load(sum(load.seconds for load in loads), latencies, {}, sum(cpu) if cpu else None)


def _create(path: Path, ids: Sequence[str], **options: Any) -> None:
    with silenced("turnout.live"), Scheduler.open(path, **options) as scheduler:
        scheduler.register(ids)


def _call(fleet: str, path: str, token: str, key: str, body: bytes = b"{}") -> bytes:
    headers = [("Authorization", f"Bearer {token}"), ("Idempotency-Key", key)]
    return http_request("POST", f"/v1/fleets/{fleet}/{path}", headers, body)


def _tokens(path: Path, role: Role, devices: Sequence[str] = ()) -> list[str]:
    """Creates tokens and returns their texts, in the order of the devices."""
    with FleetTokens(path) as tokens:
        return [token.text for token in tokens.create(role, clients=devices)]
