"""RBCS-F: Huang et al., "An Efficiency-boosting Client Selection Scheme for Federated Learning with Fairness
Guarantee", IEEE TPDS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Unpack

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.kernel.certificate import OwedTurns
from turnout.kernel.cohort import SolvedCohort, as_exact, cohort_of_contexts
from turnout.kernel.cohort_problem import CohortProblem
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.guarantee import GuaranteeSettings
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.policies.base import prefixed, replaced
from turnout.policies.guaranteed import WeightedPolicy
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
        exploration: The width of the confidence bound (alpha): a number, or "theory" for the schedule of the paper's
            lemma, with `theory={"R": …, "S": …, "L": …, "delta": …}`.
        ridge: The ridge parameter of the regressions.
        forgetting: A discount below 1 reduces the influence of old times.
        prior: "fleet" shrinks the estimate of a new client towards the fleet-wide regression; "zero" is the paper's.
        horizon: The round by which the guarantee is to be met; see `Horizon`. None is the paper's rule.
        features: The number of features of a context.
        theory: The constants of the theoretical exploration schedule.
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
        exploration: float | str = 0.1,
        ridge: float = 1.0,
        forgetting: float = 1.0,
        prior: Literal["zero", "fleet"] = "zero",
        horizon: int | None = None,
        features: int = 3,
        theory: Mapping[str, float] | None = None,
        **settings: Unpack[GuaranteeSettings],
    ) -> None:
        super().__init__(clients, cohort_size=cohort_size, speed_weight=speed_weight, **settings)
        self.time_model = ExchangeTimeModel(clients, features=features, ridge=ridge, forgetting=forgetting, prior=prior)
        self.features = self.time_model.features
        self.exploration = exploration_from(exploration, theory, ridge=ridge, features=features)
        self.horizon = None if horizon is None else Horizon(clients, horizon, self.speed_weight)
        self.fills_slots = self.horizon is None  # the plan of a horizon counts rounds
        self._remember_part("model", self.time_model, self.time_model.forget)
        if self.horizon is not None:
            self._remember_part("horizon", self.horizon, None)

    def tell(self, report: RoundReport) -> None:
        """Updates the debts and learns the exchange times."""
        before = self.turns if self.horizon is None else self.turns.copy()
        super().tell(report)
        if self.horizon is not None:
            paid = np.flatnonzero(self.turns - before)
            self.horizon.advance(report.round, paid, self._earned(report), report.duration)
        self.time_model.learn_from(report)

    def tell_finished(self, report: RoundReport) -> None:
        """Learns the exchange time."""
        super().tell_finished(report)
        self.time_model.learn_from(report)

    def amended_state(self, state: Mapping[str, Any], *, keep_times: bool) -> dict[str, Any]:
        """Converts the debts; with other features, the model is that of a new policy."""
        amended = super().amended_state(state, keep_times=keep_times)
        return amended if keep_times else replaced(amended, prefixed("model", self.time_model.state()), "model")

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

    def _cohort(self, offer: RoundOffer, size: int, values: OwedTurns, weight: float) -> SolvedCohort:
        exploration = self.exploration(offer.round)
        return cohort_of_contexts(self.time_model, offer.contexts, exploration, values, size, weight, offer.available)

    def _earned(self, report: RoundReport) -> FloatArray:
        """Returns the turns that each client earned in this round."""
        rates = self.debts.guaranteed_rates
        if self.debts.accrual == "always" or report.available is None:
            return rates
        return rates * report.available
