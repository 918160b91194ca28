from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.errors import SettingError
from turnout.kernel.arrays import (
    SPARSE_FROM,
    IntArray,
    as_floats,
    as_rows,
    lending_arrays,
    load_array,
    save_array,
    sparse_zeros,
)
from turnout.kernel.backend import count_flags, using_kernel

ROWS = np.arange(1, 101, dtype=np.int64)
SHUFFLED = np.random.default_rng(0).permutation(ROWS)


@pytest.mark.parametrize("rows", [ROWS, ROWS[::-1], SHUFFLED, ROWS[:64], SHUFFLED[:65]], ids=len)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows, ""),
        (lambda rows: np.where(rows == rows.min(), -1, rows), r"= -1 must be a row, and rows count from 0"),
        (lambda rows: np.where(rows == rows.max(), 101, rows), r"= 101 is unknown: there are 101 clients"),
        (lambda rows: np.where(rows == rows.max(), rows.min(), rows), r"is a duplicate: a client may appear only once"),
        (lambda rows: np.append(rows, rows[-1]), r"is a duplicate: a client may appear only once"),
    ],
)
def test_rows_are_checked_in_any_order(rows: IntArray, change: Callable[[IntArray], IntArray], message: str) -> None:
    changed = change(rows)
    if message:
        with pytest.raises(SettingError, match=message):
            as_rows("rows", changed, SettingError, clients=101)
    else:
        assert as_rows("rows", changed, SettingError, clients=101) is changed


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_number_that_is_not_finite_is_found_by_any_number_of_threads(threads: int) -> None:
    with using_kernel("compiled", threads):
        for count in (1, 2, 1000):
            for row in {0, count // 2, count - 1}:
                numbers = np.linspace(-1, 1, count)
                numbers[row] = -np.inf
                with pytest.raises(SettingError, match=rf"times\[{row}\] = -inf must be finite"):
                    as_floats("times", numbers, 1, SettingError)


@pytest.mark.parametrize("kernel", ["compiled", "numpy"])
@given(clients=st.integers(0, 1100), flagged=st.lists(st.integers(0, 1099), max_size=4), seed=st.integers(0, 9))
def test_few_and_many_flags_are_counted_anywhere(kernel: str, clients: int, flagged: list[int], seed: int) -> None:
    counts = np.arange(clients, dtype=np.int64)
    few = np.isin(counts, flagged)
    many = np.random.default_rng(seed).random(clients) < 0.5
    expected = counts + few + many
    with using_kernel(kernel):
        count_flags(counts, few)
        count_flags(counts, many)
    assert counts.tolist() == expected.tolist()


@pytest.mark.parametrize("rows", [0, 3, SPARSE_FROM // 8])
def test_sparse_zeros_are_zeros_that_can_be_written_column_by_column(rows: int) -> None:
    zeros = sparse_zeros(rows, 3)
    assert zeros.shape == (rows, 3)
    assert zeros.flags.f_contiguous
    assert not zeros.any()
    zeros[-1:, 1] = 2.5
    assert zeros.sum() == (2.5 if rows else 0)


def test_states_share_their_arrays_only_where_they_are_lent() -> None:
    own = np.arange(3)
    with lending_arrays():
        assert save_array(own) is own
        assert load_array({"own": own}, "own", own) is own
        assert load_array({"own": own.astype(np.int32)}, "own", own).dtype == own.dtype
    assert not np.shares_memory(save_array(own), own)
    assert not np.shares_memory(load_array({"own": own}, "own", own), own)
