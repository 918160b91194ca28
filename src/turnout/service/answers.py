"""Converts values of the scheduler to what the service answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from turnout.live import RunningTurn, Scheduler
from turnout.live._internals import OpenRound, session_of
from turnout.policies.explain.explanation import Explanation


def number(value: float | None) -> float | None:
    """Returns a number, or None for NaN and infinity, which JSON does not have."""
    return None if value is None or not math.isfinite(value) else float(value)


def turn_to_dict(turn: RunningTurn) -> dict[str, Any]:
    """Returns a turn that was given."""
    reasons = {name: number(value) for name, value in turn.reasons.items()}
    return {"id": turn.id, "client": turn.client, "deadline": number(turn.deadline), "reasons": reasons}


def round_to_dict(opened: OpenRound, cohort: list[str]) -> dict[str, Any]:
    """Returns an open round."""
    return {
        "round": opened.round,
        "cohort": cohort,
        "deadline": number(opened.deadline),
        "target_size": int(opened.target_size),
    }


def certificate_to_dict(scheduler: Scheduler, client: str | None, limit: int) -> dict[str, Any]:
    """Returns the promise, and what one client, or those that are furthest behind, were promised and got."""
    certificate, ids = scheduler.certificate(), scheduler.clients
    if client is not None:
        return certificate.to_dict(ids, [session_of(scheduler).row(client)])
    rows = np.argsort(-certificate.behind_units, kind="stable")[:limit]
    return certificate.to_dict(ids, rows.tolist())


def explanation_to_dict(explanation: Explanation) -> dict[str, Any]:
    """Returns an explanation; its numbers by name."""
    data: Mapping[str, Any] = asdict(explanation)
    texts = ("round", "client", "policy", "outcome", "exact", "sentence")
    numbers = {
        name: number(value)
        for name, value in data.items()
        if name not in texts and not isinstance(value, bool) and isinstance(value, int | float)
    }
    return {**{name: data[name] for name in texts}, "numbers": numbers}
