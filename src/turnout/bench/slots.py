"""Measures fleets without rounds: one decision among many idle clients, and a server with many slots."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from turnout.bench.choosing import reader_of
from turnout.bench.live import MEMORY
from turnout.bench.paced_fleets import PACED_CONDITIONS, PacedFleet
from turnout.bench.timing import interleaved
from turnout.kernel.rounds import RoundOffer
from turnout.kernel.slots.turns import InFlight, StartedTurn
from turnout.live import Scheduler
from turnout.live._internals import examine
from turnout.log import silenced

#: The log of live fleets, which would repeat that the promise is broken.
SCHEDULER_LOG = "turnout.live"
#: The target of a decision, in reads of what it must look at.
MOST_READS = 1.3


@dataclass(frozen=True, slots=True)
class DecisionFigures:
    """What a decision about one slot costs: it selects one of the idle clients and counts the turn.

    Attributes:
        clients: The number of clients, all of them idle.
        condition: The condition of the fleet.
        milliseconds: The CPU time of a decision.
        reads: The same in units of one read of the arrays that it must look at.
    """

    clients: int
    condition: str
    milliseconds: float
    reads: float


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """What turns cost in a live fleet, without fsyncs.

    Attributes:
        clients: The number of clients.
        slots: The number of slots.
        turns: The number of turns that were given.
        turn_milliseconds: The CPU time of a turn: the decision, its record, the result and what is learned from it.
        open_seconds: The CPU time of opening the file again.
        file_bytes: The size of the file.
        most_behind: The most turns that any client was behind after any call of `fill`; its tolerance is 1.
        restored: Whether the turns under way and the turns of each client are the same after opening the file again.
        problems: The number of problems that the doctor finds.
    """

    clients: int
    slots: int
    turns: int
    turn_milliseconds: float
    open_seconds: float
    file_bytes: int
    most_behind: float
    restored: bool
    problems: int


def measure_decision(clients: int, condition: str, *, repeats: int = 9, seed: int = 0) -> DecisionFigures:
    """Measures one decision and one read of what it must look at, in turns.

    Args:
        clients: The number of clients.
        condition: One of PACED_CONDITIONS.
        repeats: The number of repetitions.
        seed: The seed of the fleet.
    """
    fleet = PACED_CONDITIONS[condition](clients, 1, np.random.default_rng(seed))
    fleet.available[:] = True
    seconds = interleaved({"decision": _decisions(fleet), "read": reader_of(fleet.arrays())}, repeats)
    return DecisionFigures(clients, condition, seconds["decision"] * 1e3, seconds["decision"] / seconds["read"])


def _decisions(fleet: PacedFleet) -> Callable[[], None]:
    """Returns a function that makes the next decision, about a slot that is free."""
    in_flight = InFlight(fleet.policy.clients)
    made = 0

    def decide() -> None:
        nonlocal made
        made += 1
        offer = RoundOffer.trusted(made, fleet.available, fleet.contexts, places=1)
        (row,) = fleet.policy.ask(offer).clients.tolist()
        turn = StartedTurn.trusted(made, row, fleet.available, in_flight.capped(made, fleet.policy.debts))
        fleet.policy.tell_started(turn)
        in_flight.start(turn)
        in_flight.finish(row)

    return decide


def measure_server(
    clients: int, slots: int, turns: int, *, watch: Callable[[int], None] = lambda _: None, seed: int = 0
) -> ServerFigures:
    """Plays turns in a live fleet, in which half of the slots are free at a time, and opens the file again.

    Args:
        clients: The number of clients.
        slots: The number of slots.
        turns: The number of turns.
        watch: Called with the number of turns that were just given.
        seed: The seed of the times, and of the order in which clients return.
    """
    rng = np.random.default_rng(seed)
    ids = [f"client-{row}" for row in range(clients)]
    usual = dict(zip(ids, rng.uniform(1.0, 10.0, clients).tolist(), strict=True))
    settings = {"guaranteed_rate": f"3/{4 * clients}", "tolerance": 1.0}
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        path = Path(folder) / "fleet.turnout"
        with silenced(SCHEDULER_LOG), Scheduler.open(path, concurrency=slots, settings=settings) as scheduler:
            scheduler.register(ids)
            given, seconds, most_behind = 0, 0.0, 0.0
            while given < turns:
                start = time.thread_time()
                new = len(scheduler.fill(ids))
                under_way = [turn.client for turn in scheduler.in_flight()]
                back = rng.choice(under_way, max(slots // 2, 1), replace=False).tolist()
                scheduler.report_many({client: usual[client] for client in back})
                seconds += time.thread_time() - start
                given += new
                most_behind = max(most_behind, float(scheduler.certificate().behind.max()))
                watch(new)
            before = _known(scheduler)
        start = time.thread_time()
        with silenced(SCHEDULER_LOG), Scheduler.open(path) as scheduler:
            opened = time.thread_time() - start
            restored = _known(scheduler) == before
        problems = sum(finding.ok is False for finding in examine(path))
        size = path.stat().st_size
    return ServerFigures(clients, slots, given, seconds / given * 1e3, opened, size, most_behind, restored, problems)


def _known(scheduler: Scheduler) -> tuple[list[tuple[int, str]], list[int]]:
    """Returns the turns under way, and the turns of each client."""
    under_way = [(turn.id, turn.client) for turn in scheduler.in_flight()]
    return under_way, scheduler.certificate().turns.tolist()
