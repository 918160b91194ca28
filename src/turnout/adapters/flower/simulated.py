"""Takes availability and exchange times from a simulated world.

In a Flower simulation all clients share one machine, so measured times say nothing about the clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from turnout.adapters.flower.core.cohort import FlowerRound
from turnout.adapters.flower.core.exchange import Exchange
from turnout.adapters.flower.core.intake import Arrival
from turnout.adapters.flower.core.parts import Parts
from turnout.errors import SettingError
from turnout.kernel.rounds import RoundOffer, Selection
from turnout.lab.worlds.base import World
from turnout.live import ClientStatus


class SimulatedFleet:
    """Provides the availability, status and exchange time of each client; client "7" (partition-id) is row 7."""

    def __init__(self, world: World, model_size: float) -> None:
        self.world, self._model_size = world, model_size
        self._offer: RoundOffer | None = None

    def statuses(self, round: int, clients: Iterable[str]) -> dict[str, ClientStatus]:
        """Returns the status of each of these clients that is available in this round."""
        self._offer = self.world.offer(round)
        available = [client for client in clients if self._offer.available[self._row(client)]]
        contexts = self._offer.contexts
        if contexts.shape[1] != 3:
            raise SettingError(f"a simulated world needs the paper's 3 features, this one has {contexts.shape[1]}")
        return {
            client: ClientStatus(1 / contexts[row, 0], self._model_size / contexts[row, 2])
            for client in available
            for row in [self._row(client)]
        }

    def seconds(self, round: int, clients: Iterable[str]) -> dict[str, float | None]:
        """Plays the round and returns the exchange time of each client of the cohort; None if it fails."""
        if self._offer is None or self._offer.round != round:
            self._offer = self.world.offer(round)
        cohort = sorted(clients, key=self._row)
        rows = np.array([self._row(client) for client in cohort], dtype=np.int64)
        report = self.world.play(self._offer, Selection(round, rows))
        times: dict[int, float | None] = dict(zip(report.clients.tolist(), report.exchange_times.tolist(), strict=True))
        times |= dict.fromkeys(report.clients[report.with_outcome("failed")].tolist())
        return {client: times[row] for client, row in zip(cohort, rows.tolist(), strict=True)}

    def state(self) -> dict[str, Any]:
        """Returns the state on which the next round depends."""
        return self.world.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores a state returned by `state`."""
        self.world.restore(state)

    def _row(self, client: str) -> int:
        if not client.isdecimal() or int(client) >= self.world.clients:
            raise SettingError(
                f"client {client!r} is not in the simulated world, which has 0 to {self.world.clients - 1}: end "
                "client_app.py with app = with_status(app), and give the world as many clients as there are nodes"
            )
        return int(client)


class SimulatedSlots(SimulatedFleet):
    """The same without rounds: turns begin and end by the clock of the world, in the order of their ends.

    Each offer is another round of the world, as in `turnout.lab.SlotRun`.
    """

    def __init__(self, world: World, model_size: float) -> None:
        if world.combines_cohorts:
            raise SettingError("this world combines the results of a cohort: use it in a fleet with rounds")
        super().__init__(world, model_size)
        self.now = 0.0
        self._offers = 0
        self._ends: dict[int, tuple[float, float | None]] = {}  # by turn: when it ends, and its exchange time

    def begin(self) -> None:
        """Begins a run: no client is training."""
        self._ends.clear()

    def statuses(self, round: int, clients: Iterable[str]) -> dict[str, ClientStatus]:
        """Returns the status of each of these clients that is available now; `round` plays no part."""
        del round
        self.world.set_clock(self.now)
        self._offers += 1
        return super().statuses(self._offers, clients)

    def give(self, turns: Mapping[int, str]) -> None:
        """Begins turns, which have ids, of these clients."""
        times = self.seconds(self._offers, turns.values())
        for turn, client in turns.items():
            seconds = times[client]
            self._ends[turn] = (self.now + (seconds or 0.0), seconds)

    def next_turn(self) -> int | None:
        """Returns the turn that ends next; None if no client is training, in which case time passes."""
        if self._ends:
            return min(self._ends, key=lambda turn: (self._ends[turn][0], turn))
        self.now += self.world.idle_seconds
        return None

    def end(self, turn: int) -> float | None:
        """Ends a turn and returns its exchange time; None if it fails in the world."""
        self.now, seconds = self._ends.pop(turn)
        return seconds

    def state(self) -> dict[str, Any]:
        """Returns the state of the world and its clock."""
        return {"world": super().state(), "now": self.now, "offers": self._offers}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores a state returned by `state`."""
        super().restore(state["world"])
        self.now, self._offers = float(state["now"]), int(state["offers"])


class SimulatedExchange(Exchange):
    """Takes exchange times from the world: all replies are awaited; those that fail or are late there are dropped."""

    def __init__(self, parts: Parts, simulated: SimulatedFleet) -> None:
        super().__init__(parts)
        self._simulated = simulated

    def _limit(self, deadline: float | str | None) -> float:
        """Returns the timeout: the deadline applies to simulated time only."""
        del deadline
        return super()._limit(None)

    def _has_enough(self) -> bool:
        return False

    def _record(self, replies: Mapping[str, Arrival]) -> None:
        """Records nothing yet: the world says when they arrive."""

    def _end(self, pending: Mapping[str, str]) -> None:
        """Replaces measured by simulated times, and drops replies that fail or miss the deadline in the world."""
        self._messenger.forget(pending)
        current, deadline = self._current, self._current.opened.deadline
        times = self._simulated.seconds(current.opened.round, current.nodes)
        for client in list(current.arrived):
            seconds, (_, reply) = times[client], current.arrived.pop(client)
            if seconds is None:
                self._fail(client, "failed in the simulated world")
            elif deadline is None or seconds <= deadline:
                current.arrived[client] = (seconds, reply)
        super()._record(current.arrived)
        current.waited = _simulated_wait(current, times) or current.waited


def _simulated_wait(current: FlowerRound, times: Mapping[str, float | None]) -> float | None:
    """Returns how long a server would have waited in the simulated world; None if no client has a time there."""
    arrived = sorted(seconds for seconds, _ in current.arrived.values())
    if arrived and current.enough:
        return arrived[current.opened.target_size - 1]
    longest = max((seconds for seconds in times.values() if seconds is not None), default=None)
    deadline = current.opened.deadline
    return longest if longest is None or deadline is None else min(longest, deadline)
