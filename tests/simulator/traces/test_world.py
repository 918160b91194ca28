from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnout import POLICIES, RoundReport, Selection, make_policy
from turnout.errors import SelectionError, SettingError, StateError
from turnout.kernel.arrays import FloatArray
from turnout.kernel.rounds import RoundOffer
from turnout.simulator import RunPlan, TraceWorld, make_world, play, play_into
from turnout.simulator.traces.data import AvailabilityTrace, DeviceTrace, LinkTrace, Traces
from turnout.simulator.traces.formats.files import write_traces
from turnout.simulator.traces.generator import Generator
from turnout.simulator.traces.summary import daily_rhythm, summary
from turnout.store import RunStore

STILL: dict[str, Any] = {"noise_spread": 0.0, "free_cpu": {"kind": "constant", "value": 0.5}, "cold_start": 3.0}


def simple(stop: float = 1000.0, clients: int = 2) -> Traces:
    """Clients there from 0 to `stop` of 1000 s, with 0.1 s a sample, 4 Mbps down and 2 up."""
    ids = tuple(f"c{row}" for row in range(clients))
    ones = np.ones(clients)
    ptr = np.arange(clients + 1)
    return Traces(
        AvailabilityTrace(ids, ptr, 0 * ones, stop * ones, 1000 * ones),
        DeviceTrace(ids, 0.1 * ones),
        LinkTrace(ids, ptr, 0 * ones, 4 * ones, 2 * ones, ones, 0 * ones, 0 * ones),
    )


def everyone(world: TraceWorld, round_: int) -> tuple[RoundOffer, RoundReport]:
    offer = world.offer(round_)
    return offer, world.play(offer, Selection(round_, np.flatnonzero(offer.available)))


def expected_of(offer: RoundOffer) -> FloatArray:
    assert offer.expected_times is not None
    return offer.expected_times


# Times.


def test_an_exchange_is_download_cold_start_computing_and_upload() -> None:
    world = TraceWorld(traces=simple(), samples=50, model_size=20.0, period=100.0, **STILL)
    offer, report = everyone(world, 1)
    # 20/4 down, 3 cold, 50 · 0.1 / 0.5 computing, 20/2 up
    np.testing.assert_allclose(report.exchange_times, 5 + 3 + 10 + 10)
    np.testing.assert_allclose(offer.contexts, [[2.0, 1.0, 15.0]] * 2)
    np.testing.assert_allclose(expected_of(offer), report.exchange_times)
    warm, report = everyone(world, 2)
    assert warm.contexts[:, 1].tolist() == [0, 0]
    np.testing.assert_allclose(report.exchange_times, 25.0)


def test_expected_times_are_the_mean_of_many_exchanges_of_constant_links() -> None:
    traces = Generator(bandwidth_deviation=0.5).traces(200, 1)
    ids = tuple(map(str, range(200)))
    always = AvailabilityTrace(ids, np.arange(201), np.zeros(200), np.full(200, 1e6), np.full(200, 1e6))
    world = TraceWorld(3, traces=Traces(always, traces.devices, traces.links), samples=50)
    ratios = []
    for round_ in range(1, 101):
        offer, report = everyone(world, round_)
        ratios.append(report.exchange_times / expected_of(offer)[report.clients])
    np.testing.assert_allclose(np.mean(ratios), 1.0, atol=0.01)
    assert np.std(ratios) > 0.1


def test_a_series_is_read_from_the_moment_each_transfer_begins() -> None:
    ids = ("c0",)
    # 1 Mbps for 10 s, then 5 Mbps until 100 s; computing 20 s in between
    link = LinkTrace(
        ids, np.array([0, 2]), np.array([0.0, 10.0]), np.array([1.0, 5.0]), np.array([1.0, 5.0]), np.array([100.0]),
        np.zeros(1), np.zeros(1),
    )  # fmt: skip
    traces = Traces(simple(clients=1).availability, simple(clients=1).devices, link)
    world = TraceWorld(traces=traces, samples=85, model_size=20.0, link_clock="recorded", **STILL)
    offer, report = everyone(world, 1)
    np.testing.assert_allclose(report.exchange_times, (10 + 10 / 5) + 3 + 17 + 20 / 5)
    assert offer.contexts[0, 2] == pytest.approx(2 * 20 / 5)  # the minute before was the end of the series


