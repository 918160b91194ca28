"""Reports the tasks of a controller to the scheduler: one round from the selection of a cohort to its last outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nvflare.apis.controller_spec import TaskCompletionStatus

from turnout.adapters.common.fleet import Fleet, facts_of
from turnout.adapters.common.remote import RemoteRound
from turnout.adapters.common.restart import take_over_round
from turnout.adapters.common.round_texts import describe_selection, expected_seconds, summarize_round
from turnout.adapters.nvflare.clients import ClientDirectory, LateTurn
from turnout.errors import ReportError, StateError
from turnout.live._internals import OpenRound
from turnout.log import get_log

log = get_log("turnout.nvflare")


@dataclass(eq=False, slots=True)
class RoundTask:
    """A task that was sent to clients of the cohort.

    Attributes:
        targets: The clients whose outcome in the round is that of this task.
        started: When it was sent, by the monotonic clock.
        is_over: Whether it has ended, and its missing clients are accounted for.
    """

    targets: frozenset[str]
    started: float
    is_over: bool = False


@dataclass(eq=False, slots=True)
class SiteRound:
    """A round between the selection of its cohort and its close.

    Attributes:
        opened: The open round of the scheduler.
        cohort: The clients to which the controller may send tasks.
        recorded: The clients whose outcome was recorded before the server was restarted.
        tasks: The tasks that were sent so far.
        outcomes: The clients that have answered: whether each contributed.
        is_interrupted: Whether the job was aborted during the round.
    """

    opened: OpenRound | RemoteRound
    cohort: frozenset[str]
    recorded: frozenset[str] = frozenset()
    tasks: list[RoundTask] = field(default_factory=list)
    outcomes: dict[str, bool] = field(default_factory=dict)
    is_interrupted: bool = False

    @property
    def assigned(self) -> frozenset[str]:
        """The clients that were sent a task."""
        return frozenset().union(*(task.targets for task in self.tasks))

    @property
    def contributions(self) -> int:
        """The number of clients whose result was accepted."""
        return sum(self.outcomes.values())

    @property
    def is_over(self) -> bool:
        """Whether every client of the cohort was sent a task, and all tasks have ended."""
        return self.assigned == self.cohort and all(task.is_over for task in self.tasks)


class FleetRounds:
    """Runs the rounds of a fleet along the tasks of a controller; NVFlare calls it from several threads.

    A round is closed as soon as the outcome of every client is known, and at the latest before the next selection.
    """

    def __init__(self, scheduler: Fleet, directory: ClientDirectory) -> None:
        self.scheduler, self._directory = scheduler, directory
        self._lock = threading.RLock()
        self._round: SiteRound | None = None
        self.contributions = 0  # of the round that was selected last

    def select(self, statuses: Mapping[str, Any]) -> list[str]:
        """Selects a cohort among the available clients, or takes over the round that an earlier server left open.

        Returns an empty list if every available client is backed off.

        Raises:
            StateError: If a task of the last cohort is still running.
        """
        with self._lock:
            if self._round is not None and any(not task.is_over for task in self._round.tasks):
                raise StateError(
                    f"round {self._round.opened.round} is still running: wait for its results before the next cohort "
                    "is sampled"
                )
            self.close()
            self.contributions = 0
            if self.scheduler.open_round is not None:
                cohort, recorded = take_over_round(self.scheduler, statuses)
            else:
                cold = statuses.keys() - self._directory.warm  # the next turn includes starts and imports
                cohort, recorded = self.scheduler.choose(statuses, cold=cold), frozenset[str]()
            self._directory.warm.update(cohort)
            opened = self.scheduler.open_round
            assert opened is not None  # choose has opened it
            self._round = SiteRound(opened, frozenset(cohort), recorded)
            if not cohort:
                self._close(self._round)
                return []
            log.info(
                "turnout: round %d asks %s",
                opened.round,
                describe_selection([each for each in facts_of(self.scheduler).selected() if each.client in cohort]),
            )
            return cohort

    def begin(self, targets: Collection[str] | None) -> tuple[RoundTask, float | None] | None:
        """Begins a task of the open round; returns it with its deadline, or None if it is no task of the round.

        A task belongs to the round if it is sent to clients of the cohort, and one of them had no task yet.
        """
        with self._lock:
            current = self._round
            if current is None or not targets or not current.cohort.issuperset(targets):
                return None
            new = frozenset(targets) - current.assigned
            if not new:
                return None
            task = RoundTask(new, time.monotonic())
            current.tasks.append(task)
            return task, current.opened.deadline

    def record_arrival(
        self,
        task: RoundTask,
        client: str,
        seconds: float,
        loss: float | None,
        signals: Mapping[str, float] | None = None,
    ) -> bool:
        """Records that a result was accepted; returns whether the round needs no more results."""
        with self._lock:
            current = self._round_of(task)
            if current is None or client not in task.targets:
                return False
            current.outcomes[client] = True
            self.contributions = current.contributions
            if client not in current.recorded:
                self.scheduler.report(client, seconds, round=current.opened.round, loss=loss, signals=signals)
            is_complete = current.assigned == current.cohort
            return is_complete and current.contributions >= current.opened.target_size

    def record_failure(self, task: RoundTask, client: str, why: str) -> None:
        """Records that a client answered with an error, or with a result that was not accepted."""
        with self._lock:
            current = self._round_of(task)
            if current is None or client not in task.targets:
                return
            current.outcomes[client] = False
            self._fail(current, client, why)

    def end(self, task: RoundTask, how: TaskCompletionStatus, took: Iterable[str], gone: Iterable[str]) -> None:
        """Accounts for the clients that have not answered; closes the round if this was its last task.

        Args:
            task: The task.
            how: Why it ended.
            took: The clients that had fetched the task.
            gone: The clients that are disconnected.
        """
        with self._lock:
            current = self._round_of(task)
            if current is None or task.is_over:
                return
            task.is_over = True
            if how == TaskCompletionStatus.ABORTED:  # with the job
                current.is_interrupted = True
                return
            waited = time.monotonic() - task.started
            fetched, lost = set(took), set(gone)
            for client in sorted(task.targets - current.outcomes.keys()):
                if client in lost or how == TaskCompletionStatus.CLIENT_DEAD:
                    self._fail(current, client, "was disconnected")
                elif how not in (TaskCompletionStatus.OK, TaskCompletionStatus.TIMEOUT):
                    self._fail(current, client, "NVFlare cancelled the task")
                elif client in fetched:  # its next request for work tells how long it took
                    self._directory.record_late(client, LateTurn(current.opened.round, task.started))
                elif how == TaskCompletionStatus.TIMEOUT:
                    self._fail(current, client, f"did not fetch the task within {waited:.0f} s")
            if current.is_over:
                self._close(current)

    def record_request(self, client: str, status: Mapping[str, Any] | None) -> None:
        """Records that a client asks for work; if it was late, reports when it became free."""
        turn = self._directory.record_request(client, status)
        if turn is None:
            return
        seconds = time.monotonic() - turn.started
        try:
            self.scheduler.report(client, seconds, round=turn.round)
        except ReportError as error:  # the window is over, or the turn was excused meanwhile
            log.info("turnout: the time of a late client was not learned: %s", error)
        else:
            log.info("turnout: %s, late in the fleet's round %d, was free after %.1f s", client, turn.round, seconds)

    def close(self) -> None:
        """Closes the round of the last selection, unless the job was aborted during it.

        A round that was interrupted stays open if clients have reported, so that the next job continues it. A round in
        which no task was sent is abandoned.
        """
        with self._lock:
            current = self._round
            if current is None:
                return
            running = [task for task in current.tasks if not task.is_over]
            if current.is_interrupted or running or not current.tasks:
                self._round = None
                if not any(turn.kind for turn in self.scheduler.history(round=current.opened.round)):
                    self.scheduler.abandon_round()
                return
            for client in sorted(current.cohort - current.assigned):
                self._fail(current, client, "the controller sent it no task")
            self._close(current)

    def _round_of(self, task: RoundTask) -> SiteRound | None:
        return self._round if self._round is not None and task in self._round.tasks else None

    def _fail(self, current: SiteRound, client: str, why: str) -> None:
        if client not in current.recorded:
            self.scheduler.report_failure(client, why, round=current.opened.round)

    def _close(self, current: SiteRound) -> None:
        waited = max((time.monotonic() - task.started for task in current.tasks), default=None)
        expected = expected_seconds(facts_of(self.scheduler).selected())
        self._round = None
        self.scheduler.close_round(after=waited or None)
        number = current.opened.round
        text, _ = summarize_round(self.scheduler, number, expected, waited or 0.0)
        log.info("turnout: round %d %s", number, text)
