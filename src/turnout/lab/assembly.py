"""Assembly of columns from parts: the records of rounds, or columns of earlier and later rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from turnout.errors import StoreError
from turnout.kernel.arrays import IntArray
from turnout.kernel.rounds import OUTCOMES, RoundRecord

#: Fields of columns by name. Those with one value per round are lists in a part, all others arrays.
Fields: TypeAlias = dict[str, Any]

MISSING = np.float64("nan")
#: Fill values of the optional columns for rounds without them; in a round without outcomes all clients arrived.
FILL_VALUES: Mapping[str, Any] = {"available": np.True_, "outcomes": np.uint8(0), "losses": MISSING}
PER_ROUND = ("cohort_reasons", "metrics")
#: The fields that hold a mapping from names to columns.
NAMED_COLUMNS = ("client_reasons", "signals", *PER_ROUND)


def fields_of_records(records: Sequence[RoundRecord], *, clients: int) -> Fields:
    """Returns the fields of `RoundColumns` for these rounds, with rows in the order of each selection."""
    fields = assemble(
        [_part_of_record(record, clients) for record in records], clients, {**FILL_VALUES, "outcomes": OUTCOMES[0]}
    )
    if fields["outcomes"] is not None:
        fields["outcomes"] = sum((fields["outcomes"] == name) * np.uint8(code) for code, name in enumerate(OUTCOMES))
    _sort_by_selection(fields, [record.report.clients for record in records])
    return fields


def assemble(parts: Sequence[Fields], clients: int, fill_values: Mapping[str, Any] = FILL_VALUES) -> Fields:
    """Returns the fields of the columns that have the rounds of all parts."""
    counts = list(chain.from_iterable(part["counts"] for part in parts))
    fields: Fields = {
        "clients": clients,
        "rounds": np.array(list(chain.from_iterable(part["rounds"] for part in parts)), dtype=np.int64),
        "starts": np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64),
        "chosen": _concatenate([part["chosen"] for part in parts], np.int64),
        "contexts": _concatenate_contexts(parts),
        "exchange_times": _concatenate([part["exchange_times"] for part in parts], np.float64),
        "late": {round_: late for part in parts for round_, late in part["late"].items()},
        "absent": {},
    }
    for name, fill in fill_values.items():
        fields[name] = _concatenate_optional(fields, name, [part[name] for part in parts], parts, fill)
    for attribute in NAMED_COLUMNS:
        names = dict.fromkeys(name for part in parts for name in part[attribute])
        fields[attribute] = {
            name: _concatenate_optional(
                fields, f"{attribute}.{name}", [part[attribute].get(name) for part in parts], parts, MISSING
            )
            for name in names
        }
    return fields


def _part_of_record(record: RoundRecord, clients: int) -> Fields:
    selection, report = record.selection, record.report
    count = len(selection.clients)
    if report.available is not None and len(report.available) != clients:
        raise StoreError(
            f"available of round {record.round} is for {len(report.available)} clients, expected {clients}"
        )
    client_reasons, cohort_reasons = {}, {}
    for name, reason in selection.reasons.items():
        if not reason.ndim:
            cohort_reasons[name] = [reason.item()]
        elif reason.shape == (count,):
            client_reasons[name] = reason
        else:
            raise StoreError(
                f"reasons[{name!r}] of round {record.round} has shape {reason.shape}, expected one number for the "
                f"cohort, or one for each of its {count} clients"
            )
    return {
        "rounds": (report.round,),
        "counts": (count,),
        "chosen": selection.clients,
        "contexts": report.contexts,
        "exchange_times": report.exchange_times,
        "late": {} if report.late_arrivals is None else {report.round: report.late_arrivals},
        "available": None if report.available is None else report.available[None],
        "outcomes": None if report.outcomes is None else np.asarray(report.outcomes),
        "losses": report.losses,
        "client_reasons": client_reasons,
        "signals": report.signals or {},
        "cohort_reasons": cohort_reasons,
        "metrics": {name: [number] for name, number in report.metrics.items()},
        "absent": {},
    }


def _concatenate_contexts(parts: Sequence[Fields]) -> npt.NDArray[Any]:
    contexts = [part["contexts"] for part in parts if len(part["contexts"])]
    widths = list(dict.fromkeys(rows.shape[1] for rows in contexts))
    if len(widths) > 1:
        raise StoreError(
            f"contexts have {widths[0]} features in one round and {widths[1]} in another: keep them in two runs"
        )
    return np.concatenate(contexts) if contexts else np.empty((0, parts[0]["contexts"].shape[1] if parts else 0))


def _concatenate(arrays: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=dtype)


def _concatenate_optional(
    fields: Fields, name: str, columns: Sequence[Any], parts: Sequence[Fields], fill: Any
) -> npt.NDArray[Any] | None:
    """Concatenates an optional column, and records in `fields["absent"]` which rounds lack it.

    Args:
        fields: The fields of the result.
        name: The name of the column.
        columns: The column of each part, or None.
        parts: The parts to concatenate.
        fill: The fill value for parts without the column.
    """
    lacking = [column is None for column in columns]
    if all(lacking):
        return None
    if any(lacking) or any(part["absent"] for part in parts):
        missing: list[bool] = []
        for is_lacking, part in zip(lacking, parts, strict=True):
            missing += part["absent"].get(name) or [is_lacking] * len(part["rounds"])
        if any(missing):
            fields["absent"][name] = np.array(missing)
        columns = [
            np.full(_shape_of(name, part, fields["clients"]), fill) if column is None else column
            for column, part in zip(columns, parts, strict=True)
        ]
    if name.startswith(PER_ROUND):
        return np.array(list(chain.from_iterable(columns)), dtype=np.float64)
    return np.concatenate(columns)


def _shape_of(name: str, part: Fields, clients: int) -> tuple[int, ...]:
    """Returns the shape that a column would have in a part that lacks it."""
    rounds = len(part["rounds"])
    if name == "available":
        return rounds, clients
    return (rounds,) if name.startswith(PER_ROUND) else part["chosen"].shape


def _sort_by_selection(fields: Fields, reports: Sequence[IntArray]) -> None:
    """Reorders the rows of reports that list their clients in another order than the selection."""
    chosen, reported = fields["chosen"], _concatenate(reports, np.int64)
    counts = np.diff(fields["starts"])
    for count, report, round_ in zip(counts.tolist(), reports, fields["rounds"].tolist(), strict=True):
        if len(report) != count:
            _refuse_report(round_)
    if np.array_equal(chosen, reported):
        return
    round_index = np.repeat(np.arange(len(counts)), counts)
    by_selection, by_report = np.lexsort((chosen, round_index)), np.lexsort((reported, round_index))
    different = chosen[by_selection] != reported[by_report]
    if different.any():
        _refuse_report(int(fields["rounds"][round_index[np.argmax(different)]]))
    row_in_report = np.empty_like(chosen)
    row_in_report[by_selection] = by_report
    for name in ("contexts", "exchange_times", "outcomes", "losses"):
        if fields[name] is not None:
            fields[name] = fields[name][row_in_report]
    fields["signals"] = {name: column[row_in_report] for name, column in fields["signals"].items()}


def _refuse_report(round: int) -> None:
    raise StoreError(
        f"the clients in the report of round {round} are not the selected clients: report each selected client once, "
        "with the outcome 'late' or 'failed' if it did not arrive"
    )
