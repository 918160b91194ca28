from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from release.lowest import OWN_ENVIRONMENT, TOO_LARGE, TOOLS, lower_bound, lowest_requirements
from release.readme import NOTE, long_description

ROOT = Path(__file__).parents[2]
TEXTS = [
    path
    for folder in ("src", "docs", "examples")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md", ".toml", ".ipynb", ".service")
] + [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def named_extras(path: Path) -> set[str]:
    """Returns the extras in `turnout[…]` of a text."""
    matches = re.findall(r"turnout\\*\[([a-z, -]+)\]", path.read_text())
    return {name.strip() for names in matches for name in names.split(",")}


def test_messages_and_pages_name_every_extra_and_no_others(project: dict[str, Any]) -> None:
    extras, named = set(project["optional-dependencies"]), {path: named_extras(path) for path in TEXTS}
    assert {path.name: names - extras for path, names in named.items() if names - extras} == {}
    assert extras - set().union(*named.values()) - TOOLS - {"all"} == set()


def test_the_extra_all_has_everything_for_users(project: dict[str, Any]) -> None:
    extras = project["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    assert everything.extras == set(extras) - TOOLS - {"all", "flower"}, "flower-sim includes flower"


def test_every_dependency_has_a_lower_bound(project: dict[str, Any]) -> None:
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    for requirement in map(Requirement, lines):
        if requirement.name != "turnout":
            assert lower_bound(requirement)


def test_the_lowest_versions_are_those_of_the_project(project: dict[str, Any]) -> None:
    pins = {pin.name: pin for pin in map(Requirement, lowest_requirements(project))}
    for extra, lines in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        if extra in OWN_ENVIRONMENT | TOO_LARGE | TOOLS | {"all"}:
            continue
        for requirement in map(Requirement, lines):
            (pinned,) = pins[requirement.name].specifier
            assert pinned.version in requirement.specifier
            assert pins[requirement.name].extras == requirement.extras


def test_a_dependency_without_a_lower_bound_is_refused() -> None:
    with pytest.raises(SystemExit, match="numpy<3 has no lower bound"):
        lowest_requirements({"dependencies": ["numpy<3"], "optional-dependencies": {}})


@pytest.mark.parametrize(("framework", "package"), [("flower", "flwr"), ("nvflare", "nvflare")])
def test_the_oldest_framework_that_is_tested_is_the_oldest_that_is_allowed(
    project: dict[str, Any], framework: str, package: str
) -> None:
    pins = (ROOT / "tests" / "adapters" / framework / "oldest.txt").read_text()
    (tested,) = re.findall(rf"^{package}==(.*)$", pins, flags=re.MULTILINE)
    (allowed,) = map(Requirement, project["optional-dependencies"][framework])
    assert Version(tested) == lower_bound(allowed)


def test_the_classifiers_name_the_versions_of_python_that_are_checked(project: dict[str, Any]) -> None:
    named = {line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)}
    checked = re.search(r"^PYTHONS \?= (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert checked is not None
    assert {f"python{version}" for version in named} == set(checked[1].split())
    assert project["requires-python"] == f">={min(named, key=Version)}"


README = """# Title

[Docs](docs/README.md) · [limits](#limits) · [paper](https://doi.org/1) · [docs/a.md](docs/a.md)

![A chart](docs/chart.png)

```python
rows[order](docs)
```

See [the end](docs/b.md#end).
"""


def test_with_a_repository_links_and_pictures_lead_to_the_tag_of_the_version() -> None:
    text = long_description(README, repository="https://host.invalid/turnout/", version="1.2")
    assert "[Docs](https://host.invalid/turnout/blob/v1.2/docs/README.md)" in text
    assert "![A chart](https://host.invalid/turnout/raw/v1.2/docs/chart.png)" in text
    assert "[the end](https://host.invalid/turnout/blob/v1.2/docs/b.md#end)" in text
    assert "[limits](#limits) · [paper](https://doi.org/1)" in text
    assert "```python\nrows[order](docs)\n```" in text
    assert NOTE not in text


def test_without_a_repository_links_become_names_of_files() -> None:
    text = long_description(README, repository=None, version="1.2")
    assert "Docs (`docs/README.md`) · [limits](#limits) · [paper](https://doi.org/1) · `docs/a.md`\n" in text
    assert "\n*A chart* (`docs/chart.png`)\n" in text
    assert "```python\nrows[order](docs)\n```" in text
    assert "See the end (`docs/b.md`).\n" in text
    assert text.endswith(f"\n\n{NOTE}\n")


def test_the_readme_has_no_relative_link_on_a_package_index() -> None:
    for repository in (None, "https://host.invalid/turnout"):
        text = long_description((ROOT / "README.md").read_text(), repository=repository, version="1.2")
        text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        assert [
            target for target in re.findall(r"\]\(([^)]+)\)", text) if not target.startswith(("https://", "#"))
        ] == []
        assert not re.search(r"<(img|a) ", text)
