"""Without rounds, a client trains whenever a slot is free, and every so many updates make a version of the model."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedXgbBagging,
    QFedAvg,
    Strategy,
)

from adapters.flower.conftest import OpenFleet
from adapters.flower.in_process import (
    Clock,
    InProcessGrid,
    Spy,
    after,
    named_node,
    named_nodes,
    open_to_all,
    partitions,
    step_of,
    train,
    turns_of,
    weights,
)
from adapters.flower.killable_app import Killed
from adapters.flower.test_poison import nodes as changed_nodes
from adapters.flower.test_poison import with_arrays, with_metrics
from adapters.flower.test_simulated import Scripted
from turnout.adapters.flower import FairSelection
from turnout.adapters.flower.slots.updates import rebase
from turnout.errors import SettingError, TrainingError
from turnout.lab import PaperWorld
from turnout.live import Scheduler

pytestmark = pytest.mark.usefixtures("clock")

SLOTS: dict[str, Any] = {"settings": {"guaranteed_rate": 0.05}, "concurrency": 2, "deadline": None}


class AsyncSpy(Spy):
    """Works without rounds: what it keeps are notes only."""

    works_without_rounds = True


def all_turns(scheduler: Scheduler) -> list[tuple[str, str | None]]:
    """Returns the client and the outcome of each turn, in the order of the decisions."""
    turns = (scheduler.history(round=decision)[0] for decision in range(1, scheduler.round + 1))
    return [(turn.id, turn.kind) for turn in turns]


def start(scheduler: Scheduler, grid: InProcessGrid, strategy: Strategy | None = None, **settings: Any) -> Any:
    strategy = open_to_all(fraction_evaluate=0.0) if strategy is None else strategy
    return train(scheduler, grid, strategy, **settings)


# Slots and versions


def test_slots_are_filled_as_soon_as_they_are_free_without_waiting_for_others(
    open_fleet: OpenFleet, clock: Clock
) -> None:
    scheduler = open_fleet(**SLOTS)
    grid = InProcessGrid(named_nodes(4, [1.0, 1.0, 1.0, 1000.0]))
    begun = clock.now
    result = start(scheduler, grid, updates_per_version=2, rounds=40)
    assert clock.now - begun < 200  # 80 updates: in rounds, each with the slow client would take 1,000 s
    assert list(result.train_metrics_clientapp) == list(range(1, 41))
    assert [turn.client for turn in scheduler.running()][:1] == ["c3"]
    assert [client for push in grid.asked("train") for client in push].count("c3") == 1  # nobody trains twice at once
    arrived = Counter(client for client, kind in all_turns(scheduler) if kind == "arrived")
    assert sum(arrived.values()) in (80, 81)
    assert min(arrived[client] for client in ("c0", "c1", "c2")) > 10


@pytest.mark.parametrize(("settings", "updates"), [({"updates_per_version": 3}, 3), ({}, 2)])
def test_every_so_many_updates_make_a_version(open_fleet: OpenFleet, settings: dict[str, Any], updates: int) -> None:
    """By default, as many as there are slots."""
    spy, scheduler = AsyncSpy(), open_fleet(**SLOTS)
    result = start(scheduler, InProcessGrid(named_nodes(4, [1.0, 2.0, 3.0, 4.0])), spy, rounds=5, **settings)
    assert [len(replies) for replies in spy.aggregated] == [updates] * 5
    assert spy.seen == {"arrays", "metrics"}
    metrics = result.train_metrics_clientapp[5]
    assert metrics["turnout-arrived"] == updates
    assert metrics["turnout-failed"] == metrics["turnout-broken-promises"] == 0
    assert metrics["turnout-version-seconds"] > 0
    assert {"turnout-mean-staleness", "turnout-max-staleness", "train_loss"} <= set(metrics)


def test_a_single_slot_with_a_buffer_of_one_is_ordinary_training(open_fleet: OpenFleet) -> None:
    """Nothing is stale, so the model is the sum of all steps."""
    scheduler = open_fleet(**{**SLOTS, "concurrency": 1})
    result = start(scheduler, InProcessGrid(named_nodes(3)), rounds=6)
    clients = [int(client[1:]) for client, _ in all_turns(scheduler)][:6]
    assert weights(result.arrays) == pytest.approx(
        [sum(step_of(number, version) for version, number in enumerate(clients, start=1))]
    )
    assert {metrics["turnout-max-staleness"] for metrics in result.train_metrics_clientapp.values()} == {0}


def test_the_messages_carry_the_current_model_and_its_number(open_fleet: OpenFleet) -> None:
    grid = InProcessGrid(named_nodes(4, [1.0, 1.0, 1.0, 5.0]))
    seen: dict[int, list[float]] = {}
    start(
        open_fleet(**SLOTS),
        grid,
        updates_per_version=1,
        rounds=6,
        evaluate_fn=lambda number, arrays: seen.update({number: weights(arrays)}),
        train_config=ConfigRecord({"lr": 0.5}),
    )
    for push in grid.sent("train"):
        for sent in push:
            config = sent.content.config_records["config"]
            assert weights(sent.content.array_records["arrays"]) == seen[int(str(config["server-round"])) - 1]
            assert config["lr"] == 0.5  # of the app


# Staleness


@pytest.mark.parametrize(("discount", "factor"), [(0.5, 3**-0.5), (0.0, 1.0), (1.0, 1 / 3)])
def test_what_a_client_changed_is_added_to_the_current_model_with_a_discount(
    open_fleet: OpenFleet, discount: float, factor: float
) -> None:
    """FedBuff: two versions were made while the slow client trained."""
    scheduler = open_fleet(**SLOTS)
    result = start(
        scheduler, InProcessGrid(named_nodes(2, [1.0, 2.5])), updates_per_version=1, rounds=3, discount=discount
    )
    assert all_turns(scheduler)[:2] == [("c0", "arrived"), ("c1", "arrived")]
    staleness = [result.train_metrics_clientapp[number]["turnout-max-staleness"] for number in (1, 2, 3)]
    assert staleness == [0, 0, 2]
    expected = step_of(0, 1) + step_of(0, 2) + factor * step_of(1, 1)
    assert weights(result.arrays) == pytest.approx([expected])


@pytest.mark.parametrize("kind", [FedAdam, FedAvgM, FedMedian, QFedAvg])
def test_strategies_that_compare_updates_get_the_current_model(open_fleet: OpenFleet, kind: type[FedAvg]) -> None:
    like_fedavg: dict[type[FedAvg], dict[str, float]] = {
        FedAdam: {"tau": 1e4, "eta": 1e4, "beta_1": 0.0, "beta_2": 0.0},
        QFedAvg: {"client_learning_rate": 0.5, "q": 0.0},
    }
    strategy = open_to_all(kind, fraction_evaluate=0.0, **like_fedavg.get(kind, {}))
    result = start(
        open_fleet(**SLOTS), InProcessGrid(named_nodes(2, [1.0, 2.5])), strategy, updates_per_version=1, rounds=3
    )
    plain = step_of(0, 1) + step_of(0, 2) + 3**-0.5 * step_of(1, 1)
    assert weights(result.arrays) == pytest.approx([plain], rel=0.001)


class Skipping(AsyncSpy):
    """Makes no model of the updates of its second version."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        arrays, metrics = super().aggregate_train(server_round, replies)
        return (None if server_round == 2 else arrays), metrics


