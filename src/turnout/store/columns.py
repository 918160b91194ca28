"""Many rounds as a few arrays: what is kept, and what analyses read."""

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
from turnout.store.gathering import (
    FILLS,
    NOTHING,
    PER_ROUND,
    WORDS,
    Array,
    Fields,
    common_width,
    fields_of_records,
    starts_of,
)
from turnout.store.packing import corruption_as_store_error, pack, unpack

_OUTCOME_WORDS = np.array(OUTCOMES)
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
    "told": np.int64,
    "widths": np.int64,
}


@dataclass(frozen=True, slots=True, eq=False)
class RoundColumns:
    """Rounds in columns: T rounds of N `clients`, R rows, one a chosen client.

    Round i owns the rows starts[i]:starts[i+1]; `chosen`, `contexts`, `exchange_times`, `outcomes` (places in
    OUTCOMES), `losses` and `client_reasons` have one entry a row, in the order of the selection. `rounds`,
    `available`, `cohort_reasons` and `metrics` have one a round.

    What only some rounds have is a column all the same: `absent` holds, under the name of the column (such as
    "losses" or "metrics.accuracy"), a mask of the rounds that lack it. There stands NaN, or "arrived", or available.

    `late`: the late arrivals told in a round, by its number. `told`: the row that each line of the reports is about,
    where not all reports keep the order of their selections. `widths`: how many features the contexts of each round
    have, where a round without clients says otherwise than the rest.
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
    told: IntArray | None = None
    widths: IntArray | None = None

    def __post_init__(self) -> None:
        self._set("clients", as_count("clients", self.clients, StoreError))
        for name, dtype in _DTYPES.items():
            if (value := getattr(self, name)) is not None:
                self._set(name, read_only(np.ascontiguousarray(value, dtype=dtype)))
        for name, dtype in (*((word, np.float64) for word in WORDS), ("absent", np.bool_)):
            columns = {str(word): read_only(np.asarray(one, dtype=dtype)) for word, one in getattr(self, name).items()}
            self._set(name, MappingProxyType(columns))
        self._set("late", MappingProxyType(dict(self.late)))
        self._check_shapes()
        self._check_numbers()

    @classmethod
    def from_records(cls, records: Iterable[RoundRecord], *, clients: int) -> RoundColumns:
        """The columns of rounds that are over."""
        return cls(**fields_of_records(list(records), clients=as_count("clients", clients, StoreError)))

    @classmethod
    def joined(cls, parts: Iterable[RoundColumns]) -> RoundColumns:
        """The rounds of all parts, which follow one another."""
        every = list(parts)
        if not every:
            raise StoreError("there is nothing to join: give at least one part")
        if len({part.clients for part in every}) > 1:
            raise StoreError(f"parts of {every[0].clients} and of other numbers of clients cannot be joined")
        peopled = [part for part in every if len(part)] or every[:1]
        return peopled[0] if len(peopled) == 1 else cls(**_fields_of_parts(peopled))

    def records(self) -> Iterator[RoundRecord]:
        """The rounds one by one, equal to the bit to those the columns were made from."""
        return map(RoundRecord, self._selections(), self._reports())

    def to_bytes(self) -> bytes:
        """All of it as an npz: whole numbers as narrow as they go, masks as bits."""
        header: dict[str, Any] = {"format": 1, "clients": self.clients, "rounds": len(self)}
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name, dtype in _DTYPES.items():
            if (value := getattr(self, name)) is not None:
                arrays[name] = _narrowed(value) if dtype is np.int64 else value
        if self.available is not None:
            arrays["available"] = np.packbits(self.available, axis=1)
        for name in (*WORDS, "absent"):
            columns = getattr(self, name)
            header[name] = list(columns)
            for place, column in enumerate(columns.values()):
                arrays[f"{name}.{place}"] = np.packbits(column) if name == "absent" else column
        if self.late:
            header["late"] = list(self.late)
            arrays |= _packed_late(list(self.late.values()))
        return pack(header, arrays)

    @classmethod
    def from_bytes(cls, data: bytes) -> RoundColumns:
        """What `to_bytes` gave."""
        header, arrays = unpack(data)
        with corruption_as_store_error():
            fields: dict[str, Any] = {name: arrays[name] for name in _DTYPES if name in arrays}
            fields["clients"] = header["clients"]
            if "available" in fields:
                fields["available"] = _bits(fields["available"], header["clients"])
            for name in (*WORDS, "absent"):
                fields[name] = {word: arrays[f"{name}.{place}"] for place, word in enumerate(header[name])}
            fields["absent"] = {name: _bits(mask, header["rounds"]) for name, mask in fields["absent"].items()}
            fields["late"] = _unpacked_late(header.get("late", []), arrays)
            return cls(**fields)

    def __len__(self) -> int:
        return len(self.rounds)

    @property
    def durations(self) -> FloatArray:
        """How long each round lasted, in seconds; one without clients lasts no time."""
        lasted = np.zeros(len(self))
        peopled = np.diff(self.starts) > 0
        if peopled.any():
            lasted[peopled] = np.maximum.reduceat(self.exchange_times, self.starts[:-1][peopled])
        return lasted

    @property
    def turns(self) -> IntArray:
        """How often each client was chosen."""
        return np.bincount(self.chosen, minlength=self.clients).astype(np.int64, copy=False)

    @property
    def chosen_mask(self) -> BoolArray:
        """Who was chosen in which round: one row a round, one column a client."""
        mask = np.zeros((len(self), self.clients), dtype=np.bool_)
        mask[np.repeat(np.arange(len(self)), np.diff(self.starts)), self.chosen] = True
        return mask

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape that the column of this name has, or would have."""
        head = name.partition(".")[0]
        if head == "available":
            return (len(self.rounds), self.clients)
        if head == "starts":
            return (len(self.rounds) + 1,)
        if head == "contexts":
            return (len(self.chosen), self.contexts.shape[-1])
        return (len(self.rounds),) if head in (*PER_ROUND, "rounds", "absent", "widths") else (len(self.chosen),)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _selections(self) -> Iterator[Selection]:
        words = [*self._words("client_reasons"), *self._words("cohort_reasons")]
        for round_, chosen in zip(self.rounds.tolist(), self._by_round("chosen", self.chosen), strict=True):
            yield Selection(round_, chosen, _said(words))

    def _reports(self) -> Iterator[RoundReport]:
        order = slice(None) if self.told is None else self.told
        metrics = self._words("metrics")
        outcomes = None if self.outcomes is None else _OUTCOME_WORDS[self.outcomes[order]]
        columns = zip(
            self.rounds.tolist(),
            self._by_round("chosen", self.chosen[order]),
            self._contexts_by_round(self.contexts[order]),
            self._by_round("exchange_times", self.exchange_times[order]),
            self._by_round("available", self.available),
            self._by_round("outcomes", outcomes),
            self._by_round("losses", None if self.losses is None else self.losses[order]),
            strict=True,
        )
        for round_, clients, contexts, times, available, words, losses in columns:
            yield RoundReport(
                round_,
                clients,
                contexts,
                times,
                available=available,
                outcomes=words,
                losses=losses,
                metrics=_said(metrics),
                late_arrivals=self.late.get(round_),
            )

    def _words(self, name: str) -> list[tuple[str, Iterator[Any]]]:
        return [(word, self._by_round(f"{name}.{word}", column)) for word, column in getattr(self, name).items()]

    def _by_round(self, name: str, column: npt.NDArray[Any] | None) -> Iterator[Any]:
        """What a column says of each round, None where it says nothing."""
        if column is None:
            return iter([None] * len(self))
        starts = self.starts.tolist()
        places: Iterable[Any] = map(slice, starts[:-1], starts[1:])
        if name == "available" or name.startswith(tuple(f"{head}." for head in PER_ROUND)):
            places = range(len(self))
        missing = self.absent[name].tolist() if name in self.absent else [False] * len(self)
        return (None if gone else column[place] for place, gone in zip(places, missing, strict=True))

    def _contexts_by_round(self, contexts: FloatArray) -> Iterator[FloatArray]:
        by_round = self._by_round("contexts", contexts)
        if self.widths is None:
            return by_round
        widths = self.widths.tolist()
        return (rows if len(rows) else np.empty((0, width)) for rows, width in zip(by_round, widths, strict=True))

    def _check_shapes(self) -> None:
        columns = {name: getattr(self, name) for name in _DTYPES}
        for name in (*WORDS, "absent"):
            columns |= {f"{name}.{word}": column for word, column in getattr(self, name).items()}
        for name, column in columns.items():
            if column is not None and column.shape != self.shape_of(name):
                raise StoreError(
                    f"{name} has shape {column.shape}, expected is {self.shape_of(name)}: there are "
                    f"{len(self.rounds)} rounds, {len(self.chosen)} rows and {self.clients} clients"
                )

    def _check_numbers(self) -> None:
        rounds, starts, chosen = self.rounds, self.starts, self.chosen
        if len(rounds) and (rounds[0] < 1 or (np.diff(rounds) < 1).any()):
            raise StoreError("rounds must count upwards from 1 or later, each once: sort them")
        if starts[0] != 0 or starts[-1] != len(chosen) or (np.diff(starts) < 0).any():
            raise StoreError(f"starts must rise from 0 to the number of rows, {len(chosen)}")
        strangers = (chosen < 0) | (chosen >= self.clients)
        refuse_where(strangers, "chosen", chosen, f"is unknown: there are {self.clients} clients", StoreError)
        if self.outcomes is not None:
            unknown = self.outcomes >= len(OUTCOMES)
            refuse_where(unknown, "outcomes", self.outcomes, f"must be below {len(OUTCOMES)}", StoreError)
        if not self.late.keys() <= set(rounds.tolist()):
            raise StoreError(f"late arrivals are told in rounds {sorted(self.late)}, some of which are not there")


