"""What a server of rounds and a server of slots have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace

from turnout.errors import FleetKindError, ReportError
from turnout.kernel.rounds import RoundRecord
from turnout.live.features import Status, Statuses
from turnout.live.journal.changes import Changes
from turnout.live.operation.monitoring import UNKNOWN_ELAPSED, writer_metrics
from turnout.live.operation.upkeep import drop_some
from turnout.live.serving.session import FleetSession
from turnout.live.turns.records import Turn
from turnout.live.turns.slots.turns import RunningTurn, SlotNews, Wait


class TurnServer(ABC):
    """Gives turns to the clients of a fleet, and ends them.

    Both kinds work in the same steps: they build an *offer* from statuses, *decide* with the policy, take a *report*
    for each turn, *settle* the turns that have ended, and *write* what changed in one transaction. The methods that
    only the other kind has refuse to work.

    Args:
        session: The open fleet, whose lock the caller holds.
    """

    def __init__(self, session: FleetSession) -> None:
        self._session = session

    @abstractmethod
    def turn_of(self, client: str | int, round: int | None) -> tuple[str, int | None]:
        """Returns the client and the round or decision of a turn that is reported.

        Args:
            client: The id of the client, or the number of a turn.
            round: The round in which the client was selected; None for the latest.
        """

    @abstractmethod
    def elapsed(self, client: str, round: int | None) -> tuple[int, float]:
        """Returns the number of a turn that `turn_of` returned, and the seconds since it was given.

        Raises:
            ReportError: If the turn is not running, or the time is not known.
        """

    @abstractmethod
    def newest_turns(self) -> list[Turn]:
        """Returns the turns that may have been reported last."""

    def choose(self, statuses: Statuses, cold: Collection[str]) -> list[str]:  # noqa: ARG002
        """Opens a round, or returns the cohort of the open round again."""
        raise _needs_rounds("choose")

    def close_round(self, after: float | None) -> RoundRecord:  # noqa: ARG002
        """Closes the open round."""
        raise _needs_rounds("close_round")

    def abandon_round(self) -> None:
        """Cancels the open round."""
        raise _needs_rounds("abandon_round")

    def fill(self, statuses: Statuses, cold: Collection[str], most: int | None = None) -> list[RunningTurn]:  # noqa: ARG002
        """Gives one turn for every free slot."""
        raise needs_slots("fill")

    def check_in(self, client: str, status: Status, *, listens: bool = False) -> RunningTurn | Wait:  # noqa: ARG002
        """Answers a device that asks for work."""
        raise needs_slots("check_in")

    def news_since(self, decision: int) -> SlotNews:  # noqa: ARG002
        """Returns what devices that listen must know."""
        raise needs_slots("news_since")

    def running(self) -> list[RunningTurn]:
        """Returns the turns whose results are not known yet."""
        raise needs_slots("running")

    def drop_check_ins(self, client: str | None = None, row: int = 0) -> None:  # noqa: B027  # nobody checks in to rounds
        """Drops the check-in of a client that has left, or all check-ins."""

    def _write(
        self,
        changes: Changes,
        number: int,
        event: tuple[str, bytes, bytes],
        turns: Sequence[Turn],
        late: Sequence[Turn],
    ) -> int:
        """Writes an event in which turns ended or were given; returns its number.

        Args:
            changes: An open transaction.
            number: The last round or decision after it.
            event: Its kind, its data, and the packed availability of the clients.
            turns: The turns that it changes.
            late: The turns of late clients whose actual times were learned with it.
        """
        written = changes.add_event(*event)
        changes.put_closed_round(number)
        changes.put_turns([*turns, *(replace(turn, folded=number) for turn in late)])
        drop_some(changes, self._session.settings, number)
        figures = writer_metrics(self._session.journal.file, self._session.refused)
        changes.put_writer_metrics(figures._asdict())
        return written


def needs_slots(what: str) -> FleetKindError:
    """Returns the error for what only a fleet without rounds has."""
    return FleetKindError(f"{what} needs a fleet with a concurrency: use choose and close_round")


def _needs_rounds(what: str) -> FleetKindError:
    return FleetKindError(f"{what} needs a fleet with rounds: use fill, and report with the id of the turn")


def unknown_seconds(client: str) -> ReportError:
    """Returns the error for a report without seconds, if the time since the turn was given is not known."""
    return ReportError(f"{UNKNOWN_ELAPSED}: pass the seconds that {client!r} took")
