"""Active FL: Goetz, Malik, Bui, Moon, Liu and Kumar, "Active Federated Learning", 2019."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_number, smallest
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.policies.observations import as_share, part_of
from turnout.policies.sampling import exponential_keys, weighted_sample
from turnout.policies.sized import LossBasedPolicy


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
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
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
