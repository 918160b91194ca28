"""The files of docs/adapters.md run with stand-ins that have the interface of each framework."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from turnout.live import FleetReader, Scheduler
from turnout.live._internals import examine

ROOT = Path(__file__).parents[2]


def code_of(framework: str) -> str:
    """Returns the text of the file that the page names for a framework."""
    page = ROOT / "docs/adapters.md"
    (link,) = re.findall(rf"^\| \[{framework}\].*?\]\((\S+/fair_\w+\.py)\)", page.read_text(), flags=re.MULTILINE)
    return (page.parent / str(link)).read_text()


def load(framework: str, monkeypatch: pytest.MonkeyPatch, **stand_ins: dict[str, Any]) -> dict[str, Any]:
    """Executes the file of a framework, with stand-ins for its modules; returns the names that it defines."""
    for path, names in stand_ins.items():
        parts = path.split("__")
        for length in range(1, len(parts) + 1):
            name = ".".join(parts[:length])
            if length == len(parts) or name not in sys.modules:
                monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[".".join(parts)]).update(names)
    defined: dict[str, Any] = {"__name__": f"docs_{framework}"}
    exec(code_of(framework), defined)
    return defined


def check_fleet(fleet: Path, rounds: int, cohort_size: int) -> None:
    """Asserts that so many complete rounds were closed, and that the promise is not broken."""
    assert all(finding.ok is not False for finding in examine(fleet))
    with FleetReader(fleet) as scheduler:
        assert scheduler.open_round() is None
        assert scheduler.round == rounds
        assert [len(scheduler.history(round=number)) for number in range(1, rounds + 1)] == [cohort_size] * rounds
        assert scheduler.certificate().status in ("kept", "behind")


# APPFL


class BaseScheduler:
    """The constructor of APPFL's base class."""

    def __init__(self, scheduler_configs: Any, aggregator: Any, logger: Any) -> None:
        self.scheduler_configs, self.aggregator, self.logger = scheduler_configs, aggregator, logger


