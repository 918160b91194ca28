"""Tables show every digit at any width, and without a terminal."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from cli.in_process import run
from turnout.cli.tables import print_table
from turnout.live import Scheduler

COMMANDS = (
    "fleet status fleet.turnout",
    "fleet history fleet.turnout phone-with-a-long-name-07",
    "fleet certify fleet.turnout --all",
    "fleet explain fleet.turnout phone-with-a-long-name-03",
    "fleet doctor fleet.turnout",
    "fleet replay fleet.turnout --draws 2",
    "fleet tokens list fleet.turnout",
    "simulate fair-pace rbcsf:speed_weight=5 random --rounds 4 --seeds 2 --workers 1 --store s.turnout",
    "simulate --rounds 40 --concurrency 4 --set guaranteed_rate=0.01",
    "runs show s.turnout",
    "runs show s.turnout 1",
    "policies",
    "policies fair-pace",
    "worlds paper",
    "data list",
    "check",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("tables"), random.Random(0)
    with Scheduler.open(folder / "fleet.turnout", settings={"cohort_size": 3}, deadline=2000.0) as scheduler:
        for _ in range(12):
            for client in scheduler.choose([f"phone-with-a-long-name-{n:02}" for n in range(8)]):
                scheduler.report(client, rng.uniform(1000, 1999))
            scheduler.close_round()
    assert run("fleet", "tokens", "create", folder / "fleet.turnout", "--role", "viewer").returncode == 0
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_shows_the_numbers_at_every_width(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    wide = run(*command.split(), COLUMNS="400")
    assert wide.returncode in (0, 1), wide.stderr
    assert "…" not in wide.stdout
    for width in ("80", "40"):
        narrow = run(*command.split(), COLUMNS=width)
        assert "…" not in narrow.stdout
        if width == "80":
            assert max(map(len, narrow.stdout.splitlines())) <= max(
                80, *(len(line) for line in _sentences(wide.stdout))
            )
        folded = "".join(re.split(r"[^\d]+", narrow.stdout))
        assert sorted(folded) == sorted("".join(re.split(r"[^\d]+", wide.stdout))), (width, narrow.stdout)


def _sentences(text: str) -> list[str]:
    return [line for line in text.splitlines() if not re.search("[│┃─━]", line)] or [""]


ROWS: Any = [("a-client", "1,234.56 ± 7.89", "x" * 30, "98.7"), ("b", "0.10 (0.00 to 0.48)", "y z", "")]


@pytest.mark.parametrize(("width", "border"), [(160, "│"), (60, "─"), (30, "  value, s: 1,234.56 ± 7.89")])
def test_the_layout_depends_on_the_width(
    width: int, border: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(("client", "value, s>", "note", "cost>"), ROWS, title="t")
    shown = capsys.readouterr().out
    assert border in shown
    assert sorted(re.findall(r"\d", shown)) == sorted(re.findall(r"\d", str(ROWS)))


def test_without_a_terminal_a_table_has_the_width_that_it_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(("client", *(f"c{n}>" for n in range(12))), [("a", *("123,456.78 ± 9.01",) * 12)])
    assert capsys.readouterr().out.count("123,456.78 ± 9.01") == 12


def test_optional_columns_are_left_out_before_numbers_are_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "45")
    print_table(("client", "value, s>", "note", "cost>"), ROWS, optional=("cost>",))
    shown = capsys.readouterr().out
    assert "98.7" not in shown or "Not shown" not in shown
    monkeypatch.setenv("COLUMNS", "54")
    print_table(("client", "value, s>", "note", "cost>"), ROWS, optional=("note", "cost>"))
    shown = capsys.readouterr().out
    assert "Not shown, for lack of width: note." in shown
    assert "98.7" in shown
