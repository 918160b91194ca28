"""What a monitor reads: the traffic of the service and the state of its fleets."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from turnout.errors import StoreError
from turnout.kernel.certificate import STATUSES
from turnout.log import get_log
from turnout.service.calls import FleetCalls
from turnout.web.prometheus import labels, metric_lines

log = get_log("turnout.service")
#: The upper ends of the classes of response times, in seconds.
TIMES = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
#: The name of a metric, what it measures, and its value; None if there is none.
Metric = tuple[str, str, float | None]


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

    def lines(self, fleets: frozenset[str]) -> Iterator[str]:
        """Yields the metrics of the requests of these fleets; "" for requests of no fleet."""
        with self._mutex:
            requests = {key: count for key, count in self._requests.items() if key[0] in fleets}
            times = {fleet: list(counts) for fleet, counts in self._times.items() if fleet in fleets}
            seconds = {fleet: self._seconds[fleet] for fleet in times}
        yield from metric_lines(
            "turnout_service_requests_total",
            "Requests by operation and status of the answer.",
            "counter",
            {
                labels(fleet=fleet, operation=operation, status=str(status)): float(count)
                for (fleet, operation, status), count in sorted(requests.items())
            },
        )
        name = "turnout_service_request_seconds"
        yield f"# HELP {name} Time from a request until its answer was complete."
        yield f"# TYPE {name} histogram"
        for fleet, counts in sorted(times.items()):
            total = 0
            for end, count in zip([*map(str, TIMES), "+Inf"], counts, strict=True):
                total += count
                yield f"{name}_bucket{labels(fleet=fleet, le=end)} {total}"
            yield f"{name}_sum{labels(fleet=fleet)} {seconds[fleet]!r}"
            yield f"{name}_count{labels(fleet=fleet)} {total}"


def metrics_text(fleets: Mapping[str, FleetCalls], traffic: Traffic) -> str:
    """Returns the metrics of these fleets, and of requests of no fleet, in the text format of Prometheus."""
    lines = [*_fleet_lines(fleets), *traffic.lines(frozenset((*fleets, "")))]
    return "".join(f"{line}\n" for line in lines)


def _fleet_lines(fleets: Mapping[str, FleetCalls]) -> Iterator[str]:
    samples: dict[str, tuple[str, str, dict[str, float]]] = {}
    for fleet, calls in fleets.items():
        try:
            state, is_up = _state(calls), calls.is_ready
        except (StoreError, OSError) as error:  # of this fleet only
            log.error("the metrics of %s cannot be read: %s", fleet, error)
            state, is_up = [], False
        own: list[Metric] = [
            ("turnout_up", "Whether changes can be stored.", is_up),
            ("turnout_service_waiting_calls", "Calls that wait to be executed.", calls.waiting),
            ("turnout_service_groups_total", "Transactions of calls.", calls.groups),
            ("turnout_service_calls_total", "Calls in these transactions.", calls.grouped),
        ]
        for name, text, value in (*own, *state):
            if value is not None and math.isfinite(value):
                kind = "counter" if name.endswith("_total") else "gauge"
                samples.setdefault(name, (text, kind, {}))[2][labels(fleet=fleet)] = float(value)
    for name, (text, kind, values) in samples.items():
        yield from metric_lines(name, text, kind, values)


def _state(calls: FleetCalls) -> list[Metric]:
    """Returns the metrics of a fleet's scheduler."""
    scheduler = calls.scheduler
    status, found = scheduler.status(), scheduler.metrics()
    metrics: list[Metric] = [
        ("turnout_clients", "Clients that have joined, including retired ones.", status.clients),
        ("turnout_round", "The newest round; without rounds, the newest decision.", found.round),
        ("turnout_open_round_seconds", "How long the open round has been open.", found.open_round_seconds),
        ("turnout_seconds_since_report", "Time since the newest report.", found.seconds_since_report),
        ("turnout_store_bytes", "Size of the fleet's file.", found.file_bytes),
        ("turnout_log_bytes", "Size of its write-ahead log.", found.log_bytes),
        ("turnout_commit_seconds_median", "Median time of the last commits.", found.commit_seconds_median),
        ("turnout_commit_seconds_largest", "Longest of these times.", found.commit_seconds_largest),
        ("turnout_refused_reports_total", "Reports that were refused.", found.refused_reports),
    ]
    if not scheduler.settings.has_rounds:
        running = len(scheduler.running())
        metrics.append(("turnout_running_turns", "Turns that are running and without a report.", running))
    promise = status.promise
    if promise is not None:
        text = "How many turns the client that is furthest behind is behind its promise; 0 if none is behind."
        code = STATUSES.index(promise.status)
        metrics += [
            ("turnout_promise_status", "0: kept, 1: behind, within the tolerance, 2: broken.", code),
            ("turnout_promise_broken_clients", "Clients beyond the tolerance.", promise.broken),
            ("turnout_promise_largest_shortfall_turns", text, max(promise.worst_behind, 0.0)),
        ]
    return metrics
