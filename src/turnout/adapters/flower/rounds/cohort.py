"""Waits for nodes and lets the scheduler select a cohort among their clients."""

from __future__ import annotations

import time

import numpy as np

from turnout.adapters.common.restart import take_over_round
from turnout.adapters.flower.grid import TimedGrid
from turnout.adapters.flower.rounds.live_round import FlowerRound
from turnout.adapters.flower.setup import TrainingSetup
from turnout.errors import SettingError, StateError
from turnout.live import RunningTurn, Statuses
from turnout.live._internals import session_of
from turnout.log import get_log

log = get_log("flwr")
CONNECTION_POLL = 1.0  # seconds between two checks of the connected nodes, at most
PROGRESS_INTERVAL = 10  # seconds between two log lines while waiting for nodes


class CohortSelector:
    """Selects the cohort of each round among the clients that are connected.

    Args:
        setup: the fleet and its nodes.
        timeout: how many seconds it waits for nodes.
    """

    def __init__(self, setup: TrainingSetup, timeout: float) -> None:
        self._setup, self._timeout = setup, timeout
        self._scheduler, self._nodes, self._simulated = setup.scheduler, setup.nodes, setup.simulated
        self._warm: dict[str, int] = {}  # by client: the node on which it was given its last turn
        self._has_gathered = False  # whether `min_nodes` nodes have been connected since the start
        self._registered: dict[str, int] | None = None  # the clients whose rows are in `_rows`
        self._rows = np.zeros(0, dtype=np.int64)
        self._ids: list[str] = []  # all clients of the fleet at that time, by row

    def select(self, grid: TimedGrid) -> FlowerRound:
        """Selects a cohort, or takes over the round that an earlier server left open."""
        number = self._scheduler.round + (self._scheduler.open_round is None)
        connected, recorded = self._connected_clients(grid, number), frozenset[str]()
        if self._scheduler.open_round is None:
            statuses = self._statuses(connected, number)
            cohort = self._scheduler.choose(statuses, cold=self._cold(connected))
        else:
            cohort, recorded = take_over_round(self._scheduler, connected)
        opened = self._scheduler.open_round
        if opened is None:
            raise StateError("the scheduler has no open round after a selection: another process closed it")
        nodes = {client: connected[client] for client in cohort}
        self._warm |= nodes
        return FlowerRound(opened, nodes, session_of(self._scheduler).predicted_seconds(), recorded)

    def fill(self, grid: TimedGrid) -> tuple[list[RunningTurn], dict[str, int]]:
        """Gives turns for the free slots of a fleet without rounds; returns them, and the node of each client."""
        slots = self._scheduler.settings.concurrency or 1
        connected = self._connected_clients(grid, self._scheduler.round // slots + 1)
        statuses = self._statuses(connected, self._scheduler.round + 1)
        turns = self._scheduler.fill(statuses, cold=self._cold(connected))
        self._warm |= {turn.client: connected[turn.client] for turn in turns}
        return turns, connected

    def _cold(self, connected: dict[str, int]) -> list[str]:
        """Returns the clients that had no turn since they connected: the next one includes starts and imports.

        Those that have trained before this server was started are assumed to run since then. `_statuses` comes first.
        """
        if self._simulated is not None:
            return []
        last_trained = session_of(self._scheduler).fleet.counters.last_trained[self._rows].tolist()
        for (client, node), last in zip(connected.items(), last_trained, strict=True):
            if last > 0:
                self._warm.setdefault(client, node)
        return [client for client, node in connected.items() if self._warm.get(client) != node]

    def connected_nodes(self, grid: TimedGrid) -> list[int]:
        """Returns the connected nodes; before the first round, waits up to the timeout for `min_nodes` of them.

        In a fleet that has trained before, some nodes may be gone for good: there it waits at most `patience` seconds.
        """
        start = logged = time.monotonic()
        required = 1 if self._has_gathered else self._setup.min_nodes
        while len(nodes := grid.get_node_ids()) < required:
            waited = time.monotonic() - start
            if nodes and self._scheduler.round and waited > self._setup.patience:
                log.warning("turnout: continuing with %d of %d nodes", len(nodes), required)
                break
            if waited > self._timeout:
                raise SettingError(
                    f"{len(nodes)} of {required} nodes were connected after {self._timeout:g} s: start more "
                    "SuperNodes, or increase timeout"
                )
            if time.monotonic() - logged >= PROGRESS_INTERVAL or logged == start:
                log.info("turnout: waiting for nodes: %d of %d are connected", len(nodes), required)
                logged = time.monotonic()
            time.sleep(min(CONNECTION_POLL, grid.poll))
        self._has_gathered = True
        return nodes

    def _statuses(self, connected: dict[str, int], number: int) -> Statuses:
        """Returns the statuses of the connected clients, after entering new ones into the fleet."""
        if connected is not self._registered or self._scheduler.clients != self._ids:  # a client may be forgotten
            self._scheduler.register(list(connected))
            self._rows = np.array([session_of(self._scheduler).row(client) for client in connected], dtype=np.int64)
            self._registered, self._ids = connected, self._scheduler.clients
            if self._setup.groups is not None:
                groups = self._nodes.groups_of(self._setup.groups, connected)
                self._scheduler.amend(groups={client: group for client, group in groups.items() if group})
        if self._simulated is None:
            return self._nodes.offer(self._rows)
        return self._simulated.statuses(number, connected)

    def _connected_clients(self, grid: TimedGrid, number: int) -> dict[str, int]:
        """Returns the node of each connected client; waits up to the timeout for the first one."""
        start = time.monotonic()
        while True:
            connected = self.connected_nodes(grid)
            self._nodes.refresh(grid, connected, number)
            by_client = self._nodes.nodes_by_client(connected)
            if by_client:
                return by_client
            if time.monotonic() - start > self._timeout:
                raise SettingError(
                    f"none of {len(connected)} nodes identified itself within {self._timeout:g} s, or none is "
                    "eligible: check the log of a SuperNode and the setting eligible, or increase timeout"
                )
            time.sleep(grid.poll)
