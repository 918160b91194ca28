"""Clients keep their identity while node ids change, and the selection uses their latest status."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message

from adapters.flower.conftest import OpenFleet
from adapters.flower.in_process import (
    Clock,
    InProcessGrid,
    Node,
    Spy,
    after,
    between_rounds,
    named_node,
    named_nodes,
    open_to_all,
    plain_app,
    train,
    turns_of,
)
from narrowing import known
from turnout.adapters.flower import identify_clients
from turnout.adapters.flower.client import Status, with_status
from turnout.adapters.flower.core.nodes import FIRST_CAPACITY, StatusTable
from turnout.live import FleetReader, Scheduler
from turnout.live.features import Feature, Features

pytestmark = pytest.mark.usefixtures("clock")

QUERY = "query.turnout"


# Client ids


def test_a_client_keeps_its_history_when_its_node_id_changes(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(), InProcessGrid(named_nodes(4))

    def restart(number: int) -> None:
        """Restarts all SuperNodes with new node ids."""
        nodes = [named_node(f"c{row}", 1000 * (number + 1) + row) for row in range(4)]
        grid.nodes = {node.node_id: node for node in nodes}

    for _ in range(2):  # the server is restarted as well
        train(scheduler, grid, rounds=4, evaluate_fn=between_rounds(restart))
    assert scheduler.clients == ["c0", "c1", "c2", "c3"]
    assert set(turns_of(scheduler).values()) <= {3, 4, 5}  # all of them are cold starts, which teach little
    assert sum(turns_of(scheduler).values()) == 16
    assert [len(push) for push in grid.sent(QUERY)] == [4] * 8


def test_of_two_nodes_of_a_client_the_newer_is_selected(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler, grid = open_fleet(settings={"cohort_size": 3}), InProcessGrid(named_nodes(3))
    join = after(1, lambda: grid.add(named_node("c1", 50)))  # a lower node id, but connected later
    train(scheduler, grid, rounds=3, evaluate_fn=join)
    trained = [sorted(sent.node_id for sent in push) for push in grid.sent("train")]
    assert trained == [[100, 101, 102], [50, 100, 102], [50, 100, 102]]
    assert caplog.text.count("nodes 101 and 50 both report the client id 'c1'; messages go to the newer one") == 1
    assert turns_of(scheduler) == {"c0": 3, "c1": 3, "c2": 3}


def test_an_app_without_with_status_is_identified_by_its_node_id_with_a_warning(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = open_fleet(settings={"cohort_size": 3})
    grid = InProcessGrid([*named_nodes(2), Node(777, plain_app(), {"partition-id": 5}, 1.0)])
    train(scheduler, grid, rounds=3)
    assert scheduler.clients == ["777", "c0", "c1"]
    assert turns_of(scheduler) == {"777": 3, "c0": 3, "c1": 3}
    assert caplog.text.count("1 client does not report an id (nodes 777, …)") == 1
    assert "end client_app.py with app = with_status(app)" in caplog.text
    assert len(grid.sent(QUERY)) == 1


def test_a_changed_client_id_is_taken_with_a_warning(open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture) -> None:
    scheduler, grid = open_fleet(), InProcessGrid(named_nodes(2))
    rename = after(1, lambda: grid.nodes[101].config.update({"client-id": "c9"}))
    train(scheduler, grid, rounds=4, evaluate_fn=rename)
    assert "node 101 was client 'c1' and now reports the id 'c9'" in caplog.text
    assert turns_of(scheduler) == {"c0": 4, "c1": 2, "c9": 2}


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 1025])
def test_an_invalid_client_id_is_replaced_by_the_node_id_and_the_log_says_so_once(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    scheduler, grid = open_fleet(), InProcessGrid([named_node("c0", 100), named_node(name, 555)])
    train(scheduler, grid, rounds=2)
    assert turns_of(scheduler) == {"555": 2, "c0": 2}
    assert caplog.text.count(f"the client-id of node 555 is {name[:49]!r}"[:60]) == 1


def test_an_id_cannot_forge_lines_of_the_log(open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture) -> None:
    forged = "c1\nturnout: round 7 closed\x1b[2J"
    grid = InProcessGrid([named_node("c0", 100), named_node(forged, 101)])
    grid.nodes[101].trouble = "raises"
    train(open_fleet(), grid, rounds=2)
    ours = [record.getMessage() for record in caplog.records if record.getMessage().startswith("turnout: ")]
    assert any(r"c1\nturnout: round 7 closed\x1b[2J" in line for line in ours)
    assert all(line.isprintable() for line in ours)


def test_a_client_that_is_forgotten_while_it_is_connected_joins_as_a_new_one(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(settings={"cohort_size": 3}), InProcessGrid(named_nodes(3))
    train(scheduler, grid, rounds=4, evaluate_fn=after(2, lambda: scheduler.forget("c1")))
    assert scheduler.clients == ["c0", "forgotten-1", "c2", "c1"]
    assert turns_of(scheduler)["c1"] == 2


# Nodes that the grid knows


def registered(count: int, **described: Any) -> list[Node]:
    """Returns nodes that are registered at the SuperLink as h0, h1, …, and whose clients call themselves c0, c1, …."""
    nodes = named_nodes(count)
    for row, node in enumerate(nodes):
        node.described = {"name": f"h{row}", **described}
    return nodes


class OlderGrid(InProcessGrid):
    """Knows only node ids, as the grids before Flower 1.41."""

    @property
    def get_nodes(self) -> Any:
        raise AttributeError


@pytest.mark.parametrize(
    ("grid", "queried", "clients"),
    [
        (InProcessGrid(registered(3)), [], ["h0", "h1", "h2"]),
        (InProcessGrid([*registered(2), named_node("c9", 900)]), [["c9"]], ["c9", "h0", "h1"]),
        (OlderGrid(registered(3)), [["c0", "c1", "c2"]], ["c0", "c1", "c2"]),
    ],
    ids=["all have names", "some have names", "no names are known"],
)
def test_the_registered_name_is_the_client_id_and_only_nodes_without_one_are_queried(
    open_fleet: OpenFleet, grid: InProcessGrid, queried: list[list[str]], clients: list[str]
) -> None:
    scheduler = open_fleet(settings={"cohort_size": 3})
    train(scheduler, grid, rounds=3)
    assert grid.asked(QUERY) == queried
    assert turns_of(scheduler) == dict.fromkeys(clients, 3)


@pytest.mark.parametrize("is_first", [True, False])
def test_no_other_node_can_use_a_registered_name_as_its_id(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture, is_first: bool
) -> None:
    """Neither if it was there before, nor if it joins."""
    impostor, nodes = named_node("h0", 900), registered(2)
    impostor.config["free_cpu"] = 500.0
    scheduler, grid = open_fleet(settings={"cohort_size": 2}), InProcessGrid([impostor] if is_first else nodes)
    spy = ContextSpy(scheduler)
    join = after(1, lambda: grid.add(*(nodes if is_first else [impostor])))
    train(scheduler, grid, spy, rounds=4, evaluate_fn=join)
    assert "node 900 reports the id 'h0', under which another is registered" in caplog.text
    trained = {sent.node_id for push in grid.sent("train")[1:] for sent in push if sent.client != "c1"}
    assert trained <= {100, 900}
    assert "900" in scheduler.clients
    assert all(contexts["h0"][0] == 1.0 for contexts in spy.contexts[2:] if "h0" in contexts)


def test_the_status_of_a_registered_node_is_used_as_soon_as_it_replies(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(settings={"cohort_size": 2}), InProcessGrid(registered(2))
    for node in grid.nodes.values():
        node.config["free_cpu"] = 4.0
    spy = ContextSpy(scheduler)
    train(scheduler, grid, spy, rounds=2)
    assert [contexts["h0"][0] for contexts in spy.contexts] == [1.0, 0.25]


def test_of_two_nodes_with_the_same_name_the_one_registered_later_is_selected(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = registered(2, name="h0")
    nodes[0].described["registered_at"] = "2026-03-02T00:00:00+00:00"
    nodes[1].described["registered_at"] = "2026-03-01T00:00:00+00:00"
    scheduler, grid = open_fleet(), InProcessGrid(nodes)
    train(scheduler, grid, rounds=2)
    assert [[sent.node_id for sent in push] for push in grid.sent("train")] == [[100], [100]]
    assert "nodes 100 and 101 both report the client id 'h0'; messages go to the newer one, 100" in caplog.text


# Clients that join and leave


def test_a_client_may_leave_and_return_with_another_node_id(open_fleet: OpenFleet) -> None:
    scheduler, grid = open_fleet(settings={"cohort_size": 3}), InProcessGrid(named_nodes(3))

    def leave_and_return(number: int) -> None:
        if number == 2:
            del grid.nodes[101]
        if number == 4:
            grid.add(named_node("c1", 888))

    result = train(scheduler, grid, rounds=6, evaluate_fn=between_rounds(leave_and_return))
    everybody, others = ["c0", "c1", "c2"], ["c0", "c2"]
    expected = [everybody, everybody, others, others, everybody, everybody]
    assert grid.asked("train") == grid.asked("evaluate") == expected
    assert len(result.train_metrics_clientapp) == 6
    assert scheduler.clients == everybody


def test_with_no_node_connected_the_server_waits_for_one(open_fleet: OpenFleet, clock: Clock) -> None:
    scheduler, grid = open_fleet(), InProcessGrid(named_nodes(2))

    def disconnect_all() -> None:
        grid.nodes.clear()
        clock.after(50.0, lambda: grid.add(named_node("c0", 700)))

    train(scheduler, grid, rounds=3, evaluate_fn=after(1, disconnect_all))
    assert grid.asked("train") == [["c0", "c1"], ["c0"], ["c0"]]


# Statuses


def nodes_with_status(first: Status) -> list[Node]:
    """Returns a node with this status and two nodes with a valid one."""
    apps = [with_status(plain_app(), status) for status in (first, valid_status, valid_status)]
    return [Node(100 + row, app, {"client-id": f"c{row}"}, 1.0) for row, app in enumerate(apps)]


def valid_status(_: Context) -> dict[str, float]:
    return {"free_cpu": 1.0, "bandwidth": 2.0}


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ({"free_cpu": float("nan"), "bandwidth": 2.0}, "free_cpu of 'c0' must be from 0.001 to 1000 cores, got nan"),
        ({"free_cpu": 1.0}, "the status of 'c0' has no 'bandwidth'"),
    ],
)
def test_a_status_out_of_range_counts_as_unknown(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture, status: dict[str, float], problem: str
) -> None:
    cpu = [status]
    scheduler, grid = open_fleet(settings={"cohort_size": 3}), InProcessGrid(nodes_with_status(lambda _: cpu[0]))
    spy = ContextSpy(scheduler)
    recover = after(1, lambda: cpu.__setitem__(0, {"free_cpu": 4.0, "bandwidth": 2.0}))
    train(scheduler, grid, spy, rounds=3, evaluate_fn=recover)
    assert turns_of(scheduler) == {"c0": 3, "c1": 3, "c2": 3}
    assert f"the status of a client counts as unknown: {problem}" in caplog.text
    assert [contexts["c0"][0] for contexts in spy.contexts] == [1.0, 1.0, 0.25]


def test_a_failing_status_function_loses_neither_the_client_nor_its_model(
    open_fleet: OpenFleet, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(context: Context) -> dict[str, float]:
        raise PermissionError(f"no counters for node {context.node_id}")

    scheduler, grid = open_fleet(settings={"cohort_size": 3}), InProcessGrid(nodes_with_status(broken))
    train(scheduler, grid, rounds=2)
    assert turns_of(scheduler) == {"c0": 2, "c1": 2, "c2": 2}
    assert {turn.kind for turn in scheduler.history("c0")} == {"arrived"}
    assert (
        "the status of this client could not be determined: PermissionError('no counters for node 100')" in caplog.text
    )


class ContextSpy(Spy):
    """Records the context of each selected client."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self.scheduler, self.contexts = scheduler, list[dict[str, list[float]]]()

    def configure_train(self, server_round: int, *args: Any) -> Iterable[Message]:
        with FleetReader(self.scheduler.path) as reader:
            offer = known(reader.offer(self.scheduler.round))
        ids, contexts = self.scheduler.clients, known(offer.whole_contexts())
        self.contexts.append({ids[row]: contexts[row].tolist() for row in offer.rows.tolist()})
        return super().configure_train(server_round, *args)


