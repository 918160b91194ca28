"""The values of a round (offer, selection, report), which are frozen and validated on construction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import OfferError, ReportError, SelectionError
from turnout.kernel.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    Value,
    as_contexts,
    as_count,
    as_mask,
    as_rows,
    as_times,
    read_only,
    refuse_where,
    require_length,
)

OUTCOMES = ("arrived", "late", "failed")
#: The outcomes with a time that says something about the client's speed; that of a late client is its deadline.
TIMED_OUTCOMES = OUTCOMES[:2]
#: The signal that every client may report without a declaration.
LOSS = "loss"
NO_METRICS: Mapping[str, float] = MappingProxyType({})


def round_seconds(exchange_times: FloatArray, waited_for: BoolArray | None = None) -> float:
    """Returns how long the server waited in a round: the longest time of the clients that it waited for; 0 for none.

    This is the definition of round time everywhere. It includes late clients, which count with their deadline, and
    failed clients, which count with the time until the server stopped waiting for them.

    Args:
        exchange_times: The time of each selected client, in seconds.
        waited_for: False for clients that returned after the round had enough others, which do not make it longer;
            None if the server waited for all.

    >>> round_seconds(np.array([4.0, 9.0, 30.0]), np.array([True, True, False]))
    9.0
    """
    times = exchange_times if waited_for is None else exchange_times[waited_for]
    return float(times.max(initial=0.0))


def invited_clients(cohort_size: int, factor: float) -> int:
    """Returns how many clients are invited to a round that needs `cohort_size` of them: `factor` times as many."""
    return math.ceil(cohort_size * factor - 1e-9)  # in floats, 1.1 · 100 exceeds 110


@dataclass(frozen=True, slots=True, eq=False)
class RoundOffer(Value):
    """The available clients of a round, and what is known about each client before the selection.

    The arrays are not copied: do not write to them while the offer is in use.

    Attributes:
        round: The number of the round, from 1.
        available: One boolean per client (I in the paper).
        contexts: One row of features per client (c in the paper), for instance the paper's [1/free_cpu,
            needs_cold_start, model_size/bandwidth]. Every memory order is accepted; features-major (Fortran order) is
            the fastest for large fleets. Features must lie within ±1e6; choose units such as seconds.
        expected_times: The true mean exchange times in seconds; only worlds that know them provide them.
        places: How many clients to select in this round. It overrides the policy's cohort_size; a policy whose cohort
            has no fixed size ignores it. None uses the cohort_size.
    """

    round: int
    available: BoolArray
    contexts: FloatArray
    expected_times: FloatArray | None = None
    places: int | None = None

    def __post_init__(self) -> None:
        available = as_mask("available", self.available, OfferError)
        contexts = as_contexts(self.contexts, OfferError)
        require_length("contexts", contexts, len(available), "clients in available", OfferError)
        expected = self.expected_times
        if expected is not None:
            expected = as_times("expected_times", expected, OfferError)
            require_length("expected_times", expected, len(available), "clients in available", OfferError)
        self._set(
            round=as_count("round", self.round, OfferError),
            available=available,
            contexts=contexts,
            expected_times=expected,
            places=None if self.places is None else as_count("places", self.places, OfferError),
        )

    @property
    def clients(self) -> int:
        """The number of clients, available or not."""
        return len(self.available)

    def without_truth(self) -> RoundOffer:
        """Returns the offer without `expected_times`, for a policy that must not know them."""
        return RoundOffer.trusted(self.round, self.available, self.contexts, None, self.places)

    def restricted(self, allowed: BoolArray | None = None, places: int | None = None) -> RoundOffer:
        """Returns the offer with only the `allowed` clients available, and with another number of places.

        Args:
            allowed: One boolean per client; None leaves the availability as it is.
            places: The number of clients to select; None leaves that number as it is.
        """
        available = self.available if allowed is None else self.available & allowed
        places = self.places if places is None else places
        return RoundOffer.trusted(self.round, available, self.contexts, self.expected_times, places)

    @classmethod
    def trusted(
        cls,
        round: int,
        available: BoolArray,
        contexts: FloatArray,
        expected_times: FloatArray | None = None,
        places: int | None = None,
    ) -> RoundOffer:
        """Creates an offer without validation, for worlds that have just created valid arrays themselves."""
        return cls._trusted(
            round=round, available=available, contexts=contexts, expected_times=expected_times, places=places
        )


@dataclass(frozen=True, slots=True, eq=False)
class Selection(Value):
    """The clients that train in this round.

    Attributes:
        round: The number of the round, from 1.
        clients: The rows of the selected clients.
        reasons: Named arrays that explain the selection. RBCS-F gives `optimistic` and `owed`, one number per
            selected client, and `threshold` and `objective`, one number for the cohort.
    """

    round: int
    clients: IntArray
    reasons: Mapping[str, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        reasons = {name: read_only(np.asarray(value, dtype=np.float64)) for name, value in self.reasons.items()}
        self._set(
            round=as_count("round", self.round, SelectionError),
            clients=as_rows("clients", self.clients, SelectionError),
            reasons=MappingProxyType(reasons),
        )

    @classmethod
    def trusted(cls, round: int, clients: IntArray, reasons: dict[str, FloatArray]) -> Selection:
        """Creates a selection without validation, for policies whose solver has just created valid arrays."""
        for reason in reasons.values():
            reason.setflags(write=False)
        return cls._trusted(round=round, clients=clients, reasons=MappingProxyType(reasons))


@dataclass(frozen=True, slots=True, eq=False)
class LateArrivals(Value):
    """The true exchange times of clients that earlier reports counted as late; one entry per late arrival.

    Attributes:
        rounds: The round in which the client was selected.
        clients: The row of the client.
        contexts: The context with which the client was selected.
        deadlines: The deadline in seconds, with which the client was reported late.
        exchange_times: The true exchange time in seconds.
        learned_since: How many later times of the same client were learned in the meantime; it matters only for a
            model with forgetting.
    """

    rounds: IntArray
    clients: IntArray
    contexts: FloatArray
    deadlines: FloatArray
    exchange_times: FloatArray
    learned_since: IntArray | None = None

    def __post_init__(self) -> None:
        rounds = np.array([as_count("rounds", number, ReportError) for number in self.rounds], dtype=np.int64)
        clients = np.array([as_count("clients", row, ReportError, least=0) for row in self.clients], dtype=np.int64)
        contexts = as_contexts(self.contexts, ReportError)
        deadlines = as_times("deadlines", self.deadlines, ReportError)
        times = as_times("exchange_times", self.exchange_times, ReportError)
        since = np.zeros(len(clients), dtype=np.int64) if self.learned_since is None else self.learned_since
        since = np.array([as_count("learned_since", count, ReportError, least=0) for count in since], dtype=np.int64)
        columns = {"rounds": rounds, "contexts": contexts, "deadlines": deadlines, "exchange_times": times}
        columns["learned_since"] = since
        for name, array in columns.items():
            require_length(name, array, len(clients), "clients", ReportError)
        if len(set(zip(rounds.tolist(), clients.tolist(), strict=True))) < len(clients):
            raise ReportError("late_arrivals hold a client twice for the same round: give each late arrival once")
        why = "is before its deadline, so the client is not late"
        refuse_where(times < deadlines, "exchange_times", times, why, ReportError)
        # A canonical order, so that the order of arrival does not affect rounding.
        order = np.lexsort((rounds, clients))
        self._set(clients=clients[order], **{name: array[order] for name, array in columns.items()})


@dataclass(frozen=True, slots=True, eq=False)
class RoundReport(Value):
    """The result of a round, with one row of each array per selected client.

    Attributes:
        round: The number of the round, from 1.
        clients: The rows of the selected clients.
        contexts: One row of features per selected client; a row of NaN if the context is not known any more, so that
            nothing can be learned from it.
        exchange_times: The exchange times in seconds (tau in the paper); for a late client its deadline, for a failed
            client the time until it failed.
        available: The offer's availability mask, required if turns accrue only in rounds in which a client is
            available.
        outcomes: "arrived", "late" or "failed" for each client; None means that all arrived.
        losses: The training losses; NaN for clients that reported none.
        signals: Other numbers that clients reported, by name; NaN for clients that did not. None if there are none.
        metrics: Named numbers about the round, such as the accuracy of the model.
        late_arrivals: The true times of late clients of earlier rounds.
    """

    round: int
    clients: IntArray
    contexts: FloatArray
    exchange_times: FloatArray
    available: BoolArray | None = None
    outcomes: Sequence[str] | npt.NDArray[np.str_] | None = None
    losses: FloatArray | None = None
    signals: Mapping[str, FloatArray] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    late_arrivals: LateArrivals | None = None

    def __post_init__(self) -> None:
        clients = as_rows("clients", self.clients, ReportError)
        contexts = as_known_or_unknown(self.contexts)
        times = as_times("exchange_times", self.exchange_times, ReportError)
        require_length("contexts", contexts, len(clients), "clients", ReportError)
        require_length("exchange_times", times, len(clients), "clients", ReportError)
        available = self.available
        if available is not None:
            available = as_mask("available", available, ReportError)
            in_fleet = clients < len(available)
            if not in_fleet.all() or not available[clients].all():
                unavailable = ~in_fleet
                unavailable[in_fleet] = ~available[clients[in_fleet]]
                refuse_where(unavailable, "clients", clients, "was not available", ReportError)
        signals = {str(name): _as_values(str(name), own, len(clients)) for name, own in (self.signals or {}).items()}
        self._set(
            round=as_count("round", self.round, ReportError),
            clients=clients,
            contexts=contexts,
            exchange_times=times,
            available=available,
            outcomes=_as_outcomes(self.outcomes, len(clients)),
            losses=None if self.losses is None else _as_values("losses", self.losses, len(clients)),
            signals=MappingProxyType(signals) or None,
            metrics=MappingProxyType({str(name): float(value) for name, value in self.metrics.items()}),
        )

    @classmethod
    def trusted(
        cls,
        round: int,
        clients: IntArray,
        contexts: FloatArray,
        exchange_times: FloatArray,
        available: BoolArray | None = None,
    ) -> RoundReport:
        """Creates a report without validation, for worlds that have just created valid arrays; all clients arrived.

        Args:
            round: The number of the round.
            clients: The rows of the selected clients.
            contexts: One row of features per selected client.
            exchange_times: The exchange times in seconds.
            available: The offer's availability mask.
        """
        return cls._trusted(
            round=round,
            clients=clients,
            contexts=contexts,
            exchange_times=exchange_times,
            available=available,
            outcomes=None,
            losses=None,
            signals=None,
            metrics=NO_METRICS,
            late_arrivals=None,
        )

    def reported(self, signal: str) -> FloatArray | None:
        """Returns what each client reported under this name, NaN where it did not; "loss" stands for the losses."""
        return self.losses if signal == LOSS else (self.signals or {}).get(signal)

    @property
    def duration(self) -> float:
        """The duration of the round in seconds (f in the paper); see `round_seconds`."""
        return round_seconds(self.exchange_times)

    def informative(self) -> BoolArray | None:
        """Returns a mask of the clients whose times tell something about their contexts; None if those of all do.

        A failure tells nothing about speed, and neither does a time whose context is not known.
        """
        unknown = np.isnan(self.contexts).any(axis=1)
        if self.outcomes is None and not unknown.any():
            return None
        return self.with_outcome(*TIMED_OUTCOMES) & ~unknown

    def with_outcome(self, *outcomes: str) -> BoolArray:
        """Returns a mask of the selected clients whose outcome is one of these."""
        if self.outcomes is None:
            return np.full(len(self.clients), "arrived" in outcomes)
        mask = np.zeros(len(self.clients), dtype=np.bool_)
        for outcome in outcomes:
            mask |= np.equal(self.outcomes, outcome)
        return mask


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """A completed round: its selection and its report."""

    selection: Selection
    report: RoundReport

    def __post_init__(self) -> None:
        if self.selection.round != self.report.round:
            raise ReportError(
                f"the report is of round {self.report.round}, the selection of round {self.selection.round}: both must "
                "be of the same round"
            )

    @property
    def round(self) -> int:
        """The number of the round, from 1."""
        return self.selection.round


def as_known_or_unknown(value: npt.ArrayLike) -> FloatArray:
    """Converts contexts as `as_contexts` does, but accepts rows that are NaN throughout."""
    array = np.asarray(value)
    if array.ndim != 2 or array.dtype.kind != "f" or not array.size:
        return as_contexts(value, ReportError)
    unknown = np.isnan(array).all(axis=1)
    if not unknown.any():
        return as_contexts(value, ReportError)
    contexts = np.array(array, dtype=np.float64)
    contexts[~unknown] = as_contexts(array[~unknown], ReportError)
    return contexts


def _as_outcomes(outcomes: Sequence[str] | npt.NDArray[np.str_] | None, clients: int) -> Any:
    if outcomes is None:
        return None
    names = [str(outcome) for outcome in outcomes]
    if len(names) != clients:
        raise ReportError(f"outcomes has {len(names)} entries, but there are {clients} clients: give one for each")
    for index, name in enumerate(names):
        if name not in OUTCOMES:
            raise ReportError(f"outcomes[{index}] = {name!r} must be one of {', '.join(OUTCOMES)}")
    return np.array(names, dtype="U7")


def _as_values(name: str, values: npt.ArrayLike, clients: int) -> FloatArray:
    array: FloatArray = read_only(np.asarray(values, dtype=np.float64))
    if array.shape != (clients,):
        raise ReportError(f"{name} has shape {array.shape}, but there are {clients} clients: give one value for each")
    refuse_where(np.isinf(array), name, array, "must not be infinite", ReportError)
    return array
