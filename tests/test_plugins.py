"""Policies and worlds of other packages: found by name, recorded in files, and never imported by a name in a file."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli import in_process
from plugin_packages import forget, importable, installed, write_package
from turnout import (
    PluginError,
    PolicyCheckError,
    RoundOffer,
    RoundReport,
    Scheduler,
    Selection,
    SelectionPolicy,
    SettingError,
    UniformRandom,
    check_policy,
    make_policy,
    policy_names,
    register_policy,
)
from turnout.dashboard.sources.run import RunSource
from turnout.lab import PaperWorld, RunPlan, RunStore, make_world, play_into, register_world, sweep, world_names
from turnout.lab.worlds.registry import REGISTRY as WORLDS
from turnout.live._internals import examine
from turnout.plugins import naming_packages
from turnout.policies.registry import REGISTRY, is_wrapper, setting_names

__all__ = ["importable", "installed"]
LOOSE = "loose_module:First"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """Forgets what a test has registered or loaded."""
    yield
    forget()


class TopLevel(UniformRandom):
    """A policy of this module."""

    name = "top-level"


class Unnamed(SelectionPolicy):
    """A policy that has no name."""

    def ask(self, offer: RoundOffer) -> Selection:
        return Selection(offer.round, np.zeros(1, dtype=np.int64))

    def tell(self, report: RoundReport) -> None:
        pass


# Names


def test_a_policy_of_an_installed_package_has_the_name_of_its_entry_point(installed: Path) -> None:
    assert {"first", "around"} <= set(policy_names())
    assert not installed.exists()  # a list of names imports nothing
    policy = make_policy("first", 40, offset=2)
    assert policy.name == "first"
    assert installed.exists()
    assert setting_names("first") == ["cohort_size", "offset"]
    with pytest.raises(SettingError, match=r"first has no setting 'ofset' \(did you mean 'offset'\?\)"):
        make_policy("first", 40, ofset=2)


def test_a_policy_can_be_named_by_its_module(importable: Path) -> None:
    assert make_policy(LOOSE, 40, offset=1).name == "first"
    assert make_policy("loose_module:uniform", 40, seed=3).cohort_size == 3
    assert importable.exists()
    nested: Any = make_policy("with-guarantee", 40, policy="loose_module:Around", settings={"policy": LOOSE})
    assert [nested.name, nested.policy.name, nested.policy.policy.name] == ["with-guarantee", "around", "first"]
    assert is_wrapper("loose_module:Around")


@pytest.mark.parametrize("name", ["os:system", "os:path.join", "builtins:eval", "loose_module:leave_a_mark"])
def test_nothing_of_a_module_is_called_unless_it_declares_to_build_a_policy(
    importable: Path, tmp_path: Path, name: str
) -> None:
    with pytest.raises(SettingError, match=f"{name} is not known to build a policy, so it is not called"):
        Scheduler.open(tmp_path / "fleet.turnout", policy=name)
    with pytest.raises(SettingError, match=f"{name} is not known to build a policy, so it is not called"):
        make_policy("with-guarantee", 40, policy=name)
    assert not importable.with_suffix(".called").exists()
    assert not (tmp_path / "fleet.turnout").exists()


def test_an_abstract_class_is_refused() -> None:
    for policy in (SelectionPolicy, "turnout.policies.base:SelectionPolicy"):
        with pytest.raises(SettingError, match="is an abstract class: use one that has ask"):
            make_policy(policy, 40)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("loose_module:Frst", r"module 'loose_module' has no attribute 'Frst' \(did you mean 'First'\?\); it has Fi"),
        ("no_such_module:First", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("loose_module:first", "was built already.*use its class, First, and settings"),
        ("loose_module:Path", "the class Path, which does not derive from SelectionPolicy"),
        ("loose_module:__name__", "must be a class or a function that builds a policy, got 'loose_module'"),
        ("loose_module:not_a_policy", "built 5, which is not a SelectionPolicy"),
        ("frist", "unknown policy 'frist'"),
    ],
)
@pytest.mark.usefixtures("importable")
def test_a_wrong_name_is_refused_with_what_there_is(name: str, complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        make_policy(name, 40)


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write_package(tmp_path, "broken-package", "broken_module", {"turnout.policies": {"broken": "broken_module:Broken"}})
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    with pytest.raises(PluginError, match=r"'broken' of broken-package 1\.2 cannot be loaded: ZeroDivisionError"):
        make_policy("broken", 40)


def test_two_packages_with_the_same_name_are_an_error(installed: Path, tmp_path: Path) -> None:
    write_package(tmp_path, "other-package", "other_module", {"turnout.policies": {"first": "other_module:First"}})
    with pytest.raises(PluginError, match=r"2 packages have a policy 'first': .*other-package 1\.2"):
        make_policy("first", 40)
    assert make_policy("quick_module:First", 40).name == "first"
    assert installed.exists()
    forget("other_module")


def test_a_name_of_turnout_cannot_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write_package(tmp_path, "bad-package", "bad_module", {"turnout.policies": {"random": "bad_module:First"}})
    assert type(make_policy("random", 40)) is UniformRandom
    for name in ("random", "overcommit"):
        with pytest.raises(SettingError, match=f"'{name}' is a policy of turnout"):
            register_policy(TopLevel, name)


def test_a_policy_can_be_registered_under_a_name() -> None:
    assert register_policy(TopLevel) is TopLevel
    register_policy(lambda clients, *, cohort_size=4: UniformRandom(clients, cohort_size=cohort_size), "four")
    assert {"top-level", "four"} <= set(policy_names())
    assert make_policy("four", 40).cohort_size == 4
    assert RunPlan("four", 3, settings={"cohort_size": 2}).build()[0].cohort_size == 2
    for name in ("", "a b", "a:b", "a=b", "a,b"):
        with pytest.raises(SettingError, match=r"the name of a policy must be letters|has no name"):
            register_policy(lambda clients: UniformRandom(clients), name)


def test_a_policy_without_a_name_is_registered_only_under_a_given_one() -> None:
    def build(clients: int) -> Unnamed:
        return Unnamed(clients)

    for builder in (Unnamed, build):
        with pytest.raises(SettingError, match=r"Unnamed.* has no name: pass name|build.* has no name: pass name"):
            register_policy(builder)
    assert "unnamed" not in policy_names()
    assert register_policy(Unnamed, "unnamed") is Unnamed
    assert isinstance(make_policy("unnamed", 40), Unnamed)
    with pytest.raises(PolicyCheckError, match="it has a name: a policy needs a class attribute `name`"):
        check_policy(Unnamed)


def test_a_setting_without_a_default_is_required() -> None:
    def first(clients: int, *, cohort_size: int) -> UniformRandom:
        return UniformRandom(clients, cohort_size=cohort_size)

    register_policy(first, "first")
    with pytest.raises(SettingError, match="first needs the setting 'cohort_size'"):
        make_policy("first", 40)
    assert make_policy("first", 40, cohort_size=3).cohort_size == 3


def test_a_class_is_accepted_where_a_name_is() -> None:
    plan = RunPlan(TopLevel, 3, settings={"cohort_size": 2})
    assert plan.policy == f"{__name__}:TopLevel"
    assert plan.build()[0].cohort_size == 2
    assert RunPlan(UniformRandom, 3) == RunPlan("random", 3)
    wrapped = RunPlan("cool-down", 3, settings={"policy": TopLevel, "settings": {"cohort_size": 2}})
    assert wrapped.settings["policy"] == plan.policy
    assert wrapped.build()[0].cohort_size == 2
    assert make_policy(TopLevel, 40).name == "top-level"


def test_a_class_with_an_entry_point_has_its_name(installed: Path) -> None:
    module = __import__("quick_module")
    assert RunPlan(module.First, 3).policy == "first"
    assert RunPlan(module.uniform, 3).policy == "quick_module:uniform"
    assert installed.exists()


def test_what_cannot_be_found_again_is_refused() -> None:
    class Local(UniformRandom):
        name = "local"

    with pytest.raises(SettingError, match=r"no name that can be stored: .* register_policy"):
        RunPlan(Local, 3)
    with pytest.raises(SettingError, match="built already"):
        RunPlan(UniformRandom(40), 3)  # type: ignore[arg-type]
    assert RunPlan(register_policy(Local), 3).policy == "local"


# Worlds


def test_worlds_of_other_packages_may_have_keyword_only_parameters(installed: Path, tmp_path: Path) -> None:
    assert "small" in world_names()
    assert make_world("small", 3, people=9).clients == 9
    assert make_world("quick_module:small_world").clients == 12
    assert make_world("quick_module:PaperWorld", clients=5).clients == 5
    with pytest.raises(SettingError, match=r"the world small has no setting 'poeple'.*did you mean 'people'"):
        make_world("small", 0, poeple=3)
    with pytest.raises(SettingError, match=r"number built 4, which is not a world: it must be a turnout.lab.World"):
        make_world(register_world(lambda seed: seed, "number"), 4)
    plan = RunPlan("first", 5, world="small", world_settings={"people": 10})
    with RunStore(tmp_path / "runs.turnout") as store:
        run = play_into(store, plan)
        assert store.info(run).plan["packages"] == {"first": "quick-package 1.2", "small": "quick-package 1.2"}
        assert store.info(run).clients == 10
    assert installed.exists()


def test_a_world_inside_a_world_is_loaded_and_recorded(importable: Path) -> None:
    settings = {"inner": "loose_module:small_world"}
    plan = RunPlan("random", 3, world="loose_module:outer_world", world_settings=settings, settings={"cohort_size": 2})
    assert plan.build()[1].clients == 12
    assert set(plan.with_packages().packages) == {"loose_module:outer_world", "loose_module:small_world"}
    forget("loose_module")
    importable.unlink()
    with pytest.raises(PluginError, match="not loaded"):
        RunPlan.from_dict(plan.as_dict()).build()
    assert not importable.exists()


def test_a_world_is_registered_may_have_required_settings_and_must_accept_a_seed() -> None:
    def quiet(*, clients: int, seed: int) -> PaperWorld:  # noqa: ARG001
        return PaperWorld(5, clients=clients, noise="none")

    register_world(lambda seed, clients=5: make_world("paper", seed, clients=clients), "tiny")
    assert RunPlan("random", 2, world="tiny", settings={"cohort_size": 2}).build()[1].clients == 5
    assert make_world("tiny", 0, clients=7).clients == 7
    register_world(lambda: PaperWorld(), "seedless")
    with pytest.raises(SettingError, match="the world seedless must accept a seed: give it the parameter seed"):
        make_world("seedless", 3)
    register_world(quiet, "quiet")
    with pytest.raises(SettingError, match="the world quiet needs the setting 'clients'"):
        make_world("quiet", 3)
    one, other = make_world("quiet", 3, clients=7), make_world("quiet", 4, clients=7)
    assert (one.clients, one.offer(1)) == (7, other.offer(1))


@pytest.mark.parametrize(("value", "advice"), [(PaperWorld(), ": use its class$"), (3, "got 3$"), (None, "got None$")])
def test_a_world_that_was_built_already_cannot_be_registered(value: Any, advice: str) -> None:
    with pytest.raises(SettingError, match=f"built must be a class or a function that builds a world, .*{advice}"):
        register_world(value, "built")
    assert "built" not in world_names()


# Files


def test_a_plan_of_a_file_imports_nothing(importable: Path) -> None:
    data = {**RunPlan("random", 3).as_dict(), "policy": LOOSE}
    for harmful in (data, {**data, "policy": "overcommit", "settings": {"policy": LOOSE}}):
        plan = RunPlan.from_dict(harmful)
        with pytest.raises(PluginError, match="a name in a file does not import a module: import loose_module first"):
            plan.build()
        assert plan.name
        assert plan.key
    with pytest.raises(PluginError, match="not loaded"):
        RunPlan.from_dict({**RunPlan("random", 3).as_dict(), "world": "loose_module:small_world"}).build()
    assert not importable.exists()
    assert RunPlan(LOOSE, 3).build()[0].name == "first"
    assert RunPlan.from_dict(data).build()[0].name == "first"  # it was named explicitly before


@pytest.mark.parametrize("name", ["os:system", "subprocess:Popen", "builtins:eval", "pathlib:Path", "json:loads"])
def test_a_file_cannot_name_what_is_no_policy_or_world(name: str) -> None:
    for registry in (REGISTRY, WORLDS):
        with pytest.raises(PluginError, match="not loaded"):
            registry.get(name)


def test_a_class_whose_module_was_imported_is_found() -> None:
    forget()
    assert REGISTRY.get(f"{__name__}:TopLevel") is TopLevel
    assert WORLDS.get("turnout.lab:PaperWorld") is PaperWorld


def test_a_stored_run_says_which_package_is_missing(installed: Path, tmp_path: Path) -> None:
    path = tmp_path / "runs.turnout"
    plan = RunPlan("first", 4, settings={"cohort_size": 3})
    with RunStore(path) as store:
        play_into(store, plan)
        assert RunPlan.from_dict(store.runs()[0].plan) == plan
        assert RunPlan.from_dict(store.runs()[0].plan).key == plan.key
    forget("quick_module")
    installed.with_suffix(".py").unlink()
    for information in tmp_path.glob("*.dist-info"):
        information.rename(tmp_path / "uninstalled")
    missing = r"unknown policy 'first'.*It was made with 'first' of quick-package 1\.2: install that package"
    with RunStore(path, read_only=True) as store:
        info = store.runs()[0]
        with pytest.raises(PluginError, match=missing):
            RunPlan.from_dict(info.plan).build()
        assert "quick-package 1.2" in RunSource(store, info).notices()[0]
    shown = json.loads(in_process.run("runs", "show", path, "1", "--json").stdout)
    assert "quick-package 1.2" in shown["missing"]
    assert shown["summary"]["mean_cohort"] == 3


@pytest.mark.usefixtures("installed")
def test_learners_are_named_and_recorded_like_policies_and_worlds(tmp_path: Path) -> None:
    from quick_module import make_task  # type: ignore[import-not-found]

    plan = RunPlan("first", 4, world="training", world_settings={"learner": make_task, "learner_settings": {"size": 2}})
    assert plan.world_settings["learner"] == "tiny"
    packages = plan.with_packages().packages
    assert packages == {"first": "quick-package 1.2", "tiny": "quick-package 1.2"}
    with pytest.raises(RuntimeError, match="a task of size 2 was built"):
        plan.build()
    stored = plan.with_packages().as_dict()
    forget("quick_module")
    for information in tmp_path.glob("*.dist-info"):
        (information / "entry_points.txt").write_text("[turnout.policies]\nfirst = quick_module:First\n")
    missing = r"unknown learner 'tiny'.*It was made with 'tiny' of quick-package 1\.2: install that package"
    with pytest.raises(PluginError, match=missing):
        RunPlan.from_dict(stored).build()


def test_a_learner_in_a_plan_is_imported_if_a_user_names_it_and_not_if_a_file_does(importable: Path) -> None:
    settings = {"learner": "loose_module:make_task"}
    stored = RunPlan("random", 4, world="training", world_settings=settings, stored=True)
    with pytest.raises(PluginError, match="the learner 'loose_module:make_task' is not loaded"):
        stored.build()
    assert not importable.exists()
    assert RunPlan("random", 4, world="training", world_settings=settings).with_packages().packages == {
        "loose_module:make_task": "module loose_module"
    }
    with pytest.raises(RuntimeError, match="a task of size 3 was built"):
        stored.build()
    with pytest.raises(PluginError, match=r"no attribute 'make_tusk' .did you mean 'make_task'"):
        RunPlan("random", 4, world="training", world_settings={"learner": "loose_module:make_tusk"})
    with pytest.raises(SettingError, match=r"has no name that can be stored: .* with register_task"):
        RunPlan("random", 4, world="training", world_settings={"learner": lambda: None})


def test_the_commands_that_read_a_store_import_nothing_unless_it_is_named(importable: Path, tmp_path: Path) -> None:
    path = tmp_path / "runs.turnout"
    with RunStore(path) as store:
        play_into(store, RunPlan(LOOSE, 4, settings={"cohort_size": 3}))
    forget("loose_module")
    importable.unlink()
    for command in ("fleet replay {}", "runs show {} 1"):
        done = in_process.run(*command.format(path).split())
        shown_text = " ".join((done.stdout + done.stderr).replace("│", " ").split())
        assert "not loaded" in shown_text
        assert f"Try: turnout --with {LOOSE}, before the command, loads it" in shown_text
        assert not importable.exists()
    done = in_process.run("fleet", "replay", path, "--set", "offset=2")
    assert done.returncode == 2
    assert not importable.exists()
    done = in_process.run("--with", LOOSE, "fleet", "replay", path, "--set", "offset=2", "--json")
    assert done.returncode == 0, done.stderr
    assert importable.exists()
    assert json.loads(done.stdout)["settings"] == {"cohort_size": 3, "offset": 2}


def test_a_fleet_records_the_package_and_imports_nothing(importable: Path, tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, policy=LOOSE, settings={"cohort_size": 2}, deadline=60.0) as scheduler:
        assert len(scheduler.choose(["a", "b", "c"])) == 2
        assert scheduler.settings.packages == {LOOSE: "module loose_module"}
    forget("loose_module")
    importable.unlink()
    with pytest.raises(PluginError, match=r"not loaded.*It was made with 'loose_module:First' of module loose_module"):
        Scheduler.open(path)
    (state,) = (finding for finding in examine(path) if finding.part == "state")
    assert state.ok is None
    assert "not checked, because its policy is missing here" in state.message
    assert not importable.exists()
    with Scheduler.open(path, policy=LOOSE) as scheduler:
        assert scheduler.settings.policy == LOOSE
    with pytest.raises(SettingError, match="was created with policy='loose_module:First', got 'random'"):
        Scheduler.open(path, policy="random")


def test_a_fleet_accepts_a_class(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    wrapped = {"policy": TopLevel, "settings": {"cohort_size": 2}}
    with Scheduler.open(path, policy="cool-down", settings=wrapped, deadline=60.0) as scheduler:
        assert scheduler.settings.settings["policy"] == f"{__name__}:TopLevel"
    with Scheduler.open(path, settings=wrapped) as scheduler:
        assert len(scheduler.choose(["a", "b", "c"])) == 2
    with pytest.raises(SettingError, match="built already"):
        Scheduler.open(tmp_path / "other.turnout", policy=UniformRandom(3))  # type: ignore[arg-type]


def test_workers_get_what_was_registered_in_this_process(
    importable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The workers that start here do not know the folder of the module.
    with RunStore(tmp_path / "before.turnout") as store, monkeypatch.context() as elsewhere:
        elsewhere.setattr(sys, "path", [folder for folder in sys.path if folder != str(importable.parent)])
        sweep([RunPlan("random", 3, seed) for seed in range(2)], store, workers=2)
    module = __import__("loose_module")
    register_policy(module.First, "mine")
    plans = [RunPlan("mine", 3, seed, {"cohort_size": 2}) for seed in range(2)]
    with RunStore(tmp_path / "runs.turnout") as store:
        runs = sweep(plans, store, workers=2)
        assert [len(store.columns(run).chosen) for run in runs] == [6, 6]
    assert importable.exists()


def test_errors_about_plug_ins_keep_their_name_between_processes() -> None:
    error = PluginError("gone", name="first", argument="plugin")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.name, again.argument) == ("gone", "first", "plugin")
    with pytest.raises(PluginError, match=r"gone$"), naming_packages({"other": "other-package 1"}):
        raise error
