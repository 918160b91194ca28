"""The dashboard of a fleet whose settings were amended, compared with its scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dashboard.readings import FOREVER, assert_same_certificate, fleet_ledger
from live.fleets import World, named, offered, play_round, take_snapshot
from turnout.dashboard.sources.fleet import FleetSource
from turnout.kernel.arrays import FloatArray
from turnout.live import Feature, Features, FleetReader, Scheduler
from turnout.live.journal import changes

POLICIES: Mapping[str, Mapping[str, Any]] = {
    "fair-pace": {"settings": {"cohort_size": 2, "guaranteed_rate": 0.15}},
    "capped rbcsf": {"policy": "rbcsf", "settings": {"cohort_size": 2, "guaranteed_rate": 0.15, "max_owed": 0.8}},
    "rbcsf with the default cap": {
        "policy": "rbcsf",
        "settings": {"cohort_size": 1, "guaranteed_rate": "1/2", "speed_weight": 0.01},
    },
    "with-guarantee": {"policy": "with-guarantee", "settings": {"policy": "random", "settings": {"cohort_size": 2}}},
}
CHANGES: tuple[Mapping[str, Any], ...] = (
    {"guaranteed_rate": "1/7", "tolerance": 0.9},
    {"cohort_size": 3, "deadline": 90.0},
    {"guaranteed_rate": 0.3},
    {"tolerance": 4.0, "guaranteed_rate": 0.1},
)


def play(scheduler: Scheduler, rounds: int) -> list[FloatArray]:
    """Plays rounds in which some clients are available and some fail; returns the debts after each."""
    world, debts = World(7), []
    for _ in range(rounds):
        number = scheduler.round + 1
        there = [client for client in world.clients if (number * 5 + int(client[1:]) * 3) % 4]
        statuses = {client: world.statuses(number)[client] for client in there}
        for client in scheduler.choose(statuses):
            if (number + int(client[1:])) % 5:
                scheduler.report(client, world.seconds(number, client, statuses[client]))
            else:
                scheduler.report_failure(client, "no power")
        scheduler.close_round()
        debts.append(scheduler.certificate().owed)
    return debts


def assert_same(source: FleetSource, scheduler: Scheduler, debts: list[FloatArray]) -> None:
    """Compares the certificates, and the largest debts after the last rounds."""
    result, expected = source.ledger.certificate(), scheduler.certificate()
    assert_same_certificate(result, expected)
    assert result is not None
    assert result.summary() == expected.summary()
    np.testing.assert_array_equal(source.ledger.fairness_series["worst"], [owed.max() for owed in debts])


@pytest.mark.parametrize("name", POLICIES)
def test_the_ledger_has_the_certificate_and_the_debts_of_the_scheduler(name: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, **POLICIES[name], deadline=500.0, allow_infeasible=True) as scheduler:
        debts = play(scheduler, 6)
        with closing(FleetSource(FleetReader(path))) as live:
            for changes in CHANGES:
                live.catch_up(FOREVER)
                scheduler.amend(**changes)
                live.catch_up(FOREVER)
                assert_same(live, scheduler, debts)
                debts.extend(play(scheduler, 7))
                live.catch_up(FOREVER)
                assert_same(live, scheduler, debts)
            sentences = [notice for notice in live.notices() if "amended" in notice]
        late, _ = fleet_ledger(path)
        with closing(late):
            assert_same(late, scheduler, debts)
    assert len(sentences) == 4
    assert sentences[1].startswith("The settings were amended after round 13: cohort_size from ")


def test_a_large_fleet_is_read_from_its_snapshot_with_the_settings_of_that_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "KEEP_AVAILABILITY_UP_TO", 3)
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, **POLICIES["capped rbcsf"], deadline=500.0, allow_infeasible=True) as scheduler:
        play(scheduler, 6)
        scheduler.amend(guaranteed_rate="1/7")
        play(scheduler, 3)
        take_snapshot(scheduler)
        debts = play(scheduler, 2)
        scheduler.amend(guaranteed_rate=0.3)
        debts.extend(play(scheduler, 4))
        source, ledger = fleet_ledger(path)
        with closing(source):
            assert ledger.fairness_series["rounds"].tolist() == list(range(10, 16))
            assert_same(source, scheduler, debts)
            assert sum("amended" in notice for notice in source.notices()) == 2


def test_a_fleet_without_a_time_model_is_read_after_its_features_were_amended(tmp_path: Path) -> None:
    """The model that the ledger trains has the former features; it learns and predicts nothing more."""
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, policy="random", settings={"cohort_size": 2}, deadline=500.0) as scheduler:
        play_round(scheduler, offered(*named(3)))
        scheduler.amend(features=Features.of(Feature("battery", 0.0, 1.0)))
        play_round(scheduler, {name: {"battery": 0.5} for name in named(3)})
    source, ledger = fleet_ledger(path)
    with closing(source):
        assert ledger.round_column("rounds").tolist() == [1, 2]
        assert np.isnan(ledger.turn_column("predicted")[2:]).all()
