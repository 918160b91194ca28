"""A fleet is one file with its log and its lock file, by whatever name it is opened and however often it is refused."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from killing import environment
from live.fleets import LIVE, OpenFleet, offered, play_round
from turnout.errors import StoreError
from turnout.live import FleetReader, Reporter, Scheduler, certify
from turnout.live.audit.doctor import examine
from turnout.live.journal.files import copy_fleet, is_fleet
from turnout.live.turns.slots.state import SlotFleet
from turnout.storage.files import database, storefile
from turnout.storage.files.database import StoreConnection, connect_to_check, log_path
from turnout.storage.files.lock import Acknowledged, Writer, lock_line, lock_path, locks_of, read_acknowledged

pytestmark = pytest.mark.files


def examine_log(path: Path) -> None:
    """Raises StoreError if the doctor finds that commits may be missing."""
    log = next(finding for finding in examine(path) if finding.part == "log")
    if not log.ok:
        raise StoreError(log.message)


OPENINGS: dict[str, Callable[[Path], Any]] = {
    "scheduler": Scheduler.open,
    "takeover": lambda path: Scheduler.open(path, takeover=True),
    "reporter": Reporter,
    "reader": FleetReader,
    "certify": lambda path: certify(path, path.with_name("certificate.json"), path.with_name("record.jsonl")),
    "backup": lambda path: copy_fleet(path, path.with_name("backup.turnout")),
    "doctor": examine_log,
}


@pytest.fixture
def copy(open_fleet: OpenFleet, folder: Path) -> Path:
    """A copy of the file of a running fleet, without its log and its lock file."""
    scheduler, copy = open_fleet(), folder / "elsewhere" / "copy.turnout"
    for _ in range(3):
        play_round(scheduler, offered("a", "b", "c"))
    copy.parent.mkdir()
    shutil.copy(scheduler.path, copy)
    return copy


@pytest.mark.parametrize("name", OPENINGS)
def test_a_copy_without_its_log_is_refused_as_often_as_it_is_tried(copy: Path, name: str) -> None:
    for _ in range(3):
        with pytest.raises(StoreError, match=r"is a copy of a file in use, without its lock file copy\.turnout\.lock"):
            OPENINGS[name](copy)
        assert sorted(file.name for file in copy.parent.iterdir()) == ["copy.turnout"]


def test_a_lock_file_that_states_no_commit_makes_no_copy_complete(copy: Path) -> None:
    """A process that was killed while it opened the copy has left it."""
    lock_path(copy).write_bytes(b" " * 63 + b"\n")
    for open_it in OPENINGS.values():
        with pytest.raises(StoreError, match="is a copy of a file in use"):
            open_it(copy)


def test_a_fleet_that_cannot_be_created_leaves_no_lock_file(folder: Path) -> None:
    path = folder / "fleet.turnout"
    log_path(path).write_bytes(b"x" * 100)
    refusal = r"fleet.turnout does not exist, but its log .*fleet.turnout-wal does: restore the database"
    with pytest.raises(StoreError, match=refusal):
        Scheduler.open(path, **LIVE)
    assert not lock_path(path).exists()


def test_a_backup_whose_writer_is_killed_while_it_opens_it_is_opened_again(
    open_fleet: OpenFleet, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, backup = open_fleet(), folder / "backup.turnout"
    play_round(scheduler, offered("a", "b", "c"))
    copy_fleet(scheduler.path, backup)

    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # after the file was marked as in use, before that was acknowledged
        patch.setattr(storefile.StoreFile, "_acknowledge", kill)
        with pytest.raises(KeyboardInterrupt):
            Scheduler.open(backup)
    with Scheduler.open(backup) as continued:
        assert continued.round == 1


# Other names of the same file


@pytest.fixture
def link(open_fleet: OpenFleet, folder: Path) -> Path:
    """A symbolic link in another folder to the file of a fleet, which was opened by its own name."""
    scheduler, link = open_fleet(), folder / "elsewhere" / "link.turnout"
    play_round(scheduler, offered("a", "b", "c"))
    link.parent.mkdir()
    link.symlink_to(scheduler.path)
    return link


@pytest.mark.parametrize("name", ["reporter", "reader", "certify", "backup", "doctor"])
def test_a_running_fleet_is_sound_by_the_name_of_a_link(link: Path, name: str) -> None:
    opened = OPENINGS[name](link)
    if name in ("reporter", "reader"):
        opened.close()
    assert not list(link.parent.glob("*.lock")) + list(link.parent.glob("*-wal"))


def test_a_fleet_cannot_be_written_by_two_names(link: Path) -> None:
    with pytest.raises(StoreError, match=rf"is being written by process {os.getpid()}"):
        Scheduler.open(link)
    assert Writer.parse(lock_line(link)) == Writer.current()


def test_a_fleet_that_was_opened_by_a_link_is_held_by_its_own_name_too(folder: Path) -> None:
    link = folder / "link.turnout"
    link.symlink_to(folder / "fleet.turnout")
    with Scheduler.open(link, **LIVE) as scheduler:
        assert scheduler.path == folder / "fleet.turnout"
        with pytest.raises(StoreError, match=rf"is being written by process {os.getpid()}"):
            Scheduler.open(scheduler.path)


def test_a_process_may_change_its_folder_while_a_fleet_is_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "other").mkdir()
    monkeypatch.chdir(folder)
    with Scheduler.open("fleet.turnout", **LIVE) as scheduler, Reporter("fleet.turnout") as reporter:
        a, b = scheduler.choose(["a", "b", "c"])
        monkeypatch.chdir(folder / "other")
        assert scheduler.report(a, 1.0)
        assert reporter.report(b, 1.0)
        scheduler.close_round()
        assert scheduler.metrics().round == 1
    assert list((folder / "other").iterdir()) == []


# What is acknowledged, and who may write


def test_a_reporter_acknowledges_nothing_into_a_log_that_was_deleted_before_its_first_report(
    open_fleet: OpenFleet,
) -> None:
    scheduler = open_fleet()
    (a, _) = scheduler.choose(["a", "b", "c"])
    with Reporter(scheduler.path) as reporter:
        log_path(scheduler.path).unlink()
        with pytest.raises(StoreError, match=r"fleet\.turnout-wal was deleted or replaced while it was in use"):
            reporter.report(a, 1.0)


def test_a_commit_into_a_log_that_was_deleted_meanwhile_is_not_acknowledged(
    open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, count_commit = open_fleet(), storefile.StoreFile._count_commit
    scheduler.register(["a"])
    stated = read_acknowledged(scheduler.path)

    def count_and_delete(file: storefile.StoreFile, db: sqlite3.Connection) -> Acknowledged:
        newest = count_commit(file, db)
        log_path(file.path).unlink()
        return newest

    monkeypatch.setattr(storefile.StoreFile, "_count_commit", count_and_delete)
    with pytest.raises(StoreError, match=r"fleet\.turnout-wal was deleted or replaced while it was in use"):
        scheduler.register(["b"])
    assert read_acknowledged(scheduler.path) == stated


def overwrite(path: Path, content: Path) -> None:
    """Does what `cp content path` does: the file stays the same one."""
    inode = path.stat().st_ino
    path.write_bytes(content.read_bytes())
    assert path.stat().st_ino == inode


@pytest.mark.parametrize("foreign", [False, True], ids=["an older backup", "another fleet"])
def test_nothing_is_acknowledged_into_a_file_that_was_overwritten(
    open_fleet: OpenFleet, folder: Path, foreign: bool
) -> None:
    scheduler, backup = open_fleet(), folder / "backup.turnout"
    copy_fleet(open_fleet("other.turnout").path if foreign else scheduler.path, backup)
    scheduler.register(["a"])
    scheduler.compact()  # moves the log into the file
    a, b = scheduler.choose(["a", "b", "c"])
    with Reporter(scheduler.path) as reporter:
        assert scheduler.report(a, 1.0)
        overwrite(scheduler.path, backup)
        for report in (scheduler.report, reporter.report, scheduler.report):
            with pytest.raises(StoreError, match=r"fleet\.turnout was overwritten while it was in use"):
                report(b, 1.0)


def test_a_group_is_refused_if_the_file_is_overwritten_inside(open_fleet: OpenFleet, folder: Path) -> None:
    scheduler, backup = open_fleet(), folder / "backup.turnout"
    copy_fleet(scheduler.path, backup)
    scheduler.register(["a"])
    scheduler.compact()
    before = log_path(scheduler.path).read_bytes()

    def change_in_group() -> None:
        with scheduler.group():
            scheduler.register(["b"])
            overwrite(scheduler.path, backup)

    with pytest.raises(StoreError, match="was overwritten while it was in use"):
        change_in_group()
    assert log_path(scheduler.path).read_bytes() == before


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/locks")
def test_a_file_into_which_a_part_of_its_log_was_moved_is_sound_and_stays_locked(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet()
    a, _ = scheduler.choose(["a", "b", "c"])
    with (
        closing(sqlite3.connect(scheduler.path, isolation_level=None)) as db,
        closing(sqlite3.connect(scheduler.path, isolation_level=None)) as reader,
    ):
        db.execute("CREATE TABLE more (data BLOB)")
        db.execute("INSERT INTO more VALUES (ZEROBLOB(20000))")
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM more").fetchone()
        db.execute("UPDATE more SET data = RANDOMBLOB(20000)")  # these pages cannot be moved while the reader reads
        db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        assert scheduler.path.stat().st_size < pages * 4096
        assert is_fleet(scheduler.path)
        assert locks_of(scheduler.path)
        assert scheduler.report(a, 1.0)


def test_a_takeover_that_is_refused_leaves_the_writer_its_lock(
    open_fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = open_fleet()
    play_round(scheduler, offered("a", "b", "c"))
    monkeypatch.setattr(database, "TAKEOVER_WAIT_SECONDS", 0.01)
    with scheduler.group():  # inside a transaction
        with pytest.raises(StoreError, match="database is locked"):
            Scheduler.open(scheduler.path, takeover=True)
        with pytest.raises(StoreError, match=rf"is being written by process {os.getpid()}"):
            Scheduler.open(scheduler.path)
    play_round(scheduler, offered("a", "b", "c"))
    assert scheduler.round == 2
    assert [file.name for file in scheduler.path.parent.glob("*.lock*")] == ["fleet.turnout.lock"]
    with Scheduler.open(scheduler.path, takeover=True) as second:
        assert second.round == 2
        with pytest.raises(StoreError, match="was taken over by"):
            play_round(scheduler, offered("a", "b", "c"))


def test_no_status_of_a_forgotten_client_remains_in_the_summary_of_its_running_turn(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnout.live.retention.LATE_ROUNDS", 1)
    path, free_cpu = folder / "fleet.turnout", 0.123456789
    ids = ["a", "b", "c", "d"]
    statuses = {**offered(*ids), **offered("a", free_cpu=free_cpu)}
    options: dict[str, Any] = {"settings": {"guaranteed_rate": 0.1}, "concurrency": 2, "keep_rounds": 4}
    with Scheduler.open(path, allow_infeasible=True, **options) as scheduler:
        first = scheduler.fill({"a": statuses["a"]})
        for _ in range(3):  # a trains while others get turns
            for turn in scheduler.fill({name: statuses[name] for name in ids[1:]}):
                scheduler.report(turn.id, 1.0)
        scheduler.report(first[0].id, 9.0)
        for _ in range(6):
            for turn in scheduler.fill({name: statuses[name] for name in ids[1:]}):
                scheduler.report(turn.id, 1.0)
            scheduler.compact()
            with FleetReader(path) as reader:
                start = reader.replay_start()
            if start is not None and isinstance(start.fleet, SlotFleet) and 0 in start.fleet.training().values():
                break
        else:
            pytest.fail("the summary was never taken while a was training")
        scheduler.fill([])
        status = struct.pack("<d", 1 / free_cpu)
        assert status in path.read_bytes() + log_path(path).read_bytes()
        scheduler.forget("a")
        copy_fleet(path, folder / "backup.turnout")
        for file in folder.iterdir():
            assert status not in file.read_bytes(), file


def test_a_fleet_that_a_scheduler_opens_and_writes_while_it_is_checked_is_sound(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened = folder / "fleet.turnout", list[Scheduler]()
    Scheduler.open(path, **LIVE).close()

    def connect_and_wait(path: Path) -> StoreConnection:
        connection = connect_to_check(path)
        monkeypatch.undo()
        opened.append(Scheduler.open(path))
        opened[0].register(["a"])
        return connection

    monkeypatch.setattr(database, "connect_to_check", connect_and_wait)
    with FleetReader(path) as reader:
        assert reader.clients == ["a"]
    opened[0].close()


READ_ONLY = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
CAN_MOUNT = "mount -t tmpfs none /mnt"

needs_mounts = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-rm", "sh", "-c", CAN_MOUNT], capture_output=True, check=False).returncode != 0,
    reason="mounts nothing in a namespace of its own: run as root, or allow user namespaces",
)

READING = """
import sys
from pathlib import Path
from turnout.errors import StoreError
from turnout.live import FleetReader, certify
from turnout.live._internals import copy_fleet, examine

