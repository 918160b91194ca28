from __future__ import annotations

import logging
from pathlib import Path

import pytest

from live.fleets import OpenFleet, play_round
from tracking.recording import Broken, Recording
from turnout.errors import SettingError, StoreError
from turnout.live import FleetReader, Scheduler

IDS = [f"c{number}" for number in range(6)]
SETTINGS = {"cohort_size": 2, "guaranteed_rate": 0.2}


def test_every_closed_round_is_tracked_with_its_number(open_fleet: OpenFleet) -> None:
    recording = Recording()
    with open_fleet(settings=SETTINGS) as untracked:
        play_round(untracked, IDS)
    scheduler = open_fleet(tracker=recording)
    for _ in range(3):
        play_round(scheduler, IDS)
    assert [step for step, _ in recording.steps] == [2, 3, 4]
    _, metrics = recording.steps[-1]
    assert (metrics["round/selected"], metrics["round/arrived"], metrics["round/failed"]) == (2.0, 2.0, 0.0)
    assert metrics["promise/turns_behind"] == pytest.approx(scheduler.certificate().behind.max())
    assert "time/elapsed_seconds" not in metrics
    scheduler.close()
    assert recording.closed == 1


def test_failures_and_losses_are_tracked(open_fleet: OpenFleet) -> None:
    recording = Recording()
    scheduler = open_fleet(settings=SETTINGS, tracker=recording)
    first, second = scheduler.choose(IDS)
    scheduler.report(first, 3.0, loss=0.5)
    scheduler.report_failure(second, "battery")
    scheduler.close_round()
    _, metrics = recording.steps[0]
    assert (metrics["round/arrived"], metrics["round/failed"], metrics["metrics/loss"]) == (1.0, 1.0, 0.5)


def test_a_tracker_that_fails_does_not_stop_a_fleet(open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture) -> None:
    broken = Broken()
    scheduler = open_fleet(settings=SETTINGS, tracker=broken)
    with caplog.at_level(logging.WARNING, "turnout.tracking"):
        for _ in range(3):
            play_round(scheduler, IDS)
        scheduler.close()
    assert (len(broken.steps), broken.closed) == (3, 1)
    assert sum("was not tracked" in record.getMessage() for record in caplog.records) == 1
    with FleetReader(scheduler.path) as opened:
        assert opened.round == 3


def test_a_fleet_is_opened_with_a_tracker_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recording, "opened", [])
    path = tmp_path / "phones.turnout"
    with Scheduler.open(path, settings=SETTINGS, tracker="tracking.recording:Recording:here") as scheduler:
        play_round(scheduler, IDS)
    (recording,) = Recording.opened
    assert (recording.run, recording.target, recording.closed) == ("phones", "here", 1)
    assert recording.settings["policy"] == "fair-pace"
    assert recording.settings["settings"] == SETTINGS
    with pytest.raises(SettingError, match="unknown tracker"):
        Scheduler.open(path, tracker="nothing")
    with Scheduler.open(path) as again:  # an error has released the file
        assert again.round == 1


def test_turns_without_rounds_are_tracked_by_decision(open_fleet: OpenFleet) -> None:
    recording = Recording()
    scheduler = open_fleet(concurrency=2, settings={"guaranteed_rate": 0.05}, tracker=recording)
    turns = scheduler.fill(IDS)
    scheduler.report(turns[0].id, 4.0, loss=0.25)
    scheduler.fill(IDS)
    assert [step for step, _ in recording.steps] == [2, 3]
    (_, begun), (_, later) = recording.steps
    assert (begun["turns/given"], begun["turns/ended"]) == (2.0, 0.0)
    assert (later["turns/given"], later["turns/ended"], later["turns/arrived"]) == (1.0, 1.0, 1.0)
    assert (later["turns/mean_seconds"], later["metrics/loss"]) == (4.0, 0.25)
    assert later["promise/turns_behind"] == pytest.approx(scheduler.certificate().behind.max())
    scheduler.report(turns[1].id, 4.0)
    scheduler.fill([])
    scheduler.fill([])  # a slot is free, but nobody is there: no turn changes
    assert [step for step, _ in recording.steps] == [2, 3, 3]


def test_turns_without_a_guarantee_are_tracked_without_a_promise(open_fleet: OpenFleet) -> None:
    recording = Recording()
    scheduler = open_fleet(concurrency=2, policy="random", settings={}, tracker=recording)
    scheduler.fill(IDS)
    ((step, metrics),) = recording.steps
    assert (step, metrics["turns/given"]) == (2, 2.0)
    assert "promise/turns_behind" not in metrics


def test_a_round_that_cannot_be_written_is_not_tracked(open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording()
    scheduler = open_fleet(settings=SETTINGS, tracker=recording)
    scheduler.choose(IDS)

    def full(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("turnout.live.serving.rounds.pack_closed", full)
        with pytest.raises(StoreError):
            scheduler.close_round(after=1.0)
    assert recording.steps == []
    scheduler.close_round(after=1.0)
    assert [step for step, _ in recording.steps] == [1]
