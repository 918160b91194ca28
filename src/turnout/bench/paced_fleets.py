"""Fleets of FairPace in conditions that make selection easy, typical or hard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from turnout.bench.fleets import BLOCK, LESSONS, random_contexts, random_speeds
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.pace.prices import paced_cohort_of_contexts
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.policies.fair_pace import FairPace

TOLERANCE = 2
SEEN_IN_COLD_FLEET = 0.01  # the share of clients that have taken part although everybody is urgent


@dataclass(slots=True)
class PacedFleet:
    """A policy with history, and the offer that it gets in every round. Clients accrue in rounds when available."""

    policy: FairPace
    available: BoolArray
    contexts: FloatArray

    def full_round(self) -> None:
        """Runs one round: builds the offer, selects, reports and learns."""
        offer = RoundOffer(1, self.available, self.contexts)
        chosen = self.policy.ask(offer).clients
        times = np.full(len(chosen), 5.0)
        self.policy.tell(RoundReport(1, chosen, offer.contexts[chosen], times, available=self.available))

    def arrays(self) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
        """Returns the arrays that every round must read.

        These are contexts, coefficients, sums of contexts, rounds, turns and availability.
        """
        model, usual = self.policy.learned()
        return [
            self.contexts.T,
            model.coefficients,
            usual.sums,
            np.asarray(self.policy.debts.accounts().rounds),
            self.policy.turns,
            self.available,
        ]

    def held_bytes(self) -> int:
        """Returns the bytes of the offer and of the policy."""
        inverse = self.policy.learned()[0].bank.nbytes - self.policy.learned()[0].coefficients.nbytes
        return sum(array.nbytes for array in self.arrays()) + inverse + 8 * self.policy.clients  # and the balances

    def considered(self, cohort: int) -> int:
        """Returns how many candidates the filter leaves for the sweep."""
        model, usual = self.policy.learned()
        found = paced_cohort_of_contexts(model, self.contexts, 0.0, usual, self.policy.pace(), cohort, self.available)
        return found.cohort.considered


def mixed(clients: int, cohort: int, rng: np.random.Generator) -> PacedFleet:
    """All clients have taken part; how far they are behind is independent of their speed."""
    fleet = _seen(clients, cohort, rng)
    _set_behind(fleet, rng.uniform(-2, 0.95 * TOLERANCE, clients))
    return fleet


def settled(clients: int, cohort: int, rng: np.random.Generator) -> PacedFleet:
    """The state after a long run: slower clients are further behind."""
    fleet = _seen(clients, cohort, rng)
    ranks = np.argsort(np.argsort(fleet.policy.learned()[0].predict(fleet.contexts))) / clients
    _set_behind(fleet, np.clip(-2 + 3.8 * ranks + rng.normal(0, 0.2, clients), -2, 0.95 * TOLERANCE))
    return fleet


def mostly_cold(clients: int, cohort: int, rng: np.random.Generator) -> PacedFleet:
    """90 % of the clients have never taken part: their usual times are equal, their prices nearly so."""
    fleet = _seen(clients, cohort, rng, share=0.1)
    rounds = _rounds_per_turn(fleet.policy)
    _set_rounds(fleet, rng.binomial(max(int(rounds), 1), 0.8, clients))
    return fleet


def all_urgent(clients: int, cohort: int, rng: np.random.Generator) -> PacedFleet:
    """Hardly anybody has ever taken part, and all clients are urgent at once, most of them equally."""
    fleet = _seen(clients, cohort, rng, share=SEEN_IN_COLD_FLEET)
    _set_rounds(fleet, np.full(clients, int(_rounds_per_turn(fleet.policy) * (TOLERANCE + LESSONS)) + 1))
    return fleet


def ties(clients: int, cohort: int, rng: np.random.Generator) -> PacedFleet:
    """All clients have the same times and prices."""
    fleet = _seen(clients, cohort, rng)
    model, usual = fleet.policy.learned()
    fleet.contexts[:] = fleet.contexts[0]
    model.bank[:] = model.bank[:, :1].copy()
    usual.sums[:] = usual.sums[:, :1].copy()
    _set_behind(fleet, np.full(clients, 0.5))
    return fleet


PACED_CONDITIONS: dict[str, Callable[[int, int, np.random.Generator], PacedFleet]] = {
    "mixed": mixed,
    "settled": settled,
    "mostly cold": mostly_cold,
    "all urgent": all_urgent,
    "all ties": ties,
}


def _seen(clients: int, cohort: int, rng: np.random.Generator, share: float = 1.0) -> PacedFleet:
    """Returns a fleet in which this share of the clients has taken part, LESSONS times each."""
    rate = Fraction(cohort, 2 * clients).limit_denominator(10**9)
    policy = FairPace(clients, cohort_size=cohort, guaranteed_rate=rate, tolerance=TOLERANCE, allow_infeasible=True)
    model, usual = policy.learned()
    everyone = np.arange(clients) if share == 1 else np.flatnonzero(rng.random(clients) < share)
    for start in range(0, len(everyone), BLOCK):
        rows = everyone[start : start + BLOCK]
        speeds = random_speeds(len(rows), rng)
        for _ in range(LESSONS):
            contexts = random_contexts(len(rows), rng)
            times = (contexts * speeds).sum(axis=1) * rng.uniform(0.2, 1.8, len(rows))
            report = RoundReport(1, rows, contexts, times)
            usual.learn_from(report)
            model.learn_from(report)
        policy.turns[rows] = LESSONS
    return PacedFleet(policy, rng.random(clients) < 0.8, random_contexts(clients, rng))


def _rounds_per_turn(policy: FairPace) -> float:
    return float(1 / policy.debts.guaranteed_rates[0])


def _set_behind(fleet: PacedFleet, behind: FloatArray) -> None:
    """Sets the rounds of each client so that it is this many turns behind, or at least as far as without rounds."""
    rounds = (behind + fleet.policy.turns) * _rounds_per_turn(fleet.policy)
    _set_rounds(fleet, np.maximum(rounds, 0).astype(np.int64))


def _set_rounds(fleet: PacedFleet, rounds: IntArray) -> None:
    queues = fleet.policy.debts
    queues.restore({**queues.state(), "rounds": rounds})
