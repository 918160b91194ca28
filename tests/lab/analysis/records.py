"""Small recorded rounds for the tests of metrics."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import strategies as st

from turnout.kernel.arrays import FloatArray
from turnout.kernel.fairness import FairnessQueues
from turnout.kernel.rounds import OUTCOMES, RoundRecord, RoundReport, Selection
from turnout.lab.columns import RoundColumns
from turnout.lab.worlds.paper import PaperWorld


def steady_world(clients: int, **settings: Any) -> PaperWorld:
    """Returns a world whose clients are always available, with expected times from 1 / clients to 1 second."""
    classes = [(number / clients, 0.0, 1e9) for number in range(1, clients + 1)]
    constant = {"free_cpu": (1, 1), "bandwidth": (1e6, 1e6), "model_size": 1.0, "availability": 1.0}
    return PaperWorld(clients=clients, classes=classes, **{**constant, **settings})


def records_of(
    cohorts: Sequence[Sequence[int]],
    *,
    clients: int,
    times: Sequence[Sequence[float]] | None = None,
    contexts: Sequence[Sequence[Sequence[float]]] | None = None,
    outcomes: Sequence[Sequence[str]] | None = None,
    available: Sequence[Sequence[bool]] | None = None,
) -> list[RoundRecord]:
    records = []
    for index, cohort in enumerate(cohorts):
        rows = np.array(cohort, dtype=np.int64)
        features = (
            np.ones((len(rows), 1)) if contexts is None else np.reshape(np.array(contexts[index]), (len(rows), -1))
        )
        report = RoundReport(
            index + 1,
            rows,
            features,
            np.ones(len(rows)) if times is None else np.array(times[index], dtype=np.float64),
            available=np.ones(clients, dtype=np.bool_) if available is None else np.array(available[index]),
            outcomes=None if outcomes is None else outcomes[index],
        )
        records.append(RoundRecord(Selection(index + 1, rows), report))
    return records


def columns_of(cohorts: Sequence[Sequence[int]], *, clients: int, **details: Any) -> RoundColumns:
    return RoundColumns.from_records(records_of(cohorts, clients=clients, **details), clients=clients)


def owed_by_queues(
    columns: RoundColumns, rate: Any, *, accrual: Any = "always", max_owed: Any = None, counted_outcomes: Any = OUTCOMES
) -> FloatArray:
    """Returns the turns owed to each client after each round, as the kernel's queues count them."""
    queues, owed = FairnessQueues(columns.clients, rate, accrual=accrual, max_owed=max_owed), []
    for record in columns.records():
        report = record.report
        queues.advance(report.clients[report.with_outcome(*counted_outcomes)], report.available)
        owed.append(queues.owed)
    return np.array(owed)


@st.composite
def histories(draw: st.DrawFn) -> dict[str, Any]:
    clients = draw(st.integers(1, 5))
    masks = st.lists(st.booleans(), min_size=clients, max_size=clients)
    rounds = draw(st.lists(st.tuples(masks, masks), min_size=1, max_size=25))
    cohorts = [[row for row in range(clients) if available[row] and picked[row]] for available, picked in rounds]
    rates = st.sampled_from([Fraction(0), Fraction(3, 20), Fraction(1, 3), Fraction(1, 2), Fraction(1)])
    outcomes = st.sampled_from(OUTCOMES)
    return {
        "clients": clients,
        "cohorts": cohorts,
        "available": [available for available, _ in rounds],
        "outcomes": [draw(st.lists(outcomes, min_size=len(rows), max_size=len(rows))) for rows in cohorts],
        "rate": draw(st.one_of(rates, st.lists(rates, min_size=clients, max_size=clients))),
        "accrual": draw(st.sampled_from(["always", "available"])),
    }
