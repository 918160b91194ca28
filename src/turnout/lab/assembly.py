"""Assembly of columns from the records of rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from turnout.errors import StoreError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.rounds import OUTCOMES, RoundRecord

Array: TypeAlias = npt.NDArray[Any]
Fields: TypeAlias = dict[str, Any]

MISSING = np.float64("nan")
#: Fill values of the optional columns for rounds without them; in a round without outcomes all clients arrived.
FILL_VALUES: Mapping[str, Any] = {"available": np.True_, "outcomes": np.uint8(0), "losses": MISSING}
PER_ROUND = ("cohort_reasons", "metrics")
#: The fields that hold a mapping from names to columns.
NAMED_COLUMNS = ("client_reasons", *PER_ROUND)


def fields_of_records(records: Sequence[RoundRecord], *, clients: int) -> Fields:
    """Returns the fields of `RoundColumns` for these rounds, with rows in the order of each selection."""
    reports = [record.report for record in records]
    counts = _cohort_sizes(records)
    fields: Fields = {
        "clients": clients,
        "rounds": np.array([report.round for report in reports], dtype=np.int64),
        "starts": starts_of(counts),
        "chosen": _concatenate([record.selection.clients for record in records], np.int64),
        "contexts": _concatenate_contexts([report.contexts for report in reports], counts),
        "exchange_times": _concatenate([report.exchange_times for report in reports], np.float64),
        "late": {report.round: report.late_arrivals for report in reports if report.late_arrivals is not None},
        "absent": {},
    }
    fleet_sizes = np.full(len(reports), clients)
    _add_optional(fields, "available", _availability(records, clients), fleet_sizes, FILL_VALUES["available"])
    _add_optional(fields, "losses", [report.losses for report in reports], counts, FILL_VALUES["losses"])
    outcomes = [None if report.outcomes is None else np.asarray(report.outcomes) for report in reports]
    _add_optional(fields, "outcomes", outcomes, counts, OUTCOMES[0])
    fields["outcomes"] = _outcome_codes(fields["outcomes"])
    if fields["available"] is not None:
        fields["available"] = fields["available"].reshape(-1, clients)
    _add_named_columns(fields, records, counts)
    _sort_by_selection(fields, _concatenate([report.clients for report in reports], np.int64), counts)
    return fields


def starts_of(counts: npt.ArrayLike) -> IntArray:
    """Returns the first row of each round, followed by the end of the last round.

    >>> starts_of([2, 0, 3])
    array([0, 2, 2, 5])
    """
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def common_width(widths: Sequence[int], counts: Sequence[int]) -> int:
    """Returns the number of features of all contexts; those without clients do not count."""
    used = dict.fromkeys(width for width, count in zip(widths, counts, strict=True) if count)
    if len(used) > 1:
        width, other, *_ = used
        raise StoreError(f"contexts have {width} features in one round and {other} in another: keep them in two runs")
    return next(iter(used or widths), 0)


def _cohort_sizes(records: Sequence[RoundRecord]) -> IntArray:
    counts = [len(record.selection.clients) for record in records]
    for record, count in zip(records, counts, strict=True):
        if len(record.report.clients) != count:
            _refuse_report(record.round)
    return np.array(counts, dtype=np.int64)


def _availability(records: Sequence[RoundRecord], clients: int) -> list[BoolArray | None]:
    availability = [record.report.available for record in records]
    for record, mask in zip(records, availability, strict=True):
        if mask is not None and len(mask) != clients:
            raise StoreError(f"available of round {record.round} is for {len(mask)} clients, expected {clients}")
    return availability


def _concatenate_contexts(contexts: Sequence[FloatArray], counts: IntArray) -> FloatArray:
    width = common_width([rows.shape[1] for rows in contexts], counts.tolist())
    return np.concatenate([np.empty((0, width)), *(rows for rows in contexts if len(rows))])


def _concatenate(arrays: Sequence[Array], dtype: npt.DTypeLike) -> Array:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=dtype)


def _add_optional(fields: Fields, name: str, arrays: Sequence[Array | None], lengths: IntArray, fill: Any) -> None:
    """Adds the column of an optional field and, if only some rounds lack it, the mask of these rounds.

    Args:
        fields: The fields to extend.
        name: The name of the column.
        arrays: The values of each round, or None.
        lengths: The number of values that each round has or would have.
        fill: The fill value for rounds without the field.
    """
    missing = np.array([array is None for array in arrays], dtype=np.bool_)
    fields[name] = None if missing.all() else _concatenate_filled(arrays, lengths, fill)
    if missing.any() and not missing.all():
        fields["absent"][name] = missing


def _concatenate_filled(arrays: Sequence[Array | None], lengths: IntArray, fill: Any) -> Array:
    return np.concatenate(
        [np.full(length, fill) if array is None else array for array, length in zip(arrays, lengths, strict=True)]
    )


def _outcome_codes(outcomes: Array | None) -> npt.NDArray[np.uint8] | None:
    if outcomes is None:
        return None
    codes = np.zeros(len(outcomes), dtype=np.uint8)
    for code, outcome in enumerate(OUTCOMES[1:], start=1):
        codes[outcomes == outcome] = code
    return codes


def _add_named_columns(fields: Fields, records: Sequence[RoundRecord], counts: IntArray) -> None:
    for field, columns in _collect_named_values(records, counts).items():
        fields[field] = {}
        for name, values in columns.items():
            missing = np.array([value is None for value in values])
            if missing.any():
                fields["absent"][f"{field}.{name}"] = missing
            if field in PER_ROUND:
                numbers = [MISSING if value is None else value for value in values]
                fields[field][name] = np.array(numbers, dtype=np.float64)
            else:
                fields[field][name] = _concatenate_filled(values, counts, MISSING)


def _collect_named_values(records: Sequence[RoundRecord], counts: IntArray) -> dict[str, dict[str, list[Any]]]:
    """Returns the reasons and metrics as lists with one value per round, or None for rounds without a value."""
    values: dict[str, dict[str, list[Any]]] = {
        field: defaultdict(lambda: [None] * len(records)) for field in NAMED_COLUMNS
    }
    client_reasons, cohort_reasons, metrics = (values[field] for field in NAMED_COLUMNS)
    for index, (record, count) in enumerate(zip(records, counts.tolist(), strict=True)):
        for name, reason in record.selection.reasons.items():
            if not reason.ndim:
                cohort_reasons[name][index] = reason.item()
            elif reason.shape == (count,):
                client_reasons[name][index] = reason
            else:
                raise StoreError(
                    f"reasons[{name!r}] of round {record.round} has shape {reason.shape}, expected one number for the "
                    f"cohort, or one for each of its {count} clients"
                )
        for name, number in record.report.metrics.items():
            metrics[name][index] = number
    return values


def _sort_by_selection(fields: Fields, reported: IntArray, counts: IntArray) -> None:
    """Reorders the rows of reports that list their clients in another order than the selection."""
    chosen = fields["chosen"]
    fields["report_rows"] = None
    if np.array_equal(chosen, reported):
        return
    round_index = np.repeat(np.arange(len(counts)), counts)
    by_selection, by_report = np.lexsort((chosen, round_index)), np.lexsort((reported, round_index))
    different = chosen[by_selection] != reported[by_report]
    if different.any():
        _refuse_report(int(fields["rounds"][round_index[np.argmax(different)]]))
    report_rows = np.empty_like(chosen)
    report_rows[by_report] = by_selection
    row_in_report = np.argsort(report_rows)
    for name in ("contexts", "exchange_times", "outcomes", "losses"):
        if fields[name] is not None:
            fields[name] = fields[name][row_in_report]
    fields["report_rows"] = report_rows


def _refuse_report(round: int) -> None:
    raise StoreError(
        f"the clients in the report of round {round} are not the selected clients: report each selected client once, "
        "with the outcome 'late' or 'failed' if it did not arrive"
    )
