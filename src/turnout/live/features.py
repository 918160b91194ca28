"""Statuses of clients before a selection, and the features that are computed from them.

Units: `free_cpu` is in cores, `bandwidth` in the unit of the setting `model_size` per second.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from types import NoneType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from turnout.errors import OfferError, SettingError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_number, sparse_zeros
from turnout.kernel.rounds import LOSS

Columns = Mapping[str, FloatArray]

#: The free CPU that is assumed for a client whose status is unknown, in cores.
DEFAULT_FREE_CPU = 1.0
#: The transfer time of the model, model_size/bandwidth, that is assumed for a client whose status is unknown, in
#: seconds: the middle of the paper's range of 5 to 10.
DEFAULT_TRANSFER_SECONDS = 7.5
#: So many statuses are read one by one, which is faster for them.
FEW = 8


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """The status of a client just before a selection.

    Where the status is unknown, pass None instead: the scheduler then assumes one free core, and a bandwidth at which
    the transfer of the model takes 7.5 seconds.

    Attributes:
        free_cpu: The number of idle CPU cores; it may be a fraction.
        bandwidth: The bandwidth to the server, in the unit of the setting `model_size` per second.

    >>> ClientStatus(free_cpu=1.5, bandwidth=3.0)
    ClientStatus(free_cpu=1.5, bandwidth=3.0)
    """

    free_cpu: float
    bandwidth: float


@dataclass(frozen=True, slots=True, eq=False)
class FleetStatus:
    """The statuses of many clients as arrays.

    Attributes:
        columns: One array per declared feature, with one value per client.
        rows: The ids of these clients, or their rows as an array; None means all clients, by row.
    """

    columns: Mapping[str, npt.ArrayLike]
    rows: IntArray | Sequence[str] | None = None


#: The status of one client: None if nothing is known about it.
Status: TypeAlias = ClientStatus | Mapping[str, float] | None
#: The available clients: their statuses by id, their ids alone if nothing is known about them, or arrays.
Statuses: TypeAlias = Mapping[str, Status] | Mapping[str, ClientStatus] | Collection[str] | FleetStatus


@dataclass(frozen=True, slots=True)
class Feature:
    """One value of a status.

    Attributes:
        name: The name of the value in a status.
        low: The smallest credible value.
        high: The largest credible value.
        unit: The unit, for messages.
        default: The value that is assumed for a client whose status is unknown (None, or only its id is given), or a
            function that computes it from the setting `model_size`. None: such a client is refused. The file of a fleet
            contains it only if it is a number and no function computes the features.
    """

    name: str
    low: float
    high: float
    unit: str = field(default="", compare=False)
    default: float | Callable[[float], float] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        as_number(f"low of {self.name}", self.low, SettingError)
        as_number(f"high of {self.name}", self.high, SettingError, least=self.low)
        if self.default is not None and not callable(self.default):
            as_number(f"default of {self.name}", self.default, SettingError, least=self.low, most=self.high)

    def default_value(self, client: str, model_size: float) -> float:
        """Returns the value that is assumed for a client whose status is unknown."""
        if self.default is None:
            raise OfferError(
                f"nothing is known about {client!r}, and the feature {self.name!r} has no default: pass the status of "
                f"the client, or declare Feature({self.name!r}, …, default=…)"
            )
        return float(self.default(model_size) if callable(self.default) else self.default)


def paper_contexts(columns: Columns) -> Sequence[FloatArray]:
    """Returns the paper's features: [1/free_cpu, needs_cold_start, model_size/bandwidth]."""
    return 1 / columns["free_cpu"], columns["needs_cold_start"], columns["model_size"] / columns["bandwidth"]


#: The number of the paper's features.
PAPER_OUTPUTS = 3


