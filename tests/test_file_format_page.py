"""docs/file-format.md has every table and column of the files that turnout creates, and their formats."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

from documents import ROOT
from turnout.lab import RunPlan, RunStore, sweep
from turnout.live import Scheduler
from turnout.live._internals import KINDS

PAGE = (ROOT / "docs/file-format.md").read_text()


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def listed(heading: str) -> dict[str, set[str]]:
    """Returns the columns of each table that a section of the page lists."""
    tables: dict[str, set[str]] = {}
    table = ""
    for line in section(heading).splitlines():
        cells = line.split(" | ")
        if line.startswith("| ") and len(cells) == 3 and "`" in cells[1]:
            table = re.sub(r"[| `]", "", cells[0]) or table
            tables.setdefault(table, set()).update(re.findall(r"`(\w+)`", cells[1]))
    return tables


def stored(path: Path) -> tuple[dict[str, set[str]], int, int]:
    """Returns the columns of each table of a file, its application id and the version of its format."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        columns = {
            name: {column[1] for column in db.execute(f"PRAGMA table_info({name})")}
            for name in names
            if not name.startswith("sqlite_")
        }
        (application,), (version,) = (
            db.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
        )
    return columns, application, version


def check(heading: str, path: Path) -> None:
    columns, application, version = stored(path)
    assert listed(heading) == columns
    assert f"`application_id` 0x{application:X} " in section(heading)
    assert f", format {version}" in section(heading)
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{path.name}` |"))
    assert f" | {version} | " in row


def test_the_tables_of_a_fleet_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 1}, deadline=60.0) as scheduler:
        scheduler.choose(["phone"])
    check("A fleet", path)
    assert all(f'"{kind}"' in section("A fleet") for kind in KINDS)
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        keys = [key for (key,) in db.execute("SELECT key FROM meta")]
    assert all(f"`{key}`" in section("A fleet") for key in keys), keys


def test_the_tables_of_a_store_of_runs_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "runs.turnout"
    with RunStore(path) as store:
        sweep([RunPlan("random", 2)], store, workers=1)
    check("A store of runs", path)
