"""What learners share that train many models in one computation, and replay it as a CUDA graph."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from turnout.lab.training.learners.base import Learner


class StackingLearner(Learner):
    """A learner whose weights are tensors on its device, and whose stacks keep their addresses, as graphs require."""

    device: torch.device
    weight_dtype: torch.dtype
    _stacks: dict[Any, Any]

    @abstractmethod
    def _graphs(self) -> Iterable[torch.cuda.CUDAGraph]:
        """Returns the graphs that were captured."""

    def saved(self, weights: Tensor) -> npt.NDArray[np.floating]:
        """Returns the weights as an array in main memory."""
        return weights.cpu().numpy().copy()

    def loaded(self, array: npt.ArrayLike) -> Tensor:
        """Copies saved weights to the device; raises StateError if they do not fit this model."""
        return torch.tensor(self.network.check_weights(array), dtype=self.weight_dtype, device=self.device)

    def close(self) -> None:
        """Releases the captured graphs and their memory."""
        self._stacks.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def captured(self, compute: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Captures a computation after a warm-up on a side stream, in which libraries allocate their workspaces.

        All graphs of a learner share their memory. Torch releases it with the last graph, and refuses to use it after
        that.
        """
        with torch.cuda.device(self.device):
            side_stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side_stream):
                compute()
            torch.cuda.current_stream().wait_stream(side_stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=next((known.pool() for known in self._graphs()), None)):
                compute()
        return graph


def stack_sizes(clients: int, stack: int, smallest: int = 1) -> Iterator[tuple[int, int]]:
    """Yields the first client and the number of slots of each stack.

    All stacks but the last have `stack` slots; the last has the smallest sufficient power of two.
    """
    for first in range(0, clients, stack):
        needed = max(min(clients - first, stack), smallest)
        yield first, min(1 << (needed - 1).bit_length(), stack)
