"""Statistics over seeds and samples: means, confidence intervals and quantiles."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, as_count


class ConfidenceInterval(NamedTuple):
    """A mean and half the width of its confidence interval."""

    mean: FloatArray
    half_width: FloatArray


def mean_confidence_interval(values: npt.ArrayLike, axis: int = 0, confidence: float = 0.95) -> ConfidenceInterval:
    """Returns the mean over seeds and its confidence interval by Student's t distribution.

    The half-width is NaN for a single seed.

    >>> mean_confidence_interval([1.0, 2.0, 3.0])
    ConfidenceInterval(mean=array(2.), half_width=array(2.48413771))
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim == 0 or numbers.shape[axis] == 0:
        raise SettingError("values must hold one number per seed, and at least one seed")
    seeds = numbers.shape[axis]
    mean = np.asarray(numbers.mean(axis=axis))
    if seeds == 1:
        return ConfidenceInterval(mean, np.full_like(mean, np.nan))
    standard_error = numbers.std(axis=axis, ddof=1) / math.sqrt(seeds)
    return ConfidenceInterval(mean, np.asarray(student_t(confidence, seeds - 1) * standard_error))


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


def mean_or_nan(values: npt.NDArray[np.float64 | np.bool_]) -> float:
    """Returns the mean, or NaN for an empty array."""
    return float(values.mean()) if values.size else math.nan
