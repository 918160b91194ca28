"""The record that clients add to their replies for the scheduler, next to Flower's own records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, RecordDict

RECORD = "turnout"  # key of the record in replies to training, evaluation and query messages
ACTION = "turnout"  # name of the query
QUERY = f"query.{ACTION}"
CLIENT_ID = "client-id"
INFO = "info"  # the one entry of the record in a reply, as JSON: Flower takes much longer to send several entries
GROUPS = "groups"  # in a query: the entries of the node's configuration that the server asks for
MAX_ID = 1024  # bytes


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """The id of a client, its current status (one number per feature), and its groups if the server asked for them."""

    client: str
    status: Mapping[str, float]
    groups: Mapping[str, str] = field(default_factory=dict)

    def to_record(self) -> ConfigRecord:
        """Converts to a ConfigRecord, the one record type that no strategy aggregates."""
        content: dict[str, Any] = {CLIENT_ID: self.client, "status": dict(self.status)}
        if any(type(value) is not float for value in self.status.values()):
            content["status"] = {name: float(value) for name, value in self.status.items()}
        if self.groups:
            content[GROUPS] = dict(self.groups)
        return ConfigRecord({INFO: json.dumps(content)})


def pop_client_info(content: RecordDict) -> ClientInfo | None:
    """Removes the record from a reply, so that the strategy sees only its own records, and returns its content.

    Returns None if the record is missing or has no valid client id.
    """
    record = content.pop(RECORD, None)
    text = record.get(INFO) if isinstance(record, ConfigRecord) else None
    if not isinstance(text, str):
        return None
    try:
        info = json.loads(text)
    except (ValueError, RecursionError):
        return None
    client = info.get(CLIENT_ID) if isinstance(info, dict) else None
    if not isinstance(client, str) or not is_client_id(client):
        return None
    return ClientInfo(client, _numbers(info.get("status")), _texts(info.get(GROUPS)))


def _numbers(status: Any) -> dict[str, float]:
    if not isinstance(status, dict):
        return {}
    return {name: value for name, value in status.items() if type(value) is float}


def _texts(groups: Any) -> dict[str, str]:
    if not isinstance(groups, dict):
        return {}
    return {name: value for name, value in groups.items() if isinstance(value, str)}


def is_client_id(text: str) -> bool:
    """Returns whether the scheduler accepts this id: 1 to 1,024 bytes of valid UTF-8 without null characters."""
    try:
        return 0 < len(text.encode()) <= MAX_ID and "\0" not in text
    except UnicodeEncodeError:  # a lone surrogate
        return False
