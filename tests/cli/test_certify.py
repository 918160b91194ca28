from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest

from cli.in_process import error_of, json_of, run
from cli.test_fleet import play_slow_and_fast
from live.fleets import play_round
from turnout.kernel.certificate import Certificate
from turnout.live import ClientStatus, Scheduler
from turnout.live._internals import verify


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 2, "guaranteed_rate": 0.2}, deadline=30.0) as scheduler:
        for _ in range(5):
            play_round(scheduler, {f"[b]{n}": ClientStatus(1.0, 2.0 + n) for n in range(6)}, 3.0)
    return path


def test_a_fleet_is_certified_and_verified(fleet: Path, tmp_path: Path) -> None:
    out, record = tmp_path / "c.json", tmp_path / "c.jsonl"
    output, errors, code = run("fleet", "certify", fleet, "-o", out)
    assert (errors, code) == ("", 0)
    assert f"{out}: 6 clients, 5 rounds" in output
    assert "Promise kept: all 6 clients are less than one turn behind." in output
    answer = json_of("fleet", "certify", fleet, "--out", out)
    assert (answer["certificate"], answer["record"], answer["clients"]) == (str(out), str(record), 6)
    assert answer["record_sha256"] == json.loads(out.read_text())["record_sha256"]
    assert answer["promise"]["status"] == "kept"
    verified = json_of("verify", out, record)
    assert (verified["verified"], verified["differences"], verified["books_balance"]) == (True, [], True)
    assert verified["promise"] == answer["promise"]
    assert run("verify", out, record)[0].splitlines() == [
        "Verified: the certificate matches the record.",
        "Promise kept: all 6 clients are less than one turn behind.",
        "The books balance: turns ≥ promised − owed − forfeited for every client.",
    ]


def test_a_broken_promise_is_certified_as_broken_until_its_client_has_left(tmp_path: Path) -> None:
    path, out, record = tmp_path / "fleet.turnout", tmp_path / "c.json", tmp_path / "c.jsonl"
    play_slow_and_fast(path, 40, guaranteed_rate=0.5)
    output, errors, code = run("fleet", "certify", path, "-o", out)
    assert (errors, code) == ("", 1)
    assert "Promise broken: slow is 19.00 turns behind, beyond the tolerance of 2" in output
    output, errors, code = run("verify", out, record)
    assert (errors, code) == ("", 0)
    assert "Promise broken: slow is 19.00 turns behind" in output
    assert "The books balance" in output
    with Scheduler.open(path) as scheduler:
        scheduler.retire("slow")
    output, errors, code = run("fleet", "certify", path, "-o", out)
    assert (errors, code) == ("", 0)
    assert "Promise kept: the only client is less than one turn behind." in output
    verified = json_of("verify", out, record)
    assert (verified["verified"], verified["promise"]["status"], verified["books_balance"]) == (True, "kept", True)


def test_a_forged_certificate_is_not_verified(fleet: Path, tmp_path: Path) -> None:
    out, record = tmp_path / "c.json", tmp_path / "c.jsonl"
    run("fleet", "certify", fleet, "-o", out)
    forged = json.loads(out.read_text())
    for client in forged["clients"].values():
        client["turns"] += 1
    out.write_text(json.dumps(forged))
    output, errors, code = run("verify", out, record)
    assert (errors, code) == ("", 1)
    assert "client [b]0: {" in output
    assert "in the certificate" in output
    assert "NOT verified." in output
    output, _, code = run("verify", out, record, "--json")
    assert code == 1
    assert len(json.loads(output)["differences"]) == 6
    run("fleet", "certify", fleet, "-o", out)
    record.write_bytes(record.read_bytes().replace(b"arrived", b"late", 1))
    assert run("verify", out, record)[2] == 1


def test_invalid_arguments_are_reported(fleet: Path, tmp_path: Path) -> None:
    assert "must end in .json, got 'fleet.turnout'" in error_of("fleet", "certify", fleet, "-o", fleet)
    assert "there is no fleet at" in error_of("fleet", "certify", tmp_path / "none", "-o", tmp_path / "c.json")
    for option in (("--all",), ("--tolerance", "3")):
        assert "change what is printed" in error_of("fleet", "certify", fleet, "-o", tmp_path / "c.json", *option)
    assert "pass a certificate and its record" in error_of("verify")
    assert run("verify", "--source")[::2] == (Path(verify.__file__).read_text(encoding="utf-8"), 0)
    assert "cannot read" in error_of("verify", tmp_path / "none", tmp_path / "none")
    assert "not a folder" in error_of("fleet", "certify", fleet, "-o", fleet / "c.json")


def test_swapped_files_and_a_cut_record_are_said_to_be_so(fleet: Path, tmp_path: Path) -> None:
    certificate, record = tmp_path / "deep" / "c.json", tmp_path / "deep" / "c.jsonl"
    assert run("fleet", "certify", fleet, "-o", certificate).returncode == 0
    message = f"{record} is the record and {certificate} the certificate: swap them"
    assert message in error_of("verify", record, certificate)
    assert "Verified" in run("verify", certificate, record).stdout
    record.write_bytes(record.read_bytes()[:-20])
    last = len(record.read_bytes().splitlines())
    assert f"the record ends in the middle of line {last}" in run("verify", certificate, record).stdout


def test_books_that_do_not_balance_are_reported(fleet: Path, tmp_path: Path) -> None:
    out = tmp_path / "c.json"
    assert run("fleet", "certify", fleet, "-o", out)[2] == 0
    with patch.object(Certificate, "books_balance", False):
        shown = run("verify", out, tmp_path / "c.jsonl")[0]
        assert not json_of("verify", out, tmp_path / "c.jsonl")["books_balance"]
    assert "The books do NOT balance: turns < promised − owed − forfeited for some clients" in shown
    assert "The books balance" not in shown
