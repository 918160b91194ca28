from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.plain_training import PlainRound, got_weights, plain_module, put_weights
from benchmarks.training import MAX_DIFFERENCE, TrainingComparison, compare_training
from lab.training.processes import trainers
from turnout.bench.training import SHAPES, TrainingFigures, measure_training, noise
from turnout.errors import SettingError
from turnout.lab import Cohort, Training, TrainingResult
from turnout.lab.training.learners.module_learner import ModuleLearner, cnn_learner
from turnout.lab.training.learners.networks import CONVOLUTIONAL, Network, paper_network


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Runs torch with one thread: several threads slow each other down if other tests use the same cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_measured_round_has_all_its_figures() -> None:
    before = trainers()
    figures = measure_training("digits", repeats=1)
    assert (figures.dataset, figures.device, figures.batch, figures.stacked_runs) == ("digits", "CPU", 10, 1)
    assert figures.round_seconds > 0
    assert figures.stacked_seconds == figures.round_seconds
    assert trainers() <= before


def test_the_ratios_of_a_round_of_training() -> None:
    figures = TrainingFigures("digits", "GPU", 10, round_seconds=2.0, stacked_runs=16, stacked_seconds=0.5)
    assert figures.items_per_second == 2000
    assert figures.stacked_speedup == 4


def test_a_comparison_with_the_plain_loop_has_all_its_figures() -> None:
    before = trainers()
    figures = compare_training("digits", repeats=1)
    assert (figures.dataset, figures.device, figures.batch, figures.stacked_runs) == ("digits", "CPU", 10, 1)
    assert figures.plain_seconds > 0
    assert figures.round_seconds > 0
    assert figures.stacked_seconds == figures.round_seconds
    assert 0 < figures.difference < 1e-4
    assert trainers() <= before


def test_the_speedup_is_the_time_of_the_plain_loop_in_units_of_ours() -> None:
    figures = TrainingComparison("digits", "GPU", 10, 6.0, 2.0, 16, 0.5, 0.0, min_speedup=3.0)
    assert figures.speedup == 3
    assert figures.met
    assert not replace(figures, round_seconds=2.1).met
    assert figures.stacked_speedup == 12


class LosesATenth(ModuleLearner):
    """Undoes a tenth of each update."""

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainingResult]:
        results = super().train(cohorts)
        return [
            replace(result, weights=0.9 * result.weights + 0.1 * cohort.weights)
            for cohort, result in zip(cohorts, results, strict=True)
        ]


class ReturnsNaN(ModuleLearner):
    """Returns NaN for all weights."""

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainingResult]:
        return [replace(result, weights=np.nan * result.weights) for result in super().train(cohorts)]


@pytest.mark.parametrize("wrong", [LosesATenth, ReturnsNaN])
def test_a_learner_with_other_weights_is_detected(wrong: type[ModuleLearner], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.bench.training.cnn_learner", lambda *given: wrong(cnn_learner(*given).spec))
    with pytest.raises(AssertionError, match="the plain loop trained other weights"):
        compare_training("digits", repeats=1)


def test_a_missing_device_is_an_error() -> None:
    with pytest.raises(SettingError, match="there is no device 'abacus'"):
        measure_training("digits", device="abacus")


def test_noise_has_the_shape_of_every_dataset_with_a_network() -> None:
    assert set(SHAPES) == set(CONVOLUTIONAL)
    for name, shape in SHAPES.items():
        data = noise(name)
        assert data.train_images.shape[1:] == shape
        assert paper_network(data).classes == len(set(data.train_labels.tolist()))
        assert data.train_images.max() == data.brightest
    assert 0 < MAX_DIFFERENCE < 0.1


def test_weights_are_copied_into_torch_modules_and_back() -> None:
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
