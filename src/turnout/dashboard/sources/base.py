"""What a ledger comes from: one run of a store, or one fleet."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from turnout.dashboard.sources.ledger import Ledger
from turnout.kernel.arrays import BoolArray, FloatArray, IntArray
from turnout.kernel.rounds import RoundReport, Selection
from turnout.scheduler import OpenRound, Turn


class Source(Protocol):
    """One run or fleet: its ledger, and what only it can say."""

    ledger: Ledger

    @property
    def name(self) -> str:
        """What pages call it."""

    @property
    def policy(self) -> str:
        """The policy's name."""

    @property
    def run(self) -> int | None:
        """Its number in a store of runs."""

    @property
    def planned(self) -> int | None:
        """How many rounds it should have, if that is known."""

    @property
    def finished(self) -> bool:
        """Whether no more will come."""

    @property
    def reading(self) -> tuple[int, int] | None:
        """How much of what is known to be on record the ledger holds, and of how much; None if it holds all of it."""

    def catch_up(self, seconds: float) -> None:
        """Read on for about so long, or to the end of the record."""

    def id_of(self, row: int) -> str:
        """What the client of this row is called."""

    def row_of(self, client: str) -> int:
        """The row of a client; ReportError if there is none."""

    def found(self, words: str, most: int) -> IntArray:
        """Rows of clients whose names contain these words, at most so many."""

    def explain(self, row: int, number: int) -> dict[str, Any]:
        """Why this client was chosen in a round, or was not."""

    def open_round(self) -> tuple[OpenRound, list[Turn]] | None:
        """The round that is open, if this is a fleet."""

    def failures(self, number: int) -> dict[int, str]:
        """Why clients failed in a round, by their rows, where they said so."""

    def measured(self) -> dict[str, tuple[IntArray, FloatArray]]:
        """What was measured of the model after which rounds, by name."""

    def notices(self) -> list[str]:
        """What a person should know."""

    def more_flags(self) -> dict[str, BoolArray]:
        """What is to be said of clients, that only this source knows."""


def aligned(selection: Selection, report: RoundReport) -> dict[str, Any]:
    """Reasons in the order of the report; those of the whole cohort as they are."""
    order = np.argsort(selection.clients, kind="stable")
    place = order[np.searchsorted(selection.clients, report.clients, sorter=order)] if len(order) else order
    return {
        word: value[place] if np.ndim(value) == 1 and len(value) == len(order) else value
        for word, value in selection.reasons.items()
    }
