"""Models of one's own: every way of training gives the same weights, and wrong input is explained."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from lab.training.processes import forking
from turnout import make_policy
from turnout.errors import SettingError, StateError, TrainingError
from turnout.lab import (
    Cohort,
    PaperWorld,
    Partition,
    RunPlan,
    RunStore,
    SlotRun,
    TorchTask,
    TraceWorld,
    Training,
    load_task,
    partition,
    play,
    play_plan,
    register_task,
    train_policies,
)
from turnout.lab.training.batched import train_plans
from turnout.lab.training.learner_cache import LearnerCache, training_world
from turnout.lab.training.learners.module_learner import ModuleLearner, StackedModuleLearner, stacking_obstacle
from turnout.lab.training.world import BufferedTraining
from turnout.lab.worlds.registry import LEARNERS

RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(3, 4))
LABELS = RNG.integers(3, size=120)
ROWS = CENTRES[LABELS] + 0.3 * RNG.normal(size=(120, 4))
TRAIN, TEST = (ROWS[:90], LABELS[:90]), (ROWS[90:], LABELS[90:])
CLIENTS = 6
EQUAL = [np.arange(client, 90, CLIENTS) for client in range(CLIENTS)]
RAGGED = [items[: 2 + 2 * client] for client, items in enumerate(EQUAL)]
PLAIN_TRAINING = Training(learning_rate=0.2, batch_size=4)
EVERY_SETTING = Training(epochs=2, batch_size=4, learning_rate=0.2, momentum=0.5, weight_decay=0.05, proximal_mu=0.1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


class Reshaped(nn.Module):
    """Gives rows of four numbers another shape."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, rows: Tensor) -> Tensor:
        return rows.reshape(len(rows), *self.shape)


def convolutional() -> nn.Module:
    return nn.Sequential(
        Reshaped(1, 2, 2),
        nn.Conv2d(1, 4, (2, 3), padding=(2, 1), dilation=(2, 1)),
        nn.GroupNorm(2, 4),
        nn.Conv2d(4, 4, 2, stride=2, padding="valid", groups=2, bias=False),
        nn.Flatten(),
        nn.Linear(8, 3),
    ).double()


def attentive() -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return nn.Sequential(Reshaped(1, 4), layer, nn.Flatten(), nn.Linear(4, 3)).double()


