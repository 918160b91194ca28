"""Policies that draw lots."""

from __future__ import annotations

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, as_count, smallest
from turnout.kernel.randomness import SMALLEST_CONCENTRATION, dirichlet_logs, round_rng, softmax
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import SelectionPolicy


class UniformRandom(SelectionPolicy):
    """Every available client with equal chance: what most servers do."""

    name = "random"

    def __init__(self, clients: int, *, cohort_size: int = 8, seed: int = 0) -> None:
        super().__init__(clients)
        self.cohort_size: int = as_count("cohort_size", cohort_size, SettingError)
        self.seed = as_count("seed", seed, SettingError, least=0)

    def ask(self, offer: RoundOffer) -> Selection:
        """Draw without replacement among the available."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        rng = round_rng(self.seed, "random", offer.round)
        drawn = rng.choice(rows, min(self.cohort_size, len(rows)), replace=False)
        drawn.sort()
        return Selection.trusted(offer.round, drawn, {})

    def tell(self, report: RoundReport) -> None:
        """Nothing to learn."""
        self.check_report(report)


class SkewedRandom(SelectionPolicy):
    """Lots with unequal weights: the paper's dial between unfair and fair.

    Weights q' ~ Dirichlet(concentration·1) are drawn once per run (gamma_2 of the paper); each round's
    cohort is drawn without replacement with those weights among the available. Small concentrations
    are very uneven; `math.inf` is even.
    """

    name = "skewed"

    def __init__(self, clients: int, *, cohort_size: int = 8, concentration: float = 1.0, seed: int = 0) -> None:
        super().__init__(clients)
        self.cohort_size: int = as_count("cohort_size", cohort_size, SettingError)
        self.seed = as_count("seed", seed, SettingError, least=0)
        if not concentration >= SMALLEST_CONCENTRATION:
            raise SettingError(
                f"concentration must be at least {SMALLEST_CONCENTRATION:g} (infinity is even), not {concentration}"
            )
        self.concentration = float(concentration)
        rng = round_rng(seed, "skewed weights", 0)
        self._log_weights = dirichlet_logs(rng, clients, self.concentration)

    def add(self, count: int) -> None:
        """Refused: the weights of all clients are drawn together, once a run."""
        raise SettingError(f"{self.name} draws the weights of all clients at once: {count} more cannot join")

    @property
    def weights(self) -> FloatArray:
        """The share of each client in a single draw."""
        return softmax(self._log_weights)

    def ask(self, offer: RoundOffer) -> Selection:
        """Draw one after the other, each in proportion to its weight among those left."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        # The order of log-weight + Gumbel noise is the order of such draws, and never runs out of weight.
        noise = round_rng(self.seed, "skewed", offer.round).gumbel(size=self.clients)
        places = smallest(-(self._log_weights + noise)[rows], self.cohort_size)
        return Selection.trusted(offer.round, rows[places], {})

    def tell(self, report: RoundReport) -> None:
        """Nothing to learn."""
        self.check_report(report)