def test_a_link_that_has_been_dead_for_a_while_is_known_as_very_slow() -> None:
    nothing = np.zeros(1)
    up = np.full(2, 5.0)
    link = LinkTrace(("c0",), np.array([0, 2]), np.array([0.0, 900.0]), np.array([5.0, 0.0]), up, np.array([1000.0]),
                     nothing, nothing)  # fmt: skip
    traces = Traces(simple(stop=50.0, clients=1).availability, simple(clients=1).devices, link)
    world = TraceWorld(traces=traces, model_size=1.7e4, link_clock="recorded", **STILL)
    offer, report = everyone(world, 1)
    assert offer.contexts[0, 2] == pytest.approx(100 * 1.7e4 / 4.5 + 1.7e4 / 5)
    assert report.with_outcome("failed").all()


def test_scores_are_seconds_of_the_typical_device() -> None:
    traces = Traces(simple().availability, DeviceTrace(("c0", "c1"), np.array([100.0, 300.0]), "score"), simple().links)
    offer, report = everyone(TraceWorld(traces=traces, samples=10, typical_seconds=0.3, **STILL), 1)
    np.testing.assert_allclose(report.exchange_times - 18, [10 * 0.3 * 2 / 0.5, 10 * 0.3 * 2 / 3 / 0.5])
    assert offer.contexts[:, 0].tolist() == [2, 2]


def test_times_are_heavy_tailed_and_not_linear() -> None:
    world = TraceWorld(1, clients=100)
    times = np.concatenate([everyone(world, round_)[1].exchange_times for round_ in range(1, 60)])
    assert np.percentile(times, 99) > 4 * np.median(times)


# Going offline.


def test_who_goes_offline_has_failed_when_it_left() -> None:
    world = TraceWorld(traces=simple(stop=20.0), samples=50, **STILL)
    _, report = everyone(world, 1)
    assert report.exchange_times.tolist() == [20, 20]
    assert report.with_outcome("failed").all()
    assert world.state()["trained"].tolist() == [False, False]


def test_who_goes_offline_may_be_late_instead() -> None:
    world = TraceWorld(traces=simple(stop=20.0), samples=50, offline="late", deadline=60.0, **STILL)
    _, report = everyone(world, 1)
    assert report.exchange_times.tolist() == [60, 60]
    assert report.with_outcome("late").all()
    with pytest.raises(SettingError, match="offline='late' waits for the deadline of the round: give a deadline"):
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
def test_a_deadline_makes_the_slow_late(deadline: float, stop: float, outcome: str, time: float) -> None:
    world = TraceWorld(traces=simple(stop=stop), samples=50, deadline=deadline, **STILL)
    _, report = everyone(world, 1)
    np.testing.assert_allclose(report.exchange_times, time)
    assert report.with_outcome(outcome).all()


def test_records_loop_or_stop() -> None:
    looping = TraceWorld(traces=simple(stop=600.0), period=500.0)
    assert [int(looping.offer(round_).available.sum()) for round_ in range(1, 7)] == [2, 2, 2, 2, 2, 2]
    shifted = TraceWorld(traces=simple(stop=600.0), period=500.0, start=300.0)
    assert [int(shifted.offer(round_).available.sum()) for round_ in range(1, 7)] == [2, 0, 2, 0, 2, 0]
    stopping = TraceWorld(traces=simple(stop=1000.0), period=500.0, after_end="stop")
    assert [int(stopping.offer(round_).available.sum()) for round_ in range(1, 5)] == [2, 2, 0, 0]
    always = TraceWorld(traces=simple(stop=1000.0), period=999.0, samples=50, **STILL)
    assert not everyone(always, 2)[1].with_outcome("failed").any()
    ending = TraceWorld(traces=simple(stop=1000.0), period=999.0, samples=50, after_end="stop", **STILL)
    assert everyone(ending, 2)[1].exchange_times.tolist() == [1, 1]