def test_appfl_clients_train_when_they_are_selected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler_class = load("APPFL", monkeypatch, appfl__algorithm__scheduler={"BaseScheduler": BaseScheduler})
    aggregated: list[set[str]] = []

    class Aggregator:
        def aggregate(self, models: dict[str, float], **details: dict[str, Any]) -> float:
            assert details["size"].keys() == models.keys()
            aggregated.append(set(models))
            return sum(models.values()) / len(models)

    fleet = {"fleet": tmp_path / "fleet.turnout", "cohort_size": 2, "guaranteed_rate": 0.2, "deadline": 600.0}
    configs = SimpleNamespace(num_clients=6, num_global_epochs=9, **fleet)
    scheduler = scheduler_class["FairScheduler"](configs, Aggregator(), None)

    def client(name: str) -> None:
        model = 0.0
        while scheduler.get_num_global_epochs() < 9:
            model = scheduler.schedule(name, model + 1, size=10).result(timeout=300)

    threads = [threading.Thread(target=client, args=(f"c{number}",)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
        assert not thread.is_alive()
    assert [len(models) for models in aggregated] == [6] + [2] * 8
    scheduler.fleet.close()
    check_fleet(tmp_path / "fleet.turnout", 8, 2)


def test_appfl_ends_a_round_at_its_deadline_if_clients_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[SimpleNamespace] = []

    def make_timer(seconds: float, end_round: Any, arguments: list[int]) -> SimpleNamespace:
        timers.append(SimpleNamespace(seconds=seconds, fire=lambda: end_round(*arguments), start=lambda: None))
        return timers[-1]

    monkeypatch.setattr(threading, "Timer", make_timer)
    classes = load("APPFL", monkeypatch, appfl__algorithm__scheduler={"BaseScheduler": BaseScheduler})
    fleet = {"fleet": tmp_path / "fleet.turnout", "cohort_size": 2, "guaranteed_rate": 0.2, "deadline": 600.0}
    configs, aggregated = SimpleNamespace(num_clients=5, num_global_epochs=4, **fleet), list[set[str]]()

    def aggregate(models: dict[str, float], **_: Any) -> int:
        aggregated.append(set(models))
        return len(aggregated)

    scheduler = classes["FairScheduler"](configs, SimpleNamespace(aggregate=aggregate), None)
    futures = {client: scheduler.schedule(client, 0.0) for client in ("c0", "c1", "c2", "c3")}  # c4 never comes
    assert not any(future.done() for future in futures.values())
    timers[-1].fire()
    hanging, healthy = (client for client, future in futures.items() if future.done())
    futures[healthy] = scheduler.schedule(healthy, 0.0)
    timers[0].fire()  # of a round that has ended before
    assert aggregated == [set(futures)]
    timers[-1].fire()
    futures[hanging] = scheduler.schedule(hanging, 0.0)  # too late
    assert aggregated[1:] == [{healthy}]
    cohort = {client for client, future in futures.items() if future.done()}
    assert len(cohort) == 2
    assert hanging not in cohort
    for client in cohort:
        futures[client] = scheduler.schedule(client, 0.0)
    timers[-1].fire()  # nobody has trained: the model stays as it is
    assert aggregated[2:] == [cohort]
    assert {future.result() for future in futures.values() if future.done()} == {3}
    assert all(scheduler.schedule(client, 0.0).result() == 3 for client in futures)  # training is over
    assert {timer.seconds for timer in timers} == {600.0}
    scheduler.fleet.close()
    with FleetReader(tmp_path / "fleet.turnout") as reader:
        assert sorted(str(turn.kind) for turn in reader.history(round=1)) == ["arrived", "late"]
        assert all(turn.seconds is not None for turn in reader.history(round=1))


# Fed-BioMed


class DefaultStrategy:
    """The part of Fed-BioMed's default strategy that stops if a reply is missing or not successful."""

    def __init__(self) -> None:
        self._sampling_node_history: dict[int, list[str]] = {}

    def refine(self, training_replies: dict[str, Any], round_i: int) -> list[str]:
        assert set(self._sampling_node_history[round_i]) <= set(training_replies)
        assert all(reply["success"] for reply in training_replies.values())
        return sorted(training_replies)


def test_fed_biomed_goes_on_without_nodes_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = load(
        "Fed-BioMed",
        monkeypatch,
        fedbiomed__researcher__strategies__default_strategy={"DefaultStrategy": DefaultStrategy},
    )
    strategy = names["FairStrategy"](tmp_path / "fleet.turnout", cohort_size=3, guaranteed_rate=0.2)
    nodes = [f"NODE_{number}" for number in range(5)]
    good = {"success": True, "timing": {"rtime_total": 2.0}}
    replies: dict[str, Any]
    for number in range(4):
        sampled = strategy.sample_nodes(nodes, number)
        replies = dict.fromkeys(sampled, good)
        if number == 1:
            replies[sampled[0]] = {"success": False, "msg": "no memory"}
            del replies[sampled[1]]
        assert len(strategy.refine(replies, number)) == (1 if number == 1 else 3)
    with strategy.scheduler as scheduler:
        outcomes = sorted((str(turn.kind), str(turn.why)) for turn in scheduler.history(round=2))
        assert outcomes == [("arrived", "None"), ("failed", "did not reply"), ("failed", "no memory")]
    check_fleet(tmp_path / "fleet.turnout", 4, 3)


# pfl-research


def test_pfl_samples_cohort_after_cohort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {f"user-{number}": 10 + number for number in range(12)}
    sampler = load("pfl-research", monkeypatch)["FairSampler"](tmp_path / "fleet.turnout", sizes, 4)
    sampled = [sampler() for _ in range(5 * 4)]
    assert all(len(set(cohort)) == 4 for cohort in [sampled[start : start + 4] for start in range(0, 20, 4)])
    assert set(sampled) <= set(sizes)
    sampler.scheduler.close()
    check_fleet(tmp_path / "fleet.turnout", 5, 4)


# OpenFL


class Assigner:
    """The constructor of OpenFL's assigner."""

    def __init__(self, tasks: Any, authorized_cols: list[str], rounds_to_train: int, **_: Any) -> None:
        self.tasks, self.authorized_cols, self.rounds = tasks, authorized_cols, rounds_to_train
        self.all_tasks_in_groups: list[str] = []
        self.define_task_assignments()

    def define_task_assignments(self) -> None:
        raise NotImplementedError


class Aggregator:
    """How OpenFL's aggregator asks the assigner, and when it looks whether a round is over."""

    def __init__(self, assigner: Any) -> None:
        self.assigner, self.round_number = assigner, 0
        self.results: set[tuple[str, str]] = set()
        self.collaborators_done: list[str] = []
        self.ended: list[list[str]] = []

    def get_tasks(self, collaborator_name: str) -> list[str]:
        return list(self.assigner.get_tasks_for_collaborator(collaborator_name, self.round_number))

    def process_task_results(self, collaborator_name: str, round_number: int, task_name: str) -> None:
        assert round_number == self.round_number
        self.results.add((collaborator_name, task_name))
        self._is_collaborator_done(collaborator_name, round_number)
        self._end_of_round_with_stragglers_check()

    def _is_collaborator_done(self, collaborator_name: str, round_number: int) -> None:
        tasks = self.assigner.get_tasks_for_collaborator(collaborator_name, round_number)
        if all((collaborator_name, task) in self.results for task in tasks):
            self.collaborators_done.append(collaborator_name)

    def _end_of_round_with_stragglers_check(self) -> None:
        raise NotImplementedError

    def _end_of_round_check(self) -> None:
        asked = self.assigner.get_collaborators_for_task("train", self.round_number)
        done = [name for name in asked if name in self.collaborators_done]
        assert done  # OpenFL cannot aggregate nothing
        self.ended.append(done)
        self.round_number += 1
        self.results, self.collaborators_done = set(), []


class Federation:
    """Six collaborators of OpenFL, of which three are selected in each round; the deadline is 60 s."""

    def __init__(self, fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        names = load(
            "OpenFL",
            monkeypatch,
            openfl__component__aggregator__aggregator={"Aggregator": Aggregator},
            openfl__component__assigner__assigner={"Assigner": Assigner},
        )
        self.fleet, self.now = fleet, 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.collaborators = [f"hospital-{number}" for number in range(6)]
        assigner = names["FairAssigner"](
            fleet=fleet,
            task_names=["train", "validate"],
            cohort_size=3,
            deadline=60.0,
            tasks={"train": {}, "validate": {}},
            authorized_cols=self.collaborators,
            rounds_to_train=4,
        )
        self.aggregator = names["FairAggregator"](assigner=assigner)

    def cohort(self) -> list[str]:
        """Returns the collaborators that have tasks."""
        return [name for name in self.collaborators if self.aggregator.get_tasks(name)]

    def send(self, collaborator: str, *tasks: str) -> None:
        """Sends the results of tasks in this round, after a second."""
        self.now += 1.0
        number = self.aggregator.round_number
        for task in tasks:
            self.aggregator.process_task_results(collaborator, number, task)

    def turns(self, number: int) -> list[str]:
        """Closes the fleet and returns the outcomes of the turns of a round."""
        self.aggregator.assigner.scheduler.close()
        assert all(finding.ok is not False for finding in examine(self.fleet))
        with FleetReader(self.fleet) as scheduler:
            return sorted(str(turn.kind) for turn in scheduler.history(round=number))


def test_openfl_ends_a_round_when_its_cohort_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation(tmp_path / "fleet.turnout", monkeypatch)
    for number in range(4):
        cohort = federation.cohort()
        assert len(cohort) == 3
        for name in cohort:
            assert federation.aggregator.round_number == number
            federation.send(name, "train", "validate")
    assert [len(done) for done in federation.aggregator.ended] == [3] * 4
    assert federation.turns(1) == ["arrived"] * 3
    with FleetReader(federation.fleet) as scheduler:
        assert [turn.seconds for turn in scheduler.history(round=1)] == [1.0, 2.0, 3.0]


def test_openfl_ends_a_round_at_the_deadline_if_there_is_something_to_aggregate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = Federation(tmp_path / "fleet.turnout", monkeypatch)
    first, second, _ = federation.cohort()
    federation.send(first, "train", "validate")
    federation.send(second, "train", "validate")
    federation.now += 57.0
    federation.aggregator.get_tasks(first)
    assert federation.aggregator.round_number == 0
    federation.now += 2.0
    federation.aggregator.get_tasks(first)  # nobody sends results any more, but the others ask for tasks
    assert federation.aggregator.ended == [[first, second]]
    third, *_ = federation.cohort()
    federation.now += 61.0
    federation.send(third, "train")
    assert federation.aggregator.round_number == 1  # there is nothing to aggregate
    federation.send(third, "validate")
    assert federation.aggregator.ended == [[first, second], [third]]
    assert federation.turns(1) == ["arrived", "arrived", "late"]


def test_openfl_handles_one_result_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = Federation(tmp_path / "fleet.turnout", monkeypatch)
    held: list[bool] = []
    lock, end_round = federation.aggregator.one_at_a_time, federation.aggregator._end_of_round_check

    def end_round_and_look() -> None:
        held.append(lock.locked())
        end_round()

    monkeypatch.setattr(federation.aggregator, "_end_of_round_check", end_round_and_look)
    for name in federation.cohort():
        federation.send(name, "train", "validate")
    federation.send(federation.cohort()[0], "train", "validate")
    federation.now += 61.0
    federation.cohort()
    assert held == [True, True]  # by the last result, and by a request for tasks
    assert not lock.locked()


# vantage6


class AlgorithmClient:
    """The calls of vantage6's algorithm client; organization 3 always fails, and organization 4 never ends."""

    def __init__(self) -> None:
        self.asked: dict[int, list[int]] = {}
        self.organization = SimpleNamespace(list=lambda: [{"id": number} for number in range(5)])
        self.task = SimpleNamespace(create=self._create)
        self.run = SimpleNamespace(from_task=self._runs)
        self.result = SimpleNamespace(from_task=self._results)

    def _create(self, input_: Any, organizations: list[int], name: str) -> dict[str, int]:
        assert input_["method"] == name == "train"
        self.asked[len(self.asked)] = organizations
        return {"id": len(self.asked) - 1}

    def _results(self, task_id: int) -> list[dict[str, int] | None]:
        return [None if number == 3 else {"from": number} for number in self.asked[task_id] if number != 4]

    def _runs(self, task_id: int) -> list[dict[str, Any]]:
        assigned, finished = "2026-01-01T10:00:00.000000+00:00", "2026-01-01T10:00:07.500000+00:00"
        return [
            {
                "organization": {"id": number},
                "status": {3: "failed", 4: "active"}.get(number, "completed"),
                "assigned_at": assigned,
                "finished_at": None if number in (3, 4) else finished,
            }
            for number in self.asked[task_id]
        ]


def test_vantage6_goes_on_if_organizations_fail_or_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    combined: list[list[Any]] = []
    client, fleet, clock = AlgorithmClient(), tmp_path / "fleet.turnout", SimpleNamespace(now=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "sleep", lambda seconds: vars(clock).update(now=clock.now + seconds))
    load("vantage6", monkeypatch)["fair_rounds"](
        client, 6, fleet, 2, 60.0, lambda: {"method": "train"}, lambda results: combined.append(results)
    )
    assert len(combined) == 6
    assert sum(map(len, combined)) == sum(number < 3 for asked in client.asked.values() for number in asked)
    hung = sum(4 in asked for asked in client.asked.values())
    assert hung >= 1
    assert 60 * hung <= clock.now - 1000 <= 61 * hung  # a round without it takes no time here
    with FleetReader(fleet) as scheduler:
        assert {turn.why for turn in scheduler.history("3")} == {"failed"}
        assert {turn.kind for turn in scheduler.history("4")} == {"late"}
        assert {turn.seconds for turn in scheduler.history("0")} == {7.5}
    check_fleet(fleet, 6, 2)


# Plato


class PlatoServer:
    """Plato's server in synchronous mode: whoever is asked trains until it reports or is disconnected."""

    clients_per_round = 4

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.training_clients: dict[int, Any] = {}
        self.aggregations: list[int] = []

    def weights_aggregated(self, updates: list[Any]) -> None:
        self.aggregations.append(len(updates))

    async def periodic_task(self) -> None: ...

    async def _process_reports(self) -> None:
        self.weights_aggregated(self.updates)

    async def wrap_up(self) -> None: ...

    async def _select_clients(self) -> None:
        self.updates = []
        self.training_clients |= dict.fromkeys(self.choose_clients(list(range(1, 11)), 4))

    def choose_clients(self, clients_pool: list[int], clients_count: int) -> list[int]:
        raise NotImplementedError

    async def send(self, client: int) -> None:
        """Takes the report of a client, as Plato does."""
        report = SimpleNamespace(training_time=3.0, comm_time=0.5)
        del self.training_clients[client]
        self.updates.append(SimpleNamespace(client_id=client, report=report))
        if len(self.updates) >= self.clients_per_round:
            await self._process_reports()
            await self.wrap_up()
            await self._select_clients()


def test_plato_ends_a_round_at_its_deadline_with_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, clock = Scheduler.open, SimpleNamespace(now=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(Scheduler, "open", lambda _, **options: original(tmp_path / "fleet.turnout", **options))
    names = load("Plato", monkeypatch, plato__servers={"fedavg": SimpleNamespace(Server=PlatoServer)})
    server = names["Server"]()

    async def train() -> tuple[int, int]:
        await server.periodic_task()  # no round has begun
        await server._select_clients()
        for _ in range(4):
            for client in list(server.training_clients):
                await server.send(client)
        disconnected, hanging, *others = server.training_clients
        del server.training_clients[disconnected]
        for client in others:
            await server.send(client)
        for seconds in (599.0, 2.0):
            assert server.aggregations == [4] * 4
            clock.now += seconds
            await server.periodic_task()
        assert server.aggregations == [4] * 4 + [2]
        assert len(server.cohort) == 4
        assert hanging not in server.cohort  # it is still training
        return disconnected, hanging

    disconnected, hanging = asyncio.run(train())
    server.fleet.close()
    with FleetReader(tmp_path / "fleet.turnout") as reader:
        outcomes = {turn.id: (turn.kind, turn.why) for turn in reader.history(round=5)}
    assert outcomes.pop(str(disconnected)) == ("failed", "disconnected")
    assert outcomes.pop(str(hanging)) == ("late", None)
    assert list(outcomes.values()) == [("arrived", None)] * 2