folder, other = Path(sys.argv[1]), Path(sys.argv[2])
fleet = folder / "fleet.turnout"
certify(fleet, other / "certificate.json", other / "record.jsonl")
print(copy_fleet(fleet, other / "backup.turnout"))
print([finding.part for finding in examine(fleet) if finding.ok is False])
try:
    FleetReader(folder / "copy.turnout")
except StoreError as error:
    print(error)
with FleetReader(fleet) as reader:
    print(reader.round, flush=True)
    input()
    print(reader.round)
"""


@needs_mounts
def test_a_closed_fleet_can_be_read_on_a_read_only_file_system(open_fleet: OpenFleet, folder: Path) -> None:
    data, other = folder / "data", folder / "other"
    data.mkdir()
    other.mkdir()
    scheduler = open_fleet("data/fleet.turnout")
    play_round(scheduler, offered("a", "b", "c"))
    shutil.copy(scheduler.path, data / "copy.turnout")
    scheduler.close()
    before = sorted(data.iterdir())
    mounted = ["unshare", "-rm", "sh", "-c", READ_ONLY, "sh", str(data)]
    program = [sys.executable, "-c", READING, str(data), str(other)]
    with subprocess.Popen(
        mounted + program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(4)]
        assert lines[:2] + lines[3:] == ["1 closed rounds of 3 clients", "[]", "1"]
        assert "is a copy of a file in use, without its lock file" in lines[2]
        assert sorted(data.iterdir()) == before
        with Scheduler.open(scheduler.path) as writer:  # whoever can write the file goes on
            play_round(writer, offered("a", "b", "c"))
        output, _ = process.communicate("\n", timeout=60)
    assert output.strip() == "2"
    assert sorted(file.name for file in other.iterdir()) == ["backup.turnout", "certificate.json", "record.jsonl"]


LIMITED = """
import resource, sys
from pathlib import Path
from turnout.errors import StoreError
from turnout.live import Scheduler
from turnout.live._internals import copy_fleet

