"""Whatever is packed is read back bit by bit, and damaged or hostile bytes are refused."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from turnout.errors import StoreError
from turnout.lab.columns import RoundColumns
from turnout.storage.encoding.packing import (
    FEW,
    MAGIC,
    MAX_ENTRY,
    copied,
    differences,
    pack,
    pack_snapshot,
    unpack,
    unpack_snapshot,
    with_differences,
)

TYPES = st.sampled_from(["<i8", "<i4", "|i1", "<u8", "|u1", "<f8", "<f4", "|b1", "<U3", ">i8", "<c16", "<c8"])
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
    elif dtype.kind == "i" and dtype.itemsize == MAX_ENTRY:
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


@given(st.lists(any_arrays(), max_size=4), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_state_is_read_back_bit_by_bit(arrays: list[npt.NDArray[Any]], compact: bool) -> None:
    state: dict[str, Any] = {"round": 3, "ids": "x", "share": 0.1, "is_new": True}
    state |= {f"array {index}": array for index, array in enumerate(arrays)}
    data = pack_snapshot(state, compact=compact)
    read = unpack_snapshot(data)
    assert list(read) == list(state)
    assert all(type(read[name]) is type(value) for name, value in state.items())
    assert {name: read[name] for name in ("round", "ids", "share", "is_new")} == dict(list(state.items())[:4])
    for index, array in enumerate(arrays):
        assert same(read[f"array {index}"], array)
    assert pack_snapshot(read, compact=compact) == data


def test_integers_have_as_many_bytes_as_they_need() -> None:
    for value in (*INTEGERS, 2**31 - 1, -(2**31), 32767, -32768, 127, -128):
        values = np.array([value, 0, 0, 0])
        assert same(unpack_snapshot(pack_snapshot({"values": values}, compact=True))["values"], values)


def test_arrays_that_were_read_can_be_changed() -> None:
    read = unpack_snapshot(pack_snapshot({"same": np.zeros(100), "other": np.arange(100.0)}, compact=True))
    for array in read.values():
        array += 1
    assert (read["same"].sum(), read["other"].sum()) == (100, 5050)


def test_equal_and_small_values_take_little_space() -> None:
    clients = 100_000
    rare = np.zeros((9, clients))
    rare[:, :100] = np.random.default_rng(0).random((9, 100))
    state = {"rare": rare, "counts": np.arange(clients, dtype=np.int64) % 100}
    assert len(pack_snapshot(state, compact=True)) < 9 * clients / 8 + clients + 20_000 < len(pack_snapshot(state)) / 10


def test_arrays_that_need_pickle_are_refused() -> None:
    for array in (np.array([{}], dtype=object), np.zeros(2, dtype=[("a", "<i4")]), np.array(["2026"], dtype="M8[D]")):
        with pytest.raises(StoreError, match="numbers, booleans or strings"):
            pack({}, {"values": array})
        with pytest.raises(StoreError, match="numbers, booleans or strings"):
            pack_snapshot({"values": array})


def test_every_truncation_is_a_store_error() -> None:
    data = pack_snapshot({"values": np.arange(50.0), "same": np.zeros(50), "round": 1}, compact=True)
    for length in range(len(data)):
        with pytest.raises(StoreError, match="damaged"):
            unpack_snapshot(data[:length])
    with pytest.raises(StoreError, match="1 bytes after the last array"):
        unpack(with_text(b"[{}, []]", b"x"))


def test_every_changed_byte_is_a_store_error() -> None:
    whole = pack({"a": 1}, {"x": np.arange(3), "y": np.array(["x", "yz"])})
    for index in range(len(whole)):
        damaged = bytearray(whole)
        damaged[index] ^= 0x10
        with pytest.raises(StoreError, match="damaged"):
            unpack(bytes(damaged))


def with_text(text: bytes, rest: bytes = b"") -> bytes:
    """Returns bytes with the right checksum."""
    return struct.pack("<8sLL", MAGIC, zlib.crc32(text + rest), len(text)) + text + rest


@pytest.mark.parametrize(
    "described",
    [
        ["<f8", [10**12], False, [["<f8", 0]]],
        ["<f8", [10**12], False, [["<f8", None]]],
        ["<f8", [10**12], False, None],
        ["<f8", [10**12, 0], False, []],
        ["<f8", [-1, -8], False, [["<f8", None]]],
        ["<f8", [-1, -8], False, None],
        ["<U100000000", [8], False, [["<U1", None]]],
        ["<U100000000", [8], False, [["<U100000000", 0]]],
        ["<U100000000", [8], False, None],
        ["<U0", [10**12], False, [["<U0", None]]],
        ["<U0", [10**12], False, None],
        ["|O", [1], False, [["|O", None]]],
        ["|O", [1], False, None],
        ["<i8", [8], False, [["<i8", 3]]],
        ["<i8", [8], False, [["<f8", None]]],
        ["<i8", [8], False, [["<i8", "all"]]],
        ["<i8", [8], False, [["<i8", -1]]],
        ["<i8", [8], False],
        [],
        None,
    ],
)
def test_a_hostile_description_of_an_array_is_a_store_error(described: Any) -> None:
    text = json.dumps([{}, [["a", *described] if isinstance(described, list) else described]]).encode()
    with pytest.raises(StoreError, match="damaged"):
        unpack(with_text(text, bytes(200)))


@pytest.mark.parametrize("text", [b"[]", b"[1, []]", b'{"a": 1}', b"[[], []]", b"[" * 10_000, b"\xff"])
def test_a_hostile_header_is_a_store_error(text: bytes) -> None:
    for data in (with_text(text), text, b""):
        with pytest.raises(StoreError, match="damaged"):
            unpack(data)


def test_columns_of_absurdly_many_clients_are_refused() -> None:
    with pytest.raises(StoreError, match="the stored bytes are damaged"):
        RoundColumns.from_bytes(pack({"format": 1, "clients": 10**13, "rounds": 0}, {}))


COMPARED = ["<i8", "<i4", "|i1", "<u8", "<f8", "<f4", "|b1", "<c16", "<U3"]
ODD = np.array([0.0, -0.0, np.nan, np.inf, 1e300, 1.0, 2.0, 3.0])


def array(dtype: str, shape: tuple[int, ...], rng: np.random.Generator, *, is_transposed: bool = False) -> Any:
    with np.errstate(all="ignore"):
        values = rng.choice(ODD if np.dtype(dtype).kind in "fc" else ODD[-3:], size=shape).astype(dtype)
    return np.asfortranarray(values) if is_transposed else values


@given(
    seed=st.integers(0, 2**32 - 1),
    shapes=st.lists(
        st.sampled_from([(), (0,), (1,), (3 * FEW,), (3, 2 * FEW), (5 * FEW, 2)]), min_size=len(COMPARED), max_size=9
    ),
    changed=st.sets(st.sampled_from(COMPARED)),
    reshaped=st.sets(st.sampled_from(COMPARED)),
    is_transposed=st.booleans(),
)
def test_the_later_state_is_read_back_bit_by_bit(
    seed: int, shapes: list[tuple[int, ...]], changed: set[str], reshaped: set[str], is_transposed: bool
) -> None:
    rng = np.random.default_rng(seed)
    shape_of = dict(zip(COMPARED, shapes, strict=False))
    before = {kind: array(kind, shape, rng, is_transposed=is_transposed) for kind, shape in shape_of.items()}
    before |= {"count": 1, "name": "a", "gone": np.arange(3)}
    after = {kind: before[kind].copy(order="K") for kind in COMPARED}
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
