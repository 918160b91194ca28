"""Converts values of the scheduler to what the service answers."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from turnout.live import RunningTurn, Scheduler
from turnout.live._internals import LAST_ROUND, OpenRound, StaleError, moment_after, session_of, target_size
from turnout.policies.explain.explanation import Explanation
from turnout.service.errors import CursorError, UnknownRoundError


def number(value: float | None) -> float | None:
    """Returns a number, or None for NaN and infinity, which JSON does not have."""
    return None if value is None or not math.isfinite(value) else float(value)


def turn_to_dict(turn: RunningTurn) -> dict[str, Any]:
    """Returns a turn that was given."""
    return {
        "id": turn.id,
        "client": turn.client,
        "deadline": number(turn.deadline),
        "selected_at": turn.selected_at,
        "deadline_at": turn.deadline_at,
        "reasons": {name: number(value) for name, value in turn.reasons.items()},
    }


def open_round_to_dict(opened: OpenRound, cohort: list[str]) -> dict[str, Any]:
    """Returns an open round."""
    return {
        "round": opened.round,
        "cohort": cohort,
        "deadline": number(opened.deadline),
        "selected_at": opened.opened,
        "deadline_at": moment_after(opened.opened, opened.deadline),
        "target_size": int(opened.target_size),
    }


def round_to_dict(scheduler: Scheduler, round: int, page: Page | None = None) -> dict[str, Any]:
    """Returns a round, open or closed, with its turns: all, or those of a page.

    Raises:
        UnknownRoundError: If there is no such round.
        StaleError: If it is no longer kept.
    """
    session = session_of(scheduler)
    with session.lock:
        opened, newest = scheduler.open_round, scheduler.round
        if not 1 <= round <= newest:
            raise UnknownRoundError(f"there is no round {round}: the newest has number {newest}")
        turns = scheduler.history(round=round)
        if not turns and round <= session.journal.summary().round:
            raise StaleError(f"round {round} is no longer kept")
    is_open = any(turn.kind is None for turn in turns) if opened is None else opened.round == round
    (first,) = (page or Page(len(turns))).cursor(-1)
    shown = turns[first + 1 :][: page.limit if page is not None else None]
    last = first + len(shown)
    following = str(last) if last + 1 < len(turns) else None
    return {"round": round, "is_open": is_open, "turns": [turn.to_dict() for turn in shown], "next": following}


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list: at most so many entries after a cursor, which is the `next` of the part before it."""

    limit: int
    after: str | None = None

    def cursor(self, *first: int) -> tuple[int, ...]:
        """Returns the numbers of the cursor; those of the first part without one.

        Raises:
            CursorError: If it is not one that an answer had.
        """
        if self.after is None:
            return first
        numbers = re.fullmatch(r"\.".join([r"(-?[0-9]{1,18})"] * len(first)), self.after)
        if numbers is None:
            raise CursorError("after must be the `next` of an answer to the same call")
        return tuple(map(int, numbers.groups()))


def turns_to_dict(scheduler: Scheduler, page: Page) -> dict[str, Any]:
    """Returns the turns whose results are not known yet, in the order of their ids."""
    (last,) = page.cursor(0)
    turns = sorted((turn for turn in scheduler.running() if turn.id > last), key=lambda turn: turn.id)
    shown = turns[: page.limit]
    following = str(shown[-1].id) if len(shown) < len(turns) else None
    return {"turns": [turn_to_dict(turn) for turn in shown], "next": following}


def clients_to_dict(scheduler: Scheduler, page: Page) -> dict[str, Any]:
    """Returns clients in the order in which they joined."""
    (last,), session = page.cursor(-1), session_of(scheduler)
    with session.lock:
        fleet = session.fleet
        rows = range(len(fleet.ids))[last + 1 :][: page.limit] if last >= -1 else range(0)
        retired, until = fleet.counters.retired, fleet.counters.backoff_until
        suspects, is_backed_off = fleet.history.suspects(), fleet.counters.backing_off(fleet.round)
        returned = fleet.counters.last_trained
        clients = [
            {
                "client": fleet.ids[row],
                "retired": bool(retired[row]),
                "backed_off_until": int(until[row]) if is_backed_off[row] and not retired[row] else None,
                "last_round": int(returned[row]) if returned[row] > 0 else None,
                "suspect": bool(suspects[row]),
            }
            for row in rows
        ]
        of = len(fleet.ids)
    return {"clients": clients, "of": of, "next": str(rows[-1]) if rows and rows[-1] + 1 < of else None}


def history_to_dict(scheduler: Scheduler, client: str, page: Page) -> dict[str, Any]:
    """Returns turns of a client, newest first."""
    (before,), turns = page.cursor(LAST_ROUND + 1), scheduler.history(client)
    older = [turn for turn in reversed(turns) if turn.round < before]
    shown = older[: page.limit]
    following = str(shown[-1].round) if len(shown) < len(older) else None
    return {"turns": [turn.to_dict() for turn in shown], "of": len(turns), "next": following}


def settings_to_dict(scheduler: Scheduler) -> dict[str, Any]:
    """Returns the settings and the features of a fleet, and a tag that changes with them."""
    session = session_of(scheduler)
    with session.lock:
        settings, features = session.settings.to_dict(), session.features.declared
    del settings["packages"]
    declared = [{"name": each.name, "low": each.low, "high": each.high, "unit": each.unit} for each in features]
    data = {"settings": settings, "features": declared}
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    return {**data, "target_size": target_size(session), "etag": f'"{digest[:16]}"'}


def certificate_to_dict(scheduler: Scheduler, client: str | None, page: Page) -> dict[str, Any]:
    """Returns the promise, and what one client, or those that are furthest behind, were promised and got."""
    certificate, ids = scheduler.certificate(), scheduler.clients
    if client is not None:
        return {**certificate.to_dict(ids, [session_of(scheduler).row(client)]), "next": None}
    behind = certificate.behind_units
    order, start = np.argsort(-behind, kind="stable"), 0
    if page.after is not None:
        units, row = page.cursor(0, 0)
        start = int(np.count_nonzero(behind > units) + np.count_nonzero(np.flatnonzero(behind == units) <= row))
    rows = order[start : start + page.limit].tolist()
    following = f"{int(behind[rows[-1]])}.{rows[-1]}" if rows and start + len(rows) < len(order) else None
    return {**certificate.to_dict(ids, rows), "next": following}


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
