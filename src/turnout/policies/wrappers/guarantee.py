"""A guaranteed share of the rounds for every client, whoever chooses.

*What is guaranteed.* With N clients of one rate, cohorts of k, N · rate ≤ k, turns earned by being available and paid
when chosen, at any time every debt is below

    urgency + rate · (1 + (N − 1)/k)   <   urgency + 1 + rate,

whoever is available and whatever the policy inside does: every client has had its rate of the rounds it was there for,
but for that many turns. So it is with different rates, for the largest, if N times that one is at most k. With any
rates that add up to at most k, debts after t rounds are at most √(2k · (1 + urgency) · t): a vanishing share of t.

*Proof of the first.* Let B(j) = urgency + rate · (1 + (N − j)/k). Always fewer than j clients are owed B(j) or more:
suppose a round ends with a set S of j such clients, and none began so. Not all of S were absent or chosen, for their
debts did not grow; so one of S was there, was not chosen, and was owed at least B(j) − rate ≥ urgency. Hence k were
chosen that were owed no less. If none of them is in S, j + k clients were owed B(j) − rate = B(j + k). If s > 0 of them
are in S, those were owed B(j) + 1 − rate, which is at least B(s), as j + k − s ≤ N and N · rate ≤ k. Both contradict
what held before the round. The bound is B(1).

*Of the second.* Σ owed² grows by at most 2k · (1 + urgency) a round: the k most owed weigh no less than any shares of
the places, the promised ones among them, and who is not urgent weighs less than urgency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from turnout.errors import ReportError, SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, as_number
from turnout.kernel.cohort import Cohort, cohort_of_times
from turnout.kernel.fairness import DEFAULT_RATE, FINEST, Accrual, Certificate, FairnessQueues, OwedTurns, Rate
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.policies.base import SelectionPolicy, prefixed, subset
from turnout.policies.guaranteed import GuaranteedPolicy
from turnout.policies.wrappers.base import Wrapper, ask_for, ask_for_some, merge_selections, restrict_offer

#: A client that is owed a whole turn is due: to pay it wastes nothing.
DUE = 1


class MostOwed(GuaranteedPolicy):
    """Whoever is owed most comes first, of equals the lower row; speed does not count."""

    name = "most-owed"

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        guaranteed_rate: Rate | npt.ArrayLike = DEFAULT_RATE,
        accrual: Accrual = "always",
        max_owed: float | Fraction | None = None,
        paid: Literal["chosen", "contributed"] = "chosen",
        availability: float | npt.ArrayLike | None = None,
        allow_infeasible: bool = False,
    ) -> None:
        super().__init__(
            clients,
            cohort_size=cohort_size,
            guaranteed_rate=guaranteed_rate,
            speed_weight=0.0,
            accrual=accrual,
            max_owed=max_owed,
            paid=paid,
            availability=availability,
            allow_infeasible=allow_infeasible,
        )

    def _cohort(self, offer: RoundOffer, debts: OwedTurns, weight: float) -> Cohort:
        return cohort_of_times(np.zeros(self.clients), debts, self.cohort_size, weight, offer.available)


class WithGuarantee(Wrapper):
    """Any policy, with a guaranteed share of the rounds for every client.

    A client that is owed `urgency` turns is urgent: the urgent come first, the most owed before the others. In a round
    with urgent clients the policy inside fills the other places with those who are owed a whole turn, as far as there
    are any, so that debts are paid together; all other places are its own choice among everyone. A cohort that floats
    is what it chooses, and the urgent.

    `urgency`: smaller keeps debts smaller, larger leaves the policy inside more rounds to itself. In the paper's world,
    500 rounds of `fastest` with a guarantee of 0.15 take 11.6, 10.1, 9.7 and 8.7 s each for an urgency of 1, 2, 10 and
    20; the least share is 0.147, 0.146, 0.130 and 0.110. (3.9 s and no share at all without; RBCS-F with speed_weight
    1: 10.1 s and 0.145, with 5: 8.9 s and 0.128.) The step from 1 to 2 is worth it, later ones put off more than they
    save: in the long run every debt is paid.

    The top of this module tells how small debts stay. The other settings are those of GuaranteedPolicy. With
    accrual="always" debts also grow while a client is away, and only `max_owed` bounds them for sure. With
    paid="contributed" a client that never comes back stays urgent. A rule around this policy that offers it less than
    it tells it of, such as a cool-down, weakens the bound, not the certificate.

    >>> from turnout.policies.baselines.uniform import UniformRandom
    >>> policy = WithGuarantee(UniformRandom(40, cohort_size=8), 0.15, accrual="available")
    >>> round(policy.debt_bound, 3)
    2.881
    """

    name = "with-guarantee"

    def __init__(
        self,
        policy: SelectionPolicy,
        guaranteed_rate: Rate | npt.ArrayLike = DEFAULT_RATE,
        *,
        urgency: float | Fraction = 2.0,
        accrual: Accrual = "always",
        max_owed: float | Fraction | None = None,
        paid: Literal["chosen", "contributed"] = "chosen",
        availability: float | npt.ArrayLike | None = None,
        allow_infeasible: bool = False,
    ) -> None:
        super().__init__(policy)
        self.urgency = float(urgency) if isinstance(urgency, Fraction) else urgency
        as_number("urgency", self.urgency, SettingError, above=0)
        self._urgency = Fraction(urgency).limit_denominator(FINEST)
        self.debts = MostOwed(
            self.clients,
            cohort_size=self.clients if self.cohort_size is None else self.cohort_size,
            guaranteed_rate=guaranteed_rate,
            accrual=accrual,
            max_owed=max_owed,
            paid=paid,
            availability=availability,
            allow_infeasible=allow_infeasible,
        )
        if max_owed is not None and max_owed < self._urgency:
            raise SettingError(
                f"max_owed is {max_owed}, and so no debt reaches urgency {self.urgency:g}: nobody would ever come "
                "first. Raise max_owed, or lower urgency"
            )

    @property
    def queues(self) -> FairnessQueues:
        """Turns owed, exactly."""
        return self.debts.queues

    @property
    def owed(self) -> FloatArray:
        """Turns owed to each client now."""
        return self.debts.owed

    @property
    def debt_bound(self) -> float:
        """What every debt stays below, for sure; infinite where that is not proved."""
        rates = self.queues.guaranteed_rates
        largest, promised = float(rates.max()), int(np.count_nonzero(rates))
        proved = self.queues.accrual == "available" and self.debts.paid == "chosen"
        if not proved or (self.cohort_size is not None and promised * largest > self.cohort_size * (1 + 1e-9)):
            return math.inf
        ahead = 0.0 if self.cohort_size is None else max(promised - 1, 0) / self.cohort_size
        return float(self._urgency) + largest * (1 + ahead)

    def certificate(self) -> Certificate:
        """What every client was promised and what it got."""
        return self.debts.certificate()

    def ask(self, offer: RoundOffer) -> Selection:
        """The urgent first, then the choice of the policy inside."""
        self.check_offer(offer)
        places = self.cohort_size
        most = self.clients if places is None else places
        urgent = ask_for(self.debts, restrict_offer(offer, self._owed_at_least(self._urgency)), most).clients
        parts = [Selection.trusted(offer.round, urgent, {})]
        left = offer.available.copy()
        left[urgent] = False
        if len(urgent) and places is not None:
            due = left & self._owed_at_least(min(self._urgency, Fraction(DUE)))
            parts.append(ask_for_some(self.policy, restrict_offer(offer, due), places - len(urgent)))
            left[parts[-1].clients] = False
            places -= len(urgent) + len(parts[-1].clients)
        parts.append(ask_for_some(self.policy, restrict_offer(offer, left), places))
        choice = merge_selections(parts) if len(urgent) else parts[-1]
        reasons = {
            **choice.reasons,
            "owed": self.queues.owed_exactly().of(choice.clients),
            "urgent": np.isin(choice.clients, urgent).astype(np.float64),
        }
        return Selection.trusted(offer.round, choice.clients, reasons)

    def tell(self, report: RoundReport) -> None:
        """Everyone earns, the chosen are paid, and the policy inside learns."""
        self.check_report(report)
        self.policy.tell(report)
        self.debts.tell(report)

    def check_report(self, report: RoundReport) -> None:
        """Refuse also a report that does not say who was available, where that is how turns are earned."""
        super().check_report(report)
        if report.available is None and self.queues.accrual == "available":
            raise ReportError("accrual='available' needs to know who was available: give the report's available")

    def add(self, count: int) -> None:
        """New clients are owed nothing; their rate is the common one, and where there is none nobody can join."""
        if np.ndim(self.queues.state()["rates"]):
            raise SettingError(f"every client has a guaranteed_rate of its own here: {count} more cannot join without")
        super().add(count)
        self.debts.add(count)

    def state(self) -> dict[str, Any]:
        """Debts and turns, and what the policy inside keeps."""
        return {**prefixed("debts", self.debts.state()), **super().state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        before = self.debts.state()
        self.debts.restore(subset(state, "debts"))
        try:
            super().restore(state)
        except BaseException:
            self.debts.restore(before)
            raise

    def _owed_at_least(self, turns: Fraction) -> BoolArray:
        owed = self.queues.owed_exactly()
        least = math.ceil(turns * self.queues.units_per_turn) - owed.credit
        enough: BoolArray = owed.units >= least
        return enough
