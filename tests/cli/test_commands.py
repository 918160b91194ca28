from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import turnout


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a user runs it."""
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


def test_help_lists_the_commands_and_no_command_is_help() -> None:
    shown = run("--help").stdout
    for command in ("demo", "bench", "--version"):
        assert command in shown
    assert "Usage: turnout" in run().stdout


@pytest.mark.parametrize("command", ["demo", "bench"])
def test_every_command_has_help(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert "--json" in done.stdout


def test_a_wrong_setting_is_one_line_and_exit_code_two() -> None:
    done = run("demo", TURNOUT_KERNEL="fortran")
    assert done.returncode == 2
    assert done.stderr.strip() == "error: TURNOUT_KERNEL must be 'numpy' or 'compiled', not 'fortran'"
    assert run("demo", "--rounds", "0").returncode == 2
    assert run("dance").returncode == 2


def test_the_demo_shows_what_was_saved_and_who_was_least_chosen() -> None:
    shown = run("demo", "--rounds", "120").stdout
    for word in ("120 rounds", "random", "RBCS-F, weight 20", "time saved", "least chosen", "worst debt", "holds"):
        assert word in shown


def test_the_demo_tells_the_same_as_json_and_on_both_kernels() -> None:
    rows = json.loads(run("demo", "--rounds", "120", "--json").stdout)
    assert rows == json.loads(run("demo", "--rounds", "120", "--json", TURNOUT_KERNEL="numpy").stdout)
    assert [row["policy"] for row in rows] == ["random", *(f"RBCS-F, weight {w}" for w in (1, 5, 20))]
    means = [row["mean_round_seconds"] for row in rows]
    assert means == sorted(means, reverse=True)
    assert rows[0]["time_saved"] == 0
    assert all(row["certificate_holds"] for row in rows)


def test_another_seed_is_another_demo() -> None:
    one, other = (run("demo", "--rounds", "20", "--json", "--seed", seed).stdout for seed in "12")
    assert json.loads(one) != json.loads(other)


def test_the_demo_draws(tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    assert run("demo", "--rounds", "20", "--figure", str(picture)).returncode == 0
    assert "RBCS-F, weight 20" in picture.read_text()
    first = picture.read_bytes()
    run("demo", "--rounds", "20", "--figure", str(picture))
    assert picture.read_bytes() == first


def test_a_picture_that_cannot_be_drawn_is_an_error(tmp_path: Path) -> None:
    done = run("demo", "--rounds", "5", "--figure", str(tmp_path / "nowhere" / "demo.svg"))
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot draw into")
    done = run("demo", "--rounds", "5", "--figure", str(tmp_path / "demo.docx"))
    assert done.returncode == 2
    assert "docx" in done.stderr


def test_bench_prints_ratios_for_every_condition() -> None:
    done = run("bench", "--clients", "5000", "--cohort", "10", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    for word in ("mixed", "settled", "mostly cold", "cold", "all ties", "heavy-tailed", "adverse", "mixed (numpy)"):
        assert word in done.stdout
    assert "/ copy" in done.stdout
    assert "import of turnout / import of numpy" in done.stdout


def test_bench_tells_the_same_as_json() -> None:
    told = json.loads(run("bench", "--clients", "2000", "--cohort", "10", "--repeats", "1", "--json").stdout)
    assert told["kernel"] == "compiled"
    assert {row["clients"] for row in told["rounds"]} == {2000}
    assert all(row["copies"] > 0 and row["reads"] > 0 and row["bytes_per_client"] > 100 for row in told["rounds"])
    assert all(target["met"] == (target["figure"] <= target["most"]) for target in told["targets"])
