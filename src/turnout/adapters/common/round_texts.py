"""Sentences about a round, for the log of a server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from turnout.adapters.common.fleet import Fleet, facts_of
from turnout.live import Turn
from turnout.live._internals import ARRIVED, KINDS, REDUNDANT, SelectedClient
from turnout.storage.training_log import OWN_PREFIX

MAX_LISTED = 10  # clients named in one log line


def describe_selection(selected: Sequence[SelectedClient]) -> str:
    """Returns a text with selected clients, how far each is behind its promise, and its expected exchange time."""
    clients = []
    for each in selected[:MAX_LISTED]:
        unknown = "just started" if each.timed else "never timed"
        reasons = [unknown if each.expected_seconds is None else f"expected {each.expected_seconds:.1f} s"]
        if each.behind is not None:
            reasons.insert(0, f"{each.behind:.2f} behind" if each.behind >= 0 else f"{-each.behind:.2f} ahead")
        clients.append(f"{each.client} ({', '.join(reasons)})")
    return join_first(clients, len(selected))


def expected_seconds(selected: Iterable[SelectedClient]) -> dict[str, float]:
    """Returns the predicted seconds of the clients that have any."""
    return {each.client: each.expected_seconds for each in selected if each.expected_seconds is not None}


def summarize_round(
    scheduler: Fleet, turns: Sequence[Turn], expected: Mapping[str, float], waited: float
) -> tuple[str, dict[str, float]]:
    """Returns a text about a closed round, and numbers for the metrics of the round.

    They tell its duration, its slowest client, missing clients, and the status of the promise.

    Args:
        scheduler: The fleet.
        turns: The turns of the round.
        expected: The predicted seconds of the clients whose times were learned before.
        waited: The seconds that the server waited, for replies and for failures.
    """
    arrived = KINDS[ARRIVED]
    times = {turn.id: turn.seconds for turn in turns if turn.kind == arrived and turn.seconds is not None}
    parts = [f"took {waited:.1f} s" if turns else "had no participants"]
    if times:
        slowest = max(times, key=lambda client: times[client])
        prediction = f", expected {expected[slowest]:.1f} s" if slowest in expected else ""
        parts.append(f"the last one back was {slowest} after {times[slowest]:.1f} s{prediction}")
    elif turns:
        parts.append("no client came back")
    for kind in reversed(KINDS[REDUNDANT:]):
        clients = [f"{turn.id}: {turn.why}" if turn.why else turn.id for turn in turns if turn.kind == kind]
        if clients:
            parts.append(f"{kind} {join_first(clients)}")
    metrics = {
        f"{OWN_PREFIX}round-seconds": waited if turns else 0.0,
        f"{OWN_PREFIX}asked": float(len(turns)),
        f"{OWN_PREFIX}arrived": float(sum(turn.kind == arrived for turn in turns)),
    }
    if len(expected) == len(turns) > 0:
        metrics[f"{OWN_PREFIX}expected-seconds"] = max(expected.values())
    promise, status = summarize_promise(scheduler)
    return "; ".join([*parts, *promise]), metrics | status


def summarize_promise(scheduler: Fleet) -> tuple[list[str], dict[str, float]]:
    """Returns a text about the promise, and its status as numbers; nothing if there is none."""
    promise = facts_of(scheduler).promise()
    if promise is None:
        return [], {}
    sentence, numbers = promise
    return [f"promise {sentence}"], {f"{OWN_PREFIX}{name}": value for name, value in numbers.items()}


def join_first(items: Sequence[str], count: int | None = None) -> str:
    """Returns the first ten items in one line, and the number of the others; `count` is that of all items."""
    others = (len(items) if count is None else count) - MAX_LISTED
    return ", ".join(items[:MAX_LISTED]) + (f" and {others:,} more" if others > 0 else "")
