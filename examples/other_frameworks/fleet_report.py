"""What the examples of this folder share: the folder for the fleet, and a report at the end."""

import argparse
import tempfile
from pathlib import Path

from turnout import FleetReader


def folder_of(description: str) -> Path:
    """Returns the folder that is named on the command line, or a new temporary one."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path, help="the folder for the fleet; a temporary one by default")
    folder = parser.parse_args().out or Path(tempfile.mkdtemp(prefix="other-frameworks-"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def print_fleet(fleet: Path) -> None:
    """Prints how many turns the clients had, and whether each got what it was promised."""
    with FleetReader(fleet) as reader:
        certificate = reader.certificate()
        turns = certificate.turns.tolist()
        print(f"{reader.round} rounds: {len(turns)} clients with {min(turns)} to {max(turns)} turns each")
        print(f"promise {certificate.summary().sentence(reader.clients.__getitem__)}")
    print(f"Try: turnout fleet certify {fleet}")
