"""What travels between our side of the server and our side of a client, beside Flower's own records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

RECORD = "turnout"  # the record's key, in replies to training and to a query
ACTION = "turnout"  # the query's name
QUERY = f"query.{ACTION}"
CLIENT_ID = "client-id"


@dataclass(frozen=True, slots=True)
class Introduction:
    """Who a client is, and how it is now: one number a feature."""

    client: str
    status: Mapping[str, float]

    def record(self) -> ConfigRecord:
        """As it travels: a ConfigRecord, which no strategy aggregates."""
        return ConfigRecord({CLIENT_ID: self.client, **{name: float(value) for name, value in self.status.items()}})


def introduction_in(content: RecordDict) -> Introduction | None:
    """Take it out of a reply, so that the strategy sees only its own records; None if there is none."""
    told = content.pop(RECORD, None)
    if not isinstance(told, ConfigRecord) or not isinstance(client := told.get(CLIENT_ID), str):
        return None
    if not client or "\0" in client:  # no name for a client
        return None
    numbers = {name: value for name, value in told.items() if name != CLIENT_ID and isinstance(value, int | float)}
    return Introduction(client, {name: float(value) for name, value in numbers.items()})
