"""Compares the learners of the paper's networks with a plain loop over torch's modules, and tests their processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from benchmarks.plain_training import PlainRound, plain_module, put_weights
from benchmarks.training import noise
from lab.training.processes import forking, trainers
from turnout.errors import SettingError, StateError, TrainingError
from turnout.kernel.arrays import IntArray
from turnout.lab import Cohort, Dataset, Learner, NumpyLearner, Training, TrainingResult, load_dataset
from turnout.lab.training.learners.module_learner import cnn_learner
from turnout.lab.training.learners.numpy_learner import Network, paper_network
from turnout.lab.training.learners.stacked_learner import Precision, StackedLearner
from waiting import gone, wait_until_gone

DIGITS = load_dataset("digits")
NETWORK = paper_network(DIGITS)

Maker = Callable[[Dataset, Network, Training], Learner]


def torch_learner(workers: int) -> Maker:
    return lambda data, network, training: cnn_learner(data, network, training, workers=workers, precision="float64")


def stacked_learner(device: str, stack: int = 128) -> Maker:
    return lambda data, network, training: StackedLearner(
        data, network, training, device=device, precision="float64", stack=stack
    )


MAKERS: dict[str, Maker] = {
    "one worker": torch_learner(1),
    "stacked": stacked_learner("cpu"),
    "several stacks": stacked_learner("cpu", stack=8),
}
if torch.cuda.is_available():
    MAKERS |= {"on a GPU": stacked_learner("cuda"), "several stacks on a GPU": stacked_learner("cuda", stack=8)}
else:
    MAKERS |= {"two workers": torch_learner(2)}

every_learner = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
ALL = MAKERS | {"NumPy": lambda data, _, training: NumpyLearner(data, training, hidden=5)}
every_learner_and_numpy = pytest.mark.parametrize("make", ALL.values(), ids=ALL)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Uses one thread: several would compete with tests in other processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_close(actual: npt.ArrayLike, expected: npt.ArrayLike) -> None:
    np.testing.assert_allclose(np.asarray(actual, float), np.asarray(expected, float), rtol=1e-11, atol=1e-12)


def digits(make: Maker, **training: Any) -> closing[Learner]:
    """Returns a learner for the digits that is closed at the end of a `with` block."""
    return closing(make(DIGITS, NETWORK, Training(**training)))


def random_orders(clients: int, *, epochs: int = 1, held: int = 11, seed: int = 0, data: Dataset = DIGITS) -> IntArray:
    rng = np.random.default_rng(seed)
    orders = [[rng.permutation(len(data.train_labels))[:held] for _ in range(epochs)] for _ in range(clients)]
    return np.array(orders, dtype=np.int64).reshape(clients, epochs, held)


def cohort(learner: Learner, clients: int, *, seed: int = 0, **order_settings: Any) -> Cohort:
    """Returns a cohort with new weights of this seed; all shares are different."""
    orders = random_orders(clients, seed=seed, epochs=learner.training.epochs, **order_settings)
    return Cohort(learner.initial_weights(seed), orders, np.arange(1.0, clients + 1))


def reference_for(learner: Learner, data: Dataset) -> tuple[Network, torch.Tensor]:
    """Returns the network of a learner, and the training images as it scales them."""
    images = data.train_images
    if isinstance(learner, NumpyLearner):
        return learner.network, torch.from_numpy(images / data.brightest)
    return paper_network(data), torch.from_numpy((images - images.mean()) / images.std())


def check_against_a_plain_loop(learner: Learner, data: Dataset, cohorts: Sequence[Cohort]) -> list[TrainingResult]:
    """Compares every client with a plain round of that client alone."""
    network, images = reference_for(learner, data)
    plain = PlainRound(network, learner.training, images, torch.tensor(data.train_labels).long())
    results = learner.train(cohorts)
    assert len(results) == len(cohorts)
    for result, trained in zip(results, cohorts, strict=True):
        start = torch.from_numpy(learner.saved(trained.weights))
        alone = [plain.train(start, trained.orders[index : index + 1]) for index in range(len(trained.orders))]
        expected = start.numpy()
        if alone:
            expected = np.average([model.numpy() for model, _ in alone], axis=0, weights=trained.shares)
            assert np.abs(expected - start.numpy()).max() > 1e-4
        assert_close(learner.saved(result.weights), expected)
        assert_close(result.losses, [loss for _, (loss,) in alone])
        assert result.finite.tolist() == [True] * len(alone)
    return results


TRAININGS = [
    {},
    {"momentum": 0.9, "batch_size": 4},
    {"weight_decay": 0.1, "batch_size": 6},
    {"proximal_mu": 0.7, "batch_size": 3},
    {"epochs": 2, "batch_size": 4},
    {"epochs": 2, "batch_size": 5, "learning_rate": 0.1, "momentum": 0.5, "weight_decay": 0.01, "proximal_mu": 0.2},
]


@pytest.mark.parametrize(
    ("make", "training"),
    [
        pytest.param(make, training, id=f"{training}-{name}")
        for name, make in MAKERS.items()
        for training in (TRAININGS if name in ("one worker", "stacked", "on a GPU") else [TRAININGS[0], TRAININGS[-1]])
    ],
)
def test_a_round_equals_a_plain_loop(make: Maker, training: dict[str, Any]) -> None:
    with digits(make, **training) as learner:
        check_against_a_plain_loop(learner, DIGITS, [cohort(learner, 3)])


@pytest.mark.parametrize("hidden", [0, 5])
@pytest.mark.parametrize("training", TRAININGS, ids=str)
def test_a_round_of_numpy_equals_a_plain_loop(hidden: int, training: dict[str, Any]) -> None:
    learner = NumpyLearner(DIGITS, Training(**training), hidden=hidden)
    check_against_a_plain_loop(learner, DIGITS, [cohort(learner, 3)])


@pytest.mark.parametrize(
    ("maker", "name"),
    [
        ("one worker", "fashion-mnist"),
        pytest.param("one worker", "cifar-10", marks=pytest.mark.thorough),
        pytest.param("stacked", "fashion-mnist", marks=pytest.mark.thorough),
        ("stacked", "cifar-10"),
        ("on a GPU", "fashion-mnist"),
        ("on a GPU", "cifar-10"),
    ],
)
def test_training_of_the_papers_networks_equals_a_plain_loop(maker: str, name: str) -> None:
    if maker not in MAKERS:
        pytest.skip("this machine has no GPU")
    whole = noise(name)
    data = replace(whole, train_images=whole.train_images[:20].copy(), train_labels=whole.train_labels[:20].copy())
    with closing(MAKERS[maker](data, paper_network(data), Training(batch_size=3, learning_rate=0.1))) as learner:
        check_against_a_plain_loop(learner, data, [cohort(learner, 2, held=5, data=data)])


@every_learner
def test_cohorts_of_different_sizes_train_in_one_call_and_smaller_rounds_after_larger_ones(make: Maker) -> None:
    """Data of other clients from the larger round must not affect the smaller one."""
    with digits(make, batch_size=8) as learner:
        for sizes in ([5, 0, 1, 13, 2], [3], [9, 1], [3]):
            check_against_a_plain_loop(learner, DIGITS, [cohort(learner, size, seed=size) for size in sizes])


@every_learner_and_numpy
def test_without_clients_or_cohorts_the_weights_stay_the_same(make: Maker) -> None:
    with digits(make) as learner:
        assert learner.train([]) == []
        empty = cohort(learner, 0)
        (result,) = learner.train([empty])
        assert np.array_equal(learner.saved(result.weights), learner.saved(empty.weights))
        assert len(result.losses) == len(result.finite) == 0


@every_learner_and_numpy
def test_a_result_does_not_depend_on_other_cohorts(make: Maker) -> None:
    with digits(make) as learner:
        tested, others = cohort(learner, 3), [cohort(learner, size, seed=size) for size in (7, 0, 4)]
        alone = learner.train([tested])[0]
        batched = learner.train([*others[:2], tested, others[2]])[2]
        np.testing.assert_allclose(learner.saved(batched.weights), learner.saved(alone.weights), rtol=0, atol=1e-14)
        np.testing.assert_allclose(batched.losses, alone.losses, rtol=1e-14)


@every_learner_and_numpy
def test_training_does_not_modify_its_input_weights(make: Maker) -> None:
    with digits(make, momentum=0.9) as learner:
        trained = cohort(learner, 2)
        before = learner.saved(trained.weights)
        first = learner.train([trained])[0]
        kept = learner.saved(first.weights)
        assert np.array_equal(learner.saved(trained.weights), before)
        learner.train([cohort(learner, 5, seed=1)])
        assert np.array_equal(learner.saved(first.weights), kept)


# Divergence.

#: A learning rate of 1e200 makes a model diverge unless its gradient is 0: a model that is certain of class 0 has no
#: gradient on images of that class, and only decays.
EXTREME = {"learning_rate": 1e200, "weight_decay": 1e-201, "batch_size": 2}


def certain_of_class_0(learner: Learner) -> Any:
    weights = NETWORK.initial_weights(0)
    weights[-10] = 1e6
    return learner.loaded(weights)


def orders_of_class(label: int, group: int) -> IntArray:
    """Returns the orders of one client that holds six images of this class only."""
    return np.flatnonzero(label == DIGITS.train_labels)[None, None, 6 * group : 6 * group + 6]


@every_learner
def test_a_diverged_client_is_excluded_from_the_average(make: Maker) -> None:
    with digits(make, **EXTREME) as learner:
        start = certain_of_class_0(learner)
        orders = np.concatenate(
            [orders_of_class(0, 0), orders_of_class(3, 0), orders_of_class(0, 1), orders_of_class(5, 0)]
        )
        other = cohort(learner, 3, held=6)
        mixed = Cohort(start, orders, np.array([1.0, 5.0, 2.0, 5.0]))
        result, diverged, again = learner.train([mixed, other, mixed])
        assert result.finite.tolist() == again.finite.tolist() == [True, False, True, False]
        assert np.isnan(result.losses).tolist() == [False, True, False, True]
        assert not diverged.finite.any()
        without = learner.train([Cohort(start, orders[[0, 2]], np.array([1.0, 2.0]))])[0]
        assert without.finite.all()
        weights = learner.saved(result.weights)
        assert_close(weights, learner.saved(without.weights))
        assert_close(learner.saved(again.weights), weights)
        assert_close(weights, 0.9**3 * learner.saved(start))


@every_learner_and_numpy
def test_if_all_clients_diverge_the_weights_stay_the_same(make: Maker) -> None:
    with digits(make, **EXTREME) as learner:
        diverging = cohort(learner, 4, held=8)
        (result,) = learner.train([diverging])
        assert result.finite.tolist() == [False] * 4
        assert np.isnan(result.losses).all()
        assert np.array_equal(learner.saved(result.weights), learner.saved(diverging.weights))


@every_learner
def test_a_client_that_diverges_in_its_last_step_is_detected(make: Maker) -> None:
    """The loss is computed before the step and is finite."""
    with digits(make, learning_rate=1e308, weight_decay=1.0) as learner:
        start = certain_of_class_0(learner)
        (result,) = learner.train([Cohort(start, orders_of_class(0, 0), np.ones(1))])
        assert result.finite.tolist() == [False]
        assert np.isnan(result.losses).tolist() == [True]
        assert np.array_equal(learner.saved(result.weights), learner.saved(start))


# Accuracy.


@every_learner_and_numpy
def test_accuracy_is_the_share_of_correct_predictions(make: Maker) -> None:
    """Uses enough images and models to need several computations."""
    data = replace(DIGITS, test_images=DIGITS.train_images, test_labels=DIGITS.train_labels)
    with closing(make(data, NETWORK, Training(batch_size=10, learning_rate=0.1))) as learner:
        untrained = [learner.initial_weights(seed) for seed in range(9)]
        trained = learner.train([cohort(learner, 2, held=100)])[0].weights
        network, images = reference_for(learner, data)
        expected = []
        for weights in (*untrained, trained):
            module = plain_module(network).double()
            put_weights(module, network, torch.from_numpy(learner.saved(weights)))
            with torch.no_grad():
                predicted = module(images.permute(0, 3, 1, 2)).argmax(dim=1).numpy()
            expected.append(float((predicted == data.test_labels).sum() / len(data.test_labels)))
        assert learner.evaluate([*untrained, trained]) == expected
        assert expected[-1] > expected[0]  # those of the weights that were trained
        assert len(set(expected)) > 3
        assert learner.evaluate([]) == []


# Precision, settings, checkpoints.


def test_products_in_bfloat16_give_nearly_the_result_of_float32() -> None:
    ends = {}
    precisions: tuple[Precision, Precision] = ("float32", "bfloat16")
    for precision in precisions:
        learner = StackedLearner(DIGITS, NETWORK, Training(batch_size=8), precision=precision)
        trained = cohort(learner, 4, held=80)
        (result,) = learner.train([trained])
        ends[precision] = learner.saved(result.weights)
        assert ends[precision].dtype == np.float32
        assert result.losses.dtype == np.float64
    distance = np.linalg.norm(ends["bfloat16"] - ends["float32"])
    assert 0 < distance < 0.1 * np.linalg.norm(ends["float32"] - learner.saved(trained.weights))


@every_learner_and_numpy
def test_saving_and_loading_copy_the_weights_and_those_of_another_model_are_rejected(make: Maker) -> None:
    with digits(make) as learner:
        weights = learner.initial_weights(0)
        saved, expected = learner.saved(weights), learner.saved(weights)
        loaded = learner.loaded(saved)
        saved[:] = 0
        assert np.array_equal(learner.saved(loaded), expected)
        assert np.array_equal(learner.saved(weights), expected)
        count = learner.network.parameters
        for wrong in (np.zeros(count - 1), np.zeros((1, count)), np.zeros(count, dtype=np.int64), np.full(count, "0")):
            with pytest.raises(
                StateError, match=f"has {count} floating-point parameters: they belong to another model"
            ):
                learner.loaded(wrong)


@pytest.mark.parametrize("make", [cnn_learner, StackedLearner])
def test_weights_are_float32_by_default(make: Any) -> None:
    learner = make(DIGITS, NETWORK)
    assert learner.saved(learner.initial_weights(0)).dtype == np.float32
    assert learner.training == Training()


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (cnn_learner, {"workers": 0}, "workers must be at least 1, not 0"),
        (cnn_learner, {"precision": "bfloat16"}, "precision on a CPU must be float32 or float64, not 'bfloat16'"),
        (StackedLearner, {"precision": "float16"}, "precision must be float64, float32 or bfloat16, not 'float16'"),
        (StackedLearner, {"stack": 0}, "stack must be at least 1, not 0"),
        (StackedLearner, {"device": "nonsense"}, "there is no device 'nonsense'"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_invalid_learner_settings_are_rejected(make: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        make(DIGITS, NETWORK, **settings)


def test_training_in_this_process_restores_the_number_of_threads() -> None:
    torch.set_num_threads(2)
    with digits(MAKERS["one worker"]) as learner:
        learner.train([cohort(learner, 1)])
        learner.evaluate([learner.initial_weights(0)])
    assert torch.get_num_threads() == 2


# Processes.


def start_workers(learner: Learner) -> list[int]:
    """Makes the learner start its workers, and returns the ids of new processes."""
    before = trainers()
    learner.evaluate([learner.initial_weights(0)])
    return sorted(trainers() - before)


@every_learner_and_numpy
def test_a_learner_can_be_closed_twice_and_used_again(make: Maker) -> None:
    with digits(make) as learner:
        learner.close()
        first = learner.train([cohort(learner, 2)])[0]
        learner.close()
        learner.close()
        again = learner.train([cohort(learner, 2)])[0]
        assert np.array_equal(learner.saved(again.weights), learner.saved(first.weights))


@forking
def test_a_closed_or_collected_learner_has_no_processes() -> None:
    learner: Learner | None = torch_learner(2)(DIGITS, NETWORK, Training())
    assert learner is not None
    workers = start_workers(learner)
    assert len(workers) == 2
    learner.close()
    assert all(gone(worker) for worker in workers)
    workers = start_workers(learner)
    assert not any(gone(worker) for worker in workers)
    learner = None
    gc.collect()
    wait_until_gone(workers)


@forking
def test_a_killed_worker_is_reported_and_the_learner_can_be_used_again() -> None:
    with digits(torch_learner(2)) as learner:
        expected = learner.train([cohort(learner, 2)])[0]
        learner.close()
        workers = start_workers(learner)
        killer = threading.Timer(0.2, os.kill, (workers[0], signal.SIGKILL))
        killer.start()
        orders = np.tile(random_orders(2, held=1400), (1, 1000, 1))
        endless = Cohort(learner.initial_weights(0), orders, np.ones(2))
        with pytest.raises(TrainingError, match=r"a training process ended abruptly .* start again with fewer workers"):
            learner.train([endless])
        killer.join()
        with pytest.raises(TrainingError, match="a training process ended abruptly"):
            learner.train([endless])
        learner.close()
        wait_until_gone(workers)
        again = learner.train([cohort(learner, 2)])[0]
        assert np.array_equal(again.weights, expected.weights)


@forking
def test_workers_ignore_an_interrupt() -> None:
    """Ctrl-C reaches every process of a terminal; a worker that died of it would print a traceback."""
    with digits(torch_learner(2)) as learner:
        workers = start_workers(learner)
        for worker in workers:
            (blocked,) = re.findall(r"^SigBlk:\s(\w+)$", Path(f"/proc/{worker}/status").read_text(), re.MULTILINE)
            assert int(blocked, 16) & 1 << signal.SIGINT - 1  # since its first instruction
            os.kill(worker, signal.SIGINT)
        check_against_a_plain_loop(learner, DIGITS, [cohort(learner, 4)])
        assert not any(gone(worker) for worker in workers)


def train_forever(pipe: Connection) -> None:
    """Starts the workers of two learners, sends their ids, and trains with one of the learners."""
    idle, busy = (cnn_learner(DIGITS, NETWORK, workers=2) for _ in range(2))
    weights = idle.initial_weights(0)
    idle.evaluate([weights])
    busy.evaluate([weights])
    pipe.send([worker.pid for worker in multiprocessing.active_children()])
    while True:
        busy.train([Cohort(weights, np.arange(1400).reshape(2, 1, 700), np.ones(2))])


@forking
def test_workers_do_not_outlive_a_killed_parent() -> None:
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    parent = context.Process(target=train_forever, args=(sending,), name="parent of workers")
    parent.start()
    sending.close()
    workers: list[int] = []
    try:
        workers = receiving.recv()
        assert len(workers) == 4
        assert not any(gone(worker) for worker in workers)
        parent.kill()
        parent.join()
        assert parent.exitcode == -signal.SIGKILL
        wait_until_gone(workers)
    finally:
        parent.kill()
        for worker in workers:
            if not gone(worker):
                os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize(
    "message", ["autograd's threading in combination with fork-based multiprocessing", "another failure"]
)
def test_if_torch_refuses_forked_processes_the_error_states_a_remedy(
    monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(torch.autograd, "grad", refuse)
    with digits(torch_learner(2)) as learner:
        expected = "Use workers=1" if "fork" in message else message
        with pytest.raises(TrainingError, match=expected):
            learner.train([cohort(learner, 2)])
