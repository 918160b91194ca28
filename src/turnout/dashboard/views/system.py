"""System: the file, the reading of it, the answers, and what runs here; and the same for machines."""

from __future__ import annotations

import importlib.metadata
import platform
import resource
import sqlite3
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from turnout.dashboard.sources.base import Source
from turnout.dashboard.views.common import about, certificate, number, owed
from turnout.dashboard.views.overview import outcomes
from turnout.dashboard.watch import Watch
from turnout.kernel.backend import kernel_name
from turnout.version import __version__

REMEMBERED = 500


class Latencies:
    """How long the newest answers of each route took, in seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._newest: dict[str, deque[float]] = {}
        self._counts: dict[str, int] = {}

    def add(self, route: str, seconds: float) -> None:
        """One answer."""
        with self._lock:
            self._newest.setdefault(route, deque(maxlen=REMEMBERED)).append(seconds)
            self._counts[route] = self._counts.get(route, 0) + 1

    def told(self) -> list[dict[str, Any]]:
        """By route."""
        with self._lock:
            newest = {route: np.array(times) for route, times in sorted(self._newest.items())}
            return [
                {
                    "route": route,
                    "count": self._counts[route],
                    "median_ms": number(1e3 * float(np.median(times))),
                    "p95_ms": number(1e3 * float(np.percentile(times, 95))),
                }
                for route, times in newest.items()
            ]


def system(watch: Watch, source: Source | None, *, latencies: Latencies) -> dict[str, Any]:
    """Latency, sizes, versions."""
    return {
        "about": about(watch, source),
        "store": {"name": watch.path.name, "kind": watch.kind, "writer": watch.writer, **watch.sizes()},
        "reading": {
            "rounds": watch.rounds_read,
            "seconds": number(watch.seconds_read),
            "last_ms": number(watch.last_ms),
        },
        "gaps": _gaps(source),
        "requests": latencies.told(),
        "versions": versions(),
        "uptime": number(time.monotonic() - watch.begun),
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
    }


def versions() -> dict[str, str]:
    """Of all that takes part."""
    found = {"turnout": __version__, "kernel": kernel_name(), "python": platform.python_version()}
    found |= {name: importlib.metadata.version(name) for name in ("numpy", "fastapi", "uvicorn", "plotly")}
    return {**found, "sqlite": sqlite3.sqlite_version, "system": f"{platform.system()} {platform.machine()}"}


def metrics(watch: Watch, source: Source | None) -> str:
    """Where things stand, as Prometheus reads it."""
    return "".join(f"{line}\n" for line in _lines(watch, source))


def _gaps(source: Source | None) -> dict[str, Any] | None:
    if source is None:
        return None
    lasted = source.ledger.round_column("closed") - source.ledger.round_column("opened")
    between = source.ledger.round_column("between")
    if not np.isfinite(lasted).any():
        return None
    known = between[np.isfinite(between)]
    return {
        "round_median": number(float(np.nanmedian(lasted))),
        "between_median": number(float(np.median(known))) if len(known) else None,
    }


def _lines(watch: Watch, source: Source | None) -> Iterator[str]:
    yield from _one("turnout_up", "Whether the store can be read.", "gauge", {"": float(watch.trouble is None)})
    sizes = watch.sizes()
    yield from _one("turnout_store_bytes", "Size of the store's file.", "gauge", {"": float(sizes["bytes"] or 0)})
    if source is None:
        return
    ledger = source.ledger
    labels = f'{{policy="{_escaped(source.policy)}"' + ("" if source.run is None else f',run="{source.run}"') + "}"
    seconds = ledger.round_column("seconds")
    done, of = source.reading or (1, 1)
    told: dict[str, tuple[str, str, float]] = {
        "turnout_read_ratio": (
            "Share of the record that has been read; below 1 the rest is incomplete.",
            "gauge",
            done / of,
        ),
        "turnout_round": ("The newest round that is closed.", "gauge", float(ledger.last)),
        "turnout_clients": ("Clients that ever joined.", "gauge", float(ledger.clients)),
        "turnout_rounds_total": ("Rounds that were closed.", "counter", float(len(ledger))),
        "turnout_round_seconds_total": ("Seconds of all rounds.", "counter", float(seconds.sum())),
    }
    if len(seconds):
        told["turnout_last_round_seconds"] = ("Seconds of the newest round.", "gauge", float(seconds[-1]))
    shares = ledger.shares()[~ledger.retired]
    if np.isfinite(shares).any():
        told["turnout_least_share"] = ("The least share of turns of a client.", "gauge", float(np.nanmin(shares)))
    if ledger.queues is not None and ledger.clients:
        debts = owed(ledger)[~ledger.retired]
        told["turnout_worst_debt_turns"] = ("Turns owed to who is owed most.", "gauge", float(debts.max()))
        told["turnout_mean_debt_turns"] = ("Turns owed, in the mean.", "gauge", float(debts.mean()))
        holds = certificate(ledger)["holds"]
        told["turnout_promise_holds"] = ("1 if the promise holds for everyone.", "gauge", float(bool(holds)))
    told["turnout_clients_doubted"] = (
        "Clients whose context no longer explains their times.",
        "gauge",
        float(ledger.doubted().sum()),
    )
    for name, (words, kind, value) in told.items():
        yield from _one(name, words, kind, {labels: value})
    by_kind = {f'{labels[:-1]},outcome="{word}"}}': float(count) for word, count in outcomes(ledger).items()}
    yield from _one("turnout_outcomes_total", "What became of the invited.", "counter", by_kind)


def _one(name: str, words: str, kind: str, values: dict[str, float]) -> Iterator[str]:
    yield f"# HELP {name} {words}"
    yield f"# TYPE {name} {kind}"
    for labels, value in values.items():
        yield (
            f"{name}{labels} {value:g}"
            if float(value).is_integer() and abs(value) < 1e6
            else f"{name}{labels} {value!r}"
        )


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
