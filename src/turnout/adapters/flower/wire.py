"""The record that clients add to their replies for the scheduler, next to Flower's own records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, RecordDict

RECORD = "turnout"  # key of the record in replies to training, evaluation and query messages
ACTION = "turnout"  # name of the query
QUERY = f"query.{ACTION}"
CLIENT_ID = "client-id"
GROUPS = "groups"  # in a query: the entries of the node's configuration that the server asks for
GROUP_PREFIX = "group."  # in a reply: the name of each entry begins with this


LONGEST_ID = 1024  # bytes


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """The id of a client, its current status (one number per feature), and its groups if the server asked for them."""

    client: str
    status: Mapping[str, float]
    groups: Mapping[str, str] = field(default_factory=dict)

    def to_record(self) -> ConfigRecord:
        """Converts to a ConfigRecord, the one record type that no strategy aggregates."""
        return ConfigRecord(
            {
                CLIENT_ID: self.client,
                **{name: float(value) for name, value in self.status.items()},
                **{f"{GROUP_PREFIX}{name}": group for name, group in self.groups.items()},
            }
        )


def pop_client_info(content: RecordDict) -> ClientInfo | None:
    """Removes the record from a reply, so that the strategy sees only its own records, and returns its content.

    Returns None if the record is missing or has no valid client id.
    """
    record = content.pop(RECORD, None)
    if not isinstance(record, ConfigRecord) or not isinstance(client := record.get(CLIENT_ID), str):
        return None
    if not is_client_id(client):
        return None
    numbers = {name: value for name, value in record.items() if name != CLIENT_ID and isinstance(value, int | float)}
    groups = {
        name.removeprefix(GROUP_PREFIX): value
        for name, value in record.items()
        if name.startswith(GROUP_PREFIX) and isinstance(value, str)
    }
    return ClientInfo(client, {name: float(value) for name, value in numbers.items()}, groups)


def is_client_id(text: str) -> bool:
    """Returns whether the scheduler accepts this id: 1 to 1,024 bytes of valid UTF-8 without null characters."""
    try:
        return 0 < len(text.encode()) <= LONGEST_ID and "\0" not in text
    except UnicodeEncodeError:  # a lone surrogate
        return False
