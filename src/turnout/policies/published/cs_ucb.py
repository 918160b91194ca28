"""CS-UCB and CS-UCB-Q: Xia, Quek, Guo, Wen, Yang and Zhu, "Multi-Armed Bandit-Based Client Scheduling for Federated
Learning", IEEE TWC 2020.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count, as_number, load_array, smallest
from turnout.kernel.cohort import NOBODY, Cohort
from turnout.kernel.fairness import DEFAULT_RATE, Accrual, OwedTurns, Rate
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import SelectionPolicy, prefixed, subset
from turnout.policies.guaranteed import GuaranteedPolicy
from turnout.policies.observations import MeanTimes, append_rows


class SpeedRewards:
    """The mean reward of each client: 1 − time / `longest` of a turn, 0 of one that failed.

    `longest`: seconds (tau_max of the paper), slower turns being worth nothing; None: the longest time seen so far.
    """

    def __init__(self, clients: int, longest: float | None) -> None:
        self._longest = None if longest is None else as_number("longest", longest, SettingError, above=0)
        self.times = MeanTimes(clients)
        self.turns = np.zeros(clients, dtype=np.int64)

    @property
    def longest(self) -> float:
        """The time that is worth nothing, in seconds; 1 before any is known."""
        return self._longest or self.times.longest or 1.0

    def means(self) -> FloatArray:
        """Mean rewards, 0 of clients without a turn."""
        speed = 1 - self.times.means() / self.longest
        means: FloatArray = np.maximum(speed, 0.0) * self.times.counts / np.maximum(self.turns, 1)
        return means

    def bonus(self, factor: float, round: int) -> FloatArray:
        """sqrt(factor · ln round / turns): what may be missed; infinite without a turn."""
        missed = np.full(len(self.turns), np.inf)
        had_turn = np.flatnonzero(self.turns)
        missed[had_turn] = np.sqrt(factor * math.log(round) / self.turns[had_turn])
        return missed

    def learn_from(self, report: RoundReport) -> None:
        """Take in the times and the turns."""
        self.times.learn_from(report)
        self.turns[report.clients] += 1

    def add(self, count: int) -> None:
        """New clients have had no turn."""
        self.times.add(count)
        self.turns = append_rows(self.turns, count, 0)

    def state(self) -> dict[str, Any]:
        """Times and turns."""
        return {**self.times.state(), "turns": self.turns.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        turns = load_array(state, "turns", self.turns)
        self.times.restore(state)
        self.turns = turns


class CSUCB(SelectionPolicy):
    """The clients with the shortest times, optimistically.

    The cohort_size (m) available clients with the largest mean reward + sqrt((m + 1) · ln R / turns), in round R; a
    client without a turn comes first, of equals the lower row. A turn is worth 1 − time / `longest`, a failed one 0.
    """

    name = "cs-ucb"

    def __init__(self, clients: int, *, cohort_size: int = 8, longest: float | None = None) -> None:
        super().__init__(clients)
        self.cohort_size: int = as_count("cohort_size", cohort_size, SettingError)
        self.rewards = SpeedRewards(self.clients, longest)

    def ask(self, offer: RoundOffer) -> Selection:
        """The best that they may be."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        index = self.rewards.means() + self.rewards.bonus(self.cohort_size + 1, offer.round)
        chosen = rows[smallest(-index[rows], self.cohort_size)]
        return Selection.trusted(offer.round, chosen, {"index": index[chosen]})

    def tell(self, report: RoundReport) -> None:
        """Learn the rewards."""
        self.check_report(report)
        self.rewards.learn_from(report)

    def add(self, count: int) -> None:
        """New clients come first."""
        super().add(count)
        self.rewards.add(count)

    def state(self) -> dict[str, Any]:
        """Rewards so far."""
        return self.rewards.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        self.rewards.restore(state)


class CSUCBQ(GuaranteedPolicy):
    """Short times, optimistically, and a guaranteed share of the rounds for every client.

    The cohort_size available clients with the largest (1 − b) · reward + b · owed, with b = `fairness_weight` (beta
    of the paper). reward = min(mean reward + sqrt(2 · ln R / turns), 1), and 1 without a turn; owed is the paper's
    queue D ← [D + c − chosen]⁺ with c = `guaranteed_rate`. Of equals the lower row.

    The queues are those of RBCS-F, and so are their settings and the certificate. `objective` among the reasons is
    minus the sum above; `optimistic` are the times that the rewards stand for. A program seen elsewhere chooses
    among the absent too.
    """

    name = "cs-ucb-q"

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        guaranteed_rate: Rate | npt.ArrayLike = DEFAULT_RATE,
        fairness_weight: float = 0.1,
        longest: float | None = None,
        accrual: Accrual = "always",
        max_owed: float | Fraction | None = None,
        paid: Literal["chosen", "contributed"] = "chosen",
        availability: float | npt.ArrayLike | None = None,
        allow_infeasible: bool = False,
    ) -> None:
        weight = as_number("fairness_weight", fairness_weight, SettingError, above=0, most=1)
        super().__init__(
            clients,
            cohort_size=cohort_size,
            guaranteed_rate=guaranteed_rate,
            speed_weight=(1 - weight) / weight,
            accrual=accrual,
            max_owed=max_owed,
            paid=paid,
            availability=availability,
            allow_infeasible=allow_infeasible,
        )
        self.fairness_weight, self.longest = weight, longest
        self.rewards = SpeedRewards(self.clients, longest)

    def tell(self, report: RoundReport) -> None:
        """Everyone earns, the chosen are paid, and their rewards are learned."""
        super().tell(report)
        self.rewards.learn_from(report)

    def add(self, count: int) -> None:
        """Of new clients nothing is known."""
        super().add(count)
        self.rewards.add(count)

    def state(self) -> dict[str, Any]:
        """Debts, turns and rewards."""
        return {**super().state(), **prefixed("rewards", self.rewards.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        rewards = SpeedRewards(self.clients, self.longest)
        rewards.restore(subset(state, "rewards"))  # refused before anything is changed
        super().restore(state)
        self.rewards = rewards

    def index(self, rows: IntArray, round: int, owed: OwedTurns) -> FloatArray:
        """What the cohort is chosen by."""
        weight = self.fairness_weight
        index: FloatArray = (1 - weight) * self._optimistic(round)[rows] + weight * owed.of(rows)
        return index

    def _optimistic(self, round_: int) -> FloatArray:
        return np.minimum(self.rewards.means() + self.rewards.bonus(2, round_), 1.0)

    def _cohort(self, offer: RoundOffer, debts: OwedTurns, weight: float) -> Cohort:  # noqa: ARG002
        rows = np.flatnonzero(offer.available)
        if not len(rows):
            return NOBODY
        index = self.index(rows, offer.round, debts)
        places = smallest(-index, self.cohort_size)
        times = self.rewards.longest * (1 - self._optimistic(offer.round)[rows[places]])
        return Cohort(rows[places], times, float(times.max()), -float(index[places].sum()), len(rows))
