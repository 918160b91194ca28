"""Trackers: what one is, the three built-in ones, how one is found by its name, and the metrics that they receive."""

from __future__ import annotations

import importlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from turnout.closing import Closable
from turnout.errors import PluginError, SettingError, suggestion
from turnout.kernel.certificate import Certificate
from turnout.kernel.rounds import OUTCOMES, RoundRecord
from turnout.kernel.slots.turns import FINISHED
from turnout.log import get_log
from turnout.plugins import Kind, Registry, is_module_name

log = get_log("turnout.tracking")


@runtime_checkable
class Tracker(Protocol):
    """Receives the metrics of a run, one mapping per round."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Records the metrics of a round, or of a turn without rounds; `step` is its number."""

    def close(self) -> None:
        """Writes everything that is not written yet; nothing is logged afterwards."""


class GuardedTracker(Closable):
    """Calls a tracker so that its errors stop nothing: the first error is logged, and all are counted.

    Values that are not finite are left out, because they stand for something that was not measured.

    Args:
        tracker: The tracker.

    Attributes:
        tracker: The tracker.
        calls: The number of calls of `log`.
        failures: The number of calls, of `log` or `close`, that raised an error.
    """

    def __init__(self, tracker: Tracker) -> None:
        self.tracker, self._name = tracker, type(tracker).__name__
        self.calls = self.failures = 0
        self._is_closed = False
        self._mutex = threading.Lock()

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Records the finite metrics of a round."""
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        with self._mutex:
            self.calls += 1
            try:
                self.tracker.log(finite, step)
            except Exception as error:  # whatever a tracker raises, the rounds go on
                self._count(error, f"step {step} was not tracked")

    def close(self) -> None:
        """Closes the tracker and logs how many calls have failed; further calls have no effect."""
        with self._mutex:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self.tracker.close()
            except Exception as error:
                self._count(error, "it could not be closed")
            if self.failures > 1:
                log.warning("%s: %d calls failed, of %d", self._name, self.failures, self.calls + 1)

    def _count(self, error: Exception, what: str) -> None:
        self.failures += 1
        if self.failures == 1:
            reason = f"{what} ({type(error).__name__}: {error})"
            log.warning("%s: %s; further errors are only counted", self._name, reason, exc_info=error)


def require(module: str, extra: str) -> Any:
    """Imports the package of a tracker; raises SettingError that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SettingError(f"this tracker needs {module}: pip install 'turnout[{extra}]' ({error})") from error


#: The longest name of a folder that common file systems accept has 255 bytes.
MAX_FILE_NAME = 120


