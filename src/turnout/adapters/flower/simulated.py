"""Where Flower simulates, clients share one machine and their times say nothing: a world tells them instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.scheduler import ClientStatus
from turnout.simulator.world import World


class SimulatedFleet:
    """Who volunteers, how they are, and how long each takes; client "7" is the world's row 7 (its partition-id)."""

    def __init__(self, world: World, model_size: float) -> None:
        self.world, self._model_size = world, model_size
        self._offer: RoundOffer | None = None

    def statuses(self, round: int, clients: Iterable[str]) -> dict[str, ClientStatus]:
        """Of those of the clients that volunteer for this round."""
        self._offer = self.world.offer(round)
        volunteers = [client for client in clients if self._offer.available[self._row(client)]]
        contexts = self._offer.contexts
        if contexts.shape[1] != 3:
            raise SettingError(f"a simulated world needs the paper's 3 features, this one has {contexts.shape[1]}")
        return {
            client: ClientStatus(1 / contexts[row, 0], self._model_size / contexts[row, 2])
            for client in volunteers
            for row in [self._row(client)]
        }

    def seconds(self, round: int, clients: Iterable[str]) -> dict[str, float | None]:
        """How long each of the cohort takes; None for one that fails."""
        if self._offer is None or self._offer.round != round:
            self._offer = self.world.offer(round)
        cohort = sorted(clients, key=self._row)
        rows = np.array([self._row(client) for client in cohort], dtype=np.int64)
        report = self.world.play(self._offer, Selection(round, rows))
        took: dict[int, float | None] = dict(zip(report.clients.tolist(), report.exchange_times.tolist(), strict=True))
        took |= dict.fromkeys(report.clients[report.with_outcome("failed")].tolist())
        return {client: took[row] for client, row in zip(cohort, rows.tolist(), strict=True)}

    def state(self) -> dict[str, Any]:
        """What its next round depends on."""
        return self.world.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        self.world.restore(state)

    def _row(self, client: str) -> int:
        if not client.isdecimal() or int(client) >= self.world.clients:
            raise SettingError(
                f"client {client!r} is not in the simulated world, which has 0 to {self.world.clients - 1}: end "
                "client_app.py with app = with_status(app), and give the world as many clients as there are nodes"
            )
        return int(client)
