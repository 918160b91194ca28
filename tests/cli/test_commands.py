from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import click
import pytest
import typer

import turnout
from bench.test_live import FIGURES
from cli import in_process
from documents import check_command
from turnout.bench.choosing import MILLION, large_case, standard_cases
from turnout.bench.dashboard import ROUTES, DashboardFigures
from turnout.bench.sweeping import SweepFigures
from turnout.cli import bench
from turnout.cli.app import app
from turnout.cli.lab import demo
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


def run_here(*arguments: str) -> in_process.Done:
    """Runs the command in this process."""
    return in_process.run(*arguments, COLUMNS="120")


def test_the_version_names_the_kernel() -> None:
    assert run("--version").stdout == f"turnout {turnout.__version__} (compiled kernel)\n"
    assert run("--version", TURNOUT_KERNEL="numpy").stdout == f"turnout {turnout.__version__} (numpy kernel)\n"


def test_help_lists_the_commands_and_is_the_default() -> None:
    shown = run_here("--help").stdout
    for command in (
        "demo",
        "simulate",
        "compare",
        "reproduce",
        "train",
        "runs",
        "data",
        "fleet",
        "check",
        "bench",
        "--version",
    ):
        assert command in shown
    assert "Usage: turnout" in run_here().stdout


@pytest.mark.parametrize("command", ["demo", "simulate", "compare", "reproduce", "train", "check", "bench"])
def test_every_command_has_help(command: str) -> None:
    done = run_here(command, "--help")
    assert done.returncode == 0
    assert "--json" in done.stdout


