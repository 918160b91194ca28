"""The options of Scheduler.open: typed, completed by editors, and refused with advice where they are wrong."""

from __future__ import annotations

import math
from dataclasses import fields
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import pytest

from live.fleets import OpenFleet
from turnout.errors import SettingError
from turnout.live import FleetReader, Reporter, Scheduler, SchedulerOptions, SchedulerSettings
from turnout.live._internals import POLICY_SETTINGS, SETTINGS, Setting
from turnout.live.operation.amending import Amendments
from turnout.policies.registry import PolicyBuilder


def test_the_typed_options_are_the_declared_settings() -> None:
    types = {name: get_type_hints(SchedulerSettings)[name] for name in SETTINGS}
    assert get_type_hints(SchedulerOptions) == {**types, "policy": str | PolicyBuilder}
    assert not SchedulerOptions.__required_keys__
    amendable = {name: types[name] for name, setting in SETTINGS.items() if setting.amendable}
    changes = get_type_hints(Amendments)
    assert {name: changes.pop(name) for name in amendable} == amendable
    assert set(changes) == set(POLICY_SETTINGS)


def test_every_setting_is_documented() -> None:
    documented = SchedulerSettings.__doc__ or ""
    assert [
        name for name, setting in SETTINGS.items() if f"        {name}: {setting.sentence()}." not in documented
    ] == []
    assert {field.name for field in fields(SchedulerSettings)} - set(SETTINGS) == {"packages"}  # found, not chosen


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_a_declaration_agrees_with_the_type_and_the_default_of_its_field(setting: Setting) -> None:
    (name,) = (name for name, declared in SETTINGS.items() if declared is setting)
    default, hint = getattr(SchedulerSettings(), name), get_type_hints(SchedulerSettings)[name]
    assert setting.check(name, default) == default
    assert (type(None) in get_args(hint)) == (setting.none is not None)
    assert (Literal["auto"] in get_args(hint)) == (setting.auto is not None)
    kinds = {"number": float, "count": int, "flag": bool, "period": str, "signals": str}
    assert setting.kind is None or kinds[setting.kind] in (hint, *get_args(hint))


