"""Power-of-Choice: Cho, Wang and Joshi, "Client Selection in Federated Learning: Convergence Analysis and
Power-of-Choice Selection Strategies", 2020.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.policies.sampling import exponential_keys, lowest, weighted_sample_linear
from turnout.policies.sized import ByLosses


class PowerOfChoice(ByLosses):
    """Of `candidates` clients drawn in proportion to their data, those with the largest loss.

    1. d = `candidates` of the available, without putting back, client k with chance n_k / Σ n.
    2. Of these the m = `cohort_size` with the largest loss; at random among equals.

    This is the paper's rpow-d: the loss is the one a client told at its last turn, and a client that had none
    yet counts as infinite, so that it is tried first. (The paper's pow-d and cpow-d ask all candidates for a fresh
    loss before the round, which no report holds.) A client that had turns and told no loss counts with the mean
    of the others. d = m is sampling by data size, a large d the m largest losses of all.

    `candidates`: at least cohort_size; None is twice the cohort, a common choice of the paper. Code seen elsewhere
    looks the losses up in the wrong list: position among the candidates instead of client.
    """

    name = "power-of-choice"

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        candidates: int | None = None,
        sizes: npt.ArrayLike | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(clients, cohort_size=cohort_size, sizes=sizes)
        if candidates is not None and as_count("candidates", candidates, SettingError) < cohort_size:
            raise SettingError(f"candidates must be at least cohort_size ({cohort_size}), not {candidates}")
        self.candidates = candidates
        self.seed = as_count("seed", seed, SettingError, least=0)

    def ask(self, offer: RoundOffer) -> Selection:
        """Draw the candidates, then take those with the largest losses."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        waits = exponential_keys(self.seed, "power-of-choice", offer.round, self.clients)
        count = max(2 * self.cohort_size if self.candidates is None else self.candidates, self.cohort_size)
        rows = rows[weighted_sample_linear(self.sizes[rows], waits[rows], count)]
        luck = exponential_keys(self.seed, "power-of-choice equals", offer.round, self.clients)
        losses = self.losses.guessed()
        chosen = rows[lowest(-losses[rows], luck[rows], self.cohort_size)]
        return Selection.trusted(offer.round, chosen, {"loss": losses[chosen]})
