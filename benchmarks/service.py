"""Measures the service with a large fleet: check-ins and reports against an empty endpoint of the same process."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.harness import MILLION, Clients, Repeats, Result, Target, announce, served, silenced
from benchmarks.load import Load, http_request, send_load
from turnout.live import Scheduler
from turnout.service.access.tokens import FleetTokens
from turnout.web.access import Role

#: The target: the calls per second, in units of the requests per second of an empty endpoint.
MIN_RATIO = 0.5
SLOTS = 100
#: The number of requests of one kind that follow each other.
PART = 500
PERCENTILES = (50, 95, 99)
LOADS = ("empty", "check-ins", "reports")
_WITH_SLOTS, _WITH_ROUNDS = "slots", "rounds"


def service(
    clients: Clients = MILLION,
    calls: Annotated[int, typer.Option(min=10, help="Number of calls of each kind in each repetition.")] = 5000,
    connections: Annotated[int, typer.Option(min=1, help="Number of connections at the same time.")] = 64,
    repeats: Repeats = 5,
) -> Result:
    """Measure check-ins and reports over HTTP, each on disk before it is answered, against an empty endpoint.

    Two fleets are served by one `turnout fleet serve`; another process sends the requests, in turns. Devices of a fleet
    without rounds check in, each with a token of its own; nearly all are asked to wait, as in a fleet with far more
    clients than slots. Devices of a fleet with rounds report, each once. Every call has an idempotency key. The empty
    endpoint is /healthz.

    Example: python -m benchmarks service --clients 10000 --calls 1000
    """
    calls = min(calls, clients)
    measured: dict[str, list[Load]] = {name: [] for name in LOADS}
    with tempfile.TemporaryDirectory() as folder:
        fleets = [Path(folder) / f"{name}.turnout" for name in (_WITH_SLOTS, _WITH_ROUNDS)]
        announce("creating the fleets")
        ids = [f"client-{row:07d}" for row in range(clients)]
        _create(fleets[0], ids, concurrency=SLOTS, settings={"guaranteed_rate": f"1/{2 * clients}"})
        _create(fleets[1], ids, settings={"cohort_size": calls, "guaranteed_rate": f"{calls}/{2 * clients}"})
        devices = ids[:: max(clients // calls, 1)][:calls]
        slot_tokens, round_tokens = (_tokens(path, "device", devices) for path in fleets)
        (server,) = _tokens(fleets[1], "server")
        with (
            served("serve", *fleets, "--no-page") as url,
            ProcessPoolExecutor(1, get_context("spawn")) as pool,
        ):

            def send(requests: Sequence[bytes]) -> Load:
                load = pool.submit(send_load, int(url.rpartition(":")[2]), requests, connections).result()
                if load.statuses != {200: len(requests)}:
                    raise RuntimeError(f"the service refused calls: it answered with {load.statuses}")
                return load

            for repeat in range(repeats + 1):
                announce(f"repetition {repeat} of {repeats}" if repeat else "warming up")
                offer = json.dumps({"clients": devices}).encode()
                send([_call(_WITH_ROUNDS, "rounds", server, f"choose-{repeat}", offer)])
                report = b'{"seconds": 12.5, "loss": 0.7}'
                requests = {
                    "empty": [http_request("GET", "/healthz")] * calls,
                    "check-ins": [
                        _call(_WITH_SLOTS, "check-ins", token, f"check-in-{repeat}") for token in slot_tokens
                    ],
                    "reports": [
                        _call(_WITH_ROUNDS, "reports", token, f"report-{repeat}", report) for token in round_tokens
                    ],
                }
                parts: dict[str, list[Load]] = {name: [] for name in LOADS}
                for first in range(0, calls, PART):  # in short turns, so that other programs slow all of them alike
                    for name in LOADS:
                        parts[name].append(send(requests[name][first : first + PART]))
                send([_call(_WITH_ROUNDS, f"rounds/{repeat + 1}/close", server, f"close-{repeat}")])
                for name in LOADS if repeat else ():
                    measured[name].append(_merged(parts[name]))
    rows = [_row(name, measured) for name in LOADS]
    targets = [Target(f"{row['request']}: / empty", row["/ empty"], MIN_RATIO, is_minimum=True) for row in rows[1:]]
    title = f"{clients:,} registered clients, {connections} connections; latencies in ms by percentile"
    return Result(title, rows, targets=targets)


def _row(name: str, measured: dict[str, list[Load]]) -> dict[str, Any]:
    """Returns the median rate of a load, its median ratio to the empty endpoint just before, and its latencies."""
    merged = _merged(measured[name])
    pairs = zip(measured[name], measured["empty"], strict=True)
    return {
        "request": name,
        "per second": statistics.median(load.per_second for load in measured[name]),
        "/ empty": statistics.median(load.per_second / empty.per_second for load, empty in pairs),
        **{f"{percent} %": merged.percentile(percent) * 1e3 for percent in PERCENTILES},
    }


def _merged(loads: Sequence[Load]) -> Load:
    """Returns the figures of loads that followed each other."""
    latencies = sorted(seconds for load in loads for seconds in load.latencies)
    return Load(sum(load.seconds for load in loads), latencies, {})


def _create(path: Path, ids: Sequence[str], **options: Any) -> None:
    """Creates a fleet with the default of `turnout fleet create`: statuses are not written."""
    with silenced("turnout.live"), Scheduler.open(path, persist_statuses=False, **options) as scheduler:
        scheduler.register(ids)


def _call(fleet: str, path: str, token: str, key: str, body: bytes = b"{}") -> bytes:
    headers = [("Authorization", f"Bearer {token}"), ("Idempotency-Key", key)]
    return http_request("POST", f"/v1/fleets/{fleet}/{path}", headers, body)


def _tokens(path: Path, role: Role, devices: Sequence[str] = ()) -> list[str]:
    """Creates tokens and returns their texts, in the order of the devices."""
    with FleetTokens(path) as tokens:
        return [token.text for token in tokens.create(role, clients=devices)]
