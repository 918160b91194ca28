"""The base class of all selection policies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from turnout.errors import OfferError, ReportError, SettingError, StateError, TurnoutError
from turnout.kernel.arrays import (
    MAX_CLIENTS,
    FloatArray,
    IntArray,
    as_count,
    as_rows,
    load_array,
    refuse_where,
    save_array,
    saved_value,
)
from turnout.kernel.certificate import Certificate
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.fairness import FairnessQueues
from turnout.kernel.guarantee import Guarantee
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.kernel.slots.turns import TurnStart

if TYPE_CHECKING:  # policies without prices need no cohort problem
    from turnout.kernel.cohort_problem import CohortProblem
    from turnout.kernel.pace.prices import ClientPrices


class Part(Protocol):
    """A part of a memory: it grows with the fleet, and its state can be saved and restored."""

    def add(self, count: int, /) -> None:
        """Appends `count` clients without history."""

    def state(self) -> dict[str, Any]:
        """Returns what was learned, as plain arrays and numbers."""

    def restore(self, state: Mapping[str, Any], /) -> None:
        """Restores what `state` returned; if that fails, nothing changes."""


class Memory:
    """What was learned from reports. Each value is declared once, in the constructor.

    A declared value is an attribute. It grows with the fleet, is forgotten, saved and restored by the methods here.
    """

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self._columns: dict[str, npt.NDArray[Any]] = {}  # of a client without history
        self._lasting: set[str] = set()
        self._shared: dict[str, type] = {}
        self._parts: list[tuple[str, Part, Callable[[IntArray], None] | None]] = []

    def _remember(self, *, lasting: bool = False, **initial: Any) -> None:
        """Declares arrays with one entry or column per client.

        Args:
            lasting: Whether they stay when a client is forgotten.
            initial: The entry or column of a client without history, by name.
        """
        for name, value in initial.items():
            self._columns[name] = np.asarray(value)[..., None]
            setattr(self, name, np.repeat(self._columns[name], self.clients, axis=-1))
        if lasting:
            self._lasting.update(initial)

    def _remember_shared(self, **initial: Any) -> None:
        """Declares arrays and numbers that do not belong to one client."""
        for name, value in initial.items():
            self._shared[name] = type(value)
            setattr(self, name, value)

    def _remember_part(self, prefix: str, part: Part, forget: Callable[[IntArray], None] | None) -> None:
        """Declares a part, whose keys in the state begin with `prefix`; `forget` is None if nothing is forgotten."""
        self._parts.append((prefix, part, forget))

    @property
    def _is_empty(self) -> bool:
        return not (self._columns or self._shared or self._parts)

    def add(self, count: int) -> None:
        """Appends `count` clients without history."""
        for _, part, _ in self._parts:
            part.add(count)
        for name, column in self._columns.items():
            setattr(self, name, np.concatenate([getattr(self, name), np.repeat(column, count, axis=-1)], axis=-1))
        self.clients += count

    def forget(self, rows: IntArray) -> None:
        """Removes what was learned about these clients."""
        for _, _, forget in self._parts:
            if forget is not None:
                forget(rows)
        for name in self._columns.keys() - self._lasting:
            getattr(self, name)[..., rows] = self._columns[name]

    def state(self) -> dict[str, Any]:
        """Returns what was learned, as plain arrays and numbers."""
        names = (*self._columns, *self._shared)
        state = {
            name: save_array(value) if isinstance(value := getattr(self, name), np.ndarray) else value for name in names
        }
        for prefix, part, _ in self._parts:
            state |= prefixed(prefix, part.state())
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned; if that fails, nothing changes."""
        loaded = {name: load_array(state, name, getattr(self, name)) for name in self._columns}
        loaded |= {name: self._load_shared(state, name) for name in self._shared}
        restored: list[tuple[Part, dict[str, Any]]] = []
        try:
            for index, (prefix, part, _) in enumerate(self._parts):
                before = part.state() if index + 1 < len(self._parts) else {}  # nothing can fail after the last
                part.restore(subset(state, prefix))
                restored.append((part, before))
        except BaseException:
            for part, before in restored:
                part.restore(before)
            raise
        for name, value in loaded.items():
            setattr(self, name, value)

    def _load_shared(self, state: Mapping[str, Any], name: str) -> Any:
        present = getattr(self, name)
        if isinstance(present, np.ndarray):
            return load_array(state, name, present)
        value = np.asarray(saved_value(state, name))
        if value.ndim or value.dtype.kind not in "biuf":
            raise StateError(f"{name!r} of the saved state must be a number, got {state[name]!r}")
        return self._shared[name](value)


