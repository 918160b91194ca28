"""Lookups in traces."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from turnout.kernel.arrays import FloatArray
from turnout.lab.worlds.traces.data import (
    AvailabilityTrace,
    LinkTrace,
    PresenceTimes,
    Throughput,
    last_row,
    merge_intervals,
)


def availability(*clients: tuple[list[tuple[float, float]], float]) -> AvailabilityTrace:
    owner = np.array([row for row, (own, _) in enumerate(clients) for _ in own], dtype=np.int64)
    starts, stops = (np.array([item[index] for own, _ in clients for item in own], dtype=float) for index in (0, 1))
    ids = tuple(f"c{row}" for row in range(len(clients)))
    return AvailabilityTrace(
        ids, *merge_intervals(owner, starts, stops, len(ids)), np.array([end for _, end in clients])
    )


def links(*series: tuple[list[float], list[float], float]) -> LinkTrace:
    """Builds links from the times, throughputs and end of each series."""
    counts = [len(times) for times, _, _ in series]
    times, values = (np.concatenate([np.array(item[index], dtype=float) for item in series]) for index in (0, 1))
    zeros = np.zeros(len(series))
    ends = np.array([float(item[2]) for item in series])
    ids = tuple(f"l{row}" for row in range(len(series)))
    return LinkTrace(ids, np.cumsum([0, *counts]), times, values, values, ends, zeros, zeros)


def transfer_step_by_step(
    times: list[float], values: list[float], end: float, position: float, megabits: float
) -> float:
    """Computes the duration of a transfer row by row.

    Args:
        times: The times of the rows.
        values: The throughputs of the rows.
        end: The end of the series.
        position: The position at which the transfer starts, in seconds after the start of the series.
        megabits: The size of the transfer.
    """
    first, length = times[0], end - times[0]
    now, left = position % length, megabits
    passed = 0.0
    while True:
        row = max(row for row, time in enumerate(times) if time - first <= now)
        until = (times[row + 1] if row + 1 < len(times) else end) - first
        carried = values[row] * (until - now)
        if carried >= left and values[row] > 0:
            return passed + left / values[row]
        passed, left, now = passed + until - now, left - carried, until if until < length else 0.0


def available_by_scan(trace: AvailabilityTrace, client: int, second: float) -> bool:
    inside = math.fmod(second, trace.ends[client])
    own = range(trace.ptr[client], trace.ptr[client + 1])
    return any(trace.starts[row] <= inside < trace.stops[row] for row in own)


# Binary search.


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=9).map(sorted), min_size=1, max_size=5), st.booleans(), st.data())
def test_the_last_row_equals_a_linear_scan(groups: list[list[int]], below: bool, data: st.DataObject) -> None:
    keys = np.array([float(key) for group in groups for key in group])
    ptr = np.cumsum([0, *map(len, groups)])
    targets = np.array([float(data.draw(st.integers(-1, 10))) for _ in groups])
    result = last_row(keys, ptr[:-1], ptr[1:], targets, below=below)
    for group, low, row, target in zip(groups, ptr[:-1], result, targets, strict=True):
        hits = [index for index, key in enumerate(group) if (key < target if below else key <= target)]
        assert row == low + (hits[-1] if hits else -1)


# Throughput.


def test_a_transfer_takes_size_divided_by_throughput_and_pauses_at_zero() -> None:
    throughput = Throughput(links(([0.0], [4.0], 1.0)), "down")
    np.testing.assert_allclose(throughput.transfer_seconds(np.array([0]), np.array([0.3]), np.array([20.0])), [5.0])
    throughput = Throughput(links(([0.0, 10.0, 30.0], [2.0, 0.0, 1.0], 40.0)), "down")
    links_of_transfers = np.array([0, 0, 0, 0])
    seconds = throughput.transfer_seconds(
        links_of_transfers, np.array([0.0, 5.0, 5.0, 12.0]), np.array([10.0, 10.0, 12.0, 25.0])
    )
    # 20 megabits until 10, none until 30, 10 until 40, then the series repeats
    np.testing.assert_allclose(seconds, [5, 5, 27, 18 + 10 + 7.5])


@settings(max_examples=80, deadline=None)
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
def test_transfers_equal_a_step_by_step_computation(
    specs: list[tuple[list[tuple[int, float]], int]], position: float, megabits: float
) -> None:
    assume(all(any(value > 0 for _, value in steps) for steps, _ in specs))
    series = []
    for steps, first in specs:
        moments = np.cumsum([first, *(length for length, _ in steps)]).astype(float).tolist()
        series.append((moments[:-1], [value for _, value in steps], moments[-1]))
    throughput = Throughput(links(*series), "up")
    rows = np.arange(len(series))
    fast = throughput.transfer_seconds(rows, np.full(len(rows), position), np.full(len(rows), megabits))
    slow = [transfer_step_by_step(*item, position, megabits) for item in series]
    # At the edge of a step without throughput, a rounding error decides whether the transfer waits for its end.
    upper = throughput.transfer_seconds(rows, np.full(len(rows), position), np.full(len(rows), megabits * (1 + 1e-9)))
    lower = throughput.transfer_seconds(rows, np.full(len(rows), position), np.full(len(rows), megabits * (1 - 1e-9)))
    assert ((lower - 1e-6 <= slow) & (np.array(slow) <= upper + 1e-6)).all()
    assert ((lower <= fast + 1e-9) & (fast <= upper + 1e-9)).all()


def test_the_last_known_throughput_is_the_mean_before_a_position() -> None:
    throughput = Throughput(links(([100.0, 110.0], [2.0, 0.0], 120.0)), "down")
    rows = np.zeros(4, dtype=np.int64)
    known = throughput.mean_before(rows, np.array([10.0, 15.0, 0.0, 7.0]), 10.0)
    np.testing.assert_allclose(known, [2.0, 1.0, 0.0, 1.4])
    np.testing.assert_allclose(throughput.mean_before(rows, np.array([3.0] * 4), 2000.0), 1.0)


# Presence.


def test_a_client_is_available_from_start_to_stop_and_across_the_end() -> None:
    presence = PresenceTimes(availability(([(5, 10), (20, 30)], 40)))
    available = [bool(presence.available(second)[0]) for second in (0, 4.9, 5, 9.9, 10, 20, 29.9, 30, 45, 50)]
    assert available == [False, False, True, True, False, True, True, False, True, False]
    trace = availability(([(0, 10), (90, 100)], 100), ([(0, 100)], 100), ([(90, 100)], 100), ([], 100))
    clients = np.arange(4)
    assert PresenceTimes(trace).remaining_seconds(clients, 95.0).tolist() == [15.0, math.inf, 5.0, 0.0]
    trace = availability(([(0, 10)], 20), ([(0, 10)], 30))
    assert PresenceTimes(trace).available(45.0).tolist() == [True, False]
    assert PresenceTimes(trace).available(65.0).tolist() == [True, True]


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
)
def test_presence_equals_a_linear_scan(specs: list[list[tuple[float, float]]], second: int) -> None:
    trace = availability(*((rows, 30.0) for rows in specs))
    presence = PresenceTimes(trace)
    expected = [available_by_scan(trace, client, second) for client in range(len(specs))]
    assert presence.available(float(second)).tolist() == expected
    remaining_seconds: FloatArray = presence.remaining_seconds(np.arange(len(specs)), float(second))
    for client in range(len(specs)):
        seconds = 0
        while seconds < 100 and available_by_scan(trace, client, second + seconds):
            seconds += 1
        assert remaining_seconds[client] == (seconds if seconds < 100 else math.inf)
