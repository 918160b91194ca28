"""A server process for tests that kill a scheduler.

It reads one JSON order per line, {"path": …, "policy": …, "settings": …}, and forks a child for each. The child
plays some rounds, takes a snapshot among them, opens another round, reports its state and kills itself with SIGKILL.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import signal
import sys
from typing import Any

from live.fleets import state_of, take_snapshot
from turnout.live import ClientStatus, Scheduler
from turnout.storage.encoding.packing import pack_snapshot

CLIENTS = 6
ROUNDS, SNAPSHOT_AFTER = 4, 2


def state_digest(scheduler: Scheduler) -> str:
    """Returns a digest of everything that the scheduler holds in memory."""
    return hashlib.sha256(pack_snapshot(state_of(scheduler).state())).hexdigest()


def play(path: str, policy: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Plays until a round is open; returns its cohort and the digest of the state."""
    scheduler = Scheduler.open(path, policy=policy, settings=settings, deadline=10.0, allow_infeasible=True)
    return {"cohort": play_until_open(scheduler, SNAPSHOT_AFTER), "digest": state_digest(scheduler)}


def play_until_open(scheduler: Scheduler, snapshot_after: int | None = None) -> list[str]:
    """Plays closed rounds, with a snapshot after one of them, then opens a round and returns its cohort."""
    statuses = {f"c{row}": ClientStatus(1.0 + row / 7, 2.0) for row in range(CLIENTS)}
    for round_ in range(1, ROUNDS + 1):
        chosen = scheduler.choose(statuses)
        scheduler.report_failure(chosen[0], "battery")
        times = {client: 1.0 + int(client[1:]) for client in chosen[1:]}
        scheduler.report_many(times, losses={client: 1 / seconds for client, seconds in times.items()})
        scheduler.close_round()
        if round_ == snapshot_after:
            take_snapshot(scheduler)
    return scheduler.choose(statuses)


def main() -> None:
    """Executes orders until the input ends."""
    gc.freeze()  # so that the children copy less memory
    for line in sys.stdin:
        order = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            result = play(order["path"], order["policy"], order["settings"])
            os.write(writer, json.dumps(result).encode())
            os.kill(os.getpid(), signal.SIGKILL)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            result = json.loads(pipe.read())
        _, status = os.waitpid(child, 0)
        result["signal"] = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
