"""The base classes of policies that guarantee every client a share of the rounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, as_number
from turnout.kernel.certificate import Certificate, OwedTurns
from turnout.kernel.cohort import SolvedCohort
from turnout.kernel.fairness import FairnessQueues
from turnout.kernel.guarantee import Guarantee, GuaranteeSettings
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.kernel.slots.turns import TurnStart
from turnout.policies.base import CohortPolicy, prefixed, replaced, subset


class GuaranteedPolicy(CohortPolicy):
    """Keeps the turns of each client and the turns it is owed.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        settings: The settings of the guarantee; `Guarantee` documents them. `guaranteed_rate` is 0.15 by default.
    """

    guarantee: Guarantee
    debts: FairnessQueues
    turns: npt.NDArray[np.int32]

    def __init__(self, clients: int, *, cohort_size: int, **settings: Unpack[GuaranteeSettings]) -> None:
        super().__init__(clients, cohort_size=cohort_size)
        self.guarantee = Guarantee.from_settings(settings)
        self.debts = self.guarantee.queues(clients)
        self._remember(turns=np.int32(0), lasting=True)
        self._remember_part("queues", self.debts, None)
        self.guarantee.require_feasible(self.debts, self.cohort_size)

    @property
    def owed(self) -> FloatArray:
        """The turns owed to each client now."""
        return self.debts.owed

    def certificate(self) -> Certificate:
        """Returns what every client was promised and got."""
        return self.debts.certificate(self.turns, tolerance=self.guarantee.tolerance)

    def tell(self, report: RoundReport) -> None:
        """Adds this round's accrual and subtracts one turn for each paid client."""
        super().tell(report)
        paid = report.clients if self.guarantee.counts == "selected" else report.clients[report.with_outcome("arrived")]
        self.debts.advance_rows(paid, report.available)
        self.turns[paid] += 1

    def tell_started(self, turn: TurnStart) -> None:
        """Adds the accrual of this decision, and subtracts a turn unless it counts only when the client comes back."""
        super().tell_started(turn)
        paid = turn.rows if self.guarantee.counts == "selected" else turn.rows[:0]
        self.debts.advance_decision(paid, turn.present, turn.capped)
        self.turns[paid] += 1

    def tell_finished(self, report: RoundReport) -> None:
        """Subtracts a turn if it counts only when the client comes back."""
        self._check_slots()
        self.check_report(report)
        if self.guarantee.counts == "completed":
            paid = report.clients[report.with_outcome("arrived")]
            self.debts.pay(paid)
            self.turns[paid] += 1

    def settle(self) -> None:
        """Records what clients have forfeited to the cap so far."""
        self.debts.settle()

    def amended_state(self, state: Mapping[str, Any], *, keep_times: bool) -> dict[str, Any]:  # noqa: ARG002
        """Converts the debts: earlier rounds count at the old rate. A policy that learns times extends this method."""
        return replaced(state, prefixed("queues", self.debts.amended_state(subset(state, "queues"))), "queues")


class WeightedPolicy(GuaranteedPolicy):
    """Weighs seconds against turns owed: the form of RBCS-F.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        speed_weight: How many owed turns one second of round time is worth (V in the paper).
        settings: The settings of the guarantee; `Guarantee` documents them. `guaranteed_rate` is 0.15 by default.
    """

    selects_by_queue = True

    def __init__(
        self, clients: int, *, cohort_size: int, speed_weight: float, **settings: Unpack[GuaranteeSettings]
    ) -> None:
        super().__init__(clients, cohort_size=cohort_size, **settings)
        self.speed_weight = as_number("speed_weight", speed_weight, SettingError, least=0)

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects the cohort that minimises speed_weight · (slowest time) − (turns owed)."""
        self.check_offer(offer)
        owed = self.debts.owed_exactly()
        size = self.places(offer)
        cohort = self._cohort(offer, size, *self.objective_terms(owed, offer.round, size))
        reasons = {"optimistic": cohort.times, "owed": owed.of(cohort.rows)}
        totals = {"threshold": np.array(cohort.threshold), "objective": np.array(cohort.objective)}
        return Selection.trusted(offer.round, cohort.rows, reasons | totals)

    def objective_terms(self, owed: OwedTurns, round: int, size: int) -> tuple[OwedTurns, float]:  # noqa: ARG002
        """Returns what a turn of each client and a second are worth: the turns owed, and the speed weight.

        Args:
            owed: The turns owed to each client.
            round: The number of the round.
            size: The number of clients to select; values are scaled so that the sum of this many fits 64 bits.
        """
        return owed, self.speed_weight

    @abstractmethod
    def _cohort(self, offer: RoundOffer, size: int, values: OwedTurns, weight: float) -> SolvedCohort:
        """Returns the cohort of `size` clients for these values of a turn and this weight of a second."""
