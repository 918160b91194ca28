"""Processes around a fleet that are not its scheduler; each waits for a line before it begins.

python reporters.py report FILE SECONDS    SECONDS is JSON, {client: seconds}; reports them one by one
python reporters.py read FILE              reads the fleet until its input ends
python reporters.py serve FILE             opens the fleet to write, chooses, and after a line reports and closes
"""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Callable
from typing import Any

from turnout.errors import StoreError
from turnout.scheduler import ClientStatus, Reporter, Scheduler


def wait() -> None:
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()


def report(path: str, told: str) -> dict[str, Any]:
    with Reporter(path) as reporter:
        wait()
        return {client: reporter.report(client, seconds) for client, seconds in json.loads(told).items()}


def read(path: str) -> int:
    wait()
    looks, back = 0, 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        with Scheduler.open(path, read_only=True) as reader:
            arrived = len(reader.status().arrived)
            assert arrived >= back
            assert reader.certificate().holds
            assert (
                sum(turn.kind == "arrived" for client in reader.clients for turn in reader.history(client)) >= arrived
            )
            back, looks = arrived, looks + 1
    return looks


def serve(path: str) -> list[str]:
    with Scheduler.open(path) as scheduler:
        (client,) = scheduler.choose({"a": ClientStatus(1.0, 1.0)})
        wait()
        attempts: list[Callable[[], object]] = [
            lambda: scheduler.report(client, 2.0),
            lambda: scheduler.failed(client, "its battery died"),
            lambda: scheduler.choose({"b": ClientStatus(1.0, 1.0)}),
            scheduler.abandon_round,
            scheduler.close_round,
        ]
        return [told(attempt) for attempt in attempts]


def told(attempt: Callable[[], object]) -> str:
    try:
        return f"done: {attempt()}"
    except StoreError as refused:
        return str(refused)


if __name__ == "__main__":
    tasks: dict[str, Callable[..., Any]] = {"report": report, "read": read, "serve": serve}
    print(json.dumps(tasks[sys.argv[1]](*sys.argv[2:])), flush=True)
