"""Which rates can be kept without rounds."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from turnout.errors import SettingError
from turnout.kernel.slots.turns import fastest_pace, slot_limits

TIMES = st.lists(st.floats(0.1, 50), min_size=1, max_size=7)


def test_the_example_with_one_slow_client() -> None:
    limits = slot_limits([1, 1, 1, 10], 2)
    assert limits.largest_rate == pytest.approx(1 / 11)
    assert limits.full_speed_rate == pytest.approx(1 / 11)
    assert limits.sufficient_slots == 1
    # With one slot, the others wait for the slow client, and everybody can have an equal share.
    assert slot_limits([1, 1, 1, 10], 1).largest_rate == 0.25


def test_a_server_at_full_speed_can_promise_less() -> None:
    limits = slot_limits([1, 2, 10], 2)
    # Spare time to the client of 2 s: 0.1 + 0.45 + 0.1 turns per second; to that of 1 s: 0.8 + 0.1 + 0.1.
    assert limits.largest_rate == pytest.approx(0.1 / 0.65)
    assert limits.full_speed_rate == pytest.approx(0.1 / 1.0)


@given(times=TIMES, slots=st.integers(1, 8))
@example(times=[40.625, 0.25, 0.25, 0.25], slots=4)
@settings(max_examples=30)
def test_the_rates_satisfy_all_constraints_and_are_the_largest(times: list[float], slots: int) -> None:
    limits = slot_limits(times, slots)
    seconds, count = np.sort(np.array(times)), min(slots, len(times))
    assert 0 < limits.full_speed_rate <= limits.largest_rate * (1 + 1e-6) <= (1 + 1e-5) / len(times)
    equal_share = slot_limits(times, limits.sufficient_slots)
    assert equal_share.largest_rate == pytest.approx(1 / len(times))
    # At the largest rate there are turns per second that keep every constraint; with more, there are none.
    assert is_possible(seconds, count, limits.largest_rate * 0.995)
    assert not is_possible(seconds, count, limits.largest_rate * 1.02)
    pace = fastest_pace(seconds, count, limits.full_speed_rate)
    assert limits.full_speed_rate * pace * seconds[-1] <= 1 + 1e-6


def is_possible(times: np.ndarray, slots: int, rate: float) -> bool:
    """Searches the turns per second λ at which every client can have `rate` · λ: all slots are busy, nobody in two.

    With at least rate · λ each, the slots are busy for any total between two bounds: those of the fastest and of the
    slowest way to hand out the other turns. So it is enough that the bounds enclose the number of slots.
    """
    if rate * len(times) > 1:
        return False
    paces = np.geomspace(slots / times[-1] / 2, slots / times[0] * 2, 4000)
    paces = np.append(paces, (1 / times).sum())  # the only one if there are as many slots as clients
    least = rate * paces
    bounds = []
    for order in (times, times[::-1]):
        left, busy = paces * (1 - rate * len(times)), least * times.sum()
        for time in order.tolist():
            more = np.minimum(left, 1 / time - least)
            left = left - more
            busy = busy + more * time
        bounds.append(np.where(left > 1e-9 * paces, np.inf, busy))
    is_enclosed = (bounds[0] <= slots * (1 + 1e-3)) & (slots * (1 - 1e-3) <= bounds[1])
    return bool((is_enclosed & (least * times[-1] <= 1 + 1e-12)).any())


@pytest.mark.parametrize("times", [[1, 1, 1, 10], [1, 2, 3, 4, 30], [2, 2, 2, 2, 2, 2, 25, 25]])
def test_a_server_that_serves_the_most_behind_first_gets_there(times: list[float]) -> None:
    slots = 3
    limits = slot_limits(times, slots)
    share = least_share(times, slots, 0.95 * limits.full_speed_rate)
    assert share >= 0.95 * limits.full_speed_rate * 0.98
    # Beyond the limit, the slowest client trains all the time, and still does not get its share.
    assert least_share(times, slots, 1.15 * limits.full_speed_rate) < 1.1 * limits.full_speed_rate


def least_share(times: list[float], slots: int, rate: float) -> float:
    """Plays 8,000 turns, for those that are a turn behind, else for the fastest; returns the least share."""
    turns, running_turns, now = np.zeros(len(times)), list[tuple[float, int]](), 0.0
    idle = set(range(len(times)))
    for decision in range(1, 8001):
        while len(running_turns) >= slots or not idle:
            now, done = heapq.heappop(running_turns)
            idle.add(done)
        behind = [(rate * decision - turns[row], row) for row in idle]
        most, row = max(behind)
        if most < 1:
            row = min(idle, key=lambda client: (times[client], client))
        turns[row] += 1
        idle.remove(row)
        heapq.heappush(running_turns, (now + times[row], row))
    return float(turns.min() / turns.sum())


def test_more_slots_than_clients_and_invalid_times() -> None:
    assert slot_limits([1, 2], 9) == slot_limits([1, 2], 2)
    for times, message in (([], "at least one client"), ([1, 0], "must be above 0"), ([1, np.nan], "times")):
        with pytest.raises(SettingError, match=message):
            slot_limits(times, 2)
    with pytest.raises(SettingError, match="slots must be at least 1"):
        slot_limits([1], 0)
