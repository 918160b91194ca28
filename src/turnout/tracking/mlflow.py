"""Runs of MLflow, in a local SQLite file or on a server."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turnout.tracking.base import require
from turnout.tracking.names import flat_settings

EXPERIMENT = "turnout"
#: MLflow accepts at most 1000 metrics and 100 parameters per call.
MAX_METRICS, MAX_PARAMETERS = 1000, 100
#: The longest value of a parameter.
MAX_VALUE = 6000
#: Metrics are sent together after so many seconds, because each call is a transaction.
FLUSH_SECONDS = 2.0


class MLflowTracker:
    """Logs to a run of the experiment `turnout`; `mlflow ui --backend-store-uri sqlite:///mlflow.db` shows it.

    Args:
        target: The path of an SQLite file, which is created, or the URI of a store, such as "http://localhost:5000".
        run: The name of the run.
        settings: The settings of the run, which become its parameters.
    """

    def __init__(self, target: str, *, run: str, settings: Mapping[str, Any]) -> None:
        module = require("mlflow", "mlflow")
        if "://" not in target:
            Path(target).absolute().parent.mkdir(parents=True, exist_ok=True)
            target = f"sqlite:///{target}"
        self._entities = module.entities
        self._client = module.MlflowClient(tracking_uri=target)
        experiment = self._client.get_experiment_by_name(EXPERIMENT)
        number = self._client.create_experiment(EXPERIMENT) if experiment is None else experiment.experiment_id
        self.run_id: str = self._client.create_run(number, run_name=run).info.run_id
        self._metrics: list[Any] = []
        self._sent = time.monotonic()
        parameters = [
            self._entities.Param(name, str(value)[:MAX_VALUE]) for name, value in flat_settings(settings).items()
        ]
        for start in range(0, len(parameters), MAX_PARAMETERS):
            self._client.log_batch(self.run_id, params=parameters[start : start + MAX_PARAMETERS])

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Adds the metrics, and sends them together with earlier ones after a few seconds."""
        at = time.time_ns() // 1_000_000
        self._metrics += [self._entities.Metric(name, value, at, step) for name, value in metrics.items()]
        if time.monotonic() - self._sent >= FLUSH_SECONDS or len(self._metrics) >= MAX_METRICS:
            self._send()

    def close(self) -> None:
        """Sends what is left, and marks the run as finished."""
        self._send()
        self._client.set_terminated(self.run_id)

    def _send(self) -> None:
        metrics, self._metrics, self._sent = self._metrics, [], time.monotonic()
        for start in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + MAX_METRICS])
