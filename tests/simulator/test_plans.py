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

from turnout import POLICIES
from turnout.errors import InfeasiblePromise, SettingError
from turnout.policies import RBCSF, SkewedRandom, UniformRandom
from turnout.simulator import PaperWorld, RunPlan, make_world

PLAN = RunPlan(
    "rbcsf",
    100,
    7,
    {"speed_weight": 20, "guaranteed_rate": "1/10"},
    world_settings={"clients": 20, "availability": {"kind": "markov", "share": 0.6, "persistence": 5}},
)


# Keys.


def test_the_key_does_not_depend_on_the_order_of_settings() -> None:
    turned = RunPlan(
        "rbcsf",
        100,
        7,
        {"guaranteed_rate": "1/10", "speed_weight": 20},
        world_settings={"availability": {"persistence": 5, "share": 0.6, "kind": "markov"}, "clients": 20},
    )
    assert turned.key == PLAN.key


def test_the_label_changes_nothing() -> None:
    assert replace(PLAN, label="ours").key == PLAN.key
    assert replace(PLAN, label="ours") == PLAN


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
        {
            "world_settings": {
                "clients": 20,
                "availability": {"kind": "markov", "share": 0.6, "persistence": 6},
            }
        },
        {"keep": "choices"},
    ],
)
def test_the_key_changes_with_everything_else(change: dict[str, Any]) -> None:
    assert replace(PLAN, **change).key != PLAN.key


def test_the_key_is_the_same_in_another_process() -> None:
    code = f"from turnout.simulator import RunPlan; print(RunPlan.from_dict({PLAN.as_dict()!r}).key)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == PLAN.key


def test_numbers_of_numpy_are_numbers() -> None:
    plan = RunPlan("rbcsf", np.int64(100), np.int64(7))  # type: ignore[arg-type]  # as np.arange gives them
    assert plan.key == RunPlan("rbcsf", 100, 7).key


def test_a_tuple_is_a_list() -> None:
    pair, listed = ({"bandwidth": bandwidth} for bandwidth in ((2.0, 3.0), [2.0, 3.0]))
    assert RunPlan("random", 5, world_settings=pair).key == RunPlan("random", 5, world_settings=listed).key


def test_a_plan_does_not_change_with_the_table_it_was_made_from() -> None:
    settings: dict[str, Any] = {"speed_weight": 20}
    plan = RunPlan("rbcsf", 5, settings=settings)
    key = plan.key
    settings["speed_weight"] = 30
    assert plan.key == key


def test_any_mapping_will_do_for_settings() -> None:
    settings: Mapping[str, Any] = MappingProxyType({"speed_weight": 20})
    assert RunPlan("rbcsf", 5, settings=settings).key == RunPlan("rbcsf", 5, settings=dict(settings)).key


@pytest.mark.parametrize(
    "odd", [{1, 2}, np.ones(3), b"raw", Fraction(1, 7), object()], ids=lambda odd: type(odd).__name__
)
def test_settings_that_are_not_json_are_refused(odd: Any) -> None:
    with pytest.raises(SettingError, match="settings of a plan must be numbers, words, lists and tables"):
        _ = RunPlan("rbcsf", 5, settings={"guaranteed_rate": odd}).key
    with pytest.raises(SettingError, match="settings of a plan must be numbers, words, lists and tables"):
        _ = RunPlan("rbcsf", 5, world_settings={"availability": {"share": odd}}).key


def test_a_plan_survives_being_told() -> None:
    told = json.loads(json.dumps(replace(PLAN, label="ours", keep="choices").as_dict()))
    back = RunPlan.from_dict(told)
    assert back == replace(PLAN, keep="choices")
    assert back.label == "ours"
    assert back.key == replace(PLAN, keep="choices").key
    assert back.as_dict() == told


def test_the_name_is_the_label_or_the_policy_and_its_settings() -> None:
    assert RunPlan("random", 5).name == "random"
    assert PLAN.name == "rbcsf (speed_weight 20, guaranteed_rate 1/10)"
    assert replace(PLAN, label="ours").name == "ours"


# Building.


def test_a_plan_builds_its_policy_in_its_world() -> None:
    policy, world = PLAN.build()
    assert isinstance(policy, RBCSF)
    assert isinstance(world, PaperWorld)
    assert policy.clients == world.clients == 20
    assert policy.speed_weight == 20
    assert world.seed == 7
    np.testing.assert_array_equal(world.availability, np.full(20, 0.6))


def test_each_build_is_fresh() -> None:
    (policy, world), (other_policy, other_world) = PLAN.build(), PLAN.build()
    policy.tell(world.play(world.offer(1), policy.ask(world.offer(1))))
    assert other_world.offer(1) == PLAN.build()[1].offer(1)
    assert other_policy.ask(other_world.offer(1)) == PLAN.build()[0].ask(other_world.offer(1))


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_can_be_planned_by_its_name(name: str) -> None:
    policy, world = RunPlan(name, 5).build()
    assert policy.name == name
    assert policy.clients == world.clients == 40


