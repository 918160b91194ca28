"""The plain loop over the clients, with which learners are compared."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.plain_training import PlainRound, got_weights, plain_module, put_weights
from benchmarks.training import SHAPES, noise
from turnout.lab import Training
from turnout.lab.training.learners.networks import CONVOLUTIONAL, Network, paper_network

pytestmark = pytest.mark.thorough


def test_noise_has_the_shape_of_every_dataset_with_a_network() -> None:
    assert set(SHAPES) == set(CONVOLUTIONAL)
    for name, shape in SHAPES.items():
        data = noise(name)
        assert data.train_images.shape[1:] == shape
        assert paper_network(data).classes == len(set(data.train_labels.tolist()))
        assert data.train_images.max() == data.brightest


def test_weights_are_copied_into_torch_modules_and_back() -> None:
    network = Network((12, 8, 2), (3,), (4, 5), 6)
    module = plain_module(network)
    layers = ["Conv2d", "MaxPool2d", "ReLU", "Flatten", "Linear", "ReLU", "Linear", "ReLU", "Linear"]
    assert [type(layer).__name__ for layer in module] == layers
    weights = torch.from_numpy(network.initial_weights(0)).float()
    put_weights(module, network, weights)
    assert torch.equal(got_weights(module, network), weights)
    maps = next(module.parameters())
    assert maps[2, 1, 3, 4] == weights[((3 * 5 + 4) * 2 + 1) * 3 + 2]  # (output, channel, row, column)


def test_a_plain_round_of_two_clients_is_the_mean_of_both_alone() -> None:
    data = noise("digits")
    network = paper_network(data)
    images, labels = torch.tensor(data.train_images).double() / 16, torch.tensor(data.train_labels).long()
    plain = PlainRound(network, Training(batch_size=4, momentum=0.9), images, labels)
    start = torch.from_numpy(network.initial_weights(0))
    orders = np.arange(20).reshape(2, 1, 10)
    both, losses = plain.train(start, orders)
    alone = [plain.train(start, orders[[index]]) for index in range(2)]
    torch.testing.assert_close(both, (alone[0][0] + alone[1][0]) / 2)
    assert losses == [loss for _, (loss,) in alone]
