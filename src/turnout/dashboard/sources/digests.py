"""Short summaries of runs, small enough to compare many runs at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from turnout.analysis.metrics import jain_index
from turnout.errors import TurnoutError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.policies.registry import guarantee_of
from turnout.store import RoundColumns, RunInfo, RunStore


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """Summary of a run: durations of its rounds, turns of its clients, and metrics (rounds and values by name).

    `shortfall` is how far any client was ever behind the reference rate of the store, of all rounds, in turns.
    """

    rounds: int
    seconds: FloatArray
    turns: IntArray
    metrics: dict[str, tuple[IntArray, FloatArray]]
    shortfall: float | None

    @property
    def figures(self) -> dict[str, float | None]:
        """The scalar figures of the comparison table."""
        return {
            "mean_round": float(self.seconds.mean()),
            "p95_round": float(np.percentile(self.seconds, 95)),
            "total_time": float(self.seconds.sum()),
            "least_share": int(self.turns.min()) / self.rounds,
            "jain": jain_index(self.turns),
            "shortfall": self.shortfall,
            "accuracy": None if "accuracy" not in self.metrics else float(self.metrics["accuracy"][1][-1]),
        }


class DigestCache:
    """Digests of the runs of a store, computed on demand and cached until the run has more rounds."""

    def __init__(self) -> None:
        self._cache: dict[int, tuple[float | None, Digest]] = {}

    def get(self, store: RunStore, info: RunInfo, reference_rate: float | None) -> Digest:
        """Returns the digest of a run that has at least one round."""
        rate, digest = self._cache.get(info.id, (None, None))
        if digest is None or digest.rounds != info.rounds or rate != reference_rate:
            digest = _make_digest(store.columns(info.id), reference_rate)
            self._cache[info.id] = (reference_rate, digest)
        return digest


def reference_rate_of(infos: Iterable[RunInfo]) -> float | None:
    """Returns the guaranteed rate that most runs have in common; debts of all runs are computed for this rate."""
    rates = Counter(rate for info in infos if (rate := _guaranteed_rate(info)) is not None)
    return rates.most_common(1)[0][0] if rates else None


def _guaranteed_rate(info: RunInfo) -> float | None:
    """Returns the common rate that a run guarantees; None if there is none, or its policy cannot be built here."""
    try:
        guarantee = guarantee_of(str(info.plan["policy"]), info.clients, dict(info.plan.get("settings") or {}))
    except (TurnoutError, LookupError, TypeError, ValueError):
        return None
    rate = None if guarantee is None else guarantee.rate
    return float(Fraction(rate)) if isinstance(rate, str | int | float) else None


def largest_shortfall(columns: RoundColumns, rate: float) -> float:
    """Returns how many turns any client was ever behind `rate` of all rounds, after any round; at least 0.

    A client is furthest behind before one of its turns or at the end, so only these moments are compared.
    """
    rounds, clients = len(columns), columns.chosen
    index = np.repeat(np.arange(rounds), np.diff(columns.starts))  # the rounds played before each turn
    order = np.argsort(clients, kind="stable")
    turns = columns.turns
    earlier = np.arange(len(order)) - np.repeat(np.cumsum(turns) - turns, turns)  # the client's turns before this one
    before = float((rate * index[order] - earlier).max(initial=0.0))
    return max(before, rate * rounds - int(turns.min()), 0.0)


def _make_digest(columns: RoundColumns, reference_rate: float | None) -> Digest:
    shortfall = None if reference_rate is None else largest_shortfall(columns, reference_rate)
    metrics: dict[str, Any] = {}
    for name, values in columns.metrics.items():
        known = np.isfinite(values)
        if (absent := columns.absent.get(f"metrics.{name}")) is not None:
            known &= ~absent
        if known.any():
            metrics[name] = (columns.rounds[known], values[known])
    return Digest(len(columns), columns.durations, columns.turns, metrics, shortfall)
