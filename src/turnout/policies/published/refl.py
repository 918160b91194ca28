"""REFL: Abdelmoniem, Sahu, Canini and Fahmy, "REFL: Resource-Efficient Federated Learning", EuroSys 2023."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from turnout.errors import ReportError, SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, as_count, load_array
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import SelectionPolicy
from turnout.policies.observations import append_rows
from turnout.policies.sampling import exponential_keys, lowest


class REFL(SelectionPolicy):
    """Those first who will hardly be there again: the others can be had later.

    Of the available, the cohort_size with the smallest chance of being available in the next window; at random among
    equals. Who had a turn in the last `hold_off` rounds only fills places that nobody else can.

    The paper's clients predict their own availability and tell the server. Here it is learned from the masks in
    the reports: of the rounds in which a client was available, in what share was it available again `window` rounds
    later? With n such rounds and a times again, the chance is (a + 1) / (n + 2). A report without its mask is
    refused. The paper's way of averaging late updates is no matter of selection, and not part of this.

    The program of the authors looks the windows up in the trace itself, that is, it knows the future, and where
    few are left it leaves one of them out.
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
        self.recent: BoolArray = np.zeros((self.window, self.clients), dtype=np.bool_)  # the newest last
        self.last_rounds = np.zeros(self.clients, dtype=np.int64)  # 0: not yet

    @property
    def chances(self) -> FloatArray:
        """How likely is each client, if available now, to be so in the next window?"""
        return (self.again + 1) / (self.seen + 2)

    def ask(self, offer: RoundOffer) -> Selection:
        """The least likely to come again, after a pause."""
        self.check_offer(offer)
        rows = np.flatnonzero(offer.available)
        chances, last = self.chances[rows], self.last_rounds[rows]
        resting = (last > 0) & (offer.round - last <= self.hold_off)
        luck = exponential_keys(self.seed, "refl", offer.round, self.clients)[rows]
        places = lowest(chances + resting, luck, self.cohort_size)  # a chance is below 1
        return Selection.trusted(offer.round, rows[places], {"chance": chances[places]})

    def tell(self, report: RoundReport) -> None:
        """Learn who is there again."""
        self.check_report(report)
        if report.available is None:
            raise ReportError("refl learns from who was available: give the report the offer's mask as `available`")
        self.seen += self.recent[0]
        self.again += self.recent[0] & report.available
        self.recent = np.concatenate([self.recent[1:], report.available[None]])
        self.last_rounds[report.clients] = report.round

    def add(self, count: int) -> None:
        """New clients were never there before."""
        super().add(count)
        self.seen, self.again = append_rows(self.seen, count, 0), append_rows(self.again, count, 0)
        self.last_rounds = append_rows(self.last_rounds, count, 0)
        self.recent = np.concatenate([self.recent, np.zeros((self.window, count), dtype=np.bool_)], axis=1)

    def state(self) -> dict[str, Any]:
        """What was seen of each client."""
        return {name: getattr(self, name).copy() for name in ("seen", "again", "recent", "last_rounds")}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        names = ("seen", "again", "recent", "last_rounds")
        arrays = {name: load_array(state, name, getattr(self, name)) for name in names}
        for name, array in arrays.items():
            setattr(self, name, array)
