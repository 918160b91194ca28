"""Arrays as they enter: converted, checked, and refused by field, row and value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from turnout.errors import StateError, TurnoutError
from turnout.kernel.backend import compiled_kernel

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

LARGEST_FLOAT = float(np.finfo(np.float64).max)
LARGEST_CONTEXT = 1e6
LARGEST_TIME = 1e9


def as_floats(
    field: str, value: npt.ArrayLike, dimensions: int, error: type[TurnoutError], *, largest: float = np.inf
) -> FloatArray:
    """`value` as float64 numbers, finite and within ±largest; an array that already is passes without a copy."""
    array = _as_array(field, value, "fiu", "numbers", dimensions, error).astype(np.float64, copy=False)
    if not _magnitude(array) <= min(largest, LARGEST_FLOAT):
        refuse_where(~np.isfinite(array), field, array, "must be finite", error)
        refuse_where(np.abs(array) > largest, field, array, f"must lie within ±{largest:g}", error)
    return array


def as_contexts(value: npt.ArrayLike, error: type[TurnoutError]) -> FloatArray:
    """One row of features a client.

    Numbers beyond a million are refused: the regressions square them, and would lose their digits.
    """
    return as_floats("contexts", value, 2, error, largest=LARGEST_CONTEXT)


def as_times(
    field: str, value: npt.ArrayLike, error: type[TurnoutError], *, largest: float = LARGEST_TIME
) -> FloatArray:
    """Seconds, one number a row: finite, not negative, and no more than thirty years."""
    times = as_floats(field, value, 1, error, largest=largest)
    if times.size and times.min() < 0:
        refuse_where(times < 0, field, times, "must not be negative", error)
    return times


def as_mask(field: str, value: npt.ArrayLike, error: type[TurnoutError]) -> BoolArray:
    """One boolean a client, contiguous."""
    return np.ascontiguousarray(_as_array(field, value, "b", "booleans", 1, error))


def as_rows(field: str, value: npt.ArrayLike, error: type[TurnoutError], *, clients: int | None = None) -> IntArray:
    """Rows of distinct clients, each below `clients` where that is known."""
    rows = _as_array(field, value, "iu", "rows (whole numbers)", 1, error).astype(np.int64, copy=False)
    if rows.size == 0:
        return rows
    lowest, highest, distinct = _rows_at_a_glance(rows)
    if lowest < 0:
        refuse_where(rows < 0, field, rows, "must be a row, and rows count from 0", error)
    if clients is not None and highest >= clients:
        refuse_where(rows >= clients, field, rows, f"is unknown: there are {clients} clients", error)
    if not distinct:
        _, first = np.unique(rows, return_index=True)
        repeated = np.ones(len(rows), dtype=np.bool_)
        repeated[first] = False
        refuse_where(repeated, field, rows, "stands there already: a client may appear once", error)
    return rows


def as_count(field: str, value: object, error: type[TurnoutError], *, least: int = 1) -> int:
    """A whole number that is at least `least`."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise error(f"{field} must be a whole number, not {value!r}")
    if value < least:
        raise error(f"{field} must be at least {least}, not {value}")
    return int(value)


def as_number(
    field: str,
    value: object,
    error: type[TurnoutError],
    *,
    least: float = -np.inf,
    above: float = -np.inf,
    most: float = np.inf,
) -> float:
    """A finite number with `above` < number, `least` <= number <= `most`."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        raise error(f"{field} must be a number, not {value!r}")
    number = float(value)
    if not np.isfinite(number):
        raise error(f"{field} must be finite, not {number}")
    if number < least:
        raise error(f"{field} must be at least {least:g}, not {number:g}")
    if number <= above:
        raise error(f"{field} must be above {above:g}, not {number:g}")
    if number > most:
        raise error(f"{field} must be at most {most:g}, not {number:g}")
    return number


def require_length(field: str, array: npt.NDArray[Any], wanted: int, what: str, error: type[TurnoutError]) -> None:
    """Refuse an array that does not have one row for each of `wanted` things."""
    if len(array) != wanted:
        raise error(f"{field} has {len(array)} rows, but there are {wanted} {what}: one row each is needed")


def refuse_where(wrong: BoolArray, field: str, array: npt.NDArray[Any], why: str, error: type[TurnoutError]) -> None:
    """Raise, naming the first place where `wrong` is true and how many more there are."""
    places = np.argwhere(wrong)
    if not len(places):
        return
    place = tuple(int(i) for i in places[0])
    where = ", ".join(map(str, place))
    more = f" ({len(places) - 1} more like it)" if len(places) > 1 else ""
    raise error(f"{field}[{where}] = {array[place]} {why}{more}")


def smallest(values: npt.NDArray[Any], count: int) -> IntArray:
    """Ascending positions of the `count` smallest values; of equals the earlier.

    >>> smallest(np.array([3, 1, 2, 1, 2]), 3)
    array([1, 2, 3])
    """
    if count >= len(values):
        return np.arange(len(values))
    if count == 0:
        return np.empty(0, dtype=np.int64)
    bound = np.partition(values, count - 1)[count - 1]
    surely = np.flatnonzero(values < bound)
    equals = np.flatnonzero(values == bound)[: count - len(surely)]
    return np.sort(np.concatenate([surely, equals]))


def saved_value(state: Mapping[str, Any], key: str) -> Any:
    """What a saved state holds under `key`."""
    if key not in state:
        raise StateError(f"the saved state has no {key!r}; it has {', '.join(sorted(state)) or 'nothing'}")
    return state[key]


def load_array(state: Mapping[str, Any], key: str, like: npt.NDArray[Any]) -> Any:
    """A copy of a saved array that must have the shape of `like`."""
    array = np.array(saved_value(state, key), dtype=like.dtype, order="C")
    if array.shape != like.shape:
        raise StateError(f"the saved {key!r} has shape {array.shape}, expected is {like.shape}")
    return array


def read_only(array: npt.NDArray[Any]) -> Any:
    """A view of `array` through which nobody can write; itself, where nobody can."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _rows_at_a_glance(rows: IntArray) -> tuple[int, int, bool]:
    """The lowest, the highest, and whether they are distinct; plain Python is faster on a few."""
    if rows.size <= 64:
        few = rows.tolist()
        return min(few), max(few), len(set(few)) == len(few)
    in_order = np.sort(rows)
    return int(in_order[0]), int(in_order[-1]), bool((in_order[1:] > in_order[:-1]).all())


def _magnitude(array: FloatArray) -> float:
    """The largest absolute value; NaN or infinity where not all are finite."""
    if array.size == 0:
        return 0.0
    compiled = compiled_kernel()
    if compiled is not None and (array.flags.c_contiguous or array.flags.f_contiguous):
        return float(compiled.magnitude(array.ravel(order="K")))
    return float(max(array.max(), -array.min()))


def _as_array(
    field: str, value: npt.ArrayLike, kinds: str, what: str, dimensions: int, error: type[TurnoutError]
) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
    except ValueError as ragged:
        raise error(f"{field} must be an array of {what}: {ragged}") from ragged
    if array.size == 0 and array.ndim == dimensions and array.dtype.kind in "fiub":
        array = array.astype({"b": np.bool_, "iu": np.int64}.get(kinds[:2], np.float64))
    if array.dtype.kind not in kinds:
        raise error(f"{field} must hold {what}, not {array.dtype}")
    if array.ndim != dimensions:
        raise error(f"{field} must have {dimensions} dimension{'s'[: dimensions > 1]}, not shape {array.shape}")
    return array
