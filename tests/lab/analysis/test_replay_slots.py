"""Replays of turns without rounds."""

from __future__ import annotations

import heapq
import random
from pathlib import Path

import numpy as np
import pytest

from live.fleets import named
from live.turns.slots.played import open_slots
from turnout.dashboard.sources.recording import read_recording
from turnout.errors import SettingError
from turnout.lab import RunPlan, RunStore, play_into
from turnout.lab.analysis.replay.replay import fitted_build, replay
from turnout.live import ClientStatus, Feature, Features, FleetReader

CLIENTS = 12


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fleet of twelve clients, of which every third takes five times as long; slots are filled at once."""
    rng, now, ends = random.Random(3), 0.0, list[tuple[float, int, float]]()
    path = tmp_path_factory.mktemp("slots") / "fleet.turnout"
    with open_slots(path, settings={"guaranteed_rate": "1/20", "tolerance": 1.0}) as scheduler:
        for step in range(120):
            there = [name for name in named(CLIENTS) if rng.random() < 0.9]
            for turn in scheduler.fill({name: ClientStatus(1 + rng.random(), 2 + rng.random()) for name in there}):
                seconds = (10.0 if int(turn.client[1:]) % 3 == 0 else 2.0) * rng.uniform(0.8, 1.2)
                heapq.heappush(ends, (now + seconds, turn.id, seconds))
            now, turn_id, seconds = heapq.heappop(ends)
            if step % 20 == 19:
                scheduler.report_failure(turn_id, "lost")
            else:
                scheduler.report(turn_id, seconds, loss=1.0)
    return path


def test_the_record_has_the_turns_that_have_ended_in_slots_that_are_never_empty(fleet: Path) -> None:
    record = read_recording(fleet)
    with FleetReader(fleet) as reader:
        ended = sorted(reader.ended_turns(), key=lambda turn: turn.id)
        running = len(reader.running())
    columns = record.columns
    assert record.slots == 3
    assert columns.chosen.tolist() == [turn.row for turn in ended]
    assert columns.exchange_times.tolist() == [turn.seconds for turn in ended]
    started, finished = columns.metrics["started"], columns.metrics["finished"]
    assert (np.diff(started) >= 0).all()
    busy = [int(((started <= moment) & (finished > moment)).sum()) for moment in started.tolist()]
    assert max(busy) == 3
    for row in range(CLIENTS):
        own = columns.chosen == row
        assert (started[own][1:] >= finished[own][:-1]).all(), "nobody is in two slots"
    assert f"running turns are left out: {running}" in record.notes


def test_the_same_policy_repeats_the_record(fleet: Path) -> None:
    result = replay(read_recording(fleet), "fair-pace", {})
    assert all(
        figure.exact and figure.recorded == figure.replayed for figure in result.figures if "other" not in figure.name
    )
    assert (result["other_choices"].replayed, result.slots, result.status) == (0, 3, result.recorded_status)


def test_a_replay_with_nearly_the_same_settings_is_about_as_fast_as_the_record(fleet: Path) -> None:
    result = replay(read_recording(fleet), "fair-pace", {"tolerance": 1.001}, draws=3)
    rate = result["updates_per_second"]
    assert not rate.exact
    assert rate.replayed == pytest.approx(rate.recorded, rel=0.15)
    assert 0 < result.known_times < 1


def test_another_policy_meets_the_recorded_clients_and_gives_as_many_turns(fleet: Path) -> None:
    result = replay(read_recording(fleet), "random", {}, draws=3)
    assert result["updates_per_second"].replayed < 0.9 * result["updates_per_second"].recorded
    assert result["other_choices"].replayed > 0
    assert result.promise.startswith("0.05 of the turns given while it was there, at most 1 turn behind")
    assert "round" not in f"{result.promise}{result.recorded_promise}{result.replayed_promise}"


def test_all_decisions_have_the_present_settings(tmp_path: Path) -> None:
    rng = random.Random(1)
    with open_slots(tmp_path / "fleet.turnout") as scheduler:
        for step in range(30):
            scheduler.fill(named(8))
            for turn in scheduler.running():
                if rng.random() < 0.6:
                    scheduler.report(turn.id, 1.0 + rng.random())
            if step == 15:
                amended = scheduler.round
                scheduler.amend(tolerance=2.0)
    record = read_recording(scheduler.path)
    assert record.amended_after == amended
    result = replay(record, "fair-pace", {"tolerance": 1.5}, draws=2)
    assert result.rounds == len(record.columns)
    assert any(note.startswith(f"the settings were amended after decision {amended}:") for note in result.notes)


def test_a_simulated_run_without_rounds_is_replayed_exactly_in_its_world(tmp_path: Path) -> None:
    plan = RunPlan("fair-pace", 80, 1, {"tolerance": 1.0}, world_settings={"clients": 12}, concurrency=3)
    with RunStore(tmp_path / "runs.turnout") as store:
        play_into(store, plan)
    record = read_recording(tmp_path / "runs.turnout")
    result, other = replay(record, "fair-pace", {}), replay(record, "random", {})
    assert all(figure.exact for figure in (*result.figures, *other.figures))
    assert result["updates_per_second"].replayed == result["updates_per_second"].recorded
    assert other["updates_per_second"].replayed < result["updates_per_second"].replayed


def test_searches_need_rounds_and_replays_need_a_turn_that_has_ended(fleet: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="has no rounds: only records of rounds can be simulated again"):
        fitted_build(read_recording(fleet), {}, "rbcsf")
    with open_slots(tmp_path / "fleet.turnout") as scheduler:
        scheduler.fill(named(8))
    with pytest.raises(SettingError, match="holds no turn that has ended, with its context"):
        read_recording(scheduler.path)


def test_the_notes_count_the_turns_that_are_left_out(tmp_path: Path) -> None:
    with open_slots(tmp_path / "fleet.turnout") as scheduler:
        for battery in (False, True):
            if battery:
                scheduler.amend(features=Features.of(Feature("battery", 0.0, 1.0)))
            statuses = {name: {"battery": 0.5} if battery else ClientStatus(1.0, 2.0) for name in named(8)}
            for turn in scheduler.fill(statuses):
                scheduler.report(turn.id, 2.0)
        scheduler.fill({})
    record = read_recording(scheduler.path)
    assert len(record.columns) == 3
    assert "only 3 turns are used: the others, 3, are not stored completely" in record.notes
    assert not any(note.startswith("running turns are left out") for note in record.notes)
