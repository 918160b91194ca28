"""What rounds and slots share before a decision: the offer, the record of it, and the deadline after it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from turnout.errors import OfferError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_rows
from turnout.live.features import Features, FleetStatus, Status
from turnout.live.settings import DEADLINE_MULTIPLE, MIN_AUTO_DEADLINE, SchedulerSettings
from turnout.live.turns.clients import NEVER
from turnout.live.turns.records import RecordedOffer
from turnout.live.turns.state import Fleet

#: Larger fleets record the contexts of the selected clients only: those of all would take most of the space.
MAX_RECORDED_CLIENTS = 10_000


def build_offer(
    fleet: Fleet,
    features: Features,
    settings: SchedulerSettings,
    statuses: Mapping[str, Status] | FleetStatus,
    rows: IntArray | None = None,
) -> tuple[BoolArray, FloatArray]:
    """Returns which clients are there, and the contexts of all clients, by row.

    Args:
        fleet: The state of the fleet, which all of these clients have joined.
        features: The features of the fleet.
        settings: The settings of the fleet.
        statuses: The statuses of the clients.
        rows: Their rows, if they were looked up before: of a million clients, that takes longer than the decision.
    """
    clients, rows = len(fleet.ids), _rows(fleet, statuses) if rows is None else rows
    is_there = np.ones(clients, dtype=np.bool_)
    if rows is not None:
        is_there[:] = False
        is_there[rows] = True
    contexts = features.contexts(
        statuses, fleet.ids, rows, cold_start=fleet.needs_cold_start(rows), model_size=settings.model_size
    )
    return is_there, contexts


def known_rows(fleet: Fleet, statuses: Mapping[str, Status] | FleetStatus) -> IntArray | None:
    """Returns the rows of these clients; None for arrays, or if a client has not joined yet."""
    known = fleet.rows if fleet.ids else {}
    rows = [] if isinstance(statuses, FleetStatus) else [known.get(client) for client in statuses]
    return None if not rows or None in rows else np.array(rows, dtype=np.int64)


def _rows(fleet: Fleet, statuses: Mapping[str, Status] | FleetStatus) -> IntArray | None:
    """Returns the rows of the clients that are there; None for all clients."""
    if not isinstance(statuses, FleetStatus):
        known = fleet.rows
        return np.array([known[client] for client in statuses], dtype=np.int64)
    if statuses.rows is None:
        return None
    if not isinstance(statuses.rows, np.ndarray) and all(isinstance(client, str) for client in statuses.rows):
        unknown = next((client for client in statuses.rows if client not in fleet.rows), None)
        if unknown is not None:
            raise OfferError(f"there is no client {unknown!r}: register it, or leave it out")
        return np.array([fleet.rows[str(client)] for client in statuses.rows], dtype=np.int64)
    return as_rows("rows", statuses.rows, OfferError, clients=len(fleet.ids))


def learnable_contexts(fleet: Fleet, rows: IntArray, contexts: FloatArray, cold: Collection[str]) -> FloatArray:
    """Returns the contexts of selected clients with which their times are learned: NaN for those that start cold.

    If a client has returned, and nothing was learned because it always starts cold, that is its usual time.

    Args:
        fleet: The state of the fleet.
        rows: The clients that were selected.
        contexts: The contexts of all clients.
        cold: The ids of clients that start cold.
    """
    learnable, counters = np.ascontiguousarray(contexts[rows]), fleet.counters
    if cold:
        is_cold = np.array([fleet.ids[row] in cold for row in rows.tolist()], dtype=np.bool_)
        learnable[is_cold & ((counters.learned[rows] > 0) | (counters.last_trained[rows] == NEVER))] = np.nan
    return learnable


def record_offer(
    settings: SchedulerSettings,
    number: int,
    rows: IntArray,
    reasons: Mapping[str, FloatArray],
    available: BoolArray,
    contexts: FloatArray,
) -> RecordedOffer:
    """Returns the offer to record, without contexts in fleets that are too large or persist no statuses.

    Args:
        settings: The settings of the fleet.
        number: The round or the decision.
        rows: The clients that were selected.
        reasons: The reasons of the policy.
        available: Which clients could be selected, by row.
        contexts: The contexts of all clients.
    """
    if settings.persist_statuses and len(available) <= MAX_RECORDED_CLIENTS:
        return RecordedOffer(number, rows, reasons, available.copy(), contexts[available])
    selected = np.zeros(len(available), dtype=np.bool_)
    selected[rows] = True
    return RecordedOffer(number, rows, reasons, selected, None)


def deadline_of(fleet: Fleet, settings: SchedulerSettings, rows: IntArray, contexts: FloatArray) -> float | None:
    """Returns the deadline of the clients that were selected, in seconds, or None if they have none.

    An automatic deadline is the longest one while the time of one of them is unknown, or it starts cold.
    """
    if settings.deadline != "auto":
        return settings.deadline
    slowest = float(fleet.expected_seconds(rows, contexts).max(initial=0.0))
    if not len(rows) or np.isnan(slowest):
        return settings.deadline_ceiling
    return float(np.clip(DEADLINE_MULTIPLE * slowest, MIN_AUTO_DEADLINE, settings.deadline_ceiling))
