"""Conversion and validation of input arrays; an error names the field, the row and the value."""

from __future__ import annotations

import dataclasses
import math
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError, StateError, TurnoutError
from turnout.kernel.backend import compiled_kernel, kernel_threads

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Rate: TypeAlias = float | str | Fraction

MAX_FLOAT = float(np.finfo(np.float64).max)
#: The largest whole number: it fits into 64 bits, as everything that is stored and computed with.
MAX_COUNT = 2**63 - 1
#: The largest number of clients; policies and fleets are tested with a million.
MAX_CLIENTS = 10**8
MAX_CONTEXT = 1e6
MAX_TIME = 1e9
#: The largest number of units per turn; with it, the turns owed after billions of rounds fit into 64 bits. Rates and
#: tolerances are read as fractions with denominators up to this.
FINEST = 10**9
#: The number of bytes from which an array of zeros is mapped instead of cleared.
SPARSE_FROM = 2**20
#: Whether states share their arrays.
_LENDS: ContextVar[bool] = ContextVar("lends", default=False)


def as_floats(
    field: str, value: npt.ArrayLike, dimensions: int, error: type[TurnoutError], *, largest: float = np.inf
) -> FloatArray:
    """Converts `value` to a float64 array and checks that every number is finite and within ±largest.

    An array that is float64 already is returned without a copy.

    Args:
        field: The name of the argument, for error messages.
        value: The array to convert.
        dimensions: The number of dimensions that the array must have.
        error: The type of the error to raise.
        largest: The largest absolute value that is allowed.
    """
    array = _as_array(field, value, "fiu", "numbers", dimensions, error).astype(np.float64, copy=False)
    if not _magnitude(array) <= min(largest, MAX_FLOAT):
        refuse_where(~np.isfinite(array), field, array, "must be finite", error)
        refuse_where(np.abs(array) > largest, field, array, f"must lie within ±{largest:g}", error)
    return array


def as_contexts(value: npt.ArrayLike, error: type[TurnoutError]) -> FloatArray:
    """Converts contexts to a float64 array with one row of features per client.

    Values beyond ±1e6 are refused: the regressions square them and would lose precision.
    """
    return as_floats("contexts", value, 2, error, largest=MAX_CONTEXT)


def as_times(field: str, value: npt.ArrayLike, error: type[TurnoutError], *, largest: float = MAX_TIME) -> FloatArray:
    """Converts times in seconds to a vector of finite numbers between 0 and `largest` (by default 30 years)."""
    times = as_floats(field, value, 1, error, largest=largest)
    if times.size and times.min() < 0:
        refuse_where(times < 0, field, times, "must not be negative", error)
    return times


def as_mask(field: str, value: npt.ArrayLike, error: type[TurnoutError]) -> BoolArray:
    """Converts `value` to a contiguous boolean vector with one entry per client."""
    return np.ascontiguousarray(_as_array(field, value, "b", "booleans", 1, error))


def as_rows(field: str, value: npt.ArrayLike, error: type[TurnoutError], *, clients: int | None = None) -> IntArray:
    """Converts `value` to an array of distinct row indices, each below `clients` if that is given."""
    rows = _as_array(field, value, "iu", "rows (whole numbers)", 1, error).astype(np.int64, copy=False)
    if rows.size == 0:
        return rows
    lowest, highest, distinct = _summarize_rows(rows)
    if lowest < 0:
        refuse_where(rows < 0, field, rows, "must be a row, and rows count from 0", error)
    if clients is not None and highest >= clients:
        refuse_where(rows >= clients, field, rows, f"is unknown: there are {clients} clients", error)
    if not distinct:
        _, first = np.unique(rows, return_index=True)
        repeated = np.ones(len(rows), dtype=np.bool_)
        repeated[first] = False
        refuse_where(repeated, field, rows, "is a duplicate: a client may appear only once", error)
    return rows


