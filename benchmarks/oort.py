"""Measures a round of Oort against random selection, and against the same rules with one dict per client."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.harness import Clients, Cohort, Repeats, Result, Target, alternate
from benchmarks.literal_oort import LiteralOort, outcomes_of
from turnout.kernel.arrays import BoolArray, IntArray
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.policies.base import SelectionPolicy
from turnout.policies.baselines.uniform import UniformRandom
from turnout.policies.published.oort import Oort

MIN_SPEEDUP = 20.0  # target
HISTORY = 10  # rounds before the measurement, in which half of the fleet takes part once
OUTCOMES = ("arrived", "arrived", "arrived", "arrived", "late", "failed")


class OortFleet:
    """A fleet with fixed availability, in which each client always has the same outcome, time and loss.

    Times have a heavy tail. Clients that are late or fail report no loss.
    """

    def __init__(self, clients: int) -> None:
        rng = round_rng(0, "fates", 0)
        self.clients = clients
        self.times = rng.lognormal(2.0, 1.0, clients)
        self.outcomes = rng.choice(OUTCOMES, clients)
        self.losses = np.where(self.outcomes == "arrived", rng.gamma(2.0, 1.0, clients), np.nan)
        self.available: BoolArray = round_rng(0, "available", 0).random(clients) < 0.8
        self._contexts = np.ones((3, clients)).T

    def history(self) -> list[RoundReport]:
        """Returns the reports of rounds 1 to HISTORY, in which half of the fleet takes part once."""
        rows = round_rng(0, "history", 0).permutation(self.clients)[: self.clients // 2]
        cohorts = (np.sort(part) for part in np.array_split(rows, HISTORY))
        return [self.report(number, cohort) for number, cohort in enumerate(cohorts, start=1)]

    def report(self, number: int, rows: IntArray) -> RoundReport:
        """Returns the report of round `number` with this cohort."""
        contexts, outcomes, losses = np.ones((len(rows), 3)), self.outcomes[rows], self.losses[rows]
        return RoundReport(number, rows, contexts, self.times[rows], outcomes=outcomes, losses=losses)

    def play_round(self, policy: SelectionPolicy, number: int) -> list[int]:
        """Plays one full round and returns its cohort."""
        chosen = policy.ask(RoundOffer(number, self.available, self._contexts)).clients
        policy.tell(self.report(number, chosen))
        cohort: list[int] = chosen.tolist()
        return cohort


def oort(clients: Clients = 100_000, cohort: Cohort = 100, repeats: Repeats = 9) -> Result:
    """Measure a round of Oort against random selection, and against the same rules with one dict per client.

    Half of the fleet has taken part before. Both implementations of Oort must select the same cohorts.

    Example: python -m benchmarks oort --clients 10000
    """
    fleet = OortFleet(clients)
    policy, random = Oort(clients, cohort_size=cohort), UniformRandom(clients, cohort_size=cohort)
    literal = LiteralOort(clients, cohort_size=cohort)
    for report in fleet.history():
        policy.tell(report)
        literal.learn(report.round, outcomes_of(report), {})
    available = np.flatnonzero(fleet.available).tolist()
    cohorts: dict[str, list[list[int]]] = {"Oort": [], "random selection": [], "one dict per client": []}

    def literal_round(number: int) -> list[int]:
        chosen = literal.choose(available, number)
        literal.learn(number, outcomes_of(fleet.report(number, np.array(chosen, dtype=np.int64))), {})
        return chosen

    def task(name: str, play: Callable[[int], list[int]]) -> Callable[[], None]:
        return lambda: cohorts[name].append(play(HISTORY + len(cohorts[name]) + 1))

    plays = (
        lambda number: fleet.play_round(policy, number),
        lambda number: fleet.play_round(random, number),
        literal_round,
    )
    seconds = alternate({name: task(name, play) for name, play in zip(cohorts, plays, strict=True)}, repeats)
    if cohorts["Oort"] != cohorts["one dict per client"]:
        raise RuntimeError("the literal Oort selected other cohorts: one of the two implementations is wrong")
    rows = [{"round": name, "ms": each * 1e3, "/ Oort": each / seconds["Oort"]} for name, each in seconds.items()]
    speedup = seconds["one dict per client"] / seconds["Oort"]
    target = Target("one dict per client / Oort", speedup, MIN_SPEEDUP, is_minimum=True)
    return Result(f"A full round of {clients:,} clients, {cohort} selected", rows, targets=[target])
