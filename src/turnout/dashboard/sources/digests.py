"""Short summaries of runs, small enough to compare many runs at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from turnout.dashboard.sources.ledger import CLOCKS
from turnout.errors import TurnoutError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.kernel.slots.turns import FINISHED
from turnout.lab.analysis.metrics import jain_index
from turnout.lab.analysis.slots import SlotFigures, slot_figures, turn_clocks
from turnout.lab.columns import RoundColumns
from turnout.lab.runs.info import RunInfo
from turnout.lab.runs.plans import slot_defaults
from turnout.lab.runs.store import RunStore
from turnout.policies.registry import guarantee_of, with_defaults


@dataclass(frozen=True, slots=True, eq=False)
class Digest:
    """Summary of a run: durations of its rounds, turns of its clients, and metrics (rounds and values by name).

    Without rounds, a decision counts as a round that lasts until the next one, and metrics are ordered by the end of
    the turns: their rounds are the numbers of turns that had ended. `shortfall` is how far any client was ever behind
    the reference rate of the store, of all rounds, in turns. `clock` is when each round, or turn in that order, ended.
    """

    rounds: int
    seconds: FloatArray
    turns: IntArray
    metrics: dict[str, tuple[IntArray, FloatArray]]
    shortfall: float | None
    clock: FloatArray
    slots: SlotFigures | None = None

    @property
    def staleness(self) -> float | None:
        """The mean staleness of updates, in versions if these are recorded, else in updates; None with rounds."""
        if self.slots is None:
            return None
        return float(self.metrics["staleness"][1].mean()) if "staleness" in self.metrics else self.slots.mean_staleness

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
            "rate": None if self.slots is None else self.slots.updates_per_second,
            "mean_turn": None if self.slots is None else self.slots.mean_turn,
            "staleness": self.staleness,
        }


class DigestCache:
    """Digests of the runs of a store, computed on demand and cached until the run has more rounds."""

    def __init__(self) -> None:
        self._cache: dict[int, tuple[float | None, Digest]] = {}

    def has(self, info: RunInfo) -> bool:
        """Returns whether the digest of a run is cached with all its rounds."""
        cached = self._cache.get(info.id)
        return cached is not None and cached[1].rounds == info.rounds

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
        policy, settings = str(info.plan["policy"]), dict(info.plan.get("settings") or {})
        if info.plan.get("concurrency") is not None:
            settings = with_defaults(policy, settings, slot_defaults(info.clients))
        guarantee = guarantee_of(policy, info.clients, settings)
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
    is_timed = FINISHED in columns.metrics
    order = np.argsort(columns.metrics[FINISHED], kind="stable") if is_timed else np.arange(len(columns))
    metrics: dict[str, Any] = {}
    for name, values in columns.metrics.items():
        known = np.isfinite(values)
        if (absent := columns.absent.get(f"metrics.{name}")) is not None:
            known &= ~absent
        if known.any() and name not in CLOCKS:
            known = known[order]
            metrics[name] = (columns.rounds[known], values[order][known])
    if not is_timed:
        durations = columns.durations
        return Digest(len(columns), durations, columns.turns, metrics, shortfall, np.cumsum(durations))
    started, finished = turn_clocks(columns)
    between = np.diff(started, prepend=0.0)
    return Digest(len(columns), between, columns.turns, metrics, shortfall, finished[order], slot_figures(columns))
