"""Summarises each round for Flower's log and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnout.kernel.certificate import Certificate
from turnout.scheduler import ARRIVED, KINDS, STILL_OUT, SURPLUS, Scheduler, Turn
from turnout.store.training_log import OWN_PREFIX

MAX_LISTED = 10  # clients named in one log line


def describe_selection(scheduler: Scheduler, nodes: Mapping[str, int]) -> str:
    """Returns a text with the selected clients, how far each is behind its promise, and its expected exchange time."""
    opened = scheduler.open_round
    if opened is None or not nodes:
        return "no clients: none is available"
    ids, expected = scheduler.clients, scheduler.predicted()
    certificate = _certificate(scheduler)
    clients = []
    for row in opened.rows.tolist():
        client = ids[row]
        reasons = [f"expected {expected[client]:.1f} s" if client in expected else "never timed"]
        if certificate is not None:
            behind = float(certificate.behind[row])
            reasons.insert(0, f"{behind:.2f} behind" if behind >= 0 else f"{-behind:.2f} ahead")
        clients.append(f"{client} ({', '.join(reasons)})")
    return _join_first(clients)


def describe_outcome(scheduler: Scheduler, round: int, expected: Mapping[str, float]) -> str:
    """Returns a text with the round's duration, its slowest client, missing clients, and the status of the promise."""
    turns = scheduler.turns(round)
    times = {turn.id: turn.seconds for turn in turns if turn.kind == "arrived" and turn.seconds is not None}
    parts = [f"took {_duration(turns):.1f} s" if turns else "had no participants"]
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
    certificate = _certificate(scheduler)
    if certificate is not None:
        parts.append(f"promise {certificate.summary().sentence(scheduler.clients.__getitem__)}")
    return "; ".join(parts)


def round_metrics(scheduler: Scheduler, round: int, expected: Mapping[str, float]) -> dict[str, float]:
    """Returns the same summary as numbers, to be added to the round's training metrics."""
    turns = scheduler.turns(round)
    metrics = {
        f"{OWN_PREFIX}round-seconds": _duration(turns),
        f"{OWN_PREFIX}asked": float(len(turns)),
        f"{OWN_PREFIX}arrived": float(sum(turn.kind == "arrived" for turn in turns)),
    }
    if len(expected) == len(turns) > 0:
        metrics[f"{OWN_PREFIX}expected-seconds"] = max(expected.values())
    certificate = _certificate(scheduler)
    if certificate is not None and len(certificate.turns):
        summary = certificate.summary()
        metrics[f"{OWN_PREFIX}most-behind-turns"] = summary.worst_behind
        metrics[f"{OWN_PREFIX}broken-promises"] = float(summary.broken)
        metrics[f"{OWN_PREFIX}fewest-turns"] = float(certificate.turns.min())
    return metrics


def _duration(turns: Sequence[Turn]) -> float:
    """Returns the seconds until enough clients had replied or the round stopped waiting for the missing ones."""
    waited = [turn.seconds for turn in turns if turn.kind in (KINDS[ARRIVED], *STILL_OUT) and turn.seconds is not None]
    return max(waited, default=0.0)


def _certificate(scheduler: Scheduler) -> Certificate | None:
    return scheduler.certificate() if scheduler.promises else None


def _join_first(items: list[str]) -> str:
    more = f" and {len(items) - MAX_LISTED:,} more" if len(items) > MAX_LISTED else ""
    return ", ".join(items[:MAX_LISTED]) + more
