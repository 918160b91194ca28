"""The base class of wrappers, and what several of them use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import BoolArray
from turnout.kernel.certificate import Certificate
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.kernel.slots.turns import TurnStart
from turnout.plugins import check_settings
from turnout.policies.base import SelectionPolicy, prefixed, replaced, subset

if TYPE_CHECKING:
    from turnout.kernel.cohort_problem import CohortProblem
    from turnout.kernel.pace.prices import ClientPrices


class Wrapper(SelectionPolicy):
    """A policy around `policy`, which it asks and to which it passes reports.

    A subclass overrides `inner_offer` to restrict what the policy inside is offered, or `ask` to ask it several times.
    Every capability of the policy inside is delegated explicitly.
    """

    #: Whether its rule makes sense if turns are given one at a time.
    works_with_slots: ClassVar[bool] = True

    def __init__(self, policy: SelectionPolicy) -> None:
        if not isinstance(policy, SelectionPolicy):
            raise SettingError(f"{self.name} needs a policy, such as make_policy('rbcsf', 40), got {policy!r}")
        super().__init__(policy.clients)
        self.policy = policy
        self.cohort_size = policy.cohort_size
        self.features = policy.features
        self.fills_cohort = policy.fills_cohort
        self.fills_slots = policy.fills_slots if self.works_with_slots else False
        self.signals = policy.signals
        self.requires_expected_times = policy.requires_expected_times
        self.guarantee = policy.guarantee
        self.debts = policy.debts
        self.selects_by_queue = policy.selects_by_queue
        self.time_model = policy.time_model
        self._remember_part("policy", policy, policy.forget)

    def _repr_parts(self) -> list[str]:
        return [repr(vars(self).get("policy")), *super()._repr_parts()[1:]]

    @classmethod
    def named(cls, clients: int, make: Callable[..., SelectionPolicy], **settings: Any) -> Self:
        """Builds the wrapper and the policy inside from plain settings.

        Args:
            clients: The number of clients.
            make: Builds a policy from its name, a number of clients and settings, as `make_policy` does.
            settings: The settings of the wrapper; `policy` and `settings` are the name and the settings of the policy
                inside.
        """
        inner = settings.pop("policy", None)
        if not isinstance(inner, str):
            raise SettingError(
                f"{cls.name} needs the setting policy, the name of the policy inside, such as 'rbcsf', got {inner!r}"
            )
        inner_settings = settings.pop("settings", None) or {}
        if not isinstance(inner_settings, Mapping):
            raise SettingError(f"settings of {inner} inside {cls.name} must be a mapping, got {inner_settings!r}")
        check_settings(cls.name, cls, settings, "policy", "settings")
        build: Callable[..., Self] = cls
        return build(make(inner, clients, **inner_settings), **settings)

    def inner_offer(self, offer: RoundOffer) -> RoundOffer:
        """Returns the offer that the policy inside is asked with."""
        return offer.restricted(places=self._requested(offer))

    def ask(self, offer: RoundOffer) -> Selection:
        """Lets the policy inside select."""
        self.check_offer(offer)
        return self.policy.ask(self.inner_offer(offer))

    def tell(self, report: RoundReport) -> None:
        """Passes the report on."""
        self.check_report(report)
        self.policy.tell(report)

    def tell_started(self, turn: TurnStart) -> None:
        """Passes the decision on."""
        super().tell_started(turn)
        self.policy.tell_started(turn)

    def tell_finished(self, report: RoundReport) -> None:
        """Passes the result of a turn on."""
        self.check_report(report)
        self.policy.tell_finished(report)

    def check_offer(self, offer: RoundOffer) -> None:
        """Raises what the policy inside raises."""
        self.policy.check_offer(offer)

    def check_report(self, report: RoundReport) -> None:
        """Raises what the policy inside raises."""
        self.policy.check_report(report)

    def settle(self) -> None:
        """Lets the policy inside settle."""
        self.policy.settle()

    def amended_state(self, state: Mapping[str, Any], *, keep_times: bool) -> dict[str, Any]:
        """Lets the policy inside convert its state."""
        inner = self.policy.amended_state(subset(state, "policy"), keep_times=keep_times)
        return replaced(state, prefixed("policy", inner), "policy")

    @property
    def target_size(self) -> int | None:
        """The number of updates that a round needs, as the policy inside declares it."""
        return self.policy.target_size

    def certificate(self) -> Certificate | None:
        """Returns the certificate of the policy inside."""
        return self.policy.certificate()

    def cohort_problem(self, offer: RoundOffer) -> CohortProblem | None:
        """Returns the problem that the policy inside solves for the restricted offer, if its solution is selected."""
        return self.policy.cohort_problem(self.inner_offer(offer)) if self.selects_inside(offer) else None

    def client_prices(self, offer: RoundOffer) -> ClientPrices | None:
        """Returns those of the policy inside, if its solution is selected."""
        return self.policy.client_prices(self.inner_offer(offer)) if self.selects_inside(offer) else None

    def selects_inside(self, offer: RoundOffer) -> bool:  # noqa: ARG002
        """Returns whether `ask` selects what the policy inside selects for the restricted offer."""
        return True

    def exploration_at(self, round: int) -> float | None:
        """Returns the exploration of the policy inside."""
        return self.policy.exploration_at(round)

    def _requested(self, offer: RoundOffer) -> int | None:
        """Returns how many clients to select; None if the cohort has no fixed size."""
        return None if self.cohort_size is None else self.places(offer)


def ask_for_some(policy: SelectionPolicy, offer: RoundOffer) -> Selection:
    """Asks a policy, or returns an empty selection if there are no places or no available clients."""
    if offer.places == 0 or not offer.available.any():
        return Selection.trusted(offer.round, np.empty(0, dtype=np.int64), {})
    return policy.ask(offer)


def restrict_report(report: RoundReport, allowed: BoolArray) -> RoundReport:
    """Returns the report with only the `allowed` and the selected clients marked as available."""
    if report.available is None:
        return report
    available = report.available & allowed
    available[report.clients] = True
    return replace(report, available=available)


def merge_selections(parts: Sequence[Selection]) -> Selection:
    """Merges selections of one round. A reason is NaN for parts without it; reasons of a whole cohort are dropped."""
    rows = np.concatenate([part.clients for part in parts])
    order = np.argsort(rows)
    names = dict.fromkeys(name for part in parts for name, reason in part.reasons.items() if reason.ndim == 1)
    reasons = {
        name: np.concatenate([part.reasons.get(name, np.full(len(part.clients), np.nan)) for part in parts])[order]
        for name in names
    }
    return Selection.trusted(parts[0].round, rows[order], reasons)


def require_cohort_size(policy: SelectionPolicy, wrapper: str) -> int:
    """Returns the cohort size of a policy; raises SettingError if its cohorts have no fixed size."""
    if policy.cohort_size is None:
        raise SettingError(f"{wrapper} needs a policy with a cohort_size, and {policy.name} has none")
    return policy.cohort_size


def resize(array: Any, clients: int, fill: object) -> Any:
    """Returns `array` cut or extended with `fill` to one entry per client."""
    if len(array) >= clients:
        return array[:clients]
    return np.concatenate([array, np.full(clients - len(array), fill, dtype=array.dtype)])


def as_list(field: str, values: Any) -> list[Any]:
    """Returns the elements of a list-like setting; raises SettingError for strings, mappings and scalars."""
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise SettingError(f"{field} must be a list of names, got {values!r}")
    return list(values)
