"""Files that released versions wrote (write.py) show the same figures; they are continued, certified and explained."""

from __future__ import annotations

import hashlib
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

from cli.in_process import run
from releases.write import CLIENTS, figures_of, write_release
from turnout import FleetReader, Reporter, Scheduler
from turnout.errors import StoreError
from turnout.lab import RunStore
from turnout.live import certify
from turnout.version import __version__

HERE = Path(__file__).parent
VERSIONS = sorted(folder.name for folder in HERE.iterdir() if folder.name[0].isdigit())
FLEETS = [
    (version, name)
    for version in VERSIONS
    for name in ("fleet", "slots")
    if (HERE / version / f"{name}.turnout").exists()
]
STORES = [*FLEETS, *((version, "runs") for version in VERSIONS)]
MOST_BYTES = 200_000


def expected_of(version: str) -> dict[str, Any]:
    content = json.loads((HERE / version / "expected.json").read_text(encoding="utf-8"))
    assert isinstance(content, dict)
    return content


def copy_of(version: str, name: str, folder: Path) -> Path:
    return Path(shutil.copy(HERE / version / name, folder / name))


def contents(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_every_version_has_its_files() -> None:
    assert VERSIONS[0] == "0.1.0"
    assert VERSIONS[-1] == __version__
    for version in VERSIONS:
        assert expected_of(version)["version"] == version
        names = {path.name for path in (HERE / version).iterdir()}
        others = {
            "fleet.turnout",
            "runs.turnout",
            "certificate.json",
            "certificate.jsonl",
            "traces.npz",
            "expected.json",
        }
        assert names - {"slots.turnout"} == others
        assert ("slots.turnout" in names) == (version != "0.1.0")
        assert max(path.stat().st_size for path in (HERE / version).iterdir()) < MOST_BYTES


def test_the_script_of_a_release_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", socket.gethostname)  # is restored afterwards
    write_release(tmp_path / "new")
    written = json.loads((tmp_path / "new" / "expected.json").read_text())
    assert written.keys() == expected_of(__version__).keys()
    assert contents(tmp_path / "new").keys() == contents(HERE / __version__).keys()
    assert b"on host release" in (tmp_path / "new" / "fleet.turnout").read_bytes()


@pytest.mark.parametrize(("version", "name"), FLEETS)
def test_a_fleet_shows_the_figures_that_it_had(version: str, name: str, folder: Path) -> None:
    path, expected = copy_of(version, f"{name}.turnout", folder), expected_of(version)[name]
    with Scheduler.open(path) as scheduler:
        found = json.loads(json.dumps(figures_of(scheduler)))
    assert found.pop("predicted") == pytest.approx(expected.pop("predicted"), rel=1e-9)
    assert found == expected


@pytest.mark.parametrize(("version", "name"), FLEETS)
def test_a_fleet_is_read_without_changing_it(version: str, name: str, folder: Path) -> None:
    path, expected = copy_of(version, f"{name}.turnout", folder), expected_of(version)[name]
    before = contents(folder)
    with FleetReader(path) as reader:
        assert reader.clients == expected["clients"]
    assert contents(folder)[path.name] == before[path.name]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fleet_with_rounds_is_continued(version: str, folder: Path) -> None:
    path, expected = copy_of(version, "fleet.turnout", folder), expected_of(version)["fleet"]
    with Scheduler.open(path) as scheduler:
        with Reporter(path) as reporter:
            reporter.report(expected["out"][0], 2.0)
        scheduler.report_many(dict.fromkeys(expected["out"][1:], 3.0))
        scheduler.close_round()
        cohort = scheduler.choose(CLIENTS[:7])
        scheduler.report_many(dict.fromkeys(cohort, 4.0))
        assert scheduler.close_round().round == expected["round"] + 1
        scheduler.amend(deadline=20.0)
    with Scheduler.open(path) as scheduler:
        turns = scheduler.certificate().turns.sum()
        assert turns == sum(expected["turns"]) + len(expected["out"]) + len(cohort)


@pytest.mark.parametrize("version", [version for version, name in FLEETS if name == "slots"])
def test_a_fleet_without_rounds_is_continued(version: str, folder: Path) -> None:
    path, expected = copy_of(version, "slots.turnout", folder), expected_of(version)["slots"]
    with Scheduler.open(path) as scheduler:
        (under_way,) = scheduler.in_flight()
        scheduler.report(under_way.id, 5.0)
        given = scheduler.fill(CLIENTS)
        for turn in given:
            scheduler.report(turn.id, 2.0)
    with Scheduler.open(path) as scheduler:
        scheduler.fill(
            CLIENTS
        )  # counts the turns that have ended: one was reported in the stored file, one was under way
        assert scheduler.certificate().turns.sum() == sum(expected["turns"]) + 2 + len(given)


@pytest.mark.parametrize(("version", "name"), FLEETS)
def test_a_fleet_is_certified_explained_exported_and_examined(version: str, name: str, folder: Path) -> None:
    path, expected = copy_of(version, f"{name}.turnout", folder), expected_of(version)[name]
    certificate, record = folder / "certificate.json", folder / "certificate.jsonl"
    written = certify(path, certificate, record)
    turns = dict(zip(expected["clients"], expected["turns"], strict=True))
    assert {client: counts["turns"] for client, counts in written["clients"].items()} == turns
    assert run("verify", certificate, record).returncode == 0
    assert CLIENTS[1] in run("explain", str(path), CLIENTS[1]).stdout
    exported = run("fleet", "export", str(path)).stdout.splitlines()
    assert len(exported) == expected["events"]
    doctor = run("fleet", "doctor", str(path))
    assert doctor.returncode == 0, doctor.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_a_certificate_is_verified(version: str, folder: Path) -> None:
    paths = [copy_of(version, name, folder) for name in ("certificate.json", "certificate.jsonl")]
    assert run("verify", *map(str, paths)).returncode == 0
    paths[1].write_text(paths[1].read_text().replace(CLIENTS[0], "another", 1))
    assert run("verify", *map(str, paths)).returncode == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_of_runs_shows_the_figures_that_it_had_and_is_continued(version: str, folder: Path) -> None:
    path, expected = copy_of(version, "runs.turnout", folder), expected_of(version)["runs"]
    with RunStore(path, read_only=True) as store:
        for info, figures in zip(store.runs(), expected, strict=True):
            columns = store.columns(info.id)
            assert (info.plan["policy"], info.rounds, info.finished) == (figures["policy"], figures["rounds"], True)
            assert columns.chosen.tolist() == figures["chosen"]
            assert columns.durations.tolist() == figures["durations"]
    again = ("simulate", "random", "--rounds", "15", "--seed", "3", "--store", str(path))
    other = ("simulate", "random", "--rounds", "15", "--seed", "4", "--store", str(path))
    assert [run(*command).returncode for command in (again, other)] == [0, 0]
    with RunStore(path, read_only=True) as store:
        assert [info.plan["seed"] for info in store.runs()] == [3, 3, 4]  # the first command has found its run
    exported = run("runs", "export", str(path), "--table", "runs")
    assert exported.returncode == 0
    assert len(exported.stdout.splitlines()) == 4
    assert "hoosing client 0 would" in run("explain", str(path), "0", "--run", "1").stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_traces_are_described_as_they_were(version: str, folder: Path) -> None:
    path = copy_of(version, "traces.npz", folder)
    found = json.loads(run("traces", "describe", str(path), "--json").stdout)
    expected = expected_of(version)["traces"]
    for text in ("assumption",):
        expected.pop(text)
    assert {name: found[name] for name in expected} == expected


# Files of later versions


OPENINGS: dict[str, list[Callable[[Path], object]]] = {
    "fleet": [Scheduler.open, Reporter, FleetReader, lambda path: Scheduler.open(path, takeover=True)],
    "slots": [Scheduler.open, Reporter, FleetReader],
    "runs": [RunStore, lambda path: RunStore(path, read_only=True)],
}


@pytest.mark.parametrize(("version", "name"), STORES)
def test_a_file_of_a_later_format_is_refused_and_stays_as_it_is(version: str, name: str, folder: Path) -> None:
    path = copy_of(version, f"{name}.turnout", folder)
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")
    for leftover in folder.glob("*-*"):
        leftover.unlink()
    before = contents(folder)
    for opening in OPENINGS[name]:
        with pytest.raises(
            StoreError, match=r"format 99, but this version of turnout reads .*: install a newer version"
        ):
            opening(path)
        assert contents(folder)[path.name] == before[path.name]
    assert not path.with_name(f"{path.name}.lock").exists()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_certificate_of_a_later_format_is_refused(version: str, folder: Path) -> None:
    certificate, record = (copy_of(version, name, folder) for name in ("certificate.json", "certificate.jsonl"))
    for path in (certificate, record):
        path.write_text(re.sub('"format": ?[0-9]+', '"format": 99', path.read_text(), count=1))
    before = contents(folder)
    result = run("verify", str(certificate), str(record))
    assert result.returncode != 0
    assert "format 99 needs another version" in result.stdout + result.stderr
    assert contents(folder) == before
