"""Measures of learning curves, one per seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from turnout.lab.analysis.statistics import Clock, LearningCurve
from turnout.lab.studies.framework.claims import Group


def measure_curves(label: str, curves: Sequence[LearningCurve], measure: Callable[[LearningCurve], float]) -> Group:
    """Returns one measurement per seed."""
    return Group(label, np.array([measure(curve) for curve in curves]))


def final_accuracies(label: str, curves: Sequence[LearningCurve]) -> Group:
    """Returns the final accuracy of each seed."""
    return measure_curves(label, curves, lambda curve: curve.final)


def time_to_target(label: str, curves: Sequence[LearningCurve], target: float, clock: Clock) -> Group:
    """Returns the rounds or minutes to the target of each seed, and the number of runs that never reached it."""
    times = [curve.rounds_to(target) if clock == "rounds" else curve.minutes_to(target) for curve in curves]
    never = sum(not curve.reaches(target) for curve in curves)
    return Group(label, np.array(times), never)
