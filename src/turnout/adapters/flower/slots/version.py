"""What made a version of the model."""

from __future__ import annotations

from dataclasses import dataclass, field

from flwr.app import Message

from turnout.adapters.common.round_texts import join_first
from turnout.adapters.flower.core.round_summary import promise_metrics
from turnout.live import Scheduler
from turnout.live._internals import session_of
from turnout.storage.training_log import OWN_PREFIX


@dataclass(slots=True)
class Version:
    """A version of the model, from the previous one until its updates are aggregated.

    Attributes:
        staleness: The staleness of each update that is aggregated.
        errors: The error replies.
        failures: The clients whose turns failed, and why.
        waited: The seconds since the previous version; those of the simulated world in a simulation.
    """

    staleness: list[int] = field(default_factory=list)
    errors: list[Message] = field(default_factory=list)
    failures: list[tuple[str, str]] = field(default_factory=list)
    waited: float = 0.0

    def summary(self, scheduler: Scheduler) -> tuple[str, dict[str, float]]:
        """Summarises its updates, their staleness, failed turns and the promise, as a sentence and as numbers."""
        count, certificate = len(self.staleness), session_of(scheduler).certificate()
        metrics = {
            f"{OWN_PREFIX}version-seconds": self.waited,
            f"{OWN_PREFIX}arrived": float(count),
            f"{OWN_PREFIX}failed": float(len(self.failures)),
        }
        text = f"took {self.waited:.1f} s and has {count} updates"
        if count:
            mean = sum(self.staleness) / count
            metrics |= {f"{OWN_PREFIX}mean-staleness": mean, f"{OWN_PREFIX}max-staleness": float(max(self.staleness))}
            text += f" with a mean staleness of {mean:.2f}"
        if self.failures:
            text += f"; failed {join_first([f'{client}: {why}' for client, why in self.failures])}"
        if certificate is not None:
            text += f"; promise {certificate.summary().sentence(scheduler.clients.__getitem__)}"
        return text, metrics | promise_metrics(certificate)
