"""The paper's partition of a dataset over clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count
from turnout.kernel.randomness import SMALLEST_CONCENTRATION, dirichlet_logs, round_rng, softmax


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """The training items of each client.

    `items` (clients, items): indices into the training set. `counts` (clients, classes): items per class.
    """

    items: IntArray
    counts: IntArray

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.items)


def partition(
    labels: npt.ArrayLike, *, clients: int = 40, items: int = 500, gamma: float = 1.0, seed: int = 0
) -> Partition:
    """Assigns `items` training items to each client, with class proportions q ~ Dirichlet(gamma · 1).

    The proportions are rounded to counts by the largest-remainder method. The items of a class are drawn uniformly from
    the whole training set, independently for each client: two clients may hold the same item, but a client holds an
    item twice only if the class has too few items.

    Args:
        labels: The class of each training item, integers from 0.
        clients: The number of clients.
        items: The number of items of each client.
        gamma: The concentration (gamma_1 of the paper). A small value gives skewed proportions, `math.inf` gives equal
            proportions (iid).
        seed: The seed of all draws.
    """
    classes_of_items = np.asarray(labels)
    if (
        classes_of_items.ndim != 1
        or classes_of_items.dtype.kind not in "iu"
        or not len(classes_of_items)
        or classes_of_items.min() < 0
    ):
        raise SettingError("labels must be a non-empty sequence of whole numbers from 0, one for each training item")
    as_count("clients", clients, SettingError)
    as_count("items", items, SettingError)
    as_count("seed", seed, SettingError, least=0)
    if not gamma >= SMALLEST_CONCENTRATION:
        raise SettingError(f"gamma must be at least {SMALLEST_CONCENTRATION:g} (infinity means iid), not {gamma}")
    classes = int(classes_of_items.max()) + 1
    pools = [np.flatnonzero(classes_of_items == label) for label in range(classes)]
    for label, pool in enumerate(pools):
        if not len(pool):
            raise SettingError(
                f"there are no training items of class {label}: labels must contain every class from 0 to {classes - 1}"
            )
    held = np.empty((clients, items), dtype=np.int64)
    counts = np.empty((clients, classes), dtype=np.int64)
    for client in range(clients):
        # One generator per client: adding clients does not change the items of the others.
        rng = round_rng(seed, "partition", client)
        counts[client] = round_shares(softmax(dirichlet_logs(rng, classes, gamma)), items)
        samples = [
            rng.choice(pool, count, replace=bool(count > len(pool)))
            for pool, count in zip(pools, counts[client].tolist(), strict=True)
        ]
        held[client] = rng.permutation(np.concatenate(samples))
    return Partition(held, counts)


def round_shares(shares: FloatArray, total: int) -> IntArray:
    """Rounds shares of `total` to integers that sum to it, by the largest-remainder method.

    >>> round_shares(np.array([0.5, 0.26, 0.24]), 10)
    array([5, 3, 2])
    """
    exact = shares * total
    counts = np.floor(exact).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(-(exact - counts), kind="stable")[:missing]] += 1
    return counts
