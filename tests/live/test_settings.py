"""The options of Scheduler.open: typed, completed by editors, and refused with advice where they are wrong."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from live.fleets import OpenFleet, rows_of
from turnout.errors import SettingError
from turnout.live import FleetReader, Reporter, Scheduler, SchedulerSettings
from turnout.live.settings import FORMER_NAMES, SchedulerOptions
from turnout.policies.registry import PolicyBuilder


def test_the_typed_options_are_the_settings_and_their_former_names() -> None:
    options = get_type_hints(SchedulerOptions)
    settings = {field.name: get_type_hints(SchedulerSettings)[field.name] for field in fields(SchedulerSettings)}
    former = {name: options.pop(name) for name in FORMER_NAMES}
    del settings["packages"]  # it is found, not chosen
    assert options == {**settings, "policy": str | PolicyBuilder}
    assert former == {old: settings[new] for old, new in FORMER_NAMES.items()}
    assert not SchedulerOptions.__required_keys__


def test_every_setting_is_documented() -> None:
    documented = SchedulerSettings.__doc__ or ""
    assert [field.name for field in fields(SchedulerSettings) if f"        {field.name}: " not in documented] == []


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (
            {"cohort_size": 3},
            r'^cohort_size is a setting of the policy fair-pace: pass it as settings=\{"cohort_size": 3\}$',
        ),
        (
            {"policy": "tifl", "tiers": 2},
            r'tiers is a setting of the policy tifl: pass it as settings=\{"tiers": 2\}$',
        ),
        (
            {"policy": "with-guarantee", "settings": {"policy": "oort"}, "guaranteed_rate": "1/9"},
            r'of the policy with-guarantee: pass it as settings=\{"guaranteed_rate": \'1/9\'\}$',
        ),
        (
            {"policy": "with-guarantee", "settings": {"policy": "oort"}, "cohort_size": 3},
            r'of the policy oort: pass it as settings=\{"settings": \{"cohort_size": 3\}\}$',
        ),
        ({"policy": "random", "speed_weight": 3}, r"there is no setting 'speed_weight'; the settings are policy, "),
        ({"cohort_sise": 3}, r"there is no setting 'cohort_sise' \(did you mean 'cohort_size'\?\)"),
        ({"deadlin": 3}, r"there is no setting 'deadlin' \(did you mean 'deadline'\?\)"),
        ({"policy": 5, "cohort_size": 3}, "there is no setting 'cohort_size'"),
        ({"settings": 5, "cohort_size": 3}, "there is no setting 'cohort_size'"),
    ],
)
def test_an_option_that_is_not_a_setting_of_the_scheduler_is_refused_with_advice(
    folder: Path, options: dict[str, Any], advice: str
) -> None:
    with pytest.raises(SettingError, match=advice):
        Scheduler.open(folder / "fleet.turnout", **options)
    assert not (folder / "fleet.turnout").exists()


def test_the_advice_for_an_existing_fleet_names_its_own_policy(open_fleet: OpenFleet, folder: Path) -> None:
    open_fleet(policy="random").close()
    with pytest.raises(SettingError, match=r'is a setting of the policy random: pass it as settings=\{"seed": 4\}'):
        Scheduler.open(folder / "fleet.turnout", seed=4)  # type: ignore[call-arg]


def test_the_former_name_of_backoff_after_is_accepted(folder: Path) -> None:
    path = folder / "fleet.turnout"
    with Scheduler.open(path, rest_after=5, deadline=10.0) as scheduler:
        assert scheduler.settings.backoff_after == scheduler.settings.rest_after == 5
    for name in ("rest_after", "backoff_after"):
        same: dict[str, Any] = {name: 5}
        Scheduler.open(path, **same).close()
        different: dict[str, Any] = {name: 4}
        with pytest.raises(SettingError, match="was created with backoff_after=5, got 4: open it without"):
            Scheduler.open(path, **different)
    with pytest.raises(SettingError, match="rest_after is the former name of backoff_after: pass only backoff_after"):
        Scheduler.open(path, rest_after=5, backoff_after=5)


def test_files_keep_the_stored_name_of_backoff_after(folder: Path) -> None:
    path = folder / "fleet.turnout"
    Scheduler.open(path, backoff_after=5, deadline=10.0).close()
    ((stored,),) = rows_of(path, "SELECT value FROM meta WHERE key = 'settings'")
    assert json.loads(stored)["rest_after"] == 5
    assert "backoff_after" not in json.loads(stored)
    with FleetReader(path) as reader:
        assert reader.settings.backoff_after == 5
    assert SchedulerSettings.from_dict({"backoff_after": 7, "a later setting": 1}).backoff_after == 7


def test_live_objects_have_a_readable_repr(open_fleet: OpenFleet, folder: Path) -> None:
    path = folder / "fleet.turnout"
    scheduler = open_fleet()
    scheduler.choose(["a", "b", "c"])
    state = "policy='fair-pace', clients=3, round=1, is_open=True"
    assert repr(scheduler) == f"Scheduler({str(path)!r}, {state})"
    with Scheduler.open(path, read_only=True) as reader:
        assert repr(reader) == f"Scheduler({str(path)!r}, {state}, read_only=True)"
    with Reporter(path) as reporter:
        assert repr(reporter) == f"Reporter({str(path)!r})"
    fleet_reader = FleetReader(path)
    fleet_reader.close()
    assert repr(fleet_reader) == f"FleetReader({str(path)!r}, policy='fair-pace')"
    scheduler.close()
    assert repr(scheduler) == f"Scheduler({str(path)!r}, {state})"
