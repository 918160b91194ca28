"""Cold starts: an exchange that includes starts and imports takes longer, and tells nothing about the speed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.cold_starts import FLEET, Who, play
from live.fleets import (
    OpenFleet,
    World,
    exported,
    named,
    packed,
    packed_from_disk,
    play_round,
    predicted_seconds,
    problems,
    state_of,
    take_snapshot,
)
from turnout.dashboard.sources.recording import read_recording
from turnout.errors import OfferError
from turnout.live import Scheduler
from turnout.live._internals import examine


def played(open_fleet: OpenFleet, who: Who, *, hinted: bool, seed: int = 0) -> tuple[int, float]:
    return play(open_fleet(f"{who}-{hinted}-{seed}.turnout", **FLEET), who, hinted=hinted, seed=seed)


@pytest.mark.parametrize(("who", "hinted"), [("everybody", True), ("one", False)])
def test_fast_clients_keep_their_turns_and_rounds_their_length_after_cold_starts(
    open_fleet: OpenFleet, who: Who, hinted: bool
) -> None:
    turns, seconds = played(open_fleet, who, hinted=hinted)
    warm_turns, warm_seconds = played(open_fleet, "nobody", hinted=False)
    assert turns >= 0.9 * warm_turns
    assert seconds <= 1.05 * warm_seconds


@pytest.mark.thorough
@pytest.mark.parametrize("hinted", [True, False])
@pytest.mark.parametrize("who", ["one", "round", "everybody"])
def test_the_same_for_other_cold_starts_in_the_mean_of_four_seeds(
    open_fleet: OpenFleet, who: Who, hinted: bool
) -> None:
    turns, seconds = np.mean([played(open_fleet, who, hinted=hinted, seed=seed) for seed in range(4)], axis=0)
    warm = np.mean([played(open_fleet, "nobody", hinted=False, seed=seed) for seed in range(4)], axis=0)
    if hinted or who == "one":
        assert turns >= 0.9 * warm[0]
        assert seconds <= 1.05 * warm[1]
    else:  # without a hint, the start-ups of most clients cannot be told from slow clients
        assert turns < 0.7 * warm[0]


def restart(scheduler: Scheduler, open_fleet: OpenFleet) -> Scheduler:
    scheduler.close()
    return open_fleet(scheduler.path)


@pytest.mark.parametrize("persisted", [True, False])
@pytest.mark.parametrize("concurrency", [None, 3])
def test_a_cold_turn_teaches_nothing_whether_the_client_arrives_fails_or_is_late(
    open_fleet: OpenFleet, persisted: bool, concurrency: int | None
) -> None:
    settings = {"guaranteed_rate": "1/20"} if concurrency else {"cohort_size": 3, "guaranteed_rate": 0.1}
    options: dict[str, Any] = {"settings": settings, "concurrency": concurrency, "persist_statuses": persisted}
    scheduler = open_fleet(deadline=60.0, **options)
    world, clients = World(5), named(5)
    if concurrency:
        given = [turn.id for turn in scheduler.fill(world.statuses(1), cold=set(clients))]
        scheduler = restart(scheduler, open_fleet)
        scheduler.report(given[0], 30.0)
        scheduler.report_failure(given[1], "its battery died")
        warm = scheduler.fill(world.statuses(2), cold=clients[3:])[:1]
        scheduler.report(warm[0].id, 4.0)
        scheduler.fill({})
    else:
        first = scheduler.choose(world.statuses(1), cold=set(clients))
        scheduler = restart(scheduler, open_fleet)
        scheduler.report(first[0], 30.0)
        scheduler.report_failure(first[1], "its battery died")
        scheduler.close_round(after=50.0)
        scheduler.report(first[2], 70.0, round=1)  # late, and cold
        assert not state_of(scheduler).fleet.counters.learned.any()
        cohort = scheduler.choose(world.statuses(2), cold=clients[3:])
        scheduler.report_many(dict.fromkeys(cohort, 4.0))
        scheduler.close_round()
    model = state_of(scheduler).fleet.model
    assert model is not None
    assert model.predict([[1.0, 0.0, 1.0]] * 5).max() < 5.0
    assert problems(scheduler.path) == []
    if persisted:
        assert packed(scheduler) == packed_from_disk(scheduler.path)


@pytest.mark.files
def test_a_cold_start_is_replayed_and_exported_and_its_context_is_in_the_offer_only(open_fleet: OpenFleet) -> None:
    world = World(5)
    scheduler = open_fleet(settings={"cohort_size": 2, "guaranteed_rate": 0.1}, deadline=60.0)
    for number in range(1, 9):
        statuses = world.statuses(number)
        cohort = scheduler.choose(statuses, cold=["c0"] if number % 3 == 1 else [])
        scheduler.report_many({client: world.seconds(number, client, statuses[client]) for client in cohort})
        scheduler.close_round()
    take_snapshot(scheduler)
    contexts = next(event["contexts"] for event in exported(scheduler) if event["kind"] == "round")
    assert contexts[0] is None
    assert len(contexts[1]) == 3
    assert any("give the same state as all events" in finding.message for finding in examine(scheduler.path))
    recording = read_recording(scheduler.path)
    assert len(recording.columns) == 8  # rounds with a cold start are replayed, too
    assert not np.isnan(recording.columns.contexts).any()


def test_a_client_that_always_starts_cold_has_a_time_from_its_second_turn_on(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 1, "guaranteed_rate": 0.1}, deadline=60.0)
    for _ in range(2):
        scheduler.choose(["a"], cold=["a"])
        assert predicted_seconds(scheduler) == {}
        scheduler.report("a", 20.0)
        scheduler.close_round()
    scheduler.choose(["a"])
    assert predicted_seconds(scheduler)["a"] > 10.0


def test_an_automatic_deadline_waits_for_a_cold_start(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 2, "guaranteed_rate": 0.1}, deadline="auto", deadline_ceiling=900.0)
    for _ in range(3):
        play_round(scheduler, ["a", "b"], {"a": 2.0, "b": 2.0})
    deadlines = []
    for cold in ([], ["b"]):
        scheduler.choose(["a", "b"], cold=cold)
        assert scheduler.open_round is not None
        deadlines.append(scheduler.open_round.deadline)
        scheduler.abandon_round()
    assert (deadlines[0] or 0.0) < 9.0
    assert deadlines[1] == 900.0


def test_cold_must_be_a_collection_of_ids(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(deadline=60.0)
    with pytest.raises(OfferError, match="cold must be a list or a set of client ids, got 'c0'"):
        scheduler.choose(named(3), cold="c0")
    assert scheduler.open_round is None


def test_no_predicted_time_is_negative(open_fleet: OpenFleet) -> None:
    """Times that fall while a feature grows make the regression negative where the feature is large."""
    scheduler = open_fleet(settings={"cohort_size": 1, "guaranteed_rate": 0.1}, deadline="auto")
    for bandwidth, seconds in ((2.0, 9.0), (4.0, 0.5)) * 15:
        play_round(scheduler, {"a": {"free_cpu": 1.0, "bandwidth": bandwidth}}, {"a": seconds})
    scheduler.choose({"a": {"free_cpu": 1.0, "bandwidth": 40.0}})
    model, opened = state_of(scheduler).fleet.model, scheduler.open_round
    assert model is not None
    assert opened is not None
    assert model.predict(opened.contexts)[0] < 0
    assert predicted_seconds(scheduler) == {"a": 0.0}
    assert opened.deadline == 1.0
