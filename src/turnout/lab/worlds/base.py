"""The protocol that every simulated world implements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from turnout.kernel.arrays import FloatArray
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection


class World(Protocol):
    """A simulated environment that offers rounds and plays them.

    The same seed offers every policy the same availability, contexts and noise. `state` holds everything that the world
    carries from one round to the next, as plain arrays and numbers, so that a run can be resumed.
    """

    @property
    def clients(self) -> int:
        """The number of clients."""

    @property
    def availability(self) -> FloatArray:
        """The long-run share of rounds in which each client is available, (N,)."""

    def offer(self, round: int) -> RoundOffer:
        """Returns the available clients and their contexts, with expected times where the world knows them."""

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Lets the selected clients train and reports their exchange times and outcomes."""

    def state(self) -> dict[str, Any]:
        """Returns everything that the next round depends on."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the state that `state` returned."""


@runtime_checkable
class ClockedWorld(World, Protocol):
    """A world whose offers depend on the time, and whose clock can be set: necessary for turns without rounds."""

    @property
    def idle_seconds(self) -> float:
        """The seconds after which a server looks again if no client is available."""

    def set_clock(self, seconds: float) -> None:
        """Sets the time of the next offer, in seconds since the start of the run."""


@runtime_checkable
class TurnWorld(World, Protocol):
    """A world for turns without rounds: `play` starts the turn of one client, and `finish` ends it."""

    @property
    def inner(self) -> World:
        """The world that determines which clients are available, and how long they take."""

    def finish(self, report: RoundReport) -> RoundReport:
        """Ends a turn; returns its report with what is known only now."""


@runtime_checkable
class CohortWorld(World, Protocol):
    """A world that needs rounds, because it combines the results of a cohort."""

    @property
    def combines_cohorts(self) -> bool:
        """Whether it does."""
