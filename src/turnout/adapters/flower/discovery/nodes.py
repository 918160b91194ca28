"""Maps Flower nodes to clients: a client keeps its id, while its node id changes with each restart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from flwr.app import Message
from flwr.serverapp import Grid

from turnout.adapters.flower.discovery.groups import NodeGroups, Rules
from turnout.adapters.flower.discovery.identity import UNKNOWN, KeyBook, NodeDescription, describe_nodes
from turnout.adapters.flower.discovery.statuses import StatusTable
from turnout.adapters.flower.grid import POLL, TimedGrid
from turnout.adapters.flower.wire import QUERY, ClientInfo, pop_client_info
from turnout.counting import pluralize
from turnout.kernel.arrays import IntArray
from turnout.live import PAPER_FEATURES, Features, FleetStatus
from turnout.log import get_log

log = get_log("flwr")
APP_ERROR = 2  # Flower's error code for an exception in the client app
PATIENCE = 30.0  # seconds
STATUS_TIMEOUT = 10.0  # seconds
MAX_WAVE = 3600.0  # seconds for all nodes to tell their ids
Duplicates = Literal["replace", "refuse"]


class NodeDirectory:
    """Learns from the grid and from every reply which client runs on which node, and queries nodes if it must.

    A node is queried if neither the grid nor the node has given the id of its client, and if the last status of its
    client was out of range.

    Args:
        features: the features of the fleet.
        patience: how long to wait for a client id after the last node has given its own, in seconds.
        status_timeout: the seconds that a node has to tell a new status.
        duplicates: whether another node that claims the id of a client replaces it or is refused.
        keys: the keys of the SuperNodes that run the clients.
        eligible: the groups whose clients may take part, by the name of the group.
        group_names: the names of other groups that are needed.
    """

    def __init__(
        self,
        features: Features,
        patience: float = PATIENCE,
        status_timeout: float = STATUS_TIMEOUT,
        *,
        duplicates: Duplicates = "replace",
        keys: KeyBook | None = None,
        eligible: Rules | None = None,
        group_names: Sequence[str] = (),
    ) -> None:
        self._patience, self._status_timeout = patience, status_timeout
        self._refuses, self._keys = duplicates == "refuse", keys or KeyBook()
        self._refused: dict[int, str] = {}  # nodes that claim the id of another node's client
        self._eligible: Rules = eligible or {}
        self._groups = NodeGroups([*self._eligible, *group_names])
        self._statuses = StatusTable(features)
        self._clients: dict[int, str] = {}  # by node, the newest last
        self._nodes_of: dict[str, set[int]] = {}  # by client
        self._descriptions: dict[int, NodeDescription] = {}
        self._duplicates: set[str] = set()
        self._other_ids: set[int] = set()  # nodes that report another id than their name
        self._invalid: set[str] = set()  # clients whose last status was out of range
        self._unanswered: dict[int, tuple[int, int]] = {}  # by node: failed queries, and the round of the next one
        self._present: set[int] = set()  # the connected nodes
        self._connected: list[int] = []
        self._by_client: dict[str, int] | None = None  # of these nodes; None after a change
        self._all_known = False
        self._rows: IntArray = self._statuses.rows([])

    def refresh(self, grid: TimedGrid, nodes: Sequence[int], round: int, *, query_all: bool = False) -> None:
        """Identifies new nodes and asks for the statuses that are needed, all at once.

        A node that does not answer is queried again after 1, 2, 4, … rounds. As long as no client is known, all nodes
        are queried without back-off.

        Args:
            grid: the grid.
            nodes: the connected nodes.
            round: the round of the fleet, for which clients are selected next.
            query_all: whether to query the nodes of all clients.
        """
        is_same = self._by_client is not None and nodes == self._connected and self._all_known
        if is_same and not self._invalid and not query_all:
            return
        self._present = set(nodes)
        for node, client in list(self._refused.items()):
            if node in self._present and self._claim_problem(node, client) is None:
                self._assign(node, client)  # the other node has gone
        unknown = [node for node in nodes if node not in self._clients and node not in self._refused]
        if unknown:
            unknown = self._identify_by_grid(grid, unknown)
        any_known = len(unknown) < len(nodes)
        identified = [node for node in nodes if node in self._clients]
        unknown += [node for node in identified if self._groups.must_query(node)]
        known = [node for node in identified if query_all or self._clients[node] in self._invalid]
        # Many virtual nodes share a machine and answer one after the other: as long as they do, none of them is silent.
        longest = max(self._patience, min(self._patience * len(unknown), MAX_WAVE))
        limits = dict.fromkeys(known, self._status_timeout) | dict.fromkeys(unknown, longest)
        due = {
            node: limit
            for node, limit in limits.items()
            if not (any_known and self._unanswered.get(node, (0, 0))[1] > round)
        }
        if not due:
            return
        answered = self.query(grid, due)
        for node in due:
            failures = self._unanswered.pop(node, (0, 0))[0]
            if node not in answered:
                self._unanswered[node] = (failures + 1, round + 2**failures)
        silent = sum(node not in self._clients and node not in self._refused for node in due)
        if silent:
            log.warning("turnout: %d nodes did not identify themselves within %g s", silent, self._patience)

    def query(self, grid: TimedGrid, limits: Mapping[int, float]) -> set[int]:
        """Sends a query to each node and waits up to its limit in seconds; returns the nodes that answered.

        If new nodes are among them and no answer arrives for `patience` seconds, the waiting ends for all.
        """
        queries = [Message(self._groups.query(), dst_node_id=node, message_type=QUERY) for node in limits]
        has_new = any(node not in self._clients or self._groups.must_query(node) for node in limits)
        replies = grid.ask(queries, list(limits.values()), idle=self._patience if has_new else math.inf)
        node_of = {message.metadata.message_id: message.metadata.dst_node_id for message in queries}
        answered, anonymous = set(), []
        for reply in replies:
            node = node_of[reply.metadata.reply_to_message_id]
            if reply.has_error() and reply.error.code != APP_ERROR:
                continue
            answered.add(node)
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
        return answered

    def record(self, node: int, info: ClientInfo | None) -> None:
        """Stores what a node reports about its client; None if its app does not use `with_status`."""
        named = self._descriptions.get(node, UNKNOWN).client
        client = named or (str(node) if info is None else info.client)
        previous = self._clients.get(node)
        if info is None:
            if previous is None:
                self._assign(node, client)
            return
        if named is not None and info.client not in (named, str(node)) and node not in self._other_ids:
            self._other_ids.add(node)
            log.info(
                "turnout: node %d is registered as %r, which is its client id; it reports %r", node, named, info.client
            )
        if previous is not None and previous != client:
            log.warning("turnout: node %d was client %r and now reports the id %r", node, previous, client)
            del self._clients[node]
            self._nodes_of[previous].discard(node)
            self._by_client = None
        if previous != client and not self._assign(node, client):
            return
        self._statuses.put(client, info.status)
        self._invalid.discard(client)

    def nodes_by_client(self, nodes: Sequence[int]) -> dict[str, int]:
        """Returns the node of every known client that is connected; with duplicates the newest node wins."""
        if self._by_client is None or nodes != self._connected:
            self._connected = list(nodes)
            newest = self._newest_nodes(set(nodes))
            self._by_client = {client: newest[client] for client in sorted(newest) if self._is_eligible(newest[client])}
            self._rows = self._statuses.rows(list(self._by_client))
            self._all_known = all(node in self._clients and not self._groups.must_query(node) for node in nodes)
        return self._by_client

    def offer(self, fleet_rows: IntArray) -> FleetStatus:
        """Returns the latest status of each client of `nodes_by_client`, whose rows in the fleet are given.

        A client whose values are out of range is left out, with a warning, and is queried before the next selection.
        """
        valid = self._statuses.is_valid(self._rows)
        if valid.all():
            return self._statuses.offer(self._rows, fleet_rows)
        clients = list(self._by_client or {})
        for index in (~valid).nonzero()[0].tolist():
            self._invalid.add(clients[index])
            problem = self._statuses.problem(clients[index])
            log.warning("turnout: excluded from this round: %s; its status is asked for again before the next", problem)
        return self._statuses.offer(self._rows[valid], fleet_rows[valid])

    def groups_of(self, name: str, nodes: Mapping[str, int]) -> dict[str, str | None]:
        """Returns the group of each client, whose nodes are given; None where it is not known."""
        return {
            client: self._groups.group(name, node, self._descriptions.get(node, UNKNOWN))
            for client, node in nodes.items()
        }

    def _is_eligible(self, node: int) -> bool:
        description = self._descriptions.get(node, UNKNOWN)
        return all(self._groups.group(name, node, description) in allowed for name, allowed in self._eligible.items())

    def admitted(self, nodes: Sequence[int]) -> list[int]:
        """Returns those of these nodes that may take part: eligible ones that do not claim the id of another client."""
        if not self._refused and not self._eligible:
            return list(nodes)
        return [node for node in nodes if node not in self._refused and self._is_eligible(node)]

    def client_of(self, node: int) -> str:
        """Returns the client of a node, or a text that names the node."""
        return self._clients.get(node, f"node {node}")

    def _identify_by_grid(self, grid: TimedGrid, unknown: Sequence[int]) -> list[int]:
        """Identifies nodes by what the grid knows about them; returns those that must be queried."""
        self._descriptions |= describe_nodes(grid.inner)
        for node in unknown:
            name = self._descriptions.get(node, UNKNOWN).client
            if name is not None:
                self._assign(node, name)
        return [node for node in unknown if node not in self._clients]

    def _assign(self, node: int, client: str) -> bool:
        """Maps a node to a client; returns False if the id belongs to another node."""
        problem = self._claim_problem(node, client)
        if problem is not None and self._refuses:
            if self._refused.get(node) != client:
                log.warning("turnout: node %d is refused: it claims the client id %r, %s", node, client, problem)
            self._refused[node] = client
            return False
        if problem is not None:
            log.info("turnout: node %d takes over the client id %r, %s", node, client, problem)
        self._refused.pop(node, None)
        self._clients[node] = client
        self._nodes_of.setdefault(client, set()).add(node)
        self._by_client = None
        key = self._descriptions.get(node, UNKNOWN).key
        if key:
            self._keys.bind(client, key)
        return True

    def _claim_problem(self, node: int, client: str) -> str | None:
        """Returns why the client id seems to belong to another node; None if it does not."""
        key = self._descriptions.get(node, UNKNOWN).key
        if key:
            return "which another SuperNode key used before" if self._keys.is_other(client, key) else None
        others = (other for other in self._nodes_of.get(client, ()) if other != node and other in self._present)
        return next((f"which node {other} uses" for other in others), None)

    def save_keys(self, clients: Sequence[str]) -> None:
        """Stores which keys run these clients, if any has changed."""
        self._keys.save(clients)

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

    def _registered(self, node: int) -> str:
        return self._descriptions.get(node, UNKNOWN).registered


def identify_clients(grid: Grid, *, patience: float = PATIENCE) -> dict[str, int]:
    """Returns the node id of each client that is connected, by client id.

    Nodes that the grid does not name are queried; those that do not answer within `patience` seconds are missing.
    """
    return _identify(grid, NodeDirectory(PAPER_FEATURES, patience))


def client_groups(grid: Grid, name: str, *, patience: float = PATIENCE) -> dict[str, str | None]:
    """Returns the group of each client that is connected, by client id, in the order of the ids.

    `Scheduler.amend(groups=…)` accepts the result, after the clients have been registered; `FairSelection(groups=…)`
    does the same before each round.

    Args:
        grid: Flower's grid.
        name: "owner" or "location", which the SuperLink knows from Flower 1.41 on, or the name of an entry in the
            configurations of the nodes.
        patience: the seconds that a node has to answer; the group of a client that does not is None.
    """
    directory = NodeDirectory(PAPER_FEATURES, patience, group_names=[name])
    return directory.groups_of(name, _identify(grid, directory))


def _identify(grid: Grid, directory: NodeDirectory) -> dict[str, int]:
    timed = grid if isinstance(grid, TimedGrid) else TimedGrid(grid, POLL)
    connected = timed.get_node_ids()
    directory.refresh(timed, connected, 1)
    return directory.nodes_by_client(connected)
