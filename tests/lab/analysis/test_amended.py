"""Replays of fleets whose settings were amended: each round has the settings of its time."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from live.fleets import World
from turnout.cli.fleet.recording import read_recording
from turnout.lab.analysis.promise import AmendedTerms, shortfalls
from turnout.lab.analysis.replay.recording import Recording
from turnout.lab.analysis.replay.replay import fitted_build, replay
from turnout.live import Feature, Features, FleetReader, Scheduler

POLICIES: dict[str, dict[str, Any]] = {
    "fair-pace": {"settings": {"cohort_size": 2, "guaranteed_rate": 0.15}},
    "rbcsf": {"policy": "rbcsf", "settings": {"cohort_size": 2, "speed_weight": 0.1}},
    "with-guarantee": {"policy": "with-guarantee", "settings": {"policy": "random", "settings": {"cohort_size": 2}}},
}


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


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The record of a fleet of fair-pace, which no test changes."""
    return amended_fleet(tmp_path_factory.mktemp("amended") / "fleet.turnout", **POLICIES["fair-pace"])


@pytest.mark.parametrize("name", POLICIES)
def test_the_recorded_policy_makes_the_recorded_selections_again(name: str, tmp_path: Path) -> None:
    record = amended_fleet(tmp_path / "fleet.turnout", **POLICIES[name])
    assert [stage.after for stage in record.stages] == [0, 15, 25]
    found = replay(record, record.policy, {}, draws=2)
    assert (found["other_choices"].replayed, found["other_rounds"].replayed) == (0, 0)
    assert found["mean_round"].replayed == found["mean_round"].recorded
    assert "the settings were amended after round 15, 25: each round has the settings of its time" in record.notes
    with FleetReader(tmp_path / "fleet.turnout") as scheduler:
        certificate = scheduler.certificate()
    assert found["shortfall_at_end"].recorded == pytest.approx(float(certificate.behind.max()))
    assert found.recorded_promise == certificate.summary().sentence(record.name)
    assert found.promise.count("from round") == 2


def test_a_given_setting_overrides_those_of_all_rounds(record: Recording) -> None:
    found = replay(record, "fair-pace", {"guaranteed_rate": 0.2, "tolerance": 3.0, "cohort_size": 1}, draws=2)
    assert "from round" not in found.promise
    assert found.promise.startswith("0.2 of the rounds it was available for, at most 3 turns behind")
    assert found["other_rounds"].replayed == 30


def test_another_policy_is_judged_by_the_promises_of_the_time(record: Recording) -> None:
    found = replay(record, "random", {}, draws=2)
    assert found.promise.count("from round") == 2
    assert found["shortfall_at_end"].recorded == replay(record, "fair-pace", {}, draws=2)["shortfall_at_end"].recorded


def test_tuning_calibrates_with_the_settings_of_each_round(tmp_path: Path) -> None:
    record = amended_fleet(tmp_path / "fleet.turnout", **POLICIES["rbcsf"])
    fitted = fitted_build(record, {})
    policy, _ = fitted.build({"speed_weight": 1.0}, 0)
    assert policy.cohort_size == 3
    assert fitted.mean_round == pytest.approx(record.columns.durations.mean())


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
    assert len(record.stages) == 1
    assert "only the last 5 of 11 rounds are used: the features were amended before them" in record.notes
    assert replay(record, "fair-pace", {}, draws=2).rounds == 5


def test_shortfalls_count_earlier_rounds_at_the_earlier_rate(record: Recording) -> None:
    columns = record.columns
    assert columns.available is not None
    amended = [AmendedTerms(15, "1/3", 1.0), AmendedTerms(25, 0.1, 1.0)]
    found = shortfalls(columns, 0.15, accrual="available", counts="completed", tolerance=2.0, amended=amended)
    rates = [Fraction(3, 20)] * 15 + [Fraction(1, 3)] * 10 + [Fraction(1, 10)] * 5
    promised = [
        sum((rate for rate, there in zip(rates, column, strict=True) if there), Fraction(0))
        for column in columns.available.T.tolist()
    ]
    certificate = found.certificate
    assert certificate.units_per_turn == 60
    assert [Fraction(units, 60) for units in certificate.promised_units.tolist()] == promised
    assert certificate.tolerance == 1.0
    assert np.array_equal(certificate.turns, columns.turns)
