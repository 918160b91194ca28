"""The one abstraction: a policy is asked with an offer and told with a report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from turnout.errors import OfferError, ReportError, SettingError, StateError, TurnoutError
from turnout.kernel.arrays import FloatArray, IntArray, as_count, refuse_where
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection


class SelectionPolicy(ABC):
    """Chooses who trains.

    `ask` changes nothing, `tell` changes everything: asking twice gives the same answer, and the state is
    the fold of the reports that were told. `check_policy` holds a policy to this.
    """

    name: ClassVar[str]
    #: How many clients are wanted in a round; None where the policy lets it float.
    cohort_size: int | None = None
    #: How many features a context must have; None where the policy does not look at contexts.
    features: int | None = None
    #: Does it choose cohort_size clients whenever so many are available, or may its rule leave places empty?
    fills_cohort: bool = True
    #: Must it be told the true expected times? Nobody else is.
    requires_expected_times: bool = False

    def __init__(self, clients: int) -> None:
        self.clients = as_count("clients", clients, SettingError)

    @abstractmethod
    def ask(self, offer: RoundOffer) -> Selection:
        """Who should train in this round?"""

    @abstractmethod
    def tell(self, report: RoundReport) -> None:
        """What became of them."""

    def add(self, count: int) -> None:
        """Append `count` clients that have no history; whoever keeps something of each client overrides this."""
        self.clients += as_count("count", count, SettingError, least=0)

    def state(self) -> dict[str, Any]:
        """All that `tell` has changed, as plain arrays and numbers; nothing by default."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave, in a policy built with the same settings."""
        if state:
            raise StateError(f"{self.name} keeps no state, but is given {', '.join(sorted(state))}")

    def check_offer(self, offer: RoundOffer) -> None:
        """Refuse an offer for another number of clients or features."""
        if offer.clients != self.clients:
            raise OfferError(f"the offer is for {offer.clients} clients, this policy is for {self.clients}")
        self._check_features("contexts", offer.contexts, OfferError)

    def check_report(self, report: RoundReport) -> None:
        """Refuse a report that names unknown clients, or has another number of features."""
        self._check_clients("clients", report.clients)
        self._check_features("contexts", report.contexts, ReportError)
        if report.late_arrivals is not None:
            self._check_clients("late_arrivals.clients", report.late_arrivals.clients)
            self._check_features("late_arrivals.contexts", report.late_arrivals.contexts, ReportError)
        if report.available is not None and len(report.available) != self.clients:
            raise ReportError(f"available is for {len(report.available)} clients, this policy is for {self.clients}")

    def true_times(self, offer: RoundOffer) -> FloatArray:
        """The offer's expected times, for policies that must be told the truth."""
        if offer.expected_times is None:
            raise OfferError(
                f"{self.name} must be told the true expected times: use a world that offers expected_times, or a "
                "policy that learns them, such as rbcsf"
            )
        return offer.expected_times

    def _check_clients(self, field: str, rows: IntArray) -> None:
        if len(rows) and rows.max() >= self.clients:
            why = f"is unknown: there are {self.clients} clients"
            refuse_where(rows >= self.clients, field, rows, why, ReportError)

    def _check_features(self, field: str, contexts: FloatArray, error: type[TurnoutError]) -> None:
        if self.features is not None and contexts.shape[1] != self.features:
            raise error(
                f"{field} have {contexts.shape[1]} features, but {self.name} was built for {self.features}: "
                f"build it with features={contexts.shape[1]}, or send {self.features}"
            )


def subset(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The part of a state whose keys begin with `prefix.`, without it."""
    return {key.removeprefix(f"{prefix}."): value for key, value in state.items() if key.startswith(f"{prefix}.")}


def prefixed(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """A state as a part of a larger one."""
    return {f"{prefix}.{key}": value for key, value in state.items()}
