"""REFL: Abdelmoniem, Sahu, Canini and Fahmy, "REFL: Resource-Efficient Federated Learning", EuroSys 2023."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import ReportError, SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, as_count, load_array
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import SelectionPolicy
from turnout.policies.observations import append_rows
from turnout.policies.sampling import exponential_keys, lowest


class REFL(SelectionPolicy):
    """Selects the clients that are least likely to be available again soon.

    The cohort are the available clients with the smallest probability of being available in the next window, at random
    among equals. A client that had a turn in the last `hold_off` rounds is selected only if no other is left.

    In the paper clients predict their own availability. Here it is learned from the `available` masks of the reports:
    if a client was available again `window` rounds later in a of n rounds, its probability is (a + 1) / (n + 2). A
    report without the mask is refused. The paper's averaging of late updates is not part of selection. The authors'
    implementation looks up the future in the trace itself, and leaves out one client if few are left.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        window: The number of rounds that availability is predicted ahead.
        hold_off: The number of rounds after a turn in which a client is selected last.
        seed: The seed of the random generator.
    """

    name = "refl"

    def __init__(
        self, clients: int, *, cohort_size: int = 8, window: int = 1, hold_off: int = 5, seed: int = 0
    ) -> None:
        super().__init__(clients)
        self.cohort_size: int = as_count("cohort_size", cohort_size, SettingError)
        self.window = as_count("window", window, SettingError)
        self.hold_off = as_count("hold_off", hold_off, SettingError, least=0)
        self.seed = as_count("seed", seed, SettingError, least=0)
        self.seen = np.zeros(self.clients, dtype=np.int64)
        self.again = np.zeros(self.clients, dtype=np.int64)
        self.recent: BoolArray = np.zeros((self.window, self.clients), dtype=np.bool_)  # the newest round last
        self.last_rounds = np.zeros(self.clients, dtype=np.int64)  # 0: no turn yet

    @property
    def chances(self) -> FloatArray:
        """The probability that a client that is available now is available in the next window."""
        return (self.again + 1) / (self.seen + 2)

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects the clients that are least likely to be available again."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        chances, last = self.chances[rows], self.last_rounds[rows]
        held_off = (last > 0) & (offer.round - last <= self.hold_off)
        tie_break = exponential_keys(self.seed, "refl", offer.round, self.clients)[rows]
        positions = lowest(chances + held_off, tie_break, self.places(offer))  # a probability is below 1
        return Selection.trusted(offer.round, rows[positions], {"chance": chances[positions]})

    def tell(self, report: RoundReport) -> None:
        """Learns which clients are available again."""
        self.check_report(report)
        if report.available is None:
            raise ReportError("refl learns from availability: pass the offer's mask as the report's `available`")
        self.seen += self.recent[0]
        self.again += self.recent[0] & report.available
        self.recent = np.concatenate([self.recent[1:], report.available[None]])
        self.last_rounds[report.clients] = report.round

    def add(self, count: int) -> None:
        """Appends clients that were never available before."""
        super().add(count)
        self.seen, self.again = append_rows(self.seen, count, 0), append_rows(self.again, count, 0)
        self.last_rounds = append_rows(self.last_rounds, count, 0)
        self.recent = np.concatenate([self.recent, np.zeros((self.window, count), dtype=np.bool_)], axis=1)

    def forget(self, rows: npt.ArrayLike) -> None:
        """Removes what is known about the availability and the turns of these clients."""
        known = self._rows(rows)
        self.seen[known] = self.again[known] = self.last_rounds[known] = 0
        self.recent[:, known] = False

    def state(self) -> dict[str, Any]:
        """Returns what was observed of each client."""
        return {
            "seen": self.seen.copy(),
            "again": self.again.copy(),
            "recent": self.recent.copy(),
            "last_rounds": self.last_rounds.copy(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what was observed of each client."""
        self.seen, self.again, self.recent, self.last_rounds = (
            load_array(state, "seen", self.seen),
            load_array(state, "again", self.again),
            load_array(state, "recent", self.recent),
            load_array(state, "last_rounds", self.last_rounds),
        )
