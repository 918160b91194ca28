from __future__ import annotations

import math

import numpy as np
import pytest

from turnout.errors import SettingError
from turnout.experiments.paper.learning_curves import LearningCurve, finals, measured, time_to
from turnout.store import RoundColumns


def curve(*accuracies: float, every: int = 5, minutes: float = 1.0) -> LearningCurve:
    """A run measured every so many rounds, each so many minutes long."""
    rounds = every * np.arange(1, len(accuracies) + 1)
    clock = np.array(rounds * minutes, dtype=np.float64)
    return LearningCurve(rounds, clock, np.array(accuracies), int(rounds[-1]), float(clock[-1]))


def columns(times: list[float], accuracies: list[float] | None) -> RoundColumns:
    """One client a round, who takes so many seconds."""
    count = len(times)
    return RoundColumns(
        clients=1,
        rounds=np.arange(1, count + 1),
        starts=np.arange(count + 1),
        chosen=np.zeros(count, dtype=np.int64),
        contexts=np.empty((count, 0)),
        exchange_times=np.array(times),
        metrics={} if accuracies is None else {"accuracy": np.array(accuracies)},
    )


def test_a_curve_has_the_rounds_that_were_measured_and_the_minutes_until_then() -> None:
    made = LearningCurve.of(columns([60, 30, 30, 60, 120], [math.nan, 0.2, math.nan, 0.5, math.nan]))
    assert made.rounds.tolist() == [2, 4]
    assert made.minutes.tolist() == [1.5, 3.0]
    assert made.accuracies.tolist() == [0.2, 0.5]
    assert (made.length, made.duration) == (5, 5.0)


@pytest.mark.parametrize("accuracies", [None, [math.nan, math.nan]])
def test_a_run_without_any_accuracy_is_refused(accuracies: list[float] | None) -> None:
    with pytest.raises(SettingError, match="measured no accuracy"):
        LearningCurve.of(columns([60, 60], accuracies))


def test_the_final_accuracy_is_the_mean_of_the_last_tenth() -> None:
    assert curve(*np.linspace(0, 0.7, 18), 0.8, 0.9).final == pytest.approx(0.85)


def test_where_the_last_tenth_was_not_measured_the_last_measurement_counts() -> None:
    made = LearningCurve(np.array([5, 10]), np.array([5.0, 10.0]), np.array([0.1, 0.3]), 12, 12.0)
    assert made.final == 0.3


def test_jitter_is_how_steps_vary_in_the_second_half() -> None:
    assert curve(0.1, 0.9, 0.0, 0.5, 0.6, 0.7, 0.8, 0.9).jitter == pytest.approx(0.0)
    assert curve(0, 0, 0, 0, 0.5, 0.7, 0.5, 0.7).jitter == pytest.approx(np.std([0.2, -0.2, 0.2]))
    assert math.isnan(curve(0.5).jitter)


def test_a_target_is_reached_at_the_first_measurement_at_it_or_above() -> None:
    made = curve(0.2, 0.6, 0.4, 0.8, minutes=2.0)
    assert made.rounds_to(0.6) == 10
    assert made.minutes_to(0.6) == 20
    assert made.rounds_to(0.61) == 20


def test_a_target_never_reached_counts_as_the_next_measurement_and_as_all_the_time() -> None:
    made = curve(0.2, 0.6, 0.4, 0.8, minutes=2.0)
    assert not made.reaches(0.81)
    assert made.rounds_to(0.81) == 25
    assert made.minutes_to(0.81) == 40


def test_runs_that_never_reach_a_target_are_counted() -> None:
    group = time_to("a", [curve(0.2, 0.6), curve(0.2, 0.3)], 0.5, "rounds")
    assert group.values.tolist() == [10, 15]
    assert group.told.endswith("; 1 of 2 runs never")
    assert "never" not in time_to("a", [curve(0.2, 0.6)], 0.5, "minutes").told


def test_one_number_a_seed() -> None:
    runs = [curve(0.2, 0.6), curve(0.2, 0.3)]
    assert finals("a", runs).values.tolist() == [0.6, 0.3]
    assert measured("a", runs, lambda one: one.duration).values.tolist() == [10, 10]


def test_the_mean_over_time_holds_each_measurement_until_the_next() -> None:
    made = curve(0.2, 0.6, 0.4)  # at 5, 10 and 15 minutes
    assert made.mean_until(5) == 0
    assert made.mean_until(10) == pytest.approx(0.1)
    assert made.mean_until(12) == pytest.approx((5 * 0.2 + 2 * 0.6) / 12)
    assert made.mean_until(15) == pytest.approx((5 * 0.2 + 5 * 0.6) / 15)


def test_a_curve_on_a_grid_is_unknown_before_its_first_measurement_and_after_its_end() -> None:
    made = curve(0.2, 0.6, minutes=0.5)
    np.testing.assert_array_equal(
        made.at(np.array([2.0, 2.5, 4.9, 5.0, 5.1]), "minutes"), [np.nan, 0.2, 0.2, 0.6, np.nan]
    )
    np.testing.assert_array_equal(made.at(np.array([4.0, 5.0, 10.0, 15.0]), "rounds"), [np.nan, 0.2, 0.6, np.nan])
