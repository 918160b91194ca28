"""docs/settings.md has every setting of a fleet and of a guarantee, with its default and whether it can be amended."""

from __future__ import annotations

import ast
import inspect
import json
import re
from dataclasses import fields
from typing import Any

from documents import ROOT
from turnout import Guarantee, Scheduler, make_policy
from turnout.live import SchedulerSettings
from turnout.live._internals import POLICY_SETTINGS, SETTINGS
from turnout.live.journal.replay import LIVE_DEFAULTS

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


def test_the_tables_are_those_of_the_declared_settings() -> None:
    default = SchedulerSettings()
    expected: dict[bool, dict[str, list[str]]] = {False: {}, True: {}}
    for name, setting in SETTINGS.items():
        amended = "some" if name == "settings" else "yes" if setting.amendable else "no"
        own = getattr(default, name)
        value = json.dumps(own) if isinstance(own, str) else repr(own)
        cells = [f"`{value}`", setting.unit or "–", setting.sentence(), amended]
        expected[setting.needs_slots or name == "concurrency"][name] = cells
    assert without_links(rows("The fleet")) == expected[False]
    assert without_links(rows("Without rounds")) == expected[True]


def without_links(table: dict[str, list[str]]) -> dict[str, list[str]]:
    """Returns the rows without the parentheses that link to other pages."""
    return {name: [re.sub(r" \(\[.*\)\)$", "", cell) for cell in row] for name, row in table.items()}


def test_the_settings_of_the_guarantee_are_those_of_fair_pace_in_a_live_fleet() -> None:
    live = {key: LIVE_DEFAULTS[key] for key in ("accrual", "counts")}
    guarantee = make_policy("fair-pace", 4, cohort_size=2, **live).guarantee
    assert guarantee is not None
    values = {"guaranteed_rate": guarantee.rate} | {name: getattr(guarantee, name) for name in OF_GUARANTEE[1:]}
    assert {name: stated(row) for name, row in rows("The guarantee").items()} == values
    own = {field.name for field in fields(Guarantee)} - {"rate", "allow_infeasible"}  # the latter is one of the fleet
    assert own == set(OF_GUARANTEE[1:])


def test_the_page_says_which_settings_of_a_policy_can_be_amended() -> None:
    table = rows("The guarantee")
    amendable = {name for name, row in table.items() if row[-1] == "yes"}
    assert amendable | {"cohort_size", "speed_weight", "groups"} == set(POLICY_SETTINGS)
    assert all(row[2].startswith(POLICY_SETTINGS[name].help) for name, row in table.items() if name in amendable)


def test_the_arguments_of_opening_are_those_of_the_code() -> None:
    table = rows("Opening")
    assert {name: stated(row) for name, row in table.items()} == defaults_of(Scheduler.open)