def test_a_policy_that_draws_lots_takes_the_seed_of_the_plan_unless_it_has_its_own() -> None:
    planned, own = RunPlan("random", 5, 7).build()[0], RunPlan("random", 5, 7, {"seed": 3}).build()[0]
    skewed = RunPlan("skewed", 5, 7).build()[0]
    assert isinstance(planned, UniformRandom)
    assert isinstance(own, UniformRandom)
    assert isinstance(skewed, SkewedRandom)
    assert (planned.seed, own.seed, skewed.seed) == (7, 3, 7)


# Refusals.


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (RunPlan("rbcs", 5), r"unknown policy 'rbcs' \(did you mean 'rbcsf'\?\); there are rbcsf, random"),
        (RunPlan("rbcsf", 5, world="papr"), r"unknown world 'papr' \(did you mean 'paper'\?\); there are paper"),
        (
            RunPlan("rbcsf", 5, settings={"speed_wait": 5}),
            r"rbcsf has no setting 'speed_wait' \(did you mean 'speed_weight'\?\)",
        ),
        (
            RunPlan("rbcsf", 5, world_settings={"avaliability": 0.5}),
            r"the world paper has no setting 'avaliability' \(did you mean 'availability'\?\); it has clients, classes",
        ),
        (RunPlan("rbcsf", 5, world_settings={"seed": 3}), "the world paper has no setting 'seed'"),
        (RunPlan("rbcsf", 5, settings={"clients": 3}), "rbcsf has no setting 'clients'"),
        (RunPlan("rbcsf", 5, settings={"zzz": 1}), "rbcsf has no setting 'zzz'; it has"),
        (RunPlan("rbcsf", 5, settings={"speed_weight": -1}), "speed_weight must be at least 0"),
        (RunPlan("rbcsf", 5, world_settings={"clients": 0}), "clients must be at least 1"),
    ],
    ids=lambda one: "" if isinstance(one, str) else one.name,
)
def test_a_wrong_word_is_refused_and_the_near_one_named(plan: RunPlan, told: str) -> None:
    with pytest.raises(SettingError, match=told):
        plan.build()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"rounds": 0}, "rounds must be at least 1, not 0"),
        ({"rounds": 5.0}, "rounds must be a whole number"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"keep": "none"}, "keep must be 'all' or 'choices', not 'none'"),
        ({"settings": None}, "settings must be a table, not None"),
        ({"world_settings": [1]}, r"world_settings must be a table, not \[1\]"),
    ],
)
def test_a_wrong_field_is_refused(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingError, match=told):
        RunPlan(**{"policy": "rbcsf", "rounds": 5, **fields})


def test_a_world_can_be_made_by_its_name() -> None:
    world = make_world("paper", 3, clients=5)
    assert world.clients == 5
    assert world.offer(1) == PaperWorld(3, clients=5).offer(1)
    with pytest.raises(SettingError, match="did you mean 'paper'"):
        make_world("pape")


def test_a_promise_is_checked_against_how_often_the_world_s_clients_volunteer() -> None:
    """The example of the spec: 40 clients, 8 wanted, each there in a fifth of the rounds: at most 0.175."""
    rare = {"availability": 0.2}
    RunPlan("rbcsf", 5, settings={"guaranteed_rate": 0.17}, world_settings=rare).build()
    with pytest.raises(InfeasiblePromise, match=r"0\.175") as refusal:
        RunPlan("rbcsf", 5, settings={"guaranteed_rate": 0.18}, world_settings=rare).build()
    assert float(refusal.value.largest_rate or 0) == pytest.approx(0.175, abs=0.0006)
    RunPlan("rbcsf", 5, settings={"guaranteed_rate": 0.18}).build()


def test_a_promise_beyond_the_cohort_is_infeasible_in_any_world() -> None:
    with pytest.raises(InfeasiblePromise, match=r"largest feasible rate is 0\.2"):
        RunPlan("fair-oracle", 5, settings={"guaranteed_rate": 0.21}, world_settings={"availability": 1.0}).build()


@pytest.mark.parametrize("kind", ["markov", "daily"])
def test_the_share_of_a_rhythm_counts_too(kind: str) -> None:
    seldom = {"availability": {"kind": kind, "share": 0.1}}
    with pytest.raises(InfeasiblePromise):
        RunPlan("rbcsf", 5, world_settings=seldom).build()
    RunPlan("rbcsf", 5, settings={"allow_infeasible": True}, world_settings=seldom).build()
    RunPlan("rbcsf", 5, settings={"availability": 0.8}, world_settings=seldom).build()


def test_a_whole_number_is_the_same_setting_however_it_is_written() -> None:
    assert (
        RunPlan("rbcsf", 10, settings={"speed_weight": 5}).key
        == RunPlan("rbcsf", 10, settings={"speed_weight": 5.0}).key
    )
    assert (
        RunPlan("rbcsf", 10, settings={"speed_weight": 5}).key
        != RunPlan("rbcsf", 10, settings={"speed_weight": 5.5}).key
    )
