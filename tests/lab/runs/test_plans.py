from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from turnout.errors import InfeasiblePromise, SettingError
from turnout.lab import PaperWorld, RunPlan
from turnout.policies import RBCSF, SkewedRandom, UniformRandom

PLAN = RunPlan(
    "rbcsf",
    100,
    7,
    {"speed_weight": 20, "guaranteed_rate": "1/10"},
    world_settings={"clients": 20, "availability": {"kind": "markov", "share": 0.6, "persistence": 5}},
)


# Keys.


def test_the_key_depends_on_what_is_played_only() -> None:
    reordered = RunPlan(
        "rbcsf",
        100,
        7,
        {"guaranteed_rate": "1/10", "speed_weight": 20},
        world_settings={"availability": {"persistence": 5, "share": 0.6, "kind": "markov"}, "clients": 20},
    )
    assert reordered.key == PLAN.key
    assert replace(PLAN, label="ours").key == PLAN.key
    assert replace(PLAN, label="ours") == PLAN
    code = f"from turnout.lab import RunPlan; print(RunPlan.from_dict({PLAN.as_dict()!r}).key)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == PLAN.key
    plan = RunPlan("rbcsf", np.int64(100), np.int64(7))  # type: ignore[arg-type]  # as np.arange returns them
    assert plan.key == RunPlan("rbcsf", 100, 7).key
    pair, listed = ({"bandwidth": bandwidth} for bandwidth in ((2.0, 3.0), [2.0, 3.0]))
    assert RunPlan("random", 5, world_settings=pair).key == RunPlan("random", 5, world_settings=listed).key
    assert (
        RunPlan("rbcsf", 10, settings={"speed_weight": 5}).key
        == RunPlan("rbcsf", 10, settings={"speed_weight": 5.0}).key
    )
    assert (
        RunPlan("rbcsf", 10, settings={"speed_weight": 5}).key
        != RunPlan("rbcsf", 10, settings={"speed_weight": 5.5}).key
    )


@pytest.mark.parametrize(
    "change",
    [
        {"policy": "fair-oracle"},
        {"rounds": 101},
        {"seed": 8},
        {"settings": {"speed_weight": 20, "guaranteed_rate": "1/11"}},
        {"settings": {"speed_weight": 20}},
        {"world": "other"},
        {"world_settings": {"clients": 20}},
        {"world_settings": {"clients": 20, "availability": {"kind": "markov", "share": 0.6, "persistence": 6}}},
        {"keep": "choices"},
    ],
)
def test_the_key_changes_with_everything_else(change: dict[str, Any]) -> None:
    assert replace(PLAN, **change).key != PLAN.key


def test_a_plan_accepts_any_mapping_and_does_not_change_with_it() -> None:
    settings: dict[str, Any] = {"speed_weight": 20}
    plan = RunPlan("rbcsf", 5, settings=settings)
    key = plan.key
    settings["speed_weight"] = 30
    assert plan.key == key
    fixed: Mapping[str, Any] = MappingProxyType({"speed_weight": 20})
    assert RunPlan("rbcsf", 5, settings=fixed).key == RunPlan("rbcsf", 5, settings=dict(fixed)).key


@pytest.mark.parametrize(
    "value", [{1, 2}, np.ones(3), b"raw", Fraction(1, 7), object()], ids=lambda value: type(value).__name__
)
def test_settings_that_json_cannot_represent_are_rejected(value: Any) -> None:
    with pytest.raises(SettingError, match="settings of a plan must be numbers, strings, lists and mappings"):
        _ = RunPlan("rbcsf", 5, settings={"guaranteed_rate": value}).key
    with pytest.raises(SettingError, match="settings of a plan must be numbers, strings, lists and mappings"):
        _ = RunPlan("rbcsf", 5, world_settings={"availability": {"share": value}}).key


def test_a_plan_survives_serialisation() -> None:
    data = json.loads(json.dumps(replace(PLAN, label="ours", keep="choices").as_dict()))
    restored = RunPlan.from_dict(data)
    assert restored == replace(PLAN, keep="choices")
    assert restored.label == "ours"
    assert restored.key == replace(PLAN, keep="choices").key
    assert restored.as_dict() == data


def test_the_name_is_the_label_or_the_policy_and_its_settings() -> None:
    assert RunPlan("random", 5).name == "random"
    assert PLAN.name == "rbcsf (speed_weight 20, guaranteed_rate 1/10)"
    assert replace(PLAN, label="ours").name == "ours"


# Building the policy and the world.


def test_a_plan_builds_independent_objects() -> None:
    policy, world = PLAN.build()
    assert isinstance(policy, RBCSF)
    assert isinstance(world, PaperWorld)
    assert policy.clients == world.clients == 20
    assert policy.speed_weight == 20
    assert world.seed == 7
    np.testing.assert_array_equal(world.availability, np.full(20, 0.6))
    (policy, world), (other_policy, other_world) = PLAN.build(), PLAN.build()
    policy.tell(world.play(world.offer(1), policy.ask(world.offer(1))))
    assert other_world.offer(1) == PLAN.build()[1].offer(1)
    assert other_policy.ask(other_world.offer(1)) == PLAN.build()[0].ask(other_world.offer(1))


