"""Stored files of the present formats (write.py) show the same figures, and are continued, certified and examined."""

from __future__ import annotations

import json
import re
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from releases.write import CLIENTS, STORED, fleet_figures, run_figures, write_files
from turnout import FleetReader, Reporter, Scheduler
from turnout.errors import StoreError
from turnout.lab import RoundColumns, RunStore
from turnout.live import certify
from turnout.live._internals import examine, verify

EXPECTED: dict[str, Any] = json.loads((STORED / "expected.json").read_text(encoding="utf-8"))
FLEETS = ("fleet", "slots")


def copy_of(name: str, folder: Path) -> Path:
    return Path(shutil.copy(STORED / name, folder / name))


def test_the_script_writes_the_same_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", socket.gethostname)  # is restored afterwards
    write_files(tmp_path / "new")
    assert {path.name for path in (tmp_path / "new").iterdir()} == {path.name for path in STORED.iterdir()}
    assert json.loads((tmp_path / "new" / "expected.json").read_text()).keys() == EXPECTED.keys()
    assert b"on host stored" in (tmp_path / "new" / "fleet.turnout").read_bytes()


@pytest.mark.parametrize("name", FLEETS)
def test_a_fleet_shows_the_figures_that_it_had_and_is_not_changed_by_reading(name: str, folder: Path) -> None:
    path = copy_of(f"{name}.turnout", folder)
    before = path.read_bytes()
    assert json.loads(json.dumps(fleet_figures(path))) == EXPECTED[name]
    assert path.read_bytes() == before


def test_a_fleet_with_rounds_is_continued(folder: Path) -> None:
    path, expected = copy_of("fleet.turnout", folder), EXPECTED["fleet"]
    with Scheduler.open(path) as scheduler:
        opened, *others = scheduler.choose([])
        with Reporter(path) as reporter:
            reporter.report(opened, 2.0)
        scheduler.report_many(dict.fromkeys(others, 3.0))
        scheduler.close_round()
        cohort = scheduler.choose(CLIENTS[:7])
        scheduler.report_many(dict.fromkeys(cohort, 4.0))
        assert scheduler.close_round().round == expected["round"] + 2
    with Scheduler.open(path) as scheduler:
        assert scheduler.certificate().turns.sum() == sum(expected["turns"]) + 1 + len(others) + len(cohort)


def test_a_fleet_without_rounds_is_continued(folder: Path) -> None:
    path, expected = copy_of("slots.turnout", folder), EXPECTED["slots"]
    with Scheduler.open(path) as scheduler:
        (running,) = scheduler.running()
        scheduler.report(running.id, 5.0)
        given = scheduler.fill(CLIENTS)
        for turn in given:
            scheduler.report(turn.id, 2.0)
    with Scheduler.open(path) as scheduler:
        scheduler.fill(
            CLIENTS
        )  # counts the turns that have ended: one was reported in the stored file, one was running
        assert scheduler.certificate().turns.sum() == sum(expected["turns"]) + 2 + len(given)


@pytest.mark.parametrize("name", FLEETS)
def test_a_fleet_is_certified_and_examined(name: str, folder: Path) -> None:
    path, expected = copy_of(f"{name}.turnout", folder), EXPECTED[name]
    written = certify(path, folder / "certificate.json", folder / "certificate.jsonl")
    turns = dict(zip(expected["clients"], expected["turns"], strict=True))
    assert {client: counts["turns"] for client, counts in written["clients"].items()} == turns
    assert [finding for finding in examine(path) if finding.ok is False] == []


def test_a_certificate_is_verified_unless_it_was_changed_or_has_a_later_format() -> None:
    certificate, record = ((STORED / f"certificate.{suffix}").read_bytes() for suffix in ("json", "jsonl"))
    assert verify.differences(certificate, record.splitlines(keepends=True)) == []
    forged = record.replace(CLIENTS[0].encode(), b"another", 1)
    assert verify.differences(certificate, forged.splitlines(keepends=True))
    later = re.sub(b'"format": ?[0-9]+', b'"format": 99', record, count=1)
    (problem,) = verify.differences(certificate, later.splitlines(keepends=True))
    assert "format 99 needs another version" in problem


def test_a_store_of_runs_shows_the_figures_that_it_had_and_is_continued(folder: Path) -> None:
    path = copy_of("runs.turnout", folder)
    assert json.loads(json.dumps(run_figures(path))) == EXPECTED["runs"]
    with RunStore(path) as store:
        store.append(2, RoundColumns.from_records([], clients=store.info(2).clients), finish=True)
        assert store.info(2).finished


OPENINGS: dict[str, list[Callable[[Path], object]]] = {
    "fleet": [Scheduler.open, Reporter, FleetReader, lambda path: Scheduler.open(path, takeover=True)],
    "runs": [RunStore, lambda path: RunStore(path, read_only=True)],
}


@pytest.mark.parametrize("name", OPENINGS)
def test_a_file_of_a_later_format_is_refused_and_stays_as_it_is(name: str, folder: Path) -> None:
    path = copy_of(f"{name}.turnout", folder)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    before = path.read_bytes()
    for opening in OPENINGS[name]:
        with pytest.raises(StoreError, match=r"format 99, but this version of turnout reads .*: install a newer"):
            opening(path)
        assert path.read_bytes() == before
    assert not path.with_name(f"{path.name}.lock").exists()
