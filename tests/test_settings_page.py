"""docs/settings.md has every setting of a fleet and of a guarantee, with its default and whether it can be amended."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from typing import Any

from documents import ROOT
from turnout import Guarantee, Scheduler, make_policy
from turnout.live import SchedulerOptions, SchedulerSettings
from turnout.live._internals import LIVE_DEFAULTS, Amendments

PAGE = (ROOT / "docs/settings.md").read_text()
OF_GUARANTEE = ("guaranteed_rate", "tolerance", "accrual", "counts", "max_owed", "availability")


def rows(heading: str) -> dict[str, list[str]]:
    """Returns the rows of the table below a heading: the other cells by the name in the first cell."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [re.split(r" \| ", line.strip("| ")) for line in section.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in cells}


def stated(row: list[str]) -> Any:
    return ast.literal_eval(row[0].strip("`"))


def defaults_of(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


def test_the_settings_of_a_fleet_are_those_of_the_code() -> None:
    table = rows("The fleet") | rows("Without rounds")
    default = SchedulerSettings()
    assert {name: stated(row) for name, row in table.items()} == {
        field.name: getattr(default, field.name) for field in fields(default) if field.name != "packages"
    }
    assert set(table) == set(SchedulerOptions.__annotations__)
    assert set(rows("Without rounds")) == {
        "concurrency",
        "status_ttl",
        "max_staleness",
        "updates_per_version",
        "window_goal",
        "window_seconds",
        "min_present",
        "min_turn_interval",
    }


def test_the_settings_of_the_guarantee_are_those_of_fair_pace_in_a_live_fleet() -> None:
    live = {key: LIVE_DEFAULTS[key] for key in ("accrual", "counts")}
    guarantee = make_policy("fair-pace", 4, cohort_size=2, **live).guarantee
    assert guarantee is not None
    values = {"guaranteed_rate": guarantee.rate} | {name: getattr(guarantee, name) for name in OF_GUARANTEE[1:]}
    assert {name: stated(row) for name, row in rows("The guarantee").items()} == values
    own = {field.name for field in fields(Guarantee)} - {"rate", "allow_infeasible"}  # the latter is one of the fleet
    assert own == set(OF_GUARANTEE[1:])


def test_the_page_says_what_can_be_amended() -> None:
    table = rows("The fleet") | rows("Without rounds") | rows("The guarantee")
    amendable = {name for name, row in table.items() if row[-1] == "yes"}
    assert amendable | {"cohort_size", "speed_weight", "groups"} == set(Amendments.__annotations__)
    assert {row[-1] for row in table.values()} == {"yes", "no", "some"}


def test_the_arguments_of_opening_are_those_of_the_code() -> None:
    table = rows("Opening")
    assert {name: stated(row) for name, row in table.items()} == defaults_of(Scheduler.open)
