"""The built-in learners and the architecture of their models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from turnout.errors import SettingError
from turnout.kernel.arrays import IntArray
from turnout.kernel.randomness import round_rng
from turnout.lab import Federation, NumpyLearner, Training, load_dataset, partition
from turnout.lab.training.datasets import Dataset
from turnout.lab.training.learners.base import average_models
from turnout.lab.training.learners.numpy_learner import Network, paper_network, perceptron

IMAGES = {"digits": (8, 8, 1), "fashion-mnist": (28, 28, 1), "cifar-10": (32, 32, 3)}


def blank_dataset(name: str, image: tuple[int, int, int]) -> Dataset:
    """Returns a dataset with one black image of each class."""
    images, labels = np.zeros((10, *image), dtype=np.uint8), np.arange(10, dtype=np.uint8)
    return Dataset(name, tuple("abcdefghij"), images, labels, images, labels)


@pytest.mark.parametrize(
    ("name", "matrices"),
    [
        ("digits", [(25, 16), (2 * 2 * 16, 32), (32, 10)]),
        ("fashion-mnist", [(25, 20), (25 * 20, 50), (4 * 4 * 50, 500), (500, 10)]),
        ("cifar-10", [(25 * 3, 64), (25 * 64, 64), (1600, 384), (384, 192), (192, 10)]),
    ],
)
def test_the_papers_networks_have_the_papers_layers(name: str, matrices: list[tuple[int, int]]) -> None:
    network = paper_network(blank_dataset(name, IMAGES[name]))
    assert network.matrices == matrices
    assert network.shapes == [shape for before, after in matrices for shape in ((before, after), (after,))]
    assert network.parameters == sum((before + 1) * after for before, after in matrices)


def test_images_shrink_and_layers_are_contiguous() -> None:
    network = Network((32, 28, 3), (64, 7), (), 10)
    assert network.image_sizes == [(32, 28, 3), (14, 12, 64), (5, 4, 7)]
    assert network.matrices[-1] == (5 * 4 * 7, 10)
    assert Network((6, 6, 1), (3,), (), 10).image_sizes[-1] == (1, 1, 3)
    assert perceptron(load_dataset("digits")).matrices == [(64, 32), (32, 10)]
    assert perceptron(load_dataset("digits"), 0).matrices == [(64, 10)]
    network = Network((8, 8, 1), (3,), (4,), 10)
    layers = network.split(np.arange(network.parameters))
    assert [layer.flat[0] for layer in layers] == [0, 75, 78, 126, 130, 170]
    assert [layer.flat[-1] + 1 for layer in layers] == [75, 78, 126, 130, 170, network.parameters]
    network = Network((8, 8, 2), (3,), (4,), 10)
    assert network.layers(np.arange(float(network.parameters)))["weight1"][1, 2, 1, 0] == ((1 * 5 + 2) * 2 + 1) * 3


def test_the_range_of_initial_weights_shrinks_with_the_number_of_inputs() -> None:
    network = paper_network(blank_dataset("fashion-mnist", IMAGES["fashion-mnist"]))
    layers = network.layers(network.initial_weights(5))
    assert np.array_equal(network.initial_weights(5), network.initial_weights(5))
    assert not (network.initial_weights(5) == network.initial_weights(2)).any()
    for depth, (inputs, _) in enumerate(network.matrices, start=1):
        for layer in (layers[f"weight{depth}"], layers[f"bias{depth}"]):
            assert np.abs(layer).max() <= 1 / np.sqrt(inputs)
        assert np.abs(layers[f"weight{depth}"]).max() > 0.95 / np.sqrt(inputs)
        assert layers[f"weight{depth}"].min() < 0 < layers[f"weight{depth}"].max()


@pytest.mark.parametrize(
    ("image", "convolutions"),
    [
        ((4, 4, 1), (3,)),
        ((5, 5, 1), (3,)),
        ((9, 9, 1), (3,)),
        ((8, 9, 1), (3,)),
        ((9, 8, 1), (3,)),
        ((8, 8, 1), (3, 3)),
    ],
)
def test_an_image_of_unsuitable_size_is_rejected(image: tuple[int, int, int], convolutions: tuple[int, ...]) -> None:
    with pytest.raises(SettingError, match="a 5 × 5 convolution and pooling do not fit on"):
        Network(image, convolutions, (), 10)


@pytest.mark.parametrize(("convolutions", "hidden"), [((0,), ()), ((), (0,)), ((3,), (-1,)), ((2.5,), ())])
def test_a_layer_without_units_is_rejected(convolutions: Any, hidden: Any) -> None:
    with pytest.raises(SettingError, match="size of a layer must be"):
        Network((8, 8, 1), convolutions, hidden, 10)
    with pytest.raises(SettingError, match="hidden must be at least 0, not -1"):
        learner(hidden=-1)


def test_a_dataset_without_a_convolutional_network_is_rejected() -> None:
    unknown = replace(load_dataset("digits"), name="letters")
    with pytest.raises(SettingError, match="for 'letters'; there are networks for digits, fashion-mnist"):
        paper_network(unknown)


DIGITS = load_dataset("digits")
PARTITION = partition(DIGITS.train_labels, clients=6, items=60, gamma=0.5)


def learner(hidden: int = 5, **training: Any) -> NumpyLearner:
    return NumpyLearner(DIGITS, Training(**training), hidden=hidden)


def batch_orders(model: NumpyLearner, *clients: int, seed: int = 0, round_: int = 1) -> IntArray:
    return Federation(model, PARTITION, seed).orders(np.array(clients, dtype=np.int64), round_)


def test_batches_depend_on_round_seed_and_epoch() -> None:
    model = learner(epochs=2)
    first = batch_orders(model, 1, seed=0, round_=1)
    assert np.array_equal(first, batch_orders(model, 1, seed=0, round_=1))
    assert not np.array_equal(first, batch_orders(model, 1, seed=0, round_=2))
    assert not np.array_equal(first, batch_orders(model, 1, seed=1, round_=1))
    assert not np.array_equal(first[0, 0], first[0, 1])
    for epoch in first[0]:
        assert sorted(epoch.tolist()) == sorted(PARTITION.items[1].tolist())
    assert np.array_equal(batch_orders(model, 3, 1)[1], first[0])
    seventh = round_rng(7, "batches of 4, epoch 1", 9).permutation(PARTITION.items[4])
    assert np.array_equal(batch_orders(model, 4, seed=7, round_=9)[0, 1], seventh)


def test_a_diverged_model_is_excluded_from_the_average() -> None:
    models = np.array([[1.0, 2.0], [np.nan, 8.0], [np.inf, 1.0], [3.0, 4.0], [5.0, 6.0]])
    losses = np.array([0.1, 0.2, 0.3, np.nan, 0.5])
    result = average_models(np.zeros(2), models, losses, np.array([1.0, 1.0, 1.0, 1.0, 3.0]))
    assert result.finite.tolist() == [True, False, False, False, True]
    assert result.weights.tolist() == [4.0, 5.0]
    assert np.array_equal(result.losses, [0.1, np.nan, np.nan, np.nan, 0.5], equal_nan=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_average_has_the_dtype_of_its_models(dtype: type[np.floating]) -> None:
    models: Any = np.array([[1.0], [2.0]], dtype=dtype)
    assert average_models(models[0], models, np.zeros(2), np.ones(2)).weights.dtype == dtype


@pytest.mark.parametrize(
    "setting",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"learning_rate": 0},
        {"learning_rate": float("nan")},
        {"momentum": 1.5},
        {"weight_decay": -1},
        {"proximal_mu": -1},
    ],
    ids=str,
)
def test_invalid_training_settings_are_rejected(setting: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match=next(iter(setting))):
        Training(**setting)
