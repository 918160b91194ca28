"""A learner for the paper's networks on a CPU: one task per client, one process per core."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from turnout.errors import SettingError
from turnout.kernel.arrays import IntArray
from turnout.lab.training.datasets import Dataset
from turnout.lab.training.learners.base import Training, held_items
from turnout.lab.training.learners.client_loop import TEST_ITEMS, ClientLoop
from turnout.lab.training.learners.cnn import descend, scores
from turnout.lab.training.learners.networks import Network


class TorchLearner(ClientLoop):
    """Trains the paper's networks, each client on a single core; `workers` processes share the clients."""

    network: Network

    def __init__(
        self,
        dataset: Dataset,
        network: Network,
        training: Training | None = None,
        *,
        workers: int | None = None,
        precision: str = "float32",
    ) -> None:
        """Starts no process yet; workers are started by the first training or evaluation.

        Args:
            dataset: The training and test images.
            network: The architecture of the model.
            training: The settings of local training.
            workers: The number of processes, by default one per core.
            precision: "float32" or "float64", for weights and products.
        """
        if precision not in ("float32", "float64"):
            raise SettingError(f"precision on a CPU must be float32 or float64, not {precision!r}")
        items = len(dataset.test_images)
        super().__init__(precision, workers, test_items=items, test_chunk=TEST_ITEMS, test_total=items)
        self.training = training or Training()
        self.network = network
        self.dataset = dataset
        self._pixel_mean, self._pixel_std = dataset.brightness

    def initial_weights(self, seed: int) -> npt.NDArray[np.floating]:
        """Returns the weights of a newly initialised model."""
        return self.loaded(self.network.initial_weights(seed))

    def _train_client(self, weights: Tensor, order: IntArray) -> tuple[Tensor, float]:
        training, data = self.training, self.dataset
        start = [layer.clone() for layer in self.network.split(weights)]
        layers = [layer.clone().requires_grad_() for layer in start]
        momenta = [torch.zeros_like(layer) for layer in layers] if training.momentum else []
        losses = []
        batches = (
            epoch[first : first + training.batch_size]
            for epoch in held_items(order)
            for first in range(0, len(epoch), training.batch_size)
        )
        for items in batches:
            labels = torch.from_numpy(data.train_labels[items].astype(np.int64))
            loss = functional.cross_entropy(scores(self.network, layers, self._scale(data.train_images[items])), labels)
            losses.append(float(loss.detach()))
            gradients = torch.autograd.grad(loss, layers)
            descend(training, layers, start, gradients, momenta)
        return torch.cat([layer.detach().flatten() for layer in layers]), float(np.mean(losses))

    def _measure(self, weights: Tensor, items: slice) -> float:
        with torch.no_grad():
            predicted = scores(self.network, self.network.split(weights), self._scale(self.dataset.test_images[items]))
        labels = torch.from_numpy(self.dataset.test_labels[items].astype(np.int64))
        return int((predicted.argmax(dim=1) == labels).sum())

    def _scale(self, images: npt.NDArray[np.uint8]) -> Tensor:
        return torch.from_numpy(((images - self._pixel_mean) / self._pixel_std).astype(self._dtype))
