"""Outcomes of turns, and records of a fleet's file, as values and as bytes: rounds, turns, offers and events."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import StoreError
from turnout.kernel.arrays import MAX_CLIENTS, BoolArray, FloatArray, IntArray
from turnout.storage.encoding.limits import check_clients, inflate, unpack_mask
from turnout.storage.encoding.packing import corruption_as_store_error, pack, parse_stored, unpack

#: "arrived": the update came in time. "redundant": it arrived after enough others. "cut_off": it had not arrived when
#: enough others had, which does not count as a miss. "late": it had not arrived when the round was closed without
#: enough updates. "failed": the client reported a failure.
KINDS = ("arrived", "redundant", "cut_off", "late", "failed")
#: The index of this outcome in `KINDS`.
ARRIVED, REDUNDANT, CUT_OFF, LATE, FAILED = range(len(KINDS))
#: The update arrived before the round was closed.
RETURNED = (KINDS[ARRIVED], KINDS[REDUNDANT])
#: The update had not arrived when the round was closed; its actual time may be reported later.
STILL_OUT = (KINDS[CUT_OFF], KINDS[LATE])
#: Misses, which lower the reliability of the client.
MISSED = (KINDS[LATE], KINDS[FAILED])
#: The outcome that is reported to the policy, by index of the kind.
OUTCOME_OF_KIND = np.array(["arrived", "late", "late", "late", "failed"])
#: Availability is compressed if so many bytes at its beginning then take less than this share of their size.
MASK_SAMPLE, MAX_COMPRESSED = 4096, 0.75


def has_context(contexts: FloatArray) -> BoolArray:
    """Returns which rows of an array are contexts; the others are NaN, because they are not known."""
    unknown: BoolArray = np.asarray(np.isnan(contexts).any(axis=1))
    return ~unknown


@dataclass(frozen=True, slots=True, eq=False)
class LateTimes:
    """The actual times of clients that were late in earlier turns; they were reported since.

    Attributes:
        rounds: The round or decision of each turn.
        rows: The row of each client.
        seconds: The time that it reported.
    """

    rounds: IntArray
    rows: IntArray
    seconds: FloatArray

    @classmethod
    def of(cls, turns: Sequence[Turn]) -> LateTimes:
        """Returns the times of these turns."""
        return cls(
            np.array([turn.round for turn in turns], dtype=np.int64),
            np.array([turn.row for turn in turns], dtype=np.int64),
            np.array([turn.late_seconds for turn in turns], dtype=np.float64),
        )

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> LateTimes:
        """Returns the times that `to_arrays` returned, from the arrays of an event."""
        return cls(arrays["late_rounds"], arrays["late_rows"], arrays["late_seconds"])

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Returns the arrays that an event stores."""
        return {"late_rounds": self.rounds, "late_rows": self.rows, "late_seconds": self.seconds}

    @property
    def turns(self) -> list[tuple[int, int]]:
        """The round and the row of each turn."""
        return list(zip(self.rounds.tolist(), self.rows.tolist(), strict=True))

    def __iter__(self) -> Iterator[tuple[int, int, float]]:
        return zip(self.rounds.tolist(), self.rows.tolist(), self.seconds.tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn of one client in one round.

    Attributes:
        round: The number of the round.
        row: The row of the client.
        id: The id of the client.
        kind: The outcome, one of KINDS; None while none was reported.
        seconds: The exchange time, or the time after which the round was closed without the client.
        why: The reason of a failure.
        at: When the outcome was recorded, in ISO format.
        late_seconds: The time that a late client reported. What is learned from it is at least `seconds`.
        late_at: When that was recorded.
        folded: The round with which the actual time was learned.
        loss: The mean training loss, if it was reported, in time or late.
        signals: The declared signals that were reported with values in their ranges, by name; None without any.
    """

    round: int
    row: int
    id: str
    kind: str | None = None
    seconds: float | None = None
    why: str | None = None
    at: str | None = None
    late_seconds: float | None = None
    late_at: str | None = None
    folded: int | None = None
    loss: float | None = None
    signals: Mapping[str, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the turn as plain values for JSON; the outcome is "out" while none was reported."""
        return {
            "round": self.round,
            "client": self.id,
            "outcome": self.kind or "out",
            "seconds": self.seconds,
            "loss": self.loss,
            "signals": self.signals,
            "why": self.why,
            "at": self.at,
            "late_seconds": self.late_seconds,
            "late_at": self.late_at,
        }

    @property
    def checksum(self) -> int:
        """The checksum of the turn."""
        columns = (self.round, self.row, self.id, self.kind, self.seconds, self.why, self.at)
        reported = (self.loss, self.stored_signals)
        return _checksum((*columns, self.late_seconds, self.late_at, self.folded, *reported))

    @property
    def stored_signals(self) -> str | None:
        """The signals as they are stored."""
        return None if self.signals is None else json.dumps(self.signals, sort_keys=True)


def turn_from_row(row: Sequence[Any]) -> tuple[Turn, bool]:
    """Returns the turn of a row of the table of turns, and whether it matches the checksum that is stored with it."""
    *columns, checksum = row
    is_intact, signals = _checksum(tuple(columns)) == checksum, columns.pop()
    turn = Turn(*columns)
    return (turn if signals is None else replace(turn, signals=parse_stored(signals))), is_intact


def _checksum(columns: tuple[object, ...]) -> int:
    return zlib.crc32(repr(columns).encode())


def signals_of(turns: Sequence[Turn]) -> dict[str, FloatArray]:
    """Returns the signals of these turns by name, with NaN where one was not reported."""
    names = sorted({name for turn in turns for name in turn.signals or ()})
    return {name: np.array([(turn.signals or {}).get(name, np.nan) for turn in turns]) for name in names}


def signals_at(signals: Mapping[str, FloatArray], index: int) -> dict[str, float] | None:
    """Returns the signals of one turn, as the turn has them."""
    own = {name: float(values[index]) for name, values in signals.items()}
    return {name: value for name, value in own.items() if not np.isnan(value)} or None


def pack_signals(signals: Mapping[str, FloatArray]) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Returns what the header and the arrays of an event store of signals; nothing if there are none."""
    return ({"signals": list(signals)}, {"signals": np.column_stack(list(signals.values()))}) if signals else ({}, {})


def unpack_signals(header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, FloatArray]:
    """Returns the signals that `pack_signals` packed."""
    return {name: arrays["signals"][:, index].copy() for index, name in enumerate(header.get("signals", ()))}


@dataclass(frozen=True, slots=True, eq=False)
class RecordedOffer:
    """The offer from which a cohort was selected.

    Attributes:
        round: The number of the round.
        rows: The rows of the cohort.
        reasons: The policy's reasons of the selection: arrays by name.
        available: Which clients were available, by row; in fleets too large to record this, the cohort.
        contexts: The contexts of the available clients, in the order of their rows; None in fleets too large to record
            this.
    """

    round: int
    rows: IntArray
    reasons: Mapping[str, FloatArray]
    available: BoolArray
    contexts: FloatArray | None

    def whole_contexts(self) -> FloatArray | None:
        """Returns one row per client, with zeros for clients that were not available; None if none are recorded."""
        if self.contexts is None:
            return None
        contexts = np.zeros((len(self.available), self.contexts.shape[1]), order="F")
        contexts[self.available] = self.contexts
        return contexts


def pack_offer(offer: RecordedOffer) -> tuple[bytes, bytes]:
    """Returns the data of an offer, and the packed availability of the clients."""
    header: dict[str, Any] = {"round": offer.round, "clients": len(offer.available)}
    header["reasons"] = list(offer.reasons)
    arrays: dict[str, npt.NDArray[Any]] = {"rows": offer.rows, **reason_arrays(offer.reasons)}
    if offer.contexts is not None:
        header["features"] = offer.contexts.shape[1]
        arrays |= {f"context.{index}": _as_bytes_if_exact(column) for index, column in enumerate(offer.contexts.T)}
    return pack(header, arrays), pack_availability(offer.available)


def unpack_offer(data: bytes, availability: bytes) -> RecordedOffer:
    """Returns the offer that `pack_offer` packed."""
    with corruption_as_store_error():
        header, arrays = unpack(data)
        contexts = [arrays[f"context.{index}"].astype(np.float64) for index in range(header.get("features", 0))]
        reasons, available = unpack_reasons(header, arrays), unpack_availability(availability, header["clients"])
        of_available = np.column_stack(contexts) if contexts else None
        return RecordedOffer(header["round"], arrays["rows"], reasons, available, of_available)


def pack_availability(available: BoolArray) -> bytes:
    """Returns one bit per client, compressed; in large fleets only if it gets much smaller, because that is slow."""
    bits = np.packbits(available).tobytes()
    sample = bits[:MASK_SAMPLE]
    is_worthwhile = len(bits) == len(sample) or len(zlib.compress(sample, 1)) < MAX_COMPRESSED * len(sample)
    return zlib.compress(bits, 1 if is_worthwhile else 0)


def unpack_availability(availability: bytes, clients: int) -> BoolArray:
    """Returns which clients are available, from the bits that `pack_availability` packed."""
    bits = inflate(availability, check_clients(clients) // 8 + 1)
    return unpack_mask(np.frombuffer(bits, dtype=np.uint8), clients)


def _as_bytes_if_exact(column: FloatArray) -> npt.NDArray[Any]:
    """Returns a column as bytes if it holds only integers from 0 to 255, such as flags, so that nothing is lost."""
    if len(column) and column.min() >= 0 and column.max() <= 255:
        small = column.astype(np.uint8)
        if np.array_equal(small, column) and not np.signbit(column).any():
            return small
    return np.ascontiguousarray(column)


def was_available(availability: bytes, row: int) -> bool:
    """Returns whether a client is available according to packed availability."""
    with corruption_as_store_error():
        bits = inflate(availability, MAX_CLIENTS // 8)
    return row // 8 < len(bits) and bool(bits[row // 8] >> (7 - row % 8) & 1)


def pack_event(
    header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], available: BoolArray
) -> tuple[bytes, bytes]:
    """Returns the data of an event, with a digest of the availability of the clients, and the packed availability."""
    availability = pack_availability(available)
    digest = hashlib.sha256(availability).hexdigest()
    return pack({**header, "clients": len(available), "mask": digest}, arrays), availability


def checked_availability(header: Mapping[str, Any], availability: bytes | None, what: str) -> BoolArray:
    """Returns which clients were available at an event.

    Args:
        header: The header of the event, with the number of clients and the digest of the packed availability.
        availability: The packed availability; None if it is not stored: then no client is available.
        what: What it is, for the error.

    Raises:
        StoreError: If the availability does not match its digest.
    """
    if availability is None:
        return np.zeros(check_clients(header["clients"]), dtype=np.bool_)
    if hashlib.sha256(as_bytes(availability)).hexdigest() != header["mask"]:
        raise StoreError(f"{what} does not match its digest: restore the file from a backup")
    return unpack_availability(availability, header["clients"])


def reason_arrays(reasons: Mapping[str, FloatArray]) -> dict[str, npt.NDArray[Any]]:
    """Returns the reasons of a selection as they are stored; the header has their names."""
    return {f"reason.{name}": np.asarray(value) for name, value in reasons.items()}


def unpack_reasons(header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, FloatArray]:
    """Returns the reasons that `reason_arrays` returned."""
    return {name: arrays[f"reason.{name}"] for name in header["reasons"]}


def digest_of(before: bytes, kind: str, data: bytes) -> bytes:
    """Returns the digest of an event, which covers all earlier events through the digest `before`."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (before, kind, b"\0", data):  # one by one: data may be too large to copy
        digest.update(as_bytes(part))
    return digest.digest()


def as_bytes(stored: Any) -> bytes:
    """Returns a stored value as bytes; a value of a wrong type, in a damaged file, then has another digest."""
    return stored if isinstance(stored, bytes) else str(stored).encode()


def offer_digest(round: int, available: bytes, data: bytes) -> bytes:
    """Returns the digest of a stored offer."""
    return digest_of(as_bytes(available), str(round), data)


def settings_digest(text: str) -> str:
    """Returns the digest of the stored settings, in hexadecimal."""
    return digest_of(b"", "settings", text.encode()).hex()
