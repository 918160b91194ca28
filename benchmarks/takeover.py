"""Measures how long a fleet in a PostgreSQL database is not served when its service is lost."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Annotated
from urllib.error import URLError
from urllib.request import urlopen

import typer

from benchmarks.cluster import is_installed, running_cluster
from benchmarks.harness import Result, Server, Target, announce, served
from benchmarks.proxy import Proxy
from turnout.client import FleetClient, UnavailableError
from turnout.errors import StoreError
from turnout.live import Scheduler
from turnout.service.access import FleetTokens
from turnout.storage.address import DatabaseAddress

#: The largest seconds: the median and the longest after a kill, and the longest after everything became silent.
MAX_MEDIAN, MAX_KILL, MAX_SILENCE = 5.0, 10.0, 8.0
NAME = "phones"
Kills = Annotated[int, typer.Option(min=1, help="How often the service is killed.")]
Silences = Annotated[int, typer.Option(min=1, help="How often the service is cut off from the database.")]


def takeover(kills: Kills = 20, silences: Silences = 5) -> Result:
    """Measure how long nobody serves a fleet in PostgreSQL after its service was killed, or cut off in silence.

    Two services run on this machine, one as the standby of the other. After `kill -9`, a client of both repeats a call
    until it is answered. A service that is cut off loses everything between it and the database, and nobody tells it
    so: the time is that until the other one is ready.

    Example: python -m benchmarks takeover --kills 200
    """
    if not is_installed():
        raise StoreError("PostgreSQL is not installed: install the package postgresql")
    seconds: dict[str, list[float]] = {"killed": [], "cut off": []}
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster({}))
        token = _create(cluster.address(NAME))
        proxies = [stack.enter_context(_proxy(cluster.folder)) for _ in range(2)]
        addresses = [f"{proxy.address(NAME).conninfo}&fleet={NAME}" for proxy in proxies]
        running = [stack.enter_context(ExitStack()) for _ in proxies]
        servers = [_serve(place, address) for place, address in zip(running, addresses, strict=True)]
        first = 0
        for number in range(kills + silences):
            what = "killed" if number < kills else "cut off"
            urls = [f"{server.url}/v1/fleets/{NAME}" for server in (servers[first], servers[1 - first])]
            with FleetClient(urls, token=token) as client:
                client.register([f"before-{number}"])
                start = time.perf_counter()
                if what == "killed":
                    os.kill(servers[first].process, signal.SIGKILL)
                    _repeat(client, f"after-{number}")
                else:
                    proxies[first].silence()
                    while not _is_ready(servers[1 - first]):
                        time.sleep(0.02)
                seconds[what].append(time.perf_counter() - start)
            announce(f"{number + 1} of {kills + silences}: {what}, {seconds[what][-1]:.2f} s")
            if what == "killed":
                running[first].close()
                servers[first] = _serve(running[first], addresses[first])
            else:
                proxies[first].heal()
            while not _is_ready(servers[1 - first]) or _is_ready(servers[first]):
                time.sleep(0.02)
            first = 1 - first
    rows = [
        {"the service was": what, "times": len(each), "median, s": statistics.median(each), "longest, s": max(each)}
        for what, each in seconds.items()
    ]
    return Result(
        "Two services of one fleet in PostgreSQL: seconds until the other one serves it",
        rows,
        targets=[
            Target("median after kill -9, seconds", statistics.median(seconds["killed"]), MAX_MEDIAN),
            Target("longest after kill -9, seconds", max(seconds["killed"]), MAX_KILL),
            Target("longest after silence, seconds", max(seconds["cut off"]), MAX_SILENCE),
        ],
    )


def _create(address: DatabaseAddress) -> str:
    """Creates the fleet; returns the token of an operator."""
    Scheduler.open(address, settings={"cohort_size": 3, "guaranteed_rate": 0.1}, deadline=60.0).close()
    with closing(FleetTokens(address)) as tokens:
        return tokens.create("operator")[0].text


@contextmanager
def _proxy(target: Path) -> Iterator[Proxy]:
    with tempfile.TemporaryDirectory() as folder, closing(Proxy(target, Path(folder))) as proxy:
        yield proxy


def _serve(stack: ExitStack, address: str) -> Server:
    return stack.enter_context(served("serve", address, "--standby", "--no-page"))


def _repeat(client: FleetClient, new: str) -> None:
    while True:
        try:
            client.register([new])
            return
        except UnavailableError:
            continue


def _is_ready(server: Server) -> bool:
    try:
        with urlopen(f"{server.url}/readyz", timeout=5.0) as reply:
            return bool(reply.status == 200)
    except (URLError, OSError):
        return False
