"""Waits for nodes and lets the scheduler select a cohort among their clients."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from flwr.app import Message

from turnout.adapters.common.fleet import facts_of, take_over_round
from turnout.adapters.common.remote import RemoteRound
from turnout.adapters.flower.core.parts import Parts
from turnout.errors import SettingError
from turnout.live import RunningTurn, Statuses
from turnout.live._internals import OpenRound, SelectedClient
from turnout.log import get_log

log = get_log("flwr")
CONNECTION_POLL = 1.0  # seconds between two checks of the connected nodes, at most
PROGRESS_INTERVAL = 10  # seconds between two log lines while waiting for nodes


@dataclass(slots=True)
class FlowerRound:
    """A round between the selection of its cohort and its close.

    Attributes:
        opened: the round of the fleet.
        nodes: the node of each connected client of the cohort.
        selected: what was known about the clients of the cohort.
        recorded: the clients whose outcome was recorded before a restart of the server.
        arrived: the seconds and the content of each reply that can be aggregated.
        waited: the seconds that the server waited for replies.
    """

    opened: OpenRound | RemoteRound
    nodes: dict[str, int]
    selected: list[SelectedClient]
    recorded: frozenset[str] = frozenset()
    arrived: dict[str, tuple[float, Message]] = field(default_factory=dict)
    waited: float = 0.0

    @property
    def enough(self) -> bool:
        """Whether the target number of replies has arrived."""
        return len(self.arrived) >= self.opened.target_size

    def earliest_replies(self) -> list[Message]:
        """Returns the earliest replies up to the target number, ties by row."""
        order = {client: index for index, client in enumerate(self.nodes)}
        earliest = sorted(self.arrived, key=lambda client: (self.arrived[client][0], order[client]))
        return [self.arrived[client][1] for client in earliest[: self.opened.target_size]]


class CohortSelector:
    """Selects the cohort of each round among the clients that are connected.

    Args:
        parts: the fleet and its nodes.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts, self._messenger, self._timeout = parts, parts.messenger, parts.timeout
        self._scheduler, self._nodes = parts.scheduler, parts.nodes
        self._since_start: set[int] | None = None  # the nodes that are connected since the first selection
        self._warm: dict[str, int] = {}  # by client: its node, which has had a turn, and has not left since
        self._cold: set[str] | None = None  # the clients that are connected and not warm; None after a change
        self._connected: list[int] = []
        self._has_gathered = False  # whether `min_nodes` nodes have been connected since the start
        self._registered: dict[str, int] | None = None  # the clients whose rows are in `_rows`
        self._rows = np.zeros(0, dtype=np.int64)
        self._ids: list[str] = []  # all clients of the fleet at that time, by row

    def select(self) -> FlowerRound:
        """Selects a cohort, or takes over the round that an earlier server left open."""
        number = self._scheduler.round + (self._scheduler.open_round is None)
        connected, recorded = self._connected_clients(number), frozenset[str]()
        if self._scheduler.open_round is None:
            statuses = self._statuses(connected, number)
            cohort = self._scheduler.choose(statuses, cold=self._cold_clients(connected))
        else:
            cohort, recorded = take_over_round(self._scheduler, connected)
        opened = self._scheduler.open_round
        assert opened is not None  # choose has opened it
        nodes = {client: connected[client] for client in cohort}
        self._warm_up(nodes)
        return FlowerRound(opened, nodes, facts_of(self._scheduler).selected(), recorded)

    def fill(self) -> tuple[list[RunningTurn], dict[str, int]]:
        """Gives turns for the free slots of a fleet without rounds; returns them, and the node of each client."""
        slots = self._scheduler.settings.concurrency or 1
        connected = self._connected_clients(self._scheduler.round // slots + 1)
        statuses = self._statuses(connected, self._scheduler.round + 1)
        turns = self._scheduler.fill(statuses, cold=self._cold_clients(connected))
        self._warm_up({turn.client: connected[turn.client] for turn in turns})
        return turns, connected

    def _cold_clients(self, connected: dict[str, int]) -> Collection[str]:
        """Returns the clients that had no turn since they connected: the next one includes starts and imports."""
        if self._parts.statuses is not None:  # the times are those of a world
            return ()
        if self._cold is None:
            self._cold = connected.keys() - self._warm.keys()
        return self._cold

    def _warm_up(self, nodes: dict[str, int]) -> None:
        """Notes that these clients, on these nodes, have been given a turn."""
        self._warm |= nodes
        if self._cold is not None:
            self._cold -= nodes.keys()

    def connected_nodes(self) -> list[int]:
        """Returns the connected nodes; before the first round, waits up to the timeout for `min_nodes` of them.

        In a fleet that has trained before, some nodes may be gone for good: there it waits at most `patience` seconds.
        """
        start = logged = time.monotonic()
        required = 1 if self._has_gathered else self._parts.min_nodes
        while len(nodes := self._messenger.nodes()) < required:
            waited = time.monotonic() - start
            if nodes and self._scheduler.round and waited > self._parts.patience:
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
            time.sleep(min(CONNECTION_POLL, self._messenger.poll))
        self._has_gathered = True
        return nodes

    def _statuses(self, connected: dict[str, int], number: int) -> Statuses:
        """Returns the statuses of the connected clients, after entering new ones into the fleet.

        Clients that have trained before, and were connected when this server was started, have run since then.
        """
        if connected is not self._registered or self._scheduler.clients != self._ids:  # a client may be forgotten
            self._scheduler.register(list(connected))
            facts, were_there = facts_of(self._scheduler), self._since_start or set()
            self._rows = facts.rows(connected)
            trained = zip(connected.items(), facts.have_returned(list(connected)), strict=True)
            self._warm = {
                client: node
                for (client, node), returned in trained
                if self._warm.get(client, node if returned and node in were_there else None) == node
            }
            self._registered, self._ids, self._cold = connected, self._scheduler.clients, None
            self._nodes.enter(connected)
        return (
            self._nodes.offer(self._rows) if self._parts.statuses is None else self._parts.statuses(number, connected)
        )

    def _connected_clients(self, number: int) -> dict[str, int]:
        """Returns the node of each connected client; waits up to the timeout for the first one."""
        start = time.monotonic()
        while True:
            connected, restarted = self.connected_nodes(), self._nodes.restarted(self._messenger)
            if restarted or connected != self._connected:
                self._connected, present = connected, set(connected) - restarted
                self._since_start = present if self._since_start is None else self._since_start & present
                self._warm = {client: node for client, node in self._warm.items() if node in present}
                self._cold = None
            self._nodes.refresh(self._messenger, connected, number)
            by_client = self._nodes.nodes_by_client(connected)
            if by_client:
                return by_client
            if time.monotonic() - start > self._timeout:
                raise SettingError(
                    f"none of {len(connected)} nodes identified itself within {self._timeout:g} s, or none is "
                    "eligible: check the log of a SuperNode and the setting eligible, or increase timeout"
                )
            time.sleep(self._messenger.poll)
