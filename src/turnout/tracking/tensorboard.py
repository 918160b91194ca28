"""Event files of TensorBoard, written by tensorboardX, which needs neither TensorFlow nor torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnout.tracking.base import require
from turnout.tracking.names import file_name

#: Seconds after which metrics are written to the file, so that TensorBoard shows a run while it is played.
FLUSH_SECONDS = 5


class TensorBoardTracker:
    """Writes one folder of event files per run: `target/<run>`; `tensorboard --logdir target` shows them.

    Args:
        target: The folder of all runs.
        run: The name of the run.
        settings: The settings of the run, which are written as text.
    """

    def __init__(self, target: str, *, run: str, settings: Mapping[str, Any]) -> None:
        module = require("tensorboardX", "tensorboard")
        self.folder = Path(target) / file_name(run)
        self._writer = module.SummaryWriter(str(self.folder), flush_secs=FLUSH_SECONDS)
        if settings:
            text = json.dumps(settings, indent=2, ensure_ascii=False, default=str)
            self._writer.add_text("settings", "\n".join(f"    {line}" for line in text.splitlines()), 0)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Writes one scalar per metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Writes what is left, and closes the file."""
        self._writer.close()
