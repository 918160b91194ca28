"""Trace files: CSV, and npz without pickle.

Each reader produces the same rows, which `tables` validates; docs/traces.md specifies the formats and rules.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable
from pathlib import Path

from turnout.errors import DatasetError, SettingError
from turnout.lab.worlds.traces.data import Traces
from turnout.lab.worlds.traces.formats.readers import TraceFormatError, read_csv, read_npz, write_csv, write_npz
from turnout.lab.worlds.traces.formats.tables import Problem, TraceLayout, build_traces
from turnout.storage.files.identify import not_a
from turnout.storage.files.system import atomic_write

#: The largest number of problems that are listed: a file with more is of another kind, or made to fill the memory.
MAX_PROBLEMS = 10_000
READERS = {".csv": read_csv, ".npz": read_npz}


def read_traces(*paths: str | Path, layout: TraceLayout | None = None) -> Traces:
    """Reads all parts of these files; raises DatasetError with the first problem and its location."""
    if not paths:
        raise SettingError("no trace file was given: give at least one path")
    traces = Traces()
    for path in paths:
        file_traces, problems = check_traces(path, layout=layout)
        if problems:
            more = f" ({len(problems) - 1} more: check_traces returns all)" if len(problems) > 1 else ""
            raise DatasetError(f"{problems[0]}{more}")
        traces = traces.merge(file_traces)
    return traces


def check_traces(path: str | Path, *, layout: TraceLayout | None = None) -> tuple[Traces, list[Problem]]:
    """Returns the valid rows of a file and a list of all its problems."""
    path, layout = Path(path), layout or TraceLayout()
    problems = _Problems()
    try:
        parts = READERS[trace_format(path)](path, layout, problems)
        traces = build_traces(parts, layout, problems)
        if not problems and not any(part.ids for part in traces.parts.values()):
            raise TraceFormatError("the file holds no clients")
    except TraceFormatError as error:
        return Traces(), [*sorted(problems, key=_line_number), Problem(str(path), error.location, str(error))]
    except FileNotFoundError:
        raise DatasetError(f"there is no file {path}") from None
    except (OSError, EOFError) as error:
        raise DatasetError(f"cannot read {path}: {error}") from error
    return traces, sorted(problems, key=_line_number)


def write_traces(traces: Traces, path: str | Path) -> None:
    """Writes a file atomically, in the format of its name; reading it back gives the same traces."""
    path = Path(path)
    if not traces.parts:
        raise SettingError("there is nothing to write: the traces have no parts")
    kind = trace_format(path)
    if kind == ".csv" and len(traces.parts) > 1:
        raise SettingError(
            f"{path}: a CSV file holds one part, but there are {', '.join(traces.parts)}: write each part to its own "
            "file, or write .npz"
        )
    data = write_csv(traces) if kind == ".csv" else write_npz(traces)
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    with atomic_write(path) as file:
        file.write(data)


def trace_format(path: Path) -> str:
    """Returns the format by the file name: .csv, also compressed as .csv.gz, or .npz."""
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix not in READERS or (suffix == ".npz" and path.suffix == ".gz"):
        raise SettingError(
            f"{not_a(path, 'a trace file') or path}: the name of a trace file must end in .csv, .csv.gz or .npz"
        )
    return suffix


class _Problems(list[Problem]):
    """A list of problems that ends the reading of a file which has too many."""

    def append(self, problem: Problem) -> None:
        if len(self) >= MAX_PROBLEMS:
            raise TraceFormatError(f"the file has more than {MAX_PROBLEMS:,} problems: repair these first")
        super().append(problem)

    def extend(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            self.append(problem)


def _line_number(problem: Problem) -> int:
    """Returns the first number in the location, so that problems are sorted from top to bottom."""
    match = re.search(r"\d+", problem.location)
    return int(match.group()) if match else 0
