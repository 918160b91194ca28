from __future__ import annotations

import math
from decimal import Decimal
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray
from turnout.lab.analysis.statistics import UNIT_RANGE, format_interval, mean_confidence_interval, student_t


@pytest.mark.parametrize(
    ("confidence", "freedom", "quantile"),
    [
        (0.95, 1, 12.706),
        (0.95, 4, 2.776),
        (0.95, 19, 2.093),
        (0.95, 100_000, 1.960),
        (0.99, 10, 3.169),
        (0.90, 5, 2.015),
        (0.999, 30, 3.646),
    ],
)
def test_quantiles_match_published_tables(confidence: float, freedom: int, quantile: float) -> None:
    assert student_t(confidence, freedom) == pytest.approx(quantile, abs=5e-4)


@pytest.mark.parametrize("confidence", [0.0, 1.0, math.nan])
def test_confidence_must_lie_between_zero_and_one(confidence: float) -> None:
    with pytest.raises(SettingError, match="confidence must lie between 0 and 1"):
        student_t(confidence, 1)


def test_the_interval_matches_a_manual_computation() -> None:
    mean, half_width = mean_confidence_interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half_width == pytest.approx(4.30265 / math.sqrt(3), abs=1e-5)
    values = np.arange(12.0).reshape(3, 4) ** 2
    columns = mean_confidence_interval(values)
    assert columns.mean.shape == (4,)
    assert columns.half_width[1] == pytest.approx(mean_confidence_interval(values[:, 1]).half_width)
    assert student_t(0.95, 200_000) == pytest.approx(NormalDist().inv_cdf(0.975), abs=2e-5)


def test_one_seed_has_no_interval_and_no_seed_is_rejected() -> None:
    mean, half_width = mean_confidence_interval([[1.0, 5.0]])
    assert mean.tolist() == [1.0, 5.0]
    assert np.isnan(half_width).all()
    for values in (np.empty((0, 3)), 3.0):
        with pytest.raises(SettingError, match="at least one seed"):
            mean_confidence_interval(values)


def test_the_interval_covers_the_true_mean_at_the_confidence_level() -> None:
    draws: FloatArray = np.random.default_rng(7).normal(3.0, 2.0, (5, 20_000))
    mean, half_width = mean_confidence_interval(draws)
    assert np.mean(np.abs(mean - 3.0) <= half_width) == pytest.approx(0.95, abs=0.01)


@given(st.floats(0, 1), st.floats(0, 2), st.integers(0, 4))
def test_a_printed_interval_of_shares_never_leaves_the_range(mean: float, half_width: float, digits: int) -> None:
    text = format_interval(mean, half_width, digits, limits=UNIT_RANGE)
    if " to " in text:
        low, high = text.partition("(")[2].rstrip(")").split(" to ")
    else:
        middle, width = (Decimal(number) for number in text.split(" ± "))
        low, high = str(middle - width), str(middle + width)
    assert 0 <= Decimal(low) <= Decimal(high) <= 1


def test_one_seed_prints_no_interval() -> None:
    mean, half_width = mean_confidence_interval([3.456])
    assert format_interval(mean, half_width, 2, unit=" s") == "3.46 s"
    assert format_interval(0.5, 0.25, 2) == "0.50 ± 0.25"
    assert format_interval(-1.0, 0.5, 1) == "-1.0 ± 0.5"
    assert format_interval(-0.04, 0.25, 1) == "0.0 ± 0.2"
    assert format_interval(math.nan, math.nan, 2) == "–"