def test_a_random_policy_uses_the_seed_of_the_plan_unless_its_settings_have_one() -> None:
    planned, own = RunPlan("random", 5, 7).build()[0], RunPlan("random", 5, 7, {"seed": 3}).build()[0]
    skewed = RunPlan("skewed", 5, 7).build()[0]
    assert isinstance(planned, UniformRandom)
    assert isinstance(own, UniformRandom)
    assert isinstance(skewed, SkewedRandom)
    assert (planned.seed, own.seed, skewed.seed) == (7, 3, 7)


# Rejected plans.


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (RunPlan("rbcs", 5), r"unknown policy 'rbcs' \(did you mean 'rbcsf'\?\); the policies are fair-pace, rbcsf"),
        (RunPlan("rbcsf", 5, world="papr"), r"unknown world 'papr' \(did you mean 'paper'\?\); known worlds are paper"),
        (
            RunPlan("rbcsf", 5, settings={"speed_wait": 5}),
            r"rbcsf has no setting 'speed_wait' \(did you mean 'speed_weight'\?\)",
        ),
        (
            RunPlan("rbcsf", 5, world_settings={"avaliability": 0.5}),
            r"the world paper has no setting 'avaliability' \(did you mean 'availability'\?\); its settings are cli",
        ),
        (RunPlan("rbcsf", 5, world_settings={"seed": 3}), "the world paper has no setting 'seed'"),
        (RunPlan("rbcsf", 5, settings={"clients": 3}), "rbcsf has no setting 'clients'"),
        (RunPlan("rbcsf", 5, settings={"zzz": 1}), "rbcsf has no setting 'zzz'; it has"),
        (RunPlan("rbcsf", 5, settings={"speed_weight": -1}), "speed_weight must be at least 0"),
        (RunPlan("rbcsf", 5, world_settings={"clients": 0}), "clients must be at least 1"),
    ],
    ids=lambda parameter: "" if isinstance(parameter, str) else parameter.name,
)
def test_unknown_names_are_rejected_with_a_suggestion(plan: RunPlan, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        plan.build()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rounds": 0}, "rounds must be at least 1, not 0"),
        ({"rounds": 5.0}, "rounds must be a whole number"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"keep": "none"}, "keep must be 'all' or 'choices', not 'none'"),
        ({"settings": None}, "settings must be a mapping from names to values, not None"),
        ({"world_settings": [1]}, r"world_settings must be a mapping from names to values, not \[1\]"),
    ],
)
def test_invalid_fields_are_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        RunPlan(**{"policy": "rbcsf", "rounds": 5, **fields})


def test_the_guarantee_is_checked_against_the_availability_of_the_world() -> None:
    """40 clients that are available in a fifth of the rounds and a cohort of 8 allow a rate of at most 0.175."""
    rare = {"availability": 0.2}
    RunPlan("rbcsf", 5, settings={"guaranteed_rate": 0.17}, world_settings=rare).build()
    with pytest.raises(InfeasiblePromise, match=r"0\.175") as refusal:
        RunPlan("rbcsf", 5, settings={"guaranteed_rate": 0.18}, world_settings=rare).build()
    assert float(refusal.value.largest_rate or 0) == pytest.approx(0.175, abs=0.0006)
    RunPlan("rbcsf", 5, settings={"guaranteed_rate": 0.18}).build()
    with pytest.raises(InfeasiblePromise, match=r"largest feasible rate is 0\.2"):
        RunPlan("fair-oracle", 5, settings={"guaranteed_rate": 0.21}, world_settings={"availability": 1.0}).build()


def test_feasibility_uses_the_long_run_share_of_varying_availability() -> None:
    rarely_available = {"availability": {"kind": "markov", "share": 0.1, "persistence": 10}}
    with pytest.raises(InfeasiblePromise):
        RunPlan("rbcsf", 5, world_settings=rarely_available).build()
    RunPlan("rbcsf", 5, settings={"allow_infeasible": True}, world_settings=rarely_available).build()
    RunPlan("rbcsf", 5, settings={"availability": 0.8}, world_settings=rarely_available).build()


class Useful(PaperWorld):
    """A world that says that it reports a signal."""

    signals = ("utility",)


def test_a_policy_learns_only_from_signals_that_the_world_reports() -> None:
    with pytest.raises(
        SettingError, match=r"learns from the signal 'los' \(did you mean 'loss'\?\), which the world paper"
    ):
        RunPlan("fair-pace", 3, settings={"value": "los"}).build()
    inside = {"policy": "fair-pace", "settings": {"value": "utility"}}
    with pytest.raises(SettingError, match="does not report: it reports none"):
        RunPlan("cool-down", 3, settings=inside).build()
    policy, world = RunPlan("cool-down", 3, settings=inside, world=Useful).build()
    assert (policy.signals, world.signals) == (("utility",), ("utility",))
