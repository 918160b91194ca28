from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import turnout

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def test_the_public_face_is_small_and_sorted() -> None:
    assert turnout.__all__ == sorted(turnout.__all__, key=lambda name: (not name.isupper(), name))
    assert len(turnout.__all__) <= 12
    assert all(hasattr(turnout, name) for name in turnout.__all__)


def test_importing_turnout_brings_numpy_and_nothing_heavy() -> None:
    code = "import sys, turnout; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert "numpy" in loaded
    assert not loaded & {
        "torch",
        "flwr",
        "fastapi",
        "matplotlib",
        "typer",
        "rich",
        "click",
        "pandas",
        "scipy",
        "sqlite3",
    }


def test_nothing_is_pickled_or_evaluated() -> None:
    forbidden = re.compile(
        r"^\s*(import|from) (pickle|cloudpickle|dill|marshal|shelve|yaml)\b"
        r"|torch\.load\(|allow_pickle=True|\beval\(|\bexec\(",
        flags=re.MULTILINE,
    )
    found = [f"{path.name}: {match.group()}" for path in SOURCES for match in forbidden.finditer(path.read_text())]
    assert found == []


def test_the_package_has_no_module_that_only_developers_need() -> None:
    """Reference implementations and the browser driver are in `benchmarks/`, which the wheel does not contain."""
    names = {path.stem for path in SOURCES}
    references = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert {"browser", "literal_oort", "literal_rbcsf", "plain_training"} <= references
    assert not [name for name in names if name in ("browser", "plain_training") or "literal" in name]
    imported = re.compile(r"^\s*(import|from) (benchmarks|tests)\b", flags=re.MULTILINE)
    assert [path.name for path in SOURCES if imported.search(path.read_text())] == []


def test_it_installs_and_chooses_without_a_compiler(tmp_path: Path) -> None:
    pytest.importorskip("Cython")
    copy, target = tmp_path / "copy", tmp_path / "installed"
    shutil.copytree(
        ROOT,
        copy,
        ignore=shutil.ignore_patterns(".git", ".venv", "build", "*.so", "*.egg-info", ".*_cache", ".hypothesis"),
    )
    environment = {**os.environ, "CC": "/nowhere/cc", "CXX": "/nowhere/c++"}
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "--no-deps", "--no-build-isolation", "--no-index", "--target", str(target), str(copy)],
        env=environment,
        check=True,
        capture_output=True,
    )
    assert not list(target.rglob("_fast*.so"))
    assert {path.name for path in target.iterdir() if path.suffix != ".dist-info"} == {"bin", "turnout"}
    source = ROOT / "src" / "turnout"
    modules = {path.relative_to(source) for path in source.rglob("*.py")}
    assert {path.relative_to(target / "turnout") for path in (target / "turnout").rglob("*.py")} == modules
    page = {path.name for path in (ROOT / "src" / "turnout" / "dashboard" / "static").iterdir()}
    assert {path.name for path in (target / "turnout" / "dashboard" / "static").iterdir()} == page
    done = subprocess.run(
        [sys.executable, "-m", "turnout", "--version"],
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == f"turnout {turnout.__version__} (numpy kernel)"