class SelectionPolicy(Memory, ABC):
    """Selects the clients that train in a round.

    `ask` has no side effects, not even temporary ones, and `tell` is the only method that learns: asking twice gives
    the same answer, and the state is a pure function of the reports. `check_policy` tests both.

    The attributes below `name` declare what a policy can do. The rest of turnout reads these declarations and never
    inspects a policy in another way. The objects behind `debts` and `time_model` stay the same as long as the
    policy exists.
    """

    #: Its name in messages, stores and tables; `check_policy` and `register_policy` require one.
    name: ClassVar[str] = ""
    #: The number of clients to select in a round; None if it depends on the offer.
    cohort_size: int | None = None
    #: The number of features of a context; None if the policy ignores contexts.
    features: int | None = None
    #: Whether it selects `cohort_size` clients whenever that many are available.
    fills_cohort: bool = True
    #: Whether it can give turns one at a time, whenever a slot is free, while other clients are training.
    fills_slots: bool = False
    #: The names of the signals in reports from which it learns, other than the loss.
    signals: tuple[str, ...] = ()
    #: Whether it needs the true expected times, which only simulated worlds know.
    requires_expected_times: bool = False
    #: What it guarantees to every client; None if it guarantees nothing.
    guarantee: Guarantee | None = None
    #: The turns owed to each client under its guarantee; None if it guarantees nothing.
    debts: FairnessQueues | None = None
    #: Whether it selects by the queue of owed turns; of other policies, the queue is only an account.
    selects_by_queue: bool = False
    #: The model of exchange times that it learns; None if it learns none.
    time_model: ExchangeTimeModel | None = None

    def __init__(self, clients: int) -> None:
        super().__init__(as_count("clients", clients, SettingError, most=MAX_CLIENTS))

    def __repr__(self) -> str:
        """Shows the number of clients, the cohort size and the guarantee, where there is one."""
        return f"{type(self).__name__}({', '.join(self._repr_parts())})"

    @abstractmethod
    def ask(self, offer: RoundOffer) -> Selection:
        """Selects the clients that train in this round."""

    def tell(self, report: RoundReport) -> None:
        """Checks the outcome of a round. A policy that learns from it extends this method."""
        self.check_report(report)

    def tell_started(self, turn: TurnStart) -> None:
        """Counts a turn that was given for a free slot, and whose result is not known yet.

        A policy with a guarantee, or whose selections depend on earlier ones, extends this method.
        """
        self._check_slots()
        if len(turn.present) != self.clients:
            raise ReportError(f"present has {len(turn.present)} clients, this policy was built for {self.clients}")

    def tell_finished(self, report: RoundReport) -> None:
        """Learns from the result of a turn that `tell_started` counted.

        By default a policy learns from it as from a round with one client.

        Args:
            report: The result; its `round` is the number of the decision that gave the turn.
        """
        self._check_slots()
        self.tell(report)

    def add(self, count: int) -> None:
        """Appends `count` clients without history. A policy with per-client state of its own extends this method."""
        super().add(as_count("count", count, SettingError, least=0))

    def forget(self, rows: npt.ArrayLike) -> None:
        """Removes every trace of what was learned about these clients.

        Turns taken and turns owed stay: they are not learned, and the certificate needs them. Sums over many clients
        stay too. A policy with state of its own must override this method.

        Raises:
            StateError: If the policy has state and does not override this method.
        """
        known = self._rows(rows)
        if self._is_empty and self.state():
            raise StateError(f"{self.name} has state but no method forget(rows): it cannot forget clients")
        super().forget(known)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores what `state` returned, in a policy that was built with the same settings."""
        if self._is_empty and state:
            raise StateError(f"{self.name} has no state, but the saved state has {', '.join(sorted(state))}")
        super().restore(state)

    # Amendments

    def settle(self) -> None:
        """Prepares the state for `amended_state`: completes whatever is computed lazily from the present settings.

        Nothing that the policy answers changes. A policy with queues of its own extends this method.
        """

    def amended_state(self, state: Mapping[str, Any], *, keep_times: bool) -> dict[str, Any]:
        """Converts the state of the same policy with other settings to a state that this policy can restore.

        Cohort size, guaranteed rate, tolerance and speed weight may differ. This default suits a policy whose state
        does not depend on them. A policy with a guarantee keeps promises, turns and debts as they are.

        Args:
            state: The state of the other policy, after `settle`.
            keep_times: Whether contexts have the same features as before. If not, a policy that learns times from
                contexts starts learning them again, and keeps everything else.
        """
        if not keep_times and self.time_model is not None:
            raise StateError(f"{self.name} learns times but has no amended_state(): its features cannot be amended")
        return dict(state)

    # Capabilities

    @property
    def target_size(self) -> int | None:
        """The number of updates that a round needs: less than `cohort_size` if the policy over-selects."""
        return self.cohort_size

    def certificate(self) -> Certificate | None:
        """Returns what every client was promised and got; None if the policy guarantees nothing."""
        return None

    def cohort_problem(self, offer: RoundOffer) -> CohortProblem | None:  # noqa: ARG002
        """Returns the problem whose solution `ask` selects for this offer; None if it solves no such problem."""
        return None

    def client_prices(self, offer: RoundOffer) -> ClientPrices | None:  # noqa: ARG002
        """Returns what the prices of that problem consist of, for one client at a time; None if it has no prices."""
        return None

    def exploration_at(self, round: int) -> float | None:  # noqa: ARG002
        """Returns how many standard uncertainties it subtracts from predicted times; None if it does not."""
        return None

    # Checks

    def check_offer(self, offer: RoundOffer) -> None:
        """Raises OfferError for an offer with another number of clients or features."""
        if offer.clients != self.clients:
            raise OfferError(f"the offer has {offer.clients} clients, this policy was built for {self.clients}")
        self._check_features("contexts", offer.contexts, OfferError)

    def check_report(self, report: RoundReport) -> None:
        """Raises ReportError for a report with unknown clients or another number of features."""
        self._check_clients("clients", report.clients)
        self._check_features("contexts", report.contexts, ReportError)
        if report.late_arrivals is not None:
            self._check_clients("late_arrivals.clients", report.late_arrivals.clients)
            self._check_features("late_arrivals.contexts", report.late_arrivals.contexts, ReportError)
        if report.available is not None and len(report.available) != self.clients:
            raise ReportError(
                f"available has {len(report.available)} clients, this policy was built for {self.clients}"
            )

    def places(self, offer: RoundOffer) -> int:
        """Returns how many clients to select: the offer's `places`, else `cohort_size`, else all clients."""
        if self.cohort_size is None:
            return offer.clients
        return self.cohort_size if offer.places is None else offer.places

    def expected_times(self, offer: RoundOffer) -> FloatArray:
        """Returns the offer's expected times, for policies with `requires_expected_times`."""
        if offer.expected_times is None:
            raise OfferError(
                f"{self.name} needs the true expected times: use a world that offers expected_times, or a policy that "
                "learns times, such as rbcsf"
            )
        return offer.expected_times

    def _available_rows(self, offer: RoundOffer) -> IntArray:
        """Checks an offer, and returns the rows of its available clients."""
        self.check_offer(offer)
        return np.flatnonzero(offer.available)

    def _check_slots(self) -> None:
        if not self.fills_slots:
            raise SettingError(
                f"{self.name} cannot give turns one at a time: use rounds, or another policy, such as fair-pace"
            )

    def _repr_parts(self) -> list[str]:
        parts = [f"clients={vars(self).get('clients')}"]  # None while the policy is being built
        if self.cohort_size is not None:
            parts.append(f"cohort_size={self.cohort_size}")
        if self.guarantee is not None:
            parts.append(f"guarantee={self.guarantee!r}")
        return parts

    def _rows(self, rows: npt.ArrayLike) -> IntArray:
        return as_rows("rows", rows, StateError, clients=self.clients)

    def _check_clients(self, field: str, rows: IntArray) -> None:
        if len(rows) and rows.max() >= self.clients:
            why = f"is unknown: there are {self.clients} clients"
            refuse_where(rows >= self.clients, field, rows, why, ReportError)

    def _check_features(self, field: str, contexts: FloatArray, error: type[TurnoutError]) -> None:
        if self.features is not None and contexts.shape[1] != self.features:
            raise error(
                f"{field} have {contexts.shape[1]} features, but {self.name} was built for {self.features}: "
                f"build it with features={contexts.shape[1]}, or pass {self.features} features"
            )


class CohortPolicy(SelectionPolicy):
    """A policy with a fixed cohort size, and perhaps with a seed of its random choices."""

    cohort_size: int

    def __init__(self, clients: int, *, cohort_size: int, seed: int = 0) -> None:
        super().__init__(clients)
        self.cohort_size = as_count("cohort_size", cohort_size, SettingError)
        self.seed = as_count("seed", seed, SettingError, least=0)


def subset(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Returns the entries whose keys begin with `prefix.`, without that prefix; all entries if it is empty."""
    if not prefix:
        return dict(state)
    return {key.removeprefix(f"{prefix}."): value for key, value in state.items() if key.startswith(f"{prefix}.")}


def replaced(state: Mapping[str, Any], part: Mapping[str, Any], *prefixes: str) -> dict[str, Any]:
    """Returns the state with all entries below these prefixes replaced by those of `part`."""
    dropped = tuple(f"{prefix}." for prefix in prefixes)
    return {key: value for key, value in state.items() if not key.startswith(dropped)} | dict(part)


def prefixed(prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state with `prefix.` before every key; the same state if it is empty."""
    return {f"{prefix}.{key}" if prefix else key: value for key, value in state.items()}
