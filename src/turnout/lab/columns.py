"""Many rounds as a few arrays, for storage and analysis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import StoreError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, read_only, refuse_where
from turnout.kernel.rounds import OUTCOMES, LateArrivals, RoundRecord, RoundReport, Selection
from turnout.lab.assembly import (
    FILL_VALUES,
    MISSING,
    NAMED_COLUMNS,
    PER_ROUND,
    Array,
    Fields,
    common_width,
    fields_of_records,
    starts_of,
)
from turnout.storage.encoding.limits import check_clients, unpack_mask
from turnout.storage.encoding.packing import corruption_as_store_error, pack, unpack

_OUTCOME_NAMES = np.array(OUTCOMES)
_LATE = ("rounds", "clients", "contexts", "deadlines", "exchange_times", "learned_since")
_DTYPES: Mapping[str, Any] = {
    "rounds": np.int64,
    "starts": np.int64,
    "chosen": np.int64,
    "contexts": np.float64,
    "exchange_times": np.float64,
    "available": np.bool_,
    "outcomes": np.uint8,
    "losses": np.float64,
    "report_rows": np.int64,
}
#: Keys of the stored format that differ from the field names; they must never change.
_STORED_KEYS: Mapping[str, str] = {"report_rows": "told"}


@dataclass(frozen=True, slots=True, eq=False)
class RoundColumns:
    """Rounds in columns: T rounds of N clients with R rows in total, one row per chosen client.

    Round i has the rows starts[i]:starts[i+1], in the order of its selection.

    Attributes:
        clients: The number of clients, N.
        rounds: The number of each round, in ascending order (T entries).
        starts: The first row of each round, followed by R (T + 1 entries).
        chosen: The chosen client of each row.
        contexts: The context of each row.
        exchange_times: The exchange time of each row in seconds.
        available: The availability masks (T × N).
        outcomes: The outcome of each row, as an index into OUTCOMES.
        losses: The training loss of each row.
        client_reasons: Named reasons of the selection with one number per row.
        cohort_reasons: Named reasons of the selection with one number per round.
        metrics: Named metrics with one number per round.
        late: The late arrivals that a round reported, by the number of that round.
        absent: For a column that only some rounds have, a mask of the rounds that lack it, under the name of the column
            (such as "losses" or "metrics.accuracy"). The column holds a fill value there: NaN, "arrived" or true.
        report_rows: The row that each entry of the reports belongs to; None if all reports have the order of their
            selections.
    """

    clients: int
    rounds: IntArray
    starts: IntArray
    chosen: IntArray
    contexts: FloatArray
    exchange_times: FloatArray
    available: BoolArray | None = None
    outcomes: npt.NDArray[np.uint8] | None = None
    losses: FloatArray | None = None
    client_reasons: Mapping[str, FloatArray] = field(default_factory=dict)
    cohort_reasons: Mapping[str, FloatArray] = field(default_factory=dict)
    metrics: Mapping[str, FloatArray] = field(default_factory=dict)
    late: Mapping[int, LateArrivals] = field(default_factory=dict)
    absent: Mapping[str, BoolArray] = field(default_factory=dict)
    report_rows: IntArray | None = None

    def __post_init__(self) -> None:
        self._set("clients", as_count("clients", self.clients, StoreError))
        for name, dtype in _DTYPES.items():
            if (value := getattr(self, name)) is not None:
                self._set(name, read_only(np.ascontiguousarray(value, dtype=dtype)))
        for attribute, dtype in (*((name, np.float64) for name in NAMED_COLUMNS), ("absent", np.bool_)):
            columns = {
                str(name): read_only(np.asarray(column, dtype=dtype))
                for name, column in getattr(self, attribute).items()
            }
            self._set(attribute, MappingProxyType(columns))
        self._set("late", MappingProxyType(dict(self.late)))
        self._check_shapes()
        self._check_values()

    @classmethod
    def from_records(cls, records: Iterable[RoundRecord], *, clients: int) -> RoundColumns:
        """Returns the columns of completed rounds."""
        return cls(**fields_of_records(list(records), clients=as_count("clients", clients, StoreError)))

    @classmethod
    def concatenate(cls, parts: Iterable[RoundColumns]) -> RoundColumns:
        """Returns the rounds of all parts, which must be consecutive."""
        all_parts = list(parts)
        if not all_parts:
            raise StoreError("there are no columns to concatenate: give at least one part")
        if len({part.clients for part in all_parts}) > 1:
            counts = ", ".join(str(count) for count in sorted({part.clients for part in all_parts}))
            raise StoreError(
                f"columns with different numbers of clients ({counts}) cannot be concatenated: give parts of one fleet"
            )
        nonempty = [part for part in all_parts if len(part)] or all_parts[:1]
        return nonempty[0] if len(nonempty) == 1 else cls(**_fields_of_parts(nonempty))

    def records(self) -> Iterator[RoundRecord]:
        """Iterates over the rounds, which are bit-for-bit equal to the records that the columns were made from.

        Only the contexts of a round without clients, an empty array, have as many features as the other rounds.
        """
        return map(RoundRecord, self._selections(), self._reports())

    def to_bytes(self) -> bytes:
        """Serialises the columns: integers in the narrowest dtype, masks as bits."""
        header: dict[str, Any] = {"format": 1, "clients": self.clients, "rounds": len(self)}
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name, dtype in _DTYPES.items():
            if (value := getattr(self, name)) is not None:
                arrays[_STORED_KEYS.get(name, name)] = _to_narrowest(value) if dtype is np.int64 else value
        if self.available is not None:
            arrays["available"] = np.packbits(self.available, axis=1)
        for attribute in (*NAMED_COLUMNS, "absent"):
            columns = getattr(self, attribute)
            header[attribute] = list(columns)
            for index, column in enumerate(columns.values()):
                arrays[f"{attribute}.{index}"] = np.packbits(column) if attribute == "absent" else column
        if self.late:
            header["late"] = list(self.late)
            arrays |= _pack_late(list(self.late.values()))
        return pack(header, arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> RoundColumns:
        """Restores the columns from the result of `to_bytes`."""
        header, arrays = unpack(data)
        with corruption_as_store_error():
            keys = {name: _STORED_KEYS.get(name, name) for name in _DTYPES}
            fields: dict[str, Any] = {name: arrays[key] for name, key in keys.items() if key in arrays}
            fields["clients"] = check_clients(header["clients"])
            if "available" in fields:
                fields["available"] = unpack_mask(fields["available"], header["clients"])
            for attribute in (*NAMED_COLUMNS, "absent"):
                names = header[attribute]
                fields[attribute] = {name: arrays[f"{attribute}.{index}"] for index, name in enumerate(names)}
            fields["absent"] = {name: unpack_mask(mask, header["rounds"]) for name, mask in fields["absent"].items()}
            fields["late"] = _unpack_late(header.get("late", []), arrays)
            return cls(**fields)

    def __len__(self) -> int:
        return len(self.rounds)

    @property
    def durations(self) -> FloatArray:
        """The duration of each round in seconds, as `turnout.kernel.rounds.round_seconds` defines it."""
        durations = np.zeros(len(self))
        nonempty = np.diff(self.starts) > 0
        if nonempty.any():
            durations[nonempty] = np.maximum.reduceat(self.exchange_times, self.starts[:-1][nonempty])
        return durations

    @property
    def turns(self) -> IntArray:
        """The number of times each client was chosen."""
        return np.bincount(self.chosen, minlength=self.clients).astype(np.int64, copy=False)

    @property
    def chosen_mask(self) -> BoolArray:
        """A mask of the chosen clients, with one row per round and one column per client."""
        mask = np.zeros((len(self), self.clients), dtype=np.bool_)
        mask[np.repeat(np.arange(len(self)), np.diff(self.starts)), self.chosen] = True
        return mask

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Returns the shape that the column of this name has, or would have if it is absent."""
        attribute = name.partition(".")[0]
        if attribute == "available":
            return (len(self.rounds), self.clients)
        if attribute == "starts":
            return (len(self.rounds) + 1,)
        if attribute == "contexts":
            return (len(self.chosen), self.contexts.shape[-1])
        per_round = attribute in (*PER_ROUND, "rounds", "absent")
        return (len(self.rounds),) if per_round else (len(self.chosen),)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _selections(self) -> Iterator[Selection]:
        reasons = [*self._named_by_round("client_reasons"), *self._named_by_round("cohort_reasons")]
        for round_, chosen in zip(self.rounds.tolist(), self._by_round("chosen", self.chosen), strict=True):
            yield Selection(round_, chosen, _next_values(reasons))

    def _reports(self) -> Iterator[RoundReport]:
        order = slice(None) if self.report_rows is None else self.report_rows
        metrics = self._named_by_round("metrics")
        outcome_names = None if self.outcomes is None else _OUTCOME_NAMES[self.outcomes[order]]
        columns = zip(
            self.rounds.tolist(),
            self._by_round("chosen", self.chosen[order]),
            self._by_round("contexts", self.contexts[order]),
            self._by_round("exchange_times", self.exchange_times[order]),
            self._by_round("available", self.available),
            self._by_round("outcomes", outcome_names),
            self._by_round("losses", None if self.losses is None else self.losses[order]),
            strict=True,
        )
        for round_, clients, contexts, times, available, outcomes, losses in columns:
            yield RoundReport(
                round_,
                clients,
                contexts,
                times,
                available=available,
                outcomes=outcomes,
                losses=losses,
                metrics=_next_values(metrics),
                late_arrivals=self.late.get(round_),
            )

    def _named_by_round(self, attribute: str) -> list[tuple[str, Iterator[Any]]]:
        columns = getattr(self, attribute)
        return [(name, self._by_round(f"{attribute}.{name}", column)) for name, column in columns.items()]

    def _by_round(self, name: str, column: npt.NDArray[Any] | None) -> Iterator[Any]:
        """Iterates over the values of a column round by round; None for rounds that lack it."""
        if column is None:
            return iter([None] * len(self))
        starts = self.starts.tolist()
        indices: Iterable[Any] = map(slice, starts[:-1], starts[1:])
        if name == "available" or name.startswith(tuple(f"{attribute}." for attribute in PER_ROUND)):
            indices = range(len(self))
        missing = self.absent[name].tolist() if name in self.absent else [False] * len(self)
        return (None if is_missing else column[index] for index, is_missing in zip(indices, missing, strict=True))

    def _check_shapes(self) -> None:
        columns = {name: getattr(self, name) for name in _DTYPES}
        for attribute in (*NAMED_COLUMNS, "absent"):
            columns |= {f"{attribute}.{name}": column for name, column in getattr(self, attribute).items()}
        for name, column in columns.items():
            if column is not None and column.shape != self.shape_of(name):
                raise StoreError(
                    f"{name} has shape {column.shape}, expected {self.shape_of(name)}: there are "
                    f"{len(self.rounds)} rounds, {len(self.chosen)} rows and {self.clients} clients"
                )

    def _check_values(self) -> None:
        rounds, starts, chosen = self.rounds, self.starts, self.chosen
        if len(rounds) and (rounds[0] < 1 or (np.diff(rounds) < 1).any()):
            raise StoreError("rounds must be positive and strictly ascending: sort them, and give each round once")
        if starts[0] != 0 or starts[-1] != len(chosen) or (np.diff(starts) < 0).any():
            raise StoreError(f"starts must be ascending from 0 to the number of rows, {len(chosen)}")
        unknown_clients = (chosen < 0) | (chosen >= self.clients)
        refuse_where(unknown_clients, "chosen", chosen, f"is unknown: there are {self.clients} clients", StoreError)
        if self.outcomes is not None:
            unknown = self.outcomes >= len(OUTCOMES)
            refuse_where(unknown, "outcomes", self.outcomes, f"must be below {len(OUTCOMES)}", StoreError)
        if not self.late.keys() <= set(rounds.tolist()):
            raise StoreError(f"late arrivals are given for rounds {sorted(self.late)}, some of which do not exist")


