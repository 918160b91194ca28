"""A server process for tests that kill a scheduler.

It reads one JSON order per line, {"path": …, "policy": …, "settings": …}, and forks a child for each. The child
plays some rounds, opens another one, prints a digest of its state and kills itself with SIGKILL.
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
ROUNDS = 4


def state_digest(scheduler: Scheduler) -> str:
    """Returns a digest of everything that the scheduler holds in memory."""
    return hashlib.sha256(pack_snapshot(scheduler.state())).hexdigest()


def play(path: str, policy: str, settings: dict[str, Any]) -> str:
    """Plays closed rounds, opens one more and returns the digest of the state."""
    scheduler = Scheduler.open(path, policy=policy, settings=settings, deadline=10.0, allow_infeasible=True)
    statuses = {f"c{row}": ClientStatus(1.0 + row / 7, 2.0) for row in range(CLIENTS)}
    for _ in range(ROUNDS):
        chosen = scheduler.choose(statuses)
        scheduler.report_failure(chosen[0], "battery")
        scheduler.report_many({client: 1.0 + int(client[1:]) for client in chosen[1:]})
        scheduler.close_round()
    scheduler.choose(statuses)
    return state_digest(scheduler)


def main() -> None:
    """Serves orders until the input ends."""
    for line in sys.stdin:
        order = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, play(order["path"], order["policy"], order["settings"]).encode())
            os.kill(os.getpid(), signal.SIGKILL)
        os.close(writer)
        with os.fdopen(reader) as answer:
            digest = answer.read()
        _, status = os.waitpid(child, 0)
        print(
            json.dumps({"digest": digest, "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0}), flush=True
        )


if __name__ == "__main__":
    main()
