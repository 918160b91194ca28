"""Statistics over seeds and samples (means, confidence intervals, quantiles), and learning curves of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count
from turnout.kernel.slots.turns import FINISHED
from turnout.lab.columns import RoundColumns

#: The range of accuracies and shares.
UNIT_RANGE = (0.0, 1.0)


class ConfidenceInterval(NamedTuple):
    """A mean and half the width of its confidence interval, which is NaN for a single seed."""

    mean: FloatArray
    half_width: FloatArray


def mean_confidence_interval(values: npt.ArrayLike) -> ConfidenceInterval:
    """Returns the mean over seeds, the first axis, and its 95 % confidence interval by Student's t distribution.

    The half-width is NaN for a single seed.

    >>> mean_confidence_interval([1.0, 2.0, 3.0])
    ConfidenceInterval(mean=array(2.), half_width=array(2.48413771))
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim == 0 or len(numbers) == 0:
        raise SettingError("values must hold one number per seed, and at least one seed")
    seeds, mean = len(numbers), np.asarray(numbers.mean(axis=0))
    if seeds == 1:
        return ConfidenceInterval(mean, np.full_like(mean, np.nan))
    standard_error = numbers.std(axis=0, ddof=1) / math.sqrt(seeds)
    return ConfidenceInterval(mean, np.asarray(student_t(0.95, seeds - 1) * standard_error))


def with_bands(measures: Mapping[str, FloatArray], digits: int | None = None) -> dict[str, float]:
    """Returns the mean of each measure over the seeds, and as `…_band` half the width of its confidence interval.

    Args:
        measures: One value per seed of each measure.
        digits: The number of decimal places, by default all.

    >>> with_bands({"seconds": np.array([1.0, 2.0, 3.0])}, digits=2)
    {'seconds': 2.0, 'seconds_band': 2.48}
    """
    row = {}
    for name, values in measures.items():
        for column, number in zip((name, f"{name}_band"), mean_confidence_interval(values), strict=True):
            row[column] = float(number) if digits is None else round(float(number), digits)
    return row


def prediction_half_width(values: FloatArray) -> float:
    """Returns half the width of the 95 % prediction interval of one more value: t · standard deviation · √(1 + 1/n)."""
    count = len(values)
    return float(student_t(0.95, count - 1) * values.std(ddof=1) * math.sqrt(1 + 1 / count))


def format_interval(
    mean: float | FloatArray,
    half_width: float | FloatArray,
    digits: int,
    *,
    unit: str = "",
    limits: tuple[float, float] = (-math.inf, math.inf),
) -> str:
    """Returns an interval as text: "mean ± half-width", or the mean alone if there is no interval (a single seed).

    An interval that would leave the range of possible values is given by its ends, within that range.

    Args:
        mean: The mean.
        half_width: Half the width of the interval; NaN if there is none.
        digits: The number of decimal places.
        unit: What follows the number, such as " s".
        limits: The range of possible values.

    >>> format_interval(8.25, 0.4, 1, unit=" s"), format_interval(8.25, math.nan, 1, unit=" s")
    ('8.2 ± 0.4 s', '8.2 s')
    >>> format_interval(0.98, 0.05, 2, limits=UNIT_RANGE)
    '0.98 (0.93 to 1.00)'
    """
    middle, half = float(mean), float(half_width)
    if math.isnan(middle):
        return "–"
    text = f"{round(middle, digits) + 0.0:.{digits}f}"  # without the sign of a negative zero
    if math.isnan(half):
        return f"{text}{unit}"
    # Rounded numbers are compared, so that rounding does not make an interval look as if it left the range.
    if (
        round(middle, digits) - round(half, digits) < limits[0]
        or round(middle, digits) + round(half, digits) > limits[1]
    ):
        low, high = max(middle - half, limits[0]), min(middle + half, limits[1])
        return f"{text} ({low:.{digits}f} to {high:.{digits}f}){unit}"
    return f"{text} ± {half:.{digits}f}{unit}"


