"""A run on disk: the model, what the strategy keeps between rounds, the round, and the metrics so far.

The files are those of storage.training_log. The model is written after each round, before the round is closed in the
fleet; metrics of later rounds than the model's are ignored. Values are stored as JSON and arrays, without pickle.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, MetricRecord

from turnout.adapters.flower.core.progress import EndedRound, metrics_of
from turnout.errors import StateError
from turnout.storage.training_log import Metrics, TrainingLog, read_metrics, read_model

FORMAT = 1
PLAIN = (type(None), bool, int, float, str)
KEYS = (bool, int, float, str)
#: What can be stored, for messages.
STORABLE = "numbers, strings, bytes, NumPy arrays, ArrayRecords, and lists, tuples and dicts of these"


class Packer:
    """Converts values to JSON, in which each array is replaced by its index in `arrays`."""

    def __init__(self, arrays: list[npt.NDArray[Any]] | None = None) -> None:
        self.arrays = [] if arrays is None else arrays

    def pack(self, value: Any) -> Any:
        """Returns the value as JSON; raises TypeError if it contains something that cannot be stored."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if (kind is np.ndarray or isinstance(value, np.generic)) and not value.dtype.hasobject:
            return {"array" if kind is np.ndarray else "number": self._append(np.asarray(value))}
        if kind is bytes:
            return {"bytes": self._append(np.frombuffer(value, np.uint8))}
        if kind is ArrayRecord:
            return {"record": [[name, *self._pack_array(array)] for name, array in value.items()]}
        if kind in (list, tuple):
            return {kind.__name__: [self.pack(item) for item in value]}
        if kind is dict and all(type(key) in KEYS for key in value):
            return {"dict": [[key, self.pack(item)] for key, item in value.items()]}
        raise TypeError(f"{kind.__module__}.{kind.__qualname__}")

    def unpack(self, packed: Any) -> Any:
        """Returns the value that `pack` converted."""
        if not isinstance(packed, dict):
            return packed
        ((kind, content),) = packed.items()
        match kind:
            case "array":
                return self.arrays[content]
            case "number":
                return self.arrays[content][()]
            case "bytes":
                return self.arrays[content].tobytes()
            case "record":
                return ArrayRecord({name: self._unpack_array(*array) for name, *array in content})
            case "dict":
                return {key: self.unpack(item) for key, item in content}
        items = [self.unpack(item) for item in content]
        return tuple(items) if kind == "tuple" else items

    def _pack_array(self, array: Array) -> tuple[str, list[int], str, int]:
        return array.dtype, list(array.shape), array.stype, self._append(np.frombuffer(array.data, np.uint8))

    def _unpack_array(self, dtype: str, shape: list[int], stype: str, index: int) -> Array:
        return Array(dtype=dtype, shape=tuple(shape), stype=stype, data=self.arrays[index].tobytes())

    def _append(self, array: npt.NDArray[Any]) -> int:
        self.arrays.append(array)
        return len(self.arrays) - 1


def unstorable_type(value: Any) -> str | None:
    """Returns the type of what cannot be stored in a value; None if all of it can."""
    try:
        Packer().pack(value)
    except TypeError as error:
        return str(error)
    except RecursionError:
        return "value that contains itself, or is nested too deeply"
    return None


def setting_digest(value: Any) -> str:
    """Returns a digest of a number, a text, or lists, tuples and dicts of these; "" for all else, such as arrays."""
    packer, value = Packer(), value.item() if isinstance(value, np.generic) else value
    try:
        packed = packer.pack(value)
    except (TypeError, RecursionError):
        return ""
    return "" if packer.arrays else sha256(repr(packed).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRun(EndedRound):
    """The state of a run after a round.

    Attributes:
        begun_with: the shapes of the initial model.
        arrays: the model.
        settings: a digest of each setting of the strategy when the server was started.
        strategy: the state of the strategy.
        world: the state of the simulated world.
    """

    begun_with: dict[str, list[int]]
    arrays: ArrayRecord
    settings: dict[str, Any] = field(default_factory=dict)
    strategy: dict[str, Any] = field(default_factory=dict)
    world: dict[str, Any] = field(default_factory=dict)


class RunFiles(TrainingLog):
    """The training log of a Flower run: a SavedRun in its model file, and Flower's metrics."""

    def write(self, run: SavedRun) -> None:
        """Write the run atomically."""
        tree = Packer()
        header = {"format": FORMAT, **{part.name: tree.pack(getattr(run, part.name)) for part in fields(SavedRun)}}
        self.write_model(header, tree.arrays)

    def read(self) -> SavedRun | None:
        """Returns the unfinished run, or None if there is none."""
        if not self.model.exists():
            return None
        try:
            header, arrays = read_model(self.model)
            if header["format"] != FORMAT:
                raise ValueError(f"its format is {header['format']}, this version reads {FORMAT}")
            tree = Packer(arrays)
            return SavedRun(**{part.name: tree.unpack(header[part.name]) for part in fields(SavedRun)})
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


def shapes_of(arrays: ArrayRecord) -> dict[str, list[int]]:
    """Returns the shape of each array of a model, by name."""
    return {name: list(array.shape) for name, array in arrays.items()}
