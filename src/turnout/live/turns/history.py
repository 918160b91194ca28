"""How often each client returned, and how well its times were predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray, saved_value
from turnout.live.turns.outcomes import LATE, REDUNDANT
from turnout.live.turns.reliability import ema_update, relative_error, reliability, suspect_clients

#: The number of a client's times after which prediction errors are counted: the first predictions know nothing.
JUDGED_AFTER = 2


class PredictionErrors:
    """Moving averages of each client, by row.

    Attributes:
        context: The relative error of predicting the client's time from its context.
        typical: The relative error of predicting its time by `typical_seconds`.
        typical_seconds: The client's times.
    """

    def __init__(self) -> None:
        self.context: FloatArray = np.empty(0)
        self.typical: FloatArray = np.empty(0)
        self.typical_seconds: FloatArray = np.empty(0)

    @classmethod
    def restored(cls, stored: Mapping[str, Any]) -> PredictionErrors:
        """Returns the errors from the entries of a snapshot."""
        errors = cls()
        errors.context, errors.typical, errors.typical_seconds = (
            np.array(saved_value(stored, key), dtype=np.float64) for key in ("from_context", "from_habit", "habit")
        )
        return errors

    def stored(self) -> dict[str, FloatArray]:
        """Returns copies of the averages, by the keys under which a snapshot stores them."""
        return {
            "from_context": self.context.copy(),
            "from_habit": self.typical.copy(),
            "habit": self.typical_seconds.copy(),
        }

    def add(self, count: int) -> None:
        """Appends `count` new clients."""
        self.context, self.typical, self.typical_seconds = (
            np.concatenate([array, np.zeros(count)]) for array in (self.context, self.typical, self.typical_seconds)
        )

    def forget(self, row: int) -> None:
        """Resets the averages of a client."""
        for array in (self.context, self.typical, self.typical_seconds):
            array[row] = 0

    def learn(self, rows: IntArray, seconds: FloatArray, predicted: FloatArray, counts: IntArray) -> None:
        """Updates the averages of the clients that returned.

        Args:
            rows: The clients.
            seconds: The time of each.
            predicted: The time that was predicted from the context of each; NaN if there was no prediction.
            counts: The number of earlier times of each.
        """
        judged = (counts >= JUDGED_AFTER) & np.isfinite(predicted)
        judged_before = np.maximum(counts - JUDGED_AFTER, 0)
        for errors, expected in ((self.context, predicted), (self.typical, self.typical_seconds[rows])):
            updated = ema_update(errors[rows], relative_error(seconds, expected), judged_before)
            errors[rows] = np.where(judged, updated, errors[rows])
        self.typical_seconds[rows] = ema_update(self.typical_seconds[rows], seconds, counts)


class ClientHistory:
    """The reliability of each client and the errors of its predicted times, by row.

    Attributes:
        arrived: The rounds from which the client returned, as part of the cohort or as redundant.
        lost: The rounds in which the client was late or failed.
        prediction_errors: The moving averages of its times and of the errors of their predictions.
    """

    def __init__(self) -> None:
        self.arrived: IntArray = np.empty(0, dtype=np.int64)
        self.lost: IntArray = np.empty(0, dtype=np.int64)
        self.prediction_errors = PredictionErrors()

    @classmethod
    def restored(cls, counters: Mapping[str, Any], errors: Mapping[str, Any]) -> ClientHistory:
        """Returns the history from its `counters()` and `errors()`; other entries are ignored."""
        history = cls()
        history.arrived, history.lost = (
            np.array(saved_value(counters, key), dtype=np.int64) for key in ("arrived", "lost")
        )
        history.prediction_errors = PredictionErrors.restored(errors)
        return history

    def counters(self) -> dict[str, IntArray]:
        """Returns copies of the counters, by the keys under which a snapshot stores them."""
        return {"arrived": self.arrived.copy(), "lost": self.lost.copy()}

    def errors(self) -> dict[str, FloatArray]:
        """Returns copies of the moving averages, by the keys under which a snapshot stores them."""
        return self.prediction_errors.stored()

    @property
    def context_errors(self) -> FloatArray:
        """The mean relative error of predicting each client's time from its context."""
        return self.prediction_errors.context

    @property
    def typical_errors(self) -> FloatArray:
        """The mean relative error of predicting each client's time by its typical time."""
        return self.prediction_errors.typical

    @property
    def typical_seconds(self) -> FloatArray:
        """The moving average of each client's times."""
        return self.prediction_errors.typical_seconds

    def add(self, count: int) -> None:
        """Appends `count` new clients."""
        self.arrived, self.lost = (
            np.concatenate([array, np.zeros(count, dtype=np.int64)]) for array in (self.arrived, self.lost)
        )
        self.prediction_errors.add(count)

    def forget(self, row: int) -> None:
        """Resets the history of a client."""
        self.arrived[row] = self.lost[row] = 0
        self.prediction_errors.forget(row)

    def restart_predictions(self) -> None:
        """Resets the errors of all predictions, because times are predicted from other features from now on."""
        self.prediction_errors.context[:] = 0
        self.prediction_errors.typical[:] = 0

    def record(self, rows: IntArray, kinds: IntArray, seconds: FloatArray, predicted: FloatArray | None) -> None:
        """Records one round.

        Args:
            rows: The clients of the cohort.
            kinds: The outcome of each, as indices into KINDS.
            seconds: The time of each; only the times of returning clients are used.
            predicted: The predicted times, NaN where there is none; None if no model predicts times.
        """
        returned = kinds <= REDUNDANT
        if predicted is not None:
            self.prediction_errors.learn(
                rows[returned], seconds[returned], predicted[returned], self.arrived[rows[returned]]
            )
        self.arrived[rows[returned]] += 1
        self.lost[rows[kinds >= LATE]] += 1

    @property
    def reliability(self) -> FloatArray:
        """The estimated probability of each client to return."""
        return reliability(self.arrived, self.lost)

    def suspects(self) -> BoolArray:
        """Returns which clients have times that their contexts predict worse than their typical times do."""
        return suspect_clients(self.context_errors, self.typical_errors, self.arrived)