@lru_cache(maxsize=256)
def student_t(confidence: float, freedom: int) -> float:
    """Returns the two-sided quantile of Student's t distribution: P(|t| ≤ quantile) = `confidence`.

    Bisects the finite series for integer degrees of freedom in the angle arctan(t/√freedom) (Abramowitz and Stegun
    26.7.3 and 26.7.4).

    >>> round(student_t(0.95, 19), 3)
    2.093
    """
    freedom = as_count("freedom", freedom, SettingError)
    if not 0 < confidence < 1:
        raise SettingError(f"confidence must lie between 0 and 1, not {confidence}")
    is_odd = freedom % 2
    steps = 2 * np.arange(1, freedom // 2) + is_odd
    weights = np.concatenate([[1.0], np.cumprod((steps - 1) / steps)])
    powers = 2 * np.arange(len(weights))

    def probability_within(angle: float) -> float:
        series = math.sin(angle) * float(weights @ math.cos(angle) ** powers)
        if not is_odd:
            return series
        return 2 / math.pi * (angle + (math.cos(angle) * series if freedom > 1 else 0.0))

    low, high = 0.0, math.pi / 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if probability_within(middle) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan(high)


Clock = Literal["rounds", "minutes"]


@dataclass(frozen=True, slots=True, eq=False)
class LearningCurve:
    """The measured test accuracies of a run, each with its round and its simulated time in minutes.

    `length` is the number of rounds of the whole run, `duration` its simulated minutes.
    """

    rounds: IntArray
    minutes: FloatArray
    accuracies: FloatArray
    length: int
    duration: float

    @classmethod
    def of(cls, columns: RoundColumns) -> LearningCurve:
        """Returns the learning curve of a stored run in a training world."""
        accuracies = columns.metrics.get("accuracy", np.empty(0))
        rows = np.flatnonzero(~np.isnan(accuracies))
        if not len(rows):
            raise SettingError(
                "this run measured no accuracy: play it in the world 'training', for more rounds or with a lower "
                "evaluate_every"
            )
        if FINISHED in columns.metrics:
            return cls._without_rounds(accuracies, columns.metrics[FINISHED] / 60)
        clock = np.cumsum(columns.durations) / 60
        return cls(columns.rounds[rows], clock[rows], accuracies[rows], int(columns.rounds[-1]), float(clock[-1]))

    @classmethod
    def _without_rounds(cls, accuracies: FloatArray, finished: FloatArray) -> LearningCurve:
        """Returns the curve of turns without rounds, in the order in which they ended, which counts as their round."""
        order = np.argsort(finished, kind="stable")
        rows = np.flatnonzero(~np.isnan(accuracies[order]))
        return cls(rows + 1, finished[order][rows], accuracies[order][rows], len(order), float(finished.max()))

    @property
    def final(self) -> float:
        """The mean accuracy in the last tenth of the rounds, or the last measurement if there is none in it."""
        late = self.accuracies[10 * self.rounds > 9 * self.length]
        return float(late.mean() if len(late) else self.accuracies[-1])

    @property
    def jitter(self) -> float:
        """The standard deviation of the differences between consecutive measurements in the second half of the run."""
        steps = np.diff(self.accuracies[2 * self.rounds > self.length])
        return float(steps.std()) if len(steps) else np.nan

    def reaches(self, target: float) -> bool:
        """Returns whether any measurement reaches the target."""
        return bool((self.accuracies >= target).any())

    def rounds_to(self, target: float) -> float:
        """Returns the first round that reaches the target.

        If there is none, it returns the round of the next measurement after the end, a lower bound.
        """
        if not self.reaches(target):
            # Accuracy is measured in multiples of the first measured round.
            return float(self.length + self.rounds[0])
        return float(self.rounds[self._first_reaching(target)])

    def minutes_to(self, target: float) -> float:
        """Returns the simulated minutes to the target; if it is never reached, those of the whole run."""
        return float(self.minutes[self._first_reaching(target)]) if self.reaches(target) else self.duration

    def mean_until(self, minutes: float) -> float:
        """Returns the time average of the accuracy from the start to `minutes`.

        Between measurements the accuracy is the last one measured; before the first it is 0.
        """
        edges = np.minimum(np.append(self.minutes, np.inf), minutes)
        return float(self.accuracies @ np.diff(edges) / minutes)

    def mean_between(self, start: float, end: float) -> float:
        """Returns the time average of the accuracy from `start` to `end`, in minutes; see `mean_until`."""
        before = start * self.mean_until(start) if start else 0.0
        return (end * self.mean_until(end) - before) / (end - start)

    def at(self, times: FloatArray, clock: Clock) -> FloatArray:
        """Returns the last measurement at each of these times; NaN before the first and after the end of the run."""
        when, end = (self.rounds, self.length) if clock == "rounds" else (self.minutes, self.duration)
        last = np.searchsorted(when, times, side="right") - 1
        return np.where((last >= 0) & (times <= end), self.accuracies[last], np.nan)

    def _first_reaching(self, target: float) -> int:
        return int((self.accuracies >= target).argmax())
