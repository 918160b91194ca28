"""RBCS-F: Huang et al., "An Efficiency-boosting Client Selection Scheme for Federated Learning with Fairness
Guarantee", IEEE TPDS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from turnout.kernel.arrays import saved_array
from turnout.kernel.cohort import Cohort, cohort_of_contexts
from turnout.kernel.errors import OfferError, ReportError, SettingError
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.exploration import exploration_from
from turnout.kernel.fairness import Accrual, OwedTurns, Rate
from turnout.kernel.rounds import ContextRange, RoundOffer, RoundReport
from turnout.policies.base import prefixed
from turnout.policies.fair import GuaranteedPolicy


class RBCSF(GuaranteedPolicy):
    """Short rounds, and a guaranteed share of them for every client.

    It learns how long each client takes, keeps what each is owed, and chooses the cohort that minimises
    speed_weight · (slowest optimistic time) − (turns owed to the cohort), exactly.

    `speed_weight` (V): how many owed turns one second of round time is worth. `exploration` (alpha): a number, or
    "theory" with `theory={"R": …, "S": …, "L": …, "delta": …}`. `forgetting` below 1 lets old times fade.
    `context_range`: the credible (lowest, highest) of each feature; contexts outside are refused.
    The other settings are those of GuaranteedPolicy and FairnessQueues.

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
        guaranteed_rate: Rate | npt.ArrayLike = 0.15,
        speed_weight: float = 20.0,
        exploration: float | str = 0.1,
        ridge: float = 1.0,
        accrual: Accrual = "always",
        max_owed: float | Fraction | None = None,
        forgetting: float = 1.0,
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
        self.model = ExchangeTimeModel(clients, features=features, ridge=ridge, forgetting=forgetting)
        self.features = self.model.features
        self.exploration = exploration_from(exploration, theory, ridge=ridge, features=features)
        self.context_range: ContextRange | None = None
        if context_range is not None:
            if len(context_range) != features or any(len(pair) != 2 for pair in context_range):
                raise SettingError(f"context_range must be {features} pairs (lowest, highest), not {context_range!r}")
            lowest, highest = zip(*context_range, strict=True)
            self.context_range = ContextRange(np.array(lowest), np.array(highest))

    def check_offer(self, offer: RoundOffer) -> None:
        """Refuse also incredible contexts."""
        super().check_offer(offer)
        if self.context_range is not None:
            self.context_range.check(offer.contexts, OfferError)

    def check_report(self, report: RoundReport) -> None:
        """Refuse also incredible contexts."""
        super().check_report(report)
        if self.context_range is not None:
            self.context_range.check(report.contexts, ReportError, report.clients)

    def tell(self, report: RoundReport) -> None:
        """Everyone earns, the chosen are paid, and their times are learned."""
        super().tell(report)
        self.model.learn_from(report)

    def add(self, count: int) -> None:
        """Of new clients nothing is known."""
        super().add(count)
        self.model.add(count)

    def state(self) -> dict[str, Any]:
        """Debts, turns and what was learned."""
        return {**super().state(), **prefixed("model", self.model.state())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        bank = saved_array(state, "model.bank", self.model.bank)  # refused before anything is changed
        super().restore(state)
        self.model.restore({"bank": bank})

    def _cohort(self, offer: RoundOffer, owed: OwedTurns) -> Cohort:
        return cohort_of_contexts(
            self.model,
            offer.contexts,
            self.exploration(offer.round),
            owed,
            self.cohort_size,
            self.speed_weight,
            offer.available,
        )
