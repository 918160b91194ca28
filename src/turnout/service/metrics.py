"""What a monitor reads: the traffic of the service and the state of its fleets."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from turnout.kernel.certificate import STATUSES
from turnout.service.answers import number
from turnout.service.calls import FleetCalls
from turnout.web.prometheus import labels, metric_lines

#: The upper ends of the classes of response times, in seconds.
TIMES = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
Samples = dict[str, float]


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
    gauges: dict[str, tuple[str, str, Samples]] = {}

    def add(name: str, fleet: str, help_text: str, value: float | None, kind: str = "gauge") -> None:
        if number(value) is not None and value is not None:
            gauges.setdefault(name, (help_text, kind, {}))[2][labels(fleet=fleet)] = float(value)

    for fleet, calls in fleets.items():
        add("turnout_up", fleet, "Whether changes can be stored.", float(calls.is_ready))
        add("turnout_service_waiting_calls", fleet, "Calls that wait to be executed.", calls.waiting)
        add("turnout_service_groups_total", fleet, "Transactions of calls.", calls.groups, "counter")
        add("turnout_service_calls_total", fleet, "Calls in these transactions.", calls.grouped, "counter")
        status, found = calls.scheduler.status(), calls.scheduler.metrics()
        add("turnout_clients", fleet, "Clients that have joined, including retired ones.", status.clients)
        add("turnout_round", fleet, "The newest round; without rounds, the newest decision.", found.round)
        add("turnout_open_round_seconds", fleet, "How long the open round has been open.", found.open_round_seconds)
        add("turnout_seconds_since_report", fleet, "Time since the newest report.", found.seconds_since_report)
        if not calls.scheduler.settings.has_rounds:
            flying = len(calls.scheduler.in_flight())
            add("turnout_turns_in_flight", fleet, "Turns that are under way and without a report.", flying)
        add("turnout_store_bytes", fleet, "Size of the fleet's file.", found.file_bytes)
        add("turnout_log_bytes", fleet, "Size of its write-ahead log.", found.log_bytes)
        add("turnout_commit_seconds_median", fleet, "Median time of the last commits.", found.commit_seconds_median)
        add("turnout_commit_seconds_largest", fleet, "Longest of these times.", found.commit_seconds_largest)
        add("turnout_refused_reports_total", fleet, "Reports that were refused.", found.refused_reports, "counter")
        promise = status.promise
        if promise is not None:
            code = STATUSES.index(promise.status)
            add("turnout_promise_status", fleet, "0: kept, 1: behind, within the tolerance, 2: broken.", code)
            add("turnout_promise_broken_clients", fleet, "Clients beyond the tolerance.", promise.broken)
            add(
                "turnout_promise_largest_shortfall_turns",
                fleet,
                "How many turns the client that is furthest behind is behind its promise; 0 if none is behind.",
                max(promise.worst_behind, 0.0),
            )
    for name, (help_text, kind, samples) in gauges.items():
        yield from metric_lines(name, help_text, kind, samples)
