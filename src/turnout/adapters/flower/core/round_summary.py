"""Summarises each round for Flower's log and metrics."""

from __future__ import annotations

from collections.abc import Mapping

from turnout.adapters.common.round_texts import describe_closed_round
from turnout.kernel.certificate import Certificate
from turnout.live import Scheduler
from turnout.live._internals import session_of
from turnout.storage.training_log import OWN_PREFIX


def summarize_round(
    scheduler: Scheduler, round: int, expected: Mapping[str, float], waited: float
) -> tuple[str, dict[str, float]]:
    """Summarises a closed round in one sentence, and as numbers, which are added to the round's training metrics.

    It tells its duration, its slowest client, missing clients, and the status of the promise.

    Args:
        scheduler: the fleet.
        round: the round of the fleet.
        expected: the predicted seconds of the clients.
        waited: the seconds that the server waited, for replies and for failures.
    """
    turns = scheduler.history(round=round)
    certificate = session_of(scheduler).certificate()
    metrics = {
        f"{OWN_PREFIX}round-seconds": waited if turns else 0.0,
        f"{OWN_PREFIX}asked": float(len(turns)),
        f"{OWN_PREFIX}arrived": float(sum(turn.kind == "arrived" for turn in turns)),
    }
    if len(expected) == len(turns) > 0:
        metrics[f"{OWN_PREFIX}expected-seconds"] = max(expected.values())
    metrics |= promise_metrics(certificate)
    return describe_closed_round(scheduler, turns, certificate, expected, waited), metrics


def promise_metrics(certificate: Certificate | None) -> dict[str, float]:
    """Returns the status of the promise as numbers; none if nothing is guaranteed, or if there are no clients."""
    if certificate is None or not len(certificate.turns):
        return {}
    status = certificate.summary()
    return {
        f"{OWN_PREFIX}most-behind-turns": status.worst_behind,
        f"{OWN_PREFIX}broken-promises": float(status.broken),
        f"{OWN_PREFIX}fewest-turns": float(certificate.turns.min()),
    }
