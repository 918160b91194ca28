from __future__ import annotations

import logging
import math
import sys
from pathlib import Path

import pytest

from tracking.recording import Broken, Recording
from turnout.errors import SettingError
from turnout.lab import RunPlan, RunStore, play_into
from turnout.tracking import GuardedTracker, Tracker, open_tracker, trackers
from turnout.tracking import registry as registry_module

HERE = "tracking.recording"


@pytest.fixture(autouse=True)
def _forget_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recording, "opened", [])


def test_a_tracker_of_your_own_is_opened_by_module_and_name() -> None:
    opened = open_tracker(f"{HERE}:Recording:some/where:else", run="mine", settings={"seed": 3})
    assert isinstance(opened, GuardedTracker)
    (tracker,) = Recording.opened
    assert (tracker.target, tracker.run, tracker.settings) == ("some/where:else", "mine", {"seed": 3})
    opened.log({"a": 1, "unknown": math.nan, "endless": math.inf}, 7)
    assert tracker.steps == [(7, {"a": 1.0})]


def test_an_object_with_both_methods_is_a_tracker() -> None:
    recording = Recording()
    assert isinstance(recording, Tracker)
    guarded = open_tracker(recording)
    assert guarded.tracker is recording
    assert open_tracker(guarded) is guarded
    with pytest.raises(SettingError, match=r"needs the methods log\(metrics, step\) and close\(\)"):
        open_tracker(3)  # type: ignore[arg-type]


def test_an_error_of_a_tracker_stops_nothing_is_logged_once_and_all_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = Broken()
    with caplog.at_level(logging.WARNING, "turnout.tracking"), GuardedTracker(broken) as guarded:
        for step in range(3):
            guarded.log({"a": 1.0}, step)
    assert (guarded.calls, guarded.failures, broken.closed) == (3, 4, 1)
    assert len(broken.steps) == 3
    first, last = (record.getMessage() for record in caplog.records)
    assert first == "Broken: step 0 was not tracked (OSError: the disk is full); further errors are only counted"
    assert last == "Broken: 4 calls failed, of 4"
    guarded.close()
    assert broken.closed == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensorboad:logs", "unknown tracker 'tensorboad:logs' \\(did you mean 'tensorboard'\\?\\)"),
        ("logs", "unknown tracker 'logs': write NAME:TARGET with one of tensorboard, mlflow, wandb"),
        ("tensorboard", "the tracker tensorboard needs a target, such as tensorboard:logs"),
        ("mlflow:", "such as mlflow:mlflow.db"),
        (f"{HERE}:Recordin", f"the module {HERE} has no Recordin"),
        (f"{HERE}:HERE", "has no HERE"),
        (f"{HERE}:__doc__", "must be a class or a function"),
        (f"{HERE}:Unusable:there", "cannot be opened: PermissionError: may not write there"),
        (f"{HERE}:not_a_tracker", "must return an object with log\\(metrics, step\\) and close\\(\\), not 3"),
        ("no_such_module:Name", "there is no module no_such_module"),
    ],
)
def test_what_is_no_tracker_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        open_tracker(text)


def test_a_module_of_a_tracker_that_cannot_import_another_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_tracker.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingError, match=r"tracker broken_tracker:Name cannot be imported: No module .*no_such_pack"):
        open_tracker("broken_tracker:Name")


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module, extra in (("tensorboardX", "tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(SettingError, match=rf"needs {module}: pip install 'turnout\[{extra}\]'"):
            open_tracker(f"{extra}:{tmp_path}/x")


class _Entry:
    name, value = "notes", f"{HERE}:Recording"


def test_installed_packages_add_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "entry_points", lambda group: [_Entry] if group == "turnout.trackers" else [])
    assert trackers()["notes"] == f"{HERE}:Recording"
    open_tracker("notes:paper.txt")
    assert Recording.opened[0].target == "paper.txt"


def test_a_run_is_tracked_round_by_round_while_it_is_played(tmp_path: Path) -> None:
    recording, plan = Recording(), RunPlan("fair-pace", 12)
    with RunStore(tmp_path / "runs.turnout") as store:
        columns = store.columns(play_into(store, plan, every=5, tracker=recording))
    assert [step for step, _ in recording.steps] == list(range(1, 13))
    assert list(recording.values("round/seconds").values()) == columns.durations.tolist()
    assert recording.values("time/elapsed_seconds")[12] == pytest.approx(columns.durations.sum())
    assert set(recording.values("round/selected").values()) == {8.0}
    assert set(recording.values("promise/turns_behind")) == set(range(1, 13))


def test_a_resumed_run_is_tracked_with_the_time_that_had_elapsed(tmp_path: Path) -> None:
    whole, resumed, plan = Recording(), Recording(), RunPlan("fair-pace", 12)
    with RunStore(tmp_path / "whole.turnout") as store:
        play_into(store, plan, every=5, tracker=whole)

    def interrupt(done: int) -> None:
        if done == 10:
            raise KeyboardInterrupt

    with RunStore(tmp_path / "runs.turnout") as store:
        with pytest.raises(KeyboardInterrupt):
            play_into(store, plan, every=5, watch=interrupt)
        play_into(store, plan, every=5, tracker=resumed)
    assert [step for step, _ in resumed.steps] == [11, 12]
    for (step, metrics), (same_step, same) in zip(resumed.steps, whole.steps[10:], strict=True):
        assert step == same_step
        assert metrics == pytest.approx(same)
