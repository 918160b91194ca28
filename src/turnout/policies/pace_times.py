"""Where FairPace's times come from: a model that learns them, or a world that knows them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np

from turnout.errors import OfferError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.pace.prices import Pace, PacedCohort, paced_cohort_of_contexts, paced_cohort_of_times
from turnout.kernel.pace.usual import DOUBTED, UsualContexts, UsualTimes, credible_times
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.policies.base import Memory

#: The number of clients whose usual times are typical of a fleet.
SAMPLE = 1024


class PaceTimes(Memory, ABC):
    """The time of each client in a round, and its usual time."""

    usual: UsualContexts | UsualTimes

    def __init__(self, clients: int, usual: UsualContexts | UsualTimes) -> None:
        super().__init__(clients)
        self.usual = usual
        self._remember_part("usual", usual, usual.forget)

    @abstractmethod
    def times(self, offer: RoundOffer) -> FloatArray:
        """Returns the time of each client in this round."""

    @abstractmethod
    def usual_terms(self, offer: RoundOffer, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Returns the usual times of these clients, each times a weight, and these weights."""

    def usual_seconds(self, offer: RoundOffer, row: int) -> float:
        """Returns the usual time of the client in a row."""
        weighted, weights = self.usual_terms(offer, np.array([row]))
        return float((weighted / weights)[0])

    def typical_seconds(self, offer: RoundOffer) -> float:
        """Returns the median usual time; of a large fleet, that of some clients."""
        weighted, weights = self.usual_terms(offer, np.arange(0, offer.clients, -(-offer.clients // SAMPLE)))
        return float(np.median(weighted / weights))

    @abstractmethod
    def cohort(self, offer: RoundOffer, pace: Pace, places: int) -> PacedCohort:
        """Returns the cohort of FairPace for this offer."""

    def learn_from(self, report: RoundReport) -> None:
        """Learns from the outcome of a round."""
        self.usual.learn_from(report)


class LearnedTimes(PaceTimes):
    """Times that a model predicts in the client's context of the round, and in its usual context.

    `last` is the last time with which each client arrived, in seconds; 0 before the first. `untimed` is 1 for a client
    from a turn of which nothing was learned.
    """

    usual: UsualContexts
    last: FloatArray
    untimed: IntArray

    def __init__(self, model: ExchangeTimeModel, exploration: float) -> None:
        super().__init__(model.clients, UsualContexts(model.clients, model.features))
        self.model, self.exploration = model, exploration
        self._remember_part("model", model, None)
        self._remember(last=0.0, untimed=0)

    def times(self, offer: RoundOffer) -> FloatArray:
        """Returns the optimistic times; without exploration, the predicted times, not below 0."""
        return self.model.optimistic(offer.contexts, self.exploration)

    def usual_terms(self, offer: RoundOffer, rows: IntArray) -> tuple[FloatArray, FloatArray]:  # noqa: ARG002
        """Returns the predicted times in the usual contexts, each times a weight, and these weights."""
        if self._teaches_nothing:
            return np.ones(len(rows)), np.ones(len(rows))
        return self.usual.terms(self.model, self.usual.fleet_mean(), rows)

    def cohort(self, offer: RoundOffer, pace: Pace, places: int) -> PacedCohort:
        """Returns the cohort; the compiled kernel estimates, prices and filters in one pass."""
        if self._teaches_nothing:
            usual = np.ones(offer.clients)
            return paced_cohort_of_times(np.zeros(offer.clients), usual, pace, places, offer.available)
        return paced_cohort_of_contexts(
            self.model, offer.contexts, self.exploration, self.usual, pace, places, offer.available
        )

    @property
    def _teaches_nothing(self) -> bool:
        """Whether no time is known although turns have ended; all usual times are 1 then.

        Prices of 0 would select the same clients again, instead of those that are behind.
        """
        return self.usual.is_empty and bool(self.untimed.any())

    def learn_from(self, report: RoundReport) -> None:
        """Learns times and contexts; a single time that nothing supports counts as the one that was expected."""
        super().learn_from(report)
        self.model.learn_from(self._with_credible_times(report))

    def _with_credible_times(self, report: RoundReport) -> RoundReport:
        """Returns the report with credible times of the clients that arrived.

        Those of late clients stay: a deadline is replaced by the true time later, exactly.
        """
        informative = report.informative()
        judged: BoolArray | slice = slice(None)
        if informative is not None:
            judged = informative & report.with_outcome("arrived")
            self.untimed[report.clients[~informative]] = 1
        rows, times = report.clients[judged], report.exchange_times[judged]
        before, self.last[rows] = self.last[rows], times
        longer = times > DOUBTED * before
        if not longer.any():  # nearly always, which spares the prediction
            return report
        at, seconds = np.arange(len(report.clients))[judged][longer], report.exchange_times.copy()
        predicted = self.model.optimistic(report.contexts[at], 0.0, report.clients[at])
        seconds[at] = credible_times(seconds[at], predicted, self.last)
        if np.array_equal(seconds, report.exchange_times):
            return report
        return replace(report, exchange_times=seconds)

    def forget(self, rows: IntArray) -> None:
        """Removes what was learned about these clients, from the fleet-wide regression too."""
        self.model.forget(rows, samples=int(self.usual.sums[-1, rows].sum()))
        super().forget(rows)


class ExpectedTimes(PaceTimes):
    """True expected times, which only simulated worlds know; the usual time is the mean of a client's own times."""

    usual: UsualTimes

    def __init__(self, clients: int) -> None:
        super().__init__(clients, UsualTimes(clients))

    def times(self, offer: RoundOffer) -> FloatArray:
        """Returns the true expected times."""
        if offer.expected_times is None:
            raise OfferError(
                "fair-pace with times='expected' needs the true expected times: use a world that offers "
                "expected_times, or times='learned'"
            )
        return offer.expected_times

    def usual_terms(self, offer: RoundOffer, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Returns the mean times of these clients, and weights of 1."""
        weighted, weights = self.usual.terms(self.usual.fleet_mean(self.times(offer), offer.available), rows)
        return weighted / weights, np.ones(len(rows))

    def cohort(self, offer: RoundOffer, pace: Pace, places: int) -> PacedCohort:
        """Returns the cohort for the true expected times."""
        usual, _ = self.usual_terms(offer, np.arange(offer.clients))
        times = np.ascontiguousarray(self.times(offer))
        return paced_cohort_of_times(times, usual, pace, places, offer.available)
