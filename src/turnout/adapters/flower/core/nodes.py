"""Maps Flower nodes to clients, which keep their ids while node ids change, and keeps the latest status of each."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from turnout.adapters.flower.core.messages import Messenger
from turnout.adapters.flower.flower_api import APP_ERROR, NAME, REGISTERED, describe_nodes, started_at
from turnout.adapters.flower.settings import ClientSettings, ExchangeSettings
from turnout.adapters.flower.wire import QUERY, ClientInfo, is_client_id, pop_client_info
from turnout.counting import pluralize
from turnout.errors import OfferError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.live import PAPER_FEATURES, Features, FleetStatus
from turnout.log import get_log

log = get_log("flwr")
DEFAULT_STATUS = 1.0  # value of each feature of a client whose status is unknown
FIRST_CAPACITY = 64
#: At most so many nodes are queried in a round: the minimum, and in units of the clients that a round needs.
MIN_WAVE, WAVE = 48, 2
RESTART_POLL = 1.0  # seconds between two looks for nodes that were started again
IMPOSTOR = "turnout: node %d reports the id %r, under which another is registered"


class StatusTable:
    """Holds one row per client, in the order in which they were first seen."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._index: dict[str, int] = {}
        self._default = [min(max(DEFAULT_STATUS, feature.low), feature.high) for feature in features.declared]
        self._values: FloatArray = np.tile(self._default, (FIRST_CAPACITY, 1))

    def put(self, client: str, status: Mapping[str, float]) -> None:
        """Stores the status that a client reports; one that is empty or out of range counts as unknown."""
        row = self._index[client] if client in self._index else int(self.rows([client])[0])
        declared = self._features.declared
        values = [status.get(feature.name, math.nan) for feature in declared]
        is_valid = all(feature.low <= value <= feature.high for feature, value in zip(declared, values, strict=True))
        self._values[row] = values if is_valid else self._default
        if status and not is_valid:
            try:
                self._features.check(client, status)
            except OfferError as error:
                log.warning("turnout: the status of a client counts as unknown: %s", error)

    def rows(self, clients: Sequence[str]) -> IntArray:
        """Returns the rows of these clients in the table; a new client gets a row with default values."""
        rows = np.array([self._index.setdefault(client, len(self._index)) for client in clients], dtype=np.int64)
        missing = len(self._index) - len(self._values)
        if missing > 0:
            capacity = max(missing, len(self._values))
            self._values = np.concatenate([self._values, np.tile(self._default, (capacity, 1))])
        return rows

    def offer(self, rows: IntArray, fleet_rows: IntArray) -> FleetStatus:
        """Returns the statuses of clients by their rows in the table and in the fleet."""
        columns = {feature.name: self._values[rows, index] for index, feature in enumerate(self._features.declared)}
        return FleetStatus(columns, fleet_rows)


class NodeFilter:
    """Lets every node take part, and asks it only for the id of its client."""

    def query(self) -> RecordDict:
        """Returns the content of a query to a node."""
        return RecordDict()

    def record(self, node: int, groups: Mapping[str, str]) -> None:
        """Stores what a node answered to a query; nothing if its app does not implement it."""

    def must_query(self, node: int) -> bool:
        """Returns whether a node must be queried although its client is known."""
        del node
        return False

    def admitted(self, nodes: Sequence[int], descriptions: Mapping[int, Any]) -> list[int]:
        """Returns the nodes that may take part; the SuperLink describes some of them."""
        del descriptions
        return list(nodes)

    def enter(self, clients: Mapping[str, int], descriptions: Mapping[int, Any]) -> None:
        """Is called with the clients that are connected, and their nodes, after others have joined."""


