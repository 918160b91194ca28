"""The base class of every simulated world, and of worlds around another world."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnout.errors import SelectionError, SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, load_array
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection


class World(ABC):
    """A simulated environment that offers rounds and plays them.

    The same seed offers every policy the same availability, contexts and noise. `state` holds everything that the world
    carries from one round to the next, as plain arrays and numbers, so that a run can be resumed.

    A world declares what else it can do, or needs; the defaults are those of a world of rounds without a clock.

    Attributes:
        combines_cohorts: Whether it needs rounds, because it combines the results of a cohort.
        needs_slots: Whether it has no rounds: `play` starts the turn of one client, and `finish` ends it.
        signals: The names of the signals in its reports.
    """

    combines_cohorts: bool = False
    needs_slots: bool = False
    signals: tuple[str, ...] = ()

    @property
    @abstractmethod
    def clients(self) -> int:
        """The number of clients."""

    @property
    @abstractmethod
    def availability(self) -> FloatArray:
        """The long-run share of rounds in which each client is available, (N,)."""

    @abstractmethod
    def offer(self, round: int) -> RoundOffer:
        """Returns the available clients and their contexts, with expected times where the world knows them."""

    @abstractmethod
    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Lets the selected clients train and reports their exchange times and outcomes."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Returns everything that the next round depends on."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the state that `state` returned."""

    @property
    def idle_seconds(self) -> float:
        """The seconds after which a server looks again if no client is available; 0 without a clock."""
        return 0.0

    def set_clock(self, seconds: float) -> None:  # noqa: B027  # without a clock there is nothing to set
        """Sets the time of the next offer, in seconds since the start of the run, in a world with a clock."""

    def finish(self, report: RoundReport) -> RoundReport:
        """Ends a turn without rounds; returns its report with what is known only now."""
        return report

    @property
    def timing(self) -> World:
        """The world that determines which clients are available, and how long they take; this one, if it wraps none."""
        return self


class ColdStartWorld(World):
    """A world that remembers which clients trained in the last round: the others need a cold start.

    Args:
        clients: The number of clients.
    """

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._trained: BoolArray = np.zeros(clients, dtype=np.bool_)

    @property
    def clients(self) -> int:
        """The number of clients."""
        return self._clients

    def state(self) -> dict[str, Any]:
        """Returns which clients trained in the last round."""
        return {"trained": self._trained.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the state that `state` returned."""
        self._trained = load_array(state, "trained", self._trained)

    def _selected(self, offer: RoundOffer, selection: Selection) -> IntArray:
        """Returns the selected clients; raises SelectionError if one of them cannot be."""
        chosen = selection.clients
        if len(chosen) and (chosen.max() >= self._clients or not offer.available[chosen].all()):
            raise SelectionError(f"round {offer.round}: a selected client is unknown or not available")
        return chosen

    def _set_trained(self, rows: IntArray) -> None:
        self._trained = np.zeros(self._clients, dtype=np.bool_)
        self._trained[rows] = True


def check_round(round: int) -> None:
    """Raises SettingError for a round before the first."""
    if round < 1:
        raise SettingError(f"round must be at least 1, not {round}")


def check_choice(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raises SettingError if a setting is none of the allowed values."""
    if value not in allowed:
        raise SettingError(f"{name} must be one of {', '.join(map(str, allowed))}, not {value!r}")


class WorldWrapper(World):
    """A world around another one, which determines which clients are available, and how long they take.

    Args:
        inner: The other world.
    """

    def __init__(self, inner: World) -> None:
        self.inner, self.signals = inner, inner.signals

    @property
    def clients(self) -> int:
        """The number of clients."""
        return self.inner.clients

    @property
    def availability(self) -> FloatArray:
        """The long-run share of rounds in which each client is available, (N,)."""
        return self.inner.availability

    @property
    def idle_seconds(self) -> float:
        """The seconds after which a server looks again if no client is available; 0 without a clock."""
        return self.inner.idle_seconds

    @property
    def timing(self) -> World:
        """The world that determines which clients are available, and how long they take."""
        return self.inner.timing

    def set_clock(self, seconds: float) -> None:
        """Sets the time of the inner world, if it has a clock."""
        self.inner.set_clock(seconds)

    def offer(self, round: int) -> RoundOffer:
        """Returns the offer of the inner world."""
        return self.inner.offer(round)

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Returns the report of the inner world."""
        return self.inner.play(offer, selection)

    def state(self) -> dict[str, Any]:
        """Returns the state of the inner world."""
        return self.inner.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the state of the inner world."""
        self.inner.restore(state)
