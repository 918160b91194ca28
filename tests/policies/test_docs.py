"""docs/policies.md names every policy, setting, capability and check; tests/test_package.py runs its examples."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from turnout import POLICIES, SelectionPolicy, make_policy
from turnout.kernel.guarantee import AccountingSettings, Guarantee, GuaranteeSettings
from turnout.policies import WRAPPERS
from turnout.policies.checks import CHECKS
from turnout.policies.registry import setting_default, setting_names

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^#{1,3} (.+?)\n(.*?)(?=^#{1,3} |\Z)", PAGE, flags=re.DOTALL | re.MULTILINE))
#: Settings that the introduction describes for all policies.
COMMON = {"cohort_size", "seed"}
#: Members of SelectionPolicy that a policy implements or inherits; all others are declarations.
METHODS = {
    "ask",
    "tell",
    "add",
    "forget",
    "state",
    "restore",
    "check_offer",
    "check_report",
    "places",
    "expected_times",
}


def table(section: str) -> list[list[str]]:
    """Returns the cells of the first table of a section, without its heading."""
    rows = [line.replace(r"\|", "") for line in SECTIONS[section].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def section_of(policy: str) -> str:
    headings: list[str] = [heading for heading in SECTIONS if policy in re.split(r", | and ", heading)]
    assert len(headings) == 1
    return headings[0]


def default_of(policy: str, setting: str) -> Any:
    guarantee = make_policy(policy, 40).guarantee or Guarantee.from_settings({})
    if setting == "guaranteed_rate":
        return guarantee.rate
    return (
        getattr(guarantee, setting)
        if setting in AccountingSettings.__annotations__
        else setting_default(policy, setting)
    )


def test_the_table_of_policies_is_complete() -> None:
    assert [row[0].strip("`") for row in table("Policies")] == list(POLICIES)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_setting_of_a_policy_is_described(policy: str) -> None:
    described = set(re.findall(r"`(\w+)(?:=[^`]*)?`", SECTIONS[section_of(policy)]))
    assert set(setting_names(policy)) - COMMON - described == set()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_setting_of_a_wrapper_is_described(wrapper: str) -> None:
    described = set(re.findall(r"`(\w+)(?:=[^`]*)?`", PAGE))
    assert set(setting_names(wrapper)) - {"policy", "settings"} - COMMON - described == set()
    assert f"**{WRAPPERS[wrapper].__name__}**" in PAGE or wrapper == "with-guarantee"


@pytest.mark.parametrize("policy", ["fair-pace", "rbcsf", "oort"])
def test_the_tables_of_settings_have_the_defaults(policy: str) -> None:
    """The settings of the guarantee are in docs/settings.md."""
    documented = {
        setting: ast.literal_eval(default.strip("`"))
        for names, default, _ in table(policy)
        for setting in re.findall(r"`(\w+)`", names)
    }
    own = set(setting_names(policy)) - COMMON - set(GuaranteeSettings.__annotations__)
    assert documented == {name: setting_default(policy, name) for name in own}


def test_the_defaults_in_parentheses_are_right() -> None:
    for policy in POLICIES:
        for setting, default in re.findall(r"`(\w+)` \(([\w.]+)", SECTIONS[section_of(policy)]):
            if setting not in setting_names(policy):
                continue
            expected = default_of(policy, setting)
            assert expected is None if default in ("None", "equal") else expected == ast.literal_eval(default), setting


def test_the_table_of_capabilities_is_complete_and_has_the_defaults() -> None:
    declared = {*vars(SelectionPolicy), *SelectionPolicy.__annotations__}
    documented = {re.sub(r"\(.*\)", "", row[0].strip("`")): row[1].strip("`") for row in table("Declared capabilities")}
    assert set(documented) == {name for name in declared if not name.startswith("_")} - METHODS
    for name, default in documented.items():
        value = vars(SelectionPolicy).get(name)
        if isinstance(value, bool | None) and name != "name":
            assert ast.literal_eval(default) is value


def test_the_table_of_checks_is_complete() -> None:
    assert [row[0] for row in table("The contract")] == [check.__name__.replace("_", " ") for check in CHECKS]


def test_links_to_sections_have_a_target() -> None:
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in SECTIONS}
    links = re.findall(r"\]\(#([\w-]+)\)", PAGE)
    assert links
    assert set(links) <= anchors
