"""Example rounds for the store, ordinary ones and unusual ones that the kernel allows, and interrupted runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from narrowing import known
from turnout import SelectionPolicy, make_policy
from turnout.kernel.rounds import LateArrivals, RoundRecord, RoundReport, Selection
from turnout.lab import RoundColumns, RunPlan, RunStore, play_plan
from turnout.policies.check_support import SmallFleet


def play_rounds(rounds: int, *, name: str = "rbcsf", seed: int = 0, **settings: Any) -> list[RoundRecord]:
    return records_of(make_policy(name, 40), SmallFleet(seed, **settings), rounds)


def records_of(policy: SelectionPolicy, fleet: SmallFleet, rounds: int) -> list[RoundRecord]:
    records = []
    for round_ in range(1, rounds + 1):
        offer = fleet.offer(round_)
        selection = policy.ask(offer)
        report = fleet.play(offer, selection)
        policy.tell(report)
        records.append(RoundRecord(selection, report))
    return records


def columns_of(records: list[RoundRecord]) -> RoundColumns:
    return RoundColumns.from_records(records, clients=40)


def make_selection(*clients: int, round_: int = 1, **reasons: Any) -> Selection:
    return Selection(round_, np.array(clients, dtype=np.int64), reasons)


def make_report(*clients: int, round_: int = 1, features: int = 1, **fields: Any) -> RoundReport:
    """Returns a report in which every number is a function of its client."""
    rows = np.array(clients, dtype=np.int64)
    contexts = np.repeat(rows[:, None], features, axis=1).astype(np.float64)
    return RoundReport(round_, rows, contexts, rows / 10, **fields)


def unusual_rounds() -> list[RoundRecord]:
    """Returns rounds 1 to 11 with no, all and many combinations of the optional fields."""
    plain = RoundReport(1, np.array([3, 1]), np.array([[1.0, -0.0], [2.0, 5e-324]]), np.array([0.1, 1e9]))
    selection = make_selection(3, 1, owed=[np.nan, np.inf], threshold=3.0)
    empty_report, empty_selection = make_report(features=2), make_selection()
    complete = replace(
        plain,
        available=np.arange(40) < 7,
        outcomes=["late", "failed"],
        losses=np.array([np.nan, 0.5]),
        signals={"utility": np.array([3.1, np.nan])},
        metrics={"accuracy": 0.25, "a word/with\0odd letters": -0.0},
    )
    pairs = [
        (selection, plain),
        (selection, complete),
        (empty_selection, empty_report),
        (make_selection(owed=[], threshold=np.nan), replace(empty_report, outcomes=[], losses=np.empty(0))),
        (empty_selection, replace(empty_report, available=np.zeros(40, dtype=np.bool_))),
        (make_selection(3, 1, owed=1.0, threshold=[1.0, 2.0]), replace(plain, outcomes=["arrived"] * 2)),
        (replace(selection, clients=np.array([1, 3])), replace(complete, clients=np.array([1, 3]))),
        (selection, replace(complete, late_arrivals=make_late_arrivals(2, features=2))),
        (
            empty_selection,
            replace(empty_report, late_arrivals=make_late_arrivals(0, features=7), metrics={"accuracy": 1.0}),
        ),
        (make_selection(39), make_report(39, features=2)),
        (selection, replace(complete, late_arrivals=make_late_arrivals(3, features=2))),
    ]
    return [
        RoundRecord(replace(selection, round=round_), replace(report, round=round_))
        for round_, (selection, report) in enumerate(pairs, start=1)
    ]


def make_late_arrivals(count: int, *, features: int) -> LateArrivals:
    rows = np.arange(count)
    contexts = np.linspace(0, 1, count * features).reshape(count, features)
    deadlines, times = rows.astype(np.float64), rows.astype(np.float64) + 7.5
    return LateArrivals(rows + 1, rows[::-1] * 3, contexts, deadlines, times, learned_since=rows)


def bytes_of(records: list[RoundRecord]) -> list[bytes]:
    """Returns the bytes of all numbers, because `==` does not distinguish -0.0 from 0.0, or one NaN from another."""
    data: list[bytes] = []
    for record in records:
        for value in (record.selection, record.report, record.report.late_arrivals):
            for name in getattr(value, "__slots__", ()):
                attribute = getattr(value, name)
                arrays = attribute.values() if hasattr(attribute, "values") else [attribute]
                data += [np.asarray(array).tobytes() for array in arrays if isinstance(array, np.ndarray | float)]
    return data


class Stop(Exception):
    """Simulates an interruption."""


def stop_after(count: int, error: type[BaseException] = Stop) -> Callable[..., None]:
    """Returns a callback that raises `error` at its call number `count`."""
    calls = []

    def watch(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == count:
            raise error

    return watch


def assert_holds(store: RunStore, plan: RunPlan, *, whole: bytes | None = None) -> None:
    """Asserts that the run of this plan is stored, finished and byte-identical to an undisturbed run."""
    info = known(store.find(plan.key))
    assert info.finished
    assert info.rounds == plan.rounds
    assert store.columns(info.id).to_bytes() == (play_plan(plan).to_bytes() if whole is None else whole)
