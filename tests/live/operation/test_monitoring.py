"""Figures about a running scheduler, and the events that it logs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from live.fleets import OpenFleet, named, offered, play_round, take_snapshot
from postgres import is_file
from tracking.recording import Broken, Recording
from turnout.errors import ReportError, SettingError, StoreError
from turnout.live import FleetReader, Reporter, Scheduler
from turnout.live._internals import WriterMetrics
from turnout.live.operation import monitoring
from turnout.live.turns.state import Fleet


def test_a_new_fleet_has_nothing_to_measure(open_fleet: OpenFleet) -> None:
    figures = open_fleet().metrics()
    assert (figures.round, figures.open_round_seconds, figures.seconds_since_report) == (0, None, None)
    assert (figures.turns_behind, figures.refused_reports, figures.snapshot_age_rounds) == (None, 0, 0)
    assert figures.file_bytes > 0


def test_the_figures_follow_the_fleet(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 2, "guaranteed_rate": 0.25})
    for _ in range(3):
        play_round(scheduler, offered(*named(4)))
    before = scheduler.metrics()
    assert (before.round, before.open_round_seconds, before.snapshot_age_rounds) == (3, None, 3)
    assert before.turns_behind == float(scheduler.certificate().behind.max())
    assert before.commit_seconds_median is not None
    assert before.commit_seconds_largest is not None
    assert 0 < before.commit_seconds_median <= before.commit_seconds_largest
    assert (before.log_bytes > 0) == is_file(scheduler.path)
    a, b = scheduler.choose(offered(*named(4)))
    opened = scheduler.metrics()
    assert (opened.round, opened.seconds_since_report) == (4, None)
    assert opened.commits == before.commits + 1
    with Reporter(scheduler.path) as reporter:
        reporter.report(a, 2.0)
    reported = scheduler.metrics()
    assert reported.commits == before.commits + 2
    assert reported.seconds_since_report is not None
    assert opened.open_round_seconds is not None
    assert reported.open_round_seconds is not None
    assert 0 <= opened.open_round_seconds <= reported.open_round_seconds
    with pytest.raises(ReportError):
        scheduler.report(a, 3.0)
    scheduler.report(b, 2.0)
    scheduler.close_round()
    take_snapshot(scheduler)
    after = scheduler.metrics()
    assert (after.refused_reports, after.snapshot_age_rounds, after.open_round_seconds) == (1, 0, None)
    assert set(after.to_dict()) >= {"round", "commits", "log_bytes", "turns_behind"}
    with FleetReader(scheduler.path) as reader:
        assert reader.round == 4


def test_readers_see_the_figures_that_the_writer_stored_with_the_last_closed_round(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(settings={"cohort_size": 2})
    with FleetReader(scheduler.path) as reader:
        assert reader.writer() == WriterMetrics()
        assert reader.writer().snapshot_age == 0
        play_round(scheduler, offered(*named(4)))
        a, _ = scheduler.choose(offered(*named(4)))
        scheduler.report(a, 3.0)
        with pytest.raises(ReportError):
            scheduler.report(a, 4.0)
        assert reader.writer().refused_reports == 0
        scheduler.close_round()
        figures = reader.writer()
        assert figures.refused_reports == 1
        assert figures.commit_seconds_median is not None
        assert figures.commit_seconds_largest is not None
        assert 0 < figures.commit_seconds_median <= figures.commit_seconds_largest
        assert figures.snapshot_age == 2
        take_snapshot(scheduler)
        assert reader.writer().snapshot_age == 0


def test_one_event_is_logged_for_each_choice_report_close_and_refusal(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "turnout.live")
    scheduler = open_fleet(settings={"cohort_size": 2})
    first, second = scheduler.choose(offered("a phone", "b=c"))
    scheduler.report(first, 2.5)
    with pytest.raises(ReportError):
        scheduler.report(first, 3.5)
    scheduler.report_failure(second, 'the "battery" died')
    scheduler.close_round()
    events: list[Any] = [record for record in caplog.records if getattr(record, "event", "lease") != "lease"]
    assert [record.event for record in events] == ["choose", "report", "refuse", "report", "close"]
    assert [record.getMessage() for record in events if record.event != "refuse"] == [
        "choose fleet=fleet.turnout round=1 available=2 chosen=2 deadline=10",
        "report fleet=fleet.turnout client='a phone' seconds=2.5 new=True",
        "report fleet=fleet.turnout client='b=c' why='the \"battery\" died' new=True",
        "close fleet=fleet.turnout round=1 arrived=1 redundant=0 cut_off=0 late=0 failed=1",
    ]
    assert events[1].values["client"] == "a phone"
    assert events[1].filename == "session.py"


IDS = [f"c{number}" for number in range(6)]
SETTINGS = {"cohort_size": 2, "guaranteed_rate": 0.2}


@pytest.mark.parametrize(("large_from", "judged"), [(10_000, [1, 2, 3, 4, 8]), (1, [1, 2, 4, 8])])
def test_the_promise_is_judged_after_rounds_1_2_4_and_8_and_in_small_fleets_after_clients_have_joined(
    open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch, large_from: int, judged: list[int]
) -> None:
    scheduler, rounds = open_fleet(), list[int]()

    def judge(fleet: Fleet) -> str:
        rounds.append(fleet.round)
        return ""

    monkeypatch.setattr(monitoring, "LARGE_FLEET", large_from)
    monkeypatch.setattr(monitoring, "infeasible_notice", judge)
    for round_ in range(1, 10):
        play_round(scheduler, IDS[: 4 if round_ < 3 else 5])
    assert rounds == judged


def test_every_closed_round_is_tracked_with_its_number_failures_and_losses(open_fleet: OpenFleet) -> None:
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
    first, second = scheduler.choose(IDS)
    scheduler.report(first, 3.0, loss=0.5)
    scheduler.report_failure(second, "battery")
    scheduler.close_round()
    _, metrics = recording.steps[-1]
    assert (metrics["round/arrived"], metrics["round/failed"], metrics["metrics/loss"]) == (1.0, 1.0, 0.5)
    scheduler.close()
    assert recording.closed == 1


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
