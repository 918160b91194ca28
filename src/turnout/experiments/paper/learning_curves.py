"""How good a run's model was, and when; and what is read off that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from turnout.errors import SettingError
from turnout.experiments.framework.claims import Group
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.store import RoundColumns

Clock = Literal["rounds", "minutes"]


@dataclass(frozen=True, slots=True, eq=False)
class LearningCurve:
    """Test accuracies as they were measured, each after a round and a simulated minute.

    `length` and `duration` are the rounds and the minutes of the whole run.
    """

    rounds: IntArray
    minutes: FloatArray
    accuracies: FloatArray
    length: int
    duration: float

    @classmethod
    def of(cls, columns: RoundColumns) -> LearningCurve:
        """What a run in a training world measured."""
        accuracies = columns.metrics.get("accuracy", np.empty(0))
        measured = np.flatnonzero(~np.isnan(accuracies))
        if not len(measured):
            raise SettingError("this run measured no accuracy: play it in a training world, for more rounds")
        clock = np.cumsum(columns.durations) / 60
        return cls(
            columns.rounds[measured],
            clock[measured],
            accuracies[measured],
            int(columns.rounds[-1]),
            float(clock[-1]),
        )

    @property
    def final(self) -> float:
        """The mean of what was measured in the last tenth of the rounds; the last measurement if none was there."""
        late = self.accuracies[10 * self.rounds > 9 * self.length]
        return float(late.mean() if len(late) else self.accuracies[-1])

    @property
    def jitter(self) -> float:
        """The standard deviation of the steps from one measurement to the next, in the second half of the rounds."""
        steps = np.diff(self.accuracies[2 * self.rounds > self.length])
        return float(steps.std()) if len(steps) else np.nan

    def reaches(self, target: float) -> bool:
        """Was this accuracy ever measured?"""
        return bool((self.accuracies >= target).any())

    def rounds_to(self, target: float) -> float:
        """The first round measured at the target or above; if there is none, when the next would have been."""
        if not self.reaches(target):
            # Measured are the multiples of the first.
            return float(self.length + self.rounds[0])
        return float(self.rounds[self._first(target)])

    def minutes_to(self, target: float) -> float:
        """The simulated minutes until then; if there is no such round, those of the whole run."""
        return float(self.minutes[self._first(target)]) if self.reaches(target) else self.duration

    def mean_until(self, minutes: float) -> float:
        """The accuracy averaged over time from the start; what was measured last stands, and 0 before the first."""
        edges = np.minimum(np.append(self.minutes, np.inf), minutes)
        return float(self.accuracies @ np.diff(edges) / minutes)

    def at(self, times: FloatArray, clock: Clock) -> FloatArray:
        """What was measured last at each of these times; NaN before the first measurement and after the end."""
        when, end = (self.rounds, self.length) if clock == "rounds" else (self.minutes, self.duration)
        places = np.searchsorted(when, times, side="right") - 1
        values: FloatArray = np.where((places >= 0) & (times <= end), self.accuracies[places], np.nan)
        return values

    def _first(self, target: float) -> int:
        return int((self.accuracies >= target).argmax())


def measured(label: str, curves: Sequence[LearningCurve], measure: Callable[[LearningCurve], float]) -> Group:
    """One number a seed."""
    return Group(label, np.array([measure(curve) for curve in curves]))


def finals(label: str, curves: Sequence[LearningCurve]) -> Group:
    """The final accuracy of each seed."""
    return measured(label, curves, lambda curve: curve.final)


def time_to(label: str, curves: Sequence[LearningCurve], target: float, clock: Clock) -> Group:
    """Rounds or minutes to the target, and how many runs never came there."""
    times = [curve.rounds_to(target) if clock == "rounds" else curve.minutes_to(target) for curve in curves]
    never = sum(not curve.reaches(target) for curve in curves)
    return Group(label, np.array(times), never)
