"""The closed rounds of a fleet as records that can be replayed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turnout.kernel.arrays import FloatArray
from turnout.kernel.rounds import LateArrivals, RoundRecord, RoundReport, Selection
from turnout.live._internals import SURPLUS, RecordedRound


def round_records(rounds: Sequence[RecordedRound], clients: int, *, wait_for_all: bool = False) -> list[RoundRecord]:
    """Returns records with rounds numbered from 1 and availability masks for the current number of clients.

    A client that returned after the round had enough others is late, with the time at which the round was over. If
    `wait_for_all`, it arrived at its own time, as it would have if the server had waited for it.
    """
    number_of = {closed.round: number for number, closed in enumerate(rounds, start=1)}
    turns: dict[tuple[int, int], tuple[FloatArray, float]] = {}
    records = []
    for number, closed in enumerate(rounds, start=1):
        available = np.zeros(clients, dtype=np.bool_)
        if closed.available is not None:
            available[: len(closed.available)] = closed.available
        surplus = closed.kinds == SURPLUS
        seconds = closed.seconds if wait_for_all else np.where(surplus, closed.duration, closed.seconds)
        late = [
            (number_of[late.round], late.row, *turns[number_of[late.round], late.row], late.seconds)
            for late in closed.late
            if late.round in number_of
        ]
        report = RoundReport(
            number,
            closed.rows,
            closed.contexts,
            seconds,
            available=available,
            outcomes=np.where(surplus, "arrived", closed.outcomes) if wait_for_all else closed.outcomes,
            losses=closed.losses,
            late_arrivals=_late(late),
        )
        records.append(RoundRecord(Selection(number, closed.rows), report))
        for at, row in enumerate(closed.rows.tolist()):
            turns[number, row] = (closed.contexts[at], float(seconds[at]))
    return records


def _late(arrivals: Sequence[tuple[int, int, FloatArray, float, float]]) -> LateArrivals | None:
    if not arrivals:
        return None
    rounds, rows, contexts, deadlines, seconds = zip(*arrivals, strict=True)
    return LateArrivals(
        np.array(rounds), np.array(rows), np.array(contexts), np.array(deadlines), np.maximum(seconds, deadlines)
    )
