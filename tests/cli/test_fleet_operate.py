"""`turnout fleet doctor | backup | compact | retire | forget | abandon-round`."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from cli import in_process
from cli.in_process import run
from turnout.live import FleetReader, Scheduler
from turnout.live._internals import examine
from turnout.storage.files.lock import lock_path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.turnout"
    with Scheduler.open(path, settings={"cohort_size": 2}, deadline=60.0) as scheduler:
        play(scheduler, 3)
    return path


def play(scheduler: Scheduler, rounds: int) -> None:
    for _ in range(rounds):
        scheduler.report_many(dict.fromkeys(scheduler.choose(["a", "b", "c"]), 2.0))
        scheduler.close_round()


output_of, error_of = partial(in_process.output_of, "fleet"), partial(in_process.error_of, "fleet")


def test_a_backup_of_a_running_fleet_is_complete_and_opens_anywhere(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "backup.turnout"
    with Scheduler.open(file) as scheduler:
        play(scheduler, 2)
        assert "has all 5 closed rounds of 3 clients" in output_of("backup", file, copy)
        play(scheduler, 1)
    assert [file.name for file in tmp_path.glob("backup*")] == ["backup.turnout"]
    moved = tmp_path / "elsewhere.turnout"
    copy.rename(moved)
    assert all(finding.ok is not False for finding in examine(moved))
    with Scheduler.open(moved) as restored:
        assert restored.round == 5
        play(restored, 1)


def test_a_backup_never_replaces_a_file_and_needs_a_sound_fleet(file: Path, tmp_path: Path) -> None:
    assert "exists already: choose another path" in error_of("backup", file, file)
    output_of("backup", file, tmp_path / "nowhere" / "copy")
    assert "there is no fleet at" in error_of("backup", tmp_path / "none", tmp_path / "copy")
    make_copy_of_a_running_fleet(file)
    assert "is a copy of a file in use" in error_of("backup", file, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_backup_is_restored_in_the_place_of_a_newer_damaged_or_missing_file(file: Path, tmp_path: Path) -> None:
    backup, lost = tmp_path / "backup.turnout", tmp_path / "new" / "lost.turnout"
    output_of("backup", file, backup)
    rounds = known_rounds(file)
    with Scheduler.open(file) as scheduler:
        assert "is being written by process" in error_of("restore", backup, file, "--yes")
        play(scheduler, 3)
    newer = file.read_bytes()
    assert "answer yes, or pass --yes" in error_of("restore", backup, file)
    done = run("fleet", "restore", backup, file, "--yes")
    assert done.returncode == 0
    assert done.stdout.endswith(f"What was there is {file}.replaced.\n")
    assert known_rounds(file) == rounds
    assert Path(f"{file}.replaced").read_bytes() == newer
    assert "The fleet is intact." in output_of("doctor", file)
    assert "from an earlier restoration" in error_of("restore", backup, file, "--yes")
    output_of("restore", backup, lost)
    with Scheduler.open(lost) as scheduler:
        play(scheduler, 1)
    assert known_rounds(lost) == rounds + 1
    assert "neither a fleet nor a store of runs" in error_of("restore", __file__, tmp_path / "no" / "fleet.turnout")
    assert "is the backup itself" in error_of("restore", backup, backup, "--yes")
    assert not (tmp_path / "no").exists()


def known_rounds(path: Path) -> int:
    with FleetReader(path) as reader:
        return reader.round


def test_a_fleet_is_compacted_to_what_it_keeps(file: Path, tmp_path: Path) -> None:
    with Scheduler.open(file) as scheduler:
        play(scheduler, 37)
    size = file.stat().st_size
    said = output_of("compact", file)
    assert "all rounds are kept" in said
    assert "turnout fleet amend FLEET --keep-rounds 5000 --keep-offers 1000" in said
    assert "keep_offers from all to 3, keep_rounds from all to 12" in output_of(
        "amend", file, "--keep-rounds", "12", "--keep-offers", "3"
    )
    assert "rounds after 28 are kept" in output_of("compact", file)
    assert file.stat().st_size < size
    with FleetReader(file) as reader:
        assert [closed.round for closed in reader.closed_rounds()] == list(range(29, 41))
        assert [offer.round for offer in reader.offers()] == [38, 39, 40]
    done = run("fleet", "certify", file, "-o", tmp_path / "c.json")
    assert "The record begins after round 28: what clients were promised and got up to then is stated" in done.stdout
    done = run("verify", tmp_path / "c.json", tmp_path / "c.jsonl")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "Verified: the certificate matches the record.")
    assert "The record begins after round 28" in done.stdout
    assert "keep_rounds from 12 to all" in output_of("amend", file, "--keep-rounds", "all")
    assert "keep_rounds must be a number of rounds, or of days such as '30 days', got 'soon'" in error_of(
        "amend", file, "--keep-rounds", "soon"
    )
    assert "there is no fleet at" in error_of("compact", tmp_path / "missing.turnout")


def test_clients_are_retired_and_forgotten(file: Path) -> None:
    assert "a is retired" in output_of("retire", file, "a")
    assert "there is no client 'x'" in error_of("retire", file, "x")
    assert "answer yes, or pass --yes" in error_of("forget", file, "b")
    assert "counted as those of forgotten-1" in output_of("forget", file, "b", "--yes")
    with FleetReader(file) as reader:
        assert reader.clients == ["a", "forgotten-1", "c"]
        assert reader.state().fleet.counters.retired.tolist() == [1, 1, 0]


def test_an_open_round_is_abandoned_unless_somebody_has_reported(file: Path) -> None:
    assert "no round of" in error_of("abandon-round", file)
    with Scheduler.open(file) as scheduler:
        scheduler.choose(["a", "b", "c"])
    assert "open: close or abandon it before you retire" in error_of("retire", file, "a")
    assert "Round 4 is abandoned" in output_of("abandon-round", file)
    with Scheduler.open(file) as scheduler:
        scheduler.report(scheduler.choose(["a", "b", "c"])[0], 1.0)
    assert "has reported. Close it instead" in error_of("abandon-round", file)


@pytest.mark.parametrize(
    "arguments", [("retire", "a"), ("forget", "a", "--yes"), ("abandon-round",)], ids=lambda given: given[0]
)
def test_a_fleet_that_its_scheduler_holds_is_not_changed(file: Path, arguments: tuple[str, ...]) -> None:
    with Scheduler.open(file):
        assert "is being written by process" in error_of(arguments[0], file, *arguments[1:])


def make_copy_of_a_running_fleet(file: Path) -> None:
    """Replaces the fleet by a copy of its file that was made while it was running, without the log."""
    copy = file.with_name("copied")
    with Scheduler.open(file) as scheduler:
        play(scheduler, 1)
        shutil.copy(file, copy)
    lock_path(file).unlink()
    copy.rename(file)


def test_an_older_state_is_accepted_only_on_request(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert "has lost no commits" in error_of("doctor", file, "--accept-older", "--yes")
    make_copy_of_a_running_fleet(file)
    said = error_of("status", file)
    assert f"Try: turnout fleet doctor {file} lists what is damaged; turnout fleet doctor {file} --accept-older" in said
    doctor = run("fleet", "doctor", file).stdout
    assert f"if none is newer than the file, run `turnout fleet doctor {file} --accept-older` to continue" in doctor
    assert "answer yes, or pass --yes" in error_of("doctor", file, "--accept-older")
    caplog.clear()
    accepted = run("fleet", "doctor", file, "--accept-older", "--yes")
    assert "continues after round" in accepted.stderr
    assert accepted.stdout.endswith("The fleet is intact.\n")
    assert caplog.text.count("The older state was accepted") == 1
    output_of("status", file)
    assert all(finding.ok is not False for finding in examine(file))
