"""Runs in a few numbers each, so that many of them can be held against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from turnout.analysis.metrics import jain_index, owed_units
from turnout.errors import TurnoutError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.kernel.fairness import DEFAULT_RATE
from turnout.store import RoundColumns, RunInfo, RunStore

#: Debts are counted again only where clients × rounds are at most this.
LARGEST = 10_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """A run: how long each round lasted, how often each client was chosen, and what was measured after which rounds.

    `worst_debt`: after the last round, as the paper counts it, against the rate the runs of this store are held to.
    """

    rounds: int
    seconds: FloatArray
    turns: IntArray
    metrics: dict[str, tuple[IntArray, FloatArray]]
    worst_debt: float | None

    @property
    def figures(self) -> dict[str, float | None]:
        """What a table shows."""
        return {
            "mean_round": float(self.seconds.mean()),
            "p95_round": float(np.percentile(self.seconds, 95)),
            "total_time": float(self.seconds.sum()),
            "least_share": int(self.turns.min()) / self.rounds,
            "jain": jain_index(self.turns),
            "worst_debt": self.worst_debt,
            "accuracy": None if "accuracy" not in self.metrics else float(self.metrics["accuracy"][1][-1]),
        }


class Digests:
    """Those of a store, made when they are asked for and kept as long as the run does not grow."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[float | None, Digest]] = {}

    def of(self, store: RunStore, info: RunInfo, reference_rate: float | None) -> Digest:
        """The digest of a run with at least one round."""
        rate, found = self._kept.get(info.id, (None, None))
        if found is None or found.rounds != info.rounds or rate != reference_rate:
            found = _digest(store.columns(info.id), reference_rate)
            self._kept[info.id] = (reference_rate, found)
        return found


def yardstick_of(infos: Iterable[RunInfo]) -> float | None:
    """The rate that most runs promise to everyone, to hold all of them against."""
    rates = Counter(rate for info in infos if (rate := _promised(info)) is not None)
    return rates.most_common(1)[0][0] if rates else None


def _promised(info: RunInfo) -> float | None:
    settings = info.plan.get("settings")
    if not isinstance(settings, Mapping):
        settings = {}
    told = settings.get(
        "guaranteed_rate", DEFAULT_RATE if info.plan.get("policy") in ("rbcsf", "fair-oracle") else None
    )
    try:
        return float(Fraction(told)) if isinstance(told, str | int | float) else None
    except (ValueError, ZeroDivisionError):
        return None


def _digest(columns: RoundColumns, reference_rate: float | None) -> Digest:
    worst = None
    if reference_rate is not None and len(columns) * columns.clients <= LARGEST:
        try:
            units, a_turn = owed_units(columns, reference_rate)
            worst = int(units[-1].max()) / a_turn
        except TurnoutError:  # the debts of a run that was recorded without them are not known
            worst = None
    metrics: dict[str, Any] = {}
    for name, values in columns.metrics.items():
        there = np.isfinite(values)
        if (gone := columns.absent.get(f"metrics.{name}")) is not None:
            there &= ~gone
        if there.any():
            metrics[name] = (columns.rounds[there], values[there])
    return Digest(len(columns), columns.durations, columns.turns, metrics, worst)