class Tied(nn.Module):
    """Has a shared parameter, a frozen one, and buffers of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)
        self.register_buffer("scale", torch.full((4,), 0.5))
        self.register_buffer("shift", torch.ones(4), persistent=False)
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))
        self.double()

    def forward(self, rows: Tensor) -> Tensor:
        scores: Tensor = self.last(torch.tanh(self.second(self.first(rows) * self.scale + self.shift)))
        return scores


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 3))


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, rows: Tensor) -> Tensor:
        scores: Tensor = self.linear(rows)
        return scores if scores.sum() > 0 else -scores


def make_task(model: Any = mlp, split: Any = EQUAL, training: Training = PLAIN_TRAINING, **settings: Any) -> TorchTask:
    return TorchTask(model, functional.cross_entropy, TRAIN, TEST, split, training=training, **settings)


def cohorts(learner: Any, split: Partition, sizes: tuple[int, ...] = (4, 0, 6), epochs: int = 1) -> list[Cohort]:
    """Returns cohorts with weights of their own."""
    results = []
    for index, size in enumerate(sizes):
        items = split.items[:size]
        orders = np.repeat(items[:, None], epochs, axis=1)
        results.append(Cohort(learner.initial_weights(index), orders, (items >= 0).sum(axis=1).astype(float)))
    return results


def by_hand(task: TorchTask, weights: Any, items: Any) -> tuple[Any, float]:
    """Trains one client by plain formulas, without any code of turnout but the conversion of weights."""
    how, (rows, labels) = task.spec.training, (torch.from_numpy(TRAIN[0]), torch.from_numpy(TRAIN[1]))
    module = task.module(weights).train()
    trained = [value for value in module.parameters() if value.requires_grad]
    start = [value.detach().clone() for value in trained]
    momenta = [torch.zeros_like(value) for value in start]
    losses = []
    for _ in range(how.epochs):
        for first in range(0, len(items), how.batch_size):
            batch = items[first : first + how.batch_size]
            loss = functional.cross_entropy(module(rows[batch]), labels[batch])
            losses.append(float(loss.detach()))
            gradients = torch.autograd.grad(loss, trained)
            with torch.no_grad():
                for value, origin, momentum, gradient in zip(trained, start, momenta, gradients, strict=True):
                    slope = gradient + how.weight_decay * value + how.proximal_mu * (value - origin)
                    momentum.mul_(how.momentum).add_(slope)
                    value.sub_(how.learning_rate * momentum)
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    layers = task.learner(workers=1).network.layers(weights)
    return np.concatenate([named[name].detach().numpy().ravel() for name in layers]), float(np.mean(losses))


def make_learner(kind: str, task: TorchTask) -> Any:
    if kind.startswith("stacked"):
        return StackedModuleLearner(task.spec, stack=3 if kind == "stacked in threes" else 64)
    return ModuleLearner(task.spec, workers=2 if kind == "workers" else 1)


@pytest.mark.parametrize(
    ("split", "model", "training"),
    [
        pytest.param(EQUAL, mlp, PLAIN_TRAINING, id="mlp-equal", marks=pytest.mark.thorough),
        pytest.param(RAGGED, mlp, PLAIN_TRAINING, id="mlp-ragged"),
        pytest.param(EQUAL, convolutional, EVERY_SETTING, id="convolutional-equal"),
        pytest.param(RAGGED, convolutional, EVERY_SETTING, id="convolutional-ragged", marks=pytest.mark.thorough),
        pytest.param(EQUAL, attentive, EVERY_SETTING, id="attentive-equal", marks=pytest.mark.thorough),
        pytest.param(RAGGED, attentive, EVERY_SETTING, id="attentive-ragged"),
    ],
)
def test_a_round_equals_training_by_hand(split: Any, model: Any, training: Training) -> None:
    task = make_task(model, split, training)
    trained: dict[bytes, list[tuple[Any, float]]] = {}  # by the weights at the start, which every kind shares
    for kind in ("plain", "stacked", "stacked in threes"):
        learner = make_learner(kind, task)
        given = cohorts(learner, task.split(CLIENTS), epochs=training.epochs)
        for cohort, result in zip(given, learner.train(given), strict=True):
            start = learner.saved(cohort.weights)
            if start.tobytes() not in trained:
                trained[start.tobytes()] = [by_hand(task, start, items) for items in split[: len(cohort.orders)]]
            alone = trained[start.tobytes()]
            expected = np.average([model for model, _ in alone], axis=0, weights=cohort.shares) if alone else start
            np.testing.assert_allclose(learner.saved(result.weights), expected, rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(result.losses, [loss for _, loss in alone], rtol=1e-10)
            assert result.finite.all()
            assert not alone or np.abs(expected - start).max() > 1e-3
        assert len(trained) == len(given)


@pytest.mark.parametrize("kind", ["plain", "stacked"])
def test_what_is_not_trained_stays_exactly_the_same(kind: str) -> None:
    task = make_task(Tied, RAGGED)
    learner = make_learner(kind, task)
    (cohort,) = cohorts(learner, task.split(CLIENTS), (6,))
    (result,) = learner.train([cohort])
    before, after = (learner.network.layers(learner.saved(w)) for w in (cohort.weights, result.weights))
    assert [name for name in before if (before[name] == after[name]).all()] == ["second.bias", "scale"]
    assert "second.weight" not in before
    expected = np.average(
        [by_hand(task, learner.saved(cohort.weights), items)[0] for items in RAGGED], axis=0, weights=cohort.shares
    )
    np.testing.assert_allclose(learner.saved(result.weights), expected, rtol=1e-10, atol=1e-12)


@forking
@pytest.mark.parametrize("model", [with_dropout, with_batch_norm, convolutional])
def test_the_result_does_not_depend_on_the_number_of_workers(model: Any) -> None:
    """The model was computed in this process before, as a user does who tries it."""
    task = make_task(model, RAGGED)
    results = []
    for kind in ("plain", "workers"):
        with closing(make_learner(kind, task)) as learner:
            trained = learner.train(cohorts(learner, task.split(CLIENTS)))
            scores = learner.evaluate([result.weights for result in trained])
            results.append(
                [(result.weights.tobytes(), result.losses.tobytes()) for result in trained] + [tuple(scores)]
            )
    assert results[0] == results[1]


def test_dropout_depends_on_the_round_and_not_on_other_random_numbers() -> None:
    task = make_task(with_dropout)
    learner = task.learner(workers=1)
    given = cohorts(learner, task.split(CLIENTS))
    torch.manual_seed(1)
    first, expected = learner.train(given)[0].weights, torch.rand(1)
    torch.manual_seed(1)
    assert torch.rand(1) == expected  # training leaves torch's random numbers as they were
    assert (learner.train(given)[0].weights == first).all()
    reversed_order = Cohort(given[0].weights, given[0].orders[:, :, ::-1], given[0].shares)
    assert (learner.train([reversed_order])[0].weights != first).any()


def test_running_statistics_are_averaged() -> None:
    task = make_task(with_batch_norm)
    learner = task.learner(workers=1)
    (cohort,) = cohorts(learner, task.split(CLIENTS), (2,))
    layers = learner.network.layers(learner.train([cohort])[0].weights)
    alone = [learner.train([Cohort(cohort.weights, order[None], np.ones(1))])[0].weights for order in cohort.orders]
    np.testing.assert_allclose(
        layers["1.running_mean"], np.mean([learner.network.layers(w)["1.running_mean"] for w in alone], 0), rtol=1e-5
    )
    assert np.abs(layers["1.running_mean"]).max() > 0


def test_a_model_that_is_not_finite_is_not_averaged() -> None:
    task = make_task(training=Training(learning_rate=1e308, batch_size=4, weight_decay=1e3))
    for kind in ("plain", "stacked"):
        learner = make_learner(kind, task)
        (cohort,) = cohorts(learner, task.split(CLIENTS), (3,))
        (result,) = learner.train([cohort])
        assert not result.finite.any()
        assert np.isnan(result.losses).all()
        assert (learner.saved(result.weights) == learner.saved(cohort.weights)).all()
    for kind in ("plain", "stacked"):
        assert make_learner(kind, make_task()).train([]) == []


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (with_dropout, "it draws random numbers in training, as dropout does"),
        (with_batch_norm, "its BatchNorm changes running statistics in training"),
        (Branching, "its Python code branches on the values of tensors"),
    ],
)
def test_a_model_that_cannot_be_stacked_says_why(model: Any, reason: str) -> None:
    task = make_task(model, method="stacked")
    with pytest.raises(SettingError, match=f"the model cannot be trained stacked: {reason}"):
        task.learner()
    assert isinstance(make_task(model).learner(workers=1), ModuleLearner)


def test_only_a_mean_over_items_can_be_padded() -> None:
    def total(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="sum")

    equal = TorchTask(mlp, total, TRAIN, TEST, EQUAL, training=PLAIN_TRAINING)
    assert stacking_obstacle(equal.spec, device="cpu", padded=False) is None
    assert "the loss must be a mean over the items" in str(stacking_obstacle(equal.spec, device="cpu", padded=True))


def test_without_a_way_to_stack_one_message_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine without a GPU is made to believe that it has one."""
    monkeypatch.setattr("turnout.lab.training.learners.devices.usable_device", lambda _: "cuda")
    with caplog.at_level(logging.WARNING):
        assert isinstance(make_task().learner(workers=1), StackedModuleLearner)
        assert not caplog.messages
        assert isinstance(make_task(with_batch_norm).learner(workers=1), ModuleLearner)
    (message,) = caplog.messages
    assert message.startswith("the clients train one after the other, because the model cannot be stacked: its Batch")


