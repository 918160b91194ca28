"""Trace files: CSV, JSON lines, npz without pickle, and FedScale's records as JSON.

Each format becomes the same rows, which `tables` checks; formats and rules are in docs/traces.md.
"""

from __future__ import annotations

import gzip
import re
from pathlib import Path

from turnout.errors import DatasetError, SettingError
from turnout.simulator.traces.data import Traces
from turnout.simulator.traces.formats.columns import Unreadable
from turnout.simulator.traces.formats.csv import as_csv, csv_parts
from turnout.simulator.traces.formats.jsonl import as_jsonl, fedscale_parts, jsonl_parts
from turnout.simulator.traces.formats.npz import as_npz, npz_parts
from turnout.simulator.traces.formats.tables import Layout, Problem, traces_from
from turnout.store.atomic import atomic_write

FORMATS = (".csv", ".jsonl", ".npz", ".json")


def read_traces(*paths: str | Path, layout: Layout | None = None) -> Traces:
    """All that these files hold; the first thing that is wrong with them is refused, with its place."""
    if not paths:
        raise SettingError("no trace file is given")
    together = Traces()
    for path in paths:
        traces, problems = checked_traces(path, layout=layout)
        if problems:
            more = f" ({len(problems) - 1} more: checked_traces returns all)" if len(problems) > 1 else ""
            raise DatasetError(f"{problems[0]}{more}")
        together = together.joined_with(traces)
    return together


def checked_traces(path: str | Path, *, layout: Layout | None = None) -> tuple[Traces, list[Problem]]:
    """What is sound in a file, and everything that is not."""
    path, layout = Path(path), layout or Layout()
    problems: list[Problem] = []
    read = {".csv": csv_parts, ".jsonl": jsonl_parts, ".json": fedscale_parts, ".npz": npz_parts}
    try:
        parts = read[trace_format(path)](path, layout, problems)
        traces = traces_from(parts, layout, problems)
        if not problems and not any(part.ids for part in traces.parts.values()):
            raise Unreadable("it holds no clients")
    except Unreadable as unreadable:
        return Traces(), [*sorted(problems, key=_number), Problem(str(path), unreadable.place, str(unreadable))]
    except FileNotFoundError:
        raise DatasetError(f"there is no file {path}") from None
    except (OSError, EOFError) as unreadable:
        raise DatasetError(f"cannot read {path}: {unreadable}") from unreadable
    return traces, sorted(problems, key=_number)


def write_traces(traces: Traces, path: str | Path) -> None:
    """Write a file whole, in the format of its name; read again, it gives the same traces."""
    path = Path(path)
    if not traces.parts:
        raise SettingError("there is nothing to write")
    kind = trace_format(path)
    if kind == ".json":
        raise SettingError(f"{path}: FedScale's records are read, not written; write .csv, .jsonl or .npz")
    if kind == ".csv" and len(traces.parts) > 1:
        raise SettingError(
            f"{path}: a CSV file holds one part, but there are {', '.join(traces.parts)}: write each part to its own "
            "file, or write .jsonl or .npz"
        )
    write = {".csv": as_csv, ".jsonl": as_jsonl, ".npz": as_npz}
    data = write[kind](traces)
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    with atomic_write(path) as file:
        file.write(data)


def trace_format(path: Path) -> str:
    """By its name: .csv, .jsonl or .json, each also with .gz, or .npz."""
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if suffix not in FORMATS or (suffix == ".npz" and path.suffix == ".gz"):
        raise SettingError(f"{path}: the name of a trace file ends in .csv, .jsonl, .json (each also .gz) or .npz")
    return suffix


def _number(problem: Problem) -> int:
    """Of its line or row, for those who mend from top to bottom."""
    found = re.search(r"\d+", problem.place)
    return int(found.group()) if found else 0
