"""What travels in a round: an offer, a selection, a report. Frozen, and checked where they enter."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from turnout.errors import OfferError, ReportError, SelectionError, SettingError, TurnoutError
from turnout.kernel.arrays import (
    BoolArray,
    FloatArray,
    IntArray,
    as_contexts,
    as_count,
    as_floats,
    as_mask,
    as_rows,
    as_times,
    read_only,
    refuse_where,
    same_length,
)

OUTCOMES = ("arrived", "late", "failed")
#: The outcomes with a time that says something about the client's speed; that of a late client is its deadline.
TIMED_OUTCOMES = OUTCOMES[:2]
NO_METRICS: Mapping[str, float] = MappingProxyType({})


class _Value:
    """Equal when every field is, arrays by their numbers."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(
            _same(getattr(self, one.name), getattr(other, one.name))
            for one in dataclasses.fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have no hash

    def _set(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, read_only(value) if isinstance(value, np.ndarray) else value)

    @classmethod
    def _trusted(cls, **fields: object) -> Self:
        """Without any check, for arrays that this package has just made: they are frozen in place."""
        value = object.__new__(cls)
        for name, one in fields.items():
            if type(one) is np.ndarray:
                one.setflags(write=False)
            object.__setattr__(value, name, one)
        return value


@dataclass(frozen=True, slots=True, eq=False)
class RoundOffer(_Value):
    """Who volunteers in this round, and what is known about each client before the choice.

    `available` (I in the paper): one boolean a client. `contexts` (c): one row of features a client,
    in the paper [1/free_cpu, needs_cold_start, model_size/bandwidth]; any memory order will do, and
    features-major (Fortran order) is the fastest for large fleets. Features should be of ordinary size, such as
    seconds: beyond ±1e6 they are refused. `expected_times`: the true mean
    exchange times in seconds, only from worlds that know the truth.

    The arrays are not copied: do not write to them while the offer is in use.
    """

    round: int
    available: BoolArray
    contexts: FloatArray
    expected_times: FloatArray | None = None

    def __post_init__(self) -> None:
        available = as_mask("available", self.available, OfferError)
        contexts = as_contexts(self.contexts, OfferError)
        same_length("contexts", contexts, len(available), "clients in available", OfferError)
        expected = self.expected_times
        if expected is not None:
            expected = as_times("expected_times", expected, OfferError)
            same_length("expected_times", expected, len(available), "clients in available", OfferError)
        self._set(
            round=as_count("round", self.round, OfferError),
            available=available,
            contexts=contexts,
            expected_times=expected,
        )

    @property
    def clients(self) -> int:
        """How many clients there are, available or not."""
        return len(self.available)

    def without_truth(self) -> RoundOffer:
        """The same offer for a policy that must not know the expected times."""
        blind = object.__new__(RoundOffer)
        for name in ("round", "available", "contexts"):
            object.__setattr__(blind, name, getattr(self, name))
        object.__setattr__(blind, "expected_times", None)
        return blind

    @classmethod
    def trusted(
        cls,
        round: int,
        available: BoolArray,
        contexts: FloatArray,
        expected_times: FloatArray | None = None,
    ) -> RoundOffer:
        """An offer of fresh arrays that need no check: for worlds that made them themselves, round after round."""
        return cls._trusted(round=round, available=available, contexts=contexts, expected_times=expected_times)


