"""Opens a fleet to write, says so, and holds it until its standard input ends: python hold.py FLEET [takeover]."""

from __future__ import annotations

import sys

from turnout import Scheduler
from turnout.errors import StoreError


def hold(path: str, *, takeover: bool) -> None:
    """Opens a fleet, or prints why not."""
    try:
        with Scheduler.open(path, settings={"guaranteed_rate": 0.01}, takeover=takeover):
            print("open", flush=True)
            sys.stdin.read()
    except StoreError as error:
        print(f"refused: {error}", flush=True)


if __name__ == "__main__":
    hold(sys.argv[1], takeover="takeover" in sys.argv[2:])
