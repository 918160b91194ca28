"""Many rounds as a few arrays, for storage and analysis; tables of columns as CSV, and files that commands write."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError, StoreError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, as_count, read_only, refuse_where
from turnout.kernel.rounds import OUTCOMES, LateArrivals, RoundRecord, RoundReport, Selection
from turnout.lab.assembly import FILL_VALUES, NAMED_COLUMNS, PER_ROUND, Fields, assemble, fields_of_records
from turnout.storage.encoding.limits import check_clients, unpack_mask
from turnout.storage.encoding.packing import corruption_as_store_error, pack, unpack

_OUTCOME_NAMES = np.array(OUTCOMES)
#: The columns of late arrivals.
LATE_COLUMNS = ("rounds", "clients", "contexts", "deadlines", "exchange_times", "learned_since")
_DTYPES: Mapping[str, Any] = {
    "rounds": np.int64,
    "starts": np.int64,
    "chosen": np.int64,
    "contexts": np.float64,
    "exchange_times": np.float64,
    "available": np.bool_,
    "outcomes": np.uint8,
    "losses": np.float64,
}


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
        signals: Named numbers that clients reported, with one number per row.
        client_reasons: Named reasons of the selection with one number per row.
        cohort_reasons: Named reasons of the selection with one number per round.
        metrics: Named metrics with one number per round.
        late: The late arrivals that a round reported, by the number of that round.
        absent: For a column that only some rounds have, a mask of the rounds that lack it, under the name of the column
            (such as "losses" or "metrics.accuracy"). The column holds a fill value there: NaN, "arrived" or true.
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
    signals: Mapping[str, FloatArray] = field(default_factory=dict)
    client_reasons: Mapping[str, FloatArray] = field(default_factory=dict)
    cohort_reasons: Mapping[str, FloatArray] = field(default_factory=dict)
    metrics: Mapping[str, FloatArray] = field(default_factory=dict)
    late: Mapping[int, LateArrivals] = field(default_factory=dict)
    absent: Mapping[str, BoolArray] = field(default_factory=dict)

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
        if len(nonempty) == 1:
            return nonempty[0]
        return cls(**assemble([_as_part(part) for part in nonempty], nonempty[0].clients))

    def records(self) -> Iterator[RoundRecord]:
        """Iterates over the rounds, which are bit-for-bit equal to the records that the columns were made from.

        Reports have the order of their selections, and contexts of rounds without clients the width of the others.
        """
        return map(RoundRecord, self._selections(), self._reports())

    def to_bytes(self) -> bytes:
        """Serialises the columns: integers in the narrowest dtype, masks as bits."""
        header: dict[str, Any] = {"format": 1, "clients": self.clients, "rounds": len(self)}
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name, dtype in _DTYPES.items():
            if (value := getattr(self, name)) is not None:
                narrowest = np.min_scalar_type(int(value.max(initial=0))) if dtype is np.int64 else value.dtype
                arrays[name] = value.astype(narrowest, copy=False)
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
            fields: Fields = {name: arrays[name] for name in _DTYPES if name in arrays}
            fields["clients"] = check_clients(header["clients"])
            if "available" in fields:
                fields["available"] = unpack_mask(fields["available"], header["clients"])
            for attribute in (*NAMED_COLUMNS, "absent"):
                names = header.get(attribute, [])
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
        metrics, signals = self._named_by_round("metrics"), self._named_by_round("signals")
        columns = {
            "clients": self._by_round("chosen", self.chosen),
            "outcomes": self._by_round("outcomes", None if self.outcomes is None else _OUTCOME_NAMES[self.outcomes]),
        }
        for name in ("contexts", "exchange_times", "available", "losses"):
            columns[name] = self._by_round(name, getattr(self, name))
        for round_, *values in zip(self.rounds.tolist(), *columns.values(), strict=True):
            yield RoundReport(
                round_,
                **dict(zip(columns, values, strict=True)),
                signals=_next_values(signals),
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


def _pack_late(arrivals: list[LateArrivals]) -> dict[str, npt.NDArray[Any]]:
    """Returns late arrivals as columns; contexts are flattened because their widths may differ."""
    columns = {
        f"late.{name}": np.concatenate([getattr(late, name).ravel() for late in arrivals]) for name in LATE_COLUMNS
    }
    return {"late.shapes": np.array([late.contexts.shape for late in arrivals]), **columns}


def _unpack_late(rounds: list[int], arrays: Mapping[str, npt.NDArray[Any]]) -> dict[int, LateArrivals]:
    arrivals: dict[int, LateArrivals] = {}
    row = offset = 0
    for round_, (count, width) in zip(rounds, arrays.get("late.shapes", np.empty((0, 2), np.int64)), strict=True):
        columns = {name: arrays[f"late.{name}"][row : row + count] for name in LATE_COLUMNS}
        contexts = arrays["late.contexts"][offset : offset + count * width]
        arrivals[round_] = LateArrivals(**{**columns, "contexts": contexts.reshape(count, width)})
        row, offset = row + count, offset + count * width
    return arrivals


def _as_part(columns: RoundColumns) -> Fields:
    """Returns the fields of columns as a part of longer ones."""
    return {
        "rounds": columns.rounds.tolist(),
        "counts": np.diff(columns.starts).tolist(),
        "absent": {name: mask.tolist() for name, mask in columns.absent.items()},
        **{
            name: getattr(columns, name)
            for name in ("chosen", "contexts", "exchange_times", "late", *FILL_VALUES, *NAMED_COLUMNS)
        },
    }


#: Columns of equal length, by name.
Table: TypeAlias = Mapping[str, npt.ArrayLike]


def as_columns(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns rows as columns; a cell that a row does not have is NaN."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name, np.nan) for row in rows] for name in names}


def as_csv(table: Table) -> str:
    """Returns a table as CSV with a header line."""
    columns = {name: np.asarray(values).tolist() for name, values in table.items()}
    return csv_text(columns, zip(*columns.values(), strict=True))


def csv_text(names: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Returns a header line and rows as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue()


def write_text(path: Path, text: str) -> Path:
    """Writes a file and its folder; raises SettingError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(f"cannot write {path}: {error.strerror or error}") from error
    return path
