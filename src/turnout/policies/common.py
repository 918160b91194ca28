"""What several policies share: observations of clients, data sizes, and weighted sampling without replacement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    as_count,
    as_floats,
    as_number,
    refuse_where,
    require_length,
    smallest,
)
from turnout.kernel.randomness import round_rng
from turnout.kernel.rounds import LOSS, TIMED_OUTCOMES, RoundReport
from turnout.policies.base import CohortPolicy, Memory

#: The share of values that count as they are, and the number of them below which all count the same.
COUNTED_VALUES, FEWEST_VALUES = 0.9, 4


class LastSignal(Memory):
    """The last value of a signal that each client reported, by default of its loss.

    The value is +inf before a client's first turn, and −inf if it had turns but never reported the signal.
    """

    values: FloatArray

    def __init__(self, clients: int, signal: str = LOSS) -> None:
        super().__init__(clients)
        self.signal = signal
        self._remember(values=np.inf)

    @property
    def tried(self) -> BoolArray:
        """The clients that have had a turn."""
        had: BoolArray = self.values < np.inf
        return had

    def guessed(self) -> FloatArray:
        """Returns the last values, with the mean of all reported ones (1 if there is none) for missing ones."""
        reported = self.values[np.isfinite(self.values)]
        guess = float(reported.mean()) if len(reported) else 1.0
        values: FloatArray = np.where(self.values == -np.inf, guess, self.values)
        return values

    def learn_from(self, report: RoundReport) -> None:
        """Stores the values of a report; a client that reported none keeps its earlier value."""
        rows, values = report.clients, report.reported(self.signal)
        if values is not None:
            reported = ~np.isnan(values)
            self.values[rows[reported]] = values[reported]
            rows = rows[~reported]
        self.values[rows[self.values[rows] == np.inf]] = -np.inf


class RelativeSignal(LastSignal):
    """The last value of each client, relative to the usual value: the mean of all last values.

    A value counts as the largest one that counts if it is larger than that, or if the client has reported none, and as
    0 if it is negative. The largest one that counts is exceeded by a tenth of the clients, so that a single client
    cannot change it. Both are computed again when a hundredth of the values are new.
    """

    relative: FloatArray
    usual: float
    largest: float
    reported: int
    fresh: int

    def __init__(self, clients: int, signal: str = LOSS) -> None:
        super().__init__(clients, signal)
        self._remember_shared(usual=0.0, largest=0.0, reported=0, fresh=0)
        self.relative = np.ones(clients)

    def learn_from(self, report: RoundReport) -> None:
        """Stores the values of a report."""
        before = np.isfinite(self.values[report.clients])
        super().learn_from(report)
        self.reported += int((np.isfinite(self.values[report.clients]) & ~before).sum())
        values = report.reported(self.signal)
        self.fresh += 0 if values is None else int((~np.isnan(values)).sum())
        if self.fresh and self.fresh * 100 >= self.reported:
            self._measure()
        else:
            self._relate(report.clients)

    def add(self, count: int) -> None:
        """Appends clients that have reported nothing."""
        super().add(count)
        self._relate(slice(None))

    def forget(self, rows: IntArray) -> None:
        """Removes the values of these clients, from the usual value too."""
        super().forget(rows)
        self.reported = int(np.isfinite(self.values).sum())
        self._measure()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned; if that fails, nothing changes."""
        super().restore(state)
        self._relate(slice(None))

    def _measure(self) -> None:
        values, self.fresh = np.maximum(self.values[np.isfinite(self.values)], 0.0), 0
        self.usual = self.largest = 0.0
        if len(values) >= FEWEST_VALUES:
            position = part_of(COUNTED_VALUES, len(values) - 1)
            self.largest = float(np.partition(values, position)[position])
            self.usual = float(np.minimum(values, self.largest).mean())
        self._relate(slice(None))

    def _relate(self, rows: IntArray | slice) -> None:
        if isinstance(rows, slice):
            self.relative = np.ones(len(self.values))
        if self.usual > 0:
            own = self.values[rows]
            self.relative[rows] = np.where(np.isfinite(own), np.clip(own, 0.0, self.largest), self.largest) / self.usual


class MeanTimes(Memory):
    """The mean time of each client, in seconds, and the longest time of all.

    A client that arrived contributes its time, a late one its deadline until its true time is known; a failure
    contributes nothing.
    """

    totals: FloatArray
    counts: IntArray
    longest: float

    def __init__(self, clients: int) -> None:
        super().__init__(clients)
        self._remember(totals=0.0, counts=0)
        self._remember_shared(longest=0.0)

    @property
    def measured(self) -> BoolArray:
        """The clients with a known time."""
        known: BoolArray = self.counts > 0
        return known

    def means(self) -> FloatArray:
        """Returns the mean seconds of each client, 0 if none are known."""
        return self.totals / np.maximum(self.counts, 1)

    def learn_from(self, report: RoundReport) -> None:
        """Adds the times of a report."""
        late = report.late_arrivals
        if late is not None:
            np.add.at(self.totals, late.clients, late.exchange_times - late.deadlines)
            self.longest = max(self.longest, float(late.exchange_times.max(initial=0.0)))
        timed = report.with_outcome(*TIMED_OUTCOMES)
        rows, times = report.clients[timed], report.exchange_times[timed]
        self.totals[rows] += times
        self.counts[rows] += 1
        self.longest = max(self.longest, float(times.max(initial=0.0)))

    def forget(self, rows: IntArray) -> None:
        """Removes the times of these clients.

        If they have times, the longest time of all may be theirs: it becomes the largest mean time of the others.
        """
        had_times = self.counts[rows].any()
        super().forget(rows)
        if had_times:
            self.longest = float(self.means().max(initial=0.0))


