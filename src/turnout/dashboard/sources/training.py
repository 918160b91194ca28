"""The metrics that an adapter wrote while a fleet trained, under the names that pages show."""

from __future__ import annotations

from pathlib import Path

from turnout.kernel.arrays import FloatArray, IntArray
from turnout.store.training_log import TrainingLog

#: What pages put before the names of each kind of metrics, in the order in which they are shown.
PREFIXES = {"server": "", "evaluate": "clients' ", "train": "training "}


def measured(fleet: Path) -> dict[str, tuple[IntArray, FloatArray]]:
    """By name: after which rounds of the fleet, and the values. Round 0 is before the first."""
    series = TrainingLog(fleet).series()
    return {
        f"{prefix}{name}": column for kind, prefix in PREFIXES.items() for name, column in series.get(kind, {}).items()
    }
