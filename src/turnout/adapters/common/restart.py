"""What a server that was restarted does with the turns that an earlier one gave."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from turnout.adapters.common.fleet import Fleet
from turnout.live import RunningTurn

GONE = "was not connected when the server restarted"


def take_over_round(scheduler: Fleet, connected: Collection[str]) -> tuple[list[str], frozenset[str]]:
    """Returns the clients of the open round that can train again, and those whose outcome is recorded already.

    The turns of clients that are not connected have failed.
    """
    cohort, turns = scheduler.choose({}), scheduler.history()
    recorded = frozenset(turn.id for turn in turns if turn.kind is not None)
    failed = {turn.id for turn in turns if turn.kind == "failed"}
    for client in cohort:
        if client not in connected and client not in recorded:
            scheduler.report_failure(client, GONE)
    return [client for client in cohort if client in connected and client not in failed], recorded


def keep_turns(
    turns: Sequence[RunningTurn], connected: Collection[str], fail: Callable[[RunningTurn, str], object]
) -> list[RunningTurn]:
    """Returns the turns whose clients are connected, and train again; the others fail."""
    for turn in turns:
        if turn.client not in connected:
            fail(turn, GONE)
    return [turn for turn in turns if turn.client in connected]
