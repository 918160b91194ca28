"""How often each client came back, and how well its times were predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, saved_value
from turnout.scheduler.outcomes import LATE, SURPLUS
from turnout.scheduler.rounds.reliability import doubtful, moved, relative_error, reliability

#: Errors of predictions count after so many times: with nothing learned every time is a surprise.
JUDGED_AFTER = 2


class ClientHistory:
    """Counters and running means of each client, by row.

    `arrived`: rounds from which the client came back, in time or in surplus; `lost`: rounds in which it was late or
    failed. `context_errors` and `typical_errors`: the recent mean relative error of predicting its time from its
    context, and from `typical_seconds`, the recent mean of its times.
    """

    def __init__(self) -> None:
        self.arrived: IntArray = np.empty(0, dtype=np.int64)
        self.lost: IntArray = np.empty(0, dtype=np.int64)
        self.context_errors: FloatArray = np.empty(0)
        self.typical_errors: FloatArray = np.empty(0)
        self.typical_seconds: FloatArray = np.empty(0)

    @classmethod
    def restored(cls, counters: Mapping[str, Any], errors: Mapping[str, Any]) -> ClientHistory:
        """The history whose `counters()` and `errors()` these are; other entries are ignored."""
        history = cls()
        history.arrived, history.lost = (
            np.array(saved_value(counters, key), dtype=np.int64) for key in ("arrived", "lost")
        )
        history.context_errors, history.typical_errors, history.typical_seconds = (
            np.array(saved_value(errors, key), dtype=np.float64) for key in ("from_context", "from_habit", "habit")
        )
        return history

    def counters(self) -> dict[str, IntArray]:
        """Copies of the counters, under the names under which they are stored."""
        return {"arrived": self.arrived.copy(), "lost": self.lost.copy()}

    def errors(self) -> dict[str, FloatArray]:
        """Copies of the running means, under the names under which they are stored."""
        return {
            "from_context": self.context_errors.copy(),
            "from_habit": self.typical_errors.copy(),
            "habit": self.typical_seconds.copy(),
        }

    def add(self, count: int) -> None:
        """Append `count` new clients."""
        self.arrived, self.lost = (
            np.concatenate([array, np.zeros(count, dtype=np.int64)]) for array in (self.arrived, self.lost)
        )
        self.context_errors, self.typical_errors, self.typical_seconds = (
            np.concatenate([array, np.zeros(count)])
            for array in (self.context_errors, self.typical_errors, self.typical_seconds)
        )

    def forget(self, row: int) -> None:
        """Begin anew with a client."""
        for array in (self.arrived, self.lost, self.context_errors, self.typical_errors, self.typical_seconds):
            array[row] = 0

    def record(self, rows: IntArray, kinds: IntArray, seconds: FloatArray, predicted: FloatArray | None) -> None:
        """Count one round.

        Args:
            rows: the clients of the cohort.
            kinds: what became of each, as indices into KINDS.
            seconds: the time of each; of those that came back it is learned.
            predicted: the times that were predicted, NaN where none was; None if no model predicts times.
        """
        came = kinds <= SURPLUS
        if predicted is not None:
            self._learn(rows[came], seconds[came], predicted[came])
        self.arrived[rows[came]] += 1
        self.lost[rows[kinds >= LATE]] += 1

    @property
    def reliability(self) -> FloatArray:
        """The estimated probability of each client to come back."""
        return reliability(self.arrived, self.lost)

    def suspects(self) -> BoolArray:
        """Clients whose times are explained worse by their context than by their typical time."""
        return doubtful(self.context_errors, self.typical_errors, self.arrived)

    def _learn(self, rows: IntArray, seconds: FloatArray, predicted: FloatArray) -> None:
        before = self.arrived[rows]
        judged = (before >= JUDGED_AFTER) & np.isfinite(predicted)
        earlier = np.maximum(before - JUDGED_AFTER, 0)
        for errors, expected in (
            (self.context_errors, predicted),
            (self.typical_errors, self.typical_seconds[rows]),
        ):
            updated = moved(errors[rows], relative_error(seconds, expected), earlier)
            errors[rows] = np.where(judged, updated, errors[rows])
        self.typical_seconds[rows] = moved(self.typical_seconds[rows], seconds, before)
