"""The protocol of a tracker, and the guard with which the rest of `turnout` calls it."""

from __future__ import annotations

import importlib
import math
import threading
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from turnout.closing import Closable
from turnout.errors import SettingError
from turnout.log import get_log

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
        self.tracker = tracker
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

    @property
    def _name(self) -> str:
        return type(self.tracker).__name__

    def _count(self, error: Exception, what: str) -> None:
        self.failures += 1
        if self.failures == 1:
            log.warning(
                "%s: %s (%s: %s); further errors are only counted",
                self._name,
                what,
                type(error).__name__,
                error,
                exc_info=error,
            )


def require(module: str, extra: str) -> Any:
    """Imports the package of a tracker; raises SettingError that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SettingError(f"this tracker needs {module}: pip install 'turnout[{extra}]' ({error})") from error