def file_name(run: str) -> str:
    """Returns the name of a run as the name of a folder.

    >>> file_name("rbcsf (speed_weight 5), seed 0")
    'rbcsf-speed_weight-5-seed-0'
    """
    name = re.sub(r"[^\w.=-]+", "-", run, flags=re.ASCII).strip("-.")[:MAX_FILE_NAME].rstrip("-.")
    return name or "run"


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested settings as one mapping; lists become JSON.

    >>> flat_settings({"policy": "rbcsf", "settings": {"speed_weight": 5}, "weights": [1, 2]})
    {'policy': 'rbcsf', 'settings.speed_weight': 5, 'weights': '[1, 2]'}
    """
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{prefix}{name}.")
        elif value is None or isinstance(value, str | int | float):
            flat[f"{prefix}{name}"] = value
        else:
            flat[f"{prefix}{name}"] = json.dumps(value, ensure_ascii=False, default=str)
    return flat


EXPERIMENT = "turnout"
#: MLflow accepts at most 1000 metrics and 100 parameters per call.
MAX_METRICS, MAX_PARAMETERS = 1000, 100
#: The longest value of a parameter.
MAX_VALUE = 6000
#: Metrics are sent together after so many seconds, because each call is a transaction.
MLFLOW_SECONDS = 2.0


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
        if time.monotonic() - self._sent >= MLFLOW_SECONDS or len(self._metrics) >= MAX_METRICS:
            self._send()

    def close(self) -> None:
        """Sends what is left, and marks the run as finished."""
        self._send()
        self._client.set_terminated(self.run_id)

    def _send(self) -> None:
        metrics, self._metrics, self._sent = self._metrics, [], time.monotonic()
        for start in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self.run_id, metrics=metrics[start : start + MAX_METRICS])


#: Seconds after which metrics are written to the file, so that TensorBoard shows a run while it is played.
TENSORBOARD_SECONDS = 5


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
        self._writer = module.SummaryWriter(str(self.folder), flush_secs=TENSORBOARD_SECONDS)
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


#: Called as `Name(target, run=…, settings=…)`; returns a tracker.
TrackerBuilder = Callable[..., Tracker]


def _check_builder(name: str, value: object) -> TrackerBuilder:
    if not callable(value):
        raise SettingError(f"the tracker {name} must be a class or a function, not {value!r}")
    return value


#: All trackers. The built-in ones import their packages when they are opened.
REGISTRY: Registry[TrackerBuilder] = Registry(
    Kind(
        "tracker",
        "the trackers are",
        "turnout.trackers",
        _check_builder,
        lambda value: isinstance(value, type) and all(hasattr(value, method) for method in ("log", "close")),
    ),
    {"tensorboard": TensorBoardTracker, "mlflow": MLflowTracker, "wandb": WandbTracker},
)


def open_tracker(
    tracker: str | Tracker, *, run: str = "turnout", settings: Mapping[str, Any] | None = None
) -> GuardedTracker:
    """Opens a tracker; its errors will be logged and counted, but stop nothing.

    A tracker of your own is a class, or a function, that is called as `Name(target, run=…, settings=…)` and returns an
    object with `log(metrics, step)` and `close()`.

    Args:
        tracker: `NAME:TARGET`, such as "tensorboard:logs" or "mlflow:mlflow.db"; `package.module:Name:TARGET`, which
            imports that module; or an object with `log(metrics, step)` and `close()`.
        run: The name of the run.
        settings: The settings of the run, as plain values.

    Raises:
        SettingError: If there is no such tracker, its package is missing, or it cannot be opened.
    """
    if isinstance(tracker, GuardedTracker):
        return tracker
    if not isinstance(tracker, str):
        return GuardedTracker(_checked("a tracker", tracker))
    build, target = _find(tracker)
    try:
        opened = build(target, run=run, settings=dict(settings or {}))
    except SettingError:
        raise
    except Exception as error:
        raise SettingError(f"the tracker {tracker} cannot be opened: {type(error).__name__}: {error}") from error
    return GuardedTracker(_checked(f"what the tracker {tracker} opens", opened))


def _find(text: str) -> tuple[TrackerBuilder, str]:
    """Returns what opens a tracker, and its target."""
    name, _, rest = text.partition(":")
    attribute, _, target = rest.partition(":")
    if name not in REGISTRY.own and is_module_name(f"{name}:{attribute}") and name not in REGISTRY.names():
        try:
            return REGISTRY.load(f"{name}:{attribute}"), target
        except PluginError as error:
            if not (meant := suggestion(name, REGISTRY.names())):
                raise
            raise PluginError(f"unknown tracker {text!r}{meant}", name=name) from error
    build = REGISTRY.get(name)
    if not rest:
        raise SettingError(f"the tracker {name} needs a target: write {name}:TARGET, such as a folder or a file")
    return build, rest


def _checked(what: str, value: object) -> Tracker:
    if not isinstance(value, Tracker):
        raise SettingError(f"{what} needs the methods log(metrics, step) and close(), which {value!r} lacks")
    return value


class RoundMeter:
    """Computes the metrics of the rounds of one run, in order: the elapsed time is the sum of all rounds so far.

    | metric | meaning |
    |---|---|
    | `round/seconds` | duration of the round; without rounds, of the turn |
    | `round/selected`, `round/arrived`, `round/late`, `round/failed` | numbers of clients |
    | `time/elapsed_seconds` | time since the start of the run |
    | `promise/turns_behind` | turns that the client furthest behind is behind its promise |
    | `metrics/loss` | mean training loss of the clients that reported one |
    | `metrics/…` | metrics of the round, such as `metrics/accuracy` |

    Args:
        elapsed: The seconds before the first record; None if they are unknown, and the elapsed time is left out.
    """

    def __init__(self, elapsed: float | None = 0.0) -> None:
        self._elapsed = elapsed

    def measure(self, record: RoundRecord, certificate: Certificate | None = None) -> dict[str, float]:
        """Returns the metrics of the next round; `certificate` is that of the policy after the round."""
        report = record.report
        counts = {f"round/{outcome}": float(report.with_outcome(outcome).sum()) for outcome in OUTCOMES}
        metrics = {"round/seconds": report.duration, "round/selected": float(len(report.clients)), **counts}
        if self._elapsed is not None:
            self._elapsed += report.duration
            metrics["time/elapsed_seconds"] = report.metrics.get(FINISHED, self._elapsed)  # turns overlap
        if certificate is not None and len(certificate.turns):
            metrics["promise/turns_behind"] = furthest_behind(certificate)
        if report.losses is not None and not np.isnan(report.losses).all():
            metrics["metrics/loss"] = float(np.nanmean(report.losses))
        return metrics | {f"metrics/{name}": float(value) for name, value in report.metrics.items()}


def furthest_behind(certificate: Certificate) -> float:
    """Returns the turns that the client furthest behind is behind; negative if all have more than was promised."""
    worst = certificate.worst
    return float(certificate.behind.max() if worst is None else certificate.behind[worst])
