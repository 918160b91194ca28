from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from lab.processes import trainers
from turnout.bench.plain_training import PlainRound, got_weights, plain_module, put_weights
from turnout.bench.training import MOST_APART, SHAPES, TrainingFigures, measure_training, noise
from turnout.errors import SettingError
from turnout.lab import Cohort, Training, TrainingResult
from turnout.lab.learners.networks import CONVOLUTIONAL, Network, paper_network
from turnout.lab.learners.torch_learner import TorchLearner


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other take turns badly with the tests beside them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_measured_round_has_all_its_figures() -> None:
    before = trainers()
    figures = measure_training("digits", repeats=1)
    assert (figures.dataset, figures.device, figures.batch, figures.stacked_runs) == ("digits", "CPU", 10, 1)
    assert figures.plain_seconds > 0
    assert figures.round_seconds > 0
    assert figures.stacked_seconds == figures.round_seconds
    assert 0 < figures.apart < 1e-4
    assert trainers() <= before


def test_a_speedup_is_how_much_longer_the_plain_loop_takes() -> None:
    figures = TrainingFigures("digits", "GPU", 10, 6.0, 2.0, 16, 0.5, 0.0, least=3.0)
    assert figures.speedup == 3
    assert figures.met
    assert not replace(figures, round_seconds=2.1).met
    assert figures.stacked_speedup == 12


class Astray(TorchLearner):
    """Forgets a tenth of what was learned."""

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainingResult]:
        lost = []
        for cohort, taught in zip(cohorts, super().train(cohorts), strict=True):
            lost.append(replace(taught, weights=0.9 * taught.weights + 0.1 * cohort.weights))
        return lost


class Lost(TorchLearner):
    """Comes back with nothing."""

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainingResult]:
        return [replace(taught, weights=np.nan * taught.weights) for taught in super().train(cohorts)]


@pytest.mark.parametrize("wrong", [Astray, Lost])
def test_a_learner_that_ends_elsewhere_is_noticed(wrong: type[TorchLearner], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.bench.training.TorchLearner", wrong)
    with pytest.raises(AssertionError, match="the plain loop ends elsewhere"):
        measure_training("digits", repeats=1)


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(SettingError, match="there is no device 'abacus'"):
        measure_training("digits", device="abacus")


def test_noise_has_the_shape_of_every_dataset_with_a_network() -> None:
    assert set(SHAPES) == set(CONVOLUTIONAL)
    for name, shape in SHAPES.items():
        data = noise(name)
        assert data.train_images.shape[1:] == shape
        assert paper_network(data).classes == len(set(data.train_labels.tolist()))
        assert data.train_images.max() == data.brightest
    assert 0 < MOST_APART < 0.1


def test_weights_go_into_torchs_modules_and_back() -> None:
    network = Network((12, 8, 2), (3,), (4, 5), 6)
    module = plain_module(network)
    assert [type(layer).__name__ for layer in module] == [
        "Conv2d",
        "MaxPool2d",
        "ReLU",
        "Flatten",
        "Linear",
        "ReLU",
        "Linear",
        "ReLU",
        "Linear",
    ]
    weights = torch.from_numpy(network.initial_weights(0)).float()
    put_weights(module, network, weights)
    assert torch.equal(got_weights(module, network), weights)
    maps = next(module.parameters())
    assert maps[2, 1, 3, 4] == weights[((3 * 5 + 4) * 2 + 1) * 3 + 2]  # (output, channel, row, column)


def test_a_plain_round_of_two_is_the_mean_of_each_alone() -> None:
    data = noise("digits")
    network = paper_network(data)
    images, labels = torch.tensor(data.train_images).double() / 16, torch.tensor(data.train_labels).long()
    plain = PlainRound(network, Training(batch_size=4, momentum=0.9), images, labels)
    start = torch.from_numpy(network.initial_weights(0))
    orders = np.arange(20).reshape(2, 1, 10)
    both, losses = plain.train(start, orders)
    alone = [plain.train(start, orders[[place]]) for place in range(2)]
    torch.testing.assert_close(both, (alone[0][0] + alone[1][0]) / 2)
    assert losses == [loss for _, (loss,) in alone]
