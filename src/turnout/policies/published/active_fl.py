"""Active FL: Goetz, Malik, Bui, Moon, Liu and Kumar, "Active Federated Learning", 2019."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count, as_number
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.policies.observations import as_share, part_of
from turnout.policies.sampling import drawn, exponential_keys, lowest
from turnout.policies.sized import ByLosses


class ActiveFL(ByLosses):
    """Clients whose data the model fits badly, by lot.

    The value of client k is v = (sum of its losses) / sqrt(n) = sqrt(n) · (its mean loss), as of its last turn.

    1. Of the available, the share `dropped` (alpha1) with the smallest values gets no chance in step 2.
    2. (1 − `uniform`) · cohort_size of the rest are drawn with chances exp(`sharpness` · v) (alpha2).
    3. The other `uniform` · cohort_size (alpha3, to the nearest whole) are drawn evenly from all that are left.

    A client before its first turn counts with the largest value known. The paper takes no account of who is
    available; where too few have a chance, the cohort is filled from the dropped.
    """

    name = "active-fl"

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
        super().__init__(clients, cohort_size=cohort_size, sizes=sizes)
        self.dropped, self.uniform = as_share("dropped", dropped), as_share("uniform", uniform)
        self.sharpness = as_number("sharpness", sharpness, SettingError, least=0)
        self.seed = as_count("seed", seed, SettingError, least=0)

    def ask(self, offer: RoundOffer) -> Selection:
        """Drop the least valuable, draw by value, fill up evenly."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        size = min(self.cohort_size, len(rows))
        evenly = round(self.uniform * size)
        values = self._values(rows)
        waits = exponential_keys(self.seed, "active-fl", offer.round, self.clients)[rows]
        luck = exponential_keys(self.seed, "active-fl evenly", offer.round, self.clients)[rows]
        chances = self.sharpness * values
        chances[lowest(values, luck, part_of(self.dropped, len(rows)))] = -np.inf
        by_value = drawn(chances, waits, size - evenly)
        left = np.delete(np.arange(len(rows)), by_value)
        places = np.sort(np.concatenate([by_value, left[lowest(np.zeros(len(left)), luck[left], evenly)]]))
        return Selection.trusted(offer.round, rows[places], {"value": values[places]})

    def _values(self, rows: IntArray) -> FloatArray:
        tried = np.flatnonzero(self.losses.tried)
        known = np.sqrt(self.sizes[tried]) * self.losses.guessed()[tried]
        values = np.full(self.clients, known.max() if len(known) else 0.0)
        values[tried] = known
        return values[rows]
