"""Rounds are converted to columns and bytes and restored bit for bit."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.runs.keepsakes import bytes_of, columns_of, make_report, make_selection, play_rounds, unusual_rounds
from turnout.errors import StoreError
from turnout.kernel.rounds import RoundRecord
from turnout.lab import RoundColumns

KINDS: dict[str, list[RoundRecord]] = {
    "rbcsf": play_rounds(30),
    "with outcomes": play_rounds(30, deadline=15.0, failure_rate=0.2),
    "often without clients": play_rounds(30, availability=0.02),
    "without reasons": play_rounds(30, name="round-robin"),
    "as many rounds as rows": unusual_rounds()[9:10],
    "unusual": unusual_rounds(),
    "no rounds": [],
}


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_restored_bit_for_bit(kind: str) -> None:
    records = KINDS[kind]
    columns = columns_of(records)
    for each in (columns, RoundColumns.from_bytes(columns.to_bytes())):
        restored = list(each.records())
        assert restored == records
        assert sorted(bytes_of(restored)) == sorted(bytes_of(records))


@given(cuts=st.sets(st.integers(0, 11)), kind=st.sampled_from(sorted(KINDS)))
@settings(max_examples=30, deadline=None)
def test_concatenated_parts_equal_the_whole(cuts: set[int], kind: str) -> None:
    records = KINDS[kind]
    bounds = [0, *sorted(cuts), len(records)]
    parts = [columns_of(records[low:high]) for low, high in pairwise(bounds)]
    whole = RoundColumns.concatenate(parts)
    assert list(whole.records()) == records
    assert list(RoundColumns.from_bytes(whole.to_bytes()).records()) == records


def test_equal_rounds_give_equal_bytes() -> None:
    assert columns_of(unusual_rounds()).to_bytes() == columns_of(unusual_rounds()).to_bytes()
    with pytest.raises(StoreError, match="there are no columns to concatenate: give at least one part"):
        RoundColumns.concatenate([])


def test_columns_give_durations_turns_and_the_mask_of_chosen_clients() -> None:
    records = play_rounds(30, availability=0.1, deadline=15.0)
    columns = columns_of(records)
    mask = np.zeros((30, 40), dtype=np.bool_)
    for index, record in enumerate(records):
        mask[index, record.selection.clients] = True
    assert columns.durations.tolist() == [record.report.duration for record in records]
    assert columns.turns.tolist() == mask.sum(axis=0).tolist()
    assert columns.turns.dtype == np.int64
    assert np.array_equal(columns.chosen_mask, mask)


def test_columns_without_rounds_are_empty_and_a_missing_metric_is_nan() -> None:
    columns = columns_of([])
    assert (len(columns), columns.durations.shape, columns.chosen_mask.shape) == (0, (0,), (0, 40))
    assert not columns.turns.any()
    accuracy = columns_of(unusual_rounds()).metrics["accuracy"]
    assert np.isnan(accuracy[0])
    assert accuracy[1] == 0.25


def test_reasons_of_clients_and_of_the_cohort_are_distinguished_in_cohorts_of_one() -> None:
    columns = columns_of([RoundRecord(make_selection(7, owed=[2.0], threshold=3.0), make_report(7))])
    assert columns.client_reasons["owed"].tolist() == [2.0]
    assert columns.cohort_reasons["threshold"].tolist() == [3.0]
    (record,) = columns.records()
    assert record.selection.reasons["owed"].shape == (1,)
    assert record.selection.reasons["threshold"].shape == ()


def test_rows_have_the_order_of_the_selection_regardless_of_the_report() -> None:
    record = RoundRecord(make_selection(4, 2, 9), make_report(9, 4, 2, losses=np.array([9.0, 4.0, 2.0])))
    record = replace(record, report=replace(record.report, signals={"utility": np.array([0.9, 0.4, 0.2])}))
    columns = columns_of([record])
    assert columns.chosen.tolist() == [4, 2, 9]
    assert columns.exchange_times.tolist() == [0.4, 0.2, 0.9]
    assert columns.losses is not None
    assert columns.losses.tolist() == [4, 2, 9]
    assert columns.signals["utility"].tolist() == [0.4, 0.2, 0.9]
    (restored,) = columns.records()
    assert restored.selection == record.selection
    assert restored.report.clients.tolist() == [4, 2, 9]


def test_columns_are_read_only() -> None:
    columns = columns_of(play_rounds(2))
    with pytest.raises(ValueError, match="read-only"):
        columns.exchange_times[0] = 1.0
    with pytest.raises(TypeError):
        columns.metrics["accuracy"] = np.zeros(2)  # type: ignore[index]  # the test is that this fails


def test_reports_and_reasons_that_do_not_fit_the_selection_are_refused() -> None:
    for clients in ([6], [5, 6]):
        with pytest.raises(StoreError, match="the clients in the report of round 3 are not the selected clients"):
            columns_of([RoundRecord(make_selection(*clients, round_=3), make_report(5, round_=3))])
    with pytest.raises(StoreError, match="the clients in the report of round 3 are not the selected clients"):
        columns_of([RoundRecord(make_selection(5, 6, round_=3), make_report(7, 5, round_=3))])
    record = RoundRecord(make_selection(5, round_=3, owed=[1.0, 2.0]), make_report(5, round_=3))
    with pytest.raises(StoreError, match=r"reasons\['owed'\] of round 3 has shape \(2,\)"):
        columns_of([record])


def test_rounds_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(StoreError, match="available of round 1 is for 40 clients, expected 41"):
        RoundColumns.from_records(play_rounds(1), clients=41)
    with pytest.raises(StoreError, match=r"chosen\[0\] = 39 is unknown: there are 39 clients"):
        RoundColumns.from_records(unusual_rounds()[9:10], clients=39)
    with pytest.raises(StoreError, match=r"different numbers of clients \(40, 41\) cannot be concatenated"):
        RoundColumns.concatenate([columns_of([]), RoundColumns.from_records([], clients=41)])
    first, second = play_rounds(2)
    with pytest.raises(StoreError, match="give each round once"):
        columns_of([first, second, second])
    with pytest.raises(StoreError, match="give each round once"):
        RoundColumns.concatenate([columns_of([first, second]), columns_of([second])])
    records = [
        RoundRecord(make_selection(5), make_report(5)),
        RoundRecord(make_selection(5, round_=2), make_report(5, round_=2, features=2)),
    ]
    with pytest.raises(StoreError, match="contexts have 1 features in one round and 2 in another"):
        columns_of(records)
    with pytest.raises(StoreError, match="contexts have 1 features in one round and 2 in another"):
        RoundColumns.concatenate([columns_of([record]) for record in records])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"exchange_times": np.zeros(3)}, r"exchange_times has shape \(3,\), expected \(16,\)"),
        ({"metrics": {"accuracy": np.zeros(3)}}, r"metrics.accuracy has shape \(3,\), expected \(2,\)"),
        ({"rounds": [2, 1]}, "rounds must be positive and strictly ascending"),
        ({"rounds": [1, 1]}, "rounds must be positive and strictly ascending: sort them, and give each round once"),
        ({"rounds": [0, 1]}, "rounds must be positive and strictly ascending"),
        ({"starts": [0, 17, 16]}, "starts must be ascending from 0 to the number of rows, 16"),
        ({"outcomes": np.full(16, 3)}, r"outcomes\[0\] = 3 must be below 3"),
        ({"late": {9: None}}, r"late arrivals are given for rounds \[9\]"),
    ],
)
def test_inconsistent_columns_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(StoreError, match=message):
        replace(columns_of(play_rounds(2)), **change)


def test_corrupt_bytes_are_refused_or_have_no_effect() -> None:
    records = unusual_rounds()
    intact = columns_of(records).to_bytes()
    rng = np.random.default_rng(7)
    refused = 0
    for position in rng.integers(0, len(intact), 300):
        damaged = bytearray(intact)
        damaged[position] ^= int(rng.integers(1, 256))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # zipfile warns of duplicate names
                assert list(RoundColumns.from_bytes(bytes(damaged)).records()) == records
        except StoreError:
            refused += 1
    assert refused > 150
