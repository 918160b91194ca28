"""Records of turns without rounds: what one call of `fill` changes, and the turns that are running."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.live.clock import seconds_since
from turnout.live.turns.records import LateTimes, checked_availability, pack_event, pack_signals, unpack_signals
from turnout.storage.encoding.packing import corruption_as_store_error, pack, unpack

#: The kind of the event.
FILL = "fill"


@dataclass(frozen=True, slots=True, eq=False)
class EndedTurns:
    """Turns that have ended since the last fill, in the order of their decisions.

    Attributes:
        decisions: The decision that gave each turn.
        rows: The row of each client.
        seconds: The exchange time; the deadline of a late client, or the time until a client failed.
        kinds: The outcome, as an index into KINDS.
        losses: The loss, NaN where none was reported.
        signals: The other signals that were reported, by name; NaN where none was.
    """

    decisions: IntArray
    rows: IntArray
    seconds: FloatArray
    kinds: IntArray
    losses: FloatArray
    signals: Mapping[str, FloatArray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class FilledSlots:
    """Everything that one call of `fill` changes: turns end, then turns are given, one decision after the other.

    Attributes:
        first: The number of the first decision.
        rows: The client of each decision.
        contexts: The context of each client; NaN if it is not known.
        present: Which clients were available or training, by row; the same for all decisions of a call.
        ended: The turns that have ended.
        late: The actual times of clients that were late in earlier turns.
        at: When the slots were filled, in ISO format.
    """

    first: int
    rows: IntArray
    contexts: FloatArray
    present: BoolArray
    ended: EndedTurns
    late: LateTimes
    at: str

    @property
    def last(self) -> int:
        """The number of the last decision; `first` − 1 if no turn was given."""
        return self.first + len(self.rows) - 1

    def until(self, decision: int) -> FilledSlots:
        """Returns the same with only the turns up to a decision."""
        count = max(decision - self.first + 1, 0)
        return replace(self, rows=self.rows[:count], contexts=self.contexts[:count])

    def without_contexts(self) -> FilledSlots:
        """Returns the same with unknown contexts."""
        return replace(self, contexts=np.full_like(self.contexts, np.nan))


@dataclass(frozen=True, slots=True, eq=False)
class RunningTurnRecord:
    """A turn that is running.

    Attributes:
        decision: The number of the decision that gave it, which is the id of the turn.
        row: The row of the client.
        context: The context of the client; NaN if it is not known.
        deadline: The deadline in seconds, or None.
        given: When the turn was given, by the wall clock, in ISO format.
        monotonic: The same by the monotonic clock.
        boot: The boot id of the machine at that time.
        reasons: The policy's reasons: a number for each name.
    """

    decision: int
    row: int
    context: FloatArray
    deadline: float | None
    given: str
    monotonic: float
    boot: str
    reasons: Mapping[str, float] = field(default_factory=dict)

    def without_context(self) -> RunningTurnRecord:
        """Returns the same with an unknown context."""
        return replace(self, context=np.full_like(self.context, np.nan))

    @property
    def elapsed(self) -> float:
        """The seconds since the turn was given; NaN if unknown, as that of `OpenRound`."""
        return seconds_since(self.monotonic, self.boot, self.given)


def pack_fill(filled: FilledSlots) -> tuple[bytes, bytes]:
    """Returns the data of the event, and the packed presence of the clients."""
    ended = filled.ended
    arrays: dict[str, npt.NDArray[Any]] = {
        "rows": filled.rows,
        "contexts": filled.contexts,
        "ended_decisions": ended.decisions,
        "ended_rows": ended.rows,
        "ended_seconds": ended.seconds,
        "ended_kinds": ended.kinds.astype(np.int8),
        **filled.late.to_arrays(),
    }
    if not np.isnan(ended.losses).all():
        arrays["losses"] = ended.losses
    names, signals = pack_signals(ended.signals)
    return pack_event({"first": filled.first, "at": filled.at, **names}, {**arrays, **signals}, filled.present)


def unpack_fill(data: bytes, presence: bytes | None) -> FilledSlots:
    """Returns what `pack_fill` packed; without presence, no client is present."""
    header, arrays = unpack(data)
    with corruption_as_store_error():
        present = checked_availability(header, presence, f"the presence of clients at decision {header['first']}")
        ended_rows = arrays["ended_rows"]
        return FilledSlots(
            first=header["first"],
            rows=arrays["rows"],
            contexts=arrays["contexts"],
            present=present,
            ended=EndedTurns(
                arrays["ended_decisions"],
                ended_rows,
                arrays["ended_seconds"],
                arrays["ended_kinds"].astype(np.int64),
                arrays.get("losses", np.full(len(ended_rows), np.nan)),
                unpack_signals(header, arrays),
            ),
            late=LateTimes.from_arrays(arrays),
            at=header["at"],
        )


def pack_running_turn(running_turn: RunningTurnRecord) -> bytes:
    """Returns the data of a turn that is running."""
    names = [entry.name for entry in fields(running_turn) if entry.name != "context"]
    return pack({name: getattr(running_turn, name) for name in names}, {"context": running_turn.context})


def unpack_running_turn(data: bytes) -> RunningTurnRecord:
    """Returns what `pack_running_turn` packed."""
    header, arrays = unpack(data)
    with corruption_as_store_error():
        return RunningTurnRecord(**header, context=arrays["context"])
