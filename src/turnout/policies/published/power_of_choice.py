"""Power-of-Choice: Cho, Wang and Joshi, "Client Selection in Federated Learning: Convergence Analysis and
Power-of-Choice Selection Strategies", 2020.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count, smallest
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.policies.sampling import exponential_keys, weighted_sample_linear
from turnout.policies.sized import LossBasedPolicy


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
        self.check_offer(offer)
        size = self.places(offer)
        rows = np.flatnonzero(offer.available)
        keys = exponential_keys(self.seed, "power-of-choice", offer.round, self.clients)
        count = max(2 * size if self.candidates is None else self.candidates, size)
        rows = rows[weighted_sample_linear(self.sizes[rows], keys[rows], count)]
        tie_break = exponential_keys(self.seed, "power-of-choice equals", offer.round, self.clients)
        losses = self.losses.guessed()
        chosen = rows[smallest(-losses[rows], size, tie_break[rows])]
        return Selection.trusted(offer.round, chosen, {"loss": losses[chosen]})
