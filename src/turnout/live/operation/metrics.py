"""Figures about a running scheduler, for monitoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

from turnout.live.journal.file_metrics import WriterMetrics
from turnout.live.journal.replay import FleetState
from turnout.live.turns.records import Turn
from turnout.storage.store import Store


@dataclass(frozen=True, slots=True)
class SchedulerMetrics:
    """Figures about a scheduler. Times are in seconds; None means that there is nothing to measure yet.

    Attributes:
        round: The number of the open round, or of the last closed round.
        open_round_seconds: How long the open round has been open; NaN if unknown.
        seconds_since_report: The time since an outcome of this round was recorded, by the wall clock, from any process.
        commits: The number of commits of the file since it was created.
        commit_seconds_median: The median time of the last commits of this process, until they were on disk.
        commit_seconds_largest: The longest of these times.
        log_bytes: The size of the write-ahead log.
        file_bytes: The size of the file.
        snapshot_age_rounds: The rounds that were closed since the last snapshot: they are replayed at the next opening.
        refused_reports: The reports that this process has refused.
        turns_behind: How many turns the client that is furthest behind is behind its promise; negative if all are
            ahead.
        running_turns: Without rounds, the number of turns that are running.
        oldest_turn_seconds: For how long the oldest of them has lasted; NaN if unknown.
    """

    round: int
    open_round_seconds: float | None
    seconds_since_report: float | None
    commits: int
    commit_seconds_median: float | None
    commit_seconds_largest: float | None
    log_bytes: int
    file_bytes: int
    snapshot_age_rounds: int
    refused_reports: int
    turns_behind: float | None
    running_turns: int | None = None
    oldest_turn_seconds: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the figures by name."""
        return asdict(self)


def metrics_of(file: Store[Any], memory: FleetState, turns: Sequence[Turn], refused: int) -> SchedulerMetrics:
    """Computes the figures.

    Args:
        file: The file of the fleet.
        memory: The state of the fleet.
        turns: The turns that may have been reported last.
        refused: The reports that were refused.
    """
    fleet, opened = memory.fleet, memory.opened
    certificate = fleet.certificate() if fleet.ids else None
    running_turns = None if fleet.slots is None else list(memory.running_turns.values())
    of_writer = writer_metrics(file, refused)
    summary = None if certificate is None else certificate.summary()
    return SchedulerMetrics(
        round=memory.newest_round,
        open_round_seconds=None if opened is None else opened.elapsed,
        seconds_since_report=seconds_since_report(turns),
        commits=file.commits,
        commit_seconds_median=of_writer.commit_seconds_median,
        commit_seconds_largest=of_writer.commit_seconds_largest,
        log_bytes=file.log_bytes,
        file_bytes=file.bytes,
        snapshot_age_rounds=memory.unsaved,
        refused_reports=of_writer.refused_reports,
        turns_behind=None if summary is None or summary.worst is None else summary.worst_behind,
        running_turns=None if running_turns is None else len(running_turns),
        oldest_turn_seconds=running_turns[0].elapsed if running_turns else None,
    )


def writer_metrics(file: Store[Any], refused: int) -> WriterMetrics:
    """Returns the figures that this process stores about itself."""
    times = file.commit_times
    return WriterMetrics(median(times) if times else None, max(times, default=None), refused)


def seconds_since_report(turns: Sequence[Turn]) -> float | None:
    """Returns the time since the newest report of these turns, by the wall clock; None if nobody has reported."""
    moments = [moment for turn in turns for moment in (turn.at, turn.late_at) if moment is not None]
    if not moments:
        return None
    return max((datetime.now(UTC) - datetime.fromisoformat(max(moments))).total_seconds(), 0.0)
