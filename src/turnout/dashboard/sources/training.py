"""What was measured while a fleet trained, as an adapter keeps it beside the fleet's file.

`….run.json` and `….run.npz` while a run goes on, `….last.json` and `….last.npz` once it is over: the metrics by kind
and round of the server, and in the header of the model which of the server's rounds was which of the fleet's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from turnout.errors import StoreError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.store.packing import corruption_as_store_error

OUR_OWN = "turnout-"  # what selection adds, which other pages show
#: What the kinds of metrics are called here: told by the clients that trained, by those that evaluated, by the server.
KINDS = {"server": "", "evaluate": "clients' ", "train": "training "}


def written_at(fleet: Path) -> float:
    """When metrics were last kept; 0 if none were."""
    try:
        return max((file.stat().st_mtime for file in _files(fleet)), default=0.0)
    except FileNotFoundError:  # the run has ended just now: look again
        return written_at(fleet)


def measured(fleet: Path) -> dict[str, tuple[IntArray, FloatArray]]:
    """By name: after which rounds of the fleet, and what. Round 0 is before the first."""
    file = next(iter(_files(fleet)), None)
    if file is None:
        return {}
    try:
        with corruption_as_store_error():
            told = json.loads(file.read_bytes())
            first = _rounds_before(file.with_suffix(".npz"))
            return {
                f"{word}{name}": (rounds + first, values)
                for kind, word in KINDS.items()
                for name, (rounds, values) in _by_name(told.get(kind, {})).items()
            }
    except (StoreError, AttributeError) as damage:
        if not file.exists():  # the run has ended just now
            return measured(fleet)
        raise StoreError(
            f"what was measured cannot be read from {file.name} ({damage}): restore that file, or remove it: the fleet "
            "needs it not"
        ) from damage


def _files(fleet: Path) -> list[Path]:
    """That of the run that goes on, and that of the last, as far as they are there."""
    files = (fleet.with_name(f"{fleet.name}.{word}.json") for word in ("run", "last"))
    return [file for file in files if file.exists()]


def _rounds_before(model: Path) -> int:
    """How many rounds the fleet had before this run; 0 if the model is not there to say so."""
    if not model.exists():
        return 0
    with model.open("rb") as opened, np.load(opened, allow_pickle=False) as saved:
        header = json.loads(saved["header"].tobytes())
    return max(int(header["fleet_round"]) - int(header["server_round"]), 0)


def _by_name(by_round: dict[str, dict[str, Any]]) -> dict[str, tuple[IntArray, FloatArray]]:
    """Columns of what are numbers."""
    found: dict[str, list[tuple[int, float]]] = {}
    for round_, told in by_round.items():
        for name, value in told.items():
            if isinstance(value, int | float) and not str(name).startswith(OUR_OWN):
                found.setdefault(str(name), []).append((int(round_), float(value)))
    columns = {}
    for name, pairs in found.items():
        rounds, values = zip(*sorted(pairs), strict=True)
        columns[name] = (np.array(rounds, dtype=np.int64), np.array(values))
    return columns
