"""What every policy with a guarantee shares: the queues, the turns taken, the certificate."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, as_count, as_number, load_array
from turnout.kernel.cohort import Cohort
from turnout.kernel.fairness import Accrual, Certificate, FairnessQueues, OwedTurns, Rate
from turnout.kernel.feasibility import require_feasible
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import SelectionPolicy, prefixed, subset


class GuaranteedPolicy(SelectionPolicy):
    """Chooses the fastest fair cohort, on whatever it takes for the times.

    `guaranteed_rate`: one for all or one a client. `paid`: a turn is paid when a client is "chosen", or only when
    it "contributed", that is, arrived. `availability`: how often clients volunteer, one number or one a client; with
    it the promise is checked for what fleets really are, without it as if everyone were always there.
    """

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int,
        guaranteed_rate: Rate | npt.ArrayLike,
        speed_weight: float,
        accrual: Accrual,
        max_owed: float | Fraction | None,
        paid: Literal["chosen", "contributed"],
        availability: float | npt.ArrayLike | None,
        allow_infeasible: bool,
    ) -> None:
        super().__init__(clients)
        self.cohort_size: int = as_count("cohort_size", cohort_size, SettingError)
        self.speed_weight = as_number("speed_weight", speed_weight, SettingError, least=0)
        if paid not in ("chosen", "contributed"):
            raise SettingError(f"paid must be 'chosen' or 'contributed', not {paid!r}")
        self.paid = paid
        self.queues = FairnessQueues(clients, guaranteed_rate, accrual=accrual, max_owed=max_owed)
        self.turns = np.zeros(clients, dtype=np.int32)
        if not allow_infeasible:
            self._require_feasible(1.0 if availability is None else availability)

    @property
    def owed(self) -> FloatArray:
        """Turns owed to each client now."""
        return self.queues.owed

    def certificate(self) -> Certificate:
        """What every client was promised and what it got."""
        return self.queues.certificate(self.turns)

    def ask(self, offer: RoundOffer) -> Selection:
        """Choose the cohort that minimises speed_weight · slowest − owed turns."""
        self.check_offer(offer)
        owed = self.queues.owed_exactly()
        cohort = self._cohort(offer, *self.objective_terms(owed, offer.round, self.cohort_size))
        return Selection.trusted(
            offer.round,
            cohort.rows,
            {
                "optimistic": cohort.times,
                "owed": owed.of(cohort.rows),
                "threshold": np.array(cohort.threshold),
                "objective": np.array(cohort.objective),
            },
        )

    def tell(self, report: RoundReport) -> None:
        """Everyone earns, the chosen are paid."""
        self.check_report(report)
        paid = report.clients if self.paid == "chosen" else report.clients[report.with_outcome("arrived")]
        self.queues.advance_rows(paid, report.available)
        self.turns[paid] += 1

    def add(self, count: int) -> None:
        """New clients are owed nothing; their rate is the common one."""
        self.queues.add(count)  # first: it refuses where each has a rate of its own
        super().add(count)
        self.turns = np.concatenate([self.turns, np.zeros(count, dtype=np.int32)])

    def state(self) -> dict[str, Any]:
        """Debts and turns."""
        return {"turns": self.turns.copy(), **prefixed("queues", self.queues.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        turns = load_array(state, "turns", self.turns)
        self.queues.restore(subset(state, "queues"))
        self.turns = turns

    def objective_terms(self, owed: OwedTurns, round: int, size: int) -> tuple[OwedTurns, float]:  # noqa: ARG002
        """What each client weighs in a choice of `size` clients, and what a second does: what it is owed, and V."""
        return owed, self.speed_weight

    @abstractmethod
    def _cohort(self, offer: RoundOffer, debts: OwedTurns, weight: float) -> Cohort:
        """Solve P4 for this offer, with what the clients and a second weigh."""

    def _require_feasible(self, availability: float | npt.ArrayLike) -> None:
        chance = np.array(np.broadcast_to(np.asarray(availability, dtype=np.float64), self.clients))
        rates = np.array(self.queues.guaranteed_rates)
        if self.queues.accrual == "available":
            rates *= chance  # the promise is a share of the rounds it volunteers for
        require_feasible(rates, chance, self.cohort_size)