def test_a_version_that_leaves_the_model_unchanged_makes_no_update_older(open_fleet: OpenFleet) -> None:
    """While the slow client trains, two versions end, but only the first of them changes the model."""
    grid = InProcessGrid(named_nodes(2, [1.0, 2.5]))
    result = start(open_fleet(**SLOTS), grid, Skipping(), updates_per_version=1, rounds=3)
    staleness = [result.train_metrics_clientapp[number]["turnout-max-staleness"] for number in (1, 2, 3)]
    assert staleness == [0, 0, 1]
    assert weights(result.arrays) == pytest.approx([step_of(0, 1) + 2**-0.5 * step_of(1, 1)])


@pytest.mark.parametrize(("concurrency", "versions", "pushes"), [(1, 6, 6), (2, 2, 1)])
def test_a_strategy_is_configured_once_with_each_model_before_it_aggregates(
    open_fleet: OpenFleet, concurrency: int, versions: int, pushes: int
) -> None:
    """With two slots, two replies arrive together, and each makes a version: nothing is sent between the two."""
    spy, grid = AsyncSpy(), InProcessGrid(named_nodes(2))
    start(open_fleet(**{**SLOTS, "concurrency": concurrency}), grid, spy, updates_per_version=1, rounds=versions)
    assert spy.configured == list(range(1, versions + 1))
    assert len(grid.sent("train")) == pushes