# Determinism.


def test_the_same_seed_gives_the_same_world_and_another_another() -> None:
    one, same, other = (TraceWorld(seed, clients=30) for seed in (5, 5, 6))
    for round_ in (1, 2, 7):
        assert everyone(one, round_)[0] == everyone(same, round_)[0]
    assert one.offer(8) != other.offer(8)


@pytest.mark.parametrize("clock", ["period", "rounds"])
def test_looking_changes_nothing(clock: Any) -> None:
    """What another simulator does wrong: its availability moves on with every look."""
    curious, plain = (TraceWorld(2, clients=25, clock=clock) for _ in range(2))
    for round_ in range(1, 12):
        for ahead in (40, 3, round_ + 1, round_):
            curious.offer(ahead)
        looked, played = everyone(curious, round_)
        assert looked == curious_offer_of(plain, round_)
        assert played == everyone(plain, round_)[1]


def curious_offer_of(world: TraceWorld, round_: int) -> RoundOffer:
    first = world.offer(round_)
    assert first == world.offer(round_)
    return first


def test_rounds_may_be_looked_at_in_any_order() -> None:
    forward, backward = TraceWorld(2, clients=25), TraceWorld(2, clients=25)
    there = {round_: forward.offer(round_).available.tolist() for round_ in range(1, 200)}
    assert there == {round_: backward.offer(round_).available.tolist() for round_ in reversed(range(1, 200))}


def test_every_policy_meets_the_same_fleet() -> None:
    runs = []
    for name in ("random", "fastest"):
        world = TraceWorld(4, clients=30)
        runs.append(list(play(make_policy(name, 30), world, 20)))
    for one, other in zip(*runs, strict=True):
        assert one.report.available is not None
        assert other.report.available is not None
        np.testing.assert_array_equal(one.report.available, other.report.available)


def test_where_rounds_set_the_clock_the_next_begins_when_the_last_is_back() -> None:
    world = TraceWorld(traces=simple(), samples=50, clock="rounds", start=10.0, period=77.0, **STILL)
    everyone(world, 1)
    assert world.state()["now"] == 10 + 28
    offer = world.offer(2)
    world.play(offer, Selection(2, np.empty(0, dtype=np.int64)))
    assert world.state()["now"] == 10 + 28 + 77


@pytest.mark.parametrize("clock", ["period", "rounds"])
@pytest.mark.parametrize("policy", ["rbcsf", "random"])
def test_a_resumed_run_is_the_run_it_would_have_been(tmp_path: Path, clock: str, policy: str) -> None:
    settings = {"clients": 20, "clock": clock}
    rules = {"accrual": "available"} if policy == "rbcsf" else {}
    plan = RunPlan(policy, 30, 3, settings=rules, world="traces", world_settings=settings)

    class Stopped(Exception):
        pass

    def stop(done: int) -> None:
        if done == 12:
            raise Stopped

    with RunStore(tmp_path / "a.turnout") as store:
        with pytest.raises(Stopped):
            play_into(store, plan, every=6, watch=stop)
        stopped = store.columns(play_into(store, plan, every=7))
    with RunStore(tmp_path / "b.turnout") as store:
        whole = store.columns(play_into(store, plan))
    assert stopped.to_bytes() == whole.to_bytes()


