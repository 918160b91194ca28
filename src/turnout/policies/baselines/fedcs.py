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
    """Selects every available client whose expected time is below the deadline; the cohort size varies.

    Args:
        clients: The number of clients.
        deadline: The deadline, in seconds.
        estimates: "truth" is the paper's form and needs the true expected times. "learned" uses the optimistic times
            of the policy's own regressions, so that clients without history are tried first.
        exploration: The width of the confidence bound of learned times.
        ridge: The ridge parameter of the regressions.
        features: The number of features of a context.
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
            raise SettingError(f"estimates must be 'truth' or 'learned', got {estimates!r}")
        self.exploration = as_number("exploration", exploration, SettingError, least=0)
        self.requires_expected_times = estimates == "truth"
        if estimates == "learned":
            self.time_model = ExchangeTimeModel(clients, features=features, ridge=ridge)
            self.features = self.time_model.features
            self._remember_part("", self.time_model, self.time_model.forget)

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects all clients that are expected to return before the deadline."""
        self.check_offer(offer)
        if self.time_model is None:
            reason, times = "expected", self.expected_times(offer)
        else:
            reason, times = "optimistic", self.time_model.optimistic(offer.contexts, self.exploration)
        chosen = np.flatnonzero(offer.available & (times < self.deadline))
        return Selection.trusted(offer.round, chosen, {reason: times[chosen]})

    def tell(self, report: RoundReport) -> None:
        """Learns the times, unless the true ones are used."""
        super().tell(report)
        if self.time_model is not None:
            self.time_model.learn_from(report)

    def exploration_at(self, round: int) -> float | None:  # noqa: ARG002
        """Returns the width of the confidence bound of learned times."""
        return None if self.time_model is None else self.exploration

    def amended_state(self, state: Mapping[str, Any], *, keep_times: bool) -> dict[str, Any]:
        """Returns the same model; with other features, that of a new policy."""
        return dict(state) if keep_times else self.state()
