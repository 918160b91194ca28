"""Random selection in the first rounds."""

from __future__ import annotations

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.policies.base import SelectionPolicy
from turnout.policies.baselines.uniform import UniformRandom
from turnout.policies.wrappers.base import Wrapper


class WarmUp(Wrapper):
    """Selects uniformly at random in the first `rounds` rounds, while the policy inside learns from the reports.

    The random selection equals that of `random` with the same seed.

    Args:
        policy: The policy inside.
        rounds: The number of rounds with random selection.
        seed: The seed of the random generator.
        cohort_size: The number of clients to select at random; only if the policy inside has no cohort_size.
    """

    name = "warm-up"

    def __init__(
        self, policy: SelectionPolicy, rounds: int = 10, *, seed: int = 0, cohort_size: int | None = None
    ) -> None:
        super().__init__(policy)
        self.rounds = as_count("rounds", rounds, SettingError, least=0)
        if policy.cohort_size is not None and cohort_size not in (None, policy.cohort_size):
            raise SettingError(
                f"cohort_size must be that of the policy inside, {policy.cohort_size}, got {cohort_size}: leave it out"
            )
        if policy.cohort_size is None and cohort_size is None:
            raise SettingError(f"{policy.name} has no fixed cohort size: pass cohort_size for the random selection")
        self._random = UniformRandom(self.clients, cohort_size=policy.cohort_size or cohort_size or 1, seed=seed)
        self._remember_part("random", self._random, None)

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects at random, or lets the policy inside select."""
        if offer.round > self.rounds:
            return super().ask(offer)
        self.check_offer(offer)
        return self._random.ask(offer.restricted(places=self._requested(offer) or self._random.cohort_size))

    def selects_inside(self, offer: RoundOffer) -> bool:
        """Returns whether the selection is no longer random."""
        return offer.round > self.rounds
