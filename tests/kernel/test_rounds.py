from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

from turnout import RoundOffer, RoundRecord, RoundReport, Selection
from turnout.errors import OfferError, ReportError, SelectionError
from turnout.kernel.backend import using_kernel
from turnout.kernel.rounds import LateArrivals, round_seconds

CONTEXTS = np.ones((3, 2))


def make_offer(**changes: Any) -> RoundOffer:
    fields: dict[str, Any] = {"round": 1, "available": np.array([True, True, False]), "contexts": CONTEXTS}
    return RoundOffer(**{**fields, **changes})


def make_report(**changes: Any) -> RoundReport:
    fields: dict[str, Any] = {
        "round": 1,
        "clients": np.array([0, 2]),
        "contexts": np.ones((2, 2)),
        "exchange_times": np.array([3.0, 5.0]),
    }
    return RoundReport(**{**fields, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"round": 0}, "round must be at least 1, not 0"),
        ({"round": 1.0}, "round must be a whole number, not 1.0"),
        ({"round": True}, "round must be a whole number"),
        ({"available": [1, 0, 1]}, "available must hold booleans, not int64"),
        ({"available": [[True], [True], [True]]}, r"available must have 1 dimension, not shape \(3, 1\)"),
        ({"available": [True, True]}, "contexts has 3 rows, but there are 2 clients in available"),
        ({"contexts": np.ones(3)}, r"contexts must have 2 dimensions, not shape \(3,\)"),
        ({"contexts": [[1, 2], [3, np.nan], [5, 6]]}, r"contexts\[1, 1\] = nan must be finite"),
        ({"contexts": [[1, 2], [3, 4], [np.inf, np.inf]]}, r"contexts\[2, 0\] = inf must be finite \(and 1 more\)"),
        ({"contexts": [["a", "b"]] * 3}, "contexts must hold numbers"),
        ({"contexts": [[1j, 1j]] * 3}, "contexts must hold numbers, not complex128"),
        ({"contexts": [[1, 2], [3], [5, 6]]}, "contexts must be an array of numbers"),
        ({"expected_times": [1.0, -1.0, 2.0]}, r"expected_times\[1\] = -1.0 must not be negative"),
        ({"expected_times": [1.0, 2.0]}, "expected_times has 2 rows, but there are 3 clients"),
    ],
)
def test_a_malformed_offer_is_refused_by_field_row_and_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(OfferError, match=message):
        make_offer(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clients": [0, 0]}, r"clients\[1\] = 0 is a duplicate"),
        ({"clients": [0, -1]}, r"clients\[1\] = -1 must be a row"),
        ({"clients": [0.0, 1.0]}, "clients must hold rows"),
        ({"contexts": np.ones((3, 2))}, "contexts has 3 rows, but there are 2 clients"),
        ({"exchange_times": [1.0]}, "exchange_times has 1 rows, but there are 2 clients"),
        ({"exchange_times": [1.0, np.nan]}, r"exchange_times\[1\] = nan must be finite"),
        ({"exchange_times": [1.0, np.inf]}, r"exchange_times\[1\] = inf must be finite"),
        ({"exchange_times": [-0.5, 1.0]}, r"exchange_times\[0\] = -0.5 must not be negative"),
        ({"available": [True, True, False]}, r"clients\[1\] = 2 was not available"),
        ({"available": [True, True]}, r"clients\[1\] = 2 was not available"),
        ({"outcomes": ["arrived", "lost"]}, r"outcomes\[1\] = 'lost' must be one of arrived, late, failed"),
        ({"outcomes": ["arrived"]}, "outcomes has 1 entries, but there are 2 clients"),
        ({"losses": [0.5, np.inf]}, r"losses\[1\] = inf must not be infinite"),
        ({"losses": [0.5]}, "losses has shape"),
    ],
)
def test_a_malformed_report_is_refused_by_field_row_and_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ReportError, match=message):
        make_report(**changes)


@pytest.mark.parametrize("kernel", ["compiled", "numpy"])
def test_values_beyond_the_limits_are_refused(kernel: str) -> None:
    with using_kernel(kernel):
        assert make_offer(contexts=np.full((3, 2), -1e6)).clients == 3
        for excessive in (-1.1e6, 1e300):
            with pytest.raises(OfferError, match=r"contexts\[0, 0\] = .* must lie within ±1e\+06 \(and 5 more\)"):
                make_offer(contexts=np.full((3, 2), excessive))
        with pytest.raises(OfferError, match=r"contexts\[2, 1\] = nan must be finite"):
            make_offer(contexts=[[1, 2], [3, 4], [5, np.nan]])
        with pytest.raises(OfferError, match=r"contexts\[2, 1\] = -inf must be finite"):
            make_offer(contexts=np.repeat([[1, 2], [3, 4], [5, -np.inf]], 2, axis=1)[:, ::2])
        with pytest.raises(ReportError, match=r"exchange_times\[1\] = 2000000000.0 must lie within ±1e\+09"):
            make_report(exchange_times=[1.0, 2e9])


