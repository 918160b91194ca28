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
        status = {name: float(value) for name, value in self.status.items()}
        groups = {GROUPS: dict(self.groups)} if self.groups else {}
        return ConfigRecord({INFO: json.dumps({CLIENT_ID: self.client, "status": status, **groups})})


def pop_client_info(content: RecordDict) -> ClientInfo | None:
    """Removes the record from a reply, so that the strategy sees only its own records, and returns its content.

    Returns None if the record is missing or cannot be read; its client id may still be invalid.
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
    if not isinstance(client, str):
        return None
    return ClientInfo(client, _of_type(info.get("status"), float), _of_type(info.get(GROUPS), str))


def _of_type(values: Any, kind: type) -> dict[str, Any]:
    """Returns the entries of a mapping that have this type; empty for anything else."""
    return {name: value for name, value in values.items() if type(value) is kind} if isinstance(values, dict) else {}


def is_client_id(text: str) -> bool:
    """Returns whether the scheduler accepts this id: 1 to 1,024 bytes of valid UTF-8 without null characters."""
    try:
        return 0 < len(text.encode()) <= MAX_ID and "\0" not in text
    except UnicodeEncodeError:  # a lone surrogate
        return False
