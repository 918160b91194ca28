"""Exclusion of clients that are still training for an earlier round."""

from __future__ import annotations

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, IntArray, as_count
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.policies.base import SelectionPolicy
from turnout.policies.wrappers.base import Wrapper, restrict_report


class ExcludeBusy(Wrapper):
    """Does not offer clients that are still training for one of the last `rounds` rounds.

    A client is busy from the report that it was late until the report of its late arrival or of another outcome. A
    client that returned after enough others had is late but not busy: its time is longer than that of the last arrival
    that counted. To the policy inside, busy clients are not available.

    Args:
        policy: The policy inside.
        rounds: The number of rounds for which a client can be busy.
    """

    name = "exclude-busy"
    works_with_slots = False
    out_since: IntArray  # the round since which a client is busy; 0: not busy

    def __init__(self, policy: SelectionPolicy, rounds: int = 10) -> None:
        super().__init__(policy)
        self.fills_cohort = False
        self.rounds = as_count("rounds", rounds, SettingError)
        self._remember(out_since=0)

    def busy(self, round: int) -> BoolArray:
        """Returns the clients that are considered busy at the start of this round."""
        busy: BoolArray = (self.out_since > 0) & (self.out_since >= round - self.rounds)
        return busy

    def inner_offer(self, offer: RoundOffer) -> RoundOffer:
        """Returns the offer without busy clients."""
        return offer.restricted(~self.busy(offer.round), self._requested(offer))

    def tell(self, report: RoundReport) -> None:
        """Updates which clients are busy, and passes the report on without them."""
        self.check_report(report)
        self.policy.tell(restrict_report(report, ~self.busy(report.round)))
        late = report.late_arrivals
        if late is not None:
            self.out_since[late.clients[self.out_since[late.clients] == late.rounds]] = 0
        self.out_since[report.clients] = np.where(self._still_training(report), report.round, 0)

    def _still_training(self, report: RoundReport) -> BoolArray:
        late, arrived = report.with_outcome("late"), report.with_outcome("arrived")
        if self.cohort_size is None or arrived.sum() < min(self.cohort_size, len(arrived)):
            return late
        cut: BoolArray = late & (report.exchange_times <= report.exchange_times[arrived].max(initial=0.0))
        return cut
