"""Round robin."""

from __future__ import annotations

import numpy as np

from turnout.kernel.arrays import IntArray, smallest
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.kernel.slots.turns import TurnStart
from turnout.policies.base import CohortPolicy


class RoundRobin(CohortPolicy):
    """Selects the clients with the fewest turns; among equals, the lower rows.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
    """

    name = "round-robin"
    fills_slots = True
    turns: IntArray

    def __init__(self, clients: int, *, cohort_size: int = 8) -> None:
        super().__init__(clients, cohort_size=cohort_size)
        self._remember(turns=0)

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects the available clients with the fewest turns."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        chosen = rows[smallest(self.turns[rows], self.places(offer))]
        return Selection.trusted(offer.round, chosen, {"turns": self.turns[chosen].astype(np.float64)})

    def tell(self, report: RoundReport) -> None:
        """Counts the turns."""
        super().tell(report)
        self.turns[report.clients] += 1

    def tell_started(self, turn: TurnStart) -> None:
        """Counts the turn."""
        super().tell_started(turn)
        self.turns[turn.client] += 1

    def tell_finished(self, report: RoundReport) -> None:
        """Checks the report; the turn was counted when it was given."""
        self.check_report(report)