def test_integers_and_single_precision_become_doubles() -> None:
    assert make_offer(contexts=np.ones((3, 2), dtype=np.float32)).contexts.dtype == np.float64
    assert make_offer(contexts=np.ones((3, 2), dtype=np.int32)).contexts.dtype == np.float64
    assert Selection(1, np.array([1], dtype=np.uint8)).clients.dtype == np.int64


def test_a_large_offer_is_not_copied() -> None:
    contexts = np.ones((3, 2), order="F")
    assert np.shares_memory(make_offer(contexts=contexts).contexts, contexts)


def test_values_and_their_arrays_are_immutable() -> None:
    offer = make_offer()
    with pytest.raises(FrozenInstanceError):
        offer.round = 2  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        offer.contexts[0, 0] = 7.0
    with pytest.raises(TypeError):
        make_report(metrics={"accuracy": 0.5}).metrics["accuracy"] = 1.0  # type: ignore[index]
    contexts = np.ones((3, 2))
    make_offer(contexts=contexts)
    contexts[0, 0] = 7.0  # the caller's own array stays writable


def test_values_are_compared_by_their_contents() -> None:
    assert make_offer() == make_offer()
    assert make_offer() != make_offer(expected_times=[1.0, 2.0, 3.0])
    assert make_report(losses=[np.nan, 1.0]) == make_report(losses=[np.nan, 1.0])
    assert make_report() != make_report(exchange_times=[3.0, 5.5])
    assert make_report() != make_offer()
    assert Selection(1, np.array([1]), {"owed": np.array([2.0])}) != Selection(1, np.array([1]))


def test_the_duration_of_a_round_is_the_time_of_its_slowest_client() -> None:
    assert make_report().duration == 5.0
    assert make_report(clients=[], contexts=np.empty((0, 2)), exchange_times=[]).duration == 0.0


def test_failed_clients_count_for_the_duration_and_surplus_clients_do_not() -> None:
    times = np.array([3.0, 20.0, 5.0])
    assert round_seconds(times) == 20.0
    assert round_seconds(times, np.array([True, False, True])) == 5.0
    assert round_seconds(times, np.zeros(3, dtype=np.bool_)) == 0.0


def test_with_outcome_returns_a_mask_of_clients() -> None:
    report = make_report(outcomes=["late", "failed"])
    assert report.with_outcome("arrived").tolist() == [False, False]
    assert report.with_outcome("arrived", "late").tolist() == [True, False]
    assert make_report().with_outcome("arrived").tolist() == [True, True]
    assert make_report().with_outcome("failed").tolist() == [False, False]


def test_a_duplicate_client_another_round_and_a_modified_copy_that_is_malformed_are_refused() -> None:
    assert RoundRecord(Selection(1, np.array([0, 2])), make_report()).round == 1
    with pytest.raises(ReportError, match="the report is of round 1, the selection of round 2"):
        RoundRecord(Selection(2, np.array([0, 2])), make_report())
    with pytest.raises(SelectionError, match=r"clients\[2\] = 4 is a duplicate"):
        Selection(1, np.array([4, 1, 4]))
    with pytest.raises(ReportError, match="must not be negative"):
        replace(make_report(), exchange_times=np.array([-1.0, 1.0]))


def make_late_arrivals(**changes: Any) -> LateArrivals:
    fields: dict[str, Any] = {
        "rounds": [4, 2],
        "clients": [1, 1],
        "contexts": np.array([[4.0], [2.0]]),
        "deadlines": [9.0, 9.0],
        "exchange_times": [10.0, 12.0],
    }
    return LateArrivals(**{**fields, **changes})


def test_late_arrivals_are_sorted_regardless_of_the_order_of_arrival() -> None:
    reversed_arrivals = make_late_arrivals(
        rounds=[2, 4], contexts=np.array([[2.0], [4.0]]), exchange_times=[12.0, 10.0]
    )
    assert make_late_arrivals() == reversed_arrivals
    assert make_late_arrivals().rounds.tolist() == [2, 4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": [2, 2]}, "hold a client twice for the same round"),
        ({"exchange_times": [10.0, 8.0]}, r"exchange_times\[1\] = 8.0 is before its deadline"),
        ({"clients": [1, -1]}, "clients must be at least 0"),
        ({"deadlines": [9.0]}, "deadlines has 1 rows"),
        ({"learned_since": [0]}, "learned_since has 1 rows"),
    ],
)
def test_malformed_late_arrivals_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ReportError, match=message):
        make_late_arrivals(**changes)
