"""Replays of fleets whose settings were amended: all rounds have the present settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from live.fleets import World
from turnout.dashboard.sources.recording import read_recording
from turnout.lab.analysis.replay.recording import Recording
from turnout.lab.analysis.replay.replay import fitted_build, replay
from turnout.live import Feature, Features, Scheduler


def play(scheduler: Scheduler, rounds: int) -> None:
    world = World(9)
    for _ in range(rounds):
        number = scheduler.round + 1
        statuses = {
            client: status for client, status in world.statuses(number).items() if (number + int(client[1:])) % 3
        }
        cohort = scheduler.choose(statuses)
        scheduler.report_many({client: world.seconds(number, client, statuses[client]) for client in cohort})
        scheduler.close_round()


def amended_fleet(path: Path, **options: Any) -> Recording:
    with Scheduler.open(path, deadline=500.0, allow_infeasible=True, **options) as scheduler:
        play(scheduler, 1)
        scheduler.register([f"c{row}" for row in range(9)])
        play(scheduler, 14)
        scheduler.amend(guaranteed_rate="1/3", cohort_size=3, tolerance=1.0)
        play(scheduler, 10)
        scheduler.amend(guaranteed_rate=0.1)
        play(scheduler, 5)
    return read_recording(path)


def test_all_rounds_have_the_present_settings(tmp_path: Path) -> None:
    record = amended_fleet(tmp_path / "fleet.turnout", settings={"cohort_size": 2, "guaranteed_rate": 0.15})
    assert (len(record.columns), record.amended_after) == (30, 25)
    assert "the settings were amended after round 25: all rounds have the present ones" in record.notes
    result = replay(record, record.policy, {}, draws=2)
    assert result.promise.startswith("0.1 of the rounds it was available for, at most 1 turn behind")
    assert result.settings == {"cohort_size": 3, "guaranteed_rate": 0.1, "tolerance": 1.0}
    assert result["other_rounds"].replayed >= 15  # the first rounds had smaller cohorts
    assert result["mean_round"].recorded == record.columns.durations.mean()
    other = replay(record, "random", {}, draws=2)
    assert other.promise == result.promise
    assert other["shortfall_at_end"].recorded == result["shortfall_at_end"].recorded


def test_tuning_calibrates_with_the_rounds_of_the_present_settings(tmp_path: Path) -> None:
    options = {"policy": "rbcsf", "settings": {"cohort_size": 2, "speed_weight": 0.1}}
    record = amended_fleet(tmp_path / "fleet.turnout", **options)
    fitted = fitted_build(record, {}, "rbcsf")
    policy, _ = fitted.build({"speed_weight": 1.0}, 0)
    assert policy.cohort_size == 3
    assert fitted.mean_round == pytest.approx(record.columns.durations[25:].mean())


def test_rounds_before_an_amendment_of_the_features_are_not_replayed(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 2}, deadline=500.0, allow_infeasible=True) as scheduler:
        play(scheduler, 6)
        scheduler.amend(features=Features.of(Feature("battery", 0.0, 1.0)))
        for number in range(5):
            for client in scheduler.choose({f"c{row}": {"battery": (row + number) % 9 / 9} for row in range(9)}):
                scheduler.report(client, 2.0)
            scheduler.close_round()
    record = read_recording(path)
    assert (len(record.columns), record.columns.contexts.shape[1]) == (5, 1)
    assert record.amended_after == 0
    assert "only the last 5 of 11 rounds are used: the features were amended before them" in record.notes
    assert replay(record, "fair-pace", {}, draws=2).rounds == 5
