"""Records of a fleet's file, as values and as bytes: rounds, turns, offers and events."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import StoreError
from turnout.kernel.arrays import MAX_CLIENTS, BoolArray, FloatArray, IntArray
from turnout.live.clock import seconds_since
from turnout.storage.encoding.limits import check_clients, inflate, unpack_mask
from turnout.storage.encoding.packing import corruption_as_store_error, pack, unpack

#: The kind of the event in which a round is closed.
CLOSE = "close"
#: Availability is compressed if so many bytes at its beginning then take less than this share of their size.
MASK_SAMPLE, MAX_COMPRESSED = 4096, 0.75


def has_context(contexts: FloatArray) -> BoolArray:
    """Returns which rows of an array are contexts; the others are NaN, because they are not known."""
    unknown: BoolArray = np.asarray(np.isnan(contexts).any(axis=1))
    return ~unknown


@dataclass(frozen=True, slots=True, eq=False)
class ClosedRound:
    """Everything that a closed round changes.

    Attributes:
        round: The number of the round.
        rows: The rows of the cohort.
        contexts: The contexts of the cohort, one row per client; NaN if they are not known.
        seconds: The exchange time of each client, or the time after which the round was closed without it.
        kinds: The outcome of each client, as an index into KINDS.
        available: Which clients were available, by row.
        late_rounds: The earlier rounds of late clients whose actual times were reported since.
        late_rows: The rows of these clients.
        late_seconds: Their actual times.
        losses: The loss of each client, NaN where none was reported; None if there is no loss at all.
    """

    round: int
    rows: IntArray
    contexts: FloatArray
    seconds: FloatArray
    kinds: IntArray
    available: BoolArray
    late_rounds: IntArray
    late_rows: IntArray
    late_seconds: FloatArray
    losses: FloatArray | None = None

    def without_contexts(self) -> ClosedRound:
        """Returns the round with unknown contexts."""
        return replace(self, contexts=np.full_like(self.contexts, np.nan))

    @property
    def late_turns(self) -> list[tuple[int, int]]:
        """The round and the row of each late turn whose actual time was reported since."""
        return list(zip(self.late_rounds.tolist(), self.late_rows.tolist(), strict=True))

    @property
    def reported_losses(self) -> FloatArray:
        """One loss per client, NaN where none was reported."""
        return np.full(len(self.rows), np.nan) if self.losses is None else self.losses


@dataclass(frozen=True, slots=True, eq=False)
class OpenRound:
    """A round whose cohort was selected and which is not closed yet.

    Attributes:
        round: The number of the round.
        target_size: The number of updates that the round needs.
        deadline: The deadline in seconds, or None.
        opened: The time of the selection by the wall clock, in ISO format.
        monotonic: The time of the selection by the monotonic clock.
        boot: The boot id of the machine at that time.
        joined: The ids of the clients that are new in this round; they stay only if it is closed.
        rows: The rows of the cohort.
        contexts: The contexts of the cohort, one row per client; NaN if they are not known.
        available: Which clients were available, by row.
        reasons: The policy's reasons of the selection: arrays by name.
    """

    round: int
    target_size: int
    deadline: float | None
    opened: str
    monotonic: float
    boot: str
    joined: tuple[str, ...]
    rows: IntArray
    contexts: FloatArray
    available: BoolArray
    reasons: Mapping[str, FloatArray]

    def without_contexts(self) -> OpenRound:
        """Returns the round with unknown contexts."""
        return replace(self, contexts=np.full_like(self.contexts, np.nan))

    @property
    def elapsed(self) -> float:
        """The seconds since the selection; NaN if unknown, because the clock was changed and the machine restarted."""
        return seconds_since(self.monotonic, self.boot, self.opened)


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
        late_seconds: The actual time of a client that was late, if it was reported.
        late_at: When that was recorded.
        folded: The round with which the actual time was learned.
        loss: The mean training loss, if it was reported, in time or late.
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

    def to_dict(self) -> dict[str, Any]:
        """Returns the turn as plain values for JSON; the outcome is "out" while none was reported."""
        return {
            "round": self.round,
            "client": self.id,
            "outcome": self.kind or "out",
            "seconds": self.seconds,
            "loss": self.loss,
            "why": self.why,
            "at": self.at,
            "late_seconds": self.late_seconds,
            "late_at": self.late_at,
        }

    @property
    def checksum(self) -> int:
        """The checksum of the turn."""
        columns = (self.round, self.row, self.id, self.kind, self.seconds, self.why, self.at)
        return zlib.crc32(repr((*columns, self.late_seconds, self.late_at, self.folded, self.loss)).encode())


def turn_from_row(row: Sequence[Any]) -> tuple[Turn, Any]:
    """Returns the turn of a row of the table of turns, and the checksum that is stored with it."""
    *columns, checksum = row
    return Turn(*columns), checksum


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
    arrays: dict[str, npt.NDArray[Any]] = {
        "rows": offer.rows,
        **{f"reason.{name}": np.asarray(value) for name, value in offer.reasons.items()},
    }
    if offer.contexts is not None:
        header["features"] = offer.contexts.shape[1]
        arrays |= {f"context.{index}": _as_bytes_if_exact(column) for index, column in enumerate(offer.contexts.T)}
    return pack(header, arrays), pack_availability(offer.available)


def unpack_offer(data: bytes, availability: bytes) -> RecordedOffer:
    """Returns the offer that `pack_offer` packed."""
    with corruption_as_store_error():
        header, arrays = unpack(data)
        contexts = [arrays[f"context.{index}"].astype(np.float64) for index in range(header.get("features", 0))]
        return RecordedOffer(
            header["round"],
            arrays["rows"],
            {name: arrays[f"reason.{name}"] for name in header["reasons"]},
            unpack_availability(availability, header["clients"]),
            np.column_stack(contexts) if contexts else None,
        )


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


def pack_open(opened: OpenRound) -> bytes:
    """Returns the data of an open round."""
    header = {
        "round": opened.round,
        "target_size": opened.target_size,
        "deadline": opened.deadline,
        "opened": opened.opened,
        "monotonic": opened.monotonic,
        "boot": opened.boot,
        "joined": list(opened.joined),
        "clients": len(opened.available),
        "reasons": list(opened.reasons),
    }
    arrays: dict[str, npt.NDArray[Any]] = {
        "rows": opened.rows,
        "contexts": opened.contexts,
        "available": np.packbits(opened.available),
        **{f"reason.{name}": np.asarray(value) for name, value in opened.reasons.items()},
    }
    return pack(header, arrays)


def unpack_open(data: bytes) -> OpenRound:
    """Returns the open round that `pack_open` packed."""
    header, arrays = unpack(data)
    with corruption_as_store_error():
        return OpenRound(
            round=header["round"],
            target_size=header["target_size"],
            deadline=header["deadline"],
            opened=header["opened"],
            monotonic=header["monotonic"],
            boot=header["boot"],
            joined=tuple(header["joined"]),
            rows=arrays["rows"],
            contexts=arrays["contexts"],
            available=unpack_mask(arrays["available"], header["clients"]),
            reasons={name: arrays[f"reason.{name}"] for name in header["reasons"]},
        )


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


def pack_closed(round: ClosedRound, *, opened: str, closed: str, target_size: int) -> tuple[bytes, bytes]:
    """Returns the data of the event of a closed round, and the packed availability of the clients.

    Args:
        round: The closed round.
        opened: The time of the selection, in ISO format.
        closed: The time of the close, in ISO format.
        target_size: The number of updates that the round needed.
    """
    availability = pack_availability(round.available)
    arrays: dict[str, npt.NDArray[Any]] = {
        "rows": round.rows,
        "contexts": round.contexts,
        "seconds": round.seconds,
        "kinds": round.kinds.astype(np.int8),
        "late_rounds": round.late_rounds,
        "late_rows": round.late_rows,
        "late_seconds": round.late_seconds,
    }
    if round.losses is not None:
        arrays["losses"] = round.losses
    header = {
        "round": round.round,
        "clients": len(round.available),
        "mask": hashlib.sha256(availability).hexdigest(),
        "opened": opened,
        "closed": closed,
        "target_size": target_size,
    }
    return pack(header, arrays), availability


def unpack_closed(data: bytes, availability: bytes | None) -> tuple[ClosedRound, dict[str, Any]]:
    """Returns the round that `pack_closed` packed, and its header; without availability, no client is available."""
    header, arrays = unpack(data)
    with corruption_as_store_error():
        available = checked_availability(header, availability, f"the availability in round {header['round']}")
        closed = ClosedRound(
            header["round"],
            arrays["rows"],
            arrays["contexts"],
            arrays["seconds"],
            arrays["kinds"].astype(np.int64),
            available,
            arrays["late_rounds"],
            arrays["late_rows"],
            arrays["late_seconds"],
            arrays.get("losses"),
        )
    return closed, header
