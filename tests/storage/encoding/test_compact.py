from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from turnout.errors import StoreError
from turnout.storage.encoding.compact import LARGEST_ENTRY, MAGIC, is_compact
from turnout.storage.encoding.packing import pack_compact_snapshot, pack_snapshot, unpack_snapshot

TYPES = st.sampled_from(["<i8", "<i4", "|i1", "<u8", "|u1", "<f8", "<f4", "|b1", "<U3", ">i8"])
#: Numbers that are easily confused with others, or do not fit into fewer bytes.
FLOATS = [0.0, -0.0, np.nan]
INTEGERS = [2**62, 2**62 + 1, 2**31, -(2**31) - 1, 32768, -32769, 128, -129]
SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40)


@st.composite
def any_arrays(draw: st.DrawFn) -> npt.NDArray[Any]:
    """Draws arrays of all types, most of them with many equal entries, some of them in Fortran's order.

    A few values are drawn one by one; a seed decides where they are, and what the other entries are.
    """
    dtype, shape, rng = np.dtype(draw(TYPES)), draw(SHAPES), np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    elements = arrays_of.from_dtype(dtype)
    if dtype.kind == "f":
        elements |= st.sampled_from(FLOATS)
    elif dtype.kind == "i" and dtype.itemsize == LARGEST_ENTRY:
        elements |= st.sampled_from(INTEGERS)
    few = draw(arrays_of.arrays(dtype, draw(st.integers(1, 8)), elements=elements, fill=st.nothing()))
    largest = 2 ** draw(st.sampled_from([7, 15, 31, 62]))
    many = rng.integers(-largest, largest, shape).astype(dtype)
    others = many if draw(st.booleans()) else rng.choice(few, shape)
    is_other = rng.random(shape) < draw(st.sampled_from([0.0, 0.02, 0.5, 1.0]))
    array = np.where(is_other, others, few[0]).astype(dtype)
    return np.asfortranarray(array) if draw(st.booleans()) and array.ndim else array


def same(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> bool:
    """Returns whether two arrays have the same type, shape, order and bytes."""
    return (
        (left.dtype, left.shape) == (right.dtype, right.shape)
        and left.flags.f_contiguous == right.flags.f_contiguous
        and left.tobytes() == right.tobytes()
    )


@given(st.lists(any_arrays(), max_size=4))
@settings(max_examples=40, deadline=None)
def test_every_state_is_read_back_bit_by_bit(arrays: list[npt.NDArray[Any]]) -> None:
    state: dict[str, Any] = {"round": 3, "ids": "x", "share": 0.1, "is_new": True}
    state |= {f"array {index}": array for index, array in enumerate(arrays)}
    data = pack_compact_snapshot(state)
    read = unpack_snapshot(data)
    assert is_compact(data)
    assert list(read) == list(state)
    assert all(type(read[name]) is type(value) for name, value in state.items())
    assert {name: read[name] for name in ("round", "ids", "share", "is_new")} == dict(list(state.items())[:4])
    for index, array in enumerate(arrays):
        assert same(read[f"array {index}"], array)
    assert pack_compact_snapshot(read) == data


def test_integers_have_as_many_bytes_as_they_need() -> None:
    for value in (*INTEGERS, 2**31 - 1, -(2**31), 32767, -32768, 127, -128):
        values = np.array([value, 0, 0, 0])
        assert same(unpack_snapshot(pack_compact_snapshot({"values": values}))["values"], values)


def test_nan_and_negative_zero_are_kept() -> None:
    values = np.array([0.0, -0.0, np.nan, 1.0] + [0.0] * 100 + [np.nan] * 20)
    read = unpack_snapshot(pack_compact_snapshot({"values": values}))["values"]
    assert read.tobytes() == values.tobytes()


def test_arrays_that_were_read_can_be_changed() -> None:
    read = unpack_snapshot(pack_compact_snapshot({"same": np.zeros(100), "other": np.arange(100.0)}))
    for array in read.values():
        array += 1
    assert (read["same"].sum(), read["other"].sum()) == (100, 5050)


def test_equal_and_small_values_take_little_space() -> None:
    clients = 100_000
    rare = np.zeros((9, clients))
    rare[:, :100] = np.random.default_rng(0).random((9, 100))
    state = {"rare": rare, "counts": np.arange(clients, dtype=np.int64) % 100}
    assert len(pack_compact_snapshot(state)) < 9 * clients / 8 + clients + 20_000 < len(pack_snapshot(state)) / 10


def test_snapshots_of_earlier_versions_are_read() -> None:
    state = {"round": 3, "values": np.arange(5)}
    read = unpack_snapshot(pack_snapshot(state))
    assert read["round"] == 3
    assert same(read["values"], state["values"])  # type: ignore[arg-type]


def test_every_truncation_is_a_store_error() -> None:
    data = pack_compact_snapshot({"values": np.arange(50.0), "same": np.zeros(50), "round": 1})
    for length in range(len(data)):
        with pytest.raises(StoreError, match="damaged"):
            unpack_snapshot(data[:length])
    with pytest.raises(StoreError, match="1 bytes after the last array"):
        unpack_snapshot(data + b"x")


def header_with(described: Any, rest: bytes = b"") -> bytes:
    """Returns a state with one array that is described like this."""
    header = json.dumps({"order": ["a"], "scalars": {}, "arrays": {"a": described}}).encode()
    return MAGIC + len(header).to_bytes(8, "little") + header + rest


@pytest.mark.parametrize(
    "described",
    [
        {"type": "<f8", "shape": [10**12], "transposed": False, "rows": [["<f8", 0]]},
        {"type": "<f8", "shape": [10**12], "transposed": False, "rows": [["<f8", None]]},
        {"type": "<f8", "shape": [10**12, 0], "transposed": False, "rows": []},
        {"type": "<f8", "shape": [-1, -8], "transposed": False, "rows": [["<f8", None]]},
        {"type": "<U100000000", "shape": [8], "transposed": False, "rows": [["<U1", None]]},
        {"type": "<U100000000", "shape": [8], "transposed": False, "rows": [["<U100000000", 0]]},
        {"type": "<U0", "shape": [10**12], "transposed": False, "rows": [["<U0", None]]},
        {"type": "|O", "shape": [1], "transposed": False, "rows": [["|O", None]]},
        {"type": "<i8", "shape": [8], "transposed": False, "rows": [["<i8", 3]]},
        {"type": "<i8", "shape": [8], "transposed": False, "rows": [["<f8", None]]},
        {"type": "<i8", "shape": [8], "transposed": False, "rows": [["<i8", "all"]]},
        {"type": "<i8", "shape": [8], "transposed": False},
        [],
        None,
    ],
)
def test_f11_a_hostile_header_is_a_store_error(described: Any) -> None:
    with pytest.raises(StoreError, match="damaged"):
        unpack_snapshot(header_with(described, bytes(200)))


def test_f11_a_hostile_header_without_arrays_is_a_store_error() -> None:
    for text in (b"[]", b'{"arrays": [], "order": [], "scalars": {}}', b"[" * 10_000):
        with pytest.raises(StoreError, match="damaged"):
            unpack_snapshot(MAGIC + len(text).to_bytes(8, "little") + text)
