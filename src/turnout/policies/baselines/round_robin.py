"""Everyone in turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import as_count, load_array, smallest
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import SelectionPolicy


class RoundRobin(SelectionPolicy):
    """Fewest turns first, of equals the lower row."""

    name = "round-robin"

    def __init__(self, clients: int, *, cohort_size: int = 8) -> None:
        super().__init__(clients)
        self.cohort_size: int = as_count("cohort_size", cohort_size, SettingError)
        self.turns = np.zeros(self.clients, dtype=np.int64)

    def ask(self, offer: RoundOffer) -> Selection:
        """Choose the available clients that had the fewest turns."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        chosen = rows[smallest(self.turns[rows], self.cohort_size)]
        return Selection.trusted(offer.round, chosen, {"turns": self.turns[chosen].astype(np.float64)})

    def tell(self, report: RoundReport) -> None:
        """Count the turns."""
        self.check_report(report)
        self.turns[report.clients] += 1

    def add(self, count: int) -> None:
        """New clients have had no turn, and so come first."""
        super().add(count)
        self.turns = np.concatenate([self.turns, np.zeros(count, dtype=np.int64)])

    def state(self) -> dict[str, Any]:
        """Turns taken so far."""
        return {"turns": self.turns.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back the turns."""
        self.turns = load_array(state, "turns", self.turns)
