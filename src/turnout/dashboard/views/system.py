"""System: the file, reading and response times, versions; and the metrics for Prometheus."""

from __future__ import annotations

import importlib.metadata
import platform
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.ledger import Ledger
from turnout.dashboard.views.common import about, json_number, owed, share_of
from turnout.dashboard.views.overview import outcomes
from turnout.dashboard.views.slots import RECENT_PER_SLOT, rate_of
from turnout.dashboard.watch import Watch
from turnout.kernel.backend import kernel_name
from turnout.kernel.certificate import STATUSES
from turnout.live._internals import seconds_since_report
from turnout.version import __version__
from turnout.web.prometheus import labels, metric_lines

KEPT_SAMPLES = 500
#: How the help of a metric speaks of rounds, and of turns without rounds.
WORDS = {
    "round": {
        "last": "closed round",
        "Last": "Closed round",
        "unit": "round",
        "reports": "the open round",
        "saved": "Rounds that were closed",
    },
    "decision": {
        "last": "decision",
        "Last": "Decision",
        "unit": "turn",
        "reports": "these turns",
        "saved": "Calls of fill",
    },
}
#: The help of each metric. A metric whose name ends in "_total" is a counter, any other is a gauge.
HELP = {
    "turnout_up": "Whether the store can be read.",
    "turnout_store_bytes": "Size of the store's file.",
    "turnout_log_bytes": "Size of the store's write-ahead log.",
    "turnout_read_ratio": "Share of the records that have been read; below 1 the other metrics are incomplete.",
    "turnout_round": "The last {last}.",
    "turnout_clients": "Clients that have joined, including retired ones.",
    "turnout_rounds_total": "{Last}s.",
    "turnout_round_seconds_total": "Total duration of the {unit}s that are kept, in seconds.",
    "turnout_last_round_seconds": "Duration of the last {unit} in seconds.",
    "turnout_least_share": "The smallest share of turns of any client, of {share_of}.",
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
    "turnout_promise_holds": "1 if no client is further behind than the tolerance, else 0.",
    "turnout_open_round_seconds": "How long the open round has been open; 0 if none is open.",
    "turnout_open_round_reports": "Reports of the open round.",
    "turnout_seconds_since_report": "Time since the newest report of {reports}.",
    "turnout_slots": "Slots, in each of which a client can train.",
    "turnout_running_turns": "Turns that are running and without a report.",
    "turnout_oldest_turn_seconds": "How long the oldest turn has been running; 0 if none is.",
    "turnout_turns_reported": "Turns that were reported, and that the next call of fill learns.",
    "turnout_updates_per_second": f"Updates per second, over the last {RECENT_PER_SLOT} decisions for each slot.",
    "turnout_snapshot_age_rounds": "{saved} since the last snapshot.",
    "turnout_refused_reports_total": "Reports that the scheduler has refused since it was started.",
    "turnout_commit_seconds_median": "Median time of the scheduler's last commits, until they were on disk.",
    "turnout_commit_seconds_largest": "Longest of these times.",
    "turnout_clients_doubted": "Clients whose context predicts their times worse than their typical time does.",
    "turnout_outcomes_total": "Turns by outcome.",
}


class Latencies:
    """Response times of the most recent requests of each route, in seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str, deque[float]] = {}
        self._counts: dict[str, int] = {}

    def add(self, route: str, seconds: float) -> None:
        """Adds the time of one response."""
        with self._lock:
            self._newest.setdefault(route, deque(maxlen=KEPT_SAMPLES)).append(seconds)
            self._counts[route] = self._counts.get(route, 0) + 1

    def summary(self) -> list[dict[str, Any]]:
        """Returns the number of requests, the median and the 95th percentile of each route."""
        with self._lock:
            newest = {route: np.array(times) for route, times in sorted(self._newest.items())}
            return [
                {
                    "route": route,
                    "count": self._counts[route],
                    "median_ms": json_number(1e3 * float(np.median(times))),
                    "p95_ms": json_number(1e3 * float(np.percentile(times, 95))),
                }
                for route, times in newest.items()
            ]


def system(watch: Watch, source: Source, *, latencies: Latencies) -> dict[str, Any]:
    """Returns the sizes of the file, reading and response times, and versions."""
    return {
        "about": about(watch, source),
        "store": {"name": watch.path.name, "kind": watch.kind, "writer": watch.writer, **watch.sizes()},
        "reading": {
            "rounds": watch.rounds_read,
            "seconds": json_number(watch.seconds_read),
            "last_ms": json_number(watch.last_ms),
        },
        "gaps": _gaps(source),
        "requests": latencies.summary(),
        "versions": versions(),
        "uptime": json_number(time.monotonic() - watch.started_at),
        "memory_bytes": peak_memory(),
    }


def peak_memory() -> int | None:
    """Returns the most memory that this process has used, in bytes; None on Windows, where Python does not know it."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def versions() -> dict[str, str]:
    """Returns the versions of turnout, its kernel, Python, the libraries and the operating system."""
    names = {"turnout": __version__, "kernel": kernel_name(), "python": platform.python_version()}
    names |= {name: importlib.metadata.version(name) for name in ("numpy", "fastapi", "uvicorn", "plotly")}
    return {**names, "sqlite": sqlite3.sqlite_version, "system": f"{platform.system()} {platform.machine()}"}