def as_turn_values(values: npt.ArrayLike, clients: int) -> FloatArray:
    """Returns values of turns after checking that there is one for each client, finite and not negative."""
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (clients,):
        raise SettingError(f"turn_values must return shape ({clients},), one value for each client, got {array.shape}")
    refuse_where(
        ~((array >= 0) & (array < np.inf)), "turn_values", array, "must be finite and at least 0", SettingError
    )
    return array


def as_share(field: str, value: object) -> float:
    """Returns a setting after checking that it lies between 0 and 1."""
    return as_number(field, value, SettingError, least=0, most=1)


def part_of(share: float, count: int) -> int:
    """Returns share · count rounded down; rounding errors are ignored, so that 0.29 of 100 is 29."""
    return int(share * count + 1e-9)


class SizedPolicy(CohortPolicy):
    """Selects `cohort_size` clients, and knows the data size of each: `sizes`, or None if all are equal."""

    def __init__(self, clients: int, *, cohort_size: int, sizes: npt.ArrayLike | None, seed: int = 0) -> None:
        super().__init__(clients, cohort_size=cohort_size, seed=seed)
        self._sizes_given = sizes is not None
        self.sizes = per_client_setting("sizes", sizes, self.clients)

    def add(self, count: int) -> None:
        """Appends clients of size 1; refused if `sizes` was given, because theirs are unknown."""
        if self._sizes_given and as_count("count", count, SettingError, least=0):
            raise SettingError(
                f"{self.name} has the data sizes of {self.clients} clients, so {count} more cannot join: build a new "
                "policy with the sizes of all clients, or with sizes=None"
            )
        super().add(count)
        self.sizes = np.append(self.sizes, np.ones(count))


class LossBasedPolicy(SizedPolicy):
    """Selects by the last loss of each client, and keeps no other state."""

    def __init__(self, clients: int, *, cohort_size: int, sizes: npt.ArrayLike | None, seed: int) -> None:
        super().__init__(clients, cohort_size=cohort_size, sizes=sizes, seed=seed)
        self.losses = LastSignal(self.clients)
        self._remember_part("losses", self.losses, self.losses.forget)

    def tell(self, report: RoundReport) -> None:
        """Stores the reported losses."""
        super().tell(report)
        self.losses.learn_from(report)


def per_client_setting(field: str, values: npt.ArrayLike | None, clients: int) -> FloatArray:
    """Returns a setting with one non-negative number per client, not all of them 0; all 1 if it is None."""
    if values is None:
        return np.ones(clients)
    array = np.array(as_floats(field, values, 1, SettingError))
    require_length(field, array, clients, "clients", SettingError)
    refuse_where(array < 0, field, array, "must not be negative", SettingError)
    if not array.any():
        raise SettingError(f"{field} must not all be 0: give one client a positive number, or pass None for equal ones")
    return array


def exponential_keys(seed: int, purpose: str, round: int, clients: int) -> FloatArray:
    """Returns one standard exponential key per client; it does not depend on which clients are available."""
    return round_rng(seed, purpose, round).standard_exponential(clients)


def weighted_sample(log_weights: FloatArray, keys: FloatArray, count: int) -> IntArray:
    """Returns ascending positions of a weighted sample without replacement.

    Uses exponential keys (Efraimidis-Spirakis), so the weights need not be normalised. Entries of weight 0 are
    selected last, at random.

    >>> weighted_sample(np.log([5.0, 1.0, 3.0]), np.array([1.0, 1.0, 0.2]), 2)
    array([0, 2])
    """
    with np.errstate(divide="ignore"):
        log_arrivals = np.log(keys) - log_weights
    weighted = np.flatnonzero(log_weights > -np.inf)
    if count <= len(weighted):
        return smallest(log_arrivals, count)
    weightless = np.flatnonzero(log_weights == -np.inf)
    more = weightless[smallest(keys[weightless], count - len(weighted))]
    return np.sort(np.concatenate([weighted, more]))


def weighted_sample_linear(weights: FloatArray, keys: FloatArray, count: int) -> IntArray:
    """The same as `weighted_sample`, for non-negative weights instead of their logarithms."""
    with np.errstate(divide="ignore"):
        return weighted_sample(np.log(weights), keys, count)
