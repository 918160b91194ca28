"""Policies that select by the mean times of clients.

- CS-UCB and CS-UCB-Q: Xia, Quek, Guo, Wen, Yang and Zhu, "Multi-Armed Bandit-Based Client Scheduling for Federated
  Learning", IEEE TWC 2020.
- TiFL: Chai et al., "TiFL: A Tier-based Federated Learning System", HPDC 2020.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, as_number, smallest
from turnout.kernel.certificate import OwedTurns
from turnout.kernel.cohort import EMPTY_COHORT, SolvedCohort
from turnout.kernel.guarantee import GuaranteeSettings
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import CohortPolicy, Memory
from turnout.policies.common import LastSignal, MeanTimes
from turnout.policies.guaranteed import WeightedPolicy


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
        rows = self._available_rows(offer)
        size = self.places(offer)
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


class TiFL(CohortPolicy):
    """Selects cohorts of similar speed, and the tier that the model fits worst most often.

    *Profiling.* In the first `profiling_rounds` the clients with the fewest turns are selected, at random among equals.
    *Tiers.* Then the clients are divided into `tiers` by their mean times, with equally many measured clients in each;
    a client without a measured time is put in the middle tier. This is repeated every `retier_every` rounds.
    *Selection.* A tier is drawn, and the cohort is sampled from it uniformly. Each such round costs the tier one of its
    credits; a tier without credits is not drawn. When no tier has credits left, all get theirs back, with equal
    probabilities. If a tier has too few available clients, the next tier drawn fills the cohort.
    *Probabilities.* At first all tiers are equally likely. Every `interval` rounds, if the model has not improved for
    the tier of this round, the n tiers with credits are ranked: the worst gets n of n·(n + 1)/2 parts, the best 1.

    The quality of the model for a tier is the mean of its clients' last losses; the paper measures the test accuracy of
    each tier, which reports do not contain. Without losses the probabilities stay equal. Published implementations draw
    a cohort with duplicates, and do not terminate once all credits are spent.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        tiers: The number of tiers.
        credits: The credits of each tier, one number or one per tier; None for no limit.
        interval: The number of rounds between updates of the probabilities.
        profiling_rounds: The number of profiling rounds.
        retier_every: The number of rounds between divisions into tiers.
        seed: The seed of the random generator.
    """

    name = "tifl"
    turns: IntArray
    tier: IntArray
    chances: FloatArray
    spent: IntArray
    losses_before: FloatArray  # inf: unknown
    rounds: int

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        tiers: int = 5,
        credits: int | Sequence[int] | None = None,
        interval: int = 10,
        profiling_rounds: int = 5,
        retier_every: int = 50,
        seed: int = 0,
    ) -> None:
        super().__init__(clients, cohort_size=cohort_size, seed=seed)
        self.tiers = as_count("tiers", tiers, SettingError)
        self.credits = _as_credits(credits, self.tiers)
        self.interval = as_count("interval", interval, SettingError)
        self.profiling_rounds = as_count("profiling_rounds", profiling_rounds, SettingError, least=0)
        self.retier_every = as_count("retier_every", retier_every, SettingError)
        self.times, self.losses = MeanTimes(self.clients), LastSignal(self.clients)
        self._remember_part("times", self.times, self.times.forget)
        self._remember_part("losses", self.losses, self.losses.forget)
        self._remember(turns=0, tier=self.tiers // 2)
        self._remember_shared(
            chances=np.full(self.tiers, 1 / self.tiers),
            spent=np.zeros(self.tiers, dtype=np.int64),
            losses_before=np.full(self.tiers, np.inf),
            rounds=0,
        )

    @property
    def profiling(self) -> bool:
        """Whether the tiers are not yet known."""
        return self.rounds < self.profiling_rounds

    def order(self, round: int) -> IntArray:
        """Returns the tiers in the order in which they are drawn in a round; those with probability 0 come last."""
        keys = round_rng(self.seed, "tifl tiers", round).standard_exponential(self.tiers)
        chances = np.where(self._has_credits(), self.chances, 0.0)
        arrivals = np.divide(keys, chances, out=np.full(self.tiers, np.inf), where=chances > 0)
        return np.lexsort((keys, arrivals))

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects the least profiled clients, or clients of the drawn tier."""
        rows = self._available_rows(offer)
        tie_break = round_rng(self.seed, "tifl", offer.round).random(self.clients)[rows]
        if self.profiling:
            chosen = rows[smallest(self.turns[rows] + tie_break, self.places(offer))]
        else:
            rank = np.argsort(self.order(offer.round))
            chosen = rows[smallest(rank[self.tier[rows]] + tie_break, self.places(offer))]
        return Selection.trusted(offer.round, chosen, {"tier": self.tier[chosen].astype(np.float64)})

    def tell(self, report: RoundReport) -> None:
        """Learns times and losses, charges the drawn tier, and updates probabilities and tiers when due."""
        super().tell(report)
        drawn = int(self.order(report.round)[0])
        if not self.profiling and len(report.clients):
            self.spent[drawn] += 1
        self.times.learn_from(report)
        self.losses.learn_from(report)
        self.turns[report.clients] += 1
        if not self._has_credits().any():
            self.spent[:] = 0
            self.chances = np.full(self.tiers, 1 / self.tiers)
        self.rounds += 1
        since = self.rounds - self.profiling_rounds
        if since > 0 and since % self.interval == 0:
            self._update_chances(drawn)
        if since >= 0 and since % self.retier_every == 0:
            self._assign_tiers()

    def forget(self, rows: npt.ArrayLike) -> None:
        """Removes the times, losses and turns of these clients.

        The mean loss of the tiers of those that had turns becomes unknown, because a tier may consist of one client.
        """
        known = self._rows(rows)
        self.losses_before[self.tier[known[self.turns[known] > 0]]] = np.inf
        super().forget(known)

    def _has_credits(self) -> BoolArray:
        return np.ones(self.tiers, dtype=np.bool_) if self.credits is None else self.spent < self.credits

    def _assign_tiers(self) -> None:
        measured = self.times.measured
        means = self.times.means()
        self.tier = np.full(self.clients, self.tiers // 2, dtype=np.int64)
        if measured.any():
            known = np.flatnonzero(measured)
            by_time = known[np.argsort(means[known], kind="stable")]
            self.tier[by_time] = np.arange(len(known)) * self.tiers // len(known)

    def _update_chances(self, drawn: int) -> None:
        losses, before = self._tier_losses(), self.losses_before
        self.losses_before = losses
        if not np.isfinite([losses[drawn], before[drawn]]).all() or losses[drawn] < before[drawn]:
            return
        funded = np.flatnonzero(self._has_credits())
        typical = losses[np.isfinite(losses)].mean()
        known = np.where(np.isfinite(losses), losses, typical)[funded]
        ranked = funded[np.argsort(-known, kind="stable")]
        parts = np.arange(len(funded), 0, -1)
        self.chances = np.zeros(self.tiers)
        self.chances[ranked] = parts / parts.sum()

    def _tier_losses(self) -> FloatArray:
        """Returns the mean last loss of each tier, inf if none is known."""
        reported = np.flatnonzero(np.isfinite(self.losses.values))
        sums = np.bincount(self.tier[reported], weights=self.losses.values[reported], minlength=self.tiers)
        counts = np.bincount(self.tier[reported], minlength=self.tiers)
        means: FloatArray = np.divide(sums, counts, out=np.full(self.tiers, np.inf), where=counts > 0)
        return means


def _as_credits(credits: int | Sequence[int] | None, tiers: int) -> IntArray | None:
    if credits is None:
        return None
    if isinstance(credits, int):
        return np.full(tiers, as_count("credits", credits, SettingError), dtype=np.int64)
    each = [as_count("credits", number, SettingError, least=0) for number in credits]
    if len(each) != tiers or not any(each):
        raise SettingError(f"credits must be one number, or {tiers} numbers that are not all 0, got {credits!r}")
    return np.array(each, dtype=np.int64)
