"""Measures the service with a large fleet: check-ins and reports against an empty endpoint of the same process."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from turnout.bench.load import LoadFigures, http_request, send_load
from turnout.bench.timing import stop_server
from turnout.errors import StoreError
from turnout.live import Scheduler
from turnout.log import silenced

#: The target: the calls per second, in units of the requests per second of an empty endpoint.
LEAST_RATIO = 0.5
CONNECTIONS = 64
SLOTS = 100
#: The number of requests of one kind that follow each other.
PART = 500
PERCENTILES = (50, 95, 99)
LOADS = ("empty", "check-ins", "reports")
_WITH_SLOTS, _WITH_ROUNDS = "slots", "rounds"


@dataclass(frozen=True, slots=True)
class CallFigures:
    """One kind of calls.

    Attributes:
        per_second: The median of the calls per second.
        ratio: The median of the calls per second in units of those of the empty endpoint just before.
        milliseconds: The latency by percentile, over all repetitions.
    """

    per_second: float
    ratio: float
    milliseconds: dict[int, float]

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.ratio >= LEAST_RATIO


@dataclass(frozen=True, slots=True)
class ServiceFigures:
    """What the service takes.

    Attributes:
        clients: The number of registered clients.
        connections: The number of connections.
        calls: The number of calls of each kind in each repetition.
        loads: The figures by kind of load: "empty", "check-ins" and "reports".
    """

    clients: int
    connections: int
    calls: int
    loads: dict[str, CallFigures]


def measure_service(
    *,
    clients: int = 1_000_000,
    calls: int = 5000,
    repeats: int = 5,
    connections: int = CONNECTIONS,
    folder: Path | None = None,
    watch: Callable[[str], None] = lambda _: None,
) -> ServiceFigures:
    """Serves two fleets with `turnout fleet serve`, and sends requests from another process; fsyncs are included.

    Devices of a fleet without rounds check in, each with a token of its own; nearly all are asked to wait, as in a
    fleet with far more clients than slots. Devices of a fleet with rounds report, each once. Every call has an
    idempotency key. The empty endpoint is /healthz.

    Args:
        clients: The number of registered clients of each fleet.
        calls: The number of calls of each kind in each repetition, and of devices; at most the number of clients.
        repeats: The number of repetitions, in each of which the loads follow each other; one more is the warm-up.
        connections: The number of connections that are used at the same time.
        folder: Where the temporary fleets are written; by default in the system's temporary folder.
        watch: Called with a description of each step.
    """
    calls = min(calls, clients)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        fleets = [Path(temporary) / f"{name}.turnout" for name in (_WITH_SLOTS, _WITH_ROUNDS)]
        watch("creating the fleets")
        ids = [f"client-{row:07d}" for row in range(clients)]
        _create(fleets[0], ids, concurrency=SLOTS, settings={"guaranteed_rate": f"1/{2 * clients}"})
        _create(fleets[1], ids, settings={"cohort_size": calls, "guaranteed_rate": f"{calls}/{2 * clients}"})
        devices = ids[:: max(clients // calls, 1)][:calls]
        tokens = [_device_tokens(path, devices) for path in fleets]
        (server,) = _tokens(fleets[1], "--role", "server")
        with service_of(fleets) as port, ProcessPoolExecutor(1, get_context("spawn")) as pool:

            def send(requests: Sequence[bytes]) -> LoadFigures:
                figures = pool.submit(send_load, port, requests, connections).result()
                if figures.statuses != {200: len(requests)}:
                    raise StoreError(f"the service refused calls: it answered with {figures.statuses}")
                return figures

            measured: dict[str, list[LoadFigures]] = {name: [] for name in LOADS}
            for repeat in range(repeats + 1):
                watch("warming up" if not repeat else f"repetition {repeat} of {repeats}")
                offer = json.dumps({"clients": devices}).encode()
                send([_call(_WITH_ROUNDS, "rounds", server, f"choose-{repeat}", offer)])
                requests = {
                    "empty": [http_request("GET", "/healthz")] * calls,
                    "check-ins": [_call(_WITH_SLOTS, "check-ins", token, f"check-in-{repeat}") for token in tokens[0]],
                    "reports": [
                        _call(_WITH_ROUNDS, "reports", token, f"report-{repeat}", b'{"seconds": 12.5, "loss": 0.7}')
                        for token in tokens[1]
                    ],
                }
                parts: dict[str, list[LoadFigures]] = {name: [] for name in LOADS}
                for first in range(0, calls, PART):  # in short turns, so that other programs slow all of them alike
                    for name in LOADS:
                        parts[name].append(send(requests[name][first : first + PART]))
                send([_call(_WITH_ROUNDS, "rounds/close", server, f"close-{repeat}")])
                for name in LOADS if repeat else ():
                    measured[name].append(_merged(parts[name]))
    return ServiceFigures(clients, connections, calls, {name: _summary(measured, name) for name in LOADS})


def _summary(measured: dict[str, list[LoadFigures]], name: str) -> CallFigures:
    rates = [figures.per_second for figures in measured[name]]
    empty = [figures.per_second for figures in measured["empty"]]
    merged = _merged(measured[name])
    return CallFigures(
        statistics.median(rates),
        statistics.median(rate / other for rate, other in zip(rates, empty, strict=True)),
        {percent: merged.percentile(percent) * 1e3 for percent in PERCENTILES},
    )


def _merged(figures: Sequence[LoadFigures]) -> LoadFigures:
    """Returns the figures of loads that followed each other."""
    latencies = sorted(seconds for part in figures for seconds in part.latencies)
    return LoadFigures(sum(part.seconds for part in figures), latencies, {}, [])


def _create(path: Path, ids: Sequence[str], **options: object) -> None:
    """Creates a fleet with the default of `turnout fleet create`: statuses are not written."""
    with silenced("turnout.live"), Scheduler.open(path, persist_statuses=False, **options) as scheduler:  # type: ignore[arg-type]
        scheduler.register(ids)


def _call(fleet: str, path: str, token: str, key: str, body: bytes = b"{}") -> bytes:
    headers = [("Authorization", f"Bearer {token}"), ("Idempotency-Key", key)]
    return http_request("POST", f"/v1/fleets/{fleet}/{path}", headers, body)


def _device_tokens(path: Path, devices: Sequence[str]) -> list[str]:
    names = path.with_name("devices.txt")
    names.write_text("\n".join(devices), encoding="utf-8")
    return _tokens(path, "--role", "device", "--clients", str(names))


def _tokens(path: Path, *options: str) -> list[str]:
    """Creates tokens and returns their texts, in the order of the clients."""
    command = [sys.executable, "-m", "turnout", "fleet", "tokens", "create", str(path), *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StoreError(f"no tokens could be created: {done.stderr}")
    return [token["token"] for token in json.loads(done.stdout)]


@contextmanager
def service_of(paths: Sequence[Path], *options: str) -> Iterator[int]:
    """Runs `turnout fleet serve` on a free port until the block ends, and yields the port."""
    command = [
        sys.executable,
        "-m",
        "turnout",
        "fleet",
        "serve",
        *map(str, paths),
        "--port",
        "0",
        "--no-page",
        *options,
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "1000"},
    )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline()]
        while lines[-1] and " at http" not in lines[-1]:  # notices about the fleets come before it
            lines.append(process.stdout.readline())
        if not lines[-1]:
            raise StoreError(f"the service did not start: {''.join(lines)}")
        yield int(lines[-1].rsplit(" at ", 1)[1].split("/")[2].rpartition(":")[2])
    finally:
        stop_server(process)
        process.stdout.close()
