"""UCB-CS: Cho, Gupta, Joshi and Yağan, "Bandit-based Communication-Efficient Client Selection Strategies for
Federated Learning", 2020.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_number, smallest
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.sized import SizedPolicy

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
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
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
