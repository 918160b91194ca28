"""Round robin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count, load_array, smallest
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.kernel.slots.turns import TurnStart
from turnout.policies.base import SelectionPolicy


class RoundRobin(SelectionPolicy):
    """Selects the clients with the fewest turns; among equals, the lower rows."""

    name = "round-robin"
    fills_slots = True

    def __init__(self, clients: int, *, cohort_size: int = 8) -> None:
        super().__init__(clients)
        self.cohort_size: int = as_count("cohort_size", cohort_size, SettingError)
        self.turns = np.zeros(self.clients, dtype=np.int64)

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects the available clients with the fewest turns."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        chosen = rows[smallest(self.turns[rows], self.places(offer))]
        return Selection.trusted(offer.round, chosen, {"turns": self.turns[chosen].astype(np.float64)})

    def tell(self, report: RoundReport) -> None:
        """Counts the turns."""
        self.check_report(report)
        self.turns[report.clients] += 1

    def tell_started(self, turn: TurnStart) -> None:
        """Counts the turn."""
        super().tell_started(turn)
        self.turns[turn.client] += 1

    def tell_finished(self, report: RoundReport) -> None:
        """Checks the report; the turn was counted when it was given."""
        self.check_report(report)

    def add(self, count: int) -> None:
        """Appends clients without turns, which are therefore selected first."""
        super().add(count)
        self.turns = np.concatenate([self.turns, np.zeros(count, dtype=np.int64)])

    def forget(self, rows: npt.ArrayLike) -> None:
        """Resets the turns of these clients."""
        self.turns[self._rows(rows)] = 0

    def state(self) -> dict[str, Any]:
        """Returns the turns taken so far."""
        return {"turns": self.turns.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores the turns."""
        self.turns = load_array(state, "turns", self.turns)
