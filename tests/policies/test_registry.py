"""Policies by name, and the settings that a policy or wrapper refuses, with what it says about them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest

from narrowing import known
from policies.examples import GROUPS
from turnout import POLICIES, make_policy
from turnout.errors import InfeasiblePromise, SettingError
from turnout.kernel.guarantee import Guarantee
from turnout.policies import WRAPPERS
from turnout.policies.check_support import SmallFleet
from turnout.policies.registry import build_policy, nested_settings, setting_default, setting_names, with_defaults

OWN = ["fair-pace", "rbcsf", "random", "skewed", "round-robin", "fedcs", "fastest", "fair-oracle"]
PUBLISHED = [
    "data-size",
    "oort",
    "power-of-choice",
    "tifl",
    "active-fl",
    "refl",
    "cs-ucb",
    "cs-ucb-q",
    "e3cs",
    "ucb-cs",
]
GUARANTEE = {"guaranteed_rate", "tolerance", "accrual", "max_owed", "counts", "availability", "allow_infeasible"}


def test_every_policy_is_registered_by_its_name() -> None:
    assert list(POLICIES) == [*OWN, *PUBLISHED]
    for registry in (POLICIES, WRAPPERS):
        assert all(policy.name == name for name, policy in registry.items())
    assert not POLICIES.keys() & WRAPPERS.keys()


def test_unknown_names_and_settings_suggest_a_similar_one() -> None:
    with pytest.raises(
        SettingError, match=r"unknown policy 'rbcfs' \(did you mean 'rbcsf'\?\); the policies are fair-pace, rbcsf"
    ):
        make_policy("rbcfs", 40)
    with pytest.raises(SettingError, match=r"no setting 'cohort' \(did you mean 'cohort_size'\?\)"):
        make_policy("random", 40, cohort=8)
    with pytest.raises(SettingError, match="clients must be at least 1"):
        make_policy("random", 0)


# Wrappers by name


def test_wrappers_are_built_by_name_from_plain_settings() -> None:
    policy: Any = make_policy(
        "cool-down",
        40,
        rounds=2,
        policy="quota",
        settings={
            "policy": "with-guarantee",
            "settings": {"policy": "oort", "settings": {"cohort_size": 5}, "guaranteed_rate": 0.1, "urgency": 3},
            "least": {"car": 1},
            "groups": GROUPS,
        },
    )
    names = [nested.name for nested in (policy, policy.policy, policy.policy.policy)]
    assert names == ["cool-down", "quota", "with-guarantee"]
    assert (policy.rounds, policy.policy.least, policy.policy.policy.urgency) == (2, {"car": 1}, 3)
    assert policy.cohort_size == len(policy.ask(SmallFleet().offer(1)).clients) == 5
    assert setting_names("overcommit") == ["policy", "settings", "factor"]


@pytest.mark.parametrize(
    ("name", "settings", "complaint"),
    [
        ("overcommit", {}, "overcommit needs the setting policy, the name of the policy inside"),
        ("overcommit", {"policy": "random", "settings": 3}, "settings of random inside overcommit must be a mapping"),
        ("overcommit", {"policy": "random", "much": 2}, "overcommit has no setting 'much'; it has policy, settings, f"),
        ("eligible", {"policy": "random"}, "eligible needs the setting 'allowed'"),
        ("overcommit", {"policy": "randum"}, "unknown policy 'randum'"),
        ("overcommit", {"policy": "random", "settings": {"size": 3}}, "random has no setting 'size'"),
    ],
)
def test_invalid_plain_settings_are_refused(name: str, settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        make_policy(name, 40, **settings)
    with pytest.raises(SettingError, match=complaint):
        make_policy(name, 40, **with_defaults(name, settings, {"seed": 3}))


# Settings


def test_the_settings_of_a_policy_include_those_of_its_guarantee() -> None:
    assert setting_names("random") == ["cohort_size", "seed"]
    for name in ("fair-pace", "rbcsf", "fair-oracle", "cs-ucb-q"):
        assert set(setting_names(name)) >= GUARANTEE | {"cohort_size"}
        assert "clients" not in setting_names(name)
    assert setting_names("overcommit") == ["policy", "settings", "factor"]
    assert {"policy", "settings", "urgency"} | GUARANTEE == set(setting_names("with-guarantee"))
    assert setting_names("no such policy") == []


@pytest.mark.parametrize("name", POLICIES)
def test_every_setting_of_a_policy_is_accepted_by_its_constructor(name: str) -> None:
    defaults = {setting: setting_default(name, setting) for setting in setting_names(name)}
    given = {setting: value for setting, value in defaults.items() if setting not in GUARANTEE}
    assert type(make_policy(name, 40, **given)) is POLICIES[name]


def test_the_default_of_a_setting_is_that_of_the_constructor() -> None:
    assert setting_default("rbcsf", "speed_weight") == 20.0
    assert setting_default("fair-oracle", "speed_weight") == 1000.0
    assert setting_default("rbcsf", "no such setting") is None
    assert setting_default("no such policy", "speed_weight") is None


# Defaults


def test_defaults_reach_the_policy_inside_and_given_settings_take_precedence() -> None:
    given = {"policy": "warm-up", "settings": {"policy": "rbcsf", "settings": {"features": 2}, "rounds": 3}}
    complete = with_defaults("overcommit", given, {"seed": 7, "features": 4, "accrual": "available"})
    assert complete["settings"] == {
        "seed": 7,
        "policy": "rbcsf",
        "settings": {"features": 2, "accrual": "available"},
        "rounds": 3,
    }
    assert given["settings"] == {"policy": "rbcsf", "settings": {"features": 2}, "rounds": 3}
    policy: Any = make_policy("overcommit", 40, **complete)
    assert policy.guarantee.accrual == "available"
    assert with_defaults("random", {}, {"seed": 7, "features": 4}) == {"seed": 7}
    for bare in ({"policy": "random"}, {"policy": "random", "settings": None}):
        assert with_defaults("cool-down", bare, {"seed": 4}) == {"policy": "random", "settings": {"seed": 4}}
    assert with_defaults("no such policy", {"seed": 1}, {"features": 4}) == {"seed": 1}


def test_defaults_can_be_computed_for_each_policy_from_its_own_settings() -> None:
    seen: list[tuple[str, dict[str, Any]]] = []

    def defaults(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        seen.append((name, dict(settings)))
        return {"max_owed": settings.get("speed_weight", 1.0) * 2, "unknown": 1}

    inner = {"policy": "rbcsf", "settings": {"speed_weight": 5.0}, "guaranteed_rate": 0.1}
    complete = with_defaults("cool-down", {"policy": "with-guarantee", "settings": inner}, defaults)
    assert [name for name, _ in seen] == ["cool-down", "with-guarantee", "rbcsf"]
    assert seen[2][1] == {"speed_weight": 5.0}
    assert complete == {
        "policy": "with-guarantee",
        "settings": {
            "max_owed": 2.0,
            "policy": "rbcsf",
            "settings": {"max_owed": 10.0, "speed_weight": 5.0},
            "guaranteed_rate": 0.1,
        },
    }


def test_the_settings_of_nested_policies_are_found() -> None:
    inner = {"policy": "oort", "settings": {"cohort_size": 5}}
    outer = {"policy": "with-guarantee", "settings": inner, "rounds": 2}
    assert list(nested_settings("cool-down", outer)) == [
        ("cool-down", outer),
        ("with-guarantee", inner),
        ("oort", {"cohort_size": 5}),
    ]
    assert list(nested_settings("random", {"seed": 1})) == [("random", {"seed": 1})]
    assert list(nested_settings("cool-down", {"policy": "random"})) == [
        ("cool-down", {"policy": "random"}),
        ("random", {}),
    ]
    for invalid in ({}, {"policy": 3}, {"policy": "random", "settings": 3}):
        assert list(nested_settings("cool-down", invalid)) == [("cool-down", invalid)]


# Guarantees


def guarantee_of(name: str, clients: int, settings: Mapping[str, Any]) -> Guarantee | None:
    return build_policy(name, clients, **with_defaults(name, settings, {"allow_infeasible": True})).guarantee


def test_the_guarantee_of_settings_is_that_of_the_policy_they_build() -> None:
    guarantee = known(guarantee_of("rbcsf", 40, {"guaranteed_rate": 0.1, "accrual": "available", "max_owed": 3}))
    assert (guarantee.rate, guarantee.accrual, guarantee.counts, guarantee.max_owed) == (
        0.1,
        "available",
        "selected",
        3,
    )
    assert guarantee_of("random", 40, {}) is None
    assert guarantee_of("cool-down", 40, {"policy": "oort"}) is None
    inner = {"policy": "rbcsf", "settings": {"guaranteed_rate": 0.05}}
    for name, settings, rate in (
        ("cool-down", inner, 0.05),
        ("with-guarantee", {**inner, "guaranteed_rate": 0.1}, 0.1),
        ("cool-down", {"policy": "with-guarantee", "settings": {"policy": "oort", "guaranteed_rate": "1/8"}}, "1/8"),
    ):
        assert known(guarantee_of(name, 40, settings)).rate == rate


def test_the_guarantee_of_settings_is_known_even_if_it_is_infeasible() -> None:
    with pytest.raises(InfeasiblePromise):
        make_policy("rbcsf", 100)
    assert known(guarantee_of("rbcsf", 100, {})).rate == 0.15


# Settings that are refused


RATES = [0.1] * 39 + [0.3]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "fair-pace",
        {"tolerance": 0.15},
        "tolerance must exceed the guaranteed rate, got tolerance 0.15 for a rate of 0.15",
    ),
    ("fair-pace", {"tolerance": Fraction(3, 20)}, "tolerance must exceed the guaranteed rate"),
    ("fair-pace", {"tolerance": 0.2, "guaranteed_rate": RATES}, "got tolerance 0.2 for a rate of 0.3"),
    ("fair-pace", {"tolerance": 0}, "tolerance must be above 0"),
    ("fair-pace", {"times": "known"}, "times must be 'learned' or 'expected', got 'known'"),
    ("fair-pace", {"exploration": -0.1}, "exploration must be at least 0"),
    ("fair-pace", {"ridge": 0.0}, "ridge must be above 0"),
    ("fair-pace", {"cohort_size": 0}, "cohort_size must be at least 1"),
    ("rbcsf", {"cohort_size": 0}, "cohort_size must be at least 1"),
    ("rbcsf", {"guaranteed_rate": 1.5}, r"guaranteed_rate must lie in \[0, 1\], not 1.5"),
    ("rbcsf", {"speed_weight": -1}, "speed_weight must be at least 0"),
    ("rbcsf", {"ridge": 0}, "ridge must be above 0"),
    ("rbcsf", {"exploration": "much"}, "exploration must be"),
    ("rbcsf", {"prior": "mean"}, "prior must be 'zero' or 'fleet'"),
    ("rbcsf", {"availability": [0.5, 0.5]}, "availability has 2 rows, but there are 40 clients"),
    ("rbcsf", {"horizon": 0}, "horizon must be at least 1, not 0"),
    *(("skewed", {"concentration": wrong}, "must be at least 1e-06") for wrong in (0, -1, 1e-310, math.nan)),
    ("fedcs", {"estimates": "known"}, "estimates must be 'truth' or 'learned', got 'known'"),
    ("data-size", {"replacement": 1}, "replacement must be True or False, got 1"),
    ("active-fl", {"dropped": 2.0}, "dropped must be at most 1, not 2"),
    ("active-fl", {"uniform": 2.0}, "uniform must be at most 1, not 2"),
    ("cs-ucb-q", {"fairness_weight": 0}, "fairness_weight must be above 0"),
    ("cs-ucb-q", {"guaranteed_rate": 0.3}, r"largest feasible rate is 0\.2"),
    ("cs-ucb", {"longest": 0}, "longest must be above 0"),
    *(
        ("e3cs", {"quota": wrong}, "quota must")
        for wrong in (1.5, "half", [], [(2, 0.5)], [(1, 0.5), (1, 0.6)], [(1, 0.2), (9, 2.0)], [1, 0.5])
    ),
    ("oort", {"sizes": [-1.0] * 40}, r"sizes\[0\] = -1.0 must not be negative"),
    ("oort", {"speeds": ["fast"] * 40}, "speeds must hold numbers"),
    ("oort", {"exploration": 1.5}, "exploration must be at most 1"),
    ("oort", {"clip": -0.1}, "clip must be at least 0"),
    ("oort", {"pacer_unit": "hours"}, "pacer_unit must be 'share' or 'seconds', got 'hours'"),
    ("oort", {"pacer_window": 0}, "pacer_window must be at least 1"),
    ("oort", {"max_turns": 0}, "max_turns must be at least 1"),
    ("oort", {"penalty": -1}, "penalty must be at least 0"),
    ("power-of-choice", {"candidates": 7}, r"candidates must be at least cohort_size \(8\), got 7"),
    ("refl", {"window": 0}, "window must be at least 1, not 0"),
    *(("tifl", {"credits": wrong}, "credits must be") for wrong in ([1, 2], [0] * 5, [1, 1, 1, 1, -1], 0)),
    ("ucb-cs", {"forgetting": 0.0}, "forgetting must be above 0"),
    ("ucb-cs", {"spread": -1.0}, "spread must be at least 0"),
    ("with-guarantee", {"guaranteed_rate": 1.5}, r"guaranteed_rate must lie in \[0, 1\], not 1.5"),
    ("with-guarantee", {"urgency": 0}, "urgency must be above 0, not 0"),
    ("with-guarantee", {"urgency": "much"}, "urgency must be a number, not 'much'"),
    ("with-guarantee", {"urgency": math.nan}, "urgency must be finite"),
    ("with-guarantee", {"max_owed": 1}, "max_owed is 1, so no debt reaches urgency 2 and no client would"),
    ("overcommit", {"factor": 0.9}, r"factor must be at least 1, not 0\.9"),
    ("overcommit", {"factor": 11}, "factor must be at most 10, not 11"),
    ("overcommit", {"policy": "fedcs"}, "overcommit needs a policy with a cohort_size, and fedcs has none"),
    ("cool-down", {"rounds": 1.5}, r"rounds must be a whole number, not 1\.5"),
    ("cool-down", {"rounds": 1, "strict": "yes"}, "strict must be True or False, got 'yes'"),
    ("exclude-busy", {"rounds": 0}, "rounds must be at least 1, not 0"),
    ("eligible", {"allowed": []}, "allowed contains no client: pass a mask, rows, or a mapping"),
    ("eligible", {"allowed": [False] * 9}, "allowed contains no client"),
    ("eligible", {"allowed": [1, 1]}, r"allowed\[1\] = 1 is a duplicate"),
    ("eligible", {"allowed": [-1]}, r"allowed\[0\] = -1 must be a row"),
    ("eligible", {"allowed": ["a"]}, "allowed must hold rows"),
    ("eligible", {"allowed": [[1], [1, 2]]}, "allowed must"),
    ("eligible", {"allowed": {"groups": ["a"]}}, "a mapping with groups and names, got the keys groups"),
    ("eligible", {"allowed": {"groups": ["a"], "names": "a"}}, "names must be a list of names, got 'a'"),
    ("eligible", {"allowed": {"groups": 3, "names": ["a"]}}, "groups must be a list of names, got 3"),
    ("eligible", {"allowed": {"groups": ["a"], "names": ["b"]}}, "no client is in 'b': names must"),
    ("quota", {"policy": "fedcs", "least": 1, "groups": ["a"]}, "quota needs a policy with a cohort_size, and fedcs"),
    ("quota", {"least": 1, "groups": "ab"}, "groups must be a list of names, got 'ab'"),
    ("quota", {"least": 1, "groups": [None]}, "least has no group"),
    ("quota", {"least": {"a": -1}, "groups": ["a"]}, "least of a must be at least 0, not -1"),
    ("quota", {"least": 5, "groups": ["a", "b"]}, "least reserves 10 places, but cohort_size is 8"),
    ("warm-up", {"rounds": -1}, "rounds must be at least 0, not -1"),
    ("warm-up", {"policy": "fedcs"}, "fedcs has no fixed cohort size: pass cohort_size"),
    ("warm-up", {"cohort_size": 3}, "cohort_size must be that of the policy inside, 8, got 3"),
]


@pytest.mark.parametrize(("name", "settings", "complaint"), REFUSED)
def test_invalid_settings_are_refused(name: str, settings: dict[str, Any], complaint: str) -> None:
    inner = {"policy": "random"} if name in WRAPPERS else {}
    with pytest.raises(SettingError, match=complaint):
        make_policy(name, 40, **{**inner, **settings})