def as_count(field: str, value: object, error: type[TurnoutError], *, least: int = 1, most: int = MAX_COUNT) -> int:
    """Converts `value` to an int and checks that it lies between `least` and `most`."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise error(f"{field} must be a whole number, not {value!r}")
    if value > most:
        raise error(f"{field} must be at most {most}, not {_short(value)}")
    if value < least:
        raise error(f"{field} must be at least {least}, not {_short(value)}")
    return int(value)


def _short(value: int | np.integer) -> str:
    """Returns a whole number for a message; Python refuses to convert those of thousands of digits."""
    return str(value) if abs(int(value)) <= MAX_COUNT else f"a number of {int(value).bit_length()} bits"


def as_number(
    field: str,
    value: object,
    error: type[TurnoutError],
    *,
    least: float = -np.inf,
    above: float = -np.inf,
    most: float = np.inf,
) -> float:
    """Converts `value` to a finite float and checks its bounds.

    Args:
        field: The name of the argument, for error messages.
        value: The number to convert.
        error: The type of the error to raise.
        least: The smallest value that is allowed.
        above: The number must be strictly greater than this.
        most: The largest value that is allowed.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, (float, int, np.integer, np.floating)):
        raise error(f"{field} must be a number, not {value!r}")
    try:
        number = float(value)
    except OverflowError:
        raise error(f"{field} must be at most {MAX_FLOAT:g} in size, not a whole number beyond it") from None
    if not math.isfinite(number):
        raise error(f"{field} must be finite, not {number}")
    if number < least:
        raise error(f"{field} must be at least {least:g}, not {number:g}")
    if number <= above:
        raise error(f"{field} must be above {above:g}, not {number:g}")
    if number > most:
        raise error(f"{field} must be at most {most:g}, not {number:g}")
    return number


def require_length(field: str, array: npt.NDArray[Any], expected: int, items: str, error: type[TurnoutError]) -> None:
    """Raises `error` unless `array` has one row for each of the `expected` items.

    Args:
        field: The name of the argument, for error messages.
        array: The array to check.
        expected: The number of rows that it must have.
        items: What the rows stand for, in the plural, such as "clients".
        error: The type of the error to raise.
    """
    if len(array) != expected:
        raise error(f"{field} has {len(array)} rows, but there are {expected} {items}: give one row for each")


def refuse_where(wrong: BoolArray, field: str, array: npt.NDArray[Any], why: str, error: type[TurnoutError]) -> None:
    """Raises `error` if `wrong` is true anywhere; the message names the first such entry and counts the others.

    Args:
        wrong: A mask of the invalid entries of `array`.
        field: The name of the argument, for the message.
        array: The array that holds the values.
        why: What is wrong with the values; it completes the sentence "field[index] = value …".
        error: The type of the error to raise.
    """
    indices = np.argwhere(wrong)
    if not len(indices):
        return
    index = tuple(int(i) for i in indices[0])
    position = ", ".join(map(str, index))
    others = f" (and {len(indices) - 1} more)" if len(indices) > 1 else ""
    raise error(f"{field}[{position}] = {array[index]} {why}{others}")


def smallest(values: npt.NDArray[Any], count: int, tie_break: FloatArray | None = None) -> IntArray:
    """Returns the indices of the `count` smallest values in ascending order.

    Ties go to the smaller `tie_break`, or without one to the lower index.

    >>> smallest(np.array([3, 1, 2, 1, 2]), 3)
    array([1, 2, 3])
    >>> smallest(np.array([1.0, 7.0, 1.0, 1.0]), 2, tie_break=np.array([0.9, 0.0, 0.1, 0.2]))
    array([2, 3])
    """
    if count >= len(values):
        return np.arange(len(values))
    if count == 0:
        return np.empty(0, dtype=np.int64)
    bound = np.partition(values, count - 1)[count - 1]
    below = np.flatnonzero(values < bound)
    tied, places = np.flatnonzero(values == bound), count - len(below)
    chosen = tied[:places] if tie_break is None else tied[smallest(tie_break[tied], places)]
    return np.sort(np.concatenate([below, chosen]))


