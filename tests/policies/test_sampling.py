from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest

from turnout.kernel.arrays import smallest
from turnout.policies.sampling import exponential_keys, weighted_sample, weighted_sample_linear


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
