"""Many devices call a service that is killed with SIGKILL again and again: what it has acknowledged is in the file."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from service.simulated_devices import (
    TORTURE,
    Caller,
    Ledger,
    RestartedService,
    Simulation,
    device_with_rounds,
    device_with_turns,
    server_with_rounds,
)
from turnout.live import FleetReader, Scheduler, Turn
from turnout.live._internals import examine
from turnout.service.access.tokens import FleetTokens

#: The numbers of devices and kills.
SIZES = [(24, 1), pytest.param(200, 2 if TORTURE == 1 else 5 * TORTURE, marks=pytest.mark.thorough)]
#: How many calls are answered at least, and at most, between a start and the next kill.
FEWEST, MOST = 30, 150


class Fleet:
    """A fleet whose service is killed, its callers and their ledger."""

    def __init__(self, path: Path, devices: int, **options: Any) -> None:
        self.path, self.ids = path, [f"phone-{number}" for number in range(devices)]
        Scheduler.open(path, persist_statuses=False, **options).close()
        with FleetTokens(path) as file:
            self._tokens = {new.token.client: new.text for new in file.create("device", clients=self.ids)}
            (server,) = file.create("server")
        self._server_token = server.text
        self.ledger = Ledger(path.with_suffix(".ledger"))

    def connect(self, service: RestartedService) -> None:
        """Makes a caller for each device and for the server."""

        def caller(token: str) -> Caller:
            return Caller(service, self.ledger, self.path.stem, token)

        self.devices = {client: caller(self._tokens[client]) for client in self.ids}
        self.server = caller(self._server_token)


class Harness:
    """Fleets of one service, which is killed while devices and servers call it."""

    def __init__(self, *fleets: Fleet) -> None:
        self._fleets, self.simulation = fleets, Simulation()
        self._service = RestartedService(*(fleet.path for fleet in fleets))
        for fleet in fleets:
            fleet.connect(self._service)

    def run(self, kills: int, *callers: Callable[[], Any]) -> None:
        """Kills the service again and again while these call it, each time after a random number of answers."""
        rng = random.Random(0)
        self._service.start()
        self.simulation.start(*callers)
        for _ in range(kills):
            self._wait_for_answers(rng.randint(FEWEST, MOST))
            self._service.kill()
            self._service.start()
        self._wait_for_answers(FEWEST)
        ledgers = [fleet.ledger for fleet in self._fleets]
        self.simulation.wait_for(lambda: all(ledger.reported > FEWEST for ledger in ledgers), f"{FEWEST} reports")
        self.simulation.stop()
        assert self._service.stop() == 0

    def _wait_for_answers(self, count: int) -> None:
        """Waits until so many calls of each fleet were answered."""
        target_size = [(fleet.ledger, fleet.ledger.acknowledged + count) for fleet in self._fleets]
        self.simulation.wait_for(
            lambda: all(ledger.acknowledged >= number for ledger, number in target_size), f"{count} answers"
        )

    def close(self) -> None:
        """Ends whatever still runs, also after a failure."""
        try:
            self.simulation.stop()
        finally:
            self._service.kill()
            for fleet in self._fleets:
                fleet.ledger.close()


def reported(turn: Turn) -> tuple[float | None, str | None]:
    return turn.seconds, turn.why


def compare_reports(ledger: Ledger, turns: dict[tuple[int, str], Turn], number: str) -> None:
    """Compares the outcomes in the file with those that were sent and acknowledged; `number` names the round."""
    sent, acknowledged = {}, set()
    for path in ("reports", "failures"):
        for entry in ledger.entries("before", path):
            body, key = entry["body"], (entry["body"][number], entry["client"])
            assert key not in sent
            sent[key] = (body.get("seconds"), body.get("why"))
        for entry in ledger.entries("after", path):
            assert entry["answer"] == {"new": True}  # also if it was executed before the service was killed
            acknowledged.add((entry["body"][number], entry["client"]))
    assert acknowledged == sent.keys()  # every device goes on until it is answered
    assert len(acknowledged) > FEWEST
    assert {key: reported(turn) for key, turn in turns.items() if turn.kind in ("arrived", "failed")} == sent


def check_recount(path: Path, turns: dict[tuple[int, str], Turn]) -> None:
    """Compares the certificate with the turns in the file, and lets the doctor examine it."""
    counted = Counter(client for (_, client), turn in turns.items() if turn.kind == "arrived")
    with FleetReader(path) as scheduler:
        certified = dict(zip(scheduler.clients, scheduler.certificate().turns.tolist(), strict=True))
    assert certified == {client: counted[client] for client in certified}
    assert [finding for finding in examine(path) if finding.ok is False] == []


@pytest.mark.parametrize(("devices", "kills"), SIZES)
def test_turns_and_rounds_survive_kills(tmp_path: Path, devices: int, kills: int) -> None:
    """One service has both kinds of fleets."""
    slots = Fleet(
        tmp_path / "slots.turnout",
        devices,
        concurrency=min(20, devices // 2),
        settings={"guaranteed_rate": f"1/{2 * devices}", "tolerance": 2.0},
        deadline=3600.0,
        status_ttl=2.0,
    )
    size = min(40, 2 * devices // 3)
    settings = {"cohort_size": size, "guaranteed_rate": "1/20", "tolerance": 2.0}
    rounds = Fleet(tmp_path / "rounds.turnout", devices, settings=settings, deadline=3600.0)
    invitations: dict[str, asyncio.Queue[int | None]] = {client: asyncio.Queue() for client in rounds.ids}

    def with_turns(client: str) -> Callable[[], Any]:
        return lambda: device_with_turns(slots.devices[client], client, harness.simulation)

    def with_rounds(client: str) -> Callable[[], Any]:
        return lambda: device_with_rounds(rounds.devices[client], client, invitations[client])

    with closing(Harness(slots, rounds)) as harness:
        harness.run(
            kills,
            lambda: server_with_rounds(rounds.server, invitations, harness.simulation),
            *map(with_turns, slots.ids),
            *map(with_rounds, rounds.ids),
        )
    check_turns(slots)
    check_rounds(rounds, size)


def check_turns(fleet: Fleet) -> None:
    """Compares the turns of a fleet without rounds with what its devices were answered."""
    with FleetReader(fleet.path) as scheduler:
        given = [turn for number in range(1, scheduler.round + 1) for turn in scheduler.history(round=number)]
    turns = {(turn.round, turn.id): turn for turn in given}
    assert len(turns) == len(given)
    assert [turn.round for turn in given] == list(range(1, len(given) + 1))  # one for each decision
    answers = fleet.ledger.entries("after", "check-ins")
    known = {(entry["answer"]["turn"]["id"], entry["client"]) for entry in answers if entry["answer"]["turn"]}
    assert known <= turns.keys()
    compare_reports(fleet.ledger, turns, "turn")
    with Scheduler.open(fleet.path) as scheduler:
        assert scheduler.fill([]) == []  # counts the turns that were reported since the last decision
    check_recount(fleet.path, turns)


def check_rounds(fleet: Fleet, size: int) -> None:
    """Compares the rounds of a fleet with what its server and its devices were answered."""
    chosen = fleet.ledger.entries("after", "rounds")
    closed = fleet.ledger.entries("after", r"rounds/\d+/close")
    with FleetReader(fleet.path) as scheduler:
        rounds = {number: scheduler.history(round=number) for number in range(1, scheduler.round + 1)}
        assert scheduler.open_round() is None
    assert [entry["answer"]["round"] for entry in chosen] == list(rounds)  # each was opened once, and closed once
    assert [entry["answer"]["round"] for entry in closed] == list(rounds)
    for entry in chosen:
        cohort = entry["answer"]["cohort"]
        assert len(cohort) == size
        assert sorted(cohort) == sorted(turn.id for turn in rounds[entry["answer"]["round"]])
    turns = {(number, turn.id): turn for number, cohort in rounds.items() for turn in cohort}
    compare_reports(fleet.ledger, turns, "round")
    check_recount(fleet.path, turns)
