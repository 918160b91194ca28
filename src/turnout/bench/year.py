"""Measures how the file of a live fleet grows: the size after some rounds, and what a year of rounds takes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from turnout.live import FleetStatus, Scheduler
from turnout.live._internals import session_of

#: The rounds of a year, one every ten minutes.
YEAR = 365 * 24 * 6
#: The sizes are measured after each of this many parts of the rounds.
PARTS = 10
AVAILABLE = 0.7


@dataclass(frozen=True, slots=True)
class YearFigures:
    """Sizes of a fleet's file.

    Attributes:
        clients: The number of clients.
        cohort: The number of clients in a round.
        rounds: The rounds after which the size was measured.
        sizes: The sizes in bytes, log included.
        summary_round: The last round that was no longer kept at the end; 0 if all were.
    """

    clients: int
    cohort: int
    rounds: tuple[int, ...]
    sizes: tuple[int, ...]
    summary_round: int

    @property
    def bytes_a_round(self) -> float:
        """The growth per round in the second half of the rounds."""
        middle = len(self.sizes) // 2 - 1
        return (self.sizes[-1] - self.sizes[middle]) / (self.rounds[-1] - self.rounds[middle])

    @property
    def year_bytes(self) -> float:
        """The size after a year of rounds, one every ten minutes, if the file goes on to grow like this."""
        return self.sizes[-1] + max(self.bytes_a_round, 0.0) * max(YEAR - self.rounds[-1], 0)


def measure_year(
    *,
    clients: int = 2000,
    cohort: int = 50,
    rounds: int = 500,
    keep_rounds: int | str | None = None,
    keep_offers: int | str | None = None,
    persist_statuses: bool = True,
    progress: Callable[[int], None] = lambda _: None,
) -> YearFigures:
    """Plays rounds of a fleet, whose clients are available at random, and measures the size of its file.

    Args:
        clients: The number of clients.
        cohort: The number of clients in a round.
        rounds: The number of rounds.
        keep_rounds: For how long rounds are kept; see `SchedulerSettings`.
        keep_offers: For how long offers are kept.
        persist_statuses: Whether statuses are written to the file.
        progress: Called with the number of each round that was played.
    """
    rng = np.random.default_rng(0)
    ids = [f"client-{row:07d}" for row in range(clients)]
    measured_after = sorted({max(rounds * part // PARTS, 1) for part in range(1, PARTS + 1)})
    sizes: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.turnout"
        with Scheduler.open(
            path,
            settings={"cohort_size": cohort, "guaranteed_rate": cohort / clients / 2},
            deadline=60.0,
            keep_rounds=keep_rounds,
            keep_offers=keep_offers,
            persist_statuses=persist_statuses,
        ) as scheduler:
            scheduler.register(ids)
            for number in range(1, rounds + 1):
                rows = np.flatnonzero(rng.random(clients) < AVAILABLE)
                columns = {name: rng.uniform(0.5, 5.0, len(rows)) for name in ("free_cpu", "bandwidth")}
                chosen = scheduler.choose(FleetStatus(columns, rows))
                arrived = rng.random(len(chosen)) < 0.95
                scheduler.report_many(
                    {client: float(rng.uniform(1, 50)) for client, here in zip(chosen, arrived, strict=True) if here}
                )
                scheduler.close_round()
                progress(number)
                if number in measured_after:
                    sizes.append(sum(file.stat().st_size for file in path.parent.glob("fleet.turnout*")))
            summary_round = session_of(scheduler).journal.summary().round
    return YearFigures(clients, cohort, tuple(measured_after), tuple(sizes), summary_round)
