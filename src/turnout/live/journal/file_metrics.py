"""Figures about the process that writes a fleet, for monitoring."""

from __future__ import annotations

from typing import NamedTuple

from turnout.storage.encoding.packing import parse_stored
from turnout.storage.store import Connection, single_value


class WriterMetrics(NamedTuple):
    """Figures about the process that writes a fleet, as it stores them with each closed round.

    Attributes:
        commit_seconds_median: The median time of its last commits, until they were on disk; None before the first.
        commit_seconds_largest: The longest of these times.
        refused_reports: The reports that it has refused.
        snapshot_age: The number of rounds that were closed since the last snapshot, when the figures are read.
    """

    commit_seconds_median: float | None = None
    commit_seconds_largest: float | None = None
    refused_reports: int = 0
    snapshot_age: int = 0


def read_writer_metrics(db: Connection) -> WriterMetrics:
    """Returns what the writer stored about itself when it closed the last round, and the age of its snapshot."""
    newest = "(SELECT COALESCE(MAX(seq), 0) FROM snapshot)"
    age = single_value(db, f"SELECT COUNT(*) FROM events WHERE kind IN ('close', 'fill') AND seq > {newest}")
    stored = db.execute("SELECT value FROM meta WHERE key = 'figures'").fetchone()
    figures = WriterMetrics() if stored is None else WriterMetrics(**parse_stored(stored[0]))
    return figures._replace(snapshot_age=int(age))
