"""The world own-world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout import RoundOffer, RoundReport, Selection
from turnout.lab import World


class OwnWorld(World):
    """Clients with fixed speeds, of which a share is available in each round.

    `turnout worlds own-world` prints this line, and what is said about each setting.

    Args:
        seed: The seed of all random numbers.
        clients: The number of clients.
        presence: The share of the rounds in which each client is available.
        slowest: The time of the slowest client, in seconds.
    """

    def __init__(self, seed: int = 0, *, clients: int = 40, presence: float = 0.8, slowest: float = 20.0) -> None:
        self.seed, self._clients, self.presence = seed, clients, presence
        self._speeds = np.random.default_rng([seed, 0]).uniform(1.0, slowest, clients)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return self._clients

    @property
    def availability(self) -> npt.NDArray[np.float64]:
        """The long-run share of rounds in which each client is available."""
        return np.full(self._clients, self.presence)

    def offer(self, round: int) -> RoundOffer:
        """Returns the available clients with their contexts (features), and the true expected times."""
        rng = np.random.default_rng([self.seed, 1, round])  # a function of the seed and the round only
        available = rng.uniform(size=self._clients) < self.presence
        load = rng.uniform(0.5, 1.5, self._clients)
        contexts = np.column_stack([load, np.ones(self._clients), np.zeros(self._clients)])
        return RoundOffer(round, available, contexts, expected_times=self._speeds * load)

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Draws the exchange times of the selected clients."""
        rng = np.random.default_rng([self.seed, 2, offer.round])
        noise = rng.uniform(0.9, 1.1, self._clients)[selection.clients]
        assert offer.expected_times is not None
        times = offer.expected_times[selection.clients] * noise
        contexts = offer.contexts[selection.clients]
        return RoundReport(offer.round, selection.clients, contexts, times, available=offer.available)

    def state(self) -> dict[str, Any]:
        """Returns everything that the next round depends on besides the seed: nothing here."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned."""
