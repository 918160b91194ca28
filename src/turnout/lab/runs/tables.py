"""The summaries of stored runs, and many runs as one tidy table: one row per run, per round, per client or per turn.

A table is made of parts, one per run: the constants of the run, and its columns; its settings are columns, too.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError, StoreError, suggestion
from turnout.kernel.rounds import OUTCOMES
from turnout.kernel.slots.turns import FINISHED
from turnout.lab.columns import RoundColumns, csv_text
from turnout.tracking.trackers import flat_settings


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A summary of a stored run, which is available without reading its rounds.

    Attributes:
        id: The number of the run in its store.
        key: The unique name of the run.
        plan: The settings that determine the run.
        clients: The number of clients.
        rounds: The number of stored rounds.
        finished: Whether the run is complete.
        code_version: The version of turnout that started the run.
        started: The time at which the run was started, in UTC and ISO format.
    """

    id: int
    key: str
    plan: dict[str, Any]
    clients: int
    rounds: int
    finished: bool
    code_version: str
    started: str


TableKind = Literal["runs", "rounds", "clients", "turns"]
KINDS: tuple[TableKind, ...] = get_args(TableKind)
#: Entries of a plan with other names in a table, where `rounds` is the number of rounds that were played.
PLAN_NAMES = {"rounds": "planned_rounds", "settings": "setting", "world_settings": "world_setting"}
Column = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TablePart:
    """The rows of one run: what is the same in all of them, and the columns."""

    constants: Mapping[str, Any]
    columns: Mapping[str, Column]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values()))) if self.columns else 1


