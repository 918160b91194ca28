"""Bad commands: each ends with a message and exit code 2 or 1, without a traceback, and leaves no file behind."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.in_process import error_of, run
from turnout.live import Scheduler

#: Advice for Python programs, which does not belong into a shell.
PYTHON = re.compile(r"read_only=|accept_older=|RunStore|Scheduler\.\w+\(|FleetReader|=True|=False")
COMMANDS = """
nothing | --nothing | fleet nothing | study nothing | runs nothing | data nothing | traces nothing | --with
--with nothing policies | --with no.such:Thing policies | --with os:path policies | check --rate 2 | check --rate x
check --rate -1 | check --clients 0 | check --clients 3 --availability 0.5,0.5 | check --availability 2
check --availability x | check --availability , | check --tolerance 0 | check --tolerance -1 | check --tolerance nan
check --accrual sometimes | check --concurrency 2 | check --times 5 | check --concurrency 2 --times 0
check --concurrency 2 --times x | check --cohort-size 0
check --rate nan | check --rate 0.1,0.2 --clients 3 | fleet copy fleet.turnout http://host/fleet
fleet status s3://host/fleet | fleet create http://host/fleet
check --nothing | check extra | simulate nobody | simulate rbcsf:speed_weight
simulate rbcsf:speed_weight=x | simulate rbcsf:speed_weight=-1 | simulate rbcsf:nothing=1 | simulate rbcsf: --set x
simulate no.such:Policy | simulate json:JSONEncoder | simulate ::: | simulate --set x=1 | simulate --set =
simulate --set cohort_size=0 | simulate --set cohort_size=1.5 | simulate --set tolerance=0.01
simulate --set guaranteed_rate=0.9 | simulate --set accrual=never | simulate --set counts=twice | simulate --rounds 0
simulate --rounds x | simulate --rounds 1e9 | simulate --seeds 0 | simulate --seed -1 | simulate --world x=1
simulate --world name=nowhere | simulate --world clients=0 | simulate --world clients=x
simulate --world name=no.such:World | simulate --world name=traces --world traces=none.csv
simulate --world name=training --world dataset=nothing | simulate --world name=training --world learner=no.such:thing
simulate --baseline nobody | simulate --promise 2 | simulate --target 0.5 | simulate --target 2
simulate --tolerance 0 | simulate --workers 0
simulate --device abacus | simulate --concurrency 0 | simulate fedcs --concurrency 2 | simulate --config none.toml
simulate --config afile | simulate --config . | simulate --out afile | simulate --out afile/folder
simulate --out /proc/nothing | simulate --store . | simulate --store afile | simulate --store fleet.turnout
simulate --store afile/runs.turnout | simulate --track nowhere:x --rounds 2 --store fleet.turnout
simulate random random --set seed=x | simulate --json --out afile | demo --report . | demo --report afile/report.html
demo --report /proc/report.html | demo --report report.pdf | demo --rounds 1 | demo --seeds 0 | demo --workers 0
demo extra | study leaderboard | study leaderboard nowhere | study leaderboard numerical nobody
study leaderboard numerical --out afile | study leaderboard numerical --seeds 1
study leaderboard async --traces x.csv | study leaderboard numerical --rounds 0
study leaderboard traces --traces none.csv | study leaderboard numerical --store .
study leaderboard numerical rbcsf:x=1 | study reproduce | study reproduce nothing | study reproduce queues --out afile
study reproduce queues --rounds 1 | study reproduce queues --out /proc/nothing
study reproduce queues --dataset nothing | study reproduce queues --seeds 0 | fleet | fleet status
fleet status none.turnout | fleet status afile | fleet status . | fleet history fleet.turnout
fleet history fleet.turnout nobody | fleet explain fleet.turnout nobody | fleet explain fleet.turnout a --round 99
fleet explain fleet.turnout a --round 0 | fleet explain none.turnout a | fleet export none.turnout
fleet export fleet.turnout --out . | fleet export fleet.turnout --out fleet.turnout
fleet export fleet.turnout --out x.csv | fleet export fleet.turnout --out afile/x.jsonl | fleet certify none.turnout
fleet certify fleet.turnout --out . | fleet certify fleet.turnout --out afile/c.json
fleet certify fleet.turnout --out c.jsonl | fleet certify fleet.turnout --out c
fleet certify fleet.turnout --tolerance 0 | fleet certify fleet.turnout --all --out c.json | fleet replay none.turnout
fleet replay fleet.turnout --policy nobody | fleet replay fleet.turnout --run 3 | fleet replay fleet.turnout --draws 1
fleet replay fleet.turnout --set x=1 | fleet create fleet.turnout | fleet create new.turnout --guaranteed-rate 2
fleet create new.turnout --policy nobody | fleet create new.turnout --deadline soon
fleet create new.turnout --concurrency 0 | fleet create new.turnout --concurrency 3 | fleet create afile/new.turnout
fleet create new.turnout --policy rbcsf:x=1 | fleet amend fleet.turnout | fleet amend none.turnout --deadline 3
fleet amend fleet.turnout --deadline -1 | fleet amend fleet.turnout --guaranteed-rate 0.9
fleet amend fleet.turnout --cohort-size 0 | fleet amend fleet.turnout --nothing 1
fleet backup fleet.turnout fleet.turnout | fleet backup fleet.turnout afile | fleet backup none.turnout copy.turnout
fleet backup fleet.turnout afile/copy.turnout | fleet restore none.turnout fleet.turnout
fleet restore afile fleet.turnout | fleet restore fleet.turnout fleet.turnout --yes | fleet restore fleet.turnout
fleet compact none.turnout | fleet retire fleet.turnout nobody | fleet forget fleet.turnout nobody --yes
fleet forget fleet.turnout a | fleet abandon-round fleet.turnout | fleet abandon-round none.turnout
fleet doctor none.turnout | fleet doctor afile | fleet doctor fleet.turnout --accept-older | fleet tokens
fleet tokens create fleet.turnout | fleet tokens list fleet.turnout | fleet tokens create fleet.turnout --role king
fleet tokens create fleet.turnout --role device | fleet tokens create fleet.turnout --role server --client a
fleet tokens create fleet.turnout --role server --days -1 | fleet tokens create none.turnout --role server
fleet tokens create fleet.turnout --role device --clients none.txt | fleet tokens revoke fleet.turnout 123
fleet serve none.turnout | fleet serve afile | fleet serve fleet.turnout --port 99999
fleet serve fleet.turnout --certificate none.pem | fleet serve fleet.turnout --rate -1 | fleet dashboard none.turnout
fleet dashboard afile | fleet dashboard fleet.turnout --token short | verify | verify afile | verify afile afile
verify none.json none.jsonl | verify fleet.turnout afile | verify . . | verify one.json one.json
runs show none.turnout | runs show afile | runs show fleet.turnout | runs show fleet.turnout 1
runs export none.turnout | runs export fleet.turnout | runs delete none.turnout 1 --yes
runs delete fleet.turnout 1 --yes | runs show none.turnout x | policies nobody | policies no.such:Policy
worlds nowhere | worlds no.such:World | new | new policy | new thing x | new policy Quick | new policy fair-pace
new policy json | new policy ok --folder afile | new policy ok --folder afile/x | new world paper | traces describe
traces describe none.csv | traces describe afile | traces describe . | traces convert afile
traces convert afile --to x.npz | traces convert none.csv --to x.npz | traces convert one.csv --to x.xlsx
traces describe one.csv --column x | traces describe one.csv --column x=y | data fetch nothing
data fetch digits extra
"""
BAD = [" ".join(command.split()) for line in COMMANDS.splitlines() for command in line.split(" | ") if command.strip()]
#: Groups without a command show their help.
HELP = {"fleet", "fleet tokens"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fleet, and with files that are neither fleets nor stores."""
    folder = tmp_path_factory.mktemp("bad")
    with Scheduler.open(folder / "fleet.turnout", settings={"cohort_size": 2}, deadline=60.0) as scheduler:
        for _ in range(3):
            scheduler.report_many(dict.fromkeys(scheduler.choose(["a", "b", "c"]), 2.0))
            scheduler.close_round()
    (folder / "afile").write_text("these are my notes\n")
    (folder / "one.json").write_text("{}\n")
    (folder / "one.csv").write_text("client,start\n1,2\n")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Returns all files, and what those contain that no fleet is: a fleet counts how often it was opened."""
    paths = (path for path in folder.rglob("*") if not path.name.endswith(("-shm", "-wal")))
    return {str(path): path.read_bytes() if path.is_file() and "fleet" not in path.name else b"" for path in paths}


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(folder)
    before = contents(folder)
    yield
    assert contents(folder) == before, "a refused command leaves everything as it was"


def test_the_list_is_long() -> None:
    assert len(BAD) >= 150


@pytest.mark.parametrize("command", BAD)
def test_a_bad_command_ends_with_a_message_and_leaves_nothing(command: str) -> None:
    done = run(*command.split())
    if command in HELP:
        assert (done.returncode, done.stderr) == (0, "")
        return
    assert done.returncode in (1, 2), done
    said = done.stdout + done.stderr
    assert said.strip()
    assert "Traceback" not in said
    assert PYTHON.search(said) is None, said


def test_a_fleet_in_a_database_needs_psycopg(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("turnout.storage.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    for command in (("fleet", "status"), ("fleet", "create"), ("fleet", "copy", "fleet.turnout")):
        assert "pip install 'turnout[postgres]'" in error_of(*command, "postgresql://host/db?fleet=name")