def test_numbers_without_a_difference_are_those_of_the_client() -> None:
    def record(**arrays: Any) -> ArrayRecord:
        return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})

    sent = record(mask=[0.0, -np.inf], batches=np.int64(5), on=[True], half=np.array([1.0], np.float16))
    current = record(mask=[8.0, -np.inf], batches=np.int64(9), on=[True], half=np.array([3.0], np.float16))
    trained = record(mask=[2.0, -np.inf], batches=np.int64(7), on=[False], half=np.array([2.0], np.float16))
    other = record(steps=[1.0])
    content = RecordDict({"arrays": trained, "other": other, "metrics": MetricRecord({"num-examples": 1})})
    rebase(content, sent, current, 0.5)
    moved = content.array_records["arrays"]
    assert moved["mask"].numpy().tolist() == [9.0, -np.inf]
    assert moved["batches"].numpy() == 11  # whole numbers are not discounted
    assert moved["on"].numpy().tolist() == [False]
    assert moved["half"].numpy().tolist() == [3.5]
    assert moved["half"].dtype == "float16"
    assert content.array_records["other"]["steps"].numpy().tolist() == [1.0]


# Failures


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([np.nan], "its array 'weights'"),
        ([1.0, 2.0, 3.0], "its arrays are {'weights': (3,)}, which are not those of the model"),
    ],
)
def test_failures_and_replies_that_cannot_be_used_free_their_slots(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture, values: list[float], problem: str
) -> None:
    caplog.set_level(logging.INFO)
    spy, scheduler = AsyncSpy(), open_fleet(**SLOTS, backoff_after=1)
    grid = InProcessGrid(changed_nodes(5, with_arrays(weights=values), [1]))
    grid.client("c2").trouble, grid.client("c3").trouble = "raises", "gone"
    result = start(scheduler, grid, spy, updates_per_version=2, rounds=20)
    turns = all_turns(scheduler)
    ended = {client: {kind for other, kind in turns if other == client and kind} for client in scheduler.clients}
    assert ended == {"c0": {"arrived"}, "c1": {"failed"}, "c2": {"failed"}, "c3": {"failed"}, "c4": {"arrived"}}
    assert str(scheduler.history("c1")[0].why).startswith(f"its reply cannot be used: {problem}")
    assert scheduler.history("c2")[0].why == "out of memory (code 2)"
    assert np.isfinite(weights(result.arrays)).tolist() == [True]
    assert sum(metrics["turnout-failed"] for metrics in result.train_metrics_clientapp.values()) >= 3
    assert "error" in {name for replies in spy.aggregated for name in replies}
    assert "; failed " in caplog.text


class KeepsModel(AsyncSpy):
    """Aggregates nothing, so that replies may differ: old versions of Flower end the app then."""

    def __init__(self) -> None:
        super().__init__()
        self.fraction_evaluate = 0.0

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:  # noqa: ARG002
        self.aggregated.append([str(reply.metadata.src_node_id) for reply in replies])
        return None, None