def test_the_selection_uses_the_status_of_the_latest_reply(open_fleet: OpenFleet) -> None:
    calls = [0]

    def busier(_: Context) -> dict[str, float]:
        calls[0] += 1
        return {"free_cpu": 1 / calls[0], "bandwidth": 20.0}

    scheduler = open_fleet(settings={"cohort_size": 3})
    spy, grid = ContextSpy(scheduler), InProcessGrid(nodes_with_status(busier))
    train(scheduler, grid, spy, rounds=3)
    # one query, then one status with each training reply
    assert [contexts["c0"] for contexts in spy.contexts] == [
        [pytest.approx(1.0), 1.0, 1.0],
        [pytest.approx(2.0), 0.0, 1.0],
        [pytest.approx(3.0), 0.0, 1.0],
    ]
    assert len(grid.sent(QUERY)) == 1


def test_custom_features_are_read_from_the_status(open_fleet: OpenFleet) -> None:
    features = Features.of(Feature("battery", 0.0, 1.0), Feature("images", 1.0, 1e6))
    scheduler = open_fleet(features=features, settings={"cohort_size": 2})
    spy = ContextSpy(scheduler)
    app = with_status(plain_app(), lambda context: {"battery": 0.5, "images": float(context.node_id)})
    grid = InProcessGrid(
        [Node(100, app, {"client-id": "c0"}), Node(101, app, {"client-id": "c1"}), Node(102, plain_app())]
    )
    train(scheduler, grid, spy, rounds=2)
    read = {client: context for contexts in spy.contexts for client, context in contexts.items()}
    assert read == {"c0": [0.5, 100.0], "c1": [0.5, 101.0], "102": [1.0, 1.0]}
    assert spy.seen == {"arrays", "metrics"}  # the strategy does not see the statuses


