"""Turns and rounds of a live fleet whose clients start cold, with simulated times."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from benchmarks.harness import memory_folder
from turnout.live import Scheduler

#: Twenty clients take 0.1 to 2 seconds, and 16 more in their first turn if they start cold.
CLIENTS, START_UP = [f"c{number}" for number in range(20)], 16.0
SECONDS = np.linspace(0.1, 2.0, len(CLIENTS))
FLEET: dict[str, Any] = {"settings": {"cohort_size": 5, "guaranteed_rate": 0.1}, "deadline": 60.0}
ROUNDS, FASTEST, FIRST = 60, 5, 5
Who = Literal["nobody", "one", "round", "everybody"]


def play(scheduler: Scheduler, who: Who, *, hinted: bool, seed: int = 0) -> tuple[int, float]:
    """Plays 60 rounds of a new fleet, in which the first turns of some clients are cold starts.

    Returns the turns of the fastest five, and the seconds of all rounds from the fifth on.

    Args:
        scheduler: The fleet.
        who: Whose first turns are: nobody's, that of the fastest client, those in the first round, or everybody's.
        hinted: Whether the scheduler is told which clients have just connected, as the adapters do.
        seed: The seed of the times.
    """
    rng, new, seconds = np.random.default_rng(seed), dict.fromkeys(CLIENTS), 0.0
    for number in range(1, ROUNDS + 1):
        cohort = scheduler.choose(CLIENTS, cold=list(new) if hinted else ())
        cold = {"nobody": [], "one": CLIENTS[:1], "round": CLIENTS if number == 1 else [], "everybody": CLIENTS}[who]
        times = {}
        for client in cohort:
            times[client] = float(SECONDS[CLIENTS.index(client)] * (1 + rng.uniform(-0.1, 0.1)))
            times[client] += START_UP if client in new and client in cold else 0.0
            new.pop(client, None)
        scheduler.report_many(times)
        scheduler.close_round()
        seconds += max(times.values()) if number >= FIRST else 0.0
    return int(scheduler.certificate().turns[:FASTEST].sum()), seconds


def measure_cold_starts(seeds: int = 4) -> tuple[float, float]:
    """Returns what cold starts of all clients leave of the turns of the fastest five, and how long later rounds take.

    Both are ratios of means over the seeds, compared with a fleet without cold starts.
    """
    measured: dict[Who, list[tuple[int, float]]] = {"nobody": [], "everybody": []}
    with memory_folder() as folder:
        for who, played in measured.items():
            for seed in range(seeds):
                with Scheduler.open(folder / f"{who}-{seed}.turnout", **FLEET) as scheduler:
                    played.append(play(scheduler, who, hinted=who == "everybody", seed=seed))
    turns, seconds = np.mean(measured["everybody"], axis=0) / np.mean(measured["nobody"], axis=0)
    return float(turns), float(seconds)
