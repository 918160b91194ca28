"""What a monitor reads: the traffic of the service and the state of its fleets."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import accumulate

from turnout.errors import StoreError
from turnout.log import get_log
from turnout.service.calls import FleetCalls
from turnout.web.prometheus import labels, promise_metrics

log = get_log("turnout.service")
#: The upper ends of the classes of response times, in seconds.
TIMES = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)


class Traffic:
    """Counts the requests of each fleet by operation and status, and their times."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._times: dict[str, list[int]] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def count(self, fleet: str, operation: str, status: int, seconds: float) -> None:
        """Counts a request.

        Args:
            fleet: The fleet; "" if the request was refused before one was found.
            operation: The id of the operation; "" if none was found.
            status: The status of the answer.
            seconds: The time until the answer was complete.
        """
        with self._mutex:
            self._requests[fleet, operation, status] += 1
            self._times.setdefault(fleet, [0] * (len(TIMES) + 1))[bisect_left(TIMES, seconds)] += 1
            self._seconds[fleet] += seconds

    def metrics(self, fleets: frozenset[str]) -> dict[str, dict[str, float | None]]:
        """Returns the metrics of the requests of these fleets; "" for requests of no fleet."""
        with self._mutex:
            requests = {key: count for key, count in sorted(self._requests.items()) if key[0] in fleets}
            times = {fleet: list(counts) for fleet, counts in sorted(self._times.items()) if fleet in fleets}
            seconds = {fleet: self._seconds[fleet] for fleet in times}
        classes: dict[str, float | None] = {}
        for fleet, counts in times.items():
            total = list(accumulate(counts))
            for end, count in zip([*map(str, TIMES), "+Inf"], total, strict=True):
                classes[f"_bucket{labels(fleet=fleet, le=end)}"] = count
            classes[f"_sum{labels(fleet=fleet)}"], classes[f"_count{labels(fleet=fleet)}"] = seconds[fleet], total[-1]
        counts_by_operation: dict[str, float | None] = {
            labels(fleet=fleet, operation=operation, status=str(status)): float(count)
            for (fleet, operation, status), count in requests.items()
        }
        return {
            "turnout_service_requests_total": counts_by_operation,
            "turnout_service_request_seconds": classes,
        }


def service_metrics(fleets: Mapping[str, FleetCalls], traffic: Traffic) -> dict[str, dict[str, float | None]]:
    """Returns the metrics of these fleets, and of requests of no fleet, by name and labels."""
    metrics: dict[str, dict[str, float | None]] = {}
    for fleet, calls in fleets.items():
        own: dict[str, float | None] = {
            "turnout_up": calls.is_ready,
            "turnout_service_waiting_calls": calls.waiting,
            "turnout_service_held_check_ins": len(calls.held),
            "turnout_service_groups_total": calls.groups,
            "turnout_service_calls_total": calls.grouped,
        }
        try:
            own |= _fleet_metrics(calls)
        except (StoreError, OSError) as error:  # of this fleet only
            log.error("the metrics of %s cannot be read: %s", fleet, error)
            own["turnout_up"] = False
        for name, value in own.items():
            metrics.setdefault(name, {})[labels(fleet=fleet)] = value
    return {**metrics, **traffic.metrics(frozenset((*fleets, "")))}


def _fleet_metrics(calls: FleetCalls) -> dict[str, float | None]:
    """Returns the metrics of a fleet's scheduler."""
    scheduler = calls.scheduler
    status, measured = scheduler.status(), scheduler.metrics()
    metrics: dict[str, float | None] = {
        "turnout_clients": status.clients,
        "turnout_round": measured.round,
        "turnout_open_round_seconds": measured.open_round_seconds,
        "turnout_seconds_since_report": measured.seconds_since_report,
        "turnout_store_bytes": measured.file_bytes,
        "turnout_log_bytes": measured.log_bytes,
        "turnout_commit_seconds_median": measured.commit_seconds_median,
        "turnout_commit_seconds_largest": measured.commit_seconds_largest,
        "turnout_refused_reports_total": measured.refused_reports,
    }
    if not scheduler.settings.has_rounds:
        metrics["turnout_running_turns"] = len(scheduler.running())
    return metrics | promise_metrics(status.promise)
