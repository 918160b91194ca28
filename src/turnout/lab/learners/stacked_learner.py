"""Many clients in one computation: all that train in a round, of all runs, at once; on a GPU as one CUDA graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count
from turnout.lab.datasets import Dataset
from turnout.lab.learners.base import Cohort, Training, TrainingResult
from turnout.lab.learners.cnn import descend, stacked_scores
from turnout.lab.learners.devices import usable_device
from turnout.lab.learners.networks import Network

Precision = Literal["float64", "float32", "bfloat16"]
SMALLEST_STACK = 8
TEST_ITEMS = 1000  # at once, a model


class StackedLearner:
    """Stacks the models of up to `stack` clients, and trains them side by side; more go in several turns.

    On a GPU the whole of it (gather the items, all steps of all clients, average) is captured once for each size of
    stack (8, 16, 32, … places) and then replayed: places without a client train on
    anything and count nothing.

    `precision`: of the products. "bfloat16", the default on a GPU, keeps weights, losses and averages in float32.
    """

    def __init__(
        self,
        dataset: Dataset,
        network: Network,
        training: Training | None = None,
        *,
        device: str = "cpu",
        precision: Precision | None = None,
        stack: int = 128,
    ) -> None:
        self.training = training or Training()
        self.network = network
        usable_device(device)
        self.device = torch.device(device)
        chosen = precision or ("bfloat16" if self.device.type == "cuda" else "float32")
        if chosen not in ("float64", "float32", "bfloat16"):
            raise SettingError(f"precision must be float64, float32 or bfloat16, not {precision!r}")
        self._products: torch.dtype = getattr(torch, chosen)
        self.kept = torch.float64 if chosen == "float64" else torch.float32
        self.stack = as_count("stack", stack, SettingError, least=SMALLEST_STACK)
        self._images, self._labels = self._on_device(dataset.train_images), self._on_device(dataset.train_labels).long()
        self._test, self._test_labels = (
            self._on_device(dataset.test_images),
            self._on_device(dataset.test_labels).long(),
        )
        self._middle, self._width = dataset.brightness
        self._rounds: dict[tuple[int, ...], _Round] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None

    def initial_weights(self, seed: int) -> Tensor:
        """A fresh model."""
        return self.loaded(self.network.initial_weights(seed))

    def train(self, cohorts: Sequence[Cohort]) -> list[TrainingResult]:
        """All clients of all cohorts in stacks, wherever one cohort ends and the next begins."""
        if not cohorts:
            return []
        before = torch.stack([cohort.weights for cohort in cohorts])
        owner = np.repeat(np.arange(len(cohorts)), [len(cohort.orders) for cohort in cohorts])
        orders = np.concatenate([cohort.orders for cohort in cohorts])
        shares = np.concatenate([cohort.shares for cohort in cohorts])
        totals = torch.zeros_like(before)
        weight = torch.zeros(len(cohorts), 1, dtype=self.kept, device=self.device)
        losses, finite = [np.empty(0)], [np.empty(0, dtype=np.bool_)]
        for first, places in _turns(len(orders), self.stack):
            these = slice(first, first + places)
            stacked = self._round(places, orders.shape[1:], len(cohorts))
            stacked.fill(orders[these], owner[these], shares[these], before)
            stacked.play()
            totals += stacked.summed
            weight += stacked.weight
            told = torch.stack([stacked.losses, stacked.finite.to(stacked.losses.dtype)])[:, : len(orders[these])]
            measured = told.double().cpu().numpy()
            losses.append(measured[0])
            finite.append(measured[1] > 0)
        after = torch.where(weight > 0, totals / weight, before)
        lost, well = np.concatenate(losses), np.concatenate(finite)
        lost = np.where(well, lost, np.nan)
        return [TrainingResult(after[run], lost[owner == run], well[owner == run]) for run in range(len(cohorts))]

    def evaluate(self, models: Sequence[Tensor]) -> list[float]:
        """The share of test images whose likeliest class is theirs."""
        right = np.zeros(len(models), dtype=np.int64)
        at_once = max(self.stack // 16, 1)
        for start in range(0, len(models), at_once):
            layers = self.network.split(torch.stack(list(models[start : start + at_once])))
            layers = [layer.to(self._products).contiguous() for layer in layers]
            hits = torch.zeros(len(layers[0]), dtype=torch.int64, device=self.device)
            for first in range(0, len(self._test), TEST_ITEMS):
                items = slice(first, first + TEST_ITEMS)
                images = self._scaled(self._test[items]).expand(len(hits), -1, -1, -1, -1)
                with torch.no_grad():
                    likeliest = stacked_scores(self.network, layers, images).argmax(dim=2)
                hits += (likeliest == self._test_labels[items]).sum(dim=1)
            right[start : start + at_once] = hits.cpu().numpy()
        return (right / len(self._test)).tolist()  # type: ignore[no-any-return]

    def saved(self, weights: Tensor) -> npt.NDArray[np.floating]:
        """A copy."""
        return weights.cpu().numpy().copy()

    def loaded(self, array: npt.ArrayLike) -> Tensor:
        """A copy on the device, if it is of this network."""
        return torch.tensor(self.network.check_weights(array), dtype=self.kept, device=self.device)

    def close(self) -> None:
        """Let go of the captured rounds and their memory."""
        self._rounds.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def slopes(self, layers: Sequence[Tensor], items: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """Mean cross-entropy of each model on its items (models, items), and its gradient by layers."""
        leaves = [layer.detach().to(self._products).requires_grad_() for layer in layers]
        scores = stacked_scores(self.network, leaves, self._scaled(self._images[items])).to(self.kept)
        losses = functional.cross_entropy(scores.flatten(0, 1), self._labels[items].flatten(), reduction="none")
        means = losses.view(items.shape).mean(dim=1)
        return means.detach(), torch.autograd.grad(means.sum(), leaves)

    def _round(self, places: int, shape: tuple[int, ...], cohorts: int) -> _Round:
        key = (places, *shape, cohorts)
        if key not in self._rounds:
            self._rounds[key] = _Round(self, places, shape, cohorts)
        return self._rounds[key]

    def _on_device(self, array: npt.NDArray[np.uint8]) -> Tensor:
        return torch.tensor(array, device=self.device)

    def _scaled(self, images: Tensor) -> Tensor:
        return ((images.to(self.kept) - self._middle) / self._width).to(self._products)


class _Round:
    """One round of a fixed number of places, its inputs and outputs at fixed addresses, as a CUDA graph needs them."""

    def __init__(self, learner: StackedLearner, places: int, shape: tuple[int, ...], cohorts: int) -> None:
        device, kept = learner.device, learner.kept
        self._learner = learner
        self._orders = torch.zeros(places, *shape, dtype=torch.int64, device=device)
        self._owner = torch.zeros(places, dtype=torch.int64, device=device)
        self._mix = torch.zeros(cohorts, places, dtype=kept, device=device)
        self._before = torch.zeros(cohorts, learner.network.parameters, dtype=kept, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self.summed = self.weight = self.losses = self.finite = self._before  # until the first play

    def fill(
        self,
        orders: npt.NDArray[np.int64],
        owner: npt.NDArray[np.int64],
        shares: npt.NDArray[np.float64],
        before: Tensor,
    ) -> None:
        """Who trains on what, from which weights, and counts how much; the places left over count nothing."""
        used, places = len(orders), len(self._owner)
        mix = np.zeros(self._mix.shape)
        mix[owner, np.arange(used)] = shares
        self._orders[:used].copy_(torch.from_numpy(orders))
        self._owner.copy_(torch.from_numpy(np.pad(owner, (0, places - used))))
        self._mix.copy_(torch.from_numpy(mix))
        self._before.copy_(before)

    def play(self) -> None:
        """Train, and leave the sums in `summed`, `weight`, `losses` and `sound`."""
        if self._learner.device.type != "cuda":
            self._train()
            return
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        self._graph.replay()

    def _capture(self) -> None:
        """Once by hand, so that libraries set up what they need, and once for the record."""
        aside = torch.cuda.Stream(self._learner.device)  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._train()
        torch.cuda.current_stream().wait_stream(aside)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=self._learner.pool):
            self._train()

    def _train(self) -> None:
        learner, how = self._learner, self._learner.training
        start = [layer.contiguous() for layer in learner.network.split(self._before[self._owner])]
        layers = [layer.clone() for layer in start]
        momenta = [torch.zeros_like(layer) for layer in layers] if how.momentum else []
        total = torch.zeros(len(self._owner), dtype=learner.kept, device=learner.device)
        batches = 0
        for epoch in range(self._orders.shape[1]):
            for first in range(0, self._orders.shape[2], how.batch_size):
                items = self._orders[:, epoch, first : first + how.batch_size]
                losses, slopes = learner.slopes(layers, items)
                total += losses
                batches += 1
                descend(how, layers, start, slopes, momenta)
        models = torch.cat([layer.flatten(1) for layer in layers], dim=1)
        self.losses = total / batches
        self.finite = models.isfinite().all(dim=1) & self.losses.isfinite()
        mix = self._mix * self.finite
        self.summed = mix @ torch.where(self.finite[:, None], models, 0.0)
        self.weight = mix.sum(dim=1, keepdim=True)


def _turns(clients: int, stack: int) -> Iterator[tuple[int, int]]:
    """Where each stack begins and how many places it has: full ones, then the smallest power of two that is enough."""
    for first in range(0, clients, stack):
        places = SMALLEST_STACK
        while places < min(clients - first, stack):
            places *= 2
        yield first, min(places, stack)