def _said(words: list[tuple[str, Iterator[Any]]]) -> dict[str, Any]:
    """The next of what each word says, without the silent ones."""
    said = ((word, next(values)) for word, values in words)
    return {word: value for word, value in said if value is not None}


def _narrowed(numbers: IntArray) -> npt.NDArray[Any]:
    return numbers.astype(np.min_scalar_type(int(numbers.max(initial=0))))


def _bits(packed: npt.NDArray[np.uint8], count: int) -> BoolArray:
    return np.unpackbits(packed, axis=-1, count=count).astype(np.bool_)


def _packed_late(every: list[LateArrivals]) -> dict[str, npt.NDArray[Any]]:
    """Contexts lie flat, for their widths may differ."""
    columns = {f"late.{name}": np.concatenate([getattr(one, name).ravel() for one in every]) for name in _LATE}
    return {"late.shapes": np.array([one.contexts.shape for one in every]), **columns}


def _unpacked_late(rounds: list[int], arrays: Mapping[str, npt.NDArray[Any]]) -> dict[int, LateArrivals]:
    late: dict[int, LateArrivals] = {}
    row = number = 0
    for round_, (count, width) in zip(rounds, arrays.get("late.shapes", np.empty((0, 2), np.int64)), strict=True):
        columns = {name: arrays[f"late.{name}"][row : row + count] for name in _LATE}
        numbers = arrays["late.contexts"][number : number + count * width]
        late[round_] = LateArrivals(**{**columns, "contexts": numbers.reshape(count, width)})
        row, number = row + count, number + count * width
    return late


