"""Learning curves: the test accuracy of a run by round and by time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.kernel.slots.turns import FINISHED
from turnout.lab.columns import RoundColumns

Clock = Literal["rounds", "minutes"]


@dataclass(frozen=True, slots=True, eq=False)
class LearningCurve:
    """The measured test accuracies of a run, each with its round and its simulated time in minutes.

    `length` is the number of rounds of the whole run, `duration` its simulated minutes.
    """

    rounds: IntArray
    minutes: FloatArray
    accuracies: FloatArray
    length: int
    duration: float

    @classmethod
    def of(cls, columns: RoundColumns) -> LearningCurve:
        """Returns the learning curve of a stored run in a training world."""
        accuracies = columns.metrics.get("accuracy", np.empty(0))
        rows = np.flatnonzero(~np.isnan(accuracies))
        if not len(rows):
            raise SettingError(
                "this run measured no accuracy: play it in the world 'training', for more rounds or with a lower "
                "evaluate_every"
            )
        if FINISHED in columns.metrics:
            return cls._without_rounds(accuracies, columns.metrics[FINISHED] / 60)
        clock = np.cumsum(columns.durations) / 60
        return cls(columns.rounds[rows], clock[rows], accuracies[rows], int(columns.rounds[-1]), float(clock[-1]))

    @classmethod
    def _without_rounds(cls, accuracies: FloatArray, finished: FloatArray) -> LearningCurve:
        """Returns the curve of turns without rounds, in the order in which they ended, which counts as their round."""
        order = np.argsort(finished, kind="stable")
        rows = np.flatnonzero(~np.isnan(accuracies[order]))
        return cls(rows + 1, finished[order][rows], accuracies[order][rows], len(order), float(finished.max()))

    @property
    def final(self) -> float:
        """The mean accuracy in the last tenth of the rounds, or the last measurement if there is none in it."""
        late = self.accuracies[10 * self.rounds > 9 * self.length]
        return float(late.mean() if len(late) else self.accuracies[-1])

    @property
    def jitter(self) -> float:
        """The standard deviation of the differences between consecutive measurements in the second half of the run."""
        steps = np.diff(self.accuracies[2 * self.rounds > self.length])
        return float(steps.std()) if len(steps) else np.nan

    def reaches(self, target: float) -> bool:
        """Returns whether any measurement reaches the target."""
        return bool((self.accuracies >= target).any())

    def rounds_to(self, target: float) -> float:
        """Returns the first round that reaches the target.

        If there is none, it returns the round of the next measurement after the end, a lower bound.
        """
        if not self.reaches(target):
            # Accuracy is measured in multiples of the first measured round.
            return float(self.length + self.rounds[0])
        return float(self.rounds[self._first_reaching(target)])

    def minutes_to(self, target: float) -> float:
        """Returns the simulated minutes to the target; if it is never reached, those of the whole run."""
        return float(self.minutes[self._first_reaching(target)]) if self.reaches(target) else self.duration

    def mean_until(self, minutes: float) -> float:
        """Returns the time average of the accuracy from the start to `minutes`.

        Between measurements the accuracy is the last one measured; before the first it is 0.
        """
        edges = np.minimum(np.append(self.minutes, np.inf), minutes)
        return float(self.accuracies @ np.diff(edges) / minutes)

    def mean_between(self, start: float, end: float) -> float:
        """Returns the time average of the accuracy from `start` to `end`, in minutes; see `mean_until`."""
        before = start * self.mean_until(start) if start else 0.0
        return (end * self.mean_until(end) - before) / (end - start)

    def at(self, times: FloatArray, clock: Clock) -> FloatArray:
        """Returns the last measurement at each of these times; NaN before the first and after the end of the run."""
        when, end = (self.rounds, self.length) if clock == "rounds" else (self.minutes, self.duration)
        last = np.searchsorted(when, times, side="right") - 1
        return np.where((last >= 0) & (times <= end), self.accuracies[last], np.nan)

    def _first_reaching(self, target: float) -> int:
        return int((self.accuracies >= target).argmax())
