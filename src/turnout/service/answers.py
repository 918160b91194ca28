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

#: The most clients that a list of the status names.
MAX_NAMED = 1000


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


def status_to_dict(fleet: str, scheduler: Scheduler) -> dict[str, Any]:
    """Returns the state of a fleet."""
    found = scheduler.status()
    return {
        "fleet": fleet,
        "clients": found.clients,
        "retired": found.retired,
        "round": found.round,
        "is_open": found.is_open,
        "elapsed": number(found.elapsed),
        "deadline": number(found.deadline),
        "target_size": found.target_size,
        "slots": found.slots,
        "out": found.out[:MAX_NAMED],
        "arrived": found.arrived[:MAX_NAMED],
        "failed": dict(list(found.failed.items())[:MAX_NAMED]),
        "suspects": found.suspects[:MAX_NAMED],
        "promise": None if found.promise is None else found.promise.to_dict(lambda _: str(found.worst)),
        "notices": found.notices,
    }


def certificate_to_dict(scheduler: Scheduler, client: str | None, limit: int) -> dict[str, Any]:
    """Returns the promise, and what one client, or those that are furthest behind, were promised and got."""
    found, ids = scheduler.certificate(), scheduler.clients
    if client is not None:
        return found.to_dict(ids, [session_of(scheduler).row(client)])
    rows = np.argsort(-found.behind_units, kind="stable")[:limit]
    return found.to_dict(ids, rows.tolist())


def explanation_to_dict(found: Explanation) -> dict[str, Any]:
    """Returns an explanation; its numbers by name."""
    data: Mapping[str, Any] = asdict(found)
    texts = ("round", "client", "policy", "outcome", "exact", "sentence")
    numbers = {
        name: number(value)
        for name, value in data.items()
        if name not in texts and not isinstance(value, bool) and isinstance(value, int | float)
    }
    return {**{name: data[name] for name in texts}, "numbers": numbers}
