"""Where learners are made: on which device, and one for all runs that train alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextvars import ContextVar, Token
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from turnout.errors import SettingError
from turnout.lab.datasets import Dataset, load_dataset
from turnout.lab.learners.base import Learner, Training
from turnout.lab.learners.networks import paper_network
from turnout.lab.learners.numpy_learner import NumpyLearner
from turnout.lab.partition import partition
from turnout.lab.world import Federation, TrainingWorld
from turnout.simulator.paper import PaperWorld
from turnout.version import __version__

MODELS = ("mlp", "cnn")


class LearnerCache:
    """While it is open (`with`), worlds that train alike share a dataset and a learner on its device.

    `workers`: processes that train on a CPU, by default one a core.
    """

    def __init__(self, device: str = "cpu", *, workers: int | None = None) -> None:
        self.device, self.workers = device, workers
        self._datasets: dict[tuple[str, str | None], Dataset] = {}
        self._learners: dict[Any, Learner] = {}
        self._token: Token[LearnerCache | None] | None = None
        if device != "cpu":
            torch_device(device)

    @property
    def made_by(self) -> str:
        """What a store writes beside its runs: the version, and the device if it is not the CPU."""
        if self.device == "cpu":
            return __version__
        from turnout.lab.learners.devices import device_name

        return f"{__version__} on {device_name(self.device)}"

    def dataset(self, name: str, folder: str | None) -> Dataset:
        """Read and checked once."""
        key = (name, folder)
        if key not in self._datasets:
            self._datasets[key] = load_dataset(name, None if folder is None else Path(folder))
        return self._datasets[key]

    def learner(self, name: str, folder: str | None, model: str, hidden: int, training: Training) -> Learner:
        """One for each way of training."""
        key = (name, folder, model, hidden if model == "mlp" else None, training)
        if key not in self._learners:
            self._learners[key] = self._made(self.dataset(name, folder), model, hidden, training)
        return self._learners[key]

    def close(self) -> None:
        """Let go of what learners hold."""
        for learner in self._learners.values():
            learner.close()

    def __enter__(self) -> LearnerCache:
        self._token = _OPEN.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _OPEN.reset(self._token)
        self.close()

    def _made(self, dataset: Dataset, model: str, hidden: int, training: Training) -> Learner:
        if model == "mlp":
            if self.device != "cpu":
                raise SettingError(
                    f"the model mlp is trained by NumPy on the cpu, not on {self.device!r}: use model=cnn"
                )
            return NumpyLearner(dataset, training, hidden=hidden)
        if model != "cnn":
            raise SettingError(f"model must be one of {', '.join(MODELS)}, not {model!r}")
        network = paper_network(dataset)
        if torch_device(self.device) == "cpu":
            from turnout.lab.learners.torch_learner import TorchLearner

            return TorchLearner(dataset, network, training, workers=self.workers)
        from turnout.lab.learners.stacked_learner import StackedLearner

        return StackedLearner(dataset, network, training, device=self.device)


_OPEN: ContextVar[LearnerCache | None] = ContextVar("workshop", default=None)


def torch_device(name: str) -> Literal["cpu", "cuda"]:
    """The kind of a device that can be used here; says what to do where torch or the device is missing."""
    try:
        from turnout.lab.learners.devices import usable_device
    except ImportError as missing:
        raise SettingError("convolutional networks need torch: pip install 'turnout[lab]'") from missing
    return usable_device(name)


def training_world(
    seed: int = 0,
    *,
    dataset: str = "digits",
    folder: str | None = None,
    gamma: float | str = 1.0,
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
    world: Mapping[str, Any] | None = None,
) -> TrainingWorld:
    """The world "training" of plans and stores: a dataset, split, and trained on in the paper's world.

    `gamma`: a number, or "iid". `model`: "mlp" (one hidden layer, NumPy) or "cnn" (the paper's network, torch).
    `world`: settings of the paper's world inside. The seed also draws the split, the first weights and the batches.
    """
    workshop = _OPEN.get() or LearnerCache()
    inner = PaperWorld(seed, **(world or {}))
    how = Training(epochs, batch, rate, momentum, weight_decay, proximal)
    learner = workshop.learner(dataset, folder, model, hidden, how)
    labels = workshop.dataset(dataset, folder).train_labels
    holdings = partition(labels, clients=inner.clients, items=items, gamma=parse_gamma(gamma), seed=seed)
    return TrainingWorld(inner, Federation(learner, holdings, seed, evaluate_every))


def parse_gamma(gamma: float | str) -> float:
    """A number, or "iid" for infinity."""
    if gamma == "iid":
        return math.inf
    try:
        return float(gamma)
    except ValueError:
        raise SettingError(f"gamma must be a number or 'iid', not {gamma!r}") from None
