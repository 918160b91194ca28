from __future__ import annotations

import math
from typing import Literal

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from turnout.kernel.arrays import FloatArray
from turnout.simulator.traces.data import AvailabilityTrace, LinkTrace, merged
from turnout.simulator.traces.lookup import Presence, Throughput, last_row


def availability(*clients: tuple[list[tuple[float, float]], float]) -> AvailabilityTrace:
    owner = np.array([row for row, (mine, _) in enumerate(clients) for _ in mine], dtype=np.int64)
    starts, stops = (np.array([one[place] for mine, _ in clients for one in mine], dtype=float) for place in (0, 1))
    ids = tuple(f"c{row}" for row in range(len(clients)))
    return AvailabilityTrace(ids, *merged(owner, starts, stops, len(ids)), np.array([end for _, end in clients]))


def links(*series: tuple[list[float], list[float], float]) -> LinkTrace:
    """Times, throughputs and the end of each."""
    counts = [len(times) for times, _, _ in series]
    times, values = (np.concatenate([np.array(one[place], dtype=float) for one in series]) for place in (0, 1))
    nothing = np.zeros(len(series))
    ends = np.array([float(one[2]) for one in series])
    ids = tuple(f"l{row}" for row in range(len(series)))
    return LinkTrace(ids, np.cumsum([0, *counts]), times, values, values, ends, nothing, nothing)


def slow_transfer(times: list[float], values: list[float], end: float, place: float, megabits: float) -> float:
    """Step by step, as one would with a pencil."""
    first, length = times[0], end - times[0]
    now, left = place % length, megabits
    passed = 0.0
    while True:
        row = max(which for which, time in enumerate(times) if time - first <= now)
        until = (times[row + 1] if row + 1 < len(times) else end) - first
        carried = values[row] * (until - now)
        if carried >= left and values[row] > 0:
            return passed + left / values[row]
        passed, left, now = passed + until - now, left - carried, until if until < length else 0.0


def slowly_there(trace: AvailabilityTrace, client: int, second: float, loops: bool) -> bool:
    inside = math.fmod(second, trace.ends[client]) if loops else second
    mine = range(trace.ptr[client], trace.ptr[client + 1])
    return any(trace.starts[row] <= inside < trace.stops[row] for row in mine)


# The search.


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=9).map(sorted), min_size=1, max_size=5), st.booleans(), st.data())
def test_the_last_row_is_what_a_walk_finds(groups: list[list[int]], below: bool, data: st.DataObject) -> None:
    keys = np.array([float(key) for group in groups for key in group])
    ptr = np.cumsum([0, *map(len, groups)])
    wanted = np.array([float(data.draw(st.integers(-1, 10))) for _ in groups])
    found = last_row(keys, ptr[:-1], ptr[1:], wanted, below=below)
    for group, low, at, want in zip(groups, ptr[:-1], found, wanted, strict=True):
        hits = [place for place, key in enumerate(group) if (key < want if below else key <= want)]
        assert at == low + (hits[-1] if hits else -1)


# Throughput.


def test_a_constant_link_takes_size_over_speed() -> None:
    way = Throughput(links(([0.0], [4.0], 1.0)), "down")
    np.testing.assert_allclose(way.seconds(np.array([0]), np.array([0.3]), np.array([20.0])), [5.0])


