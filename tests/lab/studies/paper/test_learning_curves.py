from __future__ import annotations

import math

import numpy as np
import pytest

from lab.studies.made_up import columns
from turnout.errors import SettingError
from turnout.lab import RoundColumns
from turnout.lab.analysis.learning_curves import LearningCurve
from turnout.lab.studies.paper.learning_curves import final_accuracies, measure_curves, time_to_target


def curve(*accuracies: float, every: int = 5, minutes: float = 1.0) -> LearningCurve:
    """Returns a curve that is measured every `every` rounds, with rounds of `minutes` minutes."""
    rounds = every * np.arange(1, len(accuracies) + 1)
    clock = np.array(rounds * minutes, dtype=np.float64)
    return LearningCurve(rounds, clock, np.array(accuracies), int(rounds[-1]), float(clock[-1]))


def run(times: list[float], accuracies: list[float] | None) -> RoundColumns:
    """Returns a run with one client per round and these exchange times in seconds."""
    metrics = {} if accuracies is None else {"accuracy": np.array(accuracies)}
    return columns([[0]] * len(times), times, 1, metrics=metrics)


def test_a_curve_contains_the_measured_rounds_and_their_times() -> None:
    learned = LearningCurve.of(run([60, 30, 30, 60, 120], [math.nan, 0.2, math.nan, 0.5, math.nan]))
    assert learned.rounds.tolist() == [2, 4]
    assert learned.minutes.tolist() == [1.5, 3.0]
    assert learned.accuracies.tolist() == [0.2, 0.5]
    assert (learned.length, learned.duration) == (5, 5.0)


@pytest.mark.parametrize("accuracies", [None, [math.nan, math.nan]])
def test_a_run_without_any_accuracy_is_rejected(accuracies: list[float] | None) -> None:
    with pytest.raises(SettingError, match="measured no accuracy"):
        LearningCurve.of(run([60, 60], accuracies))


def test_the_final_accuracy_is_the_mean_of_the_last_tenth_or_the_last_measurement() -> None:
    assert curve(*np.linspace(0, 0.7, 18), 0.8, 0.9).final == pytest.approx(0.85)
    learned = LearningCurve(np.array([5, 10]), np.array([5.0, 10.0]), np.array([0.1, 0.3]), 12, 12.0)
    assert learned.final == 0.3
    assert curve(0.1, 0.9, 0.0, 0.5, 0.6, 0.7, 0.8, 0.9).jitter == pytest.approx(0.0)
    assert curve(0, 0, 0, 0, 0.5, 0.7, 0.5, 0.7).jitter == pytest.approx(np.std([0.2, -0.2, 0.2]))
    assert math.isnan(curve(0.5).jitter)


def test_a_target_is_reached_at_the_first_sufficient_measurement_or_never() -> None:
    learned = curve(0.2, 0.6, 0.4, 0.8, minutes=2.0)
    assert learned.rounds_to(0.6) == 10
    assert learned.minutes_to(0.6) == 20
    assert learned.rounds_to(0.61) == 20
    runs = [curve(0.2, 0.6), curve(0.2, 0.3)]
    group = time_to_target("a", runs, 0.5, "rounds")
    assert group.values.tolist() == [10, 15]
    assert group.summary.endswith("; 1 of 2 runs never")
    assert "never" not in time_to_target("a", [curve(0.2, 0.6)], 0.5, "minutes").summary
    assert final_accuracies("a", runs).values.tolist() == [0.6, 0.3]
    assert measure_curves("a", runs, lambda run: run.duration).values.tolist() == [10, 10]
    assert not learned.reaches(0.81)
    assert learned.rounds_to(0.81) == 25
    assert learned.minutes_to(0.81) == 40


def test_averages_over_time_extend_each_measurement_to_the_next() -> None:
    learned = curve(0.2, 0.6, 0.4)  # at 5, 10 and 15 minutes
    assert learned.mean_until(5) == 0
    assert learned.mean_until(10) == pytest.approx(0.1)
    assert learned.mean_until(12) == pytest.approx((5 * 0.2 + 2 * 0.6) / 12)
    assert learned.mean_until(15) == pytest.approx((5 * 0.2 + 5 * 0.6) / 15)
    assert learned.mean_between(0, 10) == pytest.approx(learned.mean_until(10))
    assert learned.mean_between(0, 5) == 0
    assert learned.mean_between(8, 12) == pytest.approx((2 * 0.2 + 2 * 0.6) / 4)
    assert learned.mean_between(10, 15) == pytest.approx(0.6)


def test_a_curve_is_nan_before_its_first_measurement_and_after_its_end() -> None:
    learned = curve(0.2, 0.6, minutes=0.5)
    np.testing.assert_array_equal(
        learned.at(np.array([2.0, 2.5, 4.9, 5.0, 5.1]), "minutes"), [np.nan, 0.2, 0.2, 0.6, np.nan]
    )
    np.testing.assert_array_equal(learned.at(np.array([4.0, 5.0, 10.0, 15.0]), "rounds"), [np.nan, 0.2, 0.6, np.nan])
