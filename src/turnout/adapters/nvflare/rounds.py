"""The clients of a job, and its rounds: what the tasks of a controller report to the scheduler."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import TaskCompletionStatus

from turnout.adapters.common.fleet import Fleet, facts_of, take_over_round
from turnout.adapters.common.remote import RemoteRound
from turnout.adapters.common.round_texts import describe_selection, expected_seconds, summarize_round
from turnout.errors import OfferError, ReportError, SettingError, StateError
from turnout.live import Features
from turnout.live._internals import OpenRound
from turnout.log import get_log

HAS_SITE_CONFIG = hasattr(Client, "get_site_config")  # since NVFlare 2.9


class SiteGroups:
    """The group of each client, and which groups may be selected.

    Args:
        groups: The group of each client by name, or the name of a value in the site configuration, or None.
        eligible: The groups that may be selected; None for all clients.
        is_needed: Whether groups are needed for something else, such as a quota.
    """

    def __init__(self, groups: Mapping[str, str] | str | None, eligible: Sequence[str] | None, is_needed: bool) -> None:
        if groups is None and (is_needed or eligible is not None):
            raise SettingError(
                "eligible and quota need groups: pass groups={client: group, …}, or the name of a value in the site "
                "configuration"
            )
        if isinstance(groups, str) and not HAS_SITE_CONFIG:
            raise SettingError(
                f"groups={groups!r} is read from the site configuration, which needs NVFlare 2.9 or newer: pass "
                "groups={client: group, …}"
            )
        self._groups = groups
        self._eligible = None if eligible is None else frozenset(eligible)
        self.configurations: dict[str, Mapping[str, Any]] = {}

    def learn(self, clients: Iterable[Client]) -> None:
        """Reads the site configurations of clients, where NVFlare has them."""
        if not HAS_SITE_CONFIG:
            return
        for client in clients:
            configuration = client.get_site_config()
            if isinstance(configuration, Mapping):
                self.configurations[client.name] = configuration

    def group_of(self, client: str) -> str | None:
        """Returns the group of a client; None if it has none."""
        if isinstance(self._groups, str):
            group = self.configurations.get(client, {}).get(self._groups)
            return None if group is None else str(group)
        return (self._groups or {}).get(client)

    def is_eligible(self, client: str) -> bool:
        """Returns whether a client may be selected."""
        return self._eligible is None or self.group_of(client) in self._eligible


log = get_log("turnout.nvflare")


class LateTurn(NamedTuple):
    """A turn whose round was closed while the client still worked on its task."""

    round: int
    started: float  # by the monotonic clock


class ClientDirectory:
    """Learns from every request for work that a client runs, is free, and what its status is.

    NVFlare calls it from several threads.
    """

    def __init__(self, features: Features) -> None:
        self._features = features
        self._names = [feature.name for feature in features.declared]
        self._have_defaults = all(feature.default is not None for feature in features.declared)
        self._lock = threading.Lock()
        self._statuses: dict[str, Mapping[str, Any] | None] = {}  # of the clients that have asked for work
        self._late: dict[str, LateTurn] = {}
        self.warm: set[str] = set()  # the clients that were selected since they connected

    def record_request(self, client: str, status: Mapping[str, Any] | None) -> LateTurn | None:
        """Records that a client asks for work; returns the late turn that it has thereby finished, if any."""
        with self._lock:
            self._statuses[client] = status
            return self._late.pop(client, None)

    def record_late(self, client: str, turn: LateTurn) -> None:
        """Records that a client is still busy with the task of a closed round."""
        with self._lock:
            self._late[client] = turn

    def remove(self, client: str) -> None:
        """Forgets a client that is gone: it must ask for work before it is available again."""
        with self._lock:
            self._statuses.pop(client, None)
            self._late.pop(client, None)
            self.warm.discard(client)

    def is_known(self, client: str) -> bool:
        """Returns whether a client has asked for work."""
        with self._lock:
            return client in self._statuses

    def is_free(self, client: str) -> bool:
        """Returns whether a client has asked for work and is not busy with the task of a closed round."""
        with self._lock:
            return client in self._statuses and client not in self._late

    def statuses(
        self, clients: Iterable[str], configured: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Mapping[str, Any] | None]:
        """Returns the status of each client, None if nothing is known about it.

        Args:
            clients: The available clients.
            configured: The site configuration of each client, whose values take precedence.
        """
        with self._lock:
            reported = {client: self._statuses.get(client) for client in clients}
        checked: dict[str, Mapping[str, Any] | None] = {}
        for client, status in reported.items():
            own = configured.get(client, {})
            values = {**(status or {}), **{name: own[name] for name in self._names if name in own}}
            if not values:
                checked[client] = None
            elif self._is_valid(client, values):
                checked[client] = {name: values[name] for name in self._names}
            elif self._have_defaults:
                checked[client] = None
        return checked

    def _is_valid(self, client: str, status: Mapping[str, Any]) -> bool:
        try:
            self._features.check(client, status)
        except OfferError as error:
            effect = "nothing is assumed to be known about it" if self._have_defaults else "excluded from this round"
            log.warning("turnout: %s: %s", effect, error)
            return False
        return True


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
        turns = facts_of(self.scheduler).close_round(waited or None)
        text, _ = summarize_round(self.scheduler, turns, expected, waited or 0.0)
        log.info("turnout: round %d %s", current.opened.round, text)
