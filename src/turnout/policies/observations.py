"""What reports tell of the clients, kept as arrays: their last losses and their mean times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError, StateError
from turnout.kernel.arrays import BoolArray, FloatArray, as_number, load_array, saved
from turnout.kernel.rounds import TIMED_OUTCOMES, RoundReport


class LastLosses:
    """The loss each client reported last: +inf before its first turn, −inf where it had turns but told none.

    A report without `losses` tells none of anyone.
    """

    def __init__(self, clients: int) -> None:
        self.values: FloatArray = np.full(clients, np.inf)

    @property
    def tried(self) -> BoolArray:
        """Who has had a turn."""
        had: BoolArray = self.values < np.inf
        return had

    def guessed(self) -> FloatArray:
        """The last losses, where whoever told none counts with the mean of the others, or 1 if nobody told any."""
        told = self.values[np.isfinite(self.values)]
        guess = float(told.mean()) if len(told) else 1.0
        losses: FloatArray = np.where(self.values == -np.inf, guess, self.values)
        return losses

    def learn_from(self, report: RoundReport) -> None:
        """Take in what the chosen told; a client that told nothing keeps what it told before."""
        rows = report.clients
        if report.losses is not None:
            told = ~np.isnan(report.losses)
            self.values[rows[told]] = report.losses[told]
            rows = rows[~told]
        self.values[rows[self.values[rows] == np.inf]] = -np.inf

    def add(self, count: int) -> None:
        """New clients have had no turn."""
        self.values = append_rows(self.values, count, np.inf)

    def state(self) -> dict[str, Any]:
        """The losses."""
        return {"losses": self.values.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        self.values = load_array(state, "losses", self.values)


class MeanTimes:
    """How long each client took on average, in seconds.

    Who arrived teaches its time, who was late its deadline until the truth is known; a failure teaches nothing.
    """

    def __init__(self, clients: int) -> None:
        self.totals: FloatArray = np.zeros(clients)
        self.counts = np.zeros(clients, dtype=np.int64)
        self.longest = 0.0

    @property
    def measured(self) -> BoolArray:
        """Whose time is known."""
        known: BoolArray = self.counts > 0
        return known

    def means(self) -> FloatArray:
        """Mean seconds, 0 where none are known."""
        return self.totals / np.maximum(self.counts, 1)

    def learn_from(self, report: RoundReport) -> None:
        """Take in a round's times."""
        late = report.late_arrivals
        if late is not None:
            np.add.at(self.totals, late.clients, late.exchange_times - late.deadlines)
            self.longest = max(self.longest, float(late.exchange_times.max(initial=0.0)))
        teaches = report.with_outcome(*TIMED_OUTCOMES)
        rows, times = report.clients[teaches], report.exchange_times[teaches]
        self.totals[rows] += times
        self.counts[rows] += 1
        self.longest = max(self.longest, float(times.max(initial=0.0)))

    def add(self, count: int) -> None:
        """New clients have no times."""
        self.totals, self.counts = append_rows(self.totals, count, 0.0), append_rows(self.counts, count, 0)

    def state(self) -> dict[str, Any]:
        """Sums, counts and the longest time of all."""
        return {"totals": self.totals.copy(), "counts": self.counts.copy(), "longest": self.longest}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        totals, counts = load_array(state, "totals", self.totals), load_array(state, "counts", self.counts)
        self.longest = load_number(state, "longest")
        self.totals, self.counts = totals, counts


def as_share(field: str, value: object) -> float:
    """A setting between 0 and 1."""
    return as_number(field, value, SettingError, least=0, most=1)


def part_of(share: float, count: int) -> int:
    """The whole part of share · count, where 0.29 of 100 is 29."""
    return int(share * count + 1e-9)


def append_rows(array: npt.NDArray[Any], count: int, fresh: Any) -> Any:
    """`array` with `count` entries more for clients that join."""
    return np.concatenate([array, np.full(count, fresh, dtype=array.dtype)])


def load_number(state: Mapping[str, Any], key: str) -> float:
    """A saved number."""
    value = np.asarray(saved(state, key))
    if value.ndim or value.dtype.kind not in "biuf":
        raise StateError(f"the saved {key!r} must be one number, not {state[key]!r}")
    return float(value)