def test_a_run_of_other_traces_is_not_resumed() -> None:
    world = TraceWorld(traces=simple())
    with pytest.raises(StateError, match="the run was begun with traces of fingerprint"):
        TraceWorld(traces=simple(stop=900.0)).restore(world.state())
    TraceWorld(traces=simple(), fingerprint=world.fingerprint)
    with pytest.raises(SettingError, match=f"the traces have the fingerprint {world.fingerprint}, expected is beef"):
        TraceWorld(traces=simple(), fingerprint="beef")


# Who is who.


def test_clients_are_joined_by_id_where_every_id_is_there() -> None:
    one = simple(clients=3)
    assert one.devices is not None
    devices = DeviceTrace(("x", "c2", "c1", "c0"), np.array([9.0, 0.3, 0.2, 0.1]))
    world = TraceWorld(traces=Traces(one.availability, devices, one.links))
    assert world.joined == {"availability": "recorded", "devices": "by id", "links": "by id"}
    assert world.traces.devices is not None
    assert world.traces.devices.values.tolist() == [0.1, 0.2, 0.3]
    drawn = TraceWorld(traces=Traces(one.availability, devices, one.links), join="draw")
    assert drawn.joined["devices"] == "drawn from 4"
    assert any("modelling assumption" in words for words in drawn.assumptions)


def test_one_id_that_is_missing_makes_it_a_draw() -> None:
    one = simple(clients=3)
    strangers = DeviceTrace(("c0", "c1", "z"), np.array([0.1, 0.2, 0.3]))
    traces = Traces(one.availability, strangers, one.links)
    assert TraceWorld(traces=traces).joined["devices"] == "drawn from 3"
    with pytest.raises(SettingError, match="join='ids': devices has no client 'c2'"):
        TraceWorld(traces=traces, join="ids")


def test_some_of_the_recorded_clients_are_drawn_once_each() -> None:
    world = TraceWorld(1, traces=simple(clients=50), clients=20)
    assert len(set(world.ids)) == world.clients == 20
    assert world.ids != TraceWorld(2, traces=simple(clients=50), clients=20).ids
    with pytest.raises(SettingError, match="there are records of 50 clients, but 51 are wanted"):
        TraceWorld(traces=simple(clients=50), clients=51)


def test_those_who_are_hardly_there_may_be_left_out() -> None:
    availability = Generator().availability_trace(100, 1)
    world = TraceWorld(traces=Traces(availability), least_availability=0.1)
    assert world.clients == int((availability.shares >= 0.1).sum()) < 100
    assert world.availability.min() >= 0.1
    with pytest.raises(SettingError, match="no client is available 1 of the time"):
        TraceWorld(traces=simple(stop=500.0), least_availability=1.0)


def test_the_availability_is_the_share_of_rounds() -> None:
    world = TraceWorld(1, clients=60, period=601.0, truth=False)
    there = np.mean([world.offer(round_).available for round_ in range(1, 1007)], axis=0)
    np.testing.assert_allclose(there, world.availability, atol=0.02)


