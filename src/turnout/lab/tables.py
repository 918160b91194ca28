"""Tables of columns, as CSV, and the files that commands write."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from turnout.errors import SettingError

#: Columns of equal length, by name.
Table: TypeAlias = Mapping[str, npt.ArrayLike]


def as_columns(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Returns rows as columns; a cell that a row does not have is NaN."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name, np.nan) for row in rows] for name in names}


def as_csv(table: Table) -> str:
    """Returns a table as CSV with a header line."""
    columns = {name: np.asarray(values).tolist() for name, values in table.items()}
    return csv_text(columns, zip(*columns.values(), strict=True))


def csv_text(names: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Returns a header line and rows as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue()


def write_text(path: Path, text: str) -> Path:
    """Writes a file and its folder; raises SettingError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(f"cannot write {path}: {error.strerror or error}") from error
    return path
