"""FairPace as its rule is worded: plain loops, fractions, a search through all cohorts, regressions from scratch."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from turnout.kernel.rounds import RoundOffer, RoundReport

Sample = tuple[int, int, list[float], float]  # round, client, context, time


@dataclass
class LiteralFairPace:
    """Selects by brute force; for small fleets.

    Attributes:
        rates: The guaranteed rate of each client.
        tolerance: The number of turns that a client may be behind.
        cohort_size: The number of clients to select in a round.
        accrual: "available" or "always".
        counts: "selected" or "completed".
        ridge: The number of typical times that the fleet-wide estimate counts for.
        value_weight: What a turn with the usual loss is worth; 0 if losses do not count.
        head_start: The turns by which prices lag behind in the first round; None: as many as the tolerance.
    """

    rates: list[Fraction]
    tolerance: Fraction
    cohort_size: int
    accrual: str = "available"
    counts: str = "selected"
    ridge: float = 8.0
    value_weight: float = 0.0
    head_start: Fraction | None = None
    losses: dict[int, float] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    rounds: int = 0

    def __post_init__(self) -> None:
        self.clients = len(self.rates)
        self.turns = [0] * self.clients
        self.earned = [0] * self.clients
        self.present = [0] * self.clients
        self.features = 3
        self.head = self.tolerance if self.head_start is None else self.head_start
        self.ridges = np.full(self.features, self.ridge)
        self.prior = np.zeros(self.features)
        self.spread = 0.0
        self.samples_in_prior = 0
        self.has_untimed = False

    # The rule

    def choose(self, offer: RoundOffer) -> list[int]:
        """Returns the rows of the cohort in ascending order."""
        places = self.cohort_size if offer.places is None else offer.places
        there = [row for row in range(self.clients) if offer.available[row]]
        times = {row: self.now(row, offer) for row in there}
        behind = {row: self.rates[row] * (self.earned[row] + 1) - self.turns[row] for row in there}
        allowed = {row: self.allowed(row) for row in there}
        urgent = sorted(
            (row for row in there if behind[row] >= allowed[row]),
            key=lambda row: (allowed[row] - behind[row], times[row], row),
        )[:places]
        others = [row for row in there if behind[row] < allowed[row]]
        left = min(places - len(urgent), len(others))
        prices = {
            row: self.priced(row, offer, places)
            / max(Fraction(7, 10) * places, Fraction(1))
            * max(allowed[row], self.tolerance / 2)
            / (
                self.room(row, allowed[row], behind[row], offer.round)
                + self.head * max(Fraction(0), 1 - Fraction(offer.round - 1, 100))
            )
            + Fraction(self.value(row, offer, places))
            for row in others
        }
        slowest_urgent = max((times[row] for row in urgent), default=0.0)

        def key(cohort: tuple[int, ...]) -> tuple[Fraction, float, list[tuple[Fraction, float, int]]]:
            slowest = max((times[row] for row in cohort), default=0.0)
            objective = Fraction(max(slowest, slowest_urgent)) - sum(prices[row] for row in cohort)
            return objective, slowest, sorted((-prices[row], times[row], row) for row in cohort)

        return sorted([*urgent, *min(itertools.combinations(others, left), key=key)])

    def allowed(self, row: int) -> Fraction:
        """Returns how many turns a client may be behind."""
        if self.accrual == "available":
            return self.tolerance - self.rates[row]
        probability = (self.present[row] + 1 + 1) / (self.earned[row] + 1 + 2)  # this round included
        gap = math.log(0.001) / math.log(1 - probability)
        return self.tolerance - self.rates[row] * (1 + Fraction(gap))

    def priced(self, row: int, offer: RoundOffer, places: int) -> Fraction:
        """Returns the usual time, and a part of what the client takes less than that in this round."""
        usual, now = (Fraction(seconds) for seconds in (self.usual(row, offer), self.now(row, offer)))
        return max(usual + (1 - Fraction(1, places)) * (usual - now), Fraction(0))

    def room(self, row: int, allowed: Fraction, behind: Fraction, round: int) -> Fraction:
        """Returns how much further a client may fall behind, as prices count it."""
        full = max(allowed, self.tolerance / 2) + self.tolerance
        excess = max(allowed - behind - full, Fraction(0))
        return allowed - behind - excess + excess * Fraction(24 + round, 25 + self.earned[row])

    def value(self, row: int, offer: RoundOffer, places: int) -> float:
        """Returns what the loss of a client adds to its price."""
        known = sorted(max(loss, 0.0) for loss in self.losses.values())
        if not self.value_weight or len(known) < 4:
            return 0.0
        largest = known[int(0.9 * (len(known) - 1))]
        usual = sum(min(loss, largest) for loss in known) / len(known)
        own = min(max(self.losses.get(row, largest), 0.0), largest)
        seconds = np.median([self.usual(client, offer) for client in range(self.clients)])
        return self.value_weight * float(seconds) / max(0.7 * places, 1) * own / usual if usual else 0.0

    # Times

    def now(self, row: int, offer: RoundOffer) -> float:
        """Returns the predicted time in this round."""
        return self.predicted(row, offer.contexts[row].tolist())

    def predicted(self, row: int, context: list[float]) -> float:
        """Returns the predicted time in a context, at least 0."""
        return max(float(np.dot(self.theta(row), context)), 0.0)

    def usual(self, row: int, offer: RoundOffer) -> float:
        """Returns the predicted time in the client's usual context, at least 0; 1 if turns ended but taught nothing."""
        own = [context for _, client, context, _ in self.samples if client == row]
        if not self.samples and self.has_untimed:
            return 1.0
        everyone = [context for _, _, context, _ in self.samples] or offer.contexts[offer.available].tolist()
        mean = np.mean(everyone, axis=0)
        context = (np.sum(own, axis=0) + mean) / (len(own) + 1) if own else mean
        return self.predicted(row, context.tolist())

    def theta(self, row: int) -> np.ndarray:
        """Solves the ridge regression of a client, which is shrunk towards the fleet-wide one."""
        own = [(context, time) for _, client, context, time in self.samples if client == row]
        squares = np.linalg.inv(np.diag(1 / self.ridges) + self.spread * np.outer(self.prior, self.prior))
        sums = squares @ self.prior
        for context, time in own:
            squares = squares + np.outer(context, context)
            sums = sums + time * np.array(context)
        theta: np.ndarray = np.linalg.solve(squares, sums)
        return theta

    # Learning

    def learn(self, report: RoundReport) -> None:
        """Counts turns and rounds, and learns times."""
        assert report.available is not None
        outcomes = ["arrived"] * len(report.clients) if report.outcomes is None else list(report.outcomes)
        late = report.late_arrivals
        for index in range(0 if late is None else len(late.clients)):
            assert late is not None
            self._correct(int(late.rounds[index]), int(late.clients[index]), float(late.exchange_times[index]))
        new: list[Sample] = []
        for index, row in enumerate(report.clients.tolist()):
            if self.counts == "selected" or outcomes[index] == "arrived":
                self.turns[row] += 1
            if report.losses is not None and not math.isnan(report.losses[index]):
                self.losses[row] = float(report.losses[index])
            if outcomes[index] != "failed":
                context = report.contexts[index].tolist()
                new.append((report.round, row, context, float(report.exchange_times[index])))
            else:
                self.has_untimed = True
        for row in range(self.clients):
            self.present[row] += bool(report.available[row])
            self.earned[row] += 1 if self.accrual == "always" else bool(report.available[row])
        self.rounds += 1
        if new:
            self._learn_times(new)

    def _correct(self, round: int, row: int, time: float) -> None:
        for index, (sample_round, client, context, _) in enumerate(self.samples):
            if (sample_round, client) == (round, row):
                self.samples[index] = (round, row, context, time)

    def _learn_times(self, new: list[Sample]) -> None:
        is_first = not self.samples
        self.samples += new
        contexts = np.array([context for _, _, context, _ in self.samples])
        squares = (contexts**2).mean(axis=0)
        wanted = self.ridge * np.where(squares > 0, squares, 1.0)
        ratio = wanted / self.ridges
        if is_first or (ratio > 2).any() or (ratio < 0.5).any():
            self.ridges = wanted
        if len(self.samples) * 10 >= self.samples_in_prior * 11:
            self.samples_in_prior = len(self.samples)
            times = np.array([time for _, _, _, time in self.samples])
            one = np.diag(self.ridges) / self.ridge
            self.prior = np.linalg.solve(contexts.T @ contexts + one, contexts.T @ times)
            typical = float(((contexts @ self.prior) ** 2).mean())
            self.spread = 1 / typical if typical else 0.0