def _fields_of_parts(parts: Sequence[RoundColumns]) -> Fields:
    """The columns of these parts, one after the other."""
    counts = np.concatenate([np.diff(part.starts) for part in parts])
    widths = np.concatenate([_widths(part) for part in parts])
    width, odd_widths = common_width(widths, counts)
    fields: Fields = {
        "clients": parts[0].clients,
        "rounds": np.concatenate([part.rounds for part in parts]),
        "starts": starts_of(counts),
        "chosen": np.concatenate([part.chosen for part in parts]),
        "contexts": np.concatenate(
            [part.contexts.reshape(len(part.chosen), width) for part in parts if len(part.chosen)]
        )
        if len(counts) and counts.any()
        else np.empty((0, width)),
        "widths": odd_widths,
        "exchange_times": np.concatenate([part.exchange_times for part in parts]),
        "late": {round_: late for part in parts for round_, late in part.late.items()},
        "absent": {},
        "told": _joined_told(parts),
    }
    for name, fill in FILLS.items():
        fields[name] = _joined_column(fields, name, [getattr(part, name) for part in parts], parts, fill)
    for name in WORDS:
        words = dict.fromkeys(word for part in parts for word in getattr(part, name))
        fields[name] = {
            word: _joined_column(
                fields, f"{name}.{word}", [getattr(part, name).get(word) for part in parts], parts, NOTHING
            )
            for word in words
        }
    return fields


def _widths(part: RoundColumns) -> IntArray:
    return np.full(len(part.rounds), part.contexts.shape[1]) if part.widths is None else part.widths


def _joined_told(parts: Sequence[RoundColumns]) -> IntArray | None:
    if all(part.told is None for part in parts):
        return None
    offsets = starts_of([len(part.chosen) for part in parts])
    return np.concatenate(
        [
            offset + (np.arange(len(part.chosen)) if part.told is None else part.told)
            for offset, part in zip(offsets, parts, strict=False)
        ]
    )


def _joined_column(
    fields: Fields, name: str, pieces: Sequence[Array | None], parts: Sequence[RoundColumns], fill: Any
) -> Array | None:
    if all(piece is None for piece in pieces):
        return None
    missing = np.concatenate(
        [
            part.absent.get(name, np.full(len(part.rounds), piece is None))
            for piece, part in zip(pieces, parts, strict=True)
        ]
    )
    if missing.any():
        fields["absent"][name] = missing
    return np.concatenate(
        [
            np.full(part.shape_of(name), fill) if piece is None else piece
            for piece, part in zip(pieces, parts, strict=True)
        ]
    )
