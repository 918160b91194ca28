"""Which guaranteed rates can be kept without rounds, where a client is in one slot at most.

With K slots, x_i turns of client i per second take the share x_i · t_i of one slot. Nobody is in two slots,
x_i · t_i ≤ 1, and the slots are full, Σ x_i · t_i = K. A rate r is a share of all turns: x_i ≥ r · λ with λ = Σ x_i
turns per second. So the slowest client limits the rate, the more the faster the server is: r · λ · max t ≤ 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray, as_count, as_times, refuse_where

#: The relative precision of the largest rate at full speed.
PRECISION = 1e-9


@dataclass(frozen=True, slots=True)
class SlotLimits:
    """What can be guaranteed to clients with these times.

    Attributes:
        largest_rate: The largest rate that any server could give every client. A server that gives it may have to give
            spare slots to slow clients on purpose.
        full_speed_rate: The largest rate if spare slots go to the fastest clients, as they do in a server that wants
            many updates per second.
        sufficient_slots: The largest number of slots with which every client can have an equal share; at least 1.
    """

    largest_rate: float
    full_speed_rate: float
    sufficient_slots: int


def slot_limits(times: npt.ArrayLike, slots: int) -> SlotLimits:
    """Returns which rates can be guaranteed to clients whose turns take these times.

    Args:
        times: The time of a turn of each client in seconds.
        slots: The number of slots.

    >>> limits = slot_limits([1, 1, 1, 10], 2)
    >>> round(limits.largest_rate, 4), round(limits.full_speed_rate, 4), limits.sufficient_slots
    (0.0909, 0.0909, 1)
    """
    seconds = np.sort(as_times("times", np.asarray(times, dtype=np.float64), SettingError))
    refuse_where(seconds <= 0, "times", seconds, "must be above 0", SettingError)
    if not len(seconds):
        raise SettingError("times must have at least one client")
    count = min(as_count("slots", slots, SettingError), len(seconds))  # further slots stay empty
    slowest, total = float(seconds[-1]), float(seconds.sum())
    equal = 1 / len(seconds)
    sufficient = max(math.floor(total / slowest * (1 + PRECISION)), 1)
    if count <= sufficient:
        return SlotLimits(equal, equal, sufficient)
    return SlotLimits(_largest_rate(seconds, count), _full_speed_rate(seconds, count), sufficient)


def fastest_pace(times: FloatArray, slots: int, rate: float) -> float:
    """Returns the most turns per second with which every client still has its share of the turns.

    Args:
        times: The time of a turn of each client in seconds, ascending.
        slots: The number of slots.
        rate: The share of the turns of each client.
    """
    return _largest(slots / float(times[0]), lambda pace: _slots_needed(times, rate, pace) <= slots)


def _slots_needed(times: FloatArray, rate: float, pace: float) -> float:
    """Returns how many slots are busy at `pace` turns per second; infinite if the clients cannot have so many turns."""
    least = rate * pace
    room = np.maximum(1 / times - least, 0.0)  # the further turns per second that each client can have
    left = pace - least * len(times)
    taken = np.minimum(room, np.maximum(left - np.concatenate([[0.0], np.cumsum(room)[:-1]]), 0.0))  # the fastest first
    if left - taken.sum() > PRECISION * pace:
        return math.inf
    return float(((least + taken) * times).sum())


def _largest_rate(times: FloatArray, slots: int) -> float:
    """Returns the largest rate: the slowest client trains all the time, and spare slots go to the slowest first."""
    busy = times / times[-1]
    spare = slots - float(busy.sum())
    for row in range(len(times) - 1, -1, -1):
        more = min(1.0 - float(busy[row]), spare)
        busy[row] += more
        spare -= more
    return 1 / (float(times[-1]) * float((busy / times).sum()))


def _full_speed_rate(times: FloatArray, slots: int) -> float:
    """Returns the rate at which the slowest client trains all the time although spare slots go to the fastest."""
    slowest = float(times[-1])
    return _largest(1 / len(times), lambda rate: rate * fastest_pace(times, slots, rate) * slowest <= 1 + PRECISION)


def _largest(high: float, fits: Callable[[float], bool]) -> float:
    """Returns the largest number below `high` that fits, by bisection; smaller numbers fit too."""
    low = 0.0
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
