"""Prints what the file of a fleet says about a job that has ended."""

import sys
from collections import Counter
from pathlib import Path

from turnout import FleetReader


def print_fleet(fleet: Path) -> None:
    """Prints the outcomes of each client's turns, its learned time, and the status of the promise."""
    if not fleet.exists():
        sys.exit("The job has not selected any clients: see its log above.")
    with FleetReader(fleet) as reader:
        print(f"\nclients after {reader.round} rounds:")
        for client in reader.clients:
            turns = reader.history(client)
            outcomes = ", ".join(f"{count} {kind}" for kind, count in Counter(turn.kind for turn in turns).items())
            late = [f"{turn.late_seconds:.0f} s" for turn in turns if turn.late_seconds]
            reasons = sorted({str(turn.why) for turn in turns if turn.why})
            details = [f"free after {', '.join(late)}"] * bool(late) + reasons
            print(f"  {client}: {outcomes or 'no turn'}{' (' + '; '.join(details) + ')' if details else ''}")
        print(f"promise {reader.certificate().summary().sentence(reader.clients.__getitem__)}")
