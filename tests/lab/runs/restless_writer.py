"""A program whose children write to a store and may be killed at any write.

It reads orders, one JSON object per line, and forks a child for each, which is faster than starting Python again.
{"path": …, "runs": …} writes up to so many runs. With "die_at": n, the child kills itself before its n-th write to the
database, counted from when it begins to open the store. The answer is the exit code of the child.

Run i plays the seed i % 3. Even runs are appended chunk by chunk and resumed from the stored snapshot after the last
process was killed; odd runs are written at once. After every third run the file is compacted.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from killing import Writes
from turnout import make_policy
from turnout.kernel.rounds import RoundRecord
from turnout.lab import RoundColumns, RunStore
from turnout.policies.small_fleet import SmallFleet

ROUNDS, CHUNK, SEEDS = 20, 4, 3


class Game:
    """A policy and a fleet, whose state can be saved and restored."""

    def __init__(self, seed: int) -> None:
        self.policy = make_policy("rbcsf", 40)
        self.fleet = SmallFleet(seed, deadline=15.0, failure_rate=0.1)

    def rounds(self, first: int, last: int) -> list[RoundRecord]:
        records = []
        for round_ in range(first, last + 1):
            offer = self.fleet.offer(round_)
            selection = self.policy.ask(offer)
            report = self.fleet.play(offer, selection)
            self.policy.tell(report)
            records.append(RoundRecord(selection, report))
        return records


def write_in_chunks(store: RunStore, key: str, seed: int) -> None:
    info = store.find(key)
    if info is not None and info.finished:
        return
    run = store.begin(key, {"seed": seed}, clients=40, code_version="test")
    game, done = Game(seed), 0
    if (saved := store.snapshot(run)) is not None:
        done, state = saved
        game.fleet._trained = state.pop("trained")
        game.policy.restore(state)
    while done < ROUNDS:
        columns = RoundColumns.from_records(game.rounds(done + 1, done + CHUNK), clients=40)
        done += CHUNK
        store.append(run, columns, snapshot={"trained": game.fleet._trained, **game.policy.state()})
    store.finish(run)


def write_at_once(store: RunStore, key: str, seed: int) -> None:
    columns = RoundColumns.from_records(Game(seed).rounds(1, ROUNDS), clients=40)
    store.write_run(key, {"seed": seed}, columns, clients=40, code_version="test")


def main(path: str, runs: int) -> None:
    with RunStore(path) as store:
        started = len(store.runs())
        for number in range(max(0, started - 2), runs):
            write = write_at_once if number % 2 else write_in_chunks
            write(store, f"run {number}", number % SEEDS)
            if number % 3 == 0:
                store.compact()


def execute(order: dict[str, Any]) -> int:
    """Forks a child that writes, and returns its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            Writes(order.get("die_at"))
            main(order["path"], order["runs"])
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    for line in sys.stdin:
        print(execute(json.loads(line)), flush=True)
