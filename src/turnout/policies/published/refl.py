"""REFL: Abdelmoniem, Sahu, Canini and Fahmy, "REFL: Resource-Efficient Federated Learning", EuroSys 2023."""

from __future__ import annotations

import numpy as np

from turnout.errors import ReportError, SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, smallest
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import CohortPolicy
from turnout.policies.sampling import exponential_keys


class REFL(CohortPolicy):
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
    seen: IntArray
    again: IntArray
    recent: BoolArray  # one row per round, the newest last
    last_rounds: IntArray  # 0: no turn yet

    def __init__(
        self, clients: int, *, cohort_size: int = 8, window: int = 1, hold_off: int = 5, seed: int = 0
    ) -> None:
        super().__init__(clients, cohort_size=cohort_size, seed=seed)
        self.window = as_count("window", window, SettingError)
        self.hold_off = as_count("hold_off", hold_off, SettingError, least=0)
        self._remember(seen=0, again=0, recent=np.zeros(self.window, dtype=np.bool_), last_rounds=0)

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
        positions = smallest(chances + held_off, self.places(offer), tie_break)  # a probability is below 1
        return Selection.trusted(offer.round, rows[positions], {"chance": chances[positions]})

    def tell(self, report: RoundReport) -> None:
        """Learns which clients are available again."""
        super().tell(report)
        if report.available is None:
            raise ReportError("refl learns from availability: pass the offer's mask as the report's `available`")
        self.seen += self.recent[0]
        self.again += self.recent[0] & report.available
        self.recent = np.concatenate([self.recent[1:], report.available[None]])
        self.last_rounds[report.clients] = report.round
