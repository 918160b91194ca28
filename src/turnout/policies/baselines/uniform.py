"""Random selection, with equal and with unequal probabilities."""

from __future__ import annotations

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, smallest
from turnout.kernel.randomness import MIN_CONCENTRATION, dirichlet_logs, round_rng, softmax
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.policies.base import CohortPolicy


class UniformRandom(CohortPolicy):
    """Selects every available client with equal probability, as most servers do.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        seed: The seed of the random generator; by default that of the run.
    """

    name = "random"
    fills_slots = True

    def __init__(self, clients: int, *, cohort_size: int = 8, seed: int = 0) -> None:
        super().__init__(clients, cohort_size=cohort_size, seed=seed)

    def ask(self, offer: RoundOffer) -> Selection:
        """Samples available clients without replacement."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        rng = round_rng(self.seed, "random", offer.round)
        chosen = rng.choice(rows, min(self.places(offer), len(rows)), replace=False)
        chosen.sort()
        return Selection.trusted(offer.round, chosen, {})


class SkewedRandom(CohortPolicy):
    """Selects at random with fixed unequal weights: the paper's control between unfair and fair selection.

    The weights q' ~ Dirichlet(concentration·1) are drawn once per run (gamma_2 in the paper). Each round's cohort is a
    weighted sample of the available clients without replacement. A small concentration gives very unequal weights,
    `math.inf` equal ones.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        concentration: The concentration of the Dirichlet distribution of the weights.
        seed: The seed of the weights and of the samples.
    """

    name = "skewed"
    fills_slots = True

    def __init__(self, clients: int, *, cohort_size: int = 8, concentration: float = 1.0, seed: int = 0) -> None:
        super().__init__(clients, cohort_size=cohort_size, seed=seed)
        if not concentration >= MIN_CONCENTRATION:
            raise SettingError(
                f"concentration must be at least {MIN_CONCENTRATION:g} (infinity means equal weights), got "
                f"{concentration}"
            )
        self.concentration = float(concentration)
        rng = round_rng(seed, "skewed weights", 0)
        self._log_weights = dirichlet_logs(rng, clients, self.concentration)

    def add(self, count: int) -> None:
        """Raises SettingError, because the weights of all clients are drawn together, once per run."""
        raise SettingError(f"{self.name} draws the weights of all clients at once: {count} more cannot join")

    @property
    def weights(self) -> FloatArray:
        """The probability of each client in a single draw."""
        return softmax(self._log_weights)

    def ask(self, offer: RoundOffer) -> Selection:
        """Samples available clients by weight, without replacement."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        # Sorting log-weight + Gumbel noise is equivalent to sequential draws, and weights cannot underflow.
        noise = round_rng(self.seed, "skewed", offer.round).gumbel(size=self.clients)
        positions = smallest(-(self._log_weights + noise)[rows], self.places(offer))
        return Selection.trusted(offer.round, rows[positions], {})
