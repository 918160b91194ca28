"""The metrics of a round that trackers receive."""

from __future__ import annotations

import numpy as np

from turnout.kernel.certificate import Certificate
from turnout.kernel.rounds import OUTCOMES, RoundRecord
from turnout.kernel.slots.turns import FINISHED


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
