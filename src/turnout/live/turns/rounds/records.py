"""Records of rounds: the open round, and what a closed round changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.live.clock import seconds_since
from turnout.live.turns.records import (
    LateTimes,
    checked_availability,
    pack_event,
    pack_signals,
    reason_arrays,
    unpack_reasons,
    unpack_signals,
)
from turnout.storage.encoding.limits import unpack_mask
from turnout.storage.encoding.packing import corruption_as_store_error, pack, unpack

#: The kind of the event in which a round is closed.
CLOSE = "close"
#: The fields of an open round that are stored as they are.
_PLAIN_FIELDS = ("round", "target_size", "deadline", "opened", "monotonic", "boot", "joined")


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
        late: The actual times of clients that were late in earlier rounds.
        losses: The loss of each client, NaN where none was reported; None if there is no loss at all.
        signals: The other signals that were reported, by name; NaN for a client that reported none.
    """

    round: int
    rows: IntArray
    contexts: FloatArray
    seconds: FloatArray
    kinds: IntArray
    available: BoolArray
    late: LateTimes
    losses: FloatArray | None = None
    signals: Mapping[str, FloatArray] = field(default_factory=dict)

    def without_contexts(self) -> ClosedRound:
        """Returns the round with unknown contexts."""
        return replace(self, contexts=np.full_like(self.contexts, np.nan))

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


def pack_open(opened: OpenRound) -> bytes:
    """Returns the data of an open round."""
    header: dict[str, Any] = {name: getattr(opened, name) for name in _PLAIN_FIELDS}
    header |= {"clients": len(opened.available), "reasons": list(opened.reasons)}
    arrays: dict[str, npt.NDArray[Any]] = {
        "rows": opened.rows,
        "contexts": opened.contexts,
        "available": np.packbits(opened.available),
        **reason_arrays(opened.reasons),
    }
    return pack(header, arrays)


def unpack_open(data: bytes) -> OpenRound:
    """Returns the open round that `pack_open` packed."""
    header, arrays = unpack(data)
    with corruption_as_store_error():
        return OpenRound(
            **{name: header[name] for name in _PLAIN_FIELDS} | {"joined": tuple(header["joined"])},
            rows=arrays["rows"],
            contexts=arrays["contexts"],
            available=unpack_mask(arrays["available"], header["clients"]),
            reasons=unpack_reasons(header, arrays),
        )


def pack_closed(round: ClosedRound, *, opened: str, closed: str, target_size: int) -> tuple[bytes, bytes]:
    """Returns the data of the event of a closed round, and the packed availability of the clients.

    Args:
        round: The closed round.
        opened: The time of the selection, in ISO format.
        closed: The time of the close, in ISO format.
        target_size: The number of updates that the round needed.
    """
    arrays: dict[str, npt.NDArray[Any]] = {
        "rows": round.rows,
        "contexts": round.contexts,
        "seconds": round.seconds,
        "kinds": round.kinds.astype(np.int8),
        **round.late.to_arrays(),
    }
    if round.losses is not None:
        arrays["losses"] = round.losses
    names, signals = pack_signals(round.signals)
    header = {"round": round.round, "opened": opened, "closed": closed, "target_size": target_size}
    return pack_event({**header, **names}, {**arrays, **signals}, round.available)


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
            LateTimes.from_arrays(arrays),
            arrays.get("losses"),
            unpack_signals(header, arrays),
        )
    return closed, header
