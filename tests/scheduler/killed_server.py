"""A server process for tests that kill a scheduler.

It reads one JSON order per line, {"path": …, "policy": …, "settings": …}, and forks a child for each. The child
plays some rounds, takes a snapshot among them, opens another round, reports its state and kills itself with SIGKILL.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from typing import Any

from turnout.scheduler import ClientStatus, Scheduler
from turnout.store.packing import pack_snapshot

CLIENTS = 6
ROUNDS, SNAPSHOT_AFTER = 4, 2


def state_digest(scheduler: Scheduler) -> str:
    """Returns a digest of everything that the scheduler holds in memory."""
    return hashlib.sha256(pack_snapshot(scheduler.state())).hexdigest()


def play(path: str, policy: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Plays closed rounds, opens one more, and returns its cohort and the digest of the state."""
    scheduler = Scheduler.open(path, policy=policy, settings=settings, deadline=10.0, allow_infeasible=True)
    statuses = {f"c{row}": ClientStatus(1.0 + row / 7, 2.0) for row in range(CLIENTS)}
    for round_ in range(1, ROUNDS + 1):
        chosen = scheduler.choose(statuses)
        scheduler.report_failure(chosen[0], "battery")
        scheduler.report_many({client: 1.0 + int(client[1:]) for client in chosen[1:]})
        scheduler.close_round()
        if round_ == SNAPSHOT_AFTER:
            scheduler.snapshot()
    return {"cohort": scheduler.choose(statuses), "digest": state_digest(scheduler)}


def main() -> None:
    """Executes orders until the input ends."""
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
