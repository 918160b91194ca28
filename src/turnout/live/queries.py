"""What a scheduler and a reader answer about a fleet, each from its own state of the fleet."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from turnout.closing import Closable
from turnout.counting import format_duration, pluralize
from turnout.errors import FleetKindError
from turnout.kernel.certificate import Certificate, PromiseSummary, TimeUnit
from turnout.live.identifiers import as_round, unknown_client
from turnout.live.journal.journal import Journal
from turnout.live.journal.replay import FleetState
from turnout.live.operation.monitoring import SHOWN, fleet_notices, shortened
from turnout.live.settings import DEFAULT_POLICY, SchedulerSettings
from turnout.live.turns.records import Turn
from turnout.live.turns.state import row_of

if TYPE_CHECKING:  # explanations need modules of the policies that nothing else here needs
    from turnout.policies.explain.explanation import Explanation


@dataclass(frozen=True, slots=True)
class SchedulerStatus:
    """The state of a fleet; its string form is for people.

    Attributes:
        clients: The number of clients, retired ones included.
        retired: The number of retired clients.
        round: The number of the open round, or of the last closed round.
        is_open: Whether the round is open.
        elapsed: The seconds since the selection of the open round; NaN if unknown.
        deadline: The deadline of the open round in seconds, or None.
        target_size: The number of updates that the open round needs.
        out: The clients of the open round that have not reported.
        arrived: The clients of the open round whose updates have arrived.
        failed: The clients of the open round that failed, with the reasons.
        behind: The clients that are furthest behind, with promised turns minus turns taken; at most 10, each at least
            one turn behind. Retired clients are not among them.
        backing_off: The clients that are backed off, with the last round of the back-off.
        promise: Whether the promise is kept, in a few numbers; None if there is none.
        worst: The client that is furthest behind its promise; None if there is none.
        suspects: The clients whose contexts no longer explain their times; they lose no turns for it.
        notices: What an operator should know about the settings and the clients.
        slots: The number of slots of a fleet without rounds, in which `round` is the last decision, and `out` are the
            clients that are training; None for a fleet with rounds.
    """

    clients: int
    retired: int
    round: int
    is_open: bool
    elapsed: float
    deadline: float | None
    target_size: int
    out: list[str]
    arrived: list[str]
    failed: dict[str, str]
    behind: dict[str, float]
    backing_off: dict[str, int]
    promise: PromiseSummary | None
    worst: str | None
    suspects: list[str]
    notices: list[str]
    slots: int | None = None

    @property
    def promise_sentence(self) -> str | None:
        """The status of the promise as one sentence, with the id of the client furthest behind; None without one."""
        return None if self.promise is None else self.promise.sentence(lambda _: str(self.worst))

    def to_dict(self, most: int | None = None) -> dict[str, Any]:
        """Returns the state for JSON; `most` limits the entries of each list, by default to all."""
        data = {name: _first(value, most) for name, value in asdict(self).items()}
        promise = None if self.promise is None else self.promise.to_dict(lambda _: str(self.worst))
        elapsed = self.elapsed if math.isfinite(self.elapsed) else None
        return {**data, "elapsed": elapsed, "promise": promise}

    def __str__(self) -> str:
        until = "no deadline" if self.deadline is None else f"deadline after {format_duration(self.deadline)}"
        lines = [f"clients    {self.clients:,}, {self.retired:,} of them retired"]
        if self.is_open:
            age = format_duration(self.elapsed)
            lines.append(f"round      {self.round}, open for {age}, {until}, {self.target_size} required")
            lines.append(f"reported   {len(self.arrived)}: {shortened(self.arrived)}")
            lines.append(f"pending    {len(self.out)}: {shortened(self.out)}")
            if self.failed:
                lines.append(f"failed     {shortened([f'{client} ({why})' for client, why in self.failed.items()])}")
        elif self.slots is not None:
            lines.append(
                f"turns      {self.round:,} were given; {pluralize(len(self.out), 'slot', 'are', of=self.slots)} in use"
            )
            if self.out:
                lines.append(f"training   {shortened(self.out)}")
        else:
            lines.append(f"round      {self.round} is closed, no round is open")
        if self.behind:
            behind = [f"{client} by {turns:.2f} turns" for client, turns in self.behind.items()]
            lines.append(f"behind     {shortened(behind)}")
        if self.backing_off:
            unit = TimeUnit.of(self.slots).turn
            waiting = [f"{client} until {unit} {last}" for client, last in self.backing_off.items()]
            lines.append(f"back-off   {shortened(waiting)}")
        if self.promise_sentence is not None:
            lines.append(f"promise    {self.promise_sentence}")
        lines.extend(f"note       {notice}" for notice in self.notices)
        return "\n".join(lines)


def _first(value: Any, most: int | None) -> Any:
    """Returns the first entries of a list or mapping; other values as they are."""
    if isinstance(value, dict):
        return dict(list(value.items())[:most])
    return value[:most] if isinstance(value, list) else value


def status_of(journal: Journal, memory: FleetState, settings: SchedulerSettings) -> SchedulerStatus:
    """Returns the summary of a fleet from its file and its state."""
    fleet, opened, turns = memory.fleet, memory.opened, journal.turns_running()
    backing_off = np.flatnonzero(fleet.counters.backing_off(fleet.round) & (fleet.counters.retired == 0))
    certificate = fleet.certificate() if fleet.ids else None
    promise = None if certificate is None else certificate.summary()
    return SchedulerStatus(
        clients=len(fleet.ids),
        retired=int(fleet.counters.retired.sum()),
        round=memory.newest_round,
        is_open=opened is not None,
        elapsed=0.0 if opened is None else opened.elapsed,
        deadline=None if opened is None else opened.deadline,
        target_size=0 if opened is None else opened.target_size,
        out=[turn.id for turn in turns if turn.kind is None],
        arrived=[turn.id for turn in turns if turn.kind == "arrived"],
        failed={turn.id: turn.why or "" for turn in turns if turn.kind == "failed"},
        behind={} if certificate is None else _furthest_behind(certificate, fleet.ids),
        backing_off={fleet.ids[row]: int(fleet.counters.backoff_until[row]) for row in backing_off.tolist()},
        promise=promise,
        worst=None if promise is None or promise.worst is None else fleet.ids[promise.worst],
        suspects=[fleet.ids[row] for row in np.flatnonzero(fleet.history.suspects()).tolist()],
        notices=fleet_notices(journal, memory, settings),
        slots=fleet.slots,
    )


def _furthest_behind(certificate: Certificate, ids: Sequence[str]) -> dict[str, float]:
    """Returns how many turns clients are behind, for at most SHOWN that are one turn or more behind."""
    units = certificate.behind_units
    rows = np.flatnonzero(units >= certificate.units_per_turn)
    if certificate.retired is not None:
        rows = rows[~certificate.retired[rows]]
    most = rows[np.argsort(-units[rows], kind="stable")][:SHOWN]
    return {ids[row]: int(units[row]) / certificate.units_per_turn for row in most.tolist()}


class FleetQueries(Closable, ABC):
    """Answers queries about a fleet."""

    @property
    @abstractmethod
    def settings(self) -> SchedulerSettings:
        """The settings of the fleet, as the last amendment left them."""

    @property
    @abstractmethod
    def clients(self) -> list[str]:
        """The ids of all clients, by row."""

    @abstractmethod
    def _querying(self) -> AbstractContextManager[Journal]:
        """Opens a block in which all queries see the same state of the fleet."""

    @abstractmethod
    def _state(self) -> FleetState:
        """Returns the present state, inside such a block."""

    def certificate(self) -> Certificate:
        """Returns how many turns every client was promised and got, by row, and since when promises are broken.

        The overall status, the worst client and the summary judge only clients that have not retired.

        Raises:
            FleetKindError: If the policy guarantees nothing.
        """
        with self._querying():
            certificate = self._state().fleet.certificate()
        if certificate is None:
            policy = self.settings.policy
            raise FleetKindError(f"the policy {policy} guarantees nothing: use {DEFAULT_POLICY} for a certificate")
        return certificate

    def explain(self, client: str, round: int | None = None) -> Explanation:
        """Explains why a client was selected in a round, by default the latest, or what it lacked."""
        from turnout.live.operation.explain import explain_client

        with self._querying() as journal:
            state = self._state()
            row = row_of(state.fleet, client, journal.location)
            number = state.newest_round if round is None else as_round(round)
            return explain_client(journal, state, self.settings, row, number)

    def status(self) -> SchedulerStatus:
        """Returns a summary of the fleet; its string form is for people."""
        with self._querying() as journal:
            return status_of(journal, self._state(), self.settings)

    def history(self, client: str | None = None, *, round: int | None = None) -> list[Turn]:
        """Returns turns with their outcomes, oldest first: all turns of a client, or those of a round.

        Args:
            client: The id of the client; None for all clients of the round.
            round: The number of the round, or of the decision; None for all turns of the client or, without a client,
                for the latest round.
        """
        with self._querying() as journal:
            if client is None:
                return journal.turns_of(journal.newest_round() if round is None else as_round(round))
            turns = journal.turns_of_client(client) if isinstance(client, str) else []
            if not turns and client not in self.clients:
                raise unknown_client(client, journal.location)
            return turns if round is None else [turn for turn in turns if turn.round == as_round(round)]
