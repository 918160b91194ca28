"""Over-selection: inviting more clients than a round needs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, as_number
from turnout.kernel.rounds import RoundReport, invited_clients
from turnout.policies.base import SelectionPolicy
from turnout.policies.wrappers.base import Wrapper, require_cohort_size


class Overcommit(Wrapper):
    """Selects `factor` times as many clients as a round needs, rounded up, so that enough of them return.

    The first `target_size` clients to return count. The policy inside learns that the others were late, with their
    measured times. In a live fleet, the setting `overcommit` does the same.

    A world that waits for all clients reports the time of the slowest: `mark_late_after(report, target_size, cut=True)`
    is the report of a server that does not wait.

    Args:
        policy: The policy inside.
        factor: How many clients are selected, as a multiple of those that a round needs.

    >>> from turnout.policies import UniformRandom
    >>> Overcommit(UniformRandom(40, cohort_size=8), 1.3).cohort_size
    11
    """

    name = "overcommit"
    works_with_slots = False

    def __init__(self, policy: SelectionPolicy, factor: float = 1.3) -> None:
        super().__init__(policy)
        self.factor = as_number("factor", factor, SettingError, least=1, most=10)
        self.cohort_size: int = invited_clients(require_cohort_size(policy, self.name), self.factor)

    def tell(self, report: RoundReport) -> None:
        """Passes the report on, with only the first clients that returned as arrived."""
        self.check_report(report)
        self.policy.tell(report if self.target_size is None else mark_late_after(report, self.target_size))


def mark_late_after(report: RoundReport, count: int, *, cut: bool = False) -> RoundReport:
    """Returns the report with only the first `count` arrivals as arrived, and the others as late.

    Args:
        report: The report of a round.
        count: How many arrivals count; among equal times the lower rows come first.
        cut: Whether all times are cut at the time of the last arrival that counts.
    """
    arrived = np.flatnonzero(report.with_outcome("arrived"))
    if len(arrived) <= count:
        return report
    order = arrived[np.lexsort((report.clients[arrived], report.exchange_times[arrived]))]
    outcomes = np.full(len(report.clients), "arrived") if report.outcomes is None else np.array(report.outcomes)
    outcomes[order[count:]] = "late"
    times: FloatArray = report.exchange_times
    if cut:
        times = np.minimum(times, times[order[:count]].max(initial=0.0))
    return replace(report, outcomes=outcomes, exchange_times=times)
