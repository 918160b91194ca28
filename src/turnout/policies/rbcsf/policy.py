"""RBCS-F: Huang et al., "An Efficiency-boosting Client Selection Scheme for Federated Learning with Fairness
Guarantee", IEEE TPDS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from turnout.errors import OfferError, ReportError, SettingError
from turnout.kernel.arrays import FloatArray, load_array
from turnout.kernel.cohort import Cohort, as_exact, cohort_of_contexts
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.exploration import exploration_from
from turnout.kernel.fairness import DEFAULT_RATE, Accrual, Certificate, OwedTurns, Rate
from turnout.kernel.rounds import ContextRange, RoundOffer, RoundReport
from turnout.policies.base import prefixed, subset
from turnout.policies.guaranteed import GuaranteedPolicy
from turnout.policies.rbcsf.change import ChangeDetector
from turnout.policies.rbcsf.groups import GroupQueues
from turnout.policies.rbcsf.horizon import Horizon


class RBCSF(GuaranteedPolicy):
    """Short rounds, and a guaranteed share of them for every client.

    It learns how long each client takes, keeps what each is owed, and chooses the cohort that minimises
    speed_weight · (slowest optimistic time) − (turns owed to the cohort), exactly.

    `speed_weight` (V): how many owed turns one second of round time is worth. `exploration` (alpha): a number, or
    "theory" with `theory={"R": …, "S": …, "L": …, "delta": …}`. `forgetting` below 1 lets old times fade.
    `context_range`: the credible (lowest, highest) of each feature; contexts outside are refused.
    The other settings are those of GuaranteedPolicy and FairnessQueues.

    Beyond the paper: `prior="fleet"` takes a client of which little is known for what the whole fleet has taught,
    instead of for one that takes no time (ExchangeTimeModel). `horizon`: the promise is kept by this round (Horizon).
    `groups`, `group_rates`: turns a round promised to sites or owners (GroupQueues); `group_certificate()` tells how
    they stand. `change_threshold`, say 8: a client whose times have changed is learned anew (ChangeDetector).

    >>> import numpy as np
    >>> policy = RBCSF(4, cohort_size=2, guaranteed_rate=0.25)
    >>> offer = RoundOffer(1, available=[True, True, True, False], contexts=np.ones((4, 3)))
    >>> chosen = policy.ask(offer).clients
    >>> chosen
    array([0, 1])
    >>> policy.tell(RoundReport(1, chosen, offer.contexts[chosen], exchange_times=[2.0, 9.0]))
    >>> policy.owed
    array([0.  , 0.  , 0.25, 0.25])
    """

    name = "rbcsf"

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        guaranteed_rate: Rate | npt.ArrayLike = DEFAULT_RATE,
        speed_weight: float = 20.0,
        exploration: float | str = 0.1,
        ridge: float = 1.0,
        accrual: Accrual = "always",
        max_owed: float | Fraction | None = None,
        forgetting: float = 1.0,
        prior: Literal["zero", "fleet"] = "zero",
        horizon: int | None = None,
        groups: Sequence[Any] | None = None,
        group_rates: Mapping[str, Any] | None = None,
        change_threshold: float | None = None,
        features: int = 3,
        theory: Mapping[str, float] | None = None,
        context_range: Sequence[tuple[float, float]] | None = None,
        paid: Literal["chosen", "contributed"] = "chosen",
        availability: float | npt.ArrayLike | None = None,
        allow_infeasible: bool = False,
    ) -> None:
        super().__init__(
            clients,
            cohort_size=cohort_size,
            guaranteed_rate=guaranteed_rate,
            speed_weight=speed_weight,
            accrual=accrual,
            max_owed=max_owed,
            paid=paid,
            availability=availability,
            allow_infeasible=allow_infeasible,
        )
        self.model = ExchangeTimeModel(clients, features=features, ridge=ridge, forgetting=forgetting, prior=prior)
        self.features = self.model.features
        self.exploration = exploration_from(exploration, theory, ridge=ridge, features=features)
        self.context_range: ContextRange | None = None
        if context_range is not None:
            if len(context_range) != features or any(len(pair) != 2 for pair in context_range):
                raise SettingError(f"context_range must be {features} pairs (lowest, highest), not {context_range!r}")
            lowest, highest = zip(*context_range, strict=True)
            self.context_range = ContextRange(np.array(lowest), np.array(highest))
        self.horizon = None if horizon is None else Horizon(clients, horizon, self.speed_weight)
        self.groups = self._groups_of(groups, group_rates, allow_infeasible)
        self.changes = None if change_threshold is None else ChangeDetector(clients, change_threshold)

    def group_certificate(self) -> Certificate:
        """What every group was promised and what it got, in the order of `groups.names`."""
        if self.groups is None:
            raise SettingError("no groups were promised anything: give groups and group_rates")
        return self.groups.certificate()

    def check_offer(self, offer: RoundOffer) -> None:
        """Refuse also incredible contexts."""
        super().check_offer(offer)
        if self.context_range is not None:
            self.context_range.check(offer.contexts, OfferError, available=offer.available)

    def check_report(self, report: RoundReport) -> None:
        """Refuse also incredible contexts."""
        super().check_report(report)
        if self.context_range is not None:
            self.context_range.check(report.contexts, ReportError, report.clients)

    def tell(self, report: RoundReport) -> None:
        """Everyone earns, the chosen are paid, and their times are learned."""
        before = self.turns.copy() if self.horizon is not None or self.groups is not None else self.turns
        super().tell(report)
        paid = np.flatnonzero(self.turns - before)
        if self.horizon is not None:
            self.horizon.advance(report.round, paid, self._earned(report), report.duration)
        if self.groups is not None:
            self.groups.advance(paid)
        if self.changes is not None:
            self._notice_changes(report, self.changes)
        self.model.learn_from(report)

    def add(self, count: int) -> None:
        """Of new clients nothing is known."""
        if self.groups is not None:
            raise SettingError("groups were given one a client: begin anew to let others join")
        super().add(count)
        self.model.add(count)
        if self.horizon is not None:
            self.horizon.add(count)
        if self.changes is not None:
            self.changes.add(count)

    def state(self) -> dict[str, Any]:
        """Debts, turns and what was learned."""
        state = {**super().state(), **prefixed("model", self.model.state())}
        for name, part in (("horizon", self.horizon), ("groups", self.groups), ("changes", self.changes)):
            if part is not None:
                state |= prefixed(name, part.state())
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        # All is checked before anything is changed.
        model = {name: load_array(state, f"model.{name}", kept) for name, kept in self.model.state().items()}
        backlog = None if self.horizon is None else self.horizon.checked(subset(state, "horizon"))
        groups = None if self.groups is None else self.groups.checked(subset(state, "groups"))
        changes = None if self.changes is None else self.changes.checked(subset(state, "changes"))
        super().restore(state)
        self.model.restore(model)
        if self.horizon is not None and backlog is not None:
            self.horizon.restore(backlog)
        if self.groups is not None and groups is not None:
            self.groups.restore(groups)
        if self.changes is not None and changes is not None:
            self.changes.restore(changes)

    def objective_terms(self, owed: OwedTurns, round: int, size: int) -> tuple[OwedTurns, float]:
        """As owed, or as a horizon and groups make of it."""
        if self.horizon is None and self.groups is None:
            return owed, self.speed_weight
        debts, weight = (owed.units + owed.credit) / owed.units_per_turn, self.speed_weight
        if self.horizon is not None:
            certificate = self.certificate()
            behind = certificate.promised - certificate.turns + self.queues.guaranteed_rates
            debts, weight = self.horizon.debts(round, behind), self.horizon.weight(round)
        if self.groups is not None:
            debts = debts + self.groups.of_clients()
        return as_exact("debts", debts, size), weight

    def _cohort(self, offer: RoundOffer, debts: OwedTurns, weight: float) -> Cohort:
        return cohort_of_contexts(
            self.model,
            offer.contexts,
            self.exploration(offer.round),
            debts,
            self.cohort_size,
            weight,
            offer.available,
        )

    def _earned(self, report: RoundReport) -> FloatArray:
        """Turns that each client has earned in this round."""
        rates = self.queues.guaranteed_rates
        if self.queues.accrual == "always" or report.available is None:
            return rates
        return rates * report.available

    def _notice_changes(self, report: RoundReport, changes: ChangeDetector) -> None:
        """Forget what was learned of clients that are not what they were."""
        teaches = report.with_outcome("arrived")
        rows, contexts = report.clients[teaches], report.contexts[teaches]
        expected = self.model.predict(contexts, rows)
        changed = changes.changed(rows, expected, report.exchange_times[teaches])
        if changed.any():
            self.model.forget(rows[changed])

    def _groups_of(
        self, groups: Sequence[Any] | None, rates: Mapping[str, Any] | None, allow_infeasible: bool
    ) -> GroupQueues | None:
        if groups is None and rates is None:
            return None
        if groups is None or rates is None or isinstance(groups, str) or len(groups) != self.clients:
            raise SettingError(
                f"groups must name the group of each of the {self.clients} clients, and group_rates the turns a round "
                "that each group is promised: give both"
            )
        queues = GroupQueues(groups, rates)
        if not allow_infeasible:
            queues.require_feasible(np.array(self.queues.guaranteed_rates), self.cohort_size)
        return queues
