"""TiFL: Chai et al., "TiFL: A Tier-based Federated Learning System", HPDC 2020."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, load_array, smallest
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import SelectionPolicy, prefixed, subset
from turnout.policies.observations import LastLosses, MeanTimes, append_rows, load_number


class TiFL(SelectionPolicy):
    """Clients of similar speed train together, and the tier that the model fits worst trains most.

    *Profiling.* In the first `profiling_rounds` those with the fewest turns are chosen, at random among equals.
    *Tiers.* Then the clients are split into `tiers` of similar mean times, as many measured clients in each; a client
    that was not measured is put in the middle. They are split anew every `retier_every` rounds.
    *Choice.* A tier is drawn, and from it the cohort, evenly. Each such round costs the tier one of its `credits`
    (one number for all or one a tier; None: no limit); a tier without credits is not drawn. When none has any, all
    get theirs back, with equal chances. A tier with too few available clients is filled up from the next one drawn.
    *Chances.* At first all tiers are equally likely. Every `interval` rounds, if the model has become no better for
    the tier of this round, the n tiers with credits are ranked anew: the worst gets n parts of n·(n + 1)/2, the
    best 1.

    How good the model is for a tier is taken from the mean of the last losses its clients told: reports hold no
    test accuracy of each tier, which the paper measures. Without losses the chances stay equal. Programs seen
    elsewhere draw a cohort with repeats, and search for ever once all credits are spent.
    """

    name = "tifl"

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        tiers: int = 5,
        credits: int | Sequence[int] | None = None,  # the paper's word
        interval: int = 10,
        profiling_rounds: int = 5,
        retier_every: int = 50,
        seed: int = 0,
    ) -> None:
        super().__init__(clients)
        self.cohort_size: int = as_count("cohort_size", cohort_size, SettingError)
        self.tiers = as_count("tiers", tiers, SettingError)
        self.credits = _as_credits(credits, self.tiers)
        self.interval = as_count("interval", interval, SettingError)
        self.profiling_rounds = as_count("profiling_rounds", profiling_rounds, SettingError, least=0)
        self.retier_every = as_count("retier_every", retier_every, SettingError)
        self.seed = as_count("seed", seed, SettingError, least=0)
        self.times, self.losses = MeanTimes(self.clients), LastLosses(self.clients)
        self.turns = np.zeros(self.clients, dtype=np.int64)
        self.tier = np.full(self.clients, self.tiers // 2, dtype=np.int64)
        self.chances: FloatArray = np.full(self.tiers, 1 / self.tiers)
        self.spent = np.zeros(self.tiers, dtype=np.int64)
        self.losses_before: FloatArray = np.full(self.tiers, np.inf)  # inf: not known
        self.rounds = 0

    @property
    def profiling(self) -> bool:
        """Are the tiers still to be found?"""
        return self.rounds < self.profiling_rounds

    def order(self, round: int) -> IntArray:
        """The tiers as they are drawn for a round, one after the other; those without a chance come last."""
        waits = round_rng(self.seed, "tifl tiers", round).standard_exponential(self.tiers)
        chances = np.where(self._has_credits(), self.chances, 0.0)
        arrivals = np.divide(waits, chances, out=np.full(self.tiers, np.inf), where=chances > 0)
        return np.lexsort((waits, arrivals))

    def ask(self, offer: RoundOffer) -> Selection:
        """The least profiled, or the drawn tier."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        luck = round_rng(self.seed, "tifl", offer.round).random(self.clients)[rows]
        if self.profiling:
            chosen = rows[smallest(self.turns[rows] + luck, self.cohort_size)]
        else:
            places = np.argsort(self.order(offer.round))
            chosen = rows[smallest(places[self.tier[rows]] + luck, self.cohort_size)]
        return Selection.trusted(offer.round, chosen, {"tier": self.tier[chosen].astype(np.float64)})

    def tell(self, report: RoundReport) -> None:
        """Measure; pay for the tier; now and then rank and split the tiers anew."""
        self.check_report(report)
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
            self._rank_anew(drawn)
        if since >= 0 and since % self.retier_every == 0:
            self._split_anew()

    def add(self, count: int) -> None:
        """New clients are not measured, and so join the middle tier."""
        super().add(count)
        self.times.add(count)
        self.losses.add(count)
        self.turns = append_rows(self.turns, count, 0)
        self.tier = append_rows(self.tier, count, self.tiers // 2)

    def state(self) -> dict[str, Any]:
        """What was measured, the tiers, their chances and what they spent."""
        return {
            **prefixed("times", self.times.state()),
            **self.losses.state(),
            "turns": self.turns.copy(),
            "tier": self.tier.copy(),
            "chances": self.chances.copy(),
            "spent": self.spent.copy(),
            "losses_before": self.losses_before.copy(),
            "rounds": self.rounds,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        names = ("turns", "tier", "chances", "spent", "losses_before")
        arrays = {name: load_array(state, name, getattr(self, name)) for name in names}
        rounds = int(load_number(state, "rounds"))
        losses = load_array(state, "losses", self.losses.values)
        self.times.restore(subset(state, "times"))
        self.losses.restore({"losses": losses})
        for name, array in arrays.items():
            setattr(self, name, array)
        self.rounds = rounds

    def _has_credits(self) -> BoolArray:
        return np.ones(self.tiers, dtype=np.bool_) if self.credits is None else self.spent < self.credits

    def _split_anew(self) -> None:
        measured = self.times.measured
        means = self.times.means()
        self.tier = np.full(self.clients, self.tiers // 2, dtype=np.int64)
        if measured.any():
            known = np.flatnonzero(measured)
            in_order = known[np.argsort(means[known], kind="stable")]
            self.tier[in_order] = np.arange(len(known)) * self.tiers // len(known)

    def _rank_anew(self, drawn: int) -> None:
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
        """The mean last loss of each tier; inf where none is known."""
        told = np.flatnonzero(np.isfinite(self.losses.values))
        sums = np.bincount(self.tier[told], weights=self.losses.values[told], minlength=self.tiers)
        counts = np.bincount(self.tier[told], minlength=self.tiers)
        means: FloatArray = np.divide(sums, counts, out=np.full(self.tiers, np.inf), where=counts > 0)
        return means


def _as_credits(credits: int | Sequence[int] | None, tiers: int) -> IntArray | None:
    if credits is None:
        return None
    if isinstance(credits, int):
        return np.full(tiers, as_count("credits", credits, SettingError), dtype=np.int64)
    each = [as_count("credits", one, SettingError, least=0) for one in credits]
    if len(each) != tiers or not any(each):
        raise SettingError(f"credits must be one number or {tiers}, one a tier and not all 0, not {credits!r}")
    return np.array(each, dtype=np.int64)