@dataclass(frozen=True, slots=True, eq=False)
class Selection(_Value):
    """Who trains in this round: `clients` are rows. `reasons` tell why, one array a word.

    RBCS-F gives `optimistic` and `owed`, one number a chosen client, and `threshold` and `objective`,
    one number for the cohort.
    """

    round: int
    clients: IntArray
    reasons: Mapping[str, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        reasons = {word: read_only(np.asarray(value, dtype=np.float64)) for word, value in self.reasons.items()}
        self._set(
            round=as_count("round", self.round, SelectionError),
            clients=as_rows("clients", self.clients, SelectionError),
            reasons=MappingProxyType(reasons),
        )

    @classmethod
    def trusted(cls, round: int, clients: IntArray, reasons: dict[str, FloatArray]) -> Selection:
        """A selection of fresh arrays that need no check: for policies whose solver made them."""
        for why in reasons.values():
            why.setflags(write=False)
        return cls._trusted(round=round, clients=clients, reasons=MappingProxyType(reasons))


@dataclass(frozen=True, slots=True, eq=False)
class LateArrivals(_Value):
    """True exchange times of clients that an earlier report counted as late.

    Each client of `clients` was handed the model in the round of `rounds`, was reported late with
    the deadline of `deadlines`, and has now arrived after `exchange_times`. `learned_since` tells how
    many later times of the same client have been learned meanwhile; only a model that forgets needs it.
    """

    rounds: IntArray
    clients: IntArray
    contexts: FloatArray
    deadlines: FloatArray
    exchange_times: FloatArray
    learned_since: IntArray | None = None

    def __post_init__(self) -> None:
        rounds = np.array([as_count("rounds", one, ReportError) for one in self.rounds], dtype=np.int64)
        clients = np.array([as_count("clients", one, ReportError, least=0) for one in self.clients], dtype=np.int64)
        contexts = as_contexts(self.contexts, ReportError)
        deadlines = as_times("deadlines", self.deadlines, ReportError)
        times = as_times("exchange_times", self.exchange_times, ReportError)
        since = np.zeros(len(clients), dtype=np.int64) if self.learned_since is None else self.learned_since
        since = np.array([as_count("learned_since", one, ReportError, least=0) for one in since], dtype=np.int64)
        for name, array in (("rounds", rounds), ("contexts", contexts), ("deadlines", deadlines)):
            same_length(name, array, len(clients), "clients", ReportError)
        same_length("exchange_times", times, len(clients), "clients", ReportError)
        same_length("learned_since", since, len(clients), "clients", ReportError)
        if len(set(zip(rounds.tolist(), clients.tolist(), strict=True))) < len(clients):
            raise ReportError("late_arrivals name one client of one round twice")
        if (times < deadlines).any():
            refuse_where(times < deadlines, "exchange_times", times, "is before its deadline: not late", ReportError)
        # One order for all, so that the order of arrival leaves no trace in the last bit.
        order = np.lexsort((rounds, clients))
        self._set(
            rounds=rounds[order],
            clients=clients[order],
            contexts=contexts[order],
            deadlines=deadlines[order],
            exchange_times=times[order],
            learned_since=since[order],
        )


@dataclass(frozen=True, slots=True, eq=False)
class RoundReport(_Value):
    """What became of a selection: one row of each array a chosen client.

    `exchange_times` (tau), seconds: of a late client the deadline, of a failed one when it failed.
    `available`: the offer's mask, needed where turns are earned by being available. `outcomes`:
    "arrived", "late" or "failed" a client; None means that all arrived. `losses`: NaN where a client
    reported none. `late_arrivals`: the truth about late clients of earlier rounds.
    """

    round: int
    clients: IntArray
    contexts: FloatArray
    exchange_times: FloatArray
    available: BoolArray | None = None
    outcomes: Sequence[str] | npt.NDArray[np.str_] | None = None
    losses: FloatArray | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    late_arrivals: LateArrivals | None = None

    def __post_init__(self) -> None:
        clients = as_rows("clients", self.clients, ReportError)
        contexts = as_contexts(self.contexts, ReportError)
        times = as_times("exchange_times", self.exchange_times, ReportError)
        same_length("contexts", contexts, len(clients), "clients", ReportError)
        same_length("exchange_times", times, len(clients), "clients", ReportError)
        available = self.available
        if available is not None:
            available = as_mask("available", available, ReportError)
            in_fleet = clients < len(available)
            if not in_fleet.all() or not available[clients].all():
                absent = ~in_fleet
                absent[in_fleet] = ~available[clients[in_fleet]]
                refuse_where(absent, "clients", clients, "was not available", ReportError)
        self._set(
            round=as_count("round", self.round, ReportError),
            clients=clients,
            contexts=contexts,
            exchange_times=times,
            available=available,
            outcomes=_as_outcomes(self.outcomes, len(clients)),
            losses=_as_losses(self.losses, len(clients)),
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
        """A report that all arrived, of fresh arrays that need no check: for worlds that made them themselves."""
        return cls._trusted(
            round=round,
            clients=clients,
            contexts=contexts,
            exchange_times=exchange_times,
            available=available,
            outcomes=None,
            losses=None,
            metrics=NO_METRICS,
            late_arrivals=None,
        )

    @property
    def duration(self) -> float:
        """How long the round lasted, in seconds: as long as its slowest client (f in the paper)."""
        return float(self.exchange_times.max(initial=0.0))

    def with_outcome(self, *outcomes: str) -> BoolArray:
        """A mask of the chosen clients whose outcome is one of these."""
        if self.outcomes is None:
            return np.full(len(self.clients), "arrived" in outcomes)
        mask = np.zeros(len(self.clients), dtype=np.bool_)
        for outcome in outcomes:
            mask |= np.equal(self.outcomes, outcome)
        return mask


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """A round that is over."""

    selection: Selection
    report: RoundReport

    def __post_init__(self) -> None:
        if self.selection.round != self.report.round:
            raise ReportError(
                f"the report is of round {self.report.round}, the selection of round {self.selection.round}"
            )

    @property
    def round(self) -> int:
        """Its number, from 1."""
        return self.selection.round


@dataclass(frozen=True, slots=True, eq=False)
class ContextRange(_Value):
    """The lowest and highest credible value of each feature, declared once and checked every round.

    An absurd context widens the confidence band and makes its client look attractive: it must be
    refused before it is used.

    >>> credible = ContextRange(lowest=[0.1, 0, 0], highest=[10, 1, 1000])
    >>> credible.check([[0.5, 1, 7], [0.5, 1, 1e5]], OfferError)
    Traceback (most recent call last):
    turnout.errors.OfferError: contexts[1, 2] = 100000.0 is outside the declared range [0, 1000]
    """

    lowest: FloatArray
    highest: FloatArray

    def __post_init__(self) -> None:
        lowest = as_floats("lowest", self.lowest, 1, SettingError)
        highest = as_floats("highest", self.highest, 1, SettingError)
        same_length("highest", highest, len(lowest), "features in lowest", SettingError)
        refuse_where(lowest > highest, "lowest", lowest, "is above the highest of its feature", SettingError)
        self._set(lowest=lowest, highest=highest)

    def check(
        self,
        contexts: npt.ArrayLike,
        error: type[TurnoutError],
        rows: IntArray | None = None,
        *,
        available: BoolArray | None = None,
    ) -> None:
        """Refuse contexts outside the range; `rows` are the clients they belong to, by default all.

        `available`: only of these; of others nothing was told.
        """
        values = as_contexts(contexts, error)
        if values.shape[1] != len(self.lowest):
            raise error(f"contexts have {values.shape[1]} features, but the declared range has {len(self.lowest)}")
        for feature, (low, high) in enumerate(zip(self.lowest, self.highest, strict=True)):
            column = values[:, feature]
            if len(column) == 0 or (column.min() >= low and column.max() <= high):
                continue
            wrong = (column < low) | (column > high)
            if available is not None:
                wrong &= available
                if not wrong.any():
                    continue
            at = int(np.flatnonzero(wrong)[0])
            row = at if rows is None else int(rows[at])
            raise error(f"contexts[{row}, {feature}] = {column[at]} is outside the declared range [{low:g}, {high:g}]")


def _as_outcomes(outcomes: Sequence[str] | npt.NDArray[np.str_] | None, clients: int) -> Any:
    if outcomes is None:
        return None
    words = [str(word) for word in outcomes]
    if len(words) != clients:
        raise ReportError(f"outcomes has {len(words)} words, but there are {clients} clients")
    for row, word in enumerate(words):
        if word not in OUTCOMES:
            raise ReportError(f"outcomes[{row}] = {word!r} must be one of {', '.join(OUTCOMES)}")
    return np.array(words, dtype="U7")


def _as_losses(losses: npt.ArrayLike | None, clients: int) -> FloatArray | None:
    if losses is None:
        return None
    array = np.asarray(losses, dtype=np.float64)
    if array.shape != (clients,):
        raise ReportError(f"losses has shape {array.shape}, but there are {clients} clients")
    refuse_where(np.isinf(array), "losses", array, "must not be infinite", ReportError)
    return array


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
            return False
        return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f" and other.dtype.kind == "f"))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)
