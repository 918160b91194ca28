"""A run on disk: the model, what the strategy keeps between rounds, the round, and the metrics so far.

The files are those of storage.training_log. The model is written after each round, before the round is closed in the
fleet; metrics of later rounds than the model's are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from flwr.app import ArrayRecord, MetricRecord

from turnout.adapters.flower.core.progress import EndedRound, metrics_of
from turnout.adapters.flower.resume.packing import Packer
from turnout.errors import StateError
from turnout.storage.training_log import Metrics, TrainingLog, read_metrics, read_model

FORMAT = 1


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
