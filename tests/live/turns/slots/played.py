"""Plays fleets without rounds in tests."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from live.fleets import named, offered, state_of
from turnout.live import ClientStatus, RunningTurn, Scheduler, Wait
from turnout.live.turns.slots.state import SlotFleet

SLOTS: Mapping[str, Any] = {
    "concurrency": 3,
    "settings": {"guaranteed_rate": "1/16", "tolerance": 1.0},
    "deadline": 100.0,
}


def open_slots(path: Path, **options: Any) -> Scheduler:
    """Opens a fleet with three slots."""
    return Scheduler.open(path, **{**SLOTS, **options})


def fill(scheduler: Scheduler, rng: random.Random, clients: int = 10) -> list[RunningTurn]:
    """Fills the free slots; nine of ten clients are available, each with a status of its own."""
    there = {name: rng.random() < 0.9 for name in named(clients)}
    return scheduler.fill(
        {name: ClientStatus(1 + rng.random(), 2 + rng.random()) for name, is_there in there.items() if is_there}
    )


def play_turns(scheduler: Scheduler, steps: int, *, seed: int = 1, clients: int = 10) -> list[tuple[int, str, float]]:
    """Fills the slots `steps` times, and reports some of the running turns after each.

    Returns:
        The turn, the outcome and the seconds of each report. Turns reported in one step are in the order of their
        decisions, as the next fill learns them.
    """
    rng, reported = random.Random(seed), []
    for _ in range(steps):
        fill(scheduler, rng, clients)
        for turn in scheduler.running():
            if rng.random() < 0.5:
                seconds = 2.0 + int(turn.client[1:]) + rng.random()
                if rng.random() < 0.1:
                    scheduler.report_failure(turn.id, "lost")
                    reported.append((turn.id, "failed", 0.0))
                else:
                    scheduler.report(turn.id, seconds, loss=1.0 / turn.id)
                    reported.append((turn.id, "arrived", seconds))
    return reported


def play_with_a_long_turn(scheduler: Scheduler) -> None:
    """Plays turns of which one lasts so long that its client earns a whole turn meanwhile; some fail."""
    rng, capped = random.Random(7), 0
    for step in range(60):
        scheduler.fill(offered(*(name for name in named(8) if rng.random() < 0.8)))
        fleet = state_of(scheduler).fleet
        assert isinstance(fleet, SlotFleet)
        capped += len(fleet.running.capped(fleet.round, fleet.queues))
        for turn in scheduler.running():
            if rng.random() < 0.5 and (turn.client != "c3" or step % 25 == 0):
                if rng.random() < 0.2:
                    scheduler.report_failure(turn.id, "lost")
                else:
                    scheduler.report(turn.id, 1.0 + rng.random())
        if step == 30:
            scheduler.amend(guaranteed_rate="1/10")
    assert capped > 0


def wait_of(answer: RunningTurn | Wait) -> Wait:
    """Returns the answer to a device that has to wait."""
    assert isinstance(answer, Wait), answer
    return answer