def at_rows(value: Any, rows: IntArray | int) -> Any:
    """Returns the entries of these clients, or the value itself if it is one for all clients."""
    return value[rows] if isinstance(value, np.ndarray) else value


def saved_value(state: Mapping[str, Any], key: str) -> Any:
    """Returns the value that a saved state holds under `key`."""
    if key not in state:
        raise StateError(f"the saved state has no {key!r}; it has {', '.join(sorted(state)) or 'nothing'}")
    return state[key]


@contextmanager
def lending_arrays() -> Iterator[None]:
    """Opens a block in which states share their arrays with their owners: those of a large fleet take long to copy.

    For callers that read a state before anything changes, or own the one that they restore.
    """
    token = _LENDS.set(True)
    try:
        yield
    finally:
        _LENDS.reset(token)


def save_array(array: npt.NDArray[Any]) -> Any:
    """Returns an array for a state: a copy, except inside `lending_arrays`."""
    return array if _LENDS.get() else array.copy()


def load_array(state: Mapping[str, Any], key: str, like: npt.NDArray[Any]) -> Any:
    """Returns a saved array, which must have the shape of `like`, with its dtype: a copy, as `save_array` does."""
    convert = np.asarray if _LENDS.get() else np.array
    array = convert(saved_value(state, key), dtype=like.dtype, order="C")
    if array.shape != like.shape:
        raise StateError(f"the saved {key!r} has shape {array.shape}, expected {like.shape}")
    return array


