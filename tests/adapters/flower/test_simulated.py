"""In a simulation a world determines which clients are available and how long each takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from adapters.flower.conftest import OpenFleet
from adapters.flower.in_process import InProcessGrid, Spy, kinds_in, model, named_nodes, partitions, train
from turnout.adapters.flower.simulated import SimulatedFleet, SimulatedSlots
from turnout.errors import SettingError
from turnout.kernel.arrays import FloatArray
from turnout.kernel.rounds import RoundOffer, RoundReport, Selection
from turnout.lab import PaperWorld, World

pytestmark = pytest.mark.usefixtures("clock")

CLIENTS = 6


class Scripted(World):
    """A world with given exchange times; None stands for a failure, and `absent` clients are not available."""

    def __init__(self, seconds: list[float | None], absent: Mapping[int, set[int]] | None = None) -> None:
        self._seconds, self._absent = seconds, absent or {}
        self.played: list[tuple[int, list[int]]] = []

    @property
    def clients(self) -> int:
        return len(self._seconds)

    @property
    def availability(self) -> FloatArray:
        return np.ones(self.clients)

    def offer(self, round: int) -> RoundOffer:
        available = np.array([row not in self._absent.get(round, set()) for row in range(self.clients)])
        return RoundOffer(round, available, np.tile([1.0, 1.0, 10.0], (self.clients, 1)))

    def play(self, offer: RoundOffer, selection: Selection) -> RoundReport:
        rows = selection.clients
        self.played.append((offer.round, rows.tolist()))
        times = [self._seconds[row] for row in rows.tolist()]
        return RoundReport(
            offer.round,
            rows,
            offer.contexts[rows],
            np.array([1.0 if seconds is None else seconds for seconds in times]),
            available=offer.available,
            outcomes=np.array(["failed" if seconds is None else "arrived" for seconds in times], dtype="<U7"),
        )

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        assert not state


def test_times_come_from_the_simulated_world(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(deadline=1000.0), InProcessGrid(partitions(CLIENTS))
    for node in grid.nodes.values():
        node.seconds = 77.0  # queueing time on the host
    train(scheduler, grid, rounds=5, simulated=PaperWorld(3, clients=CLIENTS))
    world = PaperWorld(3, clients=CLIENTS)
    for number in range(1, 6):
        turns = scheduler.history(round=number)
        report = world.play(world.offer(number), Selection(number, np.array(sorted(int(turn.id) for turn in turns))))
        expected = dict(zip(map(str, report.clients.tolist()), report.exchange_times.tolist(), strict=True))
        assert {turn.id: turn.seconds for turn in turns} == pytest.approx(expected)


def test_only_available_clients_train_and_all_clients_evaluate(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(deadline=None), InProcessGrid(partitions(CLIENTS))
    train(scheduler, grid, rounds=8, simulated=PaperWorld(5, clients=CLIENTS, availability=0.4))
    available = {
        number: PaperWorld(5, clients=CLIENTS, availability=0.4).offer(number).available for number in range(1, 9)
    }
    for number in range(1, 9):
        selected = [int(turn.id) for turn in scheduler.history(round=number)]
        assert len(selected) == min(2, int(available[number].sum()))
        assert all(available[number][row] for row in selected)
    assert grid.asked("evaluate") == [[str(row) for row in range(CLIENTS)]] * 8


def test_in_a_round_without_available_clients_the_strategy_is_not_called_and_the_world_advances(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    all_clients = set(range(3))
    world = Scripted([1.0, 2.0, 3.0], {1: all_clients, 3: all_clients, 4: all_clients})
    scheduler, spy, grid = open_fleet(), Spy(), InProcessGrid(partitions(3))
    result = train(scheduler, grid, spy, arrays=model(1.0), rounds=5, simulated=world)
    assert (spy.configured, len(spy.aggregated)) == ([2, 5], 2)
    assert scheduler.round == 5
    assert [number for number, _ in world.played] == [1, 2, 3, 4, 5]
    assert [len(rows) for _, rows in world.played] == [0, 2, 0, 0, 2]
    assert "round 3 asks no clients: none is available" in caplog.text
    assert list(result.train_metrics_clientapp) == [1, 2, 3, 4, 5]
    assert [record["turnout-asked"] for record in result.train_metrics_clientapp.values()] == [0, 2, 0, 0, 2]
    assert len(grid.asked("evaluate")) == 5


@pytest.mark.parametrize(
    ("seconds", "troubles", "fleet", "kinds", "aggregated", "waited"),
    [
        ([1.0, None, 3.0], {}, {}, ["arrived", "failed", "arrived"], ["0", "2"], 3.0),
        ([10.0, 10.5, 3.0], {}, {}, ["arrived", "late", "arrived"], ["2", "0"], 10.0),  # the deadline
        ([1.0, 2.0, 3.0], {1: "raises", 2: "silent"}, {}, ["arrived", "failed", "late"], ["0", "error"], 3.0),
        (
            [1.0, 2.0, 3.0, 4.0],
            {},
            {"settings": {"cohort_size": 2}, "overcommit": 2.0, "deadline": None},
            ["arrived", "arrived", "redundant", "redundant"],
            ["0", "1"],
            2.0,
        ),
    ],
    ids=["failed in the world", "late in the world", "failed on the host", "overcommitted"],
)
def test_the_world_determines_who_is_aggregated_and_how_long_the_round_takes(
    open_fleet: OpenFleet,
    seconds: list[float | None],
    troubles: dict[int, str],
    fleet: dict[str, Any],
    kinds: list[str],
    aggregated: list[str],
    waited: float,
) -> None:
    scheduler, spy = open_fleet(**{"settings": {"cohort_size": 3}, **fleet}), Spy()
    grid = InProcessGrid(partitions(len(seconds)))
    for row, node in enumerate(grid.nodes.values()):
        node.seconds, node.trouble = 4.0 - row, troubles.get(row)  # on the host the order is reversed
    result = train(scheduler, grid, spy, rounds=1, simulated=Scripted(seconds))
    assert list(kinds_in(scheduler, 1).values()) == kinds
    assert spy.aggregated == [aggregated]
    assert result.train_metrics_clientapp[1]["turnout-round-seconds"] == waited
    assert all(turn.why == "failed in the simulated world" for turn in scheduler.history("1") if None in seconds)


def test_the_deadline_of_the_world_does_not_limit_the_lifetime_of_messages(open_fleet: OpenFleet) -> None:
    """Simulated seconds are unrelated to the time that the host needs."""
    scheduler, grid = open_fleet(deadline=10.0), InProcessGrid(partitions(3))
    for node in grid.nodes.values():
        node.seconds = 500.0
    train(scheduler, grid, rounds=1, timeout=3600, simulated=Scripted([1.0, 2.0, 3.0]))
    assert {sent.ttl for sent in grid.sent("train")[0]} == {3960.0}
    assert set(kinds_in(scheduler, 1).values()) == {"arrived"}


def test_contexts_come_from_the_simulated_world(open_fleet: OpenFleet) -> None:
    world = PaperWorld(1, clients=3, availability=1.0, model_size=35.0)
    fleet, contexts = SimulatedFleet(world, model_size=20.0), world.offer(1).contexts
    scheduler = open_fleet(settings={"cohort_size": 3})
    scheduler.choose(fleet.statuses(1, ["0", "1", "2"]))
    opened = scheduler.open_round
    assert opened is not None
    assert opened.contexts[:, 0] == pytest.approx(contexts[:, 0])
    assert opened.contexts[:, 2] == pytest.approx(contexts[:, 2])


@pytest.mark.parametrize("client", ["c1", "6", "-1", "²"])
def test_a_client_that_is_not_in_the_world_is_refused(client: str) -> None:
    fleet = SimulatedFleet(PaperWorld(clients=CLIENTS), 20.0)
    with pytest.raises(SettingError, match=f"client '{client}' is not in the simulated world, which has 0 to 5"):
        fleet.statuses(1, ["0", client])


def test_client_ids_outside_the_world_are_refused_before_training(open_fleet: OpenFleet) -> None:
    grid = InProcessGrid(named_nodes(3))
    with pytest.raises(SettingError, match="give the world as many clients as there are nodes"):
        train(open_fleet(), grid, simulated=PaperWorld(clients=3))
    assert grid.sent("train") == []


def test_a_world_with_other_features_is_refused() -> None:
    class Other(Scripted):
        def offer(self, round: int) -> RoundOffer:
            return RoundOffer(round, np.ones(2, dtype=np.bool_), np.ones((2, 5)))

    with pytest.raises(SettingError, match="needs the paper's 3 features, this one has 5"):
        SimulatedFleet(Other([1.0, 2.0]), 20.0).statuses(1, ["0"])


class ClockedScript(Scripted):
    """A scripted world with a clock, which `moments` records; nobody is available before second 25."""

    idle_seconds = 10.0

    def __init__(self, seconds: list[float | None]) -> None:
        super().__init__(seconds)
        self.moments: list[float] = []

    def set_clock(self, seconds: float) -> None:
        self.moments.append(seconds)

    def offer(self, round: int) -> RoundOffer:
        offer = super().offer(round)
        return RoundOffer(round, np.full(self.clients, self.moments[-1] >= 25.0), offer.contexts)


def test_without_rounds_the_clock_of_the_world_goes_on_while_nobody_is_available() -> None:
    world = ClockedScript([5.0, None])
    slots = SimulatedSlots(world, 20.0)
    while not (statuses := slots.statuses(1, ["0", "1"])):
        assert slots.next_turn() is None
    assert world.moments == [0.0, 10.0, 20.0, 30.0]
    assert sorted(statuses) == ["0", "1"]
    slots.give({7: "0", 8: "1"})
    assert slots.next_turn() == 8  # it fails at once
    assert slots.end(8) is None
    assert slots.next_turn() == 7
    assert (slots.end(7), slots.now) == (5.0, 35.0)
    again = SimulatedSlots(ClockedScript([5.0, None]), 20.0)
    again.restore(slots.state())
    assert again.state() == slots.state() == {"world": {}, "now": 35.0, "offers": 4}


def test_without_a_clock_no_time_passes_while_nobody_is_available() -> None:
    slots = SimulatedSlots(Scripted([5.0], {1: {0}}), 20.0)
    assert slots.statuses(1, ["0"]) == {}
    assert slots.next_turn() is None
    assert slots.now == 0.0


def test_a_world_that_combines_cohorts_needs_rounds() -> None:
    class Combining(Scripted):
        combines_cohorts = True

    with pytest.raises(SettingError, match="combines the results of a cohort: use it in a fleet with rounds"):
        SimulatedSlots(Combining([1.0]), 20.0)
