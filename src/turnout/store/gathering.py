"""From many rounds to columns: records, or columns of parts, laid end to end."""

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

NOTHING = np.float64("nan")
#: What stands in an optional column where a round has nothing; a round without outcomes is one where all arrived.
FILLS: Mapping[str, Any] = {"available": np.True_, "outcomes": np.uint8(0), "losses": NOTHING}
PER_ROUND = ("cohort_reasons", "metrics")
WORDS = ("client_reasons", *PER_ROUND)


def fields_of_records(records: Sequence[RoundRecord], *, clients: int) -> Fields:
    """The columns of these rounds, rows in the order of each selection."""
    reports = [record.report for record in records]
    counts = _counts(records)
    contexts, widths = _laid_out([report.contexts for report in reports], counts)
    fields: Fields = {
        "clients": clients,
        "rounds": np.array([report.round for report in reports], dtype=np.int64),
        "starts": starts_of(counts),
        "chosen": _end_to_end([record.selection.clients for record in records], np.int64),
        "contexts": contexts,
        "widths": widths,
        "exchange_times": _end_to_end([report.exchange_times for report in reports], np.float64),
        "late": {report.round: report.late_arrivals for report in reports if report.late_arrivals is not None},
        "absent": {},
    }
    everyone = np.full(len(reports), clients)
    _add_optional(fields, "available", _masks(records, clients), everyone, FILLS["available"])
    _add_optional(fields, "losses", [report.losses for report in reports], counts, FILLS["losses"])
    words = [None if report.outcomes is None else np.asarray(report.outcomes) for report in reports]
    _add_optional(fields, "outcomes", words, counts, OUTCOMES[0])
    fields["outcomes"] = _outcome_codes(fields["outcomes"])
    if fields["available"] is not None:
        fields["available"] = fields["available"].reshape(-1, clients)
    _add_words(fields, records, counts)
    _in_the_order_of_the_selections(fields, _end_to_end([report.clients for report in reports], np.int64), counts)
    return fields


def starts_of(counts: npt.ArrayLike) -> IntArray:
    """Where each round begins, and where the last one ends.

    >>> starts_of([2, 0, 3])
    array([0, 2, 2, 5])
    """
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)


def _counts(records: Sequence[RoundRecord]) -> IntArray:
    counts = [len(record.selection.clients) for record in records]
    for record, count in zip(records, counts, strict=True):
        if len(record.report.clients) != count:
            _refuse_strangers(record.round)
    return np.array(counts, dtype=np.int64)


def _masks(records: Sequence[RoundRecord], clients: int) -> list[BoolArray | None]:
    masks = [record.report.available for record in records]
    for record, mask in zip(records, masks, strict=True):
        if mask is not None and len(mask) != clients:
            raise StoreError(f"available of round {record.round} is for {len(mask)} clients, expected are {clients}")
    return masks


def _laid_out(contexts: Sequence[FloatArray], counts: IntArray) -> tuple[FloatArray, IntArray | None]:
    widths = np.array([rows.shape[1] for rows in contexts], dtype=np.int64)
    width, odd_widths = common_width(widths, counts)
    alike = [rows for rows in contexts if rows.shape[1] == width]
    return (np.concatenate(alike) if alike else np.empty((0, width))), odd_widths


def common_width(widths: IntArray, counts: IntArray) -> tuple[int, IntArray | None]:
    """How many features all contexts have; a round without clients may say otherwise, and then all are told."""
    if not len(widths):
        return 0, None
    peopled = widths[counts > 0]
    width = int(peopled[0] if len(peopled) else widths[0])
    if (peopled != width).any():
        other = int(peopled[peopled != width][0])
        raise StoreError(f"contexts have {width} features in one round and {other} in another: keep them in two runs")
    return width, (widths if (widths != width).any() else None)


def _end_to_end(pieces: Sequence[Array], dtype: npt.DTypeLike) -> Array:
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=dtype)


def _add_optional(fields: Fields, name: str, pieces: Sequence[Array | None], lengths: IntArray, fill: Any) -> None:
    """The column of an optional field and, where some rounds lack it, which."""
    missing = np.array([piece is None for piece in pieces], dtype=np.bool_)
    fields[name] = None if missing.all() else _filled(pieces, lengths, fill)
    if missing.any() and not missing.all():
        fields["absent"][name] = missing


def _filled(pieces: Sequence[Array | None], lengths: IntArray, fill: Any) -> Array:
    return np.concatenate(
        [np.full(length, fill) if piece is None else piece for piece, length in zip(pieces, lengths, strict=True)]
    )


def _outcome_codes(words: Array | None) -> npt.NDArray[np.uint8] | None:
    if words is None:
        return None
    codes = np.zeros(len(words), dtype=np.uint8)
    for code, word in enumerate(OUTCOMES[1:], start=1):
        codes[words == word] = code
    return codes


def _add_words(fields: Fields, records: Sequence[RoundRecord], counts: IntArray) -> None:
    for name, columns in _found_words(records, counts).items():
        fields[name] = {}
        for word, values in columns.items():
            missing = np.array([value is None for value in values])
            if missing.any():
                fields["absent"][f"{name}.{word}"] = missing
            if name in PER_ROUND:
                numbers = [NOTHING if value is None else value for value in values]
                fields[name][word] = np.array(numbers, dtype=np.float64)
            else:
                fields[name][word] = _filled(values, counts, NOTHING)


def _found_words(records: Sequence[RoundRecord], counts: IntArray) -> dict[str, dict[str, list[Any]]]:
    """What each word says in each round, None where it says nothing."""
    found: dict[str, dict[str, list[Any]]] = {name: defaultdict(lambda: [None] * len(records)) for name in WORDS}
    of_clients, of_cohorts, metrics = (found[name] for name in WORDS)
    for place, (record, count) in enumerate(zip(records, counts.tolist(), strict=True)):
        for word, value in record.selection.reasons.items():
            if not value.ndim:
                of_cohorts[word][place] = value.item()
            elif value.shape == (count,):
                of_clients[word][place] = value
            else:
                raise StoreError(
                    f"reasons[{word!r}] of round {record.round} has shape {value.shape}, expected is one number for "
                    f"the cohort, or one for each of its {count} clients"
                )
        for word, number in record.report.metrics.items():
            metrics[word][place] = number
    return found


def _in_the_order_of_the_selections(fields: Fields, reported: IntArray, counts: IntArray) -> None:
    """A report may name its clients in another order: its rows are put beside those of the selection."""
    chosen = fields["chosen"]
    fields["told"] = None
    if np.array_equal(chosen, reported):
        return
    which = np.repeat(np.arange(len(counts)), counts)
    by_selection, by_report = np.lexsort((chosen, which)), np.lexsort((reported, which))
    strangers = chosen[by_selection] != reported[by_report]
    if strangers.any():
        _refuse_strangers(int(fields["rounds"][which[np.argmax(strangers)]]))
    told = np.empty_like(chosen)
    told[by_report] = by_selection
    row_in_report = np.argsort(told)
    for name in ("contexts", "exchange_times", "outcomes", "losses"):
        if fields[name] is not None:
            fields[name] = fields[name][row_in_report]
    fields["told"] = told


def _refuse_strangers(round_: int) -> None:
    raise StoreError(
        f"the report of round {round_} is not about the clients that were selected: report each of them once, those "
        "that did not arrive with the outcome 'late' or 'failed'"
    )
