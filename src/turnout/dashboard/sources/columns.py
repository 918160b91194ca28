"""The data of a run or fleet by round, by turn and by client, in columns that grow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, read_only
from turnout.kernel.rounds import RoundReport, round_seconds
from turnout.live import ClientHistory
from turnout.live._internals import CUT_OFF, JUDGED_AFTER, KINDS, REDUNDANT, FleetTotals
from turnout.policies.base import Memory

#: Memory limit of the availability masks; the oldest rounds are dropped first.
MAX_BYTES = 96 * 2**20


class GrowingTable:
    """Columns of the same length, whose capacity doubles when they are full.

    Args:
        columns: The type of each column, by name.
    """

    def __init__(self, columns: Mapping[str, npt.DTypeLike]) -> None:
        self._columns: dict[str, npt.NDArray[Any]] = {name: np.empty(1024, dtype) for name, dtype in columns.items()}
        self._capacity, self._count = 1024, 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Returns a read-only view of the values of a column that were appended so far."""
        view: npt.NDArray[Any] = read_only(self._columns[name][: self._count])
        return view

    def append(self, count: int, values: Mapping[str, Any]) -> None:
        """Appends rows; `values` has the array of each column, or a scalar that is the same in all of them."""
        start, self._count = self._count, self._count + count
        if self._count > self._capacity:
            self._capacity = max(self._count, 2 * self._capacity)
            for name, column in self._columns.items():
                self._columns[name] = np.empty(self._capacity, column.dtype)
                self._columns[name][:start] = column[:start]
        for name, column in self._columns.items():
            column[start : self._count] = values[name]

    def replace(self, name: str, start: int, values: Any, count: int = 1) -> None:
        """Replaces `count` values of a column that were appended before, from index `start` on."""
        if not 0 <= start <= self._count - count:
            raise IndexError(f"start must be at least 0 and at most {self._count - count}, got {start}")
        self._columns[name][start : start + count] = values