def all_commands(group: click.Group, path: str = "turnout") -> Iterator[tuple[str, click.Command]]:
    """Yields every command with its path, groups included."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not command.hidden:
            yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from all_commands(command, f"{path} {name}")


def test_the_help_of_every_command_is_a_sentence_with_an_example() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    commands = dict(all_commands(group))
    assert len(commands) > 25
    for path, command in commands.items():
        first, *_, example = (command.help or "").strip().split("\n\n")
        assert first.endswith("."), path
        assert example.startswith(f"Example: {path}"), path
        check_command(shlex.split(example.removeprefix("Example: ")))  # its options and arguments exist
        shown = [param for param in command.params if not getattr(param, "hidden", False)]
        unexplained = [param.name for param in shown if not getattr(param, "help", None)]
        assert unexplained == [], path


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
    assert not [name for name in modules if name.startswith(("turnout.cli.bench", "turnout.lab.studies", "matplotlib"))]


def test_a_mistyped_command_is_corrected() -> None:
    done = run_here("fleeet")
    assert done.returncode == 2
    assert "No such command 'fleeet'. Did you mean 'fleet'?" in done.stderr
    assert "Did you mean" not in run_here("xyz").stderr


def test_an_invalid_setting_prints_one_line_and_exits_with_code_two() -> None:
    done = run("demo", TURNOUT_KERNEL="fortran")
    assert done.returncode == 2
    assert done.stderr.strip() == "error: TURNOUT_KERNEL must be 'numpy' or 'compiled', not 'fortran'"
    assert done.stdout == ""
    assert run_here("demo", "--rounds", "0").returncode == 2
    assert run_here("dance").returncode == 2


def test_the_demo_shows_the_time_saved_and_the_status_of_the_promise(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    done = run_here("demo", "--rounds", "40", "--seeds", "2", "--report", str(report))
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


def test_the_demo_prints_the_same_figures_as_json_on_both_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("demo", "--rounds", "40", "--seeds", "1", "--json", "--report", str(tmp_path / "report.html"))
    monkeypatch.setattr(demo, "_write_report", lambda *_: None)  # another test draws the figures
    rows = json.loads(run_here(*arguments).stdout)["rows"]
    with using_kernel("numpy"):
        assert rows == json.loads(in_process.run(*arguments, TURNOUT_KERNEL="numpy").stdout)["rows"]
    assert [row["policy"] for row in rows][:2] == ["FairPace, tolerance 2", "RBCS-F, weight 1"]
    by_policy = {row["policy"]: row for row in rows}
    assert by_policy["random"]["time_saved"] == 0
    assert rows[0]["time_saved"] > 0.2
    assert rows[0]["largest_shortfall_turns"] <= rows[0]["tolerance"] == 2
    assert rows[0]["status"] != "broken"
    assert by_policy["FedCS(3)"]["status"] == "broken"
    assert by_policy["FedCS(3)"]["largest_shortfall_turns"] == pytest.approx(40 * 0.15)


def test_the_demo_prints_its_table_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "matplotlib" else find(name, *rest)
    )
    done = run_here("demo", "--rounds", "20", "--seeds", "1", "--report", str(tmp_path / "r.html"))
    assert done.returncode == 0, done.stderr
    assert "FairPace, tolerance 2" in done.stdout
    assert "pip install 'turnout[plots]'" in done.stdout
    assert not (tmp_path / "r.html").exists()


SMALL_FLEET = ("--clients", "2000", "--cohort", "10", "--repeats", "1")


def measure_once(monkeypatch: pytest.MonkeyPatch, name: str, *figures_before: object) -> list[tuple[object, ...]]:
    """Lets a function of the benchmarks measure only at its first call; returns the arguments of all calls.

    Args:
        monkeypatch: Restores the function.
        name: The function.
        *figures_before: Figures; the function does not measure at all if they are given.
    """
    calls: list[tuple[object, ...]] = []
    figures: list[object] = list(figures_before)
    measure = getattr(bench, name)

    def measured(*arguments: object, **options: object) -> object:
        calls.append((*arguments, {name: option for name, option in options.items() if not callable(option)}))
        if not figures:
            figures.append(measure(*arguments, **options))
        return figures[0]

    monkeypatch.setattr(bench, name, measured)
    return calls


def test_bench_prints_ratios_for_every_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measure_once(monkeypatch, "_measure_cases")
    measure_once(monkeypatch, "verdicts")
    for command in (("bench",), ("bench", "choose"), ("bench", "choosing")):
        done = run_here(*command, *SMALL_FLEET)
        assert done.returncode == 0, done.stderr
        for text in ("mixed", "settled", "mostly cold", "cold", "all ties", "heavy-tailed", "adverse", "mixed (numpy)"):
            assert text in done.stdout
        assert "/ copy" in done.stdout
        assert "import of turnout / import of numpy" in done.stdout
    figures = json.loads(run_here("bench", *SMALL_FLEET, "--json").stdout)
    assert figures["kernel"] == "compiled"
    assert {row["clients"] for row in figures["rounds"]} == {2000}
    assert all(row["copies"] > 0 and row["reads"] > 0 and row["bytes_per_client"] > 100 for row in figures["rounds"])
    assert all(target["met"] == (target["figure"] <= target["most"]) for target in figures["targets"])
    assert measured == [(standard_cases(2000, 10), 1, {})] * 4


@pytest.mark.parametrize("name", ["choose", "live", "year", "sweep", "training", "oort", "dashboard", "flower"])
def test_every_benchmark_has_help_with_an_example(name: str) -> None:
    done = run_here("bench", name, "--help")
    assert done.returncode == 0
    assert "--json" in done.stdout
    assert f"Example: turnout bench {name}" in done.stdout


LIVE = replace(FIGURES, clients=2000, cohort=10)
SWEEP = SweepFigures(runs=6, workers=1, sweep_seconds=1.5, run_seconds=0.2, single_seconds=1.2)
ANSWERS = {f"/api/{name}": 0.01 * (index + 1) for index, name in enumerate(ROUTES)}
DASHBOARD = DashboardFigures(1000, 100, 600_000, 0.9, 1.1, ANSWERS, ANSWERS, 90_000_000)
#: Whether the command measures; the tests of the benchmarks measure in any case.
MEASURES = pytest.mark.parametrize("measures", [False, pytest.param(True, marks=pytest.mark.thorough)])


@MEASURES
def test_bench_live_prints_its_figures_and_whether_each_target_is_met(
    monkeypatch: pytest.MonkeyPatch, measures: bool
) -> None:
    measured = measure_once(monkeypatch, "measure_live", *([] if measures else [LIVE]))
    figures = json.loads(run_here("bench", "live", *SMALL_FLEET, "--json").stdout)
    assert figures["clients"] == 2000
    assert figures["ratio"] == pytest.approx(figures["live_seconds"] / figures["kernel_seconds"])
    assert (figures["most"], figures["met"]) == (2, figures["ratio"] <= 2)
    assert figures["open_seconds"] == figures["open"]["wall"] > 0
    assert [target["most"] for target in figures["targets"]] == [5, 2, 1, 1, 0.5, 2]
    assert all(target["met"] == (target["figure"] <= target["most"]) for target in figures["targets"])
    done = run_here("bench", "live", *SMALL_FLEET)
    assert done.returncode == 0
    for text in ("A live fleet of 2,000 clients", "registering all clients", "forgetting a client", "Targets", "met"):
        assert text in done.stdout
    assert measured == [({"clients": 2000, "cohort": 10, "repeats": 1},)] * 2


@MEASURES
def test_bench_sweep_prints_runs_per_second(monkeypatch: pytest.MonkeyPatch, measures: bool) -> None:
    measured = measure_once(monkeypatch, "measure_sweep", *([] if measures else [SWEEP]))
    arguments = ("bench", "sweep", "--seeds", "1", "--workers", "1")
    figures = json.loads(run_here(*arguments, "--json").stdout)
    assert figures["runs"] == 6
    assert figures["runs_per_second"] == pytest.approx(6 / figures["sweep_seconds"])
    assert figures["speedup"] == pytest.approx(figures["single_seconds"] / figures["sweep_seconds"])
    assert "6 runs of 500 rounds with 1 worker processes" in run_here(*arguments).stdout
    assert measured == [({"seeds": 1, "workers": 1},)] * 2


@MEASURES
def test_bench_dashboard_prints_the_first_answer_of_each_page(monkeypatch: pytest.MonkeyPatch, measures: bool) -> None:
    measured = measure_once(monkeypatch, "measure_dashboard", *([] if measures else [DASHBOARD]))
    done = run_here("bench", "dashboard", "--clients", "1000", "--cohort", "10", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    assert "First answers: /api/overview" in done.stdout
    assert "later answers come from the cache" in done.stdout
    assert measured == [({"clients": 1000, "cohort": 10, "repeats": 1},)]


def test_bench_measures_the_large_fleet_only_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measure_once(monkeypatch, "_measure_cases", [])
    measure_once(monkeypatch, "verdicts", [])
    for arguments in ((), ("--clients", "2000"), ("--cohort", "10")):
        assert run_here("bench", "choose", "--repeats", "1", "--json", *arguments).returncode == 0
    assert [cases for cases, *_ in measured] == [
        [*standard_cases(MILLION, None), large_case()],
        standard_cases(2000, None),
        standard_cases(MILLION, 10),
    ]


def test_bench_dashboard_prints_json_and_no_memory_where_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = replace(DASHBOARD, memory_bytes=None)
    measure_once(monkeypatch, "measure_dashboard", figures)
    assert json.loads(run_here("bench", "dashboard", "--json").stdout) == asdict(figures)
    assert "of memory" not in run_here("bench", "dashboard").stdout


def test_bench_training_needs_an_existing_device() -> None:
    done = run_here("bench", "training", "--device", "tpu")
    assert done.returncode == 2
    assert "there is no device 'tpu': use cpu, cuda" in done.stderr


def test_options_of_bench_before_a_sub_command_are_an_error_that_names_the_right_order() -> None:
    done = run_here("bench", "--clients", "2000", "--json", "oort")
    assert done.returncode == 2
    assert "error: --clients, --json must follow the sub-command: turnout bench oort --clients" in done.stderr
    done = run_here("bench", "--device", "cuda")
    assert done.returncode == 2
    assert "--device is an option of turnout bench training" in done.stderr
