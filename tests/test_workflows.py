"""Files that only other programs read: workflows, hooks, citation, changelog; and the check before a release."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import turnout

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
#: A file or folder of the repository in a command.
PATH = re.compile(r"(?<![\w./-])(?:\.ci|\.github|benchmarks|docs|examples|src|tests)/[\w./-]+")


def read(path: Path) -> dict[Any, Any]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def jobs_of(path: Path) -> dict[str, dict[str, Any]]:
    jobs = read(path)["jobs"]
    assert jobs
    return dict(jobs)


def commands_of(path: Path) -> list[str]:
    return [step["run"] for job in jobs_of(path).values() for step in job.get("steps", []) if "run" in step]


def test_there_are_workflows() -> None:
    assert {path.stem for path in WORKFLOWS} == {"tests", "frameworks", "docs", "wheels", "release"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit_with_their_version(path: Path) -> None:
    for line in path.read_text().splitlines():
        if "uses:" not in line:
            continue
        if local := re.search(r"uses: \$/(\S+)$", line):
            assert (ROOT / local[1]).is_file(), line
            continue
        assert re.search(r"uses: [\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_an_action_has_the_same_version_everywhere() -> None:
    lines = {line.split("uses: ")[1] for path in WORKFLOWS for line in path.read_text().splitlines() if "@" in line}
    names = [line.partition("@")[0] for line in lines]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_jobs_have_no_more_rights_than_they_need(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {}
    assert workflow["concurrency"]["group"]
    for name, job in jobs_of(path).items():
        writes = {right for right, access in job["permissions"].items() if access != "read"}
        publishing = {("docs", "deploy"): {"pages", "id-token"}, ("release", "publish"): {"id-token"}}
        assert writes == publishing.get((path.stem, name), set()), name
        assert ("environment" in job) == bool(writes), name
        if "uses" not in job:
            assert job["timeout-minutes"] <= 90, name
        for step in job.get("steps", []):
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, name
    assert "secrets." not in path.read_text()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_name_targets_and_files_that_exist(path: Path) -> None:
    for command in commands_of(path):
        for arguments in re.findall(r"\bmake ([^\n;&|]+)", command):
            assert set(arguments.split()) <= set(TARGETS), command
        for name in PATH.findall(command):
            assert (ROOT / name).exists(), command


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_filters_match_files_of_the_repository(path: Path) -> None:
    for event in read(path)[True].values():  # YAML reads the key `on` as a truth value
        for pattern in (event or {}).get("paths", []) if isinstance(event, dict) else []:
            assert list(ROOT.glob(pattern)), pattern


def test_every_target_of_make_has_a_help_sentence() -> None:
    described = re.findall(r"^([a-z-]+):.* ## \S", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(described) == set(TARGETS)


def test_every_supported_version_of_python_is_tested() -> None:
    tests = jobs_of(ROOT / ".github/workflows/tests.yml")
    for name in ("linux", "macos", "windows"):
        assert tests[name]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]


def test_pre_commit_runs_tools_of_the_repository_only() -> None:
    (repository,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        program = hook["entry"].split()[0].removeprefix(".venv/bin/")
        assert f"$(BIN)/{program}" in lint, hook["id"]


@pytest.mark.parametrize("name", ["dependabot.yml", "ISSUE_TEMPLATE/bug.yml", "ISSUE_TEMPLATE/wish.yml"])
def test_other_files_of_the_platform_are_valid_yaml(name: str) -> None:
    assert read(ROOT / ".github" / name)


# Releases


def load_check() -> Any:
    specification = importlib.util.spec_from_file_location("check_tag", ROOT / ".ci/check_tag.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the files that a release compares."""
    for name in ("src/turnout/version.py", "CHANGELOG.md", "CITATION.cff"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_version_changelog_and_citation_agree() -> None:
    assert load_check().problems(f"v{turnout.__version__}") == []


def test_the_changelog_begins_with_what_is_not_released_and_then_has_every_version_once() -> None:
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings[0].startswith("Unreleased")
    versions = [re.fullmatch(r"(\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)", heading) for heading in headings[1:]]
    assert all(versions)
    released = [result[1] for result in versions if result]
    assert released[0] == turnout.__version__
    dates = [result[2] for result in versions if result]
    assert dates == sorted(dates, reverse=True)


def test_another_tag_is_refused(copy: Path) -> None:
    (problem,) = load_check().problems("v9.9.9", copy)
    assert f"has version {turnout.__version__}" in problem


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("CHANGELOG.md", f"## {turnout.__version__} - ", "## 9.9.9 - ", "CHANGELOG.md has no section"),
        ("CITATION.cff", f"\nversion: {turnout.__version__}", "\nversion: 9", "another version"),
        ("CITATION.cff", "\ndate-released: 2", "\ndate-released: 1", "another date"),
    ],
)
def test_a_release_with_an_incomplete_text_is_refused(copy: Path, name: str, old: str, new: str, expected: str) -> None:
    text = (copy / name).read_text()
    assert old in text
    (copy / name).write_text(text.replace(old, new))
    assert any(expected in problem for problem in load_check().problems(f"v{turnout.__version__}", copy))