def read_only(array: npt.NDArray[Any]) -> Any:
    """Returns a read-only view of `array`, or `array` itself if it is read-only already."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _summarize_rows(rows: IntArray) -> tuple[int, int, bool]:
    """Returns the lowest row, the highest row and whether all rows are distinct.

    Plain Python is faster than NumPy for short arrays.
    """
    if rows.size <= 64:
        values = rows.tolist()
        return min(values), max(values), len(set(values)) == len(values)
    is_ascending = bool((rows[1:] > rows[:-1]).all())  # as most rows are: then they need not be sorted
    ordered = rows if is_ascending else np.sort(rows)
    return int(ordered[0]), int(ordered[-1]), is_ascending or bool((ordered[1:] > ordered[:-1]).all())


def _magnitude(array: FloatArray) -> float:
    """Returns the largest absolute value; NaN or infinity if not all values are finite."""
    if array.size == 0:
        return 0.0
    compiled = compiled_kernel()
    if compiled is not None and (array.flags.c_contiguous or array.flags.f_contiguous):
        return float(compiled.magnitude(array.ravel(order="K"), kernel_threads(len(array))))
    return float(max(array.max(), -array.min()))


def _as_array(
    field: str, value: npt.ArrayLike, kinds: str, items: str, dimensions: int, error: type[TurnoutError]
) -> npt.NDArray[Any]:
    """Converts `value` to an array of one of the dtype `kinds`.

    Args:
        field: The name of the argument, for error messages.
        value: The array to convert.
        kinds: The NumPy dtype kinds that are allowed, such as "fiu".
        items: What the array must hold, in words, for error messages.
        dimensions: The number of dimensions that the array must have.
        error: The type of the error to raise.
    """
    try:
        array = np.asarray(value)
    except ValueError as ragged:
        raise error(f"{field} must be an array of {items}: {ragged}") from ragged
    if array.size == 0 and array.ndim == dimensions and array.dtype.kind in "fiub":
        array = array.astype({"b": np.bool_, "iu": np.int64}.get(kinds[:2], np.float64))
    if array.dtype.kind not in kinds:
        raise error(f"{field} must hold {items}, not {array.dtype}")
    if array.ndim != dimensions:
        raise error(f"{field} must have {dimensions} dimension{'s'[: dimensions > 1]}, not shape {array.shape}")
    return array


def sparse_zeros(rows: int, columns: int) -> FloatArray:
    """Returns a column-major array of zeros; if it is large, only the pages that are written take time and memory.

    NumPy reuses memory that the process has freed, and clears all of it.
    """
    size = rows * columns * np.dtype(np.float64).itemsize
    if size < SPARSE_FROM:
        return np.zeros((rows, columns), order="F")
    return np.ndarray((rows, columns), dtype=np.float64, buffer=mmap.mmap(-1, size), order="F")


def exact_rate(rate: Rate) -> Fraction:
    """Converts a share of rounds to a fraction; 0.15, "3/20" and Fraction(3, 20) give the same result.

    >>> exact_rate(0.15)
    Fraction(3, 20)
    """
    try:
        # A string with an exponent, which may be huge, is read by way of a float.
        number = float(rate) if isinstance(rate, str) and "e" in rate.lower() else rate
        exact = Fraction(number)
    except (ValueError, TypeError, OverflowError, ZeroDivisionError):
        raise SettingError(f"guaranteed_rate must be a number or a fraction such as '3/20', not {rate!r}") from None
    fraction = exact.limit_denominator(FINEST)
    if isinstance(rate, bool) or not 0 <= fraction <= 1:
        raise SettingError(f"guaranteed_rate must lie in [0, 1], not {rate}")
    if exact and not fraction:
        raise SettingError(f"guaranteed_rate must be 0 or at least {1 / FINEST:g}, not {rate}")
    return fraction


def exact_rates(rates: Rate | npt.ArrayLike, clients: int | None) -> tuple[int | IntArray, int]:
    """Converts one rate, or one per client, to integer units and the number of units per turn.

    Different rates get a common denominator. If that would exceed 10⁹, the rates are rounded up to multiples of
    10⁻⁹, so that no client is promised less than requested. If `clients` is None, any number of rates is accepted.
    """
    allowed = "one rate or one per client" if clients is None else f"one rate or {clients}, one per client"
    try:
        values = np.asarray(rates)
    except ValueError as ragged:
        raise SettingError(f"guaranteed_rate must be {allowed}: {ragged}") from ragged
    if values.ndim == 0:
        rate = exact_rate(float(rates) if isinstance(rates, np.number) else rates)  # type: ignore[arg-type]
        return rate.numerator, rate.denominator
    if values.ndim != 1 or clients not in (None, len(values)):
        raise SettingError(f"guaranteed_rate must be {allowed}, not shape {values.shape}")
    distinct, inverse = np.unique(values, return_inverse=True)
    fractions = [exact_rate(rate) for rate in distinct.tolist()]
    unit = 1
    for fraction in fractions:
        unit = math.lcm(unit, fraction.denominator)
        if unit > FINEST:
            unit = FINEST
            break
    numerators = np.array([math.ceil(fraction * unit) for fraction in fractions], dtype=np.int64)
    return numerators[inverse], unit


class Value:
    """Base class of frozen values that are equal if all fields are equal; arrays are compared by their contents."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(
            _equal(getattr(self, attribute.name), getattr(other, attribute.name))
            for attribute in dataclasses.fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have no hash

    def _set(self, **fields: object) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, read_only(value) if isinstance(value, np.ndarray) else value)

    @classmethod
    def _trusted(cls, **fields: object) -> Self:
        """Creates a value without validation, from new arrays of this package, which become read-only in place."""
        instance = object.__new__(cls)
        for name, value in fields.items():
            if type(value) is np.ndarray:
                value.setflags(write=False)
            object.__setattr__(instance, name, value)
        return instance


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        if not (isinstance(left, np.ndarray) and isinstance(right, np.ndarray)):
            return False
        return bool(np.array_equal(left, right, equal_nan=left.dtype.kind == "f" and right.dtype.kind == "f"))
    if isinstance(left, Mapping):  # and so is the same field of the other value
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    return bool(left == right)
