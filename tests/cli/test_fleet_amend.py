"""`turnout fleet amend`."""

from __future__ import annotations

import inspect
import json
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from cli import in_process
from live.fleets import play_round
from turnout.cli.fleet import operate as commands
from turnout.live import ClientStatus, Feature, Features, FleetReader, Scheduler, SchedulerOptions
from turnout.live.operation.amending import Amendments


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Eight clients and four closed rounds."""
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 3, "guaranteed_rate": 0.1}, deadline=30.0) as scheduler:
        for _ in range(4):
            play_round(scheduler, {f"phone-{row}": ClientStatus(1.0, 3.0) for row in range(8)}, 5.0)
    return path


amend = partial(in_process.output_of, "fleet", "amend")
error_of = partial(in_process.error_of, "fleet", "amend")


def settings_of(file: Path) -> Any:
    with FleetReader(file) as reader:
        return reader.settings


AFTERWARDS = (
    "A program that opens the fleet with the values before is refused from now on: it passes the new ones, leaves them "
    "out, or passes amended='keep'.\n"
)


def test_settings_are_amended_and_the_change_is_printed(file: Path) -> None:
    printed = amend(file, "--deadline", "120", "--guaranteed-rate", "1/8", "--tolerance", "1.5", "--cohort-size", "4")
    assert printed == (
        f"{file}: amended after round 4: cohort_size from 3 to 4, deadline from 30.0 to 120.0, guaranteed_rate from "
        f"0.1 to 1/8, tolerance from the default to 1.5.\n{AFTERWARDS}"
    )
    amended = settings_of(file)
    assert amended.deadline == 120.0
    assert amended.settings == {"cohort_size": 4, "guaranteed_rate": "1/8", "tolerance": 1.5}
    assert amend(file, "--deadline", "120") == "Nothing changed: the fleet has these settings already.\n"


def test_words_stand_for_no_deadline_and_for_automatic_values(file: Path) -> None:
    amend(file, "--deadline", "none", "--overcommit", "auto")
    assert (settings_of(file).deadline, settings_of(file).overcommit) == (None, "auto")
    amend(file, "--deadline", "auto", "--overcommit", "1.25")
    assert (settings_of(file).deadline, settings_of(file).overcommit) == ("auto", 1.25)


def test_the_change_as_json(file: Path) -> None:
    assert json.loads(amend(file, "--deadline", "60", "--json")) == {
        "changes": {"deadline": 60.0},
        "round": 4,
        "before": {"deadline": 30.0},
    }
    assert json.loads(amend(file, "--deadline", "60", "--json")) == {"changes": {}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to amend: pass a setting, such as --deadline 120"),
        (("--deadline", "soon"), "deadline must be a number or 'auto', got 'soon'"),
        (("--overcommit", "much"), "overcommit must be a number or 'auto', got 'much'"),
        (("--deadline", "-5"), "deadline must be"),
        (("--guaranteed-rate", "a third"), "guaranteed_rate must be a number or a fraction such as '3/20'"),
        (("--min-present", "2.5"), "min_present must be a whole number, not 2.5"),
        (("--min-turn-interval", "60"), "min_turn_interval needs a concurrency"),
        (("--speed-weight", "2"), "the policy fair-pace has no setting 'speed_weight'"),
        (("--guaranteed-rate", "0.5"), "or a cohort_size of at least 4. Try: --allow-infeasible"),
    ],
)
def test_what_is_wrong_is_refused_in_one_line(file: Path, arguments: tuple[str, ...], message: str) -> None:
    before = settings_of(file)
    assert message in error_of(file, *arguments)
    assert settings_of(file) == before


def test_an_infeasible_promise_needs_an_option(file: Path) -> None:
    assert "Try: --allow-infeasible accepts a promise that cannot be kept" in error_of(file, "--guaranteed-rate", "0.5")
    amend(file, "--guaranteed-rate", "0.5", "--allow-infeasible")
    assert settings_of(file).allow_infeasible
    notes = in_process.json_of("fleet", "status", file)["notices"]
    assert any(note.startswith("the guaranteed_rate cannot be kept for the clients of this fleet") for note in notes)
    assert "cannot be kept" in error_of(file, "--no-allow-infeasible")


def test_a_fleet_in_use_or_with_an_open_round_is_refused(file: Path) -> None:
    with Scheduler.open(file) as scheduler:
        assert "is being written by process" in error_of(file, "--deadline", "60")
        scheduler.choose([f"phone-{row}" for row in range(8)])
    assert "round 5 is open: close or abandon it before you amend the settings" in error_of(file, "--deadline", "60")


def test_a_fleet_with_computed_features_is_amended_without_the_function(tmp_path: Path) -> None:
    features = Features.of(Feature("battery", 0.0, 1.0), compute=lambda columns: [np.sqrt(columns["battery"])])
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, features=features, settings={"cohort_size": 1}, deadline=9.0) as scheduler:
        play_round(scheduler, {"a": {"battery": 0.5}})
    amend(path, "--deadline", "20")
    with Scheduler.open(path, features=features) as scheduler:
        assert scheduler.settings.deadline == 20.0
        scheduler.choose({"a": {"battery": 0.5}})


def test_create_and_amend_have_the_same_options_but_for_settings_that_are_fixed() -> None:
    of_create, of_amend = (set(inspect.signature(command).parameters) for command in (commands.create, commands.amend))
    assert of_create == {"file", *get_type_hints(SchedulerOptions), *get_type_hints(Amendments)} - {
        "settings",
        "groups",
    }
    assert of_amend == {"file", "json", *get_type_hints(Amendments)} - {"groups"}
    assert of_create - of_amend == {"policy", "model_size", "deadline_ceiling", "backoff_after", "concurrency"}


def test_settings_of_a_fleet_without_rounds_are_amended_and_switched_off(tmp_path: Path) -> None:
    path = tmp_path / "slots.turnout"
    with Scheduler.open(path, concurrency=2, settings={"guaranteed_rate": "1/20"}) as scheduler:
        scheduler.fill(["a"])
    given = {"status_ttl": 120.0, "window_seconds": 30.0, "min_present": 3, "min_turn_interval": 3600.0}
    options = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", f"{value:g}")]
    assert amend(path, *options) == (
        f"{path}: amended after turn 1: min_present from 1 to 3, "
        "min_turn_interval from none to 3600.0, status_ttl from 60.0 to 120.0, "
        f"window_seconds from none to 30.0.\n{AFTERWARDS}"
    )
    amended = settings_of(path)
    assert {name: getattr(amended, name) for name in given} == given
    assert type(amended.min_present) is int
    switched_off = ("window_seconds", "min_turn_interval")
    amend(path, *(part for name in switched_off for part in (f"--{name.replace('_', '-')}", "none")))
    amended = settings_of(path)
    assert [getattr(amended, name) for name in switched_off] == [None] * 2
    assert (amended.status_ttl, amended.min_present) == (120.0, 3)
