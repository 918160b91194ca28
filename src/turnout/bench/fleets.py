"""Fleets in conditions that make selection easy, typical or hard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.cohort import cohort_of_contexts
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.policies.rbcsf.policy import RBCSF

RATE = "3/20"
UNITS = 20  # units per turn at this rate
LESSONS = 4  # observations per client that has taken part
BLOCK = 65536


@dataclass(slots=True)
class BenchFleet:
    """A policy with history, and the offer that it gets in every round."""

    policy: RBCSF
    available: BoolArray
    contexts: FloatArray

    def full_round(self) -> None:
        """Runs one round: builds the offer, selects, reports and learns."""
        offer = RoundOffer(1, self.available, self.contexts)
        chosen = self.policy.ask(offer).clients
        times = np.full(len(chosen), 5.0)
        self.policy.tell(RoundReport(1, chosen, offer.contexts[chosen], times))

    def arrays(self) -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
        """Returns the arrays that every round must read: contexts, model, owed turns and availability."""
        return [
            self.contexts.T,
            self.policy.model.bank,
            self.policy.queues.owed_exactly().units,
            self.available,
        ]

    def held_bytes(self) -> int:
        """Returns the bytes of the offer and of the policy."""
        return sum(array.nbytes for array in self.arrays()) + self.policy.turns.nbytes

    def considered(self, cohort: int) -> int:
        """Returns how many candidates the filter leaves for the sweep."""
        policy, owed = self.policy, self.policy.queues.owed_exactly()
        found = cohort_of_contexts(
            policy.model,
            self.contexts,
            policy.exploration(1),
            owed,
            cohort,
            policy.speed_weight,
            self.available,
        )
        return found.considered


def mixed(clients: int, cohort: int, rng: np.random.Generator) -> BenchFleet:
    """All clients have taken part; owed turns are independent of speed."""
    fleet = _seen(clients, cohort, rng)
    _owe(fleet, rng.integers(0, 40 * UNITS, clients))
    return fleet


def settled(clients: int, cohort: int, rng: np.random.Generator) -> BenchFleet:
    """The state after a long run: slower clients are owed more, so that the objective is balanced to a turn."""
    fleet = _seen(clients, cohort, rng)
    slope = fleet.policy.speed_weight / cohort
    debts = slope * fleet.policy.model.predict(fleet.contexts) + rng.random(clients)
    _owe(fleet, (np.clip(debts, 0, 1000) * UNITS).astype(np.int64))
    return fleet


def mostly_cold(clients: int, cohort: int, rng: np.random.Generator) -> BenchFleet:
    """90 % of the clients have never taken part: optimistic time 0, same number of turns owed."""
    fleet = _seen(clients, cohort, rng)
    unseen = rng.random(clients) < 0.9
    fleet.policy.model.bank[:, unseen] = _cold(1, cohort).policy.model.bank
    _owe(fleet, np.where(unseen, 50 * UNITS, rng.integers(0, 40 * UNITS, clients)))
    return fleet


def cold(clients: int, cohort: int, rng: np.random.Generator) -> BenchFleet:
    """No client has ever taken part: all optimistic times are 0, all are owed the same."""
    fleet = _cold(clients, cohort)
    fleet.contexts, fleet.available = random_contexts(clients, rng), rng.random(clients) < 0.8
    _owe(fleet, np.full(clients, 10 * UNITS))
    return fleet


def ties(clients: int, cohort: int, rng: np.random.Generator) -> BenchFleet:
    """All clients have the same expected time and are owed the same."""
    fleet = _seen(clients, cohort, rng)
    fleet.contexts[:] = fleet.contexts[0]
    fleet.policy.model.bank[:] = fleet.policy.model.bank[:, :1].copy()
    _owe(fleet, np.full(clients, 10 * UNITS))
    return fleet


def heavy_tailed(clients: int, cohort: int, rng: np.random.Generator) -> BenchFleet:
    """A few clients are a thousand times slower, or are owed a thousand times more, than most."""
    fleet = _seen(clients, cohort, rng)
    fleet.policy.model.bank[-fleet.policy.model.features :] *= rng.pareto(1.1, clients) + 0.2
    _owe(fleet, np.minimum(rng.pareto(1.1, clients) * UNITS, 10**6 * UNITS).astype(np.int64))
    return fleet


def adverse(clients: int, cohort: int, rng: np.random.Generator) -> BenchFleet:
    """Every slower client is owed more than every faster one, so that no client can be excluded early."""
    fleet = _seen(clients, cohort, rng)
    times = fleet.policy.model.optimistic(fleet.contexts, 0.1)
    debts = np.empty(clients, dtype=np.int64)
    debts[np.argsort(times)] = np.arange(clients)
    _owe(fleet, debts)
    return fleet


CONDITIONS: dict[str, Callable[[int, int, np.random.Generator], BenchFleet]] = {
    "mixed": mixed,
    "settled": settled,
    "mostly cold": mostly_cold,
    "cold": cold,
    "all ties": ties,
    "heavy-tailed": heavy_tailed,
    "adverse": adverse,
}


def _seen(clients: int, cohort: int, rng: np.random.Generator) -> BenchFleet:
    fleet = _cold(clients, cohort)
    for start in range(0, clients, BLOCK):
        rows = np.arange(start, min(start + BLOCK, clients))
        speeds = random_speeds(len(rows), rng)
        for _ in range(LESSONS):
            contexts = random_contexts(len(rows), rng)
            times = (contexts * speeds).sum(axis=1) * rng.uniform(0.2, 1.8, len(rows))
            fleet.policy.model.learn(rows, contexts, times)
    fleet.contexts, fleet.available = random_contexts(clients, rng), rng.random(clients) < 0.8
    return fleet


def _cold(clients: int, cohort: int) -> BenchFleet:
    policy = RBCSF(clients, cohort_size=cohort, guaranteed_rate=RATE, allow_infeasible=True)
    return BenchFleet(policy, np.ones(clients, dtype=np.bool_), np.ones((3, clients)).T)


def random_speeds(clients: int, rng: np.random.Generator) -> FloatArray:
    """Returns random coefficients of the exchange time, one row per client."""
    return np.stack([rng.uniform(1, 4, clients), np.ones(clients), 1 / np.log2(1 + 10 ** rng.uniform(0, 3, clients))]).T


def random_contexts(clients: int, rng: np.random.Generator) -> FloatArray:
    """Returns random contexts in features-major order, which is faster for large fleets."""
    return np.stack(
        [
            1 / rng.uniform(0.5, 2.0, clients),
            (rng.random(clients) < 0.9).astype(np.float64),
            20 / rng.uniform(2.0, 4.0, clients),
        ]
    ).T


def _owe(fleet: BenchFleet, units: IntArray) -> None:
    """Sets the turns owed, as if they had accrued in as many rounds as that takes."""
    queues = fleet.policy.queues
    rounds = int(units.max()) // 3 + 1
    queues.restore({**queues.state(), "balance": units - 3 * rounds, "rounds": rounds})
