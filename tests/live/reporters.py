"""Processes that access a fleet concurrently; each waits for a line of input before it starts.

python reporters.py report FILE SECONDS…   reports each entry of SECONDS, a JSON object {client: seconds}; each
                                           SECONDS in a process of its own
python reporters.py read FILE              reads the fleet until its input ends
python reporters.py serve FILE             opens the fleet for writing and selects; after a line reports and closes
"""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any

from postgres import use_schemas_if_told
from turnout.errors import StoreError
from turnout.live import ClientStatus, FleetReader, Reporter, Scheduler


def wait() -> None:
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()


def report(path: str, *shares: str) -> list[dict[str, bool]]:
    context = get_context("fork")
    together, results = context.Barrier(len(shares) + 1), context.SimpleQueue()

    def report_share(number: int) -> None:
        with Reporter(path) as reporter:
            together.wait()
            together.wait()
            seconds_of: dict[str, float] = json.loads(shares[number])
            accepted = {client: reporter.report(client, seconds) for client, seconds in seconds_of.items()}
        results.put((number, accepted))

    processes = [context.Process(target=report_share, args=(number,)) for number in range(len(shares))]
    for process in processes:
        process.start()
    together.wait()  # until all have opened the file
    wait()
    together.wait()
    accepted: dict[int, dict[str, bool]] = dict(results.get() for _ in shares)
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return [accepted[number] for number in range(len(shares))]


def read(path: str) -> int:
    wait()
    reads, arrived_before = 0, 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        with FleetReader(path) as reader:
            arrived = len(reader.status().arrived)
            assert arrived >= arrived_before
            assert reader.certificate().books_balance
            assert (
                sum(turn.kind == "arrived" for client in reader.state().fleet.ids for turn in reader.history(client))
                >= arrived
            )
            arrived_before, reads = arrived, reads + 1
    return reads


def serve(path: str) -> list[str]:
    with Scheduler.open(path) as scheduler:
        (client,) = scheduler.choose({"a": ClientStatus(1.0, 1.0)})
        wait()
        attempts: list[Callable[[], object]] = [
            lambda: scheduler.report(client, 2.0),
            lambda: scheduler.report_failure(client, "its battery died"),
            lambda: scheduler.choose({"b": ClientStatus(1.0, 1.0)}),
            scheduler.abandon_round,
            scheduler.close_round,
        ]
        return [result_of(attempt) for attempt in attempts]


def result_of(attempt: Callable[[], object]) -> str:
    try:
        return f"done: {attempt()}"
    except StoreError as error:
        return str(error)


if __name__ == "__main__":
    use_schemas_if_told()
    tasks: dict[str, Callable[..., Any]] = {"report": report, "read": read, "serve": serve}
    print(json.dumps(tasks[sys.argv[1]](*sys.argv[2:])), flush=True)
