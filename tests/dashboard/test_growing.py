from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.dashboard.sources.growing import AvailabilityMasks, GrowingArray
from turnout.kernel.arrays import BoolArray

PIECES = st.lists(st.one_of(st.integers(-(2**40), 2**40), st.lists(st.integers(0, 9), max_size=700)), max_size=12)


@given(PIECES)
def test_what_was_added_is_there_in_order_however_it_came(pieces: list[Any]) -> None:
    column, expected = GrowingArray(np.int64), []
    for piece in pieces:
        column.append(piece)
        expected += piece if isinstance(piece, list) else [piece]
        assert len(column) == len(expected)
        assert column.values.tolist() == expected


def test_what_was_handed_out_stays_as_it_was_and_cannot_be_written_to() -> None:
    column = GrowingArray(np.float64)
    column.append([1.5, 2.5])
    before = column.values
    column.append(np.arange(5000.0))  # more than there was room for
    assert before.tolist() == [1.5, 2.5]
    with pytest.raises(ValueError, match="read-only"):
        before[0] = 9.0
    with pytest.raises(ValueError, match="read-only"):
        column.values[0] = 9.0
    assert column.values[:3].tolist() == [1.5, 2.5, 0.0]


def test_nothing_added_is_an_empty_column_of_its_kind() -> None:
    column = GrowingArray(np.int8)
    column.append([])
    assert (len(column), column.values.tolist(), column.values.dtype.name) == (0, [], "int8")


@st.composite
def growing_fleets(draw: st.DrawFn) -> list[BoolArray]:
    """Who volunteered in each round, of a fleet that clients join."""
    sizes = np.cumsum(draw(st.lists(st.integers(0, 12), min_size=1, max_size=12))).tolist()
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    return [rng.random(size) < 0.5 for size in sizes]


@given(growing_fleets(), st.integers(1, 40), st.data())
@settings(deadline=None)
def test_masks_tell_who_was_there_or_that_they_do_not_know(
    fleet: list[BoolArray], max_bytes: int, data: st.DataObject
) -> None:
    masks = AvailabilityMasks(max_bytes)
    for round_, mask in enumerate(fleet, start=1):
        masks.add(round_, mask)
    first = masks.first
    assert first is not None
    kept = range(first, len(fleet) + 1)
    sizes = [-(-len(mask) // 8) for mask in fleet]
    fits = [round_ for round_ in range(1, len(fleet) + 1) if sum(sizes[round_ - 1 :]) <= max_bytes]
    assert first == min(fits, default=len(fleet)), "as many of the newest as fit, and never none"
    largest = max(len(mask) for mask in fleet)
    rows = np.array(data.draw(st.lists(st.integers(0, max(largest - 1, 0)), max_size=6)), dtype=np.int64)
    rounds = np.array(data.draw(st.lists(st.integers(1, len(fleet) + 1), max_size=6)), dtype=np.int64)
    found = masks.get(rows, rounds)
    if not set(rounds.tolist()) <= set(kept):
        assert found is None
        return
    assert found is not None
    assert found.shape == (len(rounds), len(rows))
    expected = [
        [row < len(fleet[round_ - 1]) and bool(fleet[round_ - 1][row]) for row in rows] for round_ in rounds.tolist()
    ]
    assert found.tolist() == expected


def test_no_masks_at_all() -> None:
    masks = AvailabilityMasks()
    nobody = np.empty(0, dtype=np.int64)
    assert masks.first is None
    assert masks.get(np.array([3]), np.array([1])) is None
    found = masks.get(np.array([3]), nobody)
    assert found is not None
    assert found.shape == (0, 1)
