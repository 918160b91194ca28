from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest

from policies.examples import report_of
from turnout import RoundReport
from turnout.kernel.arrays import smallest
from turnout.kernel.rounds import LateArrivals
from turnout.policies.common import (
    LastSignal,
    MeanTimes,
    RelativeSignal,
    exponential_keys,
    part_of,
    weighted_sample,
    weighted_sample_linear,
)

# Observations


ONE_FAILED = ["arrived", "arrived", "failed"]


def test_a_loss_is_kept_until_another_is_reported() -> None:
    losses = LastSignal(5)
    losses.learn_from(report_of(2, [0, 1, 2], losses=np.array([3.0, 1.0, math.nan]), outcomes=ONE_FAILED))
    losses.learn_from(report_of(2, [0, 3]))
    assert losses.values.tolist() == [3.0, 1.0, -math.inf, -math.inf, math.inf]
    assert losses.tried.tolist() == [True, True, True, True, False]
    assert losses.guessed().tolist() == [3.0, 1.0, 2.0, 2.0, math.inf]


def test_a_missing_loss_counts_as_1_if_no_client_reported_one() -> None:
    losses = LastSignal(2)
    losses.learn_from(report_of(2, [0]))
    assert losses.guessed().tolist() == [1.0, math.inf]


def test_times_are_averaged_late_ones_are_corrected_and_failures_are_ignored() -> None:
    times = MeanTimes(4)
    times.learn_from(report_of(2, [0, 1, 2], [4.0, 9.0, 1.0], outcomes=["arrived", "late", "failed"]))
    times.learn_from(report_of(2, [0, 1], [6.0, 9.0], outcomes=["arrived", "late"]))
    assert times.means().tolist() == [5.0, 9.0, 0.0, 0.0]
    assert times.longest == 9.0
    late = LateArrivals(np.array([1, 2]), np.array([1, 1]), np.ones((2, 3)), np.full(2, 9.0), np.array([11.0, 13.0]))
    times.learn_from(RoundReport(3, np.empty(0, dtype=np.int64), np.ones((0, 3)), np.empty(0), late_arrivals=late))
    assert times.means().tolist() == [5.0, 12.0, 0.0, 0.0]
    assert (times.longest, times.measured.tolist()) == (13.0, [True, True, False, False])


def test_rounding_errors_do_not_change_the_integer_part_of_a_share() -> None:
    assert (part_of(0.29, 100), part_of(0.7, 10), part_of(1 - 0.9, 10), part_of(0.99, 10)) == (29, 7, 1, 9)


def test_forgetting_the_slowest_client_removes_its_time_from_the_longest() -> None:
    times = MeanTimes(3)
    times.learn_from(report_of(2, [0, 1], [4.0, 9.0]))
    times.learn_from(report_of(2, [0], [6.0]))
    times.forget(np.array([2]))
    assert times.longest == 9.0
    times.forget(np.array([1]))
    assert times.longest == 5.0  # the largest mean of the others, because single times are not stored
    assert times.means().tolist() == [5.0, 0.0, 0.0]


def test_losses_are_relative_to_the_usual_loss_and_limited() -> None:
    losses = RelativeSignal(7)
    losses.learn_from(report_of(2, [0, 1, 2], losses=np.array([1.0, 2.0, 3.0])))
    assert losses.relative.tolist() == [1.0] * 7  # too few
    losses.learn_from(report_of(2, [3, 4, 5], losses=np.array([1e300, -1.0, math.nan]), outcomes=ONE_FAILED))
    assert (losses.largest, losses.usual) == (3.0, (1 + 2 + 3 + 3 + 0) / 5)
    assert (losses.relative * losses.usual).round(12).tolist() == [1.0, 2.0, 3.0, 3.0, 0.0, 3.0, 3.0]
    losses.add(1)
    assert losses.relative[-1] == losses.largest / losses.usual
    restored = RelativeSignal(8)
    restored.restore(losses.state())
    assert restored.relative.tolist() == losses.relative.tolist()
    losses.forget(np.array([3]))
    assert (losses.largest, losses.usual, losses.reported) == (2.0, (1 + 2 + 2 + 0) / 4, 4)


def test_the_usual_loss_of_many_clients_is_computed_now_and_then() -> None:
    losses, everybody = RelativeSignal(1000), list(range(1000))
    losses.learn_from(report_of(2, everybody, losses=np.full(1000, 2.0)))
    losses.learn_from(report_of(2, everybody[:9], losses=np.ones(9)))
    assert losses.usual == 2.0
    assert losses.relative[:10].tolist() == [0.5] * 9 + [1.0]
    losses.learn_from(report_of(2, [9], losses=np.ones(1)))
    assert losses.usual == (990 * 2.0 + 10) / 1000


# Weighted sampling


def test_samples_have_the_probabilities_of_sequential_draws() -> None:
    weights = np.array([1.0, 2.0, 4.0, 0.5])
    pairs: dict[tuple[int, ...], int] = {}
    for round_ in range(1, 3001):
        pair = tuple(weighted_sample_linear(weights, exponential_keys(1, "test", round_, 4), 2).tolist())
        pairs[pair] = pairs.get(pair, 0) + 1
    share = weights / weights.sum()
    for pair, count in pairs.items():
        probability = sum(share[a] * share[b] / (1 - share[a]) for a, b in permutations(pair))
        assert count / 3000 == pytest.approx(probability, abs=0.025)


def test_entries_of_weight_0_are_selected_last_and_at_random() -> None:
    weights = np.array([0.0, 1.0, 0.0, 0.0])
    samples = [
        weighted_sample_linear(weights, exponential_keys(0, "test", round_, 4), 2).tolist() for round_ in range(1, 1501)
    ]
    assert all(1 in pair for pair in samples)
    others = [next(row for row in pair if row != 1) for pair in samples]
    assert np.bincount(others, minlength=4)[[0, 2, 3]].min() > 430


def test_very_small_and_very_large_weights_are_handled() -> None:
    logs = np.array([-1e5, 1e5, -math.inf, 0.0])
    assert weighted_sample(logs, np.ones(4), 1).tolist() == [1]
    assert weighted_sample(logs, np.ones(4), 3).tolist() == [0, 1, 3]
    assert weighted_sample(logs, np.ones(4), 9).tolist() == [0, 1, 2, 3]
    assert weighted_sample(logs, np.ones(4), 0).tolist() == []
    assert weighted_sample(np.empty(0), np.empty(0), 3).tolist() == []


def test_the_smallest_values_equal_those_of_a_full_sort() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        values, tie_break = rng.integers(0, 4, 12).astype(np.float64), rng.random(12)
        count = int(rng.integers(0, 14))
        assert smallest(values, count, tie_break).tolist() == sorted(np.lexsort((tie_break, values))[:count].tolist())
