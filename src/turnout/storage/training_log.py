"""The log of a training run, in files beside the fleet's file.

`….run.npz` holds the model after the newest round: a JSON header, which maps a round of the server to a round of
the fleet, and arrays. `….run.jsonl` holds the metrics, a line of JSON for each kind and round of the server. When the
run is over, the files are renamed to `….last.npz` and `….last.jsonl`. An adapter writes them; the dashboard reads them.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout.errors import StoreError
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.storage.encoding.limits import parse_json, read_bounded, read_npz
from turnout.storage.encoding.packing import corruption_as_store_error
from turnout.storage.files.system import atomic_write

#: Kinds of metrics: of the clients that trained, of the clients that evaluated, of the server's own evaluation.
METRIC_KINDS = ("train", "evaluate", "server")
#: Names of the metrics that an adapter adds itself begin with this.
OWN_PREFIX = "turnout-"
#: The largest file of metrics: a million rounds with ten metrics have about this size.
MAX_METRICS_BYTES = 1 << 28
Metrics = dict[int, dict[str, Any]]
Series = tuple[IntArray, FloatArray]


class TrainingLog:
    """Writes and reads the log of the training run of the fleet at `fleet`."""

    def __init__(self, fleet: Path) -> None:
        fleet = fleet.resolve()
        self.model, self.metrics = fleet.with_name(f"{fleet.name}.run.npz"), fleet.with_name(f"{fleet.name}.run.jsonl")
        self.last = fleet.with_name(f"{fleet.name}.last.npz")
        self.last_metrics = fleet.with_name(f"{fleet.name}.last.jsonl")

    # Writing

    def write_model(self, header: Mapping[str, Any], arrays: Sequence[npt.NDArray[Any]]) -> None:
        """Writes the model atomically; `header` must hold `server_round` and `fleet_round`."""
        named = {f"array{index}": array for index, array in enumerate(arrays)}
        with atomic_write(self.model) as file:
            np.savez(file, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **named)  # type: ignore[arg-type]

    def write_metrics(self, metrics: Mapping[str, Metrics]) -> None:
        """Writes all metrics so far, by kind and round of the server, atomically."""
        with atomic_write(self.metrics) as file:
            for kind, by_round in metrics.items():
                for number, values in by_round.items():
                    file.write(_line(kind, number, values))

    def append_metrics(self, kind: str, number: int, values: Mapping[str, Any]) -> None:
        """Appends the metrics of a round of the server; later ones replace earlier ones.

        They are not flushed to the disk, which would take longer than a short round: if the power fails, the newest
        lines may be missing.
        """
        with self.metrics.open("ab") as file:
            file.write(_line(kind, number, values))

    def finish(self) -> None:
        """Renames the files of a finished run, so that the model is not lost if its caller did not save it."""
        self.model.replace(self.last)
        if self.metrics.exists():
            self.metrics.replace(self.last_metrics)
        self.remove()

    def remove(self) -> None:
        """Removes the files of an unfinished run, including temporary files that a killed process left behind."""
        for path in (self.model, self.metrics):
            path.unlink(missing_ok=True)
            for temporary in path.parent.glob(f".{glob.escape(path.name)}.*"):
                temporary.unlink(missing_ok=True)

    # Reading

    @property
    def written_at(self) -> float:
        """When metrics were last written, in seconds since 1970; 0 if there are none."""
        try:
            return max((file.stat().st_mtime for file in self._metrics_files()), default=0.0)
        except FileNotFoundError:  # the run has ended in this moment: its file has another name now
            return self.written_at

    def series(self) -> dict[str, dict[str, Series]]:
        """Returns the metrics of the current run, or else of the last one, by kind and name.

        Each entry is (rounds of the fleet, values); round 0 is before the first. Values that are not numbers, and the
        adapter's own metrics, are left out.
        """
        file = next(iter(self._metrics_files()), None)
        if file is None:
            return {}
        try:
            with corruption_as_store_error():
                metrics, first = read_metrics(file), _rounds_before(file.with_suffix(".npz"))
                return {kind: _by_name(by_round, first) for kind, by_round in metrics.items()}
        except StoreError as damage:
            if not file.exists():  # the run has ended in this moment
                return self.series()
            raise StoreError(
                f"the metrics cannot be read from {file.name} ({damage}): restore that file, or remove it, as the "
                "fleet does not need it"
            ) from damage

    def _metrics_files(self) -> list[Path]:
        return [file for file in (self.metrics, self.last_metrics) if file.exists()]


def read_model(file: Path) -> tuple[dict[str, Any], list[npt.NDArray[Any]]]:
    """Returns the header and the arrays of a model; corrupt bytes may raise any exception."""
    with file.open("rb") as opened:
        saved = read_npz(opened, None)
    return _header(saved), [saved[f"array{index}"] for index in range(len(saved) - 1)]


def read_metrics(file: Path) -> dict[str, Metrics]:
    """Returns the metrics of a file by kind and round of the server; raises ValueError for any other content.

    A last line without an end is left out: it is being written, or the power failed.
    """
    with file.open("rb") as opened:
        *lines, _ = read_bounded(opened, MAX_METRICS_BYTES).split(b"\n")
    metrics: dict[str, Metrics] = {}
    for line in lines:
        match parse_json(line):
            case [str(kind), int(number), dict(values)]:
                metrics.setdefault(kind, {})[number] = values
            case _:
                raise ValueError("each line must hold a kind, a round and metrics")
    return metrics


def _line(kind: str, number: int, values: Mapping[str, Any]) -> bytes:
    return f"{json.dumps([kind, number, values])}\n".encode()


def _header(saved: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    header: dict[str, Any] = parse_json(saved["header"].tobytes())
    return header


def _rounds_before(model: Path) -> int:
    """Returns the number of rounds that the fleet had before this run; 0 without a model."""
    if not model.exists():
        return 0
    with model.open("rb") as opened:
        header = _header(read_npz(opened, None, ["header"]))
    return max(int(header["fleet_round"]) - int(header["server_round"]), 0)


def _by_name(by_round: Metrics, first: int) -> dict[str, Series]:
    series: dict[str, list[tuple[int, float]]] = {}
    for round_, values in by_round.items():
        for name, value in values.items():
            if isinstance(value, int | float) and not name.startswith(OWN_PREFIX):
                series.setdefault(name, []).append((round_ + first, float(value)))
    columns = {}
    for name, pairs in series.items():
        rounds, numbers = zip(*sorted(pairs), strict=True)
        columns[name] = (np.array(rounds, dtype=np.int64), np.array(numbers))
    return columns
