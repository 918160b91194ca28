"""Maps Flower nodes to clients: a client keeps its id, while its node id changes with each restart."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from turnout.adapters.flower.discovery.groups import NodeGroups, Rules
from turnout.adapters.flower.discovery.statuses import StatusTable
from turnout.adapters.flower.grid import POLL, TimedGrid
from turnout.adapters.flower.wire import QUERY, ClientInfo, is_client_id, pop_client_info
from turnout.counting import pluralize
from turnout.kernel.arrays import IntArray
from turnout.live import PAPER_FEATURES, Features, FleetStatus
from turnout.log import get_log

log = get_log("flwr")
APP_ERROR = 2  # Flower's error code for an exception in the client app
PATIENCE = 30.0  # seconds


class NodeDirectory:
    """Learns from the grid and from every reply which client runs on which node.

    A node is queried only if neither the grid nor the node has given the id of its client, or a group that is needed.

    Args:
        features: the features of the fleet.
        patience: how long the first contact lasts after the last answer, in seconds.
        eligible: the groups whose clients may take part, by the name of the group.
        group_names: the names of other groups that are needed.
    """

    def __init__(
        self,
        features: Features,
        patience: float = PATIENCE,
        *,
        eligible: Rules | None = None,
        group_names: Sequence[str] = (),
    ) -> None:
        self._patience = patience
        self._eligible: Rules = eligible or {}
        self._groups = NodeGroups([*self._eligible, *group_names])
        self._statuses = StatusTable(features)
        self._clients: dict[int, str] = {}  # by node, the newest last
        self._descriptions: dict[int, Any] = {}  # by node: what the SuperLink knows, which no client can forge
        self._names: set[str] = set()  # under which nodes are registered: no other node can use them as an id
        self._duplicates: set[str] = set()
        self._queries: dict[str, int] = {}  # by message: the node that has not answered yet
        self._failures: dict[int, tuple[int, int]] = {}  # by node: failed queries, and the round of the next one
        self._has_met = False  # whether a first contact has found a client
        self._connected: list[int] = []
        self._by_client: dict[str, int] | None = None  # of these nodes; None after a change
        self._rows: IntArray = self._statuses.rows([])

    def refresh(self, grid: TimedGrid, nodes: Sequence[int], round: int) -> None:
        """Sends a query to each new node, all at once, and takes the answers that have arrived.

        A node has one query at a time, which is kept until it is answered, however long that takes. Those who are known
        go on without it; before the first contact nobody can, and the answers are awaited. A node whose query has
        failed is queried again after 1, 2, 4, … rounds, or at once as long as no client is known.

        Args:
            grid: the grid.
            nodes: the connected nodes.
            round: the round of the fleet, for which clients are selected next.
        """
        connected = set(nodes)
        gone = [query for query, node in self._queries.items() if node not in connected]
        grid.forget(gone)
        for query in gone:
            del self._queries[query]
        unknown = [node for node in nodes if node not in self._clients]
        if unknown:
            unknown = self._identify_by_grid(grid, unknown)
        any_known = len(unknown) < len(nodes)
        unknown += [node for node in nodes if node in self._clients and self._groups.must_query(node)]
        asked = set(self._queries.values())
        due = [
            node
            for node in unknown
            if node not in asked and not (any_known and self._failures.get(node, (0, 0))[1] > round)
        ]
        self._send_queries(grid, due, round)
        self._take_answers(grid, round)
        if not self._has_met or not self.nodes_by_client(nodes):
            self._await_answers(grid, round)
            self._has_met = bool(self.nodes_by_client(nodes))

    def _send_queries(self, grid: TimedGrid, nodes: Sequence[int], round: int) -> None:
        queries = [Message(self._groups.query(), dst_node_id=node, message_type=QUERY) for node in nodes]
        for node, query in zip(nodes, grid.push(queries) if queries else [], strict=True):
            if query is None:
                self._note_failure(node, round)
            else:
                self._queries[query] = node

    def _await_answers(self, grid: TimedGrid, round: int) -> None:
        """Waits until all queries are answered, or for `patience` seconds after the last answer.

        Many virtual nodes share a machine and answer one after the other: as long as they do, none of them is silent.
        """
        last = time.monotonic()
        while self._queries:
            time.sleep(grid.poll)
            if self._take_answers(grid, round):
                last = time.monotonic()
            elif time.monotonic() - last >= self._patience:
                log.warning(
                    "turnout: %s not given an id yet, and can train as soon as it comes",
                    pluralize(len(self._queries), "node", "have"),
                )
                return

    def _take_answers(self, grid: TimedGrid, round: int) -> bool:
        """Records the answers to queries that have arrived; returns whether there were any."""
        replies, anonymous = grid.pull(self._queries), []
        for query, reply, _ in replies:
            node = self._queries.pop(query)
            if reply.has_error() and reply.error.code != APP_ERROR:
                self._note_failure(node, round)
                continue
            self._failures.pop(node, None)
            info = pop_client_info(reply.content) if reply.has_content() else None
            if reply.has_error() and node not in self._clients:  # the app does not implement the query
                anonymous.append(node)
            self.record(node, info)
            self._groups.record(node, {} if info is None else info.groups)
            self._by_client = None
        if anonymous:
            log.warning(
                "turnout: %s not report an id (nodes %s, …) and the node id is used instead, which "
                "changes when a SuperNode restarts: end client_app.py with app = with_status(app)",
                pluralize(len(anonymous), "client", "do"),
                anonymous[0],
            )
        return bool(replies)

    def _note_failure(self, node: int, round: int) -> None:
        failures = self._failures.get(node, (0, 0))[0]
        self._failures[node] = (failures + 1, round + 2**failures)

    def record(self, node: int, info: ClientInfo | None) -> None:
        """Stores what a node reports about its client; None if its app does not use `with_status`."""
        named, previous = self._name_of(node), self._clients.get(node)
        client = named or (str(node) if info is None or info.client in self._names else info.client)
        if info is None:
            if previous is None:
                self._assign(node, client)
            return
        if previous != client:
            if info.client in self._names and named is None:
                log.warning("turnout: node %d reports the id %r, under which another is registered", node, info.client)
            elif previous is not None:
                log.warning("turnout: node %d was client %r and now reports the id %r", node, previous, client)
            self._assign(node, client)
        self._statuses.put(client, info.status)

    def nodes_by_client(self, nodes: Sequence[int]) -> dict[str, int]:
        """Returns the node of every known client that is connected; with duplicates the newest node wins."""
        if self._by_client is None or nodes != self._connected:
            self._connected = list(nodes)
            newest = self._newest_nodes(set(nodes))
            self._by_client = {client: newest[client] for client in sorted(newest) if self._is_eligible(newest[client])}
            self._rows = self._statuses.rows(list(self._by_client))
        return self._by_client

    def offer(self, fleet_rows: IntArray) -> FleetStatus:
        """Returns the latest status of each client of `nodes_by_client`, whose rows in the fleet are given."""
        return self._statuses.offer(self._rows, fleet_rows)

    def groups_of(self, name: str, nodes: Mapping[str, int]) -> dict[str, str | None]:
        """Returns the group of each client, whose nodes are given; None where it is not known."""
        return {client: self._group_of(node, name) for client, node in nodes.items()}

    def _group_of(self, node: int, name: str) -> str | None:
        return self._groups.group(name, node, self._descriptions.get(node))

    def _is_eligible(self, node: int) -> bool:
        return all(self._group_of(node, name) in allowed for name, allowed in self._eligible.items())

    def admitted(self, nodes: Sequence[int]) -> list[int]:
        """Returns those of these nodes that may take part."""
        return [node for node in nodes if self._is_eligible(node)]

    def client_of(self, node: int) -> str:
        """Returns the client of a node, or a text that names the node."""
        return self._clients.get(node, f"node {node}")

    def _identify_by_grid(self, grid: TimedGrid, unknown: Sequence[int]) -> list[int]:
        """Identifies nodes by the names under which they are registered; returns those that must be queried."""
        if hasattr(grid.inner, "get_nodes"):  # grids before Flower 1.41 know only node ids
            self._descriptions |= {node.node_id: node for node in grid.inner.get_nodes()}
        self._names |= {name for node in self._descriptions if (name := self._name_of(node)) is not None}
        for node in unknown:
            if (name := self._name_of(node)) is not None:
                self._assign(node, name)
        return [node for node in unknown if node not in self._clients]

    def _name_of(self, node: int) -> str | None:
        """Returns the name under which a node is registered, which is its client id; None if it has none."""
        name = getattr(self._descriptions.get(node), "name", "")
        return name if is_client_id(name) else None

    def _assign(self, node: int, client: str) -> None:
        self._clients.pop(node, None)  # the newest is the last
        self._clients[node] = client
        self._by_client = None

    def _newest_nodes(self, connected: set[int]) -> dict[str, int]:
        """Returns one node of each client: the one that was registered last, or that was identified last."""
        by_client: dict[str, int] = {}
        for node, client in self._clients.items():
            if node not in connected:
                continue
            other = by_client.get(client)
            if other is None or self._registered(node) >= self._registered(other):
                by_client[client] = node
            if other is not None and client not in self._duplicates:
                self._duplicates.add(client)
                log.warning(
                    "turnout: nodes %d and %d both report the client id %r; messages go to the newer one, %d. Unless "
                    "this client was restarted, give each SuperNode its own client-id",
                    other,
                    node,
                    client,
                    by_client[client],
                )
        return by_client

    def _registered(self, node: int) -> tuple[bool, str]:
        """Returns whether a node is registered under a name, and when it was registered."""
        return self._name_of(node) is not None, getattr(self._descriptions.get(node), "registered_at", "")


def identify_clients(grid: Grid, *, patience: float = PATIENCE) -> dict[str, int]:
    """Returns the node id of each client that is connected, by client id.

    Nodes that the grid does not name are queried; those that do not answer within `patience` seconds are missing.
    """
    timed = grid if isinstance(grid, TimedGrid) else TimedGrid(grid, POLL)
    connected, directory = timed.get_node_ids(), NodeDirectory(PAPER_FEATURES, patience)
    directory.refresh(timed, connected, 1)
    return directory.nodes_by_client(connected)
