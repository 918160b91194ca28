"""The command line: policies with settings in their names, lists of policies and worlds, and new packages."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli import in_process
from cli.in_process import error_of, json_of
from documents import check_command
from plugin_packages import SOURCE, forget, forgotten_modules, importable, installed, write_module, write_package
from turnout.cli.naming import Named, apply_settings, parse_policy
from turnout.cli.plugins.catalogue import describe_policy, describe_world
from turnout.errors import SettingError
from turnout.lab import world_names
from turnout.lab.studies.leaderboard import suites
from turnout.policies.registry import WRAPPERS, policy_names
from turnout.version import __version__

__all__ = ["importable", "installed"]
FEW = ("--rounds", "6", "--seeds", "2", "--workers", "1")


def run(*arguments: str | Path) -> in_process.Done:
    done = in_process.run(*arguments, COLUMNS="240")
    assert done.returncode == 0, done.stderr
    return done


# Policies with settings


@pytest.mark.parametrize(
    ("text", "name", "settings"),
    [
        ("oort", "oort", {}),
        ("rbcsf:speed_weight=5,prior=fleet", "rbcsf", {"speed_weight": 5, "prior": "fleet"}),
        ("fair-pace:guaranteed_rate=3/40", "fair-pace", {"guaranteed_rate": "3/40"}),
        ("my.module:Mine", "my.module:Mine", {}),
        ("my.module:Mine:a=1.5,b=true", "my.module:Mine", {"a": 1.5, "b": True}),
        (
            "quota:policy=my:Mine,least={a=1,b=2},x='1,2'",
            "quota",
            {"policy": "my:Mine", "least": {"a": 1, "b": 2}, "x": "1,2"},
        ),
        (
            "cool-down:policy=with-guarantee,settings.policy=oort,settings.settings.cohort_size=5",
            "cool-down",
            {"policy": "with-guarantee", "settings": {"policy": "oort", "settings": {"cohort_size": 5}}},
        ),
    ],
)
def test_a_policy_may_have_settings_in_its_name(text: str, name: str, settings: dict[str, Any]) -> None:
    assert parse_policy(text) == (name, settings)


@pytest.mark.parametrize("text", ["rbcsf:foo", "fair-pace:x:y=1", "my-module:Mine", "rbcsf:speed_weight=1,prior"])
def test_a_malformed_policy_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match=r"NAME:SETTING=VALUE|write a setting as NAME=VALUE"):
        parse_policy(text)


def test_set_reaches_the_policies_inside_wrappers() -> None:
    policies: list[Named] = [("with-guarantee", {"policy": "oort"}), ("random", {"seed": 4}), ("rbcsf", {})]
    assert apply_settings(policies, ["cohort_size=3", "clip=0.5", "seed=9", "urgency=1"], overwrite=False) == [
        ("with-guarantee", {"policy": "oort", "urgency": 1, "settings": {"cohort_size": 3, "clip": 0.5, "seed": 9}}),
        ("random", {"seed": 4, "cohort_size": 3}),
        ("rbcsf", {"cohort_size": 3}),
    ]
    assert apply_settings(policies, ["seed=9"], overwrite=True)[1] == ("random", {"seed": 9})
    chosen = apply_settings([("with-guarantee", {})], ["policy=oort", "settings.cohort_size=3"], overwrite=True)
    assert chosen == [("with-guarantee", {"policy": "oort", "settings": {"cohort_size": 3}})]
    with pytest.raises(SettingError, match="names a policy: write its settings after its name, as oort:NAME=VALUE"):
        apply_settings(policies, ["oort.clip=1"], overwrite=True)
    with pytest.raises(SettingError, match="--set clip=1 has no effect: it is no setting of random"):
        apply_settings([("random", {})], ["clip=1"], overwrite=True)
    with pytest.raises(SettingError, match=r"no policy has a setting 'clib' \(did you mean 'clip'\?\)"):
        apply_settings(policies, ["clib=1"], overwrite=True)


def test_two_settings_of_one_policy_are_compared() -> None:
    names = ("rbcsf:speed_weight=5", "rbcsf:speed_weight=50", "with-guarantee:policy=oort,settings.cohort_size=7")
    result = json_of("simulate", *names, *FEW, "--baseline", "rbcsf (speed_weight 50)")
    labels = [row["policy"] for row in result["policies"]]
    assert labels == [
        "rbcsf (speed_weight 5)",
        "rbcsf (speed_weight 50)",
        "with-guarantee (policy oort (cohort_size 7))",
    ]
    assert result["baseline"] == "rbcsf (speed_weight 50)"
    assert json_of("simulate", *names, *FEW, "--baseline", "with-guarantee")["baseline"] == labels[2]
    assert "there is no 'rbcsf' to compare with" in error_of("simulate", *names, *FEW, "--baseline", "rbcsf")


def test_policies_and_worlds_of_other_packages_are_played(installed: Path, tmp_path: Path) -> None:
    world = ("--world", "name=small", "--set", "cohort_size=2")
    result = json_of("simulate", "random", "first:offset=2", *world, *FEW)
    assert [row["policy"] for row in result["policies"]] == ["random", "first (offset 2)"]
    config = tmp_path / "compared.toml"
    config.write_text(
        'rounds = 5\n[world]\nname = "quick_module:small_world"\npeople = 9\n[[policy]]\nname = "around"\n'
        'policy = "quick_module:First"\nsettings = { cohort_size = 2 }\nlabel = "mine"\n'
    )
    result = json_of("simulate", "--config", config)
    assert [row["policy"] for row in result["policies"]] == ["mine"]
    assert installed.exists()


def test_a_module_in_the_working_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    write_module(tmp_path / "src", "here_module", SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert "here_module:First" in run("simulate", "here_module:First", "--rounds", "3").stdout
    fleet = tmp_path / "fleet.turnout"
    assert "here_module:First" in run("fleet", "create", fleet, "--policy", "here_module:First:cohort_size=3").stdout
    forget("here_module")


# Suites


def test_further_policies_of_a_suite_get_its_settings() -> None:
    suite = suites.SUITES["traces"]
    more = suite.with_policies(
        [
            ("oort", {"clip": 0.5}),
            ("rbcsf", {"speed_weight": 3.0}),
            ("fastest", {"cohort_size": 4}),
            ("overcommit", {"policy": "refl"}),
        ]
    )
    oort, rbcsf, fastest, wrapped = more.contenders[len(suite.contenders) :]
    assert (oort.label, oort.settings, oort.knows_truth) == ("oort (clip 0.5)", {"clip": 0.5, "cohort_size": 10}, False)
    assert rbcsf.promised == suite.rate
    assert rbcsf.settings["accrual"] == "available"
    assert (fastest.settings["cohort_size"], fastest.knows_truth) == (4, True)
    assert wrapped.settings["settings"]["cohort_size"] == 10
    with pytest.raises(SettingError, match="the suite traces has a contender 'random' already"):
        suite.with_policies([("random", {})])
    with pytest.raises(SettingError, match="unknown policy 'randm'"):
        suite.with_policies([("randm", {})])
    mine = suites.SUITES["async"].with_policies([("rbcsf", {"speed_weight": 3}), ("ucb-cs", {})]).plans(1, 50)
    assert mine["rbcsf (speed_weight 3)"][0].settings["guaranteed_rate"] == "3/160"
    assert "guaranteed_rate" not in mine["ucb-cs"][0].settings


def test_a_policy_of_another_package_is_in_the_leaderboard(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = suites.SUITES["numerical"]
    few = [each for each in suite.contenders if each.label in ("random", "FairPace, tolerance 2", "fastest, learned")]
    monkeypatch.setattr(suites, "SUITES", {"numerical": replace(suite, contenders=tuple(few))})
    result = json_of("study", "leaderboard", "numerical", "first:offset=1", *FEW)
    assert {row["contender"] for row in result["policies"]} == {*(each.label for each in few), "first (offset 1)"}
    assert installed.exists()


# Lists


def test_every_policy_and_world_is_listed_with_its_settings(installed: Path, tmp_path: Path) -> None:
    write_package(
        tmp_path, "broken-package", "broken_module", {"turnout.policies": {"broken": "broken_module:Nothing"}}
    )
    table = run("policies").stdout
    assert re.findall(r"^│ (\S+) +│", table, re.MULTILINE) == policy_names()
    assert "Selects the first available clients. (quick-package 1.2)" in table
    assert "has no attribute 'Nothing'" in table
    assert "speed_weight" in table
    assert re.findall(r"^│ (\S+) +│", run("worlds").stdout, re.MULTILINE) == world_names()
    assert re.search(r"│ people +│ 12 +│ +│", run("worlds", "small").stdout)
    assert installed.exists()
    forget("broken_module")


def test_every_setting_of_our_own_policies_and_worlds_has_a_meaning() -> None:
    for entry in [*map(describe_policy, policy_names()), *map(describe_world, world_names())]:
        assert entry.summary.endswith("."), entry.name
        for setting in entry.settings:
            assert setting.meaning.endswith("."), (entry.name, setting.name)


def test_one_policy_is_shown_with_defaults_and_units() -> None:
    shown = run("policies", "rbcsf").stdout
    for text in (
        "speed_weight",
        "20.0",
        "one second of round time",
        "guaranteed_rate",
        "0.15",
        "turnout simulate rbcsf:",
    ):
        assert text in shown
    for setting in ("policy", "allowed"):
        assert re.search(rf"│ {setting} +│ required +│", run("policies", "eligible").stdout)
    assert "model_size" in run("worlds", "paper").stdout
    assert "did you mean 'rbcsf'?" in error_of("policies", "rbcfs")
    assert "known worlds are paper, traces, training" in error_of("worlds", "nowhere")


def test_the_example_of_every_wrapper_can_be_played() -> None:
    without = []
    for name in WRAPPERS:
        lines = [line for line in run("policies", name).stdout.splitlines() if line.startswith("Example: ")]
        if lines:
            assert run(*lines[0].removeprefix("Example: turnout ").split(), "--rounds", "2").returncode == 0
        else:
            without.append(name)
    assert without == ["eligible", "quota"]  # no value of what they need fits every fleet


def test_what_has_no_settings_or_no_number_among_them_is_shown_without_an_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SOURCE.replace("*, cohort_size=8, offset=0", "").replace("cohort_size, offset", "8, 0")
    write_module(tmp_path, "bare_module", source)
    write_module(tmp_path, "plain_module", SOURCE.replace("cohort_size=8, offset=0", "cohort_size=None, offset=None"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with forgotten_modules("bare_module", "plain_module"):
        shown = run("policies", "bare_module:First").stdout
        assert shown.splitlines() == [
            "bare_module:First (policy, of module bare_module): Selects the first available clients.",
            "It has no settings.",
        ]
        shown = run("policies", "plain_module:First").stdout
        assert "offset" in shown
        assert "Example" not in shown


def test_what_is_neither_a_policy_nor_a_world_nor_a_learner_cannot_be_loaded(tmp_path: Path) -> None:
    assert "no_such_module" in error_of("--with", "no_such_module:Thing", "runs", "show", tmp_path / "x.turnout")
    for name in ("string:digits", "json:nothing"):
        error = error_of("--with", name, "runs", "show", tmp_path / "x.turnout")
        assert name.partition(":")[2] in error
        assert "there is no store" not in error


# New packages


def run_tests(folder: Path, module: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the two tests of a package."""
    monkeypatch.syspath_prepend(folder / "src")
    with forgotten_modules(module, f"{module}.{kind}"):
        content = runpy.run_path(str(folder / "tests" / f"test_{module}.py"))
        tests = [value for name, value in content.items() if name.startswith("test_")]
        assert len(tests) == 2
        for test in tests:
            test()


