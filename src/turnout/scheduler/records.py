"""What stands in the file, as values and as bytes: rounds, turns, and events."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import StoreError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.scheduler.clock import seconds_since
from turnout.store.packing import corruption_as_store_error, pack, unpack

SEAL_PLACE = 11  # columns of a turn, up to its seal


@dataclass(frozen=True, slots=True, eq=False)
class ClosedRound:
    """All that a closed round changes. `kinds` are indices into KINDS; late_* are true times of earlier late clients.

    `losses`: NaN of who told none; None if nobody told any.
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

    @property
    def reported_losses(self) -> FloatArray:
        """One a client, NaN of who told none."""
        return np.full(len(self.rows), np.nan) if self.losses is None else self.losses


@dataclass(frozen=True, slots=True, eq=False)
class OpenRound:
    """A round that was handed out. `joined`: who is new in it, and stays only if it is closed."""

    round: int
    wanted: int
    deadline: float | None
    opened: str
    monotonic: float
    boot: str
    joined: tuple[str, ...]
    rows: IntArray
    contexts: FloatArray
    available: BoolArray
    reasons: Mapping[str, FloatArray]

    @property
    def elapsed(self) -> float:
        """Seconds since it was handed out."""
        return seconds_since(self.monotonic, self.boot, self.opened)


