"""A run on disk: the model, what the strategy keeps between rounds, the round, and the metrics so far.

The files are those of store.training_log. The model is written after each round, before the round is closed in the
fleet; metrics of later rounds than the model's are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Strategy

from turnout.errors import StateError
from turnout.store.training_log import Metrics, TrainingLog, read_metrics, read_model

FORMAT = 1
PARTS = ("arrays", "metrics", "expected", "strategy", "world")


@dataclass(slots=True)
class SavedRun:
    """The state of a run after round `server_round`, which was round `fleet_round` of the fleet.

    `waited` is the duration of that round in seconds. `begun_with` holds the shapes of the initial model. `metrics` are
    the strategy's metrics of the round. `expected` maps each client to its predicted seconds.
    """

    server_round: int
    fleet_round: int
    rounds: int
    waited: float
    begun_with: dict[str, list[int]]
    arrays: ArrayRecord
    metrics: dict[str, Any] = field(default_factory=dict)
    expected: dict[str, float] = field(default_factory=dict)
    strategy: dict[str, Any] = field(default_factory=dict)
    world: dict[str, Any] = field(default_factory=dict)


class RunFiles(TrainingLog):
    """The training log of a Flower run: a SavedRun in its model file, and Flower's metrics."""

    def write(self, run: SavedRun) -> None:
        """Write the run atomically."""
        tree = _Packed()
        header = {
            "format": FORMAT,
            "server_round": run.server_round,
            "fleet_round": run.fleet_round,
            "rounds": run.rounds,
            "waited": run.waited,
            "begun_with": run.begun_with,
            **{part: tree.pack(getattr(run, part)) for part in PARTS},
        }
        self.write_model(header, tree.arrays)

    def read(self) -> SavedRun | None:
        """Returns the unfinished run, or None if there is none."""
        if not self.model.exists():
            return None
        try:
            header, arrays = read_model(self.model)
            if header["format"] != FORMAT:
                raise ValueError(f"its format is {header['format']}, this version reads {FORMAT}")
            tree = _Packed(arrays)
            return SavedRun(
                header["server_round"],
                header["fleet_round"],
                header["rounds"],
                header["waited"],
                header["begun_with"],
                **{part: tree.unpack(header[part]) for part in PARTS},
            )
        except Exception as error:  # which exception it is depends on which bytes are damaged
            raise StateError(
                f"cannot read the run in {self.model}: {error}. Restore the file, or start a new run with resume=False"
            ) from error

    def read_metrics(self, last: int) -> dict[str, Metrics]:
        """The metrics up to this round of the server; empty if there are none."""
        if not self.metrics.exists():
            return {}
        try:
            return {
                kind: {
                    number: metrics_of(MetricRecord(values)) for number, values in by_round.items() if number <= last
                }
                for kind, by_round in read_metrics(self.metrics).items()
            }
        except (ValueError, TypeError, AttributeError) as odd:
            raise StateError(
                f"cannot read the metrics in {self.metrics}: {odd}. Restore or remove the file; the model is safe"
            ) from odd


def strategy_state(strategy: Strategy) -> dict[str, Any]:
    """Returns the attributes of a strategy that can be saved: numbers, strings, arrays and nested containers of these.

    Nested strategies are included, and attributes with `state_dict`/`load_state_dict`, such as privacy accountants.
    """
    state: dict[str, Any] = {}
    for name, value in vars(strategy).items():
        if isinstance(value, Strategy):
            state[name] = {"inner": strategy_state(value)}
        elif _is_plain(value):
            state[name] = {"value": value}
        elif hasattr(value, "load_state_dict") and _is_plain(attribute_state := value.state_dict()):
            state[name] = {"state": attribute_state}
    return state


def restore_strategy(strategy: Strategy, state: Mapping[str, Any]) -> None:
    """Restores the state to a strategy that was constructed with the same arguments."""
    for name, saved in state.items():
        if not hasattr(strategy, name) or ("value" not in saved and getattr(strategy, name) is None):
            raise StateError(
                f"the strategy of the saved run has {name!r}, this {type(strategy).__name__} has not: construct the "
                "strategy as before, or start a new run with resume=False"
            )
        if "inner" in saved:
            restore_strategy(getattr(strategy, name), saved["inner"])
        elif "state" in saved:
            getattr(strategy, name).load_state_dict(saved["state"])
        else:
            setattr(strategy, name, saved["value"])


def shapes_of(arrays: ArrayRecord) -> dict[str, list[int]]:
    """Returns the shape of each array of a model, by name."""
    return {name: list(array.shape) for name, array in arrays.items()}


def metrics_of(record: MetricRecord) -> dict[str, Any]:
    """Converts a MetricRecord to a dict that can be serialised as JSON."""
    return {name: list(value) if isinstance(value, list) else value for name, value in record.items()}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(item) for item in value)
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(item) for name, item in value.items())
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    return value is None or isinstance(value, bool | int | float | str | np.number | ArrayRecord)


class _Packed:
    """Converts nested values to JSON, in which each array is replaced by its index in `arrays`."""

    def __init__(self, arrays: list[npt.NDArray[Any]] | None = None) -> None:
        self.arrays = [] if arrays is None else arrays

    def pack(self, value: Any) -> Any:
        if isinstance(value, ArrayRecord):
            return {"record": [[name, self._pack_array(array)] for name, array in value.items()]}
        if isinstance(value, np.ndarray):
            return {"array": self._append(value)}
        if isinstance(value, np.number):
            return {"number": self._append(np.asarray(value))}
        if isinstance(value, dict):
            return {"table": {name: self.pack(item) for name, item in value.items()}}
        if isinstance(value, list | tuple):
            return {type(value).__name__: [self.pack(item) for item in value]}
        return value

    def unpack(self, packed: Any) -> Any:
        if not isinstance(packed, dict):
            return packed
        ((kind, content),) = packed.items()
        if kind == "record":
            return ArrayRecord({name: self._unpack_array(array) for name, array in content})
        if kind == "array":
            return self.arrays[content]
        if kind == "number":
            return self.arrays[content][()]
        if kind == "table":
            return {name: self.unpack(item) for name, item in content.items()}
        items = [self.unpack(item) for item in content]
        return items if kind == "list" else tuple(items)

    def _pack_array(self, array: Array) -> dict[str, Any]:
        index = self._append(np.frombuffer(array.data, np.uint8))
        return {"dtype": array.dtype, "shape": list(array.shape), "stype": array.stype, "data": index}

    def _unpack_array(self, packed: Mapping[str, Any]) -> Array:
        data = self.arrays[packed["data"]].tobytes()
        return Array(dtype=packed["dtype"], shape=tuple(packed["shape"]), stype=packed["stype"], data=data)

    def _append(self, array: npt.NDArray[Any]) -> int:
        self.arrays.append(array)
        return len(self.arrays) - 1