def play_rounds(world: Any, rounds: int, *, first: int = 1, policy: Any = None) -> Any:
    chosen = make_policy("random", CLIENTS, cohort_size=3) if policy is None else policy
    return list(play(chosen, world, rounds, first=first))


@pytest.mark.parametrize("method", ["plain", "stacked"])
def test_a_task_learns_in_a_world_and_resumes(method: Any) -> None:
    task = make_task(split=RAGGED, method=method)

    def new_world() -> Any:
        return task.world(PaperWorld(0, clients=CLIENTS), seed=3, evaluate_every=2, workers=1)

    whole, stopped = new_world(), new_world()
    records = play_rounds(whole, 8)
    assert [("accuracy" in record.report.metrics) for record in records] == [False, True] * 4
    assert records[-1].report.metrics["accuracy"] > 0.6
    play_rounds(stopped, 5)
    resumed = new_world()
    resumed.restore(stopped.state())
    play_rounds(resumed, 8, first=6)
    save = whole.federation.learner.saved
    assert (save(resumed.weights) == save(whole.weights)).all()


def test_a_task_trains_in_traces_and_without_rounds() -> None:
    task = make_task(split=RAGGED)
    in_traces = task.world(TraceWorld(0, clients=CLIENTS), workers=1)
    assert "accuracy" in play_rounds(in_traces, 2)[-1].report.metrics
    world = task.world(PaperWorld(0, clients=CLIENTS), updates_per_version=2, workers=1)
    policy = make_policy("random", CLIENTS, cohort_size=1)
    records = list(SlotRun(policy, world, 3).play(8))
    assert max(record.report.metrics["version"] for record in records) >= 3
    with pytest.raises(SettingError, match="discount can be set for training without rounds only"):
        task.world(PaperWorld(0, clients=CLIENTS), discount=0.1)


