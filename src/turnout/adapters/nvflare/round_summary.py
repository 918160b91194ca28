"""Summarises each round for the log of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnout.scheduler import KINDS, STILL_OUT, SURPLUS, Scheduler

MAX_LISTED = 10  # clients named in one log line


def describe_selection(scheduler: Scheduler, cohort: Sequence[str]) -> str:
    """Returns a text with the selected clients, how far each is behind its promise, and its expected exchange time."""
    expected = scheduler.predicted_seconds()
    behind = scheduler.certificate().behind if scheduler.has_guarantee else None
    clients = []
    for client, row in zip(cohort, scheduler.rows(cohort).tolist(), strict=True):
        reasons = [f"expected {expected[client]:.1f} s" if client in expected else "never timed"]
        if behind is not None:
            turns = float(behind[row])
            reasons.insert(0, f"{turns:.2f} behind" if turns >= 0 else f"{-turns:.2f} ahead")
        clients.append(f"{client} ({', '.join(reasons)})")
    return _join_first(clients)


def describe_outcome(scheduler: Scheduler, round: int, expected: Mapping[str, float]) -> str:
    """Returns a text with the round's duration, its slowest client, missing clients, and the status of the promise."""
    turns = scheduler.turns(round)
    times = {turn.id: turn.seconds for turn in turns if turn.kind == KINDS[0] and turn.seconds is not None}
    waited = [turn.seconds for turn in turns if turn.kind in (KINDS[0], *STILL_OUT) and turn.seconds is not None]
    parts = [f"round {round} took {max(waited, default=0.0):.1f} s" if turns else f"round {round} had no participants"]
    if times:
        slowest = max(times, key=lambda client: times[client])
        prediction = f", expected {expected[slowest]:.1f} s" if slowest in expected else ""
        parts.append(f"the last one back was {slowest} after {times[slowest]:.1f} s{prediction}")
    elif turns:
        parts.append("no client came back")
    for kind in reversed(KINDS[SURPLUS:]):
        clients = [f"{turn.id}: {turn.why}" if turn.why else turn.id for turn in turns if turn.kind == kind]
        if clients:
            parts.append(f"{kind} {_join_first(clients)}")
    if scheduler.has_guarantee:
        parts.append(f"promise {scheduler.certificate().summary().sentence(scheduler.clients.__getitem__)}")
    return "; ".join(parts)


def _join_first(items: list[str]) -> str:
    more = f" and {len(items) - MAX_LISTED:,} more" if len(items) > MAX_LISTED else ""
    return ", ".join(items[:MAX_LISTED]) + more
