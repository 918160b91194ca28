"""What a policy guarantees to its clients, as one value."""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, Rate, as_number, exact_rates, require_length
from turnout.kernel.certificate import DEFAULT_TOLERANCE, MAX_TURNS, Accrual, Tolerance, as_tolerance
from turnout.kernel.fairness import DEFAULT_RATE, FairnessQueues
from turnout.kernel.feasibility import as_probabilities, require_feasible

if TYPE_CHECKING:
    from turnout.kernel.pace.bounds import Bound, Circumstances

TurnCounting: TypeAlias = Literal["selected", "completed"]


class AccountingSettings(TypedDict, total=False):
    """The keyword settings of a guarantee except its rate; `Guarantee` documents each of them."""

    tolerance: Tolerance
    accrual: Accrual
    max_owed: float | Fraction | None
    counts: TurnCounting
    availability: float | npt.ArrayLike | None
    allow_infeasible: bool


class GuaranteeSettings(AccountingSettings, total=False):
    """The keyword settings that every policy with a guarantee accepts."""

    guaranteed_rate: Rate | npt.ArrayLike


@dataclass(frozen=True, slots=True, eq=False)
class Guarantee:
    """A guaranteed share of the rounds for every client, and how it is accounted for; validated on construction.

    Attributes:
        rate: The guaranteed rate, in turns per round: one value for all clients, or one for each.
        tolerance: The number of turns that a client may be behind: beyond it the promise is broken. Policies that do
            not use it to select are only judged by it.
        accrual: "available": a client earns its rate in the rounds for which it is available. "always": in every
            round.
        counts: "completed": a turn counts when the client's update arrived in time. "selected": when it was selected.
        max_owed: The largest debt, in turns; what a client would earn beyond it is forfeited. None means no limit.
        availability: How often clients are available, as a probability: one value or one for each client. The
            feasibility check uses it; None means that all clients are always available.
        allow_infeasible: Whether rates are accepted that no policy could keep.

    >>> Guarantee("1/4", accrual="always").queues(3).guaranteed_rates
    array([0.25, 0.25, 0.25])
    >>> Guarantee(0.15, max_owed=20)
    Guarantee(0.15, max_owed=20)
    """

    rate: Rate | npt.ArrayLike
    tolerance: Tolerance = DEFAULT_TOLERANCE
    accrual: Accrual = "available"
    counts: TurnCounting = "completed"
    max_owed: float | Fraction | None = None
    availability: float | npt.ArrayLike | None = None
    allow_infeasible: bool = False

    def __post_init__(self) -> None:
        as_tolerance(self.tolerance)
        if self.accrual not in ("always", "available"):
            raise SettingError(f"accrual must be 'always' or 'available', got {self.accrual!r}")
        if self.counts not in ("selected", "completed"):
            raise SettingError(f"counts must be 'selected' or 'completed', got {self.counts!r}")
        if not isinstance(self.allow_infeasible, bool):
            raise SettingError(f"allow_infeasible must be True or False, got {self.allow_infeasible!r}")
        if self.max_owed is not None:
            limit = float(self.max_owed) if isinstance(self.max_owed, Fraction) else self.max_owed
            as_number("max_owed", limit, SettingError, least=0, most=MAX_TURNS)
        if self.availability is not None:
            as_probabilities(np.atleast_1d(self.availability))
        exact_rates(self.rate, None)  # raises SettingError if one of them is not a rate

    def __repr__(self) -> str:
        """Shows the rate and what differs from the defaults; arrays by their length."""
        parts = [_short(self.rate)]
        for attribute in fields(self)[1:]:
            value = getattr(self, attribute.name)
            if np.ndim(value) or value != attribute.default:
                parts.append(f"{attribute.name}={_short(value)}")
        return f"Guarantee({', '.join(parts)})"

    @classmethod
    def from_settings(cls, settings: GuaranteeSettings) -> Guarantee:
        """Builds the guarantee of a policy from its keyword settings.

        Settings that are missing have the paper's values: a rate of 0.15, every client earns in every round, and a turn
        counts when the client is selected.

        Raises:
            TypeError: If a setting is unknown, as for any unknown keyword argument.
        """
        own: dict[str, Any] = {"guaranteed_rate": DEFAULT_RATE, "accrual": "always", "counts": "selected", **settings}
        return cls(own.pop("guaranteed_rate"), **own)

    def queues(self, clients: int) -> FairnessQueues:
        """Returns new queues that count the turns owed to this number of clients."""
        return FairnessQueues(clients, self.rate, accrual=self.accrual, max_owed=self.max_owed)

    def proved_bound(self, clients: int, places: int, known: Circumstances | None = None) -> Bound:
        """Returns how far FairPace is proved to keep every client from this promise, or why nothing is proved.

        Args:
            clients: The largest number of clients at a time.
            places: The number of clients that are selected in a round at least; 1 without rounds.
            known: What is known about failed turns, missing places and turns without rounds.
        """
        from turnout.kernel.pace.bounds import Circumstances, proved_bound  # which a scheduler does not need

        return proved_bound(
            self.rate,
            clients,
            places,
            tolerance=self.tolerance,
            accrual=self.accrual,
            counts=self.counts,
            known=known or Circumstances(),
        )

    def require_feasible(self, queues: FairnessQueues, cohort_size: int) -> None:
        """Raises InfeasiblePromise if no policy could keep these rates, unless `allow_infeasible` is set."""
        if self.allow_infeasible:
            return
        availability = self._availability(queues.clients)
        rates = np.array(queues.guaranteed_rates)
        require_feasible(rates, availability, cohort_size, accrual=self.accrual, tolerance=self.tolerance)

    def _availability(self, clients: int) -> FloatArray:
        """Returns the probability that each client is available."""
        given = np.asarray(1.0 if self.availability is None else self.availability, dtype=np.float64)
        if given.ndim:
            require_length("availability", given, clients, "clients", SettingError)
        return np.array(np.broadcast_to(given, clients))


def _short(value: Any) -> str:
    """Returns a value for a repr: arrays of more than one value by their length."""
    return f"<{np.size(value)} values>" if np.ndim(value) and np.size(value) > 1 else repr(value)
