"""Writes the files of a release, which all later releases must open: python tests/releases/write.py [FOLDER].

`make release-files` runs it once for each release, with the code of that release; files that exist are never replaced.
By default the folder is tests/releases/VERSION. Only names and options that every version has are used, so that it also
runs with an older version on PYTHONPATH, which is how the files of 0.1.0 were written.

fleet.turnout      rounds with arrivals, a failure, a late report, a retired client, and an open round
slots.turnout      a fleet without rounds, with turns under way
runs.turnout       two runs
certificate.json   and .jsonl: the certificate of the fleet and its record
traces.npz         availability of three clients
expected.json      the figures that these files must show
"""

from __future__ import annotations

import contextlib
import io
import json
import socket
import sqlite3
import sys
from pathlib import Path
from typing import Any

import turnout
from live.fleets import exported
from turnout.lab import RunStore
from turnout.live import ClientStatus, Scheduler
from turnout.live._internals import session_of

HERE = Path(__file__).parent
CLIENTS = [f"phone-{number}" for number in range(8)]
ROUNDS = 6
#: An evening and two nights.
TRACES = """client,start,stop,end
anna,79200,111600,172800
ben,0,28800,172800
ben,86400,115200,172800
carol,72000,172800,172800
"""


def status_of(number: int, client: str) -> ClientStatus:
    """Returns the status of a client in a round: any numbers that differ."""
    row = CLIENTS.index(client)
    return ClientStatus(1.0 + (3 * number + row) % 5 / 4, 2.0 + (number + 2 * row) % 7 / 3)


def seconds_of(number: int, client: str) -> float:
    """Returns the seconds that a client takes in a round."""
    return 1.0 + (5 * number + 3 * CLIENTS.index(client)) % 11


def available_in(number: int) -> list[str]:
    """Returns the clients that are available in a round."""
    return [client for row, client in enumerate(CLIENTS) if (row + number) % 5]


def write_fleet(path: Path) -> dict[str, Any]:
    """Writes a fleet with rounds; returns its figures."""
    settings: Any = {"cohort_size": 2, "guaranteed_rate": "1/10"}
    with Scheduler.open(path, settings=settings, deadline=10.0) as scheduler:
        for number in range(1, ROUNDS + 1):
            cohort = scheduler.choose({client: status_of(number, client) for client in available_in(number)})
            for client in cohort:
                if number == 3 and client == cohort[0]:
                    scheduler.report_failure(client, "battery empty")
                elif number != 4 or client != cohort[0]:  # that client is late
                    scheduler.report(client, min(seconds_of(number, client), 9.0))
            scheduler.close_round(after=10.0)
            if number == 4:
                scheduler.report(cohort[0], 12.5, round=4)
        scheduler.retire(CLIENTS[7])
        scheduler.choose({client: status_of(ROUNDS + 1, client) for client in CLIENTS[:5]})
    with Scheduler.open(path) as scheduler:  # the state is what the file holds
        return figures_of(scheduler)


def write_slots(path: Path) -> dict[str, Any]:
    """Writes a fleet without rounds; returns its figures."""
    settings: Any = {"guaranteed_rate": "1/100"}
    with Scheduler.open(path, settings=settings, concurrency=2, deadline=100.0) as scheduler:
        for number in range(1, ROUNDS + 1):
            given = scheduler.fill({client: status_of(number, client) for client in available_in(number)})
            scheduler.report(given[0].id, seconds_of(number, given[0].client))
    with Scheduler.open(path) as scheduler:
        return figures_of(scheduler)


def figures_of(scheduler: Scheduler) -> dict[str, Any]:
    """Returns what a fleet must show after it was opened: exact numbers, and times to be compared approximately."""
    return {
        "round": scheduler.round,
        "clients": scheduler.clients,
        "out": scheduler.status().out,
        "events": len(exported(scheduler)),
        "turns": scheduler.certificate().turns.tolist(),
        "history": [[turn.round, turn.kind] for turn in scheduler.history(CLIENTS[0])],
        "predicted": session_of(scheduler).predicted_seconds(),
    }


def write_runs(path: Path) -> list[dict[str, Any]]:
    """Writes a store of two runs; returns their figures."""
    for policy in ("rbcsf", "random"):
        run("simulate", policy, "--rounds", "15", "--seed", "3", "--save", str(path))
    with RunStore(path, read_only=True) as store:
        return [
            {
                "policy": info.plan["policy"],
                "rounds": info.rounds,
                "finished": info.finished,
                "durations": store.columns(info.id).durations.tolist(),
                "chosen": store.columns(info.id).chosen.tolist(),
            }
            for info in store.runs()
        ]


def run(*arguments: str) -> str:
    """Returns what a command prints."""
    from turnout.cli.app import app

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        app(list(arguments), prog_name="turnout", standalone_mode=False)
    return printed.getvalue()


def pack(path: Path) -> None:
    """Removes unused space, and the lock file, which a released file does not need."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("VACUUM")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)


def write_release(folder: Path) -> None:
    """Writes all files of this version to a new folder."""
    folder.mkdir()
    socket.gethostname = lambda: "release"  # files name the host that wrote them
    expected: dict[str, Any] = {"version": turnout.__version__, "fleet": write_fleet(folder / "fleet.turnout")}
    if hasattr(Scheduler, "fill"):
        expected["slots"] = write_slots(folder / "slots.turnout")
    expected["runs"] = write_runs(folder / "runs.turnout")
    run("certify", str(folder / "fleet.turnout"), "--out", str(folder / "certificate.json"))
    source = folder / "traces.csv"
    source.write_text(TRACES, encoding="utf-8")
    run("traces", "convert", str(source), "--to", str(folder / "traces.npz"))
    source.unlink()
    expected["traces"] = json.loads(run("traces", "describe", str(folder / "traces.npz"), "--json"))
    for path in folder.glob("*.turnout"):
        pack(path)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / turnout.__version__
    if target.exists():
        sys.exit(f"{target} exists already: the files of a release are written once")
    write_release(target)
    print(f"{target}: {', '.join(sorted(path.name for path in target.iterdir()))}")
