"""What Flower's grid knows about its nodes, and how clients are identified by it."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.serverapp import Grid

from turnout.adapters.flower.wire import is_client_id


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """The description of a node by the SuperLink, which no client can forge; empty if the grid knows nothing.

    Attributes:
        name: The name under which the SuperNode was registered.
        owner: The account that registered it.
        location: Where it runs, as stated at its registration.
        key: The public key of the SuperNode.
        registered: When it was registered, as an ISO date.
    """

    name: str = ""
    owner: str = ""
    location: str = ""
    key: bytes = b""
    registered: str = ""

    @property
    def client(self) -> str | None:
        """The client id that the grid gives to the node; None if the client itself must tell its id."""
        return self.name if is_client_id(self.name) else None


UNKNOWN = NodeDescription()


def describe_nodes(grid: Grid) -> dict[int, NodeDescription]:
    """Returns the description of each connected node; empty before Flower 1.41, whose grids know only node ids."""
    if not hasattr(grid, "get_nodes"):
        return {}
    return {
        node.node_id: NodeDescription(
            name=node.name,
            owner=node.owner_name,
            location=node.location,
            key=bytes(node.public_key),
            registered=node.registered_at,
        )
        for node in grid.get_nodes()
    }
