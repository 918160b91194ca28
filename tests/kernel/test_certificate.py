from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.errors import SettingError
from turnout.kernel.certificate import (
    DEFAULT_TOLERANCE,
    STATUSES,
    Certificate,
    PromiseSummary,
    as_tolerance,
    exact_tolerance,
)
from turnout.kernel.fairness import FairnessQueues


def certificate_of(turns: list[int], promised: list[int], units_per_turn: int = 20, **fields: Any) -> Certificate:
    owed = np.maximum(np.array(promised, dtype=np.int64) - np.array(turns, dtype=np.int64) * units_per_turn, 0)
    return Certificate(
        turns=np.array(turns, dtype=np.int64),
        units_per_turn=units_per_turn,
        promised_units=np.array(promised, dtype=np.int64),
        owed_units=owed,
        forfeited_units=np.zeros(len(turns), dtype=np.int64),
        **fields,
    )


tolerances = st.one_of(
    st.sampled_from([0.1, 0.3, 0.7, 0.5, 1.0, 1.1, 2.0, 2.5, 3.3]),
    st.fractions(Fraction(1, 30), 5, max_denominator=30),
    st.fractions(Fraction(1, 30), 5, max_denominator=30).map(float),
)
clients = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 200)), min_size=0, max_size=12)


@given(clients, st.sampled_from([1, 3, 7, 20, 1000]), tolerances)
@settings(max_examples=70, deadline=None)
def test_statuses_equal_those_in_exact_arithmetic(
    rows: list[tuple[int, int]], units_per_turn: int, tolerance: Fraction | float
) -> None:
    certificate = certificate_of([t for t, _ in rows], [p for _, p in rows], units_per_turn, tolerance=tolerance)
    limit = tolerance if isinstance(tolerance, Fraction) else Fraction(tolerance).limit_denominator(10**9)
    behind = [Fraction(promised, units_per_turn) - turns for turns, promised in rows]
    expected = ["broken" if b > limit else "kept" if b < 1 else "behind" for b in behind]
    assert certificate.statuses.tolist() == expected
    assert certificate.behind.tolist() == pytest.approx([float(b) for b in behind])
    assert certificate.status == max(expected, key=STATUSES.index, default="kept")
    assert certificate.holds == ("broken" not in expected)
    assert certificate.unserved.tolist() == [
        turns == 0 and Fraction(promised, units_per_turn) < 1 for turns, promised in rows
    ]
    assert certificate.worst == (behind.index(max(behind)) if rows else None)
    summary = certificate.summary()
    assert (summary.kept, summary.behind, summary.broken) == tuple(expected.count(status) for status in STATUSES)
    assert (summary.clients, summary.status, summary.worst) == (len(rows), certificate.status, certificate.worst)
    assert summary.worst_behind == pytest.approx(float(max(behind, default=Fraction(0))))
    assert summary.sentence().startswith(f"{summary.status}: ")


@given(st.integers(1, 6), st.data())
@settings(max_examples=30, deadline=None)
def test_the_books_of_any_policy_balance_whether_the_promise_is_kept_or_not(count: int, data: st.DataObject) -> None:
    queues = FairnessQueues(count, "3/10", accrual="available", max_owed=data.draw(st.sampled_from([None, 1, 2.5])))
    turns = np.zeros(count, dtype=np.int64)
    rounds = np.zeros(count, dtype=np.int64)
    for _ in range(data.draw(st.integers(0, 25))):
        available = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
        chosen = np.flatnonzero(
            available & np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
        )
        queues.advance(chosen, available)
        turns[chosen] += 1
        rounds += available
    certificate = queues.certificate(turns, tolerance=0.5)
    assert certificate.books_balance
    assert certificate.balanced.all()
    behind = [Fraction(3, 10) * int(r) - int(t) for r, t in zip(rounds, turns, strict=True)]
    assert certificate.holds == (max(behind) <= Fraction(1, 2))


def test_a_client_that_is_exactly_as_far_behind_as_the_tolerance_is_within_it() -> None:
    """0.3 and 0.7 are no binary numbers, and 0.3 · 20 units would be less than 6."""
    for tolerance, units in ((0.3, 6), (0.7, 14), (0.1, 2), (2.0, 40), (Fraction(1, 3), 6)):
        assert certificate_of([0], [units], tolerance=tolerance).holds
        assert not certificate_of([0], [units + 1], tolerance=tolerance).holds


def test_a_certificate_can_be_judged_by_another_tolerance() -> None:
    certificate = certificate_of([0, 1], [30, 60], broken_since=np.array([0, 7]), tolerance=1.75)
    assert certificate.statuses.tolist() == ["behind", "broken"]
    assert certificate.summary().since == 7
    stricter, looser = certificate.judged(1), certificate.judged(2)
    assert stricter.statuses.tolist() == ["broken", "broken"]
    assert looser.status == "behind"
    assert (stricter.broken_since, stricter.summary().since) == (None, None)
    assert certificate.tolerance == 1.75
    with pytest.raises(SettingError, match="tolerance must be above 0"):
        certificate.judged(0)


@pytest.mark.parametrize(
    ("certificate", "sentence"),
    [
        (certificate_of([], []), "kept: there are no clients yet"),
        (certificate_of([3, 1], [60, 25]), "kept: all 2 clients are less than one turn behind"),
        (
            certificate_of([3, 0], [60, 15]),
            "kept: all 2 clients are less than one turn behind; 1 client was there for too few rounds to be served",
        ),
        (
            certificate_of([3, 0, 0, 1], [60, 15, 3, 50]),
            "behind: c3 is 1.50 turns behind, within the tolerance of 2; 1 of 4 clients is one turn or more behind; "
            "2 clients were there for too few rounds to be served",
        ),
        (
            certificate_of([3, 0, 1], [60, 45, 100], broken_since=np.array([0, 12, 1234])),
            "broken: c2 is 4.00 turns behind, beyond the tolerance of 2, since round 1,234; 2 of 3 clients are beyond "
            "it",
        ),
        (
            certificate_of([0], [50]),
            "broken: c0 is 2.50 turns behind, beyond the tolerance of 2; 1 of 1 client is beyond it",
        ),
    ],
)
def test_the_summary_is_one_sentence_that_begins_with_the_status(certificate: Certificate, sentence: str) -> None:
    assert certificate.summary().sentence("c{}".format) == sentence


def test_a_summary_is_a_value() -> None:
    summary = certificate_of([0], [50]).summary()
    assert summary == PromiseSummary("broken", 1, 0, 0, 1, 0, DEFAULT_TOLERANCE, 0, 2.5, None)


@pytest.mark.parametrize("tolerance", [0, -1.0, float("nan"), float("inf"), Fraction(0), "2", True])
def test_wrong_tolerances_are_refused(tolerance: Any) -> None:
    with pytest.raises(SettingError, match="tolerance"):
        as_tolerance(tolerance)


def test_tolerances_are_read_as_decimal_fractions() -> None:
    assert exact_tolerance(0.3) == Fraction(3, 10)
    assert exact_tolerance(2) == 2
    assert exact_tolerance(Fraction(1, 3)) == Fraction(1, 3)
    assert exact_tolerance(1e-12) > 0