def test_the_seed_determines_the_weights_of_a_built_model_and_a_given_one_is_copied() -> None:
    learner = make_task().learner(workers=1)
    assert (learner.initial_weights(1) == learner.initial_weights(1)).all()
    assert (learner.initial_weights(1) != learner.initial_weights(2)).any()
    given = mlp()
    expected = given[0].weight.detach().numpy().copy()  # type: ignore[index]
    task = make_task(given)
    learner = task.learner(workers=1)
    assert (learner.initial_weights(1) == learner.initial_weights(2)).all()
    learner.train(cohorts(learner, task.split(CLIENTS)))
    assert (given[0].weight.detach().numpy() == expected).all()  # type: ignore[index]
    assert (learner.network.layers(learner.initial_weights(5))["0.weight"] == expected).all()


def test_the_model_of_a_run_is_a_module() -> None:
    task = make_task()
    learner = task.learner(workers=1)
    weights = learner.initial_weights(4)
    module = task.module(weights)
    predicted = module(torch.from_numpy(TEST[0])).argmax(dim=1).numpy()
    assert learner.evaluate([weights]) == [float((predicted == TEST[1]).mean())]
    with pytest.raises(StateError, match="belong to another model"):
        task.module(weights[1:])


class Pairs(Dataset[tuple[Any, int]]):
    def __len__(self) -> int:
        return 90

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return TRAIN[0][index], int(TRAIN[1][index])


def test_data_may_be_arrays_tensors_or_datasets() -> None:
    tensors = tuple(map(torch.from_numpy, TRAIN))
    for given in (TRAIN, list(TRAIN), tensors, TensorDataset(*tensors), Pairs()):
        task = TorchTask(mlp, functional.cross_entropy, given, TEST, EQUAL)
        assert (task.spec.train_set[0] == tensors[0]).all()
        assert (task.spec.train_set[1] == tensors[1]).all()
    narrow = TorchTask(lambda: mlp().float(), functional.cross_entropy, TRAIN, TEST, EQUAL)
    assert narrow.spec.train_set[0].dtype == torch.float32


