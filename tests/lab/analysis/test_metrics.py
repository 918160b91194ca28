"""Metrics of a run, and how far clients fell behind a promise."""

from __future__ import annotations

import math
from dataclasses import asdict
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.analysis.records import columns_of, histories, owed_by_queues, records_of
from narrowing import known
from turnout.errors import ReportError, SettingError
from turnout.kernel.rounds import RoundRecord, RoundReport, Selection
from turnout.lab.analysis.metrics import jain_index, lorenz_curve, spread, summarise
from turnout.lab.analysis.promise import SHARE_OF, owed_after_each_round, shortfalls
from turnout.lab.columns import RoundColumns

# Debts


@given(histories())
@settings(max_examples=60, deadline=None)
def test_debts_equal_those_of_the_queues_exactly(history: dict[str, Any]) -> None:
    columns = columns_of(history["cohorts"], clients=history["clients"], outcomes=history["outcomes"])
    owed = owed_after_each_round(columns, history["rate"])
    assert owed.tobytes() == owed_by_queues(columns, history["rate"]).tobytes()


# Evenness

turns_of_clients = st.lists(st.integers(0, 10**6), min_size=1, max_size=40)


@given(turns_of_clients)
def test_jains_index_lies_between_one_over_n_and_one(turns: list[int]) -> None:
    index = jain_index(turns)
    assert 1 / len(turns) <= index <= 1
    if any(turns):
        squares = Fraction(sum(turns) ** 2, len(turns) * sum(count**2 for count in turns))
        assert index == pytest.approx(float(squares), rel=1e-12)


@given(st.integers(1, 50), st.floats(1e-300, 1e300))
def test_jains_index_is_one_for_equal_turns_and_one_over_n_for_a_single_client(clients: int, turns: float) -> None:
    assert jain_index([turns] * clients) == pytest.approx(1.0, rel=1e-12)
    assert jain_index([turns] + [0.0] * (clients - 1)) == 1 / clients


def test_the_evenness_of_turns_has_its_limits() -> None:
    assert jain_index([0, 0, 0]) == 1.0
    assert spread([0, 0, 0]) == 0.0
    assert lorenz_curve([0, 0]).tolist() == [[0, 0], [0.5, 0.5], [1, 1]]
    assert lorenz_curve([5, 1, 2, 0])[:, 1].tolist() == [0.0, 0.0, 1 / 8, 3 / 8, 1.0]
    assert spread([2, 4, 4, 4, 5, 5, 7, 9]) == 2.0
    for invalid in ([], [1, -1]):
        with pytest.raises(SettingError, match="turns must be"):
            jain_index(invalid)


@given(turns_of_clients)
def test_the_lorenz_curve_is_convex_from_corner_to_corner(turns: list[int]) -> None:
    curve = lorenz_curve(turns)
    assert curve.shape == (len(turns) + 1, 2)
    assert curve[0].tolist() == [0.0, 0.0]
    assert curve[-1].tolist() == [1.0, 1.0]
    steps = np.diff(curve[:, 1])
    assert (steps >= 0).all()
    assert (np.diff(steps) >= -1e-12).all()
    assert (curve[:, 1] <= curve[:, 0] + 1e-12).all()


# The summary


def test_the_summary_of_a_small_run_matches_a_manual_computation() -> None:
    columns = columns_of([[0, 1], [0], [], [0]], clients=3, times=[[1.0, 3.0], [5.0], [], [2.0]])
    assert asdict(summarise(columns, guaranteed_rate="1/4")) == pytest.approx(
        {
            "rounds": 4,
            "mean_round": 2.5,
            "p95_round": 4.7,  # interpolated: 85 % between 3 and 5
            "total_time": 10.0,
            "mean_cohort": 1.0,
            "least_share": 0.0,
            "jain": 16 / 30,
            "spread_of_turns": math.sqrt(14 / 9),
            "worst_debt": 1.0,
            "mean_debt": (0 + 0.75 + 1) / 3,
            "largest_shortfall": 1.0,
            "shortfall_at_end": 1.0,
            "share_of": "of all rounds",
        }
    )


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

    unit = shortfall.certificate.units_per_turn
    by_client = [max(after[client] for after in behind) for client in range(clients)]
    assert [Fraction(units, unit) for units in shortfall.largest_units.tolist()] == by_client
    assert shortfall.largest == float(max(by_client))
    assert shortfall.at_end == float(max(behind[-1]))

    certificate = shortfall.certificate
    assert [Fraction(units, unit) for units in certificate.behind_units.tolist()] == behind[-1]
    assert certificate.turns.tolist() == turns
    assert certificate.books_balance
    expected = ["broken" if left > tolerance else "behind" if left >= 1 else "kept" for left in behind[-1]]
    assert certificate.statuses.tolist() == expected
    assert shortfall.certificate.status == max(expected, key=["kept", "behind", "broken"].index)
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
