"""Arrays and a few plain values as bytes: an npz with a JSON header, read and written without pickle."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import StoreError

PLAIN_ARRAYS = "biufU"
_HEADER = "header.json"
_DAMAGED = (
    zipfile.BadZipFile,
    ArithmeticError,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    zlib.error,
)


def pack(header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """An uncompressed npz of `arrays`, with `header` as JSON beside them; equal input gives equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(_HEADER), json.dumps(header))
        for name, array in arrays.items():
            entry = io.BytesIO()
            np.lib.format.write_array(entry, array, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), entry.getbuffer())
    return buffer.getvalue()


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """What `pack` was given; every entry is held against its checksum."""
    with corruption_as_store_error(), zipfile.ZipFile(io.BytesIO(data)) as archive:
        header: dict[str, Any] = json.loads(archive.read(_HEADER))
        arrays = {
            name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(archive.read(name)), allow_pickle=False)
            for name in archive.namelist()
            if name != _HEADER
        }
    return header, arrays


def pack_snapshot(snapshot: Mapping[str, Any]) -> bytes:
    """A flat state of arrays, whole numbers, numbers, words and truths."""
    scalars: dict[str, Any] = {}
    arrays: dict[str, npt.NDArray[Any]] = {}
    for key, value in snapshot.items():
        if not isinstance(key, str):
            raise StoreError(f"a snapshot is kept by words, not by {key!r}: use str keys")
        if isinstance(value, np.ndarray) and value.dtype.kind in PLAIN_ARRAYS:
            arrays[key] = value
        elif isinstance(value, bool | int | float | str):
            scalars[key] = value
        else:
            what = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"of type {type(value).__name__}"
            raise StoreError(
                f"snapshot[{key!r}] is {what}: give a plain array of numbers, truths or words, an int, a float, "
                "a bool or a str"
            )
    header = {"order": list(snapshot), "scalars": scalars, "arrays": list(arrays)}
    return pack(header, {str(place): array for place, array in enumerate(arrays.values())})


def unpack_snapshot(data: bytes) -> dict[str, Any]:
    """What `pack_snapshot` was given, with the same types."""
    header, arrays = unpack(data)
    with corruption_as_store_error():
        values = {**header["scalars"], **{key: arrays[str(place)] for place, key in enumerate(header["arrays"])}}
        return {key: values[key] for key in header["order"]}


@contextmanager
def corruption_as_store_error() -> Iterator[None]:
    """Turn whatever damaged bytes lead to into a StoreError."""
    try:
        yield
    except _DAMAGED as damage:
        raise StoreError(f"the stored bytes are damaged ({damage}): restore them from a backup") from damage
