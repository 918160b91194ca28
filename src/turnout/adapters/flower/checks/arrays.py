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

from turnout.adapters.common import models as common

NUMPY = "numpy.ndarray"  # Flower's name of the format of np.save


def model_problem(arrays: ArrayRecord, before: Callable[[], Iterable[ArrayRecord]]) -> str | None:
    """Returns why a model cannot be used, or None; arrays in another format than that of np.save are not checked."""
    return common.model_problem(arrays, before, _values)


def _values(array: Array) -> npt.NDArray[Any] | None:
    """Returns the values of an array: a view of its bytes if these begin as np.save writes them, which is quick."""
    if array.stype != NUMPY:
        return None
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
