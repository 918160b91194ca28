"""Measures a round of a live scheduler against the same round in memory, without fsyncs."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from turnout.bench.timing import in_turns
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.policies.rbcsf.policy import RBCSF
from turnout.scheduler import FleetStatus, Scheduler

COMMITS = 3  # transactions per round: choose, report, close
MOST = 3.0  # target: live round without fsyncs, in units of the round in memory
BATCH = 1000  # reports per transaction


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """Median wall-clock seconds, measured in turns."""

    clients: int
    cohort: int
    live_seconds: float
    kernel_seconds: float
    fsync_seconds: float
    open_seconds: float
    rounds_stored: int
    reports_a_second: float

    @property
    def ratio(self) -> float:
        """Time of the live round without fsyncs, divided by the time of the round in memory."""
        return (self.live_seconds - COMMITS * self.fsync_seconds) / self.kernel_seconds

    @property
    def met(self) -> bool:
        """Whether the ratio is within its target."""
        return self.ratio <= MOST


def measure_live(
    *, clients: int = 1_000_000, cohort: int = 100, repeats: int = 9, folder: Path | None = None
) -> LiveFigures:
    """Measures rounds of a fleet in which every client is available, with the default settings of live fleets.

    Args:
        clients: Size of the fleet.
        cohort: Clients per round.
        repeats: Number of measurements; the median counts.
        folder: Where the temporary fleet is written; by default in the system's temporary folder.
    """
    rng = np.random.default_rng(0)
    columns = {"free_cpu": rng.uniform(0.5, 2.0, clients), "bandwidth": rng.uniform(1.0, 5.0, clients)}
    rate = cohort / clients / 2
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "fleet.turnout"
        settings = {"cohort_size": cohort, "guaranteed_rate": rate}
        scheduler = Scheduler.open(path, settings=settings, deadline=60.0)
        scheduler.register([f"client-{row:07d}" for row in range(clients)])
        status = FleetStatus(columns)
        policy = RBCSF(
            clients, cohort_size=cohort, guaranteed_rate=rate, accrual="available", max_owed=10, paid="contributed"
        )
        contexts = np.asfortranarray(
            np.column_stack([1 / columns["free_cpu"], np.ones(clients), 20 / columns["bandwidth"]])
        )
        available = np.ones(clients, dtype=np.bool_)

        def live() -> None:
            scheduler.report_many({client: float(rng.uniform(1, 10)) for client in scheduler.choose(status)})
            scheduler.close_round()

        def kernel() -> None:
            number = int(policy.queues.rounds[0]) + 1
            chosen = policy.ask(RoundOffer(number, available, contexts)).clients
            policy.tell(RoundReport(number, chosen, contexts[chosen], rng.uniform(1, 10, len(chosen)), available))

        def fsync() -> None:
            with (Path(temporary) / "probe").open("ab") as file:
                file.write(os.urandom(clients // 8 // COMMITS + 4096))
                file.flush()
                os.fsync(file.fileno())

        seconds = in_turns([live, kernel, fsync], repeats)
        reports = _reports_per_second(min(clients, 10 * BATCH))
        rounds = scheduler.round
        scheduler.close()
        start = time.perf_counter()
        Scheduler.open(path).close()
        open_seconds = time.perf_counter() - start
    live_seconds, kernel_seconds, fsync_seconds = seconds
    return LiveFigures(clients, cohort, live_seconds, kernel_seconds, fsync_seconds, open_seconds, rounds, reports)


def _reports_per_second(clients: int) -> float:
    """Measures ten rounds in which all clients report in batches; each batch is one transaction."""
    with tempfile.TemporaryDirectory() as temporary:
        fleet = Scheduler.open(
            Path(temporary) / "fleet.turnout", policy="random", settings={"cohort_size": clients}, deadline=60.0
        )
        fleet.register([f"c{row}" for row in range(clients)])
        seconds, count = 0.0, 0
        for _ in range(10):
            chosen = fleet.choose(FleetStatus({"free_cpu": np.ones(clients), "bandwidth": np.ones(clients)}))
            start = time.perf_counter()
            for first in range(0, len(chosen), BATCH):
                count += fleet.report_many(dict.fromkeys(chosen[first : first + BATCH], 2.0))
            seconds += time.perf_counter() - start
            if not fleet.close_round().report.with_outcome("arrived").all():
                raise AssertionError("a report was lost")
        fleet.close()
    return count / seconds
