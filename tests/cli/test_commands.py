from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import turnout
from cli import in_process
from documents import check_command
from turnout.cli.studies import demo
from turnout.kernel.backend import using_kernel


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a new process."""
    return subprocess.run(
        [sys.executable, "-m", "turnout", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "120", "NO_COLOR": "1", **environment},
    )


def test_the_version_names_the_kernel() -> None:
    assert run("--version").stdout == f"turnout {turnout.__version__} (compiled kernel)\n"
    assert run("--version", TURNOUT_KERNEL="numpy").stdout == f"turnout {turnout.__version__} (numpy kernel)\n"


def test_the_commands_are_few() -> None:
    every = [command for _, command in in_process.all_commands()]
    assert sum(not isinstance(command, click.Group) for command in every) <= 40
    assert sum(isinstance(param, click.Option) for command in every for param in command.params) <= 200


def test_the_help_of_every_command_is_a_sentence_with_an_example() -> None:
    _, *commands = in_process.all_commands()
    assert len(commands) > 25
    for path, command in commands:
        first, *_, example = (command.help or "").strip().split("\n\n")
        assert first.endswith("."), path
        assert example.startswith(f"Example: {path}"), path
        check_command(shlex.split(example.removeprefix("Example: ")))  # its options and arguments exist
        shown = [param for param in command.params if not getattr(param, "hidden", False)]
        assert [param.name for param in shown if not getattr(param, "help", None)] == [], path


def test_a_command_imports_only_what_it_needs() -> None:
    program = """
import sys
from turnout.cli.app import app
from turnout.kernel.backend import using_kernel
app(["verify", "--help"], standalone_mode=False)
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = done.stdout.splitlines()[-1].split()
    assert "turnout.cli.fleet.certify" in modules
    assert not [name for name in modules if name.startswith(("turnout.lab", "turnout.dashboard", "matplotlib"))]


def test_a_mistyped_command_is_corrected() -> None:
    done = in_process.run("fleeet")
    assert done.returncode == 2
    assert "No such command 'fleeet'. Did you mean 'fleet'?" in done.stderr
    assert "Did you mean" not in in_process.run("xyz").stderr


def test_an_invalid_setting_prints_one_line_and_exits_with_code_two() -> None:
    done = run("demo", TURNOUT_KERNEL="fortran")
    assert done.returncode == 2
    assert done.stderr.strip() == "error: TURNOUT_KERNEL must be 'numpy' or 'compiled', not 'fortran'"
    assert done.stdout == ""
    assert in_process.run("demo", "--rounds", "0").returncode == 2
    assert in_process.run("dance").returncode == 2


def test_the_demo_shows_the_time_saved_and_the_status_of_the_promise(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    done = in_process.run("demo", "--rounds", "40", "--seeds", "2", "--report", str(report))
    assert done.returncode == 0, done.stderr
    for text in (
        "40 rounds",
        "mean of 2 seeds",
        "random",
        "FairPace, tolerance 2",
        "RBCS-F, weight 20",
        "FedCS(3)",
        "least share of",
        "largest shortfall",
        "behind ≤ 2",
        "broken",
    ):
        assert text in done.stdout
    page = report.read_text()
    assert "turnout demo --seeds 2 --rounds 40" in page
    assert page.count("<svg") == 4
    assert "Use FairPace, tolerance 2: it is the only policy" in page
    assert "FedCS(3) has shorter rounds" in page
    assert re.search(r'data-label="mean round">\d+\.\d\d ± \d+\.\d\d s</td>', page)


def test_the_demo_prints_the_same_json_on_both_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("demo", "--rounds", "40", "--seeds", "1", "--json", "--report", str(tmp_path / "report.html"))
    monkeypatch.setattr(demo, "_write_report", lambda *_: None)  # another test draws the figures
    rows = json.loads(in_process.run(*arguments).stdout)["policies"]
    with using_kernel("numpy"):
        assert rows == json.loads(in_process.run(*arguments, TURNOUT_KERNEL="numpy").stdout)["policies"]
    assert [row["policy"] for row in rows][:2] == ["FairPace, tolerance 2", "RBCS-F, weight 1"]
    by_policy = {row["policy"]: row for row in rows}
    assert by_policy["random"]["time_saved"]["mean"] == 0
    assert rows[0]["time_saved"]["mean"] > 0.2
    assert rows[0]["largest_shortfall"] <= rows[0]["tolerance"] == 2
    assert rows[0]["status"] != "broken"
    assert by_policy["FedCS(3)"]["status"] == "broken"
    assert by_policy["FedCS(3)"]["largest_shortfall"] == pytest.approx(40 * 0.15)


def test_the_demo_prints_its_table_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest)
    )
    done = in_process.run("demo", "--rounds", "20", "--seeds", "1", "--report", str(tmp_path / "r.html"))
    assert done.returncode == 0, done.stderr
    assert "FairPace, tolerance 2" in done.stdout
    assert "pip install 'turnout[plots]'" in done.stdout
    assert not (tmp_path / "r.html").exists()
