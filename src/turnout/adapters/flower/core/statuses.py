"""The latest status of each client, kept as arrays, so that a selection among many clients is cheap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from turnout.errors import OfferError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.live import Features, FleetStatus
from turnout.log import get_log

log = get_log("flwr")
DEFAULT_STATUS = 1.0  # value of each feature of a client whose status is unknown
FIRST_CAPACITY = 64


class StatusTable:
    """Holds one row per client, in the order in which they were first seen."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self._index: dict[str, int] = {}
        self._default = [min(max(DEFAULT_STATUS, feature.low), feature.high) for feature in features.declared]
        self._values: FloatArray = np.tile(self._default, (FIRST_CAPACITY, 1))

    def put(self, client: str, status: Mapping[str, float]) -> None:
        """Stores the status that a client reports; one that is empty or out of range counts as unknown."""
        row = self._index.get(client)
        if row is None:
            row = int(self.rows([client])[0])
        declared = self._features.declared
        values = [status.get(feature.name, math.nan) for feature in declared]
        is_valid = all(feature.low <= value <= feature.high for feature, value in zip(declared, values, strict=True))
        self._values[row] = values if is_valid else self._default
        if status and not is_valid:
            try:
                self._features.check(client, status)
            except OfferError as error:
                log.warning("turnout: the status of a client counts as unknown: %s", error)

    def rows(self, clients: Sequence[str]) -> IntArray:
        """Returns the rows of these clients in the table; a new client gets a row with default values."""
        rows = np.array([self._index.setdefault(client, len(self._index)) for client in clients], dtype=np.int64)
        missing = len(self._index) - len(self._values)
        if missing > 0:
            capacity = max(missing, len(self._values))
            self._values = np.concatenate([self._values, np.tile(self._default, (capacity, 1))])
        return rows

    def offer(self, rows: IntArray, fleet_rows: IntArray) -> FleetStatus:
        """Returns the statuses of clients by their rows in the table and in the fleet."""
        values = self._values[rows]
        columns = {feature.name: values[:, index] for index, feature in enumerate(self._features.declared)}
        return FleetStatus(columns, fleet_rows)
