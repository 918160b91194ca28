"""A pause after each turn."""

from __future__ import annotations

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, IntArray, as_count
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.policies.base import SelectionPolicy
from turnout.policies.wrappers.base import Wrapper


class CoolDown(Wrapper):
    """Does not offer clients that were selected in the last `rounds` rounds.

    Clients in a cool-down count as available in reports: they continue to earn the turns that they are guaranteed.

    Args:
        policy: The policy inside.
        rounds: The length of the cool-down.
        strict: False shortens the cool-down, round by round, until cohort_size clients can be offered (one, if the
            cohort has no fixed size). True never shortens it.
    """

    name = "cool-down"
    works_with_slots = False  # a fleet without rounds has `min_turn_interval`
    rests_until: IntArray  # the last round of each client's cool-down

    def __init__(self, policy: SelectionPolicy, rounds: int = 1, *, strict: bool = False) -> None:
        super().__init__(policy)
        self.rounds = as_count("rounds", rounds, SettingError)
        if not isinstance(strict, bool):
            raise SettingError(f"strict must be True or False, got {strict!r}")
        self.strict = strict
        self.fills_cohort = self.fills_cohort and not strict
        self._remember(rests_until=0)

    def inner_offer(self, offer: RoundOffer) -> RoundOffer:
        """Returns the offer without clients in a cool-down."""
        latest = offer.round - 1
        if not self.strict:
            latest = max(latest, self._shortened(offer))
        return offer.restricted(self.rests_until <= latest, self._requested(offer))

    def tell(self, report: RoundReport) -> None:
        """Starts the cool-down of the selected clients."""
        super().tell(report)
        self.rests_until[report.clients] = report.round + self.rounds

    def _shortened(self, offer: RoundOffer) -> int:
        """Returns the round by which the cool-downs of enough available clients have ended."""
        available: BoolArray = offer.available
        ends = self.rests_until[available]
        enough = min(1 if self.cohort_size is None else self.places(offer), len(ends))
        return int(np.partition(ends, enough - 1)[enough - 1]) if enough else 0
