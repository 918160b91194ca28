from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.analysis.records import columns_of, histories, owed_by_queues, records_of
from narrowing import known
from turnout.errors import ReportError, SettingError
from turnout.kernel.rounds import RoundRecord, RoundReport, Selection
from turnout.lab.analysis.metrics import summarise
from turnout.lab.analysis.promise import SHARE_OF, shortfalls
from turnout.lab.columns import RoundColumns


def recount(
    records: list[RoundRecord], rates: list[Fraction], accrual: str, counts: str
) -> tuple[list[list[Fraction]], list[int], list[int]]:
    """Counts with fractions: shortfalls after each round, turns, and rounds in which each client accrued."""
    turns, rounds = [0] * len(rates), [0] * len(rates)
    behind = []
    for record in records:
        report = record.report
        assert report.available is not None
        for client in range(len(rates)):
            rounds[client] += 1 if accrual == "always" else int(report.available[client])
        for index, client in enumerate(report.clients.tolist()):
            outcome = "arrived" if report.outcomes is None else str(report.outcomes[index])
            turns[client] += counts == "selected" or outcome == "arrived"
        behind.append([rate * rounds[client] - turns[client] for client, rate in enumerate(rates)])
    return behind, turns, rounds


@given(histories(), st.sampled_from(["selected", "completed"]), st.sampled_from([0.5, 1, Fraction(7, 3), 2.0]))
@settings(max_examples=60, deadline=None)
def test_shortfalls_equal_a_plain_recount(history: dict[str, Any], counts: Any, tolerance: Any) -> None:
    clients, rate, accrual = history["clients"], history["rate"], history["accrual"]
    records = records_of(
        history["cohorts"], clients=clients, outcomes=history["outcomes"], available=history["available"]
    )
    columns = RoundColumns.from_records(records, clients=clients)
    rates = rate if isinstance(rate, list) else [rate] * clients
    behind, turns, rounds = recount(records, rates, accrual, counts)
    shortfall = shortfalls(columns, rate, accrual=accrual, counts=counts, tolerance=tolerance)

    unit = shortfall.units_per_turn
    by_client = [max(after[client] for after in behind) for client in range(clients)]
    assert [Fraction(units, unit) for units in shortfall.largest_units.tolist()] == by_client
    assert shortfall.largest_in.tolist() == [
        1 + [after[client] for after in behind].index(by_client[client]) for client in range(clients)
    ]
    assert shortfall.largest == float(max(by_client))
    assert shortfall.at_end == float(max(behind[-1]))

    certificate = shortfall.certificate
    assert [Fraction(units, unit) for units in certificate.behind_units.tolist()] == behind[-1]
    assert certificate.turns.tolist() == turns
    assert certificate.books_balance
    expected = ["broken" if left > tolerance else "behind" if left >= 1 else "kept" for left in behind[-1]]
    assert certificate.statuses.tolist() == expected
    assert shortfall.status == max(expected, key=["kept", "behind", "broken"].index)
    assert shortfall.ever_broken.tolist() == [largest > tolerance for largest in by_client]
    outcomes = {"selected": ("arrived", "late", "failed"), "completed": ("arrived",)}[counts]
    owed = owed_by_queues(columns, rate, accrual=accrual, counted_outcomes=outcomes)
    assert certificate.owed.tolist() == owed[-1].tolist()
    for client in range(clients):
        last_kept = max((t for t, after in enumerate(behind, 1) if after[client] <= tolerance), default=0)
        since = 0 if last_kept == len(behind) else last_kept + 1
        assert known(certificate.broken_since)[client] == since

    least = summarise(columns, guaranteed_rate=rate, accrual=accrual, counts=counts).least_share
    every = [taken / count for taken, count in zip(turns, rounds, strict=True) if count]
    if accrual == "always":
        assert least == min(every)
    else:
        assert math.isnan(least) if not every else least in every


def least_share(columns: RoundColumns, rate: float, accrual: Any = "always") -> float:
    return summarise(columns, guaranteed_rate=rate, accrual=accrual).least_share


def test_a_client_that_catches_up_is_kept_at_the_end_but_was_broken() -> None:
    columns = columns_of([[0], [0], [0], [0], [0], [0], [1], [1], [1]], clients=2)
    shortfall = shortfalls(columns, 0.5, tolerance=2)
    assert (shortfall.largest, shortfall.largest_in[1]) == (3.0, 6)
    assert (shortfall.at_end, shortfall.status) == (1.5, "behind")
    assert shortfall.ever_broken.tolist() == [False, True]
    assert known(shortfall.certificate.broken_since).tolist() == [0, 0]


def test_a_surplus_is_a_negative_shortfall() -> None:
    shortfall = shortfalls(columns_of([[0, 1], [0, 1]], clients=2), 0.25)
    assert (shortfall.largest, shortfall.at_end, shortfall.status) == (-0.75, -1.5, "kept")


def test_a_share_is_that_of_the_promise() -> None:
    columns = columns_of(
        [[0, 1], [0], [0], [1]],
        clients=3,
        available=[[True, True, False], [True, False, False], [True, False, False], [True, True, False]],
        outcomes=[["arrived", "late"], ["failed"], ["arrived"], ["arrived"]],
    )
    assert least_share(columns, 0.5) == 0.0
    assert least_share(columns, 0.5, accrual="available") == 0.75  # client 2 was never available
    summary = summarise(columns, guaranteed_rate=0.5, accrual="available", counts="completed")
    assert (summary.least_share, summary.share_of) == (0.5, SHARE_OF["available"])
    assert (summary.largest_shortfall, summary.shortfall_at_end) == (0.5, 0.0)


def test_clients_that_could_not_be_served_do_not_count_for_the_least_share_of_available_rounds() -> None:
    available = [[True, round_ == 3] for round_ in range(8)]
    columns = columns_of([[0]] * 8, clients=2, available=available)
    assert least_share(columns, 0.25, accrual="available") == 1.0  # one round is not enough for a turn
    assert least_share(columns, 0.25) == 0.0
    assert least_share(columns, 1.0, accrual="available") == 0.0
    assert least_share(columns, 0.1, accrual="available") == 0.0  # nobody is promised a whole turn: all count
    nobody = columns_of([[]], clients=1, available=[[False]])
    assert math.isnan(least_share(nobody, 0.5, accrual="available"))


def test_invalid_promises_are_rejected() -> None:
    columns = columns_of([[0]], clients=1)
    with pytest.raises(SettingError, match="counts must be 'selected' or 'completed'"):
        shortfalls(columns, 0.5, counts="never")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="accrual must be"):
        shortfalls(columns, 0.5, accrual="never")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="tolerance must be above 0"):
        shortfalls(columns, 0.5, tolerance=0)
    with pytest.raises(SettingError, match="hold no rounds"):
        shortfalls(RoundColumns.from_records([], clients=1), 0.5)
    record = RoundRecord(Selection(1, [0]), RoundReport(1, [0], [[1.0]], [1.0]))  # type: ignore[arg-type]
    for records in ([record], [record, *records_of([[0], [0]], clients=2)[1:]]):
        with pytest.raises(ReportError, match="needs the available clients of every round"):
            shortfalls(RoundColumns.from_records(records, clients=2), 0.5, accrual="available")