class AvailabilityMasks:
    """Bit masks of the available clients by round, limited to `max_bytes`; the oldest rounds are dropped first."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._bits: dict[int, npt.NDArray[np.uint8]] = {}

    @property
    def first(self) -> int | None:
        """The first round with a mask; None if there is no mask."""
        return next(iter(self._bits), None)

    def add(self, round: int, available: BoolArray) -> None:
        """Adds the mask of the next round."""
        bits = np.packbits(available)
        self._bits[round] = bits
        self._bytes += bits.nbytes
        while self._bytes > self._max_bytes and len(self._bits) > 1:
            self._bytes -= self._bits.pop(next(iter(self._bits))).nbytes

    def get(self, rows: IntArray, rounds: IntArray, *, sparse: bool = False) -> BoolArray | None:
        """Returns whether each client was available, shape (rounds, clients); None if a mask is missing.

        If the masks are `sparse`, nobody is marked in a round without one.
        """
        available = np.zeros((len(rounds), len(rows)), dtype=np.bool_)
        for index, number in enumerate(rounds.tolist()):
            bits = self._bits.get(number)
            if bits is None:
                if sparse:
                    continue
                return None
            byte = rows >> 3
            joined = byte < len(bits)
            available[index, joined] = (bits[byte[joined]] >> (7 - (rows[joined] & 7)) & 1).astype(np.bool_)
        return available


DRIFT = 0.5  # typical errors that are subtracted from every step of the test
SMOOTHING = 0.1  # weight of the newest error in the typical error
WARM_UP = 5  # times of a client before the test starts


class ChangeDetector(Memory):
    """Page's CUSUM test on each client's prediction errors, upwards and downwards.

    Errors are divided by the client's typical error. A client has changed when one of its two sums exceeds
    `threshold`.
    """

    sums: FloatArray  # rows: sum of positive steps, sum of negative steps, typical error, number of times

    def __init__(self, clients: int, threshold: float) -> None:
        super().__init__(clients)
        self.threshold = threshold
        self._remember(sums=np.zeros(4))

    def changed(self, rows: IntArray, expected: FloatArray, times: FloatArray) -> BoolArray:
        """Adds one time of each of these clients, and returns which of them have changed."""
        above, below, typical, known = self.sums[:, rows]
        error = times - expected
        scale = np.where(typical > 0, typical, np.abs(error))
        steps = np.divide(error, scale, out=np.zeros_like(error), where=scale > 0)
        tested = known >= WARM_UP
        above = np.where(tested, np.maximum(above + steps - DRIFT, 0.0), 0.0)
        below = np.where(tested, np.maximum(below - steps - DRIFT, 0.0), 0.0)
        share = np.maximum(SMOOTHING, 1 / (known + 1))
        typical = typical + share * (np.abs(error) - typical)
        changed: BoolArray = np.maximum(above, below) > self.threshold
        self.sums[:, rows] = np.where(changed, 0.0, np.stack([above, below, typical, known + 1]))
        return changed


#: Threshold of Page's test for changed exchange times, in mean prediction errors of the client. With exponentially
#: distributed times the false alarm rate is 1 in 10,000 turns; doubled times are detected after about ten turns.
CHANGE_THRESHOLD = 16.0
UNKNOWN = -1
#: The kind of a turn without rounds that has not ended yet, after those of `turnout.live.KINDS`.
RUNNING = len(KINDS)
#: The reasons of a selection that are shown for each round, and for each client.
ROUND_REASONS = ("threshold", "objective")
TURN_REASONS = ("optimistic", "owed", "usual", "behind", "price")
#: The columns of rounds. `ends` is the number of turns up to the round.
_PER_ROUND = {
    **dict.fromkeys(("rounds", "ends", "available_count"), np.int64),
    **dict.fromkeys(("seconds", "started", "finished", "staleness", *ROUND_REASONS), np.float64),
}
_PER_TURN = {
    "chosen": np.int64,
    "kinds": np.int8,
    **dict.fromkeys(("times", "predicted", "band", "losses", *TURN_REASONS), np.float64),
}
#: How the turns of a decision ended, until that is known.
_NO_OUTCOME_OF_ROUND = dict.fromkeys(("seconds", "finished", "staleness"), np.nan)
_NO_OUTCOME = {"kinds": RUNNING, "times": np.nan, "losses": np.nan}
_NO_REASONS = dict.fromkeys((*ROUND_REASONS, *TURN_REASONS), np.nan)
_PER_CLIENT = {
    **dict.fromkeys(("turns", "offered", "backed_off", "last_round", "joined", "changed_in"), 0),
    "left_in": UNKNOWN,
}


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """Turns that were given together: those of the cohort of a round or, without rounds, a single one.

    Attributes:
        number: The number of the round or decision.
        rows: The clients.
        contexts: The context of each client; NaN if it is not known.
        available: Which clients were available or training, by row; None if that is not recorded.
        reasons: The reasons that the policy recorded for its selection; those of clients are in the order of `rows`.
        started: When the turns began, in seconds; NaN if that is not known.
    """

    number: int
    rows: IntArray
    contexts: FloatArray
    available: BoolArray | None
    reasons: Mapping[str, Any]
    started: float = np.nan


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """How the turns of one decision have ended; `kinds` and `times` follow the order of the clients in the report.

    Attributes:
        report: The report that the policy learned from; its round is the number of the decision.
        kinds: The outcome of each client, as an index of `turnout.live.KINDS`.
        times: Seconds from the selection to the reply of each client; NaN if unknown.
        end: When the round ended, on the clock of `Decision.started`. A turn without rounds ended before that, although
            a server may report more seconds than have passed.
    """

    report: RoundReport
    kinds: IntArray
    times: FloatArray
    end: float


class TurnColumns:
    """Columns of rounds and of turns; without rounds, each decision is a round with one turn.

    The first round is that after `first_after`: earlier ones are no longer kept, and only part of the totals.
    """

    def __init__(self, first_after: int) -> None:
        self.first_after = first_after
        #: The number of the last closed round; before the first, that of the last one that is no longer kept, or 0.
        self.last_round = first_after
        self._rounds, self._turns = GrowingTable(_PER_ROUND), GrowingTable(_PER_TURN)

    def __len__(self) -> int:
        return len(self._rounds)

    def round_column(self, name: str) -> Any:
        """Returns a column with one value per round."""
        return self._rounds[name]

    def turn_column(self, name: str) -> Any:
        """Returns a column with one value per turn, ordered by round."""
        return self._turns[name]

    @property
    def starts(self) -> IntArray:
        """Offsets of the rounds in the turn columns: round i has the turns starts[i]:starts[i+1]."""
        return np.concatenate([np.zeros(1, dtype=np.int64), self._rounds["ends"]])

    @property
    def round_of_each_turn(self) -> IntArray:
        """The round number of each turn."""
        return np.repeat(self.round_column("rounds"), np.diff(self.starts))

    def find_round(self, number: int) -> tuple[int, slice] | None:
        """Returns the index of a round and its slice of the turn columns; None if there is no such round."""
        rounds = self.round_column("rounds")
        index = int(rounds.searchsorted(number))
        if index >= len(rounds) or rounds[index] != number:
            return None
        ends = self._rounds["ends"]
        return index, slice(int(ends[index - 1]) if index else 0, int(ends[index]))

    def participation(self, rows: IntArray) -> BoolArray:
        """Returns whether each client was chosen, shape (rounds, clients)."""
        chosen_rows = self.turn_column("chosen")
        column_of = np.full(max(int(chosen_rows.max(initial=-1)), int(rows.max(initial=-1))) + 1, -1, dtype=np.int64)
        column_of[rows] = np.arange(len(rows))
        columns = column_of[chosen_rows]
        selected = columns >= 0
        rounds = np.repeat(np.arange(len(self)), np.diff(self.starts))[selected]
        chosen = np.zeros((len(self), len(rows)), dtype=np.bool_)
        chosen[rounds, columns[selected]] = True
        return chosen

    def _append(self, given: Decision, available_count: int, predicted: FloatArray, band: FloatArray) -> None:
        """Appends turns that were given; how they end is set later."""
        reasons, count = {**_NO_REASONS, **given.reasons}, len(given.rows)
        turns = {"chosen": given.rows, "predicted": predicted, "band": band, **_NO_OUTCOME}
        self._turns.append(count, reasons | turns)
        decision = {"rounds": given.number, "ends": len(self._turns), "available_count": available_count}
        self._rounds.append(1, reasons | decision | {"started": given.started} | _NO_OUTCOME_OF_ROUND)
        self.last_round = given.number

    def _set_outcomes(self, index: int, turns: slice, ended: Outcomes) -> None:
        report, count = ended.report, turns.stop - turns.start
        self._rounds.replace("seconds", index, round_seconds(report.exchange_times, ended.kinds != REDUNDANT))
        self._rounds.replace("finished", index, ended.end)
        losses = np.nan if report.losses is None else report.losses
        for name, values in {"times": ended.times, "kinds": ended.kinds, "losses": losses}.items():
            self._turns.replace(name, turns.start, values, count)


class ClientLedger:
    """Counters of clients, and what is known about the times of each."""

    def __init__(self) -> None:
        self.clients = 0
        self.counters: dict[str, IntArray] = {name: np.empty(0, dtype=np.int64) for name in _PER_CLIENT}
        self.seconds: FloatArray = np.empty(0)
        self.history = ClientHistory()
        #: The clients in back-off, by round; rounds without any have no mask.
        self.back_offs = AvailabilityMasks()
        self._owns_history = True
        self._change_detector: ChangeDetector | None = None

    @property
    def retired(self) -> BoolArray:
        """Whether each client has retired."""
        retired: BoolArray = self.counters["left_in"] != UNKNOWN
        return retired

    def mean_seconds(self) -> FloatArray:
        """Returns the mean exchange time of each client; NaN if no time is known."""
        means = np.full(self.clients, np.nan)
        np.divide(self.seconds, self.history.arrived, out=means, where=self.history.arrived > 0)
        return means

    def _add_clients(self, count: int, after: int) -> None:
        """Adds `count` clients in new rows, which joined after round `after`."""
        self.clients += count
        for name, start in _PER_CLIENT.items():
            new = np.full(count, after if name == "joined" else start, dtype=np.int64)
            self.counters[name] = np.concatenate([self.counters[name], new])
        self.seconds = np.concatenate([self.seconds, np.zeros(count)])
        if self._owns_history:
            self.history.add(count)
        if self._change_detector is None:
            self._change_detector = ChangeDetector(self.clients, CHANGE_THRESHOLD)
        else:
            self._change_detector.add(count)

    def _add_totals(self, totals: FleetTotals) -> None:
        """Adds the turns that were taken in rounds that are no longer kept."""
        self.counters["turns"][:] = totals.turns[: self.clients]
        self.counters["last_round"][:] = totals.last_round[: self.clients]
        self.seconds[:] = totals.seconds[: self.clients]
        self.history.arrived[:] = (totals.counts["arrived"] + totals.counts["redundant"])[: self.clients]
        self.history.lost[:] = (totals.counts["late"] + totals.counts["failed"])[: self.clients]

    def _count_times(self, ended: Outcomes, predicted: FloatArray, arrived_before: IntArray) -> None:
        """Updates what is known about the times of clients; `arrived_before` counts the earlier replies of each."""
        rows, seconds = ended.report.clients, ended.report.exchange_times
        returned = ended.kinds < CUT_OFF
        timed = returned & (seconds > 0)  # the times of forgotten clients are erased
        if self._owns_history:
            known = timed | ~returned
            self.history.record(rows[known], ended.kinds[known], seconds[known], predicted[known])
        self.seconds[rows[timed]] += seconds[timed]
        judged = timed & (arrived_before >= JUDGED_AFTER) & np.isfinite(predicted)
        if judged.any() and self._change_detector is not None:
            changed = self._change_detector.changed(rows[judged], predicted[judged], seconds[judged])
            self.counters["changed_in"][rows[judged][changed]] = ended.report.round
