"""Figures about the file of a fleet and about the process that writes it, for monitoring."""

from __future__ import annotations

from typing import NamedTuple


class JournalFigures(NamedTuple):
    """Figures about the file of a fleet.

    Attributes:
        commits: The number of commits since it was created.
        commit_times: The seconds that the newest commits of this process took.
        log_bytes: The size of the write-ahead log.
        file_bytes: The size of the file.
    """

    commits: int
    commit_times: tuple[float, ...]
    log_bytes: int
    file_bytes: int


class WriterFigures(NamedTuple):
    """Figures about the process that writes a fleet, as it stores them with each closed round.

    Attributes:
        commit_seconds_median: The median time of its last commits, until they were on disk; None before the first.
        commit_seconds_largest: The longest of these times.
        refused_reports: The reports that it has refused.
    """

    commit_seconds_median: float | None = None
    commit_seconds_largest: float | None = None
    refused_reports: int = 0
