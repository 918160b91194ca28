"""Writes a file that all later releases must be able to open: python write_fleet.py FORMAT.

It runs once for each format, with the first release that writes it, and never again after that release.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from live.fleets import exported

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from live import restless_server  # noqa: E402
from live.test_faults import state_digest  # noqa: E402
from turnout.live import Scheduler  # noqa: E402

ROUNDS = 10


def write(name: str) -> None:
    """Writes a fleet with a snapshot, later events, retired, forgotten and late clients, and an open round."""
    path = HERE / f"{name}.turnout"
    restless_server.play(str(path), ROUNDS)
    with Scheduler.open(path) as scheduler:
        cohort = scheduler.choose(restless_server.statuses_of(ROUNDS + 1))
        scheduler.report(cohort[0], 3.0)
        scheduler.report_failure(cohort[1], "its battery died")
        expected = {
            "digest": state_digest(scheduler),
            "round": scheduler.round,
            "clients": scheduler.clients,
            "out": scheduler.status().out,
            "events": len(exported(scheduler)),
            "turns": scheduler.certificate().turns.tolist(),
        }
    with closing(sqlite3.connect(path)) as db:
        db.execute("VACUUM")
    path.with_name(f"{path.name}.lock").unlink()
    path.with_suffix(".json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    write(f"fleet-format-{sys.argv[1]}")