@dataclass(frozen=True, slots=True)
class RunTable:
    """A table of many runs; a run that lacks a column has no value in it."""

    parts: Sequence[TablePart]

    @property
    def names(self) -> list[str]:
        """The names of all columns: the constants of the runs come first."""
        constants = dict.fromkeys(name for part in self.parts for name in part.constants)
        return list(constants | dict.fromkeys(name for part in self.parts for name in part.columns))

    def __len__(self) -> int:
        return sum(part.rows for part in self.parts)

    def values(self, name: str) -> list[Any]:
        """Returns one column as Python values; None where there is no value."""
        values: list[Any] = []
        for part in self.parts:
            column = part.columns.get(name)
            values += [part.constants.get(name)] * part.rows if column is None else column.tolist()
        # NaN stands for something that was not measured.
        return [None if isinstance(value, float) and math.isnan(value) else value for value in values]

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yields all rows as Python values; None where there is no value."""
        return zip(*map(self.values, self.names), strict=True)

    def column(self, name: str) -> list[Any]:
        """Returns one column as Python values of one type; values of several types become strings."""
        values = self.values(name)
        kinds = {type(value) for value in values if value is not None}
        if kinds <= {int, float} and float in kinds:
            return [None if value is None else float(value) for value in values]
        return values if len(kinds) <= 1 else [None if value is None else str(value) for value in values]

    def to_csv(self) -> str:
        """Returns the table as CSV; a missing value is an empty field."""
        return csv_text(self.names, self.rows())

    def to_jsonl(self) -> str:
        """Returns one JSON object per row."""
        names = self.names
        return "".join(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) + "\n" for row in self.rows())

    def to_pandas(self) -> Any:
        """Returns a `pandas.DataFrame`; needs pandas."""
        try:
            import pandas as pd
        except ImportError as error:
            raise SettingError(f"a DataFrame needs pandas: pip install 'turnout[tables]' ({error})") from error
        return pd.DataFrame({name: self.column(name) for name in self.names})

    def write_parquet(self, path: str | os.PathLike[str]) -> None:
        """Writes a Parquet file; needs pyarrow."""
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise SettingError(f"Parquet files need pyarrow: pip install 'turnout[tables]' ({error})") from error
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table({name: self.column(name) for name in self.names}), path)
        except OSError as error:
            raise SettingError(f"cannot write {path}: {error.strerror or error}") from error


def build_table(
    kind: str,
    runs: Iterable[tuple[RunInfo, RoundColumns]],
    figures: Callable[[RunInfo, RoundColumns], Mapping[str, Any]] | None = None,
) -> RunTable:
    """Returns one table of these runs.

    Args:
        kind: What a row is: "runs", "rounds", "clients" or "turns".
        runs: The runs and their rounds.
        figures: Returns further figures of a run, for a table of runs.
    """
    if kind not in KINDS:
        raise SettingError(f"unknown table {kind!r}{suggestion(kind, KINDS)}: choose one of {', '.join(KINDS)}")
    parts = []
    for info, columns in runs:
        constants = run_constants(info)
        if kind == "runs":
            more = {} if figures is None or not len(columns) else figures(info, columns)
            parts.append(TablePart({**constants, **_run_figures(columns), **more}, {}))
        else:
            parts.append(TablePart(constants, _COLUMNS[kind](columns)))
    if not parts:
        raise StoreError("there is no run to put into a table: play a run first, or name other runs", argument="run")
    return RunTable(parts)


def run_constants(info: RunInfo) -> dict[str, Any]:
    """Returns the number, the plan and the settings of a run as one flat mapping."""
    plan = dict(info.plan)
    label = plan.pop("label", "") or plan.get("policy", info.key)
    first = {"run": info.id, "label": label, "policy": plan.pop("policy", None), "seed": plan.pop("seed", None)}
    others = flat_settings({PLAN_NAMES.get(name, name): value for name, value in plan.items()})
    return {**first, "clients": info.clients, **others, "finished": info.finished, "code_version": info.code_version}


def _run_figures(columns: RoundColumns) -> dict[str, Any]:
    rounds = len(columns)
    if not rounds:
        return {"rounds": 0}
    durations, turns = columns.durations, columns.turns
    last = {f"last.{name}": _last_finite(values) for name, values in columns.metrics.items()}
    return {
        "rounds": rounds,
        "total_seconds": float(_elapsed(columns).max()),
        "mean_round_seconds": float(durations.mean()),
        "p95_round_seconds": float(np.percentile(durations, 95)),
        "mean_selected": len(columns.chosen) / rounds,
        "fewest_turns": int(turns.min()),
        "most_turns": int(turns.max()),
        **last,
    }


def _round_columns(columns: RoundColumns) -> dict[str, Column]:
    rounds = len(columns)
    of_round = np.repeat(np.arange(rounds), np.diff(columns.starts))
    durations = columns.durations
    table: dict[str, Column] = {
        "round": columns.rounds,
        "seconds": durations,
        "elapsed_seconds": _elapsed(columns),
        "selected": np.diff(columns.starts),
    }
    outcomes = _outcomes(columns)
    for index, outcome in enumerate(OUTCOMES):
        table[outcome] = np.bincount(of_round[outcomes == index], minlength=rounds)
    if columns.available is not None:
        available = columns.available.sum(axis=1).astype(np.float64)
        if (absent := columns.absent.get("available")) is not None:
            available[absent] = np.nan
        table["available"] = available
    if columns.losses is not None:
        table["mean_loss"] = _means(columns.losses, of_round, rounds)
    for prefix, named in (("reason", columns.cohort_reasons), ("metric", columns.metrics)):
        table |= {f"{prefix}.{name}": values for name, values in named.items()}
    return table


def _client_columns(columns: RoundColumns) -> dict[str, Column]:
    clients, chosen = columns.clients, columns.chosen
    outcomes = _outcomes(columns)
    table: dict[str, Column] = {"client": np.arange(clients), "turns": columns.turns}
    for index, outcome in enumerate(OUTCOMES):
        table[outcome] = np.bincount(chosen[outcomes == index], minlength=clients)
    table["share_of_rounds"] = columns.turns / max(len(columns), 1)
    if columns.available is not None and "available" not in columns.absent:
        table["available_rounds"] = columns.available.sum(axis=0)
    table["mean_seconds"] = _means(columns.exchange_times, chosen, clients)
    if columns.losses is not None:
        table["mean_loss"] = _means(columns.losses, chosen, clients)
    return table


def _turn_columns(columns: RoundColumns) -> dict[str, Column]:
    table: dict[str, Column] = {
        "round": np.repeat(columns.rounds, np.diff(columns.starts)),
        "client": columns.chosen,
        "seconds": columns.exchange_times,
        "outcome": np.array(OUTCOMES)[_outcomes(columns)],
    }
    if columns.losses is not None:
        table["loss"] = columns.losses
    table |= {f"signal.{name}": values for name, values in columns.signals.items()}
    return table | {f"reason.{name}": values for name, values in columns.client_reasons.items()}


_COLUMNS: Mapping[str, Callable[[RoundColumns], dict[str, Column]]] = {
    "rounds": _round_columns,
    "clients": _client_columns,
    "turns": _turn_columns,
}


def _elapsed(columns: RoundColumns) -> Column:
    """Returns the seconds from the start of the run to the end of each round, or turn: turns overlap."""
    return columns.metrics[FINISHED] if FINISHED in columns.metrics else np.cumsum(columns.durations)


def _outcomes(columns: RoundColumns) -> Column:
    return np.zeros(len(columns.chosen), np.uint8) if columns.outcomes is None else columns.outcomes


def _means(values: Column, groups: Column, count: int) -> Column:
    """Returns the mean of each group without NaN; NaN for a group without values."""
    counts = ~np.isnan(values)
    sums = np.bincount(groups[counts], values[counts], minlength=count)
    numbers = np.bincount(groups[counts], minlength=count)
    means: Column = np.divide(sums, numbers, out=np.full(count, np.nan), where=numbers > 0)
    return means


def _last_finite(values: Column) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else None