@pytest.mark.parametrize("name", [name for name, setting in SETTINGS.items() if setting.kind is not None])
def test_values_that_the_declaration_does_not_allow_are_refused(name: str) -> None:
    refused: dict[str, tuple[Any, ...]] = {
        "number": (0, -1, math.nan, 1e300, "soon", True),
        "count": (0, 2.5, "many", True),
        "flag": (1, "no", None),
        "period": (0, 2.5, "3 weeks"),
        "signals": (5, ["utility"], "utility", None),
    }
    setting = SETTINGS[name]
    slots: dict[str, Any] = {"concurrency": 2} if setting.needs_slots else {}
    for value in refused[str(setting.kind)]:
        with pytest.raises(SettingError, match=f"^{name} must be"):
            SchedulerSettings(**{**slots, name: value})
    if setting.needs_slots:
        with pytest.raises(SettingError, match=f"^{name} needs a concurrency: leave it out"):
            SchedulerSettings(**{name: 7})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"cohort_size": 3},
            r'^cohort_size is a setting of the policy fair-pace: pass it as settings=\{"cohort_size": 3\}$',
        ),
        ({"policy": "tifl", "tiers": 2}, r'tiers is a setting of the policy tifl: pass it as settings=\{"tiers": 2\}$'),
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
        ({"settings": {"guaranteed_rate": [0.1]}}, r"guaranteed_rate must be one value for all clients, got \[0\.1\]"),
        ({"settings": {"guaranteed_rate": (0.1, 0.2)}}, "guaranteed_rate must be one value for all clients"),
        ({"settings": {"availability": [0.5]}}, "availability must be one value for all clients"),
        (
            {"policy": "warm-up", "settings": {"policy": "fair-pace", "settings": {"guaranteed_rate": [0.1]}}},
            "guaranteed_rate must be one value for all clients",
        ),
        ({"settings": {"tolerance": 1e308}}, r"tolerance must be at most 1e\+09"),
        ({"settings": {"max_owed": 1e18}}, r"max_owed must be at most 1e\+09"),
        ({"settings": {"features": 7}}, "features must be 3, as many as the fleet has"),
        ({"settings": {"clients": 3}}, "fair-pace has no setting 'clients'"),
        ({"model_size": 1e308}, r"model_size must be at most 1e\+18"),
        ({"deadline": 0}, "deadline must be above 0"),
        ({"settings": 5}, "settings must be a mapping of the policy's settings, got 5"),
        ({"settings": {"guaranteed_rate": Fraction(1, 8)}}, "must be finite numbers, strings, lists or mappings"),
        ({"settings": {"max_owed": float("inf")}}, "must be finite numbers, strings, lists or mappings"),
        ({"settings": {"cohort_size": np.int64(3)}}, "must be finite numbers, strings, lists or mappings"),
        ({"policy": "overcommit", "settings": {"policy": "random"}}, "a fleet has the setting overcommit instead"),
        ({"policy": "rbcsf", "settings": {"speed_weight": "fast"}}, "speed_weight must be a number, not 'fast'"),
        ({"settings": {"speed_weight": 1.0}}, "fair-pace has no setting 'speed_weight'"),
        ({"settings": {"tolerance": 0.1, "guaranteed_rate": 0.2}}, "tolerance must exceed the guaranteed rate"),
        ({"settings": {"times": "expected"}}, "fair-pace requires the true expected times, unknown in a live fleet"),
        ({"settings": {"cohort": 3}}, r"fair-pace has no setting 'cohort' \(did you mean 'cohort_size'\?\)"),
        ({"policy": "rbcfs"}, r"unknown policy 'rbcfs' \(did you mean 'rbcsf'\?\)"),
        ({"policy": "fedcs"}, "fedcs requires the true expected times"),
        ({"signals": ["utility"]}, "signals must be a mapping such as"),
        ({"signals": {"": (0, 1)}}, "signals must have non-empty names other than 'loss', got ''"),
        ({"signals": {"loss": (0, 1)}}, "signals must have non-empty names other than 'loss', got 'loss'"),
        ({"signals": {"utility": 1}}, "utility in signals must be a smallest and a largest value, got 1"),
        ({"signals": {"utility": (0,)}}, r"utility in signals must be a smallest and a largest value, got \(0,\)"),
        ({"signals": {"utility": (2, 1)}}, "high of utility must be at least 2"),
        ({"signals": {"utility": (0, math.inf)}}, "high of utility must be finite"),
        (
            {"settings": {"value": "utilty"}, "signals": {"utility": (0, 1)}},
            r"fair-pace learns from the signal 'utilty' \(did you mean 'utility'\?\), which the fleet does not declare",
        ),
        (
            {"policy": "warm-up", "settings": {"policy": "fair-pace", "settings": {"value": "drift"}}},
            "learns from the signal 'drift'",
        ),
        ({"keep_rounds": 9}, "keep_rounds must be at least 10, got 9: late clients may still report"),
        ({"concurrency": 3, "settings": {}}, "needs the guaranteed_rate in its settings"),
        ({"concurrency": 3, "policy": "tifl"}, "tifl cannot give turns one at a time"),
        ({"concurrency": 3, "settings": {"guaranteed_rate": "1/20"}, "overcommit": 1.5}, "overcommit needs rounds"),
        (
            {"concurrency": 3, "settings": {"guaranteed_rate": "1/20", "cohort_size": 4}},
            "cohort_size must be 1, or left out, in a fleet with a concurr",
        ),
        ({"concurrency": 0}, "concurrency must be at least 1"),
    ],
)
def test_settings_that_are_refused_create_no_file(folder: Path, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        Scheduler.open(folder / "fleet.turnout", allow_infeasible=True, **options)
    assert list(folder.iterdir()) == []


def test_the_advice_for_an_existing_fleet_names_its_own_policy(open_fleet: OpenFleet, folder: Path) -> None:
    open_fleet(policy="random").close()
    with pytest.raises(SettingError, match=r'is a setting of the policy random: pass it as settings=\{"seed": 4\}'):
        Scheduler.open(folder / "fleet.turnout", seed=4)  # type: ignore[call-arg]


def test_live_objects_have_a_readable_repr(open_fleet: OpenFleet, folder: Path) -> None:
    path = folder / "fleet.turnout"
    scheduler = open_fleet()
    scheduler.choose(["a", "b", "c"])
    state = "policy='fair-pace', clients=3, round=1, is_open=True"
    assert repr(scheduler) == f"Scheduler({str(path)!r}, {state})"
    with FleetReader(path) as reader:
        assert repr(reader) == f"FleetReader({str(path)!r}, policy='fair-pace')"
    with Reporter(path) as reporter:
        assert repr(reporter) == f"Reporter({str(path)!r})"
    fleet_reader = FleetReader(path)
    fleet_reader.close()
    assert repr(fleet_reader) == f"FleetReader({str(path)!r}, policy='fair-pace')"
    scheduler.close()
    assert repr(scheduler) == f"Scheduler({str(path)!r}, {state})"