def _next_values(columns: list[tuple[str, Iterator[Any]]]) -> dict[str, Any]:
    """Advances all iterators by one round and returns the values that are not None."""
    values = ((name, next(iterator)) for name, iterator in columns)
    return {name: value for name, value in values if value is not None}


def _to_narrowest(integers: IntArray) -> npt.NDArray[Any]:
    return integers.astype(np.min_scalar_type(int(integers.max(initial=0))))


def _pack_late(arrivals: list[LateArrivals]) -> dict[str, npt.NDArray[Any]]:
    """Returns late arrivals as columns; contexts are flattened because their widths may differ."""
    columns = {f"late.{name}": np.concatenate([getattr(late, name).ravel() for late in arrivals]) for name in _LATE}
    return {"late.shapes": np.array([late.contexts.shape for late in arrivals]), **columns}


def _unpack_late(rounds: list[int], arrays: Mapping[str, npt.NDArray[Any]]) -> dict[int, LateArrivals]:
    arrivals: dict[int, LateArrivals] = {}
    row = offset = 0
    for round_, (count, width) in zip(rounds, arrays.get("late.shapes", np.empty((0, 2), np.int64)), strict=True):
        columns = {name: arrays[f"late.{name}"][row : row + count] for name in _LATE}
        contexts = arrays["late.contexts"][offset : offset + count * width]
        arrivals[round_] = LateArrivals(**{**columns, "contexts": contexts.reshape(count, width)})
        row, offset = row + count, offset + count * width
    return arrivals