def test_a_transfer_waits_while_nothing_is_carried() -> None:
    way = Throughput(links(([0.0, 10.0, 30.0], [2.0, 0.0, 1.0], 40.0)), "down")
    both = np.array([0, 0, 0, 0])
    seconds = way.seconds(both, np.array([0.0, 5.0, 5.0, 12.0]), np.array([10.0, 10.0, 12.0, 25.0]))
    # 20 megabits until 10, none until 30, 10 until 40, and again from the beginning
    np.testing.assert_allclose(seconds, [5, 5, 27, 18 + 10 + 7.5])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0.0, 0.25, 1.0, 3.0])), min_size=1, max_size=6),
            st.integers(0, 50),
        ),
        min_size=1,
        max_size=4,
    ),
    st.floats(0, 200),
    st.floats(0.01, 300),
)
def test_transfers_take_what_a_slow_reading_takes(
    drawn: list[tuple[list[tuple[int, float]], int]], place: float, megabits: float
) -> None:
    assume(all(any(value > 0 for _, value in steps) for steps, _ in drawn))
    series = []
    for steps, first in drawn:
        moments = np.cumsum([first, *(length for length, _ in steps)]).astype(float).tolist()
        series.append((moments[:-1], [value for _, value in steps], moments[-1]))
    way = Throughput(links(*series), "up")
    rows = np.arange(len(series))
    fast = way.seconds(rows, np.full(len(rows), place), np.full(len(rows), megabits))
    slow = [slow_transfer(*one, place, megabits) for one in series]
    # On the edge of a step that carries nothing, a rounding error decides whether it is waited for.
    near = way.seconds(rows, np.full(len(rows), place), np.full(len(rows), megabits * (1 + 1e-9)))
    before = way.seconds(rows, np.full(len(rows), place), np.full(len(rows), megabits * (1 - 1e-9)))
    assert ((before - 1e-6 <= slow) & (np.array(slow) <= near + 1e-6)).all()
    assert ((before <= fast + 1e-9) & (fast <= near + 1e-9)).all()


def test_the_last_known_throughput_is_the_mean_of_the_seconds_before() -> None:
    way = Throughput(links(([100.0, 110.0], [2.0, 0.0], 120.0)), "down")
    rows = np.zeros(4, dtype=np.int64)
    known = way.mean_before(rows, np.array([10.0, 15.0, 0.0, 7.0]), 10.0)
    np.testing.assert_allclose(known, [2.0, 1.0, 0.0, 1.4])
    np.testing.assert_allclose(way.mean_before(rows, np.array([3.0] * 4), 2000.0), 1.0)


# Presence.


def test_a_client_is_there_from_its_start_up_to_its_stop() -> None:
    presence = Presence(availability(([(5, 10), (20, 30)], 40)))
    there = [bool(presence.available(second)[0]) for second in (0, 4.9, 5, 9.9, 10, 20, 29.9, 30, 45, 50)]
    assert there == [False, False, True, True, False, True, True, False, True, False]


def test_a_record_begins_again_or_its_client_is_gone() -> None:
    trace = availability(([(0, 10)], 20), ([(0, 10)], 30))
    assert Presence(trace, "loop").available(45.0).tolist() == [True, False]
    assert Presence(trace, "loop").available(65.0).tolist() == [True, True]
    assert Presence(trace, "stop").available(5.0).tolist() == [True, True]
    assert Presence(trace, "stop").available(25.0).tolist() == [False, False]


def test_who_is_there_over_the_end_does_not_leave() -> None:
    trace = availability(([(0, 10), (90, 100)], 100), ([(0, 100)], 100), ([(90, 100)], 100), ([], 100))
    everyone = np.arange(4)
    assert Presence(trace, "loop").stays(everyone, 95.0).tolist() == [15.0, math.inf, 5.0, 0.0]
    assert Presence(trace, "stop").stays(everyone, 95.0).tolist() == [5.0, 5.0, 5.0, 0.0]


Loop = Literal["loop", "stop"]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 30), st.integers(0, 10)), max_size=5).map(
            lambda rows: [(float(start), float(min(start + length, 30))) for start, length in rows]
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 100),
    st.sampled_from(["loop", "stop"]),
)
def test_presence_is_what_a_slow_reading_finds(
    drawn: list[list[tuple[float, float]]], second: int, after_end: Loop
) -> None:
    trace = availability(*((rows, 30.0) for rows in drawn))
    presence = Presence(trace, after_end)
    loops = after_end == "loop"
    there = [slowly_there(trace, client, second, loops) for client in range(len(drawn))]
    assert presence.available(float(second)).tolist() == there
    stays: FloatArray = presence.stays(np.arange(len(drawn)), float(second))
    for client in range(len(drawn)):
        walked = 0
        while walked < 100 and slowly_there(trace, client, second + walked, loops):
            walked += 1
        assert stays[client] == (walked if walked < 100 else math.inf)
