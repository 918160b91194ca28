"""Exclusion of clients that are still training for an earlier round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray, IntArray, as_count, load_array
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.policies.base import SelectionPolicy
from turnout.policies.wrappers.base import Wrapper, resize, restrict_report


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

    def __init__(self, policy: SelectionPolicy, rounds: int = 10) -> None:
        super().__init__(policy)
        self.fills_cohort = False
        self.rounds = as_count("rounds", rounds, SettingError)
        self._busy_since: IntArray = np.zeros(self.clients, dtype=np.int64)  # 0: not busy

    def busy(self, round: int) -> BoolArray:
        """Returns the clients that are considered busy at the start of this round."""
        busy: BoolArray = (self._busy_since > 0) & (self._busy_since >= round - self.rounds)
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
            self._busy_since[late.clients[self._busy_since[late.clients] == late.rounds]] = 0
        self._busy_since[report.clients] = np.where(self._still_training(report), report.round, 0)

    def add(self, count: int) -> None:
        """Appends clients that are not busy."""
        super().add(count)
        self._busy_since = resize(self._busy_since, self.clients, 0)

    def forget(self, rows: npt.ArrayLike) -> None:
        """Marks these clients as not busy, and lets the policy inside forget them."""
        super().forget(rows)
        self._busy_since[self._rows(rows)] = 0

    def state(self) -> dict[str, Any]:
        """Returns since which round each client is busy."""
        return {"out_since": self._busy_since.copy(), **super().state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores since which round each client is busy."""
        busy_since = load_array(state, "out_since", self._busy_since)
        super().restore(state)
        self._busy_since = busy_since

    def _still_training(self, report: RoundReport) -> BoolArray:
        late, arrived = report.with_outcome("late"), report.with_outcome("arrived")
        if self.target_size is None or arrived.sum() < min(self.target_size, len(arrived)):
            return late
        cut: BoolArray = late & (report.exchange_times <= report.exchange_times[arrived].max(initial=0.0))
        return cut
