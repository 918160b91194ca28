"""Every command of `turnout fleet` accepts a fleet in a database."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.in_process import error_of, json_of, output_of, run
from postgres import Cluster
from turnout.live import FleetReader, Scheduler

pytestmark = pytest.mark.files


@pytest.fixture
def fleet(cluster: Cluster) -> Iterator[str]:
    address = cluster.address("told")
    yield f"{cluster.conninfo}&fleet=told"
    for name in (address, address.with_name("told.replaced"), address.with_name("other")):
        cluster.execute(f'DROP SCHEMA IF EXISTS "{name.schema}" CASCADE')


def test_a_fleet_in_a_database_from_its_creation_to_its_restoration(fleet: str, tmp_path: Path) -> None:
    created = output_of("fleet", "create", fleet, "--cohort-size", "2", "--guaranteed-rate", "0.1", "--deadline", "60")
    assert "is a fleet with rounds" in created
    command = re.search(r"turnout fleet tokens create ('.*?') --role server", created)
    assert command, created  # an address has characters that a shell interprets
    assert "exists already" in error_of("fleet", "create", fleet)
    with Scheduler.open(fleet) as scheduler:
        assert json_of("fleet", "status", fleet)["scheduler"].startswith("process ")
        for _ in range(12):
            scheduler.report_many(dict.fromkeys(scheduler.choose(["a", "b", "c", "d"]), 2.0))
            scheduler.close_round()
        copy = tmp_path / "backups" / "monday.turnout"
        assert output_of("fleet", "backup", fleet, copy) == f"{copy} has all 12 closed rounds of 4 clients.\n"
    token = output_of("fleet", "tokens", "create", fleet, "--role", "viewer").strip()
    (listed,) = json_of("fleet", "tokens", "list", fleet)
    assert listed["id"] in token
    assert "was revoked" in output_of("fleet", "tokens", "revoke", fleet, listed["id"])
    assert json_of("fleet", "status", fleet)["scheduler"] is None
    assert len(json_of("fleet", "history", fleet, "a")["turns"]) > 0
    assert "a" in output_of("fleet", "explain", fleet, "a")
    assert json_of("fleet", "replay", fleet, "--draws", "2")["rounds"] == 12
    events = [json.loads(line) for line in output_of("fleet", "export", fleet).splitlines()]
    assert [event["kind"] for event in events].count("round") == 12
    certificate = tmp_path / "certificate.json"
    assert "To verify" in output_of("fleet", "certify", fleet, "--out", certificate)
    assert run("verify", certificate, certificate.with_suffix(".jsonl")).returncode == 0
    assert "promised" in output_of("fleet", "certify", fleet)
    assert "from 60.0 to 90.0" in output_of("fleet", "amend", fleet, "--deadline", "90")
    assert output_of("fleet", "retire", fleet, "d") == "d is retired.\n"
    assert "is forgotten" in output_of("fleet", "forget", fleet, "c", "--yes")
    assert "all rounds are kept" in output_of("fleet", "compact", fleet)
    assert json_of("fleet", "doctor", fleet)["ok"]
    assert "no round of" in error_of("fleet", "abandon-round", fleet)
    restored = output_of("fleet", "restore", copy, fleet, "--yes")
    assert "has 12 closed rounds of 4 clients, those of the backup. What was there is postgresql:" in restored
    assert "fleet=told.replaced" in restored
    with FleetReader(fleet) as reader:
        assert reader.clients == ["a", "b", "c", "d"]


def test_a_fleet_is_copied_to_a_database_and_back(fleet: str, tmp_path: Path) -> None:
    path, back = tmp_path / "fleet.turnout", tmp_path / "new" / "back.turnout"
    Scheduler.open(path).close()
    assert output_of("fleet", "copy", path, fleet).endswith(" has all 0 closed rounds of 0 clients.\n")
    assert output_of("fleet", "copy", fleet, back) == f"{back} has all 0 closed rounds of 0 clients.\n"
    assert "exists already" in error_of("fleet", "copy", path, fleet)
    other = fleet.replace("fleet=told", "fleet=other")
    assert "there is no fleet at" in error_of("fleet", "copy", other, tmp_path / "none.turnout")
    assert output_of("fleet", "copy", fleet, other).count("fleet=other") == 1


def test_an_address_without_a_fleet_and_a_standby_of_a_file_are_refused(tmp_path: Path) -> None:
    done = run("fleet", "status", "postgresql://me:secret@db/work")
    assert done.returncode == 2
    assert "must name a fleet" in done.stderr
    assert "secret" not in done.stderr
    path = tmp_path / "fleet.turnout"
    Scheduler.open(path).close()
    assert "a standby needs a database" in error_of("fleet", "serve", path, "--standby")


def test_a_password_is_never_printed(cluster: Cluster) -> None:
    assert "geheim" not in error_of("fleet", "status", f"{cluster.conninfo}&password=geheim&fleet=none")
