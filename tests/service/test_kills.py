"""Many devices call a service that is killed with SIGKILL again and again: what it has acknowledged is in the file."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
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
from turnout.scheduler import Scheduler, Turn, examine
from turnout.service.tokens import TokenFile

#: The numbers of devices and kills.
SIZES = [(24, 1), pytest.param(200, 2 if TORTURE == 1 else 5 * TORTURE, marks=pytest.mark.thorough)]
#: How many calls are answered at least, and at most, between a start and the next kill.
FEWEST, MOST = 30, 150


class Harness:
    """A fleet whose service is killed, its callers and their ledger."""

    def __init__(self, folder: Path, devices: int, **options: Any) -> None:
        self.path, self.ids = folder / "fleet.turnout", [f"phone-{number}" for number in range(devices)]
        Scheduler.open(self.path, persist_statuses=False, **options).close()
        with TokenFile(self.path) as file:
            tokens = {new.token.client: new.text for new in file.create("device", clients=self.ids)}
            (server,) = file.create("server")
        self.service, self.ledger, self.simulation = (
            RestartedService(self.path),
            Ledger(folder / "ledger"),
            Simulation(),
        )

        def caller(token: str) -> Caller:
            return Caller(self.service, self.ledger, "fleet", token)

        self.devices = {client: caller(tokens[client]) for client in self.ids}
        self.server = caller(server.text)

    def run(self, kills: int, *callers: Callable[[], Any]) -> None:
        """Kills the service again and again while these call it, each time after a random number of answers."""
        rng = random.Random(0)
        self.service.start()
        self.simulation.start(*callers)
        for _ in range(kills):
            self._wait_for_answers(rng.randint(FEWEST, MOST))
            self.service.kill()
            self.service.start()
        self._wait_for_answers(FEWEST)
        self.simulation.stop()
        assert self.service.stop() == 0

    def _wait_for_answers(self, count: int) -> None:
        before = self.ledger.acknowledged
        self.simulation.wait_for(lambda: self.ledger.acknowledged >= before + count, f"{count} answers")

    def close(self) -> None:
        """Ends whatever still runs, also after a failure."""
        try:
            self.simulation.stop()
        finally:
            self.service.kill()
            self.ledger.close()


@pytest.fixture
def make_harness(tmp_path: Path) -> Iterator[Callable[..., Harness]]:
    made: list[Harness] = []

    def make(devices: int, **options: Any) -> Harness:
        made.append(Harness(tmp_path, devices, **options))
        return made[-1]

    yield make
    for harness in made:
        harness.close()


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
    with Scheduler.open(path, read_only=True) as scheduler:
        certified = dict(zip(scheduler.clients, scheduler.certificate().turns.tolist(), strict=True))
    assert certified == {client: counted[client] for client in certified}
    assert [finding for finding in examine(path) if finding.ok is False] == []


@pytest.mark.parametrize(("devices", "kills"), SIZES)
def test_turns_without_rounds_survive_kills(make_harness: Callable[..., Harness], devices: int, kills: int) -> None:
    harness = make_harness(
        devices,
        concurrency=min(20, devices // 2),
        settings={"guaranteed_rate": f"1/{2 * devices}", "tolerance": 2.0},
        deadline=3600.0,
        status_ttl=2.0,
    )

    def device(client: str) -> Callable[[], Any]:
        return lambda: device_with_turns(harness.devices[client], client, harness.simulation)

    harness.run(kills, *map(device, harness.ids))
    with Scheduler.open(harness.path, read_only=True) as scheduler:
        given = [turn for number in range(1, scheduler.round + 1) for turn in scheduler.turns(number)]
    turns = {(turn.round, turn.id): turn for turn in given}
    assert len(turns) == len(given)
    assert [turn.round for turn in given] == list(range(1, len(given) + 1))  # one for each decision
    answers = harness.ledger.entries("after", "check-ins")
    known = {(entry["answer"]["turn"]["id"], entry["client"]) for entry in answers if entry["answer"]["turn"]}
    assert known <= turns.keys()
    compare_reports(harness.ledger, turns, "turn")
    with Scheduler.open(harness.path) as scheduler:
        assert scheduler.fill([]) == []  # counts the turns that were reported since the last decision
    check_recount(harness.path, turns)


@pytest.mark.parametrize(("devices", "kills"), SIZES)
def test_rounds_survive_kills(make_harness: Callable[..., Harness], devices: int, kills: int) -> None:
    size = min(40, 2 * devices // 3)
    settings = {"cohort_size": size, "guaranteed_rate": "1/20", "tolerance": 2.0}
    harness = make_harness(devices, settings=settings, deadline=3600.0)
    invitations: dict[str, asyncio.Queue[int | None]] = {client: asyncio.Queue() for client in harness.ids}

    def device(client: str) -> Callable[[], Any]:
        return lambda: device_with_rounds(harness.devices[client], client, invitations[client])

    harness.run(
        kills,
        lambda: server_with_rounds(harness.server, invitations, harness.simulation),
        *map(device, harness.ids),
    )
    chosen = harness.ledger.entries("after", "rounds")
    closed = harness.ledger.entries("after", "rounds/close")
    with Scheduler.open(harness.path, read_only=True) as scheduler:
        rounds = {number: scheduler.turns(number) for number in range(1, scheduler.round + 1)}
        assert scheduler.open_round is None
    assert [entry["answer"]["round"] for entry in chosen] == list(rounds)  # each was opened once, and closed once
    assert [entry["answer"]["round"] for entry in closed] == list(rounds)
    for entry in chosen:
        cohort = entry["answer"]["cohort"]
        assert len(cohort) == size
        assert sorted(cohort) == sorted(turn.id for turn in rounds[entry["answer"]["round"]])
    turns = {(number, turn.id): turn for number, cohort in rounds.items() for turn in cohort}
    compare_reports(harness.ledger, turns, "round")
    check_recount(harness.path, turns)
