from __future__ import annotations

import math
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.analysis.records import columns_of, histories, owed_by_queues
from turnout.errors import SettingError
from turnout.lab.analysis.metrics import jain_index, lorenz_curve, spread, summarise
from turnout.lab.analysis.promise import owed_after_each_round

# Debts


@given(histories())
@settings(max_examples=60, deadline=None)
def test_debts_equal_those_of_the_queues_exactly(history: dict[str, Any]) -> None:
    columns = columns_of(history["cohorts"], clients=history["clients"], outcomes=history["outcomes"])
    owed = owed_after_each_round(columns, history["rate"])
    assert owed.tobytes() == owed_by_queues(columns, history["rate"]).tobytes()


def test_owed_turns_grow_with_the_rate_and_are_paid_by_a_selection() -> None:
    owed = owed_after_each_round(columns_of([[0], [0], [1]], clients=2), "1/4")
    assert owed.tolist() == [[0.0, 0.25], [0.0, 0.5], [0.25, 0.0]]
    columns = columns_of([[0, 1], [0, 1]], clients=2, outcomes=[["arrived", "late"], ["failed", "arrived"]])
    assert owed_after_each_round(columns, 0.5).tolist() == [[0, 0], [0, 0]]


# Evenness

turns_of_clients = st.lists(st.integers(0, 10**6), min_size=1, max_size=40)


@given(turns_of_clients)
def test_jains_index_lies_between_one_over_n_and_one(turns: list[int]) -> None:
    index = jain_index(turns)
    assert 1 / len(turns) <= index <= 1
    if any(turns):
        squares = Fraction(sum(turns) ** 2, len(turns) * sum(count**2 for count in turns))
        assert index == pytest.approx(float(squares), rel=1e-12)


@given(st.integers(1, 50), st.floats(1e-300, 1e300))
def test_jains_index_is_one_for_equal_turns_and_one_over_n_for_a_single_client(clients: int, turns: float) -> None:
    assert jain_index([turns] * clients) == pytest.approx(1.0, rel=1e-12)
    assert jain_index([turns] + [0.0] * (clients - 1)) == 1 / clients


def test_the_evenness_of_turns_has_its_limits() -> None:
    assert jain_index([0, 0, 0]) == 1.0
    assert spread([0, 0, 0]) == 0.0
    assert lorenz_curve([0, 0]).tolist() == [[0, 0], [0.5, 0.5], [1, 1]]
    assert lorenz_curve([5, 1, 2, 0])[:, 1].tolist() == [0.0, 0.0, 1 / 8, 3 / 8, 1.0]
    assert spread([2, 4, 4, 4, 5, 5, 7, 9]) == 2.0
    for invalid in ([], [1, -1]):
        with pytest.raises(SettingError, match="turns must be"):
            jain_index(invalid)


@given(turns_of_clients)
def test_the_lorenz_curve_is_convex_from_corner_to_corner(turns: list[int]) -> None:
    curve = lorenz_curve(turns)
    assert curve.shape == (len(turns) + 1, 2)
    assert curve[0].tolist() == [0.0, 0.0]
    assert curve[-1].tolist() == [1.0, 1.0]
    steps = np.diff(curve[:, 1])
    assert (steps >= 0).all()
    assert (np.diff(steps) >= -1e-12).all()
    assert (curve[:, 1] <= curve[:, 0] + 1e-12).all()


# The summary


def test_the_summary_of_a_small_run_matches_a_manual_computation() -> None:
    columns = columns_of([[0, 1], [0], [], [0]], clients=3, times=[[1.0, 3.0], [5.0], [], [2.0]])
    assert asdict(summarise(columns, guaranteed_rate="1/4")) == pytest.approx(
        {
            "rounds": 4,
            "mean_round": 2.5,
            "p95_round": 4.7,  # interpolated: 85 % between 3 and 5
            "total_time": 10.0,
            "mean_cohort": 1.0,
            "least_share": 0.0,
            "jain": 16 / 30,
            "spread_of_turns": math.sqrt(14 / 9),
            "worst_debt": 1.0,
            "mean_debt": (0 + 0.75 + 1) / 3,
            "largest_shortfall": 1.0,
            "shortfall_at_end": 1.0,
            "share_of": "of all rounds",
        }
    )
