"""Measures a live fleet of a million clients: opening, registering, rounds, snapshots and forgetting a client.

The fleet is written to memory where the system has a folder for that, and times are CPU times: neither fsyncs nor
other processes count.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from turnout.bench.choosing import Verdict
from turnout.bench.timing import interleaved
from turnout.kernel.arrays import FloatArray, IntArray
from turnout.kernel.rounds import RoundOffer, RoundReport
from turnout.live import FleetStatus, Scheduler
from turnout.live._internals import forget_in_steps, session_of
from turnout.policies.base import SelectionPolicy
from turnout.policies.registry import make_policy

#: Targets for a million clients: CPU seconds, and live rounds in units of the same round in memory.
MOST_REGISTER, MOST_OPEN, MOST_SNAPSHOT, MOST_FORGET, MOST_ROUND = 5.0, 2.0, 1.0, 0.5, 2.0
#: The policy of the fleet, which is the default of live fleets.
POLICY = "fair-pace"
#: Registering, snapshots, opening and forgetting are measured at most so many times; the best time counts.
MOST_REPEATS = 3
#: The rounds between the last snapshot and the measured opening: one less than there can be.
UNSAVED_ROUNDS = 49
#: The size of the model in the contexts of the round in memory.
MODEL_SIZE = 20.0
#: Rounds of each kind before the measured ones: in the first rounds, estimates of the whole fleet change often.
WARM_UP = 15
#: The share of clients that are available in the second kind of rounds.
AVAILABLE = 0.8
#: The number of reports per transaction.
BATCH = 1000
#: A folder in memory, on Linux.
MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Seconds:
    """The time of one task: CPU seconds, and wall-clock seconds, which include waiting for other processes."""

    cpu: float
    wall: float

    @classmethod
    def best(cls, times: Iterable[Seconds]) -> Seconds:
        """Returns the shortest of each kind."""
        measured = list(times)
        return cls(min(seconds.cpu for seconds in measured), min(seconds.wall for seconds in measured))

    @classmethod
    def longest(cls, times: Iterable[Seconds]) -> Seconds:
        """Returns the longest of each kind; 0 if there is none."""
        measured = list(times)
        return cls(
            max((seconds.cpu for seconds in measured), default=0.0),
            max((seconds.wall for seconds in measured), default=0.0),
        )


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """The figures of a live fleet; times are the best of several, those of rounds are medians of CPU seconds.

    Attributes:
        clients: The size of the fleet.
        cohort: The number of clients per round.
        register: Registering all clients.
        live_seconds: One live round: choose, report, close.
        kernel_seconds: The same round in memory: ask and tell of the policy.
        partial_live_seconds: One live round in which 80 % of the clients are available.
        partial_kernel_seconds: The same round in memory.
        snapshot: Writing a snapshot.
        open: Opening the file with `unsaved_rounds` rounds after the last snapshot, and looking a client up.
        unsaved_rounds: The number of these rounds.
        forget_start: The first transaction of forgetting a client, which writes a snapshot.
        forget_step: The longest of its other transactions.
        forget_steps: The number of its transactions.
        file_bytes: The size of the file.
        reports_a_second: Reports in batches, per wall-clock second.
    """

    clients: int
    cohort: int
    register: Seconds
    live_seconds: float
    kernel_seconds: float
    partial_live_seconds: float
    partial_kernel_seconds: float
    snapshot: Seconds
    open: Seconds
    unsaved_rounds: int
    forget_start: Seconds
    forget_step: Seconds
    forget_steps: int
    file_bytes: int
    reports_a_second: float

    @property
    def ratio(self) -> float:
        """The time of a live round in which all clients are available, divided by that of the same round in memory."""
        return self.live_seconds / self.kernel_seconds

    @property
    def partial_ratio(self) -> float:
        """The same ratio for rounds in which 80 % of the clients are available, for which there is no target."""
        return self.partial_live_seconds / self.partial_kernel_seconds

    def verdicts(self) -> list[Verdict]:
        """Compares the figures with their targets, which are for a million clients."""
        return [
            Verdict("registering all clients: seconds", self.register.cpu, MOST_REGISTER),
            Verdict(f"opening, {self.unsaved_rounds} rounds after a snapshot: seconds", self.open.cpu, MOST_OPEN),
            Verdict("snapshot: seconds", self.snapshot.cpu, MOST_SNAPSHOT),
            Verdict("forgetting a client: first transaction, seconds", self.forget_start.cpu, MOST_SNAPSHOT),
            Verdict("forgetting a client: longest other transaction, seconds", self.forget_step.cpu, MOST_FORGET),
            Verdict("live round / the same round in memory", self.ratio, MOST_ROUND),
        ]


def measure_live(
    *,
    clients: int = 1_000_000,
    cohort: int = 100,
    repeats: int = 9,
    folder: Path | None = None,
    watch: Callable[[str], None] = lambda _: None,
) -> LiveFigures:
    """Measures a fleet with the default settings of live fleets.

    Args:
        clients: Size of the fleet.
        cohort: Clients per round.
        repeats: Number of measured rounds; the median counts. Of longer tasks, at most 3 are measured, and the
            shortest counts.
        folder: Where the temporary fleet is written; by default in memory, or in the system's temporary folder.
        watch: Called with a description of each step.
    """
    rng = np.random.default_rng(0)
    columns = {"free_cpu": rng.uniform(0.5, 2.0, clients), "bandwidth": rng.uniform(1.0, 5.0, clients)}
    ids = [f"client-{row:07d}" for row in range(clients)]
    some = np.flatnonzero(rng.random(clients) < AVAILABLE)
    whole = FleetStatus(columns)
    partial = FleetStatus({name: column[some] for name, column in columns.items()}, some)
    settings = {"cohort_size": cohort, "guaranteed_rate": cohort / clients / 2}
    few = min(repeats, MOST_REPEATS)

    def play(scheduler: Scheduler, status: FleetStatus = whole) -> None:
        scheduler.report_many({client: float(rng.uniform(1, 10)) for client in scheduler.choose(status)})
        scheduler.close_round()

    with tempfile.TemporaryDirectory(dir=_memory_folder() if folder is None else folder) as temporary:
        watch("registering clients")
        path = Path(temporary) / "fleet.turnout"
        register = Seconds.best([_register(path, settings, ids) for _ in range(few)])
        with Scheduler.open(path) as scheduler:
            watch("playing rounds")
            kernel = _kernel_rounds(settings, columns, rng)
            rounds: dict[str, Callable[[], None]] = {
                "live": lambda: play(scheduler),
                "kernel": lambda: kernel(None),
                "partial live": lambda: play(scheduler, partial),
                "partial kernel": lambda: kernel(some),
            }
            for _ in range(WARM_UP):
                for play_round in rounds.values():
                    play_round()
            seconds = interleaved(rounds, repeats)
            watch("writing snapshots")
            snapshot = Seconds.best([_timed(session_of(scheduler).snapshot) for _ in range(few)])
            for _ in range(UNSAVED_ROUNDS):
                play(scheduler)
        watch("opening the file")
        opened = Seconds.best([_open(path, ids[0]) for _ in range(few)])
        file_bytes = path.stat().st_size
        watch("forgetting clients")
        with Scheduler.open(path) as scheduler:
            forgotten = [list(_step_times(forget_in_steps(scheduler, client))) for client in ids[:few]]
        watch("reporting in batches")
        reports = _reports_per_second(min(clients, 10 * BATCH))
    return LiveFigures(
        clients=clients,
        cohort=cohort,
        register=register,
        live_seconds=seconds["live"],
        kernel_seconds=seconds["kernel"],
        partial_live_seconds=seconds["partial live"],
        partial_kernel_seconds=seconds["partial kernel"],
        snapshot=snapshot,
        open=opened,
        unsaved_rounds=UNSAVED_ROUNDS,
        forget_start=Seconds.best(start for start, *_ in forgotten),
        forget_step=Seconds.best(Seconds.longest(later) for _, *later in forgotten),
        forget_steps=max(map(len, forgotten)),
        file_bytes=file_bytes,
        reports_a_second=reports,
    )


def _memory_folder() -> Path | None:
    """Returns a folder in memory; None if there is none, for the system's temporary folder."""
    return MEMORY if MEMORY.is_dir() else None


