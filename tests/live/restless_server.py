"""A server that plays a scripted fleet and may be killed at any moment.

Like any server after a restart, it knows only the file: `play` continues where the previous process stopped.

As a program it reads orders, one JSON object per line, and forks a child for each (which is faster than starting
Python again). {"path": …, "rounds": …} plays up to that round. With "die_at": n, the child kills itself before its
n-th write. With "die_after": seconds, it is killed after that time, which starts when the file is open if "once_open"
is true. With "die_at_sync": n, it is killed inside the n-th flush of its log, which needs the preloaded library of
`syncs.py`. The answer has the exit code of the child and, if it was not killed, the number of its writes and flushes,
the numbers of those writes that differ from all before them, and which of them begin a transaction.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from killing import Writes
from live.fleets import take_snapshot
from syncs import arm_sync, count_syncs
from turnout.live import ClientStatus, Scheduler

SETTINGS: dict[str, Any] = {
    "settings": {"cohort_size": 4, "guaranteed_rate": "1/9"},
    "deadline": 10.0,
    "backoff_after": 2,
    "overcommit": 1.5,
    "allow_infeasible": True,
}
RBCSF_SETTINGS: dict[str, Any] = {
    **SETTINGS,
    "policy": "rbcsf",
    "settings": {"cohort_size": 4, "guaranteed_rate": "1/9", "speed_weight": 2.0},
}
STARTERS = 10
ABANDONED_CLIENT = "understudy"


def seeded_random(*seed: object) -> random.Random:
    return random.Random(" ".join(map(str, seed)))


def known_by(round_: int) -> list[str]:
    """Returns the clients that the script has introduced by a round: some are registered, others only volunteer."""
    guests = [f"guest-{number}-{which}" for number in range(5, round_ + 1, 5) for which in "ab"]
    strangers = [f"stranger-{number}" for number in range(3, round_ + 1, 4)]
    return [f"c{row}" for row in range(STARTERS)] + guests + strangers


def statuses_of(round_: int) -> dict[str, ClientStatus]:
    rng = seeded_random("offer", round_)
    available = [client for client in known_by(round_) if rng.random() < 0.8]
    return {client: ClientStatus(rng.uniform(0.5, 2.0), rng.uniform(2.0, 4.0)) for client in available}


def scripted_outcome(round_: int, client: str) -> tuple[str, float, int]:
    """Returns the outcome of a client, its seconds, and the number of rounds after which it reports."""
    rng = seeded_random("fate", round_, client)
    draw = rng.random()
    if draw < 0.6:
        return "arrived", rng.uniform(1.0, 9.9), 0
    if draw < 0.75:
        return "failed", 0.0, 0
    if draw < 0.92:
        return "late", rng.uniform(10.1, 30.0), rng.choice([1, 2, 3])
    return "never", 0.0, 0


def loss_of(round_: int, client: str) -> float | None:
    """Returns the loss that a client reports, if any."""
    rng = seeded_random("loss", round_, client)
    return rng.uniform(0.1, 3.0) if rng.random() < 0.7 else None


def play(
    path: str, rounds: int, once_open: Callable[[], object] = lambda: None, options: dict[str, Any] = SETTINGS
) -> None:
    """Plays up to a round, from the state of the file; a new file gets these options."""
    with Scheduler.open(path, **({} if Path(path).exists() else options)) as scheduler:
        once_open()
        while (round_ := _next_round(scheduler)) <= rounds:
            if not scheduler.status().is_open:
                _prepare(scheduler, round_)
            _play_round(scheduler, round_)


def _next_round(scheduler: Scheduler) -> int:
    return scheduler.round if scheduler.status().is_open else scheduler.round + 1


def _prepare(scheduler: Scheduler, round_: int) -> None:
    """Registers, retires and forgets clients between rounds; repeating this after a restart has no effect."""
    if round_ % 5 == 0:
        scheduler.register([f"guest-{round_}-a", f"guest-{round_}-b"])
    if scheduler.status().retired < len(list(_departures(round_))):
        client, action = list(_departures(round_))[-1]
        if action == "retire":
            scheduler.retire(client)
        else:
            scheduler.forget(client)
    if round_ % 7 == 3:
        take_snapshot(scheduler)
    if round_ % 8 == 1:  # a selection that will be abandoned
        scheduler.choose({ABANDONED_CLIENT: ClientStatus(1.0, 1.0)})


def _departures(round_: int) -> Iterator[tuple[str, str]]:
    """Yields the clients that have left by a round, at most one per round, and how."""
    for number in range(1, round_ + 1):
        if number % 6 == 5 and number // 6 < 4:
            yield f"c{number // 6}", "retire"
        elif number % 9 == 0 and number // 9 < 4:
            yield f"c{STARTERS - number // 9}", "forget"


def _play_round(scheduler: Scheduler, round_: int) -> None:
    if scheduler.choose(statuses_of(round_)) == [ABANDONED_CLIENT]:
        scheduler.abandon_round()
    scheduler.choose(statuses_of(round_))
    _report_late_clients(scheduler, round_)
    out = scheduler.status().out
    seeded_random("order", round_).shuffle(out)
    back = {
        client: scripted_outcome(round_, client)[1]
        for client in out
        if scripted_outcome(round_, client)[0] == "arrived"
    }
    for client in out:
        if scripted_outcome(round_, client)[0] == "failed":
            scheduler.report_failure(client, "its battery died")
    together = dict(list(back.items())[:2])
    losses = {client: loss for client in together if (loss := loss_of(round_, client)) is not None}
    assert scheduler.report_many(together, losses=losses) == len(together)
    for client, seconds in list(back.items())[2:]:
        assert scheduler.report(client, seconds, loss=loss_of(round_, client))
        assert not scheduler.report(client, seconds, loss=loss_of(round_, client), round=round_)
    scheduler.close_round()


def _report_late_clients(scheduler: Scheduler, round_: int) -> None:
    for client in scheduler.clients:
        for turn in scheduler.history(client):
            outcome, seconds, delay = scripted_outcome(turn.round, client)
            due = turn.kind == "late" and outcome == "late" and turn.round + delay == round_
            if due and turn.late_seconds is None:
                assert scheduler.report(client, seconds, loss=loss_of(turn.round, client), round=turn.round)


# The program


def execute(order: dict[str, Any]) -> dict[str, Any]:
    """Forks a child that plays, kills it if ordered, and returns how it ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run_child(order, writer)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        if "die_after" in order:
            if order["once_open"]:
                pipe.readline()
            time.sleep(order["die_after"])
            os.kill(child, signal.SIGKILL)
        *_, last_line = ["", *pipe]
    _, status = os.waitpid(child, 0)
    counted = (
        json.loads(last_line) if last_line.startswith("{") else {"writes": 0, "syncs": 0, "steps": [], "between": []}
    )
    return {"code": os.waitstatus_to_exitcode(status), **counted}


def _run_child(order: dict[str, Any], pipe: int) -> None:
    code = 1
    try:
        writes = Writes(order.get("die_at"))
        arm_sync(order.get("die_at_sync", 0), signal.SIGKILL)
        play(order["path"], order["rounds"], lambda: os.write(pipe, b"open\n"))
        counted = {
            **{"writes": writes.count, "syncs": count_syncs()},
            **{"steps": writes.steps, "between": writes.between},
        }
        with os.fdopen(pipe, "w", closefd=False) as answer:
            print(json.dumps(counted), file=answer)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


if __name__ == "__main__":
    gc.freeze()  # so that the children copy less memory
    for line in sys.stdin:
        print(json.dumps(execute(json.loads(line))), flush=True)
