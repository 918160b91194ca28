"""Fills the slots of a fleet in child processes that kill themselves before some write, until enough turns were given.

    python killed_filler.py FLEET TURNS SEED FIRST LAST [check-in | rules]

Each child goes on where the one before was killed. The moments are drawn between the writes FIRST and LAST of a child.
With check-in, devices check in by themselves instead; with rules, in a fleet that gathers them and lets them rest.
Prints as JSON how many children were killed, and every turn that `fill`, or `check_in`, returned to one of them.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from killing import Writes
from live.fleets import state_of
from turnout.live import ClientStatus, RunningTurn, Scheduler

CLIENTS, SLOTS = 9, 3
OPTIONS = {"concurrency": SLOTS, "settings": {"guaranteed_rate": "1/12", "tolerance": 1.0, "counts": "selected"}}

NO_RULES: Mapping[str, float] = {"status_ttl": 0.05}
#: Times are short, so that a test lasts for seconds; on a slow machine, the rules only hold less back.
RULES: Mapping[str, float] = {"status_ttl": 60.0, "window_seconds": 0.02, "min_present": 2, "min_turn_interval": 0.05}


def play(path: str, turns: int, log: int | None = None) -> Scheduler:
    """Plays until this many turns were given; everything depends only on what is in the file."""
    scheduler = Scheduler.open(path, **OPTIONS)  # type: ignore[arg-type]
    while True:
        decision = scheduler.round
        if decision:
            # Some turns end at once, the others when they are the oldest. Turns that were reported before a kill are
            # still running in the state, so the same turns are reported after it.
            oldest = min(state_of(scheduler).state()["running_turns.decisions"].tolist())
            for turn in scheduler.running():
                if turn.id % 3 == 0 or turn.id == oldest or decision >= turns:
                    report(scheduler, turn.id, turn.client)
        if decision >= turns:
            return scheduler
        there = [f"c{row}" for row in range(CLIENTS) if (decision * 5 + row * 3) % 7 > 1]
        given = scheduler.fill({client: ClientStatus(1.0 + int(client[1:]) / 7, 2.0) for client in there})
        if log is not None:
            os.write(log, "".join(f"{turn.id} {turn.client}\n" for turn in given).encode())
        if not given and not scheduler.running():
            raise AssertionError(f"nobody trains after decision {decision}")


def serve(path: str, turns: int, log: int | None = None, rules: Mapping[str, float] = NO_RULES) -> Scheduler:
    """Answers devices that check in, in turn, until this many turns were given; then all turns are reported.

    What a kill leaves depends on its moment, because check-ins are not in the file.
    """
    scheduler = Scheduler.open(path, **OPTIONS, **rules)  # type: ignore[arg-type]
    call = scheduler.round
    while scheduler.round < turns:
        call += 1
        assert call < 100 * turns, "nobody is given a turn"
        client = f"c{call * 4 % CLIENTS}"
        answer = scheduler.check_in(client, ClientStatus(1.0 + int(client[1:]) / 7, 2.0))
        if isinstance(answer, RunningTurn):
            if log is not None:
                os.write(log, f"{answer.id} {answer.client}\n".encode())
            if call % 5:
                report(scheduler, answer.id, client)
        elif "min_turn_interval" in rules:
            time.sleep(min(answer.seconds, 0.005))  # the rules are about time, so the number of calls must not limit it
    for turn in scheduler.running():
        report(scheduler, turn.id, turn.client)
    return scheduler


def report(scheduler: Scheduler, turn: int, client: str) -> None:
    """Reports the result of a turn, which depends on its number."""
    if turn % 11 == 0:
        scheduler.report_failure(turn, "battery")
    else:
        scheduler.report(turn, seconds_of(turn, client), loss=1 / turn)


def seconds_of(turn: int, client: str) -> float:
    """Returns the exchange time of a turn."""
    return 1.0 + int(client[1:]) + turn % 5 / 8


def main() -> None:
    """Forks children until one of them has given enough turns."""
    path, turns, seed, first, last = sys.argv[1], *map(int, sys.argv[2:6])
    runs: dict[str, Callable[[str, int, int | None], Scheduler]] = {
        "check-in": serve,
        "rules": partial(serve, rules=RULES),
    }
    run = runs[sys.argv[6]] if sys.argv[6:] else play
    gc.freeze()  # so that the children copy less memory
    rng, killed = random.Random(seed), 0
    log = os.open(f"{path}.given", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    while True:
        die_at = rng.randint(first, last)
        child = os.fork()
        if child == 0:
            Writes(die_at)
            run(path, turns, log).close()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            break
        killed += 1
    lines = Path(f"{path}.given").read_text().splitlines()
    print(json.dumps({"killed": killed, "exit": os.WEXITSTATUS(status), "given": lines}))


if __name__ == "__main__":
    main()