def test_without_checks_a_reply_with_another_metric_is_used_without_rounds_too(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(**SLOTS), InProcessGrid(changed_nodes(3, with_metrics(accuracy=0.5), [1]))
    strategy = KeepsModel()
    start(scheduler, grid, strategy, rounds=6, check_replies=False, max_failed_rounds=None)
    assert {kind for _, kind in all_turns(scheduler) if kind} == {"arrived"}
    assert "c1" in {client for client, _ in all_turns(scheduler)}
    assert len({node for nodes in strategy.aggregated for node in nodes}) == 3


@pytest.mark.parametrize(
    ("trouble", "versions", "why"),
    [("unsent", 6, "the message could not be sent"), ("silent", 40, "no reply within 20 s")],
)
def test_a_message_that_cannot_be_sent_or_has_no_reply_within_the_timeout_is_a_failure(
    open_fleet: OpenFleet, trouble: Any, versions: int, why: str
) -> None:
    scheduler, grid = open_fleet(**SLOTS), InProcessGrid(named_nodes(3))
    grid.client("c1").trouble = trouble
    start(scheduler, grid, rounds=versions, timeout=20)
    assert scheduler.history("c1")[0].why == why


@pytest.mark.parametrize(
    ("deadline", "trouble", "window", "late_seconds", "line"),
    [
        (10.0, None, 10, 14.0, "c2, late, was back after 14.0 s"),
        (10.0, "raises", 10, None, "c2, late, did not come back: out of memory"),
        (4.0, None, 1, None, "failed c2: late"),  # it comes back after its time could be learned
    ],
)
def test_a_late_client_frees_its_slot_and_its_true_time_is_learned(
    open_fleet: OpenFleet,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    deadline: float,
    trouble: str | None,
    window: int,
    late_seconds: float | None,
    line: str,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("turnout.live.retention.LATE_ROUNDS", window)
    spy, scheduler = AsyncSpy(), open_fleet(**{**SLOTS, "deadline": deadline})
    grid = InProcessGrid(named_nodes(3, [1.0, 1.0, 14.0]))
    grid.client("c2").trouble = trouble
    start(scheduler, grid, spy, rounds=18)
    late = scheduler.history("c2")[0]
    assert (late.kind, late.seconds, late.late_seconds) == ("late", deadline, late_seconds)
    assert line in caplog.text
    assert "2" not in {name for replies in spy.aggregated for name in replies}


def test_a_policy_without_a_guarantee_is_summarised_without_a_promise(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    result = start(open_fleet(**{**SLOTS, "policy": "random", "settings": {}}), InProcessGrid(named_nodes(3)))
    assert "updates with a mean staleness of" in caplog.text
    assert "; promise " not in caplog.text
    assert not [name for name in result.train_metrics_clientapp[1] if "promise" in name or "behind" in name]


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_fleet_that_only_fails_ends_the_run_which_can_be_resumed(open_fleet: OpenFleet, concurrency: int) -> None:
    """With one slot, failures come one at a time: the count of each version begins with none."""
    scheduler = open_fleet(**{**SLOTS, "concurrency": concurrency}, backoff_after=99)
    grid = InProcessGrid(named_nodes(3))
    for node in grid.nodes.values():
        node.trouble = "raises"
    with pytest.raises(TrainingError, match="5 rounds in a row have failed, the last one because no reply could be"):
        start(scheduler, grid, rounds=20)
    kinds = Counter(kind for _, kind in all_turns(scheduler))
    assert kinds.pop("failed") == 50  # each of the five versions ended after ten failures in a row
    assert set(kinds) <= {None}
    for node in grid.nodes.values():
        node.trouble = None
    result = start(scheduler, grid, rounds=20)  # the corrected app resumes
    assert list(result.train_metrics_clientapp) == list(range(1, 21))


def test_a_version_does_not_wait_longer_than_the_timeout_for_its_updates(open_fleet: OpenFleet, clock: Clock) -> None:
    spy, scheduler = AsyncSpy(), open_fleet(**SLOTS)
    begun = clock.now
    start(scheduler, InProcessGrid(named_nodes(2, [1.0, 99.0])), spy, updates_per_version=50, rounds=1, timeout=20)
    assert 20 <= clock.now - begun < 22
    assert 10 < len(spy.aggregated[0]) < 50


def test_nodes_may_vanish_and_join_during_a_run(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(**SLOTS), InProcessGrid(named_nodes(3))

    def change() -> None:
        del grid.nodes[100]
        grid.add(named_node("c9", 999))

    start(scheduler, grid, rounds=30, timeout=50, evaluate_fn=after(5, change))
    assert turns_of(scheduler)["c9"] > 3
    assert turns_of(scheduler)["c0"] <= 10


@pytest.mark.parametrize("trouble", [None, "silent"])
def test_slots_are_filled_while_a_node_identifies_itself(
    open_fleet: OpenFleet, clock: Clock, trouble: str | None
) -> None:
    scheduler, grid = open_fleet(**SLOTS), InProcessGrid(named_nodes(3))
    slow = named_node("c9", 999)
    slow.query_seconds, slow.trouble, slow.troubled = 25.0, trouble, ("query",)
    begun = clock.now
    start(scheduler, grid, rounds=30, evaluate_fn=after(5, lambda: grid.add(slow)))
    assert clock.now - begun < 45  # 60 updates of 1 s in two slots, and the poll that finds each
    assert ("c9" in scheduler.clients) == (trouble is None)


def test_without_nodes_the_server_waits_for_them(open_fleet: OpenFleet, clock: Clock) -> None:
    scheduler, grid = open_fleet(**SLOTS), InProcessGrid(named_nodes(2))

    def vanish() -> None:
        gone = dict(grid.nodes)
        grid.nodes.clear()
        clock.after(30.0, lambda: grid.nodes.update(gone))

    result = start(scheduler, grid, rounds=6, timeout=100, evaluate_fn=after(3, vanish))
    assert list(result.train_metrics_clientapp) == list(range(1, 7))


def test_a_version_in_which_nobody_is_asked_and_nobody_answers_is_empty(open_fleet: OpenFleet, clock: Clock) -> None:
    """Both clients rest after their first turn."""
    scheduler = open_fleet(**{**SLOTS, "concurrency": 1}, min_turn_interval=1e6)
    spy, begun = AsyncSpy(), clock.now
    result = start(scheduler, InProcessGrid(named_nodes(2)), spy, rounds=4, timeout=20)
    assert spy.configured == [1, 2]
    arrived = {number: metrics["turnout-arrived"] for number, metrics in result.train_metrics_clientapp.items()}
    assert arrived == {1: 1, 2: 1, 3: 0, 4: 0}
    assert clock.now - begun >= 40
    assert weights(result.arrays) == pytest.approx([step_of(0, 1) + step_of(1, 2)])


# Evaluation


def test_clients_evaluate_every_so_many_versions_while_others_train(open_fleet: OpenFleet, clock: Clock) -> None:
    spy, scheduler = AsyncSpy(), open_fleet(**SLOTS)
    grid = InProcessGrid(named_nodes(4))
    grid.client("c3").trouble, grid.client("c3").troubled = "silent", ("evaluate",)
    begun = clock.now
    result = start(scheduler, grid, spy, rounds=7, evaluate_every=3, evaluate_deadline=40.0)
    assert list(result.evaluate_metrics_clientapp) == [3, 6, 7]
    assert clock.now - begun >= 120
    times = [turn.seconds for turn in scheduler.history("c0") if turn.kind == "arrived"]
    assert max(filter(None, times)) <= 1.25  # replies are timed while the server waits for evaluations
    assert len(all_turns(scheduler)) > 100  # and their slots are filled


def test_in_rounds_clients_may_evaluate_less_often_too(open_fleet: OpenFleet) -> None:
    result = train(open_fleet(), InProcessGrid(named_nodes(3)), rounds=5, evaluate_every=2)
    assert list(result.evaluate_metrics_clientapp) == [2, 4, 5]


# Resuming


def test_a_restarted_server_resumes_with_the_turns_that_were_running(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(**SLOTS)
    grid = InProcessGrid(named_nodes(4, [1.0, 1.0, 1.0, 50.0]))

    def die() -> None:
        raise Killed

    with pytest.raises(Killed):
        start(scheduler, grid, open_to_all(FedAdam, fraction_evaluate=0.0), rounds=9, evaluate_fn=after(4, die))
    path = scheduler.path.name
    running = scheduler.running()
    assert "c3" in {turn.client for turn in running}
    scheduler.close()
    scheduler = open_fleet(path)
    grid = InProcessGrid(named_nodes(4, [1.0, 1.0, 1.0, 2.0]))
    result = start(scheduler, grid, open_to_all(FedAdam, fraction_evaluate=0.0), rounds=9)
    assert list(result.train_metrics_clientapp) == list(range(1, 10))
    assert {turn.client for turn in running} <= set(grid.asked("train")[0])
    assert scheduler.history(round=running[0].id)[0].kind == "arrived"
    first = grid.sent("train")[0][0].content
    assert first.config_records["config"]["server-round"] == 5
    assert weights(first.array_records["arrays"]) != [0.0]


def test_a_turn_whose_client_is_gone_after_the_restart_has_failed(open_fleet: OpenFleet) -> None:
    scheduler = open_fleet(**SLOTS)
    scheduler.register(["c0", "c1", "c2"])
    turns = scheduler.fill({"c0": {"free_cpu": 1.0, "bandwidth": 2.0}, "c1": {"free_cpu": 1.0, "bandwidth": 2.0}})
    gone = next(turn for turn in turns if turn.client == "c1")
    start(scheduler, InProcessGrid([named_node("c0", 100), named_node("c2", 102)]), rounds=2)
    assert scheduler.history(round=gone.id)[0].why == "was not connected when the server restarted"


# Simulated worlds


def test_in_a_simulation_turns_end_in_the_order_of_the_simulated_times(open_fleet: OpenFleet) -> None:
    spy, scheduler = AsyncSpy(), open_fleet(**{**SLOTS, "concurrency": 3})
    grid = InProcessGrid(partitions(4))
    for node in grid.nodes.values():
        node.seconds = float(7 - node.node_id % 4)  # on the host, the order is another
    result = start(
        scheduler, grid, spy, simulated=Scripted([10.0, 100.0, 1000.0, None]), updates_per_version=1, rounds=30
    )
    assert {turn.seconds for turn in scheduler.history("0") if turn.kind == "arrived"} == {10.0}
    assert {turn.kind for turn in scheduler.history("3")} == {"failed"}
    assert Counter(name for replies in spy.aggregated for name in replies)["0"] > 20
    total = sum(metrics["turnout-version-seconds"] for metrics in result.train_metrics_clientapp.values())
    assert total % 10 == 0
    assert 250 <= total <= 320


def test_a_simulated_run_is_the_same_each_time_and_serves_everybody(open_fleet: OpenFleet) -> None:
    totals = []
    for name in ("one.turnout", "two.turnout"):
        scheduler = open_fleet(
            name, settings={"guaranteed_rate": "1/16", "tolerance": 1.0}, concurrency=4, deadline=None
        )
        result = start(scheduler, InProcessGrid(partitions(12)), simulated=PaperWorld(3, clients=12), rounds=12)
        totals.append((all_turns(scheduler), weights(result.arrays)))
        assert scheduler.certificate().status == "kept"
    assert totals[0] == totals[1]


# Settings


class Own(FedAvg):
    """A strategy of an app, with its own aggregation."""

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        return super().aggregate_train(server_round, replies)


class Declared(Own):
    works_without_rounds = True


class Renamed(FedAdam):
    """Has Flower's methods."""


@pytest.mark.parametrize(
    ("strategy", "problem"),
    [
        (lambda: open_to_all(Own), "Own cannot be used without rounds: Own has its own aggregate_train.*declare"),
        (lambda: open_to_all(FedXgbBagging), "FedXgbBagging cannot be used without rounds: its models are trees"),
        (
            lambda: DifferentialPrivacyServerSideFixedClipping(open_to_all(), 0.0, 1.0, 2),
            "its privacy holds only if each aggregation has at most one update of each client",
        ),
        (
            lambda: DifferentialPrivacyServerSideFixedClipping(open_to_all(Declared), 0.0, 1.0, 2),
            "cannot be used without rounds",
        ),
    ],
)
def test_strategies_that_need_rounds_are_refused(open_fleet: OpenFleet, strategy: Any, problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        FairSelection(strategy(), open_fleet(**SLOTS))


@pytest.mark.parametrize("kind", [Declared, Renamed])
def test_a_declaration_or_the_methods_of_flower_are_enough(open_fleet: OpenFleet, kind: type[FedAvg]) -> None:
    start(open_fleet(**SLOTS), InProcessGrid(named_nodes(3)), open_to_all(kind, fraction_evaluate=0.0))


def test_models_without_differences_are_refused(open_fleet: OpenFleet) -> None:
    trees = ArrayRecord({"0": Array(np.zeros(3, np.uint8))})
    fair = FairSelection(open_to_all(), open_fleet(**SLOTS))
    with pytest.raises(SettingError, match="the array '0' of the model holds serialized objects"):
        fair.start(InProcessGrid(named_nodes(2)), trees)
