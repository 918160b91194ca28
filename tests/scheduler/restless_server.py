"""A server that plays a fleet by a script and may be killed at any moment.

What to do next it reads off the file, as a server must that knows nothing else: `play` goes on where the last one was.
Run as a program it takes orders, one JSON object a line, and forks a child for each, from a warm process:
{"path": …, "rounds": …} plays up to that round; with "die_at": n the child kills itself before its n-th write, with
"die_after": seconds it is killed then, counted from when it has opened the file if "once_open". The answer tells how
the child ended and, if it was not killed, how many writes it began.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from killing import Writes
from turnout.scheduler import ClientStatus, Scheduler

SETTINGS: dict[str, Any] = {
    "settings": {"cohort_size": 4, "guaranteed_rate": "1/9", "speed_weight": 2.0},
    "deadline": 10.0,
    "late_window": 4,
    "rest_after": 2,
    "overcommit": 1.5,
    "allow_infeasible": True,
}
STARTERS = 10
UNDERSTUDY = "understudy"


def chance(*words: object) -> random.Random:
    return random.Random(" ".join(map(str, words)))


def known_by(round_: int) -> list[str]:
    """Everyone the script has brought up by then: some are registered, others just turn up."""
    guests = [f"guest-{number}-{which}" for number in range(5, round_ + 1, 5) for which in "ab"]
    strangers = [f"stranger-{number}" for number in range(3, round_ + 1, 4)]
    return [f"c{row}" for row in range(STARTERS)] + guests + strangers


def offer_of(round_: int) -> dict[str, ClientStatus]:
    rng = chance("offer", round_)
    there = [client for client in known_by(round_) if rng.random() < 0.8]
    return {client: ClientStatus(rng.uniform(0.5, 2.0), rng.uniform(2.0, 4.0)) for client in there}


def fate(round_: int, client: str) -> tuple[str, float, int]:
    """What becomes of a client in a round, after how many seconds, and how many rounds later that is told."""
    rng = chance("fate", round_, client)
    draw = rng.random()
    if draw < 0.6:
        return "arrived", rng.uniform(1.0, 9.9), 0
    if draw < 0.75:
        return "failed", 0.0, 0
    if draw < 0.92:
        return "late", rng.uniform(10.1, 30.0), rng.choice([1, 2, 3])
    return "never", 0.0, 0


def loss_of(round_: int, client: str) -> float | None:
    """What a client tells of its training, if anything."""
    rng = chance("loss", round_, client)
    return rng.uniform(0.1, 3.0) if rng.random() < 0.7 else None


def play(path: str, rounds: int, once_open: Callable[[], object] = lambda: None) -> None:
    """Up to this round, from wherever the file is."""
    with Scheduler.open(path, **SETTINGS) as scheduler:
        once_open()
        while (round_ := _next_round(scheduler)) <= rounds:
            if not scheduler.status().is_open:
                _prepare(scheduler, round_)
            _play_round(scheduler, round_)


def _next_round(scheduler: Scheduler) -> int:
    return scheduler.round if scheduler.status().is_open else scheduler.round + 1


def _prepare(scheduler: Scheduler, round_: int) -> None:
    """What is done between rounds; what was done already has no effect, or shows in the status."""
    if round_ % 5 == 0:
        scheduler.register([f"guest-{round_}-a", f"guest-{round_}-b"])
    if scheduler.status().retired < len(list(_gone_by(round_))):
        left, how = list(_gone_by(round_))[-1]
        if how == "retire":
            scheduler.retire(left)
        else:
            scheduler.forget(left)
    if round_ % 7 == 3:
        scheduler.snapshot()
    if round_ % 8 == 1:  # a choice that is never used
        scheduler.choose({UNDERSTUDY: ClientStatus(1.0, 1.0)})


def _gone_by(round_: int) -> Iterator[tuple[str, str]]:
    """At most one a round leaves."""
    for number in range(1, round_ + 1):
        if number % 6 == 5 and number // 6 < 4:
            yield f"c{number // 6}", "retire"
        elif number % 9 == 0 and number // 9 < 4:
            yield f"c{STARTERS - number // 9}", "forget"


def _play_round(scheduler: Scheduler, round_: int) -> None:
    if scheduler.choose(offer_of(round_)) == [UNDERSTUDY]:
        scheduler.abandon_round()
    scheduler.choose(offer_of(round_))
    _report_late_ones(scheduler, round_)
    out = scheduler.status().out
    chance("order", round_).shuffle(out)
    back = {client: fate(round_, client)[1] for client in out if fate(round_, client)[0] == "arrived"}
    for client in out:
        if fate(round_, client)[0] == "failed":
            scheduler.failed(client, "its battery died")
    together = dict(list(back.items())[:2])
    losses = {client: loss for client in together if (loss := loss_of(round_, client)) is not None}
    assert scheduler.report_many(together, losses=losses) == len(together)
    for client, seconds in list(back.items())[2:]:
        assert scheduler.report(client, seconds, loss=loss_of(round_, client))
        assert not scheduler.report(client, seconds, loss=loss_of(round_, client), round=round_)
    scheduler.close_round()


def _report_late_ones(scheduler: Scheduler, round_: int) -> None:
    for client in scheduler.clients:
        for turn in scheduler.history(client):
            what, seconds, delay = fate(turn.round, client)
            due = turn.kind == "late" and what == "late" and turn.round + delay == round_
            if due and turn.late_seconds is None:
                assert scheduler.report(client, seconds, loss=loss_of(turn.round, client), round=turn.round)


# The program


def obey(order: dict[str, Any]) -> dict[str, Any]:
    """Fork, let the child play, see it die."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        _be_the_child(order, theirs)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        if "die_after" in order:
            if order["once_open"]:
                pipe.readline()
            time.sleep(order["die_after"])
            os.kill(child, signal.SIGKILL)
        *_, told = ["", *pipe]
    _, status = os.waitpid(child, 0)
    return {"code": os.waitstatus_to_exitcode(status), "writes": int(told) if told.strip().isdecimal() else 0}


def _be_the_child(order: dict[str, Any], pipe: int) -> None:
    code = 1
    try:
        writes = Writes(order.get("die_at"))
        play(order["path"], order["rounds"], lambda: os.write(pipe, b"open\n"))
        os.write(pipe, f"{writes.count}\n".encode())
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(obey(json.loads(line))), flush=True)
