"""What all benchmarks share: alternating measurements, results with their targets, and the table of a result."""

from __future__ import annotations

import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

MILLION = 1_000_000
#: A folder in memory, on Linux: a fleet is written to it where fsyncs shall not count.
MEMORY = Path("/dev/shm")

Clients = Annotated[int, typer.Option(min=1, help="Number of clients in the fleet.")]
Cohort = Annotated[int, typer.Option(min=1, help="Number of clients per round.")]
Repeats = Annotated[int, typer.Option(min=1, help="Number of measurements; the median is shown.")]
Device = Annotated[str, typer.Option(help="Device that trains the models: cpu, or cuda for a GPU.")]


@dataclass(frozen=True, slots=True)
class Target:
    """A measured figure, and the largest value that it should have, or the smallest."""

    name: str
    figure: float
    bound: float
    is_minimum: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure is within its bound."""
        return self.figure >= self.bound if self.is_minimum else self.figure <= self.bound


@dataclass(frozen=True, slots=True)
class Result:
    """What a benchmark prints.

    Attributes:
        title: What was measured.
        rows: A table: the value of each row by the heading of its column.
        figures: Single figures: what it is, its value and its unit.
        targets: Figures that are compared with a target.
    """

    title: str
    rows: Sequence[Mapping[str, Any]] = ()
    figures: Sequence[tuple[str, float, str]] = ()
    targets: Sequence[Target] = ()

    def tables(self) -> dict[str, list[Mapping[str, Any]]]:
        """Returns the rows, figures and targets as tables, without those that are empty."""
        tables: dict[str, list[Mapping[str, Any]]] = {
            "rows": list(self.rows),
            "figures": [{"figure": name, "value": value, "unit": unit} for name, value, unit in self.figures],
            "targets": [
                {
                    "target": each.name,
                    "measured": each.figure,
                    "bound": f"{'at least' if each.is_minimum else 'at most'} {each.bound:g}",
                    "met": "yes" if each.met else "no",
                }
                for each in self.targets
            ],
        }
        return {name: rows for name, rows in tables.items() if rows}


def print_result(result: Result, *, as_json: bool) -> None:
    """Prints the tables of a result, or its JSON."""
    if as_json:
        typer.echo(json.dumps({"title": result.title, **result.tables()}, indent=2, ensure_ascii=False))
        return
    typer.echo(result.title)
    for rows in result.tables().values():
        table = Table()
        for heading, value in rows[0].items():
            table.add_column(heading, justify="left" if isinstance(value, str) else "right")
        for row in rows:
            table.add_row(*map(_text, row.values()))
        Console(highlight=False, markup=False).print(table)


def _text(value: Any) -> str:
    """Returns a float with three digits or more, other values as they are, and nothing for None."""
    if isinstance(value, float):
        return f"{value:,.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3}f}"
    return f"{value:,}" if isinstance(value, int) else str(value or "")


def announce(step: str) -> None:
    """Prints on standard error what is measured next."""
    typer.echo(step, err=True)


def alternate(
    tasks: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Returns the median seconds of each task after a warm-up.

    The tasks take turns, so that other programs slow all of them alike.
    """
    for task in tasks.values():
        task()
    seconds = [{name: seconds_of(task, clock) for name, task in tasks.items()} for _ in range(repeats)]
    return {name: statistics.median(each[name] for each in seconds) for name in tasks}


def seconds_of(task: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Returns the seconds that a task takes."""
    start = clock()
    task()
    return clock() - start


@contextmanager
def memory_folder() -> Iterator[Path]:
    """Yields a temporary folder, in memory where the system has a folder for that."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


@dataclass(frozen=True, slots=True)
class Server:
    """A process that serves.

    Attributes:
        url: Its address.
        process: Its number.
    """

    url: str
    process: int

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self.url.rpartition(":")[2])

    def cpu_seconds(self) -> float | None:
        """Returns the CPU time that it has used; None if the system does not say it."""
        try:
            fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float | None:
        """Returns the bytes of memory that it holds now; None if the system does not say it."""
        try:
            pages = int(Path(f"/proc/{self.process}/statm").read_text().split()[1])
        except OSError:
            return None
        return float(pages * os.sysconf("SC_PAGE_SIZE"))


@contextmanager
def served(command: str, *arguments: str | Path) -> Iterator[Server]:
    """Runs a command of `turnout fleet` that serves on a free port until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "turnout", "fleet", command, *map(str, arguments), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "1000"},
    )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline()]
        while lines[-1] and " at http" not in lines[-1]:  # notices about the fleets come before it
            lines.append(process.stdout.readline())
        if not lines[-1]:
            raise RuntimeError(f"turnout fleet {command} did not start: {''.join(lines)}")
        yield Server("http://" + lines[-1].rsplit(" at http://", 1)[1].split("/")[0].strip(), process.pid)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@contextmanager
def silenced(name: str) -> Iterator[None]:
    """Silences a logger, whose lines are not what is measured."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
