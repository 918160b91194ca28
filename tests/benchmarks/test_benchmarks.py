"""Every benchmark runs in a small size and prints its tables; nothing here depends on how fast it is."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import BENCHMARKS, app, main
from benchmarks.browser import PROGRAMS
from benchmarks.choose import LARGE_TARGET, TARGETS, Case, choose, standard_cases
from benchmarks.dashboard import PAGES, dashboard
from benchmarks.fleets import CONDITIONS, PACED_CONDITIONS
from benchmarks.flower_accuracy import SELECTIONS
from benchmarks.harness import MILLION, Result, Target, alternate, print_result, served
from benchmarks.live import YEAR, year
from documents import check_command

ROOT = Path(__file__).parents[2]
LIVE_FIGURES = ["a live round", "the same round in memory", "live round / in memory", "reports in", "size of the file"]
LIVE_TARGETS = ["registering", "opening, 49", "snapshot", "forgetting a client: first", "forgetting", "live round /"]
SERVICE_FIGURES = ["seconds until", "CPU time", "memory for one", "file", "memory for all"]
#: For each benchmark: its options, the number of its rows, the beginnings of its figures, and those of its targets.
SMALL: Mapping[str, tuple[dict[str, Any], int, list[str], list[str]]] = {
    "choose": (
        {"clients": 2000, "cohort": 10, "repeats": 1},
        14,
        [],
        ["rbcsf, mixed, N = 2,000, m = 10, compiled: bytes"],
    ),
    "imports": ({"repeats": 1}, 3, [], ["import of turnout / import of numpy"]),
    "live": ({"clients": 2000, "cohort": 10, "repeats": 1}, 0, LIVE_FIGURES, LIVE_TARGETS),
    "year": ({"clients": 20, "cohort": 3, "rounds": 20}, 10, ["growth", "after a year"], []),
    "slots": (
        {"clients": 1000, "slots": 4, "turns": 20, "repeats": 1},
        0,
        ["a turn", "size of the file", "most turns"],
        [
            *(f"decision, 1,000 idle clients, {condition}" for condition in PACED_CONDITIONS),
            "check-in that is given a turn, 1,000 clients",
            "the first one after opening, 1,000 clients",
        ],
    ),
    "service": (
        {"clients": [1000, 10], "calls": 20, "connections": 2, "repeats": 1},
        12,
        [f"{size} clients: {what}" for size in ("1,000", "10") for what in SERVICE_FIGURES],
        [
            f"{size} clients, {call}"
            for size in ("1,000", "10")
            for call in ("check-in, a", "report in", "check-in, g", "CPU time of the start")
        ],
    ),
    "postgres": ({"clients": 200, "repeats": 2}, 7, [], ["median report", "reports per second", "opening /"]),
    "takeover": ({"kills": 1, "silences": 1}, 2, [], ["median after", "longest after kill", "longest after silence"]),
    "check-ins": ({"devices": 12, "slots": 3, "turns": 30, "connected": True}, 2, [], []),
    "dashboard": (
        {"clients": 1000, "cohort": 10, "rounds": 4, "repeats": 1, "browser": False},
        len(PAGES),
        ["until the server", "until it has read", "memory", "size"],
        [],
    ),
    "flower": (
        {"nodes": 12, "cohort": 3, "repeats": 1},
        9,
        [],
        ["later, evaluated"] * 2 + ["later, not evaluated"] * 2 + ["first, queried"] * 2 + ["cold starts"] * 2,
    ),
    "flower-accuracy": ({"seeds": 1, "rounds": 20}, len(SELECTIONS), [], []),
    "sweep": ({"seeds": 1, "workers": 1, "rounds": 20}, 0, ["runs"], ["the whole sweep"]),
    "training": ({"datasets": ["digits"], "repeats": 1}, 1, [], ["digits: plain loop / round"]),
    "own-models": ({"models": ["MLP"], "items": 12, "clients": [2], "repeats": 1}, 1, [], []),
}
NAMES = [benchmark.__name__.replace("_", "-") for benchmark in BENCHMARKS]


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_runs_and_prints_its_tables(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name in ("flower", "flower-accuracy"):
        pytest.importorskip("flwr")
    options, rows, figures, targets = SMALL[name]
    result = BENCHMARKS[NAMES.index(name)](**options)
    assert len(result.rows) == rows
    assert all(list(row) == list(result.rows[0]) for row in result.rows)
    assert_begin([figure for figure, _, _ in result.figures], figures)
    assert_begin([target.name for target in result.targets], targets)
    capsys.readouterr()
    print_result(result, as_json=False)
    shown = capsys.readouterr().out
    assert shown.startswith(result.title)
    assert shown.count("┏") == len(result.tables()) > 0


def assert_begin(texts: list[str], beginnings: list[str]) -> None:
    assert len(texts) == len(beginnings)
    for text, beginning in zip(texts, beginnings, strict=True):
        assert text.startswith(beginning)


@pytest.mark.thorough
@pytest.mark.skipif(not any(map(shutil.which, PROGRAMS)), reason="Chromium is not installed: apt install chromium")
def test_the_pages_of_the_dashboard_are_opened_in_a_browser() -> None:
    result = dashboard(clients=1000, cohort=10, rounds=4, repeats=1)
    assert [row["page"] for row in result.rows] == list(PAGES)
    assert min(row["drawn, s"] for row in result.rows) > 0
    assert [target.name for target in result.targets] == ["first paint, seconds", "numbers of the first page, seconds"]


# The command line and the documentation


@pytest.mark.thorough
def test_the_help_of_every_benchmark_is_a_sentence_with_an_example() -> None:
    for name, benchmark in zip(NAMES, BENCHMARKS, strict=True):
        shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "300"})
        assert shown.exit_code == 0
        first, *_, example = inspect.cleandoc(benchmark.__doc__ or "").split("\n\n")
        assert first.endswith(".")
        assert first in shown.stdout
        assert example.startswith(f"Example: python -m benchmarks {name} ")
        check_command(shlex.split(example.removeprefix("Example: ")))  # its options exist
    assert all(name in CliRunner().invoke(app, ["--help"]).stdout for name in NAMES)


def test_the_page_of_benchmarks_has_a_command_for_each_of_them() -> None:
    page = (ROOT / "docs" / "results" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`python -m benchmarks (\w[\w-]*)", page)) == set(NAMES) == set(SMALL)


def test_the_command_prints_json_on_request() -> None:
    done = CliRunner().invoke(app, ["--json", "sweep", "--seeds", "1", "--workers", "1", "--rounds", "20"])
    printed = json.loads(done.stdout)
    assert printed["title"] == "6 runs of 20 rounds with 1 worker processes"
    assert (printed["figures"][0]["unit"], printed["targets"][0]["bound"]) == ("per second", "at most 5")


def test_an_impossible_setting_gets_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "flower", "--nodes", "12", "--cohort", "13"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: cohort must be at most the number of nodes, 12, got 13\n"


# What all of them share


def test_tasks_take_turns_after_a_warm_up() -> None:
    calls: list[str] = []
    ticks = iter(range(100))
    tasks: dict[str, Callable[[], object]] = {name: lambda name=name: calls.append(name) for name in "ab"}  # type: ignore[misc]
    assert alternate(tasks, 2, lambda: float(next(ticks))) == {"a": 1.0, "b": 1.0}
    assert calls == ["a", "b"] * 3


def test_a_target_is_an_upper_or_a_lower_bound() -> None:
    assert Target("copies", 1.3, 1.3).met
    assert not Target("copies", 1.31, 1.3).met
    assert Target("speed-up", 20.0, 20.0, is_minimum=True).met
    assert not Target("speed-up", 19.9, 20.0, is_minimum=True).met


def test_a_table_rounds_floats_and_separates_thousands(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"name": "a", "count": 12345, "value": 0.12345}, {"name": "b", "count": 1, "value": None}]
    figures = [("rate", 1234.5, "per second"), ("time", 12.345, "s"), ("ratio", 1.2345, "")]
    print_result(Result("A title", rows, figures, [Target("t", 0.5, 2.0)]), as_json=False)
    shown = capsys.readouterr().out
    for text in ("12,345", "0.123 ", "1,234 ", "12.3 ", "1.23 ", "at most 2", "yes"):
        assert text in shown
    assert "None" not in shown


@pytest.mark.thorough
def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    not_started = pytest.raises(RuntimeError, match=r"turnout fleet dashboard did not start: error: .*nothing")
    with not_started, served("dashboard", tmp_path / "nothing"):
        pass


# What single benchmarks measure


def test_targets_of_a_round_apply_only_to_a_million_clients() -> None:
    cases = standard_cases(MILLION)
    compiled = {(case.policy, case.condition, case.cohort): case.most for case in cases if case.kernel == "compiled"}
    assert {key: most for key, most in compiled.items() if most is not None} == TARGETS
    assert [case.most for case in cases if case.kernel == "numpy"] == [6.0]
    assert len(compiled) == 2 * sum(map(len, CONDITIONS.values()))
    assert all(case.most is None for case in standard_cases(5000))


def test_ten_million_clients_are_measured_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that grows twice as fast as the read of its arrays misses the target of growth."""
    measured: list[Case] = []

    def measure(case: Case, repeats: int) -> dict[str, Any]:
        assert repeats == 3
        measured.append(case)
        milliseconds = 200.0 if case.clients > MILLION else 10.0
        return {"round, ms": milliseconds, "/ copy": 3.1, "/ read": milliseconds / case.clients, "bytes a client": 118}

    monkeypatch.setattr("benchmarks.choose.measure_round", measure)
    targets = {target.name: target for target in choose(repeats=3).targets}
    assert measured == [
        *standard_cases(MILLION),
        Case("rbcsf", "mixed", 10 * MILLION, 100_000, "compiled", LARGE_TARGET),
    ]
    assert targets["growth from 1e6 to 1e7 clients / growth of the read"].figure == pytest.approx(2)
    assert not targets[f"{measured[-1]}: copies"].met
    assert targets[f"{measured[-1]}: bytes a client"].met
    measured.clear()
    choose(clients=2000, repeats=3)
    assert measured == standard_cases(2000)


@pytest.mark.thorough
def test_a_file_with_retention_stops_growing_and_one_without_does_not() -> None:
    bounded, growing = (
        year(clients=20, cohort=3, rounds=120, keep_rounds=keep, keep_offers=keep and 5) for keep in (15, None)
    )
    sizes = [row["size of the file, MB"] for row in growing.rows]
    assert [row["rounds"] for row in growing.rows] == list(range(12, 121, 12))
    assert bounded.rows[-1]["size of the file, MB"] < sizes[-1]
    (_, growth, _), (_, after_year, _) = growing.figures
    assert growth == pytest.approx((sizes[9] - sizes[4]) / 60 * 1e3)
    assert after_year == pytest.approx(sizes[9] + growth / 1e3 * (YEAR - 120))
