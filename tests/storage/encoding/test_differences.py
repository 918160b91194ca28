"""A state is read back bit by bit from an earlier one and what differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.errors import StoreError
from turnout.storage.encoding.differences import FEW, copied, differences, with_differences
from turnout.storage.encoding.packing import pack_snapshot, unpack_snapshot

TYPES = ["<i8", "<i4", "|i1", "<u8", "<f8", "<f4", "|b1", "<c16", "<U3"]
ODD = np.array([0.0, -0.0, np.nan, np.inf, 1e300, 1.0, 2.0, 3.0])


def array(dtype: str, shape: tuple[int, ...], rng: np.random.Generator, *, is_transposed: bool = False) -> Any:
    with np.errstate(all="ignore"):
        values = rng.choice(ODD if np.dtype(dtype).kind in "fc" else ODD[-3:], size=shape).astype(dtype)
    return np.asfortranarray(values) if is_transposed else values


@given(
    seed=st.integers(0, 2**32 - 1),
    shapes=st.lists(
        st.sampled_from([(), (0,), (1,), (3 * FEW,), (3, 2 * FEW), (5 * FEW, 2)]), min_size=len(TYPES), max_size=9
    ),
    changed=st.sets(st.sampled_from(TYPES)),
    reshaped=st.sets(st.sampled_from(TYPES)),
    is_transposed=st.booleans(),
)
def test_the_later_state_is_read_back_bit_by_bit(
    seed: int, shapes: list[tuple[int, ...]], changed: set[str], reshaped: set[str], is_transposed: bool
) -> None:
    rng = np.random.default_rng(seed)
    shape_of = dict(zip(TYPES, shapes, strict=False))
    before = {kind: array(kind, shape, rng, is_transposed=is_transposed) for kind, shape in shape_of.items()}
    before |= {"count": 1, "name": "a", "gone": np.arange(3)}
    after = {kind: before[kind].copy(order="K") for kind in TYPES}
    for kind in changed:
        if after[kind].size:
            after[kind].flat[rng.integers(after[kind].size)] = array(kind, (), rng)
    for kind in reshaped:
        after[kind] = array(kind, (2, 2), rng)
    after |= {"count": 2, "name": "ü", "new": np.arange(2.0)}
    stored = unpack_snapshot(pack_snapshot(differences(before, after), compact=True))
    earlier = unpack_snapshot(pack_snapshot(before, compact=True))
    later = with_differences(earlier, stored)
    assert list(later) == list(after)
    for key, value in after.items():
        if isinstance(value, np.ndarray):
            assert (later[key].dtype, later[key].shape) == (value.dtype, value.shape)
            assert later[key].tobytes() == value.tobytes()
        else:
            assert later[key] == value


def test_few_changes_of_a_large_state_take_few_bytes() -> None:
    before = {"large": np.random.default_rng(0).random((3, 10_000)), "small": np.zeros(10_000)}
    after = copied(before, {})
    after["large"][1, 77] = after["small"][5] = 1.0
    assert len(pack_snapshot(differences(before, after), compact=True)) < 500
    after["small"][:] = np.nan
    assert len(pack_snapshot(differences(before, after), compact=True)) < 2000


def test_differences_to_another_state_are_refused() -> None:
    before = {"values": np.zeros(100)}
    differing = differences(before, {"values": np.eye(1, 100, 99)[0]})
    for other in ({}, {"values": np.zeros(99)}, {"values": 5}):
        with pytest.raises(StoreError, match="the stored bytes are damaged"):
            with_differences(other, differing)


def test_a_copy_uses_the_memory_of_a_state_of_the_same_form() -> None:
    state, other = {"a": np.arange(3), "n": 5, "b": np.ones(2)}, {"a": np.zeros(3, dtype=np.int64), "b": np.ones(3)}
    copy = copied(state, other)
    assert copy["a"] is other["a"]
    assert copy["b"] is not state["b"]
    assert (copy["a"].tolist(), copy["n"], copy["b"].tolist()) == ([0, 1, 2], 5, [1.0, 1.0])