@dataclass(frozen=True, slots=True)
class Turn:
    """One client in one round; `kind` is None as long as nothing was heard of it.

    `loss` came with the report, in time or late.
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

    @property
    def seal(self) -> int:
        """A checksum of what was reported."""
        told = (self.round, self.row, self.id, self.kind, self.seconds, self.why, self.at)
        loss = () if self.loss is None else (self.loss,)  # without one it is the seal of format 1
        return zlib.crc32(repr((*told, self.late_seconds, self.late_at, self.folded, *loss)).encode())


def turn_of(found: Sequence[Any]) -> tuple[Turn, Any]:
    """A turn as it stands in the file, and its seal; the loss is behind the seal, and format 1 has none."""
    *told, seal = found[:SEAL_PLACE]
    return Turn(*told, *found[SEAL_PLACE:]), seal


@dataclass(frozen=True, slots=True, eq=False)
class RecordedOffer:
    """What a choice was made from. `available`, `contexts`: of all volunteers, the latter in the order of their rows.

    Where that was too much to keep `contexts` is None, and `available` are the chosen.
    """

    round: int
    rows: IntArray
    reasons: Mapping[str, FloatArray]
    available: BoolArray
    contexts: FloatArray | None

    def whole_contexts(self) -> FloatArray | None:
        """One row a client, zeros of who did not volunteer."""
        if self.contexts is None:
            return None
        contexts = np.zeros((len(self.available), self.contexts.shape[1]), order="F")
        contexts[self.available] = self.contexts
        return contexts


def pack_offered(offered: RecordedOffer) -> tuple[bytes, bytes]:
    """What was offered as bytes, and who volunteered."""
    header: dict[str, Any] = {"round": offered.round, "clients": len(offered.available)}
    header["reasons"] = list(offered.reasons)
    arrays: dict[str, npt.NDArray[Any]] = {
        "rows": offered.rows,
        **{f"reason.{name}": np.asarray(value) for name, value in offered.reasons.items()},
    }
    if offered.contexts is not None:
        header["features"] = offered.contexts.shape[1]
        arrays |= {f"context.{place}": _narrowed(column) for place, column in enumerate(offered.contexts.T)}
    return pack(header, arrays), zlib.compress(np.packbits(offered.available).tobytes(), 1)


def unpack_offered(data: bytes, mask: bytes) -> RecordedOffer:
    """What pack_offered was given."""
    with corruption_as_store_error():
        header, arrays = unpack(data)
        contexts = [arrays[f"context.{place}"].astype(np.float64) for place in range(header.get("features", 0))]
        bits = np.frombuffer(zlib.decompress(mask), dtype=np.uint8)
        return RecordedOffer(
            header["round"],
            arrays["rows"],
            {name: arrays[f"reason.{name}"] for name in header["reasons"]},
            np.unpackbits(bits, count=header["clients"]).astype(np.bool_),
            np.column_stack(contexts) if contexts else None,
        )


def _narrowed(column: FloatArray) -> npt.NDArray[Any]:
    """Small whole numbers, such as 0 and 1, as bytes; equal to the bit when they are numbers again."""
    if len(column) and column.min() >= 0 and column.max() <= 255:
        small = column.astype(np.uint8)
        if np.array_equal(small, column) and not np.signbit(column).any():
            return small
    return np.ascontiguousarray(column)


def volunteered(mask: bytes, row: int) -> bool:
    """Whether this client is among those of a packed mask."""
    with corruption_as_store_error():
        bits = zlib.decompress(mask)
    return row // 8 < len(bits) and bool(bits[row // 8] >> (7 - row % 8) & 1)


def pack_open(opened: OpenRound) -> bytes:
    """An open round as bytes."""
    header = {
        "round": opened.round,
        "wanted": opened.wanted,
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
    """What pack_open was given."""
    header, arrays = unpack(data)
    return OpenRound(
        round=header["round"],
        wanted=header["wanted"],
        deadline=header["deadline"],
        opened=header["opened"],
        monotonic=header["monotonic"],
        boot=header["boot"],
        joined=tuple(header["joined"]),
        rows=arrays["rows"],
        contexts=arrays["contexts"],
        available=np.unpackbits(arrays["available"], count=header["clients"]).astype(np.bool_),
        reasons={name: arrays[f"reason.{name}"] for name in header["reasons"]},
    )


def digest_of(before: bytes, kind: str, data: bytes) -> bytes:
    """Seals an event and, through `before`, all earlier ones."""
    return hashlib.blake2b(b"".join(map(as_bytes, (before, kind, b"\0", data))), digest_size=16).digest()


def as_bytes(stored: Any) -> bytes:
    """What should be bytes or a word; damage may have made anything of it, which then has another digest."""
    return stored if isinstance(stored, bytes) else str(stored).encode()


def pack_closed(round_: ClosedRound, *, opened: str, closed: str, wanted: int) -> tuple[bytes, bytes]:
    """A closed round as the data of its event, and who was available as its mask."""
    mask = zlib.compress(np.packbits(round_.available).tobytes(), 1)
    arrays: dict[str, npt.NDArray[Any]] = {
        "rows": round_.rows,
        "contexts": round_.contexts,
        "seconds": round_.seconds,
        "kinds": round_.kinds.astype(np.int8),
        "late_rounds": round_.late_rounds,
        "late_rows": round_.late_rows,
        "late_seconds": round_.late_seconds,
    }
    if round_.losses is not None:
        arrays["losses"] = round_.losses
    told = {
        "round": round_.round,
        "clients": len(round_.available),
        "mask": hashlib.sha256(mask).hexdigest(),
        "opened": opened,
        "closed": closed,
        "wanted": wanted,
    }
    return pack(told, arrays), mask


def unpack_closed(data: bytes, mask: bytes | None) -> tuple[ClosedRound, dict[str, Any]]:
    """What pack_closed was given; without its mask nobody counts as available."""
    header, arrays = unpack(data)
    available = np.zeros(header["clients"], dtype=np.bool_)
    if mask is not None:
        if hashlib.sha256(as_bytes(mask)).hexdigest() != header["mask"]:
            raise StoreError(f"who was available in round {header['round']} is not what was written: restore a backup")
        bits = np.frombuffer(zlib.decompress(mask), dtype=np.uint8)
        available = np.unpackbits(bits, count=header["clients"]).astype(np.bool_)
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


def without(kind: str, data: bytes, row: int, client: str, name: str) -> bytes:
    """An event without what a client told; a snapshot has taken its place for whoever folds."""
    if kind == "join":
        ids = json.loads(data)
        return json.dumps([name if one == client else one for one in ids], ensure_ascii=False).encode()
    if kind != "close":
        return data
    header, arrays = unpack(data)
    for rows, values in (("rows", ("contexts", "seconds")), ("late_rows", ("late_seconds",))):
        mine = arrays[rows] == row
        for value in values:
            arrays[value] = arrays[value].copy()
            arrays[value][mine] = 0.0
    if "losses" in arrays:
        arrays["losses"] = np.where(arrays["rows"] == row, np.nan, arrays["losses"])
    return pack(header, arrays)
