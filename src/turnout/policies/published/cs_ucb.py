"""CS-UCB and CS-UCB-Q: Xia, Quek, Guo, Wen, Yang and Zhu, "Multi-Armed Bandit-Based Client Scheduling for Federated
Learning", IEEE TWC 2020.
"""

from __future__ import annotations

import math
from typing import Unpack

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_number, smallest
from turnout.kernel.certificate import OwedTurns
from turnout.kernel.cohort import EMPTY_COHORT, SolvedCohort
from turnout.kernel.guarantee import GuaranteeSettings
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import CohortPolicy, Memory
from turnout.policies.guaranteed import WeightedPolicy
from turnout.policies.observations import MeanTimes


class SpeedRewards(Memory):
    """The mean reward of each client: 1 − time / `longest` for a turn, 0 for a failed one.

    `longest` is a time in seconds (tau_max in the paper); slower turns have reward 0. None uses the longest time seen
    so far.
    """

    turns: IntArray

    def __init__(self, clients: int, longest: float | None) -> None:
        super().__init__(clients)
        self._longest = None if longest is None else as_number("longest", longest, SettingError, above=0)
        self.times = MeanTimes(clients)
        self._remember(turns=0)
        self._remember_part("", self.times, self.times.forget)

    @property
    def longest(self) -> float:
        """The time with reward 0, in seconds; 1 before any time is known."""
        return self._longest or self.times.longest or 1.0

    def means(self) -> FloatArray:
        """Returns the mean rewards, 0 for clients without a turn."""
        speed = 1 - self.times.means() / self.longest
        means: FloatArray = np.maximum(speed, 0.0) * self.times.counts / np.maximum(self.turns, 1)
        return means

    def bonus(self, factor: float, round: int) -> FloatArray:
        """Returns the exploration bonus sqrt(factor · ln round / turns), infinite for clients without a turn."""
        bonus = np.full(len(self.turns), np.inf)
        had_turn = np.flatnonzero(self.turns)
        bonus[had_turn] = np.sqrt(factor * math.log(round) / self.turns[had_turn])
        return bonus

    def learn_from(self, report: RoundReport) -> None:
        """Adds the times and turns of a report."""
        self.times.learn_from(report)
        self.turns[report.clients] += 1


class CSUCB(CohortPolicy):
    """Selects the clients with the shortest optimistic times.

    The cohort are the m = cohort_size available clients with the largest mean reward + sqrt((m + 1) · ln R / turns) in
    round R; a client without a turn comes first, among equals the lower row. A turn has reward 1 − time / `longest`, a
    failed one 0.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        longest: The time in seconds that has no reward; None for the longest time seen so far.
    """

    name = "cs-ucb"

    def __init__(self, clients: int, *, cohort_size: int = 8, longest: float | None = None) -> None:
        super().__init__(clients, cohort_size=cohort_size)
        self.rewards = SpeedRewards(self.clients, longest)
        self._remember_part("", self.rewards, self.rewards.forget)

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects the clients with the largest index."""
        self.check_offer(offer)
        size = self.places(offer)
        rows = np.flatnonzero(offer.available)
        index = self.rewards.means() + self.rewards.bonus(size + 1, offer.round)
        chosen = rows[smallest(-index[rows], size)]
        return Selection.trusted(offer.round, chosen, {"index": index[chosen]})

    def tell(self, report: RoundReport) -> None:
        """Learns the rewards."""
        super().tell(report)
        self.rewards.learn_from(report)


class CSUCBQ(WeightedPolicy):
    """Selects by optimistic times and owed turns, and guarantees every client a share of the rounds.

    The cohort are the cohort_size available clients with the largest (1 − b) · reward + b · owed, where
    b = `fairness_weight` (beta in the paper), reward = min(mean reward + sqrt(2 · ln R / turns), 1), 1 without a turn,
    and owed is the paper's queue D ← [D + c − chosen]⁺ with c = `guaranteed_rate`. Among equals the lower row wins.

    The queues, their settings and the certificate are those of RBCS-F. The reason `objective` is minus the sum above;
    `optimistic` are the times that correspond to the rewards. A published implementation also selects unavailable
    clients.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        fairness_weight: The weight of owed turns against rewards, above 0 and at most 1.
        longest: The time with reward 0, in seconds; None uses the longest time seen so far.
        settings: The settings of the guarantee; `Guarantee` documents them. `guaranteed_rate` is 0.15 by default.
    """

    name = "cs-ucb-q"

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        fairness_weight: float = 0.1,
        longest: float | None = None,
        **settings: Unpack[GuaranteeSettings],
    ) -> None:
        weight = as_number("fairness_weight", fairness_weight, SettingError, above=0, most=1)
        super().__init__(clients, cohort_size=cohort_size, speed_weight=(1 - weight) / weight, **settings)
        self.fairness_weight = weight
        self.rewards = SpeedRewards(self.clients, longest)
        self._remember_part("rewards", self.rewards, self.rewards.forget)

    def tell(self, report: RoundReport) -> None:
        """Updates the debts and learns the rewards."""
        super().tell(report)
        self.rewards.learn_from(report)

    def index(self, rows: IntArray, round: int, owed: OwedTurns) -> FloatArray:
        """Returns the index by which the cohort is selected."""
        weight = self.fairness_weight
        index: FloatArray = (1 - weight) * self._optimistic(round)[rows] + weight * owed.of(rows)
        return index

    def _optimistic(self, round: int) -> FloatArray:
        return np.minimum(self.rewards.means() + self.rewards.bonus(2, round), 1.0)

    def _cohort(self, offer: RoundOffer, size: int, values: OwedTurns, weight: float) -> SolvedCohort:  # noqa: ARG002
        rows = np.flatnonzero(offer.available)
        if not len(rows):
            return EMPTY_COHORT
        index = self.index(rows, offer.round, values)
        positions = smallest(-index, size)
        times = self.rewards.longest * (1 - self._optimistic(offer.round)[rows[positions]])
        return SolvedCohort(rows[positions], times, float(times.max()), -float(index[positions].sum()), len(rows))