def _fields_of_parts(parts: Sequence[RoundColumns]) -> Fields:
    """Returns the fields of the concatenated columns."""
    counts = np.concatenate([np.diff(part.starts) for part in parts])
    width = common_width([part.contexts.shape[1] for part in parts], [len(part.chosen) for part in parts])
    fields: Fields = {
        "clients": parts[0].clients,
        "rounds": np.concatenate([part.rounds for part in parts]),
        "starts": starts_of(counts),
        "chosen": np.concatenate([part.chosen for part in parts]),
        "contexts": np.concatenate([part.contexts.reshape(len(part.chosen), width) for part in parts]),
        "exchange_times": np.concatenate([part.exchange_times for part in parts]),
        "late": {round_: late for part in parts for round_, late in part.late.items()},
        "absent": {},
        "report_rows": _concatenate_report_rows(parts),
    }
    for name, fill in FILL_VALUES.items():
        fields[name] = _concatenate_column(fields, name, [getattr(part, name) for part in parts], parts, fill)
    for attribute in NAMED_COLUMNS:
        names = dict.fromkeys(name for part in parts for name in getattr(part, attribute))
        fields[attribute] = {
            name: _concatenate_column(
                fields, f"{attribute}.{name}", [getattr(part, attribute).get(name) for part in parts], parts, MISSING
            )
            for name in names
        }
    return fields