def rmse(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean().sqrt()


def test_a_metric_is_computed_on_the_whole_test_set_and_has_its_name() -> None:
    line = TorchTask(
        lambda: nn.Linear(4, 1),
        functional.mse_loss,
        (ROWS, ROWS[:, :1] * 2),
        (ROWS, ROWS[:, :1] * 2),
        EQUAL,
        training=Training(learning_rate=0.1, batch_size=4),
        metric=rmse,
    )
    world = line.world(PaperWorld(0, clients=CLIENTS), workers=1)
    errors = [record.report.metrics["rmse"] for record in play_rounds(world, 12)]
    assert errors[-1] < errors[0] / 2
    assert line.split(CLIENTS).counts.shape == (CLIENTS, 0)


def test_partitions_may_be_functions_for_the_clients_of_the_world() -> None:
    task = make_task(split=partial(partition, items=7, gamma=0.5))
    assert (task.split(5, 2).items == partition(TRAIN[1], clients=5, items=7, gamma=0.5, seed=2).items).all()
    ragged = make_task(split=lambda _, clients, seed: [np.arange(1 + seed + c) for c in range(clients)])
    assert ragged.split(3, 1).sizes.tolist() == [2, 3, 4]
    assert ragged.split(3, 1).counts.sum(axis=1).tolist() == [2, 3, 4]
    with pytest.raises(SettingError, match="the partition has 6 clients, but the world has 40"):
        make_task().world(PaperWorld(0), workers=1)


def not_a_module() -> Any:
    return 3


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partition": [[0], []]}, "client 1 holds no training items"),
        ({"partition": [[0], [90]]}, "client 1 holds item 90, but training items are numbered from 0 to 89"),
        ({"partition": [[-1]]}, "client 0 holds item -1"),
        ({"partition": [[0.5]]}, "the items of client 0 must be a list of indices"),
        ({"partition": []}, "the partition has no clients"),
        ({"partition": "iid"}, "partition must be a Partition, a list of arrays of indices or a function, not 'iid'"),
        ({"train_set": (ROWS, LABELS + 3)}, r"train_set has the label 5, but the model has 3 classes: .* 0 to 2"),
        ({"test_set": (ROWS, LABELS - 1)}, "test_set has the label -1"),
        ({"train_set": (ROWS, LABELS[1:])}, r"one target for each input .* shape \(120, 4\), its targets \(119,\)"),
        ({"train_set": (ROWS[:0], LABELS[:0])}, "at least one item"),
        ({"train_set": ROWS}, r"train_set must be a pair \(inputs, targets\) or a torch dataset, not ndarray"),
        ({"train_set": Stream()}, "must be a dataset with a length"),
        ({"train_set": (["a"], ["b"])}, "train_set must hold arrays of numbers"),
        ({"model": lambda: nn.Linear(5, 3)}, r"the model fails on inputs of shape \(3, 4\) .* of train_set: \S"),
        ({"model": not_a_module}, "model must be a torch module, or a function that returns one"),
        ({"model": 3}, "model must be a function or a module, not 3"),
        ({"model": lambda: nn.ReLU()}, "nothing to train"),
        ({"model": lambda: nn.LSTM(4, 3)}, "the model must return a tensor, not tuple"),
        ({"loss": functional.mse_loss}, r"the targets of train_set, torch.int64 of shape \(3,\), do not fit"),
        ({"loss": lambda outputs, _: outputs}, r"one number, the mean over the batch, not of shape \(3, 3\)"),
        ({"loss": "mse"}, "loss must be a function or a module, not 'mse'"),
        ({"metric": lambda outputs, _: outputs}, "the metric fails on outputs and targets of train_set"),
        ({"train_set": (ROWS, ROWS), "test_set": (ROWS, ROWS)}, "the accuracy needs one score per class .* a metric"),
        ({"method": "fast"}, "method must be auto, plain or stacked, not 'fast'"),
        ({"stack": 0}, "stack must be at least 1"),
        ({"training": {"epochs": 2}}, "training must be a Training"),
    ],
)
def test_wrong_input_is_explained(settings: dict[str, Any], message: str) -> None:
    given = {
        "model": lambda: nn.Linear(4, 3),
        "loss": functional.cross_entropy,
        "train_set": TRAIN,
        "test_set": TEST,
        "partition": EQUAL,
    }
    with pytest.raises(SettingError, match=message):
        TorchTask(**{**given, **settings})


def test_a_batch_that_the_model_refuses_is_explained() -> None:
    task = make_task(with_batch_norm, [np.arange(5)] * CLIENTS)  # the second batch has one item
    with pytest.raises(TrainingError, match=r"the model cannot train on a batch of 1 items: \S"):
        play_rounds(task.world(PaperWorld(0, clients=CLIENTS), workers=1), 1)


def test_policies_are_compared_and_resumed(tmp_path: Path) -> None:
    compare: Callable[..., Any] = partial(
        train_policies,
        policies={"random": {"cohort_size": 2}, "round-robin": {"cohort_size": 3}},
        rounds=4,
        seeds=(0, 1),
        world_settings={"clients": CLIENTS},
        workers=1,
    )
    runs = compare(make_task(split=RAGGED), store=tmp_path / "runs.turnout")
    assert [(run.policy, run.seed) for run in runs] == [
        ("random", 0), ("random", 1), ("round-robin", 0), ("round-robin", 1),
    ]  # fmt: skip
    for run in runs:
        world = make_task(split=RAGGED).world(PaperWorld(run.seed, clients=CLIENTS), seed=run.seed, workers=1)
        settings = {"cohort_size": 2, "seed": run.seed} if run.policy == "random" else {"cohort_size": 3}
        records = play_rounds(world, 4, policy=make_policy(run.policy, CLIENTS, **settings))
        assert (run.weights == world.weights).all()
        assert run.scores.tolist() == [record.report.metrics["accuracy"] for record in records]
        assert run.score == run.scores[-1]
        assert run.seconds == pytest.approx(sum(record.report.duration for record in records))
        assert run.seconds_to(0) == pytest.approx(records[0].report.duration)
        assert run.seconds_to(2) == np.inf
        turns = np.bincount(np.concatenate([record.selection.clients for record in records]), minlength=CLIENTS)
        assert run.least_share == turns.min() / 4
    played: list[int] = []
    again = compare(make_task(split=RAGGED), store=tmp_path / "runs.turnout", watch=played.append)
    assert [run.weights.tobytes() for run in again] == [run.weights.tobytes() for run in runs]
    assert played == []
    compare(make_task(split=EQUAL), store=tmp_path / "runs.turnout", watch=played.append)  # other data are other runs
    assert sum(played) == 16
    with pytest.raises(SettingError, match="policies must be a list of names"):
        train_policies(make_task(), "random", rounds=1)


