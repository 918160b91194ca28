"""Which client is behind which node, and how it is: clients stay, nodes come and go."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from turnout.adapters.flower.grid import POLL, TimedGrid
from turnout.adapters.flower.wire import QUERY, Introduction, introduction_in
from turnout.errors import OfferError
from turnout.scheduler import PAPER_FEATURES, Features

log = logging.getLogger("flwr")
PLAIN_STATUS = 1.0  # a client that says nothing of itself


class Nodes:
    """Learns from every reply who sent it; asks the nodes that it has never heard of."""

    def __init__(self, features: Features, patience: float) -> None:
        self._features, self._patience = features, patience
        self._clients: dict[int, str] = {}  # by node, the newest last
        self._statuses: dict[str, Mapping[str, float]] = {}
        self._doubles: set[str] = set()
        self._asked: dict[int, tuple[int, int]] = {}  # by node: how often in vain, and when again

    def ask_new(self, grid: TimedGrid, nodes: Iterable[int], round: int) -> None:
        """Ask those that nothing was heard of; who stays silent is asked again after 1, 2, 4, … rounds.

        As long as nobody is known, all are asked.
        """
        there = list(nodes)
        known = any(node in self._clients for node in there)
        new = [
            node
            for node in there
            if node not in self._clients and not (known and self._asked.get(node, (0, 0))[1] > round)
        ]
        if not new:
            return
        self.ask(grid, new)
        for node in new:
            times = self._asked.pop(node, (0, 0))[0]
            if node not in self._clients:
                self._asked[node] = (times + 1, round + 2**times)
        silent = [node for node in new if node not in self._clients]
        if silent:
            log.warning("turnout: %d nodes did not say who they are within %g s", len(silent), self._patience)

    def ask(self, grid: TimedGrid, nodes: Iterable[int]) -> None:
        """One query to each of these nodes."""
        queries = [Message(RecordDict(), dst_node_id=node, message_type=QUERY) for node in nodes]
        replies = grid.send_and_receive(queries, timeout=self._patience)
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in queries}
        strangers = []
        for reply in replies:
            node = asked[reply.metadata.reply_to_message_id]
            if reply.has_content():
                self.hear(node, introduction_in(reply.content))
            elif reply.error.code == 2 and node not in self._clients:  # the app has no answer to our query
                self.hear(node, None)
                strangers.append(node)
        if strangers:
            log.warning(
                "turnout: %d clients do not say who they are (%s, …) and are known by their node's id, which changes "
                "when a SuperNode is started again: end client_app.py with app = with_status(app)",
                len(strangers),
                strangers[0],
            )

    def hear(self, node: int, told: Introduction | None) -> None:
        """What a node says of itself; nothing, if its app does not have our line."""
        if told is None:
            if node not in self._clients:
                self._clients[node] = str(node)
            return
        before = self._clients.get(node)
        if before is not None and before != told.client:
            log.warning("turnout: node %d was client %r and now says it is %r", node, before, told.client)
            del self._clients[node]
        self._clients.setdefault(node, told.client)
        self._statuses[told.client] = told.status

    def by_client(self, nodes: Iterable[int]) -> dict[str, int]:
        """The node of every known client that is connected: the newest, where several say that they are it."""
        connected = set(nodes)
        found: dict[str, int] = {}
        for node, client in self._clients.items():
            if node not in connected:
                continue
            if client in found and client not in self._doubles:
                self._doubles.add(client)
                log.warning(
                    "turnout: nodes %d and %d both say that they are client %r; the newer one is asked. If it was not "
                    "started again, give each SuperNode a client-id of its own",
                    found[client],
                    node,
                    client,
                )
            found[client] = node
        return dict(sorted(found.items()))

    def statuses(self, clients: Iterable[str]) -> dict[str, Mapping[str, float]]:
        """How they are; those whose numbers are not credible are left out, and told."""
        credible = {}
        for client in clients:
            status = self._statuses.get(client) or self._plain_status()
            try:
                self._features.check(client, status)
            except OfferError as odd:
                log.warning("turnout: left out of this round: %s", odd)
            else:
                credible[client] = status
        return credible

    def _plain_status(self) -> dict[str, Any]:
        return {feature.name: min(max(PLAIN_STATUS, feature.low), feature.high) for feature in self._features.declared}


def clients_of(grid: Grid, *, patience: float = 30.0) -> dict[str, int]:
    """Ask every connected node who it is: the node of each client, by its id."""
    timed = grid if isinstance(grid, TimedGrid) else TimedGrid(grid, POLL)
    connected, nodes = timed.get_node_ids(), Nodes(PAPER_FEATURES, patience)
    nodes.ask(timed, connected)
    return nodes.by_client(connected)
