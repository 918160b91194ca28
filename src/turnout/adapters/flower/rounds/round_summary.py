"""Summarises each round for Flower's log and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnout.adapters.flower.rounds.live_round import LiveRound
from turnout.kernel.certificate import Certificate
from turnout.scheduler import KINDS, SURPLUS, Scheduler, Turn
from turnout.store.training_log import OWN_PREFIX

MAX_LISTED = 10  # clients named in one log line


def describe_selection(scheduler: Scheduler, current: LiveRound) -> str:
    """Returns a text with the selected clients, how far each is behind its promise, and its expected exchange time."""
    if not current.nodes:
        return "no clients: none is available"
    ids, rows, certificate = scheduler.clients, current.opened.rows.tolist(), _certificate(scheduler)
    behind = None if certificate is None else certificate.behind
    clients = []
    for row in rows[:MAX_LISTED]:
        client = ids[row]
        reasons = [f"expected {current.expected[client]:.1f} s" if client in current.expected else "never timed"]
        if behind is not None:
            reasons.insert(0, f"{behind[row]:.2f} behind" if behind[row] >= 0 else f"{-behind[row]:.2f} ahead")
        clients.append(f"{client} ({', '.join(reasons)})")
    return join_first(clients, len(rows))


@dataclass(frozen=True, slots=True)
class RoundSummary:
    """A closed round in one sentence, and the same as numbers, to be added to the round's training metrics."""

    text: str
    metrics: dict[str, float]


def summarize_round(scheduler: Scheduler, round: int, expected: Mapping[str, float], waited: float) -> RoundSummary:
    """Summarises a closed round: its duration, its slowest client, missing clients, and the status of the promise.

    Args:
        scheduler: the fleet.
        round: the round of the fleet.
        expected: the predicted seconds of the clients.
        waited: the seconds that the server waited, for replies and for failures.
    """
    turns = scheduler.turns(round)
    certificate = _certificate(scheduler)
    status = None if certificate is None else certificate.summary()
    metrics = {
        f"{OWN_PREFIX}round-seconds": waited if turns else 0.0,
        f"{OWN_PREFIX}asked": float(len(turns)),
        f"{OWN_PREFIX}arrived": float(sum(turn.kind == "arrived" for turn in turns)),
    }
    if len(expected) == len(turns) > 0:
        metrics[f"{OWN_PREFIX}expected-seconds"] = max(expected.values())
    parts = _describe_turns(turns, expected, waited)
    if status is not None:
        parts.append(f"promise {status.sentence(scheduler.clients.__getitem__)}")
        if certificate is not None and len(certificate.turns):
            metrics[f"{OWN_PREFIX}most-behind-turns"] = status.worst_behind
            metrics[f"{OWN_PREFIX}broken-promises"] = float(status.broken)
            metrics[f"{OWN_PREFIX}fewest-turns"] = float(certificate.turns.min())
    return RoundSummary("; ".join(parts), metrics)


def _describe_turns(turns: Sequence[Turn], expected: Mapping[str, float], waited: float) -> list[str]:
    times = {turn.id: turn.seconds for turn in turns if turn.kind == "arrived" and turn.seconds is not None}
    parts = [f"took {waited:.1f} s" if turns else "had no participants"]
    if times:
        slowest = max(times, key=lambda client: times[client])
        prediction = f", expected {expected[slowest]:.1f} s" if slowest in expected else ""
        parts.append(f"the last one back was {slowest} after {times[slowest]:.1f} s{prediction}")
    elif turns:
        parts.append("no client came back")
    for kind in reversed(KINDS[SURPLUS:]):
        clients = [f"{turn.id}: {turn.why}" if turn.why else turn.id for turn in turns if turn.kind == kind]
        if clients:
            parts.append(f"{kind} {join_first(clients)}")
    return parts


def _certificate(scheduler: Scheduler) -> Certificate | None:
    return scheduler.certificate() if scheduler.promises else None


def join_first(items: Sequence[str], count: int | None = None) -> str:
    """Returns the first ten items in one line, and the number of the others; `count` is that of all items."""
    others = (len(items) if count is None else count) - MAX_LISTED
    return ", ".join(items[:MAX_LISTED]) + (f" and {others:,} more" if others > 0 else "")
