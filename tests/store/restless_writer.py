"""A child that writes to a store: python restless_writer.py STORE RUNS [DIE_AT].

It kills itself before its DIE_AT-th write to the database, counted from when it begins to open the store.

Run i plays the seed i % 3. Even runs are appended chunk by chunk and resumed from the stored snapshot after the last
process was killed; odd runs are written at once. After every third run the file is compacted.
"""

from __future__ import annotations

import sys

from killing import Writes
from turnout import make_policy
from turnout.kernel.rounds import RoundRecord
from turnout.policies.small_fleet import SmallFleet
from turnout.store import RoundColumns, RunStore

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


if __name__ == "__main__":
    Writes(int(sys.argv[3]) if len(sys.argv) > 3 else None)
    main(sys.argv[1], int(sys.argv[2]))