# Settings.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"join": "luck"}, "join must be one of auto, ids, draw, not 'luck'"),
        ({"after_end": "cut"}, "after_end must be one of loop, stop"),
        ({"clock": "wall"}, "clock must be one of period, rounds"),
        ({"link_clock": "x"}, "link_clock must be one of drawn, recorded"),
        ({"offline": "ignored"}, "offline must be one of failed, late"),
        ({"period": 0}, "period must be above 0"),
        ({"deadline": -1}, "deadline must be above 0"),
        ({"samples": 0}, "samples must be at least 1"),
        ({"clients": 0}, "clients must be at least 1"),
        ({"free_cpu": 3}, "free_cpu must be"),
        ({"generator": {"avail": 0.2}}, "the generator has no setting 'avail'"),
        ({"generator": {"availability": 2}}, "availability must be at most 0.95"),
        ({"generator": 3}, "generator must be a table"),
        ({"traces": 3}, "traces must be files or what read_traces gave, not 3"),
        ({"traces": [3]}, "traces must be files"),
        ({"model_size": 1e6}, "megabits takes .* s over the link 'generated-"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        TraceWorld(**{"clients": 5, **settings})


def test_rounds_count_from_one_and_only_the_available_train() -> None:
    world = TraceWorld(traces=simple(stop=500.0), period=700.0)
    with pytest.raises(SettingError, match="rounds count from 1"):
        world.offer(0)
    offer = world.offer(2)
    for client in (0, 2):
        with pytest.raises(SelectionError, match="unknown or not available"):
            world.play(offer, Selection(2, np.array([client])))


# In plans, and with policies.


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_plays_in_it(name: str) -> None:
    world = TraceWorld(1, clients=40, generator={"availability": 0.3}, deadline=400.0)
    for record in play(make_policy(name, 40), world, 25):
        assert record.report.available is not None
        assert record.report.available[record.selection.clients].all()


def test_policies_that_need_the_truth_are_refused_without_it() -> None:
    world = TraceWorld(clients=20, truth=False)
    assert world.offer(1).expected_times is None
    with pytest.raises(ValueError, match="must be told the true expected times"):
        next(play(make_policy("fastest", 20), world, 1))


def test_plans_name_it_and_its_files(tmp_path: Path) -> None:
    write_traces(Generator(days=1).traces(12, 1), tmp_path / "a.npz")
    plan = RunPlan("random", 5, world="traces", world_settings={"traces": [str(tmp_path / "a.npz")]})
    _, world = RunPlan.from_dict(plan.as_dict()).build()
    assert world.clients == 12
    assert make_world("traces", 1, clients=3).clients == 3
    with pytest.raises(SettingError, match=r"the world traces has no setting 'file'"):
        make_world("traces", file="x")


def test_a_promise_is_held_against_how_often_recorded_clients_are_there() -> None:
    plan = RunPlan("rbcsf", 5, world="traces", world_settings={"clients": 50})
    with pytest.raises(SettingError, match="cannot be kept"):
        plan.build()


# Generated traces are like recorded ones.


@pytest.mark.parametrize("seed", [0, 1])
def test_generated_traces_have_the_published_statistics(seed: int) -> None:
    told = summary(Generator().traces(1500, seed))
    assert 0.15 < told["availability"]["mean"] < 0.21
    assert told["availability"]["never"] == 0
    assert 2.5 < told["availability"]["sessions_a_day"] < 5
    assert told["devices"]["mean"] == pytest.approx(0.078, rel=0.05)
    assert told["devices"]["values"]["0"] >= 0.015
    assert told["devices"]["values"]["1"] <= 0.199
    assert told["links"]["down_mbps"]["0.5"] == pytest.approx(14, rel=0.15)
    rhythm = daily_rhythm(Generator().availability_trace(1500, seed))
    assert 1.3 < rhythm.max() / rhythm.min() < 2.2
    flat = daily_rhythm(Generator(rhythm=0.0).availability_trace(1500, seed))
    assert flat.max() / flat.min() < rhythm.max() / rhythm.min()


def test_generated_availability_follows_its_mean() -> None:
    for share in (0.1, 0.4):
        assert Generator(availability=share).availability_trace(800, 2).shares.mean() == pytest.approx(share, rel=0.12)


def test_the_daily_rhythm_is_counted_exactly() -> None:
    # there from 01:30 to 03:00 on the first of two days
    trace = AvailabilityTrace(("a",), np.array([0, 1]), np.array([5400.0]), np.array([10800.0]), np.array([172800.0]))
    expected = np.zeros(24)
    expected[[1, 2]] = 0.25, 0.5
    np.testing.assert_allclose(daily_rhythm(trace), expected)


def test_a_summary_tells_how_parts_would_be_joined() -> None:
    one = simple()
    assert summary(one)["joined"] == {"availability": "recorded", "devices": "by id", "links": "by id"}
    assert summary(Traces(devices=one.devices))["joined"] == {
        "availability": "generated",
        "devices": "drawn",
        "links": "generated",
    }