# Queries


def test_only_new_nodes_are_queried(open_fleet: OpenFleet) -> None:
    grid = InProcessGrid(named_nodes(3))
    join = after(2, lambda: grid.add(named_node("c3", 900)))
    train(open_fleet(), grid, rounds=5, evaluate_fn=join)
    assert grid.asked(QUERY) == [["c0", "c1", "c2"], ["c3"]]


@pytest.mark.parametrize(("trouble", "queried"), [("silent", [1]), ("gone", [1, 2, 4, 8])])
def test_a_node_is_queried_again_only_if_its_query_failed_after_1_2_and_4_rounds(
    open_fleet: OpenFleet, clock: Clock, trouble: str, queried: list[int]
) -> None:
    scheduler, grid = open_fleet(), InProcessGrid(named_nodes(3))
    grid.client("c2").trouble, grid.client("c2").troubled = trouble, ("query", "evaluate")
    start, rounds = clock.now, list[int]()
    grid.before = lambda operation: rounds.append(scheduler.round + 1) if operation == "push" else None
    train(scheduler, grid, open_to_all(fraction_evaluate=0.0), rounds=10, patience=7)
    assert [rounds[index] for index, push in enumerate(grid.pushes) if push[0].kind == QUERY] == queried
    assert clock.now - start == (7 if trouble == "silent" else 0) + 10 * 1  # only the first contact waits
    assert scheduler.clients == ["c0", "c1"]


