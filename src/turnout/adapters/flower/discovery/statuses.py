"""The latest status of each client, kept as arrays, so that a selection among many clients is cheap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from turnout.errors import OfferError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.live import Features, FleetStatus
from turnout.log import get_log

log = get_log("flwr")
DEFAULT_STATUS = 1.0  # value of each feature of a client that reports no status
FIRST_CAPACITY = 64


class StatusTable:
    """Holds one row per client, in the order in which they were first seen."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._names = [feature.name for feature in features.declared]
        self._index: dict[str, int] = {}
        self._reported: dict[str, Mapping[str, float]] = {}
        self._low = np.array([feature.low for feature in features.declared])
        self._high = np.array([feature.high for feature in features.declared])
        self._default = np.clip(DEFAULT_STATUS, self._low, self._high)
        self._values: FloatArray = np.tile(self._default, (FIRST_CAPACITY, 1))

    def put(self, client: str, status: Mapping[str, float]) -> None:
        """Stores the status that a client reports; an empty one counts as unknown."""
        if not status:
            status = dict(zip(self._names, self._default.tolist(), strict=True))
        row = self._index.get(client)
        if row is None:
            row = int(self.rows([client])[0])
        self._reported[client] = status
        for column, name in enumerate(self._names):
            self._values[row, column] = status.get(name, np.nan)

    def rows(self, clients: Sequence[str]) -> IntArray:
        """Returns the rows of these clients in the table; a new client gets a row with default values."""
        rows = np.array([self._index.setdefault(client, len(self._index)) for client in clients], dtype=np.int64)
        missing = len(self._index) - len(self._values)
        if missing > 0:
            capacity = max(missing, len(self._values))
            self._values = np.concatenate([self._values, np.tile(self._default, (capacity, 1))])
        return rows

    def is_valid(self, rows: IntArray) -> BoolArray:
        """Returns whether each of these clients has values that are in range."""
        values = self._values[rows]
        valid: BoolArray = np.logical_and.reduce((values >= self._low) & (values <= self._high), axis=1)
        return valid

    def problem(self, client: str) -> str:
        """Returns what is wrong with the status of a client."""
        try:
            self._features.check(client, self._reported[client])
        except OfferError as error:
            return str(error)
        raise AssertionError(f"the status of {client!r} is valid")

    def offer(self, rows: IntArray, fleet_rows: IntArray) -> FleetStatus:
        """Returns the statuses of clients by their rows in the table and in the fleet."""
        values = self._values[rows]
        return FleetStatus({name: values[:, column] for column, name in enumerate(self._names)}, fleet_rows)
