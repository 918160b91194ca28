"""Training of models of your own: any module of torch, with its loss and its data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count
from turnout.lab.training.learners.base import Learner, Training
from turnout.lab.training.partition import Partition
from turnout.lab.training.partition import partition as papers_partition
from turnout.lab.training.world import BufferedTraining, Federation, TrainingWorld, federated_world
from turnout.lab.worlds.base import World
from turnout.lab.worlds.registry import LEARNERS
from turnout.log import get_log

if TYPE_CHECKING:
    from torch import nn

    from turnout.lab.training.learners.modules import Loss, Metric, ModuleSpec

LOG = get_log("turnout.lab")
Method = Literal["auto", "plain", "stacked"]
#: Metrics that a world reports under these names itself.
RESERVED = ("diverged", "staleness", "version")


class TorchTask:
    """A model, its loss, its data and the partition of the data over clients: everything that a world trains.

    `world` puts the task into a world; `learner` returns what trains it. On a CPU, clients train one after the other in
    forked processes. On a GPU, all clients of a round train in one computation (`torch.func.vmap` and CUDA graphs) if
    the model allows it, otherwise one after the other; a message of the logger `turnout.lab` says why.

    Args:
        model: A function without arguments that builds the module, such as its class; the seed of the world determines
            its random numbers. A module is copied, and its weights are the initial weights for every seed.
        loss: A function of the outputs of the model and the targets that returns a number, such as
            `torch.nn.functional.cross_entropy`.
        train_set: The training inputs and targets: two arrays or tensors, or a torch dataset of pairs, which is read
            once. Floating-point inputs are converted to the type of the model.
        test_set: The test inputs and targets.
        partition: The items of each client: a `Partition`, a list of arrays of indices, or a function of the targets
            with the keywords `clients` and `seed`, such as `partition` of `turnout.lab` (the default: 500 items each).
        training: The settings of local training.
        metric: A function of all outputs and targets of the test set that returns a number. It is reported under its
            name; by default the share of correct predictions is, as `accuracy`.
        method: "plain" trains one client after the other, "stacked" all in one computation, "auto" stacks on a GPU if
            the model allows it.
        stack: The largest number of clients in one computation.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        loss: Loss,
        train_set: Any,
        test_set: Any,
        partition: Partition | Sequence[npt.ArrayLike] | Callable[..., Any] = papers_partition,
        *,
        training: Training | None = None,
        metric: Metric | None = None,
        method: Method = "auto",
        stack: int = 64,
    ) -> None:
        try:
            from turnout.lab.training.learners.modules import checked_spec
        except ImportError as error:
            raise SettingError("models of your own need torch: pip install 'turnout[lab]'") from error
        if method not in ("auto", "plain", "stacked"):
            raise SettingError(f"method must be auto, plain or stacked, not {method!r}")
        self.spec: ModuleSpec = checked_spec(model, loss, train_set, test_set, training or Training(), metric)
        self.metric = "accuracy" if metric is None else _name(metric)
        if self.metric in RESERVED:
            raise SettingError(f"the metric must not be named {self.metric!r}, as a metric of the world is: rename it")
        self.method: Method = method
        self.stack = as_count("stack", stack, SettingError)
        self._partition = partition
        if not callable(partition):
            self._partition = self._checked(partition)

    @property
    def targets(self) -> npt.NDArray[Any]:
        """The targets of the training set."""
        return self.spec.train_set[1].numpy()

    def split(self, clients: int, seed: int = 0) -> Partition:
        """Returns the partition over this number of clients; a given partition must have as many."""
        if callable(self._partition):
            split = self._checked(self._partition(self.targets, clients=clients, seed=seed))
        else:
            split = self._checked(self._partition)
        if split.clients != clients:
            raise SettingError(f"the partition has {split.clients} clients, but the world has {clients}")
        return split

    def learner(self, device: str = "cpu", *, workers: int | None = None) -> Learner:
        """Returns what trains the model.

        Args:
            device: "cpu", "cuda", or "cuda:1" for the second GPU.
            workers: The number of processes on a CPU, by default one per core.
        """
        from turnout.lab.training.learners.devices import usable_device
        from turnout.lab.training.learners.module_learner import ModuleLearner, StackedModuleLearner, stacking_obstacle

        on_gpu = usable_device(device) == "cuda"
        if self.method == "stacked" or (self.method == "auto" and on_gpu):
            obstacle = stacking_obstacle(self.spec, device=device, padded=self._is_padded)
            if obstacle is None:
                return StackedModuleLearner(self.spec, device=device, stack=self.stack)
            if self.method == "stacked":
                raise SettingError(f"the model cannot be trained stacked: {obstacle}. Use method='auto' or 'plain'")
            LOG.warning("the clients train one after the other, because the model cannot be stacked: %s", obstacle)
        return ModuleLearner(self.spec, device=device, workers=workers)

    def world(
        self,
        inner: World,
        *,
        seed: int = 0,
        evaluate_every: int = 1,
        device: str = "cpu",
        workers: int | None = None,
        updates_per_version: int | None = None,
        learner: Learner | None = None,
        **settings: Any,
    ) -> TrainingWorld | BufferedTraining:
        """Returns a world in which the selected clients train this model.

        Args:
            inner: The world that determines availability and exchange times, such as `PaperWorld` or `TraceWorld`.
            seed: The seed of the partition, the initial weights, the batches and dropout.
            evaluate_every: The test set is evaluated every so many rounds, or versions of the model.
            device: The torch device.
            workers: The number of processes on a CPU, by default one per core.
            updates_per_version: The number of updates of a version of the model, if there are no rounds.
            learner: What `learner` returned, if several worlds share it; by default a new one.
            **settings: `discount` and `mixing`, without rounds.
        """
        shared = learner or self.learner(device, workers=workers)
        federation = Federation(shared, self.split(inner.clients, seed), seed, evaluate_every, self.metric)
        return federated_world(inner, federation, updates_per_version, **settings)

    def module(self, weights: npt.NDArray[np.floating]) -> nn.Module:
        """Returns a new module with these flat weights, in evaluation mode; its `state_dict` can be saved by torch."""
        import torch

        from turnout.lab.training.learners.modules import ModuleLayout

        built = self.spec.build(0)
        layout = ModuleLayout(built)
        layout.put(built, torch.from_numpy(layout.check_weights(weights).copy()))
        return built.train(False)

    @property
    def fingerprint(self) -> str:
        """A digest of the data, a given partition, the training settings, the module and its weights for seed 0."""
        from turnout.lab.training.learners.modules import ModuleLayout

        spec, built = self.spec, self.spec.build(0)
        texts = [repr(spec.training), repr(built), _name(spec.loss), self.metric]
        if isinstance(self._partition, partial):  # its repr contains an address
            texts += [repr((self._partition.args, sorted(self._partition.keywords.items())))]
        arrays = [tensor.numpy() for tensor in (*spec.train_set, *spec.test_set)]
        arrays += [ModuleLayout(built).get(built).numpy()]
        arrays += [self._partition.items] if isinstance(self._partition, Partition) else []
        digest = hashlib.sha256("\n".join(texts).encode())
        for array in arrays:
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    @property
    def _is_padded(self) -> bool:
        """Whether clients hold different numbers of items; assumed of functions other than the paper's partition."""
        if isinstance(self._partition, Partition):
            return len(set(self._partition.sizes.tolist())) > 1
        return getattr(self._partition, "func", self._partition) is not papers_partition

    def _checked(self, given: Any) -> Partition:
        if isinstance(given, Partition):
            given = [row[row >= 0] for row in np.asarray(given.items)]
        elif isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
            raise SettingError(
                f"partition must be a Partition, a list of arrays of indices or a function, not {given!r}"
            )
        return Partition.from_indices(given, self.targets)