def _timed(task: Callable[[], object]) -> Seconds:
    cpu, wall = time.process_time(), time.perf_counter()
    task()
    return Seconds(time.process_time() - cpu, time.perf_counter() - wall)


def _step_times(steps: Iterator[None]) -> Iterator[Seconds]:
    """Yields the time of each step."""
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in steps:
        yield Seconds(time.process_time() - cpu, time.perf_counter() - wall)
        cpu, wall = time.process_time(), time.perf_counter()


def _register(path: Path, settings: dict[str, float], ids: list[str]) -> Seconds:
    """Creates a fleet in place of an earlier one, registers clients and looks one up."""
    for earlier in path.parent.iterdir():
        earlier.unlink()
    with Scheduler.open(path, policy=POLICY, settings=settings, deadline=60.0) as scheduler:
        return _timed(lambda: (scheduler.register(ids), session_of(scheduler).row(ids[0])))


def _open(path: Path, client: str) -> Seconds:
    """Opens a fleet to write, which loads its whole state, and looks a client up; closing is not measured."""
    opened: list[Scheduler] = []

    def load() -> None:
        opened.append(Scheduler.open(path))
        opened[0].rows([client])  # the first lookup of an id takes some time as well

    seconds = _timed(load)
    opened[0].close()
    return seconds


def _kernel_rounds(
    settings: dict[str, float], columns: dict[str, FloatArray], rng: np.random.Generator
) -> Callable[[IntArray | None], None]:
    """Returns a function that plays a round of the same policy without a scheduler.

    It is passed the rows of the available clients, or None for all. Contexts are computed before, nothing is stored.
    """
    clients = len(columns["free_cpu"])
    policy: SelectionPolicy = make_policy(
        POLICY, clients, accrual="available", paid="contributed", allow_infeasible=True, **settings
    )
    features = [1 / columns["free_cpu"], np.ones(clients), MODEL_SIZE / columns["bandwidth"]]
    contexts = np.asfortranarray(np.column_stack(features))
    numbers = count(1)

    def play(rows: IntArray | None) -> None:
        number, available = next(numbers), np.ones(clients, dtype=np.bool_)
        if rows is not None:
            available[:] = False
            available[rows] = True
        chosen = policy.ask(RoundOffer(number, available, contexts)).clients
        policy.tell(RoundReport(number, chosen, contexts[chosen], rng.uniform(1, 10, len(chosen)), available))

    return play


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
