"""Measures a round of Oort against a round of random selection in the same fleet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turnout.bench.timing import in_turns
from turnout.kernel.arrays import BoolArray, IntArray
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.policies.base import SelectionPolicy
from turnout.policies.baselines.uniform import UniformRandom
from turnout.policies.published.oort import Oort

CLIENTS, COHORT = 100_000, 100
HISTORY = 10  # rounds before the measurement, in which half of the fleet takes part once
OUTCOMES = ("arrived", "arrived", "arrived", "arrived", "late", "failed")


@dataclass(frozen=True, slots=True)
class OortFigures:
    """Median wall-clock seconds of a full round: offer, selection, report, learning."""

    clients: int
    cohort: int
    round_seconds: float
    random_seconds: float

    @property
    def ratio(self) -> float:
        """Time of a round of Oort, divided by the time of a round of random selection."""
        return self.round_seconds / self.random_seconds


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


def measure_oort(*, clients: int = CLIENTS, cohort: int = COHORT, repeats: int = 9) -> OortFigures:
    """Measures full rounds of Oort, with half of the fleet explored, and of random selection."""
    fleet = OortFleet(clients)
    oort, random = Oort(clients, cohort_size=cohort), UniformRandom(clients, cohort_size=cohort)
    for report in fleet.history():
        oort.tell(report)
    numbers = {policy.name: HISTORY for policy in (oort, random)}

    def play(policy: SelectionPolicy) -> None:
        numbers[policy.name] += 1
        fleet.play_round(policy, numbers[policy.name])

    return OortFigures(clients, cohort, *in_turns([lambda: play(oort), lambda: play(random)], repeats))