def _name(function: Callable[..., Any]) -> str:
    """Returns the name of a function or of the class of a callable object."""
    return str(getattr(function, "__name__", type(function).__name__)).strip("<>")


#: A task, or a function that builds one from keyword settings.
TaskBuilder = TorchTask | Callable[..., TorchTask]


def register_task(task: TaskBuilder, name: str) -> None:
    """Makes a task known under a name in this process, for the setting `learner` of the world `training`.

    Args:
        task: A task, or a function that builds one from keyword settings.
        name: Its name.
    """
    LEARNERS.register(name, task)


def load_task(name: str) -> None:
    """Makes `package.module:name` known, which imports that module: use it only for names that the user wrote."""
    LEARNERS.load(name)


def find_task(name: str, settings: Mapping[str, Any] | None = None) -> TorchTask:
    """Returns the task with this name: one that was registered or loaded, or an entry point `turnout.learners`.

    The name may come from a file, so it imports nothing but entry points of installed packages.

    Args:
        name: The name.
        settings: Keyword settings of the function that builds the task.
    """
    builder = LEARNERS.get(name)
    if isinstance(builder, TorchTask):
        if settings:
            raise SettingError(f"the learner {name} is a task without settings, but got {', '.join(settings)}")
        return builder
    try:
        built = builder(**(settings or {}))
    except TypeError as error:
        raise SettingError(f"the learner {name} cannot be built with these settings: {error}") from error
    if not isinstance(built, TorchTask):
        raise SettingError(f"the learner {name} built {built!r}, which is not a TorchTask")
    return built