@pytest.mark.parametrize("kind", ["policy", "world"])
def test_a_new_package_is_its_template_renamed(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "quick-thing"
    written = run("new", kind, "quick-thing", "--folder", folder).stdout
    assert f"cd {folder}, pip install -e ., turnout" in written
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    (entry,) = project["entry-points"].values()
    assert list(entry) == ["quick-thing"]
    assert project["dependencies"][0].endswith(f">={__version__}")
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"README.md", "py.typed", "test_quick_thing.py", f"{kind}.py"}
    assert not [path for path in files if "own" in path.name or f"own_{kind}" in path.read_text()]
    for command in re.findall(r"^    (turnout .*)$", (folder / "README.md").read_text(), flags=re.MULTILINE):
        check_command(command.split())
    run_tests(folder, "quick_thing", kind, monkeypatch)


@pytest.mark.framework
@pytest.mark.parametrize("kind", ["policy", "world"])
def test_pytest_runs_the_tests_of_a_new_package(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "quick-thing"
    run("new", kind, "quick-thing", "--folder", folder)
    tests = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
    done = subprocess.run(tests, cwd=folder, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_a_new_package_has_a_free_name_and_folder(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    assert "exists already" in error_of("new", "policy", "taken", "--folder", tmp_path / "taken")
    assert run("new", "policy", "free", "--folder", tmp_path / "none" / "free").returncode == 0
    for name in ("Upper", "1st", "a b", "../up", "a--b", "-a", "x" * 61, "ü"):
        assert "the name must be at most" in error_of("new", "policy", "--folder", tmp_path / "new", "--", name)
    for name in ("json", "numpy", "class", "turnout"):
        assert "is the name of a module" in error_of("new", "world", name, "--folder", tmp_path / "new")
    assert "there is a policy 'random' already" in error_of("new", "policy", "random", "--folder", tmp_path / "new")
    assert not (tmp_path / "new").exists()
