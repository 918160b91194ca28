"""Uses every part of turnout once that depends on the operating system: python tests/platforms/tour.py FOLDER.

It runs on any system, and needs only turnout itself.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import subprocess
import sys
from pathlib import Path

import turnout
from turnout import ClientStatus, Scheduler
from turnout.errors import StoreError, TurnoutError
from turnout.lab import PaperWorld, RoundColumns, RunStore, play
from turnout.live import FleetReader, Reporter, certify
from turnout.storage.files.lock import Writer

CLIENTS = [f"phone-{number}" for number in range(6)]


def simulate() -> None:
    """Plays rounds in the world of the paper."""
    world = PaperWorld(seed=1)
    policy = turnout.make_policy("fair-pace", world.clients)
    assert len(list(play(policy, world, rounds=20))) == 20


def run_fleet(path: Path) -> None:
    """Opens, uses, closes, copies and certifies a fleet; a second writer is refused while it is open."""
    with Scheduler.open(path, settings={"cohort_size": 2, "guaranteed_rate": 0.1}, deadline=60.0) as scheduler:
        assert_refused(path)
        for number in range(3):
            cohort = scheduler.choose(dict.fromkeys(CLIENTS, ClientStatus(1.0 + number, 2.0)))
            with Reporter(path) as reporter:
                reporter.report(cohort[0], 2.0)
            scheduler.report_failure(cohort[1], "battery empty")
            scheduler.close_round()
        cohort = scheduler.choose(CLIENTS)
        with FleetReader(path) as reader:
            assert reader.settings.deadline == 60.0
    with Scheduler.open(path) as scheduler:  # the open round is still there
        assert scheduler.round == 4
        scheduler.report_many(dict.fromkeys(cohort, 3.0))
        scheduler.close_round()
        scheduler.forget(CLIENTS[5])
    with Scheduler.open(path, takeover=True) as scheduler:
        assert scheduler.status().round == 4
    certify(path, path.with_suffix(".json"), path.with_suffix(".jsonl"))
    run("fleet", "backup", str(path), str(path.with_name("backup.turnout")))
    assert "The fleet is intact." in run("fleet", "doctor", str(path.with_name("backup.turnout")))


def assert_refused(path: Path) -> None:
    """Asserts that a second writer is refused, with the name of the first."""
    refusal = ""
    try:
        Scheduler.open(path)
    except StoreError as error:
        refusal = str(error)
    assert str(Writer.current()) in refusal, refusal


def fill_slots(path: Path) -> None:
    """Uses a fleet without rounds."""
    settings = {"guaranteed_rate": 0.01}
    with Scheduler.open(path, settings=settings, concurrency=2, deadline=60.0) as scheduler:
        for turn in scheduler.fill(CLIENTS):
            scheduler.report(turn.id, 2.0)
    with Scheduler.open(path) as scheduler:
        assert len(scheduler.fill(CLIENTS)) == 2  # which also counts the turns that have ended
        assert scheduler.certificate().turns.sum() == 2


def store_runs(path: Path) -> None:
    """Writes a run to a store and reads it."""
    world = PaperWorld(seed=2)
    records = list(play(turnout.make_policy("random", world.clients), world, rounds=5))
    with RunStore(path) as store:
        run_id = store.begin("tour", {"policy": "random"}, clients=world.clients, code_version=turnout.__version__)
        store.append(run_id, RoundColumns.from_records(records, clients=world.clients), finish=True)
    with RunStore(path, read_only=True) as store:
        assert store.columns(run_id).rounds.tolist() == [1, 2, 3, 4, 5]


def judge_processes() -> None:
    """Asserts that a process that runs is distinguished from one that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    here = Writer.current()
    assert not here.is_dead
    assert Writer(ended.pid, here.host).is_dead


def run(*arguments: str) -> str:
    """Returns what a command prints."""
    from turnout.cli.app import app

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        app(list(arguments), prog_name="turnout", standalone_mode=False)
    return printed.getvalue()


def tour(folder: Path) -> None:
    """Uses every part; an error ends it."""
    simulate()
    run_fleet(folder / "fleet.turnout")
    fill_slots(folder / "slots.turnout")
    store_runs(folder / "runs.turnout")
    judge_processes()
    page = folder / "report.html"
    table = run("demo", "--rounds", "20", "--seeds", "1", "--workers", "1", "--report", str(page))
    assert "FairPace" in table
    assert page.exists() == (importlib.util.find_spec("matplotlib") is not None)  # it has figures


if __name__ == "__main__":
    try:
        tour(Path(sys.argv[1]))
    except TurnoutError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print("every part works")