def _concatenate_report_rows(parts: Sequence[RoundColumns]) -> IntArray | None:
    if all(part.report_rows is None for part in parts):
        return None
    offsets = starts_of([len(part.chosen) for part in parts])
    return np.concatenate(
        [
            offset + (np.arange(len(part.chosen)) if part.report_rows is None else part.report_rows)
            for offset, part in zip(offsets, parts, strict=False)
        ]
    )


def _concatenate_column(
    fields: Fields, name: str, arrays: Sequence[Array | None], parts: Sequence[RoundColumns], fill: Any
) -> Array | None:
    """Concatenates an optional column and records in `fields["absent"]` which rounds lack it.

    Args:
        fields: The fields of the result.
        name: The name of the column.
        arrays: The column of each part, or None.
        parts: The parts to concatenate.
        fill: The fill value for parts without the column.
    """
    if all(array is None for array in arrays):
        return None
    missing = np.concatenate(
        [
            part.absent.get(name, np.full(len(part.rounds), array is None))
            for array, part in zip(arrays, parts, strict=True)
        ]
    )
    if missing.any():
        fields["absent"][name] = missing
    return np.concatenate(
        [
            np.full(part.shape_of(name), fill) if array is None else array
            for array, part in zip(arrays, parts, strict=True)
        ]
    )