def test_an_answer_counts_however_late(open_fleet: OpenFleet, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    nodes = named_nodes(3)
    for node in nodes:
        node.query_seconds = 60.0  # its app imports torch on a busy machine
    scheduler, grid, start = open_fleet(settings={"cohort_size": 3}), InProcessGrid(nodes), clock.now
    train(scheduler, grid, rounds=2, patience=2)
    assert grid.asked("train") == [["c0", "c1", "c2"]] * 2
    assert grid.asked(QUERY) == [["c0", "c1", "c2"]]
    assert clock.now - start == 60 + 2 * 1
    assert "3 nodes have not given an id yet" in caplog.text


def test_nobody_waits_for_a_node_that_joins(open_fleet: OpenFleet, clock: Clock) -> None:
    grid, newcomer, ends = InProcessGrid(named_nodes(2)), named_node("c2", 900), list[float]()
    newcomer.query_seconds = 2.5

    def join(number: int) -> None:
        ends.append(clock.now)
        if number == 1:
            grid.add(newcomer)

    scheduler, evaluate = open_fleet(settings={"cohort_size": 3}), between_rounds(join)
    train(scheduler, grid, open_to_all(fraction_evaluate=0.0), rounds=6, patience=30, evaluate_fn=evaluate)
    assert {end - begin for begin, end in itertools.pairwise(ends)} == {1.0}
    assert [len(asked) for asked in grid.asked("train")] == [2, 2, 2, 2, 3, 3]


def test_nodes_that_answer_one_after_the_other_are_all_identified(open_fleet: OpenFleet, clock: Clock) -> None:
    """Thousands of virtual nodes share a few cores."""
    nodes = named_nodes(12)
    for row, node in enumerate(nodes):
        node.query_seconds = 3.0 * row
    scheduler, grid, start = open_fleet(settings={"cohort_size": 12}), InProcessGrid(nodes), clock.now
    train(scheduler, grid, rounds=1, patience=5)
    assert len(grid.asked("train")[0]) == 12
    assert clock.now - start == 33 + 1
    assert {sent.ttl > 3600 for sent in grid.sent(QUERY)[0]} == {True}


def test_many_nodes_are_queried_a_few_at_a_time_while_the_others_train(open_fleet: OpenFleet) -> None:
    """As long as one round needs: the first round of a large fleet would wait for all of them otherwise."""
    scheduler, grid = open_fleet(settings={"cohort_size": 20, "guaranteed_rate": 0.01}), InProcessGrid(named_nodes(240))
    train(scheduler, grid, open_to_all(fraction_evaluate=0.0), rounds=4)
    assert [len(push) for push in grid.sent(QUERY)] == [48, 48, 48, 48]
    assert [len(cohort) for cohort in grid.asked("train")] == [20] * 4
    assert len(scheduler.clients) == 4 * 48


def test_queries_go_on_until_a_round_has_enough_clients(open_fleet: OpenFleet) -> None:
    nodes = named_nodes(130)
    for node in nodes[126:]:
        node.config["ward"] = "icu"
    scheduler, grid = open_fleet(settings={"cohort_size": 3}), InProcessGrid(nodes)
    train(scheduler, grid, open_to_all(fraction_evaluate=0.0), rounds=1, eligible={"ward": ["icu"]})
    assert [len(push) for push in grid.sent(QUERY)] == [48, 48, 34]
    assert scheduler.clients == ["c126", "c127", "c128", "c129"]


def test_identify_clients_returns_the_node_of_each_client_that_answers(clock: Clock) -> None:
    grid, start = InProcessGrid([*named_nodes(2), Node(777, plain_app())]), clock.now
    grid.client("c1").trouble, grid.client("c1").troubled = "silent", ("query",)
    assert identify_clients(grid, patience=4.0) == {"777": 777, "c0": 100}
    assert clock.now - start == pytest.approx(4.0)


def test_the_table_of_statuses_grows_and_keeps_its_values() -> None:
    table = StatusTable(Features.of(Feature("battery", 0.0, 5.0)))
    table.put("first", {"battery": 4.0})
    many = [f"c{number}" for number in range(3 * FIRST_CAPACITY)]
    assert table.rows(many).tolist() == list(range(1, len(many) + 1))
    table.put(many[-1], {"battery": 3.0})
    table.put("last", {})
    everybody = table.rows(["first", *many, "last"])
    offered = np.asarray(table.offer(everybody, everybody).columns["battery"])
    assert offered.tolist() == [4.0, *[1.0] * (len(many) - 1), 3.0, 1.0]


# Cold starts


def test_the_first_exchange_of_a_node_teaches_no_speed(open_fleet: OpenFleet) -> None:
    """The node of c1 is replaced by a new one after round 3."""
    scheduler = open_fleet(settings={"cohort_size": 2, "guaranteed_rate": 0.5})
    grid = InProcessGrid(named_nodes(2))

    def replace_node() -> None:
        del grid.nodes[101]
        grid.add(named_node("c1", 500))

    train(scheduler, grid, rounds=5, evaluate_fn=after(3, replace_node))
    assert cold_clients(scheduler) == [["c0", "c1"], [], [], ["c1"], []]
    train(scheduler, grid, rounds=6)  # after a restart of the server alone, its nodes are as warm as before
    assert cold_clients(scheduler)[5:] == [[]] * 6


def test_a_node_that_leaves_and_returns_is_cold_although_its_number_is_the_same(open_fleet: OpenFleet) -> None:
    """A registered SuperNode keeps its number when it restarts; h1 is away in round 3."""
    scheduler, grid = open_fleet(settings={"cohort_size": 2, "guaranteed_rate": 0.5}), InProcessGrid(registered(2))
    away: list[Node] = []

    def leave_or_return(number: int) -> None:
        if number == 2:
            away.append(grid.nodes.pop(101))
        elif number == 3:
            grid.add(away.pop())

    train(scheduler, grid, rounds=5, evaluate_fn=between_rounds(leave_or_return))
    assert cold_clients(scheduler) == [["h0", "h1"], [], [], ["h1"], []]
    late = grid.nodes.pop(101)
    train(scheduler, grid, rounds=3, evaluate_fn=after(1, lambda: grid.add(late)))
    assert cold_clients(scheduler)[5:] == [[], ["h1"], []]  # it was not there when the server started again


def test_a_registered_node_that_restarts_between_two_selections_is_cold(open_fleet: OpenFleet) -> None:
    """The SuperLink knows when h1 was activated; it is never seen to be away."""
    scheduler, grid = open_fleet(settings={"cohort_size": 2, "guaranteed_rate": 0.5}), InProcessGrid(registered(2))
    restart = after(3, lambda: grid.nodes[101].described.update(last_activated_at="12:05"))
    train(scheduler, grid, rounds=6, evaluate_fn=restart)
    assert cold_clients(scheduler) == [["h0", "h1"], [], [], ["h1"], [], []]


def cold_clients(scheduler: Scheduler) -> list[list[str]]:
    """Returns for each closed round the clients whose times teach nothing."""
    with FleetReader(scheduler.path) as reader:
        return [
            [client for client, row in zip(closed.clients, closed.contexts, strict=True) if np.isnan(row).any()]
            for closed in reader.closed_rounds()
        ]
