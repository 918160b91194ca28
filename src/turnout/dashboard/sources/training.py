"""The metrics that an adapter recorded while a fleet trained a model, under their display names."""

from __future__ import annotations

from pathlib import Path

from turnout.kernel.arrays import FloatArray, IntArray
from turnout.storage.training_log import TrainingLog

#: Prefixes of the display names by kind of metric, in display order.
PREFIXES = {"server": "", "evaluate": "clients' ", "train": "training "}


def read_training_metrics(fleet: Path) -> dict[str, tuple[IntArray, FloatArray]]:
    """Returns the metrics by display name, each as rounds of the fleet and values; round 0 precedes the first round."""
    series = TrainingLog(fleet).series()
    return {
        f"{prefix}{name}": column for kind, prefix in PREFIXES.items() for name, column in series.get(kind, {}).items()
    }
