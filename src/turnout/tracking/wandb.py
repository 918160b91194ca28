"""Offline runs of Weights & Biases: nothing leaves the machine until `wandb sync` sends them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnout.tracking.base import require

PROJECT = "turnout"


class WandbTracker:
    """Logs to an offline run in `target/wandb`; `wandb sync target/wandb/offline-run-*` sends it.

    Args:
        target: The folder of all runs.
        run: The name of the run.
        settings: The settings of the run, which become its configuration.
    """

    def __init__(self, target: str, *, run: str, settings: Mapping[str, Any]) -> None:
        module = require("wandb", "wandb")
        Path(target).mkdir(parents=True, exist_ok=True)
        self._run = module.init(
            mode="offline",
            project=PROJECT,
            dir=target,
            name=run,
            config=dict(settings),
            reinit="create_new",
            settings=module.Settings(silent=True, console="off", x_disable_stats=True),
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Logs the metrics of a step; steps must not decrease."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Writes what is left, and ends the run."""
        self._run.finish()
