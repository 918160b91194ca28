"""RBCS-F, the policy of the paper, with the schedule of its lemma and a guarantee that is met by a given round.

Huang et al., "An Efficiency-boosting Client Selection Scheme for Federated Learning with Fairness Guarantee", IEEE TPDS
2020.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Unpack

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray, as_count, as_number
from turnout.kernel.certificate import OwedTurns
from turnout.kernel.cohort import SolvedCohort, as_exact, cohort_of_contexts
from turnout.kernel.cohort_problem import CohortProblem
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.guarantee import GuaranteeSettings
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.policies.base import Memory, prefixed, replaced
from turnout.policies.guaranteed import WeightedPolicy


@dataclass(frozen=True, slots=True)
class ConstantExploration:
    """Uses the same width in every round, as the paper's experiments do."""

    width: float

    def __post_init__(self) -> None:
        as_number("exploration", self.width, SettingError, least=0)

    def __call__(self, round: int) -> float:  # noqa: ARG002
        """Returns alpha of the paper."""
        return self.width


@dataclass(frozen=True, slots=True)
class TheoreticalExploration:
    """Computes the schedule of the paper's lemma: the band covers the mean with probability 1 − delta.

    alpha_t = R·sqrt(d·log((1 + t·L²/ridge)/delta)) + sqrt(ridge)·S for d features, where the noise is
    R-sub-Gaussian, ‖theta‖ ≤ S and ‖c‖ ≤ L.
    """

    R: float
    S: float
    L: float
    delta: float
    ridge: float = 1.0
    features: int = 3

    def __post_init__(self) -> None:
        for name in ("R", "S", "L"):
            as_number(name, getattr(self, name), SettingError, least=0)
        as_number("delta", self.delta, SettingError, above=0, most=1)

    def __call__(self, round: int) -> float:
        """Returns alpha_t of the paper for this round."""
        spread = math.log((1 + round * self.L**2 / self.ridge) / self.delta)
        return self.R * math.sqrt(self.features * spread) + math.sqrt(self.ridge) * self.S


def exploration_from(
    exploration: float | str, theory: Mapping[str, float] | None, *, ridge: float, features: int
) -> ConstantExploration | TheoreticalExploration:
    """Builds the exploration from a number, or from "theory" with R, S, L and delta in `theory`."""
    if exploration != "theory":
        if theory is not None:
            raise SettingError(
                f"theory is used only with exploration='theory', but exploration is {exploration!r}: leave theory out, "
                "or set exploration='theory'"
            )
        if isinstance(exploration, str):
            raise SettingError(f"exploration must be a number or 'theory', got {exploration!r}")
        return ConstantExploration(exploration)
    if theory is not None and not isinstance(theory, Mapping):
        raise SettingError(f"theory must be a mapping with the keys R, S, L and delta, got {theory!r}")
    if theory is None or set(theory) != {"R", "S", "L", "delta"}:
        keys = "nothing" if theory is None else ", ".join(sorted(theory)) or "an empty mapping"
        raise SettingError(f"exploration='theory' needs theory with the keys R, S, L and delta, got {keys}")
    return TheoreticalExploration(**theory, ridge=ridge, features=features)


STEADY = 0.3  # share of the horizon after which the weight is the one that was set
LIGHTEST = 0.1  # weight in the first round, as a share of the one that was set
SLACK, SLACK_PER_ROUND = 0.5, 0.02  # turns behind that are tolerated at the end, and more for each round left
URGENCY = 1.0  # mean rounds that each turn beyond the slack is worth


class Horizon(Memory):
    """What a turn of each client is worth if the guarantee must be met by round `horizon`.

    Under the paper's rule a slow client waits until its debt divided by the speed weight V exceeds the seconds that it
    costs; with a large V this takes longer than the whole run. The price of a client in seconds, debt / V, is found
    quickly with a *small* V, under which debts stay small. V therefore starts at a tenth of speed_weight and grows to
    it, and each client's `backlog`, the debt with which it is weighed, grows by the same factor, so that its price
    backlog / V does not change. The backlog equals the debt that the paper's rule would have built up without the
    client having waited for it.

    A client that is behind by more than half a turn plus a fiftieth of the rounds left, net of its surplus, is worth
    one mean round more for each turn beyond that, so that no client is behind at the end.
    """

    backlog: FloatArray
    lasted: FloatArray  # total seconds, number of rounds

    def __init__(self, clients: int, rounds: int, speed_weight: float) -> None:
        super().__init__(clients)
        self.rounds = as_count("horizon", rounds, SettingError)
        self.speed_weight = speed_weight
        self._remember(backlog=0.0, lasting=True)
        self._remember_shared(lasted=np.zeros(2))

    @property
    def mean_round(self) -> float:
        """The mean duration of a round so far, in seconds."""
        return float(self.lasted[0] / max(self.lasted[1], 1))

    def weight(self, round: int) -> float:
        """Returns V in this round."""
        missing = max(0.0, 1 - (round - 1) / (STEADY * self.rounds))
        return float(self.speed_weight * LIGHTEST**missing)

    def debts(self, round: int, behind: FloatArray) -> FloatArray:
        """Returns what a turn of each client is worth in this round.

        Args:
            round: The number of the round.
            behind: The turns promised up to this round, minus the turns taken.
        """
        slack = SLACK + SLACK_PER_ROUND * max(self.rounds - round, 0)
        pressing: FloatArray = np.maximum(behind - slack, 0.0)
        return self.backlog + URGENCY * self.mean_round * self.weight(round) * pressing

    def advance(self, round: int, paid: IntArray, earned: FloatArray, duration: float) -> None:
        """Adds this round's accrual, subtracts one turn per paid client, and rescales to the next round's weight.

        Args:
            round: The number of the round.
            paid: The rows of the clients whose turn counts.
            earned: The turns that each client earned in this round.
            duration: The duration of the round, in seconds.
        """
        self.lasted = self.lasted + np.array([duration, 1.0])
        self.backlog = self.backlog + earned
        self.backlog[paid] -= 1
        growth = self.weight(round + 1) / self.weight(round) if self.speed_weight else 1.0
        self.backlog = np.maximum(self.backlog, 0.0) * growth


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
        times = np.ascontiguousarray(self.time_model.optimistic(offer.contexts, self.exploration(offer.round)))
        problem = CohortProblem(times, values, size, float(weight), offer.available, self.debts)
        if self.horizon is None:
            return problem
        why = "with a horizon, the value of a client's turn does not grow by a fixed amount per round"
        return replace(problem, values_are_debts=False, irregular_growth=why)

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
