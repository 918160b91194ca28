"""Policies that select by the losses of clients.

- Active FL: Goetz, Malik, Bui, Moon, Liu and Kumar, "Active Federated Learning", 2019.
- Power-of-Choice: Cho, Wang and Joshi, "Client Selection in Federated Learning: Convergence Analysis and
  Power-of-Choice Selection Strategies", 2020.
- UCB-CS: Cho, Gupta, Joshi and Yağan, "Bandit-based Communication-Efficient Client Selection Strategies for Federated
  Learning", 2020.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count, as_number, smallest
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.common import (
    LossBasedPolicy,
    SizedPolicy,
    as_share,
    exponential_keys,
    part_of,
    weighted_sample,
    weighted_sample_linear,
)


class ActiveFL(LossBasedPolicy):
    """Samples clients whose data the model fits badly.

    The value of client k is v = (sum of its losses) / sqrt(n) = sqrt(n) · (its mean loss), as of its last turn.

    1. The share `dropped` (alpha1) of the available clients with the smallest values is excluded from step 2.
    2. (1 − `uniform`) · cohort_size of the others are sampled with probabilities proportional to
       exp(`sharpness` · v) (alpha2).
    3. The other `uniform` · cohort_size (alpha3, rounded) are sampled uniformly from all remaining clients.

    A client before its first turn counts with the largest known value. The paper ignores availability; if too few
    clients remain in step 2, excluded ones fill the cohort.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        dropped: The share of the clients that step 2 excludes.
        sharpness: How strongly the probabilities of step 2 depend on the value.
        uniform: The share of the cohort that is sampled uniformly.
        sizes: The data size of each client; None for equal sizes.
        seed: The seed of the random generator.
    """

    name = "active-fl"
    fills_slots = True

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        dropped: float = 0.75,
        sharpness: float = 0.01,
        uniform: float = 0.1,
        sizes: npt.ArrayLike | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(clients, cohort_size=cohort_size, sizes=sizes, seed=seed)
        self.dropped, self.uniform = as_share("dropped", dropped), as_share("uniform", uniform)
        self.sharpness = as_number("sharpness", sharpness, SettingError, least=0)

    def ask(self, offer: RoundOffer) -> Selection:
        """Excludes the least valuable clients, samples by value, and fills up uniformly."""
        rows = self._available_rows(offer)
        size = min(self.places(offer), len(rows))
        uniform = round(self.uniform * size)
        values = self._values(rows)
        keys = exponential_keys(self.seed, "active-fl", offer.round, self.clients)[rows]
        tie_break = exponential_keys(self.seed, "active-fl evenly", offer.round, self.clients)[rows]
        log_weights = self.sharpness * values
        log_weights[smallest(values, part_of(self.dropped, len(rows)), tie_break)] = -np.inf
        by_value = weighted_sample(log_weights, keys, size - uniform)
        left = np.delete(np.arange(len(rows)), by_value)
        positions = np.sort(np.concatenate([by_value, left[smallest(tie_break[left], uniform)]]))
        return Selection.trusted(offer.round, rows[positions], {"value": values[positions]})

    def _values(self, rows: IntArray) -> FloatArray:
        tried = np.flatnonzero(self.losses.tried)
        known = np.sqrt(self.sizes[tried]) * self.losses.guessed()[tried]
        values = np.full(self.clients, known.max() if len(known) else 0.0)
        values[tried] = known
        return values[rows]


class PowerOfChoice(LossBasedPolicy):
    """Samples candidates by data size, and selects those with the largest losses.

    1. Sample d = `candidates` available clients without replacement, client k with probability n_k / Σ n.
    2. Select the m = `cohort_size` candidates with the largest loss, at random among equals.

    This is the paper's rpow-d: the loss is the one that a client reported at its last turn, and a client without a
    turn counts as infinite, so that it is tried first. (The paper's pow-d and cpow-d request a new loss from all
    candidates before the round, which reports do not contain.) A client that never reported a loss counts with the
    mean of the others. With d = m this is sampling by data size; with a large d it selects the m largest losses.
    Some published implementations look the losses up by the position among the candidates instead of by client.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        candidates: The number of candidates, at least `cohort_size`; None is twice the cohort, as in the paper.
        sizes: The data size of each client; None for equal sizes.
        seed: The seed of the random generator.
    """

    name = "power-of-choice"
    fills_slots = True

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        candidates: int | None = None,
        sizes: npt.ArrayLike | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(clients, cohort_size=cohort_size, sizes=sizes, seed=seed)
        if candidates is not None and as_count("candidates", candidates, SettingError) < cohort_size:
            raise SettingError(f"candidates must be at least cohort_size ({cohort_size}), got {candidates}")
        self.candidates = candidates

    def ask(self, offer: RoundOffer) -> Selection:
        """Samples the candidates, then selects those with the largest losses."""
        rows = self._available_rows(offer)
        size = self.places(offer)
        keys = exponential_keys(self.seed, "power-of-choice", offer.round, self.clients)
        count = max(2 * size if self.candidates is None else self.candidates, size)
        rows = rows[weighted_sample_linear(self.sizes[rows], keys[rows], count)]
        tie_break = exponential_keys(self.seed, "power-of-choice equals", offer.round, self.clients)
        losses = self.losses.guessed()
        chosen = rows[smallest(-losses[rows], size, tie_break[rows])]
        return Selection.trusted(offer.round, chosen, {"loss": losses[chosen]})


# Lower limit of the discounted turns of a client whose last turn was very long ago.
MIN_TURNS = 1e-300


class UCBCS(SizedPolicy):
    """Selects the clients with the largest optimistic losses; old losses are discounted.

    In round R the cohort are the cohort_size available clients with the largest

        (n_k / Σ n) · (L / N + sqrt(2 · spread² · ln T / N)),

    where N = Σ g^(R − r) over the rounds r of a client's turns, L is the same sum of its losses, T = Σ g^(R − r) over
    all rounds, and g = `forgetting`. A client without a turn comes first, among equals the lower row. A client that
    reported no loss counts with the mean of those that did in the same round, or 0, so that a client that always fails
    does not stay first.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        forgetting: The discount per round, above 0 and at most 1.
        spread: The standard deviation of a loss. The paper uses the largest one within a client's training, which
            reports do not contain; None uses that of the losses reported in the last round with more than one.
        sizes: The data size of each client; None for equal sizes.
    """

    name = "ucb-cs"
    fills_slots = True
    # As of each client's last turn; `index` applies the discount since then.
    sums: FloatArray
    weights: FloatArray
    last_rounds: IntArray
    spread_seen: float

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        forgetting: float = 0.7,
        spread: float | None = None,
        sizes: npt.ArrayLike | None = None,
    ) -> None:
        super().__init__(clients, cohort_size=cohort_size, sizes=sizes)
        self.forgetting = as_number("forgetting", forgetting, SettingError, above=0, most=1)
        self._spread = None if spread is None else as_number("spread", spread, SettingError, least=0)
        self._remember(sums=0.0, weights=0.0, last_rounds=0)
        self._remember_shared(spread_seen=1.0)

    @property
    def spread(self) -> float:
        """Sigma, the standard deviation of a loss."""
        return self.spread_seen if self._spread is None else self._spread

    def index(self, round: int) -> FloatArray:
        """Returns the index by which the cohort is selected, infinite for clients without a turn."""
        tried = np.flatnonzero(self.weights > 0)
        turns = self.weights[tried] * self.forgetting ** (round - self.last_rounds[tried])
        bonus = self.spread * np.sqrt(2 * math.log(self._rounds(round)) / np.maximum(turns, MIN_TURNS))
        index = np.full(self.clients, np.inf)
        index[tried] = self.sizes[tried] / self.sizes.sum() * (self.sums[tried] / self.weights[tried] + bonus)
        return index

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects the clients with the largest index."""
        rows = self._available_rows(offer)
        index = self.index(offer.round)
        chosen = rows[smallest(-index[rows], self.places(offer))]
        return Selection.trusted(offer.round, chosen, {"index": index[chosen]})

    def tell(self, report: RoundReport) -> None:
        """Discounts old losses and adds new ones."""
        super().tell(report)
        rows = report.clients
        losses = np.full(len(rows), np.nan) if report.losses is None else report.losses
        reported = np.sort(losses[~np.isnan(losses)])
        if len(reported) > 1:
            self.spread_seen = float(reported.std())
        losses = np.where(np.isnan(losses), reported.mean() if len(reported) else 0.0, losses)
        discount = self.forgetting ** (report.round - self.last_rounds[rows])
        self.sums[rows] = self.sums[rows] * discount + losses
        self.weights[rows] = self.weights[rows] * discount + 1
        self.last_rounds[rows] = report.round

    def _rounds(self, round: int) -> float:
        """Returns the discounted number of rounds, 1 + g + g² + …"""
        discount = self.forgetting
        return round if discount == 1 else (1 - discount**round) / (1 - discount)
