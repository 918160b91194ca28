"""Partitions of a dataset over clients: the paper's, and given ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count
from turnout.kernel.randomness import MIN_CONCENTRATION, dirichlet_logs, round_rng, softmax

#: Steps of k-means, which ends earlier if no client changes its cluster.
MAX_STEPS = 100


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """The training items of each client.

    `items` (clients, items): indices into the training set; the rows of clients with fewer items than others end with
    −1. `counts` (clients, classes): items per class.
    """

    items: IntArray
    counts: IntArray

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.items)

    @property
    def sizes(self) -> IntArray:
        """The number of items of each client."""
        sizes: IntArray = (self.items >= 0).sum(axis=1)
        return sizes

    def sorted_by_class(self) -> Partition:
        """Returns the partition with the clients in the order of the class of which they hold most items."""
        order = np.argsort(self.counts.argmax(axis=1), kind="stable")
        return Partition(self.items[order], self.counts[order])

    def clusters(self, count: int) -> IntArray:
        """Returns the cluster of each client, by k-means of the clients' class proportions.

        Deterministic: the first centre is client 0, each other one the client that is the furthest from all before it.
        Clusters are empty if there are fewer different proportions.
        """
        shares = self.counts / self.counts.sum(axis=1, keepdims=True)
        centres = shares[:1].copy()
        while len(centres) < count:
            centres = np.vstack([centres, shares[_distances(shares, centres).min(axis=1).argmax()]])
        nearest: IntArray = _distances(shares, centres).argmin(axis=1)
        for _ in range(MAX_STEPS):
            for cluster in np.unique(nearest):
                centres[cluster] = shares[nearest == cluster].mean(axis=0)
            before, nearest = nearest, _distances(shares, centres).argmin(axis=1)
            if (nearest == before).all():
                break
        return nearest

    @classmethod
    def from_indices(cls, indices: Sequence[npt.ArrayLike], labels: npt.ArrayLike) -> Partition:
        """Returns the partition in which client i holds the items `indices[i]`.

        Args:
            indices: The indices of the training items of each client; clients may hold different numbers of items.
            labels: The target of each training item. `counts` has no columns unless they are whole numbers from 0.
        """
        targets = np.asarray(labels)
        held = [_indices(client, items, len(targets)) for client, items in enumerate(indices)]
        if not held:
            raise SettingError("the partition has no clients: it must hold the indices of the items of each client")
        items = np.full((len(held), max(map(len, held))), -1, dtype=np.int64)
        for client, row in enumerate(held):
            items[client, : len(row)] = row
        are_classes = targets.ndim == 1 and targets.dtype.kind in "iu" and targets.min() >= 0
        classes = int(targets.max()) + 1 if are_classes else 0
        counts = [np.bincount(targets[row], minlength=classes) if are_classes else np.empty(0, int) for row in held]
        return cls(items, np.array(counts, dtype=np.int64))


def _distances(points: FloatArray, centres: FloatArray) -> FloatArray:
    squares: FloatArray = ((points[:, None] - centres) ** 2).sum(axis=2)
    return squares


def _indices(client: int, items: npt.ArrayLike, most: int) -> IntArray:
    row = np.asarray(items)
    if row.ndim != 1 or (len(row) and row.dtype.kind not in "iu"):
        raise SettingError(f"the items of client {client} must be a list of indices, not {items!r}")
    if not len(row):
        raise SettingError(f"client {client} holds no training items: every client needs at least one")
    if row.min() < 0 or row.max() >= most:
        wrong = int(row.min() if row.min() < 0 else row.max())
        raise SettingError(f"client {client} holds item {wrong}, but training items are numbered from 0 to {most - 1}")
    return row.astype(np.int64)


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
    if not gamma >= MIN_CONCENTRATION:
        raise SettingError(f"gamma must be at least {MIN_CONCENTRATION:g} (infinity means iid), not {gamma}")
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
