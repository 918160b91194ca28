from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from turnout.errors import SettingError, StateError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.kernel.randomness import round_rng
from turnout.lab import Cohort, Federation, NumpyLearner, Training, load_dataset, partition
from turnout.lab.learners.base import averaged

DIGITS = load_dataset("digits")
HOLDINGS = partition(DIGITS.train_labels, clients=6, items=60, gamma=0.5)


def learner(hidden: int = 5, **training: Any) -> NumpyLearner:
    return NumpyLearner(DIGITS, Training(**training), hidden=hidden)


def drawn(model: NumpyLearner, *clients: int, seed: int = 0, round_: int = 1) -> IntArray:
    return Federation(model, HOLDINGS, seed).orders(np.array(clients, dtype=np.int64), round_)


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
    orders = drawn(model, 4, 1, seed=7, round_=9)
    models, losses = model.train_clients(weights, orders)
    (taught,) = model.train([Cohort(weights, orders, np.array([3.0, 1.0]))])
    literal = [literal_client(weights, client, model.training, hidden, seed=7, round_=9) for client in (4, 1)]
    for place, (expected, loss) in enumerate(literal):
        np.testing.assert_allclose(models[place], expected, rtol=1e-10, atol=1e-12)
        assert losses[place] == pytest.approx(loss, rel=1e-10)
    np.testing.assert_allclose(taught.weights, 0.75 * literal[0][0] + 0.25 * literal[1][0], rtol=1e-10, atol=1e-12)
    assert taught.losses.tolist() == losses.tolist()
    assert taught.finite.tolist() == [True, True]


def test_who_else_trains_changes_nothing() -> None:
    model = learner()
    weights, other = model.initial_weights(0), model.initial_weights(1)
    orders = drawn(model, 0, 1, 2)
    together, _ = model.train_clients(weights, orders)
    alone, _ = model.train_clients(weights, orders[1:2])
    np.testing.assert_allclose(together[1], alone[0], rtol=1e-12, atol=1e-14)
    first = Cohort(weights, orders, np.ones(3))
    beside = model.train([Cohort(other, orders[:2], np.ones(2)), first])[1]
    assert np.array_equal(beside.weights, model.train([first])[0].weights)


def test_training_leaves_the_weights_it_was_given_as_they_were() -> None:
    model = learner()
    weights = model.initial_weights(0)
    before = weights.copy()
    model.train([Cohort(weights, drawn(model, 0, 1), np.ones(2))])
    assert np.array_equal(weights, before)


def test_another_round_or_seed_draws_other_batches() -> None:
    model = learner(epochs=2)
    first = drawn(model, 1, seed=0, round_=1)
    assert np.array_equal(first, drawn(model, 1, seed=0, round_=1))
    assert not np.array_equal(first, drawn(model, 1, seed=0, round_=2))
    assert not np.array_equal(first, drawn(model, 1, seed=1, round_=1))
    assert not np.array_equal(first[0, 0], first[0, 1])
    for epoch in first[0]:
        assert sorted(epoch.tolist()) == sorted(HOLDINGS.items[1].tolist())
    assert np.array_equal(drawn(model, 3, 1)[1], first[0])


def test_the_average_is_weighted_by_shares() -> None:
    models = np.array([[1.0, 2.0], [4.0, 8.0]])
    taught = averaged(np.zeros(2), models, np.array([0.1, 0.2]), np.array([100.0, 300.0]))
    assert taught.weights.tolist() == [3.25, 6.5]
    assert taught.losses.tolist() == [0.1, 0.2]
    assert taught.finite.tolist() == [True, True]


def test_a_model_that_diverged_is_not_averaged() -> None:
    models = np.array([[1.0, 2.0], [np.nan, 8.0], [np.inf, 1.0], [3.0, 4.0], [5.0, 6.0]])
    losses = np.array([0.1, 0.2, 0.3, np.nan, 0.5])
    taught = averaged(np.zeros(2), models, losses, np.array([1.0, 1.0, 1.0, 1.0, 3.0]))
    assert taught.finite.tolist() == [True, False, False, False, True]
    assert taught.weights.tolist() == [4.0, 5.0]
    assert np.array_equal(taught.losses, [0.1, np.nan, np.nan, np.nan, 0.5], equal_nan=True)


