"""The table of all runs of a store: what was played, with which settings, and the figures of each run."""

from __future__ import annotations

import time
from typing import Any

from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.run import describe_run, given_true_times
from turnout.dashboard.views.common import about, json_number
from turnout.dashboard.watch import LISTED_RUNS, Watch
from turnout.lab.runs.info import RunInfo

#: How long one request may compute figures of runs; the next request continues.
FIGURES_SECONDS = 0.5


def runs(watch: Watch, source: Source) -> dict[str, Any]:
    """Returns the newest runs with their settings and figures; `pending` counts runs without figures so far."""
    listed = watch.runs()
    end = time.monotonic() + FIGURES_SECONDS
    rows: list[dict[str, Any]] = []
    pending = 0
    for info in listed[:LISTED_RUNS] if watch.kind == "runs" else []:
        figures = None
        if info.rounds and (watch.has_digest(info) or time.monotonic() < end):
            figures = {name: json_number(value) for name, value in watch.digest(info).figures.items()}
        elif info.rounds:
            pending += 1
        rows.append({**_row(info), "figures": figures})
    return {"about": about(watch, source), "rows": rows, "total": len(listed), "pending": pending}


def _row(info: RunInfo) -> dict[str, Any]:
    plan = info.plan
    settings = {**_texts(plan.get("world_settings")), **_texts(plan.get("settings"))}
    if plan.get("concurrency") is not None:
        settings["concurrency"] = str(plan["concurrency"])
    return {**describe_run(info), "settings": settings, "true_times": given_true_times(info)}


def _texts(settings: Any) -> dict[str, str]:
    """Returns settings as text; plans of other programs may contain anything."""
    if not isinstance(settings, dict):
        return {}
    return {str(name): f"{value:g}" if isinstance(value, float) else str(value) for name, value in settings.items()}
