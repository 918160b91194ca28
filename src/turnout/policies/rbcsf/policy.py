"""RBCS-F: Huang et al., "An Efficiency-boosting Client Selection Scheme for Federated Learning with Fairness
Guarantee", IEEE TPDS 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Unpack

import numpy as np

from turnout.errors import OfferError, ReportError, SettingError
from turnout.kernel.arrays import FloatArray
from turnout.kernel.certificate import OwedTurns
from turnout.kernel.cohort import Cohort, as_exact, cohort_of_contexts
from turnout.kernel.cohort_problem import CohortProblem
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.guarantee import GuaranteeSettings
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.policies.base import prefixed, replaced
from turnout.policies.guaranteed import WeightedPolicy
from turnout.policies.rbcsf.change import ChangeDetector
from turnout.policies.rbcsf.context_range import ContextRange
from turnout.policies.rbcsf.exploration import exploration_from
from turnout.policies.rbcsf.horizon import Horizon


class RBCSF(WeightedPolicy):
    """Selects short rounds and guarantees every client a share of them.

    The policy learns how long each client takes, counts the turns owed to each, and selects the cohort that minimises
    speed_weight · (slowest optimistic time) − (turns owed to the cohort). The solver is exact.

    Args:
        clients: The number of clients.
        cohort_size: The number of clients to select in a round.
        speed_weight: How many owed turns one second of round time is worth (V in the paper).
        exploration: The width of the confidence bound (alpha): a number, a function from the round to a number, or the
            name of a schedule: "theory" with `theory={"R": …, "S": …, "L": …, "delta": …}`, "sqrt-log:A" for
            A·sqrt(log(1 + round)), or "decay:A" for A/sqrt(round). A function cannot be stored in the settings of a
            fleet or of a run plan.
        ridge: The ridge parameter of the regressions.
        forgetting: A discount below 1 reduces the influence of old times.
        prior: "fleet" shrinks the estimate of a new client towards the fleet-wide regression; "zero" is the paper's.
        horizon: The round by which the guarantee is to be met; see `Horizon`. None is the paper's rule.
        change_threshold: A client whose times change by more than this many typical errors is learned from scratch;
            8 is a good value. See `ChangeDetector`. None never does this.
        features: The number of features of a context.
        theory: The constants of the theoretical exploration schedule.
        context_range: The plausible (lowest, highest) value of each feature; other contexts are refused.
        settings: The settings of the guarantee; `Guarantee` documents them. `guaranteed_rate` is 0.15 by default.

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
    time_model: ExchangeTimeModel

    def __init__(
        self,
        clients: int,
        *,
        cohort_size: int = 8,
        speed_weight: float = 20.0,
        exploration: float | str | Callable[[int], float] = 0.1,
        ridge: float = 1.0,
        forgetting: float = 1.0,
        prior: Literal["zero", "fleet"] = "zero",
        horizon: int | None = None,
        change_threshold: float | None = None,
        features: int = 3,
        theory: Mapping[str, float] | None = None,
        context_range: Sequence[tuple[float, float]] | None = None,
        **settings: Unpack[GuaranteeSettings],
    ) -> None:
        super().__init__(clients, cohort_size=cohort_size, speed_weight=speed_weight, **settings)
        self.time_model = ExchangeTimeModel(clients, features=features, ridge=ridge, forgetting=forgetting, prior=prior)
        self.features = self.time_model.features
        self.exploration = exploration_from(exploration, theory, ridge=ridge, features=features)
        self.context_range: ContextRange | None = None
        if context_range is not None:
            if len(context_range) != features or any(len(pair) != 2 for pair in context_range):
                raise SettingError(f"context_range must be {features} pairs (lowest, highest), got {context_range!r}")
            lowest, highest = zip(*context_range, strict=True)
            self.context_range = ContextRange(np.array(lowest), np.array(highest))
        self.horizon = None if horizon is None else Horizon(clients, horizon, self.speed_weight)
        self.fills_slots = self.horizon is None  # the plan of a horizon counts rounds
        self.changes = None if change_threshold is None else ChangeDetector(clients, change_threshold)
        self._remember_part("model", self.time_model, self.time_model.forget)
        if self.horizon is not None:
            self._remember_part("horizon", self.horizon, None)
        if self.changes is not None:
            self._remember_part("changes", self.changes, self.changes.forget)

    def check_offer(self, offer: RoundOffer) -> None:
        """Also raises OfferError for contexts outside `context_range`."""
        super().check_offer(offer)
        if self.context_range is not None:
            self.context_range.check(offer.contexts, OfferError, available=offer.available)

    def check_report(self, report: RoundReport) -> None:
        """Also raises ReportError for contexts outside `context_range`."""
        super().check_report(report)
        if self.context_range is not None:
            self.context_range.check(report.contexts, ReportError, report.clients)

    def tell(self, report: RoundReport) -> None:
        """Updates the debts and learns the exchange times."""
        before = self.turns if self.horizon is None else self.turns.copy()
        super().tell(report)
        if self.horizon is not None:
            paid = np.flatnonzero(self.turns - before)
            self.horizon.advance(report.round, paid, self._earned(report), report.duration)
        if self.changes is not None:
            self._reset_changed(report, self.changes)
        self.time_model.learn_from(report)

    def tell_finished(self, report: RoundReport) -> None:
        """Learns the exchange time."""
        super().tell_finished(report)
        if self.changes is not None:
            self._reset_changed(report, self.changes)
        self.time_model.learn_from(report)

    def amended_state(self, state: Mapping[str, Any], *, keep_times: bool) -> dict[str, Any]:
        """Converts the debts; with other features, the model and the search for changes are those of a new policy."""
        amended = super().amended_state(state, keep_times=keep_times)
        if keep_times:
            return amended
        changes = {} if self.changes is None else prefixed("changes", self.changes.state())
        return replaced(amended, {**prefixed("model", self.time_model.state()), **changes}, "model", "changes")

    def objective_terms(self, owed: OwedTurns, round: int, size: int) -> tuple[OwedTurns, float]:
        """Returns the turns owed and the speed weight, as changed by a horizon."""
        if self.horizon is None:
            return owed, self.speed_weight
        certificate = self.certificate()
        behind = certificate.promised - certificate.turns + self.debts.guaranteed_rates
        return as_exact("debts", self.horizon.debts(round, behind), size), self.horizon.weight(round)

    def cohort_problem(self, offer: RoundOffer) -> CohortProblem:
        """Returns the problem P4 of the paper for this offer."""
        size = self.places(offer)
        values, weight = self.objective_terms(self.debts.owed_exactly(), offer.round, size)
        return CohortProblem(
            np.ascontiguousarray(self.time_model.optimistic(offer.contexts, self.exploration(offer.round))),
            values,
            size,
            float(weight),
            offer.available,
            self.debts,
            values_are_debts=self.horizon is None,
            irregular_growth=""
            if self.horizon is None
            else "with a horizon, the value of a client's turn does not grow by a fixed amount per round",
        )

    def exploration_at(self, round: int) -> float:
        """Returns alpha in this round."""
        return float(self.exploration(round))

    def _cohort(self, offer: RoundOffer, size: int, values: OwedTurns, weight: float) -> Cohort:
        exploration = self.exploration(offer.round)
        return cohort_of_contexts(self.time_model, offer.contexts, exploration, values, size, weight, offer.available)

    def _earned(self, report: RoundReport) -> FloatArray:
        """Returns the turns that each client earned in this round."""
        rates = self.debts.guaranteed_rates
        if self.debts.accrual == "always" or report.available is None:
            return rates
        return rates * report.available

    def _reset_changed(self, report: RoundReport, changes: ChangeDetector) -> None:
        """Forgets the model of every client whose times have changed."""
        teaches, informative = report.with_outcome("arrived"), report.informative()
        if informative is not None:
            teaches &= informative
        rows, contexts = report.clients[teaches], report.contexts[teaches]
        expected = self.time_model.predict(contexts, rows)
        changed = changes.changed(rows, expected, report.exchange_times[teaches])
        if changed.any():
            self.time_model.forget(rows[changed])
