"""Writes the file that later releases must be able to open: python write_fleet.py FORMAT.

Run once for each format, by the release that writes it; never again for a format that was released.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))

from scheduler import restless_server  # noqa: E402
from scheduler.test_faults import digest_of_state  # noqa: E402
from turnout.scheduler import Scheduler  # noqa: E402

ROUNDS = 10


def write(name: str) -> None:
    """A fleet with a snapshot, events after it, clients that are retired, forgotten, late, and an open round."""
    path = HERE / f"{name}.turnout"
    restless_server.play(str(path), ROUNDS)
    with Scheduler.open(path) as scheduler:
        cohort = scheduler.choose(restless_server.offer_of(ROUNDS + 1))
        scheduler.report(cohort[0], 3.0)
        scheduler.failed(cohort[1], "its battery died")
        told = {
            "digest": digest_of_state(scheduler),
            "round": scheduler.round,
            "clients": scheduler.clients,
            "out": scheduler.status().out,
            "events": len(list(scheduler.export())),
            "turns": scheduler.certificate().turns.tolist(),
        }
    with closing(sqlite3.connect(path)) as db:
        db.execute("VACUUM")
    path.with_name(f"{path.name}.lock").unlink()
    path.with_suffix(".json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    write(f"fleet-format-{sys.argv[1]}")
