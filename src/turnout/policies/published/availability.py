"""Policies for clients that fail or come and go.

- E3CS: Huang, Lin, Shen, Li and Zomaya, "Stochastic Client Selection for Federated Learning With Volatile Clients",
  IEEE Internet of Things Journal 2022.
- REFL: Abdelmoniem, Sahu, Canini and Fahmy, "REFL: Resource-Efficient Federated Learning", EuroSys 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from turnout.errors import ReportError, SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, as_number, smallest
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import CohortPolicy
from turnout.policies.common import as_share, exponential_keys

# Probabilities above this count as 1; otherwise two steps of the draw could select the same client.
CERTAIN = 1 - 1e-9
# Lower limit of a log-weight relative to the largest one.
FAINTEST = -600.0
# Tolerance for rounding errors at the cap.
ROUNDING = 1 + 1e-12


class Chances(NamedTuple):
    """The probability of each client to be selected, the clients with probability 1, and k − K·s."""

    each: FloatArray
    capped: BoolArray
    free: float


class E3CS(CohortPolicy):
    """Selects reliable clients more often; every client has a minimum probability of being selected.

    Of K available clients, k = min(cohort_size, K) are selected, each with probability

        p = s + (k − K·s) · w / Σ w,   s = quota · k / K,

    so that quota 0 favours reliable clients only, and 1 is uniform. If p exceeds 1, the largest weights are capped at
    the common value for which the largest p is exactly 1. After the round, the weight of each selected client that
    arrived in time and was not capped is multiplied by exp((k − K·s) · `learning_rate` / (K · p)): the rarer a client's
    turns, the more a success counts.

    In the paper all clients are available and only fail; here K counts the available ones, so a report must have its
    mask. The paper draws sequentially, which gives probabilities other than p; the systematic sample in random order
    used here gives exactly p.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        quota: A share, or a schedule of pairs (first round, share). The paper's E3CS-0.5 is quota=0.5; its E3CS-inc
            over 2000 rounds is [(1, 0), (501, 1)].
        learning_rate: The learning rate of the weights.
        seed: The seed of the random generator.
    """

    name = "e3cs"
    log_weights: FloatArray

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        quota: float | Sequence[tuple[int, float]] = 0.5,
        learning_rate: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__(clients, cohort_size=cohort_size, seed=seed)
        self._schedule = _as_schedule(quota)
        self.learning_rate = as_number("learning_rate", learning_rate, SettingError, least=0)
        self._remember(log_weights=0.0)

    def quota(self, round: int) -> float:
        """Returns the quota in this round."""
        return [share for first, share in self._schedule if first <= round][-1]

    def chances(self, rows: IntArray, size: int, round: int) -> Chances:
        """Returns the probability of each available client to be among the `size` selected ones."""
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
        """Samples each client with its probability."""
        rows = self._available_rows(offer)
        size = min(self.places(offer), len(rows))
        chances = self.chances(rows, size, offer.round).each
        positions = _systematic(chances, size, round_rng(self.seed, "e3cs", offer.round))
        return Selection.trusted(offer.round, rows[positions], {"chance": chances[positions]})

    def tell(self, report: RoundReport) -> None:
        """Increases the weights of the clients that arrived."""
        super().tell(report)
        if report.available is None:
            raise ReportError("e3cs depends on availability: pass the offer's mask as the report's `available`")
        rows = np.flatnonzero(report.available)
        chances = self.chances(rows, len(report.clients), report.round)
        rewarded = report.clients[report.with_outcome("arrived")]
        positions = np.searchsorted(rows, rewarded)
        learns = ~chances.capped[positions]
        rewarded, chance = rewarded[learns], chances.each[positions[learns]]
        self.log_weights[rewarded] += chances.free * self.learning_rate / (len(rows) * chance)


def _systematic(chances: FloatArray, size: int, rng: np.random.Generator) -> IntArray:
    """Returns ascending positions of a systematic sample: equal steps through a random order."""
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
    if isinstance(quota, str) or not quota or any(not isinstance(pair, Sequence) or len(pair) != 2 for pair in quota):
        raise SettingError(f"quota must be a share, or pairs (first round, share), got {quota!r}")
    schedule = [(as_count("quota", first, SettingError), as_share("quota", share)) for first, share in quota]
    firsts = [first for first, _ in schedule]
    if firsts[0] != 1 or firsts != sorted(set(firsts)):
        raise SettingError(f"quota must start with round 1 and continue with later rounds, got {quota!r}")
    return schedule


class REFL(CohortPolicy):
    """Selects the clients that are least likely to be available again soon.

    The cohort are the available clients with the smallest probability of being available in the next window, at random
    among equals. A client that had a turn in the last `hold_off` rounds is selected only if no other is left.

    In the paper clients predict their own availability. Here it is learned from the `available` masks of the reports:
    if a client was available again `window` rounds later in a of n rounds, its probability is (a + 1) / (n + 2). A
    report without the mask is refused. The paper's averaging of late updates is not part of selection. The authors'
    implementation looks up the future in the trace itself, and leaves out one client if few are left.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        window: The number of rounds that availability is predicted ahead.
        hold_off: The number of rounds after a turn in which a client is selected last.
        seed: The seed of the random generator.
    """

    name = "refl"
    seen: IntArray
    again: IntArray
    recent: BoolArray  # one row per round, the newest last
    last_rounds: IntArray  # 0: no turn yet

    def __init__(
        self, clients: int, *, cohort_size: int = 8, window: int = 1, hold_off: int = 5, seed: int = 0
    ) -> None:
        super().__init__(clients, cohort_size=cohort_size, seed=seed)
        self.window = as_count("window", window, SettingError)
        self.hold_off = as_count("hold_off", hold_off, SettingError, least=0)
        self._remember(seen=0, again=0, recent=np.zeros(self.window, dtype=np.bool_), last_rounds=0)

    @property
    def chances(self) -> FloatArray:
        """The probability that a client that is available now is available in the next window."""
        return (self.again + 1) / (self.seen + 2)

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects the clients that are least likely to be available again."""
        rows = self._available_rows(offer)
        chances, last = self.chances[rows], self.last_rounds[rows]
        held_off = (last > 0) & (offer.round - last <= self.hold_off)
        tie_break = exponential_keys(self.seed, "refl", offer.round, self.clients)[rows]
        positions = smallest(chances + held_off, self.places(offer), tie_break)  # a probability is below 1
        return Selection.trusted(offer.round, rows[positions], {"chance": chances[positions]})

    def tell(self, report: RoundReport) -> None:
        """Learns which clients are available again."""
        super().tell(report)
        if report.available is None:
            raise ReportError("refl learns from availability: pass the offer's mask as the report's `available`")
        self.seen += self.recent[0]
        self.again += self.recent[0] & report.available
        self.recent = np.concatenate([self.recent[1:], report.available[None]])
        self.last_rounds[report.clients] = report.round
