"""Computes the outcome of a round when it is closed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from turnout.live.turns.outcomes import KINDS
from turnout.live.turns.records import LateTimes, Turn, signals_of
from turnout.live.turns.rounds.records import ClosedRound, OpenRound

#: The reason that is recorded for clients that had not reported when a round without a known duration was closed.
UNKNOWN_TIME = "it did not report, and the time since the selection is unknown"


def build_closed_round(
    opened: OpenRound, turns: Sequence[Turn], late_turns: Sequence[Turn], after: float | None
) -> tuple[ClosedRound, list[Turn]]:
    """Returns the closed round, and the turns that it changes: those of clients that are missing or redundant.

    The first `opened.target_size` clients that returned are kept, ties broken by the lower row. If enough returned, a
    missing client is cut off by the last of them. Otherwise it is late.

    Args:
        opened: The open round.
        turns: Its turns.
        late_turns: Turns of earlier rounds whose late times are learned with this round.
        after: The time in seconds after which missing clients are late if the round has no deadline; None for the time
            since the round was opened. If that is unknown, missing clients have failed.
    """
    arrived = sorted((turn for turn in turns if turn.kind == "arrived"), key=lambda turn: (turn.seconds, turn.row))
    kept, redundant = arrived[: opened.target_size], {turn.row for turn in arrived[opened.target_size :]}
    duration = max((turn.seconds or 0.0 for turn in kept), default=0.0)
    # If everybody who has not returned has failed, the server did not wait for the deadline.
    is_waiting = not kept or any(turn.kind is None for turn in turns)
    missing = "late" if len(kept) < opened.target_size else "cut_off"
    if len(kept) < opened.target_size and is_waiting:
        limit = float(opened.deadline or after or opened.elapsed)  # the checksum of a turn is that of a float
        if math.isnan(limit):  # nothing can be learned from how long the missing clients took
            limit, missing = 0.0, "failed"
        duration = max(duration, limit)
    finished = {turn.row: _finish_turn(turn, duration, missing, turn.row in redundant) for turn in turns}
    in_order = [finished[row] for row in opened.rows.tolist()]
    losses = np.array([np.nan if turn.loss is None else turn.loss for turn in in_order], dtype=np.float64)
    closed = ClosedRound(
        round=opened.round,
        rows=opened.rows,
        contexts=opened.contexts,
        seconds=np.array([_seconds(turn, duration, is_waiting) for turn in in_order], dtype=np.float64),
        kinds=np.array([KINDS.index(str(turn.kind)) for turn in in_order], dtype=np.int64),
        available=opened.available,
        late=LateTimes.of(late_turns),
        losses=None if np.isnan(losses).all() else losses,
        signals=signals_of(in_order),
    )
    return closed, [finished[turn.row] for turn in turns if finished[turn.row] is not turn]


def _seconds(turn: Turn, duration: float, is_waiting: bool) -> float:
    """Returns the exchange time of a turn, or how long the server waited for the client.

    When a client failed is not recorded: it counts with the whole round if others were awaited until the end, otherwise
    with 0, because the round then ended with the last update.
    """
    if turn.seconds is not None:
        return turn.seconds
    return duration if is_waiting or turn.kind != "failed" else 0.0


def _finish_turn(turn: Turn, duration: float, missing: str, redundant: bool) -> Turn:
    if turn.kind is None and missing == "failed":
        return replace(turn, kind=missing, why=UNKNOWN_TIME)
    if turn.kind is None:
        return replace(turn, kind=missing, seconds=duration)
    return replace(turn, kind="redundant") if redundant else turn