@pytest.mark.parametrize("clients", [0, 3])
def test_where_nobody_is_sound_the_weights_are_the_old(clients: int) -> None:
    before = np.array([7.0, 9.0])
    taught = averaged(before, np.full((clients, 2), np.nan), np.zeros(clients), np.ones(clients))
    assert taught.weights.tolist() == [7.0, 9.0]
    assert np.isnan(taught.losses).tolist() == [True] * clients
    assert taught.finite.tolist() == [False] * clients


@pytest.mark.parametrize("numbers", [np.float32, np.float64])
def test_an_average_is_of_the_kind_its_models_are(numbers: type[np.floating]) -> None:
    models: Any = np.array([[1.0], [2.0]], dtype=numbers)
    assert averaged(models[0], models, np.zeros(2), np.ones(2)).weights.dtype == numbers


def test_a_rate_beyond_reason_is_told_by_the_weights_not_by_a_crash() -> None:
    model = learner(rate=1e200, batch=6)
    weights = model.initial_weights(0)
    orders = drawn(model, 0, 1)
    (taught,) = model.train([Cohort(weights, orders, np.ones(2))])
    assert not taught.finite.any()
    assert np.isnan(taught.losses).all()
    assert np.array_equal(taught.weights, weights)
    (accuracy,) = model.evaluate([model.train_clients(weights, orders)[0][0]])
    assert 0 <= accuracy <= 1


def test_a_fresh_model_knows_nothing_and_has_the_right_size() -> None:
    assert learner(hidden=0).network.parameters == 64 * 10 + 10
    model = learner(hidden=5)
    weights = model.initial_weights(1)
    assert weights.shape == (model.network.parameters,) == (64 * 5 + 5 + 5 * 10 + 10,)
    assert model.evaluate([weights])[0] < 0.35
    assert not np.array_equal(weights, model.initial_weights(2))


def test_each_of_several_models_is_evaluated_on_its_own() -> None:
    model = learner(hidden=0)
    images = DIGITS.test_images.reshape(len(DIGITS.test_images), -1) / 16
    models = [model.initial_weights(seed) for seed in range(3)]
    by_hand = []
    for weights in models:
        matrix, biases = weights[:640].reshape(64, 10), weights[640:]
        right = [
            np.argmax(image @ matrix + biases) == label for image, label in zip(images, DIGITS.test_labels, strict=True)
        ]
        by_hand.append(sum(right) / len(images))
    assert model.evaluate(models) == by_hand
    assert len(set(by_hand)) == 3
    assert model.evaluate([]) == []


def test_nobody_to_train_is_no_work() -> None:
    assert learner().train([]) == []


def test_saved_weights_come_back_as_copies() -> None:
    model = learner()
    weights = model.initial_weights(0)
    saved = model.saved(weights)
    loaded = model.loaded(saved)
    assert np.array_equal(loaded, weights)
    saved[:] = 0
    assert np.array_equal(loaded, weights)
    assert np.array_equal(weights, model.initial_weights(0))


@pytest.mark.parametrize(
    "wrong",
    [np.zeros(384), np.zeros(386), np.zeros((1, 385)), np.zeros(385, dtype=np.int64), np.full(385, "0")],
    ids=lambda wrong: f"{wrong.dtype}{wrong.shape}",
)
def test_weights_of_another_model_are_refused(wrong: npt.NDArray[Any]) -> None:
    with pytest.raises(StateError, match="this network has 385 numbers: they are of another model"):
        learner().loaded(wrong)


@pytest.mark.parametrize(
    "setting",
    [
        {"epochs": 0},
        {"epochs": 1.5},
        {"batch": 0},
        {"rate": 0},
        {"rate": float("nan")},
        {"rate": "fast"},
        {"momentum": 1.5},
        {"momentum": -0.1},
        {"weight_decay": -1},
        {"proximal": -1},
        {"proximal": float("inf")},
    ],
    ids=str,
)
def test_training_that_cannot_be_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(setting))):
        Training(**setting)


def test_a_hidden_layer_of_less_than_nothing_is_refused() -> None:
    with pytest.raises(SettingError, match="hidden must be at least 0, not -1"):
        learner(hidden=-1)
