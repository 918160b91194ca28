"""Reads very many statuses in steps, between which the fleet can do other work."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

import numpy as np

from turnout.kernel.arrays import FloatArray, IntArray
from turnout.live.features import FleetStatus, Status
from turnout.live.serving.session import FleetSession

#: How many statuses are read in a step, and how many clients join in one; each takes less than 0.2 s.
READ_AT_ONCE, JOIN_AT_ONCE = 20_000, 100_000


def read_in_steps(
    session: FleetSession, statuses: Mapping[str, Status] | Sequence[str]
) -> Generator[None, None, FleetStatus]:
    """Returns statuses, or ids about which nothing is known, as arrays; yields after each step.

    New clients join when all statuses are valid. Rows stay valid between the steps: a client that is forgotten
    meanwhile has retired, and its row belongs to nobody else.

    Raises:
        OfferError: If an id or a status is invalid; no client joins.
    """
    ids, columns, new = list(statuses), list[Mapping[str, FloatArray]](), list[str]()
    parts = [ids[start : start + READ_AT_ONCE] for start in range(0, len(ids), READ_AT_ONCE)]
    for index, part in enumerate(parts):
        own = {client: statuses[client] if isinstance(statuses, Mapping) else None for client in part}
        with session.lock:
            new += session.new_ids(own)
            columns.append(session.features.columns(own, session.settings.model_size))
        parts[index] = list(own)  # without duplicates
        yield
    for start in range(0, len(new), JOIN_AT_ONCE):
        with session.lock:
            session.register(new[start : start + JOIN_AT_ONCE])
        yield
    found = list[IntArray]()
    for part in parts:
        with session.lock:
            known = session.fleet.rows
            found.append(np.array([known.get(client, -1) for client in part], dtype=np.int64))
        yield
    rows, first = np.unique(np.concatenate(found), return_index=True)
    kept = rows >= 0  # a client may have been forgotten since the first step
    values = {name: np.concatenate([column[name] for column in columns])[first[kept]] for name in columns[0]}
    return FleetStatus(values, rows[kept])
