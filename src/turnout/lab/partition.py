"""Who holds what: the paper's split of a dataset over clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count
from turnout.kernel.randomness import SMALLEST_CONCENTRATION, dirichlet_logs, round_rng, softmax


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """`items`: which training items each client holds, one row a client. `counts`: how many of each class."""

    items: IntArray
    counts: IntArray

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.items)


def partition(
    labels: npt.ArrayLike, *, clients: int = 40, items: int = 500, gamma: float = 1.0, seed: int = 0
) -> Partition:
    """Give each client `items` training items, with class shares q ~ Dirichlet(gamma · 1).

    `gamma` (gamma_1 of the paper): small is uneven, `math.inf` gives every class the same share (iid). Shares become
    whole numbers by largest remainders. The items of a class are drawn uniformly from all training items of that class,
    each client on its own: two clients may hold the same item, one client holds none twice as long as the class has
    enough.
    """
    known = np.asarray(labels)
    if known.ndim != 1 or known.dtype.kind not in "iu" or not len(known) or known.min() < 0:
        raise SettingError("labels must be whole numbers from 0, one an item")
    as_count("clients", clients, SettingError)
    as_count("items", items, SettingError)
    as_count("seed", seed, SettingError, least=0)
    if not gamma >= SMALLEST_CONCENTRATION:
        raise SettingError(f"gamma must be at least {SMALLEST_CONCENTRATION:g} (infinity is iid), not {gamma}")
    classes = int(known.max()) + 1
    pools = [np.flatnonzero(known == label) for label in range(classes)]
    if not all(len(pool) for pool in pools):
        raise SettingError(f"there are no training items of class {next(i for i, p in enumerate(pools) if not len(p))}")
    held = np.empty((clients, items), dtype=np.int64)
    counts = np.empty((clients, classes), dtype=np.int64)
    for client in range(clients):
        # Each client has draws of its own: more clients leave those there were as they were.
        rng = round_rng(seed, "partition", client)
        counts[client] = round_shares(softmax(dirichlet_logs(rng, classes, gamma)), items)
        drawn = [
            rng.choice(pool, count, replace=bool(count > len(pool)))
            for pool, count in zip(pools, counts[client].tolist(), strict=True)
        ]
        held[client] = rng.permutation(np.concatenate(drawn))
    return Partition(held, counts)


def round_shares(shares: FloatArray, total: int) -> IntArray:
    """Shares of `total` as whole numbers that add up to it: the largest remainders are rounded up.

    >>> round_shares(np.array([0.5, 0.26, 0.24]), 10)
    array([5, 3, 2])
    """
    exact = shares * total
    counts = np.floor(exact).astype(np.int64)
    short = total - int(counts.sum())
    counts[np.argsort(-(exact - counts), kind="stable")[:short]] += 1
    return counts
