"""Sampling by data size, which most analyses of federated averaging assume (Li et al., ICLR 2020)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.policies.sampling import exponential_keys, weighted_sample_linear
from turnout.policies.sized import SizedPolicy


class DataSize(SizedPolicy):
    """Selects available clients with probability proportional to their data size, n_k / Σ n.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        sizes: The data size of each client; None for equal sizes, which is uniform random selection.
        replacement: False samples without replacement. True makes `cohort_size` draws with replacement, as in the
            analyses, and turns them into a cohort: a client that is drawn twice trains once, and further draws fill
            the free places. The reason `draws` is the number of draws of each client, 0 for those that fill up;
            averaging with these weights gives the unbiased mean of the analyses.
        seed: The seed of the random generator.
    """

    name = "data-size"
    fills_slots = True

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        sizes: npt.ArrayLike | None = None,
        replacement: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(clients, cohort_size=cohort_size, sizes=sizes, seed=seed)
        if not isinstance(replacement, bool):
            raise SettingError(f"replacement must be True or False, got {replacement!r}")
        self.replacement = replacement

    def ask(self, offer: RoundOffer) -> Selection:
        """Samples available clients by data size."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        size = min(self.places(offer), len(rows))
        draws = self._draws_with_replacement(rows, offer)
        keys = exponential_keys(self.seed, "data-size", offer.round, self.clients)[rows]
        drawn = np.flatnonzero(draws)
        others = np.flatnonzero(draws == 0)
        more = others[weighted_sample_linear(self.sizes[rows[others]], keys[others], size - len(drawn))]
        positions = np.sort(np.concatenate([drawn, more]))
        reasons = {"draws": draws[positions].astype(np.float64)} if self.replacement else {}
        return Selection.trusted(offer.round, rows[positions], {"size": self.sizes[rows[positions]], **reasons})

    def _draws_with_replacement(self, rows: IntArray, offer: RoundOffer) -> IntArray:
        """Returns how often each client is drawn; all 0 without replacement, or if no client has data."""
        cumulative: FloatArray = np.cumsum(self.sizes[rows])
        if not self.replacement or not len(rows) or cumulative[-1] == 0:
            return np.zeros(len(rows), dtype=np.int64)
        rng = round_rng(self.seed, "data-size with replacement", offer.round)
        marks = rng.random(self.places(offer)) * cumulative[-1]
        positions = np.minimum(np.searchsorted(cumulative, marks, side="right"), len(rows) - 1)
        return np.bincount(positions, minlength=len(rows))
