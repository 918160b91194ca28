"""Worlds whose clients follow traces, and lookups in traces."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from narrowing import known
from turnout import POLICIES, RoundReport, Selection, make_policy
from turnout.errors import SettingError, StateError
from turnout.kernel.arrays import FloatArray
from turnout.kernel.rounds import RoundOffer
from turnout.lab import RunPlan, TraceWorld, make_world, play
from turnout.lab.worlds.traces.data import (
    AvailabilityTrace,
    DeviceTrace,
    LinkTrace,
    PresenceTimes,
    Throughput,
    Traces,
    last_row,
    merge_intervals,
)
from turnout.lab.worlds.traces.formats.files import write_traces
from turnout.lab.worlds.traces.population import Generator, daily_rhythm, summarise_traces


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
    trace = availability(*((rows, 30.0 + 3 * client) for client, rows in enumerate(specs)))
    presence = PresenceTimes(trace)
    expected = [available_by_scan(trace, client, second) for client in range(len(specs))]
    assert presence.available(float(second)).tolist() == expected
    remaining_seconds: FloatArray = presence.remaining_seconds(np.arange(len(specs)), float(second))
    for client in range(len(specs)):
        seconds = 0
        while seconds < 100 and available_by_scan(trace, client, second + seconds):
            seconds += 1
        assert remaining_seconds[client] == (seconds if seconds < 100 else math.inf)


DETERMINISTIC: dict[str, Any] = {"noise_spread": 0.0, "free_cpu": (0.5, 0.5), "cold_start": 3.0}


def simple_traces(stop: float = 1000.0, clients: int = 2) -> Traces:
    """Builds clients that are available from 0 to `stop` of 1000 s, with 0.1 s per sample, 4 Mbps down and 2 up."""
    ids = tuple(f"c{row}" for row in range(clients))
    ones = np.ones(clients)
    ptr = np.arange(clients + 1)
    return Traces(
        AvailabilityTrace(ids, ptr, 0 * ones, stop * ones, 1000 * ones),
        DeviceTrace(ids, 0.1 * ones),
        LinkTrace(ids, ptr, 0 * ones, 4 * ones, 2 * ones, ones, 0 * ones, 0 * ones),
    )


def play_all_available(world: TraceWorld, round_: int) -> tuple[RoundOffer, RoundReport]:
    offer = world.offer(round_)
    return offer, world.play(offer, Selection(round_, np.flatnonzero(offer.available)))


def expected_times(offer: RoundOffer) -> FloatArray:
    return known(offer.expected_times)


# Times.


def test_the_exchange_time_is_download_cold_start_computing_and_upload() -> None:
    world = TraceWorld(traces=simple_traces(), samples=50, model_size=20.0, period=100.0, **DETERMINISTIC)
    offer, report = play_all_available(world, 1)
    # 20/4 down, 3 cold, 50 · 0.1 / 0.5 computing, 20/2 up
    np.testing.assert_allclose(report.exchange_times, 5 + 3 + 10 + 10)
    np.testing.assert_allclose(offer.contexts, [[2.0, 1.0, 15.0]] * 2)
    np.testing.assert_allclose(expected_times(offer), report.exchange_times)
    warm, report = play_all_available(world, 2)
    assert warm.contexts[:, 1].tolist() == [0, 0]
    np.testing.assert_allclose(report.exchange_times, 25.0)


def test_expected_times_are_the_mean_exchange_times_of_constant_links() -> None:
    traces = Generator(bandwidth_deviation=0.5).traces(200, 1)
    ids = tuple(map(str, range(200)))
    always = AvailabilityTrace(ids, np.arange(201), np.zeros(200), np.full(200, 1e6), np.full(200, 1e6))
    world = TraceWorld(3, traces=Traces(always, traces.devices, traces.links), samples=50)
    ratios = []
    for round_ in range(1, 101):
        offer, report = play_all_available(world, round_)
        ratios.append(report.exchange_times / expected_times(offer)[report.clients])
    np.testing.assert_allclose(np.mean(ratios), 1.0, atol=0.01)
    assert np.std(ratios) > 0.1


def test_each_transfer_uses_the_throughput_from_its_start() -> None:
    ids = ("c0",)
    # 1 Mbps for 10 s, then 5 Mbps until 100 s; computing 20 s in between
    link = LinkTrace(
        ids, np.array([0, 2]), np.array([0.0, 10.0]), np.array([1.0, 5.0]), np.array([1.0, 5.0]), np.array([100.0]),
        np.zeros(1), np.zeros(1),
    )  # fmt: skip
    traces = Traces(simple_traces(clients=1).availability, simple_traces(clients=1).devices, link)
    world = TraceWorld(traces=traces, samples=85, model_size=20.0, link_clock="recorded", **DETERMINISTIC)
    offer, report = play_all_available(world, 1)
    np.testing.assert_allclose(report.exchange_times, (10 + 10 / 5) + 3 + 17 + 20 / 5)
    assert offer.contexts[0, 2] == pytest.approx(2 * 20 / 5)  # the previous minute is the end of the series


def test_the_context_of_a_dead_link_is_capped_at_a_hundredth_of_its_mean() -> None:
    zeros = np.zeros(1)
    up = np.full(2, 5.0)
    link = LinkTrace(("c0",), np.array([0, 2]), np.array([0.0, 900.0]), np.array([5.0, 0.0]), up, np.array([1000.0]),
                     zeros, zeros)  # fmt: skip
    traces = Traces(simple_traces(stop=50.0, clients=1).availability, simple_traces(clients=1).devices, link)
    world = TraceWorld(traces=traces, model_size=1.7e4, link_clock="recorded", **DETERMINISTIC)
    offer, report = play_all_available(world, 1)
    assert offer.contexts[0, 2] == pytest.approx(100 * 1.7e4 / 4.5 + 1.7e4 / 5)
    assert report.with_outcome("failed").all()


def test_exchange_times_are_heavy_tailed() -> None:
    world = TraceWorld(1, clients=100)
    times = np.concatenate([play_all_available(world, round_)[1].exchange_times for round_ in range(1, 60)])
    assert np.percentile(times, 99) > 4 * np.median(times)


# Going offline.


def test_a_client_that_goes_offline_fails_or_counts_as_late() -> None:
    world = TraceWorld(traces=simple_traces(stop=20.0), samples=50, **DETERMINISTIC)
    _, report = play_all_available(world, 1)
    assert report.exchange_times.tolist() == [20, 20]
    assert report.with_outcome("failed").all()
    assert world.state()["trained"].tolist() == [False, False]
    world = TraceWorld(traces=simple_traces(stop=20.0), samples=50, offline="late", deadline=60.0, **DETERMINISTIC)
    _, report = play_all_available(world, 1)
    assert report.exchange_times.tolist() == [60, 60]
    assert report.with_outcome("late").all()
    with pytest.raises(SettingError, match="offline='late' needs a deadline"):
        TraceWorld(offline="late")


@pytest.mark.parametrize(
    ("deadline", "stop", "outcome", "time"),
    [
        (30.0, 1000.0, "arrived", 28.0),
        (27.0, 1000.0, "late", 27.0),
        (15.0, 20.0, "late", 15.0),
        (25.0, 20.0, "failed", 20.0),
    ],
)
def test_clients_after_the_deadline_are_late(deadline: float, stop: float, outcome: str, time: float) -> None:
    world = TraceWorld(traces=simple_traces(stop=stop), samples=50, deadline=deadline, **DETERMINISTIC)
    _, report = play_all_available(world, 1)
    np.testing.assert_allclose(report.exchange_times, time)
    assert report.with_outcome(outcome).all()


def test_records_repeat() -> None:
    looping = TraceWorld(traces=simple_traces(stop=600.0), period=400.0)
    assert [int(looping.offer(round_).available.sum()) for round_ in range(1, 7)] == [2, 2, 0, 2, 0, 2]
    always = TraceWorld(traces=simple_traces(stop=1000.0), period=999.0, samples=50, **DETERMINISTIC)
    assert not play_all_available(always, 2)[1].with_outcome("failed").any()


# Determinism.


@pytest.mark.parametrize("clock", ["period", "rounds"])
def test_requesting_offers_in_advance_has_no_effect(clock: Any) -> None:
    """The availability must not advance with every request, as it does in some other simulators."""
    assert TraceWorld(5, clients=30).offer(8) != TraceWorld(6, clients=30).offer(8)
    with_lookahead, without_lookahead = (TraceWorld(2, clients=25, clock=clock) for _ in range(2))
    for round_ in range(1, 12):
        for ahead in (40, 3, round_ + 1, round_):
            with_lookahead.offer(ahead)
        offer, report = play_all_available(with_lookahead, round_)
        assert offer == without_lookahead.offer(round_)
        assert report == play_all_available(without_lookahead, round_)[1]


def test_with_the_clock_of_rounds_a_round_starts_when_the_previous_one_ends() -> None:
    world = TraceWorld(traces=simple_traces(), samples=50, clock="rounds", period=77.0, **DETERMINISTIC)
    play_all_available(world, 1)
    assert world.state()["now"] == 28
    offer = world.offer(2)
    world.play(offer, Selection(2, np.empty(0, dtype=np.int64)))
    assert world.state()["now"] == 28 + 77


def test_a_run_with_other_traces_cannot_be_resumed() -> None:
    world = TraceWorld(traces=simple_traces())
    with pytest.raises(StateError, match="the run was started with traces of fingerprint"):
        TraceWorld(traces=simple_traces(stop=900.0)).restore(world.state())
    TraceWorld(traces=simple_traces(), fingerprint=world.fingerprint)
    with pytest.raises(SettingError, match=f"the fingerprint {world.fingerprint}, but fingerprint is 'beef'"):
        TraceWorld(traces=simple_traces(), fingerprint="beef")


# Joining the parts.


def test_parts_are_joined_by_id_if_every_client_has_an_entry() -> None:
    first = simple_traces(clients=3)
    assert first.devices is not None
    devices = DeviceTrace(("x", "c2", "c1", "c0"), np.array([9.0, 0.3, 0.2, 0.1]))
    world = TraceWorld(traces=Traces(first.availability, devices, first.links))
    assert world.joined == {"availability": "recorded", "devices": "by id", "links": "by id"}
    assert known(world.traces.devices).values.tolist() == [0.1, 0.2, 0.3]
    assert any("modelling assumption" in assumption for assumption in world.assumptions)
    other = DeviceTrace(("c0", "c1", "z"), np.array([0.1, 0.2, 0.3]))
    assert TraceWorld(traces=Traces(first.availability, other, first.links)).joined["devices"] == "drawn from 3"


def test_recorded_clients_are_sampled_without_replacement() -> None:
    worlds = [TraceWorld(seed, traces=simple_traces(clients=50), clients=20) for seed in (1, 2)]
    ids, others = (known(world.traces.availability).ids for world in worlds)
    assert len(set(ids)) == worlds[0].clients == 20
    assert ids != others
    with pytest.raises(
        SettingError, match="clients must be at most 50, the number of recorded clients that qualify, not 51"
    ):
        TraceWorld(traces=simple_traces(clients=50), clients=51)


def test_rarely_available_clients_can_be_excluded() -> None:
    availability = Generator().availability_trace(100, 1)
    world = TraceWorld(traces=Traces(availability), least_availability=0.1)
    assert world.clients == int((availability.shares >= 0.1).sum()) < 100
    assert world.availability.min() >= 0.1
    with pytest.raises(SettingError, match="no client is available for a share of 1 of the time"):
        TraceWorld(traces=simple_traces(stop=500.0), least_availability=1.0)


def test_availability_is_the_share_of_rounds() -> None:
    world = TraceWorld(1, clients=60, period=601.0, truth=False)
    available = np.mean([world.offer(round_).available for round_ in range(1, 1007)], axis=0)
    np.testing.assert_allclose(available, world.availability, atol=0.02)


# Settings.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clock": "wall"}, "clock must be one of period, rounds, not 'wall'"),
        ({"link_clock": "x"}, "link_clock must be one of drawn, recorded"),
        ({"offline": "ignored"}, "offline must be one of failed, late"),
        ({"period": 0}, "period must be above 0"),
        ({"deadline": -1}, "deadline must be above 0"),
        ({"samples": 0}, "samples must be at least 1"),
        ({"clients": 0}, "clients must be at least 1"),
        ({"free_cpu": 3}, "free_cpu must be"),
        ({"generator": {"avail": 0.2}}, "the generator has no setting 'avail'"),
        ({"generator": {"availability": 2}}, "availability must be at most 0.95"),
        ({"generator": 3}, "generator must be a mapping from settings to values, not 3"),
        ({"traces": 3}, "traces must be trace files or the result of read_traces, not 3"),
        ({"traces": [3]}, "traces must be trace files"),
        ({"model_size": 1e6}, "megabits takes .* s over the link 'generated-"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        TraceWorld(**{"clients": 5, **settings})


# In plans, and with policies.


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_can_play(name: str) -> None:
    world = TraceWorld(1, clients=40, generator={"availability": 0.3}, deadline=400.0)
    for record in play(make_policy(name, 40), world, 12):
        assert known(record.report.available)[record.selection.clients].all()


def test_policies_that_require_expected_times_are_rejected_without_them() -> None:
    world = TraceWorld(clients=20, truth=False)
    assert world.offer(1).expected_times is None
    with pytest.raises(ValueError, match="needs the true expected times"):
        next(play(make_policy("fastest", 20), world, 1))


def test_plans_name_the_world_and_its_files(tmp_path: Path) -> None:
    write_traces(Generator(days=1).traces(12, 1), tmp_path / "a.npz")
    plan = RunPlan("random", 5, world="traces", world_settings={"traces": [str(tmp_path / "a.npz")]})
    _, world = RunPlan.from_dict(plan.as_dict()).build()
    assert world.clients == 12
    assert make_world("traces", 1, clients=3).clients == 3
    with pytest.raises(SettingError, match=r"the world traces has no setting 'file'"):
        make_world("traces", file="x")


def test_a_guarantee_is_checked_against_recorded_availability() -> None:
    plan = RunPlan("rbcsf", 5, world="traces", world_settings={"clients": 50})
    with pytest.raises(SettingError, match="cannot be kept"):
        plan.build()


# Generated traces resemble recorded ones.


@pytest.mark.parametrize("seed", [0, 1])
def test_generated_traces_have_the_published_statistics(seed: int) -> None:
    result = summarise_traces(Generator().traces(1500, seed))
    assert 0.15 < result["availability"]["mean"] < 0.21
    assert result["availability"]["never"] == 0
    assert 2.5 < result["availability"]["sessions_a_day"] < 5
    assert result["devices"]["mean"] == pytest.approx(0.078, rel=0.05)
    assert result["devices"]["values"]["0"] >= 0.015
    assert result["devices"]["values"]["1"] <= 0.199
    assert result["links"]["down_mbps"]["0.5"] == pytest.approx(14, rel=0.15)
    rhythm = daily_rhythm(Generator().availability_trace(1500, seed))
    assert 1.3 < rhythm.max() / rhythm.min() < 2.2
    flat = daily_rhythm(Generator(rhythm=0.0).availability_trace(1500, seed))
    assert flat.max() / flat.min() < rhythm.max() / rhythm.min()


def test_generated_availability_follows_its_mean_and_the_daily_rhythm() -> None:
    for share in (0.1, 0.4):
        assert Generator(availability=share).availability_trace(800, 2).shares.mean() == pytest.approx(share, rel=0.12)
    # available from 01:30 to 03:00 on the first of two days
    trace = AvailabilityTrace(("a",), np.array([0, 1]), np.array([5400.0]), np.array([10800.0]), np.array([172800.0]))
    expected = np.zeros(24)
    expected[[1, 2]] = 0.25, 0.5
    np.testing.assert_allclose(daily_rhythm(trace), expected)


def test_a_summary_states_how_parts_would_be_joined() -> None:
    first = simple_traces()
    assert summarise_traces(first)["joined"] == {"availability": "recorded", "devices": "by id", "links": "by id"}
    assert summarise_traces(Traces(devices=first.devices))["joined"] == {
        "availability": "generated",
        "devices": "drawn",
        "links": "generated",
    }
