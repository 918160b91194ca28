"""FedCS (Nishio and Yonetani, 2019), as the RBCS-F paper adapts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import as_number
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import SelectionPolicy


class FedCS(SelectionPolicy):
    """Every available client whose expected time is below the deadline, in seconds; the cohort floats.

    `estimates="truth"`: the paper's form, which is told the true expected times. `estimates="learned"`: for
    worlds that do not know them; the optimistic times of its own regressions stand in, so that clients
    nobody has seen are tried first.
    """

    name = "fedcs"

    def __init__(
        self,
        clients: int,
        *,
        deadline: float = 3.0,
        estimates: Literal["truth", "learned"] = "truth",
        exploration: float = 0.1,
        ridge: float = 1.0,
        features: int = 3,
    ) -> None:
        super().__init__(clients)
        self.deadline = as_number("deadline", deadline, SettingError, above=0)
        if estimates not in ("truth", "learned"):
            raise SettingError(f"estimates must be 'truth' or 'learned', not {estimates!r}")
        self.exploration = as_number("exploration", exploration, SettingError, least=0)
        self.requires_expected_times = estimates == "truth"
        self.model: ExchangeTimeModel | None = None
        if estimates == "learned":
            self.model = ExchangeTimeModel(clients, features=features, ridge=ridge)
            self.features = self.model.features

    def ask(self, offer: RoundOffer) -> Selection:
        """Choose all that should be back in time."""
        self.check_offer(offer)
        times = (
            self.true_times(offer) if self.model is None else self.model.optimistic(offer.contexts, self.exploration)
        )
        chosen = np.flatnonzero(offer.available & (times < self.deadline))
        return Selection.trusted(
            offer.round, chosen, {"expected" if self.model is None else "optimistic": times[chosen]}
        )

    def tell(self, report: RoundReport) -> None:
        """Learn the times, where they are not given."""
        self.check_report(report)
        if self.model is not None:
            self.model.learn_from(report)

    def add(self, count: int) -> None:
        """Of new clients nothing is known."""
        super().add(count)
        if self.model is not None:
            self.model.add(count)

    def state(self) -> dict[str, Any]:
        """What was learned, if anything is."""
        return {} if self.model is None else self.model.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take it back."""
        if self.model is None:
            super().restore(state)
        else:
            self.model.restore(state)
