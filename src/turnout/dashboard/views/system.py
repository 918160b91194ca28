"""System: the file, the timing of rounds, versions; and the metrics for Prometheus."""

from __future__ import annotations

import importlib.metadata
import platform
import sqlite3
import sys
import time
from contextlib import suppress
from typing import Any

import numpy as np

from turnout.dashboard.sources.base import Source
from turnout.dashboard.views.common import queue_of
from turnout.dashboard.views.overview import RECENT_PER_SLOT, outcomes, rate_of
from turnout.dashboard.watch import Watch
from turnout.errors import StoreError
from turnout.kernel.backend import kernel_name
from turnout.live._internals import seconds_since_report
from turnout.version import __version__
from turnout.web.prometheus import labels, promise_metrics


def system(watch: Watch, source: Source) -> dict[str, Any]:
    """Returns the sizes of the file, the timing of rounds, and versions."""
    return {
        "store": {"name": watch.path.name, "kind": watch.kind, "writer": watch.writer, **watch.sizes()},
        "gaps": _gaps(source),
        "versions": versions(),
        "uptime": time.monotonic() - watch.started_at,
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


def metrics(watch: Watch) -> dict[str, dict[str, float]]:
    """Returns the metrics of the newest run or the fleet, by name and labels."""
    sizes, last_error = watch.sizes(), watch.state.last_error
    store = {
        "turnout_up": float(last_error is None),
        "turnout_store_bytes": sizes["bytes"] or 0,
        "turnout_log_bytes": sizes["log_bytes"],
    }
    metrics = {name: {"": value} for name, value in store.items()}
    with suppress(StoreError), watch.locked_source() as source:  # turnout_up reports it
        if source.name:
            own = {"policy": source.policy} | ({} if source.run is None else {"run": str(source.run)})
            progress = source.reading or {"done": 1, "of": 1}
            values = {"turnout_read_ratio": progress["done"] / progress["of"]}
            # Figures of a part of the file would raise alarms, and counters would jump.
            if source.was_read or source.reading is None:
                values |= _values(source)
                if watch.kind == "fleet":
                    values["turnout_scheduler_running"] = watch.writer is not None
                metrics["turnout_outcomes_total"] = {
                    labels(**own, outcome=outcome): count for outcome, count in outcomes(source.ledger).items()
                }
            metrics |= {name: {labels(**own): value} for name, value in values.items()}
    return metrics


def _gaps(source: Source) -> dict[str, Any] | None:
    """Returns how long rounds or turns last and, with rounds, how long the server waits before the next one."""
    if not source.ledger.is_dated:
        return None
    started, finished = (source.ledger.round_column(name) for name in ("started", "finished"))
    if not np.isfinite(finished).any():
        return None
    between = started[1:] - finished[:-1] if source.ledger.slots is None else np.empty(0)
    return {
        "round_median": float(np.nanmedian(finished - started)),
        "between_median": float(np.median(between)) if len(between) else None,
    }


def _values(source: Source) -> dict[str, float]:
    """Returns the metrics of a run or fleet by name; those of which nothing is known are left out."""
    ledger = source.ledger
    seconds = ledger.round_column("seconds")
    seconds = seconds[np.isfinite(seconds)]
    values: dict[str, float] = {
        "turnout_round": ledger.last_round,
        "turnout_clients": ledger.clients,
        "turnout_round_seconds_total": float(seconds.sum()),
    }
    if len(seconds):
        values["turnout_last_round_seconds"] = float(seconds[-1])
    if (least := ledger.least_served()) is not None:
        values["turnout_least_share"] = float(ledger.shares()[least])
    if (queue := queue_of(ledger)) is not None and ledger.clients:
        debts = queue.owed[~ledger.retired]
        values["turnout_worst_debt_turns"] = float(debts.max())
        values["turnout_mean_debt_turns"] = float(debts.mean())
    values |= promise_metrics(ledger.promise_summary())
    values |= _open_round(source) if ledger.slots is None else _slots(source, ledger.slots)
    values |= _writer(source)
    values["turnout_clients_doubted"] = int(ledger.history.suspects().sum())
    return values


def _open_round(source: Source) -> dict[str, float]:
    opened, turns = source.open_round() or (None, [])
    return {
        "turnout_open_round_seconds": 0.0 if opened is None else opened.elapsed,
        **({} if opened is None or opened.deadline is None else {"turnout_deadline_seconds": opened.deadline}),
        "turnout_open_round_reports": sum(turn.at is not None for turn in turns),
        "turnout_seconds_since_report": seconds_since_report(turns) or 0.0,
    }


def _slots(source: Source, slots: int) -> dict[str, float]:
    running_turns = source.running()
    turns = [turn for _, turn in running_turns]
    waiting = [running_turn for running_turn, turn in running_turns if turn.kind is None]
    ages = [running_turn.elapsed for running_turn in waiting]
    oldest = max(waiting, key=lambda running_turn: running_turn.elapsed, default=None)
    rate = rate_of(source.ledger, RECENT_PER_SLOT * slots)
    return {
        "turnout_slots": slots,
        "turnout_running_turns": len(ages),
        "turnout_oldest_turn_seconds": max(ages, default=0.0),
        **({} if oldest is None or oldest.deadline is None else {"turnout_deadline_seconds": oldest.deadline}),
        "turnout_turns_reported": len(turns) - len(ages),
        "turnout_seconds_since_report": seconds_since_report(turns) or 0.0,
        "turnout_updates_per_second": rate if np.isfinite(rate) else 0.0,
    }


def _writer(source: Source) -> dict[str, float]:
    """Returns the metrics of the process that writes a fleet, as of the last closed round; none for a run."""
    if (figures := source.writer()) is None:
        return {}
    values = {
        "turnout_snapshot_age_rounds": figures.snapshot_age,
        "turnout_refused_reports_total": figures.refused_reports,
        "turnout_commit_seconds_median": figures.commit_seconds_median,
        "turnout_commit_seconds_largest": figures.commit_seconds_largest,
    }
    return {name: value for name, value in values.items() if value is not None}
