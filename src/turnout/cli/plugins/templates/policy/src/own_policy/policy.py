"""The policy own-policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout import RoundOffer, RoundReport, Selection, SelectionPolicy, SettingError


class OwnPolicy(SelectionPolicy):
    """Selects the clients with the shortest mean time, and new clients first.

    `turnout policies own-policy` prints this line, and what is said about each setting.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        patience: The share of the places that goes to the clients with the fewest turns.
    """

    name = "own-policy"
    fills_slots = True  # it can also give turns one at a time, without rounds

    def __init__(self, clients: int, *, cohort_size: int = 8, patience: float = 0.25) -> None:
        super().__init__(clients)
        if not 0 <= patience <= 1:
            raise SettingError(f"patience must be a share from 0 to 1, got {patience!r}")
        self.cohort_size = cohort_size
        self.patience = patience
        self._turns = np.zeros(clients, dtype=np.int64)
        self._seconds = np.zeros(clients)

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects the cohort; a policy must not change anything here, and answer the same if it is asked again."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        size = min(self.places(offer), len(rows))
        patient = round(self.patience * size)
        by_turns = rows[np.argsort(self._turns[rows], kind="stable")]
        means = self._seconds / np.maximum(self._turns, 1)
        by_time = rows[np.argsort(means[rows], kind="stable")]
        rest = by_time[~np.isin(by_time, by_turns[:patient])]
        return Selection(offer.round, np.sort(np.concatenate([by_turns[:patient], rest[: size - patient]])))

    def tell(self, report: RoundReport) -> None:
        """Learns from the result of a round."""
        self.check_report(report)
        self._turns[report.clients] += 1
        self._seconds[report.clients] += report.exchange_times

    def add(self, count: int) -> None:
        """Appends clients without history."""
        super().add(count)
        self._turns = np.append(self._turns, np.zeros(count, dtype=np.int64))
        self._seconds = np.append(self._seconds, np.zeros(count))

    def forget(self, rows: npt.ArrayLike) -> None:
        """Removes what was learned about these clients."""
        forgotten = np.asarray(rows, dtype=np.int64)
        self._turns[forgotten] = 0
        self._seconds[forgotten] = 0

    def state(self) -> dict[str, Any]:
        """Returns everything that `tell` has changed, as plain arrays and numbers."""
        return {"turns": self._turns.copy(), "seconds": self._seconds.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned."""
        self._turns = np.array(state["turns"], dtype=np.int64)
        self._seconds = np.array(state["seconds"], dtype=np.float64)