class NodeDirectory:
    """Learns from the grid and from every reply which client runs on which node.

    A node is queried only if neither the grid nor the node has given the id of its client, or a group that is needed.

    Args:
        features: the features of the fleet.
        patience: how long the first contact lasts after the last answer, in seconds.
        needed: the number of clients that a round needs, of which depends how many nodes are queried at once; None: all
            nodes are.
        node_filter: decides which nodes may take part; None: all.
    """

    def __init__(
        self,
        features: Features,
        patience: float,
        needed: int | None = None,
        node_filter: NodeFilter | None = None,
    ) -> None:
        self._patience, self._needed = patience, needed
        self._wave = None if needed is None else max(MIN_WAVE, WAVE * needed)
        self._filter = NodeFilter() if node_filter is None else node_filter
        self._statuses = StatusTable(features)
        self._clients: dict[int, str] = {}  # by node, the newest last
        self._descriptions: dict[int, Any] = {}  # by node: what the SuperLink knows, which no client can forge
        self._started: dict[int, str] = {}  # by node: when it was started last, according to the SuperLink
        self._asked_at = -math.inf  # when that was asked, by the monotonic clock
        self._names: set[str] = set()  # under which nodes are registered: no other node can use them as an id
        self._duplicates: set[str] = set()
        self._queries: dict[str, int] = {}  # by message: the node that has not answered yet
        self._failures: dict[int, tuple[int, int]] = {}  # by node: failed queries, and the round of the next one
        self._has_met = False  # whether a first contact has found a client
        self._complete: Sequence[int] = ()  # connected nodes, of all of which everything is known
        self._connected: list[int] = []
        self._by_client: dict[str, int] | None = None  # of these nodes; None after a change
        self._rows: IntArray = self._statuses.rows([])

    def restarted(self, messenger: Messenger) -> set[int]:
        """Returns the nodes that have been started again under the same number: those that are registered keep it.

        The SuperLink is asked at most once a second.
        """
        if not self._names or time.monotonic() - self._asked_at < RESTART_POLL:
            return set()
        before, self._started, self._asked_at = self._started, started_at(messenger.grid), time.monotonic()
        return {node for node, at in self._started.items() if before.get(node, at) != at}

    def refresh(self, messenger: Messenger, nodes: Sequence[int], round: int) -> None:
        """Sends queries to new nodes, many at once, and takes the answers that have arrived.

        A node has one query at a time, which is kept until it is answered, however long that takes. Those who are known
        go on without it; before the first contact nobody can, and the answers are awaited. A node whose query has
        failed is queried again after 1, 2, 4, … rounds, or at once as long as no client is known.

        Args:
            messenger: sends the queries.
            nodes: the connected nodes.
            round: the round of the fleet, for which clients are selected next.
        """
        if nodes == self._complete:
            return
        connected = set(nodes)
        gone = [query for query, node in self._queries.items() if node not in connected]
        messenger.forget(gone)
        for query in gone:
            del self._queries[query]
        unknown = [node for node in nodes if node not in self._clients]
        if unknown:
            unknown = self._identify_by_grid(messenger, unknown)
        any_known = len(unknown) < len(nodes)
        unknown += [node for node in nodes if node in self._clients and self._filter.must_query(node)]
        asked = set(self._queries.values())
        due = [
            node
            for node in unknown
            if node not in asked and not (any_known and self._failures.get(node, (0, 0))[1] > round)
        ]
        self._complete = () if unknown else nodes
        while True:
            wave, due = due[: self._wave], due[len(due) if self._wave is None else self._wave :]
            self._send_queries(messenger, wave, round)
            self._take_answers(messenger, round)
            if self._has_met and self.nodes_by_client(nodes):
                return
            self._await_answers(messenger, round)
            known = len(self.nodes_by_client(nodes))
            if known >= (self._needed or 0) or not due:
                self._has_met = known > 0
                return

    def _send_queries(self, messenger: Messenger, nodes: Sequence[int], round: int) -> None:
        queries = [Message(self._filter.query(), dst_node_id=node, message_type=QUERY) for node in nodes]
        for node, query in zip(nodes, messenger.push(queries), strict=True):
            if query is None:
                self._note_failure(node, round)
            else:
                self._queries[query] = node

    def _await_answers(self, messenger: Messenger, round: int) -> None:
        """Waits until all queries are answered, or for `patience` seconds after the last answer.

        Many virtual nodes share a machine and answer one after the other: as long as they do, none of them is silent.
        """
        last = time.monotonic()
        while self._queries:
            time.sleep(messenger.poll)
            if self._take_answers(messenger, round):
                last = time.monotonic()
            elif time.monotonic() - last >= self._patience:
                log.warning(
                    "turnout: %s not given an id yet, and can train as soon as it comes",
                    pluralize(len(self._queries), "node", "have"),
                )
                return

    def _take_answers(self, messenger: Messenger, round: int) -> bool:
        """Records the answers to queries that have arrived; returns whether there were any."""
        replies, anonymous = messenger.pull(self._queries), []
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
            self._filter.record(node, {} if info is None else info.groups)
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
        if info is not None and not is_client_id(info.client):
            if node not in self._clients:
                log.warning(
                    "turnout: the client-id of node %d is %.50r, and must have 1 to 1,024 bytes without a null: its "
                    "node id is used instead",
                    node,
                    info.client,
                )
            info = None
        named, previous = self._name_of(node), self._clients.get(node)
        client = named or (str(node) if info is None or info.client in self._names else info.client)
        if info is None:
            if previous is None:
                self._assign(node, client)
            return
        if previous != client:
            if info.client in self._names and named is None:
                log.warning(IMPOSTOR, node, info.client)
            elif previous is not None:
                log.warning("turnout: node %d was client %r and now reports the id %r", node, previous, client)
            self._assign(node, client)
        self._statuses.put(client, info.status)

    def nodes_by_client(self, nodes: Sequence[int]) -> dict[str, int]:
        """Returns the node of every known client that is connected; with duplicates the newest node wins."""
        if self._by_client is None or nodes != self._connected:
            self._connected = list(nodes)
            newest = self._newest_nodes(set(nodes))
            admitted = set(self.admitted(list(newest.values())))
            self._by_client = {client: newest[client] for client in sorted(newest) if newest[client] in admitted}
            self._rows = self._statuses.rows(list(self._by_client))
        return self._by_client

    def offer(self, fleet_rows: IntArray) -> FleetStatus:
        """Returns the latest status of each client of `nodes_by_client`, whose rows in the fleet are given."""
        return self._statuses.offer(self._rows, fleet_rows)

    def enter(self, clients: Mapping[str, int]) -> None:
        """Is called with the clients that are connected, and their nodes, after others have joined."""
        self._filter.enter(clients, self._descriptions)

    def admitted(self, nodes: Sequence[int]) -> list[int]:
        """Returns those of these nodes that may take part."""
        return self._filter.admitted(nodes, self._descriptions)

    def client_of(self, node: int) -> str:
        """Returns the client of a node, or a text that names the node."""
        return self._clients.get(node, f"node {node}")

    def _identify_by_grid(self, messenger: Messenger, unknown: Sequence[int]) -> list[int]:
        """Identifies nodes by the names under which they are registered; returns those that must be queried."""
        self._descriptions |= describe_nodes(messenger.grid)
        self._started = started_at(messenger.grid) | self._started
        self._names |= {name for node in self._descriptions if (name := self._name_of(node)) is not None}
        for node, client in list(self._clients.items()):
            if client in self._names and self._name_of(node) is None:
                log.warning(IMPOSTOR, node, client)
                self._assign(node, str(node))
                self._statuses.put(client, {})  # what it has reported is not the status of the owner
        for node in unknown:
            if (name := self._name_of(node)) is not None:
                self._assign(node, name)
        return [node for node in unknown if node not in self._clients]

    def _name_of(self, node: int) -> str | None:
        """Returns the name under which a node is registered, which is its client id; None if it has none."""
        name = getattr(self._descriptions.get(node), NAME, "")
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
        return self._name_of(node) is not None, getattr(self._descriptions.get(node), REGISTERED, "")


def identify_clients(grid: Grid, *, patience: float = ClientSettings().patience) -> dict[str, int]:
    """Returns the node id of each client that is connected, by client id.

    Nodes that the grid does not name are queried; those that do not answer within `patience` seconds are missing.
    """
    messenger, directory = Messenger(grid, ExchangeSettings().poll), NodeDirectory(PAPER_FEATURES, patience)
    connected = messenger.nodes()
    directory.refresh(messenger, connected, 1)
    return directory.nodes_by_client(connected)
