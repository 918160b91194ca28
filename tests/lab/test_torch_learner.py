"""Both torch learners against a plain loop over torch's own modules; and what becomes of the processes of one."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from benchmarks.plain_training import PlainRound, plain_module, put_weights
from lab.processes import all_gone_soon, gone, trainers
from turnout.bench.training import noise
from turnout.errors import SettingError, StateError, TrainingError
from turnout.kernel.arrays import IntArray
from turnout.lab import Cohort, Dataset, Learner, Training, TrainingResult, load_dataset
from turnout.lab.learners.networks import Network, paper_network
from turnout.lab.learners.stacked_learner import Precision, StackedLearner
from turnout.lab.learners.torch_learner import SMALLEST_ROOM, TorchLearner

DIGITS = load_dataset("digits")
NETWORK = paper_network(DIGITS)

Maker = Callable[[Dataset, Network, Training], Learner]


def by_torch(workers: int) -> Maker:
    return lambda data, network, how: TorchLearner(data, network, how, workers=workers, precision="float64")


def stacked(device: str, stack: int = 128) -> Maker:
    return lambda data, network, how: StackedLearner(
        data, network, how, device=device, precision="float64", stack=stack
    )


ALL: dict[str, Maker] = {
    "one worker": by_torch(1),
    "stacked": stacked("cpu"),
    "in turns": stacked("cpu", stack=8),
}
if torch.cuda.is_available():
    ALL |= {"on a GPU": stacked("cuda"), "on a GPU in turns": stacked("cuda", stack=8)}
else:
    ALL |= {"two workers": by_torch(2)}

forking = pytest.mark.skipif(torch.cuda.is_available(), reason="torch forks no more once a plain loop ran beside a GPU")
every_learner = pytest.mark.parametrize("make", ALL.values(), ids=ALL)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads that wait for each other take turns badly with the tests beside them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_alike(given: npt.ArrayLike, expected: npt.ArrayLike) -> None:
    np.testing.assert_allclose(np.asarray(given, float), np.asarray(expected, float), rtol=1e-11, atol=1e-12)


def digits(make: Maker, **training: Any) -> closing[Learner]:
    """A learner of the digits, closed in the end."""
    return closing(make(DIGITS, NETWORK, Training(**training)))


def drawn(clients: int, *, epochs: int = 1, held: int = 11, seed: int = 0, data: Dataset = DIGITS) -> IntArray:
    rng = np.random.default_rng(seed)
    orders = [[rng.permutation(len(data.train_labels))[:held] for _ in range(epochs)] for _ in range(clients)]
    return np.array(orders, dtype=np.int64).reshape(clients, epochs, held)


def cohort(learner: Learner, clients: int, *, seed: int = 0, **drawing: Any) -> Cohort:
    """Clients with fresh weights of this seed, each of another share."""
    orders = drawn(clients, seed=seed, epochs=learner.training.epochs, **drawing)
    return Cohort(learner.initial_weights(seed), orders, np.arange(1.0, clients + 1))


def scaled(data: Dataset) -> torch.Tensor:
    images = data.train_images
    return torch.from_numpy((images - images.mean()) / images.std())


def check_against_a_plain_loop(learner: Learner, data: Dataset, cohorts: Sequence[Cohort]) -> list[TrainingResult]:
    """Client by client: a plain round of one client is its model."""
    plain = PlainRound(learner.network, learner.training, scaled(data), torch.tensor(data.train_labels).long())
    given = learner.train(cohorts)
    assert len(given) == len(cohorts)
    for taught, asked in zip(given, cohorts, strict=True):
        start = torch.from_numpy(learner.saved(asked.weights))
        alone = [plain.train(start, asked.orders[place : place + 1]) for place in range(len(asked.orders))]
        expected = start.numpy()
        if alone:
            expected = np.average([model.numpy() for model, _ in alone], axis=0, weights=asked.shares)
            assert np.abs(expected - start.numpy()).max() > 1e-4
        assert_alike(learner.saved(taught.weights), expected)
        assert_alike(taught.losses, [loss for _, (loss,) in alone])
        assert taught.finite.tolist() == [True] * len(alone)
    return given


TRAININGS = [
    {},
    {"momentum": 0.9, "batch": 4},
    {"weight_decay": 0.1, "batch": 6},
    {"proximal": 0.7, "batch": 3},
    {"epochs": 2, "batch": 4},
    {"epochs": 2, "batch": 5, "rate": 0.1, "momentum": 0.5, "weight_decay": 0.01, "proximal": 0.2},
]


@every_learner
@pytest.mark.parametrize("how", TRAININGS, ids=str)
def test_a_round_is_what_a_plain_loop_gives(make: Maker, how: dict[str, Any]) -> None:
    with digits(make, **how) as learner:
        check_against_a_plain_loop(learner, DIGITS, [cohort(learner, 3)])


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar-10"])
@pytest.mark.parametrize("maker", ["one worker", "stacked", "on a GPU"])
def test_the_papers_networks_train_as_a_plain_loop_does(name: str, maker: str) -> None:
    if maker not in ALL:
        pytest.skip("there is no GPU here")
    whole = noise(name)
    data = replace(whole, train_images=whole.train_images[:20].copy(), train_labels=whole.train_labels[:20].copy())
    with closing(ALL[maker](data, paper_network(data), Training(batch=3, rate=0.1))) as learner:
        check_against_a_plain_loop(learner, data, [cohort(learner, 2, held=5, data=data)])


@every_learner
def test_cohorts_of_any_size_train_at_once(make: Maker) -> None:
    with digits(make, batch=8) as learner:
        sizes = [5, 0, 1, 13, 2]
        check_against_a_plain_loop(learner, DIGITS, [cohort(learner, size, seed=size) for size in sizes])


@every_learner
def test_a_learner_trains_once_many_and_then_few(make: Maker) -> None:
    """What is left from a larger round, of other clients, is not counted in a smaller one."""
    with digits(make) as learner:
        for sizes in ([12], [3], [9, 1], [3]):
            check_against_a_plain_loop(learner, DIGITS, [cohort(learner, size, seed=size) for size in sizes])


@every_learner
def test_without_clients_or_cohorts_nothing_changes(make: Maker) -> None:
    with digits(make) as learner:
        assert learner.train([]) == []
        nobody = cohort(learner, 0)
        (taught,) = learner.train([nobody])
        assert np.array_equal(learner.saved(taught.weights), learner.saved(nobody.weights))
        assert len(taught.losses) == len(taught.finite) == 0


@every_learner
def test_who_else_trains_changes_nothing(make: Maker) -> None:
    with digits(make) as learner:
        mine, others = cohort(learner, 3), [cohort(learner, size, seed=size) for size in (7, 0, 4)]
        alone = learner.train([mine])[0]
        beside = learner.train([*others[:2], mine, others[2]])[2]
        np.testing.assert_allclose(learner.saved(beside.weights), learner.saved(alone.weights), rtol=0, atol=1e-14)
        np.testing.assert_allclose(beside.losses, alone.losses, rtol=1e-14)


@forking
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_number_of_workers_changes_not_a_bit(precision: str) -> None:
    results = []
    for workers in (1, 2, 3):
        learner = TorchLearner(DIGITS, NETWORK, Training(momentum=0.9), workers=workers, precision=precision)
        with closing(learner):
            taught = learner.train([cohort(learner, 5), cohort(learner, 0), cohort(learner, 2, seed=1)])
            accuracies = learner.evaluate([one.weights for one in taught])
            results.append([(one.weights.tobytes(), one.losses.tobytes()) for one in taught] + [tuple(accuracies)])
    assert results[0] == results[1] == results[2]


@forking
def test_by_torch_who_else_trains_changes_not_a_bit() -> None:
    with closing(TorchLearner(DIGITS, NETWORK, workers=2)) as learner:
        mine = cohort(learner, 3)
        alone = learner.train([mine])[0]
        beside = learner.train([cohort(learner, 70, seed=1), mine])[1]
        assert beside.weights.tobytes() == alone.weights.tobytes()
        assert beside.losses.tobytes() == alone.losses.tobytes()


@forking
def test_more_clients_than_there_was_room_for_are_given_more() -> None:
    with closing(by_torch(2)(DIGITS, NETWORK, Training())) as learner:
        first = workers_of(learner)
        check_against_a_plain_loop(learner, DIGITS, [cohort(learner, 2, held=4)])
        assert not any(gone(worker) for worker in first)
        check_against_a_plain_loop(learner, DIGITS, [cohort(learner, SMALLEST_ROOM + 1, held=4)])
        assert len(first) == 2
        assert all(gone(worker) for worker in first)
        assert workers_of(learner) == []  # the new ones stay
        check_against_a_plain_loop(learner, DIGITS, [cohort(learner, 3, held=4)])


@every_learner
def test_training_leaves_the_weights_it_was_given_as_they_were(make: Maker) -> None:
    with digits(make, momentum=0.9) as learner:
        asked = cohort(learner, 2)
        before = learner.saved(asked.weights)
        first = learner.train([asked])[0]
        kept = learner.saved(first.weights)
        assert np.array_equal(learner.saved(asked.weights), before)
        learner.train([cohort(learner, 5, seed=1)])
        assert np.array_equal(learner.saved(first.weights), kept)


# Divergence.

#: A step of 1e200 is the end, unless there is nothing to step for: a model that is sure of class 0 has no slope on
#: images of that class, and decays.
EXTREME = {"rate": 1e200, "weight_decay": 1e-201, "batch": 2}


def sure_of_class_0(learner: Learner) -> Any:
    weights = NETWORK.initial_weights(0)
    weights[-10] = 1e6
    return learner.loaded(weights)


def holding(label: int, place: int) -> IntArray:
    """One client that holds six images of this class and no others."""
    return np.flatnonzero(label == DIGITS.train_labels)[None, None, 6 * place : 6 * place + 6]


@every_learner
def test_a_client_that_diverges_is_not_averaged(make: Maker) -> None:
    with digits(make, **EXTREME) as learner:
        start = sure_of_class_0(learner)
        orders = np.concatenate([holding(0, 0), holding(3, 0), holding(0, 1), holding(5, 0)])
        beside = cohort(learner, 3, held=6)
        asked = Cohort(start, orders, np.array([1.0, 5.0, 2.0, 5.0]))
        taught, lost, again = learner.train([asked, beside, asked])
        assert taught.finite.tolist() == again.finite.tolist() == [True, False, True, False]
        assert np.isnan(taught.losses).tolist() == [False, True, False, True]
        assert not lost.finite.any()
        without = learner.train([Cohort(start, orders[[0, 2]], np.array([1.0, 2.0]))])[0]
        assert without.finite.all()
        weights = learner.saved(taught.weights)
        assert_alike(weights, learner.saved(without.weights))
        assert_alike(learner.saved(again.weights), weights)
        assert_alike(weights, 0.9**3 * learner.saved(start))


@every_learner
def test_where_everyone_diverges_the_weights_stay(make: Maker) -> None:
    with digits(make, **EXTREME) as learner:
        asked = cohort(learner, 4, held=8)
        (taught,) = learner.train([asked])
        assert taught.finite.tolist() == [False] * 4
        assert np.isnan(taught.losses).all()
        assert np.array_equal(learner.saved(taught.weights), learner.saved(asked.weights))


@every_learner
def test_a_client_whose_very_last_step_is_too_long_is_told_too(make: Maker) -> None:
    """Its loss was measured before the step, and is a number."""
    with digits(make, rate=1e308, weight_decay=1.0) as learner:
        start = sure_of_class_0(learner)
        (taught,) = learner.train([Cohort(start, holding(0, 0), np.ones(1))])
        assert taught.finite.tolist() == [False]
        assert np.isnan(taught.losses).tolist() == [True]
        assert np.array_equal(learner.saved(taught.weights), learner.saved(start))


# Accuracy.


@every_learner
def test_accuracy_is_the_share_of_images_that_are_told_right(make: Maker) -> None:
    """So many test images that they are looked at in several parts, and so many models that they are too."""
    data = replace(DIGITS, test_images=DIGITS.train_images, test_labels=DIGITS.train_labels)
    with closing(make(data, NETWORK, Training(batch=10, rate=0.1))) as learner:
        fresh = [learner.initial_weights(seed) for seed in range(9)]
        trained = learner.train([cohort(learner, 2, held=100)])[0].weights
        by_hand = []
        for weights in (*fresh, trained):
            module = plain_module(NETWORK).double()
            put_weights(module, NETWORK, torch.from_numpy(learner.saved(weights)))
            with torch.no_grad():
                likeliest = module(scaled(data).permute(0, 3, 1, 2)).argmax(dim=1).numpy()
            by_hand.append(float((likeliest == data.test_labels).sum() / len(data.test_labels)))
        assert learner.evaluate([*fresh, trained]) == by_hand
        assert by_hand[-1] > max(by_hand[:-1])
        assert len(set(by_hand)) > 3
        assert learner.evaluate([]) == []


# Precision, settings, checkpoints.


def test_products_in_bfloat16_lead_nearly_where_those_in_float32_do() -> None:
    ends = {}
    precisions: tuple[Precision, Precision] = ("float32", "bfloat16")
    for precision in precisions:
        learner = StackedLearner(DIGITS, NETWORK, Training(batch=8), precision=precision)
        asked = cohort(learner, 4, held=80)
        (taught,) = learner.train([asked])
        ends[precision] = learner.saved(taught.weights)
        assert ends[precision].dtype == np.float32
        assert taught.losses.dtype == np.float64
    apart = np.linalg.norm(ends["bfloat16"] - ends["float32"])
    assert 0 < apart < 0.1 * np.linalg.norm(ends["float32"] - learner.saved(asked.weights))


@every_learner
def test_saved_weights_come_back_as_copies(make: Maker) -> None:
    with digits(make) as learner:
        weights = learner.initial_weights(0)
        saved = learner.saved(weights)
        assert np.array_equal(saved, NETWORK.initial_weights(0))
        loaded = learner.loaded(saved)
        saved[:] = 0
        assert np.array_equal(learner.saved(loaded), NETWORK.initial_weights(0))
        assert np.array_equal(learner.saved(weights), NETWORK.initial_weights(0))


@every_learner
def test_weights_of_another_model_are_refused(make: Maker) -> None:
    with digits(make) as learner:
        for wrong in (np.zeros(NETWORK.parameters - 1), np.zeros(NETWORK.parameters, dtype=np.int64)):
            with pytest.raises(StateError, match=f"this network has {NETWORK.parameters} numbers"):
                learner.loaded(wrong)


@pytest.mark.parametrize("make", [TorchLearner, StackedLearner])
def test_weights_are_kept_in_float32_unless_asked_otherwise(make: Any) -> None:
    learner = make(DIGITS, NETWORK)
    assert learner.saved(learner.initial_weights(0)).dtype == np.float32
    assert learner.training == Training()


@pytest.mark.parametrize(
    ("make", "wrong", "complaint"),
    [
        (TorchLearner, {"workers": 0}, "workers must be at least 1, not 0"),
        (TorchLearner, {"precision": "bfloat16"}, "precision on a CPU must be float32 or float64, not 'bfloat16'"),
        (StackedLearner, {"precision": "float16"}, "precision must be float64, float32 or bfloat16, not 'float16'"),
        (StackedLearner, {"stack": 7}, "stack must be at least 8, not 7"),
        (StackedLearner, {"device": "nonsense"}, "there is no device 'nonsense'"),
    ],
    ids=str,
)
def test_a_learner_that_cannot_be_is_refused(make: Any, wrong: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        make(DIGITS, NETWORK, **wrong)


def test_training_here_gives_torch_its_threads_back() -> None:
    torch.set_num_threads(2)
    with digits(ALL["one worker"]) as learner:
        learner.train([cohort(learner, 1)])
        learner.evaluate([learner.initial_weights(0)])
    assert torch.get_num_threads() == 2


# Processes.


def workers_of(learner: Learner) -> list[int]:
    """The processes it has, once it has worked."""
    before = trainers()
    learner.evaluate([learner.initial_weights(0)])
    return sorted(trainers() - before)


@every_learner
def test_a_learner_may_be_closed_twice_and_used_again(make: Maker) -> None:
    with digits(make) as learner:
        learner.close()
        first = learner.train([cohort(learner, 2)])[0]
        learner.close()
        learner.close()
        again = learner.train([cohort(learner, 2)])[0]
        assert np.array_equal(learner.saved(again.weights), learner.saved(first.weights))


@forking
def test_a_closed_learner_has_no_processes() -> None:
    with digits(by_torch(2)) as learner:
        workers = workers_of(learner)
        assert len(workers) == 2
        assert not any(gone(worker) for worker in workers)
        learner.close()
        assert all(gone(worker) for worker in workers)


@forking
def test_a_learner_that_is_forgotten_has_no_processes_either() -> None:
    learner: Learner | None = by_torch(2)(DIGITS, NETWORK, Training())
    assert learner is not None
    workers = workers_of(learner)
    assert len(workers) == 2
    learner = None
    gc.collect()
    assert all_gone_soon(workers)


@forking
def test_a_worker_that_is_killed_is_told_and_the_learner_goes_on_with_others() -> None:
    with digits(by_torch(2)) as learner:
        expected = learner.train([cohort(learner, 2)])[0]
        learner.close()
        workers = workers_of(learner)
        killer = threading.Timer(0.2, os.kill, (workers[0], signal.SIGKILL))
        killer.start()
        orders = np.tile(drawn(2, held=1400), (1, 1000, 1))
        endless = Cohort(learner.initial_weights(0), orders, np.ones(2))
        with pytest.raises(TrainingError, match=r"a training process ended abruptly .* start again with fewer workers"):
            learner.train([endless])
        killer.join()
        with pytest.raises(TrainingError, match="a training process ended abruptly"):
            learner.train([endless])
        learner.close()
        assert all_gone_soon(workers)
        again = learner.train([cohort(learner, 2)])[0]
        assert np.array_equal(again.weights, expected.weights)


@forking
def test_an_interrupt_is_for_the_parent_alone() -> None:
    """Ctrl-C reaches every process of a terminal, and a worker that died of it would tell so at length."""
    with digits(by_torch(2)) as learner:
        workers = workers_of(learner)
        for worker in workers:
            os.kill(worker, signal.SIGINT)
        check_against_a_plain_loop(learner, DIGITS, [cohort(learner, 4)])
        assert not any(gone(worker) for worker in workers)


ORPHANS = """
import multiprocessing
import numpy as np
from turnout.lab import Cohort, load_dataset
from turnout.lab.learners.networks import paper_network
from turnout.lab.learners.torch_learner import TorchLearner
digits = load_dataset("digits")
idle, busy = (TorchLearner(digits, paper_network(digits), workers=2) for _ in range(2))
weights = idle.initial_weights(0)
idle.evaluate([weights])
busy.evaluate([weights])
print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
while True:
    busy.train([Cohort(weights, np.arange(1400).reshape(2, 1, 700), np.ones(2))])
"""


def test_workers_do_not_outlive_a_killed_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        try:
            assert len(workers) == 4
            assert not any(gone(worker) for worker in workers)
            parent.kill()
            assert parent.wait(timeout=20) == -signal.SIGKILL
            assert all_gone_soon(workers)
        finally:
            parent.kill()
            for worker in workers:
                if not gone(worker):
                    os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize(
    "words", ["autograd's threading in combination with fork-based multiprocessing", "other trouble"]
)
def test_where_torch_refuses_forked_processes_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError(words)

    monkeypatch.setattr(torch.autograd, "grad", refuse)
    with digits(by_torch(2)) as learner:
        expected = (TrainingError, "give workers=1") if "fork" in words else (RuntimeError, words)
        with pytest.raises(expected[0], match=expected[1]):
            learner.train([cohort(learner, 2)])
