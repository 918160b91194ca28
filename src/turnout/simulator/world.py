"""What a world is: it hosts rounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from turnout.kernel.arrays import FloatArray
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection


class World(Protocol):
    """Offers rounds and plays them.

    The same seed offers every policy the same availability, contexts and noise. What a world remembers from one
    round to the next is its `state`, as plain arrays and numbers, so that a run can be resumed.
    """

    @property
    def clients(self) -> int:
        """How many clients live here."""

    @property
    def availability(self) -> FloatArray:
        """In what share of the rounds each client volunteers, in the long run."""

    def offer(self, round: int) -> RoundOffer:
        """Who volunteers, and in what condition; with the expected times where the truth is known."""

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        """Let the chosen train, and tell what became of them."""

    def state(self) -> dict[str, Any]:
        """What the next round depends on."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""
