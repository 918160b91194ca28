from __future__ import annotations

import io
import zipfile
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from turnout.storage.encoding import archive
from turnout.storage.encoding.archive import npy_bytes, zip_bytes

NAMES = st.one_of(st.text(min_size=1, max_size=8), st.sampled_from(["header.json", "a.npy", "ü", "a b"]))
SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
TYPES = st.sampled_from(["<i8", "|i1", "<u4", "<f8", "|b1", "<U3", ">i8", "<c16"])


def written_by_zipfile(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name, data in entries.items():
            file.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


@given(st.dictionaries(NAMES.filter(lambda name: "\0" not in name and "/" not in name), st.binary(max_size=50)))
def test_an_archive_has_the_bytes_that_zipfile_writes(entries: dict[str, bytes]) -> None:
    assert zip_bytes(entries) == written_by_zipfile(entries)


def test_a_large_archive_is_written_by_zipfile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_BYTES", 3)
    assert zip_bytes({"a": b"1234"}) == written_by_zipfile({"a": b"1234"})


@given(st.data())
def test_an_array_has_the_bytes_that_numpy_writes(data: st.DataObject) -> None:
    array: npt.NDArray[Any] = data.draw(arrays_of.arrays(data.draw(TYPES), data.draw(SHAPES)))
    for variant in (array, np.asfortranarray(array), array.T, array[..., ::2] if array.ndim else array):
        stream = io.BytesIO()
        np.lib.format.write_array(stream, variant, allow_pickle=False)
        assert npy_bytes(variant) == stream.getvalue()


def test_arrays_of_objects_are_refused() -> None:
    with pytest.raises(ValueError, match="allow_pickle"):
        npy_bytes(np.array([{}], dtype=object))
