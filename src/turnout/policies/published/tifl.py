"""TiFL: Chai et al., "TiFL: A Tier-based Federated Learning System", HPDC 2020."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, smallest
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import CohortPolicy
from turnout.policies.observations import LastSignal, MeanTimes


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
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
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
