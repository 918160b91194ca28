"""Records of rounds: the open round, and what closing it changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.live.clock import seconds_since
from turnout.live.turns import records
from turnout.storage.encoding.limits import unpack_mask
from turnout.storage.encoding.packing import corruption_as_store_error, pack, unpack

#: The kind of the event in which a round is closed.
CLOSE = "close"
#: The fields of an open round that are stored as they are.
_PLAIN_FIELDS = ("round", "target_size", "deadline", "opened", "monotonic", "boot", "joined")
#: The reason that is recorded for clients that had not reported when a round without a known duration was closed.
UNKNOWN_TIME = "it did not report, and the time since the selection is unknown"


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
    late: records.LateTimes
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
        **records.reason_arrays(opened.reasons),
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
            reasons=records.unpack_reasons(header, arrays),
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
    names, signals = records.pack_signals(round.signals)
    header = {"round": round.round, "opened": opened, "closed": closed, "target_size": target_size}
    return records.pack_event({**header, **names}, {**arrays, **signals}, round.available)


def unpack_closed(data: bytes, availability: bytes | None) -> tuple[ClosedRound, dict[str, Any]]:
    """Returns the round that `pack_closed` packed, and its header; without availability, no client is available."""
    header, arrays = unpack(data)
    with corruption_as_store_error():
        available = records.checked_availability(header, availability, f"the availability in round {header['round']}")
        closed = ClosedRound(
            header["round"],
            arrays["rows"],
            arrays["contexts"],
            arrays["seconds"],
            arrays["kinds"].astype(np.int64),
            available,
            records.LateTimes.from_arrays(arrays),
            arrays.get("losses"),
            records.unpack_signals(header, arrays),
        )
    return closed, header


def build_closed_round(
    opened: OpenRound, turns: Sequence[records.Turn], late_turns: Sequence[records.Turn], after: float | None
) -> tuple[ClosedRound, list[records.Turn]]:
    """Returns the closed round, and the turns that it changes: those of clients that are missing or redundant.

    The first `opened.target_size` clients that returned are kept, ties broken by the lower row. If enough returned, a
    missing client is cut off by the last of them. Otherwise it is late.

    Args:
        opened: The open round.
        turns: Its turns.
        late_turns: Turns of earlier rounds whose late times are learned with this round.
        after: The time in seconds after which missing clients are late if the round has no deadline; None for the time
            since the round was opened. If that is unknown, missing clients have failed.
    """
    arrived = sorted((turn for turn in turns if turn.kind == "arrived"), key=lambda turn: (turn.seconds, turn.row))
    kept, redundant = arrived[: opened.target_size], {turn.row for turn in arrived[opened.target_size :]}
    duration = max((turn.seconds or 0.0 for turn in kept), default=0.0)
    # If everybody who has not returned has failed, the server did not wait for the deadline.
    is_waiting = not kept or any(turn.kind is None for turn in turns)
    missing = "late" if len(kept) < opened.target_size else "cut_off"
    if len(kept) < opened.target_size and is_waiting:
        limit = float(opened.deadline or after or opened.elapsed)  # the checksum of a turn is that of a float
        if math.isnan(limit):  # nothing can be learned from how long the missing clients took
            limit, missing = 0.0, "failed"
        duration = max(duration, limit)
    finished = {turn.row: _finish_turn(turn, duration, missing, turn.row in redundant) for turn in turns}
    in_order = [finished[row] for row in opened.rows.tolist()]
    losses = np.array([np.nan if turn.loss is None else turn.loss for turn in in_order], dtype=np.float64)
    closed = ClosedRound(
        round=opened.round,
        rows=opened.rows,
        contexts=opened.contexts,
        seconds=np.array([_seconds(turn, duration, is_waiting) for turn in in_order], dtype=np.float64),
        kinds=np.array([records.KINDS.index(str(turn.kind)) for turn in in_order], dtype=np.int64),
        available=opened.available,
        late=records.LateTimes.of(late_turns),
        losses=None if np.isnan(losses).all() else losses,
        signals=records.signals_of(in_order),
    )
    return closed, [finished[turn.row] for turn in turns if finished[turn.row] is not turn]


def _seconds(turn: records.Turn, duration: float, is_waiting: bool) -> float:
    """Returns the exchange time of a turn, or how long the server waited for the client.

    When a client failed is not recorded: it counts with the whole round if others were awaited until the end, otherwise
    with 0, because the round then ended with the last update.
    """
    if turn.seconds is not None:
        return turn.seconds
    return duration if is_waiting or turn.kind != "failed" else 0.0


def _finish_turn(turn: records.Turn, duration: float, missing: str, redundant: bool) -> records.Turn:
    if turn.kind is None and missing == "failed":
        return replace(turn, kind=missing, why=UNKNOWN_TIME)
    if turn.kind is None:
        return replace(turn, kind=missing, seconds=duration)
    return replace(turn, kind="redundant") if redundant else turn
