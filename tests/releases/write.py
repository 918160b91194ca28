"""Writes the stored files of the present formats: python tests/releases/write.py.

Run it again when a format changes before it is published; the tests then hold files of the new format only.

fleet.turnout      rounds with arrivals, a failure, a late report, a retired client, an amendment, and an open round
slots.turnout      a fleet without rounds, with running turns
runs.turnout       two runs, one of them unfinished with a snapshot
certificate.json   and .jsonl: the certificate of the fleet and its record
expected.json      the figures that these files must show
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sqlite3
from itertools import islice
from pathlib import Path
from typing import Any

from turnout import make_policy
from turnout.lab import PaperWorld, RoundColumns, RunStore, play
from turnout.live import ClientStatus, FleetReader, Scheduler, certify

STORED = Path(__file__).parent / "stored"
CLIENTS = [f"phone-{number}" for number in range(8)]
ROUNDS = 6


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


def write_fleet(path: Path) -> None:
    """Writes a fleet with rounds."""
    settings: Any = {"cohort_size": 2, "guaranteed_rate": "1/10"}
    with Scheduler.open(path, settings=settings, deadline=10.0) as scheduler:
        for number in range(1, ROUNDS + 1):
            cohort = scheduler.choose({client: status_of(number, client) for client in available_in(number)})
            for client in cohort:
                if number == 3 and client == cohort[0]:
                    scheduler.report_failure(client, "battery empty")
                elif number != 4 or client != cohort[0]:  # that client is late
                    scheduler.report(client, min(seconds_of(number, client), 9.0), loss=0.5)
            scheduler.close_round(after=10.0)
            if number == 4:
                scheduler.report(cohort[0], 12.5, round=4)
                scheduler.amend(deadline=12.0)
        scheduler.retire(CLIENTS[7])
        scheduler.choose({client: status_of(ROUNDS + 1, client) for client in CLIENTS[:5]})


def write_slots(path: Path) -> None:
    """Writes a fleet without rounds."""
    settings: Any = {"guaranteed_rate": "1/100"}
    with Scheduler.open(path, settings=settings, concurrency=2, deadline=100.0) as scheduler:
        for number in range(1, ROUNDS + 1):
            given = scheduler.fill({client: status_of(number, client) for client in available_in(number)})
            scheduler.report(given[0].id, seconds_of(number, given[0].client))


def write_runs(path: Path) -> None:
    """Writes a store of two runs."""
    with RunStore(path) as store:
        for name, rounds in (("rbcsf", 15), ("random", 5)):
            world = PaperWorld(seed=3)
            policy = make_policy(name, world.clients)
            columns = RoundColumns.from_records(islice(play(policy, world, rounds=15), rounds), clients=world.clients)
            run = store.begin(name, {"policy": name, "seed": 3}, clients=world.clients, code_version="stored")
            store.append(run, columns, snapshot=policy.state(), finish=rounds == 15)


def fleet_figures(path: Path) -> dict[str, Any]:
    """Returns what a fleet must show."""
    with FleetReader(path) as reader, reader.reading():
        fleet = reader.state().fleet
        certificate = fleet.certificate()
        assert certificate is not None
        return {
            "round": reader.round,
            "clients": reader.clients,
            "deadline": reader.settings.deadline,
            "events": [event.kind for event in reader.events()],
            "turns": certificate.turns.tolist(),
            "behind": certificate.behind.tolist(),
            "retired": fleet.counters.retired.tolist(),
            "outcomes": [
                turn.to_dict() for number in range(1, reader.round + 2) for turn in reader.history(round=number)
            ],
        }


def run_figures(path: Path) -> list[dict[str, Any]]:
    """Returns what a store of runs must show."""
    with RunStore(path, read_only=True) as store:
        return [
            {
                "plan": info.plan,
                "rounds": info.rounds,
                "finished": info.finished,
                "chosen": store.columns(info.id).chosen.tolist(),
                "durations": store.columns(info.id).durations.tolist(),
                "snapshot": None if (stored := store.snapshot(info.id)) is None else [stored[0], sorted(stored[1])],
            }
            for info in store.runs()
        ]


def write_files(folder: Path) -> None:
    """Writes all files to a new folder."""
    folder.mkdir()
    socket.gethostname = lambda: "stored"  # files name the host that wrote them
    fleet, slots, runs = (folder / f"{name}.turnout" for name in ("fleet", "slots", "runs"))
    write_fleet(fleet)
    write_slots(slots)
    write_runs(runs)
    certify(fleet, folder / "certificate.json", folder / "certificate.jsonl")
    expected = {"fleet": fleet_figures(fleet), "slots": fleet_figures(slots), "runs": run_figures(runs)}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
    for path in (fleet, slots, runs):
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        path.with_name(f"{path.name}.lock").unlink()


if __name__ == "__main__":
    shutil.rmtree(STORED, ignore_errors=True)
    write_files(STORED)
    print(f"{STORED}: {', '.join(sorted(path.name for path in STORED.iterdir()))}")
