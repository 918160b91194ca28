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
    """`fleet_round`: the round of the fleet in which this one was trained, after `waited` seconds.

    `begun_with`: the shapes of the model that the run was begun with. `metrics`: what the strategy tells of the round.
    `expected`: how many seconds each client should have taken.
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
        """The run that was not finished; None if there is none."""
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
        except Exception as odd:  # of how many kinds, depends on which of its bytes are wrong
            raise StateError(
                f"cannot read the run in {self.model}: {odd}. Restore the file, or begin anew with resume=False"
            ) from odd

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
    """What a strategy keeps: every attribute that is numbers, words or arrays; of a strategy inside it too.

    And of what has a state of its own, as an accountant of privacy has.
    """
    state: dict[str, Any] = {}
    for name, value in vars(strategy).items():
        if isinstance(value, Strategy):
            state[name] = {"inner": strategy_state(value)}
        elif _is_plain(value):
            state[name] = {"value": value}
        elif hasattr(value, "load_state_dict") and _is_plain(own := value.state_dict()):
            state[name] = {"state": own}
    return state


def restore_strategy(strategy: Strategy, state: Mapping[str, Any]) -> None:
    """Give it back to a strategy that was made in the same way."""
    for name, kept in state.items():
        if not hasattr(strategy, name) or ("value" not in kept and getattr(strategy, name) is None):
            raise StateError(f"the saved run has a strategy with {name!r}, this {type(strategy).__name__} has none")
        if "inner" in kept:
            restore_strategy(getattr(strategy, name), kept["inner"])
        elif "state" in kept:
            getattr(strategy, name).load_state_dict(kept["state"])
        else:
            setattr(strategy, name, kept["value"])


def shapes_of(arrays: ArrayRecord) -> dict[str, list[int]]:
    """Of a model's arrays."""
    return {name: list(array.shape) for name, array in arrays.items()}


def metrics_of(record: MetricRecord) -> dict[str, Any]:
    """As JSON has them."""
    return {name: list(value) if isinstance(value, list) else value for name, value in record.items()}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(one) for one in value)
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(one) for name, one in value.items())
    if isinstance(value, np.ndarray):
        return not value.dtype.hasobject
    return value is None or isinstance(value, bool | int | float | str | np.number | ArrayRecord)


class _Packed:
    """Nested values as JSON, their arrays beside it."""

    def __init__(self, arrays: list[npt.NDArray[Any]] | None = None) -> None:
        self.arrays = [] if arrays is None else arrays

    def pack(self, value: Any) -> Any:
        if isinstance(value, ArrayRecord):
            return {"record": [[name, self._pack_array(array)] for name, array in value.items()]}
        if isinstance(value, np.ndarray):
            return {"array": self._keep(value)}
        if isinstance(value, np.number):
            return {"number": self._keep(np.asarray(value))}
        if isinstance(value, dict):
            return {"table": {name: self.pack(one) for name, one in value.items()}}
        if isinstance(value, list | tuple):
            return {type(value).__name__: [self.pack(one) for one in value]}
        return value

    def unpack(self, told: Any) -> Any:
        if not isinstance(told, dict):
            return told
        ((kind, content),) = told.items()
        if kind == "record":
            return ArrayRecord({name: self._unpack_array(one) for name, one in content})
        if kind == "array":
            return self.arrays[content]
        if kind == "number":
            return self.arrays[content][()]
        if kind == "table":
            return {name: self.unpack(one) for name, one in content.items()}
        return [self.unpack(one) for one in content] if kind == "list" else tuple(self.unpack(one) for one in content)

    def _pack_array(self, array: Array) -> dict[str, Any]:
        place = self._keep(np.frombuffer(array.data, np.uint8))
        return {"dtype": array.dtype, "shape": list(array.shape), "stype": array.stype, "data": place}

    def _unpack_array(self, told: Mapping[str, Any]) -> Array:
        data = self.arrays[told["data"]].tobytes()
        return Array(dtype=told["dtype"], shape=tuple(told["shape"]), stype=told["stype"], data=data)

    def _keep(self, array: npt.NDArray[Any]) -> int:
        self.arrays.append(array)
        return len(self.arrays) - 1
