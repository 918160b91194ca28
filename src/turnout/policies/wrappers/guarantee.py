"""A guaranteed share of the rounds for every client, around any policy.

*Bound.* With N clients of one rate, cohorts of k, N · rate ≤ k, accrual="available" and counts="selected", every debt
is at any time below

    urgency + rate · (1 + (N − 1)/k)   <   urgency + 1 + rate,

for any availability and any policy inside: every client has had its rate of the rounds for which it was available,
except for that many turns. With different rates the same holds for the largest one, if N times that rate is at most k.
With any rates whose sum is at most k, debts after t rounds are at most √(2k · (1 + urgency) · t), a vanishing share of
t.

*Proof of the first bound.* Let B(j) = urgency + rate · (1 + (N − j)/k). At any time fewer than j clients are owed B(j)
or more. Suppose that a round ends with a set S of j such clients, and that no earlier round did. Not all of S were
absent or selected, because their debts would not have grown; hence one client of S was available, was not selected and
was owed at least B(j) − rate ≥ urgency. So k clients that were owed no less were selected. If none of them is in S,
j + k clients were owed B(j) − rate = B(j + k). If s > 0 of them are in S, these were owed B(j) + 1 − rate, which is at
least B(s), because j + k − s ≤ N and N · rate ≤ k. Both contradict what held before the round. The bound is B(1).

*Proof of the second bound.* Σ owed² grows by at most 2k · (1 + urgency) per round: the k clients that are owed most
weigh at least as much as any distribution of the places, the guaranteed one included, and a client that is not urgent
weighs less than urgency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt

from turnout.errors import ReportError, SettingError
from turnout.kernel.arrays import FINEST, BoolArray, FloatArray, Rate, as_number
from turnout.kernel.certificate import Certificate, OwedTurns
from turnout.kernel.cohort import SolvedCohort, cohort_of_times
from turnout.kernel.fairness import DEFAULT_RATE, FairnessQueues
from turnout.kernel.guarantee import AccountingSettings, Guarantee, GuaranteeSettings
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.kernel.slots.turns import TurnStart
from turnout.policies.base import SelectionPolicy, prefixed, replaced, subset
from turnout.policies.guaranteed import WeightedPolicy
from turnout.policies.wrappers.base import Wrapper, ask_for_some, merge_selections

#: A client that is owed a whole turn is due: serving it wastes nothing.
DUE = 1


class MostOwed(WeightedPolicy):
    """Selects the clients that are owed most, among equals the lower rows; times do not count."""

    name = "most-owed"
    fills_slots = True

    def __init__(self, clients: int, *, cohort_size: int = 8, **settings: Unpack[GuaranteeSettings]) -> None:
        super().__init__(clients, cohort_size=cohort_size, speed_weight=0.0, **settings)

    @classmethod
    def counting(cls, guarantee: Guarantee, clients: int) -> Self:
        """Builds a policy that only counts what a guarantee owes, for cohorts that another policy selects."""
        return cls(
            clients,
            cohort_size=clients,
            guaranteed_rate=guarantee.rate,
            tolerance=guarantee.tolerance,
            accrual=guarantee.accrual,
            max_owed=guarantee.max_owed,
            counts=guarantee.counts,
            allow_infeasible=True,
        )

    def _cohort(self, offer: RoundOffer, size: int, values: OwedTurns, weight: float) -> SolvedCohort:
        return cohort_of_times(np.zeros(self.clients), values, size, weight, offer.available)


class WithGuarantee(Wrapper):
    """Guarantees every client a share of the rounds, whichever policy is inside.

    A client that is owed `urgency` turns is urgent. Urgent clients are selected first, those that are owed most before
    the others. In a round with urgent clients the policy inside fills the other places with clients that are owed a
    whole turn, as far as there are any, so that debts are paid together. All other places are its own selection among
    all clients. If the policy inside has no fixed cohort size, the cohort is its selection plus the urgent clients.

    In the paper's world, 500 rounds of `fastest` with a guarantee of 0.15 take 11.6, 10.1, 9.7 and 8.7 s each for an
    urgency of 1, 2, 10 and 20; the smallest share is 0.147, 0.146, 0.130 and 0.110. (3.9 s and a share of 0 without
    the guarantee; RBCS-F with speed_weight 1: 10.1 s and 0.145, with 5: 8.9 s and 0.128.) The step from 1 to 2 is
    worth it; later ones postpone more than they save, because in the long run every debt is paid.

    The module docstring states how small debts stay. With accrual="always" debts also grow while a client is
    unavailable, and only `max_owed` bounds them. With counts="completed" a client that never returns stays urgent. A
    wrapper around this policy that offers it fewer clients than the reports call available, such as a cool-down,
    weakens the bound, but not the certificate.

    Args:
        policy: The policy inside.
        guaranteed_rate: The guaranteed rate, in turns per round: one value or one per client.
        urgency: The debt from which a client is urgent, in turns. A smaller value keeps debts smaller, a larger one
            leaves the policy inside more rounds.
        settings: The other settings of the guarantee; `Guarantee` documents them.

    >>> from turnout.policies import UniformRandom
    >>> policy = WithGuarantee(UniformRandom(40, cohort_size=8), 0.15, accrual="available")
    >>> round(policy.debt_bound, 3)
    2.881
    """

    name = "with-guarantee"
    guarantee: Guarantee
    debts: FairnessQueues

    def __init__(
        self,
        policy: SelectionPolicy,
        guaranteed_rate: Rate | npt.ArrayLike = DEFAULT_RATE,
        *,
        urgency: float | Fraction = 2.0,
        **settings: Unpack[AccountingSettings],
    ) -> None:
        super().__init__(policy)
        self.urgency = float(urgency) if isinstance(urgency, Fraction) else urgency
        as_number("urgency", self.urgency, SettingError, above=0)
        self._urgency = Fraction(urgency).limit_denominator(FINEST)
        size = self.clients if self.cohort_size is None else self.cohort_size
        self._most_owed = MostOwed(self.clients, cohort_size=size, guaranteed_rate=guaranteed_rate, **settings)
        self._remember_part("debts", self._most_owed, None)
        self.guarantee, self.debts = self._most_owed.guarantee, self._most_owed.debts
        self.selects_by_queue = True
        if self.guarantee.max_owed is not None and self.guarantee.max_owed < self._urgency:
            raise SettingError(
                f"max_owed is {self.guarantee.max_owed}, so no debt reaches urgency {self.urgency:g} and no client "
                "would ever be urgent: raise max_owed, or lower urgency"
            )

    @property
    def owed(self) -> FloatArray:
        """The turns owed to each client now."""
        return self.debts.owed

    @property
    def debt_bound(self) -> float:
        """The proved upper bound on every debt; infinite if there is none for these settings."""
        rates = self.debts.guaranteed_rates
        largest, promised = float(rates.max()), int(np.count_nonzero(rates))
        proved = self.guarantee.accrual == "available" and self.guarantee.counts == "selected"
        if not proved or (self.cohort_size is not None and promised * largest > self.cohort_size * (1 + 1e-9)):
            return math.inf
        ahead = 0.0 if self.cohort_size is None else max(promised - 1, 0) / self.cohort_size
        return float(self._urgency) + largest * (1 + ahead)

    def certificate(self) -> Certificate:
        """Returns what every client was promised and got."""
        return self._most_owed.certificate()

    def ask(self, offer: RoundOffer) -> Selection:
        """Selects urgent clients first, then lets the policy inside select."""
        self.check_offer(offer)
        places = self._requested(offer)
        urgent = self._urgent(offer).clients
        parts = [Selection.trusted(offer.round, urgent, {})]
        left = offer.available.copy()
        left[urgent] = False
        if len(urgent) and places is not None:
            due = left & self._owed_at_least(min(self._urgency, Fraction(DUE)))
            parts.append(ask_for_some(self.policy, offer.restricted(due, places - len(urgent))))
            left[parts[-1].clients] = False
            places -= len(urgent) + len(parts[-1].clients)
        parts.append(ask_for_some(self.policy, offer.restricted(left, places)))
        selection = merge_selections(parts) if len(urgent) else parts[-1]
        reasons = {
            **selection.reasons,
            "owed": self.debts.owed_exactly().of(selection.clients),
            "urgent": np.isin(selection.clients, urgent).astype(np.float64),
        }
        return Selection.trusted(offer.round, selection.clients, reasons)

    def selects_inside(self, offer: RoundOffer) -> bool:
        """Returns whether there are no urgent clients in this round."""
        return not len(self._urgent(offer).clients)

    def tell(self, report: RoundReport) -> None:
        """Updates the debts, and passes the report on."""
        self.check_report(report)
        self.policy.tell(report)
        self._most_owed.tell(report)

    def tell_started(self, turn: TurnStart) -> None:
        """Updates the debts, and passes the decision on."""
        super().tell_started(turn)
        self._most_owed.tell_started(turn)

    def tell_finished(self, report: RoundReport) -> None:
        """Updates the debts if a turn counts only when the client comes back, and passes the result on."""
        super().check_report(report)
        self.policy.tell_finished(report)
        self._most_owed.tell_finished(report)

    def check_report(self, report: RoundReport) -> None:
        """Also raises ReportError for a report without `available` if accrual depends on it."""
        super().check_report(report)
        if report.available is None and self.guarantee.accrual == "available":
            raise ReportError("accrual='available' depends on availability: pass the report's available")

    def add(self, count: int) -> None:
        """Appends clients that are owed nothing, with the common rate; refused if every client has its own rate."""
        if np.ndim(self.debts.state()["rates"]):
            raise SettingError(f"every client has its own guaranteed_rate, so {count} more cannot join without one")
        super().add(count)

    def settle(self) -> None:
        """Records what clients have forfeited so far, and lets the policy inside settle."""
        self._most_owed.settle()
        super().settle()

    def amended_state(self, state: Mapping[str, Any], *, keep_times: bool) -> dict[str, Any]:
        """Converts the debts, and lets the policy inside convert its state."""
        debts = self._most_owed.amended_state(subset(state, "debts"), keep_times=keep_times)
        return replaced(super().amended_state(state, keep_times=keep_times), prefixed("debts", debts), "debts")

    def _urgent(self, offer: RoundOffer) -> Selection:
        places = self.clients if self.cohort_size is None else self.places(offer)
        return self._most_owed.ask(offer.restricted(self._owed_at_least(self._urgency), places))

    def _owed_at_least(self, turns: Fraction) -> BoolArray:
        owed = self.debts.owed_exactly()
        least = math.ceil(turns * self.debts.units_per_turn) - owed.credit
        enough: BoolArray = owed.units >= least
        return enough
