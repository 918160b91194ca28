"""Helpers that the tests of the scheduler share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest

from postgres import tables
from turnout.kernel.arrays import IntArray
from turnout.kernel.exchange_time import ExchangeTimeModel
from turnout.kernel.randomness import round_rng
from turnout.live import Amendment, ClientStatus, FleetReader, Scheduler
from turnout.live._internals import examine, selected_clients, session_of
from turnout.live.journal.replay import FleetState, load_before
from turnout.live.turns.state import Fleet
from turnout.policies.explain.explanation import Explanation
from turnout.storage.encoding.packing import pack_snapshot

LIVE: Mapping[str, Any] = {"settings": {"cohort_size": 2}, "deadline": 10.0, "allow_infeasible": True}


class OpenFleet(Protocol):
    """Opens a fleet in the folder of the test."""

    def __call__(self, name: str | Path = "fleet.turnout", **settings: Any) -> Scheduler: ...


def offered(*clients: str, free_cpu: float = 1.0, bandwidth: float = 2.0) -> dict[str, ClientStatus]:
    """Returns the same status for all clients."""
    return {client: ClientStatus(free_cpu, bandwidth) for client in clients}


def fresh_model(clients: int) -> ExchangeTimeModel:
    """Returns a model without history, with the settings of the default policy."""
    return ExchangeTimeModel(clients, ridge=8.0, prior="fleet", relative_ridge=True)


def named(count: int) -> list[str]:
    """Returns the ids c0, c1, …"""
    return [f"c{row}" for row in range(count)]


def state_of(fleet: Scheduler | FleetReader) -> FleetState:
    """Returns the state of a fleet: in the memory of its scheduler, or as a reader loads it."""
    return fleet.state() if isinstance(fleet, FleetReader) else session_of(fleet).memory


def learned(scheduler: Scheduler | FleetReader) -> dict[str, Any]:
    """Returns what the policy has learned about times."""
    state = {key: value for key, value in state_of(scheduler).state().items() if key.startswith("policy.")}
    return {key: value.tolist() for key, value in state.items() if "model" in key or "usual" in key}


def row_of(scheduler: Scheduler, client: str) -> int:
    """Returns the row of a client."""
    return scheduler.clients.index(client)


def take_snapshot(scheduler: Scheduler) -> None:
    """Writes a snapshot, as a scheduler does every 50 rounds."""
    session_of(scheduler).snapshot()


def predicted_seconds(scheduler: Scheduler) -> dict[str, float]:
    """Returns the predicted times of the clients of the open round whose times are known."""
    selected = selected_clients(session_of(scheduler))
    return {each.client: each.expected_seconds for each in selected if each.expected_seconds is not None}


def summary_round(scheduler: Scheduler) -> int:
    """Returns the last round that is no longer kept."""
    with FleetReader(scheduler.path) as reader:
        return reader.summary().round


def packed(fleet: Scheduler | FleetReader) -> bytes:
    """Returns the state as bytes, for comparisons."""
    return pack_snapshot(state_of(fleet).state())


def packed_without_times(scheduler: Scheduler) -> bytes:
    """Returns the same without when turns were given, which differs if the same is played twice."""
    return pack_snapshot({key: value for key, value in state_of(scheduler).state().items() if key != "given"})


def packed_without_contexts(scheduler: Scheduler) -> bytes:
    """Returns the same without the contexts of clients that train or are late, for fleets that persist no statuses."""
    return pack_snapshot(state_of(scheduler).state(with_contexts=False))


def packed_from_disk(path: Path) -> bytes:
    """Returns the state as another process would load it now."""
    with FleetReader(path) as reader:
        return pack_snapshot(reader.state().state())


def exported(fleet: Scheduler | FleetReader) -> list[dict[str, Any]]:
    """Returns all events of a fleet, as an export has them."""
    with FleetReader(fleet.path) as reader:
        return list(reader.export())


def amendments_of(scheduler: Scheduler) -> list[Amendment]:
    """Returns all changes of the settings of a fleet."""
    with FleetReader(scheduler.path) as reader:
        return reader.amendments


def client_rows(scheduler: Scheduler, ids: Sequence[str]) -> IntArray:
    """Returns the rows of clients."""
    return np.array([row_of(scheduler, client) for client in ids])


def reliability_of(scheduler: Scheduler, client: str) -> float:
    """Returns the estimated probability that a client reports in time."""
    return float(state_of(scheduler).fleet.history.reliability[row_of(scheduler, client)])


def play_round(
    scheduler: Scheduler, statuses: Any, seconds: Mapping[str, float] | float = 1.0, *, failed: Sequence[str] = ()
) -> list[str]:
    """Plays a round and returns its cohort; `seconds`: of all clients, or of each that reports."""
    chosen = scheduler.choose(statuses)
    own = dict.fromkeys(chosen, seconds) if isinstance(seconds, float) else seconds
    for client in failed:
        scheduler.report_failure(client, "its battery died")
    scheduler.report_many({client: own[client] for client in chosen if client in own and client not in failed})
    scheduler.close_round()
    return chosen


def play_world(scheduler: Scheduler, rounds: int, clients: int = 8) -> None:
    """Plays rounds of a simulated fleet in which all clients are available and return."""
    world = World(clients)
    for number in range(scheduler.round + 1, scheduler.round + rounds + 1):
        statuses = world.statuses(number)
        seconds = {client: world.seconds(number, client, status) for client, status in statuses.items()}
        play_round(scheduler, statuses, seconds)


def explain_round(scheduler: Scheduler, number: int) -> list[Explanation]:
    """Explains all clients of a round; the state before it is computed once, because no explanation changes it."""
    before: list[Fleet] = []

    def load_once(*arguments: Any) -> Fleet:
        before[:] = before or [load_before(*arguments)]
        return before[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turnout.live.operation.explain.load_before", load_once)
        return [scheduler.explain(client, number) for client in scheduler.clients]


def turns_in(path: Path) -> list[tuple[Any, ...]]:
    """Returns all turns without the columns that hold the wall clock."""
    query = "SELECT round, row, id, kind, seconds, why, late_seconds, folded, loss FROM turns ORDER BY round, row"
    return rows_of(path, query)


def rows_of(path: Path, query: str) -> list[tuple[Any, ...]]:
    """Returns the rows of a query."""
    with tables(path) as db:
        return db.execute(query).fetchall()


def problems(path: Path) -> list[str]:
    """Returns what the doctor finds wrong in a file."""
    return [f"{finding.part}: {finding.message}" for finding in examine(path) if finding.ok is False]


def changed_clock(seconds: float) -> type[datetime]:
    """Returns a class whose wall clock is ahead by so many seconds, to replace `turnout.live.clock.datetime`."""

    class ChangedClock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return (datetime.now(UTC) + timedelta(seconds=seconds)).astimezone(tz)

    return ChangedClock


class World:
    """Simulates a fleet: the parameters of each client, and random statuses by round. `noise` is relative."""

    def __init__(self, clients: int, *, seed: int = 0, noise: float = 0.1) -> None:
        self.seed, self.noise = seed, noise
        self.clients = named(clients)
        rng = round_rng(seed, "ways", 0)
        self.parameters = {client: rng.uniform([1, 1, 0.1], [4, 1.5, 1]) for client in self.clients}

    def statuses(self, round_: int) -> dict[str, ClientStatus]:
        """Returns the status of every client in a round."""
        rng = round_rng(self.seed, "statuses", round_)
        return {client: ClientStatus(rng.uniform(0.5, 2.0), rng.uniform(2.0, 4.0)) for client in self.clients}

    def seconds(self, round_: int, client: str, status: ClientStatus, *, cold: bool = True) -> float:
        """Returns the true exchange time of a client with this status."""
        noise = round_rng(self.seed, f"noise of {client}", round_).uniform(-self.noise, self.noise)
        context = np.array([1 / status.free_cpu, float(cold), 20 / status.bandwidth])
        return float(context @ self.parameters[client] * (1 + noise))
