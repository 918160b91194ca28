"""UCB-CS: Cho, Gupta, Joshi and Yağan, "Bandit-based Communication-Efficient Client Selection Strategies for
Federated Learning", 2020.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, as_number, load_array, smallest
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.observations import append_rows, load_number
from turnout.policies.sized import SizedPolicy

# What is left of the turns of a client that was last chosen very long ago.
FEWEST_TURNS = 1e-300


class UCBCS(SizedPolicy):
    """The clients with the largest losses, optimistically, where old losses fade.

    In round R the cohort_size available clients with the largest

        (n_k / Σ n) · (L / N + sqrt(2 · spread² · ln T / N))

    N = Σ g^(R − r) over the rounds r of a client's turns, L the same sum of its losses, T = Σ g^(R − r) over all
    rounds, g = `forgetting`. A client without a turn comes first, of equals the lower row.

    `spread`: the paper takes the largest standard deviation of a loss within one client's training, which reports
    do not hold; None takes that of the losses told in the last round with more than one. A client that told none
    counts with the mean of those that did in the same round, or 0: so a client that always fails does not come
    first for ever. `sizes` are n, None where all have the same.
    """

    name = "ucb-cs"

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
        self.spread_seen = 1.0
        # As of each client's last turn: what fades since then is reckoned when it is asked for.
        self.sums: FloatArray = np.zeros(self.clients)
        self.weights: FloatArray = np.zeros(self.clients)
        self.last_rounds = np.zeros(self.clients, dtype=np.int64)

    @property
    def spread(self) -> float:
        """Sigma: how much losses vary."""
        return self.spread_seen if self._spread is None else self._spread

    def index(self, round: int) -> FloatArray:
        """What the cohort is chosen by; infinite for clients without a turn."""
        tried = np.flatnonzero(self.weights > 0)
        turns = self.weights[tried] * self.forgetting ** (round - self.last_rounds[tried])
        doubt = self.spread * np.sqrt(2 * math.log(self._rounds(round)) / np.maximum(turns, FEWEST_TURNS))
        index = np.full(self.clients, np.inf)
        index[tried] = self.sizes[tried] / self.sizes.sum() * (self.sums[tried] / self.weights[tried] + doubt)
        return index

    def ask(self, offer: RoundOffer) -> Selection:
        """The worst that they may be."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        index = self.index(offer.round)
        chosen = rows[smallest(-index[rows], self.cohort_size)]
        return Selection.trusted(offer.round, chosen, {"index": index[chosen]})

    def tell(self, report: RoundReport) -> None:
        """Old losses fade, new ones are added."""
        self.check_report(report)
        rows = report.clients
        losses = np.full(len(rows), np.nan) if report.losses is None else report.losses
        told = np.sort(losses[~np.isnan(losses)])
        if len(told) > 1:
            self.spread_seen = float(told.std())
        losses = np.where(np.isnan(losses), told.mean() if len(told) else 0.0, losses)
        faded = self.forgetting ** (report.round - self.last_rounds[rows])
        self.sums[rows] = self.sums[rows] * faded + losses
        self.weights[rows] = self.weights[rows] * faded + 1
        self.last_rounds[rows] = report.round

    def add(self, count: int) -> None:
        """New clients come first."""
        super().add(count)
        self.sums, self.weights = append_rows(self.sums, count, 0.0), append_rows(self.weights, count, 0.0)
        self.last_rounds = append_rows(self.last_rounds, count, 0)

    def state(self) -> dict[str, Any]:
        """Losses and turns, as far as they have not faded."""
        arrays = {name: getattr(self, name).copy() for name in ("sums", "weights", "last_rounds")}
        return {**arrays, "spread_seen": self.spread_seen}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        names = ("sums", "weights", "last_rounds")
        arrays = {name: load_array(state, name, getattr(self, name)) for name in names}
        self.spread_seen = load_number(state, "spread_seen")
        for name, array in arrays.items():
            setattr(self, name, array)

    def _rounds(self, round_: int) -> float:
        """How many rounds there were, old ones counting less: 1 + g + g² + …"""
        fading = self.forgetting
        return round_ if fading == 1 else (1 - fading**round_) / (1 - fading)
