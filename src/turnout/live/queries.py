"""What a scheduler and a reader answer about a fleet, each from its own state of the fleet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from turnout.closing import Closable
from turnout.errors import FleetKindError
from turnout.kernel.certificate import Certificate
from turnout.live.features import Features
from turnout.live.identifiers import as_round, unknown_client
from turnout.live.journal.journal import Journal
from turnout.live.journal.replay import FleetState
from turnout.live.settings import DEFAULT_POLICY, SchedulerSettings
from turnout.live.status import SchedulerStatus, status_of
from turnout.live.turns.records import Turn
from turnout.live.turns.state import row_of

if TYPE_CHECKING:  # explanations need modules of the policies that nothing else here needs
    from turnout.policies.explain.explanation import Explanation


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
    def close(self) -> None:
        """Closes the file."""

    @abstractmethod
    def _querying(self) -> AbstractContextManager[Journal]:
        """Opens a block in which all queries see the same state of the fleet."""

    @abstractmethod
    def _state(self) -> FleetState:
        """Returns the present state, inside such a block."""

    @abstractmethod
    def _features(self) -> Features:
        """Returns the present features, inside such a block."""

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
            return explain_client(journal, state, self.settings, self._features(), row, number)

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
