"""What a round comes to when it is closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from turnout.scheduler.outcomes import KINDS
from turnout.scheduler.records import ClosedRound, OpenRound, Turn


def closed_round(
    opened: OpenRound, turns: Sequence[Turn], waiting: Sequence[Turn], after: float | None
) -> tuple[ClosedRound, list[Turn]]:
    """The round as memory takes it in, and its turns with who is still out and who came after enough others.

    The first that come back are kept, of equals the lower row. Who is still out when enough came is outrun by the last
    of those; else it is late: after the deadline, or after `after` seconds, by default those that have passed.
    """
    back = sorted((turn for turn in turns if turn.kind == "arrived"), key=lambda turn: (turn.seconds, turn.row))
    kept, surplus = back[: opened.wanted], {turn.row for turn in back[opened.wanted :]}
    over = max((turn.seconds or 0.0 for turn in kept), default=0.0)
    if len(kept) < opened.wanted:
        limit = opened.deadline or after
        over = max(over, opened.elapsed if limit is None else limit)
    missing = "late" if len(kept) < opened.wanted else "outrun"
    told = {turn.row: _told(turn, over, missing, turn.row in surplus) for turn in turns}
    in_order = [told[row] for row in opened.rows.tolist()]
    losses = np.array([np.nan if turn.loss is None else turn.loss for turn in in_order], dtype=np.float64)
    closed = ClosedRound(
        round=opened.round,
        rows=opened.rows,
        contexts=opened.contexts,
        seconds=np.array([over if turn.seconds is None else turn.seconds for turn in in_order], dtype=np.float64),
        kinds=np.array([KINDS.index(str(turn.kind)) for turn in in_order], dtype=np.int64),
        available=opened.available,
        late_rounds=np.array([turn.round for turn in waiting], dtype=np.int64),
        late_rows=np.array([turn.row for turn in waiting], dtype=np.int64),
        late_seconds=np.array([turn.late_seconds for turn in waiting], dtype=np.float64),
        losses=None if np.isnan(losses).all() else losses,
    )
    return closed, list(told.values())


def _told(turn: Turn, over: float, missing: str, surplus: bool) -> Turn:
    if turn.kind is None:
        return replace(turn, kind=missing, seconds=over)
    return replace(turn, kind="surplus") if surplus else turn
