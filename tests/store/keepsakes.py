"""Rounds to keep: ordinary ones from the small fleet, and every odd one the kernel allows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from turnout import make_policy
from turnout.kernel.rounds import LateArrivals, RoundRecord, RoundReport, Selection
from turnout.policies.small_fleet import SmallFleet


def played(rounds: int, *, name: str = "rbcsf", seed: int = 0, **settings: Any) -> list[RoundRecord]:
    policy = make_policy(name, 40)
    fleet = SmallFleet(seed, **settings)
    records = []
    for round_ in range(1, rounds + 1):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        report = fleet.play(offer, selection)
        policy.tell(report)
        records.append(RoundRecord(selection, report))
    return records


def selected(*clients: int, round_: int = 1, **reasons: Any) -> Selection:
    return Selection(round_, np.array(clients, dtype=np.int64), reasons)


def told(*clients: int, round_: int = 1, features: int = 1, **fields: Any) -> RoundReport:
    """A report in which every number follows from the client it is about."""
    rows = np.array(clients, dtype=np.int64)
    contexts = np.repeat(rows[:, None], features, axis=1).astype(np.float64)
    return RoundReport(round_, rows, contexts, rows / 10, **fields)


def odd_rounds() -> list[RoundRecord]:
    """Nothing, everything and every mixture of what is optional, in rounds 1 to 11."""
    plain = RoundReport(1, np.array([3, 1]), np.array([[1.0, -0.0], [2.0, 5e-324]]), np.array([0.1, 1e9]))
    words = selected(3, 1, owed=[np.nan, np.inf], threshold=3.0)
    nobody, nobody_chosen = told(features=2), selected()
    nothing = np.empty(0)
    everything = replace(
        plain,
        available=np.arange(40) < 7,
        outcomes=["late", "failed"],
        losses=np.array([np.nan, 0.5]),
        metrics={"accuracy": 0.25, "a word/with\0odd letters": -0.0},
    )
    pairs = [
        (words, plain),
        (words, everything),
        (nobody_chosen, nobody),
        (selected(owed=[], threshold=np.nan), replace(nobody, outcomes=[], losses=nothing)),
        (nobody_chosen, replace(nobody, contexts=np.empty((0, 5)), available=np.zeros(40, dtype=np.bool_))),
        (selected(3, 1, owed=1.0, threshold=[1.0, 2.0]), replace(plain, outcomes=["arrived"] * 2)),
        (replace(words, clients=np.array([1, 3])), everything),
        (words, replace(everything, late_arrivals=late_arrivals(2, features=2))),
        (nobody_chosen, replace(nobody, late_arrivals=late_arrivals(0, features=7), metrics={"accuracy": 1.0})),
        (selected(39), told(39, features=2)),
        (words, replace(everything, late_arrivals=late_arrivals(3, features=2))),
    ]
    return [
        RoundRecord(replace(selection, round=round_), replace(report, round=round_))
        for round_, (selection, report) in enumerate(pairs, start=1)
    ]


def late_arrivals(count: int, *, features: int) -> LateArrivals:
    rows = np.arange(count)
    contexts = np.linspace(0, 1, count * features).reshape(count, features)
    deadlines, times = rows.astype(np.float64), rows.astype(np.float64) + 7.5
    return LateArrivals(rows + 1, rows[::-1] * 3, contexts, deadlines, times, learned_since=rows)


def bytes_of(records: list[RoundRecord]) -> list[bytes]:
    """Every bit of every number, where `==` would take -0.0 for 0.0 and one NaN for another."""
    every: list[bytes] = []
    for record in records:
        for value in (record.selection, record.report, record.report.late_arrivals):
            for name in getattr(value, "__slots__", ()):
                one = getattr(value, name)
                arrays = one.values() if hasattr(one, "values") else [one]
                every += [np.asarray(array).tobytes() for array in arrays if isinstance(array, np.ndarray | float)]
    return every