def _fill_paper_contexts(contexts: FloatArray, rows: IntArray | slice, columns: Mapping[str, npt.NDArray[Any]]) -> None:
    """Does the same as `paper_contexts`, but writes into `contexts`: in large fleets, memory takes the most time."""
    is_partial = not isinstance(rows, slice)
    buffer = np.empty(len(columns["free_cpu"])) if is_partial else None
    for index, numerator, denominator in ((0, 1.0, "free_cpu"), (2, columns["model_size"], "bandwidth")):
        target = contexts[:, index] if buffer is None else buffer
        np.divide(numerator, columns[denominator], out=target)
        if buffer is not None:
            contexts[:, index][rows] = buffer
    contexts[:, 1][rows] = columns["needs_cold_start"]


BANDWIDTH_RANGE = (1e-6, 1e9)
BANDWIDTH_UNIT = "units of model_size per second"


def default_bandwidth(model_size: float) -> float:
    """Returns the bandwidth at which the transfer takes 7.5 seconds, within the credible range."""
    low, high = BANDWIDTH_RANGE
    return min(max(model_size / DEFAULT_TRANSFER_SECONDS, low), high)


@dataclass(frozen=True, slots=True)
class Features:
    """The values that a status must contain, and how contexts are computed from them.

    Attributes:
        declared: The values that a status must contain.
        compute: Computes the features: it is passed one array per declared name, and the arrays "needs_cold_start" (1
            for a client that did not train in the previous round) and "model_size", and returns one array or number per
            feature. None: the declared values are the features, in order. A function is not stored in the file: pass
            the features again when you open the fleet.
        outputs: The number of features.
    """

    declared: tuple[Feature, ...] = (
        Feature("free_cpu", 1e-3, 1e3, "cores", default=DEFAULT_FREE_CPU),
        Feature("bandwidth", *BANDWIDTH_RANGE, BANDWIDTH_UNIT, default=default_bandwidth),
    )
    compute: Callable[[Columns], Sequence[npt.ArrayLike]] | None = field(default=paper_contexts, compare=False)
    outputs: int = PAPER_OUTPUTS

    def __post_init__(self) -> None:
        names = [feature.name for feature in self.declared]
        if not names or len(set(names)) < len(names):
            raise SettingError(
                f"at least one feature must be declared, each with its own name, got {', '.join(names) or 'none'}"
            )
        if self.compute is None and self.outputs != len(names):
            raise SettingError(
                f"outputs must be {len(names)}, the number of declared features, got {self.outputs}: leave it out, or "
                "pass compute"
            )

    @classmethod
    def of(
        cls,
        *declared: Feature,
        compute: Callable[[Columns], Sequence[npt.ArrayLike]] | None = None,
        outputs: int | None = None,
    ) -> Features:
        """Returns custom features; `outputs` is the number of declared ones unless it is given."""
        return cls(declared, compute, len(declared) if outputs is None else outputs)

    def check(self, client: str, status: Status, model_size: float = 1.0) -> None:
        """Raises OfferError if a status lacks a declared value, or if a value is out of range.

        The size of the model matters only for the defaults of a client about which nothing is known.
        """
        self.columns({client: status}, model_size)

    def columns(self, statuses: Mapping[str, Status], model_size: float) -> dict[str, FloatArray]:
        """Returns one array per declared feature, with one value per client, after the same checks."""
        columns = self._columns(statuses, model_size)
        for feature in self.declared:
            self._check(feature, columns[feature.name], lambda at: repr(list(statuses)[at]))
        return columns

    def contexts(
        self,
        statuses: Mapping[str, Status] | FleetStatus,
        ids: Sequence[str],
        rows: IntArray | None,
        *,
        cold_start: BoolArray,
        model_size: float,
    ) -> FloatArray:
        """Returns the contexts of all clients, (clients, features), after checking that every value is in its range.

        Args:
            statuses: The statuses; for a client about which nothing is known (None), the features have their defaults.
            ids: The ids of all clients, by row.
            rows: The rows of the clients with a status, in its order; other rows of the result are 0. None: all rows.
            cold_start: Which clients did not train in the previous round, by row.
            model_size: The size of the model.

        Raises:
            OfferError: If a value is missing or out of range, or if nothing is known about a client and one of the
                features has no default.
        """
        given, everywhere = (len(ids), slice(None)) if rows is None else (len(rows), rows)
        if isinstance(statuses, FleetStatus):
            columns = {name: _as_column(name, values) for name, values in statuses.columns.items()}
            self._check_shapes(columns, given)
        else:
            columns = self._columns(statuses, model_size)
        for feature in self.declared:
            self._check(feature, columns[feature.name], lambda at: repr(ids[at if rows is None else int(rows[at])]))
        server: dict[str, npt.NDArray[Any]] = {
            "needs_cold_start": cold_start[everywhere],
            "model_size": np.broadcast_to(np.float64(model_size), given),
        }
        shape = len(ids), self.outputs
        contexts = np.empty(shape, order="F") if rows is None else sparse_zeros(*shape)
        if self.compute is paper_contexts and self.outputs == PAPER_OUTPUTS:
            _fill_paper_contexts(contexts, everywhere, {**server, **columns})
            return contexts
        for index, part in enumerate(self._parts(columns, server, given)):
            contexts[:, index][everywhere] = part
        return contexts

    def _columns(self, statuses: Mapping[str, Status], model_size: float) -> dict[str, FloatArray]:
        """Returns one array per declared feature, with default values for clients about which nothing is known."""
        if len(statuses) > FEW and (columns := self._plain_columns(statuses.values(), model_size)) is not None:
            return columns
        values = np.empty((len(self.declared), len(statuses)))
        assumed: Mapping[str, float] | None = None
        for index, (client, status) in enumerate(statuses.items()):
            if status is None:
                assumed = assumed or {
                    feature.name: feature.default_value(client, model_size) for feature in self.declared
                }
                status = assumed
            for row, feature in enumerate(self.declared):
                values[row, index] = _value(client, status, feature)
        return {feature.name: values[row] for row, feature in enumerate(self.declared)}

    def _plain_columns(self, statuses: Collection[Status], model_size: float) -> dict[str, FloatArray] | None:
        """Does the same as `_columns` without a step for each client; None if a status is of an uncommon type.

        Where it finds an error, it returns None as well: `_columns` then says which client it is.
        """
        kinds, read = set(map(type, statuses)), {dict: itemgetter, ClientStatus: attrgetter}
        plain: Collection[Any] = statuses
        try:
            if NoneType in kinds:
                assumed = {feature.name: feature.default_value("", model_size) for feature in self.declared}
                if len(kinds) == 1:
                    return {name: np.full(len(statuses), value) for name, value in assumed.items()}
                plain = [assumed if status is None else status for status in statuses]
                kinds = (kinds - {NoneType}) | {dict}
            if len(kinds) != 1 or (get := read.get(kinds.pop())) is None:
                return None
            columns = {feature.name: list(map(get(feature.name), plain)) for feature in self.declared}
            if not all(set(map(type, column)) <= {float, int, np.float64} for column in columns.values()):
                return None
            return {name: np.array(column, dtype=np.float64) for name, column in columns.items()}
        except (KeyError, AttributeError, OfferError, OverflowError):
            return None

    def _check_shapes(self, columns: Columns, clients: int) -> None:
        for feature in self.declared:
            if feature.name not in columns:
                raise OfferError(
                    f"the status must have a column {feature.name!r}, got {', '.join(columns) or 'no columns'}: add it"
                )
            if columns[feature.name].shape != (clients,):
                raise OfferError(
                    f"{feature.name} must have one value per client, shape ({clients},), got shape "
                    f"{columns[feature.name].shape}"
                )

    def _parts(self, columns: Columns, server: Mapping[str, npt.NDArray[Any]], clients: int) -> Sequence[npt.ArrayLike]:
        """Returns an array or a number for each feature."""
        if self.compute is None:
            return [columns[feature.name] for feature in self.declared]
        known = {name: values.astype(np.float64, copy=False) for name, values in server.items()}
        parts = self.compute({**known, **columns})
        if len(parts) != self.outputs:
            raise OfferError(f"compute must return {self.outputs} features, as declared by outputs, got {len(parts)}")
        for index, part in enumerate(parts):
            if np.shape(part) not in ((), (clients,)):
                raise OfferError(
                    f"compute must return one number or shape ({clients},) for feature {index}, got shape "
                    f"{np.shape(part)}"
                )
        return parts

    def to_dict(self) -> dict[str, Any]:
        """Returns what is stored in the file: everything except functions."""
        declared = [self._declaration(feature) for feature in self.declared]
        return {"declared": declared, "computed": self.compute is not None, "outputs": self.outputs}

    def _declaration(self, feature: Feature) -> list[Any]:
        """Returns the arguments of a feature; a default only where no function must be passed again anyway."""
        stored = [feature.name, feature.low, feature.high, feature.unit]
        has_number = feature.default is not None and not callable(feature.default)
        return [*stored, feature.default] if has_number and self.compute is None else stored

    def _check(self, feature: Feature, values: FloatArray, name_of: Callable[[int], str]) -> None:
        if not len(values) or (values.min() >= feature.low and values.max() <= feature.high):
            return
        index = int(np.flatnonzero(~((values >= feature.low) & (values <= feature.high)))[0])
        raise OfferError(
            f"{feature.name} of {name_of(index)} must be from {feature.low:g} to {feature.high:g}"
            f"{f' {feature.unit}' if feature.unit else ''}, got {values[index]:g}: correct it, or leave the client out "
            "of this round"
        )


