"""How often each client returned, and how well its times were predicted."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.live.turns.counters import ClientColumns, column
from turnout.live.turns.outcomes import LATE, REDUNDANT
from turnout.live.turns.reliability import ema_update, relative_error

#: The number of a client's times after which prediction errors are counted: the first predictions know nothing.
JUDGED_AFTER = 2
#: A client is suspect once it has returned this many times, ...
SUSPECT_AFTER = 10
#: ... if the error of predictions from its context exceeds this, ...
SUSPECT_ERROR = 0.3
#: ... and is more than this many times the error of predictions from its typical time.
SUSPECT_RATIO = 2.0


@dataclass(slots=True, eq=False)
class ClientHistory(ClientColumns):
    """The reliability of each client, and moving averages of its times and of the errors of predicting them, by row.

    Attributes:
        arrived: The rounds from which the client returned, as part of the cohort or as redundant.
        lost: The rounds in which the client was late or failed.
        context_errors: The mean relative error of predicting the client's time from its context.
        typical_errors: The mean relative error of predicting its time by `typical_seconds`.
        typical_seconds: The mean of the client's times.
    """

    arrived: IntArray = column()
    lost: IntArray = column()
    context_errors: FloatArray = column(float)
    typical_errors: FloatArray = column(float)
    typical_seconds: FloatArray = column(float)

    def forget(self, row: int) -> None:
        """Resets the history of a client."""
        for entry in fields(self):
            getattr(self, entry.name)[row] = 0

    def restart_predictions(self) -> None:
        """Resets the errors of all predictions, because times are predicted from other features from now on."""
        self.context_errors[:] = self.typical_errors[:] = 0

    def record(self, rows: IntArray, kinds: IntArray, seconds: FloatArray, predicted: FloatArray | None) -> None:
        """Records one round.

        Args:
            rows: The clients of the cohort.
            kinds: The outcome of each, as indices into KINDS.
            seconds: The time of each; only the times of returning clients are used.
            predicted: The predicted times, NaN where there is none; None if no model predicts times.
        """
        has_returned = kinds <= REDUNDANT
        returned = rows[has_returned]
        if predicted is not None:
            self._learn(returned, seconds[has_returned], predicted[has_returned])
        self.arrived[returned] += 1
        self.lost[rows[kinds >= LATE]] += 1

    def _learn(self, rows: IntArray, seconds: FloatArray, predicted: FloatArray) -> None:
        """Updates the averages of the clients that returned."""
        counts = self.arrived[rows]
        judged = (counts >= JUDGED_AFTER) & np.isfinite(predicted)
        judged_before = np.maximum(counts - JUDGED_AFTER, 0)
        for errors, expected in ((self.context_errors, predicted), (self.typical_errors, self.typical_seconds[rows])):
            updated = ema_update(errors[rows], relative_error(seconds, expected), judged_before)
            errors[rows] = np.where(judged, updated, errors[rows])
        self.typical_seconds[rows] = ema_update(self.typical_seconds[rows], seconds, counts)

    @property
    def reliability(self) -> FloatArray:
        """The probability of each client to return by Laplace's rule: (arrived + 1) / (arrived + lost + 2)."""
        probability: FloatArray = (self.arrived + 1) / (self.arrived + self.lost + 2)
        return probability

    def misreporting(self) -> BoolArray:
        """Returns which suspects have much worse predictions than most clients: something is wrong with them alone."""
        judged = self.context_errors[self.arrived >= SUSPECT_AFTER]
        usual = float(np.median(judged)) if len(judged) else 0.0
        outlying: BoolArray = self.suspects() & (self.context_errors > SUSPECT_RATIO * usual)
        return outlying

    def suspects(self) -> BoolArray:
        """Returns which clients have times that their contexts predict worse than their typical times do."""
        misled = self.context_errors > np.maximum(SUSPECT_ERROR, SUSPECT_RATIO * self.typical_errors)
        suspects: BoolArray = misled & (self.arrived >= SUSPECT_AFTER)
        return suspects
