"""Warns in the log when a fleet has a problem, once for each problem."""

from __future__ import annotations

from turnout.live.operation.notices import infeasible_notice, promise_notice
from turnout.live.reporter import Outcome
from turnout.live.settings import SchedulerSettings
from turnout.live.turns.feasibility import LARGE_FLEET
from turnout.live.turns.state import Fleet
from turnout.log import get_log
from turnout.storage.store import Location

log = get_log("turnout.live")


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
