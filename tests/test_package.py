from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import turnout
import turnout.errors
import turnout.live
import turnout.policies
from measuring import unmeasured
from turnout.policies import POLICIES, WRAPPERS

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def run_python(code: str) -> str:
    """Returns what a fresh interpreter prints for this code; it loads no module for `make coverage`."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=unmeasured(), capture_output=True, text=True, check=True).stdout


def test_public_names_are_sorted_importable_and_listed_by_dir() -> None:
    names = exported_by("turnout")
    assert names == sorted(names, key=lambda name: (not name.isupper(), name))
    assert all(getattr(turnout, name) is not None for name in names)
    assert set(names) <= set(dir(turnout))


def test_every_policy_wrapper_and_error_is_importable_from_the_package() -> None:
    errors = {
        name
        for name, value in vars(turnout.errors).items()
        if isinstance(value, type) and value.__module__ == turnout.errors.__name__
    }
    public = set(exported_by("turnout"))
    assert errors | set(exported_by("turnout.policies")) <= public
    assert {policy.__name__ for policy in (*POLICIES.values(), *WRAPPERS.values())} <= public
    for package in (turnout.policies, turnout.live):
        for name in public & set(exported_by(package.__name__)):
            assert getattr(turnout, name) is getattr(package, name)


def test_values_of_the_contract_are_importable_from_the_package() -> None:
    values = {"RoundOffer", "Selection", "RoundReport", "RoundRecord", "LateArrivals", "Guarantee", "CohortProblem"}
    live = {"Scheduler", "ClientStatus", "FleetStatus", "Reporter", "FleetReader", "Certificate", "Explanation"}
    assert values | live <= set(exported_by("turnout"))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'turnout' has no attribute 'Schedule'"):
        _ = turnout.Schedule  # type: ignore[attr-defined]


def test_dir_lists_the_scheduler_without_importing_it() -> None:
    code = "import sys, turnout; print('Scheduler' in dir(turnout), 'turnout.live' in sys.modules)"
    assert run_python(code).split() == ["True", "False"]
    code = "import sys, turnout; turnout.Scheduler; print('turnout.live' in sys.modules, 'sqlite3' in sys.modules)"
    assert run_python(code).split() == ["True", "True"]


def test_a_star_import_brings_every_public_name() -> None:
    code = "from turnout import *; import turnout; print(set(turnout.__all__) <= set(globals()))"
    assert run_python(code).strip() == "True"


def test_importing_turnout_brings_nothing_that_is_not_in_python() -> None:
    modules = "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = set(run_python(f"import sys, turnout; {modules}").split()) - set(
        run_python(f"import sys; {modules}").split()
    )
    assert loaded <= {"turnout", *sys.stdlib_module_names}
    assert "sqlite3" not in loaded


def test_a_scheduler_loads_only_what_it_needs() -> None:
    code = "import sys; from turnout import Scheduler; print(*(name for name in sys.modules if 'turnout' in name))"
    loaded = run_python(code).split()
    assert len(loaded) <= 95
    unneeded = ("fair_pace", "explain", "tracking", "audit", "reader", "serving.slots")
    assert [name for name in loaded for part in unneeded if part in name] == []


def test_policies_and_the_version_need_no_posix_locks() -> None:
    """On Windows, which has no fcntl, this much works."""
    code = "import sys; sys.modules['fcntl'] = None; import turnout; turnout.make_policy('fair-pace', 40); "
    code += "from turnout.cli import main; sys.argv = ['turnout', '--version']; main()"
    assert run_python(code).startswith(f"turnout {turnout.__version__} (")


def test_nothing_is_pickled_and_nothing_is_evaluated() -> None:
    forbidden = re.compile(
        r"^\s*(import|from) (pickle|cloudpickle|dill|marshal|shelve|yaml)\b"
        r"|torch\.load\(|allow_pickle=True|\beval\(|\bexec\(",
        flags=re.MULTILINE,
    )
    results = [f"{path.name}: {match.group()}" for path in SOURCES for match in forbidden.finditer(path.read_text())]
    assert not results


def test_compressed_data_and_arrays_are_read_only_with_limits() -> None:
    unlimited = re.compile(r"np\.load\(|gzip\.(open|decompress)\(|zlib\.decompress\(|tarfile\.open\([^)]*r:gz")
    results = [f"{path.name}: {match.group()}" for path in SOURCES for match in unlimited.finditer(path.read_text())]
    assert results == ["datasets.py: np.load("], "only the bundled digits are trusted"


def test_lower_bounds_exclude_versions_with_known_vulnerabilities() -> None:
    """CVE-2024-47874 (fastapi, starlette), 2025-43859 (h11), 2023-46308 (plotly), 2025-32434 (torch),
    2024-10096 (dask), 2025-47273 (setuptools)."""
    safe = {
        "fastapi": "0.115.3",
        "starlette": "0.40",
        "h11": "0.16",
        "plotly": "5.16",
        "torch": "2.6",
        "dask": "2024.8.3",
        "setuptools": "78.1.1",
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = [line for lines in project["project"]["optional-dependencies"].values() for line in lines]
    needed = [Requirement(line) for line in [*project["build-system"]["requires"], *extras]]
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    for name, version in safe.items():
        bounds = [Version(bound.version) for entry in needed if entry.name == name for bound in entry.specifier]
        assert bounds, name
        assert all(bound >= Version(version) for bound in bounds), name
    for pin in pins:
        (pinned,) = pin.specifier
        assert all(pinned.version in entry.specifier for entry in needed if entry.name == pin.name), pin


def exported_by(package: str) -> list[str]:
    return list(importlib.import_module(package).__all__)


def documented_api() -> dict[str, list[str]]:
    """Returns the public names by module, as docs/api.md lists them."""
    rows = re.findall(
        r"^\| `(turnout[a-z_.]*)` \|.*\| (.*) \|$", (ROOT / "docs/api.md").read_text(), flags=re.MULTILINE
    )
    return {module: re.findall(r"`(\w+)`", names) for module, names in rows}


@pytest.mark.parametrize("module", ["turnout.client", "turnout.kernel.cohort", "turnout.kernel.feasibility"])
def test_public_names_of_single_modules_exist(module: str) -> None:
    names = documented_api()[module]
    assert names
    assert [name for name in names if not hasattr(importlib.import_module(module), name)] == []


def test_documents_and_examples_use_only_public_names() -> None:
    documented = documented_api()
    documented["turnout"].append("__version__")
    texts = [path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))]
    code = "\n".join(block for text in texts for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    code += "\n".join(path.read_text() for path in (ROOT / "examples").rglob("*.py"))
    imports = re.findall(r"^\s*from (turnout[\w.]*) import (?:\(([^)]*)\)|(.*))$", code, flags=re.MULTILINE)
    assert len(imports) > 20
    for module, several, single in imports:
        for name in re.findall(r"\w+", re.sub(r"#.*|\bas \w+", "", several or single)):
            assert name in documented.get(module, []), f"{module}.{name}"


def test_the_package_has_no_module_that_only_developers_need() -> None:
    """Benchmarks, reference implementations and the browser driver are in `benchmarks/`, outside of the wheel."""
    names = {path.stem for path in SOURCES}
    references = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert {"browser", "harness", "plain_training"} <= references
    assert not [name for name in names if name in ("browser", "plain_training") or "literal" in name]
    imported = re.compile(r"^\s*(import|from) (benchmarks|tests)\b", flags=re.MULTILINE)
    assert [path.name for path in SOURCES if imported.search(path.read_text())] == []


def test_no_package_has_many_modules_and_no_module_many_lines() -> None:
    modules = Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    assert {str(package.relative_to(ROOT)): count for package, count in modules.items() if count > 12} == {}
    assert modules[ROOT / "src" / "turnout" / "kernel"] > 10
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in SOURCES}
    assert {path: count for path, count in lines.items() if count > 400} == {}


def test_the_map_of_the_house_has_every_room() -> None:
    package = ROOT / "src" / "turnout"
    rooms = {str(path.parent.relative_to(package)) for path in SOURCES if path.name == "__init__.py"} - {"."}
    rooms = {room for room in rooms if "templates" not in room}
    rows = re.findall(r"^\| `([a-z_/]+)` \| .+ \|$", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)
    assert sorted(rows) == sorted(rooms)


def test_policies_and_values_have_a_readable_repr() -> None:
    oort = turnout.make_policy("oort", 40, cohort_size=8)
    guarantee = "guarantee=Guarantee(0.1, accrual='always', counts='selected')"
    assert repr(oort) == "Oort(clients=40, cohort_size=8)"
    assert repr(turnout.FedCS(3, deadline=4.0)) == "FedCS(clients=3)"
    assert repr(turnout.RBCSF(40, guaranteed_rate=0.1)) == f"RBCSF(clients=40, cohort_size=8, {guarantee})"
    wrapped = turnout.WithGuarantee(oort, guaranteed_rate=0.1)
    assert repr(wrapped) == f"WithGuarantee({oort!r}, cohort_size=8, {guarantee})"
    assert repr(turnout.RBCSF.__new__(turnout.RBCSF)) == "RBCSF(clients=None)"  # as a debugger may show it
    assert repr(turnout.Guarantee([0.1, 0.2], max_owed=3)) == "Guarantee(<2 values>, max_owed=3)"
    assert repr(turnout.Guarantee("1/4", availability=[0.5, 0.5])) == "Guarantee('1/4', availability=<2 values>)"
    assert repr(turnout.ClientStatus(1.5, 3.0)) == "ClientStatus(free_cpu=1.5, bandwidth=3.0)"


def test_the_citation_names_this_version_and_license() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"\nversion: {turnout.__version__}\n" in citation
    assert f"\nlicense: {project['license'].removesuffix(' AND CC-BY-4.0')}\n" in citation
    assert "doi: 10.1109/TPDS.2020.3040887" in citation
