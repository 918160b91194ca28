"""Serialisation of arrays and plain values: an npz archive with a JSON header, without pickle."""

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
from turnout.storage.encoding.archive import npy_bytes, zip_bytes
from turnout.storage.encoding.compact import is_compact, pack_compact, unpack_compact
from turnout.storage.encoding.limits import open_zip, parse_json, read_npy, stored_content

PLAIN_ARRAYS = "biufU"
_HEADER = "header.json"
_CORRUPTION_ERRORS = (
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
    """Returns an uncompressed npz archive of `arrays` with `header` as JSON; equal input gives equal bytes."""
    entries = {_HEADER: json.dumps(header).encode()}
    entries |= {f"{name}.npy": npy_bytes(array) for name, array in arrays.items()}
    return zip_bytes(entries)


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Returns the header and the arrays that were given to `pack`; the checksum of every entry is verified."""
    with corruption_as_store_error(), open_zip(io.BytesIO(data), None) as archive:
        header: dict[str, Any] = parse_json(stored_content(data, archive.getinfo(_HEADER)))
        arrays = {
            entry.filename.removesuffix(".npy"): read_npy(stored_content(data, entry))
            for entry in archive.infolist()
            if entry.filename != _HEADER
        }
    return header, arrays


def parse_stored(text: str | bytes) -> Any:
    """Parses JSON that was stored; damaged text raises StoreError."""
    with corruption_as_store_error():
        return parse_json(text)


def pack_snapshot(snapshot: Mapping[str, Any]) -> bytes:
    """Serialises a flat state whose values are arrays, integers, floats, strings and booleans."""
    scalars, arrays = _scalars_and_arrays(snapshot)
    header = {"order": list(snapshot), "scalars": scalars, "arrays": list(arrays)}
    return pack(header, {str(index): array for index, array in enumerate(arrays.values())})


def pack_compact_snapshot(snapshot: Mapping[str, Any]) -> bytes:
    """Does the same in less space and time for large states, most of whose values are equal or small."""
    return pack_compact(list(snapshot), *_scalars_and_arrays(snapshot))


def _scalars_and_arrays(snapshot: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Checks a flat state, and returns its plain values and its arrays."""
    scalars: dict[str, Any] = {}
    arrays: dict[str, npt.NDArray[Any]] = {}
    for key, value in snapshot.items():
        if not isinstance(key, str):
            raise StoreError(f"the keys of a snapshot must be strings, not {key!r}")
        if isinstance(value, np.ndarray) and value.dtype.kind in PLAIN_ARRAYS:
            arrays[key] = value
        elif isinstance(value, bool | int | float | str):
            scalars[key] = value
        else:
            kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"of type {type(value).__name__}"
            raise StoreError(
                f"snapshot[{key!r}] is {kind}: give an array of numbers, booleans or strings, an int, a float, a bool "
                "or a str"
            )
    return scalars, arrays


def unpack_snapshot(data: bytes) -> dict[str, Any]:
    """Returns the state that was given to `pack_snapshot` or `pack_compact_snapshot`, with the same types."""
    with corruption_as_store_error():
        if is_compact(data):
            return unpack_compact(data)
    header, arrays = unpack(data)
    with corruption_as_store_error():
        values = {**header["scalars"], **{key: arrays[str(index)] for index, key in enumerate(header["arrays"])}}
        return {key: values[key] for key in header["order"]}


@contextmanager
def corruption_as_store_error() -> Iterator[None]:
    """Converts every error that corrupt bytes can cause into a StoreError."""
    try:
        yield
    except _CORRUPTION_ERRORS as corruption:
        raise StoreError(f"the stored bytes are damaged ({corruption}): restore them from a backup") from corruption
