from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from turnout.kernel.arrays import FloatArray
from turnout.kernel.errors import SettingError
from turnout.kernel.randomness import round_rng
from turnout.lab import NumpyLearner, Training, load_dataset, partition
from turnout.lab.learners import Trained, average

DIGITS = load_dataset("digits")
HOLDINGS = partition(DIGITS.train_labels, clients=6, items=60, gamma=0.5)


def learner(hidden: int = 5, **training: Any) -> NumpyLearner:
    return NumpyLearner(DIGITS, HOLDINGS, Training(**training), hidden=hidden)


def literal_client(
    weights: FloatArray, client: int, how: Training, hidden: int, *, seed: int, round_: int
) -> tuple[FloatArray, float]:
    """One client, one batch after the other, in the plainest words."""
    w, start = weights.copy(), weights.copy()
    v = np.zeros_like(w)
    images = DIGITS.train_images.reshape(len(DIGITS.train_images), -1) / 16
    losses = []
    sizes = (64, hidden, 10) if hidden else (64, 10)
    for epoch in range(how.epochs):
        rng = round_rng(seed, f"batches of {client}, epoch {epoch}", round_)
        order = rng.permutation(HOLDINGS.items[client])
        for first in range(0, len(order), how.batch):
            batch = order[first : first + how.batch]
            gradient, loss = np.zeros_like(w), 0.0
            for item in batch:
                slope, one = literal_item(w, images[item], int(DIGITS.train_labels[item]), sizes)
                gradient += slope / len(batch)
                loss += one / len(batch)
            losses.append(loss)
            gradient += how.weight_decay * w + how.proximal * (w - start)
            v = how.momentum * v + gradient
            w = w - how.rate * v
    return w, float(np.mean(losses))


def literal_item(w: FloatArray, x: FloatArray, label: int, sizes: tuple[int, ...]) -> tuple[FloatArray, float]:
    """Forward and backward for one image."""
    matrices, biases, place = [], [], 0
    for before, after in pairwise(sizes):
        matrices.append(w[place : place + before * after].reshape(before, after))
        place += before * after
        biases.append(w[place : place + after])
        place += after
    inputs = [x]
    for depth, (matrix, bias) in enumerate(zip(matrices, biases, strict=True)):
        out = inputs[-1] @ matrix + bias
        inputs.append(np.maximum(out, 0) if depth + 1 < len(matrices) else out)
    chances = np.exp(inputs[-1] - inputs[-1].max())
    chances /= chances.sum()
    error = chances - np.eye(10)[label]
    slopes: list[FloatArray] = []
    for depth in range(len(matrices) - 1, -1, -1):
        slopes = [np.outer(inputs[depth], error).ravel(), error, *slopes]
        error = (matrices[depth] @ error) * (inputs[depth] > 0)
    return np.concatenate(slopes), -float(np.log(chances[label]))


@pytest.mark.parametrize("hidden", [0, 5])
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"epochs": 2, "batch": 7},
        {"momentum": 0.9, "weight_decay": 0.01},
        {"proximal": 0.5, "rate": 0.2},
    ],
    ids=str,
)
def test_a_stacked_cohort_equals_a_plain_loop(hidden: int, how: dict[str, Any]) -> None:
    model = learner(hidden, **how)
    weights = model.initial_weights(3)
    trained = model.train(weights, [4, 1], seed=7, round=9)
    for place, client in enumerate((4, 1)):
        expected, loss = literal_client(weights, client, model.training, hidden, seed=7, round_=9)
        np.testing.assert_allclose(trained.weights[place], expected, rtol=1e-10, atol=1e-12)
        assert trained.losses[place] == pytest.approx(loss, rel=1e-10)


def test_who_else_trains_changes_nothing() -> None:
    model = learner()
    weights = model.initial_weights(0)
    together = model.train(weights, [0, 1, 2], seed=0, round=1)
    alone = model.train(weights, [1], seed=0, round=1)
    np.testing.assert_allclose(together.weights[1], alone.weights[0], rtol=1e-12, atol=1e-14)


def test_another_round_or_seed_draws_other_batches() -> None:
    model = learner()
    weights = model.initial_weights(0)
    first = model.train(weights, [1], seed=0, round=1).weights
    assert np.array_equal(first, model.train(weights, [1], seed=0, round=1).weights)
    assert not np.array_equal(first, model.train(weights, [1], seed=0, round=2).weights)
    assert not np.array_equal(first, model.train(weights, [1], seed=1, round=1).weights)


def test_the_average_is_weighted_by_items() -> None:
    trained = Trained(np.array([[1.0, 2.0], [4.0, 8.0]]), np.array([0.1, 0.2]))
    mean = average(trained, np.array([100, 300]))
    assert mean is not None
    assert mean.tolist() == [3.25, 6.5]


def test_a_model_that_diverged_is_not_averaged() -> None:
    trained = Trained(np.array([[1.0, 2.0], [np.nan, 8.0], [np.inf, 1.0]]), np.array([0.1, 0.2, 0.3]))
    assert trained.sound.tolist() == [True, False, False]
    mean = average(trained, np.array([1, 1, 1]))
    assert mean is not None
    assert mean.tolist() == [1.0, 2.0]
    assert average(replace(trained, weights=np.full((3, 2), np.nan)), np.array([1, 1, 1])) is None


def test_a_rate_beyond_reason_is_told_by_the_weights_not_by_a_crash() -> None:
    model = learner(rate=1e200)
    trained = model.train(model.initial_weights(0), [0, 1], seed=0, round=1)
    assert not trained.sound.any()
    assert 0 <= model.evaluate(trained.weights[0]) <= 1


def test_a_fresh_model_knows_nothing_and_has_the_right_size() -> None:
    assert learner(hidden=0).parameters == 64 * 10 + 10
    model = learner(hidden=5)
    weights = model.initial_weights(1)
    assert weights.shape == (model.parameters,) == (64 * 5 + 5 + 5 * 10 + 10,)
    assert model.evaluate(weights) < 0.35
    assert not np.array_equal(weights, model.initial_weights(2))


@pytest.mark.parametrize(
    "setting", [{"epochs": 0}, {"batch": 0}, {"rate": 0}, {"momentum": 1.5}, {"weight_decay": -1}, {"proximal": -1}]
)
def test_training_that_cannot_be_is_refused(setting: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=next(iter(setting))):
        Training(**setting)  # type: ignore[arg-type]
