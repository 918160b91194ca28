"""File systems that cannot be written, have no space left, or know a fleet by several names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from killing import environment
from live.fleets import LIVE, OpenFleet, offered, play_round
from live.journal.test_one_file import OPENINGS
from turnout.errors import StoreError
from turnout.live import FleetReader, Scheduler

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

pytestmark = pytest.mark.files


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
