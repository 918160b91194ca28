"""What a monitor reads: the traffic of the service and the state of its fleets."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import partial
from itertools import accumulate

from turnout.errors import StoreError
from turnout.service.calls import FleetCalls
from turnout.service.errors import BusyError, StandbyError
from turnout.service.fleet import OccupiedError
from turnout.web.prometheus import labels, promise_metrics
from turnout.web.serving import Refusals

#: The upper ends of the classes of response times, in seconds.
TIMES = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)


#: The same for streams, which last up to ten minutes.
STREAM_TIMES = (1.0, 10.0, 60.0, 300.0, 610.0)
#: The operation whose answers are streams.
STREAMING = "events"
#: How long the metrics of a fleet may wait for its calls, in seconds.
WAIT_SECONDS = 2.0


class Durations:
    """Counts durations of each fleet in classes.

    Args:
        ends: The upper ends of the classes, in seconds.
    """

    def __init__(self, ends: tuple[float, ...]) -> None:
        self._ends = ends
        self._counts: dict[str, list[int]] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def count(self, fleet: str, seconds: float) -> None:
        """Counts a duration."""
        self._counts.setdefault(fleet, [0] * (len(self._ends) + 1))[bisect_left(self._ends, seconds)] += 1
        self._seconds[fleet] += seconds

    def histogram(self, fleets: frozenset[str]) -> dict[str, float | None]:
        """Returns the samples of a histogram of these fleets."""
        classes: dict[str, float | None] = {}
        for fleet in sorted(fleets & self._counts.keys()):
            total = list(accumulate(self._counts[fleet]))
            for end, count in zip([*map(str, self._ends), "+Inf"], total, strict=True):
                classes[f"_bucket{labels(fleet=fleet, le=end)}"] = count
            classes[f"_sum{labels(fleet=fleet)}"] = self._seconds[fleet]
            classes[f"_count{labels(fleet=fleet)}"] = total[-1]
        return classes


class Traffic:
    """Counts the requests of each fleet by operation and status, and their times.

    It is used in the event loop only.
    """

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._answers, self._streams = Durations(TIMES), Durations(STREAM_TIMES)

    def count(self, fleet: str, operation: str, status: int, seconds: float) -> None:
        """Counts a request.

        Args:
            fleet: The fleet; "" if the request was refused before one was found.
            operation: The id of the operation; "" if none was found.
            status: The status of the answer.
            seconds: The time until the answer was complete.
        """
        self._requests[fleet, operation, status] += 1
        is_stream = operation == STREAMING and status == 200
        (self._streams if is_stream else self._answers).count(fleet, seconds)

    def metrics(self, fleets: frozenset[str]) -> dict[str, dict[str, float | None]]:
        """Returns the metrics of the requests of these fleets; "" for requests of no fleet."""
        counts: dict[str, float | None] = {
            labels(fleet=fleet, operation=operation, status=str(status)): float(count)
            for (fleet, operation, status), count in sorted(self._requests.items())
            if fleet in fleets
        }
        return {
            "turnout_service_requests_total": counts,
            "turnout_service_request_seconds": self._answers.histogram(fleets),
            "turnout_service_stream_seconds": self._streams.histogram(fleets),
        }


async def service_metrics(
    fleets: Mapping[str, FleetCalls], traffic: Traffic, refusals: Refusals
) -> dict[str, dict[str, float | None]]:
    """Returns the metrics of these fleets, of requests of no fleet, and of refused connections, by name and labels."""
    metrics: dict[str, dict[str, float | None]] = {}
    for fleet, own in zip(fleets, await asyncio.gather(*map(_metrics_of, fleets.values())), strict=True):
        for name, value in own.items():
            metrics.setdefault(name, {})[labels(fleet=fleet)] = value
    refused: dict[str, float | None] = {labels(why=why): count for why, count in sorted(refusals.counts.items())}
    refused_connections = {"turnout_service_refused_connections_total": refused}
    return {**metrics, **traffic.metrics(frozenset((*fleets, ""))), **refused_connections}


async def _metrics_of(calls: FleetCalls) -> dict[str, float | None]:
    """Returns the metrics of a fleet; if it cannot be read now, only those of its calls."""
    own: dict[str, float | None] = {
        "turnout_up": await calls.probe() is None,
        "turnout_standby": calls.file.is_standby,
        "turnout_service_waiting_calls": calls.waiting,
        "turnout_service_held_check_ins": len(calls.held),
        "turnout_service_groups_total": calls.groups,
        "turnout_service_calls_total": calls.grouped,
    }
    try:
        return own | await calls.file.read(partial(_fleet_metrics, calls), seconds=WAIT_SECONDS)
    except (OccupiedError, BusyError):  # a call that takes long is no failure
        return own
    except StandbyError:
        return own | {"turnout_up": None}
    except StoreError:  # of this fleet only, and it is logged
        return own | {"turnout_up": False}


def _fleet_metrics(calls: FleetCalls) -> dict[str, float | None]:
    """Returns the metrics of a fleet's scheduler."""
    scheduler = calls.scheduler
    status, measured = scheduler.status(), scheduler.metrics()
    metrics: dict[str, float | None] = {
        "turnout_clients": status.clients,
        "turnout_round": measured.round,
        "turnout_open_round_seconds": measured.open_round_seconds,
        "turnout_deadline_seconds": status.deadline,
        "turnout_seconds_since_report": measured.seconds_since_report,
        "turnout_store_bytes": measured.file_bytes,
        "turnout_log_bytes": measured.log_bytes,
        "turnout_commit_seconds_median": measured.commit_seconds_median,
        "turnout_commit_seconds_largest": measured.commit_seconds_largest,
        "turnout_refused_reports_total": measured.refused_reports,
    }
    if not scheduler.settings.has_rounds:
        running = scheduler.running()
        metrics["turnout_running_turns"] = len(running)
        metrics["turnout_oldest_turn_seconds"] = measured.oldest_turn_seconds or 0.0
        metrics["turnout_deadline_seconds"] = running[0].deadline if running else None
    return metrics | promise_metrics(status.promise)
