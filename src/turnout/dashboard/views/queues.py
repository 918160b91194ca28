"""Queues: the debts of all clients. Turns: a heat map with one row per client and one column per bin of rounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from turnout.dashboard.sources.base import Source
from turnout.dashboard.sources.ledger import Ledger
from turnout.dashboard.views.common import (
    ClientOrder,
    PageNumber,
    bin_edges,
    client_page,
    histogram,
    owed_note,
    promises_of,
    queue_of,
)
from turnout.dashboard.views.overview import debts_over_time
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray

COLUMNS = 160


def queues(source: Source) -> dict[str, Any]:
    """Returns a summary of all debts by round, and their distribution now."""
    ledger = source.ledger
    queues = queue_of(ledger) if ledger.clients else None
    reason = source.no_clients
    if ledger.clients:
        reason = f"The policy {source.policy} does not select by a queue of owed turns."
    return {
        "empty_reason": reason if queues is None else None,
        "curve": debts_over_time(ledger),
        "now": None if queues is None else histogram(queues.owed),
        "cap": None if queues is None else queues.max_owed,
        "owed_note": owed_note(promises_of(ledger)),
    }


def turns(source: Source, *, order: ClientOrder = "behind", page: PageNumber = 1) -> dict[str, Any]:
    """Returns the turns and the availability of a page of clients by round (the "pull record" of the paper)."""
    data, shown = client_page(source, order, page)
    counts, available, resting, edges = turns_and_availability(source.ledger, shown)
    return {
        **data,
        **turn_bins(source.ledger, edges),
        "counts": counts.T,
        "available": None if available is None else available.T,
        "resting": None if resting is None else resting.T,
    }


def turn_bins(ledger: Ledger, edges: IntArray) -> dict[str, Any]:
    """Returns the first round and the width of bins of rounds."""
    rounds = ledger.round_column("rounds")
    return {
        "x": rounds[edges[:-1]] if len(rounds) else [],
        "width": int(edges[1] - edges[0]) if len(edges) > 1 else 1,
    }


def turns_and_availability(
    ledger: Ledger, rows: IntArray
) -> tuple[IntArray, FloatArray | None, FloatArray | None, IntArray]:
    """Returns for each bin the turns of these clients, the shares of its rounds, and the bin edges.

    The shares are those in which clients were available, None if that is not recorded, and in which they were backed
    off, None if no client ever was.
    """
    edges = bin_edges(len(ledger), COLUMNS)
    taken = ledger.participation(rows)
    if not len(ledger):
        return np.zeros((0, len(rows)), dtype=np.int64), None, None, edges
    counts = np.add.reduceat(taken.astype(np.int64), edges[:-1], axis=0)

    def share(mask: BoolArray | None) -> FloatArray | None:
        if mask is None:
            return None
        shares: FloatArray = np.add.reduceat(mask.astype(np.int64), edges[:-1], axis=0) / np.diff(edges)[:, None]
        return shares

    rounds = ledger.round_column("rounds")
    resting = ledger.back_offs.get(rows, rounds, sparse=True) if ledger.back_offs.first is not None else None
    return counts, share(ledger.availability.get(rows, rounds)), share(resting), edges
