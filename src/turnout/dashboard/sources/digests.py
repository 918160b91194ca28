"""Short summaries of runs, small enough to compare many runs at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from turnout.analysis.metrics import jain_index, owed_units
from turnout.errors import TurnoutError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.policies.registry import guarantee_of
from turnout.store import RoundColumns, RunInfo, RunStore

#: Debts are recomputed only for runs with at most this product of clients and rounds.
MAX_DEBT_CELLS = 10_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """Summary of a run: durations of its rounds, turns of its clients, and metrics (rounds and values by name).

    `worst_debt` is the largest debt after the last round, computed as in the paper for the reference rate of the store.
    """

    rounds: int
    seconds: FloatArray
    turns: IntArray
    metrics: dict[str, tuple[IntArray, FloatArray]]
    worst_debt: float | None

    @property
    def figures(self) -> dict[str, float | None]:
        """The scalar figures of the comparison table."""
        return {
            "mean_round": float(self.seconds.mean()),
            "p95_round": float(np.percentile(self.seconds, 95)),
            "total_time": float(self.seconds.sum()),
            "least_share": int(self.turns.min()) / self.rounds,
            "jain": jain_index(self.turns),
            "worst_debt": self.worst_debt,
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


def _make_digest(columns: RoundColumns, reference_rate: float | None) -> Digest:
    worst_debt = None
    if reference_rate is not None and len(columns) * columns.clients <= MAX_DEBT_CELLS:
        try:
            units, units_per_turn = owed_units(columns, reference_rate)
            worst_debt = int(units[-1].max()) / units_per_turn
        except TurnoutError:  # the record lacks data that the computation needs
            worst_debt = None
    metrics: dict[str, Any] = {}
    for name, values in columns.metrics.items():
        known = np.isfinite(values)
        if (absent := columns.absent.get(f"metrics.{name}")) is not None:
            known &= ~absent
        if known.any():
            metrics[name] = (columns.rounds[known], values[known])
    return Digest(len(columns), columns.durations, columns.turns, metrics, worst_debt)
