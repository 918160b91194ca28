"""Creates learners on a device, and shares each between all runs with equal training settings."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping
from contextvars import ContextVar, Token
from pathlib import Path
from typing import Any, Literal, Self

from turnout.closing import Closable
from turnout.errors import SettingError
from turnout.lab.training.datasets import Dataset, load_dataset
from turnout.lab.training.learners.base import Learner, Training
from turnout.lab.training.learners.numpy_learner import NumpyLearner, paper_network
from turnout.lab.training.partition import partition
from turnout.lab.training.task import TorchTask, find_task
from turnout.lab.training.world import BufferedTraining, Federation, TrainingWorld, federated_world
from turnout.lab.worlds.registry import build_world
from turnout.version import __version__

MODELS = ("mlp", "cnn")
#: Settings of the world that a learner of its own has itself.
OWN_SETTINGS = (
    *("dataset", "folder", "gamma", "by_class", "items", "model", "hidden"),
    *("epochs", "batch", "rate", "momentum", "weight_decay", "proximal"),
)


class LearnerCache(Closable):
    """While it is open (`with`), training worlds with equal settings share a dataset and a learner on its device.

    `workers` is the number of processes that train on a CPU, by default one per core.
    """

    def __init__(self, device: str = "cpu", *, workers: int | None = None) -> None:
        self.device, self.workers = device, workers
        self._datasets: dict[tuple[str, str | None], Dataset] = {}
        self._learners: dict[Any, Learner] = {}
        self._tasks: dict[str, TorchTask] = {}
        self._token: Token[LearnerCache | None] | None = None
        if device != "cpu":
            torch_device(device)

    @property
    def made_by(self) -> str:
        """The `code_version` of runs in a store: the version, and the device unless it is the CPU."""
        if self.device == "cpu":
            return __version__
        from turnout.lab.training.learners.devices import device_name

        return f"{__version__} on {device_name(self.device)}"

    def dataset(self, name: str, folder: str | None) -> Dataset:
        """Returns the dataset, which is read and verified once."""
        key = (name, folder)
        if key not in self._datasets:
            self._datasets[key] = load_dataset(name, None if folder is None else Path(folder))
        return self._datasets[key]

    def learner(self, name: str, folder: str | None, model: str, hidden: int, training: Training) -> Learner:
        """Returns the learner for these settings, which is created once.

        Args:
            name: The name of the dataset.
            folder: The folder of its files, or None to search the default folders.
            model: "mlp" or "cnn".
            hidden: The number of hidden units of an mlp.
            training: The settings of local training.
        """
        key = (name, folder, model, hidden if model == "mlp" else None, training)
        if key not in self._learners:
            self._learners[key] = self._create_learner(self.dataset(name, folder), model, hidden, training)
        return self._learners[key]

    def task(self, name: str | TorchTask, settings: Mapping[str, Any] | None) -> tuple[TorchTask, Learner]:
        """Returns a task, which is built once, and its learner on this device.

        Args:
            name: A name that `turnout.lab.register_task` made known, an entry point `turnout.learners`, or a task.
            settings: Settings of the function that builds the task.
        """
        if isinstance(name, TorchTask):
            task, key = name, f"task {id(name)}"
        else:
            key = f"{name} {json.dumps(dict(settings or {}), sort_keys=True)}"
            task = self._tasks.get(key) or find_task(name, settings)
        self._tasks[key] = task  # keeps it alive, so that its id stays unique
        if key not in self._learners:
            self._learners[key] = task.learner(self.device, workers=self.workers)
        return task, self._learners[key]

    def close(self) -> None:
        """Closes all learners."""
        if self._token is not None:
            _ACTIVE.reset(self._token)
            self._token = None
        for learner in self._learners.values():
            learner.close()

    def __enter__(self) -> Self:
        self._token = _ACTIVE.set(self)
        return self

    def _create_learner(self, dataset: Dataset, model: str, hidden: int, training: Training) -> Learner:
        if model == "mlp":
            if self.device != "cpu":
                raise SettingError(
                    f"the model mlp is trained by NumPy on the cpu, not on {self.device!r}: use the device cpu, or the "
                    "model cnn"
                )
            return NumpyLearner(dataset, training, hidden=hidden)
        if model != "cnn":
            raise SettingError(f"model must be one of {', '.join(MODELS)}, not {model!r}")
        network = paper_network(dataset)
        if torch_device(self.device) == "cpu":
            from turnout.lab.training.learners.module_learner import cnn_learner

            return cnn_learner(dataset, network, training, workers=self.workers)
        from turnout.lab.training.learners.stacked_learner import StackedLearner

        return StackedLearner(dataset, network, training, device=self.device)


_ACTIVE: ContextVar[LearnerCache | None] = ContextVar("learner_cache", default=None)


def torch_device(name: str) -> Literal["cpu", "cuda"]:
    """Returns the type of a device; raises SettingError if torch is not installed or cannot use the device."""
    try:
        from turnout.lab.training.learners.devices import usable_device
    except ImportError as error:
        raise SettingError("convolutional networks need torch: pip install 'turnout[lab]'") from error
    return usable_device(name)


def training_world(
    seed: int = 0,
    *,
    dataset: str = "digits",
    folder: str | None = None,
    gamma: float | str = 1.0,
    by_class: bool = False,
    items: int = 500,
    model: str = "mlp",
    hidden: int = 32,
    epochs: int = 1,
    batch: int = 32,
    rate: float = 0.1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    proximal: float = 0.0,
    evaluate_every: int = 1,
    updates_per_version: int | None = None,
    discount: float = 0.5,
    mixing: float | None = None,
    learner: str | TorchTask | None = None,
    learner_settings: Mapping[str, Any] | None = None,
    inner: str = "paper",
    world: Mapping[str, Any] | None = None,
) -> TrainingWorld | BufferedTraining:
    """Builds the world "training" of run plans: a model trained on a partitioned dataset.

    The keywords are the names of the settings in stored plans and TOML files.

    Args:
        seed: The seed of the paper's world, the partition, the initial weights and the batches.
        dataset: The name of the dataset.
        folder: The folder of its files, or None to search the default folders.
        gamma: The concentration of the class proportions: a number, or "iid" for equal proportions.
        by_class: Whether clients are sorted by the class of which they hold most items. The speed of clients then
            depends on their data in a world such as the paper's, whose first clients are the fastest.
        items: The number of training items of each client.
        model: "mlp" (one hidden layer, NumPy) or "cnn" (the paper's convolutional network, torch).
        hidden: The number of hidden units of an mlp; 0 gives softmax regression.
        epochs: The number of local epochs in each round.
        batch: The batch size (`Training.batch_size`).
        rate: The learning rate (`Training.learning_rate`).
        momentum: The momentum of the descent.
        weight_decay: The weight decay of the descent.
        proximal: The FedProx coefficient (`Training.proximal_mu`).
        evaluate_every: The test accuracy is measured every `evaluate_every` rounds, or versions of the model.
        updates_per_version: The number of updates of a version, if there are no rounds (`concurrency` of the plan).
        discount: The exponent of the discount for staleness; without rounds.
        mixing: The weight of a fresh update for FedAsync, with updates_per_version=1; without rounds.
        learner: A model of your own: a `TorchTask`, or the name of a registered one. It has its own data, partition and
            training settings, so that those of this world cannot be set.
        learner_settings: Settings of the function that builds the task.
        inner: The name of the world that determines availability and exchange times.
        world: Settings of that world.
    """
    given = dict(locals())
    cache = _ACTIVE.get() or LearnerCache()
    if inner == "training":
        raise SettingError("the world training cannot contain itself: choose another inner world")
    inner_world = build_world(inner, seed, **(world or {}))
    if updates_per_version is None and mixing is not None:
        raise SettingError("mixing is a setting of training without rounds: set updates_per_version to 1, too")
    without_rounds: dict[str, Any] = {}
    if updates_per_version is not None:
        without_rounds = {"updates_per_version": updates_per_version, "discount": discount, "mixing": mixing}
    if learner is not None:
        parameters = inspect.signature(training_world).parameters
        if changed := [name for name in OWN_SETTINGS if given[name] != parameters[name].default]:
            raise SettingError(f"{', '.join(changed)} cannot be set with a learner, which has settings of its own")
        task, trained = cache.task(learner, learner_settings)
        return task.world(inner_world, seed=seed, evaluate_every=evaluate_every, learner=trained, **without_rounds)
    if learner_settings:
        raise SettingError("learner_settings need a learner")
    training = Training(epochs, batch, rate, momentum, weight_decay, proximal)
    own = cache.learner(dataset, folder, model, hidden, training)
    labels = cache.dataset(dataset, folder).train_labels
    split = partition(labels, clients=inner_world.clients, items=items, gamma=parse_gamma(gamma), seed=seed)
    if by_class:
        split = split.sorted_by_class()
    return federated_world(inner_world, Federation(own, split, seed, evaluate_every), **without_rounds)


def parse_gamma(gamma: float | str) -> float:
    """Converts a number, or "iid" for infinity, to a float."""
    if gamma == "iid":
        return math.inf
    try:
        return float(gamma)
    except ValueError:
        raise SettingError(f"gamma must be a number or 'iid', not {gamma!r}") from None
