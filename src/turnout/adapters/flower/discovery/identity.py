"""What Flower's grid knows about its nodes, and how clients are identified by it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flwr.serverapp import Grid

from turnout.adapters.flower.wire import is_client_id
from turnout.errors import StateError
from turnout.storage.files.atomic import atomic_write


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


class KeyBook:
    """Remembers which SuperNode key runs each client; it stores digests only, and nothing of unknown clients.

    Args:
        path: The file in which the keys are kept; None keeps them in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._keys = path, dict[str, str]()
        self._is_changed = False
        if path is not None and path.exists():
            try:
                stored = json.loads(path.read_text(encoding="utf-8"))
                self._keys = {str(client): str(key) for client, key in stored.items()}
            except (ValueError, AttributeError) as error:
                raise StateError(
                    f"cannot read the keys of the clients in {path}: {error}. Restore the file; if you remove it, each "
                    "client is bound to the key that it uses next"
                ) from error

    def is_other(self, client: str, key: bytes) -> bool:
        """Returns whether a client was bound to another key."""
        return self._keys.get(_digest(client.encode()), _digest(key)) != _digest(key)

    def bind(self, client: str, key: bytes) -> None:
        """Binds a client to a key, in place of an earlier one."""
        name, digest = _digest(client.encode()), _digest(key)
        if self._keys.get(name) != digest:
            self._keys[name], self._is_changed = digest, True

    def save(self, clients: Iterable[str]) -> None:
        """Writes the keys of these clients if any was changed; those of others, who were forgotten, are dropped."""
        if self._path is None or not self._is_changed:
            return
        known = {_digest(client.encode()) for client in clients}
        self._keys = {client: key for client, key in self._keys.items() if client in known}
        with atomic_write(self._path) as file:
            file.write(json.dumps(self._keys).encode())
        self._is_changed = False


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
