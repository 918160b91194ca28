"""By data size: the sampling that most analyses of federated averaging assume (Li et al., ICLR 2020)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.sampling import exponential_keys, weighted_sample_linear
from turnout.policies.sized import SizedPolicy


class DataSize(SizedPolicy):
    """Clients in proportion to how much data they have: n_k / Σ n among the available.

    `replacement=False`: one after the other, without putting back. `replacement=True`: the scheme of the analyses,
    cohort_size draws with putting back, made into a cohort: a client that is drawn twice trains once, and the
    places this leaves are filled by drawing on. The reason `draws` tells how often each was drawn, 0 for those who
    fill up: average with these as weights to have the unbiased mean of the analyses.

    `sizes`: one number a client; None where all have the same, which is plain random choice.
    """

    name = "data-size"

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        sizes: npt.ArrayLike | None = None,
        replacement: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(clients, cohort_size=cohort_size, sizes=sizes)
        if not isinstance(replacement, bool):
            raise SettingError(f"replacement must be True or False, not {replacement!r}")
        self.replacement = replacement
        self.seed = as_count("seed", seed, SettingError, least=0)

    def ask(self, offer: RoundOffer) -> Selection:
        """Draw among the available."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        size = min(self.cohort_size, len(rows))
        draws = self._draws_with_replacement(rows, offer.round)
        waits = exponential_keys(self.seed, "data-size", offer.round, self.clients)[rows]
        places = np.flatnonzero(draws)
        left = np.flatnonzero(draws == 0)
        more = left[weighted_sample_linear(self.sizes[rows[left]], waits[left], size - len(places))]
        places = np.sort(np.concatenate([places, more]))
        reasons = {"draws": draws[places].astype(np.float64)} if self.replacement else {}
        return Selection.trusted(offer.round, rows[places], {"size": self.sizes[rows[places]], **reasons})

    def tell(self, report: RoundReport) -> None:
        """Nothing to learn."""
        self.check_report(report)

    def _draws_with_replacement(self, rows: IntArray, round_: int) -> IntArray:
        """How often each of these was drawn; never where nothing is put back, or where all have no data."""
        shares: FloatArray = np.cumsum(self.sizes[rows])
        if not self.replacement or not len(rows) or shares[-1] == 0:
            return np.zeros(len(rows), dtype=np.int64)
        marks = round_rng(self.seed, "data-size with replacement", round_).random(self.cohort_size) * shares[-1]
        places = np.minimum(np.searchsorted(shares, marks, side="right"), len(rows) - 1)
        return np.bincount(places, minlength=len(rows))