@pytest.fixture
def registered() -> Iterator[None]:
    yield
    LEARNERS.clear()


def task_of_a_package(batch_size: int = 4, method: Any = "auto") -> TorchTask:
    return make_task(split=RAGGED, training=Training(batch_size=batch_size), method=method)


@pytest.mark.usefixtures("registered")
def test_the_world_training_accepts_a_task_or_its_name() -> None:
    """Worlds share the learner of a task, so that train_plans trains all of their runs in one computation."""
    world = {"clients": CLIENTS}
    register_task(task_of_a_package, "mine")
    with LearnerCache(workers=1):
        first, second, other = (
            training_world(seed, learner="mine", learner_settings={"batch_size": size}, world=world)
            for seed, size in ((0, 3), (1, 3), (0, 2))
        )
        assert first.federation.learner is second.federation.learner
        assert first.federation.learner is not other.federation.learner
        assert first.federation.learner.training.batch_size == 3
        task = task_of_a_package()
        worlds = [
            training_world(0, learner=task, inner="traces", world=world, updates_per_version=buffer)
            for buffer in (None, 2)
        ]
        assert worlds[0].federation.learner is worlds[1].federation.learner
        assert isinstance(worlds[0].inner, TraceWorld)
        assert isinstance(worlds[1], BufferedTraining)


@pytest.mark.usefixtures("registered")
def test_plans_with_a_task_train_together_and_equal_single_runs(tmp_path: Path) -> None:
    register_task(partial(task_of_a_package, method="stacked"), "mine")
    settings = {"learner": "mine", "world": {"clients": CLIENTS}}
    rounds = [
        RunPlan("random", 3, seed, {"cohort_size": 2}, world="training", world_settings=settings) for seed in (0, 1)
    ]
    turns = RunPlan(
        "random", 5, 0, world="training", world_settings={**settings, "updates_per_version": 2}, concurrency=2
    )
    with RunStore(tmp_path / "runs.turnout") as store:
        for plan, run in zip([*rounds, turns], train_plans([*rounds, turns], store, workers=1), strict=True):
            alone, together = play_plan(plan).metrics["accuracy"], store.columns(run).metrics["accuracy"]
            np.testing.assert_array_equal(alone, together)


@pytest.mark.usefixtures("registered")
def test_names_of_tasks_import_nothing_until_they_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_users_task.py").write_text(
        "from lab.training.test_task import task_of_a_package as make\nwrong = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, message in (
        ("a_users_task:make", "the learner 'a_users_task:make' is not loaded, and a name in a file does not import"),
        ("mine", "unknown learner 'mine'; known learners are none"),
    ):
        with pytest.raises(SettingError, match=message):
            training_world(learner=name, world={"clients": CLIENTS})
    assert "a_users_task" not in sys.modules
    load_task("a_users_task:make")
    training_world(learner="a_users_task:make", world={"clients": CLIENTS})
    for name, message in (
        ("a_users_task:wrong", "must be a TorchTask or a function that builds one, not 3"),
        ("a_users_task:missing", "module 'a_users_task' has no attribute 'missing'"),
        ("no_such_module:make", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
    ):
        with pytest.raises(SettingError, match=message):
            load_task(name)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataset": "cifar-10", "rate": 1.0}, "dataset, rate cannot be set with a learner"),
        ({"learner_settings": {"size": 3}}, "the learner mine cannot be built with these settings: .*'size'"),
        ({"learner": "wrong"}, "the learner wrong built 3, which is not a TorchTask"),
        ({"learner": "task", "learner_settings": {"size": 3}}, "is a task without settings, but got size"),
        ({"learner": None, "learner_settings": {"size": 3}}, "learner_settings need a learner"),
        ({"inner": "training"}, "cannot contain itself"),
        ({"mixing": 0.5}, "mixing is a setting of training without rounds"),
    ],
)
def test_wrong_settings_of_a_task_in_a_plan_are_explained(settings: dict[str, Any], message: str) -> None:
    register_task(task_of_a_package, "mine")
    register_task(not_a_module, "wrong")
    register_task(make_task(), "task")
    with pytest.raises(SettingError, match=message):
        training_world(**{"learner": "mine", "world": {"clients": CLIENTS}, **settings})
