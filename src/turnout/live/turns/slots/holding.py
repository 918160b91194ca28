"""Rules that hold all turns of a fleet without rounds back: too few clients are there, or check-ins are gathered."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from turnout.counting import counted
from turnout.kernel.arrays import BoolArray, FloatArray
from turnout.live.settings import SchedulerSettings


class Hold(NamedTuple):
    """Why nobody is given a turn, although a slot is free.

    Attributes:
        seconds: The seconds after which turns can be given; None if that depends on who comes.
        why: The reason, for people.
    """

    seconds: float | None
    why: str


def too_few_clients(settings: SchedulerSettings, present: BoolArray) -> Hold | None:
    """Returns that fewer clients are there than `min_available`; None if there are enough.

    Args:
        settings: The settings of the fleet.
        present: Which clients are available, wait as they were asked, or train.
    """
    count = int(np.count_nonzero(present))
    if count >= settings.min_available:
        return None
    return Hold(
        None,
        f"{counted(count, 'client', 'are')} available or training, and turns are given from "
        f"{settings.min_available:,} on",
    )


def open_window(settings: SchedulerSettings, waited: FloatArray) -> Hold | None:
    """Returns that check-ins are still gathered; None if they are not, or if no device waits.

    Args:
        settings: The settings of the fleet.
        waited: For how many seconds each device that could be given a turn has been waiting.
    """
    goal, seconds = settings.window_goal, settings.window_seconds
    if seconds is None or not len(waited) or (goal is not None and len(waited) >= goal):
        return None
    left = seconds - float(waited.max())
    if left <= 0:
        return None
    until = "" if goal is None else f" or until {goal:,} wait"
    return Hold(
        left, f"check-ins are gathered for {left:.3g} s more{until}: {counted(len(waited), 'device', 'are')} waiting"
    )