def metrics(watch: Watch, source: Source | None) -> str:
    """Returns the metrics in the text format of Prometheus."""
    return "".join(f"{line}\n" for line in _lines(watch, source))


def _gaps(source: Source) -> dict[str, Any] | None:
    """Returns how long rounds or turns last and, with rounds, how long the server waits before the next one."""
    if not source.ledger.is_dated:
        return None
    started, finished = (source.ledger.round_column(name) for name in ("started", "finished"))
    if not np.isfinite(finished).any():
        return None
    between = started[1:] - finished[:-1] if source.ledger.slots is None else np.empty(0)
    return {
        "round_median": json_number(float(np.nanmedian(finished - started))),
        "between_median": json_number(float(np.median(between))) if len(between) else None,
    }


def _lines(watch: Watch, source: Source | None) -> Iterator[str]:
    sizes = watch.sizes()
    store = {
        "turnout_up": float(watch.last_error is None),
        "turnout_store_bytes": sizes["bytes"] or 0,
        "turnout_log_bytes": sizes["log_bytes"],
    }
    for name, value in store.items():
        yield from _metric(name, {"": value})
    if source is None or not source.name:
        return
    ledger = source.ledger
    own = {"policy": source.policy} | ({} if source.run is None else {"run": str(source.run)})
    words = {**WORDS[ledger.unit], "share_of": share_of(ledger, ledger.share_accrual)}
    for name, value in _values(source).items():
        yield from _metric(name, {labels(**own): value}, words)
    by_outcome = {labels(**own, outcome=outcome): count for outcome, count in outcomes(ledger).items()}
    yield from _metric("turnout_outcomes_total", by_outcome)


def _metric(name: str, values: Mapping[str, float], words: Mapping[str, str] | None = None) -> Iterator[str]:
    kind = "counter" if name.endswith("_total") else "gauge"
    return metric_lines(name, HELP[name].format(**(words or {})), kind, values)


def _values(source: Source) -> dict[str, float]:
    """Returns the metrics of a run or fleet by name; those of which nothing is known are left out."""
    ledger = source.ledger
    seconds = ledger.round_column("seconds")
    seconds = seconds[np.isfinite(seconds)]
    records_read, records = source.reading or (1, 1)
    values: dict[str, float] = {
        "turnout_read_ratio": records_read / records,
        "turnout_round": ledger.last_round,
        "turnout_clients": ledger.clients,
        "turnout_rounds_total": ledger.last_round,
        "turnout_round_seconds_total": float(seconds.sum()),
    }
    if len(seconds):
        values["turnout_last_round_seconds"] = float(seconds[-1])
    shares = ledger.judged_shares()
    if np.isfinite(shares).any():
        values["turnout_least_share"] = float(np.nanmin(shares))
    if ledger.queues is not None and ledger.clients:
        debts = owed(ledger)[~ledger.retired]
        values["turnout_worst_debt_turns"] = float(debts.max())
        values["turnout_mean_debt_turns"] = float(debts.mean())
    values |= _promise(ledger)
    values |= _open_round(source) if ledger.slots is None else _slots(source, ledger.slots)
    values |= _writer(source)
    values["turnout_clients_doubted"] = int(ledger.history.suspects().sum())
    return values


def _promise(ledger: Ledger) -> dict[str, float]:
    summary = ledger.promise_summary()
    if summary is None:
        return {}
    return {
        "turnout_promise_status": STATUSES.index(summary.status),
        "turnout_promise_broken_clients": summary.broken,
        "turnout_promise_largest_shortfall_turns": max(summary.worst_behind, 0.0),
        "turnout_promise_tolerance_turns": summary.tolerance,
        "turnout_promise_holds": float(summary.status != "broken"),
    }


def _open_round(source: Source) -> dict[str, float]:
    opened, turns = source.open_round() or (None, [])
    return {
        "turnout_open_round_seconds": 0.0 if opened is None else opened.elapsed,
        "turnout_open_round_reports": sum(turn.at is not None for turn in turns),
        "turnout_seconds_since_report": seconds_since_report(turns) or 0.0,
    }


def _slots(source: Source, slots: int) -> dict[str, float]:
    running_turns = source.running()
    turns = [turn for _, turn in running_turns]
    ages = [running_turn.elapsed for running_turn, turn in running_turns if turn.kind is None]
    rate = rate_of(source.ledger, RECENT_PER_SLOT * slots)
    return {
        "turnout_slots": slots,
        "turnout_running_turns": len(ages),
        "turnout_oldest_turn_seconds": max(ages, default=0.0),
        "turnout_turns_reported": len(turns) - len(ages),
        "turnout_seconds_since_report": seconds_since_report(turns) or 0.0,
        "turnout_updates_per_second": rate if np.isfinite(rate) else 0.0,
    }


def _writer(source: Source) -> dict[str, float]:
    """Returns the metrics of the process that writes a fleet, as of the last closed round; none for a run."""
    if (found := source.writer()) is None:
        return {}
    figures, snapshot_age = found
    values = {
        "turnout_snapshot_age_rounds": snapshot_age,
        "turnout_refused_reports_total": figures.refused_reports,
        "turnout_commit_seconds_median": figures.commit_seconds_median,
        "turnout_commit_seconds_largest": figures.commit_seconds_largest,
    }
    return {name: value for name, value in values.items() if value is not None}
