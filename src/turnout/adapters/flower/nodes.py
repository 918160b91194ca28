"""Maps Flower nodes to clients: a client keeps its id, while its node id changes with each restart."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from turnout.adapters.flower.grid import POLL, TimedGrid
from turnout.adapters.flower.wire import QUERY, ClientInfo, pop_client_info
from turnout.errors import OfferError
from turnout.scheduler import PAPER_FEATURES, Features

log = logging.getLogger("flwr")
DEFAULT_STATUS = 1.0  # value of each feature of a client that reports no status
APP_ERROR = 2  # Flower's error code for an exception in the client app


class NodeDirectory:
    """Learns from every reply which client runs on which node, and queries nodes that it does not know yet.

    `patience` is the timeout of such a query in seconds.
    """

    def __init__(self, features: Features, patience: float) -> None:
        self._features, self._patience = features, patience
        self._clients: dict[int, str] = {}  # by node, the newest last
        self._statuses: dict[str, Mapping[str, float]] = {}
        self._duplicates: set[str] = set()
        self._unanswered: dict[int, tuple[int, int]] = {}  # by node: failed queries, and the round of the next one

    def query_unknown(self, grid: TimedGrid, nodes: Iterable[int], round: int) -> None:
        """Queries nodes whose client is unknown; a node that does not answer is queried again after 1, 2, 4, … rounds.

        As long as no client is known, all nodes are queried without back-off.
        """
        connected = list(nodes)
        any_known = any(node in self._clients for node in connected)
        due = [
            node
            for node in connected
            if node not in self._clients and not (any_known and self._unanswered.get(node, (0, 0))[1] > round)
        ]
        if not due:
            return
        self.query(grid, due)
        for node in due:
            failures = self._unanswered.pop(node, (0, 0))[0]
            if node not in self._clients:
                self._unanswered[node] = (failures + 1, round + 2**failures)
        silent = [node for node in due if node not in self._clients]
        if silent:
            log.warning("turnout: %d nodes did not identify themselves within %g s", len(silent), self._patience)

    def query(self, grid: TimedGrid, nodes: Iterable[int]) -> None:
        """Sends one query to each of these nodes and records the answers."""
        queries = [Message(RecordDict(), dst_node_id=node, message_type=QUERY) for node in nodes]
        replies = grid.send_and_receive(queries, timeout=self._patience)
        node_of = {message.metadata.message_id: message.metadata.dst_node_id for message in queries}
        anonymous = []
        for reply in replies:
            node = node_of[reply.metadata.reply_to_message_id]
            if reply.has_content():
                self.record(node, pop_client_info(reply.content))
            elif reply.error.code == APP_ERROR and node not in self._clients:  # the app does not implement the query
                self.record(node, None)
                anonymous.append(node)
        if anonymous:
            log.warning(
                "turnout: %d clients do not report an id (nodes %s, …) and are identified by their node id, which "
                "changes when a SuperNode restarts: end client_app.py with app = with_status(app)",
                len(anonymous),
                anonymous[0],
            )

    def record(self, node: int, info: ClientInfo | None) -> None:
        """Stores what a node reports about its client; None if its app does not use `with_status`."""
        if info is None:
            if node not in self._clients:
                self._clients[node] = str(node)
            return
        previous = self._clients.get(node)
        if previous is not None and previous != info.client:
            log.warning("turnout: node %d was client %r and now reports the id %r", node, previous, info.client)
            del self._clients[node]
        self._clients.setdefault(node, info.client)
        self._statuses[info.client] = info.status

    def nodes_by_client(self, nodes: Iterable[int]) -> dict[str, int]:
        """Returns the node of every known client that is connected; with duplicates the newest node wins."""
        connected = set(nodes)
        by_client: dict[str, int] = {}
        for node, client in self._clients.items():
            if node not in connected:
                continue
            if client in by_client and client not in self._duplicates:
                self._duplicates.add(client)
                log.warning(
                    "turnout: nodes %d and %d both report the client id %r; messages go to the newer one. Unless this "
                    "client was restarted, give each SuperNode its own client-id",
                    by_client[client],
                    node,
                    client,
                )
            by_client[client] = node
        return dict(sorted(by_client.items()))

    def statuses(self, clients: Iterable[str]) -> dict[str, Mapping[str, float]]:
        """Returns the latest status of each client; logs and omits clients whose values are out of range."""
        valid = {}
        for client in clients:
            status = self._statuses.get(client) or self._default_status()
            try:
                self._features.check(client, status)
            except OfferError as error:
                log.warning("turnout: excluded from this round: %s", error)
            else:
                valid[client] = status
        return valid

    def _default_status(self) -> dict[str, Any]:
        declared = self._features.declared
        return {feature.name: min(max(DEFAULT_STATUS, feature.low), feature.high) for feature in declared}


def identify_clients(grid: Grid, *, patience: float = 30.0) -> dict[str, int]:
    """Queries every connected node and returns the node id of each client, by client id.

    Nodes that do not answer within `patience` seconds are missing from the result.
    """
    timed = grid if isinstance(grid, TimedGrid) else TimedGrid(grid, POLL)
    connected, directory = timed.get_node_ids(), NodeDirectory(PAPER_FEATURES, patience)
    directory.query(timed, connected)
    return directory.nodes_by_client(connected)


#: Former name of `identify_clients`, kept as an alias.
clients_of = identify_clients
