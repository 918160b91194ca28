"""Checks the arrays of a reply without deserializing them."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord

NUMPY = "numpy.ndarray"  # Flower's name of the format of np.save


def model_problem(arrays: ArrayRecord, before: Callable[[], Iterable[ArrayRecord]]) -> str | None:
    """Returns why a model cannot be used: an array cannot be read, or contains NaN or infinity; None if it can.

    Arrays in another format than that of np.save are not checked, and those that were not finite before may stay so:
    the mask of an attention layer, for example, contains infinity.

    Args:
        arrays: the model.
        before: returns the model, in one of several records, before it was trained.
    """
    for name, array in arrays.items():
        try:
            is_finite = _is_finite(array)
        except Exception as error:  # what is raised depends on the bytes that were sent
            return f"its array {name!r} cannot be read: {error}"
        if not is_finite and all(name not in record or _is_finite(record[name]) for record in before()):
            return f"its array {name!r} contains values that are not finite"
    return None


def _is_finite(array: Array) -> bool:
    if array.stype != NUMPY:
        return True
    values = _values(array)
    return values.dtype.kind not in "fc" or bool(np.isfinite(values).all())


def _values(array: Array) -> npt.NDArray[Any]:
    """Returns the values of an array: a view of its bytes if these begin as np.save writes them, which is quick."""
    shape = tuple(array.shape)
    header, dtype = _header(array.dtype, shape)
    if array.data.startswith(header) and len(array.data) == len(header) + math.prod(shape) * dtype.itemsize:
        return np.frombuffer(array.data, dtype, offset=len(header))
    values = array.numpy()  # for example in Fortran order
    if values.shape != shape or values.dtype != dtype:
        raise ValueError(f"it is declared as {array.dtype} {shape}, but is {values.dtype} {values.shape}")
    return values


@lru_cache(maxsize=4096)
def _header(dtype: str, shape: tuple[int, ...]) -> tuple[bytes, np.dtype[Any]]:
    """Returns what np.save writes before the values of an array of this type and shape."""
    described, stream = np.dtype(dtype), io.BytesIO()
    if described.hasobject:
        raise ValueError("it contains Python objects")
    descr = np.lib.format.dtype_to_descr(described)
    np.lib.format.write_array_header_1_0(stream, {"descr": descr, "fortran_order": False, "shape": shape})
    return stream.getvalue(), described
