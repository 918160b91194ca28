"""E3CS: Huang, Lin, Shen, Li and Zomaya, "Stochastic Client Selection for Federated Learning With Volatile
Clients", IEEE Internet of Things Journal 2022.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from turnout.errors import ReportError, SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, as_number, load_array
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import SelectionPolicy
from turnout.policies.observations import append_rows, as_share

# A chance so near to 1 is taken for 1: two steps of the draw could otherwise fall on one client.
CERTAIN = 1 - 1e-9
# Weights are kept as logarithms; below e to this power of the largest they are all the same for any purpose.
FAINTEST = -600.0
# Who reaches the cap but for rounding does not exceed it.
ROUNDING = 1 + 1e-12


class Chances(NamedTuple):
    """The chance of each client to be chosen; who is certain to be; and k − K·s, what the quota leaves."""

    each: FloatArray
    capped: BoolArray
    free: float


class E3CS(SelectionPolicy):
    """Those that usually come back are chosen more often, and everyone has a chance that never falls below a quota.

    Of K available clients k = min(cohort_size, K) are chosen, each with the chance

        p = s + (k − K·s) · w / Σ w,   s = quota · k / K

    so that quota 0 looks for reliable clients only and 1 is even chance. Where this is above 1, the largest weights
    are capped at the one value a, common to all that exceed it, with which the largest p is exactly 1. After the
    round each chosen client that arrived in time and was not capped has its weight multiplied by
    exp((k − K·s) · `learning_rate` / (K · p)): the rarer its turns, the more a success counts.

    `quota`: a share, or a schedule of pairs (first round, share). The paper's E3CS-0.5 is quota=0.5; its E3CS-inc
    over 2000 rounds is [(1, 0), (501, 1)].

    The paper's clients are all available, and only fail; here K counts those available, so a report must have its
    mask. The paper draws one after the other, which takes clients with other chances than p; this draw (a systematic
    one, in random order) takes exactly p.
    """

    name = "e3cs"

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        quota: float | Sequence[tuple[int, float]] = 0.5,
        learning_rate: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__(clients)
        self.cohort_size: int = as_count("cohort_size", cohort_size, SettingError)
        self._schedule = _as_schedule(quota)
        self.learning_rate = as_number("learning_rate", learning_rate, SettingError, least=0)
        self.seed = as_count("seed", seed, SettingError, least=0)
        self.log_weights: FloatArray = np.zeros(self.clients)

    def quota(self, round: int) -> float:
        """The share of even chance that everyone is left, in this round."""
        return [share for first, share in self._schedule if first <= round][-1]

    def chances(self, rows: IntArray, size: int, round: int) -> Chances:
        """How likely each of these available clients is to be among the `size` chosen."""
        count = len(rows)
        if size >= count:
            return Chances(np.ones(count), np.ones(count, dtype=np.bool_), 0.0)
        floor = self.quota(round) * size / count
        free = (1 - self.quota(round)) * size
        weights = np.exp(np.maximum(self.log_weights[rows] - self.log_weights[rows].max(), FAINTEST))
        capped = np.zeros(count, dtype=np.bool_)
        while free > 0:
            cap = (1 - floor) * weights[~capped].sum() / (free - (1 - floor) * capped.sum())
            above = ~capped & (weights > cap * ROUNDING)
            if not above.any():
                weights = np.where(capped, cap, weights)
                break
            capped |= above
        each = np.minimum(floor + free * weights / weights.sum(), 1.0)
        each[capped] = 1.0
        return Chances(each, capped, free)

    def ask(self, offer: RoundOffer) -> Selection:
        """Draw each client with its chance."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        size = min(self.cohort_size, len(rows))
        chances = self.chances(rows, size, offer.round).each
        places = _systematic(chances, size, round_rng(self.seed, "e3cs", offer.round))
        return Selection.trusted(offer.round, rows[places], {"chance": chances[places]})

    def tell(self, report: RoundReport) -> None:
        """Reward those that came back."""
        self.check_report(report)
        if report.available is None:
            raise ReportError("e3cs reckons with who was available: give the report the offer's mask as `available`")
        rows = np.flatnonzero(report.available)
        chances = self.chances(rows, len(report.clients), report.round)
        rewarded = report.clients[report.with_outcome("arrived")]
        places = np.searchsorted(rows, rewarded)
        learns = ~chances.capped[places]
        rewarded, chance = rewarded[learns], chances.each[places[learns]]
        self.log_weights[rewarded] += chances.free * self.learning_rate / (len(rows) * chance)

    def add(self, count: int) -> None:
        """New clients begin with the weight that all began with."""
        super().add(count)
        self.log_weights = append_rows(self.log_weights, count, 0.0)

    def state(self) -> dict[str, Any]:
        """The weights."""
        return {"log_weights": self.log_weights.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        self.log_weights = load_array(state, "log_weights", self.log_weights)


def _systematic(chances: FloatArray, size: int, rng: np.random.Generator) -> IntArray:
    """Ascending positions, `size` of them, each taken with its chance: equal steps through a random order."""
    certain = np.flatnonzero(chances >= CERTAIN)[:size]
    steps = size - len(certain)
    if steps == 0:
        return certain
    others = rng.permutation(np.flatnonzero(chances < CERTAIN))
    ends = np.cumsum(chances[others])
    marks = (rng.random() + np.arange(steps)) * (ends[-1] / steps)
    taken = others[np.minimum(np.searchsorted(ends, marks, side="right"), len(others) - 1)]
    return np.sort(np.concatenate([certain, taken]))


def _as_schedule(quota: float | Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    if not isinstance(quota, Sequence):
        return [(1, as_share("quota", quota))]
    if isinstance(quota, str) or not quota or any(not isinstance(one, Sequence) or len(one) != 2 for one in quota):
        raise SettingError(f"quota must be a share, or pairs (first round, share), not {quota!r}")
    schedule = [(as_count("quota", first, SettingError), as_share("quota", share)) for first, share in quota]
    firsts = [first for first, _ in schedule]
    if firsts[0] != 1 or firsts != sorted(set(firsts)):
        raise SettingError(f"quota must begin with round 1 and go on in later rounds, not {quota!r}")
    return schedule
