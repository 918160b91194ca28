"""The interface that the views need from a run or a fleet."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from turnout.dashboard.sources.ledger import Ledger
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.rounds import RoundReport, Selection
from turnout.live import Turn
from turnout.live._internals import Flight, OpenRound, WriterFigures
from turnout.policies.explain.explanation import Explanation


class Source(Protocol):
    """A run of a store, or a fleet: its ledger, and the data that only this kind of source has."""

    ledger: Ledger
    #: Why the promise cannot be judged; None if it can, or if there is none.
    trouble: str | None

    @property
    def name(self) -> str:
        """The display name."""

    @property
    def policy(self) -> str:
        """The name of the policy."""

    @property
    def run(self) -> int | None:
        """The id of the run; None for a fleet."""

    @property
    def planned(self) -> int | None:
        """The planned number of rounds; None if unknown."""

    @property
    def finished(self) -> bool:
        """Whether no further rounds will be recorded."""

    @property
    def reading(self) -> tuple[int, int] | None:
        """The numbers of records read and of records stored; None if all records have been read."""

    def catch_up(self, seconds: float) -> None:
        """Reads new records for about this many seconds, or until the last one."""

    def id_of(self, row: int) -> str:
        """Returns the client id of this row."""

    def row_of(self, client: str) -> int:
        """Returns the row of a client; raises ReportError if there is no such client."""

    def search(self, query: str, limit: int) -> IntArray:
        """Returns the rows of at most `limit` clients whose ids contain `query`."""

    def explain(self, row: int, number: int) -> Explanation:
        """Explains why this client was chosen in a round, or why it was not."""

    def open_round(self) -> tuple[OpenRound, list[Turn]] | None:
        """Returns the open round and its turns; None if no round is open."""

    def in_flight(self) -> list[tuple[Flight, Turn]]:
        """Returns the turns under way of a fleet without rounds, with the outcomes reported so far."""

    def writer(self) -> tuple[WriterFigures, int] | None:
        """Returns figures about the process that writes the fleet, and the age of its snapshot in rounds."""

    def failures(self, number: int) -> dict[int, str]:
        """Returns the reported reasons of the failures in a round, by row."""

    def training_metrics(self) -> dict[str, tuple[IntArray, FloatArray]]:
        """Returns the metrics of the model by name, each as rounds and values."""

    def notices(self) -> list[str]:
        """Returns messages for the operator."""

    def extra_flags(self) -> dict[str, BoolArray]:
        """Returns client flags that only this kind of source can compute."""


def align_reasons(selection: Selection, report: RoundReport) -> dict[str, Any]:
    """Reorders the per-client reasons of a selection to the order of the report; other reasons stay unchanged."""
    order = np.argsort(selection.clients, kind="stable")
    indices = order[np.searchsorted(selection.clients, report.clients, sorter=order)] if len(order) else order
    return {
        name: value[indices] if np.ndim(value) == 1 and len(value) == len(order) else value
        for name, value in selection.reasons.items()
    }