with Scheduler.open(Path(sys.argv[1])) as scheduler:
    for size in (40_000, 20):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        for change in (
            lambda: scheduler.register([f"client {row}" for row in range(9000)]),
            lambda: copy_fleet(scheduler.path, Path(sys.argv[2])),
            lambda: Scheduler.open(Path(sys.argv[2])),
        ):
            try:
                change()
            except StoreError as error:
                print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    print(scheduler.register(["a"]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no limits of file sizes")
def test_a_limit_of_file_sizes_is_called_missing_space_and_leaves_nothing_behind(
    open_fleet: OpenFleet, folder: Path
) -> None:
    scheduler, other = open_fleet(), folder / "other.turnout"
    scheduler.close()
    program = [sys.executable, "-c", LIMITED, str(scheduler.path), str(other)]
    done = subprocess.run(program, capture_output=True, text=True, check=True, env=environment())
    *refusals, registered = done.stdout.splitlines()
    advice = "free some disk space, or raise the quota or the limit of file sizes, and retry"
    assert [refusal.split(" cannot be used")[0] for refusal in refusals] == [str(scheduler.path), *[str(other)] * 2] * 2
    assert all(advice in refusal for refusal in refusals)
    assert registered == "1"
    assert [file.name for file in folder.glob("other*")] == []


@pytest.mark.parametrize("name", ["scheduler", "takeover", "reporter"])
def test_a_fleet_with_two_names_cannot_be_written_by_either(folder: Path, name: str) -> None:
    path, link = folder / "fleet.turnout", folder / "link.turnout"
    Scheduler.open(path, **LIVE).close()
    os.link(path, link)
    for opened in (path, link):
        with pytest.raises(StoreError, match=r"has 2 names \(hard links\).*: delete the other name, or write a copy"):
            OPENINGS[name](opened)
    with FleetReader(path) as reader:
        assert reader.round == 0
    assert not list(folder.glob("link.turnout?*"))
