"""What the views need from a run or a fleet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from turnout.dashboard.sources.ledger import Ledger
from turnout.errors import ReportError
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.rounds import RoundReport, Selection
from turnout.live import Turn
from turnout.live._internals import OpenRound, RunningTurnRecord, WriterMetrics
from turnout.policies.explain.explanation import Explanation


class Source:
    """A run of a store, or a fleet: its ledger, and the data that only this kind of source has.

    This class itself is the source of a store without runs.

    Args:
        ledger: The ledger.
        name: The display name.
        policy: The name of the policy.
        run: The id of the run; None for a fleet.
        planned: The planned number of rounds; None if unknown.
    """

    #: Whether everything was read at least once.
    was_read = False
    #: Why there is no client.
    no_clients = "This store has no run yet."

    def __init__(
        self,
        ledger: Ledger | None = None,
        *,
        name: str = "",
        policy: str = "",
        run: int | None = None,
        planned: int | None = None,
    ) -> None:
        self.ledger = Ledger() if ledger is None else ledger
        self.name, self.policy, self.run, self.planned = name, policy, run, planned
        #: Why the promise cannot be judged; None if it can, or if there is none.
        self.last_error: str | None = None

    @property
    def finished(self) -> bool:
        """Whether no further rounds will be recorded."""
        return False

    @property
    def reading(self) -> dict[str, int] | None:
        """The numbers of records read ("done") and of records stored ("of"); None if all records have been read."""
        return None

    def read_on(self, seconds: float) -> None:
        """Reads new records as `catch_up` does, and notes whether everything was read."""
        self.catch_up(seconds)
        self.was_read = self.was_read or self.reading is None

    def catch_up(self, seconds: float) -> None:
        """Reads new records for about this many seconds, or until the last one."""

    def id_of(self, row: int) -> str:
        """Returns the client id of this row: the row as a string, if clients have no other id."""
        return str(row)

    def name_of(self, row: int) -> str:
        """Returns what sentences call the client of this row."""
        return self.id_of(row)

    def row_of(self, client: str) -> int:
        """Returns the row of a client; raises ReportError if there is no such client."""
        raise ReportError(f"there is no client {client!r} yet: this store has no run")

    def search(self, query: str, limit: int) -> IntArray:
        """Returns the rows of at most `limit` clients whose ids contain `query`, ignoring case."""
        part = query.casefold()
        matches = (row for row, client in enumerate(self._ids()) if part in client.casefold())
        return np.fromiter((row for row, _ in zip(matches, range(limit), strict=False)), dtype=np.int64)

    def _ids(self) -> Iterable[str]:
        """Returns the ids of all clients, by row."""
        return map(self.id_of, range(self.ledger.clients))

    def explain(self, row: int, number: int) -> Explanation:
        """Explains why this client was chosen in a round, or why it was not."""
        raise ReportError(f"there is no round {number} yet: client {row} cannot be explained")

    def open_round(self) -> tuple[OpenRound, list[Turn]] | None:
        """Returns the open round of a fleet and its turns; None if no round is open."""
        return None

    def running(self) -> list[tuple[RunningTurnRecord, Turn]]:
        """Returns the running turns of a fleet without rounds, with the outcomes reported so far."""
        return []

    def writer(self) -> WriterMetrics | None:
        """Returns figures about the process that writes the fleet; None for a run."""
        return None

    @property
    def newest_round(self) -> int:
        """The number of the open round or, if none is open, of the last closed one; 0 before the first."""
        opened = self.open_round()
        return self.ledger.last_round if opened is None else max(opened[0].round, self.ledger.last_round)

    def failures(self, number: int) -> dict[int, str]:  # noqa: ARG002
        """Returns the reported reasons of the failures in a round, by row."""
        return {}

    def backed_off_until(self, row: int) -> int:  # noqa: ARG002
        """Returns the last round or decision of a client's back-off; 0 if it is not backed off."""
        return 0

    def events(self, most: int) -> list[dict[str, Any]]:  # noqa: ARG002
        """Returns the latest failed turns, joins, departures and amendments, newest first."""
        return []

    def training_metrics(self) -> dict[str, tuple[IntArray, FloatArray]]:
        """Returns the metrics of the model by name, each as rounds and values."""
        return {name: (table["rounds"], table["values"]) for name, table in self.ledger.metrics.items()}

    def notices(self) -> list[str]:
        """Returns messages for the operator."""
        return [] if self.last_error is None else [self.last_error]

    def extra_flags(self) -> dict[str, BoolArray]:
        """Returns client flags that only this kind of source can compute."""
        return {}


def align_reasons(selection: Selection, report: RoundReport) -> dict[str, Any]:
    """Reorders the per-client reasons of a selection to the order of the report; other reasons stay unchanged."""
    order = np.argsort(selection.clients, kind="stable")
    indices = order[np.searchsorted(selection.clients, report.clients, sorter=order)] if len(order) else order
    return {
        name: value[indices] if np.ndim(value) == 1 and len(value) == len(order) else value
        for name, value in selection.reasons.items()
    }
