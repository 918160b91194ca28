from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrowing import known
from turnout.dashboard.sources.columns import AvailabilityMasks, ChangeDetector, GrowingTable
from turnout.kernel.arrays import BoolArray

PIECES = st.lists(st.lists(st.integers(0, 9), max_size=700), max_size=12)


@given(PIECES)
def test_values_keep_the_order_in_which_they_were_appended(pieces: list[list[int]]) -> None:
    table, expected, numbers = GrowingTable({"values": np.int8, "number": np.float64}), list[int](), list[int]()
    for number, piece in enumerate(pieces):
        table.append(len(piece), {"values": piece, "number": number})
        expected, numbers = expected + piece, numbers + [number] * len(piece)
        assert len(table) == len(expected)
        assert (table["values"].tolist(), table["number"].tolist()) == (expected, numbers)
        assert table["values"].dtype.name == "int8"


def test_views_are_read_only_and_unaffected_by_later_appends() -> None:
    table = GrowingTable({"values": np.float64})
    table.append(2, {"values": [1.5, 2.5]})
    before = table["values"]
    table.append(5000, {"values": np.arange(5000.0)})  # exceeds the initial capacity
    assert before.tolist() == [1.5, 2.5]
    for view in (before, table["values"]):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 9.0
    assert table["values"][:3].tolist() == [1.5, 2.5, 0.0]


@pytest.mark.parametrize("start", [-1, 2])
def test_only_values_that_were_appended_are_replaced(start: int) -> None:
    table = GrowingTable({"values": np.float64})
    table.append(3, {"values": [1.0, 2.0, 3.0]})
    table.replace("values", 1, [5.0, 6.0], 2)
    with pytest.raises(IndexError, match=f"start must be at least 0 and at most 1, got {start}"):
        table.replace("values", start, [7.0, 8.0], 2)
    assert table["values"].tolist() == [1.0, 5.0, 6.0]


@st.composite
def growing_fleets(draw: st.DrawFn) -> list[BoolArray]:
    """Generates availability masks of a growing fleet."""
    sizes = np.cumsum(draw(st.lists(st.integers(0, 12), min_size=1, max_size=12))).tolist()
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return [rng.random(size) < 0.5 for size in sizes]


@given(growing_fleets(), st.integers(1, 40), st.data())
@settings(deadline=None)
def test_masks_return_availability_unless_dropped(fleet: list[BoolArray], max_bytes: int, data: st.DataObject) -> None:
    masks = AvailabilityMasks(max_bytes)
    for round_, mask in enumerate(fleet, start=1):
        masks.add(round_, mask)
    first = known(masks.first)
    kept = range(first, len(fleet) + 1)
    sizes = [-(-len(mask) // 8) for mask in fleet]
    fits = [round_ for round_ in range(1, len(fleet) + 1) if sum(sizes[round_ - 1 :]) <= max_bytes]
    assert first == min(fits, default=len(fleet)), "as many recent rounds as fit, but at least one"
    largest = max(len(mask) for mask in fleet)
    rows = np.array(data.draw(st.lists(st.integers(0, max(largest - 1, 0)), max_size=6)), dtype=np.int64)
    rounds = np.array(data.draw(st.lists(st.integers(1, len(fleet) + 1), max_size=6)), dtype=np.int64)
    result = masks.get(rows, rounds)
    if not set(rounds.tolist()) <= set(kept):
        assert result is None
        return
    assert result is not None
    assert result.shape == (len(rounds), len(rows))
    expected = [
        [row < len(fleet[round_ - 1]) and bool(fleet[round_ - 1][row]) for row in rows] for round_ in rounds.tolist()
    ]
    assert result.tolist() == expected


def test_masks_without_rounds() -> None:
    masks = AvailabilityMasks()
    no_rounds = np.empty(0, dtype=np.int64)
    assert masks.first is None
    assert masks.get(np.array([3]), np.array([1])) is None
    assert known(masks.get(np.array([3]), no_rounds)).shape == (0, 1)


def test_a_forgotten_and_a_new_client_have_no_history() -> None:
    detector = ChangeDetector(2, 8.0)
    for _ in range(7):
        detector.changed(np.arange(2), np.full(2, 10.0), np.array([11.0, 12.0]))
    detector.add(1)
    detector.forget(np.array([0]))
    sums = detector.state()["sums"]
    assert not sums[:, [0, 2]].any()
    assert sums[:, 1].any()
