"""A service with its page is killed with SIGKILL again and again, while devices and other processes use its fleets.

Devices and a server call it, a page is read, another process reports to the files, and one reads them. What was
acknowledged is in a ledger outside, which is compared with the files at the end.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from killing import TORTURE
from service.forked import Forker
from service.simulated_devices import (
    Caller,
    Connection,
    ForkedProcess,
    Ledger,
    PageReader,
    ReportingProcess,
    RestartedService,
    Simulation,
    device_with_rounds,
    device_with_turns,
    server_with_rounds,
)
from turnout.live import FleetReader, Scheduler, Turn, certify
from turnout.live._internals import examine
from turnout.service.access import FleetTokens
from turnout.web.access import Role


class Size(NamedTuple):
    """How often the service is killed: how many calls of each fleet are answered at least, and at most, between two."""

    seed: int
    devices: int
    kills: int
    fewest: int
    most: int


SIZES = [
    Size(0, 12, 3, 5, 20),
    *(pytest.param(Size(1 + seed, 60, 20, 30, 150), marks=pytest.mark.thorough) for seed in range(TORTURE)),
]
#: One in so many devices reports through another process; one in so many kills is followed by one during the start.
OTHER_PROCESS, WHILE_STARTING = 4, 3
#: The longest time after which a service that starts is killed, in seconds: about as long as that takes.
STARTING = 0.5


class Fleet:
    """A fleet whose service is killed, its callers and their ledger."""

    def __init__(self, path: Path, devices: int, **options: Any) -> None:
        self.path, self.ids = path, [f"phone-{number}" for number in range(devices)]
        Scheduler.open(path, persist_statuses=False, deadline=3600.0, **options).close()
        with FleetTokens(path) as file:
            self._tokens = {str(new.token.client): new.text for new in file.create("device", clients=self.ids)}
            roles: tuple[Role, ...] = ("server", "viewer")
            self._tokens |= {role: file.create(role)[0].text for role in roles}
        self.ledger = Ledger(path.with_suffix(".ledger"))
        self._connections: list[Connection] = []

    def connect(self, service: RestartedService, forker: Forker) -> None:
        """Makes what uses the fleet: callers for its devices and for its server, a page, and a process that reports."""

        def connection(name: str) -> Connection:
            self._connections.append(Connection(service, self.path.stem, self._tokens[name]))
            return self._connections[-1]

        self.devices = {client: Caller(connection(client), self.ledger) for client in self.ids}
        self.server = Caller(connection("server"), self.ledger)
        self.page = PageReader(connection("viewer"), connection("viewer"))
        self.process = ReportingProcess(forker, self.path, self.ledger)

    def disconnect(self) -> None:
        """Closes all connections; the process that reports ends with its own."""
        for connection in self._connections:
            connection.disconnect()
        self.process.disconnect()

    def reporter(self, client: str) -> Caller | ReportingProcess:
        """Returns through what a device reports."""
        return self.process if self.ids.index(client) % OTHER_PROCESS == 0 else self.devices[client]


class Harness:
    """Fleets of one service, which is killed while they are used."""

    def __init__(self, forker: Forker, size: Size, *fleets: Fleet) -> None:
        self._size, self._fleets, self.simulation = size, fleets, Simulation()
        paths = [fleet.path for fleet in fleets]
        self._service = RestartedService(forker, *paths)
        for fleet in fleets:
            fleet.connect(self._service, forker)
        self._stop = paths[0].with_name("stop")
        self._reader = ForkedProcess(forker, "service.attached:read", *paths, output=paths[0].with_name("reader.txt"))

    def run(self, *callers: Callable[[], Awaitable[None]]) -> None:
        """Kills the service again and again while these call it, each time after a random number of answers."""
        rng, pages = (
            random.Random(self._size.seed),
            [partial(fleet.page.run, self.simulation) for fleet in self._fleets],
        )
        self._service.start()
        self.simulation.start(*callers, *pages, endings=[fleet.disconnect for fleet in self._fleets])
        for kill in range(self._size.kills):
            if kill % WHILE_STARTING == WHILE_STARTING - 1:
                self._service.kill()
                self._service.launch()
                time.sleep(rng.uniform(0, STARTING))
            else:
                self._wait_for_answers(rng.randint(self._size.fewest, self._size.most))
            self._service.kill()
            self._service.start()
        self._wait_for_answers(self._size.fewest)
        enough = 2 * self._size.devices
        self.simulation.wait_for(
            lambda: all(fleet.ledger.reported >= enough for fleet in self._fleets), f"{enough} reports"
        )
        self.simulation.stop()
        assert self._service.stop() == 0

    def last_read(self) -> dict[Path, list[int]]:
        """Ends the other processes; returns the last round and the number of turns of each fleet that one has read."""
        for fleet in self._fleets:
            fleet.process.end()
        self._stop.touch()
        assert self._reader.end() == 0, self._reader.text
        states = json.loads(self._reader.text.splitlines()[0])
        return dict(zip((fleet.path for fleet in self._fleets), states, strict=True))

    def _wait_for_answers(self, count: int) -> None:
        """Waits until so many calls of each fleet were answered, and each page once."""
        before = [(fleet, fleet.ledger.acknowledged, fleet.page.answers) for fleet in self._fleets]
        self.simulation.wait_for(
            lambda: all(
                fleet.ledger.acknowledged >= calls + count and fleet.page.answers > answers
                for fleet, calls, answers in before
            ),
            f"{count} answers",
        )

    def close(self) -> None:
        """Ends whatever still runs, also after a failure."""
        try:
            self.simulation.stop()
        finally:
            self._service.kill()
            self._reader.kill()
            for fleet in self._fleets:
                fleet.process.kill()
                fleet.ledger.close()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size.devices}-{size.kills}-{size.seed}")
def test_nothing_acknowledged_is_lost_or_doubled_when_the_service_is_killed(
    tmp_path: Path, forker: Forker, size: Size
) -> None:
    """One service has both kinds of fleets."""
    devices, cohort = size.devices, min(40, 2 * size.devices // 3)
    settings = {"guaranteed_rate": f"1/{2 * devices}", "tolerance": 2.0}
    slots = Fleet(
        tmp_path / "slots.turnout", devices, concurrency=min(20, devices // 2), settings=settings, status_ttl=2.0
    )
    settings = {"cohort_size": cohort, "guaranteed_rate": "1/20", "tolerance": 2.0}
    rounds = Fleet(tmp_path / "rounds.turnout", devices, settings=settings)
    invitations: dict[str, asyncio.Queue[int | None]] = {client: asyncio.Queue() for client in rounds.ids}
    with closing(Harness(forker, size, slots, rounds)) as harness:
        simulation = harness.simulation
        harness.run(
            partial(server_with_rounds, rounds.server, invitations, simulation),
            *(
                partial(device_with_turns, slots.devices[client], client, simulation, slots.reporter(client))
                for client in slots.ids
            ),
            *(
                partial(device_with_rounds, client, invitations[client], rounds.reporter(client))
                for client in rounds.ids
            ),
        )
        for path, state in harness.last_read().items():
            with FleetReader(path) as reader:
                assert state == [reader.round, sum(reader.certificate().turns.tolist())]
    check_turns(slots)
    check_rounds(rounds, cohort)


def check_turns(fleet: Fleet) -> None:
    """Compares the turns of a fleet without rounds with what its devices were answered."""
    with FleetReader(fleet.path) as scheduler:
        given = [turn for number in range(1, scheduler.round + 1) for turn in scheduler.history(round=number)]
    turns = {(turn.round, turn.id): turn for turn in given}
    assert [turn.round for turn in given] == list(range(1, len(given) + 1))  # one for each decision
    answers = [entry for entry in fleet.ledger.entries("after", "check-ins") if entry["answer"]["turn"]]
    known = {(entry["answer"]["turn"]["id"], entry["client"]) for entry in answers}
    assert len(known) == len(answers)  # no turn was given twice
    assert known <= turns.keys()
    with Scheduler.open(fleet.path) as scheduler:
        assert scheduler.fill([]) == []  # counts the turns that were reported since the last decision
    compare_reports(fleet, turns, "turn")


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
    compare_reports(fleet, {(number, turn.id): turn for number, cohort in rounds.items() for turn in cohort}, "round")


def compare_reports(fleet: Fleet, turns: dict[tuple[int, str], Turn], number: str) -> None:
    """Compares the outcomes in the file and its certificate with the ledger, in which `number` names the round."""
    sent, acknowledged = {}, Counter[tuple[int, str]]()
    for path in ("reports", "failures"):
        for entry in fleet.ledger.entries("before", path):
            body, key = entry["body"], (entry["body"][number], entry["client"])
            assert key not in sent
            sent[key] = (body.get("seconds"), body.get("why"))
        for entry in fleet.ledger.entries("after", path):
            assert entry["answer"] == {"new": True}  # also if it was executed before the service was killed
            acknowledged[entry["body"][number], entry["client"]] += 1
    assert acknowledged == Counter(sent.keys())  # every device goes on until it is answered
    ended = {key: turn for key, turn in turns.items() if turn.kind in ("arrived", "failed")}
    assert {key: (turn.seconds, turn.why) for key, turn in ended.items()} == sent
    counted = Counter(client for (_, client), (seconds, _) in sent.items() if seconds is not None)
    with FleetReader(fleet.path) as reader:
        certified = dict(zip(reader.clients, reader.certificate().turns.tolist(), strict=True))
    assert certified == {client: counted[client] for client in fleet.ids if client in certified}
    assert counted.keys() <= certified.keys()
    assert [finding for finding in examine(fleet.path) if finding.ok is False] == []
    certify(fleet.path, fleet.path.with_suffix(".json"), fleet.path.with_suffix(".jsonl"))  # verifies it, too
