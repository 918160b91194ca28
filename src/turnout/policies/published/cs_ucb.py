"""CS-UCB and CS-UCB-Q: Xia, Quek, Guo, Wen, Yang and Zhu, "Multi-Armed Bandit-Based Client Scheduling for Federated
Learning", IEEE TWC 2020.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count, as_number, load_array, smallest
from turnout.kernel.certificate import OwedTurns
from turnout.kernel.cohort import EMPTY_COHORT, Cohort
from turnout.kernel.guarantee import GuaranteeSettings
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import SelectionPolicy, prefixed, subset
from turnout.policies.guaranteed import WeightedPolicy
from turnout.policies.observations import MeanTimes, append_rows


class SpeedRewards:
    """The mean reward of each client: 1 − time / `longest` for a turn, 0 for a failed one.

    `longest` is a time in seconds (tau_max in the paper); slower turns have reward 0. None uses the longest time seen
    so far.
    """

    def __init__(self, clients: int, longest: float | None) -> None:
        self._longest = None if longest is None else as_number("longest", longest, SettingError, above=0)
        self.times = MeanTimes(clients)
        self.turns = np.zeros(clients, dtype=np.int64)

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

    def add(self, count: int) -> None:
        """Appends clients without a turn."""
        self.times.add(count)
        self.turns = append_rows(self.turns, count, 0)

    def forget(self, rows: IntArray) -> None:
        """Removes the times and turns of these clients."""
        self.times.forget(rows)
        self.turns[rows] = 0

    def state(self) -> dict[str, Any]:
        """Returns the times and turns."""
        return {**self.times.state(), "turns": self.turns.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the times and turns."""
        turns = load_array(state, "turns", self.turns)
        self.times.restore(state)
        self.turns = turns


class CSUCB(SelectionPolicy):
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
        super().__init__(clients)
        self.cohort_size: int = as_count("cohort_size", cohort_size, SettingError)
        self.rewards = SpeedRewards(self.clients, longest)

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
        self.check_report(report)
        self.rewards.learn_from(report)

    def add(self, count: int) -> None:
        """Appends clients without a turn, which are therefore selected first."""
        super().add(count)
        self.rewards.add(count)

    def forget(self, rows: npt.ArrayLike) -> None:
        """Removes the rewards of these clients."""
        self.rewards.forget(self._rows(rows))

    def state(self) -> dict[str, Any]:
        """Returns the rewards so far."""
        return self.rewards.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the rewards."""
        self.rewards.restore(state)


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
        self.fairness_weight, self.longest = weight, longest
        self.rewards = SpeedRewards(self.clients, longest)

    def tell(self, report: RoundReport) -> None:
        """Updates the debts and learns the rewards."""
        super().tell(report)
        self.rewards.learn_from(report)

    def add(self, count: int) -> None:
        """Appends clients about which nothing is known."""
        super().add(count)
        self.rewards.add(count)

    def forget(self, rows: npt.ArrayLike) -> None:
        """Removes the rewards of these clients."""
        super().forget(rows)
        self.rewards.forget(self._rows(rows))

    def state(self) -> dict[str, Any]:
        """Returns the debts, the turns taken and the rewards."""
        return {**super().state(), **prefixed("rewards", self.rewards.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the debts, the turns taken and the rewards."""
        rewards = SpeedRewards(self.clients, self.longest)
        rewards.restore(subset(state, "rewards"))  # raises before anything is changed
        super().restore(state)
        self.rewards = rewards

    def index(self, rows: IntArray, round: int, owed: OwedTurns) -> FloatArray:
        """Returns the index by which the cohort is selected."""
        weight = self.fairness_weight
        index: FloatArray = (1 - weight) * self._optimistic(round)[rows] + weight * owed.of(rows)
        return index

    def _optimistic(self, round: int) -> FloatArray:
        return np.minimum(self.rewards.means() + self.rewards.bonus(2, round), 1.0)

    def _cohort(self, offer: RoundOffer, size: int, values: OwedTurns, weight: float) -> Cohort:  # noqa: ARG002
        rows = np.flatnonzero(offer.available)
        if not len(rows):
            return EMPTY_COHORT
        index = self.index(rows, offer.round, values)
        positions = smallest(-index, size)
        times = self.rewards.longest * (1 - self._optimistic(offer.round)[rows[positions]])
        return Cohort(rows[positions], times, float(times.max()), -float(index[positions].sum()), len(rows))
