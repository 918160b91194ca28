"""What differs between two states of the same form: of a large fleet, a few entries of large arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from turnout.storage.encoding.packing import MAX_ENTRY, PLAIN_ARRAYS, corruption_as_store_error

#: Begins the key of the indices of the entries of an array that differ, in the order of the rows.
_INDICES = "@"
#: If more than one of so many entries of an array differ, the array is stored as a whole.
FEW = 16


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what must be known of the state `after` if `before` is known, as a flat state.

    Entries are compared bit by bit, so that NaN equals itself and −0.0 differs from 0.0.
    """
    differing: dict[str, Any] = {}
    for key, value in after.items():
        old = before.get(key)
        if _is_comparable(old, value):
            differs = _bits(old) != _bits(value)
            if np.count_nonzero(differs) * FEW <= len(differs):
                indices = np.flatnonzero(differs)
                differing[_INDICES + key], value = indices, value.reshape(-1)[indices]
        differing[key] = value
    return differing


def with_differences(before: Mapping[str, Any], differing: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state `after` that `differences` was given; arrays of `before` may be changed for it."""
    after = {}
    with corruption_as_store_error():
        for key, value in differing.items():
            if not key.startswith(_INDICES):
                indices = differing.get(_INDICES + key)
                if indices is not None:
                    entries, value = value, np.ascontiguousarray(before[key])
                    value.reshape(-1)[indices] = entries
                after[key] = value
    return after


def copied(state: Mapping[str, Any], into: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of a flat state in the memory of another one: that of new arrays would take longer to get."""
    copy = {}
    for key, value in state.items():
        copy[key] = value
        if isinstance(value, np.ndarray):
            array = into.get(key)
            is_usable = isinstance(array, np.ndarray) and (array.dtype, array.shape) == (value.dtype, value.shape)
            copy[key] = array if is_usable else np.empty_like(value)
            np.copyto(copy[key], value)
    return copy


def _is_comparable(old: Any, new: Any) -> bool:
    """Returns whether two values are arrays of the same form, whose entries can be compared bit by bit."""
    return (
        isinstance(old, np.ndarray)
        and isinstance(new, np.ndarray)
        and (old.dtype, old.shape) == (new.dtype, new.shape)
        and new.ndim > 0
        and new.dtype.kind in PLAIN_ARRAYS[:-1]
        and new.dtype.itemsize <= MAX_ENTRY
    )


def _bits(array: Any) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