def as_signals(name: str, declared: Any) -> dict[str, list[float]]:
    """Returns declared signals as they are stored: the smallest and the largest credible value of each, by name.

    Raises:
        SettingError: If a name or a range is invalid.
    """
    if not isinstance(declared, Mapping):
        raise SettingError(f'{name} must be a mapping such as {{"utility": [0, 100]}}, got {declared!r}')
    signals = {}
    for signal, limits in declared.items():
        if not isinstance(signal, str) or not signal or signal == LOSS:
            raise SettingError(f"{name} must have non-empty names other than {LOSS!r}, got {signal!r}")
        if not isinstance(limits, list | tuple) or len(limits) != 2:
            raise SettingError(f"{signal} in {name} must be a smallest and a largest value, got {limits!r}")
        Feature(signal, *limits)  # checks the range
        signals[signal] = list(map(float, limits))
    return signals


#: The features of the RBCS-F paper, which a fleet has by default.
PAPER_FEATURES = Features()


def statuses_by_id(statuses: Statuses) -> Mapping[str, Status] | FleetStatus:
    """Returns statuses by id, None for clients that are given by their ids alone; arrays as they are.

    Raises:
        OfferError: If the argument is not a collection of clients.
    """
    if isinstance(statuses, Mapping | FleetStatus):
        return statuses
    if isinstance(statuses, str | bytes) or not isinstance(statuses, Collection):
        raise OfferError(
            f"statuses must be a mapping of ids to statuses, a list of ids or a FleetStatus, got {statuses!r}"
        )
    for client in () if set(map(type, statuses)) <= {str} else statuses:
        if not isinstance(client, str):
            raise OfferError(f"client ids must be non-empty strings without null characters, got {client!r}")
    return dict.fromkeys(sorted(statuses) if isinstance(statuses, set | frozenset) else statuses)


def _as_column(name: str, values: npt.ArrayLike) -> FloatArray:
    """Returns a column as floats; NaN and infinity are refused later, in a message that names the client."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise OfferError(f"{name} must hold numbers, not {array.dtype}")
    return array.astype(np.float64, copy=False)


def _value(client: str, status: Any, feature: Feature) -> float:
    value = status.get(feature.name) if isinstance(status, Mapping) else getattr(status, feature.name, None)
    if value is None:
        raise OfferError(
            f"the status of {client!r} has no {feature.name!r}: add {feature.name}"
            f"{f' ({feature.unit})' if feature.unit else ''}, or pass None as the whole status if nothing is known"
        )
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise OfferError(f"{feature.name} of {client!r} must be a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise OfferError(f"{feature.name} of {client!r} must be below 1.8e308, the largest float") from None
