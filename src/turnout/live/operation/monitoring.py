"""What an operator should know about a fleet: notices, warnings in the log, and figures for monitoring."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from turnout.counting import pluralize
from turnout.errors import InfeasiblePromise
from turnout.kernel.arrays import BoolArray
from turnout.live.journal.journal import Journal
from turnout.live.journal.replay import FleetState
from turnout.live.operation.amending import GROUPED
from turnout.live.reporter import Outcome
from turnout.live.settings import DEFAULT_POLICY, SchedulerSettings
from turnout.live.turns.feasibility import LARGE_FLEET, require_feasible
from turnout.live.turns.records import Turn
from turnout.live.turns.state import Fleet
from turnout.log import get_log, printable
from turnout.policies.registry import nested_settings, setting_names
from turnout.storage.encoding.packing import parse_stored
from turnout.storage.store import Connection, Location, Store, single_value

#: The number of clients that a notice names, and that a list shows.
NAMED, SHOWN = 5, 10

#: What is said if the file may contain data of forgotten clients that no query returns.
UNCLEAN_NOTICE = (
    "unused parts of the file may contain data of clients that were forgotten: compact it to remove them for certain"
)
#: What is said if the time since the selection of the open round is not known.
UNKNOWN_ELAPSED = "the time since the selection is unknown, because the machine was restarted and its clock was changed"
log = get_log("turnout.live")


def fleet_notices(journal: Journal, memory: FleetState, settings: SchedulerSettings) -> list[str]:
    """Returns what an operator should know about the settings, the clients, the open round and the file of a fleet."""
    notices = [notice for notice in _notices(memory.fleet, settings) if notice]
    if memory.opened is not None and math.isnan(memory.opened.elapsed):
        notices.append(f"{UNKNOWN_ELAPSED}: close round {memory.opened.round}")
    return [*notices, UNCLEAN_NOTICE] if journal.needs_vacuum else notices


def empty_groups_notice(settings: SchedulerSettings) -> str:
    """Returns for which groups places are reserved although no client is in them; "" if there are none."""
    empty: list[str] = []
    for name, own in nested_settings(settings.policy, settings.settings):
        if name == GROUPED and isinstance(own["least"], Mapping):
            empty += [repr(group) for group, least in own["least"].items() if least and group not in own["groups"]]
    if not empty:
        return ""
    return f"places are reserved for {', '.join(empty)}, but no client is in this group: amend the groups"


def promise_notice(fleet: Fleet, settings: SchedulerSettings) -> str:
    """Returns who is beyond the tolerance, how far, since when, and what to do; "" if nobody is."""
    certificate = fleet.certificate() if fleet.ids else None
    if certificate is None or certificate.holds:
        return ""
    names = [name for name, _ in nested_settings(settings.policy, settings.settings)]
    fair = "" if DEFAULT_POLICY in names else f", or create a new fleet with policy={DEFAULT_POLICY!r}"
    larger = " or a larger cohort_size" if settings.has_rounds else ""
    slower = " or a smaller speed_weight" if _has_speed_weight(settings) else ""
    cut_off = "" if settings.overcommit == 1 else ", and without overcommit if slow clients are always cut_off"
    return (
        f"the promise is {certificate.summary().sentence(fleet.ids.__getitem__)}. Amend the fleet to a smaller "
        f"guaranteed_rate{larger}{slower}{cut_off}{fair}; check why turns fail or are late if many do"
    )


def infeasible_notice(fleet: Fleet) -> str:
    """Returns why no policy could give the clients of the fleet what they are promised; "" if one could."""
    try:
        if fleet.round:
            require_feasible(fleet)
    except InfeasiblePromise as problem:
        return str(problem)
    return ""


def _notices(fleet: Fleet, settings: SchedulerSettings) -> Iterator[str]:
    if settings.deadline is None:
        stays = "the slot of a client that never reports stays in use"
        open_round = "a round in which a client never reports stays open until it is closed"
        yield f"no deadline is set: {open_round if settings.has_rounds else stays}"
    yield promise_notice(fleet, settings)
    yield infeasible_notice(fleet)
    rare = fleet.rarely_available()
    if rare.any():
        yield (
            f"{_some(fleet, rare)} were available in fewer {fleet.unit.plural} than they are guaranteed: lower "
            "guaranteed_rate, or use accrual='available'"
        )
    yield empty_groups_notice(settings)
    forfeited = 0 if fleet.queues is None else int((fleet.queues.forfeited >= 1).sum())
    if forfeited:
        lower = " or lower speed_weight" if _has_speed_weight(settings) else ""
        yield f"{pluralize(forfeited, 'client', 'have')} forfeited turns to the cap: raise max_owed{lower}"
    misreporting = fleet.history.misreporting()
    if misreporting.any():
        yield (
            f"the statuses of {_some(fleet, misreporting)} no longer explain their times, while those of most clients "
            "do: check what they report"
        )


def _has_speed_weight(settings: SchedulerSettings) -> bool:
    return "speed_weight" in setting_names(settings.policy)


def _some(fleet: Fleet, clients: BoolArray) -> str:
    return shortened([fleet.ids[row] for row in np.flatnonzero(clients).tolist()], NAMED)


def shortened(items: Sequence[str], most: int = SHOWN) -> str:
    """Returns the first of some texts, and the number of the others."""
    more = f" and {len(items) - most:,} more" if len(items) > most else ""
    return ", ".join(map(printable, items[:most])) + more


class FleetWarnings:
    """Remembers which problems of a fleet the log states already; `path` is its file, which the log names."""

    def __init__(self, path: Location) -> None:
        self._path = path
        self._is_broken = self._is_infeasible = self._is_unit_questioned = False
        self._judged_clients = self._round = 0

    def start(self, fleet: Fleet, settings: SchedulerSettings) -> None:
        """Notes the problems of a fleet that is opened to write, whose notices were logged."""
        self._round = fleet.round
        self._is_broken = bool(promise_notice(fleet, settings))
        self._is_infeasible = bool(infeasible_notice(fleet))
        self._judged_clients = _active_clients(fleet)

    def after_round(self, fleet: Fleet, settings: SchedulerSettings) -> None:
        """Warns if the promise is broken since this round, or infeasible."""
        was_broken, self._is_broken = self._is_broken, fleet.is_broken
        if self._is_broken and not was_broken:
            self._warn(promise_notice(fleet, settings))
        # In large fleets the promise is judged after rounds 1, 2, 4, 8, …, because that takes long. Without rounds,
        # several decisions are made at once.
        is_due, self._round = fleet.round.bit_length() > self._round.bit_length(), fleet.round
        is_small = len(fleet.ids) <= LARGE_FLEET
        if is_due or (is_small and self._judged_clients != _active_clients(fleet)):
            self.after_change(fleet)

    def after_change(self, fleet: Fleet) -> None:
        """Warns if the fleet cannot be given what it is promised, after its clients or settings have changed."""
        was_infeasible, notice = self._is_infeasible, infeasible_notice(fleet)
        self._is_infeasible, self._judged_clients = bool(notice), _active_clients(fleet)
        if not was_infeasible:
            self._warn(notice)

    def question_unit(self, outcome: Outcome, deadline: float | str | None) -> None:
        """Warns, once, if a reported time is so long that it is probably in milliseconds."""
        if self._is_unit_questioned or outcome.seconds is None or not isinstance(deadline, int | float):
            return
        if outcome.seconds >= 1000 * deadline:
            self._is_unit_questioned = True
            self._warn(
                f"{outcome.client} reported {outcome.seconds:g} s, a thousand times the deadline of {deadline:g} s: "
                "check that times are in seconds, not in milliseconds"
            )

    def _warn(self, notice: str) -> None:
        if notice:
            log.warning("%s: %s", self._path, notice)


def _active_clients(fleet: Fleet) -> int:
    return len(fleet.ids) - int(fleet.counters.retired.sum())


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
