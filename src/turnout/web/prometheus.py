"""The text format of Prometheus, and what each metric means."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from turnout.kernel.certificate import STATUSES, PromiseSummary

MEDIA_TYPE = "text/plain; version=0.0.4"
HISTOGRAMS = ("turnout_service_request_seconds", "turnout_service_stream_seconds")
#: What each metric means. A metric whose name ends in "_total" is a counter.
HELP = {
    "turnout_up": "Whether the store can be read and, in a service, whether changes can be stored.",
    "turnout_standby": "Whether another service writes the fleet, and this one waits to take over.",
    "turnout_store_bytes": "Size of the store's file.",
    "turnout_log_bytes": "Size of the store's write-ahead log.",
    "turnout_read_ratio": "Share of the records that have been read; until all are, other figures are left out.",
    "turnout_round": "The last closed round; in a service, also the open one. Without rounds, the last decision.",
    "turnout_clients": "Clients that have joined, including retired ones.",
    "turnout_round_seconds_total": "Total duration of the rounds that are kept, in seconds; without rounds, of turns.",
    "turnout_last_round_seconds": "Duration of the last round in seconds; without rounds, of the last turn.",
    "turnout_least_share": "The smallest share of any client: its turns, divided by the rounds that count for it.",
    "turnout_worst_debt_turns": "Largest number of turns owed to a client.",
    "turnout_mean_debt_turns": "Mean number of turns owed to a client.",
    "turnout_promise_status": (
        "0 if all clients are less than one turn behind (kept), 1 if within the tolerance (behind), 2 if a client is "
        "beyond it (broken)."
    ),
    "turnout_promise_broken_clients": "Clients that are further behind than the tolerance.",
    "turnout_promise_largest_shortfall_turns": (
        "How many turns the client that is furthest behind is behind its promise; 0 if none is behind."
    ),
    "turnout_promise_tolerance_turns": "How many turns a client may be behind.",
    "turnout_open_round_seconds": "How long the open round has been open; 0 if none is open.",
    "turnout_deadline_seconds": "Deadline of the open round or, without rounds, of the oldest turn; none without one.",
    "turnout_scheduler_running": "Whether a process has the fleet open to select; 0 if the server is down.",
    "turnout_open_round_reports": "Reports of the open round.",
    "turnout_seconds_since_report": "Time since the newest report of the open round or, without rounds, of any turn.",
    "turnout_slots": "Slots, in each of which a client can train.",
    "turnout_running_turns": "Turns that are running and without a report.",
    "turnout_oldest_turn_seconds": "How long the oldest turn has been running; 0 if none is.",
    "turnout_turns_reported": "Turns that were reported, and that the next call of fill learns.",
    "turnout_updates_per_second": "Updates per second, over the last 20 decisions for each slot.",
    "turnout_snapshot_age_rounds": "Rounds that were closed, or calls of fill, since the last snapshot.",
    "turnout_refused_reports_total": "Reports that the scheduler has refused since it was started.",
    "turnout_commit_seconds_median": "Median time of the scheduler's last commits, until they were on disk.",
    "turnout_commit_seconds_largest": "Longest of these times.",
    "turnout_clients_doubted": "Clients whose context predicts their times worse than their typical time does.",
    "turnout_outcomes_total": "Turns by outcome.",
    "turnout_service_waiting_calls": "Calls that wait to be executed.",
    "turnout_service_held_check_ins": "Devices that wait for a turn in their call.",
    "turnout_service_groups_total": "Transactions of calls.",
    "turnout_service_calls_total": "Calls in these transactions.",
    "turnout_service_requests_total": (
        "Requests by operation and status of the answer; 499 if the caller left before its request was complete."
    ),
    "turnout_service_request_seconds": "Time from a request until its answer was complete; without streams.",
    "turnout_service_stream_seconds": "Duration of the streams of events that have ended.",
    "turnout_service_refused_connections_total": "Connections that were refused before a request was read.",
}


def labels(**values: str) -> str:
    r"""Returns labels as they stand behind the name of a metric.

    >>> labels(fleet='a"b', run="1")
    '{fleet="a\\"b",run="1"}'
    """
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in values.items()) + "}"


def promise_metrics(summary: PromiseSummary | None) -> dict[str, float]:
    """Returns the metrics of a promise; none if there is no promise."""
    if summary is None:
        return {}
    return {
        "turnout_promise_status": STATUSES.index(summary.status),
        "turnout_promise_broken_clients": summary.broken,
        "turnout_promise_largest_shortfall_turns": max(summary.worst_behind, 0.0),
        "turnout_promise_tolerance_turns": summary.tolerance,
    }


def metrics_text(metrics: Mapping[str, Mapping[str, float | None]]) -> str:
    """Returns metrics as text.

    Args:
        metrics: The values of each metric by their labels, "" for none. The labels of a histogram follow "_bucket",
            "_sum" or "_count". Values that are None or not finite are left out.
    """
    return "".join(f"{line}\n" for name, values in metrics.items() for line in _lines(name, values))


def _lines(name: str, values: Mapping[str, float | None]) -> Iterator[str]:
    kind = "histogram" if name in HISTOGRAMS else "counter" if name.endswith("_total") else "gauge"
    known = {label: value for label, value in values.items() if value is not None and math.isfinite(value)}
    if values and not known:
        return
    yield f"# HELP {name} {HELP[name]}"
    yield f"# TYPE {name} {kind}"
    for label, value in known.items():
        short = float(value).is_integer() and abs(value) < 1e6
        yield f"{name}{label} {value:g}" if short else f"{name}{label} {float(value)!r}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
