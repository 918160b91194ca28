"""Fleets of RBCS-F and FairPace in conditions that make selection easy, typical or hard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.cohort import cohort_of_contexts
from turnout.kernel.pace.prices import paced_cohort_of_contexts
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.policies.fair_pace import FairPace
from turnout.policies.rbcsf import RBCSF

RATE = "3/20"
UNITS = 20  # units per turn at this rate
TOLERANCE = 2
LESSONS = 4  # observations per client that has taken part
BLOCK = 65536
Arrays = list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]


@dataclass(slots=True)
class _Fleet:
    """A policy with history, and the offer that it gets in every round."""

    policy: RBCSF | FairPace
    available: BoolArray
    contexts: FloatArray

    def full_round(self) -> None:
        """Runs one round: builds the offer, selects, reports and learns."""
        offer = RoundOffer(1, self.available, self.contexts)
        chosen = self.policy.ask(offer).clients
        self.policy.tell(self.report(chosen, offer.contexts[chosen], np.full(len(chosen), 5.0)))

    def report(self, chosen: IntArray, contexts: FloatArray, times: FloatArray) -> RoundReport:
        """Returns the report of a round."""
        return RoundReport(1, chosen, contexts, times)


class RBCSFFleet(_Fleet):
    """A fleet of RBCS-F. Clients accrue in every round."""

    policy: RBCSF

    def arrays(self) -> Arrays:
        """Returns the arrays that every round must read: contexts, model, owed turns and availability."""
        return [self.contexts.T, self.policy.time_model.bank, self.policy.debts.owed_exactly().units, self.available]

    def held_bytes(self) -> int:
        """Returns the bytes of the offer and of the policy."""
        return sum(array.nbytes for array in self.arrays()) + self.policy.turns.nbytes

    def considered(self, cohort: int) -> int:
        """Returns how many candidates the filter leaves for the sweep."""
        policy, owed = self.policy, self.policy.debts.owed_exactly()
        exploration, weight = policy.exploration(1), policy.speed_weight
        return cohort_of_contexts(
            policy.time_model, self.contexts, exploration, owed, cohort, weight, self.available
        ).considered

    def owe(self, units: IntArray) -> RBCSFFleet:
        """Sets the turns owed, as if they had accrued in as many rounds as that takes."""
        queues = self.policy.debts
        rounds = int(units.max()) // 3 + 1
        queues.restore({**queues.state(), "balance": units - 3 * rounds, "rounds": rounds})
        return self


class FairPaceFleet(_Fleet):
    """A fleet of FairPace. Clients accrue in the rounds in which they are available."""

    policy: FairPace

    def report(self, chosen: IntArray, contexts: FloatArray, times: FloatArray) -> RoundReport:
        return RoundReport(1, chosen, contexts, times, available=self.available, losses=np.ones(len(chosen)))

    def arrays(self) -> Arrays:
        """Returns the same: contexts, coefficients, sums of contexts, rounds, turns, availability, and any losses."""
        (model, usual), losses = self.policy.learned(), self.policy._signal
        rounds = np.asarray(self.policy.debts.accounts().rounds)
        arrays: Arrays = [self.contexts.T, model.coefficients, usual.sums, rounds, self.policy.turns, self.available]
        return arrays if losses is None else [*arrays, losses.relative]

    def held_bytes(self) -> int:
        inverse = self.policy.learned()[0].bank.nbytes - self.policy.learned()[0].coefficients.nbytes
        return sum(array.nbytes for array in self.arrays()) + inverse + 8 * self.policy.clients  # and the balances

    def considered(self, cohort: int) -> int:
        model, usual = self.policy.learned()
        pace = self.policy.pace()
        return paced_cohort_of_contexts(
            model, self.contexts, 0.0, usual, pace, cohort, self.available
        ).cohort.considered

    def fall_behind(self, turns: FloatArray) -> FairPaceFleet:
        """Sets the rounds of each client so that it is this many turns behind, or at least as far as without rounds."""
        rounds = (turns + self.policy.turns) * self.rounds_per_turn
        return self.accrue(np.maximum(rounds, 0).astype(np.int64))

    def accrue(self, rounds: IntArray) -> FairPaceFleet:
        """Sets the rounds in which each client has accrued."""
        debts = self.policy.debts
        debts.restore({**debts.state(), "rounds": rounds})
        return self

    @property
    def rounds_per_turn(self) -> float:
        """The number of rounds in which a client earns a turn."""
        return float(1 / self.policy.debts.guaranteed_rates[0])


BenchFleet = RBCSFFleet | FairPaceFleet


# RBCS-F


def new_rbcsf(clients: int, cohort: int, rng: np.random.Generator) -> RBCSFFleet:
    """No client has ever taken part."""
    policy = RBCSF(clients, cohort_size=cohort, guaranteed_rate=RATE, allow_infeasible=True)
    return RBCSFFleet(policy, rng.random(clients) < 0.8, random_contexts(clients, rng))


def seen_rbcsf(clients: int, cohort: int, rng: np.random.Generator) -> RBCSFFleet:
    """All clients have taken part."""
    fleet = new_rbcsf(clients, cohort, rng)
    for report in lessons(np.arange(clients), rng):
        fleet.policy.time_model.learn(report.clients, report.contexts, report.exchange_times)
    return fleet


def mixed(clients: int, cohort: int, rng: np.random.Generator) -> RBCSFFleet:
    """All clients have taken part; owed turns are independent of speed."""
    return seen_rbcsf(clients, cohort, rng).owe(rng.integers(0, 40 * UNITS, clients))


def settled(clients: int, cohort: int, rng: np.random.Generator) -> RBCSFFleet:
    """The state after a long run: slower clients are owed more, so that the objective is balanced to a turn."""
    fleet = seen_rbcsf(clients, cohort, rng)
    slope = fleet.policy.speed_weight / cohort
    debts = slope * fleet.policy.time_model.predict(fleet.contexts) + rng.random(clients)
    return fleet.owe((np.clip(debts, 0, 1000) * UNITS).astype(np.int64))


def mostly_cold(clients: int, cohort: int, rng: np.random.Generator) -> RBCSFFleet:
    """90 % of the clients have never taken part: optimistic time 0, same number of turns owed."""
    fleet = seen_rbcsf(clients, cohort, rng)
    unseen = rng.random(clients) < 0.9
    fleet.policy.time_model.bank[:, unseen] = new_rbcsf(1, 1, rng).policy.time_model.bank
    return fleet.owe(np.where(unseen, 50 * UNITS, rng.integers(0, 40 * UNITS, clients)))


def cold(clients: int, cohort: int, rng: np.random.Generator) -> RBCSFFleet:
    """No client has ever taken part: all optimistic times are 0, all are owed the same."""
    return new_rbcsf(clients, cohort, rng).owe(np.full(clients, 10 * UNITS))


def ties(clients: int, cohort: int, rng: np.random.Generator) -> RBCSFFleet:
    """All clients have the same expected time and are owed the same."""
    fleet = seen_rbcsf(clients, cohort, rng)
    fleet.contexts[:] = fleet.contexts[0]
    fleet.policy.time_model.bank[:] = fleet.policy.time_model.bank[:, :1].copy()
    return fleet.owe(np.full(clients, 10 * UNITS))


def heavy_tailed(clients: int, cohort: int, rng: np.random.Generator) -> RBCSFFleet:
    """A few clients are a thousand times slower, or are owed a thousand times more, than most."""
    fleet = seen_rbcsf(clients, cohort, rng)
    fleet.policy.time_model.bank[-fleet.policy.time_model.features :] *= rng.pareto(1.1, clients) + 0.2
    return fleet.owe(np.minimum(rng.pareto(1.1, clients) * UNITS, 10**6 * UNITS).astype(np.int64))


def adverse(clients: int, cohort: int, rng: np.random.Generator) -> RBCSFFleet:
    """Every slower client is owed more than every faster one, so that no client can be excluded early."""
    fleet = seen_rbcsf(clients, cohort, rng)
    debts = np.empty(clients, dtype=np.int64)
    debts[np.argsort(fleet.policy.time_model.optimistic(fleet.contexts, 0.1))] = np.arange(clients)
    return fleet.owe(debts)


# FairPace


def seen_fair_pace(
    clients: int, cohort: int, rng: np.random.Generator, share: float = 1.0, value: Literal["loss"] | None = None
) -> FairPaceFleet:
    """Returns a fleet in which this share of the clients has taken part, LESSONS times each."""
    rate = Fraction(cohort, 2 * clients).limit_denominator(10**9)
    policy = FairPace(
        clients, cohort_size=cohort, guaranteed_rate=rate, tolerance=TOLERANCE, value=value, allow_infeasible=True
    )
    model, usual = policy.learned()
    seen = np.flatnonzero(rng.random(clients) < share)
    for report in lessons(seen, rng):
        usual.learn_from(report)
        model.learn_from(report)
    policy.turns[seen] = LESSONS
    return FairPaceFleet(policy, rng.random(clients) < 0.8, random_contexts(clients, rng))


def paced_mixed(clients: int, cohort: int, rng: np.random.Generator) -> FairPaceFleet:
    """All clients have taken part; how far they are behind is independent of their speed."""
    return seen_fair_pace(clients, cohort, rng).fall_behind(rng.uniform(-2, 0.95 * TOLERANCE, clients))


def paced_with_value(clients: int, cohort: int, rng: np.random.Generator) -> FairPaceFleet:
    """The same, with a value of turns: all clients have reported a loss."""
    fleet = seen_fair_pace(clients, cohort, rng, value="loss")
    rows, times, losses = np.arange(clients), rng.uniform(1, 20, clients), rng.gamma(2, 0.5, clients)
    available = np.ones(clients, dtype=np.bool_)
    fleet.policy.tell(RoundReport(1, rows, fleet.contexts, times, available=available, losses=losses))
    return fleet.fall_behind(rng.uniform(-2, 0.95 * TOLERANCE, clients))


def paced_settled(clients: int, cohort: int, rng: np.random.Generator) -> FairPaceFleet:
    """The state after a long run: slower clients are further behind."""
    fleet = seen_fair_pace(clients, cohort, rng)
    ranks = np.argsort(np.argsort(fleet.policy.learned()[0].predict(fleet.contexts))) / clients
    return fleet.fall_behind(np.clip(-2 + 3.8 * ranks + rng.normal(0, 0.2, clients), -2, 0.95 * TOLERANCE))


def paced_mostly_cold(clients: int, cohort: int, rng: np.random.Generator) -> FairPaceFleet:
    """90 % of the clients have never taken part: their usual times are equal, their prices nearly so."""
    fleet = seen_fair_pace(clients, cohort, rng, share=0.1)
    return fleet.accrue(rng.binomial(max(int(fleet.rounds_per_turn), 1), 0.8, clients))


def paced_urgent(clients: int, cohort: int, rng: np.random.Generator) -> FairPaceFleet:
    """1 % of the clients has ever taken part, and all clients are urgent at once, most of them equally."""
    fleet = seen_fair_pace(clients, cohort, rng, share=0.01)
    return fleet.accrue(np.full(clients, int(fleet.rounds_per_turn * (TOLERANCE + LESSONS)) + 1))


def paced_ties(clients: int, cohort: int, rng: np.random.Generator) -> FairPaceFleet:
    """All clients have the same times and prices."""
    fleet = seen_fair_pace(clients, cohort, rng)
    model, usual = fleet.policy.learned()
    fleet.contexts[:] = fleet.contexts[0]
    model.bank[:] = model.bank[:, :1].copy()
    usual.sums[:] = usual.sums[:, :1].copy()
    return fleet.fall_behind(np.full(clients, 0.5))


PACED_CONDITIONS: Mapping[str, Callable[[int, int, np.random.Generator], FairPaceFleet]] = {
    "mixed": paced_mixed,
    "mixed, with value": paced_with_value,
    "settled": paced_settled,
    "mostly cold": paced_mostly_cold,
    "all urgent": paced_urgent,
    "all ties": paced_ties,
}
#: The conditions of each policy.
CONDITIONS: Mapping[str, Mapping[str, Callable[[int, int, np.random.Generator], BenchFleet]]] = {
    "rbcsf": {
        "mixed": mixed,
        "settled": settled,
        "mostly cold": mostly_cold,
        "cold": cold,
        "all ties": ties,
        "heavy-tailed": heavy_tailed,
        "adverse": adverse,
    },
    "fair-pace": PACED_CONDITIONS,
}


def lessons(rows: IntArray, rng: np.random.Generator) -> Iterator[RoundReport]:
    """Yields reports in which each of these clients takes part LESSONS times."""
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        noise_ratio = 10 ** rng.uniform(0, 3, len(block))
        speeds = np.stack([rng.uniform(1, 4, len(block)), np.ones(len(block)), 1 / np.log2(1 + noise_ratio)]).T
        for _ in range(LESSONS):
            contexts = random_contexts(len(block), rng)
            times = (contexts * speeds).sum(axis=1) * rng.uniform(0.2, 1.8, len(block))
            yield RoundReport(1, block, contexts, times)


def random_contexts(clients: int, rng: np.random.Generator) -> FloatArray:
    """Returns random contexts in features-major order, which is faster for large fleets."""
    return np.stack(
        [
            1 / rng.uniform(0.5, 2.0, clients),
            (rng.random(clients) < 0.9).astype(np.float64),
            20 / rng.uniform(2.0, 4.0, clients),
        ]
    ).T
